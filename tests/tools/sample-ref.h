/* The reference of the sampler: scalar, it sorts everything and goes step by step in double
 * precision. And random inputs for both (tests/tools/rnd.h). */
#ifndef NSV_TESTS_TOOLS_SAMPLE_REF_H
#define NSV_TESTS_TOOLS_SAMPLE_REF_H

#include "daemon/params.h"

/* Kept ranks: first to n - 1. */
struct sample_kept {
	uint32_t first, n;
};

/* Logits (n) with ties; parameters of the draw, without penalties. */
void sample_draw_logits(float *logits, uint32_t n);
struct nsv_params sample_draw_params(uint32_t n_vocab);

/* By rank: (n) each. */
void sample_ref_sort(struct nsv_lp *sorted, const float *logits, uint32_t n);
/* The distribution of what is kept, by rank: p (n). */
struct sample_kept sample_ref_distribution(
	const struct nsv_lp *sorted, double *p, uint32_t n, const struct nsv_params *params);
/* Whether the reference gives the token: for the number drawn, or, since sums differ in their last
 * bits, for a neighbour of what a sum is compared with. x: (n) logits after all adjustments. */
bool sample_ref_gives(
	const float *x, uint32_t n, const struct nsv_params *params, float u, int32_t id);
/* Logits after history and lists, to x (n_vocab): how many ids may come. */
uint32_t sample_ref_adjust(const struct nsv_sampler *s, const struct nsv_sample_in *in, float *x);

/* The sampler without history and lists: what nsv_sample_next says. */
int sample_pick(struct nsv_sampler *s, const float *logits, const struct nsv_params *params,
	uint64_t seed, uint32_t branch, uint64_t position, int32_t *ret_token, struct nsv_lp *lp,
	uint32_t n_lp);

#endif
