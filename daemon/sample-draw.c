/* A draw by a few passes over all logits (kernels/scan.h), none of which sorts them. Weights are
 * whole multiples of one small number, so that their sums are exact: whichever way they are taken,
 * by buckets, by ranks or by members of a team, the same candidates are kept.
 *
 * A cut keeps the first candidates by falling key, until their weights reach a goal. Weights are
 * added up by bucket of the key; only the bucket in which the goal is reached is sorted. What a cut
 * drops has weight 0 from then on, and where few are left they are moved together, for one member
 * to go on with.
 *
 * Members meet by slots of two turns: nobody writes for the turn after the next while another still
 * reads of this one, since they meet in between. */
#include "daemon/sample-draw.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "daemon/sample-sort.h"

#define GREEDY_BELOW 1e-3f
#define HEAP_MOST 512u	  /* top-k up to so many by a heap */
#define SORT_MOST 48u	  /* so few are not looked at by buckets first */
#define FEW 8u		  /* one in so many left: they are moved together */
#define SHARE_LEAST 4096u /* rows of fewer are one member's */
#define SPAN_UNIT 64u
#define REACH 40.0f /* of t: everything that has a weight is within it of the best */

/* ---- Together */

static const struct nsv_sample_share *meet(
	struct nsv_draw *d, const struct nsv_sample_share *mine)
{
	struct nsv_sample_share *slots = d->s->share + d->turn++ % 2 * d->part->count;

	if (d->part->count == 1)
		slots = &d->own; /* others may still read of theirs */
	slots[d->part->index] = *mine;
	nsv_team_barrier(d->part);
	return slots;
}

static double add_sums(struct nsv_draw *d, double mine)
{
	const struct nsv_sample_share *slots = meet(d, &(struct nsv_sample_share){.sum = mine});
	double sum = 0;

	for (uint32_t i = 0; i < d->part->count; i++)
		sum += slots[i].sum;
	return sum;
}

static uint32_t add_counts(struct nsv_draw *d, uint32_t mine)
{
	const struct nsv_sample_share *slots = meet(d, &(struct nsv_sample_share){.n = mine});
	uint32_t n = 0;

	for (uint32_t i = 0; i < d->part->count; i++)
		n += slots[i].n;
	return n;
}

/* Where the span of a member begins and ends. */
static void find_span(const struct nsv_draw *d, uint32_t index, uint32_t *begin, uint32_t *end)
{
	const struct nsv_part part = {.index = index, .count = d->part->count};
	size_t from, to;

	nsv_part_range(&part, d->n, SPAN_UNIT, &from, &to);
	*begin = (uint32_t)from;
	*end = (uint32_t)to;
}

static uint32_t span_len(const struct nsv_draw *d)
{
	return d->end - d->begin;
}

static void set_row(struct nsv_draw *d, const float *x, uint32_t n)
{
	d->x = x;
	d->n = n;
	find_span(d, d->part->index, &d->begin, &d->end);
}

/* From here on the first member is alone. */
static void leave(struct nsv_draw *d)
{
	d->gone = d->part->index != 0;
	d->part = &nsv_team_alone;
	set_row(d, d->x, d->n);
}

/* ---- Moving together what is left */

/* Appends those at n places, counted from `from` on, which grow, to the n_out there are. */
static uint32_t gather(
	struct nsv_draw *d, const uint32_t *place, uint32_t n, uint32_t from, uint32_t n_out)
{
	struct nsv_sampler *s = d->s;

	for (uint32_t i = 0; i < n; i++, n_out++) {
		uint32_t at = from + place[i];

		s->left[n_out] = d->x[at];
		s->left_id[n_out] = d->id ? d->id[at] : (int32_t)at;
		s->weight[n_out] = s->weight[at];
	}
	return n_out;
}

static void set_left(struct nsv_draw *d, uint32_t n)
{
	d->id = d->s->left_id;
	set_row(d, d->s->left, n);
}

/* After a cut that left so many. */
static void close_up(struct nsv_draw *d, uint32_t n_left)
{
	const struct nsv_part *part = d->part;
	uint32_t begin, end, n = 0, *place = d->s->place;

	if (n_left >= d->n / FEW)
		return;
	struct nsv_sample_share mine = {.n = d->scan->list(d->s->weight + d->begin, span_len(d),
						FLT_TRUE_MIN, INFINITY, place + d->begin)};
	const struct nsv_sample_share *slots = meet(d, &mine);
	if (part->index == 0)
		for (uint32_t i = 0; i < part->count; i++) {
			find_span(d, i, &begin, &end);
			n = gather(d, place + begin, slots[i].n, begin, n);
		}
	leave(d);
	set_left(d, n);
}

/* ---- Cuts */

/* The bucket in which the goal is reached, and the sum of the weights before it. All members'
 * tables become one, of which each adds up a span. */
static uint32_t find_bucket(struct nsv_draw *d, const float *key, const float *w,
	const struct nsv_scan_split *split, double goal, double *ret_before)
{
	double *all = d->s->mass, *mine = all + (size_t)d->part->index * NSV_SCAN_BUCKETS, sum = 0;
	size_t begin, end;
	uint32_t b = 0;

	memset(mine, 0, NSV_SCAN_BUCKETS * sizeof(*mine));
	d->scan->add_mass(key + d->begin, w + d->begin, span_len(d), split, mine);
	nsv_team_barrier(d->part);
	nsv_part_range(d->part, NSV_SCAN_BUCKETS, NSV_CACHE_LINE / sizeof(*all), &begin, &end);
	for (uint32_t i = 1; i < d->part->count; i++)
		for (size_t k = begin; k < end; k++)
			all[k] += all[i * NSV_SCAN_BUCKETS + k];
	nsv_team_barrier(d->part);
	for (; b + 1 < NSV_SCAN_BUCKETS && sum + all[b] < goal; b++)
		sum += all[b];
	*ret_before = sum;
	return b;
}

static uint32_t put_candidates(const struct nsv_draw *d, const float *key, const uint32_t *place,
	uint32_t n, uint32_t from, uint32_t n_out)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = from + place[i];
		d->s->cand[n_out++] = (struct nsv_lp){(int32_t)at, key[at]};
	}
	return n_out;
}

/* Those of a bucket, to the first member's s->cand. Returns how many; 0 to the others. */
static uint32_t list_bucket(
	struct nsv_draw *d, const float *key, const struct nsv_scan_split *split, uint32_t b)
{
	uint32_t begin, end, n = 0, *place = d->s->place;
	struct nsv_sample_share mine = {.n = d->scan->list_bucket(
		key + d->begin, span_len(d), split, b, place + d->begin)};
	const struct nsv_sample_share *slots = meet(d, &mine);

	for (uint32_t i = 0; d->part->index == 0 && i < d->part->count; i++) {
		find_span(d, i, &begin, &end);
		n = put_candidates(d, key, place + begin, slots[i].n, begin, n);
	}
	return n;
}

static uint32_t list_all(const struct nsv_draw *d, const float *key)
{
	for (uint32_t i = 0; i < d->n; i++)
		d->s->cand[i] = (struct nsv_lp){(int32_t)i, key[i]};
	return d->n;
}

/* The candidate of n > 0 with which the sum, so far `sum`, reaches the goal. */
static struct nsv_sample_cut cut_in(
	struct nsv_sampler *s, uint32_t n, const float *w, double sum, double goal)
{
	uint32_t i = 0;

	nsv_sample_sort(s->cand, s->rank, n);
	for (;; i++) {
		sum += (double)w[s->rank[i].id];
		if (sum >= goal || i + 1 == n)
			break;
	}
	return (struct nsv_sample_cut){s->rank[i].logprob, (uint32_t)s->rank[i].id, sum};
}

/* By falling key, equals by id, the one with which the sum of w (n) reaches the goal. That is above
 * 0 and not above the sum of all. No key is above max; those that count lie within `span` below. */
static struct nsv_sample_cut find_cut(struct nsv_draw *d, const float *key, const float *w,
	float max, float span, double goal)
{
	const float finite = fminf(fmaxf(span, FLT_MIN), FLT_MAX);
	const struct nsv_scan_split split = {max, fminf(NSV_SCAN_BUCKETS / finite, FLT_MAX)};
	double before = 0;

	if (d->n <= SORT_MOST)
		return cut_in(d->s, list_all(d, key), w, 0, goal);
	uint32_t b = find_bucket(d, key, w, &split, goal, &before);
	uint32_t n = list_bucket(d, key, &split, b);
	if (d->part->index == 0)
		d->s->cut = cut_in(d->s, n, w, before, goal);
	nsv_team_barrier(d->part);
	return d->s->cut;
}

static uint32_t keep_span(
	const struct nsv_draw *d, const float *key, float low, uint32_t begin, uint32_t end)
{
	return begin < end ? d->scan->keep(key + begin, low, d->s->weight + begin, end - begin) : 0;
}

static void apply_cut(struct nsv_draw *d, const float *key, struct nsv_sample_cut cut)
{
	uint32_t edge = cut.at + 1;
	uint32_t n = keep_span(d, key, cut.key, d->begin, (uint32_t)nsv_min(d->end, edge));

	n += keep_span(d, key, nextafterf(cut.key, INFINITY), (uint32_t)nsv_max(d->begin, edge),
		d->end);
	d->total = cut.sum;
	close_up(d, add_counts(d, n));
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

/* The k best, to s->cand in no order; there are more. Ids come in order: an equal logit ranks
 * behind. */
static void find_best(const struct nsv_draw *d, uint32_t k)
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
			return;
		heap[0] = (struct nsv_lp){(int32_t)i, d->x[i]};
		sift_down(heap, k, 0);
	}
}

static int by_place(const void *a, const void *b)
{
	const struct nsv_lp *x = a, *y = b;

	return (x->id > y->id) - (x->id < y->id);
}

/* ---- The steps */

/* 0: it cuts nothing. */
static uint32_t top_k_of(const struct nsv_draw *d)
{
	int32_t k = d->in->params->top_k;

	return k > 0 && (size_t)k < d->n_cand ? (uint32_t)k : 0;
}

/* A few best are found before there are weights. */
static bool is_heap_work(const struct nsv_draw *d, uint32_t k)
{
	return k > 0 && k <= nsv_min(HEAP_MOST, d->n / FEW);
}

static void gather_best(struct nsv_draw *d)
{
	uint32_t k = top_k_of(d);
	struct nsv_sampler *s = d->s;

	if (!is_heap_work(d, k))
		return;
	leave(d);
	if (d->gone)
		return;
	find_best(d, k);
	qsort(s->cand, k, sizeof(*s->cand), by_place);
	for (uint32_t i = 0; i < k; i++)
		s->place[i] = (uint32_t)s->cand[i].id;
	set_left(d, gather(d, s->place, k, 0, 0));
}

static void weigh(struct nsv_draw *d)
{
	d->total = add_sums(d, d->scan->weigh(d->x + d->begin, span_len(d), &d->scale,
				      d->s->weight + d->begin));
}

static void add_up(struct nsv_draw *d)
{
	d->total = add_sums(d, d->scan->sum(d->s->weight + d->begin, span_len(d)));
}

/* Each counts as one. */
static void cut_top_k(struct nsv_draw *d)
{
	uint32_t k = top_k_of(d);
	float *one = d->s->key;

	if (k == 0 || d->n <= k)
		return;
	for (uint32_t i = d->begin; i < d->end; i++)
		one[i] = d->x[i] == -INFINITY ? 0 : 1;
	apply_cut(d, d->x, find_cut(d, d->x, one, d->scale.max, d->span, k));
	if (!d->gone)
		add_up(d);
}

static void cut_min_p(struct nsv_draw *d)
{
	float min_p = d->in->params->min_p;

	if (min_p <= 0)
		return;
	close_up(d, add_counts(d, keep_span(d, d->s->weight, min_p, d->begin, d->end)));
	if (!d->gone)
		add_up(d);
}

/* All that weigh less than half an equal share of what may go cannot help to reach top_p: they are
 * left out before the cut is looked for. */
static void drop_light(struct nsv_draw *d)
{
	float top_p = d->in->params->top_p, low = (1 - top_p) / (float)d->n / 2;

	if (top_p < 1)
		close_up(d, add_counts(d, keep_span(d, d->s->weight, low, d->begin, d->end)));
}

static void cut_top_p(struct nsv_draw *d)
{
	float top_p = d->in->params->top_p;

	if (top_p >= 1)
		return;
	apply_cut(d, d->x, find_cut(d, d->x, d->s->weight, d->scale.max, d->span,
				   fmax(top_p * d->total, DBL_MIN)));
}

/* The entropy lies where ln p is its own mean, and so does t. */
static void cut_typical(struct nsv_draw *d)
{
	float typical_p = d->in->params->typical_p, *w = d->s->weight, *key = d->s->key;

	if (typical_p >= 1)
		return;
	double moment = add_sums(
		d, d->scan->moment(d->x + d->begin, w + d->begin, span_len(d), &d->scale));
	d->scan->nearness(d->x + d->begin, span_len(d), &d->scale, (float)(moment / d->total),
		key + d->begin);
	apply_cut(d, key, find_cut(d, key, w, 0, d->span * d->scale.scale,
				  fmax(typical_p * d->total, DBL_MIN)));
}

static void draw(struct nsv_draw *d)
{
	double goal = nsv_uniform(d->in->seed, d->in->branch, d->in->position) * d->total;
	const float *w = d->s->weight;
	struct nsv_sample_share mine = {.sum = d->scan->sum(w + d->begin, span_len(d))};
	const struct nsv_sample_share *slots = meet(d, &mine);
	uint32_t i = 0, begin, end;
	double sum = 0;

	for (; i + 1 < d->part->count && sum + slots[i].sum <= goal; i++)
		sum += slots[i].sum;
	find_span(d, i, &begin, &end);
	leave(d);
	if (d->gone)
		return;
	begin += d->scan->find(w + begin, end - begin, sum, goal);
	d->token = d->id ? d->id[begin] : (int32_t)begin;
}

/* ---- All of it */

void nsv_draw_begin(struct nsv_draw *d, struct nsv_sampler *s, const struct nsv_part *part,
	const struct nsv_sample_in *in)
{
	*d = (struct nsv_draw){.scan = nsv_scan_here(), .s = s, .part = part, .in = in};
	set_row(d, in->logits, s->n_vocab);
}

void nsv_draw_range(struct nsv_draw *d, const float *x, struct nsv_scan_range *ret_range)
{
	struct nsv_sample_share mine = {0};

	d->scan->range(x + d->begin, span_len(d), &mine.range);
	const struct nsv_sample_share *slots = meet(d, &mine);
	*ret_range = slots[0].range;
	for (uint32_t i = 1; i < d->part->count; i++) {
		ret_range->min = fminf(ret_range->min, slots[i].range.min);
		ret_range->max = fmaxf(ret_range->max, slots[i].range.max);
		ret_range->finite &= slots[i].range.finite;
	}
}

double nsv_draw_log_sum(struct nsv_draw *d, const struct nsv_scan_range *range)
{
	const struct nsv_scan_scale scale = {
		range->max, (float)M_LOG2E, nsv_scan_grain(d->n)};
	double mine = d->scan->weigh(d->in->logits + d->begin, span_len(d), &scale, NULL);
	double sum = add_sums(d, mine);

	return range->max + log1p(sum - 1); /* the largest one's term is 1 */
}

int32_t nsv_draw_token(struct nsv_draw *d, const float *x, size_t n_cand,
	const struct nsv_scan_range *range)
{
	static void (*const steps[])(struct nsv_draw *d) = {gather_best, weigh, cut_top_k,
		cut_min_p, drop_light, cut_top_p, cut_typical, draw};
	float temperature = d->in->params->temperature, scale = (float)M_LOG2E / temperature;

	d->n_cand = n_cand;
	set_row(d, x, d->n);
	if (temperature < GREEDY_BELOW || d->n < SHARE_LEAST)
		leave(d);
	if (temperature < GREEDY_BELOW)
		return d->gone ? 0 : (int32_t)d->scan->first(x, 0, d->n, range->max);
	d->scale = (struct nsv_scan_scale){range->max, scale, nsv_scan_grain(d->n)};
	d->span = fminf(range->max - range->min, REACH / scale);
	for (size_t i = 0; i < NSV_ARRAY_LEN(steps) && !d->gone; i++)
		steps[i](d);
	return d->token;
}
