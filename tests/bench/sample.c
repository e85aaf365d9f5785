/* What sampling costs beside the step that gives the logits: of each model that is there, a decode
 * step of one stream and of 32 on prompts of tests/data, then each way of choosing on the logits of
 * that step, and for one stream on flat ones (a bell with a few likely ones above it), by the same
 * threads. Medians of interleaved rounds, in microseconds; the target is 2 % of the step.
 *
 *     make bench NAME=sample        $NANOSERVE_BENCH_THREADS [2] */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "daemon/model/logits.h"
#include "daemon/params.h"
#include "daemon/sample.h"
#include "shm/clock.h"
#include "tests/tools/model-run.h"
#include "tests/tools/report.h"

#define N_ROUND 31 /* of one stream; of many, fewer */
#define N_ROUND_MANY 7
#define N_STEP 24
#define N_STREAM 32u
#define N_PROMPT 32u /* at most */
#define N_HISTORY 8192u
#define SHARE 0.02

static const struct {
	const char *name, *file, *cases;
} models[] = {{"smollm2", MODEL_RUN_DEFAULT, "tests/data/smollm2-135m-q4_1.json"},
	{"qwen2.5", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
		"tests/data/qwen2.5-coder-0.5b-q4_k_m.json"},
	{"gemma3", "gemma-3-270m-q4_k_m.gguf", "tests/data/gemma3-270m-q4_k_m.json"}};

struct way {
	const char *name;
	struct nsv_params params;
	uint32_t n_lp;
	double us[N_ROUND];
};

/* The rows of a step, and who samples from them. */
struct rows {
	const struct way *way;
	uint32_t n, n_vocab;
	const struct nsv_logits *logits;
	struct nsv_sampler *samplers;
	uint64_t position;
};

static struct nsv_report report;
static int32_t history[N_HISTORY];

static uint32_t n_thread(void)
{
	const char *set = getenv("NANOSERVE_BENCH_THREADS");
	int n = set ? atoi(set) : 2;

	assert_true(n >= 1);
	return (uint32_t)n;
}

static size_t make_ways(struct way *w)
{
	const char *const names[] = {"greedy", "temperature", "top-k 40", "top-k 40, top-p 0.95",
		"top-k 5000", "top-p 0.95", "min-p 0.05", "typical-p 0.9", "penalties, 8192 tokens",
		"greedy, 5 log-probabilities", "top-p 0.95 at 1.5", "top-p 0.9 at 0.7"};

	for (size_t i = 0; i < NSV_ARRAY_LEN(names); i++) {
		w[i] = (struct way){.name = names[i], .params = nsv_params_default()};
		w[i].params.temperature = i == 0 || i == 9 ? 0 : 1;
	}
	w[2].params.top_k = w[3].params.top_k = w[8].params.top_k = 40;
	w[4].params.top_k = 5000;
	w[3].params.top_p = w[5].params.top_p = 0.95f;
	w[6].params.min_p = 0.05f;
	w[7].params.typical_p = 0.9f;
	w[8].params.repetition_penalty = 1.1f;
	w[8].params.presence_penalty = w[8].params.frequency_penalty = 0.1f;
	w[9].n_lp = 6;
	w[10].params.temperature = 1.5f;
	w[10].params.top_p = 0.95f;
	w[11].params.temperature = 0.7f;
	w[11].params.top_p = 0.9f;
	return NSV_ARRAY_LEN(names);
}

/* A sum of twelve uniform numbers is a bell; one in 2,000 is a likely one. */
static void draw_flat(float *logits, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		double x = 0;

		for (int k = 0; k < 12; k++)
			x += (double)random() / RAND_MAX;
		logits[i] = (float)((x - 6) * 2.5 + (random() % 2000 ? 0 : 8));
	}
}

/* ---- Sampling, as the daemon shares it out */

static void sample_row(
	const struct nsv_part *part, struct nsv_sampler *s, uint32_t i, const void *arg)
{
	const struct rows *r = arg;
	struct nsv_lp lp[1 + NSV_MAX_LOGPROB];
	const struct nsv_sample_in in = {.logits = r->logits->x + i * r->logits->ld,
		.ranges = r->logits->ranges + (size_t)i * nsv_scan_n_slice(r->n_vocab),
		.sum_scale = r->logits->scales[i],
		.params = &r->way->params,
		.tokens = history,
		.n_output = N_HISTORY,
		.seed = i,
		.position = r->position};
	int32_t token;

	if (nsv_sample_next(s, part, &in, &token, lp, r->way->n_lp) != 0)
		abort();
}

/* What a step that is to be sampled so leaves beside its logits. */
static void look_at_slices(const struct rows *r)
{
	const struct nsv_sample_in in = {.params = &r->way->params};
	const struct nsv_scan_slices slices = {r->logits->ranges, r->logits->scales};

	for (uint32_t i = 0; i < r->n; i++)
		r->logits->scales[i] = nsv_sample_sum_scale(&in);
	nsv_scan_look(r->logits->x, r->logits->ld, r->n, r->n_vocab, 0,
		nsv_scan_n_slice(r->n_vocab), &slices);
}

static void sample_member(const struct nsv_part *part, void *arg)
{
	const struct rows *r = arg;

	nsv_sample_rows(part, r->samplers, r->n, sample_row, r);
}

static void measure_ways(struct nsv_team *team, struct rows *r, struct way *ways, size_t n_way,
	uint32_t n_round)
{
	for (uint32_t round = 0; round < n_round; round++)
		for (size_t i = 0; i < n_way; i++) {
			r->way = &ways[i];
			r->position = round;
			look_at_slices(r);
			uint64_t start = nsv_now_ns();
			nsv_team_run(team, sample_member, r);
			ways[i].us[round] = (double)(nsv_now_ns() - start) / 1e3;
		}
}

static void report_us(const char *model, const char *what, double *us, size_t n, double target)
{
	char work[96];

	snprintf(work, sizeof(work), "%s %s", model, what);
	double median = nsv_median(us, n);
	nsv_report_add(&report, &(struct nsv_figure){.work = work,
					.unit = "us",
					.value = median,
					.spread = nsv_spread(us, n),
					.target = target,
					.less_is_more = true});
}

static void report_ways(struct model_run *m, struct rows *r, const char *model, double step_us)
{
	struct way ways[16];
	size_t n = make_ways(ways);
	uint32_t n_round = r->n > 1 ? N_ROUND_MANY : N_ROUND;

	measure_ways(m->team, r, ways, n, n_round);
	for (size_t i = 0; i < n; i++)
		report_us(model, ways[i].name, ways[i].us, n_round, SHARE * step_us);
}

/* ---- Steps */

/* The beginning of a case's prompt: how many tokens. */
static uint32_t get_prompt(const json_t *cases, size_t i, int32_t *tokens)
{
	const json_t *one = json_array_get(cases, i % json_array_size(cases));
	const json_t *ids = json_object_get(one, "prompt_ids");
	size_t n = nsv_min(json_array_size(ids), N_PROMPT);

	for (size_t k = 0; k < n; k++)
		tokens[k] = (int32_t)json_integer_value(json_array_get(ids, k));
	return (uint32_t)n;
}

/* Steps of n streams, every other one of which leaves sums of slices; the last logits
 * (n, n_vocab). */
static void measure_steps(struct model_run *m, const json_t *cases, uint32_t n,
	struct nsv_logits *l, double us[2][N_STEP])
{
	struct model_seq seqs[N_STREAM];
	struct model_feed feeds[N_STREAM];
	int32_t prompt[N_PROMPT], tokens[N_STREAM];

	for (uint32_t i = 0; i < n; i++) {
		uint32_t n_prompt = get_prompt(cases, i, prompt);

		model_seq_init(&seqs[i], n_prompt + 2 * N_STEP);
		model_run_prefill(m, &seqs[i], prompt, n_prompt, N_PROMPT, l->x);
		tokens[i] = logits_best(l->x, m->n_vocab);
		feeds[i] = (struct model_feed){.seq = &seqs[i], .tokens = &tokens[i], .n = 1};
	}
	for (uint32_t i = 0; i < n; i++)
		l->scales[i] = (float)M_LOG2E;
	for (int step = 0; step < 2 * N_STEP; step++) {
		uint64_t start = nsv_now_ns();

		m->slices.scales = step % 2 ? l->scales : NULL;
		model_run_step(m, feeds, n, l->x);
		us[step % 2][step / 2] = (double)(nsv_now_ns() - start) / 1e3;
		for (uint32_t i = 0; i < n; i++)
			tokens[i] = logits_best(l->x + i * l->ld, m->n_vocab);
	}
	for (uint32_t i = 0; i < n; i++)
		model_seq_deinit(&seqs[i], m);
	m->slices.scales = NULL;
}

static void measure_streams(struct model_run *m, const json_t *cases, struct nsv_sampler *samplers,
	const char *name, uint32_t n, struct nsv_logits *logits)
{
	double us[2][N_STEP], step_us;
	struct rows rows = {.n = n, .n_vocab = m->n_vocab, .logits = logits, .samplers = samplers};
	char what[96];

	snprintf(what, sizeof(what), "%s x%u", name, n);
	measure_steps(m, cases, n, logits, us);
	step_us = nsv_median(us[0], N_STEP);
	report_us(what, "step", us[0], N_STEP, 0);
	report_us(what, "step, sums of slices", us[1], N_STEP, 0);
	report_ways(m, &rows, what, step_us);
	if (n > 1)
		return;
	draw_flat(logits->x, m->n_vocab);
	snprintf(what, sizeof(what), "%s x%u flat,", name, n);
	report_ways(m, &rows, what, step_us);
}

static void measure_model(const char *name, const char *path, const char *cases_path)
{
	json_t *cases = json_load_file(cases_path, 0, NULL);
	struct nsv_sampler *samplers = calloc(n_thread(), sizeof(*samplers));
	const struct nsv_backend *backend;
	struct nsv_err err = {""};
	struct nsv_logits logits;
	struct model_run m;

	assert_int_equal(nsv_backend_choose("cpu", &backend, &err), 0);
	model_run_open(&m, path, backend, n_thread(), N_STREAM,
		N_STREAM * (N_PROMPT + 2 * N_STEP + MODEL_RUN_BLOCK));
	assert_int_equal(nsv_logits_init(&logits, N_STREAM, m.n_vocab), 0);
	m.ld_out = logits.ld;
	m.slices.ranges = logits.ranges;
	assert_true(samplers && json_array_size(cases) > 0);
	for (uint32_t i = 0; i < n_thread(); i++)
		assert_int_equal(nsv_sampler_init(&samplers[i], m.n_vocab, i ? 1 : n_thread()), 0);
	for (size_t i = 0; i < N_HISTORY; i++)
		history[i] = (int32_t)((uint32_t)random() % m.n_vocab);
	measure_streams(&m, cases, samplers, name, 1, &logits);
	measure_streams(&m, cases, samplers, name, N_STREAM, &logits);
	for (uint32_t i = 0; i < n_thread(); i++)
		nsv_sampler_deinit(&samplers[i]);
	json_decref(cases);
	free(samplers);
	nsv_logits_deinit(&logits);
	model_run_close(&m);
}

static void bench(void **state)
{
	(void)state;
	nsv_report_begin(&report, "sample");
	for (size_t i = 0; i < NSV_ARRAY_LEN(models); i++) {
		char buffer[512];
		const char *why, *path = model_run_find(models[i].file, buffer, &why);

		if (path)
			measure_model(models[i].name, path, models[i].cases);
		else
			printf("%s: %s\n", models[i].file, why);
	}
	nsv_report_end(&report);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(bench)};

	srandom(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
