/* One message at a time, in the order of their coming. */
#include "daemon/worker.h"

#include <sys/prctl.h>

static bool work(struct nsv_worker *w, struct nsv_msg *msg)
{
	if (msg->kind == NSV_MSG_STOP)
		return false;
	nsv_job_prepare(nsv_job_of(msg), w->tok);
	msg->kind = NSV_MSG_PREPARED;
	nsv_mailbox_put(w->outbox, msg);
	return true;
}

static void *run(void *arg)
{
	struct nsv_worker *w = arg;
	bool go_on = true;

	prctl(PR_SET_NAME, "nsv-tok");
	while (go_on) {
		nsv_mailbox_wait(&w->inbox, 0);
		struct nsv_msg *msg = nsv_mailbox_take(&w->inbox);
		while (msg) {
			struct nsv_msg *next = msg->next;
			go_on = work(w, msg) && go_on;
			msg = next;
		}
	}
	return NULL;
}

int nsv_worker_start(struct nsv_worker *w, const struct nsv_tok *tok, struct nsv_mailbox *outbox)
{
	*w = (struct nsv_worker){.tok = tok, .outbox = outbox, .stop_msg = {.kind = NSV_MSG_STOP}};
	int ret = nsv_mailbox_init(&w->inbox, false);

	if (ret == 0)
		ret = -pthread_create(&w->thread, NULL, run, w);
	w->started = ret == 0;
	return ret;
}

void nsv_worker_stop(struct nsv_worker *w)
{
	if (w->started) {
		nsv_mailbox_put(&w->inbox, &w->stop_msg);
		pthread_join(w->thread, NULL);
		w->started = false;
	}
	nsv_mailbox_deinit(&w->inbox);
}
