/* What the slices of a row say of its weights before any is read. The product that made the row
 * left each slice's largest logit, and the sum of its weights as they would be if that were the
 * row's: nearly what the slice weighs (its mass). Slices whose largest is far below the row's are
 * light: all of them together weigh little, and how far that may be off is less. What is wrong by
 * so little changes a token hardly ever. Where it might, the whole row is weighed. */
#include "daemon/sample-draw-impl.h"

#include <math.h>

#define SUM_OFF 0x1p-14 /* a mass: more than twice what sums and the powers' exponents are off */
#define ADD_OFF 0x1p-40 /* what additions of masses may lose of the sum of all */
#define N_LEVEL 64u	/* of slices by their largest, from the row's down: */
#define LEVELS 2.0f	/* so many while weights halve */

/* What is at a level. */
struct levels {
	double mass[N_LEVEL];
	uint32_t n[N_LEVEL];
};

static float below_max(const struct nsv_draw *d, const struct nsv_scan_range *slice)
{
	return (d->scale.max - slice->max) * d->scale.scale;
}

bool nsv_draw_is_heavy(const struct nsv_draw *d, const struct nsv_scan_range *slice, float low)
{
	return below_max(d, slice) < -low;
}

double nsv_draw_weigh_peaks(
	const struct nsv_draw *d, const struct nsv_scan_range *slices, uint32_t n, float *w)
{
	float peak[NSV_DRAW_PEAKS];

	for (uint32_t i = 0; i < n; i++)
		peak[i] = slices[i].max;
	return d->scan->weigh(peak, n, &d->scale, w);
}

bool nsv_draw_has_sums(const struct nsv_draw *d)
{
	return nsv_draw_slices(d, d->x) && d->in->sum_scale == d->scale.scale &&
	       nsv_scan_n_slice(d->n) <= NSV_SCAN_BUCKETS;
}

double nsv_draw_sums_off(const struct nsv_draw *d, double mass, uint32_t n)
{
	return mass * SUM_OFF + 2 * n * nsv_draw_unit(d);
}

double nsv_draw_find_masses(const struct nsv_draw *d)
{
	const struct nsv_scan_range *slices = nsv_draw_slices(d, d->x);
	uint32_t n_slice = nsv_scan_n_slice(d->n);
	float w[NSV_DRAW_PEAKS];
	bool is_right = true;
	double total = 0;

	for (uint32_t i = 0, n; i < n_slice; i += n) {
		n = (uint32_t)nsv_min(n_slice - i, NSV_DRAW_PEAKS);
		nsv_draw_weigh_peaks(d, slices + i, n, w);
		for (uint32_t k = 0; k < n; k++) {
			float sum = slices[i + k].sum;

			is_right &= sum >= 0.5f; /* the largest counts as 1 */
			total += d->s->mass[i + k] = (double)(w[k] * sum);
		}
	}
	return is_right ? total : 0;
}

static void find_levels(const struct nsv_draw *d, struct levels *l)
{
	const struct nsv_scan_range *slices = nsv_draw_slices(d, d->x);

	*l = (struct levels){0};
	for (uint32_t i = 0; i < nsv_scan_n_slice(d->n); i++) {
		float at = fminf(below_max(d, &slices[i]) * LEVELS, N_LEVEL - 1);

		l->mass[(uint32_t)at] += d->s->mass[i];
		l->n[(uint32_t)at]++;
	}
}

/* A slice that reaches into the head has more of the tail than one that does not, the more the fewer
 * of these there are: by how much is a rule of thumb. */
float nsv_draw_guess_low(const struct nsv_draw *d, double tail)
{
	double mass = 0, n = 0;
	uint32_t best = N_LEVEL;
	struct levels l;

	find_levels(d, &l);
	for (uint32_t i = N_LEVEL; i-- > 1;) {
		mass += l.mass[i];
		n += l.n[i];
		double rate = nsv_scan_n_slice(d->n) / n;

		if (n > 0 && mass * rate * sqrt(rate) <= tail)
			best = i;
	}
	return -(float)best / LEVELS;
}

/* Below which slices are light: least is then to be done, on the whole. Each heavy one is read, and
 * if the draw falls among the light ones, all. */
static float find_low(const struct nsv_draw *d, double total)
{
	double mass = 0, n = nsv_scan_n_slice(d->n), n_heavy = n, cost, least = n;
	uint32_t best = N_LEVEL;
	struct levels l;

	find_levels(d, &l);
	for (uint32_t i = N_LEVEL; i-- > 1;) {
		mass += l.mass[i];
		n_heavy -= l.n[i];
		cost = n_heavy + mass / total * n;
		if (cost < least) {
			least = cost;
			best = i;
		}
	}
	return -(float)best / LEVELS;
}

/* The heavy ones' masses become what they are. Returns how far the sum of all, to *ret_total, may
 * be off. */
static double weigh_heavy(const struct nsv_draw *d, float low, double *ret_total)
{
	const struct nsv_scan_range *slices = nsv_draw_slices(d, d->x);
	double *mass = d->s->mass, light = 0, total = 0;
	uint32_t n_light = 0;

	for (uint32_t i = 0, at = 0; at < d->n; i++, at += NSV_SCAN_SLICE) {
		uint32_t n = (uint32_t)nsv_min(d->n - at, NSV_SCAN_SLICE);

		if (nsv_draw_is_heavy(d, &slices[i], low)) {
			mass[i] = d->scan->weigh(d->x + at, n, &d->scale, NULL);
		} else {
			light += mass[i];
			n_light += n;
		}
		total += mass[i];
	}
	*ret_total = total;
	return n_light ? nsv_draw_sums_off(d, light, n_light) + total * ADD_OFF : 0;
}

/* Earliest and latest place at which the sum of weights may exceed the goal are one. */
bool nsv_draw_by_sums(struct nsv_draw *d)
{
	float u = nsv_uniform(d->in->seed, d->in->branch, d->in->position), *w = d->s->weight;
	double total = nsv_draw_find_masses(d), *mass = d->s->mass, sum = 0;
	uint32_t i = 0, n;

	if (total == 0)
		return false;
	double off = weigh_heavy(d, find_low(d, total), &total);
	double least = u * fmax(total - off, 0), most = u * (total + off);
	for (; i + 1 < nsv_scan_n_slice(d->n) && sum + mass[i] + off <= least; i++)
		sum += mass[i];
	const float *x = d->x + i * NSV_SCAN_SLICE;
	n = (uint32_t)nsv_min(d->n - i * NSV_SCAN_SLICE, NSV_SCAN_SLICE);
	if (sum - off + d->scan->weigh(x, n, &d->scale, w) <= most)
		return false;
	uint32_t at = d->scan->find(w, n, sum + off, least);
	d->token = (int32_t)(i * NSV_SCAN_SLICE + at);
	return at == d->scan->find(w, n, sum - off, most);
}
