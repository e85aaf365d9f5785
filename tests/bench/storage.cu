/* Times decode by how K and V are kept: as e4m3, behind a shared prefix, scattered over pools of
 * the size that a whole model has.
 *
 *     storage packed      bf16 and e4m3, cold second-level cache
 *     storage shared      sequences with a common prefix, its keys read once and for each
 *     storage large       32 layers of 100 GB: block-major and layer-major, blocks of 16, 32, 64
 *
 * A table each; microseconds a layer, by tests/bench/replay.cuh. GB/s count each key that a
 * sequence has once for it, but those of a prefix once for all. */
#include "tests/bench/replay.cuh"

#include <math.h>
#include <numeric>
#include <random>
#include <string.h>

struct head_shape {
	uint32_t n_head, n_kv_head, head_dim;
};

/* A head of a block together, K before V; scales at the block's end. A pool's blocks may hold other
 * layers too: `n_layer` of them, one behind the other. */
struct storage {
	nsv_attn_shape shape;
	nsv_cuda_kv kv;
	size_t elem, v_off, block_len; /* bytes; of one layer's block */
};

static storage make_storage(
	const head_shape &r, uint32_t block, uint32_t n_block, bool is_packed, uint32_t n_layer)
{
	storage s = {};
	int64_t bs = block, h = r.n_kv_head, d = r.head_dim;
	s.elem = is_packed ? 1 : 2;
	s.v_off = (size_t)(bs * d) * s.elem;
	s.block_len =
		(size_t)(2 * bs * h * d) * s.elem + (is_packed ? (size_t)(2 * bs * h * 4) : 0);
	s.shape.n_head = r.n_head;
	s.shape.n_kv_head = r.n_kv_head;
	s.shape.head_dim = r.head_dim;
	s.shape.block_size = block;
	s.shape.n_block = n_block;
	s.shape.kv_dtype = NSV_BF16;
	s.shape.scale = 1.0f / sqrtf((float)d);
	s.shape.k = {(int64_t)(n_layer * s.block_len / s.elem), d, 2 * bs * d, 1};
	s.shape.v = s.shape.k;
	s.kv = {is_packed ? NSV_CUDA_KV_E4M3 : NSV_CUDA_KV_SAME, 2 * bs * h * d,
		2 * bs * h * d + bs * h * 4 - bs * d};
	return s;
}

/* Random e4m3 bytes, none NaN, and scales of 2^-7 at the end of each block. */
__global__ void fill_packed(uint32_t *x, int64_t n_word, int64_t block_words, int64_t data_words)
{
	for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n_word;
		i += (int64_t)gridDim.x * blockDim.x)
		x[i] = i % block_words < data_words ? (uint32_t)mix(i) & 0xf7f7f7f7u
						    : __float_as_uint(0.0078125f);
}

static void fill_storage(const storage &s, char *pool, size_t n_block)
{
	size_t data = 2 * s.v_off * s.shape.n_kv_head;
	if (s.kv.dtype == NSV_CUDA_KV_E4M3)
		fill_packed<<<1024, 256>>>((uint32_t *)pool, (int64_t)(n_block * s.block_len / 4),
			(int64_t)(s.block_len / 4), (int64_t)(data / 4));
	else
		fill_rows<<<1024, 256>>>(
			(__nv_bfloat16 *)pool, (int64_t)(n_block * s.block_len / 2), 1, 1.0f);
	CHECK(cudaGetLastError());
}

/* Sequences of one row each. */
struct step {
	storage s;
	nsv_cuda_attn *attn;
	nsv_cuda_batch batch;
	__nv_bfloat16 *q, *out;
};

template <typename T> static T *upload(arena &mem, const vector<T> &x)
{
	T *p = mem.take<T>(x.size() + 1);
	CHECK(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
	return p;
}

/* `tables`: of n_seq sequences. They share `n_shared` keys of n_kv; 0: none. */
static step make_step(nsv_cuda *cuda, arena &mem, const storage &s, const vector<int32_t> &tables,
	uint32_t n_seq, uint32_t n_kv, uint32_t n_shared)
{
	step t = {s, nullptr, {}, nullptr, nullptr};
	nsv_err err;
	vector<nsv_cuda_seq> seqs, prefixes;
	for (uint32_t i = 0; i < n_seq; i++)
		seqs.push_back({(int32_t)i, 1, (int32_t)n_kv - 1, (int32_t)i, (int32_t)n_shared});
	if (n_shared)
		prefixes.push_back({0, (int32_t)n_seq, (int32_t)n_shared, 0, 0});
	uint32_t n_prefix = (uint32_t)prefixes.size();
	t.batch = {upload(mem, seqs), upload(mem, tables), n_seq, (uint32_t)(tables.size() / n_seq),
		upload(mem, prefixes), n_prefix};
	size_t n_q = (size_t)n_seq * s.shape.n_head * s.shape.head_dim;
	t.q = mem.take<__nv_bfloat16>(n_q);
	t.out = mem.take<__nv_bfloat16>(n_q);
	fill_rows<<<256, 256>>>(t.q, (int64_t)n_q, 2, 1.0f);
	nsv_cuda_limits limits = {n_seq, 1, n_kv, n_prefix, n_prefix * n_seq};
	if (nsv_cuda_attn_new(cuda, &s.shape, &s.kv, &limits, &t.attn, &err) < 0 ||
		nsv_cuda_attn_plan(t.attn, &t.batch, 0, &err) < 0)
		fail(err);
	CHECK(cudaDeviceSynchronize());
	return t;
}

/* n launches a replay, the i-th over the pool that starts at at(i). */
template <typename F> static double time_step(const step &t, int n, F at)
{
	return time_us(
		[&](int i, cudaStream_t stream) {
			nsv_err err;
			const char *k = at(i);
			if (nsv_cuda_attn_run(t.attn, &t.batch, k, k + t.s.v_off, t.q, t.out,
				    stream, &err) < 0)
				fail(err);
		},
		n);
}

static vector<int32_t> shuffled(uint32_t n)
{
	vector<int32_t> x(n);
	std::iota(x.begin(), x.end(), 0);
	std::shuffle(x.begin(), x.end(), std::mt19937(5));
	return x;
}

/* A layer over copies of its pool, more than the second-level cache holds. */
static double time_cold(nsv_cuda *cuda, arena &mem, const storage &s, const vector<int32_t> &tables,
	uint32_t n_seq, uint32_t n_kv, uint32_t n_shared)
{
	static constexpr size_t cold = (size_t)256 << 20;
	size_t len = s.block_len * s.shape.n_block;
	int n_copy = (int)std::max<size_t>(1, std::min<size_t>(64, cold / len + 1));
	mem.at = 0;
	char *pool = mem.take<char>(len * n_copy);
	fill_storage(s, pool, (size_t)s.shape.n_block * n_copy);
	step t = make_step(cuda, mem, s, tables, n_seq, n_kv, n_shared);
	double us = time_step(t, std::max(n_copy, len < ((size_t)4 << 30) ? 20 : 5),
		[&](int i) { return pool + len * (i % n_copy); });
	nsv_cuda_attn_free(t.attn);
	return us;
}

static void time_packed(nsv_cuda *cuda, arena &mem)
{
	static const head_shape heads[] = {
		{32, 8, 128}, {32, 8, 64}, {9, 3, 64}, {14, 2, 64}, {64, 8, 128}};
	static const uint32_t batches[][2] = {
		{1, 1024}, {1, 8192}, {1, 65536}, {8, 8192}, {32, 2048}, {128, 1024}, {256, 2048}};
	double sum = 0.0;
	int n = 0;
	printf("heads      batch x context    bf16 us   e4m3 us  times   e4m3 GB/s\n");
	for (const head_shape &r : heads)
		for (const uint32_t(&b)[2] : batches) {
			uint32_t n_block = b[0] * b[1] / 16;
			double us[2], bytes = 0.0;
			for (bool is_packed : {false, true}) {
				storage s = make_storage(r, 16, n_block, is_packed, 1);
				bytes = (double)s.block_len * n_block;
				us[is_packed] =
					time_cold(cuda, mem, s, shuffled(n_block), b[0], b[1], 0);
			}
			printf("%2u/%u/%-4u %6u x %-7u %9.1f %9.1f %6.2f %11.0f\n", r.n_head,
				r.n_kv_head, r.head_dim, b[0], b[1], us[0], us[1], us[0] / us[1],
				bytes / us[1] / 1e3);
			sum += log(us[0] / us[1]);
			n++;
		}
	printf("geometric mean: %.2f times\n", exp(sum / n));
}

/* Tables whose first blocks are the first sequence's. */
static vector<int32_t> shared_tables(uint32_t n_seq, uint32_t n_shared, uint32_t n_own)
{
	vector<int32_t> blocks = shuffled(n_shared + n_seq * n_own), tables;
	for (uint32_t i = 0; i < n_seq; i++) {
		auto own = blocks.begin() + n_shared + i * n_own;
		tables.insert(tables.end(), blocks.begin(), blocks.begin() + n_shared);
		tables.insert(tables.end(), own, own + n_own);
	}
	return tables;
}

static void time_shared(nsv_cuda *cuda, arena &mem)
{
	static const head_shape heads[] = {{32, 8, 128}, {9, 3, 64}};
	static const uint32_t batches[][3] = {{64, 8192, 128}, {64, 2048, 128}, {16, 8192, 1024},
		{4, 8192, 128}, {256, 512, 512}};
	printf("heads     type  sequences  shared    own    for each us    once us  times\n");
	for (const head_shape &r : heads)
		for (const uint32_t(&b)[3] : batches)
			for (bool is_packed : {false, true}) {
				uint32_t shared = b[1] / 16, own = b[2] / 16,
					 n = shared + b[0] * own;
				storage s = make_storage(r, 16, n, is_packed, 1);
				vector<int32_t> tables = shared_tables(b[0], shared, own);
				double us[2];
				for (bool once : {false, true})
					us[once] = time_cold(cuda, mem, s, tables, b[0],
						b[1] + b[2], once ? b[1] : 0);
				printf("%2u/%u/%-4u %4s %9u %8u %6u %13.1f %10.1f %6.2f\n",
					r.n_head, r.n_kv_head, r.head_dim,
					is_packed ? "e4m3" : "bf16", b[0], b[1], b[2], us[0], us[1],
					us[0] / us[1]);
			}
}

static constexpr uint32_t N_LAYER = 32;
static constexpr size_t LARGE = 100000000000;

/* A step of all layers over the first n_seq * n_kv keys of a table of the whole pool. */
static double time_large(nsv_cuda *cuda, arena &mem, const nsv_cuda_pool &pool, const storage &s,
	bool is_block_major, const vector<int32_t> &blocks, const uint32_t b[2])
{
	uint32_t n_used = b[0] * b[1] / s.shape.block_size;
	vector<int32_t> tables(blocks.begin(), blocks.begin() + n_used);
	mem.at = 0;
	step t = make_step(cuda, mem, s, tables, b[0], b[1], 0);
	size_t layer = s.block_len * (is_block_major ? 1 : s.shape.n_block);
	double us =
		time_step(t, N_LAYER, [&](int i) { return (const char *)pool.base + layer * i; });
	nsv_cuda_attn_free(t.attn);
	return us;
}

static void time_large_pools(nsv_cuda *cuda, arena &mem)
{
	static const head_shape heads = {32, 8, 128};
	static const uint32_t batches[][2] = {
		{1, 1024}, {1, 65536}, {8, 8192}, {32, 2048}, {256, 2048}};
	nsv_cuda_pool pool;
	nsv_err err;
	if (nsv_cuda_pool_new(cuda, LARGE, &pool, &err) < 0)
		fail(err);
	fill_rows<<<4096, 256>>>((__nv_bfloat16 *)pool.base, (int64_t)(LARGE / 2), 1, 1.0f);
	CHECK(cudaDeviceSynchronize());
	printf("%zu bytes, %u layers, 32/8/128; us a layer (GB/s)\n", pool.map_len, N_LAYER);
	printf("block  layout  table    ");
	for (const uint32_t(&b)[2] : batches)
		printf("%8u x %-6u", b[0], b[1]);
	printf("\n");
	for (uint32_t block : {16u, 32u, 64u})
		for (bool is_block_major : {true, false})
			for (bool is_scattered : {true, false}) {
				storage s = make_storage(
					heads, block, 1, false, is_block_major ? N_LAYER : 1);
				s.shape.n_block = (uint32_t)(LARGE / N_LAYER / s.block_len);
				vector<int32_t> blocks = shuffled(s.shape.n_block);
				if (!is_scattered)
					std::sort(blocks.begin(), blocks.end());
				printf("%5u  %-6s  %-9s", block, is_block_major ? "block" : "layer",
					is_scattered ? "scattered" : "in order");
				for (const uint32_t(&b)[2] : batches) {
					double us = time_large(
						cuda, mem, pool, s, is_block_major, blocks, b);
					printf(" %8.1f (%4.0f)", us,
						(double)b[0] * b[1] / block * s.block_len / us /
							1e3);
				}
				printf("\n");
			}
	nsv_cuda_pool_free(&pool);
}

int main(int argc, char **argv)
{
	nsv_cuda *cuda;
	nsv_err err;
	arena mem;
	const char *what = argc > 1 ? argv[1] : "";
	bool is_large = !strcmp(what, "large");
	if (nsv_cuda_open(0, &cuda, &err) < 0)
		fail(err);
	setvbuf(stdout, nullptr, _IONBF, 0);
	mem.open((size_t)(is_large ? 1 : 12) << 30);
	if (!strcmp(what, "packed"))
		time_packed(cuda, mem);
	else if (!strcmp(what, "shared"))
		time_shared(cuda, mem);
	else if (is_large)
		time_large_pools(cuda, mem);
	else
		printf("storage packed | shared | large\n");
	nsv_cuda_close(cuda);
	return 0;
}
