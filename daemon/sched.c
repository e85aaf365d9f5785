/* Turns, admission, rows, preemption, and the audit of all that. */
#include "daemon/sched.h"

#include <string.h>

#define MIXED_TOKENS 64

int nsv_sched_init(struct nsv_sched *s, struct nsv_block_alloc *alloc, struct nsv_prefix_tree *tree,
	uint32_t n_cap, uint32_t block_size, uint32_t batch_tokens)
{
	*s = (struct nsv_sched){.alloc = alloc,
		.tree = tree,
		.block_size = block_size,
		.batch_tokens = batch_tokens,
		.mixed_tokens = (uint32_t)nsv_min(MIXED_TOKENS, batch_tokens),
		.watermark = 1 + alloc->n_block / 100,
		.n_cap = n_cap};
	s->seqs = calloc(n_cap, sizeof(*s->seqs));
	s->run = calloc(n_cap, sizeof(*s->run));
	s->wait = calloc(n_cap, sizeof(*s->wait));
	s->users = calloc(n_cap, sizeof(*s->users));
	if (s->seqs && s->run && s->wait && s->users)
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
	*s = (struct nsv_sched){0};
}

int nsv_step_plan_init(struct nsv_step_plan *p, uint32_t n_cap)
{
	*p = (struct nsv_step_plan){.items = calloc(n_cap, sizeof(*p->items)),
		.preempted = calloc(n_cap, sizeof(*p->preempted)),
		.copies = calloc(n_cap, sizeof(*p->copies))};
	if (p->items && p->preempted && p->copies)
		return 0;
	nsv_step_plan_deinit(p);
	return -ENOMEM;
}

void nsv_step_plan_deinit(struct nsv_step_plan *p)
{
	free(p->items);
	free(p->preempted);
	free(p->copies);
	*p = (struct nsv_step_plan){0};
}

/* ---- Turns */

static bool before(const struct nsv_sched_seq *a, const struct nsv_sched_seq *b)
{
	return a->tag != b->tag ? a->tag < b->tag : a->arrival < b->arrival;
}

/* The user's place; one that is new takes the place of whoever has no sequence and is least
 * ahead. */
static uint32_t find_user(struct nsv_sched *s, uint32_t uid)
{
	uint32_t best = UINT32_MAX;

	for (uint32_t i = 0; i < s->n_cap; i++) {
		const struct nsv_sched_user *u = &s->users[i];
		if (u->uid == uid && (u->n_seq > 0 || u->finish > 0))
			return i;
		if (u->n_seq == 0 && (best == UINT32_MAX || u->finish < s->users[best].finish))
			best = i;
	}
	s->users[best] = (struct nsv_sched_user){.uid = uid};
	return best;
}

static void take_tag(struct nsv_sched *s, struct nsv_sched_seq *q, uint32_t uid)
{
	q->user = find_user(s, uid);
	struct nsv_sched_user *u = &s->users[q->user];

	q->tag = u->finish > s->virtual_time ? u->finish : s->virtual_time;
	u->finish = q->tag + q->n_token;
	u->n_seq++;
}

/* ---- The two lists, in the order of their turns */

static void list_insert(struct nsv_sched *s, uint32_t *list, uint32_t *n, uint32_t seq)
{
	uint32_t i = (*n)++;

	for (; i > 0 && before(&s->seqs[seq], &s->seqs[list[i - 1]]); i--)
		list[i] = list[i - 1];
	list[i] = seq;
}

static void list_remove(uint32_t *list, uint32_t *n, uint32_t seq)
{
	uint32_t i = 0;

	while (list[i] != seq)
		i++;
	memmove(&list[i], &list[i + 1], (--*n - i) * sizeof(*list));
}

static void to_waiting(struct nsv_sched *s, uint32_t seq)
{
	s->seqs[seq].where = NSV_SCHED_WAITING;
	list_insert(s, s->wait, &s->n_wait, seq);
}

void nsv_sched_add(struct nsv_sched *s, uint32_t seq, const struct nsv_sched_new *n)
{
	s->seqs[seq] = (struct nsv_sched_seq){.n_token = n->n_token,
		.max_token = n->max_token,
		.wait_for_tokens = n->wait_for_tokens,
		.arrival = n->arrival,
		.table = {.block = n->blocks, .cap = n->cap},
		.domain = n->domain,
		.tokens = n->tokens,
		.bypass = n->bypass || !s->tree,
		.tried_at = UINT64_MAX};
	take_tag(s, &s->seqs[seq], n->uid);
	to_waiting(s, seq);
}

static void release(struct nsv_sched *s, struct nsv_sched_seq *q)
{
	nsv_block_table_release(&q->table, s->alloc);
	q->n_past = q->n_done = 0;
	q->place = (struct nsv_prefix_place){0};
	s->n_change++;
}

void nsv_sched_remove(struct nsv_sched *s, uint32_t seq)
{
	struct nsv_sched_seq *q = &s->seqs[seq];

	if (q->where == NSV_SCHED_RUNNING)
		list_remove(s->run, &s->n_run, seq);
	else if (q->where == NSV_SCHED_WAITING)
		list_remove(s->wait, &s->n_wait, seq);
	release(s, q);
	s->users[q->user].n_seq--;
	*q = (struct nsv_sched_seq){0};
}

void nsv_sched_pause(struct nsv_sched *s, uint32_t seq, bool paused)
{
	s->seqs[seq].paused = paused;
	s->n_change++;
}

void nsv_sched_known(struct nsv_sched *s, uint32_t seq)
{
	s->seqs[seq].n_pending--;
	s->users[s->seqs[seq].user].finish++;
	s->n_change++;
}

/* ---- A step */

static void preempt(struct nsv_sched *s, struct nsv_step_plan *plan, uint32_t seq)
{
	struct nsv_sched_seq *q = &s->seqs[seq];

	list_remove(s->run, &s->n_run, seq);
	release(s, q);
	q->n_preempt++;
	s->n_preempt++;
	to_waiting(s, seq);
	plan->preempted[plan->n_preempted++] = seq;
}

/* Whose blocks are taken: the youngest paused one, else the youngest. `run` is not empty. */
static uint32_t victim(const struct nsv_sched *s)
{
	for (uint32_t i = s->n_run; i > 0; i--)
		if (s->seqs[s->run[i - 1]].paused)
			return s->run[i - 1];
	return s->run[s->n_run - 1];
}

/* Blocks that can be had: free, or cached and used by nobody. */
static uint64_t available(const struct nsv_sched *s)
{
	return (uint64_t)s->alloc->n_free + nsv_block_n_idle(s->alloc);
}

/* The table grows to n_token tokens if blocks can be had without taking them from a sequence. */
static bool grow_table(struct nsv_sched *s, struct nsv_sched_seq *q, uint64_t n_token)
{
	uint32_t need = nsv_blocks_for(n_token, s->block_size);
	uint32_t lack = need > q->table.n ? need - q->table.n : 0;

	if (lack > available(s))
		return false;
	if (lack > s->alloc->n_free)
		nsv_prefix_tree_evict(s->tree, lack - s->alloc->n_free);
	return nsv_block_table_reserve(&q->table, s->alloc, n_token, s->block_size) == 0;
}

/* As many of `want` rows as blocks can be had for, at least one unless `seq` itself is preempted:
 * 0. */
static uint32_t reserve(
	struct nsv_sched *s, struct nsv_step_plan *plan, uint32_t seq, uint32_t want)
{
	struct nsv_sched_seq *q = &s->seqs[seq];

	for (;;) {
		uint64_t room = (q->table.n + available(s)) * s->block_size;
		uint32_t n = (uint32_t)nsv_min_u64(want, room > q->n_past ? room - q->n_past : 0);
		if (n > 0 && grow_table(s, q, (uint64_t)q->n_past + n))
			return n;
		uint32_t v = victim(s);
		preempt(s, plan, v);
		if (v == seq)
			return 0;
	}
}

static void plan_rows(struct nsv_sched *s, struct nsv_step_plan *plan, uint32_t seq, uint32_t n)
{
	struct nsv_sched_seq *q = &s->seqs[seq];
	bool sample = q->n_past + n == q->n_token;

	plan->items[plan->n_item++] = (struct nsv_plan_item){.seq = seq,
		.n_past = q->n_past,
		.n_row = n,
		.n_preempt = q->n_preempt,
		.sample = sample,
		.pending = sample && q->n_pending > 0};
	plan->n_row += n;
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
	while (i > 0 && before(q, &s->seqs[s->run[i - 1]]))
		i--;
	while (i < s->n_run && !before(q, &s->seqs[s->run[i]]))
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

/* Blocks that a sequence still lacks for the tokens that are known. */
static uint32_t missing(const struct nsv_sched *s, uint32_t seq)
{
	const struct nsv_sched_seq *q = &s->seqs[seq];

	return nsv_blocks_for(q->n_token, s->block_size) - q->table.n;
}

/* What those that run have been promised. */
static uint64_t count_promised(const struct nsv_sched *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->n_run; i++)
		n += missing(s, s->run[i]);
	return n;
}

/* Takes blocks from those that `seq` comes before, until `need` can be had and are not promised. */
static void make_room(struct nsv_sched *s, struct nsv_step_plan *plan, uint32_t seq, uint64_t need,
	uint64_t *promised)
{
	while (available(s) < *promised + need && s->n_run > 0) {
		uint32_t v = victim(s);
		if (!s->seqs[v].paused && before(&s->seqs[v], &s->seqs[seq]))
			return;
		*promised -= missing(s, v);
		preempt(s, plan, v);
	}
}

/* What must stay free when `seq` is admitted: it is not to push out one that runs. Nothing where
 * nobody moves, or where it comes before one that runs. */
static uint32_t margin_for(const struct nsv_sched *s, uint32_t seq)
{
	bool any_moves = false;

	for (uint32_t i = 0; i < s->n_run; i++) {
		const struct nsv_sched_seq *q = &s->seqs[s->run[i]];
		if (!q->paused && before(&s->seqs[seq], q))
			return 0;
		any_moves |= !q->paused;
	}
	return any_moves ? s->watermark : 0;
}

/* What the prefix cache has of a sequence is its own now; the last token is always computed. */
static void take_hits(struct nsv_sched *s, struct nsv_sched_seq *q, struct nsv_prefix_hit *ret_hit)
{
	*ret_hit = (struct nsv_prefix_hit){.partial_block = -1};
	if (q->bypass)
		return;
	nsv_prefix_tree_match(s->tree, q->domain, q->tokens, q->n_token - 1, q->table.block,
		q->table.cap, ret_hit);
	q->table.n = ret_hit->n_block;
	q->n_past = ret_hit->n_block * s->block_size;
	q->place = ret_hit->place;
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
	if (!grow_table(s, q, (uint64_t)q->n_past + 1)) {
		nsv_block_unref(s->alloc, hit->partial_block);
		return;
	}
	plan->copies[plan->n_copy++] =
		(struct nsv_plan_copy){hit->partial_block, q->table.block[q->table.n - 1]};
	q->n_past += hit->n_partial;
}

static bool admit_one(
	struct nsv_sched *s, struct nsv_step_plan *plan, uint32_t seq, uint64_t *promised)
{
	struct nsv_sched_seq *q = &s->seqs[seq];
	struct nsv_prefix_hit hit;

	if (q->tried_at == s->n_change) /* nothing has changed since */
		return false;
	take_hits(s, q, &hit);
	uint64_t need = missing(s, seq);
	make_room(s, plan, seq, need, promised);
	if (available(s) < *promised + need + margin_for(s, seq)) {
		give_hits_back(s, q, &hit);
		q->tried_at = s->n_change;
		return false;
	}
	copy_partial(s, plan, q, &hit);
	q->n_done = q->n_past;
	if (q->n_preempt == 0)
		q->n_cached = q->n_past;
	s->n_hit_token += q->n_past;
	list_remove(s->wait, &s->n_wait, seq);
	q->where = NSV_SCHED_RUNNING;
	if (q->tag > s->virtual_time)
		s->virtual_time = q->tag;
	list_insert(s, s->run, &s->n_run, seq);
	*promised += missing(s, seq);
	return true;
}

/* In their turns: the first that does not fit ends it. Nobody is admitted behind one that
 * had to take blocks, or those who lost them would get them back at once. */
static void admit(struct nsv_sched *s, struct nsv_step_plan *plan)
{
	uint64_t promised = count_promised(s);
	uint32_t i = 0;

	while (i < s->n_wait && plan->n_preempted == 0) {
		uint32_t seq = s->wait[i];
		if (s->seqs[seq].paused || s->seqs[seq].n_pending > 0)
			i++;
		else if (!admit_one(s, plan, seq, &promised))
			return;
	}
}

int nsv_sched_computed(struct nsv_sched *s, const struct nsv_plan_item *item)
{
	struct nsv_sched_seq *q = &s->seqs[item->seq];

	if (q->where != NSV_SCHED_RUNNING || q->n_preempt != item->n_preempt)
		return 0;
	q->n_done = item->n_past + item->n_row;
	uint32_t n_full = q->n_done / s->block_size;
	if (q->bypass || n_full <= q->place.n_block)
		return 0;
	return nsv_prefix_tree_insert(
		s->tree, q->domain, q->tokens, q->table.block, n_full, &q->place, NULL);
}

void nsv_sched_copied(struct nsv_sched *s, const struct nsv_step_plan *plan)
{
	for (uint32_t i = 0; i < plan->n_copy; i++)
		nsv_block_unref(s->alloc, plan->copies[i].from);
	s->n_change += plan->n_copy > 0;
}

void nsv_sched_plan(struct nsv_sched *s, struct nsv_step_plan *plan)
{
	plan->n_item = plan->n_row = plan->n_preempted = plan->n_copy = 0;
	admit(s, plan);
	uint32_t n_decode = count_decodes(s);
	uint32_t left = n_decode < s->batch_tokens ? s->batch_tokens - n_decode : 1;
	if (n_decode > 0)
		left = (uint32_t)nsv_min(left, s->mixed_tokens);
	plan_running(s, plan, &left);
}

/* ---- Audit */

static int audit_seq(const struct nsv_sched *s, uint32_t seq, uint32_t *held, struct nsv_err *err)
{
	const struct nsv_sched_seq *q = &s->seqs[seq];

	if (q->where != NSV_SCHED_RUNNING && q->table.n > 0)
		return nsv_fail(err, -EUCLEAN, "sequence %u holds %u blocks and does not run", seq,
			q->table.n);
	if (q->n_past > q->n_token || q->n_done > q->n_past || q->n_pending > q->n_token ||
		q->table.n < nsv_blocks_for(q->n_past, s->block_size) || q->table.n > q->table.cap)
		return nsv_fail(err, -EUCLEAN, "sequence %u: %u of %u tokens in %u blocks", seq,
			q->n_past, q->n_token, q->table.n);
	for (uint32_t i = 0; i < q->table.n; i++) {
		int32_t b = q->table.block[i];
		if (b < 0 || (uint32_t)b >= s->alloc->n_block)
			return nsv_fail(err, -EUCLEAN, "sequence %u holds block %d of %u", seq, b,
				s->alloc->n_block);
		held[b]++;
	}
	return 0;
}

static int audit_list(const struct nsv_sched *s, const uint32_t *list, uint32_t n, uint8_t where,
	struct nsv_err *err)
{
	for (uint32_t i = 0; i < n; i++) {
		if (s->seqs[list[i]].where != where)
			return nsv_fail(err, -EUCLEAN, "sequence %u is in the wrong list", list[i]);
		if (i > 0 && !before(&s->seqs[list[i - 1]], &s->seqs[list[i]]))
			return nsv_fail(err, -EUCLEAN, "sequence %u is out of order", list[i]);
	}
	return 0;
}

int nsv_sched_audit(const struct nsv_sched *s, struct nsv_err *err)
{
	nsv_autofree uint32_t *held = calloc(s->alloc->n_block, sizeof(*held));
	uint32_t n_listed = 0;
	int ret = held ? nsv_block_audit(s->alloc, err)
		       : nsv_fail(err, -ENOMEM, "no memory for the audit");

	if (ret == 0)
		ret = audit_list(s, s->run, s->n_run, NSV_SCHED_RUNNING, err);
	if (ret == 0)
		ret = audit_list(s, s->wait, s->n_wait, NSV_SCHED_WAITING, err);
	for (uint32_t i = 0; ret == 0 && i < s->n_cap; i++) {
		n_listed += s->seqs[i].where != NSV_SCHED_ABSENT;
		ret = audit_seq(s, i, held, err);
	}
	if (ret == 0 && n_listed != s->n_run + s->n_wait)
		ret = nsv_fail(err, -EUCLEAN, "%u sequences, %u in the lists", n_listed,
			s->n_run + s->n_wait);
	for (uint32_t b = 0; ret == 0 && b < s->alloc->n_block; b++) {
		held[b] += nsv_block_is_cached(s->alloc, (int32_t)b);
		if (held[b] != nsv_block_n_ref(s->alloc, (int32_t)b))
			ret = nsv_fail(err, -EUCLEAN, "block %u: %u holders, %u references", b,
				held[b], nsv_block_n_ref(s->alloc, (int32_t)b));
	}
	return ret;
}
