/* Some hundred sessions with one daemon: while they idle nothing runs, and when they have gone
 * descriptors and memory are what they were. (4,096 of them: make bench NAME=ipc.) */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/proc.h"
#include "tests/tools/raw.h"
#include "tests/tools/tiny.h"

#define N_SESSION 300
#define N_CYCLE 8

/* A kilobyte lost with each session would come to two megabytes, a page of each region to 20. The
 * session table's own pages, 4,096 records of 192 bytes, come into use one after the other. */
#define MOST_GROWTH (256 << 10)
#define MOST_SHARED_GROWTH (1 << 20)

static struct nsv_test_daemon served;
static struct nsv_client *control;
static struct nsv_raw sessions[N_SESSION];
static char model[64];

static int start(void **state)
{
	static const char *const extra[] = {"--kv-blocks", "64", "--threads", "1", NULL};
	(void)state;

	nsv_tiny_model(model, sizeof(model));
	if (nsv_test_daemon_start(&served, model, extra) < 0)
		return -1;
	control = nsv_ask_open(served.socket);
	return control ? 0 : -1;
}

static int stop(void **state)
{
	(void)state;
	nsv_client_close(control);
	unlink(model);
	return nsv_test_daemon_stop(&served, SIGTERM) == 0 ? 0 : -1;
}

/* From its page tables: the counters in its status may be off by some pages for each CPU. */
static long bytes_of(const char *kind)
{
	long n = nsv_proc_rollup(served.pid, kind);

	assert_true(n > 0);
	return n;
}

static void open_all(void)
{
	const struct nsv_geom want = {
		.n_sqe = 16, .n_slot = 1, .arena_len = 4096, .text_len = 1024};

	for (int i = 0; i < N_SESSION; i++)
		assert_int_equal(nsv_raw_open(&sessions[i], served.socket, &want), 0);
}

/* Each has been used. */
static void ask_all(void)
{
	const struct nsv_sqe nop = {.op = NSV_OP_NOP};
	struct nsv_cqe c;

	for (int i = 0; i < N_SESSION; i++)
		nsv_raw_put(&sessions[i], &nop);
	for (int i = 0; i < N_SESSION; i++) {
		assert_true(nsv_raw_next(&sessions[i], &c));
		assert_int_equal(c.kind, NSV_CQE_PONG);
	}
}

static void close_all(long n_fd_before)
{
	for (int i = 0; i < N_SESSION; i++)
		nsv_raw_close(&sessions[i]);
	assert_true(nsv_ask_status_until(control, "sessions", 1));
	assert_true(nsv_proc_fds_become(served.pid, n_fd_before));
}

static void test_nothing_is_left_of_sessions_that_went(void **state)
{
	struct nsv_answer *a = malloc(sizeof(*a));
	(void)state;

	/* What is made once is there after the first of each; what the control's welcome needed
	 * has gone when it is answered. */
	nsv_ask_hello(control, a);
	long n_fd = nsv_proc_fds(served.pid);
	open_all();
	ask_all();
	close_all(n_fd);
	long shared = bytes_of("Pss_Shmem:");
	long own = bytes_of("Pss_Anon:");
	for (int i = 0; i < N_CYCLE; i++) {
		open_all();
		assert_true(nsv_proc_fds(served.pid) >= n_fd + N_SESSION);
		ask_all();
		close_all(n_fd);
	}
	assert_true(bytes_of("Pss_Shmem:") - shared < MOST_SHARED_GROWTH);
#ifndef __SANITIZE_ADDRESS__ /* which keeps freed memory, and finds leaks by itself */
	assert_true(bytes_of("Pss_Anon:") - own < MOST_GROWTH);
#endif
	print_message("%d sessions, %d times: %ld descriptors, %ld bytes of its own more\n",
		N_SESSION, N_CYCLE, n_fd, bytes_of("Pss_Anon:") - own);
	nsv_ask_hello(control, a);
	assert_int_equal(a->n_token, 8);
	free(a);
}

/* A list longer than what is written of it at once: whole, and each of them once. */
static void test_a_status_names_all_sessions(void **state)
{
	static bool named[N_SESSION + 1];
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_request *request = NULL;
	long n_fd = nsv_proc_fds(served.pid);
	uint64_t first;
	json_t *session;
	size_t i;
	(void)state;

	open_all();
	first = sessions[0].welcome.session_id;
	int ret = nsv_client_status(control, &request);
	nsv_ask_finish(control, ret, request, a);
	assert_true(a->text_len < sizeof(a->text));
	json_t *root = json_loadb(a->text, a->text_len, 0, NULL);
	assert_int_equal(json_array_size(json_object_get(root, "sessions")), 1 + N_SESSION);
	memset(named, 0, sizeof(named));
	json_array_foreach (json_object_get(root, "sessions"), i, session) {
		uint64_t id = (uint64_t)json_integer_value(json_object_get(session, "id"));
		uint64_t at = id < first ? N_SESSION : id - first;
		assert_in_range(at, 0, N_SESSION);
		assert_false(named[at]);
		named[at] = true;
		/* This one itself does not count. */
		assert_int_equal(json_integer_value(json_object_get(session, "requests")), 0);
		if (at < N_SESSION)
			assert_int_equal(json_integer_value(json_object_get(session, "slots")), 1);
		assert_int_equal(json_integer_value(json_object_get(session, "pid")), getpid());
	}
	json_decref(root);
	close_all(n_fd);
}

static void test_idle_sessions_wake_nobody(void **state)
{
	long n_fd = nsv_proc_fds(served.pid);
	(void)state;

	open_all();
	ask_all();
	assert_true(nsv_proc_falls_asleep(served.pid));
	close_all(n_fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_is_left_of_sessions_that_went),
		cmocka_unit_test(test_a_status_names_all_sessions),
		cmocka_unit_test(test_idle_sessions_wake_nobody),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
