/* Clients that send what nobody should, flood, stop, or break off at every point: each is dropped
 * or gets its error, nobody else waits, and nothing is left behind. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/tools/fds.h"
#include "tests/tools/proc.h"
#include "tests/tools/raw.h"
#include "tests/tools/serve.h"
#include "tests/tools/users.h"
#include "tests/tools/wait.h"

static struct nsv_served served;

/* ---- Connections */

static int open_and_close(void *arg)
{
	struct nsv_raw r;
	(void)arg;

	NSV_EXPECT(nsv_raw_open(&r, served.daemon.socket, NULL) == 0);
	nsv_raw_close(&r);
	return 0;
}

/* Sessions that the log says were dropped: by name, or so many more. */
static unsigned int dropped_in(const char *log)
{
	unsigned int n = nsv_test_logged(log, "is dropped"), more;
	FILE *f = fopen(log, "re");
	char line[1024];

	while (f && fgets(line, sizeof(line), f))
		if (strstr(line, "too many to name") && sscanf(line, "%u", &more) == 1)
			n += more;
	if (f)
		fclose(f);
	return n;
}

static void test_silent_connections_have_a_limit(void **state)
{
	enum { LIMIT = 256, N = LIMIT + 100 };
	struct nsv_welcome w;
	struct nsv_err err;
	int fds[N], up_fd, down_fd;
	(void)state;

	nsv_serve(&served, "{}");
	for (int i = 0; i < N; i++) {
		fds[i] = nsv_raw_connect(served.daemon.socket);
		assert_true(fds[i] >= 0);
	}
	for (int i = LIMIT; i < N; i++) {
		assert_true(nsv_wait_readable(fds[i]));
		assert_int_equal(nsv_welcome_recv(fds[i], &w, &up_fd, &down_fd, &err), NSV_E_LIMIT);
		assert_non_null(strstr(err.text, "without a hello"));
	}
	/* Each has its answer; the log, which anybody can fill, names some. (The last one's line may
	 * come after its answer.) */
	assert_in_range(
		nsv_test_logged(served.daemon.log, "is dropped"), 1, N - LIMIT - 2);
	/* And the rest by their number, though no other follows. */
	assert_true(NSV_WAIT_FOR(dropped_in(served.daemon.log) == N - LIMIT));
	if (getuid() == 0)
		assert_int_equal(nsv_user_end(nsv_user_begin(NSV_USER_A, open_and_close, NULL)), 0);
	for (int i = 0; i < N; i++)
		close(fds[i]);
	nsv_serve_end(&served);
}

/* A daemon that ends tells how many it has not named. */
static void test_an_end_tells_of_all_dropped(void **state)
{
	enum { N = 40 };
	char log[] = "/tmp/nanoserve-log-XXXXXX";
	(void)state;

	nsv_serve(&served, "{}");
	for (int i = 0; i < N; i++) {
		int fd = nsv_raw_connect(served.daemon.socket);
		nsv_bell_send(fd);
		do /* it is no hello */
			assert_true(nsv_wait_readable(fd));
		while (recv(fd, &(char){0}, 1, 0) > 0);
		close(fd);
	}
	close(mkstemp(log));
	unlink(log);
	assert_int_equal(link(served.daemon.log, log), 0);
	assert_int_equal(nsv_serve_stop(&served), 0);
	assert_int_equal(dropped_in(log), N);
	unlink(log);
}

/* The last one to close a file may have to wait for that: a socket that lingers, with a reader that
 * never comes, held the io thread for as long as its sender liked. */
static void test_descriptors_are_refused(void **state)
{
	struct nsv_raw r;
	(void)state;

	nsv_serve(&served, "{}");
	int silent = nsv_raw_connect(served.daemon.socket);
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, NULL), 0);
	if (nsv_wire_refuse_fds(silent) == -ENOPROTOOPT) {
		print_message("skipped: kernels before 6.16 refuse nobody's descriptors\n");
	} else {
		assert_int_equal(nsv_fds_send(silent, "x", 1, &r.up_region.fd, 1), -1);
		assert_int_equal(errno, EPERM);
		assert_int_equal(nsv_fds_send(r.fd, "x", 1, &r.up_region.fd, 1), -1);
		assert_int_equal(errno, EPERM);
	}
	close(silent);
	nsv_raw_close(&r);
	nsv_serve_end(&served);
}

/* Packets that are no bells: long, empty, with descriptors; sockets shut down by halves. */
static void test_odd_packets_and_half_open_sockets(void **state)
{
	static const char zeros[8192];
	static const int how[] = {SHUT_RD, SHUT_WR, SHUT_RDWR};
	struct nsv_raw r[6];
	(void)state;

	nsv_serve(&served, "{}");
	long n_fd = nsv_proc_fds(served.daemon.pid);
	for (size_t i = 0; i < NSV_ARRAY_LEN(r); i++)
		assert_int_equal(nsv_raw_open(&r[i], served.daemon.socket, NULL), 0);
	for (int i = 0; i < 100; i++) {
		struct nsv_welcome w = r[0].welcome;
		nsv_welcome_send(r[0].fd, &w, r[0].up_region.fd, r[0].fd);
		send(r[1].fd, zeros, sizeof(zeros), MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	send(r[2].fd, zeros, 0, MSG_DONTWAIT | MSG_NOSIGNAL);
	for (size_t i = 0; i < 3; i++)
		shutdown(r[3 + i].fd, how[i]);
	for (size_t i = 0; i < NSV_ARRAY_LEN(r); i++) {
		struct nsv_sqe sqe = nsv_raw_prompt(&r[i], "abc", NULL);
		nsv_raw_put(&r[i], &sqe);
	}
	struct nsv_cqe c;
	assert_true(nsv_raw_next(&r[0], &c));
	assert_true(nsv_raw_next(&r[1], &c));
	for (size_t i = 0; i < NSV_ARRAY_LEN(r); i++)
		nsv_raw_close(&r[i]);
	assert_true(nsv_proc_fds_become(served.daemon.pid, n_fd));
	nsv_serve_end(&served);
}

static void test_welcomes_that_are_never_read(void **state)
{
	struct nsv_hello h =
		nsv_hello_make(&(struct nsv_geom){.arena_len = 4096, .text_len = 1024});
	int fds[64];
	(void)state;

	nsv_serve(&served, "{}");
	long n_fd = nsv_proc_fds(served.daemon.pid);
	for (size_t i = 0; i < NSV_ARRAY_LEN(fds); i++) {
		fds[i] = nsv_raw_connect(served.daemon.socket);
		assert_int_equal(nsv_hello_send(fds[i], &h), 0);
	}
	struct nsv_client *client = nsv_serve_open(&served);
	assert_true(nsv_ask_status_until(client, "sessions", 1 + NSV_ARRAY_LEN(fds)));
	nsv_client_close(client);
	for (size_t i = 0; i < NSV_ARRAY_LEN(fds); i++)
		close(fds[i]);
	assert_true(nsv_proc_fds_become(served.daemon.pid, n_fd));
	nsv_serve_end(&served);
}

/* ---- Large sessions, whose regions another thread makes and gives back */

#define N_LARGE 12

static void say_large_hellos(int *ret_fds)
{
	struct nsv_hello h = nsv_hello_make(&(struct nsv_geom){.n_slot = 1, .arena_len = 16 << 20});

	for (int i = 0; i < N_LARGE; i++) {
		ret_fds[i] = nsv_raw_connect(served.daemon.socket);
		assert_int_equal(nsv_hello_send(ret_fds[i], &h), 0);
	}
}

/* Whoever hangs up or speaks meanwhile, or takes all of it in good order: all comes back. */
static void test_large_sessions_in_every_phase(void **state)
{
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	int fds[N_LARGE], up_fd, down_fd;
	struct nsv_welcome w;
	struct nsv_err err;
	(void)state;

	nsv_serve(&served, "{}");
	long n_fd = nsv_proc_fds(served.daemon.pid);
	say_large_hellos(fds);
	struct nsv_client *client = nsv_serve_open(&served);
	for (int i = 0; i < N_LARGE; i++) {
		if (i % 3 == 0)
			shutdown(fds[i], SHUT_RDWR);
		else if (i % 3 == 1)
			nsv_bell_send(fds[i]);
		nsv_serve_ask(client, a);
		assert_string_equal(a->reason, "");
		if (i % 3 != 2)
			continue;
		assert_true(nsv_wait_readable(fds[i]));
		assert_int_equal(nsv_welcome_recv(fds[i], &w, &up_fd, &down_fd, &err), 0);
		close(up_fd);
		close(down_fd);
	}
	nsv_client_close(client);
	for (int i = 0; i < N_LARGE; i++)
		close(fds[i]);
	assert_true(nsv_proc_fds_become(served.daemon.pid, n_fd));
	nsv_serve_end(&served);
}

/* Sanitizers say what is left behind. */
static void test_a_stop_while_large_sessions_are_made(void **state)
{
	int fds[N_LARGE];
	(void)state;

	nsv_serve(&served, "{}");
	say_large_hellos(fds);
	for (int i = 0; i < N_LARGE / 3; i++)
		close(fds[i]);
	assert_int_equal(nsv_serve_stop(&served), 0);
	for (int i = N_LARGE / 3; i < N_LARGE; i++)
		close(fds[i]);
}

/* ---- Taking turns: the log has the order in which the daemon refused prompts that are too long
 * for the model. It is stopped while they are put, and so finds all of them at once. */

static struct nsv_sqe long_prompt(struct nsv_raw *r, uint32_t len)
{
	memset(r->up.arena, 'z', len);
	return (struct nsv_sqe){.op = NSV_OP_SUBMIT, .request_id = ++r->last_id, .prompt_len = len};
}

/* How many requests of a session it refused before another's first. */
static uint32_t refused_before(const struct nsv_raw *flood, const struct nsv_raw *other)
{
	char of_flood[64], of_other[64], line[1024];
	bool found = false;
	uint32_t n = 0;
	FILE *f = fopen(served.daemon.log, "re");

	snprintf(of_flood, sizeof(of_flood), "of session %llu is refused",
		(unsigned long long)flood->welcome.session_id);
	snprintf(of_other, sizeof(of_other), "of session %llu is refused",
		(unsigned long long)other->welcome.session_id);
	while (!found && fgets(line, sizeof(line), f)) {
		n += strstr(line, of_flood) != NULL;
		found = strstr(line, of_other) != NULL;
	}
	fclose(f);
	assert_true(found);
	return n;
}

/* n prompts of one session, and one of another, each of so many bytes: how many of the flood's were
 * refused before the other's? The visits begin with the session that rang last. */
static uint32_t flood_and_ask(
	struct nsv_raw *flood, uint32_t n, uint32_t len, struct nsv_raw *other)
{
	struct nsv_cqe c;

	kill(served.daemon.pid, SIGSTOP);
	assert_int_equal(waitpid(served.daemon.pid, NULL, WUNTRACED), served.daemon.pid);
	struct nsv_sqe sqe = long_prompt(other, len);
	nsv_raw_put(other, &sqe);
	for (uint32_t i = 0; i < n; i++) {
		sqe = long_prompt(flood, len);
		sqe.slot = (uint16_t)(i % flood->welcome.geom.n_slot);
		nsv_raw_put(flood, &sqe);
	}
	kill(served.daemon.pid, SIGCONT);
	for (uint32_t i = 0; i < n; i++)
		assert_true(nsv_raw_next(flood, &c) && c.code == NSV_E_CONTEXT);
	assert_true(nsv_raw_next(other, &c) && c.code == NSV_E_CONTEXT);
	uint32_t n_before = refused_before(flood, other);
	nsv_raw_close(flood);
	nsv_raw_close(other);
	print_message("%u of %u before the other's\n", n_before, n);
	return n_before;
}

/* Prompts that the io thread takes itself. */
static void test_a_flood_lets_others_in(void **state)
{
	enum { N = 200 };
	struct nsv_geom want = {.n_sqe = 256, .n_slot = 1, .n_token = 64, .text_len = 1024};
	struct nsv_raw flood, other;
	(void)state;

	nsv_serve(&served, "{}");
	for (int i = 0; i < 5; i++) {
		assert_int_equal(nsv_raw_open(&flood, served.daemon.socket, &want), 0);
		assert_int_equal(nsv_raw_open(&other, served.daemon.socket, NULL), 0);
		assert_true(flood_and_ask(&flood, N, 2000, &other) < N / 2);
	}
	nsv_serve_end(&served);
}

static void open_as(struct nsv_raw *r, uid_t uid, const struct nsv_geom *want)
{
	assert_int_equal(seteuid(uid), 0);
	int ret = nsv_raw_open(r, served.daemon.socket, want);
	assert_int_equal(seteuid(0), 0);
	assert_int_equal(ret, 0);
}

/* Prompts that the worker prepares: each user has one at a time there. */
static void test_users_take_turns_at_long_prompts(void **state)
{
	enum { LEN = 1 << 19, N = 8 };
	struct nsv_geom want = {
		.n_slot = N, .n_sqe = N, .arena_len = LEN, .n_token = 64, .text_len = 1024};
	struct nsv_raw flood, other;
	(void)state;

	nsv_user_need_root();
	nsv_serve(&served, "{}");
	open_as(&flood, NSV_USER_A, &want);
	open_as(&other, NSV_USER_B, &want);
	assert_true(flood_and_ask(&flood, N, LEN, &other) < N / 2);
	nsv_serve_end(&served);
}

static void ping(struct nsv_raw *r)
{
	const struct nsv_sqe nop = {.op = NSV_OP_NOP};
	struct nsv_cqe c;

	nsv_raw_put(r, &nop);
	assert_true(nsv_raw_next(r, &c));
}

/* A user with many sessions, each of which asks for much: another one waits for a share of a turn,
 * not for all of them. The daemon looks at all of them at once: it has not slept since their pings,
 * of which the other's was the last, so that it is visited last. */
static void test_many_sessions_of_a_user_let_others_in(void **state)
{
	enum { N_SESSION = 100, N_EACH = 8, LEN = 2000 };
	struct nsv_geom want = {.n_sqe = 16, .n_slot = 1, .n_token = 64, .text_len = 1024};
	static struct nsv_raw floods[N_SESSION];
	struct nsv_raw other;
	uint32_t n_before = 0;
	struct nsv_cqe c;
	(void)state;

	nsv_user_need_root();
	nsv_serve(&served, "{\"spin_us\": 10000}");
	for (int i = 0; i < N_SESSION; i++)
		open_as(&floods[i], NSV_USER_A, &want);
	open_as(&other, NSV_USER_B, &want);
	for (int i = 0; i < N_SESSION; i++)
		ping(&floods[i]);
	ping(&other);
	kill(served.daemon.pid, SIGSTOP);
	assert_int_equal(waitpid(served.daemon.pid, NULL, WUNTRACED), served.daemon.pid);
	struct nsv_sqe sqe = long_prompt(&other, LEN);
	nsv_raw_put(&other, &sqe);
	for (int i = 0; i < N_SESSION * N_EACH; i++) {
		sqe = long_prompt(&floods[i % N_SESSION], LEN);
		nsv_raw_put(&floods[i % N_SESSION], &sqe);
	}
	kill(served.daemon.pid, SIGCONT);
	assert_true(nsv_raw_next(&other, &c) && c.code == NSV_E_CONTEXT);
	for (int i = 0; i < N_SESSION * N_EACH; i++)
		assert_true(nsv_raw_next(&floods[i % N_SESSION], &c) && c.code == NSV_E_CONTEXT);
	for (int i = 0; i < N_SESSION; i++) {
		n_before += refused_before(&floods[i], &other);
		nsv_raw_close(&floods[i]);
	}
	nsv_raw_close(&other);
	print_message("%u of %u before the other's\n", n_before, N_SESSION * N_EACH);
	assert_true(n_before < N_SESSION); /* not even one of each */
	nsv_serve_end(&served);
}

/* Bells that nobody reads are the kernel's memory, which is in nobody's quota: a client that says
 * again and again that it sleeps gets a few. */
static void test_unread_bells_are_few(void **state)
{
	struct nsv_raw r;
	char bell[64];
	int n = 0;
	(void)state;

	nsv_serve(&served, "{}");
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, NULL), 0);
	for (int i = 0; i < 1000; i++) {
		nsv_wait_begin(&r.up.head->wait);
		ping(&r);
		nsv_wait_end(&r.up.head->wait);
	}
	while (recv(r.fd, bell, sizeof(bell), MSG_DONTWAIT) > 0)
		n++;
	assert_in_range(n, 1, 16);
	nsv_raw_close(&r);
	nsv_serve_end(&served);
}

/* ---- Breaking off, in every phase */

enum phase { PREPARING, COMMITTING, RUNNING, PAUSED, OUTPUT, ENDED, N_PHASE };

static uint32_t state_of(const struct nsv_raw *r)
{
	return nsv_load_acq_u32(&r->down.slots[0].state);
}

/* A request in slot 0 that has come as far; its id. */
static uint64_t bring_to(struct nsv_raw *r, enum phase phase)
{
	struct nsv_params p = nsv_raw_endless;
	struct nsv_sqe sqe;

	p.max_tokens = phase == ENDED ? 2 : 0;
	if (phase == PREPARING)
		sqe = nsv_raw_tokenize(r, 0, 1 << 20);
	else if (phase == OUTPUT)
		sqe = nsv_raw_tokenize(r, 0, 1500);
	else
		sqe = nsv_raw_prompt(r, "abc", &p);
	nsv_raw_put(r, &sqe);
	if (phase == RUNNING)
		assert_true(NSV_WAIT_FOR(nsv_load_acq_u64(&r->down.slots[0].token_end) > 0));
	if (phase == PAUSED || phase == OUTPUT)
		assert_true(NSV_WAIT_FOR(nsv_load_rlx_u32(&r->down.slots[0].stalled) != 0));
	if (phase == ENDED)
		assert_true(NSV_WAIT_FOR(state_of(r) == NSV_SLOT_DONE));
	return sqe.request_id;
}

static void open_small(struct nsv_raw *r)
{
	struct nsv_geom want = {.n_slot = 2, .arena_len = 1 << 20, .n_token = 64, .text_len = 4096};

	assert_int_equal(nsv_raw_open(r, served.daemon.socket, &want), 0);
}

static void test_cancel_in_every_phase(void **state)
{
	struct nsv_raw r;
	struct nsv_cqe c;
	(void)state;

	nsv_serve(&served, "{}");
	for (int phase = 0; phase < N_PHASE; phase++) {
		open_small(&r);
		struct nsv_sqe cancel = {.op = NSV_OP_CANCEL, .request_id = 1 << 20};
		cancel.target_id = bring_to(&r, phase);
		nsv_raw_put(&r, &cancel);
		nsv_raw_put(&r, &cancel); /* idempotent */
		for (int n = 0; n < 2;) {
			assert_true(nsv_raw_next(&r, &c));
			n += c.kind == NSV_CQE_CANCELLED && c.request_id == cancel.target_id;
			assert_int_not_equal(c.kind, NSV_CQE_ERROR);
		}
		assert_true(NSV_WAIT_FOR(state_of(&r) == NSV_SLOT_DONE));
		uint32_t expected = phase == ENDED ? NSV_FINISH_LENGTH : NSV_FINISH_CANCEL;
		if (r.down.slots[0].finish != expected)
			fail_msg("phase %d: finish %u", phase, r.down.slots[0].finish);
		nsv_raw_close(&r);
	}
	nsv_serve_end(&served);
}

static void test_closing_in_every_phase(void **state)
{
	struct nsv_raw r;
	(void)state;

	nsv_serve(&served, "{}");
	for (int phase = 0; phase < N_PHASE; phase++)
		for (int i = 0; i < 10; i++) {
			open_small(&r);
			bring_to(&r, phase);
			nsv_raw_close(&r);
		}
	nsv_serve_end(&served);
}

/* SIGTERM while requests are at every stage of their way: an orderly end, nothing leaked. */
static void test_stopping_in_the_middle(void **state)
{
	struct nsv_raw r[N_PHASE];
	(void)state;

	for (int round = 0; round < 5; round++) {
		nsv_serve(&served, "{}");
		for (int phase = 0; phase < N_PHASE; phase++) {
			open_small(&r[phase]);
			bring_to(&r[phase], phase);
		}
		for (int i = 0; i < 20; i++) { /* releases on their way to the engine and back */
			struct nsv_params p = nsv_raw_endless;
			p.max_tokens = 1;
			struct nsv_sqe sqe = nsv_raw_prompt(&r[ENDED], "x", &p);
			nsv_raw_put(&r[ENDED], &sqe);
			while (i < 19 && (nsv_load_acq_u64(&r[ENDED].down.slots[0].request_id) <
							 sqe.request_id ||
						 state_of(&r[ENDED]) != NSV_SLOT_DONE))
				;
		}
		assert_int_equal(nsv_serve_stop(&served), 0);
		for (int phase = 0; phase < N_PHASE; phase++)
			nsv_raw_close(&r[phase]);
	}
}

static int submit_and_stop(void *arg)
{
	struct nsv_geom want = {.n_token = 64};
	struct nsv_raw r;
	(void)arg;

	NSV_EXPECT(nsv_raw_open(&r, served.daemon.socket, &want) == 0);
	for (uint32_t slot = 0; slot < r.welcome.geom.n_slot; slot++) {
		struct nsv_sqe sqe = nsv_raw_prompt(&r, "abc", &nsv_raw_endless);
		sqe.slot = (uint16_t)slot;
		nsv_raw_put(&r, &sqe);
	}
	nsv_wait_begin(&r.up.head->wait); /* it wants bells, and takes none */
	raise(SIGSTOP);
	return 0;
}

static void test_a_stopped_client_holds_nobody_up(void **state)
{
	struct nsv_answer *a = malloc(sizeof(*a));
	int status;
	(void)state;

	nsv_serve(&served, "{}");
	pid_t pid = nsv_proc_fork();
	if (pid == 0)
		_exit(submit_and_stop(NULL));
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	struct nsv_client *client = nsv_serve_open(&served);
	assert_true(
		nsv_ask_status_until(client, "requests.running", 0)); /* all its logs are full */
	for (int i = 0; i < 10; i++) {
		nsv_serve_ask(client, a);
		assert_string_equal(a->reason, "");
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	nsv_client_close(client);
	free(a);
	nsv_serve_end(&served);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_silent_connections_have_a_limit),
		cmocka_unit_test(test_an_end_tells_of_all_dropped),
		cmocka_unit_test(test_descriptors_are_refused),
		cmocka_unit_test(test_odd_packets_and_half_open_sockets),
		cmocka_unit_test(test_welcomes_that_are_never_read),
		cmocka_unit_test(test_large_sessions_in_every_phase),
		cmocka_unit_test(test_a_stop_while_large_sessions_are_made),
		cmocka_unit_test(test_a_flood_lets_others_in),
		cmocka_unit_test(test_users_take_turns_at_long_prompts),
		cmocka_unit_test(test_many_sessions_of_a_user_let_others_in),
		cmocka_unit_test(test_unread_bells_are_few),
		cmocka_unit_test(test_cancel_in_every_phase),
		cmocka_unit_test(test_closing_in_every_phase),
		cmocka_unit_test(test_stopping_in_the_middle),
		cmocka_unit_test(test_a_stopped_client_holds_nobody_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
