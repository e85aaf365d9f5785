/* Many sessions with one daemon: what each costs to open and to keep, what they cost another one
 * that is awake, and how long the next daemon takes for them all. The stand-in for the service
 * manager runs it, so that a session's descriptors lie in a vault before its welcome. */
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include "shm/clock.h"
#include "shm/layout.h"
#include "tests/bench/ipc.h"
#include "tests/tools/proc.h"
#include "tests/tools/raw.h"
#include "tests/tools/service.h"
#include "tests/tools/stats.h"
#include "tests/tools/tiny.h"

#define N_SESSION 4096u /* as many as the daemon's table holds */
#define FDS_EACH 3u
#define FDS_ELSE 64u
#define N_PING 200
#define IDLE_S 3

static struct nsv_raw sessions[N_SESSION];

/* As many as descriptors allow, in this process and in the daemon, which inherits the limit. */
static uint32_t how_many(void)
{
	struct rlimit r;

	getrlimit(RLIMIT_NOFILE, &r);
	r.rlim_cur = r.rlim_max;
	setrlimit(RLIMIT_NOFILE, &r);
	return (uint32_t)nsv_min_u64(N_SESSION, (r.rlim_cur - FDS_ELSE) / FDS_EACH);
}

static double cpu_seconds(pid_t pid)
{
	struct timespec ts = {0};
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &ts) < 0)
		die("no CPU clock");
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static double ping_median(struct nsv_client *client)
{
	double us[N_PING];

	for (int i = 0; i < N_PING; i++) {
		uint64_t start = nsv_now_ns();
		if (nsv_client_ping(client, 10000) < 0)
			die("no answer to a NOP");
		us[i] = (double)(nsv_now_ns() - start) / 1e3;
	}
	return nsv_median(us, N_PING);
}

/* The client is the first of the sessions. */
static void open_all(const char *socket, struct nsv_client *client, struct session_costs *c)
{
	const struct nsv_geom want = {
		.n_sqe = 16, .n_slot = 1, .arena_len = 4096, .text_len = 1024, .n_token = 256};

	for (uint32_t i = 0; i < c->n; i++) {
		uint64_t start = nsv_now_ns();
		if (i > 0 && nsv_raw_open(&sessions[i], socket, &want) != 0)
			die("a session is refused");
		c->open_us[i] = (double)(nsv_now_ns() - start) / 1e3;
		if (nsv_is_pow2(i + 1))
			c->ping_us[c->n_ping++] = ping_median(client);
	}
	c->open_us[0] = c->open_us[1];
	c->region_bytes = (double)(sessions[1].welcome.up_len + sessions[1].welcome.down_len);
}

static double idle_share(pid_t pid)
{
	sleep(2); /* the last hello is over for long */
	double before = cpu_seconds(pid);
	sleep(IDLE_S);
	return (cpu_seconds(pid) - before) / IDLE_S;
}

/* From the daemon's death until the next one has taken every session. */
static double takeover_seconds(const struct nsv_test_service *sv, uint32_t n)
{
	uint64_t start = nsv_now_ns();

	kill(nsv_test_service_pid(sv), SIGKILL);
	for (uint32_t i = 1; i < n; i++)
		while (nsv_load_acq_u32(&sessions[i].down.head->epoch) < 2) {
			if (nsv_now_ns() - start > 60000000000u)
				die("a session was not taken over");
			usleep(200);
		}
	return (double)(nsv_now_ns() - start) / 1e9;
}

void measure_sessions(struct session_costs *ret)
{
	const char *extra[] = {"--threads", "1", "--kv-blocks", "64", NULL};
	struct nsv_test_service sv;
	char model[64];

	*ret = (struct session_costs){.n = how_many()};
	nsv_tiny_model(model, sizeof(model));
	unpin(); /* the next daemon is not tied to this process's place */
	if (nsv_test_service_start(&sv, model, extra) < 0)
		die("the daemon does not start");
	pid_t pid = nsv_test_service_pid(&sv);
	pin(pid, other_place(AWAKE));
	struct nsv_client *client = open_client(sv.socket, true);
	long pss = nsv_proc_rollup(pid, "Pss:"), heap = nsv_proc_rollup(pid, "Pss_Anon:");
	open_all(sv.socket, client, ret);
	ret->pss_bytes = (double)(nsv_proc_rollup(pid, "Pss:") - pss) / ret->n;
	ret->heap_bytes = (double)(nsv_proc_rollup(pid, "Pss_Anon:") - heap) / ret->n;
	ret->idle_cpu = idle_share(pid);
	ret->takeover_s = takeover_seconds(&sv, ret->n);
	for (uint32_t i = 1; i < ret->n; i++)
		nsv_raw_close(&sessions[i]);
	nsv_client_close(client);
	nsv_test_service_stop(&sv);
	unlink(model);
}
