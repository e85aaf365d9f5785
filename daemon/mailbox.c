/* A list under a mutex; its reader sleeps on a condition or on an eventfd. */
#include "daemon/mailbox.h"

#include <sys/eventfd.h>

#include "shm/clock.h"

int nsv_mailbox_init(struct nsv_mailbox *box, bool with_fd)
{
	*box = (struct nsv_mailbox){.event_fd = -1};
	box->last = &box->first;
	pthread_mutex_init(&box->lock, NULL);
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&box->cond, &attr);
	pthread_condattr_destroy(&attr);
	if (with_fd) {
		box->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (box->event_fd < 0)
			return -errno;
	}
	return 0;
}

void nsv_mailbox_deinit(struct nsv_mailbox *box)
{
	if (!box->last)
		return;
	if (box->event_fd >= 0)
		close(box->event_fd);
	pthread_cond_destroy(&box->cond);
	pthread_mutex_destroy(&box->lock);
	box->last = NULL;
}

void nsv_mailbox_put(struct nsv_mailbox *box, struct nsv_msg *msg)
{
	msg->next = NULL;
	pthread_mutex_lock(&box->lock);
	bool was_empty = box->first == NULL;
	*box->last = msg;
	box->last = &msg->next;
	__atomic_store_n(&box->full, 1, __ATOMIC_RELEASE);
	pthread_cond_signal(&box->cond);
	pthread_mutex_unlock(&box->lock);
	if (was_empty && box->event_fd >= 0)
		eventfd_write(box->event_fd, 1); /* EAGAIN: it is awake already */
}

struct nsv_msg *nsv_mailbox_take(struct nsv_mailbox *box)
{
	pthread_mutex_lock(&box->lock);
	struct nsv_msg *first = box->first;
	box->first = NULL;
	box->last = &box->first;
	__atomic_store_n(&box->full, 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&box->lock);
	return first;
}

void nsv_mailbox_wait(struct nsv_mailbox *box, uint64_t timeout_ns)
{
	uint64_t until_ns = nsv_now_ns() + timeout_ns;
	struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
		.tv_nsec = (long)(until_ns % 1000000000u)};
	int ret = 0;

	pthread_mutex_lock(&box->lock);
	while (!box->first && ret != ETIMEDOUT)
		ret = timeout_ns ? pthread_cond_timedwait(&box->cond, &box->lock, &until)
				 : pthread_cond_wait(&box->cond, &box->lock);
	pthread_mutex_unlock(&box->lock);
}
