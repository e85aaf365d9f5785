/* The scheduler without a model: its rules, one by one. */
#include "tests/tools/rnd.h"
#include "tests/unit/daemon/sched_rig.h"

static void test_prefill_then_decode(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){32, 0, 8, false});
	rig_add(&r, 0, 11);
	rig_step(&r);
	assert_int_equal(r.plan.n_item, 1);
	assert_int_equal(r.plan.items[0].n_row, 8);
	assert_false(r.plan.items[0].sample);
	rig_step(&r);
	assert_int_equal(r.plan.items[0].n_past, 8);
	assert_int_equal(r.plan.items[0].n_row, 3);
	assert_true(r.plan.items[0].sample);
	rig_step(&r);
	assert_int_equal(r.plan.items[0].n_past, 11);
	assert_int_equal(r.plan.items[0].n_row, 1);
	nsv_sched_remove(&r.sched, 0);
	assert_int_equal(r.alloc.n_free, 32);
	rig_deinit(&r);
}

static void test_decode_goes_on_beside_a_long_prompt(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){128, 0, 16, false});
	r.sched.mixed_tokens = 4;
	rig_add(&r, 0, 3);
	rig_step(&r);
	rig_add(&r, 1, 100);
	for (int i = 0; i < 20; i++) {
		rig_step(&r);
		assert_int_equal(r.plan.items[0].seq, 0);
		assert_int_equal(r.plan.items[0].n_row, 1);
		assert_true(r.plan.n_row <= 1 + 4);
	}
	rig_deinit(&r);
}

static void test_the_youngest_is_preempted(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){6, 0, 32, false});
	r.sched.watermark = 0;
	rig_add(&r, 0, 8);
	rig_add(&r, 1, 12);
	rig_step(&r); /* 2 + 3 blocks; both full, one block is left */
	assert_int_equal(r.plan.n_item, 2);
	rig_step(&r);
	assert_int_equal(r.plan.n_preempted, 1);
	assert_int_equal(r.plan.preempted[0], 1);
	assert_int_equal(r.sched.seqs[0].where, NSV_SCHED_RUNNING);
	assert_int_equal(r.sched.seqs[1].n_past, 0);
	rig_deinit(&r);
}

static void test_a_paused_one_gives_way_first(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){6, 0, 16, false});
	r.sched.watermark = 0;
	rig_add(&r, 0, 12);
	rig_add(&r, 1, 8);
	rig_step(&r);
	nsv_sched_pause(&r.sched, 0, true);
	for (int i = 0; i < 8; i++)
		rig_step(&r);
	assert_int_equal(r.sched.seqs[0].where, NSV_SCHED_WAITING);
	assert_int_equal(r.sched.seqs[1].where, NSV_SCHED_RUNNING);
	nsv_sched_pause(&r.sched, 0, false);
	nsv_sched_remove(&r.sched, 1);
	rig_step(&r);
	assert_int_equal(r.plan.items[0].seq, 0);
	rig_deinit(&r);
}

static void test_a_paused_one_gives_back(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){20, 0, 32, false});
	rig_add(&r, 0, 12);
	rig_add(&r, 1, 8);
	rig_step(&r);
	nsv_sched_give_back(&r.sched, 1); /* it is not paused: nothing is asked of it */
	rig_step(&r);
	assert_int_equal(r.sched.seqs[1].where, NSV_SCHED_RUNNING);
	nsv_sched_pause(&r.sched, 0, true);
	nsv_sched_give_back(&r.sched, 0);
	nsv_sched_pause(&r.sched, 0, false); /* it goes on before the next plan */
	rig_step(&r);
	assert_int_equal(r.sched.seqs[0].where, NSV_SCHED_RUNNING);
	nsv_sched_pause(&r.sched, 0, true);
	rig_step(&r);
	assert_int_equal(r.sched.seqs[0].where, NSV_SCHED_RUNNING);
	nsv_sched_give_back(&r.sched, 0);
	rig_step(&r);
	assert_int_equal(r.sched.seqs[0].where, NSV_SCHED_WAITING);
	assert_int_equal(r.sched.seqs[0].table.n, 0);
	assert_int_equal(r.sched.seqs[1].where, NSV_SCHED_RUNNING);
	rig_step(&r); /* paused, it is not admitted */
	assert_int_equal(r.sched.seqs[0].where, NSV_SCHED_WAITING);
	nsv_sched_pause(&r.sched, 0, false);
	rig_step(&r);
	assert_int_equal(r.sched.seqs[0].where, NSV_SCHED_RUNNING);
	rig_deinit(&r);
}

static void test_first_come_first_served(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){10, 0, 64, false});
	rig_add(&r, 0, 16);
	rig_add(&r, 1, 30); /* does not fit beside 0 */
	rig_add(&r, 2, 4);  /* would, but came later */
	rig_step(&r);
	assert_int_equal(r.plan.n_item, 1);
	assert_int_equal(r.sched.n_wait, 2);
	nsv_sched_remove(&r.sched, 0);
	rig_step(&r);
	assert_int_equal(r.plan.items[0].seq, 1);
	rig_deinit(&r);
}

static void test_audit_sees_damage(void **state)
{
	struct rig r;
	struct nsv_err err;
	(void)state;

	rig_init(&r, (struct rig_size){16, 0, 16, false});
	rig_add(&r, 0, 10);
	rig_step(&r);
	r.seqs[0].blocks[1] = r.seqs[0].blocks[0];
	assert_int_equal(nsv_sched_audit(&r.sched, &err), -EUCLEAN);
	r.seqs[0].blocks[1] = 16;
	assert_int_equal(nsv_sched_audit(&r.sched, &err), -EUCLEAN);
	rig_deinit(&r);
}

static void expect_damage(const struct rig *r, const char *says)
{
	struct nsv_err err = {""};

	assert_int_equal(nsv_sched_audit(&r->sched, &err), -EUCLEAN);
	if (!strstr(err.text, says))
		fail_msg("\"%s\" lacks \"%s\"", err.text, says);
}

static void test_audit_sees_damage_of_swaps_and_forks(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){7, 6, 32, false});
	r.sched.watermark = 0;
	rig_add(&r, 0, 8);
	rig_add(&r, 1, 14);
	while (r.plan.n_preempted == 0)
		rig_step(&r);
	struct nsv_sched_seq *q = &r.sched.seqs[1], right = *q;
	q->n_host_token += BLOCK;
	expect_damage(&r, "blocks of the host tier");
	*q = right;
	q->host_first = 6;
	expect_damage(&r, "holds block 6 of 6 of the host tier");
	*q = right;
	q->n_host = q->n_host_token = 0;
	expect_damage(&r, "of the host tier: 0 holders, 1 references");
	*q = right;
	r.sched.seqs[0].leader = 1;
	expect_damage(&r, "has leader 1 still");
	r.sched.seqs[0].leader = NSV_SCHED_NO_LEADER;
	rig_fork(&r, 2, 0, 8);
	r.sched.seqs[2].tag = 0;
	r.sched.wait[0] = 2;
	r.sched.wait[1] = 1;
	r.sched.seqs[2].arrival = 0;
	expect_damage(&r, "goes before its leader");
	rig_deinit(&r);
}

/* A block that nobody has, one of the host tier, and one that is held twice and counted once. */
static void test_repair(void **state)
{
	struct rig r;
	struct nsv_err err;
	int32_t lost, lost_host;
	uint32_t n = 0;
	(void)state;

	rig_init(&r, (struct rig_size){16, 6, 32, true});
	rig_add(&r, 0, 10);
	rig_step(&r);
	uint32_t n_free = r.alloc.n_free;
	assert_int_equal(nsv_block_get(&r.alloc, &lost), 0);
	assert_int_equal(nsv_block_get(&r.host, &lost_host), 0);
	assert_int_equal(nsv_block_unref(&r.alloc, r.seqs[0].blocks[2]), 1);
	assert_int_equal(nsv_sched_audit(&r.sched, &err), -EUCLEAN);
	assert_int_equal(nsv_sched_repair(&r.sched, &n, &err), 0);
	assert_int_equal(n, 3);
	rig_audit(&r);
	assert_int_equal(r.alloc.n_free, n_free);
	assert_int_equal(r.host.n_free, 6);
	rig_step(&r);
	assert_int_equal(nsv_sched_repair(&r.sched, &n, &err), 0);
	assert_int_equal(n, 0);
	r.seqs[0].blocks[1] = 16; /* no place to count for */
	assert_int_equal(nsv_sched_repair(&r.sched, &n, &err), -EUCLEAN);
	rig_deinit(&r);
}

/* ---- Users */

static void test_a_flood_waits_behind_another_user(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){12, 0, 64, false});
	for (uint32_t i = 0; i < 20; i++) {
		r.seqs[i].user = 1;
		rig_add(&r, i, 16);
	}
	rig_step(&r); /* two of the flood run */
	assert_int_equal(r.sched.n_run, 2);
	r.seqs[20].user = 2;
	rig_add(&r, 20, 16);
	nsv_sched_remove(&r.sched, 0);
	rig_step(&r);
	assert_int_equal(r.sched.seqs[20].where, NSV_SCHED_RUNNING);
	rig_deinit(&r);
}

/* Three users who ask again as soon as they are answered, and one with a queue: the queue moves, and
 * each user gets his share. */
static void test_nobody_starves(void **state)
{
	struct rig r;
	uint64_t served[4] = {0};
	uint32_t left = 10;
	(void)state;

	rig_init(&r, (struct rig_size){10, 0, 64, false});
	for (uint32_t i = 0; i < 13; i++) {
		r.seqs[i].user = i < 10 ? 0 : i - 9;
		rig_add(&r, i, 16);
	}
	for (int n = 0; left > 0; n++) {
		assert_true(n < 10 * 4 * 12); /* requests of the queue, users, steps a request */
		rig_step(&r);
		for (uint32_t i = 0; i < 13; i++) {
			const struct nsv_sched_seq *q = &r.sched.seqs[i];
			if (!q->where || q->n_token < 24)
				continue;
			nsv_sched_remove(&r.sched, i);
			served[r.seqs[i].user] += 24;
			if (i < 10)
				left--;
			else
				rig_add(&r, i, 16);
		}
	}
	for (int u = 1; u < 4; u++)
		assert_in_range(served[u], served[0] / 2, served[0] * 2);
	rig_deinit(&r);
}

/* ---- The prefix cache */

static void run_to_end(struct rig *r, uint32_t seq, uint32_t n_token)
{
	while (r->sched.seqs[seq].where && r->sched.seqs[seq].n_token < n_token)
		rig_step(r);
	nsv_sched_remove(&r->sched, seq);
}

static void test_the_next_turn_computes_what_is_new(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){32, 0, 64, true});
	for (int i = 0; i < CAP * BLOCK; i++)
		for (int seq = 0; seq < 4; seq++)
			r.seqs[seq].tokens[i] = i;
	rig_add(&r, 0, 18);
	run_to_end(&r, 0, 19);
	rig_add(&r, 1, 30); /* its first 18 are known: 4 blocks of 4 */
	rig_step(&r);
	assert_int_equal(r.plan.items[0].n_past, 16);
	nsv_sched_remove(&r.sched, 1);
	r.seqs[2].tokens[10] = -1; /* parts in the middle of the third block */
	rig_add(&r, 2, 20);
	rig_step(&r);
	assert_int_equal(r.plan.items[0].n_past, 10);
	assert_int_equal(r.plan.n_copy, 1);
	nsv_sched_remove(&r.sched, 2);
	r.seqs[3].domain = 1;
	rig_add(&r, 3, 18);
	rig_step(&r);
	assert_int_equal(r.plan.items[0].n_past, 0);
	nsv_sched_remove(&r.sched, 3);
	rig_add(&r, 0, 16); /* all known: the last token is computed all the same */
	rig_step(&r);
	assert_int_equal(r.plan.items[0].n_past, 15);
	assert_true(r.plan.items[0].sample);
	nsv_sched_remove(&r.sched, 0);
	rig_audit(&r);
	assert_int_equal(r.alloc.n_free + nsv_block_n_idle(&r.alloc), 32);
	rig_deinit(&r);
}

/* The block that is known in part is the last one: its part is computed rather than waited for. */
static void test_a_part_does_not_stand_in_the_way(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){3, 0, 64, true});
	rig_add(&r, 0, 12);
	rig_step(&r);
	nsv_sched_remove(&r.sched, 0);
	assert_int_equal(nsv_block_n_idle(&r.alloc), 3);
	r.seqs[1].tokens[10] = 5;
	rig_add(&r, 1, 12);
	rig_step(&r);
	assert_int_equal(rig_item(&r, 1)->n_past, 8);
	rig_deinit(&r);
}

/* ---- Forks */

static void number_tokens(struct rig *r)
{
	for (uint32_t seq = 0; seq < N_SEQ; seq++)
		for (int32_t i = 0; i < CAP * BLOCK; i++)
			r->seqs[seq].tokens[i] = (int32_t)seq * 1000 + i;
}

static void test_branches_share_the_prompt(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){32, 0, 64, false});
	number_tokens(&r);
	rig_add(&r, 0, 10);
	rig_fork(&r, 1, 0, 10);
	rig_fork(&r, 2, 0, 10);
	r.seqs[5].user = 7;
	rig_add(&r, 5, 6); /* behind them, and not held up */
	rig_step(&r);
	assert_int_equal(r.plan.n_item, 2);
	assert_non_null(rig_item(&r, 5));
	rig_step(&r);
	for (uint32_t seq = 1; seq <= 2; seq++) {
		assert_non_null(rig_item(&r, seq));
		assert_int_equal(rig_item(&r, seq)->n_past, 9);
		assert_true(rig_item(&r, seq)->sample);
		assert_int_equal(r.sched.seqs[seq].n_cached, 9);
		assert_int_equal(r.seqs[seq].blocks[1], r.seqs[0].blocks[1]);
		assert_int_not_equal(r.seqs[seq].blocks[2], r.seqs[0].blocks[2]);
	}
	assert_int_equal(r.plan.n_copy, 2);
	assert_int_equal(nsv_block_n_ref(&r.alloc, r.seqs[0].blocks[0]), 3);
	assert_int_equal(r.alloc.n_free, 32 - 3 - 1 - 1 - 2);
	nsv_sched_remove(&r.sched, 0);
	rig_step(&r); /* the branches go on without it */
	assert_non_null(rig_item(&r, 1));
	nsv_sched_remove(&r.sched, 1);
	nsv_sched_remove(&r.sched, 2);
	nsv_sched_remove(&r.sched, 5);
	assert_int_equal(r.alloc.n_free, 32);
	rig_deinit(&r);
}

static void test_a_running_one_is_forked(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){32, 0, 64, true});
	number_tokens(&r);
	rig_add(&r, 0, 10);
	for (int i = 0; i < 7; i++)
		rig_step(&r);
	rig_fork(&r, 1, 0, r.sched.seqs[0].n_token);
	rig_step(&r);
	assert_int_equal(rig_item(&r, 1)->n_past, 16); /* block for block: nothing to copy */
	assert_int_equal(r.plan.n_copy, 0);
	rig_fork(&r, 2, 0, 7); /* an earlier place */
	rig_step(&r);
	assert_int_equal(rig_item(&r, 2)->n_past, 6);
	assert_int_equal(r.plan.n_copy, 1);
	rig_deinit(&r);
}

/* Gone before it has computed anything; its place may be another's by then. */
static void test_a_leader_that_is_gone(void **state)
{
	(void)state;
	for (int reused = 0; reused < 2; reused++) {
		struct rig r;
		rig_init(&r, (struct rig_size){32, 0, 64, false});
		number_tokens(&r);
		rig_add(&r, 0, 10);
		rig_fork(&r, 1, 0, 10);
		nsv_sched_remove(&r.sched, 0);
		if (reused)
			rig_add(&r, 0, 20);
		rig_step(&r);
		assert_int_equal(rig_item(&r, 1)->n_past, 0);
		rig_step(&r);
		assert_int_equal(r.plan.n_copy, 0);
		rig_deinit(&r);
	}
}

static void test_a_paused_leader_is_not_waited_for(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){32, 0, 4, false});
	number_tokens(&r);
	rig_add(&r, 0, 10);
	rig_fork(&r, 1, 0, 10);
	rig_step(&r);
	assert_null(rig_item(&r, 1));
	nsv_sched_pause(&r.sched, 0, true);
	rig_step(&r);
	assert_int_equal(rig_item(&r, 1)->n_past, 0);
	nsv_sched_pause(&r.sched, 0, false);
	rig_step(&r);
	assert_non_null(rig_item(&r, 0));
	rig_deinit(&r);
}

/* ---- Priorities */

static void add_priority(struct rig *r, uint32_t seq, uint32_t n_token, int32_t priority)
{
	struct nsv_sched_new n = rig_describe(r, seq, n_token);

	n.priority = priority;
	nsv_sched_add(&r->sched, seq, &n);
}

/* Who runs when one after another ends: a pool for one at a time. */
static void expect_order(struct rig *r, const uint32_t *order, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		rig_step(r);
		assert_int_equal(r->sched.n_run, 1);
		assert_int_equal(r->sched.run[0], order[i]);
		nsv_sched_remove(&r->sched, order[i]);
	}
}

static void test_higher_first_then_first_come(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){5, 0, 64, false});
	for (uint32_t i = 10; i < 12; i++)
		r.seqs[i].user = 1;
	add_priority(&r, 0, 12, 0);
	rig_step(&r);               /* runs: nothing passes it */
	add_priority(&r, 10, 12, 0); /* the other user's turns are as they would be */
	add_priority(&r, 1, 12, 0);
	add_priority(&r, 2, 12, 5);
	add_priority(&r, 11, 12, -3);
	add_priority(&r, 3, 12, 5);
	add_priority(&r, 4, 12, -1);
	expect_order(&r, (uint32_t[]){0, 10, 11, 2, 3, 1, 4}, 7);
	rig_deinit(&r);
}

static void test_nobody_is_passed_for_ever(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){5, 0, 64, false});
	add_priority(&r, 0, 12, 0);
	for (uint32_t i = 1; i < N_SEQ; i++)
		add_priority(&r, i, 12, 9);
	for (uint32_t i = 1; i <= NSV_SCHED_MAX_PASSED; i++)
		expect_order(&r, &i, 1);
	expect_order(&r, (uint32_t[]){0, 1 + NSV_SCHED_MAX_PASSED}, 2);
	rig_deinit(&r);
}

/* A follower's priority does not bring it before its leader. */
static void test_a_leader_is_not_passed(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){5, 0, 64, false});
	number_tokens(&r);
	add_priority(&r, 0, 12, 0);
	add_priority(&r, 1, 12, 0);
	memcpy(r.seqs[2].tokens, r.seqs[0].tokens, sizeof(r.seqs[2].tokens));
	struct nsv_sched_new n = rig_describe(&r, 2, 12);
	n.leader = 0;
	n.priority = 3;
	nsv_sched_add(&r.sched, 2, &n);
	expect_order(&r, (uint32_t[]){0, 2, 1}, 3);
	rig_deinit(&r);
}

/* ---- Log-probabilities of the prompt */

static void add_lp(struct rig *r, uint32_t seq, uint32_t n_token)
{
	struct nsv_sched_new n = rig_describe(r, seq, n_token);

	n.lp_to = n_token - 1;
	nsv_sched_add(&r->sched, seq, &n);
}

static void test_lp_rows_a_step(void **state)
{
	struct rig r;
	uint32_t next[2] = {0};
	(void)state;

	rig_init(&r, (struct rig_size){64, 0, 100, false});
	for (uint32_t seq = 0; seq < 2; seq++) {
		add_lp(&r, seq, 80);
		nsv_sched_set_lp_room(&r.sched, seq, 1000);
	}
	while (next[0] + next[1] < 2 * 79) {
		rig_step(&r);
		assert_in_range(r.plan.n_lp, 1, NSV_SCHED_LP_ROWS);
		for (uint32_t i = 0; i < r.plan.n_item; i++) {
			const struct nsv_plan_item *item = &r.plan.items[i];
			assert_false(item->n_lp > 0 && item->sample);
			if (item->n_lp > 0)
				assert_int_equal(item->n_past + item->n_row - item->n_lp,
					next[item->seq]);
			next[item->seq] += item->n_lp;
		}
	}
	rig_step(&r);
	assert_true(rig_item(&r, 1)->sample);
	assert_int_equal(r.plan.n_lp, 0);
	rig_deinit(&r);
}

static void test_lp_rows_wait_for_room(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){64, 0, 100, false});
	add_lp(&r, 0, 40);
	nsv_sched_plan(&r.sched, &r.plan); /* nothing has been said of room */
	assert_int_equal(r.plan.n_item, 0);
	nsv_sched_set_lp_room(&r.sched, 0, 7);
	nsv_sched_plan(&r.sched, &r.plan);
	assert_int_equal(r.plan.items[0].n_lp, 7);
	struct nsv_plan_item first = r.plan.items[0];
	nsv_sched_plan(&r.sched, &r.plan); /* it is all under way */
	assert_int_equal(r.plan.n_item, 0);
	assert_int_equal(nsv_sched_computed(&r.sched, &first), 0);
	nsv_sched_set_lp_room(&r.sched, 0, 3);
	nsv_sched_plan(&r.sched, &r.plan);
	assert_int_equal(r.plan.items[0].n_past, 7);
	assert_int_equal(r.plan.items[0].n_lp, 3);
	rig_deinit(&r);
}

static void test_lp_rows_come_once(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){16, 0, 20, false});
	r.sched.watermark = 0;
	rig_add(&r, 1, 30);
	rig_step(&r);
	rig_step(&r); /* 8 blocks, and it decodes */
	add_lp(&r, 0, 30);
	nsv_sched_set_lp_room(&r.sched, 0, 100);
	rig_step(&r);
	uint32_t n = rig_item(&r, 0)->n_lp;
	assert_true(n > 0);
	while (r.plan.n_preempted == 0)
		rig_step(&r);
	uint32_t from = r.sched.seqs[0].lp_from;
	assert_true(from >= n);
	nsv_sched_remove(&r.sched, 1);
	rig_step(&r);
	assert_int_equal(rig_item(&r, 0)->n_past, 0);
	assert_int_equal(rig_item(&r, 0)->n_lp, r.plan.n_row > from ? r.plan.n_row - from : 0);
	rig_deinit(&r);
}

static void test_lp_rows_bypass_the_cache(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){32, 0, 64, true});
	rig_add(&r, 0, 20);
	rig_step(&r);
	add_lp(&r, 1, 20);
	nsv_sched_set_lp_room(&r.sched, 1, 100);
	rig_step(&r);
	assert_int_equal(rig_item(&r, 1)->n_past, 0);
	assert_int_equal(rig_item(&r, 1)->n_lp, 19);
	rig_deinit(&r);
}

/* ---- The host tier */

static void test_swapped_out_and_in(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){7, 4, 32, false});
	number_tokens(&r);
	r.sched.watermark = 0;
	rig_add(&r, 0, 8);
	rig_add(&r, 1, 14);
	while (r.plan.n_preempted == 0)
		rig_step(&r);
	assert_int_equal(r.plan.n_swap_out, 4);
	uint32_t n_done = r.sched.seqs[1].n_host_token;
	assert_in_range(n_done, 14, 16);
	assert_int_equal(r.host.n_free, 0);
	nsv_sched_remove(&r.sched, 0);
	rig_step(&r);
	assert_int_equal(r.plan.n_swap_in, 4);
	assert_int_equal(rig_item(&r, 1)->n_past, n_done);
	assert_int_equal(rig_item(&r, 1)->n_row, 1);
	assert_int_equal(r.host.n_free, 4);
	assert_int_equal(r.sched.n_swap_in, 4);
	rig_deinit(&r);
}

static void test_no_room_to_swap(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){7, 3, 32, false});
	number_tokens(&r);
	r.sched.watermark = 0;
	rig_add(&r, 0, 8);
	rig_add(&r, 1, 14);
	while (r.plan.n_preempted == 0)
		rig_step(&r);
	assert_int_equal(r.plan.n_swap_out, 0);
	nsv_sched_remove(&r.sched, 0);
	rig_step(&r);
	assert_int_equal(rig_item(&r, 1)->n_past, 0);
	rig_deinit(&r);
}

/* What the prefix cache still has is not swapped in. */
static void test_hits_first_then_swaps(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){8, 8, 32, true});
	number_tokens(&r);
	r.sched.watermark = 0;
	rig_add(&r, 0, 8);
	rig_add(&r, 1, 14);
	while (r.plan.n_preempted == 0)
		rig_step(&r);
	uint32_t n_host = r.sched.seqs[1].n_host;
	assert_int_equal(n_host, r.plan.n_swap_out);
	nsv_sched_remove(&r.sched, 0);
	rig_step(&r);
	assert_true(r.plan.n_swap_in > 0);
	assert_true(r.plan.n_swap_in < n_host);
	assert_int_equal(rig_item(&r, 1)->n_row, 1);
	assert_int_equal(r.host.n_free, 8);
	rig_deinit(&r);
}

static void test_removed_while_swapped_out(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){7, 6, 32, false});
	r.sched.watermark = 0;
	rig_add(&r, 0, 8);
	rig_add(&r, 1, 14);
	while (r.plan.n_preempted == 0)
		rig_step(&r);
	assert_int_equal(r.host.n_free, 2);
	nsv_sched_remove(&r.sched, 1);
	rig_audit(&r);
	assert_int_equal(r.host.n_free, 6);
	rig_deinit(&r);
}

/* It is not admitted again into the last block, only to lose all at the next token. */
static void test_resumes_with_room_to_go_on(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){12, 0, 64, false});
	r.sched.watermark = 0;
	rig_add(&r, 0, 20);
	rig_add(&r, 1, 20);
	while (r.plan.n_preempted == 0)
		rig_step(&r);
	uint32_t n_token = r.sched.seqs[1].n_token;
	rig_add(&r, 2, 1); /* behind it */
	for (int i = 0; i < 3; i++)
		rig_step(&r);
	assert_int_equal(r.sched.n_wait, 2);
	nsv_sched_remove(&r.sched, 0);
	rig_step(&r);
	assert_int_equal(rig_item(&r, 1)->n_row, n_token);
	rig_deinit(&r);
}

/* ---- Taken over from another daemon */

static void test_resumed(void **state)
{
	struct rig r;
	int32_t block = -1;
	(void)state;

	rig_init(&r, (struct rig_size){8, 0, 64, true});
	rig_add(&r, 0, 10);
	for (int i = 0; i < 3; i++) {
		nsv_block_get(&r.alloc, &block);
		r.seqs[0].blocks[i] = block;
		for (uint32_t pos = 0; pos < BLOCK; pos++)
			*rig_slot(&r, 0, (uint32_t)i * BLOCK + pos) = 0;
	}
	uint64_t hash = 0;
	for (uint32_t pos = 0; pos < 6; pos++)
		*rig_slot(&r, 0, pos) = hash = rig_mix(hash, 0);
	assert_int_equal(nsv_sched_resume(&r.sched, 0, 3, 6), 0);
	rig_audit(&r);
	assert_int_equal(r.alloc.n_free, 6); /* the third held nothing yet */
	rig_step(&r);
	assert_int_equal(rig_item(&r, 0)->n_past, 6);
	assert_int_equal(rig_item(&r, 0)->n_row, 4);
	rig_deinit(&r);
}

/* ---- Memory */

#define W_SEQ 64
#define W_TOKEN 512
#define W_BLOCK 16

/* Less than a block a sequence is held for nothing, and under 4 % at 512 tokens each. */
static void test_waste(void **state)
{
	static int32_t blocks[W_SEQ][W_TOKEN / W_BLOCK + 2];
	struct nsv_block_alloc alloc;
	struct nsv_sched s;
	struct nsv_step_plan plan;
	uint64_t most = 0, waste = 0;
	(void)state;

	t_seed();
	assert_int_equal(nsv_block_alloc_init(&alloc, W_SEQ * (W_TOKEN / W_BLOCK + 2)), 0);
	assert_int_equal(nsv_sched_init(&s, &alloc, NULL, NULL, W_SEQ, W_BLOCK, 512), 0);
	assert_int_equal(nsv_step_plan_init(&plan, &s), 0);
	for (uint32_t i = 0; i < W_SEQ; i++)
		nsv_sched_add(&s, i,
			&(struct nsv_sched_new){.n_token = 1 + t_below(W_TOKEN),
				.max_token = W_TOKEN + 16 + 1,
				.arrival = i,
				.blocks = blocks[i],
				.cap = W_TOKEN / W_BLOCK + 2,
				.leader = NSV_SCHED_NO_LEADER});
	for (bool all = false; !all;) {
		nsv_sched_plan(&s, &plan);
		all = s.n_run == W_SEQ;
		for (uint32_t i = 0; i < plan.n_item; i++)
			if (plan.items[i].sample)
				nsv_sched_known(&s, plan.items[i].seq);
		for (uint32_t i = 0; i < s.n_run; i++) {
			const struct nsv_sched_seq *q = &s.seqs[s.run[i]];
			all &= q->n_past >= W_TOKEN;
			assert_true(q->table.n * W_BLOCK - q->n_past < W_BLOCK);
			/* those that are far ahead wait, so that all have about as many */
			nsv_sched_pause(&s, s.run[i], q->n_past >= W_TOKEN + s.run[i] % 16);
		}
		waste = nsv_sched_waste(&s);
		most = nsv_max_u64(most, waste);
	}
	uint64_t slots = (uint64_t)(alloc.n_block - alloc.n_free) * W_BLOCK;
	print_message("%u sequences of %u tokens: %llu of %llu slots wasted\n", W_SEQ, W_TOKEN,
		(unsigned long long)waste, (unsigned long long)slots);
	assert_true(most < W_SEQ * W_BLOCK);
	assert_true(waste * 100 < slots * 4);
	nsv_step_plan_deinit(&plan);
	nsv_sched_deinit(&s);
	nsv_block_alloc_deinit(&alloc);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_prefill_then_decode),
		cmocka_unit_test(test_decode_goes_on_beside_a_long_prompt),
		cmocka_unit_test(test_the_youngest_is_preempted),
		cmocka_unit_test(test_a_paused_one_gives_way_first),
		cmocka_unit_test(test_a_paused_one_gives_back),
		cmocka_unit_test(test_first_come_first_served),
		cmocka_unit_test(test_audit_sees_damage),
		cmocka_unit_test(test_audit_sees_damage_of_swaps_and_forks),
		cmocka_unit_test(test_repair),
		cmocka_unit_test(test_a_flood_waits_behind_another_user),
		cmocka_unit_test(test_nobody_starves),
		cmocka_unit_test(test_the_next_turn_computes_what_is_new),
		cmocka_unit_test(test_a_part_does_not_stand_in_the_way),
		cmocka_unit_test(test_branches_share_the_prompt),
		cmocka_unit_test(test_a_running_one_is_forked),
		cmocka_unit_test(test_a_leader_that_is_gone),
		cmocka_unit_test(test_a_paused_leader_is_not_waited_for),
		cmocka_unit_test(test_higher_first_then_first_come),
		cmocka_unit_test(test_nobody_is_passed_for_ever),
		cmocka_unit_test(test_a_leader_is_not_passed),
		cmocka_unit_test(test_lp_rows_a_step),
		cmocka_unit_test(test_lp_rows_wait_for_room),
		cmocka_unit_test(test_lp_rows_come_once),
		cmocka_unit_test(test_lp_rows_bypass_the_cache),
		cmocka_unit_test(test_swapped_out_and_in),
		cmocka_unit_test(test_no_room_to_swap),
		cmocka_unit_test(test_hits_first_then_swaps),
		cmocka_unit_test(test_removed_while_swapped_out),
		cmocka_unit_test(test_resumes_with_room_to_go_on),
		cmocka_unit_test(test_resumed),
		cmocka_unit_test(test_waste),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
