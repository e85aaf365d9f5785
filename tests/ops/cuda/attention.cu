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
#include "kernels/cuda/order.cuh"
#include "tests/ops/cuda/oracle.cuh"

#include <algorithm>
#include <math.h>
#include <random>
#include <string.h>
#include <string>
#include <time.h>
#include <vector>

using std::vector;

static int n_passed, n_failed;
static struct arena mem;
static std::mt19937_64 rng;

static void verdict(bool ok, const std::string &what)
{
	n_passed += ok;
	n_failed += !ok;
	if (!ok)
		printf("FAILED %s\n", what.c_str());
}

static uint32_t below(uint32_t n)
{
	return (uint32_t)(rng() % n);
}

template <size_t N> static uint32_t pick(const uint32_t (&of)[N])
{
	return of[below(N)];
}

enum order { TOKENS_FIRST, HEADS_FIRST, DIMS_FIRST, N_ORDER };

/* (n_slot, n_kv_head, head_dim) | a head's slots of a block together | K dimension-major. */
static nsv_kv_layout make_layout(const nsv_attn_shape &s, enum order order)
{
	int64_t bs = s.block_size, h = s.n_kv_head, d = s.head_dim;
	if (order == TOKENS_FIRST)
		return {bs * h * d, h * d, d, 1};
	if (order == HEADS_FIRST)
		return {bs * h * d, d, bs * d, 1};
	return {bs * h * d, 1, bs * d, bs};
}

struct test_case {
	nsv_attn_shape shape;
	vector<nsv_cuda_seq> seqs;
	vector<int32_t> tables, needles;
	uint32_t table_stride, n_row, max_query, max_kv;
	float k_scale;
	uint64_t seed;
	/* device */
	nsv_cuda_seq *d_seqs;
	int32_t *d_tables, *d_needles;
	char *k, *v, *q, *out;
	double *truth, *scores;
	size_t elem, out_len;
};

static std::string describe(const test_case &t)
{
	char text[256];
	const nsv_attn_shape &s = t.shape;
	snprintf(text, sizeof(text),
		"%u/%u/%u type %u block %u of %u window %u cap %.0f, %zu sequences, %u rows, %u "
		"keys, "
		"seed %llu",
		s.n_head, s.n_kv_head, s.head_dim, s.kv_dtype, s.block_size, s.n_block, s.window,
		s.softcap, t.seqs.size(), t.max_query, t.max_kv, (unsigned long long)t.seed);
	return text;
}

static void add_seq(test_case &t, uint32_t n_kv, uint32_t n_query)
{
	n_query = std::min(n_query, n_kv);
	t.seqs.push_back({(int32_t)t.n_row, (int32_t)n_query, (int32_t)(n_kv - n_query),
		(int32_t)t.seqs.size()});
	t.n_row += n_query;
	t.max_query = std::max(t.max_query, n_query);
	t.max_kv = std::max(t.max_kv, n_kv);
}

/* Distinct blocks anywhere in the pool, the last among them; free entries point nowhere. */
static void scatter(test_case &t, uint32_t spare)
{
	uint32_t bs = t.shape.block_size, n_used = 0;
	t.table_stride = (t.max_kv + bs - 1) / bs;
	for (const nsv_cuda_seq &s : t.seqs)
		n_used += (s.n_past + s.n_query + bs - 1) / bs;
	t.shape.n_block = n_used + spare;
	vector<int32_t> blocks(t.shape.n_block);
	for (size_t i = 0; i < blocks.size(); i++)
		blocks[i] = (int32_t)(blocks.size() - 1 - i);
	std::shuffle(blocks.begin(), blocks.begin() + n_used, rng);
	t.tables.assign(t.seqs.size() * t.table_stride, INT32_MAX);
	size_t next = 0;
	for (size_t i = 0; i < t.seqs.size(); i++)
		for (uint32_t b = 0; b * bs < (uint32_t)(t.seqs[i].n_past + t.seqs[i].n_query); b++)
			t.tables[i * t.table_stride + b] = blocks[next++];
}

template <typename E> static void fill(test_case &t)
{
	view v = {t.shape, t.d_seqs, t.d_tables, t.table_stride};
	int64_t n_q = (int64_t)t.n_row * t.shape.n_head * t.shape.head_dim;
	fill_rows<<<256, 256>>>((E *)t.q, n_q, t.seed + 7, 1.0f);
	fill_pool<<<dim3(256, t.seqs.size()), 256>>>(v, (E *)t.k, (E *)t.v, t.seed, t.k_scale);
	if (!t.needles.empty())
		plant_needles<<<t.seqs.size(), 128>>>(
			v, (E *)t.k, (E *)t.q, t.d_needles, t.seed, 1.0f);
	for (size_t i = 0; i < t.seqs.size(); i++) {
		uint32_t rows = t.seqs[i].n_query, n_kv = rows + t.seqs[i].n_past;
		if (!rows)
			continue;
		oracle_scores<<<dim3((n_kv + 127) / 128, t.shape.n_head, rows), 128>>>(
			v, (const E *)t.q, (const E *)t.k, t.scores, t.max_kv, (int)i);
		oracle_rows<<<dim3(t.shape.n_head, rows), 256>>>(
			v, (const E *)t.v, t.scores, t.truth, t.max_kv, (int)i);
	}
	CHECK(cudaGetLastError());
}

template <typename T> static T *upload(const vector<T> &x)
{
	T *p = mem.take<T>(x.size() + 1);
	CHECK(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
	return p;
}

static void put_on_device(test_case &t)
{
	const nsv_attn_shape &s = t.shape;
	mem.at = 0;
	t.elem = s.kv_dtype == NSV_F32 ? 4 : 2;
	size_t pool = (size_t)s.n_block * s.block_size * s.n_kv_head * s.head_dim * t.elem;
	size_t rows = (size_t)t.n_row * s.n_head * s.head_dim;
	t.out_len = rows * t.elem;
	t.d_seqs = upload(t.seqs);
	t.d_tables = upload(t.tables);
	t.d_needles = upload(t.needles);
	t.k = mem.take<char>(pool);
	t.v = mem.take<char>(pool);
	t.q = mem.take<char>(t.out_len + 16);
	t.out = mem.take<char>(t.out_len + 16);
	t.truth = mem.take<double>(rows + 1);
	t.scores = mem.take<double>((size_t)t.max_query * s.n_head * t.max_kv + 1);
	CHECK(cudaMemset(t.k, 0xff, pool));
	CHECK(cudaMemset(t.v, 0xff, pool));
	if (s.kv_dtype == NSV_F32)
		fill<float>(t);
	else if (s.kv_dtype == NSV_F16)
		fill<__half>(t);
	else
		fill<__nv_bfloat16>(t);
}

static nsv_cuda_attn *make_attn(nsv_cuda *cuda, const test_case &t, const nsv_cuda_limits &limits)
{
	nsv_err err;
	nsv_cuda_attn *attn;
	if (nsv_cuda_attn_new(cuda, &t.shape, &limits, &attn, &err) < 0) {
		printf("FAILED %s: %s\n", describe(t).c_str(), err.text);
		exit(1);
	}
	return attn;
}

static void run(
	nsv_cuda_attn *attn, const test_case &t, const nsv_cuda_batch &batch, cudaStream_t stream)
{
	nsv_err err;
	if (nsv_cuda_attn_plan(attn, &batch, stream, &err) < 0 ||
		nsv_cuda_attn_run(attn, &batch, t.k, t.v, t.q, t.out, stream, &err) < 0) {
		printf("FAILED %s: %s\n", describe(t).c_str(), err.text);
		exit(1);
	}
}

/* The rows that `seqs` (in place of the case's own) make, poisoned before. */
static vector<char> outputs(
	nsv_cuda *cuda, const test_case &t, const vector<nsv_cuda_seq> &seqs, uint32_t max_query)
{
	size_t mark = mem.at;
	nsv_cuda_batch batch = {upload(seqs), t.d_tables, (uint32_t)seqs.size(), t.table_stride};
	nsv_cuda_attn *attn = make_attn(cuda, t, {(uint32_t)seqs.size(), max_query, t.max_kv});
	CHECK(cudaMemset(t.out, 0xff, t.out_len));
	run(attn, t, batch, 0);
	vector<char> out(t.out_len);
	CHECK(cudaMemcpy(out.data(), t.out, t.out_len, cudaMemcpyDeviceToHost));
	nsv_cuda_attn_free(attn);
	mem.at = mark;
	return out;
}

static double value(const test_case &t, const vector<char> &out, size_t i)
{
	if (t.shape.kv_dtype == NSV_F32) {
		float x;
		memcpy(&x, &out[i * 4], 4);
		return x;
	}
	uint16_t bits;
	memcpy(&bits, &out[i * 2], 2);
	if (t.shape.kv_dtype == NSV_F16)
		return __half2float(__half(__half_raw{bits}));
	uint32_t wide = (uint32_t)bits << 16;
	float x;
	memcpy(&x, &wide, 4);
	return x;
}

/* The worst row: its error over its bound. NaN is worse than all. */
static double worst_row(const test_case &t, const vector<char> &out)
{
	size_t d = t.shape.head_dim, n = (size_t)t.n_row * t.shape.n_head;
	vector<double> truth(n * d);
	CHECK(cudaMemcpy(truth.data(), t.truth, n * d * 8, cudaMemcpyDeviceToHost));
	double bound = t.shape.kv_dtype == NSV_F16 ? 5e-4 : 4e-3, worst = 0.0;
	for (size_t r = 0; r < n; r++) {
		double diff = 0.0, norm = 0.0, over = 0.0;
		for (size_t i = r * d; i < (r + 1) * d; i++) {
			double e = value(t, out, i) - truth[i];
			diff += e * e;
			norm += truth[i] * truth[i];
			over = fmax(over, fabs(e) / (1e-5 + 1e-4 * fabs(truth[i])));
		}
		double x = t.shape.kv_dtype == NSV_F32 ? over : sqrt(diff / norm) / bound;
		if (isnan(diff))
			return INFINITY;
		worst = fmax(worst, x);
	}
	return worst;
}

static void check_close(nsv_cuda *cuda, test_case &t, double *ret_worst)
{
	vector<char> out = outputs(cuda, t, t.seqs, t.max_query);
	double x = worst_row(t, out);
	*ret_worst = fmax(*ret_worst, x);
	verdict(x <= 1.0, describe(t) + ": error is " + std::to_string(x) + " of its bound");
}

static bool same_rows(
	const test_case &t, const vector<char> &a, const vector<char> &b, uint32_t row, uint32_t n)
{
	size_t len = (size_t)t.shape.n_head * t.shape.head_dim * t.elem;
	return memcmp(&a[row * len], &b[row * len], n * len) == 0;
}

/* A sequence's rows in two calls' worth, as chunks of a prefill. */
static vector<char> outputs_in_two(nsv_cuda *cuda, const test_case &t, const nsv_cuda_seq &s)
{
	int32_t n = 1 + (int32_t)below((uint32_t)s.n_query - 1);
	return outputs(cuda, t,
		{{s.row0, n, s.n_past, s.table},
			{s.row0 + n, s.n_query - n, s.n_past + n, s.table}},
		(uint32_t)s.n_query);
}

/* A sequence alone, in two chunks, then rows one call each, against the batch. */
static void check_bits(nsv_cuda *cuda, test_case &t)
{
	vector<char> all = outputs(cuda, t, t.seqs, t.max_query);
	const nsv_cuda_seq &s = t.seqs[below((uint32_t)t.seqs.size())];
	if (s.n_query == 0)
		return;
	vector<char> alone = outputs(cuda, t, {s}, s.n_query);
	verdict(same_rows(t, all, alone, s.row0, s.n_query), describe(t) + ": other bits alone");
	bool same = true;
	if (s.n_query > 1) {
		vector<char> two = outputs_in_two(cuda, t, s);
		verdict(same_rows(t, all, two, s.row0, s.n_query), describe(t) + ": other bits in two");
	}
	for (int32_t i = 0; i < std::min(s.n_query, 3); i++) {
		int32_t row = i < 2 ? (i ? s.n_query - 1 : 0) : (int32_t)below(s.n_query);
		vector<char> one =
			outputs(cuda, t, {{s.row0 + row, 1, s.n_past + row, s.table}}, 1);
		same = same && same_rows(t, all, one, s.row0 + row, 1);
	}
	verdict(same, describe(t) + ": other bits one row at a time");
}

/* Captured over some lengths, replayed over others. */
static void check_graph(nsv_cuda *cuda, test_case &t)
{
	vector<char> direct = outputs(cuda, t, t.seqs, t.max_query);
	vector<nsv_cuda_seq> other = t.seqs;
	for (nsv_cuda_seq &s : other) {
		s.n_past /= 2;
		s.n_query = s.n_query ? 1 : 0;
	}
	nsv_cuda_seq *seqs = upload(other);
	nsv_cuda_batch batch = {seqs, t.d_tables, (uint32_t)t.seqs.size(), t.table_stride};
	nsv_cuda_attn *attn = make_attn(cuda, t, {batch.n_seq, t.max_query, t.max_kv});
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	run(attn, t, batch, stream);
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	CHECK(cudaGraphLaunch(exec, stream));
	CHECK(cudaStreamSynchronize(stream));
	CHECK(cudaMemcpy(
		seqs, t.seqs.data(), t.seqs.size() * sizeof(t.seqs[0]), cudaMemcpyHostToDevice));
	CHECK(cudaMemset(t.out, 0xff, t.out_len));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaGraphLaunch(exec, stream));
	CHECK(cudaStreamSynchronize(stream));
	vector<char> out(t.out_len);
	CHECK(cudaMemcpy(out.data(), t.out, t.out_len, cudaMemcpyDeviceToHost));
	verdict(out == direct, describe(t) + ": a replay over other lengths gives other bits");
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaStreamDestroy(stream));
	nsv_cuda_attn_free(attn);
}

static void set_shape(test_case &t, uint32_t group, uint32_t n_kv_head, uint32_t dim,
	uint32_t block, uint32_t dtype, enum order order)
{
	nsv_attn_shape &s = t.shape;
	s.n_kv_head = n_kv_head;
	s.n_head = n_kv_head * group;
	s.head_dim = dim;
	s.block_size = block;
	s.kv_dtype = dtype;
	s.scale = 1.0f / sqrtf((float)dim);
	s.k = make_layout(s, order);
	s.v = make_layout(s, order == DIMS_FIRST ? HEADS_FIRST : order);
	t.k_scale = 1.0f;
	t.seed = rng();
}

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
	for (int i = 0; i < n; i++) {
		test_case t = random_case(i);
		uint32_t type = t.shape.kv_dtype;
		check_close(cuda, t, &worst[type == NSV_F32 ? 2 : type == NSV_F16]);
		if (i % 4 == 0)
			check_bits(cuda, t);
		if (i % 8 == 0)
			check_graph(cuda, t);
	}
	printf("worst error as a part of its bound: bf16 %.2f, fp16 %.2f, fp32 %.2f\n", worst[0],
		worst[1], worst[2]);
}

/* A sequence for each edge, the needle at it. */
static void needle_cases(
	nsv_cuda *cuda, uint32_t dtype, uint32_t dim, uint32_t block, uint32_t n_query)
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
	nsv_cuda_limits limits = {0, 1, 64};
	nsv_cuda_attn *attn;
	verdict(nsv_cuda_attn_new(cuda, &t.shape, &limits, &attn, &err) == -EINVAL, "no sequences");
	limits = {1, 1, 64};
	t.shape.n_head = 7;
	verdict(nsv_cuda_attn_new(cuda, &t.shape, &limits, &attn, &err) == -EINVAL, "7 heads on 2");
}

/* Sets *ret_differs where x is not what y is. */
__global__ void compare(const uint32_t *x, const uint32_t *y, size_t n, int *ret_differs)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
		i += (size_t)gridDim.x * blockDim.x)
		if (x[i] != y[i])
			*ret_differs = 1;
}

/* Keeps blocks of threads waiting for a multiprocessor, each for another time. */
__global__ void disturb(uint64_t seed, uint32_t max_cycles)
{
	extern __shared__ char taken[];
	uint32_t wait = (uint32_t)(mix(seed + blockIdx.x) % max_cycles);
	for (int64_t begin = clock64(); clock64() - begin < wait;)
		taken[threadIdx.x] = 0;
}

static constexpr int STEPS_A_REPLAY = 100;

/* A graph of steps, each compared with `first`. */
static cudaGraphExec_t capture_steps(nsv_cuda_attn *attn, const test_case &t,
	const nsv_cuda_batch &batch, const char *first, int *differs, cudaStream_t stream)
{
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	nsv_err err;
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	for (int i = 0; i < STEPS_A_REPLAY; i++) {
		if (i % 10 == 0)
			nsv_cuda_attn_plan(attn, &batch, stream, &err);
		if (nsv_cuda_attn_run(attn, &batch, t.k, t.v, t.q, t.out, stream, &err) < 0)
			exit(1);
		compare<<<8, 256, 0, stream>>>(
			(uint32_t *)t.out, (const uint32_t *)first, t.out_len / 4, differs);
		CHECK(cudaMemsetAsync(t.out, 0xff, t.out_len, stream));
	}
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	CHECK(cudaGraphDestroy(graph));
	return exec;
}

/* n steps on one stream while another takes multiprocessors away for random times: every output is
 * the same, whatever the order of arrivals. */
static void steps(nsv_cuda *cuda, uint32_t n_query, int n)
{
	test_case t = {};
	cudaStream_t stream, other;
	set_shape(t, 3, 3, 64, 16, NSV_BF16, HEADS_FIRST);
	for (uint32_t n_kv : {20000u, 777u, 5000u})
		add_seq(t, n_kv, n_query);
	scatter(t, 3);
	put_on_device(t);
	vector<char> truth = outputs(cuda, t, t.seqs, n_query);
	char *first = upload(truth);
	int differs = 0, *d_differs = upload(vector<int>{0});
	nsv_cuda_batch batch = {t.d_seqs, t.d_tables, 3, t.table_stride};
	nsv_cuda_attn *attn = make_attn(cuda, t, {3, n_query, t.max_kv});
	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaStreamCreate(&other));
	cudaGraphExec_t exec = capture_steps(attn, t, batch, first, d_differs, stream);
	for (int i = 0; i < n; i += STEPS_A_REPLAY) {
		disturb<<<1 + below(260), 128, 1024 * (1 + below(40)), other>>>(
			rng(), 1000 + below(200000));
		CHECK(cudaGraphLaunch(exec, stream));
		if (i % (100 * STEPS_A_REPLAY) == 0)
			CHECK(cudaDeviceSynchronize());
	}
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaMemcpy(&differs, d_differs, sizeof(differs), cudaMemcpyDeviceToHost));
	verdict(!differs, describe(t) + ": one of many steps gave other bits");
	printf("%d steps of %u rows a sequence\n", n, n_query);
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaStreamDestroy(stream));
	CHECK(cudaStreamDestroy(other));
	nsv_cuda_attn_free(attn);
}

static void edge_cases(nsv_cuda *cuda, int n_step)
{
	for (uint32_t dtype : {NSV_BF16, NSV_F16})
		for (uint32_t dim : {64u, 128u, 256u})
			for (uint32_t n_query : {1u, 40u})
				needle_cases(cuda, dtype, dim, dim == 64 ? 16 : 32, n_query);
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
	random_cases(cuda, n);
	if (n >= 100)
		edge_cases(cuda, argc > 3 ? atoi(argv[3]) : 10000);
	nsv_cuda_close(cuda);
	printf("%d passed, %d failed\n", n_passed, n_failed);
	return n_failed != 0;
}
