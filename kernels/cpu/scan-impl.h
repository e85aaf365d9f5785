/* The passes of kernels/scan.h. Products are not fused with sums: where no instruction does that,
 * plain C would be slow. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

#define SHIFT 12582912.0f /* 1.5 * 2^23: what is added is rounded, and stands in the low bits */
#define CHUNK 256u	  /* weights that are summed before the sum is looked at */

ALWAYS_INLINE uint32_t lanes_at(uint32_t i, uint32_t n)
{
	return (uint32_t)nsv_min(n - i, VF_N);
}

/* The lanes that are there and at least `low`. */
ALWAYS_INLINE uint32_t lanes_from(vf x, float low, uint32_t n_lane)
{
	return vf_at_least(x, vf_set1(low)) & ((1u << n_lane) - 1);
}

static void scan_range(const float *x, uint32_t n, struct nsv_scan_range *ret_range)
{
	const vf zero = vf_set1(0), none = vf_set1(-INFINITY), all = vf_set1(INFINITY);
	vf max = none, min = all, bad = zero;

	for (uint32_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		vf v = vf_load_n(x + i, l);

		bad = vf_add(bad, vf_mul(v, zero));
		max = vf_max(max, vf_between(0, l, v, none));
		min = vf_min(min, vf_between(0, l, v, all));
	}
	*ret_range = (struct nsv_scan_range){
		.min = -vf_hmax(vf_sub(zero, min)), .max = vf_hmax(max), .finite = vf_sum(bad) == 0};
}

static uint32_t scan_first(const float *x, uint32_t i, uint32_t n, float low)
{
	for (; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n), hit = lanes_from(vf_load_n(x + i, l), low, l);

		if (hit)
			return i + (uint32_t)__builtin_ctz(hit);
	}
	return n;
}

/* Appends the places of the lanes that are hit. */
ALWAYS_INLINE uint32_t put_places(uint32_t *out, uint32_t n_out, uint32_t i, uint32_t hit)
{
	for (; hit; hit &= hit - 1)
		out[n_out++] = i + (uint32_t)__builtin_ctz(hit);
	return n_out;
}

static uint32_t scan_list(const float *x, uint32_t n, float low, float high, uint32_t *out)
{
	uint32_t n_out = 0;

	for (uint32_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		vf v = vf_load_n(x + i, l);

		n_out = put_places(
			out, n_out, i, lanes_from(v, low, l) & ~lanes_from(v, high, l));
	}
	return n_out;
}

/* ---- Weights */

ALWAYS_INLINE vf scaled(vf x, const struct nsv_scan_scale *s)
{
	return vf_mul(vf_sub(x, vf_set1(s->max)), vf_set1(s->scale));
}

/* Of what is not negative. */
ALWAYS_INLINE vf round_off(vf a, const struct nsv_scan_scale *s)
{
	return vf_sub(vf_add(a, vf_set1(s->grain)), vf_set1(s->grain));
}

/* 2^t, t <= 0: a whole power by the exponent, the rest, in [-1/2, 1/2], by the first terms of its
 * series. What is below 2^-126 is rounded off anyway. */
ALWAYS_INLINE vf exp2_of(vf t)
{
	vf whole = vf_add(vf_max(t, vf_set1(-126)), vf_set1(SHIFT));
	vf f = vf_sub(vf_max(t, vf_set1(-126)), vf_sub(whole, vf_set1(SHIFT)));
	vf y = vf_set1(1.5403530e-4f);

	y = vf_add(vf_mul(y, f), vf_set1(1.3333558e-3f));
	y = vf_add(vf_mul(y, f), vf_set1(9.6181291e-3f));
	y = vf_add(vf_mul(y, f), vf_set1(5.5504109e-2f));
	y = vf_add(vf_mul(y, f), vf_set1(2.4022651e-1f));
	y = vf_add(vf_mul(y, f), vf_set1(6.9314718e-1f));
	y = vf_add(vf_mul(y, f), vf_set1(1));
	return vf_ldexp(y, whole);
}

static double scan_weigh(const float *x, uint32_t n, const struct nsv_scan_scale *s, float *w)
{
	vd sum = vd_zero();

	for (uint32_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		vf y = round_off(exp2_of(scaled(vf_load_n(x + i, l), s)), s);

		y = vf_between(0, l, y, vf_set1(0));
		sum = vd_add(sum, y);
		if (w)
			vf_store_n(w + i, y, l);
	}
	return vd_sum(sum);
}

static double scan_moment(
	const float *x, const float *w, uint32_t n, const struct nsv_scan_scale *s)
{
	vd sum = vd_zero();

	for (uint32_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		vf t = vf_max(scaled(vf_load_n(x + i, l), s), vf_set1(-126));

		t = vf_mul(vf_sub(vf_set1(0), t), vf_load_n(w + i, l));
		sum = vd_add(sum, round_off(t, s));
	}
	return -vd_sum(sum);
}

static void scan_nearness(
	const float *x, uint32_t n, const struct nsv_scan_scale *s, float mean, float *key)
{
	for (uint32_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		vf d = vf_sub(scaled(vf_load_n(x + i, l), s), vf_set1(mean));

		vf_store_n(key + i, vf_min(d, vf_sub(vf_set1(0), d)), l);
	}
}

static uint32_t scan_keep(const float *key, float low, float *w, uint32_t n)
{
	uint32_t n_kept = 0;

	for (uint32_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		vf k = vf_load_n(key + i, l);

		n_kept += (uint32_t)__builtin_popcount(lanes_from(k, low, l));
		vf_store_n(w + i, vf_zero_below(k, vf_set1(low), vf_load_n(w + i, l)), l);
	}
	return n_kept;
}

static double scan_sum(const float *w, uint32_t n)
{
	vd sum = vd_zero();

	for (uint32_t i = 0; i < n; i += VF_N)
		sum = vd_add(sum, vf_load_n(w + i, lanes_at(i, n)));
	return vd_sum(sum);
}

static uint32_t scan_find(const float *w, uint32_t n, double sum, double goal)
{
	uint32_t i = 0;

	for (; n - i > CHUNK; i += CHUNK) {
		double here = scan_sum(w + i, CHUNK);

		if (sum + here > goal)
			break;
		sum += here;
	}
	for (; i + 1 < n; i++) {
		sum += (double)w[i];
		if (sum > goal)
			break;
	}
	return i;
}

/* ---- Buckets */

/* The number of each key's bucket, on top of SHIFT. */
ALWAYS_INLINE vf bucket_of(vf key, const struct nsv_scan_split *s)
{
	vf b = vf_mul(vf_sub(vf_set1(s->max), key), vf_set1(s->scale));

	b = vf_min(vf_max(b, vf_set1(0)), vf_set1(NSV_SCAN_BUCKETS - 1));
	return vf_add(b, vf_set1(SHIFT));
}

/* Sixteen, or the first n_lane of them. */
ALWAYS_INLINE void add_lanes(double *mass, vf bucket, vf weight, uint32_t n_lane)
{
	uint32_t at[VF_N];
	double w[VF_N];
	float b[VF_N];

	vf_store(b, bucket);
	memcpy(at, b, sizeof(at));
	vd_store(w, vd_add(vd_zero(), weight));
	UNROLL
	for (uint32_t j = 0; j < n_lane; j++)
		mass[(uint16_t)at[j]] += w[j]; /* SHIFT's own bits are above */
}

static void scan_add_mass(const float *key, const float *w, uint32_t n,
	const struct nsv_scan_split *s, double *mass)
{
	uint32_t i = 0;

	for (; n - i >= VF_N; i += VF_N) {
		vf v = vf_load(w + i);

		if (vf_at_least(v, vf_set1(0x1p-126f)))
			add_lanes(mass, bucket_of(vf_load(key + i), s), v, VF_N);
	}
	if (i < n)
		add_lanes(mass, bucket_of(vf_load_n(key + i, n - i), s), vf_load_n(w + i, n - i), n - i);
}

static uint32_t scan_list_bucket(const float *key, uint32_t n, const struct nsv_scan_split *s,
	uint32_t bucket, uint32_t *out)
{
	float b = SHIFT + (float)bucket;
	uint32_t n_out = 0;

	for (uint32_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		vf v = bucket_of(vf_load_n(key + i, l), s);

		n_out = put_places(
			out, n_out, i, lanes_from(v, b, l) & ~lanes_from(v, b + 1, l));
	}
	return n_out;
}

const struct nsv_scan FN(scan) = {
	.range = scan_range,
	.first = scan_first,
	.list = scan_list,
	.weigh = scan_weigh,
	.moment = scan_moment,
	.nearness = scan_nearness,
	.keep = scan_keep,
	.sum = scan_sum,
	.find = scan_find,
	.add_mass = scan_add_mass,
	.list_bucket = scan_list_bucket,
};
