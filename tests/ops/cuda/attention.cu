/* Paged attention on the device against the float64 oracle, on fresh random cases.
 *
 *     attention [cases] [seed] [steps]      prints "N passed, M failed"; exits 1 on any failure
 *
 * With fewer than 100 cases those are all that runs: for a sanitizer.
 *
 * Pools are NaN wherever no key was written, outputs are poisoned, tables are scattered. Besides
 * closeness: the same bits alone and in a batch, one row at a time (decode) and together (prefill),
 * in two chunks, by a replayed graph over other lengths; keys that decide the answer at every block
 * and chunk edge. */
#include "kernels/cuda/decode_entries.cuh"
#include "tests/ops/cuda/steps.cuh"

#include <time.h>

static const uint32_t lengths[] = {
	1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 1023, 1024, 1025, 3071, 3073, 4095, 4097};

static test_case random_case(int index)
{
	static const uint32_t dims[] = {64, 64, 80, 96, 128, 128, 256, 40, 72, 112, 192, 20, 33};
	static const uint32_t blocks[] = {8, 16, 16, 32, 64, 128, 4};
	static const uint32_t types[] = {NSV_BF16, NSV_BF16, NSV_F16, NSV_F32};
	test_case t = {};
	uint32_t order = below(8);
	set_shape(t, 1 + (uint32_t)index % 16, 1 + below(4), pick(dims), pick(blocks), pick(types),
		order < 4   ? TOKENS_FIRST
		: order < 7 ? HEADS_FIRST
			    : DIMS_FIRST);
	t.is_packed = below(3) == 0;
	if (below(4) == 0)
		t.shape.window = 1 + below(600);
	if (below(6) == 0)
		t.shape.softcap = 10.0f + (float)below(40);
	t.k_scale = below(3) ? 1.0f : 3.0f;
	uint32_t n_seq = index % 100 == 99 ? 1 : 1 + below(6);
	uint32_t many = below(3) ? 8 : 8 + below(400);
	for (uint32_t i = 0; i < n_seq; i++) {
		uint32_t n_kv = index % 100 == 99 ? 65537
				: below(3)	  ? pick(lengths)
						  : 1 + below(3000);
		add_seq(t, n_kv, below(10) == 0 ? 0 : below(2) ? 1 : 1 + below(many));
	}
	if (t.n_row == 0)
		add_seq(t, 70, 1);
	scatter(t, below(50));
	put_on_device(t);
	return t;
}

static void random_cases(nsv_cuda *cuda, int n)
{
	double worst[3] = {0.0, 0.0, 0.0};
	int n_packed = 0;
	for (int i = 0; i < n; i++) {
		test_case t = random_case(i);
		uint32_t type = t.shape.kv_dtype;
		check_close(cuda, t, &worst[type == NSV_F32 ? 2 : type == NSV_F16]);
		n_packed += t.is_packed;
		if (t.is_packed)
			check_packed(cuda, t);
		if (i % 4 == 0)
			check_bits(cuda, t);
		if (i % 8 == 0)
			check_graph(cuda, t);
	}
	printf("%d of %d cases packed\n", n_packed, n);
	printf("worst error as a part of its bound: bf16 %.2f, fp16 %.2f, fp32 %.2f\n", worst[0],
		worst[1], worst[2]);
}

/* A sequence for each edge, the needle at it. */
static void needle_cases(nsv_cuda *cuda, uint32_t dtype, bool is_packed, uint32_t dim,
	uint32_t block, uint32_t n_query)
{
	const uint32_t n_kv = 4097;
	double worst = 0.0;
	test_case t = {};
	vector<int32_t> at;
	for (uint32_t p = 0; p < n_kv; p += block) {
		at.push_back((int32_t)p);
		at.push_back((int32_t)std::min(p + block - 1, n_kv - 1));
	}
	set_shape(t, 3, 1, dim, block, dtype, HEADS_FIRST);
	t.is_packed = is_packed;
	t.shape.scale = 40.0f / (float)dim;
	t.k_scale = 0.1f;
	for (size_t i = 0; i < at.size(); i++)
		add_seq(t, n_kv, n_query);
	t.needles = at;
	scatter(t, 3);
	put_on_device(t);
	check_close(cuda, t, &worst);
	check_bits(cuda, t);
}

static void long_needles(nsv_cuda *cuda)
{
	double worst = 0.0;
	test_case t = {};
	set_shape(t, 4, 1, 128, 16, NSV_BF16, HEADS_FIRST);
	t.shape.scale = 40.0f / 128.0f;
	t.k_scale = 0.1f;
	for (int c = nsv::tile_chunk(1024) - 40; c <= nsv::tile_chunk(1024); c++)
		for (int off = -1; off < 1; off++) {
			t.needles.push_back(std::min(nsv::chunk_tile(c) * nsv::TILE + off, 65536));
			add_seq(t, 65537, 1);
		}
	scatter(t, 3);
	put_on_device(t);
	check_close(cuda, t, &worst);
}

/* Slots at addresses beyond 2^32 bytes of their pool. */
static void far_slots(nsv_cuda *cuda, enum order order)
{
	double worst = 0.0;
	test_case t = {};
	set_shape(t, 4, 8, 128, 16, NSV_BF16, order);
	for (uint32_t n_kv : lengths)
		add_seq(t, n_kv, n_kv % 2 ? 1 : 200);
	scatter(t, 150000);
	put_on_device(t);
	check_close(cuda, t, &worst);
}

/* Scores beyond any exponent that fp32 has, and rows whose tiles differ by as much. */
static void wild_scores(nsv_cuda *cuda, uint32_t dtype)
{
	test_case t = {};
	set_shape(t, 5, 2, 64, 16, dtype, TOKENS_FIRST);
	t.k_scale = 100.0f;
	for (uint32_t n_kv : lengths)
		add_seq(t, n_kv, n_kv % 2 ? 1 : 200);
	scatter(t, 3);
	put_on_device(t);
	check_bits(cuda, t);
	vector<char> out = outputs(cuda, t, t.seqs, t.max_query);
	bool finite = true;
	for (size_t i = 0; i < t.out_len / t.elem; i++)
		finite = finite && isfinite(value(t, out, i));
	verdict(finite, describe(t) + ": wild scores give no number");
}

/* What is wrong is refused on the host. */
static void refusals(nsv_cuda *cuda)
{
	test_case t = {};
	set_shape(t, 4, 2, 64, 16, NSV_BF16, TOKENS_FIRST);
	t.shape.n_block = 4;
	int32_t table[] = {0, 3, 1, 4};
	nsv_attn_seq seq = {0, 1, 40, 4, table};
	nsv_attn_plan plan;
	nsv_err err;
	verdict(nsv_cuda_attn_check(&t.shape, &seq, 1, 1, &plan, &err) == 0, "a good table");
	seq.n_past = 50;
	verdict(nsv_cuda_attn_check(&t.shape, &seq, 1, 1, &plan, &err) == -EINVAL,
		"a block outside the pool");
	seq.n_past = 70;
	verdict(nsv_cuda_attn_check(&t.shape, &seq, 1, 1, &plan, &err) == -EINVAL, "a short table");
	nsv_cuda_limits limits = {0, 1, 64, 0, 0};
	nsv_cuda_attn *attn;
	verdict(nsv_cuda_attn_new(cuda, &t.shape, nullptr, &limits, &attn, &err) == -EINVAL,
		"no sequences");
	limits = {1, 1, 64, 1, 1};
	t.shape.window = 8;
	verdict(nsv_cuda_attn_new(cuda, &t.shape, nullptr, &limits, &attn, &err) == -EINVAL,
		"prefixes of a window");
	nsv_cuda_kv kv = {NSV_CUDA_KV_E4M3, 2, 2};
	t.shape.window = 0;
	verdict(nsv_cuda_attn_new(cuda, &t.shape, &kv, &limits, &attn, &err) == -EINVAL,
		"scales between floats");
	limits = {1, 1, 64, 0, 0};
	t.shape.n_head = 7;
	verdict(nsv_cuda_attn_new(cuda, &t.shape, nullptr, &limits, &attn, &err) == -EINVAL,
		"7 heads on 2");
}

/* Leaves an entry of launch `left`, where that is not 0, and looks for one of `wanted`: *ret is 12 if
 * it is found, -1 if none is. */
static __global__ void look_for_entry(uint4 *at, uint64_t left, uint64_t wanted, float *ret)
{
	nsv::entry e = {};
	if (left)
		nsv::put_entry(at, 1.0f, 2.0f, left);
	e.ask(at);
	*ret = e.launch == wanted ? e.get().x * 10.0f + e.get().y : -1.0f;
}

static float found_entry(uint64_t left, uint64_t wanted)
{
	size_t mark = mem.at;
	uint4 *at = upload(vector<uint4>{{0, 0, 0, 0}});
	float ret, *d_ret = upload(vector<float>{0.0f});
	look_for_entry<<<1, 1>>>(at, left, wanted, d_ret);
	CHECK(cudaMemcpy(&ret, d_ret, sizeof(ret), cudaMemcpyDeviceToHost));
	mem.at = mark;
	return ret;
}

/* No number of a launch is that of what was never written, or of another launch. */
static void numbers_of_launches()
{
	uint64_t wrap = UINT64_C(1) << 32;
	verdict(found_entry(0, wrap) == -1.0f, "an entry where none was left");
	for (uint64_t n : {UINT64_C(1), wrap - 1, wrap, wrap + 1}) {
		verdict(found_entry(n, n) == 12.0f, "an entry that is not found");
		verdict(found_entry(n, n + wrap) == -1.0f, "an entry of 2^32 launches ago");
	}
}

static void steps(nsv_cuda *cuda, uint32_t n_query, int n)
{
	test_case t = {};
	set_shape(t, 3, 3, 64, 16, NSV_BF16, HEADS_FIRST);
	for (uint32_t n_kv : {20000u, 777u, 5000u})
		add_seq(t, n_kv, n_query);
	scatter(t, 3);
	put_on_device(t);
	check_steps(cuda, t, n);
}

static void edge_cases(nsv_cuda *cuda, int n_step)
{
	for (uint32_t dtype : {NSV_BF16, NSV_F16})
		for (uint32_t dim : {64u, 128u, 256u})
			for (uint32_t n_query : {1u, 40u})
				for (bool is_packed : {false, true})
					needle_cases(cuda, dtype, is_packed, dim,
						dim == 64 ? 16 : 32, n_query);
	long_needles(cuda);
	far_slots(cuda, TOKENS_FIRST);
	far_slots(cuda, HEADS_FIRST);
	for (uint32_t dtype : {NSV_BF16, NSV_F16, NSV_F32})
		wild_scores(cuda, dtype);
	steps(cuda, 1, n_step);
	steps(cuda, 300, n_step / 20);
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 2000;
	uint64_t seed = argc > 2 ? strtoull(argv[2], nullptr, 0) : (uint64_t)time(nullptr);
	struct nsv_cuda_probe probe;
	nsv_cuda *cuda;
	nsv_err err;
	if (nsv_cuda_probe(&probe, &err) < 0) {
		printf("skipped: %s\n", err.text);
		return 0;
	}
	setvbuf(stdout, nullptr, _IONBF, 0);
	printf("seed %llu; %s; %s; %s\n", (unsigned long long)seed, probe.library_text,
		probe.driver_text, probe.device_text);
	if (nsv_cuda_open(0, &cuda, &err) < 0) {
		printf("FAILED %s\n", err.text);
		return 1;
	}
	rng.seed(seed);
	mem.open((size_t)(n >= 100 ? 24 : 4) << 30);
	refusals(cuda);
	numbers_of_launches();
	random_cases(cuda, n);
	if (n >= 100)
		edge_cases(cuda, argc > 3 ? atoi(argv[3]) : 10000);
	nsv_cuda_close(cuda);
	printf("%d passed, %d failed\n", n_passed, n_failed);
	return n_failed != 0;
}
