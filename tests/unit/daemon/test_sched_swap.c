/* The scheduler with a host tier: what is preempted is swapped out, and comes back. */
#include "tests/unit/daemon/sched_rig.h"

/* Two sequences in a pool for one: the second has just been preempted. */
static void init_preempted(struct rig *r, struct rig_size size)
{
	rig_init(r, size);
	rig_number_tokens(r);
	r->sched.watermark = 0;
	rig_add(r, 0, 8);
	rig_add(r, 1, 14);
	rig_until_preempted(r);
}

static void test_swapped_out_and_in(void **state)
{
	struct rig r;
	(void)state;

	init_preempted(&r, (struct rig_size){7, 4, 32, false});
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

	init_preempted(&r, (struct rig_size){7, 3, 32, false});
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

	init_preempted(&r, (struct rig_size){8, 8, 32, true});
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

	init_preempted(&r, (struct rig_size){7, 6, 32, false});
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
	rig_until_preempted(&r);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_swapped_out_and_in),
		cmocka_unit_test(test_no_room_to_swap),
		cmocka_unit_test(test_hits_first_then_swaps),
		cmocka_unit_test(test_removed_while_swapped_out),
		cmocka_unit_test(test_resumes_with_room_to_go_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
