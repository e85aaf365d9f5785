/* What requests may ask of the scheduler: forks, priorities, log-probabilities of the prompt. */
#include "tests/unit/daemon/sched_rig.h"

/* ---- Forks */

static void test_branches_share_the_prompt(void **state)
{
	struct rig r;
	(void)state;

	rig_init(&r, (struct rig_size){32, 0, 64, false});
	rig_number_tokens(&r);
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
	rig_number_tokens(&r);
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
		rig_number_tokens(&r);
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
	rig_number_tokens(&r);
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
	rig_number_tokens(&r);
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
	rig_until_preempted(&r);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
