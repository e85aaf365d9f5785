/* The operations on rows, on every backend: against doubles, in place and apart, over odd sizes,
 * with a forbidden page before or after each buffer; the same bits on every row of the table and
 * any team, of extreme values too. */
#include <float.h>

#include "tests/ops/support.h"

enum op { NORM, ADD, BIAS, ROPE_NORM, ROPE_NEOX, SILU, GELU, SOFTMAX };

struct op_call {
	const struct nsv_backend *b;
	enum op op;
	uint32_t n_row, n, n_head, head_dim, n_rot;
	size_t ld;
	const float *x, *y; /* inputs; y is a second one */
	float *out;
	bool in_place;
};

static size_t len_of(const struct op_call *c)
{
	return (c->n_row - 1) * c->ld + c->n;
}

static size_t y_len_of(const struct op_call *c)
{
	if (c->op == ROPE_NORM || c->op == ROPE_NEOX)
		return (size_t)c->n_row * (c->n_rot / 2) * 2;
	return c->op == NORM || c->op == BIAS ? c->n : len_of(c);
}

static size_t out_len_of(const struct op_call *c)
{
	return c->op == SILU || c->op == GELU ? (size_t)c->n_row * c->n : len_of(c);
}

static void run_op(const struct nsv_part *part, void *arg)
{
	const struct op_call *c = arg;
	switch (c->op) {
	case NORM:
		c->b->rmsnorm(part, c->out, c->in_place ? c->out : c->x, c->y, c->ld, c->n_row,
			c->n, 1e-5f);
		break;
	case ADD:
		c->b->add(part, c->out, c->y, len_of(c));
		break;
	case BIAS:
		c->b->add_bias(part, c->out, c->ld, c->y, c->n_row, c->n);
		break;
	case ROPE_NORM:
	case ROPE_NEOX:
		c->b->rope(part, c->out, c->ld, c->y, c->n_row, c->n_head, c->head_dim, c->n_rot,
			c->op == ROPE_NORM ? NSV_ROPE_NORM : NSV_ROPE_NEOX);
		break;
	case SILU:
	case GELU:
		c->b->gate(part, c->out, c->x, c->y, c->ld, c->n_row, c->n,
			c->op == SILU ? NSV_ACT_SILU : NSV_ACT_GELU_TANH);
		break;
	case SOFTMAX:
		c->b->softmax(part, c->out, c->in_place ? c->out : c->x, c->n_row, c->n);
		break;
	}
}

static void truth_row(const struct op_call *c, const float *x, uint32_t r, double *o)
{
	double sum = 0, max = -INFINITY;
	for (uint32_t i = 0; i < c->n; i++) {
		sum += (double)x[i] * (double)x[i];
		max = fmax(max, (double)x[i]);
	}
	if (c->op == SOFTMAX) {
		sum = 0;
		for (uint32_t i = 0; i < c->n; i++)
			sum += exp((double)x[i] - max);
	}
	for (uint32_t i = 0; i < c->n; i++) {
		double g = (double)x[i];
		if (c->op == NORM)
			o[i] = g / sqrt(sum / c->n + (double)1e-5f) * (double)c->y[i];
		else if (c->op == ADD)
			o[i] = (double)(x[i] + c->y[r * c->ld + i]);
		else if (c->op == BIAS)
			o[i] = (double)(x[i] + c->y[i]);
		else if (c->op == SILU)
			o[i] = g / (1 + exp(-g)) * (double)c->y[r * c->ld + i];
		else if (c->op == GELU)
			o[i] = 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) *
				(double)c->y[r * c->ld + i];
		else if (c->op == SOFTMAX)
			o[i] = exp(g - max) / sum;
		else
			o[i] = g;
	}
}

static void truth_rope(const struct op_call *c, uint32_t r, double *o)
{
	uint32_t half = c->n_rot / 2;
	for (uint32_t h = 0; h < c->n_head; h++)
		for (uint32_t i = 0; i < half; i++) {
			double *head = o + h * c->head_dim;
			double *a = c->op == ROPE_NORM ? head + 2 * i : head + i;
			double *b = c->op == ROPE_NORM ? head + 2 * i + 1 : head + i + half;
			double cs = (double)c->y[(r * half + i) * 2],
			       sn = (double)c->y[(r * half + i) * 2 + 1];
			double x0 = *a, x1 = *b;
			*a = x0 * cs - x1 * sn;
			*b = x0 * sn + x1 * cs;
		}
}

static void check_truth(const struct op_call *c, const float *in)
{
	size_t ld_out = c->op == SILU || c->op == GELU ? c->n : c->ld;
	nsv_autofree double *o = malloc(c->n * sizeof(double));
	for (uint32_t r = 0; r < c->n_row; r++) {
		truth_row(c, in + r * c->ld, r, o);
		if (c->op == ROPE_NORM || c->op == ROPE_NEOX)
			truth_rope(c, r, o);
		for (uint32_t i = 0; i < c->n; i++) {
			float got = c->out[r * ld_out + i];
			if (!(fabs((double)got - o[i]) <= 1e-6 + 1e-5 * fabs(o[i])))
				fail_msg("%s op %d (%u, %u) row %u: [%u] is %.9g, not %.9g",
					c->b->name, (int)c->op, c->n_row, c->n, r, i, (double)got,
					o[i]);
		}
	}
}

/* What is between rows, and the heads' parts that do not turn, stays as it was. */
static void check_untouched(const struct op_call *c, const float *in)
{
	if (c->op == SILU || c->op == GELU || c->op == ADD || c->op == SOFTMAX)
		return;
	for (uint32_t r = 0; r + 1 < c->n_row; r++)
		for (size_t i = c->n; i < c->ld; i++)
			assert_memory_equal(&c->out[r * c->ld + i], &in[r * c->ld + i], 4);
}

static void check_op(struct op_call *c, float scale)
{
	size_t n, len = len_of(c), y_len = y_len_of(c), out_len = out_len_of(c);
	const struct nsv_backend *list = t_backends(&n);
	float *x = t_floats(len), *y = t_floats(y_len), *cpu = t_floats(out_len);
	t_fill_normal(x, len, scale);
	t_fill_normal(y, y_len, 1.0f);
	c->x = x;
	c->y = y;
	for (size_t i = 0; i < n; i++) {
		c->b = &list[i];
		c->out = t_floats(out_len);
		c->in_place = t_below(2);
		memcpy(c->out, x, out_len * sizeof(float));
		t_run(c->b, 1 + t_below(4), run_op, c);
		check_truth(c, x);
		check_untouched(c, x);
		if (i == 2)
			memcpy(cpu, c->out, out_len * sizeof(float));
		else if (i > 2)
			t_same(list[i].name, c->out, cpu, out_len);
		nsv_guard_free(c->out);
	}
	nsv_guard_free(x);
	nsv_guard_free(y);
	nsv_guard_free(cpu);
}

static void check_sizes(enum op op, float scale)
{
	static const uint32_t sizes[] = {1, 2, 15, 16, 17, 31, 33, 64, 100, 576, 1536};
	for (size_t i = 0; i < NSV_ARRAY_LEN(sizes); i++) {
		struct op_call c = {.op = op, .n_row = 1 + t_below(6), .n = sizes[i]};
		c.ld = sizes[i] + (op == SOFTMAX || op == ADD ? 0 : t_below(20));
		check_op(&c, scale);
	}
}

static void test_rmsnorm(void **unused)
{
	(void)unused;
	check_sizes(NORM, 1.0f);
	check_sizes(NORM, 1e-3f);
	check_sizes(NORM, 1e4f);
}

static void test_add(void **unused)
{
	(void)unused;
	check_sizes(ADD, 1.0f);
	check_sizes(BIAS, 1.0f);
}

static void test_gate(void **unused)
{
	(void)unused;
	check_sizes(SILU, 1.0f);
	check_sizes(SILU, 30.0f);
	check_sizes(GELU, 1.0f);
	check_sizes(GELU, 10.0f);
}

static void test_softmax(void **unused)
{
	(void)unused;
	check_sizes(SOFTMAX, 0.1f);
	check_sizes(SOFTMAX, 1.0f);
	check_sizes(SOFTMAX, 50.0f);
}

static void test_rope(void **unused)
{
	static const uint32_t dims[][2] = {
		{64, 64}, {64, 32}, {2, 2}, {6, 4}, {80, 80}, {33, 32}, {128, 128}};
	(void)unused;
	for (size_t i = 0; i < NSV_ARRAY_LEN(dims); i++)
		for (enum op op = ROPE_NORM; op <= ROPE_NEOX; op++) {
			struct op_call c = {.op = op, .n_row = 1 + t_below(5),
				.n_head = 1 + t_below(9), .head_dim = dims[i][0],
				.n_rot = dims[i][1]};
			c.n = c.n_head * c.head_dim;
			c.ld = c.n + t_below(30);
			check_op(&c, 1.0f);
		}
}

/* exp over its whole range, through softmax's weights: e^x for x from 0 down to nothing. */
static void test_exp_range(void **unused)
{
	size_t n;
	const struct nsv_backend *list = t_backends(&n);
	float *x = t_floats(1001), *p = t_floats(1001);
	(void)unused;
	for (uint32_t i = 0; i <= 1000; i++)
		x[i] = -0.12f * (float)i;
	for (size_t b = 0; b < n; b++) {
		list[b].softmax(&t_alone, p, x, 1, 1001);
		for (uint32_t i = 1; i <= 1000; i++) {
			double want = exp((double)x[i]), got = (double)p[i] / (double)p[0];
			if (!(fabs(got - want) <= 1e-6 * want + 2e-38))
				fail_msg("%s: e^%g is %g, not %g", list[b].name, (double)x[i], got,
					want);
		}
	}
	nsv_guard_free(x);
	nsv_guard_free(p);
}

/* ---- Extreme values --------------------------------------------------------------------- */

#define N_EXTREME 37u

static const enum op all_ops[] = {NORM, ADD, BIAS, ROPE_NORM, ROPE_NEOX, SILU, GELU, SOFTMAX};

/* Three rows of x by every row of the table; y as wide as any operation wants. */
static struct op_call extreme_call(enum op op, const float *x, const float *y)
{
	return (struct op_call){.op = op, .n_row = 3, .n = N_EXTREME, .n_head = 1,
		.head_dim = N_EXTREME, .n_rot = N_EXTREME - 1, .ld = N_EXTREME, .x = x, .y = y};
}

static float *run_extreme(struct op_call *c, const struct nsv_backend *b)
{
	c->b = b;
	c->out = t_floats(out_len_of(c));
	memcpy(c->out, c->x, out_len_of(c) * sizeof(float));
	t_run(b, 1 + t_below(3), run_op, c);
	return c->out;
}

/* Bit for bit, but that one NaN is as good as another. */
static void check_alike(const char *what, const float *a, const float *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isnan(a[i]) || !isnan(b[i]))
			t_same(what, a + i, b + i, 1);
}

static void check_extremes(enum op op, const float *x, const float *y)
{
	struct op_call c = extreme_call(op, x, y);
	size_t n;
	const struct nsv_backend *list = t_backends(&n);
	float *first = run_extreme(&c, &list[2]);
	for (size_t i = 3; i < n; i++) {
		float *out = run_extreme(&c, &list[i]);
		check_alike(list[i].name, out, first, 3 * N_EXTREME);
		nsv_guard_free(out);
	}
	for (uint32_t i = 0; i < N_EXTREME; i++) { /* of a row of equal ones, and one of zeros */
		if (op == SOFTMAX)
			assert_true(fabsf(first[i] * N_EXTREME - 1) < 1e-5f);
		if (op == NORM || op == SILU || op == GELU)
			assert_true(first[2 * N_EXTREME + i] == 0);
	}
	nsv_guard_free(first);
}

/* A row of equal ones, one of a mixture, one of zeros. */
static void test_extremes(void **unused)
{
	static const float some[] = {0, -0.0f, 1e-42f, -1e-42f, FLT_MIN, 1, -1, 87.5f, -87.5f, 89,
		-89, -104, 1e18f, -1e18f, FLT_MAX, -FLT_MAX};
	float *x = t_floats(3 * N_EXTREME), *y = t_floats(3 * N_EXTREME);
	(void)unused;
	for (size_t k = 0; k < NSV_ARRAY_LEN(some); k++)
		for (size_t o = 0; o < NSV_ARRAY_LEN(all_ops); o++) {
			for (uint32_t i = 0; i < N_EXTREME; i++) {
				x[i] = some[k];
				x[N_EXTREME + i] = some[t_below(NSV_ARRAY_LEN(some))];
				x[2 * N_EXTREME + i] = 0;
			}
			t_fill_normal(y, 3 * N_EXTREME, 1.0f);
			check_extremes(all_ops[o], x, y);
		}
	nsv_guard_free(x);
	nsv_guard_free(y);
}

/* The row shows that one of its numbers is none, and no other row does. */
static void check_not_finite(const struct nsv_backend *b, enum op op, float bad)
{
	float *x = t_floats(3 * N_EXTREME), *y = t_floats(3 * N_EXTREME), *good, *out;
	struct op_call c = extreme_call(op, x, y);
	bool shows = false;
	t_fill_normal(x, 3 * N_EXTREME, 1.0f);
	t_fill_normal(y, 3 * N_EXTREME, 1.0f);
	good = run_extreme(&c, b);
	x[N_EXTREME + t_below(N_EXTREME)] = bad;
	out = run_extreme(&c, b);
	t_same(b->name, out, good, N_EXTREME);
	t_same(b->name, out + 2 * N_EXTREME, good + 2 * N_EXTREME, N_EXTREME);
	for (uint32_t i = 0; i < N_EXTREME; i++)
		shows |= !isfinite(out[N_EXTREME + i]);
	if (!shows)
		fail_msg("%s op %d: %g is not seen", b->name, (int)op, (double)bad);
	nsv_guard_free(x);
	nsv_guard_free(y);
	nsv_guard_free(good);
	nsv_guard_free(out);
}

static void test_not_finite(void **unused)
{
	size_t n;
	const struct nsv_backend *list = t_backends(&n);
	(void)unused;
	for (size_t i = 0; i < n; i++)
		for (size_t o = 0; o < NSV_ARRAY_LEN(all_ops); o++) {
			check_not_finite(&list[i], all_ops[o], NAN);
			check_not_finite(&list[i], all_ops[o], INFINITY);
		}
}

/* ---- Gathering rows of a stored matrix -------------------------------------------------- */

struct embed_call {
	const struct nsv_backend *b;
	const struct nsv_matrix *m;
	const int32_t *ids;
	uint32_t n_row;
	float scale, *out;
};

static void embed_part(const struct nsv_part *part, void *arg)
{
	const struct embed_call *c = arg;
	c->b->embed(part, c->out, c->m, c->ids, c->n_row, c->scale);
}

static void check_embed(const struct nsv_backend *b, const struct nsv_matrix *m)
{
	int32_t *ids = t_new(5 * sizeof(*ids), sizeof(*ids));
	struct embed_call c = {b, m, ids, 5, t_below(2) ? 1.0f : 3.5f, t_floats(5 * m->n_in)};
	nsv_autofree float *want = malloc(m->n_in * sizeof(float));
	size_t row_len = 0;
	nsv_dtype_row_len(m->dtype, m->n_in, &row_len);
	for (int i = 0; i < 5; i++)
		ids[i] = i == 0 ? (int32_t)m->n_out - 1 : (int32_t)t_below(m->n_out);
	t_run(b, 1 + t_below(4), embed_part, &c);
	for (int i = 0; i < 5; i++) {
		nsv_ref_dequant(
			m->dtype, (const char *)m->data + (size_t)ids[i] * row_len, want, m->n_in);
		for (uint32_t j = 0; j < m->n_in; j++)
			want[j] *= c.scale;
		t_close(b->name, c.out + (size_t)i * m->n_in, want, m->n_in, 1e-7f, 1e-6f);
	}
	nsv_guard_free(c.out);
	nsv_guard_free(ids);
}

static void test_embed(void **unused)
{
	size_t n;
	const struct nsv_backend *list = t_backends(&n);
	(void)unused;
	for (size_t d = 0; d < NSV_ARRAY_LEN(t_dtypes); d++) {
		uint32_t unit = nsv_dtype_info(t_dtypes[d])->n_elem;
		struct nsv_matrix m = t_matrix(t_dtypes[d], 30, unit == 1 ? 33 : unit * 3, 0.3f);
		for (size_t i = 0; i < n; i++)
			check_embed(&list[i], &m);
		t_matrix_free(&m);
	}
}

/* ---- Appending -------------------------------------------------------------------------- */

struct append_call {
	const struct nsv_backend *b;
	const struct nsv_attn_shape *s;
	void *k_pool, *v_pool;
	const float *k, *v;
	const int64_t *slots;
	size_t ld;
	uint32_t n_row;
};

static void append_part(const struct nsv_part *part, void *arg)
{
	const struct append_call *c = arg;
	c->b->kv_append(part, c->s, c->k_pool, c->v_pool, c->k, c->v, c->ld, c->slots, c->n_row);
}

static void check_slot(const struct append_call *c, uint32_t r, uint32_t h, uint32_t d)
{
	uint16_t half[2] = {0, 0};
	int64_t ko = 0, vo = 0;
	size_t at = r * c->ld + h * c->s->head_dim + d;
	float k, v, kw = c->k[at], vw = c->v[at];
	nsv_attn_offset(c->s, &c->s->k, (uint64_t)c->slots[r], h, d, &ko);
	nsv_attn_offset(c->s, &c->s->v, (uint64_t)c->slots[r], h, d, &vo);
	k = nsv_load_elem(c->s->kv_dtype, c->k_pool, ko);
	v = nsv_load_elem(c->s->kv_dtype, c->v_pool, vo);
	if (c->s->kv_dtype != NSV_F32) {
		nsv_store_kv(c->s->kv_dtype, half, 0, kw);
		nsv_store_kv(c->s->kv_dtype, half, 1, vw);
		kw = nsv_load_elem(c->s->kv_dtype, half, 0);
		vw = nsv_load_elem(c->s->kv_dtype, half, 1);
	}
	assert_memory_equal(&k, &kw, 4);
	assert_memory_equal(&v, &vw, 4);
}

static void check_append(const struct nsv_backend *b, uint32_t dtype, bool dim_major)
{
	struct nsv_attn_shape s = {.n_head = 3, .n_kv_head = 3, .head_dim = 20, .block_size = 16,
		.n_block = 4, .kv_dtype = dtype, .scale = 1,
		.k = {960, dim_major ? 1 : 20, 320, dim_major ? 16 : 1}, .v = {960, 20, 320, 1}};
	const int64_t places[5] = {63, 0, 15, 16, 33};
	int64_t *slots = t_new(sizeof(places), sizeof(*places));
	size_t pool_len = 4 * 960 * (dtype == NSV_F32 ? 4 : 2), n_float = 4 * 67 + 60, touched = 0;
	struct append_call c = {b, &s, t_new(pool_len, 4), t_new(pool_len, 4), NULL, NULL, slots,
		67, 5};
	float *k = t_floats(n_float), *v = t_floats(n_float);
	memcpy(slots, places, sizeof(places));
	t_fill_normal(k, n_float, t_below(2) ? 1 : 1e-7f);
	t_fill_normal(v, n_float, t_below(2) ? 1 : 10000);
	memset(c.k_pool, 0xff, pool_len);
	memset(c.v_pool, 0xff, pool_len);
	c.k = k;
	c.v = v;
	t_run(b, 1 + t_below(4), append_part, &c);
	for (uint32_t r = 0; r < 5; r++)
		for (uint32_t i = 0; i < 60; i++)
			check_slot(&c, r, i / 20, i % 20);
	for (int64_t i = 0; i < 4 * 960; i++)
		touched += !isnan(nsv_load_elem(dtype, c.k_pool, i)) +
			!isnan(nsv_load_elem(dtype, c.v_pool, i));
	assert_int_equal(touched, 2 * 5 * 60);
	nsv_guard_free(c.k_pool);
	nsv_guard_free(c.v_pool);
	nsv_guard_free(slots);
	nsv_guard_free(k);
	nsv_guard_free(v);
}

static void test_append(void **unused)
{
	static const uint32_t dtypes[] = {NSV_F32, NSV_F16, NSV_BF16};
	size_t n;
	const struct nsv_backend *list = t_backends(&n);
	(void)unused;
	for (size_t i = 0; i < n; i++)
		for (size_t d = 0; d < 3; d++) {
			check_append(&list[i], dtypes[d], true);
			check_append(&list[i], dtypes[d], false);
		}
}

/* ---- To fp16, as K and V are stored ----------------------------------------------------- */

#define N_CONVERT 4096u
#define MAX_DIM 1024u

/* n floats through the backend's kv_append: adjacent places in V, 16 apart in K. */
static void convert(
	const struct nsv_backend *b, const float *x, uint32_t n, uint16_t *k, uint16_t *v)
{
	uint32_t n_head = n / MAX_DIM;
	int64_t block = (int64_t)n * 16, slot = 0;
	const struct nsv_attn_shape s = {.n_head = n_head, .n_kv_head = n_head, .head_dim = MAX_DIM,
		.block_size = 16, .n_block = 1, .kv_dtype = NSV_F16, .scale = 1,
		.k = {block, 1, MAX_DIM * 16, 16}, .v = {block, MAX_DIM, MAX_DIM * 16, 1}};
	uint16_t *pools = calloc(2, (size_t)block * 2);
	assert_non_null(pools);
	b->kv_append(&t_alone, &s, pools, pools + block, x, x, n, &slot, 1);
	for (uint32_t i = 0; i < n; i++) {
		k[i] = pools[(size_t)i * 16];
		v[i] = pools[block + i / MAX_DIM * MAX_DIM * 16 + i % MAX_DIM];
	}
	free(pools);
}

/* The nearest of all fp16 numbers, to even; NaN for what lies beyond the largest: found by
 * search. */
static uint16_t nearest_f16(float f)
{
	double x = fabs((double)f);
	uint32_t low = 0, high = 0x7bff, sign = nsv_f32_bits(f) >> 16 & 0x8000u;
	if (isnan(f) || x >= 65520)
		return 0x7e00;
	while (low < high) { /* the largest that is not above x */
		uint32_t middle = (low + high + 1) / 2;
		if (x >= (double)nsv_f16_f32((uint16_t)middle))
			low = middle;
		else
			high = middle - 1;
	}
	if (low < 0x7bff) {
		double below = x - (double)nsv_f16_f32((uint16_t)low);
		double above = (double)nsv_f16_f32((uint16_t)(low + 1)) - x;
		low += above < below || (above == below && low & 1);
	}
	return (uint16_t)(sign | low);
}

/* The result depends on the upper 20 bits and on whether any bit below them is set: all of the
 * former with four of the latter, on every row. */
static void test_to_f16(void **unused)
{
	const uint32_t tails[] = {0, 1, 0xfff, 1 + t_below(0xffe)};
	size_t n;
	const struct nsv_backend *list = t_backends(&n);
	float *x = t_floats(N_CONVERT);
	uint16_t want[N_CONVERT], k[N_CONVERT], v[N_CONVERT];
	(void)unused;
	for (uint32_t at = 0; at < 1u << 22; at += N_CONVERT) {
		for (uint32_t i = 0; i < N_CONVERT; i++) {
			x[i] = nsv_bits_f32((at + i) >> 2 << 12 | tails[(at + i) & 3]);
			want[i] = nearest_f16(x[i]);
		}
		for (size_t b = 2; b < n; b++) {
			convert(&list[b], x, N_CONVERT, k, v);
			if (memcmp(k, want, sizeof(want)) || memcmp(v, want, sizeof(want)))
				fail_msg(
					"%s: floats from %#x on", list[b].name, nsv_f32_bits(x[0]));
		}
	}
	nsv_guard_free(x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rmsnorm),
		cmocka_unit_test(test_add),
		cmocka_unit_test(test_gate),
		cmocka_unit_test(test_softmax),
		cmocka_unit_test(test_rope),
		cmocka_unit_test(test_exp_range),
		cmocka_unit_test(test_extremes),
		cmocka_unit_test(test_not_finite),
		cmocka_unit_test(test_embed),
		cmocka_unit_test(test_append),
		cmocka_unit_test(test_to_f16),
	};
	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
