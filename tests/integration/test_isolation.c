/* Two users of one daemon: what belongs to one cannot be read by the other, by any way that the
 * kernel or the daemon offers. Each user is a child process of its own uid; skipped unless root
 * runs it. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/raw.h"
#include "tests/tools/tiny.h"
#include "tests/tools/users.h"

#define SECRET "the quick brown fox keeps a secret that is longer than three blocks"

static struct nsv_test_daemon served;
static char model[64];

/* A daemon that all users of the machine may use, and that says all it ever says. */
static const char *const extra[] = {"--kv-blocks", "64", "--threads", "1", "--verbose", NULL};

static int start(void **state)
{
	(void)state;

	nsv_tiny_model(model, sizeof(model));
	if (nsv_test_daemon_start(&served, model, extra) < 0)
		return -1;
	return nsv_test_daemon_let_all(&served);
}

static int tidy(void **state)
{
	(void)state;
	int ret = nsv_test_daemon_tidy(&served, model, extra);
	return ret < 0 ? ret : nsv_test_daemon_let_all(&served);
}

static int stop(void **state)
{
	(void)state;
	unlink(model);
	return nsv_test_daemon_stop(&served, SIGTERM) == 0 ? 0 : -1;
}

/* ---- The kernel's ways */

static bool can_open(const char *path, int flags)
{
	nsv_autoclose int fd = open(path, flags | O_CLOEXEC);

	return fd >= 0;
}

static bool can_open_fd(const char *process, int fd, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%s/fd/%d", process, fd);
	return can_open(path, flags);
}

/* Nothing of another's process: memory, descriptors, registers. */
static int try_process(pid_t pid)
{
	static const char *const files[] = {"mem", "maps", "environ", "smaps", "fd", "map_files"};
	char text[16], path[64], here[16];
	struct iovec to = {here, sizeof(here)}, from = {(void *)(uintptr_t)&served, sizeof(here)};

	snprintf(text, sizeof(text), "%d", (int)pid);
	for (size_t i = 0; i < NSV_ARRAY_LEN(files); i++) {
		snprintf(path, sizeof(path), "/proc/%s/%s", text, files[i]);
		NSV_EXPECT(!can_open(path, O_RDONLY));
	}
	for (int fd = 0; fd < 64; fd++) {
		NSV_EXPECT(!can_open_fd(text, fd, O_RDONLY));
		NSV_EXPECT(!can_open_fd(text, fd, O_RDWR));
	}
	NSV_EXPECT(process_vm_readv(pid, &to, 1, &from, 1, 0) < 0);
	NSV_EXPECT(ptrace(PTRACE_SEIZE, pid, NULL, NULL) < 0);
	return 0;
}

/* What is read-only stays so, and what was handed over cannot be opened once more. */
static int try_own_regions(void *arg)
{
	struct nsv_raw r;
	(void)arg;

	NSV_EXPECT(nsv_raw_open(&r, served.socket, NULL) == 0);
	NSV_EXPECT(!can_open_fd("self", r.down_region.fd, O_RDWR));
	NSV_EXPECT(!can_open_fd("self", r.down_region.fd, O_WRONLY));
	NSV_EXPECT(mmap(NULL, NSV_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, r.down_region.fd, 0) ==
		   MAP_FAILED);
	NSV_EXPECT(fallocate(r.down_region.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			   NSV_PAGE) < 0);
	NSV_EXPECT(ftruncate(r.up_region.fd, 0) < 0);
	NSV_EXPECT(fchmod(r.down_region.fd, 0777) < 0);
	nsv_raw_close(&r);
	return 0;
}

/* The daemon's process, another user's, and the daemon's log. */
static int try_processes(void *arg)
{
	int line = try_process(served.pid);

	NSV_EXPECT(!can_open(served.log, O_RDONLY));
	return line ? line : try_process(*(pid_t *)arg);
}

/* ---- The daemon's ways */

static void ask_secret(struct nsv_client *client, struct nsv_answer *a)
{
	struct nsv_client_params p;

	nsv_client_params_init(&p);
	p.max_tokens = 4;
	p.flags = NSV_CLIENT_IGNORE_END;
	nsv_ask_text(client, SECRET, &p, a);
}

/* A user who asked, has read the answer, and keeps the session. */
static int ask_and_stay(void *arg)
{
	struct nsv_client *client = nsv_ask_open(served.socket);
	struct nsv_answer *a = malloc(sizeof(*a));
	(void)arg;

	NSV_EXPECT(client && a);
	ask_secret(client, a);
	NSV_EXPECT(a->n_token == 4);
	ask_secret(client, a);
	NSV_EXPECT(a->result.n_cached > 0); /* its own prompt it finds again */
	raise(SIGSTOP);
	return 0;
}

static int see_own_alone(void *arg)
{
	struct nsv_client *client = nsv_ask_open(served.socket);
	(void)arg;

	NSV_EXPECT(client);
	NSV_EXPECT(nsv_ask_status_until(client, "sessions", 1));
	NSV_EXPECT(nsv_ask_status(client, "requests.running") == -1);
	NSV_EXPECT(nsv_ask_status(client, "blocks.free") == -1);
	NSV_EXPECT(nsv_ask_status(client, "counters.accepted") == -1);
	nsv_client_close(client);
	return 0;
}

static int see_all(void *arg)
{
	struct nsv_client *client = nsv_ask_open(served.socket);
	(void)arg;

	NSV_EXPECT(client);
	NSV_EXPECT(nsv_ask_status_until(client, "sessions", 2));
	NSV_EXPECT(nsv_ask_status(client, "blocks.total") == 64);
	NSV_EXPECT(nsv_ask_status(client, "counters.accepted") >= 2);
	nsv_client_close(client);
	return 0;
}

/* Another's prompt is computed as if nobody had asked it. */
static int find_nothing_cached(void *arg)
{
	struct nsv_client *client = nsv_ask_open(served.socket);
	struct nsv_answer *a = malloc(sizeof(*a));
	(void)arg;

	NSV_EXPECT(client && a);
	ask_secret(client, a);
	NSV_EXPECT(a->n_token == 4 && a->result.n_cached == 0);
	nsv_client_close(client);
	free(a);
	return 0;
}

/* Another's requests cannot be named: ids are a session's own. */
static int try_to_name(void *arg)
{
	static const uint8_t ops[] = {NSV_OP_CANCEL, NSV_OP_FORK};
	struct nsv_raw r;
	struct nsv_cqe c;
	(void)arg;

	NSV_EXPECT(nsv_raw_open(&r, served.socket, NULL) == 0);
	for (size_t i = 0; i < NSV_ARRAY_LEN(ops); i++)
		for (uint64_t id = 1; id < 4; id++) {
			struct nsv_sqe sqe = {
				.op = ops[i], .request_id = ++r.last_id, .target_id = id};
			nsv_raw_put(&r, &sqe);
			NSV_EXPECT(nsv_raw_next(&r, &c) && c.kind == NSV_CQE_ERROR);
		}
	nsv_raw_close(&r);
	return 0;
}

/* Memory that comes from the daemon is zeros, whoever had it before. */
static int look_for_remains(void *arg)
{
	struct nsv_raw r;
	(void)arg;

	for (int i = 0; i < 10; i++) {
		NSV_EXPECT(nsv_raw_open(&r, served.socket, NULL) == 0);
		const char *down = r.down_region.map, *arena = (const char *)r.up.arena;
		for (size_t k = NSV_PAGE; k < r.down_region.len; k++)
			NSV_EXPECT(down[k] == 0);
		for (uint32_t k = 0; k < r.welcome.geom.arena_len; k++)
			NSV_EXPECT(arena[k] == 0);
		nsv_raw_close(&r);
	}
	return 0;
}

/* ---- One user has a session; then another comes and tries */

static pid_t begin_victim(void)
{
	pid_t pid = nsv_user_begin(NSV_USER_A, ask_and_stay, NULL);
	int status;

	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	if (!WIFSTOPPED(status))
		fail_msg("the first user failed at line %d (modulo 256)", WEXITSTATUS(status));
	return pid;
}

static void end_victim(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	struct nsv_client *client = nsv_ask_open(served.socket);
	assert_non_null(client);
	assert_true(nsv_ask_status_until(client, "sessions", 1));
	nsv_client_close(client);
}

static void tries(int (*fn)(void *))
{
	nsv_user_need_root();
	pid_t victim = begin_victim();
	int line = nsv_user_end(nsv_user_begin(NSV_USER_B, fn, &victim));
	end_victim(victim);
	if (line != 0)
		fail_msg("it could, at line %d (modulo 256)", line);
}

static void test_regions(void **state)
{
	(void)state;
	tries(try_own_regions);
}

static void test_processes_and_log(void **state)
{
	(void)state;
	tries(try_processes);
	assert_false(nsv_test_daemon_logged(&served, "secret"));
}

static void test_status_shows_ones_own(void **state)
{
	(void)state;
	tries(see_own_alone);
}

static void test_status_shows_the_services_group_all(void **state)
{
	(void)state;

	nsv_user_need_root();
	pid_t victim = begin_victim();
	assert_int_equal(nsv_user_end(nsv_user_begin_in(NSV_USER_B, getegid(), see_all, NULL)), 0);
	assert_int_equal(see_all(NULL), 0); /* root */
	end_victim(victim);
}

static void test_the_prefix_cache_is_ones_own(void **state)
{
	(void)state;
	tries(find_nothing_cached);
}

static void test_requests_are_a_sessions_own(void **state)
{
	(void)state;
	tries(try_to_name);
}

static void test_memory_comes_empty(void **state)
{
	(void)state;
	tries(look_for_remains);
	assert_int_equal(nsv_user_end(nsv_user_begin(NSV_USER_B, look_for_remains, NULL)), 0);
}

#define TEST(f) cmocka_unit_test_setup(f, tidy)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_regions),
		TEST(test_processes_and_log),
		TEST(test_status_shows_ones_own),
		TEST(test_status_shows_the_services_group_all),
		TEST(test_the_prefix_cache_is_ones_own),
		TEST(test_requests_are_a_sessions_own),
		TEST(test_memory_comes_empty),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
