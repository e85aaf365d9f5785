/* The passes of sampling on every row of the instruction-set table, each against a scalar loop,
 * over odd sizes and extreme values, with a forbidden page before or after each buffer; weights
 * against doubles. */
#include <float.h>

#include "tests/ops/support.h"

#define MOST 700u

struct data {
	uint32_t n;
	float *x, *w, *key; /* (n) */
	uint32_t *out;	    /* (n) */
	double *mass;	    /* (NSV_SCAN_BUCKETS) */
	struct nsv_scan_scale scale;
};

typedef void check_fn(const struct nsv_scan *s, struct data *d);

static void each_row(check_fn *check, struct data *d)
{
	size_t n;
	const struct nsv_cpu_row *rows = nsv_cpu_rows(&n);
	struct nsv_cpuid id;

	nsv_cpuid_read(&id);
	for (size_t i = 0; i < n; i++)
		if (rows[i].supported(&id))
			check(rows[i].scan, d);
}

/* Wide, narrow, equal or tiny ones, some that may not come; ties. */
static void draw_x(float *x, uint32_t n)
{
	const float spreads[] = {30, 1, 0, 1e-40f, FLT_MAX};
	float spread = spreads[t_below(5)], none = t_below(2) ? 0.1f : 0;

	for (uint32_t i = 0; i < n; i++)
		x[i] = t_float(0, 1) < none ? -INFINITY
		       : spread == 30	    ? roundf(t_float(-spread, spread) * 8) / 8
					    : t_float(-1, 1) * spread;
	x[t_below(n)] = spread;
}

static void data_new(struct data *d)
{
	d->n = 1 + t_below(MOST);
	d->x = t_floats(d->n);
	d->w = t_floats(d->n);
	d->key = t_floats(d->n);
	d->out = t_new(d->n * sizeof(*d->out), sizeof(*d->out));
	d->mass = t_new(NSV_SCAN_BUCKETS * sizeof(double), sizeof(double));
	draw_x(d->x, d->n);
	d->scale = (struct nsv_scan_scale){-INFINITY, t_float(0.01f, 3), nsv_scan_grain(d->n)};
	for (uint32_t i = 0; i < d->n; i++)
		d->scale.max = fmaxf(d->scale.max, d->x[i]);
}

static void data_free(struct data *d)
{
	nsv_guard_free(d->x);
	nsv_guard_free(d->w);
	nsv_guard_free(d->key);
	nsv_guard_free(d->out);
	nsv_guard_free(d->mass);
}

static void drive(check_fn *check)
{
	for (int round = 0; round < 300; round++) {
		struct data d;

		data_new(&d);
		each_row(check, &d);
		data_free(&d);
	}
}

static float exponent(const struct data *d, uint32_t i)
{
	return (d->x[i] - d->scale.max) * d->scale.scale;
}

/* ---- Places */

static void check_range(const struct nsv_scan *s, struct data *d)
{
	const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
	struct nsv_scan_range have;
	float min = INFINITY, was;
	bool finite = true;
	uint32_t at = t_below(d->n);

	for (uint32_t i = 0; i < d->n; i++) {
		min = fminf(min, d->x[i]);
		finite &= isfinite(d->x[i]) != 0;
	}
	s->range(d->x, d->n, &have);
	assert_true(have.max == d->scale.max && have.min == min);
	assert_int_equal(have.finite, finite);
	was = d->x[at];
	d->x[at] = bad[t_below(4)];
	s->range(d->x, d->n, &have);
	assert_false(have.finite);
	d->x[at] = was;
}

static void check_places(const struct nsv_scan *s, struct data *d)
{
	float low = d->x[t_below(d->n)], high = t_below(4) ? d->x[t_below(d->n)] : INFINITY;
	uint32_t n = s->list(d->x, d->n, low, high, d->out), at = 0, from = t_below(d->n);

	for (uint32_t i = 0; i < d->n; i++)
		if (d->x[i] >= low && !(d->x[i] >= high))
			assert_true(at < n && d->out[at++] == i);
	assert_int_equal(at, n);
	for (at = from; at < d->n && !(d->x[at] >= low);)
		at++;
	assert_int_equal(s->first(d->x, from, d->n, low), at);
}

/* Of all, or of every third sixteen. */
static void check_buckets(const struct nsv_scan *s, struct data *d)
{
	const float scales[] = {100, 1, FLT_MAX, FLT_MIN};
	const struct nsv_scan_split split = {d->scale.max, scales[t_below(4)]};
	double want[NSV_SCAN_BUCKETS] = {0};
	uint32_t bucket[MOST], probe = t_below(d->n), n = 0, step = t_below(2) ? 1 : 3;

	s->weigh(d->x, d->n, &d->scale, d->w);
	memset(d->mass, 0, sizeof(want));
	s->add_mass(d->x, d->w, d->n, step, &split, d->mass);
	for (uint32_t i = 0; i < d->n; i++) {
		float b = (split.max - d->x[i]) * split.scale;

		bucket[i] = (uint32_t)rintf(fminf(b, NSV_SCAN_BUCKETS - 1));
		if (i / 16 % step == 0)
			want[bucket[i]] += (double)d->w[i];
	}
	assert_memory_equal(d->mass, want, sizeof(want));
	uint32_t n_list = s->list_bucket(d->x, d->n, &split, bucket[probe], d->out);
	for (uint32_t i = 0; i < d->n; i++)
		if (bucket[i] == bucket[probe])
			assert_true(n < n_list && d->out[n++] == i);
	assert_int_equal(n, n_list);
}

/* ---- Weights */

/* Right, whole multiples of the unit, and the sum of integers. */
static void check_weights(const struct nsv_scan *s, struct data *d)
{
	double unit = ldexp(nsv_scan_grain(d->n), -23), total = 0;
	uint64_t sum = 0;

	assert_true(s->weigh(d->x, d->n, &d->scale, NULL) ==
		    s->weigh(d->x, d->n, &d->scale, d->w));
	for (uint32_t i = 0; i < d->n; i++) {
		double t = (double)exponent(d, i), w = exp2(t), have = d->w[i];

		assert_true(fabs(have - w) <= 5e-7 * w + unit);
		assert_true(have == 1 || d->x[i] < d->scale.max);
		assert_true(have / unit == floor(have / unit));
		sum += (uint64_t)(have / unit);
	}
	total = s->weigh(d->x, d->n, &d->scale, NULL);
	assert_true(total == (double)sum * unit);
	assert_true(s->sum(d->w, d->n) == total);
}

/* What is counted as a head varies: none, all, some. */
static void check_estimate(const struct nsv_scan *s, struct data *d)
{
	float low = t_below(3) ? exponent(d, t_below(d->n)) : t_below(2) ? 0 : -INFINITY;
	uint32_t n = 0, n_list, most = t_below(4) ? d->n : t_below(d->n);
	double want = 0, have = s->estimate(d->x, d->n, &d->scale, low, most, d->out, &n_list);

	for (uint32_t i = 0; i < d->n; i++)
		if (!(exponent(d, i) > low))
			want += exp2(fmax((double)exponent(d, i), -126));
		else if (n_list <= most)
			assert_true(n < n_list && d->out[n++] == i);
		else
			n++;
	if (n_list > most) {
		assert_true(n > most);
		return;
	}
	assert_int_equal(n, n_list);
	assert_true(fabs(have - want) <= 0x1p-17 * want);
}

/* Of finite ones. */
static void check_slice(const struct nsv_scan *s, struct data *d)
{
	uint32_t n = (uint32_t)nsv_min(d->n, NSV_SCAN_SLICE);
	struct nsv_scan_range have, range;
	double want = 0;

	for (uint32_t i = 0; i < n; i++)
		d->w[i] = fmaxf(d->x[i], -FLT_MAX);
	s->range(d->w, n, &range);
	s->slice(d->w, n, d->scale.scale, &have);
	for (uint32_t i = 0; i < n; i++)
		want += exp2((double)((d->w[i] - range.max) * d->scale.scale));
	assert_true(have.min == range.min && have.max == range.max && have.finite);
	assert_true(fabs((double)have.sum - want) <= 0x1p-16 * want + 0x1p-64);
}

static void check_part(const struct nsv_scan *s, struct data *d)
{
	float high = t_below(4) ? d->x[t_below(d->n)] : INFINITY, low = d->x[t_below(d->n)];
	uint32_t n = 0, n_list;
	double sum = 0;

	low = t_below(4) ? fminf(low, high) : -INFINITY;
	s->weigh(d->x, d->n, &d->scale, d->w);
	double have = s->part(d->x, d->w, d->n, low, high, d->out, &n_list);
	for (uint32_t i = 0; i < d->n; i++)
		if (d->x[i] >= high)
			sum += (double)d->w[i];
		else if (d->x[i] >= low)
			assert_true(n < n_list && d->out[n++] == i);
	assert_int_equal(n, n_list);
	assert_true(have == sum);
}

static void check_moment(const struct nsv_scan *s, struct data *d)
{
	float grain = d->scale.grain;
	double want = 0;

	s->weigh(d->x, d->n, &d->scale, d->w);
	for (uint32_t i = d->n; i-- > 0;)
		if (d->w[i] > 0)
			want += (double)(d->w[i] * -exponent(d, i) + grain - grain);
	assert_true(s->moment(d->x, d->w, d->n, &d->scale) == -want);
}

static void check_cut(const struct nsv_scan *s, struct data *d)
{
	float mean = t_float(-5, 0), low;
	uint32_t n = 0;

	s->nearness(d->x, d->n, &d->scale, mean, d->key);
	for (uint32_t i = 0; i < d->n; i++)
		assert_true(d->key[i] == -fabsf(exponent(d, i) - mean));
	low = d->key[t_below(d->n)];
	s->weigh(d->x, d->n, &d->scale, d->w);
	uint32_t n_kept = s->keep(d->key, low, d->w, d->n);
	for (uint32_t i = 0; i < d->n; i++) {
		n += d->key[i] >= low;
		assert_true(d->key[i] >= low || d->w[i] == 0);
	}
	assert_int_equal(n, n_kept);
	n_kept = s->keep(d->w, 0.5f, d->w, d->n);
	for (uint32_t i = 0; i < d->n; i++)
		assert_true(d->w[i] == 0 || (d->w[i] >= 0.5f && n_kept-- > 0));
	assert_int_equal(n_kept, 0);
}

static void check_find(const struct nsv_scan *s, struct data *d)
{
	double total = s->weigh(d->x, d->n, &d->scale, d->w), goal, sum;
	uint32_t i = 0;

	goal = t_below(4) ? (double)t_float(0, 0.999999f) * total : 0;
	for (sum = (double)d->w[0]; sum <= goal; sum += (double)d->w[i])
		i++;
	assert_int_equal(s->find(d->w, d->n, 0, goal), i);
	uint32_t from = t_below(i + 1);
	sum = s->sum(d->w, from);
	assert_int_equal(from + s->find(d->w + from, d->n - from, sum, goal), i);
}

/* ---- */

#define TEST(name) \
	static void test_##name(void **state) \
	{ \
		(void)state; \
		drive(check_##name); \
	}

TEST(range)
TEST(places)
TEST(buckets)
TEST(weights)
TEST(estimate)
TEST(slice)
TEST(part)
TEST(moment)
TEST(cut)
TEST(find)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_range),
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_buckets),
		cmocka_unit_test(test_weights),
		cmocka_unit_test(test_estimate),
		cmocka_unit_test(test_slice),
		cmocka_unit_test(test_part),
		cmocka_unit_test(test_moment),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_find),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
