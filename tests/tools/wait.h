/* Waiting in tests for what comes in its own time: an event has no other bound than that of a
 * hang, for the machine may be slow, loaded, or stop any process for seconds. */
#ifndef NSV_TESTS_TOOLS_WAIT_H
#define NSV_TESTS_TOOLS_WAIT_H

#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "shm/base.h"

#define NSV_HANG_S 60
#define NSV_HANG_MS (NSV_HANG_S * 1000) /* what takes so long does not come: never a measure */

static inline int64_t nsv_wait_clock_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

/* Looks again and again: true as soon as `cond` holds; false: it hangs. */
#define NSV_WAIT_FOR(cond)                                                                         \
	({                                                                                         \
		const int64_t end_ = nsv_wait_clock_s() + NSV_HANG_S;                              \
		bool holds_;                                                                       \
		while (!(holds_ = (cond)) && nsv_wait_clock_s() < end_)                            \
			usleep(200);                                                               \
		holds_;                                                                            \
	})

#endif
