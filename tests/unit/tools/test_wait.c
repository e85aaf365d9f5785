/* A test's patience: it ends after the time of a hang, and not because the machine stood still. */
#include "tests/tools/wait.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_a_hang_ends_in_its_time(void **state)
{
	struct nsv_patience p = nsv_patience_begin(NSV_HANG_S, 1000);
	int64_t now = 1000;
	(void)state;

	while (!nsv_patience_ends(&p, now))
		now++;
	assert_int_equal(now, 1000 + NSV_HANG_S);
}

static void test_looks_within_a_second_cost_nothing(void **state)
{
	struct nsv_patience p = nsv_patience_begin(NSV_HANG_S, 7);
	(void)state;

	for (int i = 0; i < 100000; i++)
		assert_false(nsv_patience_ends(&p, 7));
}

/* The clock is an hour ahead after it: who looks then is to look again. */
static void test_standing_still_is_one_look(void **state)
{
	struct nsv_patience p = nsv_patience_begin(NSV_HANG_S, 0);
	int64_t now = 3600;
	(void)state;

	assert_false(nsv_patience_ends(&p, now));
	while (!nsv_patience_ends(&p, now))
		now++;
	assert_int_equal(now, 3600 + NSV_HANG_S - NSV_LOOK_S);
}

/* Answers that come slowly, each later than the last look by more than a look may cost. */
static void test_slow_looks_end_too(void **state)
{
	struct nsv_patience p = nsv_patience_begin(NSV_HANG_S, 0);
	int64_t now = 0;
	int n = 0;
	(void)state;

	do {
		now += 2 * NSV_LOOK_S;
		n++;
	} while (!nsv_patience_ends(&p, now));
	assert_int_equal(n, NSV_HANG_S / NSV_LOOK_S);
}

static void test_what_has_come_is_readable(void **state)
{
	int fds[2];
	(void)state;

	assert_int_equal(pipe(fds), 0);
	assert_int_equal(write(fds[1], "x", 1), 1);
	assert_true(nsv_wait_readable(fds[0]));
	close(fds[0]);
	close(fds[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_hang_ends_in_its_time),
		cmocka_unit_test(test_looks_within_a_second_cost_nothing),
		cmocka_unit_test(test_standing_still_is_one_look),
		cmocka_unit_test(test_slow_looks_end_too),
		cmocka_unit_test(test_what_has_come_is_readable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
