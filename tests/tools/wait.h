/* Waiting in tests for what comes in its own time: an event has no other bound than that of a
 * hang, for the machine may be slow, loaded, or stop any process for seconds. */
#ifndef NSV_TESTS_TOOLS_WAIT_H
#define NSV_TESTS_TOOLS_WAIT_H

#include <poll.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "shm/base.h"

#define NSV_HANG_S 60 /* what takes so long does not come: never a measure */

static inline int64_t nsv_wait_clock_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

/* What is left of a wait. The clock of a machine that stood still, as a virtual one does while its
 * host saves it, is ahead by all that time, in which nobody could have answered: however long it
 * was since the last look, no more than this is spent by one. */
#define NSV_LOOK_S (NSV_HANG_S / 3)
#define NSV_LOOK_MS (NSV_LOOK_S * 1000)

struct nsv_patience {
	int64_t last_s, left_s;
};

static inline struct nsv_patience nsv_patience_begin(int64_t len_s, int64_t now_s)
{
	return (struct nsv_patience){.last_s = now_s, .left_s = len_s};
}

/* After a look that found nothing. true: it hangs. */
static inline bool nsv_patience_ends(struct nsv_patience *p, int64_t now_s)
{
	int64_t gone_s = now_s - p->last_s;

	p->last_s = now_s;
	p->left_s -= gone_s < NSV_LOOK_S ? gone_s : NSV_LOOK_S;
	return p->left_s <= 0;
}

/* Looks again and again: true as soon as `cond` holds; false: it hangs. */
#define NSV_WAIT_FOR(cond)                                                                         \
	({                                                                                         \
		struct nsv_patience left_ = nsv_patience_begin(NSV_HANG_S, nsv_wait_clock_s());    \
		bool holds_;                                                                       \
		while (!(holds_ = (cond)) && !nsv_patience_ends(&left_, nsv_wait_clock_s()))       \
			usleep(200);                                                               \
		holds_;                                                                            \
	})

/* true: a read would not block; false: it hangs. */
static inline bool nsv_wait_readable(int fd)
{
	struct nsv_patience left = nsv_patience_begin(NSV_HANG_S, nsv_wait_clock_s());
	struct pollfd p = {.fd = fd, .events = POLLIN};

	while (poll(&p, 1, NSV_LOOK_MS) != 1)
		if (nsv_patience_ends(&left, nsv_wait_clock_s()))
			return false;
	return true;
}

#endif
