/* Messages between threads: none lost, each once, a sender's in their order. */
#include "daemon/mailbox.h"
#include "shm/clock.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/eventfd.h>

#include <cmocka.h>


#define N_SENDER 4
#define N_MSG 20000

struct numbered {
	struct nsv_msg msg;
	int sender, number;
};

struct sender {
	struct nsv_mailbox *box;
	struct numbered *msgs;
	int index;
};

static void *send_all(void *arg)
{
	struct sender *s = arg;

	for (int i = 0; i < N_MSG; i++) {
		s->msgs[i] = (struct numbered){.sender = s->index, .number = i};
		nsv_mailbox_put(s->box, &s->msgs[i].msg);
	}
	return NULL;
}

static void wait_for_some(struct nsv_mailbox *box)
{
	struct pollfd p = {.fd = box->event_fd, .events = POLLIN};
	eventfd_t n;

	if (box->event_fd < 0) {
		nsv_mailbox_wait(box, 0);
	} else if (poll(&p, 1, -1) == 1) {
		eventfd_read(box->event_fd, &n);
	}
}

static void exchange(bool with_fd)
{
	struct nsv_mailbox box;
	struct sender senders[N_SENDER];
	pthread_t threads[N_SENDER];
	int next[N_SENDER] = {0};

	assert_int_equal(nsv_mailbox_init(&box, with_fd), 0);
	for (int i = 0; i < N_SENDER; i++) {
		senders[i] = (struct sender){&box, calloc(N_MSG, sizeof(struct numbered)), i};
		assert_int_equal(pthread_create(&threads[i], NULL, send_all, &senders[i]), 0);
	}
	for (int got = 0; got < N_SENDER * N_MSG;) {
		wait_for_some(&box);
		for (struct nsv_msg *m = nsv_mailbox_take(&box); m; m = m->next, got++) {
			struct numbered *n = (struct numbered *)m;
			assert_int_equal(n->number, next[n->sender]++);
		}
	}
	assert_false(nsv_mailbox_any(&box));
	for (int i = 0; i < N_SENDER; i++) {
		pthread_join(threads[i], NULL);
		free(senders[i].msgs);
	}
	nsv_mailbox_deinit(&box);
}

static void test_reader_waits_in_the_box(void **state)
{
	(void)state;
	exchange(false);
}

static void test_reader_waits_on_the_descriptor(void **state)
{
	(void)state;
	exchange(true);
}

static void test_a_wait_ends(void **state)
{
	struct nsv_mailbox box;
	(void)state;

	assert_int_equal(nsv_mailbox_init(&box, false), 0);
	uint64_t start = nsv_now_ns();
	nsv_mailbox_wait(&box, 5000000);
	assert_true(nsv_now_ns() - start >= 5000000);
	assert_null(nsv_mailbox_take(&box));
	nsv_mailbox_deinit(&box);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reader_waits_in_the_box),
		cmocka_unit_test(test_reader_waits_on_the_descriptor),
		cmocka_unit_test(test_a_wait_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
