/* Models through the client library: a fresh daemon for each. Decode is held against what the memory
 * allows: the packed weights and the history, once a token. */
#include <nanoserve/client.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "shm/clock.h"
#include "tests/bench/cpu.h"
#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/peer.h"

#define N_ROUND 3
#define N_START 9
#define N_DECODE 128
#define MAX_BATCH 32
#define N_BATCH_PROMPT 16 /* so that decoding is nearly all of a batch */
#define N_BATCH_OUTPUT 64

/* The model under measurement. */
struct subject {
	struct nsv_report *r;
	const char *threads;
	struct nsv_team *team; /* that reads memory beside decoding; NULL where none does */
	char path[512], name[32];
	struct nsv_client *client;
	double prefill, decode; /* targets of the ratios to llama.cpp */
};

/* What varies: measured several times. */
struct measured {
	double median, spread;
};

static struct nsv_answer answer;

static struct measured of_rounds(double *v, size_t n)
{
	double median = nsv_median(v, n);

	return (struct measured){median, nsv_spread(v, n)};
}

static void draw_ids(int32_t *ids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		ids[i] = 100 + (int32_t)(random() % 40000);
}

/* Fresh random ids: nothing is known of them to any cache. */
static void ask_random(struct nsv_client *client, uint32_t n_prompt, uint32_t n_output)
{
	static int32_t ids[8192];
	struct nsv_client_params p;

	draw_ids(ids, n_prompt);
	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.max_tokens = n_output;
	nsv_ask_ids(client, ids, n_prompt, &p, &answer);
	if (answer.ret < 0 || answer.n_token != n_output)
		die(answer.reason);
}

static struct measured prefill_rate(struct nsv_client *client, uint32_t n)
{
	double rate[N_ROUND];

	for (int i = 0; i < N_ROUND; i++) {
		ask_random(client, n, 1);
		rate[i] = n * 1e9 / (double)answer.result.prefill_ns;
	}
	return of_rounds(rate, N_ROUND);
}

/* n_round: up to N_ROUND. ret_read: NULL, or what the team reads a second, measured after each round:
 * on a shared machine what memory gives changes within seconds. */
static struct measured decode_rate(
	const struct subject *s, uint32_t n_prompt, size_t n_round, double *ret_read)
{
	double rate[N_ROUND], read[N_ROUND];

	for (size_t i = 0; i < n_round; i++) {
		struct limits now = {0};
		ask_random(s->client, n_prompt, N_DECODE + 1);
		rate[i] = N_DECODE * 1e9 / (double)answer.result.decode_ns;
		if (ret_read)
			measure_read(s->team, &now);
		read[i] = now.read;
	}
	if (ret_read)
		*ret_read = of_rounds(read, n_round).median;
	return of_rounds(rate, n_round);
}

/* The client never waits: it keeps a processor busy. */
static struct measured decode_rate_polling(struct nsv_client *client)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_client_result result = {.size = sizeof(result)};
	struct nsv_client_params p;
	struct nsv_request *request;
	double rate[N_ROUND];
	int32_t ids[5];

	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.max_tokens = N_DECODE + 1;
	for (int i = 0; i < N_ROUND; i++) {
		int ret;

		draw_ids(ids, 5);
		if (nsv_client_submit_ids(client, ids, 5, &p, &request) < 0)
			die(nsv_client_error(client));
		while ((ret = nsv_request_next(request, 0, &chunk)) > 0 || ret == -EAGAIN)
			;
		if (ret < 0 || nsv_request_result(request, &result) < 0)
			die(nsv_client_error(client));
		rate[i] = N_DECODE * 1e9 / (double)result.decode_ns;
		nsv_request_free(request);
	}
	return of_rounds(rate, N_ROUND);
}

static struct measured first_token_ms(struct nsv_client *client)
{
	struct nsv_client_params p;
	double ms[5 * N_ROUND];

	nsv_client_params_init(&p);
	p.max_tokens = 1;
	for (int i = 0; i < 5 * N_ROUND; i++) {
		nsv_ask_text(client, "The capital of France is", &p, &answer);
		ms[i] = (double)answer.result.first_ns / 1e6;
	}
	return of_rounds(ms, 5 * N_ROUND);
}

static struct measured ping_us(struct nsv_client *client)
{
	double us[1000];

	for (int i = 0; i < 1000; i++) {
		uint64_t start = nsv_now_ns();
		if (nsv_client_ping(client, 1000) < 0)
			die("no answer to a ping");
		us[i] = (double)(nsv_now_ns() - start) / 1e3;
	}
	return of_rounds(us, 1000);
}

/* ---- A batch: tokens a second of all streams, prompts included on both sides */

static double batch_rate(struct nsv_client *client, uint32_t n)
{
	struct nsv_request *requests[MAX_BATCH];
	int32_t ids[N_BATCH_PROMPT];
	struct nsv_client_params p;
	int submitted[MAX_BATCH];
	uint64_t start = nsv_now_ns();

	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.max_tokens = N_BATCH_OUTPUT;
	for (uint32_t i = 0; i < n; i++) {
		draw_ids(ids, N_BATCH_PROMPT);
		submitted[i] = nsv_client_submit_ids(
			client, ids, N_BATCH_PROMPT, &p, &requests[i]);
	}
	for (uint32_t i = 0; i < n; i++) {
		nsv_ask_finish(client, submitted[i], requests[i], &answer);
		if (answer.ret < 0 || answer.n_token != N_BATCH_OUTPUT)
			die(answer.reason);
	}
	return n * N_BATCH_OUTPUT * 1e9 / (double)(nsv_now_ns() - start);
}

static double peer_batch_rate(const struct subject *s, uint32_t n)
{
	char arguments[768];

	snprintf(arguments, sizeof(arguments),
		"-m '%s' -t %s -c %u -npp %u -ntg %u -npl %u --output-format jsonl", s->path,
		s->threads, n * (N_BATCH_PROMPT + N_BATCH_OUTPUT), N_BATCH_PROMPT, N_BATCH_OUTPUT,
		n);
	json_t *rows = nsv_peer_run("llama-batched-bench", arguments);
	double seconds = json_number_value(json_object_get(json_array_get(rows, 0), "t"));

	json_decref(rows);
	return seconds > 0 ? n * N_BATCH_OUTPUT / seconds : 0;
}

/* ---- Rows of the table */

static void add_rate(const struct subject *s, const char *what, struct measured m, double limit,
	double peer, double target)
{
	char work[96];

	snprintf(work, sizeof(work), "%s %s", s->name, what);
	nsv_report_add(s->r, &(struct nsv_figure){.work = work,
				     .unit = "tok/s",
				     .value = m.median,
				     .spread = m.spread,
				     .limit = limit,
				     .peer = peer > 0 ? "llama.cpp" : NULL,
				     .peer_value = peer,
				     .target = peer > 0 ? target : 0});
}

static void add_time(const struct subject *s, const char *what, const char *unit,
	struct measured m, double target)
{
	char work[96];

	snprintf(work, sizeof(work), "%s %s", s->name, what);
	nsv_report_add(s->r, &(struct nsv_figure){.work = work,
				     .unit = unit,
				     .value = m.median,
				     .spread = m.spread,
				     .target = target,
				     .less_is_more = true});
}

/* Tokens a second that reading weights and a history of so many tokens allows. */
static double decode_limit(const struct subject *s, double read, double n_history)
{
	double weights = (double)nsv_ask_status(s->client, "memory.weights");
	double token = (double)nsv_ask_status(s->client, "kv.token_bytes");

	return read / (weights + n_history * token);
}

/* After a prompt of n tokens. */
static void add_decode(const struct subject *s, const char *what, uint32_t n, size_t n_round,
	double peer, double target)
{
	double read;
	struct measured m = decode_rate(s, n, n_round, &read);

	add_rate(s, what, m, decode_limit(s, read, n + N_DECODE / 2.0), peer, target);
}

static void add_prefill(const struct subject *s, uint32_t n, double target)
{
	char what[32];

	snprintf(what, sizeof(what), "prefill %u", n);
	add_rate(s, what, prefill_rate(s->client, n), 0,
		nsv_peer_rate(s->path, s->threads, (int)n, 0, 0), target);
}

static void add_batch(const struct subject *s, uint32_t n, double target)
{
	double rate[N_ROUND];
	char what[32];

	for (int i = 0; i < N_ROUND; i++)
		rate[i] = batch_rate(s->client, n);
	snprintf(what, sizeof(what), "decode, %u streams", n);
	add_rate(s, what, of_rounds(rate, N_ROUND), 0, peer_batch_rate(s, n), target);
}

static void add_short(const struct subject *s)
{
	add_decode(s, "decode 128, one stream", 5, N_ROUND,
		nsv_peer_rate(s->path, s->threads, 0, N_DECODE, 0), s->decode);
	add_prefill(s, 512, s->prefill);
}

static void add_full(const struct subject *s)
{
	add_short(s);
	add_prefill(s, 2048, 5);
	add_batch(s, 8, 4);
	add_batch(s, 32, 6);
	add_decode(s, "decode 128 after 100", 100, N_ROUND, 0, 0);
	add_decode(s, "decode 128 after 7,000", 7000, 3, 0, 0);
	add_time(s, "first token of a 5-token prompt", "ms", first_token_ms(s->client), 12);
	add_time(s, "ping, through the library", "us", ping_us(s->client), 0);
}

/* ---- Models */

static struct nsv_client *open_session(const char *socket)
{
	struct nsv_client_options o;
	struct nsv_client *client;
	char text[256];

	nsv_client_options_init(&o);
	o.n_slot = MAX_BATCH;
	if (nsv_client_open(socket, &o, text, sizeof(text), &client) < 0)
		die(text);
	return client;
}

static void stop(struct nsv_test_daemon *d)
{
	if (nsv_test_daemon_stop(d, SIGTERM) != 0)
		die("the daemon does not stop");
}

/* Up to N_START times, the last of which stays: seconds from its program's start. */
static struct measured start(
	struct nsv_test_daemon *d, const struct subject *s, size_t n_start)
{
	const char *extra[] = {"--no-prefix-cache", "--threads", s->threads, NULL};
	double ready[N_START];

	for (size_t i = 0; i < n_start; i++) {
		if (i > 0)
			stop(d);
		uint64_t start_ns = nsv_now_ns();
		if (nsv_test_daemon_start(d, s->path, extra) < 0)
			die("the daemon does not start");
		ready[i] = (double)(nsv_now_ns() - start_ns) / 1e9;
	}
	return of_rounds(ready, n_start);
}

static void measure(struct subject *s, void (*rows)(const struct subject *s), double ready_target)
{
	struct nsv_test_daemon d;
	struct measured ready = start(&d, s, N_START);

	s->client = open_session(d.socket);
	ask_random(s->client, 512, 32); /* clocks and caches warm */
	rows(s);
	add_time(s, "ready to serve", "s", ready, ready_target);
	nsv_client_close(s->client);
	stop(&d);
}

static void measure_beside(const struct subject *first, const char *file, const char *name)
{
	struct subject s = *first;
	const char *slash = strrchr(first->path, '/');
	int folder = slash ? (int)(slash - first->path) : 0;

	s.decode = 1.4;
	s.prefill = 3;
	snprintf(s.name, sizeof(s.name), "%s", name);
	snprintf(s.path, sizeof(s.path), "%.*s/%s", folder, first->path, file);
	if (access(s.path, R_OK) == 0)
		measure(&s, add_short, 0);
	else
		printf("%s is not there\n", file);
}

static struct subject first_subject(struct nsv_report *r, const char *threads)
{
	struct subject s = {.r = r,
		.threads = threads,
		.name = "smollm2",
		.decode = 1.6,
		.prefill = 6};

	if (!nsv_test_model())
		die("the model is not there: make model");
	snprintf(s.path, sizeof(s.path), "%s", nsv_test_model());
	return s;
}

void report_models(struct nsv_report *r, const char *threads)
{
	struct subject s = first_subject(r, threads);

	if (nsv_team_new((uint32_t)atoi(threads), &s.team) < 0)
		die("no team of threads");
	measure(&s, add_full, 0.25);
	measure_beside(&s, "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen2.5");
	measure_beside(&s, "gemma-3-270m-q4_k_m.gguf", "gemma3");
	nsv_team_free(s.team);
}

/* ---- Clients that wait, and that poll */

/* threads: "0": the daemon's own choice. */
static void measure_polling(struct subject s, const char *threads, const char *name)
{
	struct nsv_test_daemon d;
	char what[64];

	s.threads = threads;
	start(&d, &s, 1);
	s.client = open_session(d.socket);
	ask_random(s.client, 512, 32);
	snprintf(what, sizeof(what), "decode 128, %s", name);
	add_rate(&s, what, decode_rate(&s, 5, N_ROUND, NULL), 0, 0, 0);
	snprintf(what, sizeof(what), "decode 128, %s, polled", name);
	add_rate(&s, what, decode_rate_polling(s.client), 0, 0, 0);
	nsv_client_close(s.client);
	stop(&d);
}

/* As many threads as are asked for, one fewer, which leaves the client a processor, and as many as
 * the daemon finds best. */
void report_polling(struct nsv_report *r, const char *threads)
{
	struct subject s = first_subject(r, threads);
	int n = atoi(threads);

	for (int i = n; i >= 1 && i >= n - 1; i--) {
		char count[16], name[32];

		snprintf(count, sizeof(count), "%d", i);
		snprintf(name, sizeof(name), "%d threads", i);
		measure_polling(s, count, name);
	}
	measure_polling(s, "0", "threads by default");
}
