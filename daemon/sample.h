/* From logits to a token. Order of operations, each tested against a scalar reference in double
 * precision (tests/unit/daemon/test_sample.c):
 *
 *   1 every logit finite, else -EDOM     5 top-k
 *   2 (penalties, bias, bans: 0.2)       6 min-p: p >= min_p * p_max
 *   3 log-probabilities are taken here   7 top-p: fewest by rank that reach top_p, at least one
 *   4 temperature                        8 draw: first by rank whose cumulative p exceeds u
 *
 * Each of 5, 6 and 7 keeps a prefix of the ranking; p counts over what the steps before it kept.
 * temperature below 1e-3 is greedy: the largest logit, of equals the smallest id. Ranks are by
 * logit, equals by id, so that the result is a function of (logits, params, seed, branch, position)
 * alone. u = counter-based generator (Philox 4x32-10; Salmon et al., SC 2011) keyed by seed,
 * counter (position, branch). */
#ifndef NSV_DAEMON_SAMPLE_H
#define NSV_DAEMON_SAMPLE_H

#include "shm/abi.h"
#include "shm/base.h"

struct nsv_sampler {
	uint32_t n_vocab;
	struct nsv_lp *cand; /* (n_vocab) scratch: id and logit, in heaps */
	struct nsv_lp *rank; /* (n_vocab) scratch: the best so far, in order */
};

int nsv_sampler_init(struct nsv_sampler *s, uint32_t n_vocab);
void nsv_sampler_deinit(struct nsv_sampler *s);

/* Range checks of what a client sent: 0, or an enum nsv_code and a sentence that names the
 * parameter. NaN fits no range. Parameters that are not built yet are NSV_E_UNSUPPORTED unless
 * neutral. */
int nsv_params_check(const struct nsv_params *params, struct nsv_err *err);
/* The neutral parameters: greedy, no limits. */
struct nsv_params nsv_params_default(void);

/* Picks a token. With n_lp > 0 also writes lp[0] = the chosen token and lp[1 .. n_lp-1] = the
 * largest by rank (n_lp = 1 + params->n_logprob; id -1 where the vocabulary is smaller). 0; -EDOM:
 * a logit is not finite. Does not allocate. logits is read only. */
int nsv_sample(struct nsv_sampler *s, const float *logits, const struct nsv_params *params,
	uint64_t seed, uint32_t branch, uint64_t position, int32_t *ret_token, struct nsv_lp *lp,
	uint32_t n_lp);
/* A uniform number in [0, 1) of 24 bits. */
float nsv_uniform(uint64_t seed, uint32_t branch, uint64_t position);

#endif
