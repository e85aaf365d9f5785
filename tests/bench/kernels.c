/* Times the cpu backend's products and attention against what the machine allows, measured in the
 * same run: memory read, and u8 x s8 products where there is VNNI.
 *
 *     kernels [threads]       NANOSERVE_CPU_ISA forces a row
 *
 * The shapes are SmolLM2-135M's: 30 layers of Q4_1, an output matrix of Q8_0, all distinct memory. */
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/backend.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define N_LAYER 30u
#define ROUNDS 7

static double now(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void *map(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		abort();
	madvise(p, len, MADV_HUGEPAGE);
	memset(p, 1, len);
	return p;
}

/* The median of ROUNDS timed runs, seconds. */
static double time_of(
	struct nsv_team *team, void (*fn)(const struct nsv_part *part, void *arg), void *arg)
{
	double t[ROUNDS];
	nsv_team_run(team, fn, arg);
	for (int i = 0; i < ROUNDS; i++) {
		double start = now();
		nsv_team_run(team, fn, arg);
		t[i] = now() - start;
		for (int j = i; j > 0 && t[j] < t[j - 1]; j--) {
			double swap = t[j];
			t[j] = t[j - 1];
			t[j - 1] = swap;
		}
	}
	return t[ROUNDS / 2];
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

/* Operations a second of the team, 0 where there is no VNNI. */
static double dot_rate(struct nsv_team *team)
{
	if (!__builtin_cpu_supports("avx512vnni"))
		return 0;
	return 12.0 * 128 * DOT_ROUNDS * nsv_team_size(team) / time_of(team, dot_part, NULL);
}

#else

static double dot_rate(struct nsv_team *team)
{
	(void)team;
	return 0;
}

#endif

/* ---- Products --------------------------------------------------------------------------- */

struct net {
	const struct nsv_backend *b;
	void *weights[N_LAYER * 4 + 1];
	struct nsv_matrix m[N_LAYER * 4 + 1];
	uint32_t n_weight, n_row;
	size_t n_byte;
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
	net->n_byte += len;
}

static void make_net(struct net *net, uint32_t dtype, uint32_t head_dtype)
{
	void *data = map(49152 * 576 * 4);
	for (uint32_t l = 0; l < N_LAYER; l++) {
		add_weight(net, data, dtype, 960, 576);
		add_weight(net, data, dtype, 576, 576);
		add_weight(net, data, dtype, 3072, 576);
		add_weight(net, data, dtype, 576, 1536);
	}
	if (head_dtype != UINT32_MAX)
		add_weight(net, data, head_dtype, 49152, 576);
}

static void products_part(const struct nsv_part *part, void *arg)
{
	struct net *net = arg;
	for (uint32_t i = 0; i < net->n_weight; i++) {
		const struct nsv_matrix *m = &net->m[i];
		net->b->acts_set(part, net->acts, net->x, m->n_in, net->n_row, m->n_in);
		nsv_team_barrier(part);
		net->b->matmul(
			part, net->out, m->n_out, net->weights[i], net->acts, net->n_row);
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

static void bench_products(
	struct nsv_team *team, const struct nsv_backend *b, double read_rate, double ops_rate)
{
	static const uint32_t rows[] = {1, 2, 4, 8, 16, 64, 512};
	struct net net = {.b = b};
	make_net(&net, NSV_Q4_1, NSV_Q8_0);
	net.x = map(512 * 1536 * 4);
	for (uint32_t i = 0; i < 512 * 1536; i++)
		net.x[i] = (float)(int)(i * 2654435761u >> 8 & 0xffff) * 1e-4f - 3.0f;
	net.out = map((size_t)512 * 49152 * 4);
	net.acts = map(b->acts_len(512, 1536));
	nsv_team_run(team, pack_part, &net);
	for (size_t i = 0; i < NSV_ARRAY_LEN(rows); i++) {
		double t, bytes = (double)net.n_byte, ops;
		net.n_row = rows[i];
		if (rows[i] > 16)
			net.n_weight = N_LAYER * 4; /* logits are asked for few rows only */
		t = time_of(team, products_part, &net);
		ops = net_ops(&net);
		printf("products, %3u rows   %8.3f ms  %6.1f GB/s (%3.0f %% of read)  %6.1f GOP/s (%2.0f %% "
		       "of VNNI)\n",
			rows[i], t * 1e3, bytes / t * 1e-9, 100 * bytes / t / read_rate, ops / t * 1e-9,
			ops_rate > 0 ? 100 * ops / t / ops_rate : 0);
	}
}

/* ---- Attention -------------------------------------------------------------------------- */

struct attn {
	const struct nsv_backend *b;
	struct nsv_attn_call call;
};

static void attn_part(const struct nsv_part *part, void *arg)
{
	struct attn *a = arg;
	a->b->attention(part, &a->call);
	nsv_team_barrier(part);
}

static void bench_attention(struct nsv_team *team, const struct nsv_backend *b, uint32_t n_past,
	uint32_t n_query, double read_rate)
{
	uint32_t n_kv = n_past + n_query, n_block = (n_kv + 15) / 16;
	int32_t *table = map(n_block * 4);
	struct nsv_attn_shape shape = {9, 3, 64, 16, n_block, NSV_F32, 0, 0.125f, 0,
		{16 * 192, 1, 16 * 64, 16}, {16 * 192, 64, 16 * 64, 1}};
	struct nsv_attn_seq seq = {0, n_query, n_past, n_block, table};
	struct nsv_attn_plan plan;
	struct attn a = {b, {&shape, &seq, &plan, map((size_t)n_query * 576 * 4),
		map((size_t)n_block * 16 * 192 * 4), map((size_t)n_block * 16 * 192 * 4),
		map((size_t)n_query * 576 * 4), NULL}};
	double t, bytes = (double)n_kv * 192 * 8, keys = 0;
	for (uint32_t i = 0; i < n_block; i++)
		table[i] = (int32_t)((uint64_t)i * 7919 % n_block);
	if (nsv_attn_make_plan(&shape, &seq, 1, n_query, &plan))
		abort();
	a.call.scratch = map(plan.scratch_len);
	for (uint32_t i = 0; i < n_query; i++)
		keys += n_past + i + 1;
	t = time_of(team, attn_part, &a);
	printf("attention, %4u queries after %5u   %8.3f ms  %6.1f GB/s (%3.0f %% of read)  %6.1f GFLOP/s\n",
		n_query, n_past, t * 1e3, bytes / t * 1e-9, 100 * bytes / t / read_rate,
		keys * 9 * 64 * 4 / t * 1e-9);
}

int main(int argc, char **argv)
{
	uint32_t n_thread = argc > 1 ? (uint32_t)atoi(argv[1]) : 2;
	const struct nsv_backend *b = NULL;
	struct nsv_team *team = NULL;
	struct nsv_err err;
	double read_rate, ops_rate;
	if (nsv_backend_choose("cpu", &b, &err) < 0 || nsv_team_new(n_thread, &team) < 0) {
		fprintf(stderr, "%s\n", b ? "no team" : err.text);
		return 1;
	}
	read_rate = READ_LEN / time_of(team, read_part, map(READ_LEN));
	ops_rate = dot_rate(team);
	printf("%s, %u threads: memory read %.1f GB/s, VNNI %.0f GOP/s\n", b->isa(), n_thread,
		read_rate * 1e-9, ops_rate * 1e-9);
	bench_products(team, b, read_rate, ops_rate);
	bench_attention(team, b, 1023, 1, read_rate);
	bench_attention(team, b, 8191, 1, read_rate);
	bench_attention(team, b, 0, 512, read_rate);
	bench_attention(team, b, 3584, 512, read_rate);
	nsv_team_free(team);
	return 0;
}
