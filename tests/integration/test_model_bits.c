/* Promise 1 on the real model: a sequence's logits are the same bits however its prompt is cut,
 * whoever is in the batch, wherever its blocks lie, and on any number of threads. And every layer's
 * read of the cache goes through the dispatcher. $NANOSERVE_TEST_BACKEND chooses the backend (cpu).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "tests/tools/model-run.h"

#define N_PROMPT 300
#define N_DECODE 12
#define MAX_ROW 512
#define N_TOKEN 4096

static char model_path[512];
static const struct nsv_backend *backend;

static int32_t draw_token(const struct model_run *r)
{
	return (int32_t)((uint32_t)random() % r->n_vocab);
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
	struct model_run *r = *state;
	static const uint32_t chunks[] = {1, 16, 100, 3, N_PROMPT - 1};
	int32_t tokens[N_PROMPT + N_DECODE];
	float *want = new_logits(r, 1 + N_DECODE), *have = new_logits(r, 1 + N_DECODE);

	draw_tokens(r, tokens, N_PROMPT + N_DECODE);
	run_alone(r, tokens, N_PROMPT, N_PROMPT, want);
	for (size_t i = 0; i < NSV_ARRAY_LEN(chunks); i++) {
		run_alone(r, tokens, N_PROMPT, chunks[i], have);
		expect_same(r, have, want, 1 + N_DECODE, "chunks");
	}
	free(want);
	free(have);
}

/* Three sequences of different lengths: prefill beside decode, then all decode together. */
static void test_batch(void **state)
{
	enum { N = 3 };
	static const uint32_t n_prompt[N] = {N_PROMPT, 17, 65};
	struct model_run *r = *state;
	int32_t tokens[N][N_PROMPT + N_DECODE];
	struct model_seq seqs[N];
	float *want[N], *have = new_logits(r, N);

	for (int s = 0; s < N; s++) {
		draw_tokens(r, tokens[s], n_prompt[s] + N_DECODE);
		want[s] = new_logits(r, 1 + N_DECODE);
		run_alone(r, tokens[s], n_prompt[s], n_prompt[s], want[s]);
		model_seq_init(&seqs[s], n_prompt[s] + N_DECODE);
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
	struct model_run *r = *state;
	int32_t tokens[N_PROMPT + N_DECODE];
	float *want = new_logits(r, 1 + N_DECODE), *have = new_logits(r, 1 + N_DECODE);

	draw_tokens(r, tokens, N_PROMPT + N_DECODE);
	run_alone(r, tokens, N_PROMPT, 128, want);
	for (size_t i = 0; i < NSV_ARRAY_LEN(n_threads); i++) {
		struct model_run other;

		model_run_open(&other, model_path, backend, n_threads[i], MAX_ROW, N_TOKEN);
		run_alone(&other, tokens, N_PROMPT, 128, have);
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
	struct nsv_backend stub = *backend;
	struct model_run r;
	int32_t tokens[40];

	(void)state;
	stub.attention = counting_attention;
	model_run_open(&r, model_path, &stub, 2, MAX_ROW, N_TOKEN);
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

static int open_run(void **state)
{
	static struct model_run run;

	model_run_open(&run, model_path, backend, 2, MAX_ROW, N_TOKEN);
	*state = &run;
	return 0;
}

static int close_run(void **state)
{
	model_run_close(*state);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_batch),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_dispatcher),
	};
	const char *name = getenv("NANOSERVE_TEST_BACKEND"), *why;
	unsigned int seed = (unsigned int)time(NULL);
	struct nsv_err err = {""};

	if (!model_run_path(model_path, &why)) {
		printf("skipped: %s\n", why);
		return 0;
	}
	int ret = nsv_backend_choose(name && *name ? name : "cpu", &backend, &err);
	if (ret < 0) {
		printf("%s: %s\n", ret == -ENOTSUP ? "skipped" : "failed", err.text);
		return ret != -ENOTSUP;
	}
	printf("seed %u\n", seed);
	srandom(seed);
	return cmocka_run_group_tests(tests, open_run, close_run);
}
