/* Passes over a row of logits, four at a time. Each is one function of its input: no instruction
 * set changes its order of operations. x: (n), finite or -INFINITY, which no pass finds. */
#ifndef NSV_DAEMON_SAMPLE_SCAN_H
#define NSV_DAEMON_SAMPLE_SCAN_H

#include "shm/abi.h"
#include "shm/base.h"

/* Whether all of x is finite (any value is allowed here). */
bool nsv_scan_finite(const float *x, uint32_t n);
/* The place of the largest, of equals the first; n is at least 1. */
uint32_t nsv_scan_best(const float *x, uint32_t n);
/* The first place from i on with x > t; n: none. */
uint32_t nsv_scan_above(const float *x, uint32_t i, uint32_t n, float t);
/* Those with low <= x < high, in order of their place, into out. Returns how many. */
size_t nsv_scan_band(const float *x, uint32_t n, float low, float high, struct nsv_lp *out);

/* The n of x, which come in order of their ids, by falling logit, equals by id, into out. Both
 * arrays are written. */
void nsv_scan_sort(struct nsv_lp *x, struct nsv_lp *out, size_t n);

/* Sums over those below `low` of w = exp((x - max) / temperature), and of w * ln w. Single
 * precision with a relative error below 1e-6 a term. */
struct nsv_tail {
	double sum, moment;
};

struct nsv_tail nsv_scan_tail(const float *x, uint32_t n, float low, float max, double temperature);

#endif
