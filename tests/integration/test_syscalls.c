/* A token costs no system call: strace -c watches daemon and client over a stream of 10,000 tokens
 * to a client that spins. What is left is the doorbell of the submission and the few calls by which
 * the daemon wakes, takes it and sleeps again. */
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "shm/ring.h"
#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/proc.h"
#include "tests/tools/tiny.h"

#define N_TOKEN 10000u
#define CONTEXT (N_TOKEN + 240u)

#define MOST_OF_CLIENT 1  /* the doorbell of the submission */
#define MOST_OF_DAEMON 64 /* measured: 15, waits that strace interrupts included */

static struct nsv_test_daemon served;
static char model[64];

/* Between the test and its client, which may call nothing to say something. */
struct turns {
	uint32_t ready, go, done, leave; /* atomic */
	uint32_t n_token;
};

static struct turns *turns;

static void wait_for(const uint32_t *flag)
{
	while (!nsv_load_acq_u32(flag))
		nsv_pause();
}

static int start(void **state)
{
	static const char *const extra[] = {"--kv-blocks", "700", "--threads", "1", NULL};
	(void)state;

	turns = mmap(
		NULL, sizeof(*turns), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	nsv_tiny_model_of(model, sizeof(model), CONTEXT);
	return turns == MAP_FAILED ? -1 : nsv_test_daemon_start(&served, model, extra);
}

static int stop(void **state)
{
	int status = nsv_test_daemon_stop(&served, SIGTERM);
	(void)state;

	unlink(model);
	return status == 0 ? 0 : -1;
}

/* ---- The client */

static uint32_t read_stream(struct nsv_client *client, uint32_t n_token)
{
	struct nsv_client_params p;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *request;
	uint32_t n = 0;

	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.max_tokens = n_token;
	if (nsv_client_submit_text(client, "once", 4, &p, &request) < 0)
		return 0;
	while (nsv_request_next(request, -1, &chunk) > 0)
		n += (uint32_t)chunk.n_token;
	nsv_request_free(request);
	return n;
}

static void be_the_client(void)
{
	struct nsv_client_options o;
	struct nsv_client *client;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	nsv_ask_options(&o);
	o.spin_us = INT_MAX; /* for half an hour */
	/* A client that is held up is not waited for: to say that there is room costs a bell. */
	o.n_token = 2 * N_TOKEN;
	o.text_len = 64 * N_TOKEN;
	if (nsv_client_open(served.socket, &o, NULL, 0, &client) < 0 ||
		read_stream(client, 100) != 100)
		_exit(1);
	nsv_store_rel_u32(&turns->ready, 1);
	wait_for(&turns->go);
	turns->n_token = read_stream(client, N_TOKEN);
	nsv_store_rel_u32(&turns->done, 1);
	wait_for(&turns->leave);
	_exit(0);
}

/* ---- strace */

struct tracer {
	pid_t pid;
	FILE *said; /* its standard error */
	char counts[32];
};

/* false: it is not there, or may not attach. */
static bool attach(struct tracer *t, pid_t to)
{
	char pid[16], line[256];
	int fds[2];

	strcpy(t->counts, "/tmp/nanoserve-strace-XXXXXX");
	close(mkstemp(t->counts));
	snprintf(pid, sizeof(pid), "%d", (int)to);
	if (pipe2(fds, O_CLOEXEC) < 0)
		return false;
	t->pid = nsv_proc_fork();
	if (t->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGINT);
		dup2(fds[1], STDERR_FILENO);
		execlp("strace", "strace", "-f", "-c", "-o", t->counts, "-p", pid, (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	t->said = fdopen(fds[0], "r");
	bool attached = fgets(line, sizeof(line), t->said) && strstr(line, "attached");
	if (!attached)
		waitpid(t->pid, NULL, 0);
	return attached;
}

/* A row of the table: share, seconds, microseconds a call, calls, errors if any, name. */
static long row_calls(char *row, char name[32])
{
	double share, seconds;
	long each, calls;
	int at = 0;

	if (sscanf(row, "%lf %lf %ld %ld %n", &share, &seconds, &each, &calls, &at) < 4)
		return 0;
	char *last = strrchr(row + at, ' ');
	snprintf(name, 32, "%s", last ? last + 1 : row + at);
	name[strcspn(name, "\n")] = '\0';
	return calls;
}

/* Ends it: calls of all kinds. */
static long detach(struct tracer *t)
{
	char row[256], name[32];
	long sum = 0;

	kill(t->pid, SIGINT);
	waitpid(t->pid, NULL, 0);
	FILE *f = fopen(t->counts, "re");
	while (f && fgets(row, sizeof(row), f)) {
		long calls = row_calls(row, name);
		if (calls == 0 || strcmp(name, "total") == 0)
			continue;
		print_message("  %ld %s\n", calls, name);
		sum += calls;
	}
	if (f)
		fclose(f);
	fclose(t->said);
	unlink(t->counts);
	return sum;
}

static void end_client(pid_t pid)
{
	int status = -1;

	nsv_store_rel_u32(&turns->leave, 1);
	waitpid(pid, &status, 0);
	assert_int_equal(status, 0);
}

static void need_strace(pid_t client)
{
	struct tracer probe;

	if (attach(&probe, client)) {
		detach(&probe);
		return;
	}
	print_message("skipped: no strace here, or it may not attach to a process\n");
	kill(client, SIGKILL);
	waitpid(client, NULL, 0);
	skip();
}

static int n_usable_cpu(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) < 0 ? 2 : CPU_COUNT(&set);
}

static void test_a_token_costs_no_system_call(void **state)
{
	struct tracer of_daemon, of_client;
	(void)state;

#ifdef __SANITIZE_ADDRESS__
	print_message("skipped: the sanitizer's allocator makes calls of its own\n");
	skip();
#endif
	if (n_usable_cpu() == 1) {
		print_message("skipped: on one CPU a client sleeps instead of spinning\n");
		skip();
	}
	pid_t client = nsv_proc_fork();
	if (client == 0)
		be_the_client();
	wait_for(&turns->ready);
	need_strace(client);
	assert_true(attach(&of_daemon, served.pid));
	assert_true(attach(&of_client, client));
	nsv_store_rel_u32(&turns->go, 1);
	wait_for(&turns->done);
	print_message("the client's:\n");
	long n_client = detach(&of_client);
	print_message("the daemon's:\n");
	long n_daemon = detach(&of_daemon);
	end_client(client);
	assert_int_equal(turns->n_token, N_TOKEN);
	assert_in_range(n_client, 0, MOST_OF_CLIENT);
	assert_in_range(n_daemon, 0, MOST_OF_DAEMON);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_token_costs_no_system_call),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
