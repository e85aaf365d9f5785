/* Passes over a row of numbers for sampling, sixteen at a time: one table an instruction set, all
 * of which give the same bits but for what is called an estimate.
 *
 * A weight is 2^t, t = (x - max) * scale, in single precision, its relative error below 5e-7; then
 * rounded to a multiple of 2^(b - 53), where 2^b >= 128 is no less than the count of numbers. So
 * sums of weights are exact in double precision, and no order of theirs differs from another.
 *
 * x and keys: finite, or -INFINITY for what may not come: its weight is 0. n may be 0. Nothing here
 * allocates; `out` has room for n. */
#ifndef NSV_KERNELS_SCAN_H
#define NSV_KERNELS_SCAN_H

#include "shm/base.h"

#define NSV_SCAN_BUCKETS 2048u

struct nsv_scan_range {
	float min, max;
	bool finite; /* all are (any value is allowed); else the others are not to be used */
	float sum;   /* of a slice, where it is wanted; else 0 */
};

/* Columns of a row that are looked at beside the product that makes them (kernels/backend.h). */
#define NSV_SCAN_SLICE 256u

/* What is wanted of the slices of some rows. */
struct nsv_scan_slices {
	struct nsv_scan_range *ranges; /* (n_row, n_slice) */
	/* (n_row) Above 0: of each slice the sum of 2^((x - its max) * scale) as well, within 2^-16
	 * of itself and what is below 2^-64. NULL: of none. */
	const float *scales;
};

static inline uint32_t nsv_scan_n_slice(uint32_t n)
{
	return n / NSV_SCAN_SLICE + (n % NSV_SCAN_SLICE > 0);
}

struct nsv_scan_scale {
	float max, scale; /* scale > 0 */
	float grain;	  /* of nsv_scan_grain */
};

/* Buckets of falling keys: key k is in the nearest to (max - k) * scale, or the last. */
struct nsv_scan_split {
	float max, scale; /* no key is above max; scale is finite and above 0 */
};

struct nsv_scan {
	/* Without a sum. */
	void (*range)(const float *x, uint32_t n, struct nsv_scan_range *ret_range);
	/* With the sum of a slice. */
	void (*slice)(const float *x, uint32_t n, float scale, struct nsv_scan_range *ret_range);
	/* The first place from i on with x >= low; n: none. */
	uint32_t (*first)(const float *x, uint32_t i, uint32_t n, float low);
	/* The places with low <= x < high, growing, to out. Returns how many. */
	uint32_t (*list)(const float *x, uint32_t n, float low, float high, uint32_t *out);

	/* Weights to w (n), or nowhere where it is NULL. Returns their sum. */
	double (*weigh)(const float *x, uint32_t n, const struct nsv_scan_scale *s, float *w);
	/* The sum of w * t, each product rounded as a weight is: exact as well. */
	double (*moment)(const float *x, const float *w, uint32_t n, const struct nsv_scan_scale *s);
	/* key = -|t - mean| */
	void (*nearness)(const float *x, uint32_t n, const struct nsv_scan_scale *s, float mean,
		float *key);
	/* w = 0 where key < low. Returns how many keys are not. key may be w. */
	uint32_t (*keep)(const float *key, float low, float *w, uint32_t n);
	double (*sum)(const float *w, uint32_t n);
	/* Without weights: the sum of 2^t, within 2^-17 of itself, over all with t <= low, less than
	 * 2^-126 counting as that; the places of the others, growing, to out, and how many. Where they
	 * are more than `most` it may stop: then *ret_n is, and the rest is not to be used. */
	double (*estimate)(const float *x, uint32_t n, const struct nsv_scan_scale *s, float low,
		uint32_t most, uint32_t *out, uint32_t *ret_n);
	/* The sum of w where key >= high; the places with low <= key < high, growing, to out. */
	double (*part)(const float *key, const float *w, uint32_t n, float low, float high,
		uint32_t *out, uint32_t *ret_n);
	/* The first place where `sum` and the weights so far exceed the goal, which is less than with
	 * all. */
	uint32_t (*find)(const float *w, uint32_t n, double sum, double goal);

	/* Adds each weight to its bucket: mass (NSV_SCAN_BUCKETS). With step > 1 only every step-th
	 * sixteen of them. */
	void (*add_mass)(const float *key, const float *w, uint32_t n, uint32_t step,
		const struct nsv_scan_split *s, double *mass);
	/* The places whose keys are in the bucket, growing, to out. Returns how many. */
	uint32_t (*list_bucket)(const float *key, uint32_t n, const struct nsv_scan_split *s,
		uint32_t bucket, uint32_t *out);
};

/* The best that this machine runs, or what $NANOSERVE_CPU_ISA names. */
const struct nsv_scan *nsv_scan_here(void);

/* Looks at slices begin .. end - 1 of n_row rows of n numbers, ld apart. */
static inline void nsv_scan_look(const float *x, size_t ld, size_t n_row, uint32_t n, size_t begin,
	size_t end, const struct nsv_scan_slices *slices)
{
	const struct nsv_scan *scan = nsv_scan_here();

	for (size_t r = 0; r < n_row; r++)
		for (size_t i = begin; i < end; i++) {
			size_t at = i * NSV_SCAN_SLICE;
			uint32_t len = (uint32_t)nsv_min(n - at, NSV_SCAN_SLICE);
			float scale = slices->scales ? slices->scales[r] : 0;
			struct nsv_scan_range *range =
				&slices->ranges[r * nsv_scan_n_slice(n) + i];

			if (scale > 0)
				scan->slice(x + r * ld + at, len, scale, range);
			else
				scan->range(x + r * ld + at, len, range);
		}
}

/* What weights of n numbers are rounded by: added, then taken off again. Not so little that 1 would
 * lose by it. */
static inline float nsv_scan_grain(uint32_t n)
{
	float grain = 0x1p-23f;

	for (uint64_t reach = 128; reach < n; reach *= 2)
		grain *= 2;
	return grain;
}

#endif
