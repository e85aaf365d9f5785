/* Admission: what a sequence that waits need not compute, and whether the rest fits. */
#include "daemon/sched-impl.h"

/* ---- What is there already: the hit is the sequence's own, and its table's */

/* Only its last token is new, or not even that: full blocks are the leader's too. */
static void take_from_leader(struct nsv_sched *s, struct nsv_sched_seq *q,
	const struct nsv_sched_seq *leader, struct nsv_prefix_hit *ret_hit)
{
	struct nsv_prefix_hit hit = {.partial_block = -1};

	hit.n_block = (q->n_token - 1) / s->block_size;
	hit.n_partial = (q->n_token - 1) % s->block_size;
	for (uint32_t i = 0; i < hit.n_block; i++) {
		q->table.block[i] = leader->table.block[i];
		nsv_block_ref(s->alloc, q->table.block[i]);
	}
	if (hit.n_partial > 0) {
		hit.partial_block = leader->table.block[hit.n_block];
		nsv_block_ref(s->alloc, hit.partial_block);
	}
	if (!q->bypass && leader->place.n_block <= hit.n_block)
		hit.place = leader->place;
	*ret_hit = hit;
}

static bool can_share(const struct nsv_sched_seq *q, const struct nsv_sched_seq *leader)
{
	return leader && leader->where == NSV_SCHED_RUNNING && leader->n_done + 1 >= q->n_token;
}

/* The last token is always computed. true: they are the leader's. */
static bool take_hits(struct nsv_sched *s, struct nsv_sched_seq *q, struct nsv_prefix_hit *ret_hit)
{
	const struct nsv_sched_seq *leader = nsv_sched_leader(s, q);

	bool forks = can_share(q, leader);

	*ret_hit = (struct nsv_prefix_hit){.partial_block = -1};
	if (forks)
		take_from_leader(s, q, leader, ret_hit);
	else if (!q->bypass)
		nsv_prefix_tree_match(s->tree, q->domain, q->tokens, q->n_token - 1, q->table.block,
			q->table.cap, ret_hit);
	q->table.n = ret_hit->n_block;
	q->n_past = ret_hit->n_block * s->block_size;
	q->place = ret_hit->place;
	return forks;
}

static void give_hits_back(
	struct nsv_sched *s, struct nsv_sched_seq *q, const struct nsv_prefix_hit *hit)
{
	if (hit->partial_block >= 0)
		nsv_block_unref(s->alloc, hit->partial_block);
	nsv_block_table_release(&q->table, s->alloc);
	q->n_past = 0;
	q->place = (struct nsv_prefix_place){0};
}

/* A block that is known in part is copied into one of its own, if that can be had. */
static void copy_partial(struct nsv_sched *s, struct nsv_step_plan *plan, struct nsv_sched_seq *q,
	const struct nsv_prefix_hit *hit)
{
	if (hit->partial_block < 0)
		return;
	if (!nsv_sched_grow_table(s, q, (uint64_t)q->n_past + 1)) {
		nsv_block_unref(s->alloc, hit->partial_block);
		return;
	}
	plan->copies[plan->n_copy++] =
		(struct nsv_plan_copy){hit->partial_block, q->table.block[q->table.n - 1]};
	q->n_past += hit->n_partial;
}

/* ---- Room */

/* What those that run have been promised. */
static uint64_t count_promised(const struct nsv_sched *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->n_run; i++)
		n += nsv_sched_missing(s, &s->seqs[s->run[i]]);
	return n;
}

/* Takes blocks from those that `q` comes before, until what it lacks can be had and is not
 * promised. */
static void make_room(struct nsv_sched *s, struct nsv_step_plan *plan,
	const struct nsv_sched_seq *q, uint64_t *promised)
{
	uint32_t need = nsv_sched_missing(s, q);

	while (nsv_sched_available(s) < *promised + need && s->n_run > 0) {
		uint32_t v = nsv_sched_victim(s);
		if (!s->seqs[v].paused && nsv_sched_before(&s->seqs[v], q))
			return;
		*promised -= nsv_sched_missing(s, &s->seqs[v]);
		nsv_sched_preempt(s, plan, v);
	}
}

/* What is enough for `q` to go on for a while after it has been preempted. */
static uint32_t resume_margin(const struct nsv_sched *s, const struct nsv_sched_seq *q)
{
	uint32_t most = nsv_blocks_for(q->max_token - 1, s->block_size);
	uint32_t now = nsv_blocks_for(q->n_token, s->block_size);

	if (q->n_preempt == 0 || most < now)
		return 0;
	return (uint32_t)nsv_min(most - now, NSV_SCHED_RESUME_BLOCKS);
}

/* What must stay free when `q` is admitted: it is not to push out one that runs. Nothing where
 * nobody moves, or where it comes before one that runs. */
static uint32_t margin_for(const struct nsv_sched *s, const struct nsv_sched_seq *q)
{
	for (uint32_t i = s->n_run; i > 0; i--) {
		const struct nsv_sched_seq *youngest = &s->seqs[s->run[i - 1]];
		if (youngest->paused)
			continue;
		if (nsv_sched_before(q, youngest))
			return 0;
		return (uint32_t)nsv_max(s->watermark, resume_margin(s, q));
	}
	return 0;
}

/* ---- Admission */

static void drop_partial(struct nsv_sched *s, struct nsv_prefix_hit *hit)
{
	if (hit->partial_block >= 0)
		nsv_block_unref(s->alloc, hit->partial_block);
	hit->partial_block = -1;
}

static bool fits(const struct nsv_sched *s, const struct nsv_sched_seq *q, uint64_t promised)
{
	return nsv_sched_available(s) >= promised + nsv_sched_missing(s, q) + margin_for(s, q);
}

/* The block that is known in part is held for its copy: where it is the one that is missing, its
 * part is computed. */
static bool find_room(struct nsv_sched *s, struct nsv_step_plan *plan, struct nsv_sched_seq *q,
	struct nsv_prefix_hit *hit, uint64_t *promised)
{
	make_room(s, plan, q, promised);
	if (fits(s, q, *promised))
		return true;
	drop_partial(s, hit);
	return fits(s, q, *promised);
}

/* From the prefix cache, the leader and the host tier. */
static void bring_in(struct nsv_sched *s, struct nsv_step_plan *plan, struct nsv_sched_seq *q,
	const struct nsv_prefix_hit *hit)
{
	if (q->n_host > hit->n_block)
		nsv_sched_swap_in(s, plan, q);
	else
		nsv_sched_release_host(s, q);
	copy_partial(s, plan, q, hit);
	q->n_done = q->n_past;
}

static void count_spared(
	struct nsv_sched *s, struct nsv_sched_seq *q, const struct nsv_prefix_hit *hit, bool forks)
{
	uint32_t n = hit->n_block * s->block_size + (hit->partial_block < 0 ? 0 : hit->n_partial);

	if (q->n_preempt == 0)
		q->n_cached = n;
	if (forks)
		s->n_fork_token += n;
	else
		s->n_hit_token += n;
}

static bool admit_one(
	struct nsv_sched *s, struct nsv_step_plan *plan, uint32_t seq, uint64_t *promised)
{
	struct nsv_sched_seq *q = &s->seqs[seq];
	struct nsv_prefix_hit hit;

	if (q->tried_at == s->n_change) /* nothing has changed since */
		return false;
	bool forks = take_hits(s, q, &hit);
	if (q->n_host > hit.n_block) /* what is known in part is swapped in, and more */
		drop_partial(s, &hit);
	if (!find_room(s, plan, q, &hit, promised)) {
		give_hits_back(s, q, &hit);
		q->tried_at = s->n_change;
		return false;
	}
	count_spared(s, q, &hit, forks);
	bring_in(s, plan, q, &hit);
	q->leader = NSV_SCHED_NO_LEADER;
	nsv_sched_unlist(s, seq);
	nsv_sched_to_running(s, seq);
	s->virtual_time = nsv_max_u64(s->virtual_time, q->tag);
	*promised += nsv_sched_missing(s, q);
	return true;
}

/* Its leader will have computed its tokens; that one comes before it, and moves. */
static bool waits_for_leader(const struct nsv_sched *s, const struct nsv_sched_seq *q)
{
	const struct nsv_sched_seq *leader = nsv_sched_leader(s, q);

	return leader && !leader->paused && !can_share(q, leader);
}

/* In their turns: the first that does not fit ends it. Nobody is admitted behind one that
 * had to take blocks, or those who lost them would get them back at once. */
void nsv_sched_admit(struct nsv_sched *s, struct nsv_step_plan *plan)
{
	uint64_t promised = count_promised(s);
	uint32_t i = 0;

	while (i < s->n_wait && plan->n_preempted == 0) {
		uint32_t seq = s->wait[i];
		const struct nsv_sched_seq *q = &s->seqs[seq];
		if (q->paused || q->n_pending > 0 || waits_for_leader(s, q))
			i++;
		else if (!admit_one(s, plan, seq, &promised))
			return;
	}
}
