/* Sequences that share a prefix, whose keys are read once: against the float64 oracle, and the same
 * bits as without a prefix.
 *
 *     shared [cases] [seed] [steps]      prints "N passed, M failed"; exits 1 on any failure
 *
 * With fewer than 10 cases those are all that runs, and they are small: for a sanitizer.
 *
 * Prefixes are those that the host finds in the tables; half of the cases are packed. */
#include "tests/ops/cuda/steps.cuh"

#include <time.h>

/* What the host must find. */
using group_list = vector<nsv_attn_shared>;

static void add_group(test_case &t, group_list &groups, uint32_t n_seq, uint32_t n_key)
{
	nsv_attn_shared group = {(uint32_t)t.seqs.size(), n_seq, t.n_row, 0, n_key};
	for (uint32_t i = 0; i < n_seq; i++) {
		uint32_t n_own = below(4) ? 1 + below(1500) : 1;
		uint32_t n_query = below(3) ? 1 : 1 + below(below(4) ? 8 : 200);
		add_seq(t, n_key + n_own, std::min(n_query, n_own));
	}
	group.n_row = t.n_row - group.row0;
	groups.push_back(group);
}

/* Members begin with the blocks of the first of them. */
static void share_blocks(test_case &t, const group_list &groups)
{
	for (const nsv_attn_shared &g : groups)
		for (uint32_t i = 1; i < g.n_seq; i++)
			memcpy(&t.tables[(g.first + i) * t.table_stride],
				&t.tables[g.first * t.table_stride],
				g.n_key / t.shape.block_size * sizeof(int32_t));
}

static group_list find_groups(const test_case &t)
{
	vector<nsv_attn_seq> seqs;
	group_list groups(t.seqs.size());
	nsv_attn_sharing use = {NSV_CUDA_SHARED_KEYS, 0, 0};
	for (size_t i = 0; i < t.seqs.size(); i++)
		seqs.push_back({(uint32_t)t.seqs[i].row0, (uint32_t)t.seqs[i].n_query,
			(uint32_t)t.seqs[i].n_past, t.table_stride, &t.tables[i * t.table_stride]});
	groups.resize(nsv_attn_find_shared(&t.shape, seqs.data(), (uint32_t)seqs.size(), &use,
		groups.data(), (uint32_t)groups.size()));
	return groups;
}

/* As the device is told of groups. */
static void describe_groups(test_case &t, const group_list &groups)
{
	for (const nsv_attn_shared &g : groups) {
		t.prefixes.push_back(
			{(int32_t)g.row0, (int32_t)g.n_row, (int32_t)g.n_key, (int32_t)g.first, 0});
		for (uint32_t i = g.first; i < g.first + g.n_seq; i++)
			t.seqs[i].n_shared = (int32_t)g.n_key;
	}
}

/* Scatters the case's tables, shares the groups' blocks, and fills everything in. */
static void finish(test_case &t, const group_list &groups)
{
	scatter(t, below(50));
	share_blocks(t, groups);
	group_list found = find_groups(t);
	bool same = found.size() == groups.size();
	for (size_t i = 0; same && i < groups.size(); i++)
		same = !memcmp(&found[i], &groups[i], sizeof(found[i]));
	verdict(same, describe(t) + ": the host finds other groups");
	describe_groups(t, groups);
	put_on_device(t);
}

static test_case random_case(int index, bool is_small)
{
	static const uint32_t dims[] = {64, 64, 80, 128, 128, 256, 96};
	static const uint32_t blocks[] = {8, 16, 16, 32, 64, 128};
	static const uint32_t types[] = {NSV_BF16, NSV_BF16, NSV_F16};
	test_case t = {};
	group_list groups;
	set_shape(t, 1 + below(8), 1 + below(3), pick(dims), pick(blocks), pick(types),
		below(2) ? TOKENS_FIRST : HEADS_FIRST);
	t.is_packed = index % 2;
	if (below(6) == 0)
		t.shape.softcap = 10.0f + (float)below(40);
	uint32_t n_group = 1 + below(3);
	for (uint32_t i = 0; i < n_group; i++) {
		if (below(2))
			add_seq(t, 1 + below(3000), 1 + below(4));
		add_group(t, groups, 2 + below(index % 10 || is_small ? 8 : 70),
			NSV_CUDA_SHARED_KEYS * (1 + below(is_small ? 2 : 8)));
	}
	finish(t, groups);
	return t;
}

/* The whole output with and without prefixes. */
static void check_alike(nsv_cuda *cuda, const test_case &t)
{
	vector<nsv_cuda_seq> lone = t.seqs;
	for (nsv_cuda_seq &s : lone)
		s.n_shared = 0;
	vector<char> with = outputs(cuda, t, t.seqs, t.max_query, t.prefixes);
	vector<char> without = outputs(cuda, t, lone, t.max_query);
	size_t n_other = 0, first = 0;
	for (size_t i = with.size(); i-- > 0;)
		if (with[i] != without[i]) {
			n_other++;
			first = i;
		}
	verdict(n_other == 0, describe(t) +
				      ": other bits with a prefix: " + std::to_string(n_other) +
				      " bytes, the first at " + std::to_string(first));
	bool same = true;
	for (int i = 0; i < 5; i++)
		same = same && outputs(cuda, t, t.seqs, t.max_query, t.prefixes) == with;
	verdict(same, describe(t) + ": other bits when done again");
}

/* Captured while nothing is shared, replayed when it is. */
static void check_replay(nsv_cuda *cuda, const test_case &t)
{
	vector<char> direct = outputs(cuda, t, t.seqs, t.max_query, t.prefixes);
	vector<nsv_cuda_seq> lone = t.seqs, none = t.prefixes;
	for (nsv_cuda_seq &s : lone)
		s.n_shared = 0;
	for (nsv_cuda_seq &p : none)
		p.n_query = 0;
	nsv_cuda_seq *seqs = upload(lone), *prefixes = upload(none);
	nsv_cuda_batch batch = {seqs, t.d_tables, (uint32_t)lone.size(), t.table_stride, prefixes,
		(uint32_t)none.size()};
	nsv_cuda_attn *attn =
		make_attn(cuda, t, {batch.n_seq, t.max_query, t.max_kv, batch.n_prefix, t.n_row});
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	run(attn, t, batch, stream);
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	CHECK(cudaMemset(t.out, 0xff, t.out_len));
	vector<char> out(t.out_len);
	for (bool is_shared : {false, true}) {
		if (is_shared) {
			CHECK(cudaMemcpy(seqs, t.seqs.data(), t.seqs.size() * sizeof(t.seqs[0]),
				cudaMemcpyHostToDevice));
			CHECK(cudaMemcpy(prefixes, t.prefixes.data(),
				t.prefixes.size() * sizeof(none[0]), cudaMemcpyHostToDevice));
			CHECK(cudaMemset(t.out, 0xff, t.out_len));
		}
		CHECK(cudaDeviceSynchronize());
		CHECK(cudaGraphLaunch(exec, stream));
		CHECK(cudaStreamSynchronize(stream));
		CHECK(cudaMemcpy(out.data(), t.out, t.out_len, cudaMemcpyDeviceToHost));
		verdict(out == direct, describe(t) + ": a replay gives other bits, shared " +
					       std::to_string(is_shared));
	}
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaStreamDestroy(stream));
	nsv_cuda_attn_free(attn);
}

static void random_cases(nsv_cuda *cuda, int n)
{
	double worst[2] = {0.0, 0.0};
	for (int i = 0; i < n; i++) {
		test_case t = random_case(i, n < 10);
		check_close(cuda, t, &worst[t.shape.kv_dtype == NSV_F16]);
		check_alike(cuda, t);
		if (i % 4 == 0)
			check_bits(cuda, t);
		if (i % 4 == 1)
			check_packed(cuda, t);
		if (i % 8 == 2)
			check_replay(cuda, t);
	}
	printf("worst error as a part of its bound: bf16 %.2f, fp16 %.2f\n", worst[0], worst[1]);
}

/* Many partials a prefix, several batches of factors in their fold. */
static void long_prefix(nsv_cuda *cuda)
{
	double worst = 0.0;
	test_case t = {};
	group_list groups;
	set_shape(t, 4, 1, 128, 16, NSV_BF16, HEADS_FIRST);
	add_group(t, groups, 20, 65536);
	finish(t, groups);
	check_close(cuda, t, &worst);
	check_alike(cuda, t);
}

/* Decode, prefill and prefixes in one call, again and again: prefixes whose few chunks one run folds
 * and then goes on with the next rows, and one whose many chunks its runs fold together. */
static void steps(nsv_cuda *cuda, uint32_t group, uint32_t dim, bool is_packed, int n)
{
	test_case t = {};
	group_list groups;
	set_shape(t, group, 3, dim, 16, NSV_BF16, HEADS_FIRST);
	t.is_packed = is_packed;
	for (uint32_t n_key : {4096u, 1536u, 2048u, 16384u})
		add_group(t, groups, n_key < 16384 ? 40 : 3, n_key);
	finish(t, groups);
	check_steps(cuda, t, n);
}

static void edge_cases(nsv_cuda *cuda, int n_step)
{
	long_prefix(cuda);
	steps(cuda, 6, 80, false, n_step);
	steps(cuda, 4, 256, false, n_step);
	steps(cuda, 2, 64, true, n_step);
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 200;
	uint64_t seed = argc > 2 ? strtoull(argv[2], nullptr, 0) : (uint64_t)time(nullptr);
	struct nsv_cuda_probe probe;
	nsv_cuda *cuda;
	nsv_err err;
	if (nsv_cuda_probe(&probe, &err) < 0) {
		printf("skipped: %s\n", err.text);
		return 0;
	}
	setvbuf(stdout, nullptr, _IONBF, 0);
	printf("seed %llu\n", (unsigned long long)seed);
	if (nsv_cuda_open(0, &cuda, &err) < 0) {
		printf("FAILED %s\n", err.text);
		return 1;
	}
	rng.seed(seed);
	mem.open((size_t)12 << 30);
	random_cases(cuda, n);
	if (n >= 10)
		edge_cases(cuda, argc > 3 ? atoi(argv[3]) : 1000);
	nsv_cuda_close(cuda);
	printf("%d passed, %d failed\n", n_passed, n_failed);
	return n_failed != 0;
}
