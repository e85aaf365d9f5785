/* Times paged attention: decode over the 35 shapes of the field's comparison, cold L2, and causal
 * prefill over 12.
 *
 *     attention [filter] [random|zeros] [launches]
 *                         a JSON line a row: shape, time, and bytes or operations
 *
 * With `zeros` that is what q, K and V are: long rows of prefill are then faster by what the power
 * limit costs on data. `launches` is how many launches of prefill a replay has [5]: that limit acts
 * after some tens of milliseconds, so rows of 8,192 tokens are told apart from a peer's only by
 * replays that are long beside that.
 *
 * As the peers are timed (tests/bench/attention.py): a CUDA graph of many launches, each over
 * another copy of the cache until more than 256 MB have passed, the median of nine replays. The
 * plan is made once a step for all layers and timed by itself. */
#include "tests/bench/replay.cuh"

#include <algorithm>
#include <math.h>
#include <random>
#include <stdlib.h>
#include <string.h>
#include <vector>

using std::vector;

struct row_shape {
	uint32_t n_head, n_kv_head, head_dim;
};

static const row_shape heads[] = {{32, 8, 128}, {32, 8, 64}, {9, 3, 64}, {14, 2, 64}, {64, 8, 128}};
static const uint32_t batches[][2] = {
	{1, 1024}, {1, 8192}, {1, 65536}, {8, 8192}, {32, 2048}, {128, 1024}, {256, 2048}};
static const row_shape prefill_heads[] = {{32, 8, 128}, {9, 3, 64}, {8, 4, 256}};
static const uint32_t prefill_batches[][2] = {{1, 1024}, {1, 8192}, {1, 32768}, {16, 1024}};
static constexpr size_t COLD = (size_t)256 << 20;
static constexpr uint32_t BLOCK = 16;
static bool is_zero; /* q, K and V are zeros */
static int prefill_launches = 5; /* a replay */

struct rig {
	nsv_attn_shape shape;
	nsv_cuda_attn *attn;
	nsv_cuda_batch batch;
	__nv_bfloat16 *kv, *q, *out;
	size_t pool; /* elements of K, as many of V beside them */
	int n_copy;
};

static nsv_attn_shape make_shape(const row_shape &r, uint32_t n_block, bool heads_first)
{
	int64_t bs = BLOCK, h = r.n_kv_head, d = r.head_dim;
	nsv_attn_shape s = {};
	s.n_head = r.n_head;
	s.n_kv_head = r.n_kv_head;
	s.head_dim = r.head_dim;
	s.block_size = BLOCK;
	s.n_block = n_block;
	s.kv_dtype = NSV_BF16;
	s.scale = 1.0f / sqrtf((float)d);
	s.k = heads_first ? nsv_kv_layout{2 * bs * h * d, d, 2 * bs * d, 1}
			  : nsv_kv_layout{2 * bs * h * d, h * d, d, 1};
	s.v = s.k;
	return s;
}

static void fill(__nv_bfloat16 *x, size_t n, int seed)
{
	if (is_zero)
		CHECK(cudaMemset(x, 0, n * sizeof(*x)));
	else
		fill_rows<<<1024, 256>>>(x, (int64_t)n, seed, 1.0f);
}

static rig open_rig(nsv_cuda *cuda, arena &mem, const row_shape &r, uint32_t n_seq, uint32_t n_kv,
	uint32_t n_query, bool heads_first)
{
	rig g;
	nsv_err err;
	uint32_t per_seq = (n_kv + BLOCK - 1) / BLOCK, n_block = n_seq * per_seq;
	g.shape = make_shape(r, n_block, heads_first);
	g.pool = (size_t)n_block * BLOCK * r.n_kv_head * r.head_dim;
	g.n_copy = (int)std::max<size_t>(1, std::min<size_t>(64, COLD / (g.pool * 4) + 1));
	mem.at = 0;
	g.kv = mem.take<__nv_bfloat16>(g.pool * 2 * g.n_copy);
	size_t n_q = (size_t)n_seq * n_query * r.n_head * r.head_dim;
	g.q = mem.take<__nv_bfloat16>(n_q);
	g.out = mem.take<__nv_bfloat16>(n_q);
	fill(g.kv, g.pool * 2 * g.n_copy, 1);
	fill(g.q, n_q, 2);
	vector<nsv_cuda_seq> seqs;
	vector<int32_t> table(n_block);
	for (uint32_t i = 0; i < n_seq; i++)
		seqs.push_back({(int32_t)(i * n_query), (int32_t)n_query, (int32_t)(n_kv - n_query),
			(int32_t)i, 0});
	for (uint32_t i = 0; i < n_block; i++)
		table[i] = (int32_t)i;
	std::shuffle(table.begin(), table.end(), std::mt19937(5));
	nsv_cuda_seq *d_seqs = mem.take<nsv_cuda_seq>(n_seq);
	int32_t *d_table = mem.take<int32_t>(n_block);
	CHECK(cudaMemcpy(d_seqs, seqs.data(), n_seq * sizeof(seqs[0]), cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(d_table, table.data(), n_block * 4, cudaMemcpyHostToDevice));
	g.batch = {d_seqs, d_table, n_seq, per_seq, nullptr, 0};
	nsv_cuda_limits limits = {n_seq, n_query, n_kv, 0, 0};
	if (nsv_cuda_attn_new(cuda, &g.shape, nullptr, &limits, &g.attn, &err) < 0)
		fail(err);
	return g;
}

/* K of a block, or of a head of it, before its V. */
static const __nv_bfloat16 *k_of(const rig &g, int copy)
{
	return g.kv + (size_t)(copy % g.n_copy) * g.pool * 2;
}

static double time_plan(const rig &g)
{
	return time_us(
		[&](int, cudaStream_t stream) {
			nsv_err err;
			if (nsv_cuda_attn_plan(g.attn, &g.batch, stream, &err) < 0)
				fail(err);
		},
		20);
}

/* n launches a replay, each over the next copy. */
static double time_run(const rig &g, size_t v_off, int n)
{
	return time_us(
		[&](int i, cudaStream_t stream) {
			nsv_err err;
			const __nv_bfloat16 *k = k_of(g, i);
			if (nsv_cuda_attn_run(
				    g.attn, &g.batch, k, k + v_off, g.q, g.out, stream, &err) < 0)
				fail(err);
		},
		n);
}

static void print_row(const row_shape &r, const uint32_t b[2], const char *work, bool heads_first,
	double us, double plan)
{
	printf("{\"work\": \"%s\", \"n_head\": %u, \"n_kv_head\": %u, \"head_dim\": %u, "
	       "\"batch\": %u, \"context\": %u, \"layout\": \"%s\", \"us\": %.2f, "
	       "\"plan_us\": %.2f, ",
		work, r.n_head, r.n_kv_head, r.head_dim, b[0], b[1],
		heads_first ? "heads" : "tokens", us, plan);
}

/* From the first element of K to that of V. */
static size_t v_offset(const row_shape &r, bool heads_first)
{
	return (size_t)BLOCK * r.head_dim * (heads_first ? 1 : r.n_kv_head);
}

static void time_decode(
	nsv_cuda *cuda, arena &mem, const row_shape &r, const uint32_t b[2], bool heads_first)
{
	rig g = open_rig(cuda, mem, r, b[0], b[1], 1, heads_first);
	double bytes = (double)g.pool * 4, plan = time_plan(g);
	double us = time_run(g, v_offset(r, heads_first), std::max(g.n_copy, bytes < 4e9 ? 20 : 5));
	print_row(r, b, "decode", heads_first, us, plan);
	printf("\"bytes\": %.0f, \"gb_s\": %.0f}\n", bytes, bytes / us / 1e3);
	nsv_cuda_attn_free(g.attn);
}

static void time_prefill(
	nsv_cuda *cuda, arena &mem, const row_shape &r, const uint32_t b[2], bool heads_first)
{
	rig g = open_rig(cuda, mem, r, b[0], b[1], b[1], heads_first);
	double ops = 2.0 * b[0] * b[1] * b[1] * r.n_head * r.head_dim, plan = time_plan(g);
	double us = time_run(g, v_offset(r, heads_first), prefill_launches);
	print_row(r, b, "prefill", heads_first, us, plan);
	printf("\"ops\": %.0f, \"tflop_s\": %.0f}\n", ops, ops / us / 1e6);
	nsv_cuda_attn_free(g.attn);
}

__global__ void read_all(const uint4 *x, size_t n, uint32_t *out)
{
	uint32_t sum = 0;
	size_t step = (size_t)gridDim.x * blockDim.x;
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	for (; i + 7 * step < n; i += 8 * step) {
		uint4 v[8];
#pragma unroll
		for (int j = 0; j < 8; j++)
			v[j] = __ldcs(x + i + j * step);
#pragma unroll
		for (int j = 0; j < 8; j++)
			sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
	}
	if (sum == 0x12345678)
		*out = sum;
}

/* The rate at which the device's memory can be read: the limit of the large rows. */
static void time_read(arena &mem)
{
	mem.at = 0;
	size_t bytes = (size_t)8 << 30;
	uint4 *x = mem.take<uint4>(bytes / 16);
	uint32_t *out = mem.take<uint32_t>(1);
	fill_rows<<<1024, 256>>>((__nv_bfloat16 *)x, (int64_t)bytes / 2, 3, 1.0f);
	double us = time_us(
		[&](int, cudaStream_t stream) {
			read_all<<<132 * 8, 512, 0, stream>>>(x, bytes / 16, out);
		},
		3);
	printf("{\"read\": \"8 GiB\", \"us\": %.2f, \"gb_s\": %.0f}\n", us, bytes / us / 1e3);
}

static bool is_wanted(const char *filter, const char *work, const row_shape &r, const uint32_t b[2])
{
	char name[64];
	snprintf(name, sizeof(name), "%s %u/%u/%u %ux%u", work, r.n_head, r.n_kv_head, r.head_dim,
		b[0], b[1]);
	return strstr(name, filter) != nullptr;
}

int main(int argc, char **argv)
{
	nsv_cuda *cuda;
	nsv_err err;
	arena mem;
	const char *filter = argc > 1 ? argv[1] : "";
	is_zero = argc > 2 && !strcmp(argv[2], "zeros");
	if (argc > 3)
		prefill_launches = std::max(1, atoi(argv[3]));
	if (nsv_cuda_open(0, &cuda, &err) < 0)
		fail(err);
	setvbuf(stdout, nullptr, _IONBF, 0);
	mem.open((size_t)12 << 30);
	time_read(mem);
	for (const row_shape &r : prefill_heads)
		for (const uint32_t(&b)[2] : prefill_batches)
			for (bool heads_first : {false, true})
				if (is_wanted(filter, "prefill", r, b))
					time_prefill(cuda, mem, r, b, heads_first);
	for (const row_shape &r : heads)
		for (const uint32_t(&b)[2] : batches)
			for (bool heads_first : {false, true})
				if (is_wanted(filter, "decode", r, b))
					time_decode(cuda, mem, r, b, heads_first);
	nsv_cuda_close(cuda);
	return 0;
}
