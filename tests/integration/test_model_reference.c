/* The real models against transformers in float32 (tests/data): greedy tokens, the five largest
 * logits a step, whole logit vectors, the likelihood of a long text; and the backends against
 * each other. What is close enough depends on the activations: see `rules`. A model that is not in
 * the cache folder is skipped (tests/tools/fetch-model.sh NAME).
 *
 * $NANOSERVE_TEST_BACKEND runs one backend on all the cases that it is fast enough for,
 * $NANOSERVE_TEST_KV_DTYPE over a pool of another type than its own.
 * $NANOSERVE_LONG=1 adds what takes minutes: the longest prompt, all steps of the slow backends,
 * and these on every model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "tests/tools/model-run.h"

#define MAX_ROW 256
#define N_TOKEN 8192
#define N_TOP 5
#define LONG_PROMPT 4096 /* tokens, from which on a case is for $NANOSERVE_LONG */
#define FEW_STEPS 20	 /* of `model`, without it */

static const struct model {
	const char *file;
	const char *data; /* tests/data/<data>.json, tests/data/logits-<data>-<case>.f32 */
} models[] = {
	{MODEL_RUN_DEFAULT, "smollm2-135m-q4_1"},
	{"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen2.5-coder-0.5b-q4_k_m"},
	{"gemma-3-270m-q4_k_m.gguf", "gemma3-270m-q4_k_m"},
};

/* The tokens may part where the reference's two largest logits are closer than `margin`. */
struct rule {
	const char *backend;
	double margin, kl, nll;
	double diff; /* of one logit among the largest five, whose mean is taken off: see five_off
		      */
	bool fast;   /* runs the long cases too */
};

static const struct rule rules[] = {
	{"cpu", 0.3, 5e-3, 5e-3, 1.0, true},
	{"model", 0.01, 1e-6, 1e-4, 0.01, false},
	{"reference", 0.01, 1e-6, 1e-4, 0.01, false},
};

struct ref_case {
	const char *data, *name;
	uint32_t n_prompt, n_step;
	int32_t *prompt, *greedy;
	json_t *top5;
	double nll; /* NaN: none */
};

/* The model of a test: where it is, and what the reference says of it. */
struct subject {
	const struct model *model;
	char path[512];
	json_t *cases;
};

/* ---- The reference */

static int32_t *read_ids(json_t *list, uint32_t *ret_n)
{
	uint32_t n = (uint32_t)json_array_size(list);
	int32_t *ids = calloc(n, sizeof(*ids));

	assert_true(n > 0 && ids);
	for (uint32_t i = 0; i < n; i++)
		ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
	*ret_n = n;
	return ids;
}

static struct subject open_subject(const struct model *model)
{
	struct subject s = {.model = model};
	char data[256];
	const char *why;
	json_error_t error;

	if (!model_run_find(model->file, s.path, &why)) {
		printf("%s: %s\n", model->file, why);
		skip();
	}
	snprintf(data, sizeof(data), "tests/data/%s.json", model->data);
	s.cases = json_load_file(data, 0, &error);
	if (!s.cases)
		fail_msg("%s: %s", data, error.text);
	return s;
}

static struct ref_case read_case(const struct subject *s, size_t i)
{
	json_t *j = json_array_get(s->cases, i), *nll = json_object_get(j, "nll");
	struct ref_case c = {.data = s->model->data,
		.name = json_string_value(json_object_get(j, "name")),
		.top5 = json_object_get(j, "top5"),
		.nll = json_is_number(nll) ? json_number_value(nll) : NAN};

	c.prompt = read_ids(json_object_get(j, "prompt_ids"), &c.n_prompt);
	c.greedy = read_ids(json_object_get(j, "greedy_ids"), &c.n_step);
	assert_int_equal(json_array_size(c.top5), c.n_step);
	return c;
}

static void free_case(struct ref_case *c)
{
	free(c->prompt);
	free(c->greedy);
}

static double top_logit(const struct ref_case *c, uint32_t step, uint32_t rank, int32_t *ret_id)
{
	json_t *pair = json_array_get(json_array_get(c->top5, step), rank);

	*ret_id = (int32_t)json_integer_value(json_array_get(pair, 0));
	return json_number_value(json_array_get(pair, 1));
}

/* All logits after the prompt, or NULL: this case has no such file. */
static float *read_logits(const struct ref_case *c, uint32_t n)
{
	char path[256];
	float *logits;

	snprintf(path, sizeof(path), "tests/data/logits-%s-%s.f32", c->data, c->name);
	FILE *f = fopen(path, "rb");
	if (!f)
		return NULL;
	logits = calloc(n, sizeof(*logits));
	assert_non_null(logits);
	assert_int_equal(fread(logits, sizeof(*logits), n, f), n);
	fclose(f);
	return logits;
}

/* ---- One case */

/* What came of it. */
struct grade {
	const struct ref_case *c;
	const struct rule *rule;
	uint32_t n_vocab, n_parted;
	double max_diff, max_margin;
};

/* The largest difference among the reference's five largest logits, after that of their means,
 * which no probability depends on. */
static double five_off(const struct ref_case *c, uint32_t step, const float *logits)
{
	double off[N_TOP], mean = 0, max = 0;
	int32_t id;

	for (uint32_t i = 0; i < N_TOP; i++) {
		double want = top_logit(c, step, i, &id);

		off[i] = logits[id] - want;
		mean += off[i] / N_TOP;
	}
	for (uint32_t i = 0; i < N_TOP; i++)
		max = fmax(max, isfinite(off[i]) ? fabs(off[i] - mean) : INFINITY);
	return max;
}

static void see_step(struct grade *g, uint32_t step, const float *logits)
{
	int32_t id;
	double margin = top_logit(g->c, step, 0, &id) - top_logit(g->c, step, 1, &id);
	double off = five_off(g->c, step, logits);

	if (logits_best(logits, g->n_vocab) != g->c->greedy[step]) {
		g->n_parted++;
		g->max_margin = fmax(g->max_margin, margin);
	}
	if (!(off <= g->rule->diff))
		fail_msg("%s, %s, step %u: one of the five largest logits is off by %g",
			g->rule->backend, g->c->name, step, off);
	g->max_diff = fmax(g->max_diff, off);
}

static void check_logit_file(const struct grade *g, const float *logits)
{
	float *want = read_logits(g->c, g->n_vocab);
	double max = 0;

	if (!want)
		return;
	for (uint32_t i = 0; i < g->n_vocab; i++)
		max = fmax(max, fabs((double)logits[i] - want[i]));
	double kl = logits_kl(want, logits, g->n_vocab);
	printf("%s: %s: logit file: largest difference %.4f, KL %.2e\n", g->rule->backend,
		g->c->name, max, kl);
	assert_true(kl < g->rule->kl);
	free(want);
}

/* The prompt with the logits of every row: the last row's are left in `last`. */
static void check_nll(struct model_run *r, struct model_seq *seq, const struct ref_case *c,
	const struct rule *rule, float *last)
{
	float *logits = calloc((size_t)MAX_ROW * r->n_vocab, sizeof(*logits));
	double sum = 0;

	assert_non_null(logits);
	for (uint32_t i = 0; i < c->n_prompt; i += MAX_ROW) {
		uint32_t n = (uint32_t)nsv_min(MAX_ROW, c->n_prompt - i);
		struct model_feed f = {seq, c->prompt + i, n, true};

		model_run_step(r, &f, 1, logits);
		for (uint32_t k = 0; k < n && i + k + 1 < c->n_prompt; k++)
			sum += logits_nll(
				logits + (size_t)k * r->n_vocab, r->n_vocab, c->prompt[i + k + 1]);
		memcpy(last, logits + (size_t)(n - 1) * r->n_vocab, r->n_vocab * sizeof(*last));
	}
	free(logits);
	double nll = sum / (c->n_prompt - 1), off = fabs(nll / c->nll - 1);
	printf("%s: %s: NLL %.5f, reference %.5f: %.3f %% off\n", rule->backend, c->name, nll,
		c->nll, 100 * off);
	assert_true(off < rule->nll);
}

static bool is_long(const struct ref_case *c)
{
	return c->n_prompt > MAX_ROW;
}

/* Feeds the prompt, then the reference's tokens; `keep` (n_step, n_vocab) may be NULL. */
static struct grade run_case(
	struct model_run *r, const struct ref_case *c, const struct rule *rule, float *keep)
{
	struct grade g = {.c = c, .rule = rule, .n_vocab = r->n_vocab};
	float *logits = calloc(r->n_vocab, sizeof(*logits));
	struct model_seq seq;

	assert_non_null(logits);
	model_seq_init(&seq, c->n_prompt + c->n_step);
	if (is_long(c))
		check_nll(r, &seq, c, rule, logits);
	else
		model_run_prefill(r, &seq, c->prompt, c->n_prompt, MAX_ROW, logits);
	check_logit_file(&g, logits);
	for (uint32_t step = 0; step < c->n_step; step++) {
		struct model_feed f = {&seq, &c->greedy[step], 1, false};

		see_step(&g, step, logits);
		if (keep)
			memcpy(keep + (size_t)step * r->n_vocab, logits,
				r->n_vocab * sizeof(*logits));
		if (step + 1 < c->n_step)
			model_run_step(r, &f, 1, logits);
	}
	model_seq_deinit(&seq, r);
	free(logits);
	printf("%s: %s: %u of %u steps part, widest margin %.4f; top five off by %.4f\n",
		rule->backend, c->name, g.n_parted, c->n_step, g.max_margin, g.max_diff);
	assert_true(g.max_margin < rule->margin);
	return g;
}

/* ---- Tests */

/* NULL: this machine cannot run it; says why. */
static const struct nsv_backend *choose(const char *name)
{
	const struct nsv_backend *backend;
	struct nsv_err err = {""};
	int ret = nsv_backend_choose(name, &backend, &err);

	if (ret < 0)
		printf("backend %s: %s\n", name, err.text);
	assert_true(ret == 0 || ret == -ENOTSUP);
	return ret == 0 ? backend : NULL;
}

static bool is_for_now(const struct ref_case *c, const struct rule *rule)
{
	return is_long(c) ? rule->fast && (c->n_prompt < LONG_PROMPT || model_run_is_long()) : true;
}

static void run_all(const struct subject *s, const struct rule *rule)
{
	const struct nsv_backend *backend = choose(rule->backend);
	struct model_run r;

	if (!backend)
		skip();
	model_run_open(&r, s->path, backend, 2, MAX_ROW, N_TOKEN);
	model_run_shuffle(&r);
	for (size_t i = 0; i < json_array_size(s->cases); i++) {
		struct ref_case c = read_case(s, i);

		if (is_for_now(&c, rule))
			run_case(&r, &c, rule, NULL);
		else
			printf("%s: %s: left to NANOSERVE_LONG and fast backends\n", rule->backend,
				c.name);
		free_case(&c);
	}
	model_run_close(&r);
}

static void test_all_cases(void **state)
{
	const char *name = getenv("NANOSERVE_TEST_BACKEND");
	struct subject s = open_subject(*state);

	for (size_t i = 0; i < NSV_ARRAY_LEN(rules); i++)
		if (strcmp(name && *name ? name : "cpu", rules[i].backend) == 0) {
			run_all(&s, &rules[i]);
			json_decref(s.cases);
			return;
		}
	fail_msg("no rule for backend %s", name);
}

/* The logits of every step of one case, to compare backends: the caller frees them. */
static float *trace(const struct subject *s, const struct rule *rule, const struct ref_case *c,
	uint32_t *ret_n_vocab)
{
	const struct nsv_backend *backend = choose(rule->backend);
	struct model_run r;

	if (!backend)
		skip();
	model_run_open(&r, s->path, backend, 2, MAX_ROW, N_TOKEN);
	model_run_shuffle(&r);
	*ret_n_vocab = r.n_vocab;
	float *logits = calloc((size_t)c->n_step * r.n_vocab, sizeof(*logits));
	assert_non_null(logits);
	run_case(&r, c, rule, logits);
	model_run_close(&r);
	return logits;
}

/* Each backend passes its own rule, and diverges from `reference` by no more than it says. */
static void compare_backends(const struct subject *s, struct ref_case *c)
{
	const struct rule *ref = &rules[NSV_ARRAY_LEN(rules) - 1];
	uint32_t n;
	float *want = trace(s, ref, c, &n);

	for (const struct rule *rule = rules; rule < ref; rule++) {
		struct ref_case some = *c;
		double kl = 0;

		if (!rule->fast && !model_run_is_long())
			some.n_step = FEW_STEPS;
		float *have = trace(s, rule, &some, &n);
		for (uint32_t i = 0; i < some.n_step; i++)
			kl += logits_kl(want + (size_t)i * n, have + (size_t)i * n, n) /
			      some.n_step;
		printf("%s: %s: mean KL to reference over %u steps %.2e\n", rule->backend, c->name,
			some.n_step, kl);
		assert_true(kl < rule->kl);
		free(have);
	}
	free(want);
}

/* Unless one backend is asked for. */
static void test_backends_agree(void **state)
{
	const struct model *model = *state;

	if (getenv("NANOSERVE_TEST_BACKEND") || (model != models && !model_run_is_long()))
		skip();
	struct subject s = open_subject(model);
	struct ref_case c = read_case(&s, 0);
	compare_backends(&s, &c);
	free_case(&c);
	json_decref(s.cases);
}

int main(void)
{
	struct CMUnitTest tests[2 * NSV_ARRAY_LEN(models)];

	for (size_t i = 0; i < NSV_ARRAY_LEN(models); i++) {
		void *model = (void *)(uintptr_t)&models[i];

		tests[2 * i] = (struct CMUnitTest)cmocka_unit_test_prestate(test_all_cases, model);
		tests[2 * i + 1] =
			(struct CMUnitTest)cmocka_unit_test_prestate(test_backends_agree, model);
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
