/* Clients that take more than their share: each limit has a name, belongs to one user or to the
 * daemon, and what was held is given back. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/tools/proc.h"
#include "tests/tools/raw.h"
#include "tests/tools/serve.h"
#include "tests/tools/service.h"
#include "tests/tools/tiny.h"
#include "tests/tools/users.h"
#include "tests/tools/wait.h"

static struct nsv_served served;

/* ---- What requests hold */

/* A client that has seen the end of its request and does nothing more holds no place. */
static void idle_clients_hold_nothing(const char *json)
{
	struct nsv_client *clients[8];
	struct nsv_answer *a = malloc(sizeof(*a));

	nsv_serve(&served, json);
	for (size_t i = 0; i < NSV_ARRAY_LEN(clients); i++) {
		clients[i] = nsv_serve_open(&served);
		nsv_serve_ask(clients[i], a);
		assert_string_equal(a->reason, "");
		usleep(2000); /* ends are collected once a millisecond at most */
	}
	for (size_t i = 0; i < NSV_ARRAY_LEN(clients); i++)
		nsv_client_close(clients[i]);
	free(a);
	nsv_serve_end(&served);
}

static void test_idle_clients_hold_no_place(void **state)
{
	(void)state;
	idle_clients_hold_nothing("{\"max_requests\": 4}");
}

static void test_idle_clients_hold_no_quota(void **state)
{
	(void)state;
	idle_clients_hold_nothing("{\"limits\": {\"requests\": 4}}");
}

static bool expect_kind(struct nsv_raw *r, enum nsv_cqe_kind kind, uint64_t id, struct nsv_cqe *c)
{
	while (nsv_raw_next(r, c))
		if (c->request_id == id)
			return c->kind == kind;
	return false;
}

static void test_unread_outputs_are_charged(void **state)
{
	enum { LEN = 1 << 20, N = 8 };
	struct nsv_geom want = {.n_slot = N, .arena_len = LEN, .n_token = 64, .text_len = 1024};
	struct nsv_raw r;
	struct nsv_cqe c;
	uint32_t n_refused = 0;
	(void)state;

	nsv_serve(&served, "{\"limits\": {\"memory_mib\": 12}}");
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, &want), 0);
	for (uint32_t i = 0; i < N; i++) {
		struct nsv_sqe sqe = nsv_raw_tokenize(&r, i, LEN);
		nsv_raw_put(&r, &sqe);
		do {
			assert_true(nsv_raw_next(&r, &c));
		} while (c.request_id != sqe.request_id);
		if (c.kind == NSV_CQE_ERROR) {
			assert_int_equal(c.code, NSV_E_LIMIT);
			assert_non_null(strstr(r.down.slots[i].text, "limits.memory_mib is 12"));
			n_refused++;
		}
	}
	assert_in_range(n_refused, 1, N - 1);
	nsv_raw_close(&r);
	nsv_serve_end(&served);
}

/* A prompt that is too long is not copied for each of its answers before that is said. */
static void test_what_cannot_begin_is_not_copied(void **state)
{
	enum { LEN = 1 << 20, N = 16 };
	struct nsv_geom want = {.n_slot = N, .arena_len = 2 * LEN, .n_token = 64, .text_len = 1024};
	struct nsv_params params = nsv_raw_endless;
	struct nsv_sqe sqe = {.op = NSV_OP_SUBMIT,
		.request_id = 1,
		.prompt_off = sizeof(params),
		.prompt_len = LEN,
		.params_len = sizeof(params)};
	struct nsv_raw r;
	struct nsv_cqe c;
	(void)state;

	nsv_serve(&served, "{\"limits\": {\"memory_mib\": 16}}");
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, &want), 0);
	params.n_branch = N;
	memcpy(r.up.arena, &params, sizeof(params));
	memset(r.up.arena + sizeof(params), 'a', LEN);
	nsv_raw_put(&r, &sqe);
	for (uint32_t i = 0; i < N; i++) {
		assert_true(nsv_raw_next(&r, &c));
		assert_int_equal(c.kind, NSV_CQE_ERROR);
		assert_int_equal(c.code, NSV_E_CONTEXT);
	}
	nsv_raw_close(&r);
	nsv_serve_end(&served);
}

/* ---- Descriptors */

static bool is_open_there(int fd)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)served.daemon.pid, fd);
	return lstat(path, &st) == 0;
}

/* The daemon may open so many more: the limit is on their numbers, and the lowest free ones are
 * given. */
static void leave_descriptors(uint32_t n)
{
	struct rlimit limit;
	int fd = -1;

	assert_int_equal(prlimit(served.daemon.pid, RLIMIT_NOFILE, NULL, &limit), 0);
	while (n > 0)
		n -= !is_open_there(++fd);
	limit.rlim_cur = (rlim_t)fd + 1;
	assert_int_equal(prlimit(served.daemon.pid, RLIMIT_NOFILE, &limit, NULL), 0);
}

/* Does an open file have this text? Opening it would take a descriptor. */
static int count_in(int fd, const char *text)
{
	char buf[4096];
	ssize_t n = pread(fd, buf, sizeof(buf) - 1, 0);
	int n_found = 0;

	buf[n > 0 ? n : 0] = '\0';
	for (const char *at = buf; (at = strstr(at, text)); at++)
		n_found++;
	return n_found;
}

/* A process of few descriptors, and a daemon of its: as many connections come in as there are
 * descriptors for, and the others as soon as there are more. */
static int run_out(void *arg)
{
	enum { FEW = 32 };
	const struct rlimit few = {.rlim_cur = FEW, .rlim_max = FEW};
	const char *extra[] = {"--kv-blocks", "64", "--threads", "1", NULL};
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_client *client;
	int fds[FEW];
	(void)arg;

	nsv_tiny_model(served.model, sizeof(served.model));
	NSV_EXPECT(setrlimit(RLIMIT_NOFILE, &few) == 0);
	NSV_EXPECT(nsv_test_daemon_start(&served.daemon, served.model, extra) == 0);
	NSV_EXPECT((client = nsv_ask_open(served.daemon.socket)));
	nsv_autoclose int log = open(served.daemon.log, O_RDONLY | O_CLOEXEC);
	for (size_t i = 0; i < NSV_ARRAY_LEN(fds); i++)
		fds[i] = nsv_raw_connect(served.daemon.socket);
	NSV_EXPECT(NSV_WAIT_FOR(count_in(log, "accept: Too many open files") > 0));
	nsv_serve_ask(client, a);
	NSV_EXPECT(a->n_token == 2);
	usleep(500000); /* it is tried again and again, which is not said again */
	NSV_EXPECT(count_in(log, "accept: ") == 1);
	for (size_t i = 0; i < NSV_ARRAY_LEN(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	nsv_client_close(client);
	NSV_EXPECT((client = nsv_ask_open(served.daemon.socket)));
	nsv_client_close(client);
	NSV_EXPECT(nsv_test_daemon_stop(&served.daemon, SIGTERM) == 0);
	return unlink(served.model);
}

static void test_no_descriptor_for_a_connection(void **state)
{
	(void)state;

	pid_t pid = nsv_proc_fork();
	if (pid == 0)
		_exit(run_out(NULL));
	assert_int_equal(nsv_user_end(pid), 0);
}

/* Too few for a whole session: it is refused, and told why; the daemon goes on. */
static void test_no_descriptors_for_a_session(void **state)
{
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_client_options o;
	struct nsv_client *other = NULL;
	char text[256] = "";
	(void)state;

	nsv_ask_options(&o);
	nsv_serve(&served, "{}");
	struct nsv_client *client = nsv_serve_open(&served);
	nsv_serve_ask(client, a);
	long n_fd = nsv_proc_fds(served.daemon.pid);
	for (uint32_t n = 1; n <= 3; n++) { /* of a socket, two regions, and one to send */
		/* The connection that was refused is closed. */
		assert_true(nsv_proc_fds_become(served.daemon.pid, n_fd));
		leave_descriptors(n);
		int ret = nsv_client_open(served.daemon.socket, &o, text, sizeof(text), &other);
		assert_int_equal(ret, -EDQUOT);
		assert_non_null(strstr(text, "RLIMIT_NOFILE"));
		nsv_serve_ask(client, a);
		assert_string_equal(a->reason, "");
	}
	leave_descriptors(20);
	nsv_client_close(nsv_serve_open(&served));
	nsv_client_close(client);
	nsv_serve_end(&served);
}

/* ---- Vaults */

/* Says hello and leaves the connection open: the answer's code, with its sentence, or -errno. */
static int say_hello(const char *socket, int *ret_fd, struct nsv_err *err)
{
	struct nsv_hello h = nsv_hello_make(&(struct nsv_geom){.n_slot = 1});
	struct nsv_welcome w;
	int up_fd, down_fd, fd = nsv_raw_connect(socket);

	assert_true(fd >= 0);
	(void)nsv_hello_send(fd, &h); /* a process that was held up may come too late with it */
	int ret = nsv_welcome_recv(fd, &w, &up_fd, &down_fd, err);
	if (ret == 0) {
		close(up_fd);
		close(down_fd);
	}
	*ret_fd = fd;
	return ret;
}

/* The service manager stands still: once the vaults that it has are full, who comes is told so. */
static void test_no_vault_for_a_session(void **state)
{
	enum { MANY = 900 };
	static struct nsv_test_service service;
	struct nsv_err err = {""};
	char model[64], config[64];
	const char *extra[] = {"--kv-blocks", "64", "--config", config, NULL};
	int fds[MANY], ret = 0, n = 0;
	(void)state;

	nsv_tiny_model(model, sizeof(model));
	assert_int_equal(
		nsv_test_config(config, sizeof(config), "{\"limits\": {\"hello_ms\": 1000}}"), 0);
	assert_int_equal(nsv_test_service_start(&service, model, extra), 0);
	kill(service.manager, SIGSTOP);
	for (int n_late = 0; ret != NSV_E_LIMIT && n < MANY && n_late < 10; n_late += ret < 0)
		ret = say_hello(service.socket, &fds[n++], &err);
	kill(service.manager, SIGCONT);
	assert_int_equal(ret, NSV_E_LIMIT);
	assert_non_null(strstr(err.text, "service manager"));
	while (n > 0)
		close(fds[--n]);
	assert_true(nsv_ask_is_alone(service.socket));
	assert_int_equal(nsv_test_service_stop(&service), 0);
	unlink(config);
	unlink(model);
}

/* ---- Files */

/* A region is a file to the kernel, which ends who makes too large a one, unless it was asked not
 * to. */
static void test_regions_beyond_the_size_of_files(void **state)
{
	const struct rlimit limit = {.rlim_cur = 4 << 20, .rlim_max = 4 << 20};
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_client_options o;
	struct nsv_client *large;
	char text[256] = "";
	(void)state;

	nsv_serve(&served, "{}");
	assert_int_equal(prlimit(served.daemon.pid, RLIMIT_FSIZE, &limit, NULL), 0);
	nsv_ask_options(&o);
	o.arena_len = 16 << 20;
	int ret = nsv_client_open(served.daemon.socket, &o, text, sizeof(text), &large);
	assert_int_equal(ret, -ENOMEM);
	assert_non_null(strstr(text, "RLIMIT_FSIZE"));
	struct nsv_client *client = nsv_serve_open(&served);
	nsv_serve_ask(client, a);
	assert_string_equal(a->reason, "");
	nsv_client_close(client);
	nsv_serve_end(&served);
}

/* ---- Quotas */

static int refusal(const struct nsv_geom *want, const char *name)
{
	struct nsv_hello h = nsv_hello_make(want);
	struct nsv_welcome w;
	struct nsv_err err;
	int fd = nsv_raw_connect(served.daemon.socket), up_fd, down_fd;

	NSV_EXPECT(fd >= 0);
	/* Refused as it is accepted, a hello may find the connection closed: the reason is
	 * there. */
	(void)nsv_hello_send(fd, &h);
	int ret = nsv_welcome_recv(fd, &w, &up_fd, &down_fd, &err);
	if (ret == -ECONNRESET)
		ret = nsv_welcome_recv(fd, &w, &up_fd, &down_fd, &err);
	NSV_EXPECT(ret == NSV_E_LIMIT);
	NSV_EXPECT(strstr(err.text, name));
	close(fd);
	return 0;
}

/* Uses all that a user is given, and asks for more of each. */
static int use_it_up(void *arg)
{
	struct nsv_raw r[2];
	struct nsv_cqe c;
	(void)arg;

	NSV_EXPECT(refusal(&(struct nsv_geom){.n_slot = 5}, "limits.session_slots is 4") == 0);
	NSV_EXPECT(refusal(&(struct nsv_geom){.n_slot = 1, .arena_len = 16u << 20},
			   "limits.memory_mib is 8") == 0);
	for (int i = 0; i < 2; i++)
		NSV_EXPECT(nsv_raw_open(&r[i], served.daemon.socket,
				   &(struct nsv_geom){
					   .n_slot = 4, .n_token = 64, .arena_len = 4096}) == 0);
	NSV_EXPECT(refusal(&(struct nsv_geom){.n_slot = 1, .arena_len = 4096}, "limits.sessions") ==
		   0);
	for (uint16_t i = 0; i < 4; i++) {
		struct nsv_sqe sqe = nsv_raw_prompt(&r[i / 2], "abc", &nsv_raw_endless);
		sqe.slot = i % 2;
		nsv_raw_put(&r[i / 2], &sqe);
		NSV_EXPECT(expect_kind(
			&r[i / 2], i < 3 ? NSV_CQE_ACCEPTED : NSV_CQE_ERROR, sqe.request_id, &c));
	}
	NSV_EXPECT(c.code == NSV_E_LIMIT && strstr(r[1].down.slots[1].text, "limits.requests"));
	raise(SIGSTOP);
	return 0;
}

/* Sessions and silent connections share what a user may hold open. */
static int use_up_descriptors(void *arg)
{
	struct nsv_raw r[3];
	const struct nsv_geom small = {.n_slot = 1, .n_token = 64, .arena_len = 4096};
	(void)arg;

	for (int i = 0; i < 2; i++)
		NSV_EXPECT(nsv_raw_open(&r[i], served.daemon.socket, &small) == 0);
	int silent = nsv_raw_connect(served.daemon.socket);
	NSV_EXPECT(silent >= 0);
	NSV_EXPECT(refusal(&small, "limits.descriptors is 9") == 0);
	close(silent);
	/* it is given back soon */
	NSV_EXPECT(NSV_WAIT_FOR(nsv_raw_open(&r[2], served.daemon.socket, &small) == 0));
	NSV_EXPECT(refusal(&small, "limits.descriptors is 9") == 0);
	return 0;
}

static void test_descriptors_have_a_quota(void **state)
{
	(void)state;

	nsv_user_need_root();
	nsv_serve(&served, "{\"limits\": {\"descriptors\": 9}}");
	assert_int_equal(nsv_user_end(nsv_user_begin(NSV_USER_A, use_up_descriptors, NULL)), 0);
	nsv_serve_end(&served);
}

static int use_a_little(void *arg)
{
	struct nsv_client_options o;
	struct nsv_client *client = NULL;
	struct nsv_answer *a = malloc(sizeof(*a));
	(void)arg;

	nsv_ask_options(&o);
	o.n_slot = 2;
	/* those of a killed process are given back soon */
	NSV_EXPECT(NSV_WAIT_FOR(nsv_client_open(served.daemon.socket, &o, NULL, 0, &client) == 0));
	nsv_serve_ask(client, a);
	NSV_EXPECT(a->n_token == 2);
	nsv_client_close(client);
	free(a);
	return 0;
}

static void test_quotas_are_a_users_own_and_have_names(void **state)
{
	int status;
	(void)state;

	nsv_user_need_root();
	nsv_serve(&served, "{\"limits\": {\"sessions\": 2, \"requests\": 3, \"session_slots\": 4, "
			   "\"memory_mib\": 8}}");
	pid_t a = nsv_user_begin(NSV_USER_A, use_it_up, NULL);
	assert_int_equal(waitpid(a, &status, WUNTRACED), a);
	if (!WIFSTOPPED(status))
		fail_msg("the first user failed at line %d (modulo 256)", WEXITSTATUS(status));
	assert_int_equal(nsv_user_end(nsv_user_begin(NSV_USER_B, use_a_little, NULL)), 0);
	kill(a, SIGKILL);
	waitpid(a, &status, 0);
	assert_int_equal(nsv_user_end(nsv_user_begin(NSV_USER_A, use_a_little, NULL)), 0);
	assert_int_equal(nsv_serve_stop(&served), 0);
}

static long pages_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_blocks / (NSV_PAGE / 512);
}

/* A client that hangs up but keeps its mappings does not keep the daemon's memory. */
static void test_mappings_keep_no_memory(void **state)
{
	struct nsv_raw r;
	(void)state;

	nsv_serve(&served, "{}");
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket,
				 &(struct nsv_geom){.n_slot = 4, .arena_len = 1u << 20}),
		0);
	assert_true(pages_of(r.up_region.fd) >= 256);
	close(r.fd);
	r.fd = -1;
	assert_true(NSV_WAIT_FOR(pages_of(r.up_region.fd) == 0));
	assert_true(NSV_WAIT_FOR(pages_of(r.down_region.fd) == 1));
	nsv_raw_close(&r);
	nsv_serve_end(&served);
}

static int hello(const struct nsv_geom *want)
{
	struct nsv_hello h = nsv_hello_make(want);
	int fd = nsv_raw_connect(served.daemon.socket);

	assert_true(fd >= 0);
	assert_int_equal(nsv_hello_send(fd, &h), 0);
	return fd;
}

/* 0, or the refusal's code. */
static int answer(int fd)
{
	struct nsv_welcome w;
	struct nsv_err err;
	int up_fd = -1, down_fd = -1, ret = nsv_welcome_recv(fd, &w, &up_fd, &down_fd, &err);

	if (up_fd >= 0)
		close(up_fd);
	if (down_fd >= 0)
		close(down_fd);
	return ret;
}

/* A session's memory is its user's until the daemon has it back, or one that comes and goes would
 * take more than the limit. Who asks for it meanwhile is not refused but waits. */
static void test_a_quota_comes_back_with_the_memory(void **state)
{
	const struct nsv_geom large = {.n_slot = 1, .n_token = 64, .arena_len = 32u << 20};
	const struct nsv_geom small = {.n_slot = 1, .n_token = 64, .arena_len = 1u << 20};
	struct nsv_raw r;
	char c;
	(void)state;

	nsv_serve(&served, "{\"limits\": {\"memory_mib\": 34}}");
	struct nsv_client *client = nsv_serve_open(&served);
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, &large), 0);
	assert_int_equal(nsv_ask_status(client, "sessions"), 2); /* it is done with the welcome */
	long n_fd = nsv_proc_fds(served.daemon.pid);
	int fd = hello(&small);
	assert_int_equal(answer(fd), NSV_E_LIMIT);
	close(fd);
	assert_true(nsv_proc_fds_become(served.daemon.pid, n_fd));
	pid_t thread = nsv_proc_hold_thread(served.daemon.pid, "nsv-memory");
	assert_true(thread > 0);
	nsv_raw_close(&r);
	/* its socket is closed: all but the thread are done with it */
	assert_true(nsv_proc_fds_become(served.daemon.pid, n_fd - 1));
	fd = hello(&small);
	/* Behind the welcome to its connection, the hello has been looked at. */
	assert_true(nsv_proc_fds_become(served.daemon.pid, n_fd));
	for (int i = 0; i < 2; i++)
		assert_int_equal(nsv_ask_status(client, "sessions"), 1);
	assert_int_equal(recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT), -1);
	assert_int_equal(errno, EAGAIN);
	nsv_proc_let_go(thread);
	assert_int_equal(answer(fd), 0);
	close(fd);
	nsv_client_close(client);
	nsv_serve_end(&served);
}

/* Ends the daemon's part of a session, which it says, and waits for that. */
static void break_session(struct nsv_raw *r)
{
	nsv_store_rel_u32(&r->up.head->sq_tail, 0x7fffffff);
	nsv_bell_send(r->fd);
	assert_true(NSV_WAIT_FOR(nsv_load_acq_u32(&r->down.head->end) != 0));
}

/* Not only memory takes its time: the engine may be in the middle of a step. */
static void test_a_quota_comes_back_with_the_engine(void **state)
{
	const struct nsv_geom small = {.n_slot = 1, .n_token = 64, .arena_len = 1u << 20};
	struct nsv_raw r;
	(void)state;

	nsv_serve(&served, "{\"limits\": {\"sessions\": 1}}");
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, &small), 0);
	pid_t thread = nsv_proc_hold_thread(served.daemon.pid, "nsv-engine");
	assert_true(thread > 0);
	break_session(&r);
	int fd = hello(&small);
	/* It has been looked at once a later one is refused for what nobody can have. */
	int other = hello(&(struct nsv_geom){.n_slot = 1 << 20});
	assert_int_equal(answer(other), NSV_E_LIMIT);
	nsv_proc_let_go(thread);
	assert_int_equal(answer(fd), 0);
	close(fd);
	close(other);
	nsv_raw_close(&r);
	nsv_serve_end(&served);
}

/* What comes back is for who has waited longest. */
static void test_who_waits_longest_is_asked_first(void **state)
{
	const struct nsv_geom small = {.n_slot = 1, .n_token = 64, .arena_len = 1u << 20};
	struct nsv_raw r;
	int fds[3];
	(void)state;

	nsv_serve(&served, "{\"limits\": {\"sessions\": 1}}");
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, &small), 0);
	pid_t thread = nsv_proc_hold_thread(served.daemon.pid, "nsv-engine");
	assert_true(thread > 0);
	break_session(&r);
	for (size_t i = 0; i < NSV_ARRAY_LEN(fds); i++)
		fds[i] = hello(&small);
	int other = hello(&(struct nsv_geom){.n_slot = 1 << 20}); /* as above */
	assert_int_equal(answer(other), NSV_E_LIMIT);
	nsv_proc_let_go(thread);
	assert_int_equal(answer(fds[0]), 0);
	for (size_t i = 1; i < NSV_ARRAY_LEN(fds); i++)
		assert_int_equal(answer(fds[i]), NSV_E_LIMIT);
	for (size_t i = 0; i < NSV_ARRAY_LEN(fds); i++)
		close(fds[i]);
	close(other);
	nsv_raw_close(&r);
	nsv_serve_end(&served);
}

/* What does not come back in time is named as it is, not as the memory that others wait for. */
static void test_a_quota_that_is_late_has_its_name(void **state)
{
	const struct nsv_geom large = {.n_slot = 1, .n_token = 64, .arena_len = 32u << 20};
	struct nsv_err err = {""};
	struct nsv_raw r;
	int fd, ret;
	(void)state;

	nsv_serve(&served, "{\"limits\": {\"sessions\": 1, \"hello_ms\": 1000}}");
	while ((ret = nsv_raw_open(&r, served.daemon.socket, &large)) < 0)
		; /* its hello came too late */
	assert_int_equal(ret, 0);
	pid_t thread = nsv_proc_hold_thread(served.daemon.pid, "nsv-memory");
	assert_true(thread > 0);
	break_session(&r);
	while ((ret = say_hello(served.daemon.socket, &fd, &err)) < 0)
		close(fd); /* as above */
	assert_int_equal(ret, NSV_E_LIMIT);
	assert_non_null(strstr(err.text, "limits.sessions"));
	close(fd);
	nsv_proc_let_go(thread);
	nsv_raw_close(&r);
	nsv_serve_end(&served);
}

static int fill_and_ask(void *arg)
{
	const struct nsv_geom small = {.n_slot = 1, .n_token = 64, .arena_len = 1u << 20};
	struct nsv_raw r;
	(void)arg;

	NSV_EXPECT(nsv_raw_open(&r, served.daemon.socket, &small) == 0);
	int fd = hello(&small);
	NSV_EXPECT(nsv_wait_readable(fd));
	NSV_EXPECT(answer(fd) == NSV_E_LIMIT);
	return 0;
}

/* Another's memory is nothing to wait for. */
static void test_a_limit_waits_for_no_other_user(void **state)
{
	const struct nsv_geom large = {.n_slot = 1, .n_token = 64, .arena_len = 32u << 20};
	struct nsv_raw r;
	(void)state;

	nsv_user_need_root();
	nsv_serve(&served, "{\"limits\": {\"sessions\": 1}}");
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, &large), 0);
	pid_t thread = nsv_proc_hold_thread(served.daemon.pid, "nsv-memory");
	assert_true(thread > 0);
	break_session(&r);
	int ret = nsv_user_end(nsv_user_begin(NSV_USER_A, fill_and_ask, NULL));
	nsv_proc_let_go(thread);
	assert_int_equal(ret, 0);
	nsv_raw_close(&r);
	nsv_serve_end(&served);
}

/* ---- Many at once */

/* A stopped daemon finds all of it when it goes on. */
static void stop_daemon(void)
{
	int status;

	kill(served.daemon.pid, SIGSTOP);
	assert_int_equal(waitpid(served.daemon.pid, &status, WUNTRACED), served.daemon.pid);
	assert_true(WIFSTOPPED(status));
}

/* However many say hello first, others' entries are answered before the last of them is let in. */
static void test_many_hellos_hold_up_nobody(void **state)
{
	enum { N = 128 };
	const struct nsv_hello h = nsv_hello_make(&(struct nsv_geom){.arena_len = 2u << 20});
	const char *extra[] = {"--kv-blocks", "64", "--threads", "1", "--verbose", NULL};
	struct nsv_raw r;
	struct nsv_cqe c;
	static char said[1 << 16];
	int fds[N];
	(void)state;

	nsv_tiny_model(served.model, sizeof(served.model));
	assert_int_equal(nsv_test_daemon_start(&served.daemon, served.model, extra), 0);
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, NULL), 0);
	for (int i = 0; i < N; i++)
		assert_true((fds[i] = nsv_raw_connect(served.daemon.socket)) >= 0);
	assert_true(NSV_WAIT_FOR(nsv_proc_fds(served.daemon.pid) > N));
	stop_daemon();
	for (int i = 0; i < N; i++)
		assert_int_equal(nsv_hello_send(fds[i], &h), 0);
	struct nsv_sqe wrong = nsv_raw_prompt(&r, "", NULL);
	wrong.prompt_len = UINT32_MAX;
	nsv_raw_put(&r, &wrong);
	kill(served.daemon.pid, SIGCONT);
	assert_true(expect_kind(&r, NSV_CQE_ERROR, wrong.request_id, &c));
	for (int i = 0; i < N; i++) {
		assert_int_equal(answer(fds[i]), 0);
		close(fds[i]);
	}
	nsv_autoclose int log = open(served.daemon.log, O_RDONLY | O_CLOEXEC);
	assert_true(read(log, said, sizeof(said) - 1) > 0);
	const char *refused = strstr(said, " is refused: ");
	assert_non_null(refused);
	assert_non_null(strstr(refused, " of user "));
	nsv_raw_close(&r);
	assert_int_equal(nsv_test_daemon_stop(&served.daemon, SIGTERM), 0);
	unlink(served.model);
}

/* Says more than a hello, or nothing, and goes. */
static void come_and_go(bool talks)
{
	const struct nsv_hello h = nsv_hello_make(&(struct nsv_geom){0});
	int fd = nsv_raw_connect(served.daemon.socket);

	assert_true(fd >= 0);
	for (int i = 0; talks && i < 2; i++)
		(void)nsv_hello_send(fd, &h); /* it may be refused already */
	close(fd);
}

/* However many come and go, their descriptors are not kept until there is time for them. */
static void test_who_comes_and_goes_keeps_no_descriptor(void **state)
{
	enum { N = 512, N_ROUND = 8, N_NOP = 8 };
	struct nsv_sqe nop = {.op = NSV_OP_NOP};
	struct nsv_raw r;
	struct nsv_cqe c;
	(void)state;

	if (nsv_proc_longest_backlog() < N) {
		print_message("skipped: net.core.somaxconn is below %d\n", N);
		skip();
	}
	nsv_serve(&served, "{}");
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, NULL), 0);
	for (int i = 0; i < N_ROUND; i++) {
		stop_daemon();
		for (int k = 0; k < N; k++)
			come_and_go(i % 2 == 0);
		kill(served.daemon.pid, SIGCONT);
		for (int k = 0; k < N_NOP; k++) { /* a turn of its loop each, at least */
			nop.request_id++;
			nsv_raw_put(&r, &nop);
			assert_true(nsv_raw_next(&r, &c));
		}
	}
	assert_true(nsv_proc_fds(served.daemon.pid) < 2 * N);
	nsv_raw_close(&r);
	nsv_serve_end(&served);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_idle_clients_hold_no_place),
		cmocka_unit_test(test_idle_clients_hold_no_quota),
		cmocka_unit_test(test_unread_outputs_are_charged),
		cmocka_unit_test(test_what_cannot_begin_is_not_copied),
		cmocka_unit_test(test_no_descriptor_for_a_connection),
		cmocka_unit_test(test_no_descriptors_for_a_session),
		cmocka_unit_test(test_no_vault_for_a_session),
		cmocka_unit_test(test_regions_beyond_the_size_of_files),
		cmocka_unit_test(test_descriptors_have_a_quota),
		cmocka_unit_test(test_quotas_are_a_users_own_and_have_names),
		cmocka_unit_test(test_mappings_keep_no_memory),
		cmocka_unit_test(test_a_quota_comes_back_with_the_memory),
		cmocka_unit_test(test_a_quota_comes_back_with_the_engine),
		cmocka_unit_test(test_who_waits_longest_is_asked_first),
		cmocka_unit_test(test_a_quota_that_is_late_has_its_name),
		cmocka_unit_test(test_a_limit_waits_for_no_other_user),
		cmocka_unit_test(test_many_hellos_hold_up_nobody),
		cmocka_unit_test(test_who_comes_and_goes_keeps_no_descriptor),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
