/* Sessions outlive the daemon: killed, stopped and restarted under the stand-in for the service
 * manager, with streams, queues, outputs and hellos under way. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/seqs.h"
#include "tests/tools/ask.h"
#include "tests/tools/proc.h"
#include "tests/tools/raw.h"
#include "tests/tools/rnd.h"
#include "tests/tools/service.h"
#include "tests/tools/tiny.h"
#include "tests/tools/wait.h"

#define N_TOKEN 300 /* of a long answer */
#define LOG_TOKENS 64

static char model[64];
static struct nsv_test_service service;

static int start(void **state)
{
	(void)state;
	t_seed();
	nsv_proc_raise_fds();
	nsv_tiny_model(model, sizeof(model));
	return nsv_test_service_start(&service, model, NULL);
}

static int tidy(void **state)
{
	(void)state;
	return nsv_test_service_tidy(&service, model, NULL);
}

static int stop(void **state)
{
	(void)state;
	int ret = nsv_test_service_stop(&service);
	return unlink(model) < 0 ? -1 : ret;
}

/* Sanitizers make each of these take seconds. */
static int n_round(int n, int n_quick)
{
	return getenv("NANOSERVE_QUICK") ? n_quick : n;
}

/* Logs that hold little: a stream is held up where its reader is, so that it is under way for
 * sure. */
static struct nsv_client *open_narrow_at(const char *socket, uint32_t n_slot)
{
	struct nsv_client_options o;
	struct nsv_client *client = NULL;
	char text[256] = "";

	nsv_ask_options(&o);
	o.n_slot = n_slot;
	o.n_token = LOG_TOKENS;
	if (nsv_client_open(socket, &o, text, sizeof(text), &client) < 0)
		fail_msg("%s", text);
	return client;
}

static struct nsv_client *open_narrow(uint32_t n_slot)
{
	return open_narrow_at(service.socket, n_slot);
}

static struct nsv_client_params long_answer(uint64_t seed)
{
	struct nsv_client_params p;

	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_SEED | NSV_CLIENT_IGNORE_END | NSV_CLIENT_LOGPROBS;
	p.seed = seed;
	p.temperature = 1;
	p.n_logprob = 1;
	p.max_tokens = N_TOKEN;
	return p;
}

/* The audit that a signal asks for finds everything accounted for. */
static void check_audit(void)
{
	unsigned int before = nsv_test_service_logged(&service, "all accounted for");

	kill(nsv_test_service_pid(&service), SIGUSR1);
	if (!NSV_WAIT_FOR(nsv_test_service_logged(&service, "all accounted for") > before))
		fail_msg("no audit, or one that found something");
}

static void check_same(const struct nsv_answer *a, const struct nsv_answer *b)
{
	if (a->ret != 0 || a->result.code != 0)
		fail_msg("%d, code %u: %s", a->ret, a->result.code, a->reason);
	assert_int_equal(a->result.finish, b->result.finish);
	assert_int_equal(a->n_token, b->n_token);
	assert_memory_equal(a->tokens, b->tokens, a->n_token * sizeof(*a->tokens));
	assert_int_equal(a->text_len, b->text_len);
	assert_memory_equal(a->text, b->text, a->text_len);
	assert_int_equal(a->n_lp, b->n_lp);
	assert_memory_equal(a->lps, b->lps, a->n_lp * sizeof(*a->lps));
}

/* ---- Streams */

static void append(void *to, const void *from, size_t len)
{
	if (len > 0) /* else `from` may be NULL */
		memcpy(to, from, len);
}

/* Takes what has come into *a: at least one chunk. */
static void read_some(struct nsv_request *r, struct nsv_answer *a)
{
	struct nsv_client_chunk c = {.size = sizeof(c)};

	assert_int_equal(nsv_ask_next(r, &c), 1);
	append(a->tokens + a->n_token, c.tokens, c.n_token * sizeof(*c.tokens));
	append(a->lps + a->n_lp, c.lps, c.n_lp * sizeof(*c.lps));
	append(a->text + a->text_len, c.text, c.text_len);
	a->n_token += c.n_token;
	a->n_lp += c.n_lp;
	a->text_len += c.text_len;
}

static void read_rest(struct nsv_client *client, struct nsv_request *r, struct nsv_answer *a)
{
	nsv_autofree struct nsv_answer *rest = malloc(sizeof(*rest));

	nsv_ask_finish(client, 0, r, rest);
	memcpy(a->tokens + a->n_token, rest->tokens, rest->n_token * sizeof(*rest->tokens));
	memcpy(a->lps + a->n_lp, rest->lps, rest->n_lp * sizeof(*rest->lps));
	memcpy(a->text + a->text_len, rest->text, rest->text_len);
	a->n_token += rest->n_token;
	a->n_lp += rest->n_lp;
	a->text_len += rest->text_len;
	a->ret = rest->ret;
	a->result = rest->result;
	memcpy(a->reason, rest->reason, sizeof(a->reason));
}

/* Until the next one serves: one that still starts is neither killed nor stopped. */
static void kill_and_wait(int sig)
{
	unsigned int n = nsv_test_service_logged(&service, "ready after");

	nsv_test_service_kill(&service, sig);
	assert_true(NSV_WAIT_FOR(nsv_test_service_logged(&service, "ready after") > n));
}

static void test_a_stream_goes_on(void **state)
{
	static const int signals[] = {SIGKILL, SIGTERM, SIGKILL};
	struct nsv_client *client = open_narrow(4);
	nsv_autofree struct nsv_answer *alone = malloc(sizeof(*alone));
	nsv_autofree struct nsv_answer *a = calloc(1, sizeof(*a));
	struct nsv_client_params p = long_answer(t_rand());
	struct nsv_request *r;
	uint64_t id = nsv_client_session_id(client);
	unsigned int n_cut_off = nsv_test_service_logged(&service, "previous daemon was cut off");
	(void)state;

	nsv_ask_text(client, "a stream", &p, alone);
	assert_int_equal(alone->n_token, N_TOKEN);
	assert_int_equal(nsv_client_submit_text(client, "a stream", 8, &p, &r), 0);
	for (size_t i = 0; i < NSV_ARRAY_LEN(signals); i++) {
		read_some(r, a);
		kill_and_wait(signals[i]);
	}
	assert_true(a->n_token < N_TOKEN);
	read_rest(client, r, a);
	check_same(a, alone);
	assert_int_equal(nsv_client_session_id(client), id);
	assert_true(nsv_test_service_logged(&service, "previous daemon was cut off") > n_cut_off);
	nsv_client_close(client);
	check_audit();
}

/* Ended and read, ended and not read, running, held up, waiting: all in one session. */
static void test_requests_in_every_state(void **state)
{
	enum { N = 12 };
	struct nsv_client *client = open_narrow(N);
	struct nsv_answer *alone = calloc(N, sizeof(*alone)), *a = calloc(1, sizeof(*a));
	struct nsv_client_params p[N];
	struct nsv_request *r[N];
	char prompt[N][32];
	(void)state;

	for (int i = 0; i < N; i++) {
		p[i] = long_answer(t_rand());
		p[i].max_tokens = i % 3 == 0 ? 1 + t_below(4) : N_TOKEN;
		snprintf(prompt[i], sizeof(prompt[i]), "prompt %d", i);
		nsv_ask_text(client, prompt[i], &p[i], &alone[i]);
	}
	for (int round = 0; round < n_round(4, 1); round++) {
		for (int i = 0; i < N; i++)
			assert_int_equal(nsv_client_submit_text(client, prompt[i],
						 strlen(prompt[i]), &p[i], &r[i]),
				0);
		usleep(t_below(30000));
		nsv_test_service_kill(&service, SIGKILL);
		for (int i = 0; i < N; i++) {
			nsv_ask_finish(client, 0, r[i], a);
			check_same(a, &alone[i]);
		}
	}
	nsv_client_close(client);
	free(alone);
	free(a);
	check_audit();
}

/* Entries that no daemon has looked at, behind a long prompt that holds the ring's head back. */
static void test_entries_are_taken_once(void **state)
{
	enum { N = 6, LONG = 400000 };
	struct nsv_client *client = open_narrow(N);
	struct nsv_answer *alone = calloc(N, sizeof(*alone)), *a = calloc(1, sizeof(*a));
	nsv_autofree char *text = malloc(LONG);
	struct nsv_client_params p = long_answer(t_rand());
	struct nsv_request *r[N], *tokens;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	(void)state;

	memset(text, 'x', LONG);
	p.max_tokens = 3;
	for (int i = 0; i < N; i++)
		nsv_ask_text(client, "short", &p, &alone[i]);
	for (int round = 0; round < n_round(6, 2); round++) {
		if (round % 2 == 0)
			kill(nsv_test_service_pid(&service), SIGSTOP);
		assert_int_equal(nsv_client_tokenize(client, text, LONG, 0, &tokens), 0);
		for (int i = 1; i < N; i++)
			assert_int_equal(nsv_client_submit_text(client, "short", 5, &p, &r[i]), 0);
		if (round % 2 != 0) { /* one has ended, its slot is used again */
			nsv_ask_finish(client, 0, r[1], a);
			check_same(a, &alone[1]);
			assert_int_equal(nsv_client_submit_text(client, "short", 5, &p, &r[1]), 0);
		}
		nsv_test_service_kill(&service, SIGKILL);
		for (int i = 1; i < N; i++) {
			nsv_ask_finish(client, 0, r[i], a);
			check_same(a, &alone[i]);
		}
		assert_int_equal(nsv_ask_collect(tokens, &chunk), 0);
		assert_true(chunk.n_token > 0);
		nsv_request_free(tokens);
	}
	nsv_client_close(client);
	free(alone);
	free(a);
	check_audit();
}

/* ---- Outputs, hellos, absence */

static void test_an_output_is_asked_for_again(void **state)
{
	struct nsv_client *client = open_narrow(2);
	struct nsv_request *r;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_client_result result = {.size = sizeof(result)};
	char text[4000];
	int32_t first[8 * LOG_TOKENS];
	size_t n = 0;
	(void)state;

	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = (char)('a' + t_below(26));
	assert_int_equal(nsv_client_tokenize(client, text, sizeof(text), 0, &r), 0);
	assert_int_equal(nsv_ask_collect(r, &chunk), 0);
	size_t n_whole = chunk.n_token;
	nsv_autofree int32_t *whole = malloc(n_whole * sizeof(*whole));
	memcpy(whole, chunk.tokens, n_whole * sizeof(*whole));
	nsv_request_free(r);
	assert_true(n_whole > 2 * LOG_TOKENS);

	assert_int_equal(nsv_client_tokenize(client, text, sizeof(text), 0, &r), 0);
	assert_int_equal(nsv_ask_next(r, &chunk), 1);
	n = chunk.n_token;
	assert_true(n <= NSV_ARRAY_LEN(first) && n < n_whole);
	memcpy(first, chunk.tokens, n * sizeof(*first));
	nsv_test_service_kill(&service, SIGKILL);
	assert_int_equal(nsv_ask_collect(r, &chunk), 0);
	assert_int_equal(nsv_request_result(r, &result), 0);
	assert_int_equal(result.code, 0);
	assert_int_equal(n + chunk.n_token, n_whole);
	assert_memory_equal(first, whole, n * sizeof(*whole));
	assert_memory_equal(chunk.tokens, whole + n, chunk.n_token * sizeof(*whole));
	nsv_request_free(r);
	nsv_client_close(client);
}

/* Says in *arg which thread it is. */
static void *open_client(void *arg)
{
	struct nsv_client_options o;
	struct nsv_client *client = NULL;

	__atomic_store_n((pid_t *)arg, gettid(), __ATOMIC_RELEASE);
	nsv_ask_options(&o);
	return nsv_client_open(service.socket, &o, NULL, 0, &client) == 0 ? client : NULL;
}

static pid_t load_tid(const pid_t *tid)
{
	return __atomic_load_n(tid, __ATOMIC_ACQUIRE);
}

/* Connections whose hello nobody has answered when the daemon dies, and one without. */
static void test_a_hello_is_said_again(void **state)
{
	pthread_t threads[2];
	pid_t tids[2] = {0};
	void *client;
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	(void)state;

	kill(nsv_test_service_pid(&service), SIGSTOP);
	int waiting = nsv_raw_connect(service.socket);
	assert_true(waiting >= 0);
	for (size_t i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, open_client, &tids[i]);
	for (size_t i = 0; i < 2; i++)
		assert_true(NSV_WAIT_FOR(load_tid(&tids[i]) > 0) &&
			    nsv_proc_waits_in(tids[i], SYS_poll));
	nsv_test_service_kill(&service, SIGKILL);
	for (size_t i = 0; i < 2; i++) {
		pthread_join(threads[i], &client);
		assert_non_null(client);
		nsv_ask_hello(client, a);
		assert_int_equal(a->ret, 0);
		nsv_client_close(client);
	}
	close(waiting);
}

/* A session with narrow logs that bears so much absence, with a long answer under way. false:
 * the daemon was away for so long meanwhile, as it may be on a busy machine. */
static bool begin_with_patience(
	int32_t away_ms, struct nsv_client **ret_client, struct nsv_request **ret_request)
{
	struct nsv_client_options o;
	struct nsv_client_params p = long_answer(1);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};

	nsv_ask_options(&o);
	o.away_timeout_ms = away_ms;
	o.n_token = LOG_TOKENS;
	assert_int_equal(nsv_client_open(service.socket, &o, NULL, 0, ret_client), 0);
	assert_int_equal(nsv_client_submit_text(*ret_client, "go", 2, &p, ret_request), 0);
	if (nsv_ask_next(*ret_request, &chunk) == 1)
		return true;
	nsv_client_close(*ret_client);
	return false;
}

/* ms below 0: with a test's patience. */
static int read_to_end(struct nsv_request *r, int ms)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	int ret;

	while ((ret = ms < 0 ? nsv_ask_next(r, &chunk) : nsv_request_next(r, ms, &chunk)) > 0)
		;
	return ret;
}

static void test_a_daemon_that_stays_away(void **state)
{
	struct nsv_client *client, *patient;
	struct nsv_request *r, *other;
	int32_t away_ms = 400;
	(void)state;

	assert_true(begin_with_patience(-1, &patient, &other));
	while (!begin_with_patience(away_ms, &client, &r))
		away_ms *= 2;
	kill(nsv_test_service_pid(&service), SIGSTOP);
	assert_int_equal(read_to_end(r, -1), -ECONNRESET); /* after what it had written */
	assert_non_null(strstr(nsv_client_error(client), "away"));
	assert_int_equal(read_to_end(other, 1000), -ETIMEDOUT);
	kill(nsv_test_service_pid(&service), SIGCONT);
	assert_int_equal(read_to_end(other, -1), 0);
	nsv_client_close(client);
	nsv_client_close(patient);
}

static bool silence_is_borne(int32_t away_ms)
{
	struct nsv_client_options o;
	struct nsv_client *client;

	nsv_ask_options(&o);
	o.away_timeout_ms = away_ms;
	assert_int_equal(nsv_client_open(service.socket, &o, NULL, 0, &client), 0);
	bool borne = nsv_client_wait(client, 5 * away_ms) == -ETIMEDOUT &&
		     nsv_ask_ping(client) == 0;
	nsv_client_close(client);
	return borne;
}

/* A daemon that has nothing to say for a long time is there all the same; one that cannot run
 * for long on a busy machine is away, and it is tried again with more patience. */
static void test_a_silent_daemon_is_not_away(void **state)
{
	int32_t away_ms = 200;
	(void)state;

	while (!silence_is_borne(away_ms)) {
		away_ms *= 2;
		assert_true(away_ms < 10000);
	}
}

/* ---- Many sessions: several vaults, emptied as sessions end */

static void test_many_sessions(void **state)
{
	enum { N = 700 };
	static struct nsv_client *clients[N];
	struct nsv_client_options o;
	(void)state;

	nsv_ask_options(&o);
	o.n_slot = 1;
	o.arena_len = 4096;
	o.text_len = 4096;
	o.n_token = LOG_TOKENS;
	for (int i = 0; i < N; i++)
		assert_int_equal(nsv_client_open(service.socket, &o, NULL, 0, &clients[i]), 0);
	for (int round = 0; round < 3; round++) {
		nsv_test_service_kill(&service, SIGKILL);
		for (int i = 0; i < N; i++) {
			assert_int_equal(nsv_ask_ping(clients[i]), 0);
			if (t_below(2) == 0) {
				nsv_client_close(clients[i]);
				assert_int_equal(nsv_client_open(service.socket, &o, NULL, 0,
							 &clients[i]),
					0);
			}
		}
	}
	assert_int_equal(nsv_ask_status(clients[0], "counters.dropped_sessions"), 0);
	for (int i = 0; i < N; i++)
		nsv_client_close(clients[i]);
	check_audit();
}

/* One whose regions a worker makes and gives back, also where the daemon found them in a vault. */
static void test_a_large_session(void **state)
{
	nsv_autofree struct nsv_answer *alone = malloc(sizeof(*alone)), *a = malloc(sizeof(*a));
	struct nsv_client_params p = long_answer(t_rand());
	struct nsv_client_options o;
	struct nsv_client *client;
	(void)state;

	nsv_ask_options(&o);
	o.arena_len = 32 << 20;
	for (int round = 0; round < 3; round++) {
		assert_int_equal(nsv_client_open(service.socket, &o, NULL, 0, &client), 0);
		nsv_ask_text(client, "large", &p, alone);
		nsv_test_service_kill(&service, SIGKILL);
		nsv_ask_text(client, "large", &p, a);
		check_same(a, alone);
		nsv_client_close(client);
	}
	assert_true(nsv_ask_is_alone(service.socket));
	check_audit();
}

/* ---- The breaker */

#define N_SLOW 6000u
#define SLOW_BATCH "6144"

/* A prompt whose one step takes seconds, at the arena's start, for slot 0. */
static void submit_slow(struct nsv_raw *raw)
{
	struct nsv_sqe sqe = {.op = NSV_OP_SUBMIT,
		.flags = NSV_SQE_IDS,
		.request_id = ++raw->last_id,
		.prompt_len = N_SLOW * sizeof(int32_t)};

	for (uint32_t i = 0; i < N_SLOW; i++)
		((int32_t *)(void *)raw->up.arena)[i] = 5;
	nsv_raw_put(raw, &sqe);
}

/* The daemon's record of steps, as it lies in its memory; NULL: it has none yet. */
static const struct nsv_seqs_head *map_steps(pid_t pid)
{
	char path[64], target[64];

	for (int fd = 0; fd < 256; fd++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
		ssize_t n = readlink(path, target, sizeof(target) - 1);
		if (n < 0 || !memmem(target, (size_t)n, "memfd:nsv-seqs", 14))
			continue;
		nsv_autoclose int own = open(path, O_RDONLY | O_CLOEXEC);
		void *map = own < 0 ? MAP_FAILED
				    : mmap(NULL, NSV_PAGE, PROT_READ, MAP_SHARED, own, 0);
		return map == MAP_FAILED ? NULL : map;
	}
	return NULL;
}

/* Is a step of this daemon under way, as far as the next one will know? The mark of the step that
 * its predecessor died in stays until then. */
static bool is_in_step(const struct nsv_test_service *s)
{
	const struct nsv_seqs_head *head = map_steps(nsv_test_service_pid(s));
	uint64_t begun = head ? nsv_load_acq_u64(&head->n_begun) : 0;
	bool in = head && begun > nsv_load_acq_u64(&head->n_ended) && begun > head->first_step;

	if (head)
		munmap((void *)head, NSV_PAGE);
	return in;
}

/* Waits until its step is under way in that daemon, the first being 1, and kills the daemon in
 * it. */
static void kill_in_step(
	const struct nsv_test_service *s, const struct nsv_raw *raw, uint32_t epoch)
{
	const struct nsv_down_slot *slot = &raw->down.slots[0];

	assert_true(NSV_WAIT_FOR(nsv_load_acq_u32(&raw->down.head->epoch) == epoch &&
				 nsv_load_acq_u64(&slot->request_id) == raw->last_id &&
				 nsv_load_acq_u32(&slot->state) == NSV_SLOT_RUNNING));
	/* That is told right before the step is marked as begun. */
	assert_true(NSV_WAIT_FOR(is_in_step(s)));
	assert_int_equal(nsv_load_acq_u64(&slot->token_end), 0);
	nsv_test_service_kill(s, SIGKILL);
}

static void expect_crashed(const struct nsv_raw *raw)
{
	const struct nsv_down_slot *slot = &raw->down.slots[0];

	assert_true(NSV_WAIT_FOR(nsv_load_acq_u32(&slot->state) == NSV_SLOT_DONE));
	assert_int_equal(nsv_load_acq_u64(&slot->request_id), raw->last_id);
	assert_int_equal(slot->finish, NSV_FINISH_ERROR);
	assert_int_equal(slot->code, NSV_E_CRASHED);
	assert_non_null(strstr(slot->text, "crash"));
}

/* A running request that crashes every daemon: it ends after two, the one that was held up goes
 * on; after three all requests end; after four the sessions go, and the daemon serves. */
static void test_crashes_without_progress(void **state)
{
	const char *extra[] = {"--backend", "reference", "--batch-tokens", SLOW_BATCH, NULL};
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	char slow_model[64];
	struct nsv_client_params p = long_answer(1);
	struct nsv_test_service s;
	struct nsv_raw raw;
	struct nsv_request *r;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	(void)state;

	nsv_tiny_model_of(slow_model, sizeof(slow_model), N_SLOW + 100);
	assert_int_equal(nsv_test_service_start(&s, slow_model, extra), 0);
	assert_int_equal(nsv_raw_open(&raw, s.socket, NULL), 0);
	struct nsv_client *client = open_narrow_at(s.socket, 2);
	assert_int_equal(nsv_client_submit_text(client, "held up", 7, &p, &r), 0);
	assert_int_equal(nsv_ask_next(r, &chunk), 1);
	assert_true(nsv_ask_status_until(client, "requests.paused", 1)); /* its log is full */
	submit_slow(&raw);
	kill_in_step(&s, &raw, 1);
	kill_in_step(&s, &raw, 2);
	expect_crashed(&raw);
	assert_int_equal(nsv_ask_ping(client), 0);
	submit_slow(&raw);
	kill_in_step(&s, &raw, 3);
	expect_crashed(&raw);
	nsv_ask_finish(client, 0, r, a);
	assert_int_equal(a->result.code, NSV_E_CRASHED);
	assert_int_equal(nsv_ask_ping(client), 0);
	submit_slow(&raw);
	kill_in_step(&s, &raw, 4);
	assert_true(nsv_raw_closed(&raw));
	assert_int_equal(nsv_ask_ping(client), -ECONNRESET);
	assert_int_equal(nsv_client_end_code(client), NSV_CLIENT_END_LOST);
	nsv_client_close(client);
	client = open_narrow_at(s.socket, 2);
	nsv_ask_hello(client, a);
	assert_int_equal(a->ret, 0);
	nsv_client_close(client);
	nsv_raw_close(&raw);
	assert_int_equal(nsv_test_service_stop(&s), 0);
	unlink(slow_model);
}

/* `make kills`, in short. */
static void test_kills_at_random_instants(void **state)
{
	char out[4096], err[8192], n[8];
	const char *argv[] = {nsv_test_program("tests/stress/kills"), n, "tiny", NULL};
	(void)state;

#ifdef __SANITIZE_THREAD__
	print_message("skipped: 16 streams alone take half a minute here\n");
	skip();
#endif
	snprintf(n, sizeof(n), "%d", n_round(10, 3));
	int status = nsv_test_run(argv, NULL, out, sizeof(out), err, sizeof(err));
	if (status != 0)
		fail_msg("%d: %s%s", status, out, err);
	assert_non_null(strstr(out, " 0 lost"));
}

#define TEST(f) cmocka_unit_test_setup(f, tidy)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_a_stream_goes_on),
		TEST(test_requests_in_every_state),
		TEST(test_entries_are_taken_once),
		TEST(test_an_output_is_asked_for_again),
		TEST(test_a_hello_is_said_again),
		TEST(test_a_daemon_that_stays_away),
		TEST(test_a_silent_daemon_is_not_away),
		TEST(test_many_sessions),
		TEST(test_a_large_session),
		TEST(test_crashes_without_progress),
		TEST(test_kills_at_random_instants),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
