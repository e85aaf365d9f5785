/* What the files of the scheduler share (sched.c: life, events, the rows of a step; sched-turn.c:
 * users, turns, lists; sched-blocks.c: blocks taken and given back; sched-admit.c: admission;
 * sched-audit.c: the invariants). Nobody else includes it. */
#ifndef NSV_DAEMON_SCHED_IMPL_H
#define NSV_DAEMON_SCHED_IMPL_H

#include "daemon/sched.h"

/* ---- sched-turn.c */

/* Does a's turn come before b's? */
static inline bool nsv_sched_before(const struct nsv_sched_seq *a, const struct nsv_sched_seq *b)
{
	return a->tag != b->tag ? a->tag < b->tag : a->arrival < b->arrival;
}

/* A sequence that has just come gets its turn, and waits. */
void nsv_sched_take_turn(struct nsv_sched *s, uint32_t seq, uint32_t uid);
void nsv_sched_to_waiting(struct nsv_sched *s, uint32_t seq);
void nsv_sched_to_running(struct nsv_sched *s, uint32_t seq);
/* Out of the list that it is in. */
void nsv_sched_unlist(struct nsv_sched *s, uint32_t seq);
/* The leader, where it is still there. */
const struct nsv_sched_seq *nsv_sched_leader(
	const struct nsv_sched *s, const struct nsv_sched_seq *q);

/* ---- sched-blocks.c */

/* Blocks that can be had: free, or cached and used by nobody. */
static inline uint64_t nsv_sched_available(const struct nsv_sched *s)
{
	return (uint64_t)s->alloc->n_free + nsv_block_n_idle(s->alloc);
}

/* Blocks that a sequence still lacks for the tokens that are known. */
static inline uint32_t nsv_sched_missing(const struct nsv_sched *s, const struct nsv_sched_seq *q)
{
	return nsv_blocks_for(q->n_token, s->block_size) - q->table.n;
}

/* It gives back what it has of the pool, and has computed nothing. */
void nsv_sched_release(struct nsv_sched *s, struct nsv_sched_seq *q);
/* It gives back what it has of the host tier. */
void nsv_sched_release_host(struct nsv_sched *s, struct nsv_sched_seq *q);
/* What was swapped out and is not in the table yet comes back. The blocks can be had. */
void nsv_sched_swap_in(struct nsv_sched *s, struct nsv_step_plan *plan, struct nsv_sched_seq *q);
void nsv_sched_preempt(struct nsv_sched *s, struct nsv_step_plan *plan, uint32_t seq);
/* Whose blocks are taken: the youngest paused one, else the youngest. `run` is not empty. */
uint32_t nsv_sched_victim(const struct nsv_sched *s);
/* The table grows to n_token tokens if blocks can be had without taking them from a sequence. */
bool nsv_sched_grow_table(struct nsv_sched *s, struct nsv_sched_seq *q, uint64_t n_token);

/* ---- sched-admit.c */

/* Admits who can be, in their turns. */
void nsv_sched_admit(struct nsv_sched *s, struct nsv_step_plan *plan);

#endif
