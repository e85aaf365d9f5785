/* One row under way: the passes of steps 7 to 12 (daemon/sample.h), shared by the members of a
 * team. All of them call each function with the same arguments, and go on with the same values: what
 * each found in its span of the row is put together where they meet. */
#ifndef NSV_DAEMON_SAMPLE_DRAW_H
#define NSV_DAEMON_SAMPLE_DRAW_H

#include "daemon/sample.h"

/* What a member knows of the row. */
struct nsv_draw {
	const struct nsv_scan *scan;
	struct nsv_sampler *s;
	const struct nsv_part *part; /* who shares the passes */
	const struct nsv_sample_in *in;
	uint32_t turn; /* how often they met */
	bool gone;     /* nothing is left to do, or to the first member */
	struct nsv_sample_share own; /* the slot of who is alone */

	/* The candidates, in order of their ids; those of this member are at begin to end - 1. */
	const float *x;	   /* (n) logits */
	const int32_t *id; /* (n), or NULL: place i is id i */
	uint32_t n, begin, end;
	size_t n_cand; /* of the row: how many may come */
	struct nsv_scan_scale scale;
	float span;   /* all that have a weight lie within it below the largest */
	bool is_weighed, has_top_p; /* the head: that is done already */
	double total; /* of s->weight (n) */
	double span_total; /* where nothing is cut, of the weights of this member's span */
	int32_t token;
};

void nsv_draw_begin(struct nsv_draw *d, struct nsv_sampler *s, const struct nsv_part *part,
	const struct nsv_sample_in *in);
void nsv_draw_range(struct nsv_draw *d, const float *x, struct nsv_scan_range *ret_range);
/* The first place from i on in the row x (n_vocab) with x >= low; n_vocab: none. By the caller
 * alone. */
uint32_t nsv_draw_first(const struct nsv_draw *d, const float *x, uint32_t i, float low);
/* ln of the sum of e^x over the row's logits as they came. */
double nsv_draw_log_sum(struct nsv_draw *d, const struct nsv_scan_range *range);
/* Steps 7 to 12 on the row x (n_vocab), of which n_cand > 0 may come. The token is the first
 * member's; the others are gone then. */
int32_t nsv_draw_token(struct nsv_draw *d, const float *x, size_t n_cand,
	const struct nsv_scan_range *range);

#endif
