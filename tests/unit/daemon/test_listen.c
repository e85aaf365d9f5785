/* Places for listening sockets: who has one, and who takes it over. */
#include "daemon/listen.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/tools/proc.h"

#define N_AT_ONCE 8
#define N_ROUND 20

static char folder[] = "/tmp/nanoserve-listen-XXXXXX", path[64];

static int listen_there(struct nsv_listen_file *ret_file, struct nsv_err *err)
{
	int fd = -1, ret = nsv_listen_at(path, &fd, ret_file, err);

	return ret < 0 ? ret : fd;
}

/* As a daemon that was killed leaves it. */
static void leave_stale(void)
{
	struct nsv_listen_file file;
	int fd = listen_there(&file, NULL);

	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(access(path, F_OK), 0);
}

static void test_one_has_it(void **state)
{
	struct nsv_listen_file file = {0}, none = {0};
	struct nsv_err err;
	struct stat st;
	(void)state;

	leave_stale();
	int fd = listen_there(&file, NULL);
	assert_true(fd >= 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0660);
	assert_int_equal(listen_there(&none, &err), -EADDRINUSE);
	assert_non_null(strstr(err.text, "another daemon serves"));
	assert_int_equal(none.ino, 0);
	nsv_listen_remove(path, &none);
	assert_int_equal(access(path, F_OK), 0);
	nsv_listen_remove(path, &file);
	assert_int_equal(access(path, F_OK), -1);
	close(fd);
}

/* The late end of a daemon whose place another one has meanwhile. */
static void test_anothers_stays(void **state)
{
	struct nsv_listen_file first = {0}, second = {0};
	(void)state;

	int fd = listen_there(&first, NULL);
	assert_true(fd >= 0);
	assert_int_equal(unlink(path), 0);
	int next = listen_there(&second, NULL);
	assert_true(next >= 0);
	nsv_listen_remove(path, &first);
	assert_int_equal(access(path, F_OK), 0);
	nsv_listen_remove(path, &second);
	assert_int_equal(access(path, F_OK), -1);
	close(fd);
	close(next);
}

static void test_wrong_paths(void **state)
{
	struct nsv_listen_file file = {0};
	struct nsv_err err;
	int fd = -1;
	(void)state;

	assert_int_equal(nsv_listen_at("", &fd, &file, &err), -EINVAL);
	assert_non_null(strstr(err.text, "empty"));
	assert_int_equal(nsv_listen_at("/", &fd, &file, &err), -EEXIST);
	assert_int_equal(nsv_listen_at("/nonexistent/s", &fd, &file, &err), -ENOENT);
	assert_int_equal(nsv_listen_at("/dev/null", &fd, &file, &err), -EEXIST);
	assert_int_equal(fd, -1);
	assert_int_equal(file.ino, 0);
}

/* Who may read the folder may lock it: that takes nobody's place, nor leaves one without. */
static void test_a_lock_is_held(void **state)
{
	struct nsv_listen_file file = {0};
	int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	(void)state;

	leave_stale();
	assert_int_equal(flock(lock, LOCK_EX), 0);
	int fd = listen_there(&file, NULL);
	assert_true(fd >= 0);
	nsv_listen_remove(path, &file);
	assert_int_equal(access(path, F_OK), 0);
	close(lock);
	nsv_listen_remove(path, &file);
	assert_int_equal(access(path, F_OK), -1);
	close(fd);
}

/* Says whether it got the place, and keeps it until the others have tried. */
static _Noreturn void try_once(int begin, int result, int end)
{
	struct nsv_listen_file file;
	char c;

	if (read(begin, &c, 1) != 0)
		_exit(1);
	int fd = listen_there(&file, NULL);
	c = fd >= 0;
	if (write(result, &c, 1) != 1 || read(end, &c, 1) != 0)
		_exit(1);
	_exit(0);
}

/* They begin when the first pipe is closed, and end with the third. */
static int count_winners(void)
{
	int begin[2], result[2], end[2], n = 0;
	char got;

	assert_true(pipe2(begin, O_CLOEXEC) == 0 && pipe2(result, O_CLOEXEC) == 0 &&
		    pipe2(end, O_CLOEXEC) == 0);
	for (int i = 0; i < N_AT_ONCE; i++)
		if (nsv_proc_fork() == 0) {
			close(begin[1]);
			close(end[1]);
			try_once(begin[0], result[1], end[0]);
		}
	close(begin[1]);
	for (int i = 0; i < N_AT_ONCE; i++) {
		assert_int_equal(read(result[0], &got, 1), 1);
		n += got;
	}
	close(end[1]);
	for (int i = 0; i < N_AT_ONCE; i++)
		assert_true(wait(NULL) > 0);
	close(begin[0]);
	close(result[0]);
	close(result[1]);
	close(end[0]);
	return n;
}

static void test_many_at_once(void **state)
{
	(void)state;

	for (int i = 0; i < N_ROUND; i++) { /* the winner of each leaves what is stale */
		leave_stale();
		assert_int_equal(count_winners(), 1);
	}
	unlink(path);
}

static int setup(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof(path), "%s/sock", folder);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_has_it),
		cmocka_unit_test(test_anothers_stays),
		cmocka_unit_test(test_wrong_paths),
		cmocka_unit_test(test_a_lock_is_held),
		cmocka_unit_test(test_many_at_once),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
