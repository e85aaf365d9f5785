/* The head of a row: where min-p or top-p will keep only a few of the likeliest, the tail gets no
 * weights. An estimate of their sum and how far it may be off say between which two numbers top-p's
 * goal lies. Mostly the same candidate reaches both, and is the one; or a few do between them, and
 * whichever is the one, the token is the same. Else the whole row is weighed.
 *
 * Where the sums of the row's slices are known (daemon/sample-slices.c), of slices that do not
 * reach into the head nothing is read. Else some stretches of the row are looked at, to guess where
 * the head ends. */
#include "daemon/sample-draw-impl.h"

#include <math.h>

#include "daemon/sample-sort.h"

#define HEAD_LEAST 4096u /* rows of fewer are weighed whole */
#define STRETCH 128u	 /* and of so many one in so many is looked at, to guess the head: */
#define STRETCH_STEP 32u
#define MIN_P_LEAST 1e-6f /* below, rounding may lift a weight to it */
#define N_TRY 3u	  /* heads by slices' sums, each with less of a tail: */
#define TRY_SHARE 0.6	  /* so much of the one before, or of what top-p allows */
#define TRY_STEP 1.5f	  /* at least, of t */
#define DOUBTFUL_MOST 64u
#define ESTIMATE_OFF 0x1p-16 /* more than twice what kernels/scan.h says */

/* Where it ends, what of its tail is known, and how many it may have. */
struct head {
	float low;	    /* t */
	const double *mass; /* of slices, NULL: not known */
	uint32_t most;
};

enum promise {
	APT,
	TOO_LIGHT,
	TOO_LONG,
};

/* One that top-p keeps or not. */
struct doubtful {
	int32_t id;
	float weight;
};

/* ---- A guess */

/* No more than the sum of all weights: the largest one's, or each slice's largest. */
static double least_total(const struct nsv_draw *d)
{
	const struct nsv_scan_range *slices = nsv_draw_slices(d, d->x);
	uint32_t n_slice = slices ? nsv_scan_n_slice(d->n) : 0;
	float w[NSV_DRAW_PEAKS];
	double sum = 0;

	for (uint32_t i = 0, n; i < n_slice; i += n) {
		n = (uint32_t)nsv_min(n_slice - i, NSV_DRAW_PEAKS);
		sum += nsv_draw_weigh_peaks(d, slices + i, n, w);
	}
	return fmax(sum, 1);
}

/* The sum over some stretches of the row of all weights below 2^low, times what is not in them. */
static double guess_tail(const struct nsv_draw *d, float low, uint32_t *ret_n_head)
{
	uint32_t n, n_head = 0, place[STRETCH];
	double sum = 0;

	for (uint32_t i = 0; d->n - i >= STRETCH; i += nsv_min(STRETCH * STRETCH_STEP, d->n - i)) {
		sum += d->scan->estimate(d->x + i, STRETCH, &d->scale, low, STRETCH, place, &n);
		n_head += n;
	}
	*ret_n_head = n_head * STRETCH_STEP;
	return sum * STRETCH_STEP;
}

/* Where a head seems to end that is neither long nor too light: t; 0: nowhere. */
static float guess_head(const struct nsv_draw *d)
{
	const float lows[] = {-9, -12, -16};
	const struct nsv_params *p = d->in->params;
	uint32_t n_head;

	if (p->min_p > 0)
		return p->min_p >= MIN_P_LEAST ? log2f(p->min_p) - 0.01f : 0;
	const double least = least_total(d);
	for (size_t i = 0; i < NSV_ARRAY_LEN(lows); i++) {
		double tail = guess_tail(d, lows[i], &n_head);

		if (n_head > d->n / NSV_DRAW_FEW)
			break;
		if (tail < (double)(1 - p->top_p) * fmax(least, 1 + tail) / 2)
			return lows[i];
	}
	return 0;
}

/* ---- The head becomes the row */

/* Of places at .. end - 1 those of the head, after those that this member has listed. */
static void add_head(const struct nsv_draw *d, const struct head *h, uint32_t at, uint32_t end,
	struct nsv_sample_share *mine)
{
	uint32_t n, *place = d->s->place + d->begin + mine->n;

	mine->sum += d->scan->estimate(d->x + at, end - at, &d->scale, h->low, h->most, place, &n);
	for (uint32_t i = 0; at > d->begin && i < n; i++)
		place[i] += at - d->begin;
	mine->n += n;
}

/* What this member's span has of the head, and the sum of its tail: min-p needs none. Of slices
 * that are known nothing more is read where they do not reach into the head. If those of the head
 * are more than may be, some of them. */
static struct nsv_sample_share list_head(const struct nsv_draw *d, const struct head *h)
{
	const struct nsv_scan_range *slices = nsv_draw_slices(d, d->x);
	struct nsv_sample_share mine = {0};
	uint32_t at = d->begin, end;

	if (!slices || (!h->mass && d->in->params->min_p <= 0)) {
		add_head(d, h, d->begin, d->end, &mine);
		return mine;
	}
	for (; at < d->end && mine.n <= h->most; at = end) {
		uint32_t i = at / NSV_SCAN_SLICE;

		end = (uint32_t)nsv_min(d->end, (i + 1) * NSV_SCAN_SLICE);
		if (nsv_draw_is_heavy(d, &slices[i], h->low))
			add_head(d, h, at, end, &mine);
		else if (h->mass)
			mine.sum += h->mass[i];
	}
	return mine;
}

static bool ranks_after(float key, uint32_t at, const struct nsv_sample_cut *cut)
{
	return key < cut->key || (key == cut->key && at > cut->at);
}

/* Those that the cut `least` drops and `most` keeps, by rank, to m. Returns how many; 0: more than
 * may be. */
static uint32_t list_doubtful(struct nsv_draw *d, const struct nsv_sample_cut *least,
	const struct nsv_sample_cut *most, struct doubtful *m)
{
	uint32_t *place = d->s->place, n, n_out = 0;

	n = d->scan->list(d->x, d->n, most->key, nextafterf(least->key, INFINITY), place);
	for (uint32_t i = 0; i < n; i++) {
		float key = d->x[place[i]];

		if (ranks_after(key, place[i], least) && !ranks_after(key, place[i], most))
			d->s->cand[n_out++] = (struct nsv_lp){(int32_t)place[i], key};
	}
	if (n_out > DOUBTFUL_MOST)
		return 0;
	nsv_sample_sort(d->s->cand, d->s->rank, n_out);
	for (uint32_t i = 0; i < n_out; i++) {
		uint32_t at = (uint32_t)d->s->rank[i].id;

		m[i] = (struct doubtful){d->id[at], d->s->weight[at]};
	}
	return n_out;
}

/* Draws from what the cut `least` keeps. Returns whether the token is the same with the first of the
 * doubtful ones, the first two, and so on. */
static bool draw_head(
	struct nsv_draw *d, const struct nsv_sample_cut *least, const struct nsv_sample_cut *most)
{
	float u = nsv_uniform(d->in->seed, d->in->branch, d->in->position), *w = d->s->weight;
	struct doubtful m[DOUBTFUL_MOST];
	uint32_t n = list_doubtful(d, least, most, m);

	if (n == 0)
		return false;
	nsv_draw_apply_cut(d, d->x, *least);
	double total = least->sum;
	uint32_t at = d->scan->find(w, d->n, 0, u * total);
	double before = d->scan->sum(w, at), with = before + (double)w[at];
	for (uint32_t i = 0; i < n; i++) {
		double more = m[i].id < d->id[at] ? (double)m[i].weight : 0;

		total += (double)m[i].weight;
		before += more;
		with += more;
		if (u * total < before || u * total >= with)
			return false;
	}
	d->token = d->id[at];
	d->gone = true;
	return true;
}

/* Whether all totals that the tail allows cut the head at one place, and cuts it there; or at places
 * that all give one token. */
static bool cut_head(struct nsv_draw *d, double tail, double off)
{
	double most = nsv_draw_top_p_goal(d, d->total + tail + off);
	double least = nsv_draw_top_p_goal(d, d->total + fmax(tail - off, 0));
	const struct nsv_draw_order order = nsv_draw_by_weight(d);

	if (d->total < most)
		return false;
	struct nsv_sample_cut cut = nsv_draw_find_cut(d, &order, least);
	if (cut.sum < most) {
		struct nsv_sample_cut last = nsv_draw_find_cut(d, &order, most);

		return d->in->params->typical_p >= 1 && draw_head(d, &cut, &last);
	}
	nsv_draw_apply_cut(d, d->x, cut);
	return true;
}

/* The head that the members listed becomes the row of the first one. Returns whether top-p cut it,
 * or needs not; if not, the row is whole again. */
static bool take_head(
	struct nsv_draw *d, const struct head *h, const struct nsv_sample_share *slots)
{
	const struct nsv_draw whole = *d;
	uint32_t begin, end, n = 0;
	double tail = 0;

	for (uint32_t i = 0; i < whole.part->count; i++) {
		nsv_draw_find_span(&whole, i, &begin, &end);
		n = nsv_draw_gather(d, d->s->place + begin, slots[i].n, begin, n);
		tail += slots[i].sum;
	}
	double off = h->mass ? nsv_draw_sums_off(d, tail, whole.n)
			     : tail * ESTIMATE_OFF + whole.n * nsv_draw_unit(d);
	nsv_draw_leave(d);
	nsv_draw_set_left(d, n);
	d->span = fminf(d->span, -h->low / d->scale.scale);
	nsv_draw_weigh(d);
	d->is_weighed = true;
	d->has_top_p = d->in->params->min_p <= 0;
	if (!d->has_top_p || cut_head(d, tail, off))
		return true;
	*d = whole;
	return false;
}

/* By all members. */
static void gather_head(struct nsv_draw *d)
{
	const struct nsv_part *part = d->part;
	const struct head h = {.low = guess_head(d), .most = d->n / NSV_DRAW_FEW};
	uint64_t n = 0;

	if (h.low >= 0)
		return;
	const struct nsv_sample_share mine = list_head(d, &h);
	const struct nsv_sample_share *slots = nsv_draw_meet(d, &mine);
	for (uint32_t i = 0; i < part->count; i++)
		n += slots[i].n;
	if (n > h.most)
		return;
	if (part->index == 0)
		d->s->is_enough = take_head(d, &h, slots);
	nsv_team_barrier(part);
	if (d->s->is_enough && part->index != 0)
		nsv_draw_leave(d);
}

/* Where most would be read a few stretches are read first, which say whether the head is too long, or
 * leaves out too much. */
static enum promise judge_head(const struct nsv_draw *d, const struct head *h, double allowed)
{
	const struct nsv_scan_range *slices = nsv_draw_slices(d, d->x);
	uint32_t n_slice = nsv_scan_n_slice(d->n), n_heavy = 0, n_head;

	for (uint32_t i = 0; i < n_slice; i++)
		n_heavy += nsv_draw_is_heavy(d, &slices[i], h->low);
	if (n_heavy < n_slice / 2)
		return APT;
	double tail = guess_tail(d, h->low, &n_head);
	return n_head > h->most ? TOO_LONG : tail > allowed ? TOO_LIGHT : APT;
}

/* By the first member alone: it reads little. Returns whether it has it. */
static bool gather_head_alone(struct nsv_draw *d)
{
	double total = nsv_draw_find_masses(d), share = 1 - (double)d->in->params->top_p;
	double allowed = share * total;
	struct head h = {.low = 0, .mass = d->s->mass, .most = d->n / NSV_DRAW_FEW};
	const struct nsv_draw whole = *d;

	nsv_draw_leave(d);
	for (uint32_t i = 0; i < N_TRY && total > 0; i++) {
		share *= TRY_SHARE;
		h.low = fminf(h.low - TRY_STEP, nsv_draw_guess_low(d, share * total));
		enum promise promise = judge_head(d, &h, allowed);
		if (promise == TOO_LONG)
			break;
		if (promise == TOO_LIGHT)
			continue;
		const struct nsv_sample_share mine = list_head(d, &h);
		if (mine.n > h.most)
			break;
		if (mine.sum > allowed)
			continue;
		if (take_head(d, &h, &mine))
			return true;
		break; /* masses are no longer there */
	}
	*d = whole;
	return false;
}

/* What the first member does while the others wait. */
static bool do_alone(struct nsv_draw *d, bool (*fn)(struct nsv_draw *d))
{
	const struct nsv_part *part = d->part;

	if (part->index == 0)
		d->s->is_enough = fn(d);
	nsv_team_barrier(part);
	bool done = d->s->is_enough;
	if (done && part->index != 0)
		nsv_draw_leave(d);
	return done;
}

void nsv_draw_head(struct nsv_draw *d)
{
	const struct nsv_params *p = d->in->params;

	if (d->n < HEAD_LEAST || d->id || nsv_draw_top_k(d) > 0)
		return;
	if (nsv_draw_has_sums(d) && nsv_draw_is_whole(d))
		d->gone |= do_alone(d, nsv_draw_by_sums);
	else if (nsv_draw_has_sums(d) && p->min_p <= 0 && p->top_p < 1)
		(void)do_alone(d, gather_head_alone);
	else if (p->min_p > 0 || p->top_p < 1)
		gather_head(d);
}
