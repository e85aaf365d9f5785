/* Blocks of the pool: taken for a sequence, from the cache, from another sequence, and given back.
 */
#include "daemon/sched-impl.h"

#include <assert.h>

void nsv_sched_release(struct nsv_sched *s, struct nsv_sched_seq *q)
{
	nsv_block_table_release(&q->table, s->alloc);
	q->n_past = q->n_done = 0;
	q->place = (struct nsv_prefix_place){0};
	s->n_change++;
}

uint64_t nsv_sched_waste(const struct nsv_sched *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->n_run; i++) {
		const struct nsv_sched_seq *q = &s->seqs[s->run[i]];
		n += (uint64_t)q->table.n * s->block_size - q->n_past;
	}
	return n;
}

/* ---- The host tier */

void nsv_sched_release_host(struct nsv_sched *s, struct nsv_sched_seq *q)
{
	for (; q->n_host > 0; q->n_host--) {
		int32_t next = s->host_next[q->host_first];
		nsv_block_unref(s->host, q->host_first);
		q->host_first = next;
	}
	q->n_host_token = 0;
}

/* What is computed for sure goes to the host tier, all of it or nothing. */
static void swap_out(struct nsv_sched *s, struct nsv_step_plan *plan, struct nsv_sched_seq *q)
{
	uint32_t n = nsv_blocks_for(q->n_done, s->block_size);

	if (!s->host || n > s->host->n_free)
		return;
	for (uint32_t i = n; i-- > 0;) {
		int32_t block = -1;
		nsv_block_get(s->host, &block);
		s->host_next[block] = q->host_first;
		q->host_first = block;
		plan->swaps_out[plan->n_swap_out++] =
			(struct nsv_plan_swap){q->table.block[i], block};
	}
	q->n_host = n;
	q->n_host_token = q->n_done;
	s->n_swap_out += n;
}

void nsv_sched_swap_in(struct nsv_sched *s, struct nsv_step_plan *plan, struct nsv_sched_seq *q)
{
	uint32_t n_have = q->table.n;
	int32_t block = q->host_first;

	nsv_sched_grow_table(s, q, q->n_host_token);
	for (uint32_t i = 0; i < q->table.n; i++, block = s->host_next[block])
		if (i >= n_have)
			plan->swaps_in[plan->n_swap_in++] =
				(struct nsv_plan_swap){q->table.block[i], block};
	q->n_past = q->n_host_token;
	s->n_swap_in += q->table.n - n_have;
}

/* ---- From one to another */

/* Not of one that the same plan admits, whose blocks are not filled yet: what was admitted has been
 * promised all that it needs in this plan, and so have those before it. */
void nsv_sched_preempt(struct nsv_sched *s, struct nsv_step_plan *plan, uint32_t seq)
{
	struct nsv_sched_seq *q = &s->seqs[seq];

	nsv_sched_unlist(s, seq);
	assert(q->n_host == 0);
	swap_out(s, plan, q);
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
