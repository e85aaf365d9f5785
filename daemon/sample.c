/* Sampling by partial ranking. Top-k, min-p, top-p and the draw all look at a prefix of the ranking
 * by (logit, id), so the vocabulary is never sorted: candidates go into two heaps, the likely ones
 * and the rest, and ranks are popped only as far as somebody asks. */
#include "daemon/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define GREEDY_BELOW 1e-3f
#define LIKELY 1e-4 /* of the best one's probability: what goes into the first heap */

/* ---- Parameters */

struct float_rule {
	const char *name;
	size_t off;
	float least, most;
	bool open; /* `least` itself is refused */
	bool built;
	float neutral;
};

#define FIELD(f) #f, offsetof(struct nsv_params, f)

static const struct float_rule float_rules[] = {
	{FIELD(temperature), 0, FLT_MAX, false, true, 0},
	{FIELD(top_p), 0, 1, true, true, 1},
	{FIELD(min_p), 0, 1, false, true, 0},
	{FIELD(typical_p), 0, 1, true, false, 1},
	{FIELD(repetition_penalty), 0, FLT_MAX, true, false, 1},
	{FIELD(presence_penalty), -FLT_MAX, FLT_MAX, false, false, 0},
	{FIELD(frequency_penalty), -FLT_MAX, FLT_MAX, false, false, 0},
};

/* Written so that NaN, which compares false, fits no range. */
static int check_float(const struct float_rule *r, float x, struct nsv_err *err)
{
	bool fits = x <= r->most && (r->open ? x > r->least : x >= r->least);

	if (!fits && r->most == FLT_MAX)
		return nsv_fail(err, NSV_E_PARAM, "%s is %g: it must be finite%s", r->name,
			(double)x,
			r->least < 0 ? ""
			: r->open    ? " and above 0"
				     : " and 0 or more");
	if (!fits)
		return nsv_fail(err, NSV_E_PARAM, "%s is %g: it must lie in %s%g, %g]", r->name,
			(double)x, r->open ? "(" : "[", (double)r->least, (double)r->most);
	if (!r->built && x != r->neutral)
		return nsv_fail(err, NSV_E_UNSUPPORTED, "%s is not supported", r->name);
	return 0;
}

static int check_words(const struct nsv_params *p, struct nsv_err *err)
{
	for (size_t i = 0; i < NSV_ARRAY_LEN(p->reserved); i++)
		if (p->reserved[i])
			return nsv_fail(err, NSV_E_PARAM, "reserved word %zu is not zero", i);
	if (p->flags & ~(uint32_t)NSV_PARAM_FLAGS)
		return nsv_fail(err, NSV_E_PARAM, "unknown flags %#x",
			p->flags & ~(uint32_t)NSV_PARAM_FLAGS);
	if (p->top_k < 0)
		return nsv_fail(err, NSV_E_PARAM, "top_k is %d: it must be 0 or more", p->top_k);
	if (p->n_logprob > NSV_MAX_LOGPROB)
		return nsv_fail(err, NSV_E_PARAM, "n_logprob is %u: at most %u are given",
			p->n_logprob, NSV_MAX_LOGPROB);
	if (p->n_logprob > 0 && !(p->flags & NSV_PARAM_LOGPROBS))
		return nsv_fail(
			err, NSV_E_PARAM, "n_logprob is %u without the flag for it", p->n_logprob);
	return 0;
}

static int check_unbuilt(const struct nsv_params *p, struct nsv_err *err)
{
	const struct {
		const char *name;
		bool used;
	} rules[] = {
		{"prompt log-probabilities", p->flags & NSV_PARAM_PROMPT_LOGPROBS},
		{"penalty_window", p->penalty_window != 0},
		{"min_tokens", p->min_tokens != 0},
		{"n_branch above 1", p->n_branch > 1},
		{"priority", p->priority != 0},
	};

	for (size_t i = 0; i < NSV_ARRAY_LEN(rules); i++)
		if (rules[i].used)
			return nsv_fail(
				err, NSV_E_UNSUPPORTED, "%s is not supported", rules[i].name);
	return 0;
}

int nsv_params_check(const struct nsv_params *params, struct nsv_err *err)
{
	int ret = check_words(params, err);

	for (size_t i = 0; ret == 0 && i < NSV_ARRAY_LEN(float_rules); i++) {
		float x;

		memcpy(&x, (const char *)params + float_rules[i].off, sizeof(x));
		ret = check_float(&float_rules[i], x, err);
	}
	return ret ? ret : check_unbuilt(params, err);
}

struct nsv_params nsv_params_default(void)
{
	return (struct nsv_params){.len = sizeof(struct nsv_params),
		.top_p = 1,
		.typical_p = 1,
		.repetition_penalty = 1,
		.n_branch = 1};
}

/* ---- Random numbers */

#define PHILOX_M0 0xd2511f53u
#define PHILOX_M1 0xcd9e8d57u
#define PHILOX_W0 0x9e3779b9u
#define PHILOX_W1 0xbb67ae85u

float nsv_uniform(uint64_t seed, uint32_t branch, uint64_t position)
{
	uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), branch, 0};
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

	for (int round = 0; round < 10; round++, k0 += PHILOX_W0, k1 += PHILOX_W1) {
		uint64_t a = (uint64_t)PHILOX_M0 * c[0], b = (uint64_t)PHILOX_M1 * c[2];

		c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
		c[1] = (uint32_t)b;
		c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
		c[3] = (uint32_t)a;
	}
	return (float)(c[0] >> 8) * 0x1p-24f;
}

/* ---- Ranking */

static bool ranks_before(struct nsv_lp a, struct nsv_lp b)
{
	return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
}

static void sift_down(struct nsv_lp *heap, size_t n, size_t i)
{
	struct nsv_lp x = heap[i];

	for (size_t c = 2 * i + 1; c < n; c = 2 * i + 1) {
		if (c + 1 < n && ranks_before(heap[c + 1], heap[c]))
			c++;
		if (!ranks_before(heap[c], x))
			break;
		heap[i] = heap[c];
		i = c;
	}
	heap[i] = x;
}

static void heapify(struct nsv_lp *heap, size_t n)
{
	for (size_t i = n / 2; i-- > 0;)
		sift_down(heap, n, i);
}

/* The candidates of one draw. Everything in `heap` ranks before everything in `rest`. */
struct ranking {
	struct nsv_lp *heap, *rest;
	size_t n_heap, n_rest;
	struct nsv_lp *rank; /* popped so far */
	size_t n_rank;
	size_t n;     /* candidates in all */
	double total; /* their weights */
	double max, temperature;
};

/* Relative to the best one, whose weight is 1. */
static double weight(const struct ranking *r, float logit)
{
	return exp(((double)logit - r->max) / r->temperature);
}

/* The candidate of rank i < n. */
static struct nsv_lp rank_at(struct ranking *r, size_t i)
{
	while (r->n_rank <= i) {
		if (r->n_heap == 0) {
			r->heap = r->rest;
			r->n_heap = r->n_rest;
			heapify(r->heap, r->n_heap);
		}
		r->rank[r->n_rank++] = r->heap[0];
		r->heap[0] = r->heap[--r->n_heap];
		sift_down(r->heap, r->n_heap, 0);
	}
	return r->rank[i];
}

/* Everything that min-p lets through; the likely ones from the front, the others from the back. */
static struct ranking collect(
	struct nsv_sampler *s, const float *logits, float max, const struct nsv_params *params)
{
	struct ranking r = {.heap = s->cand,
		.rest = s->cand + s->n_vocab,
		.rank = s->rank,
		.max = max,
		.temperature = params->temperature};

	for (uint32_t i = 0; i < s->n_vocab; i++) {
		double w = weight(&r, logits[i]);
		struct nsv_lp c = {(int32_t)i, logits[i]};

		if (w < params->min_p)
			continue;
		r.total += w;
		if (w >= LIKELY)
			r.heap[r.n_heap++] = c;
		else
			*--r.rest = c;
	}
	r.n_rest = (size_t)(s->cand + s->n_vocab - r.rest);
	r.n = r.n_heap + r.n_rest;
	heapify(r.heap, r.n_heap);
	return r;
}

/* min-p has cut already: both keep a prefix, in whatever order. */
static void cut_top_k(struct ranking *r, size_t k)
{
	if (k == 0 || k >= r->n)
		return;
	r->n = k;
	r->total = 0;
	for (size_t i = 0; i < k; i++)
		r->total += weight(r, rank_at(r, i).logprob);
}

static void cut_top_p(struct ranking *r, float top_p)
{
	double sum = 0, goal = top_p * r->total;
	size_t n = 0;

	if (top_p >= 1)
		return;
	do
		sum += weight(r, rank_at(r, n++).logprob);
	while (sum < goal && n < r->n);
	r->n = n;
	r->total = sum;
}

static int32_t draw(struct ranking *r, float u)
{
	double sum = 0, goal = u * r->total;

	for (size_t i = 0; i + 1 < r->n; i++) {
		struct nsv_lp c = rank_at(r, i);

		sum += weight(r, c.logprob);
		if (sum > goal)
			return c.id;
	}
	return rank_at(r, r->n - 1).id;
}

/* ---- Log-probabilities of the logits as they came */

/* The largest one's term is 1. */
static double log_sum_exp(const float *logits, uint32_t n, uint32_t best)
{
	double max = logits[best], sum = 0;

	for (uint32_t i = 0; i < n; i++)
		if (i != best)
			sum += exp(logits[i] - max);
	return max + log1p(sum);
}

/* The n largest by rank: ids come in order, so an equal logit stays behind. */
static void find_largest(const float *logits, uint32_t n_vocab, struct nsv_lp *best, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		best[i] = (struct nsv_lp){-1, -INFINITY};
	for (uint32_t i = 0; n > 0 && i < n_vocab; i++) {
		uint32_t j = n - 1;

		if (!(logits[i] > best[j].logprob))
			continue;
		for (; j > 0 && logits[i] > best[j - 1].logprob; j--)
			best[j] = best[j - 1];
		best[j] = (struct nsv_lp){(int32_t)i, logits[i]};
	}
}

static void log_probs(const struct nsv_sampler *s, const float *logits, int32_t best, int32_t token,
	struct nsv_lp *lp, uint32_t n_lp)
{
	double lse = log_sum_exp(logits, s->n_vocab, (uint32_t)best);

	lp[0] = (struct nsv_lp){token, logits[token]};
	find_largest(logits, s->n_vocab, lp + 1, n_lp - 1);
	for (uint32_t i = 0; i < n_lp; i++)
		lp[i].logprob = (float)(lp[i].logprob - lse);
}

/* ---- The sampler */

int nsv_sampler_init(struct nsv_sampler *s, uint32_t n_vocab)
{
	*s = (struct nsv_sampler){.n_vocab = n_vocab};
	if (n_vocab == 0 || n_vocab > INT32_MAX)
		return -EINVAL;
	s->cand = calloc(n_vocab, sizeof(*s->cand));
	s->rank = calloc(n_vocab, sizeof(*s->rank));
	if (s->cand && s->rank)
		return 0;
	nsv_sampler_deinit(s);
	return -ENOMEM;
}

void nsv_sampler_deinit(struct nsv_sampler *s)
{
	free(s->cand);
	free(s->rank);
	*s = (struct nsv_sampler){0};
}

/* The largest logit, of equals the smallest id. -EDOM: one is not finite. */
static int find_best(const float *logits, uint32_t n, int32_t *ret_best)
{
	uint32_t best = 0;
	bool bad = false;

	for (uint32_t i = 0; i < n; i++) {
		bad |= !isfinite(logits[i]);
		if (logits[i] > logits[best])
			best = i;
	}
	if (bad)
		return -EDOM;
	*ret_best = (int32_t)best;
	return 0;
}

int nsv_sample(struct nsv_sampler *s, const float *logits, const struct nsv_params *params,
	uint64_t seed, uint32_t branch, uint64_t position, int32_t *ret_token, struct nsv_lp *lp,
	uint32_t n_lp)
{
	int32_t best, token;
	int ret = find_best(logits, s->n_vocab, &best);

	if (ret < 0)
		return ret;
	token = best;
	if (params->temperature >= GREEDY_BELOW) {
		struct ranking r = collect(s, logits, logits[best], params);

		cut_top_k(&r, (size_t)params->top_k);
		cut_top_p(&r, params->top_p);
		token = draw(&r, nsv_uniform(seed, branch, position));
	}
	if (n_lp > 0)
		log_probs(s, logits, best, token, lp, n_lp);
	*ret_token = token;
	return 0;
}
