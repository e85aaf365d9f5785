/* The sampler against a scalar reference that sorts everything and works step by step in double
 * precision; its distribution by chi-square; the generator against published vectors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "daemon/params.h"

static uint32_t draw(uint32_t n)
{
	return (uint32_t)random() % n;
}

static float draw_float(float least, float most)
{
	return least + (most - least) * (float)random() / (float)RAND_MAX;
}

static uint64_t draw_u64(void)
{
	return (uint64_t)random() << 42 ^ (uint64_t)random() << 21 ^ (uint64_t)random();
}

/* Logits with ties: some are rounded to a quarter. */
static void draw_logits(float *logits, uint32_t n)
{
	float spread = draw_float(0.1f, 20), grid = draw(2) ? 4 : 4096;

	for (uint32_t i = 0; i < n; i++)
		logits[i] = roundf(draw_float(-spread, spread) * grid) / grid;
}

/* ---- The reference */

static int by_rank(const void *pa, const void *pb)
{
	const struct nsv_lp *a = pa, *b = pb;

	if (a->logprob != b->logprob)
		return a->logprob > b->logprob ? -1 : 1;
	return (a->id > b->id) - (a->id < b->id);
}

static void sort_logits(struct nsv_lp *sorted, const float *logits, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		sorted[i] = (struct nsv_lp){(int32_t)i, logits[i]};
	qsort(sorted, n, sizeof(*sorted), by_rank);
}

static void normalise(double *p, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += p[i];
	for (uint32_t i = 0; i < n; i++)
		p[i] /= sum;
}

/* Kept ranks: first to n - 1, with probability p. */
struct kept {
	uint32_t first, n;
};

/* Step 11 as it is written: all by (distance, side, nearness), the fewest that reach typical_p. */
struct distance {
	double d;
	uint32_t rank, near;
	bool lower;
};

static int by_distance(const void *pa, const void *pb)
{
	const struct distance *a = pa, *b = pb;

	if (a->d != b->d)
		return a->d < b->d ? -1 : 1;
	if (a->lower != b->lower)
		return a->lower ? 1 : -1;
	return (a->near > b->near) - (a->near < b->near);
}

/* lw: ln p and a constant, which |-ln p - entropy| does not see; equal ones are equal bits. */
static void sort_distances(struct distance *d, const double *lw, const double *p, uint32_t n)
{
	double mean = 0;
	uint32_t edge = 0;

	for (uint32_t i = 0; i < n; i++)
		mean += p[i] * lw[i];
	while (edge < n && lw[edge] > mean + 1e-9)
		edge++;
	for (uint32_t i = 0; i < n; i++)
		d[i] = (struct distance){.d = fabs(lw[i] - mean),
			.rank = i,
			.near = i < edge ? edge - i : i - edge,
			.lower = i >= edge};
	qsort(d, n, sizeof(*d), by_distance);
}

static struct kept ref_typical(const double *lw, const double *p, uint32_t n, double typical_p)
{
	struct distance *d = calloc(n, sizeof(*d));
	struct kept k = {n, 0};
	double sum = 0;

	sort_distances(d, lw, p, n);
	for (uint32_t i = 0; i < n && (i == 0 || sum < typical_p); i++) {
		sum += p[d[i].rank];
		k.first = (uint32_t)nsv_min(k.first, d[i].rank);
		k.n = (uint32_t)nsv_max(k.n, d[i].rank + 1);
	}
	free(d);
	return k;
}

/* Steps 7 to 11: the distribution by rank. */
static struct kept ref_distribution(
	const struct nsv_lp *sorted, double *p, uint32_t n, const struct nsv_params *params)
{
	double sum = 0, *lw = calloc(n, sizeof(*lw));
	uint32_t kept = 0;

	if (params->top_k > 0)
		n = (uint32_t)nsv_min(n, (size_t)params->top_k);
	for (uint32_t i = 0; i < n; i++) {
		lw[i] = ((double)sorted[i].logprob - sorted[0].logprob) / params->temperature;
		p[i] = exp(lw[i]);
	}
	while (kept < n && p[kept] >= params->min_p * p[0])
		kept++;
	normalise(p, kept);
	for (n = 0; n < kept && (n == 0 || sum < params->top_p); n++)
		sum += p[n];
	if (params->top_p >= 1)
		n = kept;
	normalise(p, n);
	struct kept k = {0, n};
	if (params->typical_p < 1)
		k = ref_typical(lw, p, n, params->typical_p);
	normalise(p + k.first, k.n - k.first);
	free(lw);
	return k;
}

/* x: (n_vocab) logits after step 6. */
static int32_t ref_choose(
	const float *x, uint32_t n_vocab, const struct nsv_params *params, double u)
{
	struct nsv_lp *sorted = calloc(n_vocab, sizeof(*sorted));
	double *p = calloc(n_vocab, sizeof(*p)), sum = 0;
	uint32_t i = 0, n = n_vocab;

	sort_logits(sorted, x, n_vocab);
	while (n > 1 && sorted[n - 1].logprob == -INFINITY)
		n--;
	if (params->temperature >= 1e-3f) {
		struct kept k = ref_distribution(sorted, p, n, params);
		for (i = k.first; i + 1 < k.n; i++) {
			sum += p[i];
			if (sum > u)
				break;
		}
	}
	int32_t id = sorted[i].id;
	free(sorted);
	free(p);
	return id;
}

/* Whether the reference gives the token: for the number drawn, or, since sums differ in their last
 * bits, for a neighbour of what a sum is compared with. */
static bool ref_gives(
	const float *x, uint32_t n, const struct nsv_params *params, float u, int32_t id)
{
	const double eps = 1e-6;

	for (int i = 0; i < 27; i++) {
		struct nsv_params near = *params;
		double dp = (i / 3 % 3 - 1) * eps, dt = (i / 9 - 1) * eps;

		near.top_p = params->top_p < 1 ? (float)(params->top_p + dp) : 1;
		near.typical_p = params->typical_p < 1 ? (float)(params->typical_p + dt) : 1;
		if (ref_choose(x, n, &near, u + (i % 3 - 1) * eps) == id)
			return true;
	}
	return false;
}

/* Steps 3 to 6, each in turn over the whole vocabulary, counting by looking. */
static uint32_t ref_count(const int32_t *tokens, size_t from, size_t to, int32_t id)
{
	uint32_t n = 0;

	for (size_t i = from; i < to; i++)
		n += tokens[i] == id;
	return n;
}

static bool listed(const int32_t *ids, uint32_t n, int32_t id)
{
	return ref_count(ids, 0, n, id) > 0;
}

static float clamp(double x)
{
	return x > (double)FLT_MAX ? FLT_MAX : x < -(double)FLT_MAX ? -FLT_MAX : (float)x;
}

static float ref_penalise(const struct nsv_sample_in *in, int32_t id)
{
	const struct nsv_params *p = in->params;
	size_t n = in->n_prompt + in->n_output, from = 0;
	float l = in->logits[id];

	if (p->penalty_window && p->penalty_window < n)
		from = n - p->penalty_window;
	if (ref_count(in->tokens, from, n, id))
		l = clamp(l > 0 ? (double)l / p->repetition_penalty
				: (double)l * p->repetition_penalty);
	uint32_t count = ref_count(in->tokens, nsv_max(from, in->n_prompt), n, id);
	if (count)
		l = clamp(l - ((double)p->presence_penalty + (double)p->frequency_penalty * count));
	return l;
}

static bool ref_may_come(const struct nsv_sampler *s, const struct nsv_sample_in *in, int32_t id)
{
	const struct nsv_sample_lists *l = in->lists;
	bool early = in->n_output < in->params->min_tokens;

	if (l->allow.n && !listed(l->allow.id, l->allow.n, id))
		return false;
	if (listed(l->ban.id, l->ban.n, id))
		return false;
	if (early && listed(l->stop.id, l->stop.n, id))
		return false;
	return !early || in->params->flags & NSV_PARAM_IGNORE_END || !listed(s->end, s->n_end, id);
}

static uint32_t ref_adjust(const struct nsv_sampler *s, const struct nsv_sample_in *in, float *x)
{
	uint32_t n = 0;

	for (int32_t id = 0; id < (int32_t)s->n_vocab; id++) {
		x[id] = ref_penalise(in, id);
		for (uint32_t i = 0; i < in->lists->n_bias; i++)
			if (in->lists->bias[i].id == id)
				x[id] = clamp((double)x[id] + in->lists->bias[i].bias);
		if (ref_may_come(s, in, id))
			n++;
		else
			x[id] = -INFINITY;
	}
	return n;
}

/* ---- Sampling */

/* No history, no lists. */
static int pick(struct nsv_sampler *s, const float *logits, const struct nsv_params *params,
	uint64_t seed, uint32_t branch, uint64_t position, int32_t *ret_token, struct nsv_lp *lp,
	uint32_t n_lp)
{
	const struct nsv_sample_in in = {.logits = logits,
		.params = params,
		.seed = seed,
		.branch = branch,
		.position = position};

	return nsv_sample_next(s, &in, ret_token, lp, n_lp);
}

static struct nsv_params draw_params(uint32_t n_vocab)
{
	struct nsv_params p = nsv_params_default();

	p.temperature = draw(8) == 0 ? draw_float(0, 2e-3f) : draw_float(0.05f, 3);
	if (draw(2))
		p.top_k = (int32_t)draw(2 * n_vocab);
	if (draw(2))
		p.top_p = draw_float(0.01f, 1);
	if (draw(3) == 0)
		p.min_p = draw_float(0, 1);
	if (draw(3) == 0)
		p.typical_p = draw_float(0.01f, 1);
	return p;
}

static void test_against_reference(void **state)
{
	(void)state;
	for (int round = 0; round < 3000; round++) {
		uint32_t n = round % 200 == 0 ? 20000 + draw(30000) : 1 + draw(300);
		float *logits = calloc(n, sizeof(*logits));
		uint64_t seed = draw_u64(), pos = draw_u64();
		uint32_t branch = draw(5);
		struct nsv_params params = draw_params(n);
		struct nsv_sampler s;
		int32_t token = -1;

		draw_logits(logits, n);
		assert_int_equal(nsv_sampler_init(&s, n), 0);
		assert_int_equal(pick(&s, logits, &params, seed, branch, pos, &token, NULL, 0), 0);
		if (!ref_gives(logits, n, &params, nsv_uniform(seed, branch, pos), token))
			fail_msg("round %d: %d (n %u T %g k %d p %g min %g typical %g)", round,
				token, n, (double)params.temperature, params.top_k,
				(double)params.top_p, (double)params.min_p,
				(double)params.typical_p);
		/* A function of its arguments alone. */
		int32_t again = -1;
		assert_int_equal(pick(&s, logits, &params, seed, branch, pos, &again, NULL, 0), 0);
		assert_int_equal(again, token);
		nsv_sampler_deinit(&s);
		free(logits);
	}
}

/* Each pair of steps on logits where the other order would keep another set. Probabilities
 * 0.4 0.3 0.2 0.1 by rank. */
static void test_order(void **state)
{
	static const struct {
		int32_t top_k;
		float min_p, top_p, temperature;
		uint32_t n_kept;
	} cases[] = {
		/* top-k, then top-p: of 0.57 and 0.43 the first reaches 0.55, which 0.4 of the
		 * whole does not. */
		{2, 0, 0.55f, 1, 1},
		{0, 0, 0.55f, 1, 2},
		/* min-p, then top-p: 0.3 and more of 0.4 leaves three, 0.44 0.33 0.22. */
		{0, 0.45f, 0.75f, 1, 2},
		{0, 0, 0.75f, 1, 3},
		/* Temperature comes first: at 1/2 the squares count, 0.53 0.30 0.13 0.03. */
		{0, 0, 0.52f, 0.5f, 1},
		{0, 0, 0.52f, 1, 2},
		{0, 0.3f, 1, 0.5f, 2},
		{0, 0.3f, 1, 1, 3},
	};
	const float logits[] = {logf(0.2f), logf(0.4f), logf(0.1f), logf(0.3f)};
	struct nsv_sampler s;

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, 4), 0);
	for (size_t c = 0; c < NSV_ARRAY_LEN(cases); c++) {
		struct nsv_params p = nsv_params_default();
		bool seen[4] = {false};
		int32_t token;

		p.top_k = cases[c].top_k;
		p.min_p = cases[c].min_p;
		p.top_p = cases[c].top_p;
		p.temperature = cases[c].temperature;
		for (uint64_t pos = 0; pos < 2000; pos++) {
			assert_int_equal(pick(&s, logits, &p, 1, 0, pos, &token, NULL, 0), 0);
			seen[token] = true;
		}
		uint32_t n = (uint32_t)seen[0] + seen[1] + seen[2] + seen[3];
		if (n != cases[c].n_kept)
			fail_msg("case %zu keeps %u, expected %u", c, n, cases[c].n_kept);
	}
	nsv_sampler_deinit(&s);
}

/* Wilson-Hilferty: how many standard deviations chi-square lies above its mean. */
static double chi_square_z(double chi2, double df)
{
	return (cbrt(chi2 / df) - (1 - 2 / (9 * df))) / sqrt(2 / (9 * df));
}

static void check_distribution(const struct nsv_params *params, const float *logits, uint32_t n)
{
	enum { N_DRAW = 40000 };
	struct nsv_lp sorted[64];
	double p[64], chi2 = 0, rest_p = 1, rest_n = N_DRAW;
	uint32_t count[64] = {0}, n_bin = 0;
	uint64_t seed = draw_u64();
	struct nsv_sampler s;
	int32_t token;

	assert_int_equal(nsv_sampler_init(&s, n), 0);
	for (uint64_t pos = 0; pos < N_DRAW; pos++) {
		assert_int_equal(pick(&s, logits, params, seed, 0, pos, &token, NULL, 0), 0);
		count[token]++;
	}
	sort_logits(sorted, logits, n);
	struct kept k = ref_distribution(sorted, p, n, params);
	for (uint32_t i = k.first; i < k.n && p[i] * N_DRAW >= 10; i++, n_bin++) {
		double want = p[i] * N_DRAW, have = count[sorted[i].id];
		chi2 += (have - want) * (have - want) / want;
		rest_p -= p[i];
		rest_n -= have;
	}
	/* The unlikely ones together; those that were cut never come. */
	if (rest_p * N_DRAW >= 10)
		chi2 += pow(rest_n - rest_p * N_DRAW, 2) / (rest_p * N_DRAW);
	for (uint32_t i = 0; i < n; i++)
		if (i < k.first || i >= k.n)
			assert_int_equal(count[sorted[i].id], 0);
	if (n_bin >= 2)
		assert_true(chi_square_z(chi2, n_bin - (rest_p * N_DRAW < 10)) < 6);
	nsv_sampler_deinit(&s);
}

static void test_distribution(void **state)
{
	(void)state;
	for (int round = 0; round < 12; round++) {
		struct nsv_params params = draw_params(64);
		float logits[64];

		params.temperature = draw_float(0.3f, 2);
		for (int i = 0; i < 64; i++)
			logits[i] = draw_float(-3, 3);
		check_distribution(&params, logits, 64);
	}
}

static void test_greedy(void **state)
{
	const float logits[] = {-1, 3, 2, 3, -FLT_MAX};
	struct nsv_params p = nsv_params_default();
	struct nsv_sampler s;
	int32_t token;

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, 5), 0);
	const float cold[] = {0, FLT_MIN, 1e-30f, 9.9e-4f};
	for (size_t i = 0; i < NSV_ARRAY_LEN(cold); i++)
		for (uint64_t pos = 0; pos < 50; pos++) {
			p.temperature = cold[i];
			token = -1;
			assert_int_equal(pick(&s, logits, &p, 9, 0, pos, &token, NULL, 0), 0);
			assert_int_equal(token, 1);
		}
	/* One step above the edge the two equal ones share the draws. */
	uint32_t n[5] = {0};
	p.temperature = 1e-3f;
	for (uint64_t pos = 0; pos < 200; pos++) {
		assert_int_equal(pick(&s, logits, &p, 9, 0, pos, &token, NULL, 0), 0);
		n[token]++;
	}
	assert_true(n[1] > 0 && n[3] > 0 && n[1] + n[3] == 200);
	nsv_sampler_deinit(&s);
}

static void test_not_finite(void **state)
{
	const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
	float logits[300];
	struct nsv_params p = nsv_params_default();
	struct nsv_sampler s;
	struct nsv_lp lp[3] = {{5, 5}, {5, 5}, {5, 5}};

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, 300), 0);
	for (int round = 0; round < 200; round++) {
		int32_t token = -9;
		draw_logits(logits, 300);
		logits[round == 0 ? 0 : round == 1 ? 299 : draw(300)] = bad[draw(4)];
		p.temperature = draw(2) ? 0 : 1;
		assert_int_equal(pick(&s, logits, &p, 1, 0, 2, &token, lp, 3), -EDOM);
		assert_int_equal(token, -9);
		assert_int_equal(lp[0].id, 5);
	}
	nsv_sampler_deinit(&s);
	assert_int_equal(nsv_sampler_init(&s, 0), -EINVAL);
	nsv_sampler_deinit(&s);
}

static void test_log_probs(void **state)
{
	(void)state;
	for (int round = 0; round < 300; round++) {
		uint32_t n = 1 + draw(200), n_lp = 1 + draw(65);
		struct nsv_lp sorted[200], lp[65];
		struct nsv_params params = draw_params(n);
		struct nsv_sampler s;
		float logits[200];
		double sum = 0;
		int32_t token;

		draw_logits(logits, n);
		assert_int_equal(nsv_sampler_init(&s, n), 0);
		assert_int_equal(pick(&s, logits, &params, 3, 0, draw_u64(), &token, lp, n_lp), 0);
		sort_logits(sorted, logits, n);
		for (uint32_t i = 0; i < n; i++)
			sum += exp((double)logits[i] - sorted[0].logprob);
		double lse = sorted[0].logprob + log(sum);
		assert_int_equal(lp[0].id, token);
		assert_true(fabs(lp[0].logprob - (logits[token] - lse)) < 1e-5);
		for (uint32_t i = 0; i + 1 < n_lp; i++) {
			assert_int_equal(lp[i + 1].id, i < n ? sorted[i].id : -1);
			if (i < n)
				assert_true(
					fabs(lp[i + 1].logprob - (sorted[i].logprob - lse)) < 1e-5);
		}
		nsv_sampler_deinit(&s);
	}
}

/* ---- History and lists */

static int by_int(const void *pa, const void *pb)
{
	int32_t a = *(const int32_t *)pa, b = *(const int32_t *)pb;

	return (a > b) - (a < b);
}

/* Up to most ids, in order, once each. */
static void draw_ids(struct nsv_id_list *list, uint32_t most, uint32_t n_vocab)
{
	uint32_t n = draw(most + 1), n_kept = 0;

	for (uint32_t i = 0; i < n; i++)
		list->id[i] = (int32_t)draw(n_vocab);
	qsort(list->id, n, sizeof(*list->id), by_int);
	for (uint32_t i = 0; i < n; i++)
		if (n_kept == 0 || list->id[n_kept - 1] != list->id[i])
			list->id[n_kept++] = list->id[i];
	list->n = n_kept;
}

static void draw_lists(struct nsv_sample_lists *l, uint32_t n_vocab)
{
	struct nsv_id_list ids = {0};

	*l = (struct nsv_sample_lists){0};
	if (draw(2))
		draw_ids(&l->ban, 10, n_vocab);
	if (draw(3) == 0)
		draw_ids(&l->allow, 20, n_vocab);
	draw_ids(&l->stop, 4, n_vocab);
	if (draw(2))
		draw_ids(&ids, 20, n_vocab);
	l->n_bias = ids.n;
	for (uint32_t i = 0; i < ids.n; i++)
		l->bias[i] = (struct nsv_bias){ids.id[i], draw_float(-10, 10)};
}

static void draw_adjustments(struct nsv_params *p)
{
	if (draw(2))
		p->repetition_penalty = draw(20) ? draw_float(0.5f, 2) : FLT_MAX;
	if (draw(2))
		p->presence_penalty = draw_float(-2, 2);
	if (draw(2))
		p->frequency_penalty = draw(20) ? draw_float(-2, 2) : -FLT_MAX;
	if (draw(2))
		p->penalty_window = 1 + draw(100);
	if (draw(2))
		p->min_tokens = draw(60);
	if (draw(4) == 0)
		p->flags |= NSV_PARAM_IGNORE_END;
}

struct history {
	int32_t tokens[100];
	uint32_t n_prompt, n_output;
};

/* Some ids lie outside the vocabulary: they change nothing. */
static void draw_history(struct history *h, uint32_t n_vocab)
{
	h->n_prompt = draw(50);
	h->n_output = draw(50);
	for (size_t i = 0; i < NSV_ARRAY_LEN(h->tokens); i++)
		h->tokens[i] = draw(50) ? (int32_t)draw(n_vocab) : (int32_t)draw_u64();
}

/* Every step bit by bit, then what is drawn; the same sampler serves all rounds of a vocabulary. */
static void check_adjusted(struct nsv_sampler *s, const struct nsv_sample_in *in)
{
	float *want = calloc(s->n_vocab, sizeof(*want));
	const float *x;
	int32_t token = -9;
	uint32_t n_want = ref_adjust(s, in, want);

	assert_int_equal(nsv_sample_adjust(s, in, &x), n_want);
	assert_memory_equal(x, want, s->n_vocab * sizeof(*want));
	for (uint32_t i = 0; i < s->n_vocab; i++)
		assert_int_equal(s->count[i], 0);
	int ret = nsv_sample_next(s, in, &token, NULL, 0);
	if (n_want == 0) {
		assert_int_equal(ret, -ENODATA);
		assert_int_equal(token, -9);
	} else {
		float u = nsv_uniform(in->seed, in->branch, in->position);
		assert_int_equal(ret, 0);
		assert_true(want[token] != -INFINITY);
		assert_true(ref_gives(want, s->n_vocab, in->params, u, token));
	}
	free(want);
}

static void test_adjust(void **state)
{
	(void)state;
	for (int i = 0; i < 60; i++) {
		uint32_t n = 1 + draw(200);
		float *logits = calloc(n, sizeof(*logits));
		struct nsv_sampler s;

		assert_int_equal(nsv_sampler_init(&s, n), 0);
		assert_int_equal(nsv_sampler_add_end(&s, (int32_t)draw(n)), 0);
		for (int round = 0; round < 30; round++) {
			struct nsv_params params = draw_params(n);
			struct nsv_sample_lists lists;
			struct history h;

			draw_logits(logits, n);
			draw_lists(&lists, n);
			draw_history(&h, n);
			draw_adjustments(&params);
			const struct nsv_sample_in in = {.logits = logits,
				.params = &params,
				.lists = &lists,
				.tokens = h.tokens,
				.n_prompt = h.n_prompt,
				.n_output = h.n_output,
				.seed = draw_u64(),
				.position = draw_u64()};
			check_adjusted(&s, &in);
		}
		nsv_sampler_deinit(&s);
		free(logits);
	}
}

/* Order of the steps on numbers where another order gives others: by hand. */
static void test_adjust_order(void **state)
{
	const float logits[] = {4, -4, 1, 0, 2};
	const int32_t tokens[] = {0, 1, 0, 0, 2, 77, -1};
	struct nsv_sample_lists lists = {.n_bias = 1, .bias = {{0, 0.5f}}};
	struct nsv_params p = nsv_params_default();
	const struct nsv_sample_in in = {.logits = logits,
		.params = &p,
		.lists = &lists,
		.tokens = tokens,
		.n_prompt = 2,
		.n_output = 5};
	struct nsv_sampler s;
	const float *x;

	(void)state;
	p.repetition_penalty = 2;
	p.presence_penalty = 1;
	p.frequency_penalty = 0.25f;
	assert_int_equal(nsv_sampler_init(&s, 5), 0);
	assert_int_equal(nsv_sample_adjust(&s, &in, &x), 5);
	/* 4 / 2 - (1 + 2 * 0.25) + 0.5; -4 * 2, seen in the prompt only; 1 / 2 - 1.25 */
	const float all[] = {1, -8, -0.75f, 0, 2};
	assert_memory_equal(x, all, sizeof(all));
	p.penalty_window = 4; /* 0 2 77 -1 */
	nsv_sample_adjust(&s, &in, &x);
	const float some[] = {1.25f, -4, -0.75f, 0, 2};
	assert_memory_equal(x, some, sizeof(some));
	p.penalty_window = 2; /* none that the vocabulary has */
	lists.n_bias = 0;
	nsv_sample_adjust(&s, &in, &x);
	assert_memory_equal(x, logits, sizeof(logits));
	nsv_sampler_deinit(&s);
}

/* Neutral values: the logits themselves go on, and the same token comes with the same bits. */
static void test_neutral(void **state)
{
	static const struct nsv_sample_lists none;
	const int32_t tokens[] = {1, 2, 3, 1};
	float logits[300];
	struct nsv_sampler s;

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, 300), 0);
	for (int round = 0; round < 300; round++) {
		struct nsv_params p = draw_params(300);
		struct nsv_lp lp[2][5];
		int32_t plain, full;
		const float *x;

		draw_logits(logits, 300);
		p.penalty_window = draw(4);
		const struct nsv_sample_in in = {.logits = logits,
			.params = &p,
			.lists = &none,
			.tokens = tokens,
			.n_prompt = 2,
			.n_output = 2,
			.seed = 4,
			.position = (uint64_t)round};
		assert_int_equal(nsv_sample_adjust(&s, &in, &x), 300);
		assert_ptr_equal(x, logits);
		assert_int_equal(pick(&s, logits, &p, 4, 0, in.position, &plain, lp[0], 5), 0);
		assert_int_equal(nsv_sample_next(&s, &in, &full, lp[1], 5), 0);
		assert_int_equal(plain, full);
		assert_memory_equal(lp[0], lp[1], sizeof(lp[0]));
	}
	nsv_sampler_deinit(&s);
}

static void test_min_tokens(void **state)
{
	const float logits[] = {9, 8, 7, 6};
	struct nsv_sample_lists lists = {.stop = {.n = 1, .id = {1}}};
	struct nsv_params p = nsv_params_default();
	struct nsv_sample_in in = {.logits = logits, .params = &p, .lists = &lists};
	const int32_t tokens[] = {2, 2, 2};
	struct nsv_sampler s;
	int32_t token;

	(void)state;
	in.tokens = tokens;
	p.min_tokens = 2;
	assert_int_equal(nsv_sampler_init(&s, 4), 0);
	assert_int_equal(nsv_sampler_add_end(&s, 0), 0);
	assert_int_equal(nsv_sampler_add_end(&s, 4), -EINVAL);
	assert_int_equal(nsv_sampler_add_end(&s, -1), -EINVAL);
	for (in.n_output = 0; in.n_output < 4; in.n_output++) {
		assert_int_equal(nsv_sample_next(&s, &in, &token, NULL, 0), 0);
		assert_int_equal(token, in.n_output < 2 ? 2 : 0);
	}
	in.n_output = 1;
	p.flags = NSV_PARAM_IGNORE_END;
	assert_int_equal(nsv_sample_next(&s, &in, &token, NULL, 0), 0);
	assert_int_equal(token, 0);
	p.flags = 0;
	lists.allow = (struct nsv_id_list){.n = 2, .id = {0, 1}};
	assert_int_equal(nsv_sample_next(&s, &in, &token, NULL, 0), -ENODATA);
	while (s.n_end < NSV_MAX_END)
		assert_int_equal(nsv_sampler_add_end(&s, 0), 0);
	assert_int_equal(nsv_sampler_add_end(&s, 0), -ENOSPC);
	nsv_sampler_deinit(&s);
}

/* Penalties change the choice, not the log-probabilities, which are the model's. */
static void test_raw_log_probs(void **state)
{
	const float logits[] = {3, 2, 1};
	const struct nsv_sample_lists lists = {.ban = {.n = 1, .id = {0}}};
	const struct nsv_params p = nsv_params_default();
	const struct nsv_sample_in in = {.logits = logits, .params = &p, .lists = &lists};
	struct nsv_lp lp[3], alone[3];
	struct nsv_sampler s;
	int32_t token;

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, 3), 0);
	assert_int_equal(nsv_sample_next(&s, &in, &token, lp, 3), 0);
	assert_int_equal(token, 1);
	assert_int_equal(lp[1].id, 0);
	assert_true(fabsf(lp[1].logprob - lp[0].logprob - 1) < 1e-6f);
	assert_int_equal(nsv_log_probs(logits, 3, 1, alone, 3), 0);
	assert_memory_equal(lp, alone, sizeof(lp));
	assert_int_equal(nsv_log_probs(logits, 3, 3, alone, 3), -EINVAL);
	assert_int_equal(nsv_log_probs(logits, 3, -1, alone, 3), -EINVAL);
	const float bad[] = {1, NAN, 2};
	assert_int_equal(nsv_log_probs(bad, 3, 0, alone, 3), -EDOM);
	assert_memory_equal(lp, alone, sizeof(lp));
	nsv_sampler_deinit(&s);
}

/* ---- The generator */

static void philox_round(uint32_t c[4], const uint32_t k[2])
{
	uint64_t a = 0xd2511f53ull * c[0], b = 0xcd9e8d57ull * c[2];
	uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
		(uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};

	memcpy(c, next, sizeof(next));
}

static void philox(uint32_t c[4], const uint32_t key[2])
{
	uint32_t k[2] = {key[0], key[1]};

	for (int i = 0; i < 10; i++) {
		philox_round(c, k);
		k[0] += 0x9e3779b9u;
		k[1] += 0xbb67ae85u;
	}
}

/* The published vectors of Philox 4x32-10 pin the test's own, which pins the sampler's. */
static void test_uniform(void **state)
{
	uint32_t zero[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
	uint32_t pi[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
	const uint32_t want_zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
	const uint32_t want_ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
	const uint32_t want_pi[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};

	(void)state;
	philox(zero, (const uint32_t[2]){0, 0});
	philox(ones, (const uint32_t[2]){~0u, ~0u});
	philox(pi, (const uint32_t[2]){0xa4093822, 0x299f31d0});
	assert_memory_equal(zero, want_zero, sizeof(zero));
	assert_memory_equal(ones, want_ones, sizeof(ones));
	assert_memory_equal(pi, want_pi, sizeof(pi));
	for (int i = 0; i < 10000; i++) {
		uint64_t seed = draw_u64(), pos = draw_u64();
		uint32_t branch = draw(1000);
		uint32_t c[4] = {(uint32_t)pos, (uint32_t)(pos >> 32), branch, 0};

		philox(c, (const uint32_t[2]){(uint32_t)seed, (uint32_t)(seed >> 32)});
		float u = nsv_uniform(seed, branch, pos);
		assert_true(u >= 0 && u < 1);
		assert_true((double)u == (c[0] >> 8) / 16777216.0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_reference),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_distribution),
		cmocka_unit_test(test_greedy),
		cmocka_unit_test(test_not_finite),
		cmocka_unit_test(test_log_probs),
		cmocka_unit_test(test_adjust),
		cmocka_unit_test(test_adjust_order),
		cmocka_unit_test(test_neutral),
		cmocka_unit_test(test_min_tokens),
		cmocka_unit_test(test_raw_log_probs),
		cmocka_unit_test(test_uniform),
	};
	unsigned int seed = (unsigned int)time(NULL);

	printf("seed %u\n", seed);
	srandom(seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
