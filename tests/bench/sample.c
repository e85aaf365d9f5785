/* What one sampled token costs on one core, in microseconds: 49,152, 128,256 and 262,144 logits, as
 * a model gives them (a few likely ones above a broad bell), by each way of choosing. Medians of
 * interleaved rounds. The target is 2 % of a step of 7 ms for the smallest vocabulary.
 *
 *     make bench NAME=sample */
#include "daemon/clock.h"
#include "daemon/params.h"
#include "tests/tools/report.h"

#define N_ROUND 51
#define N_HISTORY 8192
#define TARGET_US 140

struct way {
	const char *name;
	struct nsv_params params;
	uint32_t n_lp;
	double us[N_ROUND];
};

static float logits[262144];
static int32_t history[N_HISTORY];

/* A sum of twelve uniform numbers is a bell; one in 2,000 is a likely one. */
static void draw_logits(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		double x = 0;

		for (int k = 0; k < 12; k++)
			x += (double)random() / RAND_MAX;
		logits[i] = (float)((x - 6) * 2.5 + (random() % 2000 ? 0 : 8));
	}
}

static double measure(struct nsv_sampler *s, const struct way *w, uint64_t position)
{
	struct nsv_lp lp[1 + NSV_MAX_LOGPROB];
	const struct nsv_sample_in in = {.logits = logits,
		.params = &w->params,
		.tokens = history,
		.n_output = N_HISTORY,
		.seed = 1,
		.position = position};
	int32_t token;
	uint64_t start = nsv_now_ns();

	if (nsv_sample_next(s, &in, &token, lp, w->n_lp) != 0)
		abort();
	return (double)(nsv_now_ns() - start) / 1e3;
}

static size_t make_ways(struct way *w)
{
	const char *const names[] = {"greedy", "temperature", "top-k 40", "top-k 40, top-p 0.95",
		"top-p 0.95", "min-p 0.05", "typical-p 0.9", "penalties, 8192 tokens",
		"greedy, 5 log-probabilities"};

	for (size_t i = 0; i < NSV_ARRAY_LEN(names); i++) {
		w[i] = (struct way){.name = names[i], .params = nsv_params_default()};
		w[i].params.temperature = i == 0 || i == 8 ? 0 : 1;
	}
	w[2].params.top_k = w[3].params.top_k = w[7].params.top_k = 40;
	w[3].params.top_p = w[4].params.top_p = 0.95f;
	w[5].params.min_p = 0.05f;
	w[6].params.typical_p = 0.9f;
	w[7].params.repetition_penalty = 1.1f;
	w[7].params.presence_penalty = w[7].params.frequency_penalty = 0.1f;
	w[8].n_lp = 6;
	return NSV_ARRAY_LEN(names);
}

static void measure_vocab(uint32_t n_vocab, struct way *ways, size_t n_way)
{
	struct nsv_sampler s;

	if (nsv_sampler_init(&s, n_vocab) < 0)
		abort();
	draw_logits(n_vocab);
	for (size_t i = 0; i < N_HISTORY; i++)
		history[i] = (int32_t)((uint32_t)random() % n_vocab);
	for (uint32_t round = 0; round < N_ROUND; round++)
		for (size_t i = 0; i < n_way; i++)
			ways[i].us[round] = measure(&s, &ways[i], round);
	nsv_sampler_deinit(&s);
}

int main(void)
{
	const uint32_t vocabs[] = {49152, 128256, 262144};
	struct way ways[16];
	size_t n_way = make_ways(ways);
	struct nsv_report r;

	srandom(1);
	nsv_report_begin(&r, "sample");
	for (size_t v = 0; v < NSV_ARRAY_LEN(vocabs); v++) {
		measure_vocab(vocabs[v], ways, n_way);
		for (size_t i = 0; i < n_way; i++) {
			char work[64];

			snprintf(work, sizeof(work), "%u: %s", vocabs[v], ways[i].name);
			nsv_report_time(&r, work, "us", nsv_median(ways[i].us, N_ROUND), NULL, 0,
				v == 0 ? TARGET_US : 0);
		}
	}
	nsv_report_end(&r);
	return 0;
}
