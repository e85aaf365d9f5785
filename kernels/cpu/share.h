/* A product's panels shared out among a team. Few members are dealt them evenly, one long stretch
 * of weights each. Of many, or where there is much to do, the slowest would keep all waiting, as
 * processors that others use too are not equally fast: most is dealt, and the rest taken in pieces
 * by whoever is ready. What comes out does not depend on who computes it. */
#ifndef NSV_KERNELS_CPU_SHARE_H
#define NSV_KERNELS_CPU_SHARE_H

#include "kernels/cpu/pack.h"
#include "kernels/scan.h"
#include "kernels/team.h"

#define NSV_CPU_FEW 4u	    /* members: taking costs more than it saves, */
#define NSV_CPU_LARGE 4096u /* unless there are so many panels, as of large vocabularies */
#define NSV_CPU_PIECES 16u  /* a member, if all were taken */

struct nsv_cpu_share {
	const struct nsv_part *part;
	size_t n_panel, unit; /* panels that stay together */
	bool began;
};

static inline struct nsv_cpu_share nsv_cpu_share_begin(
	const struct nsv_part *part, size_t n_panel, size_t unit)
{
	return (struct nsv_cpu_share){.part = part, .n_panel = n_panel, .unit = unit};
}

static inline bool nsv_cpu_share_is_even(const struct nsv_part *part, size_t n_panel)
{
	return part->count == 1 || (part->count <= NSV_CPU_FEW && n_panel < NSV_CPU_LARGE);
}

/* What this member is dealt of n units, which a product's panels make: [*begin, *end), which may be
 * nothing. */
static inline void nsv_cpu_share_dealt(
	const struct nsv_part *part, size_t n_panel, size_t n, size_t *begin, size_t *end)
{
	const size_t n_dealt = n * 3 / 4 / part->count;

	if (nsv_cpu_share_is_even(part, n_panel)) {
		nsv_part_range(part, n, 1, begin, end);
		return;
	}
	*begin = part->index * n_dealt;
	*end = *begin + n_dealt;
}

/* What nsv_cpu_share_next says, of units and in units. */
static inline bool nsv_cpu_share_next_units(
	struct nsv_cpu_share *s, size_t n_unit, size_t *begin, size_t *end)
{
	const uint32_t count = s->part->count;
	size_t piece = nsv_max(n_unit / (NSV_CPU_PIECES * count), 1);
	uint32_t alone = 0;
	bool first = !s->began;

	s->began = true;
	nsv_cpu_share_dealt(s->part, s->n_panel, n_unit, begin, end);
	if (first && *begin < *end)
		return true;
	if (nsv_cpu_share_is_even(s->part, s->n_panel))
		return false;
	*begin = count * (*end - *begin) + nsv_team_take(s->part, &alone) * piece;
	*end = nsv_min(*begin + piece, n_unit);
	return *begin < n_unit;
}

/* This member's next panels, [*begin, *end); false: there are none left. */
static inline bool nsv_cpu_share_next(struct nsv_cpu_share *s, size_t *begin, size_t *end)
{
	if (!nsv_cpu_share_next_units(s, (s->n_panel + s->unit - 1) / s->unit, begin, end))
		return false;
	*begin *= s->unit;
	*end = nsv_min(*end * s->unit, s->n_panel);
	return true;
}

/* What matmul is asked for (kernels/backend.h). */
struct nsv_cpu_product {
	const struct nsv_cpu_weight *w;
	const struct nsv_cpu_acts *acts;
	float *out; /* (n_row, ld_out) */
	size_t ld_out, n_row;
	const struct nsv_scan_slices *slices; /* or NULL */
};

/* Panels begin .. end - 1 against all rows. */
typedef void nsv_cpu_panels_fn(const struct nsv_cpu_product *p, size_t begin, size_t end);

/* This member's share of a product. Where slices are wanted, one by one: each is looked at
 * while it is in cache. */
static inline void nsv_cpu_share_product(
	const struct nsv_part *part, const struct nsv_cpu_product *p, nsv_cpu_panels_fn *run)
{
	struct nsv_cpu_share share =
		nsv_cpu_share_begin(part, p->w->n_panel, p->slices ? NSV_CPU_SLICE : 1);
	size_t begin, end;

	while (nsv_cpu_share_next(&share, &begin, &end)) {
		if (!p->slices) {
			run(p, begin, end);
			continue;
		}
		for (size_t i = begin / NSV_CPU_SLICE; i * NSV_CPU_SLICE < end; i++) {
			size_t at = i * NSV_CPU_SLICE;

			run(p, at, nsv_min(at + NSV_CPU_SLICE, end));
			nsv_scan_look(
				p->out, p->ld_out, p->n_row, p->w->n_out, i, i + 1, p->slices);
		}
	}
}

#endif
