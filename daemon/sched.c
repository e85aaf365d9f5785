/* Life of the scheduler, what happens to sequences, and the rows of a step. */
#include "daemon/sched-impl.h"

int nsv_sched_init(struct nsv_sched *s, struct nsv_block_alloc *alloc, struct nsv_block_alloc *host,
	struct nsv_prefix_tree *tree, uint32_t n_cap, uint32_t block_size, uint32_t batch_tokens)
{
	*s = (struct nsv_sched){.alloc = alloc,
		.host = host,
		.tree = tree,
		.block_size = block_size,
		.batch_tokens = batch_tokens,
		.mixed_tokens = (uint32_t)nsv_min(NSV_SCHED_MIXED_TOKENS, batch_tokens),
		.watermark = 1 + alloc->n_block / 100,
		.n_cap = n_cap};
	s->seqs = calloc(n_cap, sizeof(*s->seqs));
	s->run = calloc(n_cap, sizeof(*s->run));
	s->wait = calloc(n_cap, sizeof(*s->wait));
	s->users = calloc(n_cap, sizeof(*s->users));
	s->host_next = host ? calloc(host->n_block, sizeof(*s->host_next)) : NULL;
	if (s->seqs && s->run && s->wait && s->users && (s->host_next || !host))
		return 0;
	nsv_sched_deinit(s);
	return -ENOMEM;
}

void nsv_sched_deinit(struct nsv_sched *s)
{
	free(s->seqs);
	free(s->run);
	free(s->wait);
	free(s->users);
	free(s->host_next);
	*s = (struct nsv_sched){0};
}

int nsv_step_plan_init(struct nsv_step_plan *p, const struct nsv_sched *s)
{
	uint32_t n_swap = s->host ? s->host->n_block : 0;

	*p = (struct nsv_step_plan){.items = calloc(s->n_cap, sizeof(*p->items)),
		.preempted = calloc(s->n_cap, sizeof(*p->preempted)),
		.copies = calloc(s->n_cap, sizeof(*p->copies)),
		.swaps_out = calloc(n_swap, sizeof(*p->swaps_out)),
		.swaps_in = calloc(n_swap, sizeof(*p->swaps_in))};
	if (p->items && p->preempted && p->copies && (n_swap == 0 || (p->swaps_out && p->swaps_in)))
		return 0;
	nsv_step_plan_deinit(p);
	return -ENOMEM;
}

void nsv_step_plan_deinit(struct nsv_step_plan *p)
{
	free(p->items);
	free(p->preempted);
	free(p->copies);
	free(p->swaps_out);
	free(p->swaps_in);
	*p = (struct nsv_step_plan){0};
}

/* ---- Events */

void nsv_sched_add(struct nsv_sched *s, uint32_t seq, const struct nsv_sched_new *n)
{
	s->seqs[seq] = (struct nsv_sched_seq){.n_token = n->n_token,
		.max_token = n->max_token,
		.wait_for_tokens = n->wait_for_tokens,
		.arrival = n->arrival,
		.priority = n->priority,
		.leader = n->leader,
		.leader_arrival = n->leader == NSV_SCHED_NO_LEADER ? 0 : s->seqs[n->leader].arrival,
		.table = {.block = n->blocks, .cap = n->cap},
		.domain = n->domain,
		.tokens = n->tokens,
		.bypass = n->bypass || n->lp_from < n->lp_to || !s->tree,
		.tried_at = UINT64_MAX,
		.lp_from = n->lp_from,
		.lp_to = n->lp_to};
	nsv_sched_take_turn(s, seq, n->uid);
}

/* Its full blocks become known to the prefix cache. */
static int tell_tree(struct nsv_sched *s, struct nsv_sched_seq *q)
{
	uint32_t n_full = q->n_done / s->block_size;

	if (q->bypass || n_full <= q->place.n_block)
		return 0;
	return nsv_prefix_tree_insert(
		s->tree, q->domain, q->tokens, q->table.block, n_full, &q->place, NULL);
}

int nsv_sched_resume(struct nsv_sched *s, uint32_t seq, uint32_t n_block, uint32_t n_past)
{
	struct nsv_sched_seq *q = &s->seqs[seq];

	if (q->lp_from < q->lp_to)
		n_past = (uint32_t)nsv_min(n_past, q->lp_from);
	q->table.n = n_block;
	while (q->table.n > nsv_blocks_for(n_past, s->block_size))
		nsv_block_unref(s->alloc, q->table.block[--q->table.n]);
	q->n_past = q->n_done = n_past;
	q->leader = NSV_SCHED_NO_LEADER;
	nsv_sched_unlist(s, seq);
	nsv_sched_to_running(s, seq);
	s->virtual_time = nsv_max_u64(s->virtual_time, q->tag);
	return tell_tree(s, q);
}

void nsv_sched_remove(struct nsv_sched *s, uint32_t seq)
{
	struct nsv_sched_seq *q = &s->seqs[seq];

	nsv_sched_unlist(s, seq);
	nsv_sched_release(s, q);
	nsv_sched_release_host(s, q);
	s->users[q->user].n_seq--;
	*q = (struct nsv_sched_seq){0};
}

void nsv_sched_pause(struct nsv_sched *s, uint32_t seq, bool paused)
{
	s->seqs[seq].paused = paused;
	s->seqs[seq].gives_back = false;
	s->n_change++;
}

void nsv_sched_give_back(struct nsv_sched *s, uint32_t seq)
{
	s->seqs[seq].gives_back = s->seqs[seq].paused && s->seqs[seq].where == NSV_SCHED_RUNNING;
}

static void take_back(struct nsv_sched *s, struct nsv_step_plan *plan)
{
	for (uint32_t i = s->n_run; i > 0; i--) {
		struct nsv_sched_seq *q = &s->seqs[s->run[i - 1]];
		if (!q->gives_back)
			continue;
		q->gives_back = false;
		nsv_sched_preempt(s, plan, s->run[i - 1]);
	}
}

void nsv_sched_known(struct nsv_sched *s, uint32_t seq)
{
	s->seqs[seq].n_pending--;
	s->users[s->seqs[seq].user].finish++;
	s->n_change++;
}

/* ---- A step */

/* As many of `want` rows as blocks can be had for, at least one unless `seq` itself is preempted:
 * 0. */
static uint32_t reserve(
	struct nsv_sched *s, struct nsv_step_plan *plan, uint32_t seq, uint32_t want)
{
	struct nsv_sched_seq *q = &s->seqs[seq];

	for (;;) {
		uint64_t room = (q->table.n + nsv_sched_available(s)) * s->block_size;
		uint32_t n = (uint32_t)nsv_min_u64(want, room > q->n_past ? room - q->n_past : 0);
		if (n > 0 && nsv_sched_grow_table(s, q, (uint64_t)q->n_past + n))
			return n;
		uint32_t v = nsv_sched_victim(s);
		nsv_sched_preempt(s, plan, v);
		if (v == seq)
			return 0;
	}
}

/* Of `want` rows as many as come before those whose logits cannot be had in this step. */
static uint32_t limit_lp_rows(
	const struct nsv_sched_seq *q, uint32_t want, const struct nsv_step_plan *plan)
{
	uint32_t left = NSV_SCHED_LP_ROWS - plan->n_lp;
	uint32_t room = q->lp_room > q->n_lp_pending ? q->lp_room - q->n_lp_pending : 0;

	if (q->lp_from >= q->lp_to)
		return want;
	left = (uint32_t)nsv_min(nsv_min(left, room), q->lp_to - q->lp_from);
	return (uint32_t)nsv_min(want, q->lp_from - q->n_past + left);
}

/* How many of the n rows from n_past on are for log-probabilities; they are planned now. */
static uint32_t take_lp_rows(struct nsv_sched_seq *q, uint32_t n)
{
	uint32_t end = q->n_past + n;

	if (q->lp_from >= q->lp_to || end <= q->lp_from)
		return 0;
	uint32_t n_lp = end - q->lp_from;
	q->lp_from = end;
	q->n_lp_pending += n_lp;
	return n_lp;
}

static void plan_rows(struct nsv_sched *s, struct nsv_step_plan *plan, uint32_t seq, uint32_t n)
{
	struct nsv_sched_seq *q = &s->seqs[seq];
	bool sample = q->n_past + n == q->n_token;
	uint32_t n_lp = take_lp_rows(q, n);

	plan->items[plan->n_item++] = (struct nsv_plan_item){.seq = seq,
		.n_past = q->n_past,
		.n_row = n,
		.n_preempt = q->n_preempt,
		.n_lp = n_lp,
		.sample = sample,
		.pending = sample && q->n_pending > 0};
	plan->n_row += n;
	plan->n_lp += n_lp;
	q->n_past += n;
	q->n_token += sample;
	q->n_pending += sample;
}

static bool can_run(const struct nsv_sched_seq *q)
{
	return !q->paused && q->n_past < q->n_token && q->n_token < q->max_token &&
	       (q->n_pending == 0 || !q->wait_for_tokens);
}

static uint32_t count_decodes(const struct nsv_sched *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n_run; i++) {
		const struct nsv_sched_seq *q = &s->seqs[s->run[i]];
		n += can_run(q) && q->n_token - q->n_past == 1;
	}
	return n;
}

/* The first of `run` whose turn is after q's; it is near place i, where victims were taken out. */
static uint32_t next_in_run(const struct nsv_sched *s, uint32_t i, const struct nsv_sched_seq *q)
{
	i = (uint32_t)nsv_min(i, s->n_run);
	while (i > 0 && nsv_sched_before(q, &s->seqs[s->run[i - 1]]))
		i--;
	while (i < s->n_run && !nsv_sched_before(q, &s->seqs[s->run[i]]))
		i++;
	return i;
}

static void plan_running(struct nsv_sched *s, struct nsv_step_plan *plan, uint32_t *prefill_left)
{
	uint32_t i = 0;

	while (i < s->n_run && plan->n_row < s->batch_tokens) {
		uint32_t seq = s->run[i];
		const struct nsv_sched_seq *q = &s->seqs[seq];
		uint32_t left = q->n_token - q->n_past;
		uint32_t want = left == 1 ? 1 : (uint32_t)nsv_min(left, *prefill_left);

		want = (uint32_t)nsv_min(want, s->batch_tokens - plan->n_row);
		want = limit_lp_rows(q, want, plan);
		if (can_run(q) && want > 0) {
			uint32_t n = reserve(s, plan, seq, want);
			if (n > 0) {
				plan_rows(s, plan, seq, n);
				if (left > 1)
					*prefill_left -= n;
			}
		}
		i = next_in_run(s, i, q);
	}
}

void nsv_sched_set_lp_room(struct nsv_sched *s, uint32_t seq, uint32_t n_row)
{
	s->seqs[seq].lp_room = n_row;
}

int nsv_sched_computed(struct nsv_sched *s, const struct nsv_plan_item *item)
{
	struct nsv_sched_seq *q = &s->seqs[item->seq];

	q->n_lp_pending -= item->n_lp;
	if (q->where != NSV_SCHED_RUNNING || q->n_preempt != item->n_preempt)
		return 0;
	q->n_done = item->n_past + item->n_row;
	return tell_tree(s, q);
}

void nsv_sched_copied(struct nsv_sched *s, const struct nsv_step_plan *plan)
{
	if (plan->n_copy + plan->n_swap_in == 0)
		return;
	for (uint32_t i = 0; i < plan->n_copy; i++)
		nsv_block_unref(s->alloc, plan->copies[i].from);
	for (uint32_t i = 0; i < s->n_run; i++)
		nsv_sched_release_host(s, &s->seqs[s->run[i]]);
	s->n_change++;
}

void nsv_sched_plan(struct nsv_sched *s, struct nsv_step_plan *plan)
{
	plan->n_item = plan->n_row = plan->n_lp = plan->n_preempted = plan->n_copy = 0;
	plan->n_swap_out = plan->n_swap_in = 0;
	take_back(s, plan);
	nsv_sched_admit(s, plan);
	uint32_t n_decode = count_decodes(s);
	uint32_t left = n_decode < s->batch_tokens ? s->batch_tokens - n_decode : 1;
	if (n_decode > 0)
		left = (uint32_t)nsv_min(left, s->mixed_tokens);
	plan_running(s, plan, &left);
}
