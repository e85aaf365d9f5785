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
	rig_until_preempted(&r);
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

/* Three users who ask again as soon as they are answered, and one with a queue: the queue moves,
 * and each user gets his share. */
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
		cmocka_unit_test(test_resumed),
		cmocka_unit_test(test_waste),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
