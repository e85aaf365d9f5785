/* Messages between the daemon's threads: a locked list and one way to wake its reader. For control
 * (a request comes, a session ends), never for tokens. The reader's test for "anything?" is one
 * relaxed load, so that a busy engine looks at every step for nothing.
 *
 * Any thread puts; one thread takes. A message belongs to whoever holds it. */
#ifndef NSV_DAEMON_MAILBOX_H
#define NSV_DAEMON_MAILBOX_H

#include "shm/base.h"

#include <pthread.h>

struct nsv_msg {
	struct nsv_msg *next;
	int kind;
};

struct nsv_mailbox {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct nsv_msg *first, **last;
	int full;     /* atomic: first != NULL */
	int event_fd; /* -1, or written when the list becomes non-empty */
};

/* with_fd: the reader sleeps on event_fd, not in nsv_mailbox_wait. */
int nsv_mailbox_init(struct nsv_mailbox *box, bool with_fd);
void nsv_mailbox_deinit(struct nsv_mailbox *box); /* messages left are the caller's loss */
void nsv_mailbox_put(struct nsv_mailbox *box, struct nsv_msg *msg);
/* All messages, oldest first; NULL: none. */
struct nsv_msg *nsv_mailbox_take(struct nsv_mailbox *box);
/* Sleeps until there is one, or for timeout_ns (0: for ever). */
void nsv_mailbox_wait(struct nsv_mailbox *box, uint64_t timeout_ns);

static inline bool nsv_mailbox_any(struct nsv_mailbox *box)
{
	return __atomic_load_n(&box->full, __ATOMIC_RELAXED);
}

#endif
