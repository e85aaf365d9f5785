/* Sampling by a few passes over all logits (kernels/scan.h), none of which sorts them. Weights are
 * whole multiples of one small number, so that their sums are exact: whichever way they are taken, by
 * buckets or by ranks, the same candidates are kept.
 *
 * A cut keeps the first candidates by falling key, until their weights reach a goal. Weights are
 * added up by bucket of the key; only the bucket in which the goal is reached is sorted. What a cut
 * drops has weight 0 from then on, and where few are left they are moved together. */
#include "daemon/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "daemon/sample-sort.h"
#include "kernels/scan.h"

#define GREEDY_BELOW 1e-3f
#define HEAP_MOST 512u /* top-k up to so many by a heap */
#define SORT_MOST 48u  /* so few are not looked at by buckets first */
#define FEW 8u	       /* one in so many left: they are moved together */
#define REACH 40.0f    /* of t: everything that has a weight is within it of the best */

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

/* ---- A heap of the best so far, the worst of them at its top */

static bool ranks_after(struct nsv_lp a, struct nsv_lp b)
{
	return a.logprob < b.logprob || (a.logprob == b.logprob && a.id > b.id);
}

static void sift_down(struct nsv_lp *heap, size_t n, size_t i)
{
	struct nsv_lp x = heap[i];

	for (size_t c = 2 * i + 1; c < n; c = 2 * i + 1) {
		if (c + 1 < n && ranks_after(heap[c + 1], heap[c]))
			c++;
		if (!ranks_after(heap[c], x))
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

/* ---- Candidates */

/* The candidates of one draw, in order of their ids. */
struct draw {
	const struct nsv_scan *scan;
	struct nsv_sampler *s;
	const float *x;	   /* (n) logits */
	const int32_t *id; /* (n), or NULL: place i is id i */
	uint32_t n;
	struct nsv_scan_scale scale;
	float span;   /* all that have a weight lie within it below the largest */
	double total; /* of s->weight (n) */
};

/* Where a cut falls: what comes by falling key after this candidate goes. */
struct cut {
	float key;
	uint32_t at;
	double sum; /* of the weights that stay */
};

static int32_t id_at(const struct draw *d, uint32_t i)
{
	return d->id ? d->id[i] : (int32_t)i;
}

/* To the front, with their weights: those at the places in s->place, which grow. */
static void gather(struct draw *d, uint32_t n)
{
	struct nsv_sampler *s = d->s;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t from = s->place[i];

		s->left[i] = d->x[from];
		s->left_id[i] = id_at(d, from);
		s->weight[i] = s->weight[from];
	}
	d->x = s->left;
	d->id = s->left_id;
	d->n = n;
}

/* After a cut that left so many. */
static void close_up(struct draw *d, uint32_t n_left)
{
	if (n_left < d->n / FEW)
		gather(d, d->scan->list(d->s->weight, d->n, FLT_TRUE_MIN, INFINITY, d->s->place));
}

/* The places of those among which the goal is reached, to s->place; *ret_before: the sum of the
 * weights before them. No key is above max; those that count lie within `span` below it. */
static uint32_t find_bucket(const struct draw *d, const float *key, const float *w, float max,
	float span, double goal, double *ret_before)
{
	const struct nsv_scan_split split = {
		max, fminf(NSV_SCAN_BUCKETS / fmaxf(span, FLT_MIN), FLT_MAX)};
	double mass[NSV_SCAN_BUCKETS] = {0}, sum = 0;
	uint32_t b = 0;

	d->scan->add_mass(key, w, d->n, &split, mass);
	for (; b + 1 < NSV_SCAN_BUCKETS && sum + mass[b] < goal; b++)
		sum += mass[b];
	*ret_before = sum;
	return d->scan->list_bucket(key, d->n, &split, b, d->s->place);
}

static uint32_t list_all(const struct draw *d)
{
	for (uint32_t i = 0; i < d->n; i++)
		d->s->place[i] = i;
	return d->n;
}

/* By falling key, equals by id, the one with which the sum of w (n) reaches the goal. That is above
 * 0 and not above the sum of all. */
static struct cut find_cut(const struct draw *d, const float *key, const float *w, float max,
	float span, double goal)
{
	struct nsv_sampler *s = d->s;
	double sum = 0;
	uint32_t i, n = d->n <= SORT_MOST ? list_all(d)
					  : find_bucket(d, key, w, max, span, goal, &sum);

	for (i = 0; i < n; i++)
		s->cand[i] = (struct nsv_lp){(int32_t)s->place[i], key[s->place[i]]};
	nsv_sample_sort(s->cand, s->rank, n);
	for (i = 0;; i++) {
		sum += (double)w[s->rank[i].id];
		if (sum >= goal || i + 1 == n)
			break;
	}
	return (struct cut){s->rank[i].logprob, (uint32_t)s->rank[i].id, sum};
}

static void apply_cut(struct draw *d, const float *key, struct cut cut)
{
	uint32_t n = cut.at + 1;
	float *w = d->s->weight, above = nextafterf(cut.key, INFINITY);

	n = d->scan->keep(key, cut.key, w, n) + d->scan->keep(key + n, above, w + n, d->n - n);
	close_up(d, n);
}

/* ---- What is kept */

/* The worst of the k best; there are more. Ids come in order: an equal logit ranks behind. */
static struct nsv_lp find_kth(const struct draw *d, uint32_t k)
{
	struct nsv_lp *heap = d->s->cand;
	uint32_t i = 0;

	for (uint32_t n = 0; n < k; i++)
		if (d->x[i] != -INFINITY)
			heap[n++] = (struct nsv_lp){(int32_t)i, d->x[i]};
	heapify(heap, k);
	for (;; i++) {
		i = d->scan->first(d->x, i, d->n, nextafterf(heap[0].logprob, INFINITY));
		if (i == d->n)
			return heap[0];
		heap[0] = (struct nsv_lp){(int32_t)i, d->x[i]};
		sift_down(heap, k, 0);
	}
}

/* Before there are weights. */
static void gather_best(struct draw *d, uint32_t k)
{
	struct nsv_lp last = find_kth(d, k);
	uint32_t *place = d->s->place, n_kept = 0;
	uint32_t n = d->scan->list(d->x, d->n, last.logprob, INFINITY, place);

	for (uint32_t i = 0; i < n; i++)
		if (d->x[place[i]] > last.logprob || place[i] <= (uint32_t)last.id)
			place[n_kept++] = place[i];
	gather(d, n_kept);
}

/* Each counts as one. */
static void cut_top_k(struct draw *d, uint32_t k)
{
	float *one = d->s->key;

	for (uint32_t i = 0; i < d->n; i++)
		one[i] = d->x[i] == -INFINITY ? 0 : 1;
	apply_cut(d, d->x, find_cut(d, d->x, one, d->scale.max, d->span, k));
	d->total = d->scan->sum(d->s->weight, d->n);
}

/* Steps 7 and 8. */
static void weigh(struct draw *d, size_t n_cand, int32_t top_k)
{
	uint32_t k = top_k > 0 && (size_t)top_k < n_cand ? (uint32_t)top_k : 0;
	bool few = k <= nsv_min(HEAP_MOST, d->n / FEW);

	if (k > 0 && few)
		gather_best(d, k);
	d->total = d->scan->weigh(d->x, d->n, &d->scale, d->s->weight);
	if (k > 0 && !few)
		cut_top_k(d, k);
}

static void cut_min_p(struct draw *d, float min_p)
{
	float *w = d->s->weight;

	if (min_p <= 0)
		return;
	close_up(d, d->scan->keep(w, min_p, w, d->n));
	d->total = d->scan->sum(w, d->n);
}

/* All that weigh less than half an equal share of what may go cannot reach the goal: they are left
 * out first. */
static void cut_top_p(struct draw *d, float top_p)
{
	float *w = d->s->weight;

	if (top_p >= 1)
		return;
	close_up(d, d->scan->keep(w, (1 - top_p) / (float)d->n / 2, w, d->n));
	struct cut cut = find_cut(
		d, d->x, w, d->scale.max, d->span, fmax(top_p * d->total, DBL_MIN));
	apply_cut(d, d->x, cut);
	d->total = cut.sum;
}

/* The entropy lies where ln p is its own mean, and so does t. */
static void cut_typical(struct draw *d, float typical_p)
{
	float *w = d->s->weight, *key = d->s->key;

	if (typical_p >= 1)
		return;
	double mean = d->scan->moment(d->x, w, d->n, &d->scale) / d->total;
	d->scan->nearness(d->x, d->n, &d->scale, (float)mean, key);
	struct cut cut = find_cut(
		d, key, w, 0, d->span * d->scale.scale, fmax(typical_p * d->total, DBL_MIN));
	apply_cut(d, key, cut);
	d->total = cut.sum;
}

/* Steps 7 to 12 on n_cand > 0 candidates of the logits x. */
static int32_t choose(struct nsv_sampler *s, const struct nsv_scan *scan, const float *x,
	const struct nsv_scan_range *range, size_t n_cand, const struct nsv_sample_in *in)
{
	if (in->params->temperature < GREEDY_BELOW)
		return (int32_t)scan->first(x, 0, s->n_vocab, range->max);
	float scale = (float)M_LOG2E / in->params->temperature;
	struct draw d = {.scan = scan,
		.s = s,
		.x = x,
		.n = s->n_vocab,
		.scale = {range->max, scale, nsv_scan_grain(s->n_vocab)},
		.span = fminf(range->max - range->min, REACH / scale)};
	weigh(&d, n_cand, in->params->top_k);
	cut_min_p(&d, in->params->min_p);
	cut_top_p(&d, in->params->top_p);
	cut_typical(&d, in->params->typical_p);
	float u = nsv_uniform(in->seed, in->branch, in->position);
	return id_at(&d, scan->find(s->weight, d.n, u * d.total));
}

/* ---- Log-probabilities of the logits as they came */

/* The n largest by rank: ids come in order, so an equal logit stays behind. */
static void find_largest(const struct nsv_scan *scan, const float *logits, uint32_t n_vocab,
	struct nsv_lp *best, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		best[i] = (struct nsv_lp){-1, -INFINITY};
	for (uint32_t i = 0; n > 0; i++) {
		uint32_t j = n - 1;

		i = scan->first(logits, i, n_vocab, nextafterf(best[j].logprob, INFINITY));
		if (i == n_vocab)
			break;
		for (; j > 0 && logits[i] > best[j - 1].logprob; j--)
			best[j] = best[j - 1];
		best[j] = (struct nsv_lp){(int32_t)i, logits[i]};
	}
}

/* The logits are finite and the token is one of them. The largest one's term of the sum is 1. */
static void write_log_probs(const struct nsv_scan *scan, const struct nsv_scan_range *range,
	const float *logits, uint32_t n_vocab, int32_t token, struct nsv_lp *lp, uint32_t n_lp)
{
	const struct nsv_scan_scale scale = {
		range->max, (float)M_LOG2E, nsv_scan_grain(n_vocab)};
	double sum = scan->weigh(logits, n_vocab, &scale, NULL);
	double lse = range->max + log1p(sum - 1);

	lp[0] = (struct nsv_lp){token, logits[token]};
	find_largest(scan, logits, n_vocab, lp + 1, n_lp - 1);
	for (uint32_t i = 0; i < n_lp; i++)
		lp[i].logprob = (float)(lp[i].logprob - lse);
}

int nsv_log_probs(
	const float *logits, uint32_t n_vocab, int32_t token, struct nsv_lp *lp, uint32_t n_lp)
{
	const struct nsv_scan *scan = nsv_scan_here();
	struct nsv_scan_range range;

	if (token < 0 || (uint32_t)token >= n_vocab)
		return -EINVAL;
	scan->range(logits, n_vocab, &range);
	if (!range.finite)
		return -EDOM;
	write_log_probs(scan, &range, logits, n_vocab, token, lp, n_lp);
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
	s->key = calloc(n_vocab, sizeof(*s->key));
	s->left = calloc(n_vocab, sizeof(*s->left));
	s->left_id = calloc(n_vocab, sizeof(*s->left_id));
	s->place = calloc(n_vocab, sizeof(*s->place));
	s->adjusted = calloc(n_vocab, sizeof(*s->adjusted));
	s->count = calloc(n_vocab, sizeof(*s->count));
	if (s->cand && s->rank && s->weight && s->key && s->left && s->left_id && s->place &&
		s->adjusted && s->count)
		return 0;
	nsv_sampler_deinit(s);
	return -ENOMEM;
}

void nsv_sampler_deinit(struct nsv_sampler *s)
{
	free(s->cand);
	free(s->rank);
	free(s->weight);
	free(s->key);
	free(s->left);
	free(s->left_id);
	free(s->place);
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
	const struct nsv_scan *scan = nsv_scan_here();
	struct nsv_scan_range raw, adjusted;
	const float *x;

	scan->range(in->logits, s->n_vocab, &raw);
	if (!raw.finite)
		return -EDOM;
	size_t n_cand = nsv_sample_adjust(s, in, &x);
	if (n_cand == 0)
		return -ENODATA;
	adjusted = raw;
	if (x != in->logits)
		scan->range(x, s->n_vocab, &adjusted);
	int32_t token = choose(s, scan, x, &adjusted, n_cand, in);
	if (n_lp > 0)
		write_log_probs(scan, &raw, in->logits, s->n_vocab, token, lp, n_lp);
	*ret_token = token;
	return 0;
}
