/* The service manager's watchdog: each thread that stands still has the daemon restarted, and
 * streams go on. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/tools/ask.h"
#include "tests/tools/proc.h"
#include "tests/tools/service.h"
#include "tests/tools/tiny.h"
#include "tests/tools/wait.h"

#define N_TOKEN 200
#define LOG_TOKENS 64 /* a stream stands still there until it is read */
#define INTERVAL "4000000" /* microseconds */

static struct nsv_test_service service;
static char model[64];

static int start(void **state)
{
	const char *extra[] = {"--threads", "1", NULL};
	(void)state;

	nsv_tiny_model(model, sizeof(model));
	setenv("WATCHDOG_USEC", INTERVAL, 1);
	return nsv_test_service_start(&service, model, extra);
}

static int stop(void **state)
{
	(void)state;
	unlink(model);
	return nsv_test_service_stop(&service);
}

/* One daemon, in which the thread is held, and the next one. */
static void hold(const char *name)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	nsv_autofree struct nsv_answer *rest = malloc(sizeof(*rest));
	struct nsv_client_options o;
	struct nsv_client_params p;
	struct nsv_client *client;
	struct nsv_request *r;

	nsv_ask_options(&o);
	o.n_token = LOG_TOKENS;
	assert_int_equal(nsv_client_open(service.socket, &o, NULL, 0, &client), 0);
	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.max_tokens = N_TOKEN;
	assert_int_equal(nsv_client_submit_text(client, "go", 2, &p, &r), 0);
	assert_int_equal(nsv_ask_next(r, &chunk), 1);
	size_t n = chunk.n_token;

	pid_t pid = nsv_test_service_pid(&service), thread = nsv_proc_hold_thread(pid, name);
	assert_true(thread > 0);
	int status;
	assert_true(NSV_WAIT_FOR(waitpid(thread, &status, __WALL | WNOHANG) == thread));
	assert_true(WIFSIGNALED(status));
	nsv_ask_finish(client, 0, r, rest);
	assert_string_equal(rest->reason, "");
	assert_int_equal(n + rest->n_token, N_TOKEN);
	assert_int_not_equal(nsv_test_service_pid(&service), pid);
	nsv_client_close(client);
}

static void test_engine_thread(void **state)
{
	(void)state;
	hold("nsv-engine");
}

static void test_io_thread(void **state)
{
	(void)state;
	hold("nanoserved");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_engine_thread),
		cmocka_unit_test(test_io_thread),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
