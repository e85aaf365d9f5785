/* One message at a time, in the order of their coming. */
#include "daemon/worker.h"

#include <sys/prctl.h>

#include "daemon/job.h"

static void *run(void *arg)
{
	struct nsv_worker *w = arg;
	bool go_on = true;

	prctl(PR_SET_NAME, w->name);
	while (go_on) {
		nsv_mailbox_wait(&w->inbox, 0);
		struct nsv_msg *msg = nsv_mailbox_take(&w->inbox);
		while (msg) {
			struct nsv_msg *next = msg->next;
			if (msg->kind == NSV_MSG_STOP) {
				go_on = false;
			} else {
				w->work(msg, w->arg);
				nsv_mailbox_put(w->outbox, msg);
			}
			msg = next;
		}
	}
	return NULL;
}

int nsv_worker_start(struct nsv_worker *w, const char *name, nsv_work_fn *work, const void *arg,
	struct nsv_mailbox *outbox)
{
	*w = (struct nsv_worker){.outbox = outbox,
		.name = name,
		.work = work,
		.arg = arg,
		.stop_msg = {.kind = NSV_MSG_STOP}};
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
