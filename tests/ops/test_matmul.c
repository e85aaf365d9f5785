/* Products of every stored type on every backend: against doubles where weights and activations are
 * what the backend reads (for `cpu` the quantised activations, modelled here in exact integers),
 * against the reference within what 8 bits allow, and bit for bit among rows of the table, counts
 * of rows and sizes of team. */
#include "kernels/cpu/pack.h"
#include "tests/ops/support.h"

struct product {
	const struct nsv_backend *b;
	const struct nsv_matrix *m;
	uint32_t n_m, n_row, n_in, n_out;
	const float *x;
	size_t ld;
	void *weight, *acts;
	float *out; /* (n_row, n_out) */
	const struct nsv_scan_slices *slices;
};

static void product_part(const struct nsv_part *part, void *arg)
{
	struct product *p = arg;
	p->b->weight_pack(part, p->m, p->n_m, p->weight);
	p->b->acts_set(part, p->acts, p->x, p->ld, p->n_row, p->n_in);
	if (part->count > 1)
		nsv_team_barrier(part);
	p->b->matmul(part, p->out, p->n_out, p->weight, p->acts, p->n_row, p->slices);
}

/* Rows of x times the stacked matrices; the result is the caller's, from t_floats. */
static float *product_slices(const struct nsv_backend *b, const struct nsv_matrix *m, uint32_t n_m,
	const float *x, size_t ld, uint32_t n_row, uint32_t n_thread,
	const struct nsv_scan_slices *slices)
{
	struct product p = {.b = b, .m = m, .n_m = n_m, .n_row = n_row, .n_in = m->n_in, .x = x,
		.ld = ld, .slices = slices};
	size_t len = 0;
	for (uint32_t i = 0; i < n_m; i++)
		p.n_out += m[i].n_out;
	assert_int_equal(b->weight_len(m, n_m, &len), 0);
	p.weight = t_new(len, 64);
	p.acts = t_new(b->acts_len(n_row, p.n_in), 64);
	p.out = t_floats((size_t)n_row * p.n_out);
	t_run(b, n_thread, product_part, &p);
	nsv_guard_free(p.weight);
	nsv_guard_free(p.acts);
	return p.out;
}

static float *product(const struct nsv_backend *b, const struct nsv_matrix *m, uint32_t n_m,
	const float *x, size_t ld, uint32_t n_row, uint32_t n_thread)
{
	return product_slices(b, m, n_m, x, ld, n_row, n_thread, NULL);
}

/* ---- The model of quantised activations ------------------------------------------------- */

/* x as d * q of its block of 32, in double: what the cpu backend multiplies. */
static void quantise(const float *x, uint32_t n, double *out)
{
	for (uint32_t b = 0; b < n; b += 32) {
		uint32_t end = b + 32 < n ? b + 32 : n;
		float amax = 0;
		for (uint32_t i = b; i < end; i++)
			amax = fmaxf(amax, fabsf(x[i]));
		if (amax / 127.0f < 0x1p-126f) /* a scale that is no normal number counts as none */
			amax = 0;
		for (uint32_t i = b; i < end; i++) {
			float q = amax > 0 ? nearbyintf(x[i] * (127.0f / amax)) : 0;
			assert_true(fabsf(q) <= 127);
			out[i] = (double)q * (double)(amax / 127.0f);
		}
	}
}

/* x as a weight in bf16 meets it: the nearest bf16, or zero below the normal numbers. */
static void round_bf16(const float *x, uint32_t n, double *out)
{
	for (uint32_t i = 0; i < n; i++) {
		float f = nsv_bf16_f32(nsv_f32_bf16(x[i]));
		out[i] = fabsf(f) < 0x1p-126f ? 0 : (double)f;
	}
}

/* A weight is d * q + m where its type has an m; both parts may be far larger than it. */
static void get_m(const struct nsv_matrix *m, const void *row, float *ret_m)
{
	struct nsv_cpu_block block;
	for (uint32_t i = 0; i < m->n_in; i++) {
		if (i % 32 == 0)
			nsv_cpu_read_block(m->dtype, row, i / 32, &block);
		ret_m[i] = block.m * (float)block.min[i / 16 % 2];
	}
}

struct bound {
	double value, size; /* the dot; the sum of magnitudes, which its rounding scales with */
};

static struct bound dot(const float *w, const float *w_m, const double *x, uint32_t n)
{
	struct bound r = {0, 0};
	for (uint32_t i = 0; i < n; i++) {
		double w_q = (double)w[i] - (double)w_m[i];
		r.value += (double)w[i] * x[i];
		r.size += (fabs(w_q) + fabs((double)w_m[i])) * fabs(x[i]);
	}
	return r;
}

static bool is_cpu(const struct nsv_backend *b)
{
	return !strncmp(b->name, "cpu", 3);
}

static bool is_float(uint32_t dtype)
{
	return nsv_dtype_info(dtype)->n_elem == 1;
}

/* Against doubles over the very numbers that the backend multiplies: fp32 rounding alone. */
static void check_exact(const struct nsv_backend *b, const struct nsv_matrix *m, const float *x,
	size_t ld, uint32_t n_row, const float *out, size_t ld_out)
{
	bool quant = is_cpu(b) && !is_float(m->dtype);
	nsv_autofree double *xd = malloc(m->n_in * sizeof(double));
	nsv_autofree float *w = malloc(m->n_in * sizeof(float));
	nsv_autofree float *w_m = calloc(m->n_in, sizeof(float));
	size_t row_len = 0;
	nsv_dtype_row_len(m->dtype, m->n_in, &row_len);
	for (uint32_t o = 0; o < m->n_out; o++) {
		const char *row = (const char *)m->data + o * row_len;
		nsv_ref_dequant(m->dtype, row, w, m->n_in);
		if (quant)
			get_m(m, row, w_m);
		for (uint32_t r = 0; r < n_row; r++) {
			struct bound want;
			double got = (double)out[r * ld_out + o];
			for (uint32_t i = 0; i < m->n_in; i++)
				xd[i] = (double)x[r * ld + i];
			if (is_cpu(b) && m->dtype == NSV_BF16)
				round_bf16(x + r * ld, m->n_in, xd);
			if (quant)
				quantise(x + r * ld, m->n_in, xd);
			want = dot(w, w_m, xd, m->n_in);
			if (!(fabs(got - want.value) <= 1e-6 + 4e-6 * want.size))
				fail_msg("%s %s (%u, %u) row %u: [%u] is %.9g, not %.9g (size %g)",
					b->name, nsv_dtype_name(m->dtype), m->n_out, m->n_in, r, o,
					got, want.value, want.size);
		}
	}
}

/* What 8 bits a value leave, or rounding to bf16: the error, relative, over all outputs. */
static void check_relative(
	const char *what, const float *a, const float *b, size_t n, double limit)
{
	double err = 0, all = 0;
	for (size_t i = 0; i < n; i++) {
		err += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
		all += (double)b[i] * (double)b[i];
	}
	if (!(err <= limit * limit * all + 1e-12))
		fail_msg("%s: relative error %g", what, sqrt(err / all));
}

static float *make_x(uint32_t n_row, uint32_t n_in, size_t ld)
{
	size_t n = (n_row - 1) * ld + n_in;
	float *x = t_floats(n);
	t_fill_normal(x, n, 1.0f);
	for (size_t i = 0; i < n / 40; i++)
		x[t_below((uint32_t)n)] *= 8.0f;
	return x;
}

static void check_size(uint32_t dtype, uint32_t n_out, uint32_t n_in, uint32_t n_row)
{
	struct nsv_matrix m = t_matrix(dtype, n_out, n_in, 0.2f);
	size_t n, ld = n_in + t_below(3) * 7;
	const struct nsv_backend *b = t_backends(&n);
	float *x = make_x(n_row, n_in, ld), *ref = NULL, *cpu = NULL;
	for (size_t i = 0; i < n; i++) {
		float *out = product(&b[i], &m, 1, x, ld, n_row, 1 + t_below(3));
		check_exact(&b[i], &m, x, ld, n_row, out, n_out);
		if (!ref)
			ref = out;
		else if (is_cpu(&b[i]) && !cpu) {
			cpu = out;
			if (n_out * n_row >= 64)
				check_relative(b[i].name, out, ref, (size_t)n_row * n_out,
					is_float(dtype) ? 4e-3 : 0.05);
		} else {
			if (is_cpu(&b[i]))
				t_same(b[i].name, out, cpu, (size_t)n_row * n_out);
			nsv_guard_free(out);
		}
	}
	nsv_guard_free(ref);
	nsv_guard_free(cpu);
	nsv_guard_free(x);
	t_matrix_free(&m);
}

static void test_every_type(void **unused)
{
	(void)unused;
	for (size_t d = 0; d < NSV_ARRAY_LEN(t_dtypes); d++) {
		uint32_t unit = nsv_dtype_info(t_dtypes[d])->n_elem;
		check_size(t_dtypes[d], 1 + t_below(16), unit, 1);
		check_size(t_dtypes[d], 16, unit * 3, 1);
		check_size(t_dtypes[d], 17 + t_below(40), unit * (1 + t_below(5)), 2 + t_below(5));
		check_size(t_dtypes[d], 33, unit * 2, 16);
		check_size(t_dtypes[d], 1 + t_below(70), unit * (1 + t_below(4)), 17 + t_below(30));
	}
	if (t_emulated())
		return;
	check_size(NSV_Q4_1, 576, 576, 1);
	check_size(NSV_Q4_1, 192, 1536, 37);
}

/* Rows longer than what a backend may take at a time. */
static void test_long_rows(void **unused)
{
	(void)unused;
	check_size(NSV_Q4_1, 20, 4192, 33);
	check_size(NSV_Q8_0, 35, 2080, 16 + t_below(16));
	check_size(NSV_Q6_K, 17, 2304, 30);
	check_size(NSV_BF16, 35, 1024 + t_below(1200), 12 + t_below(80));
	check_size(NSV_BF16, 17, 33 + t_below(40), 257 + t_below(40));
	check_size(NSV_Q2_K, 18, 2304, 17);
	check_size(NSV_IQ4_XS, 16, 2304, 16);
}

/* Float weights have no blocks: any length. */
static void test_odd_length(void **unused)
{
	(void)unused;
	for (size_t d = 0; d < 3; d++)
		for (uint32_t n = 1; n < 70; n += 1 + t_below(5))
			check_size(t_dtypes[d], 1 + t_below(40), n, 1 + t_below(19));
}

/* A row's bits do not depend on the rows around it, nor on the team. */
static void test_same_bits(void **unused)
{
	size_t n;
	const struct nsv_backend *b = t_backends(&n);
	(void)unused;
	for (size_t d = 0; d < NSV_ARRAY_LEN(t_dtypes); d++) {
		struct nsv_matrix m = t_matrix(t_dtypes[d], 50, 512, 0.2f);
		float *x = make_x(45, 512, 512);
		for (size_t i = 0; i < n; i++) {
			float *all = product(&b[i], &m, 1, x, 512, 45, 1);
			for (uint32_t count = 1; count < 45; count += 1 + t_below(12)) {
				uint32_t r0 = t_below(45 - count);
				float *some = product(
					&b[i], &m, 1, x + r0 * 512, 512, count, 1 + t_below(8));
				t_same(b[i].name, some, all + r0 * 50, count * 50);
				nsv_guard_free(some);
			}
			nsv_guard_free(all);
		}
		nsv_guard_free(x);
		t_matrix_free(&m);
	}
}

/* Stacked matrices of different types are their products side by side. */
static void test_stacked(void **unused)
{
	size_t n;
	const struct nsv_backend *b = t_backends(&n);
	struct nsv_matrix m[3] = {t_matrix(NSV_Q4_1, 70, 256, 0.2f),
		t_matrix(NSV_Q8_0, 5, 256, 0.2f),
		t_matrix(t_below(2) ? NSV_Q6_K : NSV_Q3_K, 40, 256, 0.2f)};
	float *x = make_x(20, 256, 256);
	(void)unused;
	for (size_t i = 0; i < n; i++)
		for (uint32_t rows = 1; rows <= 20; rows += 19) {
			float *all = product(&b[i], m, 3, x, 256, rows, 3);
			uint32_t at = 0;
			for (uint32_t j = 0; j < 3; at += m[j++].n_out) {
				float *one = product(&b[i], &m[j], 1, x, 256, rows, 2);
				for (uint32_t r = 0; r < rows; r++)
					t_same(b[i].name, all + r * 115 + at, one + r * m[j].n_out,
						m[j].n_out);
				nsv_guard_free(one);
			}
			nsv_guard_free(all);
		}
	nsv_guard_free(x);
	for (uint32_t j = 0; j < 3; j++)
		t_matrix_free(&m[j]);
}

static void check_slice(const char *name, const float *x, uint32_t n, float scale,
	const struct nsv_scan_range *range)
{
	struct nsv_scan_range want = {INFINITY, -INFINITY, true, 0};
	double sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		want.min = fminf(want.min, x[i]);
		want.max = fmaxf(want.max, x[i]);
		want.finite &= isfinite(x[i]);
	}
	if (range->finite != want.finite)
		fail_msg("%s: finite is %d", name, range->finite);
	if (want.finite && (range->min != want.min || range->max != want.max))
		fail_msg("%s: %g to %g, not %g to %g", name, (double)range->min,
			(double)range->max, (double)want.min, (double)want.max);
	for (uint32_t i = 0; i < n && scale > 0; i++)
		sum += exp2((double)((x[i] - want.max) * scale));
	if (want.finite && fabs((double)range->sum - sum) > 0x1p-15 * sum)
		fail_msg("%s: sum %g, not %g", name, (double)range->sum, sum);
}

/* One row is not finite. Of some rows sums are wanted. */
static void check_slices(uint32_t dtype, uint32_t n_out, uint32_t n_row)
{
	struct nsv_matrix m = t_matrix(dtype, n_out, 256, 0.2f);
	uint32_t n_slice = nsv_scan_n_slice(n_out);
	size_t n, n_range = (size_t)n_row * n_slice;
	const struct nsv_backend *b = t_backends(&n);
	float *x = make_x(n_row, 256, 256);

	float *scales = t_floats(n_row);

	if (n_row > 1)
		x[t_below(n_row * 256)] = NAN;
	for (uint32_t r = 0; r < n_row; r++)
		scales[r] = t_below(2) ? t_float(0.1f, 2) : 0;
	for (size_t i = 0; i < n; i++) {
		struct nsv_scan_range *ranges = nsv_guard_new(
			n_range * sizeof(*ranges), sizeof(float), NSV_GUARD_AFTER);
		const struct nsv_scan_slices slices = {ranges, scales};
		float *plain = product(&b[i], &m, 1, x, 256, n_row, 1);
		float *out = product_slices(
			&b[i], &m, 1, x, 256, n_row, 1 + t_below(8), &slices);
		t_same(b[i].name, out, plain, (size_t)n_row * n_out);
		for (uint32_t k = 0; k < n_range; k++) {
			uint32_t at = k % n_slice * NSV_SCAN_SLICE;
			check_slice(b[i].name, out + k / n_slice * n_out + at,
				(uint32_t)nsv_min(n_out - at, NSV_SCAN_SLICE), scales[k / n_slice],
				&ranges[k]);
		}
		nsv_guard_free(out);
		nsv_guard_free(plain);
		nsv_guard_free(ranges);
	}
	nsv_guard_free(scales);
	nsv_guard_free(x);
	t_matrix_free(&m);
}

/* What is said of each slice of the outputs, whoever computed it. */
static void test_slices(void **unused)
{
	(void)unused;
	check_slices(NSV_Q8_0, 1 + t_below(NSV_SCAN_SLICE), 1 + t_below(3));
	check_slices(NSV_Q8_0, NSV_SCAN_SLICE, 17 + t_below(20));
	check_slices(NSV_Q6_K, NSV_SCAN_SLICE + 1 + t_below(40), 1);
	check_slices(NSV_BF16, 3 * NSV_SCAN_SLICE - 5, 3 + t_below(20));
	check_slices(NSV_F32, 2 * NSV_SCAN_SLICE, 2);
	if (!t_emulated())
		check_slices(NSV_Q4_1, 11 * NSV_SCAN_SLICE + 16, 33);
}

/* Row r begins with the r-th of four kinds of blocks. */
static void set_extremes(float *x, uint32_t n_row, uint32_t n)
{
	for (uint32_t i = 0; i < n_row * n; i++) {
		uint32_t kind = (i % n / 32 + i / n) % 4;
		x[i] = kind == 0 ? 0.0f
		       : kind == 1 ? (i % 2 ? 127.0f : -127.0f)
		       : kind == 2 ? 1e-42f
				   : 1e18f * (float)(i % 3);
	}
}

/* x (n_row, n_in) on each row of the instruction-set table: exact, and the same bits. */
static void check_rows_exact(
	const struct nsv_matrix *m, const float *x, uint32_t n_row, uint32_t n_member)
{
	size_t n;
	const struct nsv_backend *b = t_backends(&n);
	float *first = NULL;
	for (size_t i = 2; i < n; i++) {
		float *out = product(&b[i], m, 1, x, m->n_in, n_row, n_member);
		check_exact(&b[i], m, x, m->n_in, n_row, out, m->n_out);
		if (first) {
			t_same(b[i].name, out, first, n_row * m->n_out);
			nsv_guard_free(out);
		} else {
			first = out;
		}
	}
	nsv_guard_free(first);
}

static void check_extremes(uint32_t dtype, uint32_t n_row)
{
	struct nsv_matrix m = t_matrix(dtype, 40, 512, 0.2f);
	float *x = t_floats(n_row * 512);
	set_extremes(x, n_row, 512);
	check_rows_exact(&m, x, n_row, 2);
	nsv_guard_free(x);
	t_matrix_free(&m);
}

/* Blocks of zeros, of the largest q of both signs, of subnormals, of huge values; weights at both
 * ends of their range, where sums of 16 bits would saturate. */
static void test_extremes(void **unused)
{
	(void)unused;
	for (size_t d = 2; d < NSV_ARRAY_LEN(t_dtypes); d++) {
		check_extremes(t_dtypes[d], 1);
		check_extremes(t_dtypes[d], 5);
		check_extremes(t_dtypes[d], 16 + t_below(20));
	}
}

/* The largest sums there are: all q at an end of their range, all x 127, or -127, or by turns; so
 * many rows that each way of sharing a panel among them is taken. */
static void check_largest(uint32_t dtype, uint8_t byte, uint32_t n_row)
{
	struct nsv_matrix m = t_matrix_equal(dtype, 20, 512, byte, 0.2f);
	float *x = t_floats(n_row * 512);
	for (uint32_t i = 0; i < n_row * 512; i++) {
		uint32_t turns = i / 512 % 3;
		x[i] = turns == 0 || (turns == 1 && i % 2) ? 127.0f : -127.0f;
	}
	check_rows_exact(&m, x, n_row, 1);
	nsv_guard_free(x);
	t_matrix_free(&m);
}

static void test_largest(void **unused)
{
	static const uint8_t fills[] = {0x00, 0x7f, 0x80, 0xff};
	(void)unused;
	for (size_t d = 3; d < NSV_ARRAY_LEN(t_dtypes); d++)
		for (size_t f = 0; f < NSV_ARRAY_LEN(fills); f++) {
			for (uint32_t rows = 1; rows < 8; rows += t_emulated() ? 3 : 1)
				check_largest(t_dtypes[d], fills[f], rows);
			check_largest(t_dtypes[d], fills[f], t_emulated() ? 17 : 33);
		}
}

/* Weights in bf16 whose products lie around the smallest normal number, below which is zero: with
 * and without tiles, in vectors and in plain C. */
static void check_flushed(void)
{
	size_t n;
	const struct nsv_backend *b = t_backends(&n);
	struct nsv_matrix m = t_matrix(NSV_BF16, 40, 192, 1e-19f);
	float *x = make_x(20, 192, 192), *first = NULL;
	uint32_t zeros = 0;
	for (uint32_t i = 0; i < 20 * 192; i++)
		x[i] *= i / 192 % 2 ? 2e-19f : 1e-21f;
	for (size_t i = 2; i < n; i++)
		for (uint32_t rows = 20; rows; rows -= 10) {
			float *out = product(&b[i], &m, 1, x, 192, rows, 2);
			if (first)
				t_same(b[i].name, out, first, rows * 40);
			for (uint32_t j = 0; !first && j < rows * 40; j++)
				zeros += out[j] == 0;
			if (first)
				nsv_guard_free(out);
			else
				first = out;
		}
	assert_true(zeros > 0 && zeros < 20 * 40);
	nsv_guard_free(first);
	nsv_guard_free(x);
	t_matrix_free(&m);
}

static void test_flushed(void **unused)
{
	(void)unused;
	if (!t_can_flush()) {
		print_message("skipped: no mode that takes subnormal numbers for zeros\n");
		skip();
	}
	check_flushed();
}

/* An input that is no number makes every output of its row none, and touches no other row. */
static void test_not_finite(void **unused)
{
	const float bad[] = {NAN, INFINITY, -INFINITY};
	size_t n;
	const struct nsv_backend *b = t_backends(&n);
	struct nsv_matrix m = t_matrix(NSV_Q4_1, 20, 64, 0.2f);
	(void)unused;
	for (size_t i = 2; i < n; i++)
		for (size_t k = 0; k < 3; k++) {
			float *x = make_x(3, 64, 64), *out;
			x[64 + t_below(64)] = bad[k];
			out = product(&b[i], &m, 1, x, 64, 3, 1);
			for (uint32_t o = 0; o < 20; o++)
				assert_true(isnan(out[20 + o]) && isfinite(out[o]) &&
					isfinite(out[40 + o]));
			nsv_guard_free(out);
			nsv_guard_free(x);
		}
	t_matrix_free(&m);
}

/* A member's product with weights of which all but what is its own, or nothing but that, is
 * noise. */
struct own {
	const struct nsv_backend *b;
	struct nsv_part part;
	size_t len, head, begin, end; /* bytes of the weight; of what is before all panels */
	const uint8_t *weight;
	const void *acts;
	uint32_t n_out;
};

static void own_product(const struct own *o, bool spoil_own, float *out)
{
	uint8_t *weight = nsv_guard_new(o->len, 64, NSV_GUARD_BEFORE);
	memcpy(weight, o->weight, o->len);
	for (size_t i = o->head; i < o->len; i++)
		if ((i >= o->begin && i < o->end) == spoil_own)
			weight[i] = (uint8_t)~weight[i];
	memset(out, 0, 2 * o->n_out * sizeof(*out));
	o->b->matmul(&o->part, out, o->n_out, weight, o->acts, 2, NULL);
	nsv_guard_free(weight);
}

static void check_own(struct own *o, const struct nsv_matrix *m, uint32_t n_m)
{
	float *good = t_floats(2 * o->n_out), *out = t_floats(2 * o->n_out);
	o->b->weight_own(&o->part, m, n_m, &o->begin, &o->end);
	assert_true(o->head <= o->begin && o->begin <= o->end && o->end <= o->len);
	memset(good, 0, 2 * o->n_out * sizeof(*good));
	o->b->matmul(&o->part, good, o->n_out, o->weight, o->acts, 2, NULL);
	own_product(o, false, out);
	t_same(o->b->name, out, good, 2 * o->n_out);
	own_product(o, true, out);
	assert_int_equal(memcmp(out, good, 2 * o->n_out * sizeof(*out)) == 0, o->begin == o->end);
	nsv_guard_free(good);
	nsv_guard_free(out);
}

/* Of many members each has a part of its own, one behind the other, three quarters in all, less
 * what does not come out even. */
static void check_own_of_many(const struct own *o, const struct nsv_matrix *m, uint32_t n_m)
{
	for (uint32_t count = 5; count <= 9; count++) {
		size_t begin, end, last = o->head;
		for (uint32_t i = 0; i < count; i++) {
			const struct nsv_part part = {.index = i, .count = count};
			o->b->weight_own(&part, m, n_m, &begin, &end);
			assert_true(begin >= last && begin <= last + 63 && end > begin);
			last = end;
		}
		assert_true(last <= o->head + (o->len - o->head) * 3 / 4 + 64);
		assert_true(last >= o->head + (o->len - o->head) / 2);
	}
}

static void check_owns(const struct nsv_backend *b, const struct nsv_matrix *m, uint32_t n_m)
{
	struct own o = {.b = b, .n_out = 3 * 157};
	float *x = make_x(2, 64, 64);
	size_t end;
	assert_int_equal(b->weight_len(m, n_m, &o.len), 0);
	uint8_t *weight = nsv_guard_new(o.len, 64, NSV_GUARD_BEFORE);
	void *acts = nsv_guard_new(b->acts_len(2, 64), 64, NSV_GUARD_AFTER);
	memset(weight, 0, o.len);
	b->weight_pack(&t_alone, m, n_m, weight);
	b->acts_set(&t_alone, acts, x, 64, 2, 64);
	b->weight_own(&t_alone, m, n_m, &o.head, &end);
	assert_int_equal(end, o.len);
	o.weight = weight;
	o.acts = acts;
	for (uint32_t count = 1; count <= 4; count++)
		for (uint32_t i = 0; i < count; i++) {
			o.part = (struct nsv_part){.index = i, .count = count};
			check_own(&o, m, n_m);
		}
	check_own_of_many(&o, m, n_m);
	nsv_guard_free(acts);
	nsv_guard_free(weight);
	nsv_guard_free(x);
}

/* Of very many panels two members take the last quarter too, and all of it. */
static void check_large(const struct nsv_backend *b)
{
	const struct nsv_part last = {.index = 1, .count = 2};
	struct nsv_matrix m = t_matrix(NSV_Q8_0, 66000, 32, 0.2f);
	float *x = make_x(2, 32, 32);
	float *alone = product(b, &m, 1, x, 32, 2, 1), *shared = product(b, &m, 1, x, 32, 2, 3);
	size_t len, begin, end;
	t_same(b->name, shared, alone, 2 * (size_t)m.n_out);
	assert_int_equal(b->weight_len(&m, 1, &len), 0);
	b->weight_own(&last, &m, 1, &begin, &end);
	assert_true(end > len / 2 && end < len / 5 * 4);
	nsv_guard_free(alone);
	nsv_guard_free(shared);
	nsv_guard_free(x);
	t_matrix_free(&m);
}

static void test_large(void **unused)
{
	size_t n;
	const struct nsv_backend *b = t_backends(&n);
	(void)unused;
	for (size_t i = 0; i < n; i++)
		if (b[i].weight_own)
			check_large(&b[i]);
}

/* What is said to be a member's own is what it reads. */
static void test_own(void **unused)
{
	size_t n;
	const struct nsv_backend *b = t_backends(&n);
	struct nsv_matrix m[3];
	(void)unused;
	for (size_t d = 0; d < NSV_ARRAY_LEN(t_dtypes); d++) {
		if (nsv_dtype_info(t_dtypes[d])->n_elem > 64)
			continue;
		for (uint32_t i = 0; i < 3; i++)
			m[i] = t_matrix(t_dtypes[d], 157, 64, 0.2f);
		for (size_t i = 0; i < n; i++)
			if (b[i].weight_own)
				check_owns(&b[i], m, 3);
		for (uint32_t i = 0; i < 3; i++)
			t_matrix_free(&m[i]);
	}
}

static void test_refused(void **unused)
{
	size_t n, len;
	const struct nsv_backend *b = t_backends(&n);
	struct nsv_matrix m[2] = {{NSV_Q4_1, 8, 33, NULL}, {NSV_Q4_1, 8, 32, NULL}};
	struct nsv_matrix other[2] = {{NSV_F32, 8, 64, NULL}, {NSV_F32, 8, 32, NULL}};
	struct nsv_matrix none = {NSV_F32, 0, 64, NULL}, iq2 = {16, 1, 256, NULL};
	struct nsv_matrix part = {NSV_Q2_K, 8, 128, NULL};
	(void)unused;
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(b[i].weight_len(m, 1, &len), -EINVAL);
		assert_int_equal(b[i].weight_len(m + 1, 0, &len), -EINVAL);
		assert_int_equal(b[i].weight_len(other, 2, &len), -EINVAL);
		assert_int_equal(b[i].weight_len(&none, 1, &len), -EINVAL);
		assert_int_equal(b[i].weight_len(&iq2, 1, &len), -EINVAL);
		assert_int_equal(b[i].weight_len(&part, 1, &len), -EINVAL);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_type),
		cmocka_unit_test(test_long_rows),
		cmocka_unit_test(test_odd_length),
		cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_stacked),
		cmocka_unit_test(test_slices),
		cmocka_unit_test(test_extremes),
		cmocka_unit_test(test_largest),
		cmocka_unit_test(test_flushed),
		cmocka_unit_test(test_not_finite),
		cmocka_unit_test(test_own),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_refused),
	};
	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
