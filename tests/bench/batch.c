/* Many requests at once: tokens a second and time to the first token of 1 to 32 streams, against
 * the same requests one after the other, and against llama.cpp on the same file in the same run
 * where LLAMA_CPP names a build of it; batching that waits for the whole batch against batching
 * that does not; and what a running stream sees of a prompt of 4,000 tokens that comes beside it.
 * Medians of rounds, between which the peer has its own.
 *
 *     make bench NAME=batch        build/bench/batch.json, build/bench/batch.svg */
#include "tests/bench/batch.h"

#include <signal.h>
#include <string.h>

#include "tests/tools/daemon.h"
#include "tests/tools/report.h"
#include "tests/tools/svg.h"

#define N_ROUND 3
#define N_PEER_ROUND 2 /* it takes its time; of each the better one counts */
#define THREADS "2"

static const uint32_t n_streams[] = {1, 4, 8, 16, 32};
#define N_SIZE NSV_ARRAY_LEN(n_streams)

enum way { TOGETHER, IN_TURN, BENCH, SERVER, N_WAY };

static const char *const way_names[N_WAY] = {
	"nanoserve", "nanoserve, in turn", "llama-batched-bench", "llama-server"};

static double rates[N_WAY][N_SIZE], firsts[N_WAY][N_SIZE]; /* medians; 0: not measured */
static struct gaps gaps[N_ROUND], peer_gaps;		   /* in the end sorted by the worst gap */
static const struct gaps *const our_gaps = &gaps[N_ROUND / 2];

_Noreturn void die(const char *what)
{
	fprintf(stderr, "batch: %s\n", what);
	exit(1);
}

/* Fresh ones: nothing is known of them to any cache. */
void draw_ids(int32_t *ids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		ids[i] = 100 + (int32_t)(random() % 40000);
}

/* ---- Measuring */

static double median_of(const double *v)
{
	double sorted[N_ROUND];

	memcpy(sorted, v, sizeof(sorted));
	return nsv_median(sorted, N_ROUND);
}

static double best_of(const double *v, bool less)
{
	double sorted[N_PEER_ROUND];

	memcpy(sorted, v, sizeof(sorted));
	nsv_sort(sorted, N_PEER_ROUND);
	return sorted[less ? 0 : N_PEER_ROUND - 1];
}

/* By way, number of streams and round. */
static double rate[N_WAY][N_SIZE][N_ROUND], first[N_WAY][N_SIZE][N_ROUND];
static double waits[N_ROUND], goes_on[N_ROUND];

static void keep(enum way way, size_t size, int round, struct served served)
{
	rate[way][size][round] = served.rate;
	first[way][size][round] = served.first_ms;
}

static void round_of_ours(struct nsv_client *client, int round)
{
	struct served in_turn[MAX_STREAM];

	serve_together(client, 4); /* clocks and caches warm */
	for (size_t i = 0; i < N_SIZE; i++)
		keep(TOGETHER, i, round, serve_together(client, n_streams[i]));
	serve_in_turn(client, in_turn);
	for (size_t i = 0; i < N_SIZE; i++)
		keep(IN_TURN, i, round, in_turn[n_streams[i] - 1]);
	waits[round] = serve_ragged(client, true);
	goes_on[round] = serve_ragged(client, false);
	measure_gaps(client, &gaps[round]);
}

static void start_server(struct nsv_peer_server *s, uint32_t n_slot, uint32_t n_ctx)
{
	if (nsv_peer_server_start(s, nsv_test_model(), THREADS, n_slot, n_ctx) < 0)
		die("llama-server does not start");
}

static void round_of_peer(int round)
{
	struct served bench[N_SIZE];
	struct nsv_peer_server s;

	serve_by_bench(n_streams, N_SIZE, bench);
	for (size_t i = 0; i < N_SIZE; i++)
		keep(BENCH, i, round, bench[i]);
	start_server(&s, MAX_STREAM, MAX_STREAM * 2 * (N_PROMPT + N_OUTPUT));
	for (size_t i = 0; i < N_SIZE; i++)
		keep(SERVER, i, round, serve_by_server(&s, n_streams[i]));
	nsv_peer_server_stop(&s);
}

static void measure_peer_gaps(void)
{
	struct nsv_peer_server s;

	start_server(&s, 2, 2 * (LONG_PROMPT + MAX_GAP));
	measure_server_gaps(&s, &peer_gaps);
	nsv_peer_server_stop(&s);
}

static int by_worst(const void *a, const void *b)
{
	double x = ((const struct gaps *)a)->worst_ms, y = ((const struct gaps *)b)->worst_ms;

	return (x > y) - (x < y);
}

static void measure(struct nsv_client *client)
{
	for (int round = 0; round < N_ROUND; round++) {
		round_of_ours(client, round);
		if (nsv_peer_is_there() && round < N_PEER_ROUND)
			round_of_peer(round);
	}
	if (nsv_peer_is_there())
		measure_peer_gaps();
	for (int way = 0; way < N_WAY; way++)
		for (size_t i = 0; i < N_SIZE; i++) {
			bool ours = way == TOGETHER || way == IN_TURN;
			rates[way][i] =
				ours ? median_of(rate[way][i]) : best_of(rate[way][i], false);
			firsts[way][i] =
				ours ? median_of(first[way][i]) : best_of(first[way][i], true);
		}
	qsort(gaps, N_ROUND, sizeof(gaps[0]), by_worst);
}

/* ---- Report */

static void add_rate(struct nsv_report *r, const char *work, double value, const char *peer,
	double peer_value, double target)
{
	nsv_report_add(r, &(struct nsv_figure){.work = work,
				  .unit = "tok/s",
				  .value = value,
				  .peer = peer_value > 0 ? peer : NULL,
				  .peer_value = peer_value,
				  .target = target});
}

static void add_streams(struct nsv_report *r)
{
	char work[64];

	for (size_t i = 0; i < N_SIZE; i++)
		for (int way = IN_TURN; way < N_WAY; way++) {
			if (way != IN_TURN && rates[way][i] <= 0)
				continue;
			snprintf(work, sizeof(work), "%u streams, by %s", n_streams[i],
				way_names[way]);
			add_rate(r, work, rates[TOGETHER][i], way_names[way], rates[way][i], 0);
		}
	for (size_t i = 0; i < N_SIZE; i++)
		for (int way = IN_TURN; way < N_WAY; way++) {
			if (way != IN_TURN && firsts[way][i] <= 0)
				continue;
			snprintf(work, sizeof(work), "first of %u, by %s", n_streams[i],
				way_names[way]);
			nsv_report_time(r, work, "ms", firsts[TOGETHER][i], way_names[way],
				firsts[way][i], 0);
		}
}

static void add_gaps(struct nsv_report *r)
{
	const char *peer = "llama-server";

	nsv_report_time(r, "stream alone: median gap", "ms", our_gaps->alone_ms, peer,
		peer_gaps.alone_ms, 0);
	nsv_report_time(r, "beside 4,000: median gap", "ms", our_gaps->mixed_ms, peer,
		peer_gaps.mixed_ms, 0);
	nsv_report_time(r, "beside 4,000: worst gap", "ms", our_gaps->worst_ms, peer,
		peer_gaps.worst_ms, 0);
	nsv_report_time(r, "beside 4,000: worst by median", "times",
		our_gaps->worst_ms / our_gaps->mixed_ms, NULL, 0, 3);
	nsv_report_time(r, "beside 4,000: worst by alone", "times",
		our_gaps->worst_ms / our_gaps->alone_ms, NULL, 0, 0);
	nsv_report_time(r, "first of 4,000, beside a stream", "s", our_gaps->first_s, peer,
		peer_gaps.first_s, 0);
}

/* ---- Drawing */

static struct nsv_panel panel_over_streams(const char *title, const char *y_name,
	double values[N_WAY][N_SIZE], struct nsv_series *series)
{
	static const double x[N_SIZE] = {1, 4, 8, 16, 32};
	static const char *const names[N_SIZE] = {"1", "4", "8", "16", "32"};
	struct nsv_panel p = {.title = title,
		.x_name = "requests at once",
		.y_name = y_name,
		.log_x = true,
		.log_y = true,
		.tick = x,
		.tick_name = names,
		.n_tick = N_SIZE,
		.series = series};

	for (int way = 0; way < N_WAY; way++)
		if (values[way][0] > 0)
			series[p.n_series++] =
				(struct nsv_series){way_names[way], x, values[way], N_SIZE};
	return p;
}

static void draw(void)
{
	static const double seconds[] = {0, 1, 2, 4, 6, 8, 12, 16};
	static const char *const names[] = {"0", "1", "2", "4", "6", "8", "12", "16"};
	struct nsv_series series[2][N_WAY],
		gap_series[2] = {{"nanoserve", our_gaps->at_s, our_gaps->ms, our_gaps->n},
			{"llama-server", peer_gaps.at_s, peer_gaps.ms, peer_gaps.n}};
	double until = nsv_peer_is_there() ? peer_gaps.first_s : our_gaps->first_s;
	size_t n_tick = 1;

	while (n_tick < NSV_ARRAY_LEN(seconds) && seconds[n_tick] < until)
		n_tick++;
	const struct nsv_panel panels[] = {panel_over_streams("Output tokens a second, all streams",
						   "tok/s", rates, series[0]),
		panel_over_streams("Time to the first token, median", "ms", firsts, series[1]),
		{.title = "A stream while 4,000 tokens are read beside it",
			.x_name = "seconds after the prompt was sent",
			.y_name = "ms a token",
			.log_y = true,
			.tick = seconds,
			.tick_name = names,
			.n_tick = n_tick,
			.series = gap_series,
			.n_series = nsv_peer_is_there() ? 2 : 1}};
	if (nsv_svg_write("build/bench/batch.svg", panels, NSV_ARRAY_LEN(panels)) < 0)
		die("build/bench/batch.svg cannot be written");
}

int main(void)
{
	const char *extra[] = {"--no-prefix-cache", "--threads", THREADS, NULL};
	struct nsv_test_daemon d;
	struct nsv_report r;

	if (!nsv_test_model())
		die("the model is not there: make model");
	if (nsv_test_daemon_start(&d, nsv_test_model(), extra) < 0)
		die("the daemon does not start");
	struct nsv_client *client = open_session(d.socket);
	measure(client);
	nsv_client_close(client);
	nsv_test_daemon_stop(&d, SIGTERM);
	nsv_report_begin(&r, "batch");
	add_streams(&r);
	add_rate(&r, "ragged, as each one ends", median_of(goes_on), "when all have ended",
		median_of(waits), 0);
	add_gaps(&r);
	nsv_report_end(&r);
	draw();
	return 0;
}
