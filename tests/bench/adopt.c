/* Sessions over a restart: what a connection costs with its descriptors in a vault before the
 * welcome, and how long the next daemon takes to take over so many sessions, from the first message
 * of the vaults to the last bell. A tiny model; each session has one slot and the least of
 * everything.
 *
 *     make bench NAME=adopt */
#include <signal.h>
#include <string.h>
#include <time.h>

#include <nanoserve/client.h>

#include "tests/tools/report.h"
#include "tests/tools/service.h"
#include "tests/tools/tiny.h"

#define MAX_SESSIONS 4096
#define N_ROUND 5

static struct nsv_client *clients[MAX_SESSIONS];
static double open_us[MAX_SESSIONS];

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void die(const char *what)
{
	fprintf(stderr, "adopt: %s\n", what);
	exit(1);
}

static void open_up_to(const struct nsv_test_service *s, uint32_t from, uint32_t to)
{
	struct nsv_client_options o;
	char text[256];

	nsv_client_options_init(&o);
	o.n_slot = 1;
	o.arena_len = o.text_len = 4096;
	o.n_token = 64;
	o.n_lp = 128;
	for (uint32_t i = from; i < to; i++) {
		double start = now_us();
		if (nsv_client_open(s->socket, &o, text, sizeof(text), &clients[i]) < 0)
			die(text);
		open_us[i] = now_us() - start;
	}
}

/* The last line of the log that says how long it took, once there are `n` such lines. */
static double last_takeover_ms(const struct nsv_test_service *s, unsigned int n)
{
	char line[1024];
	const char *at;
	double ms = 0;

	while (nsv_test_service_logged(s, "took over") < n)
		nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	FILE *f = fopen(s->log, "re");
	while (f && fgets(line, sizeof(line), f))
		if (strstr(line, "took over") && (at = strstr(line, " in ")))
			ms = strtod(at + 4, NULL);
	if (f)
		fclose(f);
	return ms;
}

static void add(struct nsv_report *r, const char *what, uint32_t n, const char *unit, double v,
	double target)
{
	char work[96];

	snprintf(work, sizeof(work), "%s, %u sessions", what, n);
	nsv_report_time(r, work, unit, v, NULL, 0, target);
}

int main(void)
{
	static const uint32_t counts[] = {256, 1024, MAX_SESSIONS};
	struct nsv_test_service s;
	struct nsv_report r;
	char model[64];
	unsigned int n_kill = 0;
	uint32_t from = 0;

	nsv_tiny_model(model, sizeof(model));
	if (nsv_test_service_start(&s, model, NULL) < 0)
		die("no daemon");
	nsv_report_begin(&r, "adopt");
	for (size_t c = 0; c < NSV_ARRAY_LEN(counts); c++) {
		double ms[N_ROUND];
		open_up_to(&s, from, counts[c]);
		add(&r, "connection with its vault, median", counts[c] - from, "us",
			nsv_median(open_us + from, counts[c] - from), 200);
		from = counts[c];
		for (int i = 0; i < N_ROUND; i++) {
			nsv_test_service_kill(&s, SIGKILL);
			ms[i] = last_takeover_ms(&s, ++n_kill);
		}
		for (uint32_t i = 0; i < from; i++)
			if (nsv_client_ping(clients[i], 60000) < 0)
				die("a session was lost");
		add(&r, "taken over, median", from, "ms", nsv_median(ms, N_ROUND), 1000);
	}
	nsv_report_end(&r);
	for (uint32_t i = 0; i < from; i++)
		nsv_client_close(clients[i]);
	unlink(model);
	return nsv_test_service_stop(&s);
}
