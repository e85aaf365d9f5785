/* Blocks of the pool: taken for a sequence, from the cache, from another sequence, and given back.
 */
#include "daemon/sched-impl.h"

void nsv_sched_release(struct nsv_sched *s, struct nsv_sched_seq *q)
{
	nsv_block_table_release(&q->table, s->alloc);
	q->n_past = q->n_done = 0;
	q->place = (struct nsv_prefix_place){0};
	s->n_change++;
}

void nsv_sched_preempt(struct nsv_sched *s, struct nsv_step_plan *plan, uint32_t seq)
{
	struct nsv_sched_seq *q = &s->seqs[seq];

	nsv_sched_unlist(s, seq);
	nsv_sched_release(s, q);
	q->n_preempt++;
	s->n_preempt++;
	nsv_sched_to_waiting(s, seq);
	plan->preempted[plan->n_preempted++] = seq;
}

uint32_t nsv_sched_victim(const struct nsv_sched *s)
{
	for (uint32_t i = s->n_run; i > 0; i--)
		if (s->seqs[s->run[i - 1]].paused)
			return s->run[i - 1];
	return s->run[s->n_run - 1];
}

bool nsv_sched_grow_table(struct nsv_sched *s, struct nsv_sched_seq *q, uint64_t n_token)
{
	uint32_t need = nsv_blocks_for(n_token, s->block_size);
	uint32_t lack = need > q->table.n ? need - q->table.n : 0;

	if (lack > nsv_sched_available(s))
		return false;
	if (lack > s->alloc->n_free)
		nsv_prefix_tree_evict(s->tree, lack - s->alloc->n_free);
	return nsv_block_table_reserve(&q->table, s->alloc, n_token, s->block_size) == 0;
}
