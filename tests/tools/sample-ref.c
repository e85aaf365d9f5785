/* The sampler's steps as written down in daemon/sample.h, one by one in double precision. */
#include "tests/tools/sample-ref.h"

#include <float.h>
#include <math.h>

#include "tests/tools/rnd.h"

/* ---- Inputs */

/* Logits with ties: some are rounded to a quarter. */
void sample_draw_logits(float *logits, uint32_t n)
{
	float spread = t_float(0.1f, 20), grid = t_below(2) ? 4 : 4096;

	for (uint32_t i = 0; i < n; i++)
		logits[i] = roundf(t_float(-spread, spread) * grid) / grid;
}

struct nsv_params sample_draw_params(uint32_t n_vocab)
{
	struct nsv_params p = nsv_params_default();

	p.temperature = t_below(8) == 0 ? t_float(0, 2e-3f) : t_float(0.05f, 3);
	if (t_below(2))
		p.top_k = (int32_t)t_below(2 * n_vocab);
	if (t_below(2))
		p.top_p = t_float(0.01f, 1);
	if (t_below(3) == 0)
		p.min_p = t_float(0, 1);
	if (t_below(3) == 0)
		p.typical_p = t_float(0.01f, 1);
	return p;
}

/* ---- The reference */

static int by_rank(const void *pa, const void *pb)
{
	const struct nsv_lp *a = pa, *b = pb;

	if (a->logprob != b->logprob)
		return a->logprob > b->logprob ? -1 : 1;
	return (a->id > b->id) - (a->id < b->id);
}

void sample_ref_sort(struct nsv_lp *sorted, const float *logits, uint32_t n)
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

static struct sample_kept ref_typical(
	const double *lw, const double *p, uint32_t n, double typical_p)
{
	struct distance *d = calloc(n, sizeof(*d));
	struct sample_kept k = {n, 0};
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
struct sample_kept sample_ref_distribution(
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
	struct sample_kept k = {0, n};
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

	sample_ref_sort(sorted, x, n_vocab);
	while (n > 1 && sorted[n - 1].logprob == -INFINITY)
		n--;
	if (params->temperature >= 1e-3f) {
		struct sample_kept k = sample_ref_distribution(sorted, p, n, params);
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

bool sample_ref_gives(
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

uint32_t sample_ref_adjust(const struct nsv_sampler *s, const struct nsv_sample_in *in, float *x)
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

int sample_pick(struct nsv_sampler *s, const float *logits, const struct nsv_params *params,
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
