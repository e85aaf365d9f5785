/* One function on a thread of its own, for what a start can do beside something else. The owner
 * starts it and waits for it; in between, what it works on is its own. */
#ifndef NSV_DAEMON_ERRAND_H
#define NSV_DAEMON_ERRAND_H

#include "shm/base.h"

#include <pthread.h>

struct nsv_errand {
	int (*fn)(void *arg);
	void *arg;
	pthread_t thread;
	bool apart; /* it has a thread */
	int ret;
};

/* Where no thread can be had, the function has run when this returns. The caller's mask of signals
 * is the errand's. */
void nsv_errand_start(struct nsv_errand *e, int (*fn)(void *arg), void *arg);
/* Once for each start: what the function returned. */
int nsv_errand_wait(struct nsv_errand *e);

#endif
