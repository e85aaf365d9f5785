/* A team of threads that run one function together (SPMD), with a barrier between its phases.
 * Made for steps of 100 us: members spin for a bounded time, leaving their processor to whoever
 * else wants it, then sleep on a futex.
 *
 * One owner thread creates, runs and frees a team; it is member 0 itself. */
#ifndef NSV_KERNELS_TEAM_H
#define NSV_KERNELS_TEAM_H

#include "shm/base.h"

struct nsv_team;

/* What a member knows: its index and how to meet the others. */
struct nsv_part {
	uint32_t index, count;
	struct nsv_team *team; /* NULL when count is 1 */
};

/* Of who works by itself. */
extern const struct nsv_part nsv_team_alone;

/* Processors that this process may run on, 1 at least. */
uint32_t nsv_team_cpus(void);

/* n_thread >= 1 members, the caller included. 0 or -errno. Threads are named "nsv-work/N". */
int nsv_team_new(uint32_t n_thread, struct nsv_team **ret_team);
void nsv_team_free(struct nsv_team *team); /* NULL is fine */
/* From the next run on it has n members, of 1 to as many as it was made with; fewer where the
 * system has no threads left. All others' threads end, and those wanted begin: not for every run.
 */
void nsv_team_resize(struct nsv_team *team, uint32_t n);
uint32_t nsv_team_size(const struct nsv_team *team);
/* The time that the members' threads, the caller's for member 0, were ready to run and had no
 * processor: all together, since they began. A few system calls a member. 0 or -errno. */
int nsv_team_delay_ns(const struct nsv_team *team, uint64_t *ret_ns);
/* Every member calls fn(part, arg); returns when all have returned. */
void nsv_team_run(
	struct nsv_team *team, void (*fn)(const struct nsv_part *part, void *arg), void *arg);
/* Called by every member: none goes on before all have come. Orders all memory accesses. */
void nsv_team_barrier(const struct nsv_part *part);

/* Items of a phase, which ends at a barrier or with the run, are numbered from 0: the next one that
 * no member has taken. For phases whose items or members are not equally fast. `alone` is the count
 * of a member that has no team, 0 when the phase begins. */
uint32_t nsv_team_take(const struct nsv_part *part, uint32_t *alone);

/* The share of `n` items, in units of `unit`, that falls to this member: [*begin, *end). */
static inline void nsv_part_range(
	const struct nsv_part *part, size_t n, size_t unit, size_t *begin, size_t *end)
{
	size_t n_unit = (n + unit - 1) / unit;
	*begin = nsv_min(n, n_unit * part->index / part->count * unit);
	*end = nsv_min(n, n_unit * (part->index + 1) / part->count * unit);
}

#endif
