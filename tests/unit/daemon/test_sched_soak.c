/* Random loads on scheduler, cache and host tier: requests come, alone and as branches of one
 * prompt, fork, pause, are cancelled and end, in pools of a few blocks, on a device that runs 1 to
 * 4 steps ahead; after every step the audit, every row's history, and progress. `make soak` is this
 * for 10 million steps. */
#include "tests/tools/rnd.h"
#include "tests/unit/daemon/sched_rig.h"

#define MAX_AHEAD 4
#define N_STEP_EACH 2000 /* of one pool */
#define MAX_BRANCH 4

struct late { /* a plan whose results have not come */
	struct nsv_step_plan plan;
	uint64_t arrival[N_SEQ]; /* whose the items were: a place may be another's by then */
};

struct soak {
	struct rig r;
	uint32_t end[N_SEQ];     /* tokens at which it ends; 0: absent */
	uint32_t lp_next[N_SEQ]; /* the row whose log-probabilities come next */
	uint32_t lp_to[N_SEQ];
	struct late late[MAX_AHEAD];
	uint32_t n_late, ahead;
};

struct sums {
	uint64_t n_hit, n_fork, n_preempt, n_swap_out, n_swap_in, n_lp, n_passed;
};

/* ---- Events */

/* Few beginnings and long repeats, so that prefixes are shared, and part in the middle of
 * blocks. */
static void random_tokens(struct rig_seq *q)
{
	uint32_t same = t_below(60), story = t_below(3);

	for (uint32_t i = 0; i < CAP * BLOCK; i++)
		q->tokens[i] = i < same ? (int32_t)(story * 1000 + i) : (int32_t)t_below(2);
}

/* The longest that fits, prompt and output: the last token needs no slot. */
static uint32_t longest(const struct soak *k)
{
	return (uint32_t)nsv_min(k->r.alloc.n_block * BLOCK + 1, 70);
}

/* Describes a sequence with room for one more token at least. */
static struct nsv_sched_new describe(struct soak *k, uint32_t seq, uint32_t n_token)
{
	struct rig_seq *q = &k->r.seqs[seq];

	k->end[seq] = q->max_token = n_token + 1 + t_below(longest(k) - n_token);
	k->lp_next[seq] = k->lp_to[seq] = 0;
	struct nsv_sched_new n = rig_describe(&k->r, seq, n_token);
	n.priority = (int32_t)t_below(5) - 2;
	n.wait_for_tokens = t_below(6) == 0;
	return n;
}

static void come(struct soak *k, uint32_t seq)
{
	uint32_t n_prompt = 1 + t_below((uint32_t)nsv_min(longest(k) - 1, 40));
	struct rig_seq *q = &k->r.seqs[seq];

	random_tokens(q);
	q->user = t_below(4);
	q->domain = q->user % 3;
	struct nsv_sched_new n = describe(k, seq, n_prompt);
	if (t_below(5) == 0) {
		k->lp_to[seq] = n.lp_to = n_prompt - 1;
		k->lp_next[seq] = n.lp_from = t_below(n_prompt);
	}
	nsv_sched_add(&k->r.sched, seq, &n);
}

/* Branches of what the leader has by now, or of its beginning. */
static void fork_off(struct soak *k, uint32_t leader)
{
	const struct nsv_sched_seq *l = &k->r.sched.seqs[leader];
	uint32_t known = l->n_token - l->n_pending;
	uint32_t n_token = t_below(3) ? known : 1 + t_below(known);

	if (n_token >= longest(k))
		return;
	for (uint32_t seq = 0, n = 1 + t_below(MAX_BRANCH - 1); seq < N_SEQ && n > 0; seq++) {
		struct rig_seq *q = &k->r.seqs[seq];
		if (k->end[seq])
			continue;
		random_tokens(q);
		memcpy(q->tokens, k->r.seqs[leader].tokens, (n_token - 1) * sizeof(int32_t));
		q->user = k->r.seqs[leader].user;
		q->domain = k->r.seqs[leader].domain;
		struct nsv_sched_new new = describe(k, seq, n_token);
		new.leader = leader;
		nsv_sched_add(&k->r.sched, seq, &new);
		n--;
	}
}

static void leave(struct soak *k, uint32_t seq)
{
	nsv_sched_remove(&k->r.sched, seq);
	k->end[seq] = 0;
}

static void random_event(struct soak *k)
{
	uint32_t seq = t_below(N_SEQ), kind = t_below(16);

	if (!k->end[seq])
		come(k, seq);
	else if (kind < 2)
		leave(k, seq);
	else if (kind < 5)
		fork_off(k, seq);
	else
		nsv_sched_pause(&k->r.sched, seq, t_below(4) == 0);
}

/* ---- Steps */

static bool wants_lps(const struct nsv_sched_seq *q)
{
	return q->lp_from < q->lp_to;
}

static void set_rooms(struct soak *k)
{
	for (uint32_t i = 0; i < N_SEQ; i++)
		if (wants_lps(&k->r.sched.seqs[i]))
			nsv_sched_set_lp_room(&k->r.sched, i, t_below(12));
}

/* The oldest that is not paused has moved, unless what it needs is under way, or its reader
 * behind. */
static void plan_with_progress(struct soak *k)
{
	uint32_t oldest = rig_oldest(&k->r);

	nsv_sched_plan(&k->r.sched, &k->r.plan);
	if (oldest == N_SEQ)
		return;
	const struct nsv_sched_seq *q = &k->r.sched.seqs[oldest];
	if (q->n_pending == 0 && !(wants_lps(q) && q->lp_room <= q->n_lp_pending) &&
		!rig_item(&k->r, oldest))
		fail_msg(
			"the oldest, %u, did not move: %s, %u tokens, %u computed, %u swapped out, "
			"rows for log-probabilities %u to %u, room %u",
			oldest, q->where == NSV_SCHED_RUNNING ? "running" : "waiting", q->n_token,
			q->n_past, q->n_host_token, q->lp_from, q->lp_to, q->lp_room);
}

/* Each row's log-probabilities come once, in order, all before the first sampled token. */
static void check_lps(struct soak *k, const struct nsv_plan_item *item)
{
	uint32_t seq = item->seq;

	if (item->n_lp > 0 && item->n_past + item->n_row - item->n_lp != k->lp_next[seq])
		fail_msg("sequence %u: log-probabilities of row %u, not %u", seq,
			item->n_past + item->n_row - item->n_lp, k->lp_next[seq]);
	k->lp_next[seq] += item->n_lp;
	if (item->sample && (item->n_lp > 0 || k->lp_next[seq] < k->lp_to[seq]))
		fail_msg("sequence %u samples before row %u", seq, k->lp_next[seq]);
}

static void take_item(struct soak *k, const struct nsv_plan_item *item)
{
	struct nsv_sched_seq *q = &k->r.sched.seqs[item->seq];

	check_lps(k, item);
	assert_int_equal(nsv_sched_computed(&k->r.sched, item), 0);
	if (!item->sample)
		return;
	nsv_sched_known(&k->r.sched, item->seq);
	if (q->n_token - q->n_pending >= k->end[item->seq])
		leave(k, item->seq);
}

/* The results of the oldest plan: those of sequences that have ended are dropped. */
static void take_oldest(struct soak *k)
{
	struct late oldest = k->late[0];

	memmove(&k->late[0], &k->late[1], (--k->n_late) * sizeof(k->late[0]));
	k->late[k->n_late] = oldest;
	for (uint32_t i = 0; i < oldest.plan.n_item; i++)
		if (k->r.sched.seqs[oldest.plan.items[i].seq].arrival == oldest.arrival[i])
			take_item(k, &oldest.plan.items[i]);
}

static void take_results(struct soak *k)
{
	const struct nsv_step_plan *p = &k->r.plan;

	if (p->n_item > 0) {
		struct late *l = &k->late[k->n_late++];
		l->plan.n_item = p->n_item;
		for (uint32_t i = 0; i < p->n_item; i++) {
			l->plan.items[i] = p->items[i];
			l->arrival[i] = k->r.sched.seqs[p->items[i].seq].arrival;
		}
	}
	while (k->n_late >= k->ahead || (k->n_late > 0 && p->n_item == 0))
		take_oldest(k);
}

static void step(struct soak *k, struct sums *sums)
{
	for (uint32_t n = t_below(3); n > 0; n--)
		random_event(k);
	set_rooms(k);
	plan_with_progress(k);
	assert_true(k->r.plan.n_lp <= NSV_SCHED_LP_ROWS);
	sums->n_lp += k->r.plan.n_lp;
	rig_carry_out(&k->r);
	rig_audit(&k->r);
	take_results(k);
	rig_audit(&k->r);
	rig_spoil_free(&k->r);
}

/* ---- A pool's life */

static struct rig_size random_size(void)
{
	uint32_t n_block = t_below(4) ? 18 + t_below(80) : 2 + t_below(18);
	uint32_t n_host = t_below(3) ? 1 + t_below(60) : 0;

	return (struct rig_size){n_block, n_host, 1 + t_below(60), t_below(4) > 0};
}

static void add_sums(struct soak *k, struct sums *sums)
{
	const struct nsv_sched *s = &k->r.sched;

	sums->n_hit += s->n_hit_token;
	sums->n_fork += s->n_fork_token;
	sums->n_preempt += s->n_preempt;
	sums->n_swap_out += s->n_swap_out;
	sums->n_swap_in += s->n_swap_in;
	for (uint32_t i = 0; i < N_SEQ; i++)
		sums->n_passed += s->seqs[i].n_passed;
}

static void end_all(struct soak *k)
{
	while (k->n_late > 0)
		take_oldest(k);
	for (uint32_t i = 0; i < N_SEQ; i++)
		if (k->end[i])
			leave(k, i);
	rig_audit(&k->r);
	assert_int_equal(k->r.alloc.n_free + nsv_block_n_idle(&k->r.alloc), k->r.alloc.n_block);
	assert_int_equal(k->r.host.n_free, k->r.host.n_block);
}

static void live(struct soak *k, uint32_t n_step, struct sums *sums)
{
	memset(k, 0, sizeof(*k));
	rig_init(&k->r, random_size());
	k->ahead = 1 + t_below(MAX_AHEAD);
	for (int i = 0; i < MAX_AHEAD; i++)
		assert_int_equal(nsv_step_plan_init(&k->late[i].plan, &k->r.sched), 0);
	for (uint32_t i = 0; i < n_step; i++)
		step(k, sums);
	add_sums(k, sums);
	end_all(k);
	for (int i = 0; i < MAX_AHEAD; i++)
		nsv_step_plan_deinit(&k->late[i].plan);
	rig_deinit(&k->r);
}

static void test_random_loads(void **state)
{
	static struct soak k;
	const char *steps_text = getenv("NANOSERVE_SOAK_STEPS");
	long n_step = steps_text ? atol(steps_text) : getenv("NANOSERVE_QUICK") ? 20000 : 200000;
	struct sums sums = {0};
	(void)state;

	t_seed();
	for (long done = 0; done < n_step; done += N_STEP_EACH)
		live(&k, N_STEP_EACH, &sums);
	print_message(
		"%ld steps, no violation, no block lost\n"
		"tokens from the prefix cache %llu, from leaders %llu; prompt log-probabilities "
		"%llu; preemptions %llu; blocks swapped out %llu, in %llu\n",
		n_step, (unsigned long long)sums.n_hit, (unsigned long long)sums.n_fork,
		(unsigned long long)sums.n_lp, (unsigned long long)sums.n_preempt,
		(unsigned long long)sums.n_swap_out, (unsigned long long)sums.n_swap_in);
	assert_true(sums.n_hit && sums.n_fork && sums.n_preempt && sums.n_swap_out &&
		    sums.n_swap_in && sums.n_lp && sums.n_passed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_loads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
