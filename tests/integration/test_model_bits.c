/* Promise 1 on the real models: a sequence's logits are the same bits however its prompt is cut,
 * whoever is in the batch, wherever its blocks lie, and on any number of threads. And every layer's
 * read of the cache goes through the dispatcher. A model that is not in the cache folder is
 * skipped; where layers have windows, the prompt is longer than they are.
 *
 * $NANOSERVE_TEST_BACKEND chooses the backend (cpu). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "tests/tools/model-run.h"
#include "tests/tools/rnd.h"

#define MAX_PROMPT 700
#define N_DECODE 12
#define MAX_ROW 1024
#define N_TOKEN 4096

struct subject {
	const char *file;
	uint32_t n_prompt;
	bool in_f32; /* K and V, whatever the backend would */
	struct nsv_backend backend;
	char path[512];
	bool is_there;
	struct model_run run;
};

static struct subject subjects[] = {
	{.file = MODEL_RUN_DEFAULT, .n_prompt = 300},
	{.file = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", .n_prompt = 200},
	{.file = "gemma-3-270m-q4_k_m.gguf", .n_prompt = MAX_PROMPT},
	{.file = MODEL_RUN_DEFAULT, .n_prompt = 300, .in_f32 = true},
};
static const struct nsv_backend *backend;

static struct subject *get_subject(void **state)
{
	struct subject *s = *state;

	if (!s->is_there)
		skip();
	return s;
}

static int32_t draw_token(const struct model_run *r)
{
	return (int32_t)t_below(r->n_vocab);
}

static void draw_tokens(const struct model_run *r, int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = draw_token(r);
}

static float *new_logits(const struct model_run *r, uint32_t n)
{
	float *logits = calloc((size_t)n * r->n_vocab, sizeof(*logits));

	assert_non_null(logits);
	return logits;
}

/* Logits (1 + N_DECODE, n_vocab): after the prompt and after each of the tokens that follow. */
static void run_alone(struct model_run *r, const int32_t *tokens, uint32_t n_prompt, uint32_t chunk,
	float *logits)
{
	struct model_seq seq;

	model_run_shuffle(r);
	model_seq_init(&seq, n_prompt + N_DECODE);
	model_run_prefill(r, &seq, tokens, n_prompt, chunk, logits);
	for (uint32_t i = 0; i < N_DECODE; i++) {
		struct model_feed f = {&seq, tokens + n_prompt + i, 1, false};
		model_run_step(r, &f, 1, logits + (size_t)(i + 1) * r->n_vocab);
	}
	model_seq_deinit(&seq, r);
}

static void expect_same(const struct model_run *r, const float *have, const float *want, uint32_t n,
	const char *what)
{
	for (size_t i = 0; i < (size_t)n * r->n_vocab; i++)
		if (memcmp(&have[i], &want[i], sizeof(float)))
			fail_msg("%s: logit %zu of output %zu is %.9g, expected %.9g", what,
				i % r->n_vocab, i / r->n_vocab, (double)have[i], (double)want[i]);
	assert_true(isfinite(want[0]));
}

static void test_chunks(void **state)
{
	struct subject *s = get_subject(state);
	struct model_run *r = &s->run;
	uint32_t n = s->n_prompt;
	const uint32_t chunks[] = {1, 16, 100, 3, n - 1};
	int32_t tokens[MAX_PROMPT + N_DECODE];
	float *want = new_logits(r, 1 + N_DECODE), *have = new_logits(r, 1 + N_DECODE);

	draw_tokens(r, tokens, n + N_DECODE);
	run_alone(r, tokens, n, n, want);
	for (size_t i = 0; i < NSV_ARRAY_LEN(chunks); i++) {
		run_alone(r, tokens, n, chunks[i], have);
		expect_same(r, have, want, 1 + N_DECODE, "chunks");
	}
	free(want);
	free(have);
}

/* A new sequence, and the logits that it has alone, which the caller frees. */
static float *begin_seq(
	struct model_run *r, int32_t *tokens, uint32_t n_prompt, struct model_seq *ret_seq)
{
	float *alone = new_logits(r, 1 + N_DECODE);

	draw_tokens(r, tokens, n_prompt + N_DECODE);
	run_alone(r, tokens, n_prompt, n_prompt, alone);
	model_seq_init(ret_seq, n_prompt + N_DECODE);
	return alone;
}

/* Three sequences of different lengths: prefill beside decode, then all decode together. */
static void test_batch(void **state)
{
	enum { N = 3 };
	struct subject *subject = get_subject(state);
	const uint32_t n_prompt[N] = {subject->n_prompt, 17, 65};
	struct model_run *r = &subject->run;
	int32_t tokens[N][MAX_PROMPT + N_DECODE];
	struct model_seq seqs[N];
	float *want[N], *have = new_logits(r, N);

	for (int s = 0; s < N; s++) {
		want[s] = begin_seq(r, tokens[s], n_prompt[s], &seqs[s]);
	}
	/* The second and third enter one after the other, while the first is at work. */
	for (uint32_t step = 0; step < N_DECODE + N; step++) {
		struct model_feed feeds[N];
		uint32_t n = 0, at[N], who[N];

		for (uint32_t s = 0; s < N; s++) {
			if (step < s || step - s > N_DECODE)
				continue;
			uint32_t past = seqs[s].n_past;
			feeds[n] = (struct model_feed){
				&seqs[s], tokens[s] + past, past ? 1 : n_prompt[s], false};
			at[n] = step - s;
			who[n++] = s;
		}
		model_run_step(r, feeds, n, have);
		for (uint32_t i = 0; i < n; i++)
			expect_same(r, have + (size_t)i * r->n_vocab,
				want[who[i]] + (size_t)at[i] * r->n_vocab, 1, "batch");
	}
	for (int s = 0; s < N; s++) {
		model_seq_deinit(&seqs[s], r);
		free(want[s]);
	}
	free(have);
}

static void test_threads(void **state)
{
	static const uint32_t n_threads[] = {1, 3};
	struct subject *s = get_subject(state);
	struct model_run *r = &s->run;
	int32_t tokens[MAX_PROMPT + N_DECODE];
	float *want = new_logits(r, 1 + N_DECODE), *have = new_logits(r, 1 + N_DECODE);

	draw_tokens(r, tokens, s->n_prompt + N_DECODE);
	run_alone(r, tokens, s->n_prompt, 128, want);
	for (size_t i = 0; i < NSV_ARRAY_LEN(n_threads); i++) {
		struct model_run other;

		model_run_open(&other, s->path, backend, n_threads[i], MAX_ROW, N_TOKEN);
		run_alone(&other, tokens, s->n_prompt, 128, have);
		expect_same(r, have, want, 1 + N_DECODE, "threads");
		assert_int_equal(nsv_model_id(other.model), nsv_model_id(r->model));
		model_run_close(&other);
	}
	free(want);
	free(have);
}

/* ---- A stub that counts and forwards */

static uint64_t n_call;

static void counting_attention(const struct nsv_part *part, const struct nsv_attn_call *call)
{
	if (part->index == 0)
		n_call++;
	backend->attention(part, call);
}

static void test_dispatcher(void **state)
{
	struct subject *s = get_subject(state);
	struct nsv_backend stub = *backend;
	struct model_run r;
	int32_t tokens[40];

	n_call = 0;
	stub.attention = counting_attention;
	model_run_open(&r, s->path, &stub, 2, MAX_ROW, N_TOKEN);
	uint32_t n_layer = nsv_model_get_desc(r.model)->n_layer;
	float *logits = new_logits(&r, 1);
	struct model_seq seq;
	draw_tokens(&r, tokens, 40);
	model_seq_init(&seq, 40);
	for (uint32_t step = 1; step <= 4; step++) {
		model_run_prefill(&r, &seq, tokens + 10 * (step - 1), 10, 10, logits);
		assert_int_equal(n_call, step * n_layer);
		assert_int_equal(r.dispatch.n_attention, step * n_layer);
	}
	model_seq_deinit(&seq, &r);
	free(logits);
	model_run_close(&r);
}

/* ---- Streams: as many rows as sequences */

static _Atomic uint32_t n_apart; /* reads by a member alone */

static void apart_attention(const struct nsv_part *part, const struct nsv_attn_call *call)
{
	n_apart += part->count == 1;
	backend->attention(part, call);
}

#define N_STREAM 6

/* Steps of all streams by three members: each by itself, as its logits alone have come. */
static void check_streams(struct model_run *r, const uint32_t *n_prompt, bool apart)
{
	int32_t tokens[N_STREAM][MAX_PROMPT + N_DECODE];
	struct model_seq seqs[N_STREAM];
	struct model_feed feeds[N_STREAM];
	float *want[N_STREAM], *have = new_logits(r, N_STREAM);

	for (uint32_t s = 0; s < N_STREAM; s++) {
		want[s] = begin_seq(r, tokens[s], n_prompt[s], &seqs[s]);
		model_run_prefill(r, &seqs[s], tokens[s], n_prompt[s], n_prompt[s], have);
	}
	for (uint32_t i = 0; i < N_DECODE; i++) {
		for (uint32_t s = 0; s < N_STREAM; s++)
			feeds[s] = (struct model_feed){
				&seqs[s], tokens[s] + n_prompt[s] + i, 1, false};
		n_apart = 0;
		model_run_step(r, feeds, N_STREAM, have);
		assert_int_equal(n_apart, apart ? 3 * nsv_model_get_desc(r->model)->n_layer : 0);
		for (uint32_t s = 0; s < N_STREAM; s++)
			expect_same(r, have + (size_t)s * r->n_vocab,
				want[s] + (size_t)(i + 1) * r->n_vocab, 1, "streams");
	}
	for (uint32_t s = 0; s < N_STREAM; s++) {
		model_seq_deinit(&seqs[s], r);
		free(want[s]);
	}
	free(have);
}

/* Histories of about the same length are read by a member alone; a long one by all together. */
static void test_streams(void **state)
{
	static const uint32_t equal[N_STREAM] = {20, 33, 17, 20, 31, 16};
	static const uint32_t uneven[N_STREAM] = {20, 33, 17, 600, 31, 16};
	struct subject *s = get_subject(state);
	struct nsv_backend stub = *backend;
	struct model_run r;

	stub.attention = apart_attention;
	model_run_open(&r, s->path, &stub, 3, MAX_ROW, N_TOKEN);
	check_streams(&r, equal, true);
	check_streams(&r, uneven, false);
	model_run_close(&r);
}

static int open_run(void **state)
{
	struct subject *s = *state;
	const char *why;

	s->backend = *backend;
	if (s->in_f32)
		s->backend.kv_dtype = NSV_F32;
	s->is_there = model_run_find(s->file, s->path, &why);
	if (s->is_there)
		model_run_open(&s->run, s->path, &s->backend, 2, MAX_ROW, N_TOKEN);
	else
		printf("%s: %s\n", s->file, why);
	return 0;
}

static int close_run(void **state)
{
	struct subject *s = *state;

	if (s->is_there)
		model_run_close(&s->run);
	return 0;
}

#define TEST(function, subject)                                                                    \
	cmocka_unit_test_prestate_setup_teardown(function, open_run, close_run, &(subject))
#define TESTS(subject)                                                                             \
	TEST(test_chunks, subject), TEST(test_batch, subject), TEST(test_threads, subject),        \
		TEST(test_dispatcher, subject), TEST(test_streams, subject)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TESTS(subjects[0]),
		TESTS(subjects[1]),
		TESTS(subjects[2]),
		TEST(test_chunks, subjects[3]),
	};
	const char *name = getenv("NANOSERVE_TEST_BACKEND");
	struct nsv_err err = {""};

	int ret = nsv_backend_choose(name && *name ? name : "cpu", &backend, &err);
	if (ret < 0) {
		printf("%s: %s\n", ret == -ENOTSUP ? "skipped" : "failed", err.text);
		return ret != -ENOTSUP;
	}
	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
