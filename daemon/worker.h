/* A thread that parses and tokenizes long prompts, so that the io thread serves others meanwhile.
 * Takes PREPARE, answers PREPARED with the same message. */
#ifndef NSV_DAEMON_WORKER_H
#define NSV_DAEMON_WORKER_H

#include "daemon/job.h"

struct nsv_worker {
	struct nsv_mailbox inbox, *outbox;
	const struct nsv_tok *tok;
	pthread_t thread;
	bool started;
	struct nsv_msg stop_msg;
};

int nsv_worker_start(struct nsv_worker *w, const struct nsv_tok *tok, struct nsv_mailbox *outbox);
/* After what it holds has been answered. */
void nsv_worker_stop(struct nsv_worker *w);

#endif
