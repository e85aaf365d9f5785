/* The cpu backend as a client sees it: a fresh daemon, the default model, the client library. Beside it,
 * where LLAMA_CPP names a build of llama.cpp, its llama-bench on the same file and threads in the
 * same run. NANOSERVE_BENCH_THREADS: threads of both [2]. */
#include <signal.h>
#include <string.h>

#include "daemon/clock.h"
#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/peer.h"
#include "tests/tools/report.h"

#define N_ROUND 5
#define N_DECODE 128

static struct nsv_answer answer;

static void die(const char *what)
{
	fprintf(stderr, "cpu: %s\n", what);
	exit(1);
}

/* Fresh random ids: nothing is known of them to any cache. */
static void ask_random(struct nsv_client *client, uint32_t n_prompt, uint32_t n_output)
{
	static int32_t ids[8192];
	struct nsv_client_params p;

	for (uint32_t i = 0; i < n_prompt; i++)
		ids[i] = 100 + (int32_t)(random() % 40000);
	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.max_tokens = n_output;
	nsv_ask_ids(client, ids, n_prompt, &p, &answer);
	if (answer.ret < 0 || answer.n_token != n_output)
		die(answer.reason);
}

static double prefill_rate(struct nsv_client *client, uint32_t n)
{
	double rate[N_ROUND];

	for (int i = 0; i < N_ROUND; i++) {
		ask_random(client, n, 1);
		rate[i] = n * 1e9 / (double)answer.result.prefill_ns;
	}
	return nsv_median(rate, N_ROUND);
}

static double decode_rate(struct nsv_client *client, uint32_t n_prompt)
{
	double rate[N_ROUND];

	for (int i = 0; i < N_ROUND; i++) {
		ask_random(client, n_prompt, N_DECODE + 1);
		rate[i] = N_DECODE * 1e9 / (double)answer.result.decode_ns;
	}
	return nsv_median(rate, N_ROUND);
}

static double first_token_ms(struct nsv_client *client)
{
	struct nsv_client_params p;
	double ms[3 * N_ROUND];

	nsv_client_params_init(&p);
	p.max_tokens = 1;
	for (int i = 0; i < 3 * N_ROUND; i++) {
		nsv_ask_text(client, "The capital of France is", &p, &answer);
		ms[i] = (double)answer.result.first_ns / 1e6;
	}
	return nsv_median(ms, 3 * N_ROUND);
}

static double ping_us(struct nsv_client *client)
{
	double us[1000];

	for (int i = 0; i < 1000; i++) {
		uint64_t start = nsv_now_ns();
		if (nsv_client_ping(client, 1000) < 0)
			die("no answer to a ping");
		us[i] = (double)(nsv_now_ns() - start) / 1e3;
	}
	return nsv_median(us, 1000);
}

static double peer_rate(const char *threads, int n_prompt, int n_gen, int depth)
{
	return nsv_peer_rate(nsv_test_model(), threads, n_prompt, n_gen, depth);
}

static void add_rate(struct nsv_report *r, const char *work, double value, double peer, double target)
{
	nsv_report_add(r, &(struct nsv_figure){.work = work,
		.unit = "tok/s",
		.value = value,
		.peer = peer > 0 ? "llama.cpp" : NULL,
		.peer_value = peer,
		.target = target});
}

static void add_time(struct nsv_report *r, const char *work, const char *unit, double value, double target)
{
	nsv_report_add(r, &(struct nsv_figure){
				  .work = work, .unit = unit, .value = value, .target = target, .less_is_more = true});
}

int main(void)
{
	const char *threads = getenv("NANOSERVE_BENCH_THREADS") ? getenv("NANOSERVE_BENCH_THREADS") : "2";
	const char *extra[] = {"--no-prefix-cache", "--threads", threads, NULL};
	struct nsv_test_daemon d;
	struct nsv_report r;

	if (!nsv_test_model())
		die("the model is not there: make model");
	uint64_t start = nsv_now_ns();
	if (nsv_test_daemon_start(&d, nsv_test_model(), extra) < 0)
		die("the daemon does not start");
	double ready = (double)(nsv_now_ns() - start) / 1e9;
	struct nsv_client *client = nsv_ask_open(d.socket);
	ask_random(client, 512, 32); /* clocks and caches warm */
	nsv_report_begin(&r, "cpu");
	add_rate(&r, "decode 128, one stream", decode_rate(client, 5), peer_rate(threads, 0, N_DECODE, 0), 1.6);
	add_rate(&r, "decode 128 after 7,000", decode_rate(client, 7000),
		peer_rate(threads, 0, N_DECODE, 7000), 0);
	add_rate(&r, "prefill 512", prefill_rate(client, 512), peer_rate(threads, 512, 0, 0), 6);
	add_rate(&r, "prefill 2,048", prefill_rate(client, 2048), peer_rate(threads, 2048, 0, 0), 5);
	add_time(&r, "first token of a 5-token prompt", "ms", first_token_ms(client), 12);
	add_time(&r, "ping, through the library", "us", ping_us(client), 0);
	add_time(&r, "ready to serve", "s", ready, 0.25);
	nsv_report_end(&r);
	nsv_client_close(client);
	return nsv_test_daemon_stop(&d, SIGTERM) == 0 ? 0 : 1;
}
