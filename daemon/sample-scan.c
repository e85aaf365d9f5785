/* Vectors are GCC's own, which clang has too: sixteen bytes, so that x86-64's and AArch64's least
 * instruction set holds one in a register. A comparison gives lanes of all ones or all zeros. What
 * does not fill a step of 16 is done one by one. */
#include "daemon/sample-scan.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));

#define STEP 16
#define FLUSH 1024 /* terms whose sum is taken in single precision */

static f32x4 load(const float *x)
{
	f32x4 v;

	memcpy(&v, x, sizeof(v));
	return v;
}

static f32x4 splat(float x)
{
	return (f32x4){x, x, x, x};
}

static f32x4 choose(i32x4 mask, f32x4 yes, f32x4 no)
{
	return (f32x4)((mask & (i32x4)yes) | (~mask & (i32x4)no));
}

static bool any(i32x4 mask)
{
	uint64_t half[2];

	memcpy(half, &mask, sizeof(half));
	return half[0] | half[1];
}

bool nsv_scan_finite(const float *x, uint32_t n)
{
	const int32_t exponent = 0x7f800000;
	const i32x4 e = {exponent, exponent, exponent, exponent};
	i32x4 bad = {0};
	bool good = true;
	uint32_t i = 0;

	for (; n - i >= STEP; i += STEP)
		bad |= (((i32x4)load(x + i) & e) == e) | (((i32x4)load(x + i + 4) & e) == e) |
		       (((i32x4)load(x + i + 8) & e) == e) | (((i32x4)load(x + i + 12) & e) == e);
	for (; i < n; i++)
		good &= isfinite(x[i]) != 0;
	return good && !any(bad);
}

static float largest(const float *x, uint32_t n)
{
	f32x4 a = splat(-INFINITY), b = a, c = a, d = a;
	float lane[4], max = -INFINITY;
	uint32_t i = 0;

	for (; n - i >= STEP; i += STEP) {
		f32x4 p = load(x + i), q = load(x + i + 4);
		f32x4 r = load(x + i + 8), s = load(x + i + 12);

		a = choose(p > a, p, a);
		b = choose(q > b, q, b);
		c = choose(r > c, r, c);
		d = choose(s > d, s, d);
	}
	a = choose(b > a, b, a);
	c = choose(d > c, d, c);
	a = choose(c > a, c, a);
	memcpy(lane, &a, sizeof(lane));
	for (int k = 0; k < 4; k++)
		max = fmaxf(max, lane[k]);
	for (; i < n; i++)
		max = fmaxf(max, x[i]);
	return max;
}

/* Whether one of the sixteen from x on lies in [low, high). */
static bool any_in_band(const float *x, f32x4 low, f32x4 high)
{
	f32x4 p = load(x), q = load(x + 4), r = load(x + 8), s = load(x + 12);

	return any(((p >= low) & (p < high)) | ((q >= low) & (q < high)) |
		   ((r >= low) & (r < high)) | ((s >= low) & (s < high)));
}

static bool any_above(const float *x, f32x4 t)
{
	return any((load(x) > t) | (load(x + 4) > t) | (load(x + 8) > t) | (load(x + 12) > t));
}

uint32_t nsv_scan_above(const float *x, uint32_t i, uint32_t n, float t)
{
	while (n - i >= STEP && !any_above(x + i, splat(t)))
		i += STEP;
	while (i < n && !(x[i] > t))
		i++;
	return i;
}

uint32_t nsv_scan_best(const float *x, uint32_t n)
{
	float max = largest(x, n);

	/* Nothing is above the largest, so what is above the float before it equals it. */
	return max == -INFINITY ? 0 : nsv_scan_above(x, 0, n, nextafterf(max, -INFINITY));
}

size_t nsv_scan_band(const float *x, uint32_t n, float low, float high, struct nsv_lp *out)
{
	size_t n_out = 0;

	for (uint32_t i = 0; i < n;) {
		if (n - i >= STEP && !any_in_band(x + i, splat(low), splat(high))) {
			i += STEP;
			continue;
		}
		for (uint32_t end = i + (uint32_t)nsv_min(STEP, n - i); i < end; i++)
			if (x[i] >= low && x[i] < high)
				out[n_out++] = (struct nsv_lp){(int32_t)i, x[i]};
	}
	return n_out;
}

/* ---- Sorting: by insertion what is short; else by counting, eleven bits of the key a pass */

#define SHORT 48
#define DIGIT_BITS 11
#define N_DIGIT (1u << DIGIT_BITS)
#define N_PASS 3 /* odd: the last one ends in the other array */

/* Grows as the logit falls; of equals, zeros of both signs too, the same. */
static uint32_t key_of(float logit)
{
	float x = logit + 0.0f;
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

static uint32_t digit_of(struct nsv_lp x, int pass)
{
	return key_of(x.logprob) >> (pass * DIGIT_BITS) & (N_DIGIT - 1);
}

static void insert_all(const struct nsv_lp *x, struct nsv_lp *out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		size_t j = i;

		for (; j > 0 && out[j - 1].logprob < x[i].logprob; j--)
			out[j] = out[j - 1];
		out[j] = x[i];
	}
}

static void count_digits(const struct nsv_lp *x, size_t n, uint32_t count[N_PASS][N_DIGIT])
{
	memset(count, 0, N_PASS * sizeof(count[0]));
	for (size_t i = 0; i < n; i++)
		for (int pass = 0; pass < N_PASS; pass++)
			count[pass][digit_of(x[i], pass)]++;
}

static void move_by_digit(const struct nsv_lp *from, struct nsv_lp *to, size_t n, int pass,
	uint32_t count[N_DIGIT])
{
	uint32_t at = 0;

	for (uint32_t d = 0; d < N_DIGIT; d++) {
		uint32_t here = count[d];

		count[d] = at;
		at += here;
	}
	for (size_t i = 0; i < n; i++)
		to[count[digit_of(from[i], pass)]++] = from[i];
}

void nsv_scan_sort(struct nsv_lp *x, struct nsv_lp *out, size_t n)
{
	uint32_t count[N_PASS][N_DIGIT];

	if (n <= SHORT) {
		insert_all(x, out, n);
		return;
	}
	count_digits(x, n, count);
	for (int pass = 0; pass < N_PASS; pass++)
		move_by_digit(pass % 2 ? out : x, pass % 2 ? x : out, n, pass, count[pass]);
}

/* ---- The tail's weights */

struct tail_scan {
	f32x4 low, max, scale; /* scale: log2(e) / temperature */
	f32x4 sum, moment;
};

/* 2^t for t in [-125, 0]: a whole power by the exponent, the rest, in [-1/2, 1/2], by the first
 * terms of its series. */
static f32x4 exp2_of(f32x4 t)
{
	i32x4 whole = __builtin_convertvector(t - splat(0.5f), i32x4);
	f32x4 f = t - __builtin_convertvector(whole, f32x4);
	f32x4 y = splat(1.5403530e-4f);

	y = y * f + splat(1.3333558e-3f);
	y = y * f + splat(9.6181291e-3f);
	y = y * f + splat(5.5504109e-2f);
	y = y * f + splat(2.4022651e-1f);
	y = y * f + splat(6.9314718e-1f);
	y = y * f + splat(1);
	return (f32x4)((i32x4)y + whole * (1 << 23));
}

static void add_tail(struct tail_scan *a, f32x4 x)
{
	f32x4 t = (x - a->max) * a->scale;
	i32x4 counts = (x < a->low) & (t >= splat(-125)); /* less is nothing */

	t = choose(counts, t, splat(0));
	f32x4 w = choose(counts, exp2_of(t), splat(0));
	a->sum += w;
	a->moment += w * t;
}

/* The single-precision sums go into the double-precision ones. */
static void flush_tail(struct tail_scan *a, struct nsv_tail *tail)
{
	float sum[4], moment[4];

	memcpy(sum, &a->sum, sizeof(sum));
	memcpy(moment, &a->moment, sizeof(moment));
	for (int k = 0; k < 4; k++) {
		tail->sum += (double)sum[k];
		tail->moment += (double)moment[k] * M_LN2;
	}
	a->sum = a->moment = splat(0);
}

struct nsv_tail nsv_scan_tail(const float *x, uint32_t n, float low, float max, double temperature)
{
	struct tail_scan a = {.low = splat(low),
		.max = splat(max),
		.scale = splat((float)(M_LOG2E / temperature))};
	struct nsv_tail tail = {0, 0};
	float rest[4];
	uint32_t i = 0;

	for (; n - i >= 4; i += 4) {
		add_tail(&a, load(x + i));
		if (i % FLUSH == 0)
			flush_tail(&a, &tail);
	}
	for (int k = 0; k < 4; k++)
		rest[k] = i + (uint32_t)k < n ? x[i + (uint32_t)k] : INFINITY;
	add_tail(&a, load(rest));
	flush_tail(&a, &tail);
	return tail;
}
