/* A thread that does for the io thread what would hold it up: one message after the other, each of
 * which goes back as its answer. There are two: one parses and tokenizes long prompts, one has the
 * kernel make and take back large regions. */
#ifndef NSV_DAEMON_WORKER_H
#define NSV_DAEMON_WORKER_H

#include "daemon/mailbox.h"

/* Does what a message asks for, and gives it the kind of its answer. arg is the worker's. */
typedef void nsv_work_fn(struct nsv_msg *msg, const void *arg);

struct nsv_worker {
	struct nsv_mailbox inbox, *outbox;
	const char *name;
	nsv_work_fn *work;
	const void *arg;
	pthread_t thread;
	bool started;
	struct nsv_msg stop_msg;
};

/* name (borrowed) is the thread's, of 15 bytes at most; arg is borrowed. */
int nsv_worker_start(struct nsv_worker *w, const char *name, nsv_work_fn *work, const void *arg,
	struct nsv_mailbox *outbox);
/* After what it holds has been answered. */
void nsv_worker_stop(struct nsv_worker *w);

#endif
