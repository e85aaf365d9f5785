/* Fairness and priorities over random loads.
 *
 * What sched.h promises of turns, in tokens: from the time that a sequence comes until it is first
 * admitted, each other user is first admitted for no more tokens than lie from the virtual time
 * then to the sequence's tag, and one request; and its tag grows by no more than what may pass it,
 * 16 requests of its own user. So the wait is bounded whatever others do. */
#include "tests/tools/rnd.h"
#include "tests/unit/daemon/sched_rig.h"

#define N_USER 5
#define MAX_PROMPT 40u

struct waiting {
	uint64_t virtual_time, tag; /* when it came */
	uint64_t others[N_USER];    /* tokens that users were admitted for since */
	uint32_t end;
	bool is_in;
};

struct fair {
	struct rig r;
	struct waiting seqs[N_SEQ];
	uint64_t n_admitted, n_passed;
	uint64_t longest; /* tokens that one user got before another */
};

static void come(struct fair *f, uint32_t seq)
{
	uint32_t n_token = 1 + t_below(MAX_PROMPT);
	/* one user asks for much more than the others */
	uint32_t user = t_below(3) ? 0 : t_below(N_USER);

	f->r.seqs[seq].user = user;
	struct nsv_sched_new n = rig_describe(&f->r, seq, n_token);
	n.priority = (int32_t)t_below(3);
	n.max_token = n_token + 1 + t_below(20);
	uint64_t virtual_time = f->r.sched.virtual_time;
	nsv_sched_add(&f->r.sched, seq, &n);
	/* who passes others comes earlier than it would have: its bound is from there */
	f->seqs[seq] = (struct waiting){.virtual_time = virtual_time,
		.tag = f->r.sched.seqs[seq].tag,
		.end = n.max_token};
}

/* It was first admitted: did anybody get more before it than is promised? */
static void check_wait(struct fair *f, uint32_t seq)
{
	const struct nsv_sched_seq *q = &f->r.sched.seqs[seq];
	const struct waiting *w = &f->seqs[seq];
	uint64_t span = q->tag > w->virtual_time ? q->tag - w->virtual_time : 0;

	assert_true(q->n_passed <= NSV_SCHED_MAX_PASSED);
	assert_true(q->tag - w->tag <= (uint64_t)NSV_SCHED_MAX_PASSED * MAX_PROMPT);
	for (uint32_t u = 0; u < N_USER; u++) {
		if (u == f->r.seqs[seq].user)
			continue;
		f->longest = nsv_max_u64(f->longest, w->others[u]);
		if (w->others[u] > span + MAX_PROMPT)
			fail_msg("sequence %u waited for %llu tokens of user %u, %llu are promised",
				seq, (unsigned long long)w->others[u], u,
				(unsigned long long)span + MAX_PROMPT);
	}
}

/* In the order of their turns: those admitted by one plan had an order too. */
static void note_admitted(struct fair *f)
{
	for (uint32_t i = 0; i < f->r.sched.n_run; i++) {
		uint32_t seq = f->r.sched.run[i], user = f->r.seqs[seq].user;
		if (f->seqs[seq].is_in)
			continue;
		check_wait(f, seq);
		f->seqs[seq].is_in = true;
		f->n_admitted++;
		f->n_passed += f->r.sched.seqs[seq].n_passed;
		for (uint32_t other = 0; other < N_SEQ; other++)
			if (f->r.sched.seqs[other].where && !f->seqs[other].is_in)
				f->seqs[other].others[user] += f->r.sched.seqs[seq].n_token -
							       f->r.sched.seqs[seq].n_pending;
	}
}

static void end_some(struct fair *f)
{
	for (uint32_t seq = 0; seq < N_SEQ; seq++) {
		const struct nsv_sched_seq *q = &f->r.sched.seqs[seq];
		if (q->where && (q->n_token >= f->seqs[seq].end || t_below(200) == 0))
			nsv_sched_remove(&f->r.sched, seq);
	}
}

static void test_the_wait_is_bounded(void **state)
{
	static struct fair f;
	uint64_t n_admitted = 0, n_passed = 0, longest = 0;
	(void)state;

	t_seed();
	for (int round = 0; round < 40; round++) {
		f = (struct fair){.n_admitted = 0};
		rig_init(&f.r, (struct rig_size){18 + t_below(30), t_below(20), 64, false});
		for (int i = 0; i < 1500; i++) {
			for (uint32_t seq = 0; seq < N_SEQ; seq++)
				if (!f.r.sched.seqs[seq].where && t_below(2) == 0)
					come(&f, seq);
			nsv_sched_plan(&f.r.sched, &f.r.plan);
			note_admitted(&f);
			rig_carry_out(&f.r);
			for (uint32_t k = 0; k < f.r.plan.n_item; k++)
				if (f.r.plan.items[k].sample)
					nsv_sched_known(&f.r.sched, f.r.plan.items[k].seq);
			rig_audit(&f.r);
			end_some(&f);
		}
		n_admitted += f.n_admitted;
		n_passed += f.n_passed;
		longest = nsv_max_u64(longest, f.longest);
		rig_deinit(&f.r);
	}
	print_message(
		"%llu requests admitted, passed %llu times by their own users' others; at most "
		"%llu tokens of one user before another's request\n",
		(unsigned long long)n_admitted, (unsigned long long)n_passed,
		(unsigned long long)longest);
	assert_true(n_admitted > 1000 && n_passed > 1000 && longest > 0);
}

/* ---- Priorities */

struct turn {
	uint64_t seq, tag;
};

static bool never_admitted(const struct nsv_sched_seq *q)
{
	return q->where == NSV_SCHED_WAITING && q->n_preempt == 0;
}

/* A user's sequences that wait for their first turn, in order. */
static uint32_t list_turns(const struct rig *r, uint32_t user, struct turn *turns)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->sched.n_wait; i++) {
		uint32_t seq = r->sched.wait[i];
		if (r->seqs[seq].user == user && never_admitted(&r->sched.seqs[seq]))
			turns[n++] = (struct turn){seq, r->sched.seqs[seq].tag};
	}
	return n;
}

/* The new one stands where it should, and its user has no more of the time than without it. */
static void check_place(const struct rig *r, uint32_t seq, const struct turn *was, uint32_t n_was)
{
	const struct nsv_sched_seq *seqs = r->sched.seqs;
	struct turn now[N_SEQ];
	uint32_t n = list_turns(r, r->seqs[seq].user, now), place = 0;

	assert_int_equal(n, n_was + 1);
	while (now[place].seq != seq)
		place++;
	for (uint32_t i = 0; i < n_was; i++) {
		const struct nsv_sched_seq *q = &seqs[was[i].seq];
		assert_int_equal(now[i < place ? i : i + 1].seq, was[i].seq);
		assert_int_equal(q->tag, was[i].tag + (i < place ? 0 : seqs[seq].n_token));
		assert_true(i < place || q->priority < seqs[seq].priority);
	}
	if (place < n_was)
		assert_int_equal(seqs[seq].tag, was[place].tag);
	if (place > 0)
		assert_true(seqs[now[place - 1].seq].priority >= seqs[seq].priority ||
			    seqs[now[place - 1].seq].n_passed == NSV_SCHED_MAX_PASSED);
	for (uint32_t i = 1; i < n; i++)
		assert_true(now[i].tag >= now[i - 1].tag + seqs[now[i - 1].seq].n_token);
}

static void test_places_by_priority(void **state)
{
	static struct rig r;
	struct turn was[N_SEQ], others[N_USER][N_SEQ], now[N_SEQ];
	(void)state;

	t_seed();
	for (int round = 0; round < 3000; round++) {
		rig_init(&r, (struct rig_size){30, 0, 64, false});
		for (uint32_t seq = 0; seq < N_SEQ; seq++) {
			uint32_t user = r.seqs[seq].user = t_below(3);
			struct nsv_sched_new n = rig_describe(&r, seq, 1 + t_below(MAX_PROMPT));
			n.priority = (int32_t)t_below(4) - 2;
			uint32_t n_was = list_turns(&r, user, was), n_other[N_USER];
			for (uint32_t u = 0; u < N_USER; u++)
				n_other[u] = list_turns(&r, u, others[u]);
			nsv_sched_add(&r.sched, seq, &n);
			check_place(&r, seq, was, n_was);
			for (uint32_t u = 0; u < N_USER; u++) {
				if (u == user)
					continue;
				assert_int_equal(list_turns(&r, u, now), n_other[u]);
				assert_memory_equal(now, others[u], n_other[u] * sizeof(*now));
			}
			rig_audit(&r);
		}
		rig_deinit(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_wait_is_bounded),
		cmocka_unit_test(test_places_by_priority),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
