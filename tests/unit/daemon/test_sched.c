/* The scheduler without a model: rules one by one, then random loads with an audit after every step. */
#include "daemon/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/tools/rnd.h"

#define N_SEQ 32
#define CAP 64
#define BLOCK 4
#define MAX_BLOCK 128

struct bench {
	struct nsv_block_alloc alloc;
	struct nsv_prefix_tree tree;
	struct nsv_sched sched;
	struct nsv_step_plan plan;
	int32_t blocks[N_SEQ][CAP];
	int32_t tokens[N_SEQ][CAP * BLOCK];
	uint64_t arrivals;
	/* What a model would have left in the pool: a slot's value depends on all tokens so far. */
	uint64_t content[MAX_BLOCK][BLOCK];
};

static void bench_init_with(struct bench *b, uint32_t n_block, uint32_t batch, bool with_tree)
{
	static const struct nsv_prefix_key secret;

	memset(b, 0, sizeof(*b));
	assert_int_equal(nsv_block_alloc_init(&b->alloc, n_block), 0);
	if (with_tree)
		assert_int_equal(nsv_prefix_tree_init(&b->tree, &b->alloc, BLOCK, 1, &secret), 0);
	assert_int_equal(
		nsv_sched_init(&b->sched, &b->alloc, NULL, with_tree ? &b->tree : NULL, N_SEQ, BLOCK, batch), 0);
	assert_int_equal(nsv_step_plan_init(&b->plan, &b->sched), 0);
}

static void bench_init(struct bench *b, uint32_t n_block, uint32_t batch)
{
	bench_init_with(b, n_block, batch, false);
}

static void bench_deinit(struct bench *b)
{
	nsv_step_plan_deinit(&b->plan);
	nsv_sched_deinit(&b->sched);
	nsv_prefix_tree_deinit(&b->tree);
	nsv_block_alloc_deinit(&b->alloc);
}

static uint32_t max_token[N_SEQ]; /* 0: no limit */
static uint32_t user_of[N_SEQ];

static struct nsv_sched_new describe(struct bench *b, uint32_t seq, uint32_t n_token)
{
	return (struct nsv_sched_new){.n_token = n_token,
		.max_token = max_token[seq] ? max_token[seq] : CAP * BLOCK,
		.uid = user_of[seq],
		.arrival = ++b->arrivals,
		.domain = seq % 3,
		.tokens = b->tokens[seq],
		.blocks = b->blocks[seq],
		.cap = CAP,
		.leader = NSV_SCHED_NO_LEADER};
}

static void add(struct bench *b, uint32_t seq, uint32_t n_token)
{
	struct nsv_sched_new n = describe(b, seq, n_token);

	nsv_sched_add(&b->sched, seq, &n);
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
			nsv_sched_known(&b->sched, b->plan.items[i].seq);
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

/* ---- Users */

static void test_a_flood_waits_behind_another_user(void **state)
{
	struct bench b;
	(void)state;

	bench_init(&b, 12, 64);
	for (uint32_t i = 0; i < 20; i++) {
		user_of[i] = 1;
		add(&b, i, 16);
	}
	step(&b); /* two of the flood run */
	assert_int_equal(b.sched.n_run, 2);
	user_of[20] = 2;
	add(&b, 20, 16);
	nsv_sched_remove(&b.sched, 0);
	step(&b);
	assert_int_equal(b.sched.seqs[20].where, NSV_SCHED_RUNNING);
	memset(user_of, 0, sizeof(user_of));
	bench_deinit(&b);
}

/* Three users who ask again as soon as they are answered, and one with a queue: the queue moves, and
 * each user gets his share. */
static void test_nobody_starves(void **state)
{
	struct bench b;
	uint64_t served[4] = {0};
	uint32_t left = 10;
	(void)state;

	bench_init(&b, 10, 64);
	for (uint32_t i = 0; i < 13; i++) {
		user_of[i] = i < 10 ? 0 : i - 9;
		add(&b, i, 16);
	}
	for (int n = 0; left > 0; n++) {
		assert_true(n < 10 * 4 * 12); /* requests of the queue, users, steps a request */
		step(&b);
		for (uint32_t i = 0; i < 13; i++) {
			const struct nsv_sched_seq *q = &b.sched.seqs[i];
			if (!q->where || q->n_token < 24)
				continue;
			nsv_sched_remove(&b.sched, i);
			served[user_of[i]] += 24;
			if (i < 10)
				left--;
			else
				add(&b, i, 16);
		}
	}
	for (int u = 1; u < 4; u++)
		assert_in_range(served[u], served[0] / 2, served[0] * 2);
	memset(user_of, 0, sizeof(user_of));
	bench_deinit(&b);
}

/* ---- The prefix cache */

static uint64_t mix(uint64_t hash, int32_t token)
{
	return (hash ^ (uint32_t)token) * 0x9e3779b97f4a7c15ull + 1;
}

static uint64_t *slot_of(struct bench *b, uint32_t seq, uint32_t pos)
{
	return &b->content[b->blocks[seq][pos / BLOCK]][pos % BLOCK];
}

/* Does what the engine and a model do with a plan, and finds that every row sees the history of its
 * own tokens, wherever it came from. */
static void compute(struct bench *b)
{
	for (uint32_t i = 0; i < b->plan.n_copy; i++)
		memcpy(b->content[b->plan.copies[i].to], b->content[b->plan.copies[i].from],
			sizeof(b->content[0]));
	nsv_sched_copied(&b->sched, &b->plan);
	for (uint32_t i = 0; i < b->plan.n_item; i++) {
		const struct nsv_plan_item *item = &b->plan.items[i];
		uint64_t hash = item->seq % 3;
		for (uint32_t pos = 0; pos < item->n_past + item->n_row; pos++) {
			hash = mix(hash, b->tokens[item->seq][pos]);
			if (pos >= item->n_past)
				*slot_of(b, item->seq, pos) = hash;
			else
				assert_int_equal(*slot_of(b, item->seq, pos), hash);
		}
	}
}

static void results(struct bench *b, const struct nsv_step_plan *plan)
{
	for (uint32_t i = 0; i < plan->n_item; i++)
		assert_int_equal(nsv_sched_computed(&b->sched, &plan->items[i]), 0);
}

static void run_to_end(struct bench *b, uint32_t seq, uint32_t n_token)
{
	while (b->sched.seqs[seq].where && b->sched.seqs[seq].n_token < n_token) {
		nsv_sched_plan(&b->sched, &b->plan);
		compute(b);
		results(b, &b->plan);
		for (uint32_t i = 0; i < b->plan.n_item; i++)
			if (b->plan.items[i].sample)
				nsv_sched_known(&b->sched, b->plan.items[i].seq);
		audit(b);
	}
	nsv_sched_remove(&b->sched, seq);
}

static void test_the_next_turn_computes_what_is_new(void **state)
{
	struct bench b;
	(void)state;

	bench_init_with(&b, 32, 64, true);
	for (int i = 0; i < CAP * BLOCK; i++)
		b.tokens[0][i] = b.tokens[3][i] = b.tokens[6][i] = b.tokens[1][i] = i;
	add(&b, 0, 18);
	run_to_end(&b, 0, 19);
	add(&b, 3, 30); /* its first 18 are known: 4 blocks of 4 */
	nsv_sched_plan(&b.sched, &b.plan);
	assert_int_equal(b.plan.items[0].n_past, 16);
	compute(&b);
	results(&b, &b.plan);
	nsv_sched_remove(&b.sched, 3);
	b.tokens[6][10] = -1; /* parts in the middle of the third block */
	add(&b, 6, 20);
	nsv_sched_plan(&b.sched, &b.plan);
	assert_int_equal(b.plan.items[0].n_past, 10);
	assert_int_equal(b.plan.n_copy, 1);
	compute(&b);
	results(&b, &b.plan);
	nsv_sched_remove(&b.sched, 6);
	add(&b, 1, 18); /* another domain */
	nsv_sched_plan(&b.sched, &b.plan);
	assert_int_equal(b.plan.items[0].n_past, 0);
	compute(&b);
	results(&b, &b.plan);
	nsv_sched_remove(&b.sched, 1);
	add(&b, 0, 16); /* all known: the last token is computed all the same */
	nsv_sched_plan(&b.sched, &b.plan);
	assert_int_equal(b.plan.items[0].n_past, 15);
	assert_true(b.plan.items[0].sample);
	compute(&b);
	results(&b, &b.plan);
	nsv_sched_remove(&b.sched, 0);
	audit(&b);
	assert_int_equal(b.alloc.n_free + nsv_block_n_idle(&b.alloc), 32);
	bench_deinit(&b);
}

/* ---- Random loads */

#define MAX_AHEAD 3

struct late { /* a plan whose results have not come */
	struct nsv_step_plan plan;
	uint64_t arrival[N_SEQ]; /* whose the items were: a place may be another's by then */
};

struct soak {
	uint32_t end[N_SEQ]; /* tokens at which it ends; 0: absent */
	struct late late[MAX_AHEAD];
	uint32_t n_late, ahead;
};

/* Few beginnings and long repeats, so that prefixes are shared, and part in the middle of blocks. */
static void random_tokens(struct bench *b, uint32_t seq)
{
	uint32_t same = t_below(60), story = t_below(3);

	for (uint32_t i = 0; i < CAP * BLOCK; i++)
		b->tokens[seq][i] = i < same ? (int32_t)(story * 1000 + i) : (int32_t)t_below(2);
}

static void random_event(struct bench *b, struct soak *k)
{
	uint32_t seq = t_below(N_SEQ);

	if (!k->end[seq]) {
		uint32_t n_prompt = 1 + t_below(40);
		uint32_t end = n_prompt + 1 + t_below(30);
		if (nsv_blocks_for(end, b->sched.block_size) > b->sched.alloc->n_block)
			return;
		k->end[seq] = end;
		max_token[seq] = end;
		user_of[seq] = t_below(4);
		random_tokens(b, seq);
		add(b, seq, n_prompt);
	} else if (t_below(8) == 0) {
		nsv_sched_remove(&b->sched, seq);
		k->end[seq] = 0;
	} else {
		nsv_sched_pause(&b->sched, seq, t_below(4) == 0);
	}
}

/* The oldest that is not paused has moved: the progress that rule 3 promises. */
static void plan_with_progress(struct bench *b)
{
	uint32_t oldest = N_SEQ;

	for (uint32_t i = 0; i < N_SEQ; i++) {
		const struct nsv_sched_seq *q = &b->sched.seqs[i];
		if (q->where && !q->paused &&
			(oldest == N_SEQ || q->tag < b->sched.seqs[oldest].tag ||
				(q->tag == b->sched.seqs[oldest].tag &&
					q->arrival < b->sched.seqs[oldest].arrival)))
			oldest = i;
	}
	nsv_sched_plan(&b->sched, &b->plan);
	/* one whose next tokens are all under way has nothing to plan */
	if (oldest == N_SEQ || b->sched.seqs[oldest].n_pending > 0)
		return;
	for (uint32_t i = 0; i < b->plan.n_item; i++)
		if (b->plan.items[i].seq == oldest)
			return;
	fail_msg("the oldest, %u, did not move", oldest);
}

/* The results of the oldest plan: those of sequences that have ended are dropped. */
static void take_oldest(struct bench *b, struct soak *k)
{
	struct late oldest = k->late[0];

	memmove(&k->late[0], &k->late[1], (--k->n_late) * sizeof(k->late[0]));
	k->late[k->n_late] = oldest;
	for (uint32_t i = 0; i < oldest.plan.n_item; i++) {
		const struct nsv_plan_item *item = &oldest.plan.items[i];
		struct nsv_sched_seq *q = &b->sched.seqs[item->seq];
		if (q->arrival != oldest.arrival[i])
			continue;
		assert_int_equal(nsv_sched_computed(&b->sched, item), 0);
		if (!item->sample)
			continue;
		nsv_sched_known(&b->sched, item->seq);
		if (q->n_token - q->n_pending < k->end[item->seq])
			continue;
		nsv_sched_remove(&b->sched, item->seq);
		k->end[item->seq] = 0;
	}
}

static void finish_step(struct bench *b, struct soak *k)
{
	if (b->plan.n_item > 0) {
		struct late *l = &k->late[k->n_late++];
		l->plan.n_item = b->plan.n_item;
		for (uint32_t i = 0; i < b->plan.n_item; i++) {
			l->plan.items[i] = b->plan.items[i];
			l->arrival[i] = b->sched.seqs[b->plan.items[i].seq].arrival;
		}
	}
	while (k->n_late >= k->ahead || (k->n_late > 0 && b->plan.n_item == 0))
		take_oldest(b, k);
}

static void test_random_loads(void **state)
{
	const char *steps_text = getenv("NANOSERVE_SOAK_STEPS");
	long n_step = steps_text ? atol(steps_text) : 200000;
	uint64_t n_hit = 0;
	(void)state;

	t_seed();
	print_message("%ld steps\n", n_step);
	for (long done = 0; done < n_step;) {
		struct bench b;
		struct soak k = {.ahead = 1 + t_below(MAX_AHEAD)};
		bench_init_with(&b, 18 + t_below(80), 1 + t_below(60), t_below(4) > 0);
		for (int i = 0; i < MAX_AHEAD; i++)
			nsv_step_plan_init(&k.late[i].plan, &b.sched);
		for (int i = 0; i < 2000; i++, done++) {
			for (uint32_t n = t_below(3); n > 0; n--)
				random_event(&b, &k);
			plan_with_progress(&b);
			compute(&b);
			finish_step(&b, &k);
			audit(&b);
		}
		for (uint32_t i = 0; i < N_SEQ; i++)
			if (k.end[i])
				nsv_sched_remove(&b.sched, i);
		for (int i = 0; i < MAX_AHEAD; i++)
			nsv_step_plan_deinit(&k.late[i].plan);
		n_hit += b.sched.n_hit_token;
		assert_int_equal(b.alloc.n_free + nsv_block_n_idle(&b.alloc), b.alloc.n_block);
		bench_deinit(&b);
	}
	assert_true(n_hit > 0);
	print_message("%llu tokens came from the prefix cache\n", (unsigned long long)n_hit);
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
		cmocka_unit_test(test_a_flood_waits_behind_another_user),
		cmocka_unit_test(test_nobody_starves),
		cmocka_unit_test(test_the_next_turn_computes_what_is_new),
		cmocka_unit_test(test_random_loads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
