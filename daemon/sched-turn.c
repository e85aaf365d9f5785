/* Users and turns: who goes before whom, and the two lists in that order. */
#include "daemon/sched-impl.h"

#include <string.h>

/* ---- The two lists */

static void list_insert(struct nsv_sched *s, uint32_t *list, uint32_t *n, uint32_t seq)
{
	uint32_t i = (*n)++;

	for (; i > 0 && nsv_sched_before(&s->seqs[seq], &s->seqs[list[i - 1]]); i--)
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

void nsv_sched_to_waiting(struct nsv_sched *s, uint32_t seq)
{
	s->seqs[seq].where = NSV_SCHED_WAITING;
	list_insert(s, s->wait, &s->n_wait, seq);
}

void nsv_sched_to_running(struct nsv_sched *s, uint32_t seq)
{
	s->seqs[seq].where = NSV_SCHED_RUNNING;
	list_insert(s, s->run, &s->n_run, seq);
}

void nsv_sched_unlist(struct nsv_sched *s, uint32_t seq)
{
	if (s->seqs[seq].where == NSV_SCHED_RUNNING)
		list_remove(s->run, &s->n_run, seq);
	else if (s->seqs[seq].where == NSV_SCHED_WAITING)
		list_remove(s->wait, &s->n_wait, seq);
}

/* ---- Turns */

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

	q->tag = nsv_max_u64(u->finish, s->virtual_time);
	u->finish = q->tag + q->n_token;
	u->n_seq++;
}

const struct nsv_sched_seq *nsv_sched_leader(
	const struct nsv_sched *s, const struct nsv_sched_seq *q)
{
	if (q->leader == NSV_SCHED_NO_LEADER)
		return NULL;
	const struct nsv_sched_seq *leader = &s->seqs[q->leader];
	return leader->where && leader->arrival == q->leader_arrival ? leader : NULL;
}

static bool may_pass(
	const struct nsv_sched *s, const struct nsv_sched_seq *q, const struct nsv_sched_seq *other)
{
	const struct nsv_sched_seq *leader = nsv_sched_leader(s, q);

	return other->priority < q->priority && other->n_passed < NSV_SCHED_MAX_PASSED &&
	       (!leader || nsv_sched_before(leader, other));
}

/* The list is in order again; few places have changed. */
static void sort_waiting(struct nsv_sched *s)
{
	uint32_t n = 0;

	while (n < s->n_wait)
		list_insert(s, s->wait, &n, s->wait[n]);
}

/* A turn moves to the one that passes, and those that are passed are served its tokens later. */
static void pass_lower(struct nsv_sched *s, struct nsv_sched_seq *q)
{
	bool any = false;

	for (uint32_t i = s->n_wait; i-- > 0;) {
		struct nsv_sched_seq *other = &s->seqs[s->wait[i]];
		if (other == q || other->user != q->user || other->n_preempt > 0)
			continue;
		if (!may_pass(s, q, other))
			break;
		q->tag = other->tag;
		other->tag += q->n_token;
		other->n_passed++;
		any = true;
	}
	if (any)
		sort_waiting(s);
}

void nsv_sched_take_turn(struct nsv_sched *s, uint32_t seq, uint32_t uid)
{
	take_tag(s, &s->seqs[seq], uid);
	nsv_sched_to_waiting(s, seq);
	pass_lower(s, &s->seqs[seq]);
}
