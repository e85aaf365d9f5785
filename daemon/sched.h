/* Who runs in the next step: a function over plain state, without I/O, locks, clocks or a model.
 *
 *            add            admitted              remove
 *     ABSENT -----> WAITING ---------> RUNNING ----------> ABSENT
 *                      ^  <-----------    |
 *                      |    preempted     | (a paused one stays where it is, and is not planned,
 *                                           until it has to give its blocks back)
 *
 * Rules, in this order:
 *   1 A running sequence with one token to compute (decode) gets its row in every step.
 *   2 The rest of the step's rows go to prefill chunks, oldest first; beside decode rows at most
 *     `mixed_tokens` of them, so that a long prompt does not hold up a running stream.
 *   3 A block that is missing is taken from a paused sequence, else from the youngest: it is
 *     preempted and gives all its blocks back. Where the host tier has room for them they are
 *     swapped out, and in again at the next admission, else they are computed again. So the
 *     oldest that is not paused always moves: progress at every step.
 *   4 A waiting sequence is admitted in its turn (below), when all its tokens fit beside what
 *     the running ones still lack, and `watermark` blocks stay free (or nobody moves); for one
 *     that was preempted a few more, so that it goes on for a while. It may take blocks from
 *     paused ones and from younger ones (it was itself preempted or paused before).
 *   5 A plan may be made before the tokens of the last ones are known (a device that runs ahead):
 *     they are pending. A sequence with pending tokens goes on, but is not admitted again.
 *   6 What the prefix cache knows of an admitted sequence's tokens is not computed again: full
 *     blocks are shared, a block that is known in part is copied. Cached blocks that nobody uses
 *     count as free, and are forgotten, least recently used first, when they are needed.
 *   7 A sequence with a leader (a fork) has that one's tokens, and shares its blocks in the same
 *     way. Until the leader has computed them it waits, and lets others pass; a leader that is
 *     paused or gone is not waited for.
 *   8 Rows whose logits give log-probabilities of the prompt cost a result each: a step has at most
 *     NSV_SCHED_LP_ROWS of them, a sequence no more than there is room for in its client's log.
 *     Each is planned once: after a preemption those that were are computed without logits.
 *
 * Turns: users share by tokens. Each sequence gets a tag when it comes, the larger of the virtual
 * time (the highest tag admitted so far) and what its user has asked for so far in tokens;
 * sequences go by tag, those of one user in the order they came. (Start-time fair queueing; Goyal,
 * Vin, Cheng, SIGCOMM 1996. It bounds the wait as deficit round robin does, and needs no rounds.)
 * "Oldest" and "youngest" above are by this order. Every user's next tag grows with each request,
 * so nobody is passed for ever: before a sequence of tag t, each other user gets at most the tokens
 * from the virtual time to t, and one request more.
 * A sequence of higher priority goes before its own user's lower ones that were never admitted, as
 * if it had come before them: it takes the first one's tag, and theirs grow by its tokens. To other
 * users it is as if they had come in that order. Each is passed NSV_SCHED_MAX_PASSED times at most,
 * and a leader never by its followers.
 *
 * The engine thread owns it. A plan costs O(running + admitted), an admission O(its tokens). */
#ifndef NSV_DAEMON_SCHED_H
#define NSV_DAEMON_SCHED_H

#include "cache/block_table.h"
#include "cache/prefix_tree.h"

#define NSV_SCHED_NO_LEADER UINT32_MAX
#define NSV_SCHED_MAX_PASSED 16u
#define NSV_SCHED_LP_ROWS 32u
#define NSV_SCHED_MIXED_TOKENS 32u /* unless told otherwise */
#define NSV_SCHED_RESUME_BLOCKS 4u /* free beside what a preempted one has computed before */

enum nsv_sched_where { NSV_SCHED_ABSENT = 0, NSV_SCHED_WAITING, NSV_SCHED_RUNNING };

struct nsv_sched_seq {
	uint8_t where;
	bool paused, wait_for_tokens;
	bool gives_back;    /* with the next plan, its blocks */
	uint32_t n_token;   /* prompt and output, the pending ones included */
	uint32_t n_pending; /* sampled by plans whose results have not come */
	uint32_t n_past;    /* of n_token computed, or planned to be */
	uint32_t n_done;    /* of n_past computed for sure */
	uint32_t max_token; /* where it ends at the latest */
	uint32_t n_preempt;
	uint32_t n_cached;     /* of n_past, what the prefix cache gave at the first admission */
	uint64_t tag, arrival; /* its turn */
	int32_t priority;
	uint32_t n_passed; /* by its own user's later ones */
	uint32_t user;     /* index in users */
	uint32_t leader;   /* until the first admission; another sequence's now if the arrival is */
	uint64_t leader_arrival;
	struct nsv_block_table table; /* storage is the caller's */

	/* Swapped out: blocks of the host tier that hold its first n_host_token tokens, linked by
	 * host_next. Until the plan that swaps them in is carried out they are held still. */
	uint32_t n_host, n_host_token;
	int32_t host_first;

	/* For the prefix cache. */
	uint64_t domain;
	const int32_t *tokens; /* (n_token), the caller's */
	bool bypass;
	struct nsv_prefix_place place; /* how far its blocks are in the tree */
	uint64_t tried_at; /* the scheduler's n_change when it was last found not to fit */

	/* Rows for log-probabilities of the prompt: those of lp_from .. lp_to - 1 are to be planned
	 * yet. */
	uint32_t lp_from, lp_to;
	uint32_t lp_room;      /* rows that its client's log takes, those under way included */
	uint32_t n_lp_pending; /* rows under way */
};

struct nsv_sched_user {
	uint32_t uid, n_seq;
	uint64_t finish; /* where its next sequence begins, at the earliest */
};

struct nsv_sched {
	struct nsv_block_alloc *alloc;
	struct nsv_block_alloc *host; /* NULL: no host tier */
	int32_t *host_next;           /* (host->n_block): the next block of the same sequence */
	struct nsv_prefix_tree *tree; /* NULL: no prefix cache */
	uint32_t block_size;
	uint32_t batch_tokens, mixed_tokens, watermark;
	uint32_t n_cap;
	struct nsv_sched_user *users; /* (n_cap) */
	uint64_t virtual_time;
	struct nsv_sched_seq *seqs; /* (n_cap) */
	uint32_t *run, *wait;       /* (n_cap) indices, in their turns */
	uint32_t n_run, n_wait;
	uint64_t n_preempt, n_hit_token, n_fork_token;
	uint64_t n_swap_out, n_swap_in; /* blocks */
	uint64_t n_change;              /* times that an admission may have become possible */
};

struct nsv_plan_item {
	uint32_t seq;
	uint32_t n_past, n_row; /* the rows' positions are n_past .. n_past + n_row - 1 */
	uint32_t n_preempt;     /* of the sequence then: another one now, and the rows are lost */
	uint32_t n_lp;          /* the last n_lp rows' logits are for log-probabilities; then none
				 * samples */
	bool sample;            /* the last row's logits give the next token */
	bool pending;           /* the one row's token is not known to the host yet */
};

struct nsv_plan_copy {
	int32_t from, to; /* `from` is held for the copy: nsv_sched_copied gives it back */
};

/* Blocks between the pool and the host tier. */
struct nsv_plan_swap {
	int32_t pool, host;
};

/* In this order: commit the preempted, swap out, swap in, copy one by one, compute the rows. */
struct nsv_step_plan {
	uint32_t n_item, n_row, n_lp, n_preempted, n_copy; /* n_row, n_lp: of all items */
	struct nsv_plan_item *items;                       /* (n_cap) */
	uint32_t *preempted;                               /* (n_cap) */
	struct nsv_plan_copy *copies;                      /* (n_cap) */
	uint32_t n_swap_out, n_swap_in;
	struct nsv_plan_swap *swaps_out, *swaps_in; /* (blocks of the host tier) */
};

/* A sequence that comes. Its block table is stored at blocks (cap); tokens stay where they are. */
struct nsv_sched_new {
	uint32_t n_token, max_token;
	uint32_t uid;     /* who shares with whom */
	uint64_t arrival; /* distinct, growing */
	uint64_t domain;  /* of the prefix cache */
	const int32_t *tokens;
	int32_t *blocks;
	uint32_t cap;
	bool bypass;          /* the prefix cache is neither asked nor told */
	bool wait_for_tokens; /* no plan for it while tokens are pending */
	int32_t priority;     /* among its user's own; higher goes first */
	/* Whose blocks it shares, or NSV_SCHED_NO_LEADER: a sequence of the same user that begins
	 * with all its tokens but, perhaps, the last. */
	uint32_t leader;
	/* Rows at the positions lp_from .. lp_to - 1 give log-probabilities of the tokens after
	 * them: lp_to is at most n_token - 1, both are 0 where none are wanted. It bypasses the
	 * prefix cache, and has no leader. */
	uint32_t lp_from, lp_to;
};

/* The pool, the host tier and the prefix cache are borrowed; the last two may be NULL. 0 or
 * -ENOMEM. */
int nsv_sched_init(struct nsv_sched *s, struct nsv_block_alloc *alloc, struct nsv_block_alloc *host,
	struct nsv_prefix_tree *tree, uint32_t n_cap, uint32_t block_size, uint32_t batch_tokens);
void nsv_sched_deinit(struct nsv_sched *s);
/* For plans of s. 0 or -ENOMEM. */
int nsv_step_plan_init(struct nsv_step_plan *p, const struct nsv_sched *s);
void nsv_step_plan_deinit(struct nsv_step_plan *p);

/* Its tokens at the latest end, but the last, must fit the pool: else it would wait for ever. */
void nsv_sched_add(struct nsv_sched *s, uint32_t seq, const struct nsv_sched_new *n);
/* One that was added before anything was planned runs where it stood: its first n_past tokens, less
 * than there are, lie in the first n_block blocks of its table's storage, which are held for it;
 * those that it does not need are given back. From lp_from on it computes again. 0, or what
 * nsv_prefix_tree_insert says. */
int nsv_sched_resume(struct nsv_sched *s, uint32_t seq, uint32_t n_block, uint32_t n_past);
/* It has ended: blocks go back. */
void nsv_sched_remove(struct nsv_sched *s, uint32_t seq);
void nsv_sched_pause(struct nsv_sched *s, uint32_t seq, bool paused);
/* A paused one that runs is preempted by the next plan, if it is still paused then. */
void nsv_sched_give_back(struct nsv_sched *s, uint32_t seq);
/* A result has come: the rows are computed, and full blocks become known to the prefix cache.
 * Plans' results come in the plans' order. 0, or what nsv_prefix_tree_insert says of blocks that
 * cannot be right. To be called for every item whose sequence is still there, preempted or not. */
int nsv_sched_computed(struct nsv_sched *s, const struct nsv_plan_item *item);
/* How many rows of log-probabilities its client's log takes beyond those whose results have come; 0
 * at first. Where that is 0 and some are wanted, the caller pauses it too: its reader is behind. */
void nsv_sched_set_lp_room(struct nsv_sched *s, uint32_t seq, uint32_t n_row);
/* The token that the item sampled stands in `tokens` now. */
void nsv_sched_known(struct nsv_sched *s, uint32_t seq);
/* The plan's swaps and copies are done, or will be before whatever a later plan says: their sources
 * are given back. To be called before anything else happens. */
void nsv_sched_copied(struct nsv_sched *s, const struct nsv_step_plan *plan);
/* Makes the next step's plan and marks its rows as computed; n_item 0: nothing can run. */
void nsv_sched_plan(struct nsv_sched *s, struct nsv_step_plan *plan);
/* Slots in the blocks of those that run that hold no token: less than a block each. */
uint64_t nsv_sched_waste(const struct nsv_sched *s);
/* The invariants: 0, or -EUCLEAN (-ENOMEM: not looked at) and a sentence. O(blocks + tables). */
int nsv_sched_audit(const struct nsv_sched *s, struct nsv_err *err);
/* Where nothing but reference counts is wrong, they are set to the holders that there are: a lost
 * block is free again, one that is held without being counted is not given away. *ret_n: blocks
 * whose count was wrong. Otherwise as the audit, and nothing is touched. */
int nsv_sched_repair(struct nsv_sched *s, uint32_t *ret_n, struct nsv_err *err);

#endif
