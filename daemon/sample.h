/* From logits to a token. Order of operations, each tested against a scalar reference in double
 * precision (tests/unit/daemon/test_sample.c):
 *
 *   1 every logit finite, else -EDOM
 *   2 log-probabilities: of the logits as they came, whatever follows
 *   3 repetition penalty r: once for each id of prompt and output, l > 0 ? l / r : l * r
 *   4 presence and frequency penalty: for each id of the output, l -= presence + frequency * count
 *   5 logit bias: l += bias
 *   6 allowed ids (none named: all), less the banned ones, less end tokens and stop ids while
 *     fewer than min_tokens are out; nothing left: -ENODATA
 *   7 temperature; below 1e-3: the largest logit, of equals the smallest id, and no more steps
 *   8 top-k
 *   9 min-p: p >= min_p * p_max
 *  10 top-p: fewest by rank that reach top_p, at least one
 *  11 typical-p: fewest by |-ln p - entropy|, equals by id, that reach typical_p, at least one
 *  12 draw: first by id whose cumulative p exceeds u
 *
 * 3 and 4 see the last penalty_window tokens of prompt and output (0: all); an id outside the
 * vocabulary is passed over. 3 to 5 compute in double precision and round once, to a finite float.
 * Under NSV_PARAM_IGNORE_END end tokens are tokens like any other, so min_tokens holds back stop
 * ids only. Stop strings are text and know nothing of min_tokens.
 *
 * Ranks are by logit, equals by id. p counts over what the steps before kept: p is a weight over
 * the sum of the weights kept. Weights are those of kernels/scan.h, the largest logit's being 1:
 * whole multiples of a number so small (2^-35 for 262,144 ids) that all their sums are exact, so
 * that 8 to 12 keep and draw exactly what sorting and adding one by one would. u = counter-based
 * generator (Philox 4x32-10; Salmon et al., SC 2011) keyed by seed, counter (position, branch). So
 * a token is a function of its input alone.
 *
 * Cost: some passes of vectors over n_vocab, + O(tokens in the penalties' window), + sorting the
 * few among which a cut falls. Where the ranges of a row's slices are known and nothing changes the
 * logits, the largest one, the best k, what min-p keeps and log-probabilities' alternatives are
 * looked for in the slices alone that may hold them; where the slices' sums are known too, so is
 * what top-p keeps, and the token where nothing is cut. One row is computed by one thread or by all
 * of a team, which share the passes: the same bits. Nothing here allocates but nsv_sampler_init. */
#ifndef NSV_DAEMON_SAMPLE_H
#define NSV_DAEMON_SAMPLE_H

#include "kernels/scan.h"
#include "kernels/team.h"
#include "shm/abi.h"
#include "shm/base.h"

#define NSV_MAX_LIST 1024u /* entries of each list below */
#define NSV_MAX_END 64u	   /* end tokens of a vocabulary */

struct nsv_bias {
	int32_t id;
	float bias;
};

/* Ids in growing order, each once. */
struct nsv_id_list {
	uint32_t n;
	int32_t id[NSV_MAX_LIST];
};

/* What a request says about single ids. All zeros: nothing. */
struct nsv_sample_lists {
	struct nsv_id_list stop, allow, ban;
	uint32_t n_bias;
	struct nsv_bias bias[NSV_MAX_LIST]; /* in growing order, each id once */
};

/* What a member of a team has found in its span of a row. */
struct nsv_sample_share {
	_Alignas(NSV_CACHE_LINE) double sum;
	uint32_t n;
	struct nsv_scan_range range;
};

/* Where a cut falls: what comes by falling key after this candidate goes. */
struct nsv_sample_cut {
	float key;
	uint32_t at;
	double sum; /* of the weights that stay */
};

/* Scratch for one row at a time, whoever computes it. */
struct nsv_sampler {
	uint32_t n_vocab;
	/* (n_vocab) each */
	struct nsv_lp *cand, *rank; /* places and keys: unordered, in order */
	float *weight;		    /* 0: may not come, or was cut */
	float *key;
	float *left; /* logits and ids of those moved together */
	int32_t *left_id;
	uint32_t *place;
	float *adjusted; /* logits after steps 3 to 6 */
	uint32_t *count; /* all zero between calls */
	/* What the members of a team tell each other. */
	struct nsv_sample_share *share; /* (2, n_member) */
	double *mass;			/* (n_member, NSV_SCAN_BUCKETS) */
	struct nsv_sample_cut cut;
	bool is_enough; /* what the first member did alone (daemon/sample-head.c) */
	const float *x; /* logits after steps 3 to 6, of which n_cand may come */
	size_t n_cand;
	uint32_t n_end;
	int32_t end[NSV_MAX_END];
};

/* One step of one request. */
struct nsv_sample_in {
	const float *logits; /* (n_vocab) */
	const struct nsv_scan_range *ranges; /* of their slices; NULL: not known */
	float sum_scale; /* of the slices' sums (kernels/scan.h); 0: there are none */
	const struct nsv_params *params;
	const struct nsv_sample_lists *lists; /* NULL: none */
	const int32_t *tokens;		      /* (n_prompt + n_output) */
	uint32_t n_prompt, n_output;
	uint64_t seed;
	uint32_t branch;
	uint64_t position;
};

/* n_member: of the largest team that computes a row together. */
int nsv_sampler_init(struct nsv_sampler *s, uint32_t n_vocab, uint32_t n_member);
void nsv_sampler_deinit(struct nsv_sampler *s);
/* Names an end token. -EINVAL: outside the vocabulary; -ENOSPC: NSV_MAX_END are named. */
int nsv_sampler_add_end(struct nsv_sampler *s, int32_t id);

/* Both of the following are called by all members of a team with the same arguments, and give each
 * the same return value; what they write is there once the first member has returned.
 *
 * Picks a token. With n_lp > 0 also writes lp[0] = the chosen token and lp[1 .. n_lp-1] = the
 * largest by rank (n_lp = 1 + params->n_logprob; id -1 where the vocabulary is smaller). 0; -EDOM:
 * a logit is not finite; -ENODATA: no id may come. */
int nsv_sample_next(struct nsv_sampler *s, const struct nsv_part *part,
	const struct nsv_sample_in *in, int32_t *ret_token, struct nsv_lp *lp, uint32_t n_lp);

typedef void nsv_sample_row_fn(
	const struct nsv_part *part, struct nsv_sampler *s, uint32_t i, const void *arg);

/* Called by all members of a team, in a phase of their own: fn for each of the n rows. Where there
 * are rows for all, each member takes some and does them alone, by its own of the samplers; else
 * all share each row, by the first one. */
void nsv_sample_rows(const struct nsv_part *part, struct nsv_sampler *samplers, uint32_t n,
	nsv_sample_row_fn *fn, const void *arg);

/* With which scale the sums of the row's slices are of use. 0: they are not. */
float nsv_sample_sum_scale(const struct nsv_sample_in *in);
/* Whether steps 3 to 6 change nothing. */
bool nsv_sample_is_neutral(const struct nsv_sample_in *in);
/* Steps 3 to 6: *ret_x is in->logits itself where nothing changes it, else scratch that is valid
 * until the next call, -INFINITY for what may not come. Returns how many may come. */
size_t nsv_sample_adjust(
	struct nsv_sampler *s, const struct nsv_sample_in *in, const float **ret_x);

/* Log-probabilities of one token by one row of logits: lp[0] = token, the rest as in
 * nsv_sample_next.
 *
 * The prompt's: for each prompt token after the first, in order, one such group of 1 + n_logprob,
 * taken from the row of the token before it; together they come before the first output token's
 * group. The first prompt token has none: nothing precedes it.
 *
 * 0; -EDOM: a logit is not finite; -EINVAL: token is outside the vocabulary. */
int nsv_log_probs(struct nsv_sampler *s, const struct nsv_part *part, const float *logits,
	int32_t token, struct nsv_lp *lp, uint32_t n_lp);

/* Whether the token ends the request, by its own stop ids. O(log n). */
bool nsv_id_list_has(const struct nsv_id_list *list, int32_t id);
/* A uniform number in [0, 1) of 24 bits. */
float nsv_uniform(uint64_t seed, uint32_t branch, uint64_t position);

#endif
