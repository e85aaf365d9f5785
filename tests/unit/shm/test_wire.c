/* Hello, welcome and bells over a socket pair; every descriptor that was not returned is closed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "shm/wire.h"
#include "tests/tools/fds.h"

static int pair[2];

static int begin(void **state)
{
	(void)state;
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair);
}

static int end(void **state)
{
	(void)state;
	close(pair[0]);
	close(pair[1]);
	return 0;
}

static int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static const struct nsv_geom geom = {32, 32, 8, 65536, 4096, 1024, 0};

/* Sends `len` bytes with n copies of a descriptor. */
static void send_raw(const void *data, size_t len, size_t n)
{
	int fds[NSV_FDS_MAX];

	for (size_t i = 0; i < n; i++)
		fds[i] = pair[0];
	assert_int_equal(nsv_fds_send(pair[0], data, len, fds, n), len);
}

static int receive(struct nsv_err *err)
{
	struct nsv_welcome w;
	int up = -1, down = -1;
	int ret = nsv_welcome_recv(pair[1], &w, &up, &down, err);

	if (ret != 0)
		assert_true(up == -1 && down == -1);
	if (up >= 0)
		close(up);
	if (down >= 0)
		close(down);
	return ret;
}

static void test_welcome(void **state)
{
	const struct nsv_welcome w = nsv_welcome_make(9, &geom, 4096, 8192);
	struct nsv_welcome got;
	struct nsv_err err;
	int up = -1, down = -1;

	(void)state;
	assert_int_equal(nsv_welcome_send(pair[0], &w, pair[0], pair[1]), 0);
	assert_int_equal(nsv_welcome_recv(pair[1], &got, &up, &down, &err), 0);
	assert_memory_equal(&got, &w, sizeof(w));
	assert_int_equal(fcntl(up, F_GETFD), FD_CLOEXEC);
	assert_int_equal(fcntl(down, F_GETFD), FD_CLOEXEC);
	close(up);
	close(down);
	const struct nsv_welcome no = nsv_refusal_make(NSV_E_LIMIT, "too many sessions");
	assert_int_equal(nsv_welcome_send(pair[0], &no, -1, -1), 0);
	assert_int_equal(nsv_welcome_recv(pair[1], &got, &up, &down, &err), NSV_E_LIMIT);
	assert_string_equal(err.text, "too many sessions");
}

static void test_bad_welcomes(void **state)
{
	struct nsv_welcome w = nsv_welcome_make(9, &geom, 4096, 8192);
	unsigned char big[2000] = {0};
	struct nsv_err err;
	int before = count_fds();

	(void)state;
	for (size_t n = 0; n <= 20; n++) { /* more than the buffer holds: truncated control data */
		send_raw(&w, sizeof(w), n);
		assert_int_equal(receive(&err), n == 2 ? 0 : -EPROTO);
	}
	send_raw(&w, sizeof(w) - 1, 2);
	assert_int_equal(receive(&err), -EPROTO);
	memcpy(big, &w, sizeof(w));
	send_raw(big, sizeof(big), 2);
	assert_int_equal(receive(&err), -EPROTO);
	w.magic ^= 1;
	send_raw(&w, sizeof(w), 2);
	assert_int_equal(receive(&err), -EPROTO);
	w.magic ^= 1;
	w.major++;
	send_raw(&w, sizeof(w), 2);
	assert_int_equal(receive(&err), NSV_E_VERSION);
	w.major--;
	w.feat_incompat = 1;
	send_raw(&w, sizeof(w), 2);
	assert_int_equal(receive(&err), NSV_E_VERSION);
	w.feat_incompat = 0;
	memset(w.text, 'x', sizeof(w.text));
	send_raw(&w, sizeof(w), 2);
	assert_int_equal(receive(&err), -EPROTO);
	w.text[0] = 0;
	w.text[sizeof(w.text) - 1] = 0;
	w.status = NSV_E_DENIED; /* a refusal with descriptors: they are closed */
	send_raw(&w, sizeof(w), 2);
	assert_int_equal(receive(&err), NSV_E_DENIED);
	assert_int_equal(nsv_bell_send(pair[0]), 0); /* of a daemon that took the session over */
	assert_int_equal(receive(&err), -ECONNRESET);
	assert_int_equal(count_fds(), before);
	shutdown(pair[0], SHUT_WR);
	assert_int_equal(receive(&err), -ECONNRESET);
}

static void test_hello(void **state)
{
	const struct nsv_hello good = nsv_hello_make(&geom);
	unsigned char longer[120] = {0};
	struct nsv_hello h, got;
	struct nsv_err err;

	(void)state;
	assert_int_equal(nsv_hello_send(pair[0], &good), 0);
	assert_int_equal(recv(pair[1], &h, sizeof(h), 0), sizeof(h));
	assert_int_equal(nsv_hello_check(&h, sizeof(h), &got, &err), 0);
	assert_memory_equal(&got.want, &geom, sizeof(geom));
	for (size_t len = 0; len < sizeof(h); len++)
		assert_int_equal(nsv_hello_check(&h, len, &got, &err), NSV_E_HELLO);
	for (size_t i = 0; i < sizeof(h); i++) {
		h = good;
		((unsigned char *)&h)[i] ^= 0x55;
		int code = nsv_hello_check(&h, sizeof(h), &got, &err);
		bool open_ = (i >= 16 && i < 24) || (i >= 32 && i < 60); /* compat, want */
		bool minor = i == 6 || i == 7; /* a later minor version is welcome */
		bool version = i == 4 || i == 5 || (i >= 24 && i < 32);
		assert_int_equal(code, open_ || minor ? 0 : version ? NSV_E_VERSION : NSV_E_HELLO);
	}
	/* A later minor version may say more at the end, this one may not. */
	h = good;
	h.len = sizeof(longer);
	memcpy(longer, &h, sizeof(h));
	assert_int_equal(nsv_hello_check(longer, sizeof(longer), &got, &err), NSV_E_HELLO);
	h.minor++;
	memcpy(longer, &h, sizeof(h));
	assert_int_equal(nsv_hello_check(longer, sizeof(longer), &got, &err), 0);
}

/* Bells never block, however many nobody reads, and one look takes them all. */
static void test_bells(void **state)
{
	(void)state;
	for (int i = 0; i < 10000; i++)
		assert_int_equal(nsv_bell_send(pair[0]), 0);
	assert_int_equal(nsv_bell_drain(pair[1]), 0);
	assert_int_equal(recv(pair[1], &(char){0}, 1, MSG_DONTWAIT), -1);
	assert_int_equal(nsv_bell_drain(pair[1]), 0);
	assert_int_equal(nsv_bell_send(pair[0]), 0);
	shutdown(pair[0], SHUT_WR);
	assert_int_equal(nsv_bell_drain(pair[1]), -ECONNRESET);
	shutdown(pair[1], SHUT_RDWR);
	assert_int_equal(nsv_bell_send(pair[0]), -EPIPE); /* and no SIGPIPE */
}

/* A peer that reads nothing: the welcome is refused by the queue, not waited for. */
static void test_unread(void **state)
{
	const struct nsv_welcome w = nsv_welcome_make(9, &geom, 4096, 8192);
	int ret = 0;

	(void)state;
	for (int i = 0; i < 100000 && ret == 0; i++)
		ret = nsv_welcome_send(pair[0], &w, -1, -1);
	assert_int_equal(ret, -EAGAIN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_welcome, begin, end),
		cmocka_unit_test_setup_teardown(test_bad_welcomes, begin, end),
		cmocka_unit_test_setup_teardown(test_hello, begin, end),
		cmocka_unit_test_setup_teardown(test_bells, begin, end),
		cmocka_unit_test_setup_teardown(test_unread, begin, end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
