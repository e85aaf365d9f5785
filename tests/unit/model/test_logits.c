/* The memory of logits: rows apart by an odd number of lines, whatever the vocabulary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "daemon/model/logits.h"

static void check(uint32_t n_row, uint32_t n_vocab)
{
	struct nsv_logits l;

	assert_int_equal(nsv_logits_init(&l, n_row, n_vocab), 0);
	assert_true(l.ld >= n_vocab && l.ld < n_vocab + 32);
	assert_int_equal(l.ld * sizeof(float) % (2 * NSV_CACHE_LINE), NSV_CACHE_LINE);
	assert_int_equal((uintptr_t)l.x % NSV_CACHE_LINE, 0);
	memset(l.x, 0, n_row * l.ld * sizeof(float));
	memset(l.ranges, 0, n_row * nsv_scan_n_slice(n_vocab) * sizeof(*l.ranges));
	nsv_logits_deinit(&l);
	nsv_logits_deinit(&l);
}

static void test_rows(void **state)
{
	(void)state;
	for (uint32_t n_vocab = 1; n_vocab < 70; n_vocab++)
		check(1 + n_vocab % 5, n_vocab);
	check(3, 49152);
	check(2, 151936);
	check(5, 262144);
}

/* As many rows as no machine has memory for. */
static void test_refused(void **state)
{
	struct nsv_logits l;

	(void)state;
	assert_int_equal(nsv_logits_init(&l, UINT32_MAX, UINT32_MAX), -EOVERFLOW);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
