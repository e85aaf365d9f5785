/* The reference of the sampler: scalar, it sorts everything and adds up one by one. And random
 * inputs for both (tests/tools/rnd.h). */
#ifndef NSV_TESTS_TOOLS_SAMPLE_REF_H
#define NSV_TESTS_TOOLS_SAMPLE_REF_H

#include "daemon/params.h"

/* Logits (n) with ties; parameters of the draw, without penalties. */
void sample_draw_logits(float *logits, uint32_t n);
struct nsv_params sample_draw_params(uint32_t n_vocab);

/* By rank. */
void sample_ref_sort(struct nsv_lp *sorted, const float *logits, uint32_t n);
/* Steps 7 to 11 on logits after all adjustments: weights w (n) by id, 0 of what is not kept. */
void sample_ref_keep(const float *x, uint32_t n, const struct nsv_params *params, float *w);
/* The token, bit for bit what the sampler has to draw by u. */
int32_t sample_ref_choose(const float *x, uint32_t n, const struct nsv_params *params, float u);
/* Logits after history and lists, to x (n_vocab): how many ids may come. */
uint32_t sample_ref_adjust(const struct nsv_sampler *s, const struct nsv_sample_in *in, float *x);

/* What the product that makes the row leaves of its slices (kernels/scan.h): ranges (n_slice), sums if
 * they are of use to the request. */
void sample_look(struct nsv_sample_in *in, uint32_t n, struct nsv_scan_range *ranges);

/* The sampler without history and lists: what nsv_sample_next says. */
int sample_pick(struct nsv_sampler *s, const float *logits, const struct nsv_params *params,
	uint64_t seed, uint32_t branch, uint64_t position, int32_t *ret_token, struct nsv_lp *lp,
	uint32_t n_lp);

#endif
