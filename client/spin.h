/* How long to spin before sleeping, from what the last waits showed. Spinning pays while answers
 * come within the time that a wake-up costs (about 50 us); beyond that it only takes a CPU from
 * whoever computes the answer. On one CPU it never pays. */
#ifndef NSV_CLIENT_SPIN_H
#define NSV_CLIENT_SPIN_H

#include "shm/base.h"
#include "shm/clock.h"

#define NSV_SPIN_MAX_NS 50000

struct nsv_spin {
	bool adaptive;
	int64_t fixed_ns;   /* where it is not adaptive */
	int64_t average_ns; /* of the last waits, each counted as at most 2 * NSV_SPIN_MAX_NS */
};

/* spin_us: -1: adaptive; else the fixed bound. One usable CPU: 0 whatever was asked. */
void nsv_spin_init(struct nsv_spin *spin, int32_t spin_us);
/* The bound for the next wait. */
int64_t nsv_spin_bound_ns(const struct nsv_spin *spin);
/* A wait took this long, spinning and sleeping together. */
void nsv_spin_learn(struct nsv_spin *spin, int64_t waited_ns);

/* Signed, as times to wait are: below 0 is for ever. */
static inline int64_t nsv_clock_ns(void)
{
	return (int64_t)nsv_now_ns();
}

#endif
