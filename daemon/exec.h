/* What computes steps: takes a step, and gives its tokens later. A device that runs ahead is given
 * the next steps before the host knows the tokens of the last ones; what it needs of them it keeps.
 *
 * Steps are carried out in the order of their submission; in a step, blocks are swapped out, then
 * in, then copied one by one, then rows are computed. Whatever a step
 * points to but its results is read before submit returns, so a block table may change or go
 * while the step is under way: rows of a sequence that has ended meanwhile are computed for nobody.
 *
 * The engine thread owns it. */
#ifndef NSV_DAEMON_EXEC_H
#define NSV_DAEMON_EXEC_H

#include "daemon/model/model.h"
#include "daemon/sample.h"
#include "daemon/sched.h"

#define NSV_TOKEN_LAST (-1) /* in batch.tokens: the token that the sequence's last step sampled */
#define NSV_TOKEN_SAMPLE (-1) /* in given: none, one is sampled */
#define NSV_MAX_AHEAD 4u

/* Rows of a step whose logits may be wanted. */
static inline uint32_t nsv_exec_max_out(uint32_t max_seq)
{
	return max_seq + NSV_SCHED_LP_ROWS;
}

struct nsv_exec_result {
	int ret; /* of nsv_sample_next, or nsv_log_probs */
	int32_t token;
	struct nsv_lp lps[1 + NSV_MAX_LOGPROB];
};

struct nsv_exec_step {
	const struct nsv_plan_swap *swaps_out, *swaps_in;
	uint32_t n_swap_out, n_swap_in;
	const struct nsv_plan_copy *copies;
	uint32_t n_copy;
	struct nsv_batch batch;
	const uint32_t *places; /* (batch.n_seq): a number for each sequence, below max_seq */
	const uint32_t *out_seqs;        /* (batch.n_out): index in batch.seqs of each row wanted */
	/* (batch.n_out): a token whose log-probabilities are wanted, and nothing else, or
	 * NSV_TOKEN_SAMPLE. */
	const int32_t *given;
	const struct nsv_sample_in *ins; /* (batch.n_out): logits are the exec's to fill in */
	const uint32_t *n_lps;           /* (batch.n_out) log-probabilities wanted */
	struct nsv_exec_result *results; /* (batch.n_out) written until the step is collected */
};

struct nsv_exec {
	/* Steps that may be under way; 1: none is planned before the last one's tokens are
	 * known. */
	uint32_t depth;
	/* -errno: the step cannot be computed, and none after it. */
	int (*submit)(struct nsv_exec *x, const struct nsv_exec_step *step, struct nsv_err *err);
	/* Waits for the oldest step under way; its results are there. */
	int (*collect)(struct nsv_exec *x, struct nsv_err *err);
	void (*free)(struct nsv_exec *x);
};

/* What computes on the CPU. Everything is borrowed. */
struct nsv_exec_cpu_parts {
	struct nsv_model *model;
	struct nsv_dispatch *dispatch;
	const struct nsv_model_kv *kv;
	void *host; /* the host tier's blocks, packed as the pool's; NULL: there is none */
	struct nsv_team *team;
	struct nsv_sampler *samplers; /* one a member, the first one for all of the team too */
};

/* On the CPU's threads: computed by submit itself. With a depth above 1 it stands in for a device
 * that runs ahead, for tests: results are ready and not looked at. */
int nsv_exec_cpu_new(const struct nsv_exec_cpu_parts *parts, uint32_t max_seq, uint32_t max_row,
	uint32_t depth, struct nsv_exec **ret_exec);

#endif
