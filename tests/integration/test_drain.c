/* A daemon that drains: what runs ends well, nothing begins, and then it exits; who may ask for it,
 * taking it back, and the daemon that comes after. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/tools/ask.h"
#include "tests/tools/proc.h"
#include "tests/tools/rnd.h"
#include "tests/tools/serve.h"
#include "tests/tools/service.h"
#include "tests/tools/tiny.h"
#include "tests/tools/users.h"
#include "tests/tools/wait.h"

#define N_TOKEN 200
#define LOG_TOKENS 64 /* a stream stands still there until it is read */

static struct nsv_served served;

static int start(void **state)
{
	(void)state;
	t_seed();
	return 0;
}

/* ---- Requests */

static struct nsv_client_params long_answer(void)
{
	struct nsv_client_params p;

	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.max_tokens = N_TOKEN;
	return p;
}

static struct nsv_client *open_narrow(const char *socket)
{
	struct nsv_client_options o;
	struct nsv_client *client = NULL;

	nsv_ask_options(&o);
	o.n_token = LOG_TOKENS;
	assert_int_equal(nsv_client_open(socket, &o, NULL, 0, &client), 0);
	return client;
}

/* A stream that is under way for sure: nobody has read all of it. */
struct stream {
	struct nsv_client *client;
	struct nsv_request *request;
	size_t n_token;
};

static struct stream begin_stream(const char *socket)
{
	struct nsv_client_params p = long_answer();
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct stream s = {.client = open_narrow(socket)};

	assert_int_equal(nsv_client_submit_text(s.client, "go", 2, &p, &s.request), 0);
	assert_int_equal(nsv_ask_next(s.request, &chunk), 1);
	s.n_token = chunk.n_token;
	assert_true(s.n_token < N_TOKEN);
	return s;
}

static void end_stream(struct stream *s)
{
	nsv_autofree struct nsv_answer *rest = malloc(sizeof(*rest));

	nsv_ask_finish(s->client, 0, s->request, rest);
	assert_string_equal(rest->reason, "");
	assert_int_equal(rest->ret, 0);
	assert_int_equal(s->n_token + rest->n_token, N_TOKEN);
}

/* The code of the request's end: 0: it is done. */
static uint32_t drain(struct nsv_client *client, int begin)
{
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_request *r = NULL;
	int ret = nsv_client_drain(client, begin, &r);

	nsv_ask_finish(client, ret, r, a);
	assert_int_equal(a->ret, 0);
	assert_int_equal(a->text_len, 0);
	return a->result.code;
}

/* Ids of a text that is too long for the log: they flow as they are read. */
static struct nsv_request *begin_output(struct nsv_client *client)
{
	struct nsv_request *r;
	char text[8 * LOG_TOKENS];

	memset(text, 'x', sizeof(text));
	assert_int_equal(nsv_client_tokenize(client, text, sizeof(text), 0, &r), 0);
	return r;
}

static void expect_refused(struct nsv_client *client, int submit_ret, struct nsv_request **r)
{
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));

	nsv_ask_finish(client, submit_ret, *r, a);
	assert_int_equal(a->ret, 0);
	assert_int_equal(a->result.finish, NSV_CLIENT_FINISH_ERROR);
	assert_int_equal(a->result.code, NSV_CLIENT_CODE_STOPPING);
	assert_non_null(strstr(a->reason, "is draining"));
}

static bool is_draining(struct nsv_client *client)
{
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_request *r = NULL;
	int ret = nsv_client_status(client, &r);

	nsv_ask_finish(client, ret, r, a);
	assert_string_equal(a->reason, "");
	return memmem(a->text, a->text_len, "\"draining\":true", 15) != NULL;
}

/* The daemon's exit, which nobody asks for again: its wait status. */
static int wait_for_exit(void)
{
	struct nsv_served *s = &served;

	unlink(s->config);
	unlink(s->model);
	return nsv_test_daemon_stop(&s->daemon, 0);
}

static int nanoserve(const char *option, char *err, size_t err_len)
{
	const char *argv[] = {nsv_test_program("nanoserve"), "--socket", served.daemon.socket,
		"drain", option, NULL};
	char out[256];

	return nsv_test_run(argv, NULL, out, sizeof(out), err, err_len);
}

/* ---- Tests */

static void test_what_runs_ends_and_nothing_begins(void **state)
{
	struct nsv_client_params p = long_answer();
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r = NULL;
	(void)state;

	nsv_serve(&served, "{}");
	struct stream s = begin_stream(served.daemon.socket);
	struct nsv_request *output = begin_output(s.client);
	struct nsv_client *client = nsv_serve_open(&served);
	assert_false(is_draining(client));
	assert_int_equal(drain(client, 1), 0);
	assert_true(is_draining(client));
	assert_int_equal(drain(client, 1), 0);
	expect_refused(client, nsv_client_submit_text(client, "x", 1, &p, &r), &r);
	p.n_branch = 3;
	expect_refused(client, nsv_client_submit_text(client, "x", 1, &p, &r), &r);
	expect_refused(s.client, nsv_request_fork(s.request, 1, &r), &r);
	struct nsv_client *late = nsv_serve_open(&served);
	expect_refused(late, nsv_client_submit_text(late, "x", 1, NULL, &r), &r);
	end_stream(&s);
	assert_true(is_draining(client));
	assert_int_equal(nsv_ask_collect(output, &chunk), 0);
	assert_true(chunk.n_token > LOG_TOKENS);
	assert_int_equal(wait_for_exit(), 0);
	assert_int_equal(nsv_ask_ping(client), -ECONNRESET);
	assert_int_equal(nsv_client_end_code(client), NSV_CLIENT_END_STOPPED);
	nsv_client_close(client);
	nsv_client_close(late);
	nsv_client_close(s.client);
}

/* The end comes while the output of the last request lies unread, and is read all the same. */
static void test_what_was_written_can_be_read(void **state)
{
	struct nsv_client_params p = long_answer();
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_request *r;
	(void)state;

	nsv_serve(&served, "{}");
	struct nsv_client *client = nsv_serve_open(&served), *other = nsv_serve_open(&served);
	p.max_tokens = 1 + t_below(N_TOKEN);
	assert_int_equal(nsv_client_submit_text(client, "go", 2, &p, &r), 0);
	/* Taken before the drain is. */
	assert_true(NSV_WAIT_FOR(nsv_ask_status(other, "counters.accepted") == 1));
	assert_int_equal(drain(other, 1), 0);
	assert_int_equal(wait_for_exit(), 0);
	nsv_ask_finish(client, 0, r, a);
	assert_string_equal(a->reason, "");
	assert_int_equal(a->n_token, p.max_tokens);
	nsv_client_close(client);
	nsv_client_close(other);
}

/* A daemon that is too busy to answer in the time given is given more. */
static void expect_still_run(void)
{
	char err[256] = "does not answer", option[32], sentence[64];
	int ret = 1;

	for (int s = 1; strstr(err, "does not answer"); s *= 2) {
		snprintf(option, sizeof(option), "--timeout=%d", s);
		snprintf(sentence, sizeof(sentence), "still run after %d s", s);
		ret = nanoserve(option, err, sizeof(err));
	}
	assert_int_equal(ret, 1);
	assert_non_null(strstr(err, sentence));
}

static void test_taken_back(void **state)
{
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	char err[256];
	(void)state;

	nsv_serve(&served, "{}");
	struct stream s = begin_stream(served.daemon.socket);
	assert_int_equal(nanoserve(NULL, err, sizeof(err)), 0);
	assert_true(is_draining(s.client));
	expect_still_run();
	assert_int_equal(nanoserve("--cancel", err, sizeof(err)), 0);
	assert_false(is_draining(s.client));
	end_stream(&s);
	nsv_serve_ask(s.client, a);
	assert_string_equal(a->reason, "");
	nsv_client_close(s.client);
	nsv_serve_end(&served);
}

/* Outputs that are asked for later, and never read, hold up nobody. */
static void test_later_outputs_are_not_waited_for(void **state)
{
	struct nsv_client *client;
	(void)state;

	nsv_serve(&served, "{}");
	struct stream s = begin_stream(served.daemon.socket);
	client = open_narrow(served.daemon.socket);
	assert_int_equal(drain(client, 1), 0);
	(void)begin_output(client);
	(void)begin_output(client);
	assert_true(is_draining(client)); /* they have begun */
	end_stream(&s);
	assert_true(NSV_WAIT_FOR(nsv_test_daemon_logged(&served.daemon, "drained: stopping")));
	assert_int_equal(wait_for_exit(), 0);
	nsv_client_close(client);
	nsv_client_close(s.client);
}

/* A child that drains and waits; in *ret_s the time given, in which it was able to ask. */
static pid_t begin_drain(char *err, int *ret_s)
{
	const char *log = served.daemon.log;
	char option[32];

	for (int s = 3;; s *= 2) {
		unsigned int n = nsv_test_logged(log, ": drain");
		bool asked = false;
		snprintf(option, sizeof(option), "--timeout=%d", s);
		pid_t pid = nsv_proc_fork();
		if (pid == 0)
			_exit(nanoserve(option, err, NSV_PAGE));
		assert_true(NSV_WAIT_FOR((asked = nsv_test_logged(log, ": drain") > n) ||
					 waitpid(pid, NULL, WNOHANG) == pid));
		*ret_s = s;
		if (asked)
			return pid;
	}
}

/* The time given is all of it, also where the daemon stops to answer. */
static void test_in_the_time_given(void **state)
{
	char *err = mmap(NULL, NSV_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char still[64], none[64];
	int timeout_s;
	(void)state;

	nsv_serve(&served, "{}");
	struct stream s = begin_stream(served.daemon.socket);
	pid_t pid = begin_drain(err, &timeout_s);
	kill(served.daemon.pid, SIGSTOP);
	assert_int_equal(nsv_user_end(pid), 1);
	snprintf(still, sizeof(still), "still run after %d s", timeout_s);
	snprintf(none, sizeof(none), "does not answer after %d s", timeout_s);
	if (!strstr(err, still)) /* it may have come to an end before the stop */
		assert_non_null(strstr(err, none));
	assert_int_equal(nanoserve("--timeout=1", err, NSV_PAGE), 3);
	assert_non_null(strstr(err, "does not answer"));
	kill(served.daemon.pid, SIGCONT);
	end_stream(&s);
	assert_int_equal(wait_for_exit(), 0);
	nsv_client_close(s.client);
	munmap(err, NSV_PAGE);
}

/* With nothing under way it ends at once; whoever waits for that is told. */
static void test_idle(void **state)
{
	char err[256];
	(void)state;

	nsv_serve(&served, "{}");
	struct nsv_client *client = nsv_serve_open(&served);
	assert_int_equal(nanoserve("--wait", err, sizeof(err)), 0);
	assert_string_equal(err, "");
	assert_int_equal(wait_for_exit(), 0);
	assert_int_equal(nsv_ask_wait(client), -ECONNRESET);
	assert_int_equal(nsv_client_end_code(client), NSV_CLIENT_END_STOPPED);
	assert_int_equal(nanoserve(NULL, err, sizeof(err)), 3); /* no daemon */
	nsv_client_close(client);
}

/* ---- Who may ask */

static int be_refused(void *arg)
{
	struct nsv_client *client = nsv_ask_open(served.daemon.socket);
	(void)arg;

	NSV_EXPECT(client);
	NSV_EXPECT(drain(client, 1) == NSV_CLIENT_CODE_DENIED);
	NSV_EXPECT(drain(client, 0) == NSV_CLIENT_CODE_DENIED);
	NSV_EXPECT(!is_draining(client));
	nsv_client_close(client);
	return 0;
}

static int drain_and_cancel(void *arg)
{
	const struct stream *busy = arg;
	struct nsv_client *client = nsv_ask_open(served.daemon.socket);

	NSV_EXPECT(client && busy->request);
	NSV_EXPECT(drain(client, 1) == 0);
	NSV_EXPECT(is_draining(client));
	NSV_EXPECT(drain(client, 0) == 0);
	nsv_client_close(client);
	return 0;
}

static void test_who_may_ask(void **state)
{
	(void)state;

	nsv_user_need_root();
	nsv_serve(&served, "{}");
	struct stream s = begin_stream(served.daemon.socket);
	assert_int_equal(nsv_user_end(nsv_user_begin(NSV_USER_A, be_refused, NULL)), 0);
	pid_t member = nsv_user_begin_in(NSV_USER_B, getegid(), drain_and_cancel, &s);
	assert_int_equal(nsv_user_end(member), 0);
	end_stream(&s);
	nsv_client_close(s.client);
	nsv_serve_end(&served);
}

/* ---- The next daemon */

static struct nsv_test_service service;

static void wait_for_next(unsigned int n_ready)
{
	assert_true(NSV_WAIT_FOR(nsv_test_service_logged(&service, "ready after") > n_ready));
}

/* It does not drain, and streams go on if the last one was killed; sessions of one that was drained
 * have ended, and it is one that served well. */
static void test_the_next_daemon_serves(void **state)
{
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	char model[64];
	(void)state;

	nsv_tiny_model(model, sizeof(model));
	assert_int_equal(nsv_test_service_start(&service, model, NULL), 0);
	struct stream s = begin_stream(service.socket);
	assert_int_equal(drain(s.client, 1), 0);
	nsv_test_service_kill(&service, t_below(2) ? SIGKILL : SIGTERM);
	wait_for_next(1);
	assert_false(is_draining(s.client));
	nsv_serve_ask(s.client, a);
	assert_string_equal(a->reason, "");
	assert_int_equal(drain(s.client, 1), 0);
	end_stream(&s);
	wait_for_next(2);
	assert_int_equal(nsv_ask_wait(s.client), -ECONNRESET);
	assert_int_equal(nsv_client_end_code(s.client), NSV_CLIENT_END_STOPPED);
	nsv_client_close(s.client);
	struct nsv_client *client = nsv_ask_open(service.socket);
	assert_false(is_draining(client));
	nsv_serve_ask(client, a);
	assert_string_equal(a->reason, "");
	nsv_client_close(client);
	assert_int_equal(nsv_test_service_logged(&service, "drained: stopping"), 1);
	assert_int_equal(nsv_test_service_stop(&service), 0);
	unlink(model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_runs_ends_and_nothing_begins),
		cmocka_unit_test(test_what_was_written_can_be_read),
		cmocka_unit_test(test_taken_back),
		cmocka_unit_test(test_later_outputs_are_not_waited_for),
		cmocka_unit_test(test_in_the_time_given),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_who_may_ask),
		cmocka_unit_test(test_the_next_daemon_serves),
	};

	return cmocka_run_group_tests(tests, start, NULL);
}
