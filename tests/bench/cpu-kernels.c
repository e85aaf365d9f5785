/* The cpu backend's kernels alone, and what the machine allows them: memory read, u8 x s8 products
 * with VNNI or else AVX2, bf16 ones where there are AMX tiles, fp32 fused multiply-adds.
 *
 * The shapes are SmolLM2-135M's: 30 layers of Q4_1 and an output matrix of Q8_0, or all of another
 * type (rows cut to whole blocks), all distinct memory, as are the K and V that one query of each
 * layer reads: no cache has them when their turn comes. */
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/backend.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpuid.h"
#include "kernels/half.h"
#include "shm/clock.h"
#include "tests/bench/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define N_LAYER 30u
#define ROUNDS 9

static double now(void)
{
	return (double)nsv_now_ns() * 1e-9;
}

void *map(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		abort();
	madvise(p, len, MADV_HUGEPAGE);
	memset(p, 0x3c, len); /* a normal number to every float type */
	return p;
}

double time_of(
	struct nsv_team *team, void (*fn)(const struct nsv_part *part, void *arg), void *arg)
{
	double t[ROUNDS];
	nsv_team_run(team, fn, arg);
	for (int i = 0; i < ROUNDS; i++) {
		double start = now();
		nsv_team_run(team, fn, arg);
		t[i] = now() - start;
	}
	return nsv_median(t, ROUNDS);
}

/* ---- What the machine allows ------------------------------------------------------------ */

#define READ_LEN (256u << 20)

static void read_part(const struct nsv_part *part, void *arg)
{
	const uint64_t *p = arg;
	size_t begin, end;
	uint64_t a = 0, b = 0, c = 0, d = 0;
	nsv_part_range(part, READ_LEN / 8, 8, &begin, &end);
	for (size_t i = begin; i < end; i += 8) {
		__builtin_prefetch(p + i + 512);
		a ^= p[i] ^ p[i + 4];
		b ^= p[i + 1] ^ p[i + 5];
		c ^= p[i + 2] ^ p[i + 6];
		d ^= p[i + 3] ^ p[i + 7];
	}
	__asm__ volatile("" : : "r"(a ^ b ^ c ^ d));
}

typedef uint64_t vector __attribute__((vector_size(16)));

/* By vectors, prefetching left to the processor. */
static void read_vectors_part(const struct nsv_part *part, void *arg)
{
	const vector *p = arg;
	size_t begin, end;
	vector a = {0}, b = {0}, c = {0}, d = {0};
	nsv_part_range(part, READ_LEN / 16, 4, &begin, &end);
	for (size_t i = begin; i < end; i += 4) {
		a ^= p[i];
		b ^= p[i + 1];
		c ^= p[i + 2];
		d ^= p[i + 3];
	}
	a ^= b ^ c ^ d;
	__asm__ volatile("" : : "r"(a[0] ^ a[1]));
}

#if defined(__x86_64__)

#define DOT_ROUNDS 4000000u

__attribute__((target("avx512f,avx512vnni"))) static void dot_part(
	const struct nsv_part *part, void *arg)
{
	__m512i sum[12], q = _mm512_set1_epi8(3), x = _mm512_set1_epi8(5);
	(void)part;
	(void)arg;
	for (int i = 0; i < 12; i++)
		sum[i] = _mm512_setzero_si512();
	for (uint32_t n = 0; n < DOT_ROUNDS; n++) {
#pragma GCC unroll 12
		for (int i = 0; i < 12; i++)
			sum[i] = _mm512_dpbusd_epi32(sum[i], q, x);
		__asm__ volatile("" : "+v"(q));
	}
	for (int i = 0; i < 12; i++)
		__asm__ volatile("" : : "v"(sum[i]));
}

/* Without VNNI: products of pairs in 16 bits, and their sums there. Left to the compiler, twelve
 * sums do not stay in registers. */
__attribute__((target("avx2"))) static void dot_part_avx2(const struct nsv_part *part, void *arg)
{
	__m256i sum[12], q = _mm256_set1_epi8(3), x = _mm256_set1_epi8(5), pair;
	(void)part;
	(void)arg;
#pragma GCC unroll 12
	for (int i = 0; i < 12; i++)
		sum[i] = _mm256_setzero_si256();
	for (uint32_t n = 0; n < DOT_ROUNDS; n++) {
#pragma GCC unroll 12
		for (int i = 0; i < 12; i++)
			__asm__ volatile("vpmaddubsw %3, %2, %0\n\tvpaddw %0, %1, %1"
					 : "=&x"(pair), "+x"(sum[i])
					 : "x"(q), "x"(x));
	}
#pragma GCC unroll 12
	for (int i = 0; i < 12; i++)
		__asm__ volatile("" : : "x"(sum[i]));
}

/* Operations a second of the team, 0 where there is neither. */
static double dot_rate(struct nsv_team *team, const char **ret_unit)
{
	double rounds = 12.0 * DOT_ROUNDS * nsv_team_size(team);
	if (__builtin_cpu_supports("avx512vnni")) {
		*ret_unit = "VNNI";
		return 128 * rounds / time_of(team, dot_part, NULL);
	}
	*ret_unit = "AVX2";
	if (!__builtin_cpu_supports("avx2"))
		return 0;
	return 64 * rounds / time_of(team, dot_part_avx2, NULL);
}

#define TILE_ROUNDS 400000u

__attribute__((target("amx-tile,amx-bf16"))) static void bf16_part(
	const struct nsv_part *part, void *arg)
{
	struct nsv_cpu_tile_config c = {.palette = 1};
	(void)part;
	(void)arg;
	for (uint32_t t = 0; t < 8; t++)
		nsv_cpu_tile_set(&c, t, 16, 64);
	__asm__ volatile("" : : "m"(c)); /* the compiler knows of its first bytes only */
	_tile_loadconfig(&c);
	_tile_zero(4);
	_tile_zero(5);
	_tile_zero(6);
	_tile_zero(7);
	for (uint32_t n = 0; n < TILE_ROUNDS; n++) {
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
	}
	_tile_release();
}

/* 0 where there are no tiles. */
static double bf16_rate(struct nsv_team *team)
{
	struct nsv_cpuid id;
	nsv_cpuid_read(&id);
	if (!id.amx_bf16 || nsv_cpu_ask_tiles() < 0)
		return 0;
	return 4.0 * 16 * 16 * 32 * 2 * TILE_ROUNDS * nsv_team_size(team) /
	       time_of(team, bf16_part, NULL);
}

__attribute__((target("avx512f"))) static void fma_part(const struct nsv_part *part, void *arg)
{
	__m512 sum[12], x = _mm512_set1_ps(0.5f);
	(void)part;
	(void)arg;
	for (int i = 0; i < 12; i++)
		sum[i] = _mm512_setzero_ps();
	for (uint32_t n = 0; n < DOT_ROUNDS; n++) {
#pragma GCC unroll 12
		for (int i = 0; i < 12; i++)
			sum[i] = _mm512_fmadd_ps(x, x, sum[i]);
		__asm__ volatile("" : "+v"(x));
	}
	for (int i = 0; i < 12; i++)
		__asm__ volatile("" : : "v"(sum[i]));
}

__attribute__((target("avx2,fma"))) static void fma_part_avx2(
	const struct nsv_part *part, void *arg)
{
	__m256 sum[12], x = _mm256_set1_ps(0.5f);
	(void)part;
	(void)arg;
	for (int i = 0; i < 12; i++)
		sum[i] = _mm256_setzero_ps();
	for (uint32_t n = 0; n < DOT_ROUNDS; n++) {
#pragma GCC unroll 12
		for (int i = 0; i < 12; i++)
			sum[i] = _mm256_fmadd_ps(x, x, sum[i]);
		__asm__ volatile("" : "+x"(x));
	}
	for (int i = 0; i < 12; i++)
		__asm__ volatile("" : : "x"(sum[i]));
}

static double fma_rate(struct nsv_team *team)
{
	double rounds = 12.0 * DOT_ROUNDS * nsv_team_size(team);
	if (__builtin_cpu_supports("avx512f"))
		return 32 * rounds / time_of(team, fma_part, NULL);
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return 16 * rounds / time_of(team, fma_part_avx2, NULL);
	return 0;
}

#else

static double fma_rate(struct nsv_team *team)
{
	(void)team;
	return 0;
}

static double dot_rate(struct nsv_team *team, const char **ret_unit)
{
	(void)team;
	*ret_unit = "none";
	return 0;
}

static double bf16_rate(struct nsv_team *team)
{
	(void)team;
	return 0;
}

#endif

void measure_read(struct nsv_team *team, struct limits *ret)
{
	void *mem = map(READ_LEN);
	double t = fmin(time_of(team, read_part, mem), time_of(team, read_vectors_part, mem));
	ret->read = fmax(ret->read, READ_LEN / t);
	munmap(mem, READ_LEN);
}

void measure_limits(struct nsv_team *team, struct limits *ret)
{
	measure_read(team, ret);
	ret->dot = fmax(ret->dot, dot_rate(team, &ret->dot_unit));
	ret->bf16 = fmax(ret->bf16, bf16_rate(team));
	ret->fma = fmax(ret->fma, fma_rate(team));
}

/* ---- Products --------------------------------------------------------------------------- */

struct net {
	const struct nsv_backend *b;
	void *weights[N_LAYER * 4 + 1];
	struct nsv_matrix m[N_LAYER * 4 + 1];
	uint32_t n_weight, n_row;
	float *x, *out;
	void *acts;
};

static void pack_part(const struct nsv_part *part, void *arg)
{
	struct net *net = arg;
	for (uint32_t i = 0; i < net->n_weight; i++)
		net->b->weight_pack(part, &net->m[i], 1, net->weights[i]);
}

static void add_weight(
	struct net *net, const void *data, uint32_t dtype, uint32_t n_out, uint32_t n_in)
{
	size_t len = 0;
	net->m[net->n_weight] = (struct nsv_matrix){dtype, n_out, n_in, data};
	if (net->b->weight_len(&net->m[net->n_weight], 1, &len) < 0)
		abort();
	net->weights[net->n_weight++] = map(len);
}

static void make_net(struct net *net, uint32_t dtype, const void *data)
{
	uint32_t width = 576 - 576 % nsv_dtype_info(dtype)->n_elem;
	for (uint32_t l = 0; l < N_LAYER; l++) {
		add_weight(net, data, dtype, 960, width);
		add_weight(net, data, dtype, 576, width);
		add_weight(net, data, dtype, 3072, width);
		add_weight(net, data, dtype, 576, 1536);
	}
	add_weight(net, data, dtype == NSV_Q4_1 ? NSV_Q8_0 : dtype, 49152, width);
}

static void products_part(const struct nsv_part *part, void *arg)
{
	struct net *net = arg;
	for (uint32_t i = 0; i < net->n_weight; i++) {
		const struct nsv_matrix *m = &net->m[i];
		net->b->acts_set(part, net->acts, net->x, m->n_in, net->n_row, m->n_in);
		nsv_team_barrier(part);
		net->b->matmul(part, net->out, m->n_out, net->weights[i], net->acts, net->n_row,
			NULL);
		nsv_team_barrier(part);
	}
}

static double net_ops(const struct net *net)
{
	double n = 0;
	for (uint32_t i = 0; i < net->n_weight; i++)
		n += 2.0 * net->m[i].n_out * net->m[i].n_in * net->n_row;
	return n;
}

static size_t weight_len(const struct net *net, uint32_t i)
{
	size_t len = 0;
	net->b->weight_len(&net->m[i], 1, &len);
	return len;
}

static double net_len(const struct net *net)
{
	size_t n = 0;
	for (uint32_t i = 0; i < net->n_weight; i++)
		n += weight_len(net, i);
	return (double)n;
}

static void free_net(struct net *net)
{
	for (uint32_t i = 0; i < N_LAYER * 4 + 1; i++)
		munmap(net->weights[i], weight_len(net, i));
}

void measure_products(struct nsv_team *team, const struct nsv_backend *b, uint32_t dtype,
	const uint32_t *rows, size_t n, struct point *ret)
{
	const size_t data_len = 49152 * 576 * 4, x_len = 512 * 1536 * 4, out_len = 512 * 49152 * 4;
	struct net net = {.b = b};
	void *data = map(data_len);
	make_net(&net, dtype, data);
	net.x = map(x_len);
	for (uint32_t i = 0; i < 512 * 1536; i++)
		net.x[i] = (float)(int)(i * 2654435761u >> 8 & 0xffff) * 1e-4f - 3.0f;
	net.out = map(out_len);
	net.acts = map(b->acts_len(512, 1536));
	nsv_team_run(team, pack_part, &net);
	munmap(data, data_len);
	for (size_t i = 0; i < n; i++) {
		net.n_row = rows[i];
		if (rows[i] > 32)
			net.n_weight = N_LAYER * 4; /* logits are asked for few rows only */
		double t = time_of(team, products_part, &net);
		ret[i] = (struct point){net_ops(&net) / t, net_ops(&net) / net_len(&net)};
	}
	free_net(&net);
	munmap(net.x, x_len);
	munmap(net.out, out_len);
	munmap(net.acts, b->acts_len(512, 1536));
}

/* ---- Attention -------------------------------------------------------------------------- */

struct attn {
	const struct nsv_backend *b;
	struct nsv_attn_call call;
	uint32_t n_layer;
	size_t pool_len; /* of a layer's K or V */
};

static void attn_part(const struct nsv_part *part, void *arg)
{
	const struct attn *a = arg;
	struct nsv_attn_call call = a->call;
	for (uint32_t l = 0; l < a->n_layer; l++) {
		call.k = (const char *)a->call.k + l * a->pool_len;
		call.v = (const char *)a->call.v + l * a->pool_len;
		a->b->attention(part, &call);
		nsv_team_barrier(part);
	}
}

/* Values as a model's: what all bytes of 1 make, numbers below the normal ones, is another matter. */
static void fill(void *p, uint32_t dtype, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t bits = (uint32_t)(i * 2654435761u >> 8);
		nsv_store_elem(dtype, p, (int64_t)i, (float)(bits & 0xffff) * 0x1p-15f - 1.0f);
	}
}

struct point measure_attention(
	struct nsv_team *team, const struct nsv_backend *b, uint32_t kv_dtype, uint32_t n_past,
	uint32_t n_query)
{
	uint32_t n_kv = n_past + n_query, n_block = (n_kv + 15) / 16;
	uint32_t n_layer = n_query > 1 ? 1 : N_LAYER; /* many find the first's in caches */
	size_t token_len = 192 * nsv_dtype_info(kv_dtype)->n_byte; /* of K or V */
	size_t pool_len = n_block * 16 * token_len;
	int32_t *table = map(n_block * 4);
	struct nsv_attn_shape shape = {9, 3, 64, 16, n_block, kv_dtype, 0, 0.125f, 0,
		{16 * 192, 1, 16 * 64, 16}, {16 * 192, 64, 16 * 64, 1}};
	struct nsv_attn_seq seq = {0, n_query, n_past, n_block, table};
	struct nsv_attn_plan plan;
	struct attn a = {b, {&shape, &seq, &plan, map((size_t)n_query * 576 * 4),
		map(n_layer * pool_len), map(n_layer * pool_len),
		map((size_t)n_query * 576 * 4), NULL}, n_layer, pool_len};
	double ops = 0;
	for (uint32_t i = 0; i < n_block; i++)
		table[i] = (int32_t)((uint64_t)i * 7919 % n_block);
	fill((void *)(uintptr_t)a.call.q, NSV_F32, (size_t)n_query * 576);
	fill((void *)(uintptr_t)a.call.k, kv_dtype, (size_t)n_layer * n_block * 16 * 192);
	fill((void *)(uintptr_t)a.call.v, kv_dtype, (size_t)n_layer * n_block * 16 * 192);
	if (nsv_attn_make_plan(&shape, &seq, 1, n_query, &plan))
		abort();
	a.call.scratch = map(plan.scratch_len);
	for (uint32_t i = 0; i < n_query; i++)
		ops += (n_past + i + 1) * 9.0 * 64 * 4;
	return (struct point){n_layer * ops / time_of(team, attn_part, &a),
		ops / (2.0 * n_kv * (double)token_len)};
}
