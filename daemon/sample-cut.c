/* Where a cut falls. It keeps the first candidates by falling key, until their weights reach a
 * goal. Weights are added up by bucket of the key; only the bucket in which the goal is reached is
 * sorted. In a long row that is known to lie between two keys once a sample is in buckets, and
 * those between are looked at alone. */
#include "daemon/sample-draw-impl.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "daemon/sample-sort.h"

#define NARROW_LEAST 128u  /* so many are looked at by buckets once more before they are sorted */
#define SORT_MOST 48u	   /* so few are not looked at by buckets first */
#define SAMPLE_LEAST 8192u /* a cut among so many begins with a sample: */
#define SAMPLE_STEP 16u	   /* one in so many */

/* This member's table, empty. */
static double *begin_mass(const struct nsv_draw *d)
{
	double *mine = d->s->mass + (size_t)d->part->index * NSV_SCAN_BUCKETS;

	return memset(mine, 0, NSV_SCAN_BUCKETS * sizeof(*mine));
}

/* All members' tables become one, of which each adds up a span. */
static const double *merge_mass(const struct nsv_draw *d)
{
	double *all = d->s->mass;
	size_t begin, end;

	nsv_team_barrier(d->part);
	nsv_part_range(d->part, NSV_SCAN_BUCKETS, NSV_CACHE_LINE / sizeof(*all), &begin, &end);
	for (uint32_t i = 1; i < d->part->count; i++)
		for (size_t k = begin; k < end; k++)
			all[k] += all[i * NSV_SCAN_BUCKETS + k];
	nsv_team_barrier(d->part);
	return all;
}

/* The mass of each bucket, of one vector in `step`. */
static const double *add_mass(struct nsv_draw *d, const float *key, const float *w,
	const struct nsv_scan_split *split, uint32_t step)
{
	d->scan->add_mass(
		key + d->begin, w + d->begin, nsv_draw_span_len(d), step, split, begin_mass(d));
	return merge_mass(d);
}

/* The bucket with which *sum reaches the goal; *sum is then that of the weights before it. */
static uint32_t find_bucket(const double *mass, double goal, double *sum)
{
	uint32_t b = 0;

	for (; b + 1 < NSV_SCAN_BUCKETS && *sum + mass[b] < goal; b++)
		*sum += mass[b];
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

/* All that the members listed, to the first one's s->cand. Returns how many; 0 to the others. */
static uint32_t put_listed(
	const struct nsv_draw *d, const float *key, const struct nsv_sample_share *slots)
{
	uint32_t begin, end, n = 0;

	for (uint32_t i = 0; d->part->index == 0 && i < d->part->count; i++) {
		nsv_draw_find_span(d, i, &begin, &end);
		n = put_candidates(d, key, d->s->place + begin, slots[i].n, begin, n);
	}
	return n;
}

/* Those of a bucket. */
static uint32_t list_bucket(
	struct nsv_draw *d, const float *key, const struct nsv_scan_split *split, uint32_t b)
{
	struct nsv_sample_share mine = {
		.n = d->scan->list_bucket(
			key + d->begin, nsv_draw_span_len(d), split, b, d->s->place + d->begin)};

	return put_listed(d, key, nsv_draw_meet(d, &mine));
}

static uint32_t list_all(const struct nsv_draw *d, const float *key)
{
	for (uint32_t i = 0; i < d->n; i++)
		d->s->cand[i] = (struct nsv_lp){(int32_t)i, key[i]};
	return d->n;
}

static struct nsv_scan_split split_of(float max, float span)
{
	const float finite = fminf(fmaxf(span, FLT_MIN), FLT_MAX);

	return (struct nsv_scan_split){max, fminf(NSV_SCAN_BUCKETS / finite, FLT_MAX)};
}

static uint32_t bucket_of(float key, const struct nsv_scan_split *split)
{
	float b = (split->max - key) * split->scale;

	return b < NSV_SCAN_BUCKETS - 1 ? (uint32_t)b : NSV_SCAN_BUCKETS - 1;
}

static void find_ends(const struct nsv_lp *x, uint32_t n, float *min, float *max)
{
	*min = *max = x[0].logprob;
	for (uint32_t i = 1; i < n; i++) {
		*min = x[i].logprob < *min ? x[i].logprob : *min;
		*max = x[i].logprob > *max ? x[i].logprob : *max;
	}
}

/* Of n > 0 candidates only those of the bucket in which the goal is reached: how many. To *sum come
 * the weights of those before. */
static uint32_t narrow(struct nsv_sampler *s, uint32_t n, const float *w, double *sum, double goal)
{
	struct nsv_lp *x = s->cand;
	double *mass = s->mass;
	uint32_t n_left = 0;
	float min, max;

	find_ends(x, n, &min, &max);
	const struct nsv_scan_split split = split_of(max, max - min);
	memset(mass, 0, NSV_SCAN_BUCKETS * sizeof(*mass));
	for (uint32_t i = 0; i < n; i++)
		mass[bucket_of(x[i].logprob, &split)] += (double)w[x[i].id];
	uint32_t b = find_bucket(mass, goal, sum);
	for (uint32_t i = 0; i < n; i++)
		if (bucket_of(x[i].logprob, &split) == b)
			x[n_left++] = x[i];
	return n_left;
}

/* The candidate of n > 0 with which the sum, so far `sum`, reaches the goal. */
static struct nsv_sample_cut cut_in(
	struct nsv_sampler *s, uint32_t n, const float *w, double sum, double goal)
{
	uint32_t i = 0;

	if (n > NARROW_LEAST)
		n = narrow(s, n, w, &sum, goal);
	nsv_sample_sort(s->cand, s->rank, n);
	for (;; i++) {
		sum += (double)w[s->rank[i].id];
		if (sum >= goal || i + 1 == n)
			break;
	}
	return (struct nsv_sample_cut){s->rank[i].logprob, (uint32_t)s->rank[i].id, sum};
}

/* Between which keys a sample says that the goal is reached. What the tail beyond the goal weighs is
 * less scattered than what the few likeliest do: buckets are added up from there, until three
 * standard deviations beside what is wanted. */
static void guess_keys(const double *mass, const struct nsv_draw_order *o,
	const struct nsv_scan_split *split, double goal, float *low, float *high)
{
	const double growth = exp2((double)(o->slope / split->scale));
	double rest = o->total - goal, beyond = -rest, variance = 0;
	double w = pow(growth, -(double)NSV_SCAN_BUCKETS);
	uint32_t b = NSV_SCAN_BUCKETS, b_low = b;

	while (b > 0 && (beyond < 0 || beyond * beyond < 9 * variance)) {
		beyond += mass[--b] * SAMPLE_STEP;
		w *= growth;
		variance = SAMPLE_STEP * (w * rest < goal ? w * rest : goal);
		if (beyond < 0 && beyond * beyond > 9 * variance)
			b_low = b;
	}
	*low = b_low < NSV_SCAN_BUCKETS ? split->max - ((float)b_low + 1) / split->scale
					: -INFINITY;
	*high = b > 0 ? split->max - ((float)b - 1) / split->scale : INFINITY;
}

/* Of the n places that this member listed, those between two keys: what they weigh by finer buckets,
 * of all members together. */
static const double *add_listed(struct nsv_draw *d, const struct nsv_draw_order *o,
	const struct nsv_scan_split *split, uint32_t n)
{
	const uint32_t *place = d->s->place + d->begin;
	double *mine = begin_mass(d);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = d->begin + place[i];
		mine[bucket_of(o->key[at], split)] += (double)o->w[at];
	}
	return merge_mass(d);
}

/* Returns how many are left of n: those in the bucket. */
static uint32_t keep_listed(const struct nsv_draw *d, const struct nsv_draw_order *o,
	const struct nsv_scan_split *split, uint32_t b, uint32_t n)
{
	uint32_t *place = d->s->place + d->begin, n_left = 0;

	for (uint32_t i = 0; i < n; i++)
		if (bucket_of(o->key[d->begin + place[i]], split) == b)
			place[n_left++] = place[i];
	return n_left;
}

/* By a sample: whether it was right. Each member looks at what it listed by itself: to fetch that
 * from another's cache would take longer. */
static bool find_by_sample(struct nsv_draw *d, const struct nsv_draw_order *o,
	const struct nsv_scan_split *split, double goal)
{
	float low, high;

	guess_keys(add_mass(d, o->key, o->w, split, SAMPLE_STEP), o, split, goal, &low, &high);
	const struct nsv_scan_split finer =
		split_of(fminf(high, o->max), fminf(high, o->max) - fmaxf(low, o->max - o->span));
	struct nsv_sample_share mine = {0};
	mine.sum = d->scan->part(o->key + d->begin, o->w + d->begin, nsv_draw_span_len(d), low,
		high, d->s->place + d->begin, &mine.n);
	double sum = nsv_draw_add_sums(d, mine.sum);
	const double *mass = add_listed(d, o, &finer, mine.n);
	bool is_right = sum < goal;
	uint32_t b = find_bucket(mass, goal, &sum);
	if (!is_right || sum + mass[b] < goal) {
		nsv_team_barrier(d->part); /* all have read the mass */
		return false;
	}
	mine.n = keep_listed(d, o, &finer, b, mine.n);
	uint32_t n = put_listed(d, o->key, nsv_draw_meet(d, &mine));
	if (d->part->index == 0)
		d->s->cut = cut_in(d->s, n, o->w, sum, goal);
	nsv_team_barrier(d->part);
	return true;
}

struct nsv_sample_cut nsv_draw_find_cut(
	struct nsv_draw *d, const struct nsv_draw_order *o, double goal)
{
	const struct nsv_scan_split split = split_of(o->max, o->span);
	double before = 0;

	if (d->n <= SORT_MOST)
		return cut_in(d->s, list_all(d, o->key), o->w, 0, goal);
	if (o->is_sampled && d->n >= SAMPLE_LEAST && find_by_sample(d, o, &split, goal))
		return d->s->cut;
	uint32_t b = find_bucket(add_mass(d, o->key, o->w, &split, 1), goal, &before);
	uint32_t n = list_bucket(d, o->key, &split, b);
	if (d->part->index == 0)
		d->s->cut = cut_in(d->s, n, o->w, before, goal);
	nsv_team_barrier(d->part);
	return d->s->cut;
}
