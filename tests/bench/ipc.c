/* The local interface: how long it takes from a client to the daemon and back and from the engine
 * to a client's hands, awake, asleep and on one CPU, beside what the machine allows (a word in
 * shared memory, a wake through a socket pair) and the usual ways (Unix SEQPACKET, TCP), all in one
 * run; entries a second; many sessions; and how costs grow. With LLAMA_CPP=DIR also what HTTP
 * streaming costs llama-server a token.
 *
 * The machine changes its pace within a run, so the paths take turns in rounds, a figure is the
 * median of the rounds' medians, and what it is compared with comes from the same rounds.
 *
 *     make bench NAME=ipc        build/bench/ipc.json, build/bench/ipc.svg */
#include <math.h>
#include <string.h>

#include "tests/bench/ipc.h"
#include "tests/tools/peer.h"
#include "tests/tools/report.h"
#include "tests/tools/svg.h"

#define N_ROUND 9
#define N_AWAKE 2000u  /* samples a round */
#define N_ASLEEP 1200u /* they cost a pause each */
#define N_MOST (N_ROUND * N_AWAKE)
#define N_POINT 60 /* of a curve */

_Noreturn void die(const char *what)
{
	fprintf(stderr, "ipc: %s\n", what);
	exit(1);
}

/* ---- Paths */

struct path {
	const char *name;
	take_fn *take;
	bool one_way, modes[N_MODE];
	/* Of each mode: */
	double *us[N_MODE]; /* (N_MOST) all samples, in the end sorted */
	size_t n[N_MODE];
	double median[N_MODE], medians[N_MODE][N_ROUND];
};

enum { PINGPONG, NOP, SEQPACKET, TCP, STORE, WAKE, TOKEN, N_PATH };

static struct path paths[N_PATH] = {
	[PINGPONG] = {.name = "shared memory",
		.take = take_memory_pingpong,
		.modes = {true, false, false}},
	[NOP] = {.name = "nanoserve NOP", .take = take_nop, .modes = {true, true, true}},
	[SEQPACKET] = {.name = "SEQPACKET echo",
		.take = take_seqpacket,
		.modes = {true, true, true}},
	[TCP] = {.name = "TCP echo", .take = take_tcp, .modes = {true, true, true}},
	[STORE] = {.name = "shared memory",
		.take = take_memory_store,
		.one_way = true,
		.modes = {true, false, false}},
	[WAKE] = {.name = "socket pair",
		.take = take_socket_wake,
		.one_way = true,
		.modes = {false, true, true}},
	[TOKEN] = {.name = "nanoserve token",
		.take = take_token,
		.one_way = true,
		.modes = {true, true, true}},
};

static const char *const mode_names[N_MODE] = {"awake", "asleep", "one CPU"};

static void take_round(struct path *p, enum mode mode, int round)
{
	size_t n = mode == AWAKE ? N_AWAKE : N_ASLEEP;
	double *us = p->us[mode] + p->n[mode], sorted[N_AWAKE];

	p->take(mode, us, n);
	memcpy(sorted, us, n * sizeof(*us));
	p->medians[mode][round] = nsv_median(sorted, n);
	p->n[mode] += n;
}

static void take_all(int n_cpu)
{
	for (int round = -1; round < N_ROUND; round++)
		for (int i = 0; i < N_PATH; i++)
			for (int m = n_cpu > 1 ? AWAKE : ONE_CPU; m < N_MODE; m++) {
				if (!paths[i].modes[m])
					continue;
				if (round < 0) { /* warms, and is forgotten */
					paths[i].us[m] = calloc(N_MOST, sizeof(double));
					take_round(&paths[i], m, 0);
					paths[i].n[m] = 0;
				} else {
					take_round(&paths[i], m, round);
				}
			}
	for (int i = 0; i < N_PATH; i++)
		for (int m = 0; m < N_MODE; m++)
			if (paths[i].n[m] > 0) {
				paths[i].median[m] = nsv_median(paths[i].medians[m], N_ROUND);
				nsv_sort(paths[i].us[m], paths[i].n[m]);
			}
}

static void print_distributions(void)
{
	static const double q[] = {0.5, 0.9, 0.99, 0.999};

	printf("%-26s %8s %10s %10s %10s %10s   us, all rounds\n", "path", "samples", "50 %",
		"90 %", "99 %", "99.9 %");
	for (int i = 0; i < N_PATH; i++)
		for (int m = 0; m < N_MODE; m++) {
			const struct path *p = &paths[i];
			if (p->n[m] == 0)
				continue;
			printf("%-16s %-9s %8zu", p->name, mode_names[m], p->n[m]);
			for (size_t k = 0; k < NSV_ARRAY_LEN(q); k++)
				printf(" %10.3f", nsv_quantile(p->us[m], p->n[m], q[k]));
			printf("%s\n", p->one_way ? "   one way" : "");
		}
	printf("\n");
}

/* ---- Costs */

#define N_SIZE 8

struct cost { /* of doing something with so many of a thing */
	const char *name, *unit;
	double n[13], value[13]; /* (n_size) medians; seconds of all, or microseconds */
	size_t n_size;
	double exponent, error;
};

static void measure_cost(struct cost *c, uint32_t least, double (*fn)(uint32_t))
{
	double seconds[N_SIZE][N_ROUND];

	c->n_size = N_SIZE;
	fn(least);
	for (int round = 0; round < N_ROUND; round++)
		for (int i = 0; i < N_SIZE; i++)
			seconds[i][round] = fn(least << i);
	for (int i = 0; i < N_SIZE; i++) {
		c->n[i] = least << i;
		c->value[i] = nsv_median(seconds[i], N_ROUND);
	}
}

/* Seconds for the first n sessions; the daemon's bookkeeping is what may grow. */
static void sum_sessions(struct cost *c, const struct session_costs *s)
{
	double sum = 0;

	for (uint32_t i = 0; i < s->n; i++) {
		sum += s->open_us[i] / 1e6;
		if (nsv_is_pow2(i + 1) && i + 1 >= 32) {
			c->n[c->n_size] = i + 1;
			c->value[c->n_size++] = sum;
		}
	}
}

static void copy_pings(struct cost *c, const struct session_costs *s)
{
	for (uint32_t i = 0; i < s->n_ping; i++) {
		c->n[c->n_size] = 1u << i;
		c->value[c->n_size++] = s->ping_us[i];
	}
}

enum { COST_TOKEN, COST_BYTE, COST_SESSION, COST_PING, N_COST };

static struct cost costs[N_COST] = {
	[COST_TOKEN] = {.name = "a burst of tokens", .unit = "tokens"},
	[COST_BYTE] = {.name = "a prompt tokenized", .unit = "bytes"},
	[COST_SESSION] = {.name = "sessions opened", .unit = "sessions"},
	[COST_PING] = {.name = "a NOP beside idle sessions", .unit = "sessions"},
};

static void measure_costs(const struct session_costs *s)
{
	measure_cost(&costs[COST_TOKEN], 4096, seconds_of_tokens);
	measure_cost(&costs[COST_BYTE], 4096, seconds_of_prompt);
	sum_sessions(&costs[COST_SESSION], s);
	copy_pings(&costs[COST_PING], s);
	for (int i = 0; i < N_COST; i++) {
		struct cost *c = &costs[i];
		if (c->n_size < 3)
			continue;
		c->exponent = nsv_fit_exponent(c->n, c->value, c->n_size, &c->error);
		printf("%s: time ~ %s^%.3f +- %.3f (", c->name, c->unit, c->exponent, c->error);
		for (size_t k = 0; k < c->n_size; k++)
			printf("%s%.0f: %.4g", k ? ", " : "", c->n[k],
				c->value[k] * (i == COST_PING ? 1 : 1e3));
		printf(" %s)\n", i == COST_PING ? "us" : "ms");
	}
	printf("\n");
}

/* ---- What streaming costs a token: a stream's time a token less that of the model alone */

#define N_STREAM 128
#define N_STREAM_ROUND 3

struct stream_cost {
	double alone, stream; /* us a token */
};

static void stream_peer(struct nsv_peer_server *server, double *ret_us)
{
	int32_t ids[5] = {504, 3575, 282, 4649, 314};
	struct nsv_peer_stream st;

	if (nsv_peer_stream_open(&st, server, ids, 5, N_STREAM) < 0 ||
		nsv_peer_streams_read(&st, 1) < 0 || st.n_event == 0)
		die("llama-server does not stream");
	*ret_us = (double)(st.event_ns[st.n_event - 1] - st.event_ns[0]) / 1e3 / (N_STREAM - 1);
}

/* false: there is no peer. */
static bool measure_stream_peer(struct stream_cost *ret)
{
	double alone[N_STREAM_ROUND], stream[N_STREAM_ROUND];
	struct nsv_peer_server server;

	if (!nsv_peer_is_there() || !nsv_test_model())
		return false;
	unpin(); /* the peer's threads are its own to place */
	if (nsv_peer_server_start(&server, nsv_test_model(), "2", 1, 2048) < 0)
		die("llama-server does not start");
	for (int i = 0; i < N_STREAM_ROUND; i++) {
		stream_peer(&server, &stream[i]);
		alone[i] = 1e6 / nsv_peer_rate(nsv_test_model(), "2", 0, N_STREAM, 0);
	}
	nsv_peer_server_stop(&server);
	pin(getpid(), 0);
	*ret = (struct stream_cost){
		nsv_median(alone, N_STREAM_ROUND), nsv_median(stream, N_STREAM_ROUND)};
	printf("llama-server streams %.1f tok/s, llama-bench computes %.1f tok/s\n\n",
		1e6 / ret->stream, 1e6 / ret->alone);
	return true;
}

/* ---- Report */

static void add_latencies(struct nsv_report *r)
{
	const struct path *p = paths;

	nsv_report_time(r, "token awake, by ping-pong", "us", p[TOKEN].median[AWAKE],
		"shared memory ping-pong", p[PINGPONG].median[AWAKE], 0.5);
	nsv_report_time(r, "token awake", "us", p[TOKEN].median[AWAKE], NULL, 0, 2);
	nsv_report_time(r, "token awake, by one store", "us", p[TOKEN].median[AWAKE],
		"shared memory one way", p[STORE].median[AWAKE], 0);
	nsv_report_time(r, "token asleep, by socket pair", "us", p[TOKEN].median[ASLEEP],
		"socket pair", p[WAKE].median[ASLEEP], 1 / 1.2);
	nsv_report_time(r, "token one CPU, by socket pair", "us", p[TOKEN].median[ONE_CPU],
		"socket pair", p[WAKE].median[ONE_CPU], 1 / 1.2);
	nsv_report_time(r, "NOP awake, by ping-pong", "us", p[NOP].median[AWAKE],
		"shared memory ping-pong", p[PINGPONG].median[AWAKE], 0);
	for (int m = 0; m < N_MODE; m++) {
		char work[64];
		snprintf(work, sizeof(work), "NOP %s, by SEQPACKET", mode_names[m]);
		nsv_report_time(r, work, "us", p[NOP].median[m], "SEQPACKET echo",
			p[SEQPACKET].median[m], 0);
		snprintf(work, sizeof(work), "NOP %s, by TCP", mode_names[m]);
		nsv_report_time(r, work, "us", p[NOP].median[m], "TCP echo", p[TCP].median[m], 0);
	}
}

static void add_rate(struct nsv_report *r, const char *work, double (*fn)(void), double target)
{
	double rate[N_ROUND];

	for (int i = 0; i < N_ROUND; i++)
		rate[i] = fn();
	nsv_report_add(r, &(struct nsv_figure){.work = work,
				  .unit = "/s",
				  .value = nsv_median(rate, N_ROUND),
				  .target = target});
}

static void add_sessions(struct nsv_report *r, struct session_costs *s)
{
	double *us = s->open_us;

	nsv_report_time(r, "sessions open at once", "", s->n, NULL, 0, 4096);
	nsv_sort(us, s->n);
	nsv_report_time(r, "session: accept and hello, median", "us", nsv_quantile(us, s->n, 0.5),
		NULL, 0, 200);
	nsv_report_time(r, "session: accept and hello, 99 %", "us", nsv_quantile(us, s->n, 0.99),
		NULL, 0, 0);
	nsv_report_time(r, "session: regions, the smallest", "bytes", s->region_bytes, NULL, 0, 0);
	nsv_report_time(r, "session: the daemon's own memory", "bytes", s->heap_bytes, NULL, 0, 0);
	nsv_report_time(r, "session: the daemon's PSS", "bytes", s->pss_bytes, NULL, 0, 0);
	nsv_report_time(r, "all idle: CPU seconds a second", "", s->idle_cpu, NULL, 0, 0);
	nsv_report_time(r, "all taken over after SIGKILL", "s", s->takeover_s, NULL, 0, 1);
}

static void add_costs(struct nsv_report *r)
{
	char work[64];

	for (int i = 0; i < N_COST; i++) {
		const struct cost *c = &costs[i];
		double last = c->value[c->n_size - 1], n = c->n[c->n_size - 1];
		snprintf(work, sizeof(work), "%s, exponent", c->name);
		nsv_report_time(r, work, c->unit, c->exponent, NULL, 0, i == COST_PING ? 0 : 1.1);
		if (i == COST_TOKEN || i == COST_BYTE) {
			snprintf(work, sizeof(work), "%s, each", c->name);
			nsv_report_time(r, work, "ns", last / n * 1e9, NULL, 0, 0);
		}
	}
}

static void add_stream(struct nsv_report *r, const struct stream_cost *peer)
{
	nsv_report_time(r, "token asleep, by llama-server's HTTP", "us",
		paths[TOKEN].median[ASLEEP], "llama-server: its stream less its bench",
		peer->stream - peer->alone, 0);
}

/* ---- Drawing */

struct curve {
	double x[N_POINT], y[N_POINT];
	char name[64];
};

/* x is one in how many samples is slower. */
static void draw_distribution(const struct path *p, int m, struct curve *c)
{
	for (int i = 0; i < N_POINT; i++) {
		c->x[i] = pow(10, 4.0 * i / (N_POINT - 1));
		c->y[i] = nsv_quantile(p->us[m], p->n[m], 1 - 1 / c->x[i]);
	}
	snprintf(c->name, sizeof(c->name), "%s, %s", p->name, mode_names[m]);
}

static void draw(void)
{
	static const double ticks[] = {1, 2, 10, 100, 1000, 10000};
	static const char *const names[] = {"0", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"};
	static struct curve curves[N_PATH * N_MODE];
	struct nsv_series series[2][N_PATH * N_MODE];
	struct nsv_panel panels[2];
	size_t n = 0;

	for (int way = 0; way < 2; way++) {
		panels[way] = (struct nsv_panel){
			.title = way ? "From the engine to the client" : "There and back",
			.x_name = "share of samples that are as fast",
			.y_name = "us",
			.log_x = true,
			.log_y = true,
			.tick = ticks,
			.tick_name = names,
			.n_tick = NSV_ARRAY_LEN(ticks),
			.series = series[way]};
		for (int i = 0; i < N_PATH; i++)
			for (int m = 0; m < N_MODE; m++) {
				if (paths[i].n[m] == 0 || paths[i].one_way != way)
					continue;
				draw_distribution(&paths[i], m, &curves[n]);
				series[way][panels[way].n_series++] = (struct nsv_series){
					curves[n].name, curves[n].x, curves[n].y, N_POINT};
				n++;
			}
	}
	if (nsv_svg_write("build/bench/ipc.svg", panels, 2) < 0)
		die("build/bench/ipc.svg cannot be written");
}

int main(void)
{
	static struct session_costs sessions;
	struct stream_cost peer = {0};
	struct nsv_report r;
	int n_cpu = find_cpus();

	start_daemons(); /* before this process has one CPU alone: they would not spin either */
	pin(getpid(), 0);
	take_all(n_cpu);
	print_distributions();
	measure_sessions(&sessions);
	measure_costs(&sessions);
	bool has_peer = measure_stream_peer(&peer);
	nsv_report_begin(&r, "ipc");
	add_latencies(&r);
	if (n_cpu > 1) {
		add_rate(&r, "entries through one ring", ring_rate, 1e6);
		add_rate(&r, "entries answered by the daemon", daemon_rate, 1e6);
	}
	add_sessions(&r, &sessions);
	add_costs(&r);
	if (has_peer)
		add_stream(&r, &peer);
	nsv_report_end(&r);
	draw();
	stop_daemons();
	return 0;
}
