/* The clock that the daemon, its regions and the client library go by. Any thread. */
#ifndef NSV_SHM_CLOCK_H
#define NSV_SHM_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Monotonic time. */
static inline uint64_t nsv_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#endif
