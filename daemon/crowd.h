/* How many members of the team compute. A step goes at the pace of its slowest member: where one
 * must share its processor, as with a program that never waits, all others wait for it most of the
 * time, and one member less is faster. So the engine tells now and then how long its members were
 * ready to run and had no processor, and is told how many they are to be.
 *
 * What helps is found by trial: fewer and fewer when they have waited for long, and it is kept for
 * as long as they wait less then; from time to time one more, and that is kept if they do not wait
 * then. A trial that fails is not made again for a while, which doubles from one to the next.
 *
 * Pure: times in, a count out. */
#ifndef NSV_DAEMON_CROWD_H
#define NSV_DAEMON_CROWD_H

#include "shm/base.h"

#define NSV_CROWD_WINDOW_NS 100000000u /* of steps: between two calls */

/* Trials of a kind are not made until then; the next time for so long. */
struct nsv_crowd_rest {
	uint64_t until_ns, len_ns;
};

struct nsv_crowd {
	uint32_t most, n; /* members: at most, now */
	enum { NSV_CROWD_STEADY, NSV_CROWD_LESS, NSV_CROWD_MORE } trial;
	uint32_t from;	 /* in a trial: how many they were before */
	double before;	 /* the share of its time that a member waited before fewer were tried */
	bool went_wrong; /* the window before this one */
	struct nsv_crowd_rest less, more;
};

/* They are `most`, at least 1. */
void nsv_crowd_init(struct nsv_crowd *c, uint32_t most);
/* After a window: over busy_ns > 0 of steps c->n members waited delay_ns for processors, all
 * together. How many they are to be from now on, which is c->n. */
uint32_t nsv_crowd_next(
	struct nsv_crowd *c, uint64_t now_ns, uint64_t busy_ns, uint64_t delay_ns);

#endif
