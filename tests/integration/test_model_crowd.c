/* A daemon whose threads nobody numbered leaves a processor to a program that never waits, and
 * takes it back when that has gone. Daemon and program have the highest priority, so that what else
 * the machine does disturbs neither. */
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/proc.h"
#include "tests/tools/wait.h"

#define N_CPU 2
#define ENOUGH_NS 1000000000 /* of steps: ten times after what one may be too many */

static pid_t start(void (*run)(const char *socket), const char *socket)
{
	pid_t pid = nsv_proc_fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run(socket);
		_exit(1);
	}
	return pid;
}

static void stop(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void never_wait(const char *socket)
{
	(void)socket;
	for (volatile uint64_t n = 0;; n++)
		;
}

/* One answer after the other, read as it comes. */
static void keep_asking(const char *socket)
{
	struct nsv_client *client = nsv_ask_open(socket);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_client_params p;
	struct nsv_request *request;

	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.max_tokens = 1000;
	while (client && nsv_client_submit_text(client, "once", 4, &p, &request) == 0) {
		while (nsv_request_next(request, -1, &chunk) > 0)
			;
		nsv_request_free(request);
	}
}

/* Looks seldom enough to disturb nobody. */
static bool threads_become(struct nsv_client *client, int n)
{
	struct nsv_patience left = nsv_patience_begin(NSV_HANG_S, nsv_wait_clock_s());
	bool are;

	while (!(are = nsv_ask_status(client, "threads_now") == n) &&
		!nsv_patience_ends(&left, nsv_wait_clock_s()))
		usleep(20000);
	return are;
}

static void test_a_processor_is_left(void **state)
{
	const char *model = nsv_test_model();
	struct nsv_test_daemon d;
	cpu_set_t all;
	(void)state;

	if (!model || nsv_proc_stay_on(N_CPU, &all) < 0 || setpriority(PRIO_PROCESS, 0, -20) < 0) {
		print_message("needs the model, two processors and a right to priority\n");
		skip();
	}
	assert_int_equal(nsv_test_daemon_start(&d, model, NULL), 0);
	struct nsv_client *client = nsv_ask_open(d.socket);
	assert_non_null(client);
	assert_int_equal(nsv_ask_status(client, "threads"), N_CPU);
	assert_int_equal(nsv_ask_status(client, "threads_now"), N_CPU);
	pid_t asker = start(keep_asking, d.socket);
	for (int i = 0; i < 2; i++) {
		pid_t spinner = start(never_wait, NULL);
		assert_true(threads_become(client, 1));
		stop(spinner);
		assert_true(threads_become(client, N_CPU));
	}
	stop(asker);
	nsv_client_close(client);
	assert_int_equal(nsv_test_daemon_stop(&d, SIGTERM), 0);
}

/* Who says how many has so many. */
static void test_a_number_is_kept(void **state)
{
	static const char *const extra[] = {"--threads", "2", NULL};
	const char *model = nsv_test_model();
	struct nsv_test_daemon d;
	struct nsv_answer *a;
	(void)state;

	if (!model)
		skip();
	assert_int_equal(nsv_test_daemon_start(&d, model, extra), 0);
	struct nsv_client *client = nsv_ask_open(d.socket);
	pid_t spinners[4];
	for (size_t i = 0; i < NSV_ARRAY_LEN(spinners); i++)
		spinners[i] = start(never_wait, NULL);
	a = calloc(1, sizeof(*a));
	while (nsv_ask_status(client, "counters.step_ns") < ENOUGH_NS) {
		nsv_ask_hello(client, a);
		assert_int_equal(a->ret, 0);
		assert_int_equal(nsv_ask_status(client, "threads_now"), 2);
	}
	free(a);
	for (size_t i = 0; i < NSV_ARRAY_LEN(spinners); i++)
		stop(spinners[i]);
	nsv_client_close(client);
	assert_int_equal(nsv_test_daemon_stop(&d, SIGTERM), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_processor_is_left),
		cmocka_unit_test(test_a_number_is_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
