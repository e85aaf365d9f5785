/* The io_uring loop over real descriptors: what arrives, in which order, and when a source is
 * gone. */
#include "daemon/loop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/tools/wait.h"

struct seen {
	struct nsv_source src; /* first */
	int n[NSV_EV_GONE + 1];
	int last_res;
	char data[4096];
	size_t data_len;
	struct nsv_loop *cancel_in; /* cancel at the first event */
};

static void on_event(struct nsv_source *src, enum nsv_event event, int res, const void *data)
{
	struct seen *s = (struct seen *)src;

	s->n[event]++;
	s->last_res = res;
	if (event == NSV_EV_DATA && s->data_len + (size_t)res <= sizeof(s->data)) {
		memcpy(s->data + s->data_len, data, (size_t)res);
		s->data_len += (size_t)res;
	}
	if (s->cancel_in && event != NSV_EV_GONE) {
		nsv_source_cancel(s->cancel_in, src);
		s->cancel_in = NULL;
	}
}

static struct nsv_loop *new_loop(void)
{
	struct nsv_loop *loop;
	struct nsv_err err = {""};

	if (nsv_loop_new(&loop, &err) < 0)
		fail_msg("%s", err.text);
	return loop;
}

static void turn_until(struct nsv_loop *loop, const int *count, int n)
{
	while (*count < n)
		assert_true(nsv_loop_turn(loop, true) >= 0);
}

static void test_packets_and_end(void **state)
{
	struct nsv_loop *loop = new_loop();
	struct seen s = {.src = {.fn = on_event}};
	int fds[2];
	(void)state;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds), 0);
	nsv_source_recv(loop, &s.src, fds[0]);
	assert_int_equal(send(fds[1], "one", 3, 0), 3);
	assert_int_equal(send(fds[1], "two", 3, 0), 3);
	turn_until(loop, &s.n[NSV_EV_DATA], 2);
	assert_memory_equal(s.data, "onetwo", 6);
	/* a packet longer than a buffer is cut, and the next one whole */
	char big[1000];
	memset(big, 'x', sizeof(big));
	assert_int_equal(send(fds[1], big, sizeof(big), 0), sizeof(big));
	assert_int_equal(send(fds[1], "z", 1, 0), 1);
	turn_until(loop, &s.n[NSV_EV_DATA], 4);
	assert_int_equal(s.data_len, 6 + NSV_LOOP_BUF_LEN + 1);
	close(fds[1]);
	turn_until(loop, &s.n[NSV_EV_EOF], 1);
	nsv_source_cancel(loop, &s.src);
	turn_until(loop, &s.n[NSV_EV_GONE], 1);
	close(fds[0]);
	nsv_loop_free(loop);
}

/* More packets than buffers: multishot ends and is armed again, nothing is lost. */
static void test_more_packets_than_buffers(void **state)
{
	enum { N = 3000 };
	struct nsv_loop *loop = new_loop();
	struct seen s = {.src = {.fn = on_event}};
	int fds[2], len = 4 << 20, sent = 0;
	(void)state;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds), 0);
	setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &len, sizeof(len));
	nsv_source_recv(loop, &s.src, fds[0]);
	while (sent < N || s.n[NSV_EV_DATA] < N) {
		while (sent < N && send(fds[1], "p", 1, 0) == 1)
			sent++;
		assert_true(nsv_loop_turn(loop, true) >= 0);
	}
	assert_int_equal(s.n[NSV_EV_DATA], N);
	close(fds[0]);
	close(fds[1]);
	nsv_loop_free(loop);
}

static void test_poll_wakes_again_and_again(void **state)
{
	struct nsv_loop *loop = new_loop();
	struct seen s = {.src = {.fn = on_event}};
	int fd = eventfd(0, EFD_NONBLOCK);
	(void)state;

	nsv_source_poll(loop, &s.src, fd);
	for (int i = 1; i <= 5; i++) {
		eventfd_t v;
		eventfd_write(fd, 1);
		turn_until(loop, &s.n[NSV_EV_READY], i);
		eventfd_read(fd, &v);
	}
	nsv_source_cancel(loop, &s.src);
	turn_until(loop, &s.n[NSV_EV_GONE], 1);
	close(fd);
	nsv_loop_free(loop);
}

static void test_cancel_inside_the_callback(void **state)
{
	struct nsv_loop *loop = new_loop();
	struct seen timer = {.src = {.fn = on_event}}, poll = timer;
	int fd = eventfd(1, EFD_NONBLOCK);
	(void)state;

	timer.cancel_in = poll.cancel_in = loop;
	nsv_source_timer(loop, &timer.src, 1000);
	nsv_source_poll(loop, &poll.src, fd);
	turn_until(loop, &timer.n[NSV_EV_GONE], 1);
	turn_until(loop, &poll.n[NSV_EV_GONE], 1);
	for (int i = 0; i < 3; i++)
		nsv_loop_turn(loop, false);
	assert_int_equal(timer.n[NSV_EV_GONE], 1);
	assert_int_equal(poll.n[NSV_EV_GONE], 1);
	assert_int_equal(timer.n[NSV_EV_TIME], 1);
	close(fd);
	nsv_loop_free(loop);
}

static void test_accept(void **state)
{
	struct nsv_loop *loop = new_loop();
	struct seen s = {.src = {.fn = on_event}};
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	(void)state;

	snprintf(addr.sun_path + 1, sizeof(addr.sun_path) - 1, "nsv-loop-%d", getpid());
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(fd, 8), 0);
	nsv_source_accept(loop, &s.src, fd);
	for (int i = 1; i <= 3; i++) {
		int c = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		assert_int_equal(connect(c, (struct sockaddr *)&addr, sizeof(addr)), 0);
		turn_until(loop, &s.n[NSV_EV_FD], i);
		close(s.last_res);
		close(c);
	}
	nsv_source_cancel(loop, &s.src);
	turn_until(loop, &s.n[NSV_EV_GONE], 1);
	close(fd);
	nsv_loop_free(loop);
}

/* Another ring waits at the socket, as that of a daemon which was killed does for a while, and
 * nobody looks at what comes to it: it keeps no connection from this one. */
static void test_accept_beside_another_ring(void **state)
{
	struct nsv_loop *old = new_loop(), *loop = new_loop();
	struct seen unseen = {.src = {.fn = on_event}}, s = unseen;
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), c = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	(void)state;

	snprintf(addr.sun_path + 1, sizeof(addr.sun_path) - 1, "nsv-loop-%d-two", getpid());
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(fd, 8), 0);
	nsv_source_accept(old, &unseen.src, fd);
	assert_int_equal(nsv_loop_turn(old, false), 0);
	nsv_source_accept(loop, &s.src, fd);
	assert_int_equal(nsv_loop_turn(loop, false), 0);
	assert_int_equal(connect(c, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_true(NSV_WAIT_FOR(nsv_loop_turn(loop, false) >= 0 && s.n[NSV_EV_FD] == 1));
	close(s.last_res);
	close(c);
	close(fd);
	nsv_loop_free(old);
	nsv_loop_free(loop);
}

/* No more descriptors until `end` is written to. Asked for by another process: what a process asks
 * for itself valgrind keeps from the kernel, whose limit is the one that a ring meets. */
static void forbid_descriptors(int end[2], int done[2])
{
	struct rlimit old, none;
	char c;

	assert_int_equal(pipe(end) | pipe(done), 0);
	if (fork() == 0) {
		close(end[1]);
		bool ok = prlimit(getppid(), RLIMIT_NOFILE, NULL, &old) == 0;

		none = (struct rlimit){.rlim_cur = 3, .rlim_max = old.rlim_max};
		ok = ok && prlimit(getppid(), RLIMIT_NOFILE, &none, NULL) == 0 &&
		     write(done[1], "1", 1) == 1 && read(end[0], &c, 1) == 1;
		prlimit(getppid(), RLIMIT_NOFILE, &old, NULL);
		_exit(0);
	}
	close(done[1]);
	assert_int_equal(read(done[0], &c, 1), 1);
}

static void allow_descriptors(const int end[2])
{
	assert_int_equal(write(end[1], "1", 1), 1);
	assert_true(wait(NULL) > 0); /* its status is valgrind's opinion of what it left */
}

/* Descriptors run out: the source says that it has ended, and works when it is armed again. */
static void test_accept_without_descriptors(void **state)
{
	struct nsv_loop *loop = new_loop();
	struct seen s = {.src = {.fn = on_event}};
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	int c = socket(AF_UNIX, SOCK_SEQPACKET, 0), end[2], done[2];
	(void)state;

	snprintf(addr.sun_path + 1, sizeof(addr.sun_path) - 1, "nsv-loop-%d", getpid());
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(fd, 8), 0);
	forbid_descriptors(end, done);
	nsv_source_accept(loop, &s.src, fd);
	assert_int_equal(connect(c, (struct sockaddr *)&addr, sizeof(addr)), 0);
	turn_until(loop, &s.n[NSV_EV_ENDED], 1);
	assert_int_equal(s.last_res, -EMFILE);
	allow_descriptors(end);
	nsv_source_accept(loop, &s.src, fd);
	turn_until(loop, &s.n[NSV_EV_FD], 1);
	close(s.last_res);
	close(end[0]);
	close(end[1]);
	close(done[0]);
	close(c);
	close(fd);
	nsv_loop_free(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_packets_and_end),
		cmocka_unit_test(test_more_packets_than_buffers),
		cmocka_unit_test(test_poll_wakes_again_and_again),
		cmocka_unit_test(test_cancel_inside_the_callback),
		cmocka_unit_test(test_accept),
		cmocka_unit_test(test_accept_beside_another_ring),
		cmocka_unit_test(test_accept_without_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
