/* The engine's first promise over a tiny model: a request's tokens, log-probabilities and text are
 * the same bits alone or in batches of 2, 7 and 32, in large chunks and small, with and without the
 * prefix cache, preempted by swap and by recompute, and on a device that runs ahead. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/tiny.h"

#define N_REQUEST 32

static char model[64];
static struct nsv_answer *alone; /* (N_REQUEST) */

static const char *const beginnings[] = {"You are a careful assistant. ",
	"You are a careful assistant. Answer in one word. ", "Once upon a time, ", ""};

static void make_prompt(int i, char *text, size_t len)
{
	int n = snprintf(text, len, "%s", beginnings[i % 4]);

	for (int k = 0; k < 3 + 11 * (i % 7) && n < (int)len - 1; k++)
		text[n++] = (char)('a' + (i * 7 + k * k) % 26);
	text[n] = '\0';
}

static void make_params(int i, struct nsv_client_params *p, const char **stop)
{
	nsv_client_params_init(p);
	p->max_tokens = 20 + 9 * (uint32_t)(i % 9);
	p->flags = NSV_CLIENT_SEED | NSV_CLIENT_LOGPROBS | NSV_CLIENT_IGNORE_END;
	p->n_logprob = 2;
	p->seed = 1000 + (uint64_t)i;
	if (i % 3) {
		p->temperature = 0.7f + 0.1f * (float)(i % 4);
		p->top_k = i % 5 ? 40 : 0;
		p->top_p = 0.95f;
	}
	if (i % 4 == 1)
		p->repetition_penalty = 1.2f;
	if (i % 5 == 2)
		p->presence_penalty = 0.4f;
	if (i % 6 == 5) {
		*stop = "e";
		p->stop = stop;
		p->n_stop = 1;
	}
}

static int submit(struct nsv_client *client, int i, struct nsv_request **ret)
{
	struct nsv_client_params p;
	const char *stop;
	char text[256];

	make_prompt(i, text, sizeof(text));
	make_params(i, &p, &stop);
	return nsv_client_submit_text(client, text, strlen(text), &p, ret);
}

static struct nsv_client *open_wide(const struct nsv_test_daemon *d)
{
	struct nsv_client_options o;
	struct nsv_client *client;

	nsv_ask_options(&o);
	o.n_slot = N_REQUEST;
	assert_int_equal(nsv_client_open(d->socket, &o, NULL, 0, &client), 0);
	return client;
}

static void compare(const struct nsv_answer *a, int i)
{
	assert_string_equal(a->reason, "");
	assert_int_equal(a->n_token, alone[i].n_token);
	assert_memory_equal(a->tokens, alone[i].tokens, a->n_token * sizeof(a->tokens[0]));
	assert_int_equal(a->n_lp, alone[i].n_lp);
	assert_memory_equal(a->lps, alone[i].lps, a->n_lp * sizeof(a->lps[0]));
	assert_string_equal(a->text, alone[i].text);
	assert_int_equal(a->result.finish, alone[i].result.finish);
}

/* n at once, some neighbours cancelled in mid-stream. */
static void run_batch(struct nsv_client *client, int first, int n, bool cancel_some)
{
	struct nsv_request *reqs[N_REQUEST];
	struct nsv_answer *a = malloc(sizeof(*a));

	for (int i = 0; i < n; i++)
		assert_int_equal(submit(client, first + i, &reqs[i]), 0);
	for (int i = 0; i < n; i++)
		if (cancel_some && i % 4 == 3) {
			nsv_request_free(reqs[i]);
		} else {
			nsv_ask_finish(client, 0, reqs[i], a);
			compare(a, first + i);
		}
	free(a);
}

static void run_together(const struct nsv_test_daemon *d, int n, bool cancel_some)
{
	struct nsv_client *client = open_wide(d);

	for (int first = 0; first + n <= N_REQUEST; first += n)
		run_batch(client, first, n, cancel_some);
	nsv_client_close(client);
}

static int start_alone(void **state)
{
	static const char *const extra[] = {"--no-prefix-cache", NULL};
	struct nsv_test_daemon d;
	(void)state;

	nsv_tiny_model(model, sizeof(model));
	alone = calloc(N_REQUEST, sizeof(*alone));
	if (nsv_test_daemon_start(&d, model, extra) < 0)
		return -1;
	struct nsv_client *client = nsv_ask_open(d.socket);
	for (int i = 0; i < N_REQUEST; i++) {
		struct nsv_request *r = NULL;
		int ret = submit(client, i, &r);
		nsv_ask_finish(client, ret, r, &alone[i]);
	}
	nsv_client_close(client);
	return nsv_test_daemon_stop(&d, SIGTERM);
}

static int stop(void **state)
{
	(void)state;
	free(alone);
	return unlink(model);
}

static void run_daemon(const char *const *extra, const char *counter)
{
	struct nsv_test_daemon d;

	assert_int_equal(nsv_test_daemon_start(&d, model, extra), 0);
	for (int i = 0; i < 3; i++)
		run_together(&d, N_REQUEST, i == 1);
	struct nsv_client *client = nsv_ask_open(d.socket);
	/* A client that is held up gives them one after the other: then once more. */
	for (int i = 0; counter && nsv_ask_status(client, counter) == 0; i++) {
		assert_true(i < 20);
		run_together(&d, N_REQUEST, false);
	}
	assert_int_equal(nsv_ask_status(client, "counters.audits_failed"), 0);
	long long total = nsv_ask_status(client, "blocks.total");
	assert_true(nsv_ask_status_until(client, "blocks.free", total));
	nsv_client_close(client);
	assert_int_equal(nsv_test_daemon_stop(&d, SIGTERM), 0);
}

#define RUN(counter, ...) run_daemon((const char *const[]){__VA_ARGS__, NULL}, counter)

static void test_batches(void **state)
{
	static const int sizes[] = {1, 2, 7, 32};
	struct nsv_test_daemon d;
	(void)state;

	assert_int_equal(nsv_test_daemon_start(&d, model, NULL), 0);
	for (size_t i = 0; i < NSV_ARRAY_LEN(sizes); i++)
		run_together(&d, sizes[i], false);
	assert_int_equal(nsv_test_daemon_stop(&d, SIGTERM), 0);
}

static void test_together(void **state)
{
	(void)state;
	RUN(NULL, "--no-prefix-cache");
	RUN("counters.cached_tokens", "--threads", "2");
}

static void test_chunks(void **state)
{
	(void)state;
	RUN(NULL, "--batch-tokens", "1");
	RUN(NULL, "--batch-tokens", "16", "--no-prefix-cache");
	RUN(NULL, "--batch-tokens", "100");
}

static void test_preempted(void **state)
{
	(void)state;
	/* the longest needs 13 blocks */
	RUN("counters.preemptions", "--kv-blocks", "16", "--no-prefix-cache");
	RUN("counters.preemptions", "--kv-blocks", "24", "--batch-tokens", "40");
}

static void test_swapped(void **state)
{
	(void)state;
	RUN("counters.blocks_swapped_in", "--kv-blocks", "16", "--swap-blocks", "100",
		"--no-prefix-cache");
	/* room for some, the others are computed again */
	RUN("counters.blocks_swapped_out", "--kv-blocks", "24", "--swap-blocks", "7");
	RUN("counters.blocks_swapped_in", "--kv-blocks", "20", "--swap-blocks", "30",
		"--batch-tokens", "9", "--run-ahead", "3");
}

static void test_ahead(void **state)
{
	(void)state;
	RUN(NULL, "--run-ahead", "2");
	RUN(NULL, "--run-ahead", "3", "--no-prefix-cache", "--batch-tokens", "20");
	RUN("counters.preemptions", "--run-ahead", "3", "--kv-blocks", "20");
	RUN("counters.preemptions", "--run-ahead", "4", "--kv-blocks", "16", "--batch-tokens", "7");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_batches),
		cmocka_unit_test(test_together),
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_preempted),
		cmocka_unit_test(test_swapped),
		cmocka_unit_test(test_ahead),
	};

	return cmocka_run_group_tests(tests, start_alone, stop);
}
