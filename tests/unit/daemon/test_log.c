/* The limit to lines that anybody can cause, and what may be in one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/log.h"

#define SECOND 1000000000ull
#define BURST 16u

/* Tries n lines at a time: how many may be said, none of them after one that may not. */
static uint32_t say(struct nsv_log_limit *limit, uint64_t now_ns, uint32_t n)
{
	uint32_t said = 0, unsaid;

	for (uint32_t i = 0; i < n; i++)
		if (nsv_log_may(limit, now_ns, &unsaid)) {
			assert_int_equal(said, i);
			said++;
		}
	return said;
}

static void test_some_at_once_then_one_a_second(void **state)
{
	struct nsv_log_limit limit = {0};
	uint64_t now = 5;
	(void)state;

	assert_int_equal(say(&limit, now, 100), BURST);
	assert_int_equal(say(&limit, now + SECOND - 1, 100), 0);
	assert_int_equal(say(&limit, now + SECOND, 100), 1);
	assert_int_equal(say(&limit, now + 3 * SECOND + SECOND / 2, 100), 2);
	assert_int_equal(say(&limit, now + 4 * SECOND, 100), 1);
	assert_int_equal(say(&limit, now + 1000 * SECOND, 100), BURST);
}

static void test_what_is_kept_back_is_told(void **state)
{
	struct nsv_log_limit limit = {0};
	uint32_t unsaid = 7;
	(void)state;

	assert_int_equal(say(&limit, 0, BURST + 5), BURST);
	assert_false(nsv_log_may(&limit, 0, &unsaid));
	assert_int_equal(unsaid, 7);
	assert_true(nsv_log_may(&limit, SECOND, &unsaid));
	assert_int_equal(unsaid, 6);
	assert_true(nsv_log_may(&limit, 2 * SECOND, &unsaid));
	assert_int_equal(unsaid, 0);
}

/* By who looks later, where no line comes that could tell it. */
static void test_what_is_kept_back_last_is_told_too(void **state)
{
	struct nsv_log_limit limit = {0};
	(void)state;

	assert_int_equal(nsv_log_unsaid(&limit, 0), 0);
	assert_int_equal(say(&limit, 0, BURST + 5), BURST);
	assert_int_equal(nsv_log_unsaid(&limit, SECOND - 1), 0);
	assert_int_equal(nsv_log_unsaid(&limit, SECOND), 5);
	assert_int_equal(nsv_log_unsaid(&limit, SECOND), 0);
	assert_int_equal(say(&limit, SECOND, 100), 1); /* to tell it was not paid for */
}

/* Names from model files and clients: text of any language, and nothing that a terminal obeys. */
static void test_nothing_a_terminal_obeys(void **state)
{
	static const char want[] = "a?b?c??31m \u00e9\u00a0? \u4e2d ??\n";
	int saved = dup(STDERR_FILENO), p[2];
	char have[64] = "";
	(void)state;

	assert_int_equal(pipe(p), 0);
	dup2(p[1], STDERR_FILENO);
	nsv_error("%s", "a\033b\nc\xc2\x9b" "31m \u00e9\u00a0\x7f \u4e2d \xc2\x80");
	dup2(saved, STDERR_FILENO);
	assert_int_equal(read(p[0], have, sizeof(have) - 1), strlen(want));
	assert_string_equal(have, want);
	close(saved);
	close(p[0]);
	close(p[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_some_at_once_then_one_a_second),
		cmocka_unit_test(test_what_is_kept_back_is_told),
		cmocka_unit_test(test_what_is_kept_back_last_is_told_too),
		cmocka_unit_test(test_nothing_a_terminal_obeys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
