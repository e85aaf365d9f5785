/* The passes of kernels/scan.h. Products are not fused with sums: where no instruction does that,
 * plain C would be slow.
 *
 * A pass visits whole vectors, whose count of lanes is then a constant, so that no masks are made
 * for them; after them what is left. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

#define SHIFT 12582912.0f /* 1.5 * 2^23: what is added is rounded, and stands in the low bits */
#define CHUNK 256u	  /* weights that are summed before the sum is looked at */

/* The lanes that are there and at least `low`. */
ALWAYS_INLINE uint32_t lanes_from(vf x, float low, uint32_t n_lane)
{
	return vf_at_least(x, vf_set1(low)) & ((1u << n_lane) - 1);
}

struct range {
	vf min, max, bad; /* bad: no number where one of them was none */
};

ALWAYS_INLINE void range_lanes(struct range *r, const float *x, uint32_t l)
{
	vf v = vf_load_n(x, l);

	r->bad = vf_add(r->bad, vf_mul(v, vf_set1(0)));
	r->max = vf_max(r->max, vf_between(0, l, v, vf_set1(-INFINITY)));
	r->min = vf_min(r->min, vf_between(0, l, v, vf_set1(INFINITY)));
}

static void scan_range(const float *x, uint32_t n, struct nsv_scan_range *ret_range)
{
	struct range r = {vf_set1(INFINITY), vf_set1(-INFINITY), vf_set1(0)};
	uint32_t i = 0;

	for (; n - i >= VF_N; i += VF_N)
		range_lanes(&r, x + i, VF_N);
	if (i < n)
		range_lanes(&r, x + i, n - i);
	*ret_range = (struct nsv_scan_range){.min = -vf_hmax(vf_sub(vf_set1(0), r.min)),
		.max = vf_hmax(r.max),
		.finite = vf_sum(r.bad) == 0};
}

static uint32_t scan_first(const float *x, uint32_t i, uint32_t n, float low)
{
	uint32_t hit;

	for (; n - i >= VF_N; i += VF_N) {
		hit = lanes_from(vf_load(x + i), low, VF_N);
		if (hit)
			return i + (uint32_t)__builtin_ctz(hit);
	}
	hit = i < n ? lanes_from(vf_load_n(x + i, n - i), low, n - i) : 0;
	return hit ? i + (uint32_t)__builtin_ctz(hit) : n;
}

/* Appends the places of the lanes that are hit, of l. There is room for as many as were looked at. */
ALWAYS_INLINE uint32_t put_places(
	uint32_t *out, uint32_t n_out, uint32_t i, uint32_t hit, uint32_t l)
{
#if defined(__AVX512F__)
	if (l == VF_N) {
		if (hit)
			vf_store_places(out + n_out, i, hit);
		return n_out + (uint32_t)__builtin_popcount(hit);
	}
#endif
	(void)l;
	for (; hit; hit &= hit - 1)
		out[n_out++] = i + (uint32_t)__builtin_ctz(hit);
	return n_out;
}

/* Appends the places of the lanes that are at least `low` and below `high`. */
ALWAYS_INLINE uint32_t put_between(
	uint32_t *out, uint32_t n_out, uint32_t i, vf x, float low, float high, uint32_t l)
{
	return put_places(out, n_out, i, lanes_from(x, low, l) & ~lanes_from(x, high, l), l);
}

static uint32_t scan_list(const float *x, uint32_t n, float low, float high, uint32_t *out)
{
	uint32_t i = 0, n_out = 0;

	for (; n - i >= VF_N; i += VF_N)
		n_out = put_between(out, n_out, i, vf_load(x + i), low, high, VF_N);
	if (i < n)
		n_out = put_between(out, n_out, i, vf_load_n(x + i, n - i), low, high, n - i);
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

ALWAYS_INLINE vd weigh_lanes(
	vd sum, const float *x, uint32_t l, const struct nsv_scan_scale *s, float *w)
{
	vf y = round_off(exp2_of(scaled(vf_load_n(x, l), s)), s);

	y = vf_between(0, l, y, vf_set1(0));
	if (w)
		vf_store_n(w, y, l);
	return vd_add(sum, y);
}

static double scan_weigh(const float *x, uint32_t n, const struct nsv_scan_scale *scale, float *w)
{
	const struct nsv_scan_scale s = *scale; /* what is written to w does not change it */
	vd sum = vd_zero();
	uint32_t i = 0;

	for (; n - i >= VF_N; i += VF_N)
		sum = weigh_lanes(sum, x + i, VF_N, &s, w ? w + i : NULL);
	if (i < n)
		sum = weigh_lanes(sum, x + i, n - i, &s, w ? w + i : NULL);
	return vd_sum(sum);
}

ALWAYS_INLINE vd moment_lanes(
	vd sum, const float *x, const float *w, uint32_t l, const struct nsv_scan_scale *s)
{
	vf t = vf_max(scaled(vf_load_n(x, l), s), vf_set1(-126));

	t = vf_mul(vf_sub(vf_set1(0), t), vf_load_n(w, l));
	return vd_add(sum, round_off(t, s));
}

static double scan_moment(
	const float *x, const float *w, uint32_t n, const struct nsv_scan_scale *s)
{
	vd sum = vd_zero();
	uint32_t i = 0;

	for (; n - i >= VF_N; i += VF_N)
		sum = moment_lanes(sum, x + i, w + i, VF_N, s);
	if (i < n)
		sum = moment_lanes(sum, x + i, w + i, n - i, s);
	return -vd_sum(sum);
}

ALWAYS_INLINE void nearness_lanes(
	const float *x, uint32_t l, const struct nsv_scan_scale *s, float mean, float *key)
{
	vf d = vf_sub(scaled(vf_load_n(x, l), s), vf_set1(mean));

	vf_store_n(key, vf_min(d, vf_sub(vf_set1(0), d)), l);
}

static void scan_nearness(const float *x, uint32_t n, const struct nsv_scan_scale *scale,
	float mean, float *key)
{
	const struct nsv_scan_scale s = *scale;
	uint32_t i = 0;

	for (; n - i >= VF_N; i += VF_N)
		nearness_lanes(x + i, VF_N, &s, mean, key + i);
	if (i < n)
		nearness_lanes(x + i, n - i, &s, mean, key + i);
}

/* Returns how many lanes are kept. */
ALWAYS_INLINE uint32_t keep_lanes(const float *key, float low, float *w, uint32_t l)
{
	vf k = vf_load_n(key, l);
	uint32_t kept = lanes_from(k, low, l);

	vf_store_n(w, vf_zero_below(k, vf_set1(low), vf_load_n(w, l)), l);
	return (uint32_t)__builtin_popcount(kept);
}

static uint32_t scan_keep(const float *key, float low, float *w, uint32_t n)
{
	uint32_t i = 0, n_kept = 0;

	for (; n - i >= VF_N; i += VF_N)
		n_kept += keep_lanes(key + i, low, w + i, VF_N);
	if (i < n)
		n_kept += keep_lanes(key + i, low, w + i, n - i);
	return n_kept;
}

static double scan_sum(const float *w, uint32_t n)
{
	vd sum = vd_zero();
	uint32_t i = 0;

	for (; n - i >= VF_N; i += VF_N)
		sum = vd_add(sum, vf_load(w + i));
	if (i < n)
		sum = vd_add(sum, vf_load_n(w + i, n - i));
	return vd_sum(sum);
}

/* ---- Sums that leave some out */

/* What is only estimated may be fused, where that is not slow. */
ALWAYS_INLINE vf near_fma(vf a, vf b, float c)
{
#if defined(__AVX2__) || defined(VEC_NEON)
	return vf_fma(a, b, vf_set1(c));
#else
	return vf_add(vf_mul(a, b), vf_set1(c));
#endif
}

/* 2^-u, u >= 0, within 3e-6, by fewer terms than a weight has. */
ALWAYS_INLINE vf exp2_near(vf u)
{
	vf c = vf_min(u, vf_set1(126)), whole = vf_sub(vf_set1(SHIFT), c);
	vf f = vf_sub(vf_sub(vf_set1(SHIFT), whole), c);
	vf y = vf_set1(9.5701020e-3f);

	y = near_fma(y, f, 5.5917861e-2f);
	y = near_fma(y, f, 2.4024745e-1f);
	y = near_fma(y, f, 6.9312182e-1f);
	y = near_fma(y, f, 9.9999926e-1f);
	return vf_ldexp(y, whole);
}

/* 2^t, t <= 0, within 3e-6. */
ALWAYS_INLINE vf power_near(vf t)
{
#if defined(__AVX512F__)
	vf f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
	vf y = near_fma(vf_set1(1.3534170e-2f), f, 5.2011460e-2f);

	y = near_fma(y, f, 2.4144276e-1f);
	y = near_fma(y, f, 6.9300383e-1f);
	y = near_fma(y, f, 1.0000026f);
	return _mm512_scalef_ps(y, t);
#else
	return exp2_near(vf_sub(vf_set1(0), t));
#endif
}

ALWAYS_INLINE vf power_lanes(vf sum, const float *x, uint32_t l, float max, float scale)
{
	vf t = vf_mul(vf_sub(vf_load_n(x, l), vf_set1(max)), vf_set1(scale));

	return vf_add(sum, vf_between(0, l, power_near(t), vf_set1(0)));
}

static void scan_slice(const float *x, uint32_t n, float scale, struct nsv_scan_range *ret_range)
{
	vf sum = vf_set1(0);
	uint32_t i = 0;

	scan_range(x, n, ret_range);
	for (; n - i >= VF_N; i += VF_N)
		sum = power_lanes(sum, x + i, VF_N, ret_range->max, scale);
	if (i < n)
		sum = power_lanes(sum, x + i, n - i, ret_range->max, scale);
	ret_range->sum = vf_sum(sum);
}

/* Adds 2^-u, u = -t, of the lanes with u >= from to sum; returns the others. */
ALWAYS_INLINE uint32_t estimate_lanes(
	vf *sum, const float *x, const struct nsv_scan_scale *s, float from, uint32_t l)
{
	vf u = vf_mul(vf_sub(vf_set1(s->max), vf_load_n(x, l)), vf_set1(s->scale));
	vf y = vf_zero_below(u, vf_set1(from), exp2_near(u));

	*sum = vf_add(*sum, vf_between(0, l, y, vf_set1(0)));
	return lanes_from(u, from, l) ^ ((1u << l) - 1);
}

static double scan_estimate(const float *x, uint32_t n, const struct nsv_scan_scale *scale,
	float low, uint32_t most, uint32_t *out, uint32_t *ret_n)
{
	const struct nsv_scan_scale s = *scale;
	uint32_t i = 0, n_out = 0;
	vd sum = vd_zero();

	while (i < n && n_out <= most) {
		uint32_t end = i + (uint32_t)nsv_min(n - i, CHUNK);
		vf here = vf_set1(0); /* of few: it loses little */

		for (; end - i >= VF_N; i += VF_N)
			n_out = put_places(out, n_out, i,
				estimate_lanes(&here, x + i, &s, -low, VF_N), VF_N);
		if (i < end)
			n_out = put_places(out, n_out, i,
				estimate_lanes(&here, x + i, &s, -low, end - i), end - i);
		i = end;
		sum = vd_add(sum, here);
	}
	*ret_n = n_out;
	return vd_sum(sum);
}

static double scan_part(const float *key, const float *w, uint32_t n, float low, float high,
	uint32_t *out, uint32_t *ret_n)
{
	const vf from = vf_set1(high);
	uint32_t i = 0, n_out = 0;
	vd sum = vd_zero();
	vf k;

	for (; n - i >= VF_N; i += VF_N) {
		k = vf_load(key + i);
		sum = vd_add(sum, vf_zero_below(k, from, vf_load(w + i)));
		n_out = put_between(out, n_out, i, k, low, high, VF_N);
	}
	if (i < n) {
		k = vf_load_n(key + i, n - i);
		sum = vd_add(sum, vf_zero_below(k, from, vf_load_n(w + i, n - i)));
		n_out = put_between(out, n_out, i, k, low, high, n - i);
	}
	*ret_n = n_out;
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

static void scan_add_mass(const float *key, const float *w, uint32_t n, uint32_t step,
	const struct nsv_scan_split *s, double *mass)
{
	uint32_t i = 0;

	for (; i < n && n - i >= VF_N; i += step * VF_N) {
		vf v = vf_load(w + i);

		if (vf_at_least(v, vf_set1(0x1p-126f)))
			add_lanes(mass, bucket_of(vf_load(key + i), s), v, VF_N);
	}
	if (i < n)
		add_lanes(mass, bucket_of(vf_load_n(key + i, n - i), s), vf_load_n(w + i, n - i),
			n - i);
}

static uint32_t scan_list_bucket(const float *key, uint32_t n,
	const struct nsv_scan_split *split, uint32_t bucket, uint32_t *out)
{
	const struct nsv_scan_split s = *split;
	float b = SHIFT + (float)bucket;
	uint32_t i = 0, n_out = 0;
	vf at;

	for (; n - i >= VF_N; i += VF_N) {
		at = bucket_of(vf_load(key + i), &s);
		n_out = put_between(out, n_out, i, at, b, b + 1, VF_N);
	}
	if (i < n) {
		at = bucket_of(vf_load_n(key + i, n - i), &s);
		n_out = put_between(out, n_out, i, at, b, b + 1, n - i);
	}
	return n_out;
}

const struct nsv_scan FN(scan) = {
	.range = scan_range,
	.slice = scan_slice,
	.first = scan_first,
	.list = scan_list,
	.weigh = scan_weigh,
	.moment = scan_moment,
	.nearness = scan_nearness,
	.keep = scan_keep,
	.sum = scan_sum,
	.estimate = scan_estimate,
	.part = scan_part,
	.find = scan_find,
	.add_mass = scan_add_mass,
	.list_bucket = scan_list_bucket,
};
