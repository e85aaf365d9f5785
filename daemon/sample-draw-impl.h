/* What the files of a draw share (sample-draw.c: the steps; sample-cut.c: where a cut falls).
 * Nobody else includes it. */
#ifndef NSV_DAEMON_SAMPLE_DRAW_IMPL_H
#define NSV_DAEMON_SAMPLE_DRAW_IMPL_H

#include "daemon/sample-draw.h"

/* ---- sample-draw.c */

/* Each member tells the others what it found. Returns what all did, by member; it is there until
 * this one meets them again. */
const struct nsv_sample_share *nsv_draw_meet(
	struct nsv_draw *d, const struct nsv_sample_share *mine);
double nsv_draw_add_sums(struct nsv_draw *d, double mine);

/* Where the span of a member begins and ends. */
void nsv_draw_find_span(const struct nsv_draw *d, uint32_t index, uint32_t *begin, uint32_t *end);

static inline uint32_t nsv_draw_span_len(const struct nsv_draw *d)
{
	return d->end - d->begin;
}

/* ---- sample-cut.c */

/* What a cut is looked for by. No key is above max; those that count lie within `span` below. */
struct nsv_draw_order {
	const float *key, *w; /* (n) */
	float max, span;
	/* Below: of a sum of all, where no weight is more than 2^(-slope * (max - key)). */
	bool is_sampled;
	double total;
	float slope;
};

/* By falling key, equals by id, the one with which the sum of w (n) reaches the goal. That is above
 * 0 and not above the sum of all. */
struct nsv_sample_cut nsv_draw_find_cut(
	struct nsv_draw *d, const struct nsv_draw_order *o, double goal);

#endif
