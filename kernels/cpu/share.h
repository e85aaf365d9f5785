/* A product's panels shared out among a team. Few members are dealt them evenly, one long stretch
 * of weights each. Of many the slowest would keep all waiting, as processors that others use too
 * are not equally fast: most is dealt, and the rest taken in pieces by whoever is ready. What comes
 * out does not depend on who computes it. */
#ifndef NSV_KERNELS_CPU_SHARE_H
#define NSV_KERNELS_CPU_SHARE_H

#include "kernels/team.h"

#define NSV_CPU_FEW 4u	   /* members: taking costs more than it saves */
#define NSV_CPU_PIECES 16u /* a member, if all were taken */

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

/* What this member is dealt, [*begin, *end), which may be nothing. */
static inline void nsv_cpu_share_dealt(
	const struct nsv_part *part, size_t n_panel, size_t *begin, size_t *end)
{
	const size_t n_dealt = n_panel * 3 / 4 / part->count;

	if (part->count <= NSV_CPU_FEW) {
		nsv_part_range(part, n_panel, 1, begin, end);
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
	nsv_cpu_share_dealt(s->part, n_unit, begin, end);
	if (first && *begin < *end)
		return true;
	if (count <= NSV_CPU_FEW)
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

#endif
