/* What the files of a draw share (sample-draw.c: the steps; sample-head.c: what is left, before there
 * are weights; sample-slices.c: what slices weigh; sample-cut.c: where a cut falls). Nobody else
 * includes it. */
#ifndef NSV_DAEMON_SAMPLE_DRAW_IMPL_H
#define NSV_DAEMON_SAMPLE_DRAW_IMPL_H

#include "daemon/sample-draw.h"

#define NSV_DRAW_FEW 8u	    /* one in so many left: they are moved together */
#define NSV_DRAW_PEAKS 128u /* slices whose largest are weighed at a time */

/* The slices of x, which are known if that is the row as it came; else NULL. */
static inline const struct nsv_scan_range *nsv_draw_slices(const struct nsv_draw *d, const float *x)
{
	return x == d->in->logits ? d->in->ranges : NULL;
}

/* Weights are multiples of it: none is off by more than half of it. */
static inline double nsv_draw_unit(const struct nsv_draw *d)
{
	return (double)d->scale.grain * 0x1p-23;
}

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

/* From here on the first member is alone, with all of the row. */
void nsv_draw_leave(struct nsv_draw *d);
/* Appends those at n places, counted from `from` on, which grow, to the n_out that were moved
 * together. Returns how many there are then. */
uint32_t nsv_draw_gather(
	struct nsv_draw *d, const uint32_t *place, uint32_t n, uint32_t from, uint32_t n_out);
/* They become the row. */
void nsv_draw_set_left(struct nsv_draw *d, uint32_t n);
void nsv_draw_weigh(struct nsv_draw *d);
/* 0: it cuts nothing. */
uint32_t nsv_draw_top_k(const struct nsv_draw *d);
/* Nothing is cut. */
bool nsv_draw_is_whole(const struct nsv_draw *d);
double nsv_draw_top_p_goal(const struct nsv_draw *d, double total);

/* ---- sample-head.c */

/* Where a head is enough only that is left; where nothing is cut there may be a token already, and
 * all are gone. */
void nsv_draw_head(struct nsv_draw *d);

/* ---- sample-slices.c */

/* Of the row as it came. */
bool nsv_draw_has_sums(const struct nsv_draw *d);
/* How far the sum of slices of n weights may be off. */
double nsv_draw_sums_off(const struct nsv_draw *d, double mass, uint32_t n);
/* Whether it has anything above 2^low. */
bool nsv_draw_is_heavy(const struct nsv_draw *d, const struct nsv_scan_range *slice, float low);
/* The weights of the largest of n <= NSV_DRAW_PEAKS slices. Returns their sum. */
double nsv_draw_weigh_peaks(
	const struct nsv_draw *d, const struct nsv_scan_range *slices, uint32_t n, float *w);
/* What each slice weighs, to s->mass. Returns the sum of all; 0: a slice's sum is none. */
double nsv_draw_find_masses(const struct nsv_draw *d);
/* Then: below which t the row's weights may well be no more than that. */
float nsv_draw_guess_low(const struct nsv_draw *d, double tail);
/* Where nothing is cut, the token, from what slices weigh. Returns whether it is sure. */
bool nsv_draw_by_sums(struct nsv_draw *d);

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

struct nsv_draw_order nsv_draw_by_weight(const struct nsv_draw *d);
/* What comes by falling key after the cut goes. */
void nsv_draw_apply_cut(struct nsv_draw *d, const float *key, struct nsv_sample_cut cut);

/* By falling key, equals by id, the one with which the sum of w (n) reaches the goal. That is above
 * 0 and not above the sum of all. */
struct nsv_sample_cut nsv_draw_find_cut(
	struct nsv_draw *d, const struct nsv_draw_order *o, double goal);

#endif
