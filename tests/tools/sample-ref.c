/* The sampler's steps as written down in daemon/sample.h, one by one. */
#include "tests/tools/sample-ref.h"

#include <float.h>
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "tests/tools/rnd.h"

/* ---- Inputs */

/* As models have them, with ties: some are rounded to a quarter. */
static void draw_plain(float *logits, uint32_t n)
{
	float spread = t_float(0.1f, 20), grid = t_below(2) ? 4 : 4096;

	for (uint32_t i = 0; i < n; i++)
		logits[i] = roundf(t_float(-spread, spread) * grid) / grid;
}

/* A bell and some likely ones above it: a sum of four is near enough. */
static void draw_bell(float *logits, uint32_t n)
{
	float width = t_float(0.2f, 5), above = t_float(0, 20);
	uint32_t one_in = 1 + t_below(n);

	for (uint32_t i = 0; i < n; i++)
		logits[i] = width * (t_float(-1, 1) + t_float(-1, 1) + t_float(-1, 1) +
					    t_float(-1, 1)) +
			    (t_below(one_in) ? 0 : above);
}

void sample_draw_logits(float *logits, uint32_t n)
{
	/* Equal ones, or hardly different, or too small or too large for most arithmetic. */
	const float spreads[] = {0, 1e-6f, 1e-3f, 1e-40f, FLT_MAX};
	float spread = spreads[t_below(5)], at = spread < 1 ? t_float(-3, 3) : 0;

	if (t_below(4) == 0)
		draw_bell(logits, n);
	else if (t_below(3))
		draw_plain(logits, n);
	else
		for (uint32_t i = 0; i < n; i++)
			logits[i] = (t_below(2) ? at : 0) + t_float(-1, 1) * spread;
	if (t_below(8) == 0)
		logits[t_below(n)] = t_below(2) ? 1e4f : t_float(0, 50);
}

struct nsv_params sample_draw_params(uint32_t n_vocab)
{
	struct nsv_params p = nsv_params_default();

	p.temperature = t_below(8) == 0 ? t_float(0, 2e-3f) : t_float(0.05f, 3);
	if (t_below(16) == 0)
		p.temperature = FLT_MAX / (1 + (float)t_below(100)); /* all that may be asked for */
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

/* ln p and a constant, over ln 2, as single precision has it. */
static float exponent(float x, float max, float temperature)
{
	return (x - max) * ((float)M_LOG2E / temperature);
}

/* Weights themselves are graded in tests/ops/test_scan.c. */
static void ref_weigh(const float *x, const struct nsv_lp *sorted, uint32_t n, float temperature,
	float *w)
{
	size_t n_row;
	const struct nsv_cpu_row *rows = nsv_cpu_rows(&n_row);
	const struct nsv_scan_scale scale = {sorted[0].logprob,
		(float)M_LOG2E / temperature, nsv_scan_grain(n)};

	rows[n_row - 1].scan->weigh(x, n, &scale, w);
}

static double ref_sum(const float *w, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += (double)w[i];
	return sum;
}

/* Those before the goal is reached stay, at least one that has a weight. */
static void ref_cut(const struct nsv_lp *sorted, float *w, uint32_t n, double share)
{
	double goal = share * ref_sum(w, n), sum = 0;
	uint32_t i = 0;

	while (i < n && (sum == 0 || sum < goal))
		sum += (double)w[sorted[i++].id];
	for (; i < n; i++)
		w[sorted[i].id] = 0;
}

static float ref_mean(const float *x, const float *w, uint32_t n, float max, float temperature)
{
	float grain = nsv_scan_grain(n);
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		if (w[i] > 0)
			sum += (double)(w[i] * -exponent(x[i], max, temperature) + grain - grain);
	return (float)(-sum / ref_sum(w, n));
}

/* Step 11 as it is written: all by distance, the fewest that reach typical_p. */
static void ref_typical(
	const float *x, float *w, uint32_t n, float max, const struct nsv_params *params)
{
	struct nsv_lp *sorted = calloc(n, sizeof(*sorted));
	float *key = calloc(n, sizeof(*key));
	float mean = ref_mean(x, w, n, max, params->temperature);

	for (uint32_t i = 0; i < n; i++)
		key[i] = -fabsf(exponent(x[i], max, params->temperature) - mean);
	sample_ref_sort(sorted, key, n);
	ref_cut(sorted, w, n, params->typical_p);
	free(key);
	free(sorted);
}

void sample_ref_keep(const float *x, uint32_t n, const struct nsv_params *params, float *w)
{
	struct nsv_lp *sorted = calloc(n, sizeof(*sorted));

	sample_ref_sort(sorted, x, n);
	ref_weigh(x, sorted, n, params->temperature, w);
	for (uint32_t i = 0; i < n; i++)
		if ((params->top_k > 0 && i >= (uint32_t)params->top_k) ||
			w[sorted[i].id] < params->min_p)
			w[sorted[i].id] = 0;
	if (params->top_p < 1)
		ref_cut(sorted, w, n, params->top_p);
	if (params->typical_p < 1)
		ref_typical(x, w, n, sorted[0].logprob, params);
	free(sorted);
}

int32_t sample_ref_choose(const float *x, uint32_t n, const struct nsv_params *params, float u)
{
	float *w = calloc(n, sizeof(*w));
	struct nsv_lp *sorted = calloc(n, sizeof(*sorted));
	double goal, sum = 0;
	int32_t id = 0;

	sample_ref_sort(sorted, x, n);
	if (params->temperature < 1e-3f) {
		id = sorted[0].id;
	} else {
		sample_ref_keep(x, n, params, w);
		goal = u * ref_sum(w, n);
		for (sum = (double)w[0]; sum <= goal; sum += (double)w[id])
			id++;
	}
	free(sorted);
	free(w);
	return id;
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

void sample_look(struct nsv_sample_in *in, uint32_t n, struct nsv_scan_range *ranges)
{
	float scale = nsv_sample_sum_scale(in);

	nsv_scan_look(in->logits, n, 1, n, 0, nsv_scan_n_slice(n),
		&(struct nsv_scan_slices){ranges, &scale});
	in->ranges = ranges;
	in->sum_scale = scale;
}

int sample_pick(struct nsv_sampler *s, const float *logits, const struct nsv_params *params,
	uint64_t seed, uint32_t branch, uint64_t position, int32_t *ret_token, struct nsv_lp *lp,
	uint32_t n_lp)
{
	const struct nsv_sample_in in = {.logits = logits,
		.params = params,
		.seed = seed,
		.branch = branch,
		.position = position};

	return nsv_sample_next(s, &nsv_team_alone, &in, ret_token, lp, n_lp);
}
