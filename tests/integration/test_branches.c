/* Several answers, forks, cancels and log-probabilities of prompts over a tiny model: every stream
 * is the one that it is alone, bit for bit, whatever the daemon's pool, chunks, cache and depth. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "shm/abi.h"
#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/raw.h"
#include "tests/tools/rnd.h"
#include "tests/tools/story.h"
#include "tests/tools/tiny.h"
#include "tests/tools/wait.h"

#define N_SLOT 40

static char model[64];
static struct nsv_test_daemon lonely; /* computes one request at a time, each from its start */
static struct nsv_client *alone;
static struct nsv_story_range range = {
	.first_id = 4, .max_prompt = 90, .max_output = 70, .max_branch = 5};

static int start(void **state)
{
	static const char *const extra[] = {"--no-prefix-cache", NULL};
	(void)state;

	nsv_tiny_model(model, sizeof(model));
	if (nsv_test_daemon_start(&lonely, model, extra) < 0)
		return -1;
	alone = nsv_ask_open(lonely.socket);
	range.n_vocab = (int32_t)nsv_ask_status(alone, "model.vocabulary");
	return alone && range.n_vocab > 200 ? 0 : -1;
}

static int stop(void **state)
{
	(void)state;
	nsv_client_close(alone);
	unlink(model);
	return nsv_test_daemon_stop(&lonely, SIGTERM) == 0 ? 0 : -1;
}

/* A client with many slots and logs of the lengths given (0: the default). */
static struct nsv_client *open_wide(
	const struct nsv_test_daemon *d, uint32_t n_token, uint32_t n_lp)
{
	struct nsv_client_options o;
	struct nsv_client *client = NULL;

	nsv_ask_options(&o);
	o.n_slot = N_SLOT;
	o.n_token = n_token ? n_token : o.n_token;
	o.n_lp = n_lp ? n_lp : o.n_lp;
	assert_int_equal(nsv_client_open(d->socket, &o, NULL, 0, &client), 0);
	return client;
}

/* Nothing is left behind. */
static void check_empty(struct nsv_client *client)
{
	long long total = nsv_ask_status(client, "blocks.total");

	assert_int_equal(nsv_ask_status(client, "counters.audits_failed"), 0);
	assert_true(nsv_ask_status_until(client, "blocks.free", total));
	assert_true(nsv_ask_status_until(client, "requests.ended", 0));
}

/* ---- Random stories */

struct load {
	uint32_t n_story, n_lp; /* n_lp: entries of each log of log-probabilities */
	uint32_t fork_one_in, cancel_one_in;
	bool lazy; /* its client sleeps now and then */
};

static void play(struct nsv_stage *g, const struct load *load, struct nsv_story *stories)
{
	for (uint32_t i = 0; i < load->n_story;) {
		struct nsv_story s;
		nsv_story_draw(&s, &range);
		if (i == 0) /* at least one has them */
			s.params.flags |= NSV_CLIENT_PROMPT_LOGPROBS;
		nsv_story_copy(&stories[i], &s);
		while (!nsv_stage_add(g, &stories[i])) {
			assert_true(g->n_live > 0);
			nsv_stage_turn(g, NSV_LOOK_MS);
		}
		i++;
		if (load->lazy && t_below(4) == 0)
			usleep(t_below(20000));
	}
	while (nsv_stage_turn(g, NSV_LOOK_MS))
		if (load->lazy && t_below(10) == 0)
			usleep(t_below(5000));
}

static void run(const char *const *extra, const struct load *load, struct nsv_stage *ret)
{
	struct nsv_test_daemon d;
	struct nsv_story *stories = calloc(load->n_story, sizeof(*stories));

	assert_non_null(stories);
	assert_int_equal(nsv_test_daemon_start(&d, model, extra), 0);
	*ret = (struct nsv_stage){.client = open_wide(&d, 0, load->n_lp),
		.n_slot = N_SLOT,
		.fork_one_in = load->fork_one_in,
		.cancel_one_in = load->cancel_one_in};
	play(ret, load, stories);
	long long n_fork = nsv_ask_status(ret->client, "counters.forks");
	assert_true(nsv_ask_status(ret->client, "counters.more_answers") > 0);
	assert_true(nsv_ask_status(ret->client, "counters.prompt_logprobs") > 0);
	nsv_stage_compare(ret, alone);
	nsv_stage_clear(ret);
	nsv_stage_print(ret, stdout);
	check_empty(ret->client);
	nsv_client_close(ret->client);
	free(stories);
	assert_int_equal(nsv_test_daemon_stop(&d, SIGTERM), 0);
	assert_int_equal(ret->n_wrong, 0);
	/* of the others some were cancelled before they began */
	uint64_t n_timely = ret->n_fork - ret->n_late_fork;
	assert_true(n_fork <= (long long)n_timely && n_fork + ret->n_cancel >= n_timely);
	assert_true(ret->n_compared >= load->n_story);
}

#define DAEMON(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_answers_are_those_of_single_requests(void **state)
{
	const struct load load = {.n_story = 40};
	struct nsv_stage g;
	(void)state;

	run(DAEMON("--no-prefix-cache"), &load, &g);
	assert_true(g.n_answer > load.n_story);
	run(DAEMON("--threads", "2"), &load, &g);
	run(DAEMON("--batch-tokens", "1"), &load, &g);
	run(DAEMON("--batch-tokens", "16", "--no-prefix-cache"), &load, &g);
	run(DAEMON("--batch-tokens", "100"), &load, &g);
}

static bool has_forked(const struct nsv_stage *g)
{
	return g->n_fork > g->n_late_fork && g->n_cancel > 0;
}

static bool has_preempted(const struct nsv_stage *g)
{
	return g->n_preempt > 0;
}

/* On a busy machine streams may end before their client comes to fork one, or to ask for the next:
 * then once more. */
static void run_until(bool (*is_enough)(const struct nsv_stage *), const char *const *extra,
	const struct load *load, struct nsv_stage *ret)
{
	int n = 0;

	do {
		assert_true(n++ < 20);
		run(extra, load, ret);
	} while (!is_enough(ret));
}

static void test_forks_and_cancels(void **state)
{
	const struct load load = {.n_story = 40, .fork_one_in = 40, .cancel_one_in = 60};
	struct nsv_stage g;
	(void)state;

	run_until(has_forked, DAEMON("--no-prefix-cache"), &load, &g);
	run_until(has_forked, DAEMON("--batch-tokens", "24"), &load, &g);
}

static void test_a_small_pool(void **state)
{
	const struct load load = {.n_story = 40, .fork_one_in = 60, .cancel_one_in = 90};
	struct nsv_stage g;
	(void)state;

	/* the longest story needs 10 blocks */
	run_until(has_preempted, DAEMON("--kv-blocks", "12", "--no-prefix-cache"), &load, &g);
	run_until(has_preempted, DAEMON("--kv-blocks", "16", "--batch-tokens", "20"), &load, &g);
	run_until(has_preempted, DAEMON("--kv-blocks", "14", "--swap-blocks", "40"), &load, &g);
}

static void test_ahead(void **state)
{
	const struct load load = {.n_story = 30, .fork_one_in = 60, .cancel_one_in = 90};
	struct nsv_stage g;
	(void)state;

	run(DAEMON("--run-ahead", "2"), &load, &g);
	run(DAEMON("--run-ahead", "3", "--kv-blocks", "14"), &load, &g);
	run(DAEMON("--run-ahead", "4", "--kv-blocks", "16", "--swap-blocks", "8", "--batch-tokens",
		    "9", "--no-prefix-cache"),
		&load, &g);
}

/* Logs so short that prompts wait for their readers. */
static void test_slow_readers(void **state)
{
	const struct load load = {
		.n_story = 25, .n_lp = 128, .fork_one_in = 60, .cancel_one_in = 100, .lazy = true};
	struct nsv_stage g;
	(void)state;

	run(DAEMON("--kv-blocks", "64"), &load, &g);
	assert_true(g.n_lp > 128);
	run(DAEMON("--kv-blocks", "14", "--run-ahead", "3"), &load, &g);
}

/* Each has random numbers of its own, and the seed that the daemon draws is everybody's. */
static void test_answers_differ(void **state)
{
	struct nsv_client *client = open_wide(&lonely, 0, 0);
	struct nsv_answer *a = calloc(4, sizeof(*a));
	struct nsv_client_params p;
	struct nsv_request *r[4];
	(void)state;

	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.temperature = 1.5f;
	p.max_tokens = 20;
	p.n_branch = 4;
	assert_int_equal(nsv_client_submit_text(client, "one prompt", 10, &p, &r[0]), 0);
	for (uint32_t i = 1; i < 4; i++)
		r[i] = nsv_request_answer(r[0], i);
	for (int i = 0; i < 4; i++) {
		nsv_ask_finish(client, 0, r[i], &a[i]);
		assert_int_equal(a[i].n_token, 20);
		assert_true(a[i].result.seed == a[0].result.seed && a[i].result.seed != 0);
		for (int k = 0; k < i; k++)
			assert_memory_not_equal(
				a[i].tokens, a[k].tokens, 20 * sizeof(a->tokens[0]));
	}
	free(a);
	nsv_client_close(client);
}

/* ---- What a step says of a token that must come is what the prompt's log-probabilities say */

static void test_prompt_log_probabilities(void **state)
{
	enum { N = 40, K = 3 };
	struct nsv_answer *whole = malloc(sizeof(*whole)), *step = malloc(sizeof(*step));
	struct nsv_client_params p;
	int32_t ids[N];
	(void)state;

	for (int i = 0; i < N; i++)
		ids[i] = 4 + (int32_t)t_below(200);
	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_PROMPT_LOGPROBS | NSV_CLIENT_LOGPROBS | NSV_CLIENT_IGNORE_END;
	p.n_logprob = K;
	p.max_tokens = 3;
	nsv_ask_ids(alone, ids, N, &p, whole);
	assert_string_equal(whole->reason, "");
	assert_int_equal(whole->n_lp, (N - 1 + 3) * (1 + K));
	for (int i = 1; i < N; i++) {
		nsv_client_params_init(&p);
		p.flags = NSV_CLIENT_LOGPROBS | NSV_CLIENT_IGNORE_END;
		p.n_logprob = K;
		p.max_tokens = 1;
		p.allow = &ids[i];
		p.n_allow = 1;
		nsv_ask_ids(alone, ids, (size_t)i, &p, step);
		assert_int_equal(step->n_token, 1);
		assert_int_equal(step->tokens[0], ids[i]);
		assert_memory_equal(
			step->lps, whole->lps + (i - 1) * (1 + K), (1 + K) * sizeof(whole->lps[0]));
	}
	free(whole);
	free(step);
}

/* The library tells them apart from the output's, however they come. */
static void test_the_prompts_part_of_a_chunk(void **state)
{
	enum { N = 300, K = 2 };
	struct nsv_client *client = open_wide(&lonely, 0, 128);
	struct nsv_client_chunk c = {.size = sizeof(c)};
	struct nsv_client_params p;
	struct nsv_request *r;
	size_t n_prompt = 0, n_output = 0;
	int32_t ids[N];
	(void)state;

	for (int i = 0; i < N; i++)
		ids[i] = 4 + (int32_t)t_below(200);
	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_PROMPT_LOGPROBS | NSV_CLIENT_LOGPROBS | NSV_CLIENT_IGNORE_END;
	p.n_logprob = K;
	p.max_tokens = 50;
	assert_int_equal(nsv_client_submit_ids(client, ids, N, &p, &r), 0);
	while (nsv_ask_next(r, &c) > 0) {
		assert_true(c.n_lp <= 128 && (n_output == 0 || c.n_prompt_lp == 0));
		for (size_t i = 0; i < c.n_prompt_lp; i++)
			if ((n_prompt + i) % (1 + K) == 0)
				assert_int_equal(c.lps[i].id, ids[(n_prompt + i) / (1 + K) + 1]);
		n_prompt += c.n_prompt_lp;
		n_output += c.n_lp - c.n_prompt_lp;
	}
	assert_int_equal(n_prompt, (N - 1) * (1 + K));
	assert_int_equal(n_output, 50 * (1 + K));
	nsv_client_close(client);
}

/* ---- Forks by hand */

/* A penalty on what has been said counts what the target said: nothing comes twice. */
static void test_a_fork_remembers(void **state)
{
	struct nsv_client *client = open_wide(&lonely, 64, 0);
	struct nsv_answer *a = malloc(sizeof(*a)), *b = malloc(sizeof(*b));
	struct nsv_client_params p;
	struct nsv_request *r, *fork;
	struct nsv_client_chunk c = {.size = sizeof(c)};
	uint64_t n_token;
	uint8_t seen[4096] = {0};
	(void)state;

	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END | NSV_CLIENT_SEED;
	p.presence_penalty = 1e6f;
	p.temperature = 1;
	p.max_tokens = 150;
	assert_true(range.n_vocab > 150 && range.n_vocab <= (int32_t)sizeof(seen));
	assert_int_equal(nsv_client_submit_text(client, "once", 4, &p, &r), 0);
	assert_true(nsv_ask_next(r, &c) > 0); /* its log is full */
	size_t n_read = c.n_token;
	for (size_t i = 0; i < c.n_token; i++)
		a->tokens[i] = c.tokens[i];
	assert_int_equal(nsv_request_fork(r, 9, &fork), 0);
	nsv_ask_finish(client, 0, fork, b);
	assert_string_equal(b->reason, "");
	assert_int_equal(b->result.n_output, 150);
	n_token = 150 - b->n_token;
	assert_true(n_token > 0);
	while (nsv_ask_next(r, &c) > 0)
		for (size_t i = 0; i < c.n_token; i++)
			a->tokens[n_read++] = c.tokens[i];
	for (uint64_t i = 0; i < n_token; i++)
		seen[a->tokens[i]]++;
	for (size_t i = 0; i < b->n_token; i++)
		seen[b->tokens[i]]++;
	for (int i = 0; i < range.n_vocab; i++)
		assert_true(seen[i] <= 1);
	assert_int_equal(n_read, 150);
	assert_memory_not_equal(a->tokens + n_token, b->tokens, b->n_token * sizeof(b->tokens[0]));
	free(a);
	free(b);
	nsv_client_close(client);
}

/* The first answer, whose blocks the others are to share, goes before it has computed the
 * prompt. */
static void test_the_leader_goes(void **state)
{
	struct nsv_test_daemon d;
	struct nsv_answer *a = malloc(sizeof(*a)), *b = malloc(sizeof(*b));
	struct nsv_client_params p;
	struct nsv_request *r[4];
	int32_t ids[400];
	(void)state;

	for (int i = 0; i < 400; i++)
		ids[i] = 4 + (int32_t)t_below(200);
	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END | NSV_CLIENT_SEED;
	p.temperature = 1;
	p.max_tokens = 20;
	assert_int_equal(nsv_test_daemon_start(
				 &d, model, DAEMON("--batch-tokens", "2", "--no-prefix-cache")),
		0);
	struct nsv_client *client = open_wide(&d, 0, 0);
	for (int round = 0; round < 4; round++) {
		p.seed = t_rand();
		p.n_branch = 4;
		assert_int_equal(nsv_client_submit_ids(client, ids, 400, &p, &r[0]), 0);
		for (uint32_t i = 1; i < 4; i++)
			r[i] = nsv_request_answer(r[0], i);
		usleep(t_below(20000));
		nsv_request_free(r[0]);
		p.n_branch = 1;
		for (uint32_t i = 1; i < 4; i++) {
			p.branch = i;
			nsv_ask_finish(client, 0, r[i], a);
			nsv_ask_ids(alone, ids, 400, &p, b);
			assert_int_equal(a->n_token, 20);
			assert_memory_equal(a->tokens, b->tokens, 20 * sizeof(a->tokens[0]));
		}
		p.branch = 0;
	}
	check_empty(client);
	nsv_client_close(client);
	assert_int_equal(nsv_test_daemon_stop(&d, SIGTERM), 0);
	free(a);
	free(b);
}

/* ---- What is refused */

static void take(struct nsv_raw *r, struct nsv_cqe *c, uint16_t kind, uint64_t id)
{
	do
		assert_true(nsv_raw_next(r, c));
	while (c->kind != kind || c->request_id != id);
}

static struct nsv_params many(uint32_t n)
{
	return (struct nsv_params){.len = sizeof(struct nsv_params),
		.top_p = 1,
		.typical_p = 1,
		.repetition_penalty = 1,
		.flags = NSV_PARAM_IGNORE_END,
		.max_tokens = 300,
		.n_branch = n};
}

static void test_refused_answers(void **state)
{
	struct nsv_geom want = {.n_slot = 6, .n_token = 64};
	struct nsv_params p = many(7);
	struct nsv_raw r;
	struct nsv_cqe c;
	(void)state;

	assert_int_equal(nsv_raw_open(&r, lonely.socket, &want), 0);
	struct nsv_sqe e = nsv_raw_prompt(&r, "abc", &p); /* more than slots: the first says so */
	nsv_raw_put(&r, &e);
	take(&r, &c, NSV_CQE_ERROR, 1);
	assert_int_equal(c.code, NSV_E_PARAM);
	assert_non_null(strstr(r.down.slots[0].text, "n_branch is 7"));

	p = many(3);
	e = nsv_raw_prompt(&r, "abc", &p); /* ids 2, 3 and 4 in the slots 0, 1 and 2 */
	nsv_raw_put(&r, &e);
	for (uint64_t id = 2; id < 5; id++)
		take(&r, &c, NSV_CQE_ACCEPTED, id);
	e.request_id = 4; /* taken by an answer */
	e.slot = 3;
	nsv_raw_put(&r, &e);
	take(&r, &c, NSV_CQE_ERROR, 4);
	assert_int_equal(c.code, NSV_E_ID);
	e.request_id = 5;
	e.slot = 2; /* in use, and so 3 and 4 are refused too */
	nsv_raw_put(&r, &e);
	for (uint64_t id = 5; id < 8; id++) {
		take(&r, &c, NSV_CQE_ERROR, id);
		assert_int_equal(c.code, NSV_E_BUSY);
		assert_int_equal(c.slot, 2 + id - 5);
	}
	assert_int_equal(r.down.slots[3].request_id, 0);
	e.slot = 4; /* two slots are left, three are wanted; the id is new still */
	nsv_raw_put(&r, &e);
	take(&r, &c, NSV_CQE_ERROR, 5);
	assert_int_equal(c.code, NSV_E_PARAM);
	e.request_id = UINT64_MAX - 1;
	e.slot = 3;
	nsv_raw_put(&r, &e);
	take(&r, &c, NSV_CQE_ERROR, UINT64_MAX - 1);
	assert_int_equal(c.code, NSV_E_PARAM);
	nsv_raw_close(&r);
}

/* A parameter that is wrong refuses every answer, each in its slot; so does a limit. */
static void test_all_or_none(void **state)
{
	const struct nsv_geom want = {.n_token = 64}; /* so that those that begin stay */
	struct nsv_test_daemon d;
	struct nsv_params p = many(4);
	struct nsv_raw r;
	struct nsv_cqe c;
	(void)state;

	assert_int_equal(nsv_test_daemon_start(&d, model, DAEMON("--max-requests", "5")), 0);
	assert_int_equal(nsv_raw_open(&r, d.socket, &want), 0);
	p.top_p = 2;
	struct nsv_sqe e = nsv_raw_prompt(&r, "abc", &p);
	nsv_raw_put(&r, &e);
	for (uint64_t i = 0; i < 4; i++) {
		take(&r, &c, NSV_CQE_ERROR, 1 + i);
		assert_int_equal(c.code, NSV_E_PARAM);
		assert_non_null(strstr(r.down.slots[i].text, "top_p"));
	}
	p = many(4);
	e = nsv_raw_prompt(&r, "abc", &p);
	e.request_id = 10;
	nsv_raw_put(&r, &e);
	for (uint64_t i = 0; i < 4; i++)
		take(&r, &c, NSV_CQE_ACCEPTED, 10 + i);
	p.n_branch = 2; /* there is place for one more */
	e = nsv_raw_prompt(&r, "abc", &p);
	e.request_id = 20;
	e.slot = 4;
	nsv_raw_put(&r, &e);
	for (uint64_t i = 0; i < 2; i++) {
		take(&r, &c, NSV_CQE_ERROR, 20 + i);
		assert_int_equal(c.code, NSV_E_LIMIT);
		assert_non_null(strstr(r.down.slots[4 + i].text, "requests is 5"));
	}
	e = (struct nsv_sqe){
		.op = NSV_OP_FORK, .request_id = 30, .target_id = 11, .branch = 7, .slot = 4};
	nsv_raw_put(&r, &e);
	take(&r, &c, NSV_CQE_ACCEPTED, 30);
	e.request_id = 31;
	e.slot = 5;
	nsv_raw_put(&r, &e);
	take(&r, &c, NSV_CQE_ERROR, 31);
	assert_int_equal(c.code, NSV_E_LIMIT);
	nsv_raw_close(&r);
	assert_int_equal(nsv_test_daemon_stop(&d, SIGTERM), 0);
}

static void expect_fork_refused(
	struct nsv_raw *r, struct nsv_sqe e, uint32_t code, const char *text)
{
	struct nsv_cqe c;

	e.op = NSV_OP_FORK;
	e.request_id = ++r->last_id;
	e.slot = 3;
	nsv_raw_put(r, &e);
	take(r, &c, NSV_CQE_ERROR, e.request_id);
	assert_int_equal(c.code, code);
	assert_int_equal(r->down.slots[3].request_id, e.request_id);
	if (!strstr(r->down.slots[3].text, text))
		fail_msg("\"%s\" was to have \"%s\"", r->down.slots[3].text, text);
}

static void test_refused_forks(void **state)
{
	struct nsv_geom want = {.n_slot = 6, .n_token = 64};
	struct nsv_params p = many(1);
	struct nsv_raw r;
	struct nsv_cqe c;
	(void)state;

	assert_int_equal(nsv_raw_open(&r, lonely.socket, &want), 0);
	struct nsv_sqe e = nsv_raw_prompt(&r, "abc", &p);
	e.branch = 5;
	nsv_raw_put(&r, &e); /* its log of 64 tokens is full soon: it stays */
	take(&r, &c, NSV_CQE_ACCEPTED, 1);
	expect_fork_refused(
		&r, (struct nsv_sqe){.target_id = 1, .branch = 5}, NSV_E_PARAM, "branch 5");
	expect_fork_refused(&r, (struct nsv_sqe){.target_id = 1, .branch = 6, .prompt_len = 3},
		NSV_E_PARAM, "a fork has");
	expect_fork_refused(&r, (struct nsv_sqe){.target_id = 1, .branch = 6, .params_len = 128},
		NSV_E_PARAM, "a fork has");
	expect_fork_refused(
		&r, (struct nsv_sqe){.target_id = 0, .branch = 6}, NSV_E_ID, "no request");
	expect_fork_refused(&r, (struct nsv_sqe){.target_id = r.last_id + 1, .branch = 6}, NSV_E_ID,
		"no request");
	expect_fork_refused(
		&r, (struct nsv_sqe){.target_id = 3, .branch = 6}, NSV_E_ID, "has ended");
	e = (struct nsv_sqe){.op = NSV_OP_CANCEL, .target_id = 1};
	nsv_raw_put(&r, &e);
	take(&r, &c, NSV_CQE_FINISHED, 1);
	expect_fork_refused(
		&r, (struct nsv_sqe){.target_id = 1, .branch = 6}, NSV_E_ID, "request 1 has ended");
	nsv_raw_close(&r);
}

/* A target whose prompt the worker has is waited for; the fork of that fork too. */
static void test_a_fork_waits_for_its_target(void **state)
{
	enum { LEN = 100000 };
	struct nsv_client *client = open_wide(&lonely, 0, 0);
	struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_request *r, *fork[2], *slow;
	struct nsv_client_params p;
	char *text = malloc(LEN);
	(void)state;

	memset(text, 'a', LEN);
	nsv_client_params_init(&p);
	p.max_tokens = 9;
	p.flags = NSV_CLIENT_IGNORE_END;
	for (size_t i = 0; i < LEN; i++)
		text[i] = (char)('a' + t_below(26));
	assert_int_equal(nsv_client_tokenize(client, text, LEN, 0, &slow), 0); /* keeps it busy */
	int32_t *ids = calloc(600, sizeof(*ids));
	for (int i = 0; i < 600; i++)
		ids[i] = 4 + (int32_t)t_below(200);
	p.n_branch = 2;
	/* above 2 KiB it goes to the worker; above the context it is refused */
	assert_int_equal(nsv_client_submit_ids(client, ids, 600, &p, &r), 0);
	assert_int_equal(nsv_request_fork(r, 7, &fork[0]), 0);
	assert_int_equal(nsv_request_fork(fork[0], 8, &fork[1]), 0);
	for (int i = 0; i < 2; i++) {
		nsv_ask_finish(client, 0, fork[i], a);
		assert_int_equal(a->result.code, NSV_E_ID);
		assert_non_null(strstr(a->reason, "has ended"));
	}
	nsv_request_free(nsv_request_answer(r, 1));
	nsv_request_free(r);
	assert_int_equal(nsv_client_submit_text(client, text, 300, &p, &r), 0);
	nsv_ask_finish(client, 0, slow, a);
	assert_string_equal(a->reason, "");
	free(ids);
	free(text);
	free(a);
	nsv_client_close(client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answers_are_those_of_single_requests),
		cmocka_unit_test(test_forks_and_cancels),
		cmocka_unit_test(test_a_small_pool),
		cmocka_unit_test(test_ahead),
		cmocka_unit_test(test_slow_readers),
		cmocka_unit_test(test_answers_differ),
		cmocka_unit_test(test_prompt_log_probabilities),
		cmocka_unit_test(test_the_prompts_part_of_a_chunk),
		cmocka_unit_test(test_a_fork_remembers),
		cmocka_unit_test(test_the_leader_goes),
		cmocka_unit_test(test_refused_answers),
		cmocka_unit_test(test_all_or_none),
		cmocka_unit_test(test_refused_forks),
		cmocka_unit_test(test_a_fork_waits_for_its_target),
	};

	t_seed();
	return cmocka_run_group_tests(tests, start, stop);
}
