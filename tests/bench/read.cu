/* The three readings of read.c on a device: one query row of 9/3/64 over a scattered bf16 history
 * of 256 to 131,072 tokens, cold second-level cache.
 *
 *     read > FILE             a line a time: "cuda WAY: tokens microseconds"; for READ_CUDA of
 *                             `make bench NAME=read`
 *
 * Gathered and fused are replays of a captured graph; dispatched is the C entry called for each
 * layer, as the host does without a graph. */
#include "kernels/cuda/nanoserve_cuda.h"
#include "tests/ops/cuda/oracle.cuh"

#include <algorithm>
#include <math.h>
#include <random>
#include <vector>

using std::vector;

static constexpr uint32_t BLOCK = 16, N_HEAD = 9, N_KV_HEAD = 3, HEAD_DIM = 64;
static constexpr uint32_t MIN_TOKEN = 256, N_LEN = 10;
static constexpr size_t SLOT = (size_t)N_KV_HEAD * HEAD_DIM, COLD = (size_t)256 << 20;
static constexpr int N_RUN = 20, N_ROUND = 9;

enum way { GATHER, FUSED, DISPATCHED, N_WAY };

static const char *const way_names[N_WAY] = {"gather then attend", "fused", "dispatched"};

/* A history in copies enough to find the cache cold, and room for it in one piece. */
struct rig {
	nsv_attn_shape shape;
	nsv_cuda_attn *attn;
	nsv_cuda_batch scattered, piece;
	__nv_bfloat16 *kv, *one, *q, *out;
	size_t len; /* elements of a copy, K and V */
	int n_copy;
};

static void check(int r, const nsv_err &err)
{
	if (r < 0) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
}

static nsv_attn_shape make_shape(uint32_t n_block)
{
	int64_t d = HEAD_DIM, slots = (int64_t)BLOCK * SLOT;
	nsv_attn_shape s = {};
	s.n_head = N_HEAD;
	s.n_kv_head = N_KV_HEAD;
	s.head_dim = HEAD_DIM;
	s.block_size = BLOCK;
	s.n_block = n_block;
	s.kv_dtype = NSV_BF16;
	s.scale = 0.125f;
	s.k = s.v = {2 * slots, d, 2 * BLOCK * d, 1};
	return s;
}

template <typename T> static T *upload(arena &mem, const vector<T> &x)
{
	T *p = mem.take<T>(x.size());
	CHECK(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
	return p;
}

static rig open_rig(nsv_cuda *cuda, arena &mem, uint32_t n_kv)
{
	rig g = {};
	nsv_err err;
	uint32_t n_block = n_kv / BLOCK;
	nsv_cuda_limits limits = {1, 1, n_kv, 0, 0};
	vector<int32_t> table(n_block), order(n_block);
	for (uint32_t i = 0; i < n_block; i++)
		table[i] = order[i] = (int32_t)i;
	std::shuffle(table.begin(), table.end(), std::mt19937(5));
	mem.at = 0;
	g.shape = make_shape(n_block);
	g.len = (size_t)n_kv * SLOT * 2;
	g.n_copy = (int)std::min<size_t>(64, COLD / (g.len * 2) + 1);
	g.kv = mem.take<__nv_bfloat16>(g.len * g.n_copy);
	g.one = mem.take<__nv_bfloat16>(g.len);
	g.q = mem.take<__nv_bfloat16>(N_HEAD * HEAD_DIM);
	g.out = mem.take<__nv_bfloat16>(N_HEAD * HEAD_DIM);
	fill_rows<<<1024, 256>>>(g.kv, (int64_t)(g.len * g.n_copy), 1, 1.0f);
	fill_rows<<<4, 256>>>(g.q, N_HEAD * HEAD_DIM, 2, 1.0f);
	nsv_cuda_seq *seq = upload<nsv_cuda_seq>(mem, {{0, 1, (int32_t)n_kv - 1, 0, 0}});
	g.scattered = {seq, upload(mem, table), 1, n_block, nullptr, 0};
	g.piece = {seq, upload(mem, order), 1, n_block, nullptr, 0};
	check(nsv_cuda_attn_new(cuda, &g.shape, nullptr, &limits, &g.attn, &err), err);
	check(nsv_cuda_attn_plan(g.attn, &g.scattered, 0, &err), err);
	CHECK(cudaDeviceSynchronize());
	return g;
}

/* Blocks in the order of the table, 16 bytes a thread at a time: a block of threads a block. */
__global__ void gather_blocks(const uint4 *from, uint4 *to, const int32_t *table, uint32_t len)
{
	const uint4 *block = from + (size_t)table[blockIdx.x] * len;
	for (uint32_t i = threadIdx.x; i < len; i += blockDim.x)
		to[(size_t)blockIdx.x * len + i] = block[i];
}

static void read_once(const rig &g, enum way way, int i, cudaStream_t stream)
{
	nsv_err err;
	const __nv_bfloat16 *kv = g.kv + (size_t)(i % g.n_copy) * g.len;
	const nsv_cuda_batch *batch = &g.scattered;
	if (way == GATHER) {
		uint32_t len = (uint32_t)(BLOCK * SLOT * 2 * sizeof(*kv) / sizeof(uint4));
		gather_blocks<<<g.shape.n_block, 256, 0, stream>>>(
			(const uint4 *)kv, (uint4 *)g.one, g.scattered.tables, len);
		kv = g.one;
		batch = &g.piece;
		/* The fused read may begin before the launch before it has ended, so a plan
		 * between them says that this history is new. */
		check(nsv_cuda_attn_plan(g.attn, batch, stream, &err), err);
	}
	check(nsv_cuda_attn_run(g.attn, batch, kv, kv + BLOCK * HEAD_DIM, g.q, g.out, stream, &err),
		err);
}

static cudaGraphExec_t capture(const rig &g, enum way way, cudaStream_t stream)
{
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	for (int i = 0; i < N_RUN; i++)
		read_once(g, way, i, stream);
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	CHECK(cudaGraphDestroy(graph));
	return exec;
}

/* Microseconds a read: the median of rounds of N_RUN. */
static double time_way(const rig &g, enum way way)
{
	cudaStream_t stream;
	cudaEvent_t begin, end;
	cudaGraphExec_t exec = nullptr;
	vector<float> ms(N_ROUND);
	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaEventCreate(&begin));
	CHECK(cudaEventCreate(&end));
	if (way != DISPATCHED)
		exec = capture(g, way, stream);
	for (int round = -2; round < N_ROUND; round++) {
		CHECK(cudaEventRecord(begin, stream));
		if (exec)
			CHECK(cudaGraphLaunch(exec, stream));
		for (int i = 0; !exec && i < N_RUN; i++)
			read_once(g, way, i, stream);
		CHECK(cudaEventRecord(end, stream));
		CHECK(cudaStreamSynchronize(stream));
		if (round >= 0)
			CHECK(cudaEventElapsedTime(&ms[round], begin, end));
	}
	std::sort(ms.begin(), ms.end());
	if (exec)
		CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaEventDestroy(begin));
	CHECK(cudaEventDestroy(end));
	CHECK(cudaStreamDestroy(stream));
	return ms[N_ROUND / 2] * 1e3 / N_RUN;
}

int main()
{
	nsv_cuda *cuda;
	nsv_err err;
	arena mem;
	check(nsv_cuda_open(0, &cuda, &err), err);
	mem.open((size_t)2 << 30);
	for (int way = 0; way < N_WAY; way++)
		for (uint32_t l = 0; l < N_LEN; l++) {
			rig g = open_rig(cuda, mem, MIN_TOKEN << l);
			printf("cuda %s: %u %.2f\n", way_names[way], MIN_TOKEN << l,
				time_way(g, (enum way)way));
			nsv_cuda_attn_free(g.attn);
		}
	nsv_cuda_close(cuda);
	return 0;
}
