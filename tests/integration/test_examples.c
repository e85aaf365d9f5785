/* The examples in client/examples, run against a daemon: what they print is what the model says. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/rnd.h"
#include "tests/tools/tiny.h"

#define N_PROMPT 5

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static struct nsv_test_daemon served;
static char model[64];
static char prompts[N_PROMPT][24];
static char expected[N_PROMPT][NSV_ANSWER_TEXT];
static char out[1 << 20], err[65536];

static int ask_the_library(struct nsv_client *client, int i)
{
	const struct nsv_client_message question = {
		NSV_CLIENT_USER, prompts[i], strlen(prompts[i])};
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_request *request = NULL;
	int ret = nsv_client_submit_chat(client, &question, 1, NULL, &request);

	nsv_ask_finish(client, ret, request, a);
	memcpy(expected[i], a->text, a->text_len + 1);
	return a->ret;
}

/* Fresh prompts, and what is answered to each. */
static int start(void **state)
{
	struct nsv_client *client;
	int ret = 0;
	(void)state;

	t_seed();
	nsv_tiny_model(model, sizeof(model));
	if (nsv_test_daemon_start(&served, model, NULL) < 0)
		return -1;
	setenv("NANOSERVE_SOCKET", served.socket, 1);
	client = nsv_ask_open(served.socket);
	for (int i = 0; i < N_PROMPT && ret == 0; i++) {
		snprintf(prompts[i], sizeof(prompts[i]), "prompt %u", t_below(1000000));
		ret = ask_the_library(client, i);
	}
	nsv_client_close(client);
	return ret;
}

static int stop(void **state)
{
	(void)state;
	unlink(model);
	return nsv_test_daemon_stop(&served, SIGTERM);
}

static int run(const char *program, const char *a, const char *b, const char *c)
{
	const char *argv[] = {program, a, b, c, NULL};

	return nsv_test_run(argv, NULL, out, sizeof(out), err, sizeof(err));
}

static void test_first(void **state)
{
	(void)state;

	assert_int_equal(run(nsv_test_program("examples/first"), NULL, NULL, NULL), 0);
	assert_string_equal(err, "");
	assert_true(strlen(out) > 0);
}

static void test_epoll(void **state)
{
	(void)state;

	assert_int_equal(
		run(nsv_test_program("examples/epoll"), prompts[0], prompts[1], prompts[2]), 0);
	for (int i = 0; i < 3; i++) {
		const char *at = strstr(out, prompts[i]);
		assert_non_null(at);
		assert_memory_equal(at + strlen(prompts[i]) + 1, expected[i], strlen(expected[i]));
	}
}

static void test_io_uring(void **state)
{
	(void)state;

	assert_int_equal(run(nsv_test_program("examples/io_uring"), prompts[3], NULL, NULL), 0);
	assert_string_equal(out, expected[3]);
}

static void test_python(void **state)
{
	(void)state;

	if (SANITIZED) {
		print_message("skipped: python3 cannot load a library under a sanitizer\n");
		skip();
	}
	setenv("NANOSERVE_LIB", nsv_test_program("libnanoserve-client.so.0"), 1);
	assert_int_equal(
		run("/usr/bin/env", "python3", "client/examples/stream.py", prompts[4]), 0);
	assert_string_equal(out, expected[4]);
}

/* With no daemon there each fails, and says why. */
static void test_no_daemon(void **state)
{
	(void)state;

	setenv("NANOSERVE_SOCKET", "/nonexistent", 1);
	assert_int_equal(run(nsv_test_program("examples/epoll"), "x", NULL, NULL), 1);
	assert_non_null(strstr(err, "no daemon at /nonexistent"));
	assert_int_equal(run(nsv_test_program("examples/io_uring"), "x", NULL, NULL), 1);
	assert_non_null(strstr(err, "no daemon at /nonexistent"));
	if (!SANITIZED) {
		assert_int_equal(
			run("/usr/bin/env", "python3", "client/examples/stream.py", "x"), 1);
		assert_non_null(strstr(err, "no daemon at /nonexistent"));
	}
	setenv("NANOSERVE_SOCKET", served.socket, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_first),
		cmocka_unit_test(test_epoll),
		cmocka_unit_test(test_io_uring),
		cmocka_unit_test(test_python),
		cmocka_unit_test(test_no_daemon),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
