/* A draw by a few passes over all logits (kernels/scan.h), none of which sorts them. Weights are
 * whole multiples of one small number, so that their sums are exact: whichever way they are taken,
 * by buckets, by ranks or by members of a team, the same candidates are kept.
 *
 * What a cut (daemon/sample-cut.c) drops has weight 0 from then on, and where few are left they are
 * moved together, for one member to go on with. Where those that will be left can be told before
 * there are weights (daemon/sample-head.c), the others get none.
 *
 * Members meet by slots of two turns: nobody writes for the turn after the next while another still
 * reads of this one, since they meet in between. */
#include "daemon/sample-draw-impl.h"

#include <float.h>
#include <math.h>

#define GREEDY_BELOW 1e-3f
#define HEAP_MOST 512u	  /* top-k up to so many by a heap */
#define PIECE 4096u	  /* at least, of which sums are kept where nothing is cut */
#define SHARE_LEAST 4096u /* rows of fewer are one member's */
#define SPAN_UNIT 64u
#define REACH 40.0f /* of t: everything that has a weight is within it of the best */

/* ---- Together */

const struct nsv_sample_share *nsv_draw_meet(
	struct nsv_draw *d, const struct nsv_sample_share *mine)
{
	struct nsv_sample_share *slots = d->s->share + d->turn++ % 2 * d->part->count;

	if (d->part->count == 1)
		slots = &d->own; /* others may still read of theirs */
	slots[d->part->index] = *mine;
	nsv_team_barrier(d->part);
	return slots;
}

double nsv_draw_add_sums(struct nsv_draw *d, double mine)
{
	const struct nsv_sample_share *slots =
		nsv_draw_meet(d, &(struct nsv_sample_share){.sum = mine});
	double sum = 0;

	for (uint32_t i = 0; i < d->part->count; i++)
		sum += slots[i].sum;
	return sum;
}

static uint32_t add_counts(struct nsv_draw *d, uint32_t mine)
{
	const struct nsv_sample_share *slots =
		nsv_draw_meet(d, &(struct nsv_sample_share){.n = mine});
	uint32_t n = 0;

	for (uint32_t i = 0; i < d->part->count; i++)
		n += slots[i].n;
	return n;
}

void nsv_draw_find_span(const struct nsv_draw *d, uint32_t index, uint32_t *begin, uint32_t *end)
{
	const struct nsv_part part = {.index = index, .count = d->part->count};
	size_t from, to;

	nsv_part_range(&part, d->n, SPAN_UNIT, &from, &to);
	*begin = (uint32_t)from;
	*end = (uint32_t)to;
}

static void set_row(struct nsv_draw *d, const float *x, uint32_t n)
{
	d->x = x;
	d->n = n;
	nsv_draw_find_span(d, d->part->index, &d->begin, &d->end);
}

/* From here on the first member is alone. */
void nsv_draw_leave(struct nsv_draw *d)
{
	d->gone = d->part->index != 0;
	d->part = &nsv_team_alone;
	set_row(d, d->x, d->n);
}

/* ---- Moving together what is left */

/* Appends those at n places, counted from `from` on, which grow, to the n_out there are. */
uint32_t nsv_draw_gather(
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

void nsv_draw_set_left(struct nsv_draw *d, uint32_t n)
{
	d->id = d->s->left_id;
	set_row(d, d->s->left, n);
}

/* After a cut that left so many. */
static void close_up(struct nsv_draw *d, uint32_t n_left)
{
	const struct nsv_part *part = d->part;
	uint32_t begin, end, n = 0, *place = d->s->place;

	if (n_left >= d->n / NSV_DRAW_FEW)
		return;
	struct nsv_sample_share mine = {
		.n = d->scan->list(d->s->weight + d->begin, nsv_draw_span_len(d), FLT_TRUE_MIN,
			INFINITY, place + d->begin)};
	const struct nsv_sample_share *slots = nsv_draw_meet(d, &mine);
	if (part->index == 0)
		for (uint32_t i = 0; i < part->count; i++) {
			nsv_draw_find_span(d, i, &begin, &end);
			n = nsv_draw_gather(d, place + begin, slots[i].n, begin, n);
		}
	nsv_draw_leave(d);
	nsv_draw_set_left(d, n);
}

/* ---- Cuts */

static uint32_t keep_span(
	const struct nsv_draw *d, const float *key, float low, uint32_t begin, uint32_t end)
{
	return begin < end ? d->scan->keep(key + begin, low, d->s->weight + begin, end - begin) : 0;
}

void nsv_draw_apply_cut(struct nsv_draw *d, const float *key, struct nsv_sample_cut cut)
{
	uint32_t edge = cut.at + 1;
	uint32_t n = keep_span(d, key, cut.key, d->begin, (uint32_t)nsv_min(d->end, edge));

	n += keep_span(
		d, key, nextafterf(cut.key, INFINITY), (uint32_t)nsv_max(d->begin, edge), d->end);
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
		i = nsv_draw_first(d, d->x, i, nextafterf(heap[0].logprob, INFINITY));
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
uint32_t nsv_draw_top_k(const struct nsv_draw *d)
{
	int32_t k = d->in->params->top_k;

	return k > 0 && (size_t)k < d->n_cand ? (uint32_t)k : 0;
}

/* A few best are found before there are weights. */
static bool is_heap_work(const struct nsv_draw *d, uint32_t k)
{
	return k > 0 && k <= nsv_min(HEAP_MOST, d->n / NSV_DRAW_FEW);
}

/* Each counts as one. */
static void apply_top_k(struct nsv_draw *d, float *one)
{
	uint32_t k = nsv_draw_top_k(d);
	const struct nsv_draw_order by_count = {.key = d->x,
		.w = one,
		.max = d->scale.max,
		.span = d->span,
		.is_sampled = true,
		.total = (double)d->n_cand};

	for (uint32_t i = d->begin; i < d->end; i++)
		one[i] = 1;
	if (d->n_cand < d->n)
		d->scan->keep(d->x + d->begin, -FLT_MAX, one + d->begin, nsv_draw_span_len(d));
	nsv_draw_apply_cut(d, d->x, nsv_draw_find_cut(d, &by_count, k));
}

static void gather_best(struct nsv_draw *d)
{
	uint32_t k = nsv_draw_top_k(d);
	struct nsv_sampler *s = d->s;

	if (!is_heap_work(d, k)) {
		if (k > 0 && k < d->n / NSV_DRAW_FEW)
			apply_top_k(d, s->weight); /* they get their own when they are together */
		return;
	}
	nsv_draw_leave(d);
	if (d->gone)
		return;
	find_best(d, k);
	qsort(s->cand, k, sizeof(*s->cand), by_place);
	for (uint32_t i = 0; i < k; i++)
		s->place[i] = (uint32_t)s->cand[i].id;
	nsv_draw_set_left(d, nsv_draw_gather(d, s->place, k, 0, 0));
}

/* Nothing is cut: weights are added up by pieces, and written nowhere but where the draw falls. */
bool nsv_draw_is_whole(const struct nsv_draw *d)
{
	const struct nsv_params *p = d->in->params;

	return nsv_draw_top_k(d) == 0 && p->min_p <= 0 && p->top_p >= 1 && p->typical_p >= 1;
}

/* Of a span of n, that there are no more than NSV_SCAN_BUCKETS. */
static uint32_t piece_len(uint32_t n)
{
	return (uint32_t)nsv_max(PIECE, n / NSV_SCAN_BUCKETS + 1);
}

/* The sums of a member's pieces. */
static double *pieces_of(const struct nsv_draw *d, uint32_t index)
{
	return d->s->mass + (size_t)index * NSV_SCAN_BUCKETS;
}

static double weigh_pieces(const struct nsv_draw *d)
{
	uint32_t n = nsv_draw_span_len(d), len = piece_len(n), i = 0;
	double *piece = pieces_of(d, d->part->index), sum = 0;

	for (uint32_t at = 0; at < n; at += len, i++) {
		piece[i] = d->scan->weigh(
			d->x + d->begin + at, (uint32_t)nsv_min(n - at, len), &d->scale, NULL);
		sum += piece[i];
	}
	return sum;
}

void nsv_draw_weigh(struct nsv_draw *d)
{
	if (d->is_weighed)
		return;
	if (nsv_draw_is_whole(d)) {
		d->span_total = weigh_pieces(d);
		d->total = nsv_draw_add_sums(d, d->span_total);
		return;
	}
	d->total = nsv_draw_add_sums(d, d->scan->weigh(d->x + d->begin, nsv_draw_span_len(d),
						&d->scale, d->s->weight + d->begin));
}

static void add_up(struct nsv_draw *d)
{
	d->total =
		nsv_draw_add_sums(d, d->scan->sum(d->s->weight + d->begin, nsv_draw_span_len(d)));
}

static void cut_top_k(struct nsv_draw *d)
{
	uint32_t k = nsv_draw_top_k(d);

	if (k == 0 || d->n <= k)
		return;
	apply_top_k(d, d->s->key);
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

struct nsv_draw_order nsv_draw_by_weight(const struct nsv_draw *d)
{
	return (struct nsv_draw_order){.key = d->x,
		.w = d->s->weight,
		.max = d->scale.max,
		.span = d->span,
		.is_sampled = true,
		.total = d->total,
		.slope = d->scale.scale};
}

double nsv_draw_top_p_goal(const struct nsv_draw *d, double total)
{
	return fmax(d->in->params->top_p * total, DBL_MIN);
}

static void cut_top_p(struct nsv_draw *d)
{
	const struct nsv_draw_order order = nsv_draw_by_weight(d);

	if (d->in->params->top_p < 1 && !d->has_top_p)
		nsv_draw_apply_cut(
			d, d->x, nsv_draw_find_cut(d, &order, nsv_draw_top_p_goal(d, d->total)));
}

/* ---- The last steps */

/* The entropy lies where ln p is its own mean, and so does t. */
static void cut_typical(struct nsv_draw *d)
{
	float typical_p = d->in->params->typical_p, *w = d->s->weight, *key = d->s->key;

	if (typical_p >= 1)
		return;
	double moment = nsv_draw_add_sums(
		d, d->scan->moment(d->x + d->begin, w + d->begin, nsv_draw_span_len(d), &d->scale));
	d->scan->nearness(d->x + d->begin, nsv_draw_span_len(d), &d->scale,
		(float)(moment / d->total), key + d->begin);
	const struct nsv_draw_order by_nearness = {
		.key = key, .w = w, .span = d->span * d->scale.scale};
	nsv_draw_apply_cut(
		d, key, nsv_draw_find_cut(d, &by_nearness, fmax(typical_p * d->total, DBL_MIN)));
}

/* In the span of a member that begins and ends there: the piece in which the sum exceeds the goal,
 * whose weights are then written. */
static void find_piece(struct nsv_draw *d, uint32_t index, double goal, double *sum,
	uint32_t *begin, uint32_t *end)
{
	const double *piece = pieces_of(d, index);
	uint32_t len = piece_len(*end - *begin);

	for (; *end - *begin > len && *sum + *piece <= goal; *begin += len)
		*sum += *piece++;
	*end = (uint32_t)nsv_min(*end, *begin + len);
	d->scan->weigh(d->x + *begin, *end - *begin, &d->scale, d->s->weight + *begin);
}

static void draw(struct nsv_draw *d)
{
	double goal = nsv_uniform(d->in->seed, d->in->branch, d->in->position) * d->total;
	const float *w = d->s->weight;
	struct nsv_sample_share mine = {.sum = d->span_total};
	bool whole = nsv_draw_is_whole(d);
	uint32_t i = 0, begin, end;
	double sum = 0;

	if (d->part->count > 1 && !whole)
		mine.sum = d->scan->sum(w + d->begin, nsv_draw_span_len(d));
	const struct nsv_sample_share *slots = nsv_draw_meet(d, &mine);
	for (; i + 1 < d->part->count && sum + slots[i].sum <= goal; i++)
		sum += slots[i].sum;
	nsv_draw_find_span(d, i, &begin, &end);
	nsv_draw_leave(d);
	if (d->gone)
		return;
	if (whole)
		find_piece(d, i, goal, &sum, &begin, &end);
	begin += d->scan->find(w + begin, end - begin, sum, goal);
	d->token = d->id ? d->id[begin] : (int32_t)begin;
}

/* ---- All of it */

static float scale_of(const struct nsv_params *p)
{
	return (float)M_LOG2E / p->temperature;
}

void nsv_draw_begin(struct nsv_draw *d, struct nsv_sampler *s, const struct nsv_part *part,
	const struct nsv_sample_in *in)
{
	*d = (struct nsv_draw){.scan = nsv_scan_here(), .s = s, .part = part, .in = in};
	set_row(d, in->logits, s->n_vocab);
}

static void join(struct nsv_scan_range *all, const struct nsv_scan_range *r)
{
	all->min = r->min < all->min ? r->min : all->min;
	all->max = r->max > all->max ? r->max : all->max;
	all->finite &= r->finite;
}

void nsv_draw_range(struct nsv_draw *d, const float *x, struct nsv_scan_range *ret_range)
{
	const struct nsv_scan_range *slices = nsv_draw_slices(d, x);
	struct nsv_sample_share mine = {0};

	*ret_range = (struct nsv_scan_range){INFINITY, -INFINITY, true, 0};
	for (uint32_t i = 0; slices && i < nsv_scan_n_slice(d->s->n_vocab); i++)
		join(ret_range, &slices[i]);
	if (slices)
		return;
	d->scan->range(x + d->begin, nsv_draw_span_len(d), &mine.range);
	const struct nsv_sample_share *slots = nsv_draw_meet(d, &mine);
	for (uint32_t i = 0; i < d->part->count; i++)
		join(ret_range, &slots[i].range);
}

uint32_t nsv_draw_first(const struct nsv_draw *d, const float *x, uint32_t i, float low)
{
	const struct nsv_scan_range *slices = nsv_draw_slices(d, x);
	uint32_t n = d->s->n_vocab, end;

	if (!slices)
		return d->scan->first(x, i, n, low);
	for (; i < n; i = end) {
		const struct nsv_scan_range *slice = &slices[i / NSV_SCAN_SLICE];

		end = (uint32_t)nsv_min(n, (i / NSV_SCAN_SLICE + 1) * NSV_SCAN_SLICE);
		uint32_t at = slice->max < low ? end : d->scan->first(x, i, end, low);
		if (at < end)
			return at;
	}
	return n;
}

double nsv_draw_log_sum(struct nsv_draw *d, const struct nsv_scan_range *range)
{
	const struct nsv_scan_scale scale = {range->max, (float)M_LOG2E, nsv_scan_grain(d->n)};
	double mine = d->scan->weigh(d->in->logits + d->begin, nsv_draw_span_len(d), &scale, NULL);
	double sum = nsv_draw_add_sums(d, mine);

	return range->max + log1p(sum - 1); /* the largest one's term is 1 */
}

float nsv_sample_sum_scale(const struct nsv_sample_in *in)
{
	const struct nsv_params *p = in->params;

	if (p->temperature < GREEDY_BELOW || p->top_k > 0 || p->min_p > 0 ||
		(p->top_p >= 1 && p->typical_p < 1) || !nsv_sample_is_neutral(in))
		return 0;
	return scale_of(p);
}

int32_t nsv_draw_token(
	struct nsv_draw *d, const float *x, size_t n_cand, const struct nsv_scan_range *range)
{
	static void (*const steps[])(struct nsv_draw * d) = {gather_best, nsv_draw_head,
		nsv_draw_weigh, cut_top_k, cut_min_p, cut_top_p, cut_typical, draw};
	float temperature = d->in->params->temperature, scale = scale_of(d->in->params);

	d->n_cand = n_cand;
	set_row(d, x, d->n);
	if (temperature < GREEDY_BELOW || d->n < SHARE_LEAST)
		nsv_draw_leave(d);
	if (temperature < GREEDY_BELOW)
		return d->gone ? 0 : (int32_t)nsv_draw_first(d, x, 0, range->max);
	d->scale = (struct nsv_scan_scale){range->max, scale, nsv_scan_grain(d->n)};
	d->span = fminf(range->max - range->min, REACH / scale);
	for (size_t i = 0; i < NSV_ARRAY_LEN(steps) && !d->gone; i++)
		steps[i](d);
	return d->token;
}
