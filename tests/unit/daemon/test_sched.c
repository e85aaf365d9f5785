/* The scheduler without a model: rules one by one, then random loads with an audit after every step. */
#include "daemon/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define N_SEQ 32
#define CAP 64
#define BLOCK 4

struct bench {
	struct nsv_block_alloc alloc;
	struct nsv_sched sched;
	struct nsv_step_plan plan;
	int32_t blocks[N_SEQ][CAP];
	uint64_t arrivals;
};

static void bench_init(struct bench *b, uint32_t n_block, uint32_t batch)
{
	memset(b, 0, sizeof(*b));
	assert_int_equal(nsv_block_alloc_init(&b->alloc, n_block), 0);
	assert_int_equal(nsv_sched_init(&b->sched, &b->alloc, N_SEQ, BLOCK, batch), 0);
	assert_int_equal(nsv_step_plan_init(&b->plan, N_SEQ), 0);
}

static void bench_deinit(struct bench *b)
{
	nsv_step_plan_deinit(&b->plan);
	nsv_sched_deinit(&b->sched);
	nsv_block_alloc_deinit(&b->alloc);
}

static void add(struct bench *b, uint32_t seq, uint32_t n_token)
{
	nsv_sched_add(&b->sched, seq, n_token, ++b->arrivals, b->blocks[seq], CAP);
}

static void audit(struct bench *b)
{
	struct nsv_err err = {""};

	if (nsv_sched_audit(&b->sched, &err) != 0)
		fail_msg("%s", err.text);
}

static void step(struct bench *b)
{
	nsv_sched_plan(&b->sched, &b->plan);
	for (uint32_t i = 0; i < b->plan.n_item; i++)
		if (b->plan.items[i].sample)
			nsv_sched_grow(&b->sched, b->plan.items[i].seq);
	audit(b);
}

static void test_prefill_then_decode(void **state)
{
	struct bench b;
	(void)state;

	bench_init(&b, 32, 8);
	add(&b, 0, 11);
	step(&b);
	assert_int_equal(b.plan.n_item, 1);
	assert_int_equal(b.plan.items[0].n_row, 8);
	assert_false(b.plan.items[0].sample);
	step(&b);
	assert_int_equal(b.plan.items[0].n_past, 8);
	assert_int_equal(b.plan.items[0].n_row, 3);
	assert_true(b.plan.items[0].sample);
	step(&b);
	assert_int_equal(b.plan.items[0].n_past, 11);
	assert_int_equal(b.plan.items[0].n_row, 1);
	nsv_sched_remove(&b.sched, 0);
	assert_int_equal(b.alloc.n_free, 32);
	bench_deinit(&b);
}

static void test_decode_goes_on_beside_a_long_prompt(void **state)
{
	struct bench b;
	(void)state;

	bench_init(&b, 128, 16);
	b.sched.mixed_tokens = 4;
	add(&b, 0, 3);
	step(&b);
	add(&b, 1, 100);
	for (int i = 0; i < 20; i++) {
		step(&b);
		assert_int_equal(b.plan.items[0].seq, 0);
		assert_int_equal(b.plan.items[0].n_row, 1);
		assert_true(b.plan.n_row <= 1 + 4);
	}
	bench_deinit(&b);
}

static void test_the_youngest_is_preempted(void **state)
{
	struct bench b;
	(void)state;

	bench_init(&b, 6, 32);
	b.sched.watermark = 0;
	add(&b, 0, 8);
	add(&b, 1, 12);
	step(&b); /* 2 + 3 blocks; both full, one block is left */
	assert_int_equal(b.plan.n_item, 2);
	step(&b);
	assert_int_equal(b.plan.n_preempted, 1);
	assert_int_equal(b.plan.preempted[0], 1);
	assert_int_equal(b.sched.seqs[0].where, NSV_SCHED_RUNNING);
	assert_int_equal(b.sched.seqs[1].n_past, 0);
	bench_deinit(&b);
}

static void test_a_paused_one_gives_way_first(void **state)
{
	struct bench b;
	(void)state;

	bench_init(&b, 6, 16);
	b.sched.watermark = 0;
	add(&b, 0, 12);
	add(&b, 1, 8);
	step(&b);
	nsv_sched_pause(&b.sched, 0, true);
	for (int i = 0; i < 8; i++)
		step(&b);
	assert_int_equal(b.sched.seqs[0].where, NSV_SCHED_WAITING);
	assert_int_equal(b.sched.seqs[1].where, NSV_SCHED_RUNNING);
	nsv_sched_pause(&b.sched, 0, false);
	nsv_sched_remove(&b.sched, 1);
	step(&b);
	assert_int_equal(b.plan.items[0].seq, 0);
	bench_deinit(&b);
}

static void test_first_come_first_served(void **state)
{
	struct bench b;
	(void)state;

	bench_init(&b, 10, 64);
	add(&b, 0, 16);
	add(&b, 1, 30); /* does not fit beside 0 */
	add(&b, 2, 4);  /* would, but came later */
	step(&b);
	assert_int_equal(b.plan.n_item, 1);
	assert_int_equal(b.sched.n_wait, 2);
	nsv_sched_remove(&b.sched, 0);
	step(&b);
	assert_int_equal(b.plan.items[0].seq, 1);
	bench_deinit(&b);
}

static void test_audit_sees_damage(void **state)
{
	struct bench b;
	struct nsv_err err;
	(void)state;

	bench_init(&b, 16, 16);
	add(&b, 0, 10);
	step(&b);
	b.blocks[0][1] = b.blocks[0][0];
	assert_int_equal(nsv_sched_audit(&b.sched, &err), -EUCLEAN);
	b.blocks[0][1] = 16;
	assert_int_equal(nsv_sched_audit(&b.sched, &err), -EUCLEAN);
	bench_deinit(&b);
}

/* ---- Random loads */

static uint64_t rng;

static uint32_t rnd(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)(rng % n);
}

struct soak {
	uint32_t end[N_SEQ]; /* tokens at which it ends; 0: absent */
};

static void random_event(struct bench *b, struct soak *k)
{
	uint32_t seq = rnd(N_SEQ);

	if (!k->end[seq]) {
		uint32_t n_prompt = 1 + rnd(40);
		uint32_t end = n_prompt + 1 + rnd(30);
		if (!nsv_sched_fits(&b->sched, end))
			return;
		k->end[seq] = end;
		add(b, seq, n_prompt);
	} else if (rnd(8) == 0) {
		nsv_sched_remove(&b->sched, seq);
		k->end[seq] = 0;
	} else {
		nsv_sched_pause(&b->sched, seq, rnd(4) == 0);
	}
}

/* The oldest that is not paused has moved: the progress that rule 3 promises. */
static void plan_with_progress(struct bench *b)
{
	uint32_t oldest = N_SEQ;

	for (uint32_t i = 0; i < N_SEQ; i++) {
		const struct nsv_sched_seq *q = &b->sched.seqs[i];
		if (q->where && !q->paused &&
			(oldest == N_SEQ || q->arrival < b->sched.seqs[oldest].arrival))
			oldest = i;
	}
	nsv_sched_plan(&b->sched, &b->plan);
	if (oldest == N_SEQ)
		return;
	for (uint32_t i = 0; i < b->plan.n_item; i++)
		if (b->plan.items[i].seq == oldest)
			return;
	fail_msg("the oldest, %u, did not move", oldest);
}

static void finish_step(struct bench *b, struct soak *k)
{
	for (uint32_t i = 0; i < b->plan.n_item; i++) {
		uint32_t seq = b->plan.items[i].seq;
		if (!b->plan.items[i].sample)
			continue;
		nsv_sched_grow(&b->sched, seq);
		if (b->sched.seqs[seq].n_token < k->end[seq])
			continue;
		nsv_sched_remove(&b->sched, seq);
		k->end[seq] = 0;
	}
}

static void test_random_loads(void **state)
{
	const char *steps_text = getenv("NANOSERVE_SOAK_STEPS");
	long n_step = steps_text ? atol(steps_text) : 200000;
	uint64_t seed = (uint64_t)time(NULL) * 2654435761u + 1;
	(void)state;

	print_message("seed %llu, %ld steps\n", (unsigned long long)seed, n_step);
	rng = seed;
	for (long done = 0; done < n_step;) {
		struct bench b;
		struct soak k = {{0}};
		bench_init(&b, 18 + rnd(80), 1 + rnd(60));
		for (int i = 0; i < 2000; i++, done++) {
			for (uint32_t n = rnd(3); n > 0; n--)
				random_event(&b, &k);
			plan_with_progress(&b);
			finish_step(&b, &k);
			audit(&b);
		}
		for (uint32_t i = 0; i < N_SEQ; i++)
			if (k.end[i])
				nsv_sched_remove(&b.sched, i);
		assert_int_equal(b.alloc.n_free, b.alloc.n_block);
		bench_deinit(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_prefill_then_decode),
		cmocka_unit_test(test_decode_goes_on_beside_a_long_prompt),
		cmocka_unit_test(test_the_youngest_is_preempted),
		cmocka_unit_test(test_a_paused_one_gives_way_first),
		cmocka_unit_test(test_first_come_first_served),
		cmocka_unit_test(test_audit_sees_damage),
		cmocka_unit_test(test_random_loads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
