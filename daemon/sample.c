/* Sampling by partial ranking. Top-k, min-p, top-p, typical-p and the draw all look at the front of
 * the ranking by (logit, id), so the vocabulary is hardly ever sorted as a whole. With top-k one
 * pass keeps the k best. Without, candidates come in bands of falling logits, and a band is looked
 * for, and sorted, only when somebody asks for its ranks; the sum of all weights is a pass of its
 * own. */
#include "daemon/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "daemon/sample-scan.h"

#define GREEDY_BELOW 1e-3f
#define BAND 9.2103403719761836 /* -ln 1e-4: the first band's width, in temperatures */
#define GROWTH 1.25		/* each band reaches so much further than the one before */
#define SAME 1e-9		/* of ln p: no distance from the entropy */
#define LAST_BAND 8		/* it has no lower end */

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

/* ---- Heaps */

typedef bool before_fn(struct nsv_lp a, struct nsv_lp b);

static bool ranks_before(struct nsv_lp a, struct nsv_lp b)
{
	return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
}

static bool ranks_after(struct nsv_lp a, struct nsv_lp b)
{
	return ranks_before(b, a);
}

static inline void sift_down(struct nsv_lp *heap, size_t n, size_t i, before_fn *before)
{
	struct nsv_lp x = heap[i];

	for (size_t c = 2 * i + 1; c < n; c = 2 * i + 1) {
		if (c + 1 < n && before(heap[c + 1], heap[c]))
			c++;
		if (!before(heap[c], x))
			break;
		heap[i] = heap[c];
		i = c;
	}
	heap[i] = x;
}

static inline void heapify(struct nsv_lp *heap, size_t n, before_fn *before)
{
	for (size_t i = n / 2; i-- > 0;)
		sift_down(heap, n, i, before);
}

/* ---- Ranking */

/* The candidates of one draw. Everything in the heap ranks before everything below `low`. */
struct ranking {
	const float *x; /* (n_vocab) */
	uint32_t n_vocab;
	struct nsv_lp *heap, *rank; /* (n_vocab) not popped yet; popped, in order */
	double *weight;		    /* (n_vocab) of the first n_weight ranks */
	size_t n_heap, n_rank, n_weight;
	size_t first, n; /* kept: ranks first to n - 1 */
	double total;	 /* of their weights, which are relative to the best one's */
	double moment;	 /* of weight * ln weight */
	double max, temperature;
	float low;
	int n_band;
};

static double log_weight(const struct ranking *r, float logit)
{
	return ((double)logit - r->max) / r->temperature;
}

/* Ranks the next lower band that has a candidate. Only called while there is one. */
static void next_band(struct ranking *r)
{
	size_t n = 0;

	while (n == 0) {
		double end = r->max - BAND * pow(GROWTH, r->n_band) * r->temperature;
		float high = r->low;

		r->low = r->n_band < LAST_BAND ? (float)fmax(end, -FLT_MAX) : -FLT_MAX;
		r->n_band++;
		n = nsv_scan_band(r->x, r->n_vocab, r->low, high, r->heap);
	}
	nsv_scan_sort(r->heap, r->rank + r->n_rank, n);
	r->n_rank += n;
}

/* The k best into the heap; there are more. Ids come in order: an equal logit ranks behind. */
static void take_best(struct ranking *r, size_t k)
{
	uint32_t i = 0;

	for (; r->n_heap < k; i++)
		if (r->x[i] != -INFINITY)
			r->heap[r->n_heap++] = (struct nsv_lp){(int32_t)i, r->x[i]};
	heapify(r->heap, k, ranks_after);
	for (;; i++) {
		i = nsv_scan_above(r->x, i, r->n_vocab, r->heap[0].logprob);
		if (i == r->n_vocab)
			break;
		r->heap[0] = (struct nsv_lp){(int32_t)i, r->x[i]};
		sift_down(r->heap, k, 0, ranks_after);
	}
	heapify(r->heap, k, ranks_before);
}

static void pop(struct ranking *r)
{
	r->rank[r->n_rank++] = r->heap[0];
	r->heap[0] = r->heap[--r->n_heap];
	sift_down(r->heap, r->n_heap, 0, ranks_before);
}

/* ln of the weight of rank i, which is below the number of candidates. */
static double weigh(struct ranking *r, size_t i)
{
	while (r->n_rank <= i) {
		if (r->n_heap > 0)
			pop(r);
		else
			next_band(r);
	}
	return log_weight(r, r->rank[i].logprob);
}

/* Its weight, computed once. */
static double weight_of(struct ranking *r, size_t i)
{
	for (; r->n_weight <= i; r->n_weight++)
		r->weight[r->n_weight] = exp(weigh(r, r->n_weight));
	return r->weight[i];
}

static void add_weight(struct ranking *r, size_t i)
{
	double w = weight_of(r, i);

	r->total += w;
	r->moment += w * weigh(r, i);
}

/* ---- What is kept */

/* Nothing cuts the vocabulary: likely ones exactly, the others by the faster pass. */
static void keep_all(struct ranking *r)
{
	next_band(r);
	struct nsv_tail tail =
		nsv_scan_tail(r->x, r->n_vocab, r->low, (float)r->max, r->temperature);
	r->total = tail.sum;
	r->moment = tail.moment;
	for (size_t i = 0, n = r->n_rank; i < n; i++)
		add_weight(r, i);
}

static void cut_min_p(struct ranking *r, double min_p)
{
	size_t i = 0;

	for (; i < r->n && weight_of(r, i) >= min_p; i++)
		add_weight(r, i);
	r->n = i;
}

/* Of n_cand candidates: steps 8 and 9. */
static void cut_top_k(struct ranking *r, size_t n_cand, const struct nsv_params *params)
{
	size_t k = (size_t)params->top_k;

	r->n = n_cand;
	if (k > 0 && k < n_cand) {
		take_best(r, k);
		r->n = k;
	}
	if (r->n < n_cand || params->min_p > 0)
		cut_min_p(r, params->min_p);
	else
		keep_all(r);
}

static void cut_top_p(struct ranking *r, float top_p)
{
	double goal = top_p * r->total;
	size_t i = 0;

	if (top_p >= 1)
		return;
	r->total = r->moment = 0;
	do
		add_weight(r, i++);
	while (r->total < goal && i < r->n);
	r->n = i;
}

/* The entropy lies at ln p = the mean of ln p: from there the nearer neighbour comes, again and
 * again. */
static void cut_typical(struct ranking *r, float typical_p)
{
	double goal = typical_p * r->total, mean = r->moment / r->total;
	size_t n = r->n, a = 0, b;

	if (typical_p >= 1)
		return;
	while (a < n && weigh(r, a) > mean + SAME)
		a++;
	b = a;
	r->total = r->moment = 0;
	do {
		bool up = a > 0 && (b == n || weigh(r, a - 1) - mean <= mean - weigh(r, b));

		add_weight(r, up ? --a : b++);
	} while (r->total < goal && (a > 0 || b < n));
	r->first = a;
	r->n = b;
}

static int32_t draw(struct ranking *r, float u)
{
	double sum = 0, goal = u * r->total;
	size_t i = r->first;

	for (; i + 1 < r->n; i++) {
		sum += weight_of(r, i);
		if (sum > goal)
			break;
	}
	weigh(r, i);
	return r->rank[i].id;
}

/* Steps 7 to 12 on n_cand > 0 candidates. */
static int32_t choose(
	struct nsv_sampler *s, const float *x, size_t n_cand, const struct nsv_sample_in *in)
{
	uint32_t best = nsv_scan_best(x, s->n_vocab);
	struct ranking r = {.x = x,
		.n_vocab = s->n_vocab,
		.heap = s->cand,
		.rank = s->rank,
		.weight = s->weight,
		.max = x[best],
		.temperature = in->params->temperature,
		.low = INFINITY};

	if (in->params->temperature < GREEDY_BELOW)
		return (int32_t)best;
	cut_top_k(&r, n_cand, in->params);
	cut_top_p(&r, in->params->top_p);
	cut_typical(&r, in->params->typical_p);
	return draw(&r, nsv_uniform(in->seed, in->branch, in->position));
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

/* The logits are finite and the token is one of them. */
static void write_log_probs(
	const float *logits, uint32_t n_vocab, int32_t token, struct nsv_lp *lp, uint32_t n_lp)
{
	double lse = log_sum_exp(logits, n_vocab, nsv_scan_best(logits, n_vocab));

	lp[0] = (struct nsv_lp){token, logits[token]};
	find_largest(logits, n_vocab, lp + 1, n_lp - 1);
	for (uint32_t i = 0; i < n_lp; i++)
		lp[i].logprob = (float)(lp[i].logprob - lse);
}

int nsv_log_probs(
	const float *logits, uint32_t n_vocab, int32_t token, struct nsv_lp *lp, uint32_t n_lp)
{
	if (token < 0 || (uint32_t)token >= n_vocab)
		return -EINVAL;
	if (!nsv_scan_finite(logits, n_vocab))
		return -EDOM;
	write_log_probs(logits, n_vocab, token, lp, n_lp);
	return 0;
}

/* ---- The sampler */

int nsv_sampler_init(struct nsv_sampler *s, uint32_t n_vocab)
{
	*s = (struct nsv_sampler){.n_vocab = n_vocab};
	if (n_vocab == 0 || n_vocab > INT32_MAX)
		return -EINVAL;
	s->cand = calloc(n_vocab, sizeof(*s->cand));
	s->rank = calloc(n_vocab, sizeof(*s->rank));
	s->weight = calloc(n_vocab, sizeof(*s->weight));
	s->adjusted = calloc(n_vocab, sizeof(*s->adjusted));
	s->count = calloc(n_vocab, sizeof(*s->count));
	if (s->cand && s->rank && s->weight && s->adjusted && s->count)
		return 0;
	nsv_sampler_deinit(s);
	return -ENOMEM;
}

void nsv_sampler_deinit(struct nsv_sampler *s)
{
	free(s->cand);
	free(s->rank);
	free(s->weight);
	free(s->adjusted);
	free(s->count);
	*s = (struct nsv_sampler){0};
}

int nsv_sampler_add_end(struct nsv_sampler *s, int32_t id)
{
	if (id < 0 || (uint32_t)id >= s->n_vocab)
		return -EINVAL;
	if (s->n_end == NSV_MAX_END)
		return -ENOSPC;
	s->end[s->n_end++] = id;
	return 0;
}

int nsv_sample_next(struct nsv_sampler *s, const struct nsv_sample_in *in, int32_t *ret_token,
	struct nsv_lp *lp, uint32_t n_lp)
{
	const float *x;

	if (!nsv_scan_finite(in->logits, s->n_vocab))
		return -EDOM;
	size_t n_cand = nsv_sample_adjust(s, in, &x);
	if (n_cand == 0)
		return -ENODATA;
	int32_t token = choose(s, x, n_cand, in);
	if (n_lp > 0)
		write_log_probs(in->logits, s->n_vocab, token, lp, n_lp);
	*ret_token = token;
	return 0;
}
