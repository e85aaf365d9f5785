/* Stop strings against a naive search, over texts that almost match and splits at random. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/tok/stop.h"
#include "tests/tools/rnd.h"

#define MAX_LEN 200

struct text {
	char p[MAX_LEN];
	size_t len;
};

static struct text random_text(uint32_t max_len, uint32_t n_letter)
{
	struct text t = {.len = 1 + t_below(max_len)};

	for (size_t i = 0; i < t.len; i++)
		t.p[i] = (char)('a' + t_below(n_letter));
	return t;
}

/* The stop string that ends first, of those the longest: where it begins, or SIZE_MAX. */
static size_t naive(const struct text *t, const struct text *stops, uint32_t n)
{
	for (size_t end = 1; end <= t->len; end++) {
		size_t longest = 0;

		for (uint32_t k = 0; k < n; k++)
			if (stops[k].len <= end && stops[k].len > longest &&
				memcmp(t->p + end - stops[k].len, stops[k].p, stops[k].len) == 0)
				longest = stops[k].len;
		if (longest)
			return end - longest;
	}
	return SIZE_MAX;
}

/* How much of the end of the text may still become a stop string. */
static size_t naive_held(const char *p, size_t len, const struct text *stops, uint32_t n)
{
	size_t held = 0;

	for (uint32_t k = 0; k < n; k++)
		for (size_t m = held + 1; m < stops[k].len && m <= len; m++)
			if (memcmp(p + len - m, stops[k].p, m) == 0)
				held = m;
	return held;
}

static void check_round(void)
{
	struct nsv_stop *st = malloc(sizeof(*st));
	uint32_t n_letter = 1 + t_below(3), n = t_below(5), which = 99;
	struct text stops[4], t = random_text(MAX_LEN, n_letter);
	char out[2 * MAX_LEN + NSV_MAX_STOP_LEN];
	size_t n_out = 0, at = 0, len, want;
	int ret = 0;

	nsv_stop_init(st);
	for (uint32_t k = 0; k < n; k++) {
		stops[k] = random_text(8, n_letter);
		assert_int_equal(nsv_stop_add(st, stops[k].p, stops[k].len), 0);
	}
	want = naive(&t, stops, n);
	while (at < t.len && ret == 0) {
		size_t step = nsv_min(t.len - at, t_below(7));

		ret = nsv_stop_feed(st, t.p + at, step, out + n_out, &len, &which);
		at += step;
		n_out += len;
		if (ret == 0)
			assert_int_equal(at - n_out, naive_held(t.p, at, stops, n));
	}
	assert_int_equal(ret, want != SIZE_MAX);
	if (ret == 0)
		n_out += nsv_stop_end(st, out + n_out);
	assert_int_equal(n_out, ret ? want : t.len);
	assert_memory_equal(out, t.p, n_out);
	if (ret)
		assert_memory_equal(t.p + n_out, stops[which].p, stops[which].len);
	free(st);
}

static void test_against_naive_search(void **state)
{
	(void)state;
	for (int round = 0; round < 20000; round++)
		check_round();
}

static void test_limits(void **state)
{
	struct nsv_stop *st = malloc(sizeof(*st));
	char text[NSV_MAX_STOP_LEN] = {0}, out[2 * NSV_MAX_STOP_LEN];
	uint32_t which;
	size_t len;
	(void)state;

	nsv_stop_init(st);
	assert_int_equal(nsv_stop_add(st, text, 0), -EINVAL);
	assert_int_equal(nsv_stop_add(st, text, NSV_MAX_STOP_LEN), -EINVAL);
	for (uint32_t k = 0; k < NSV_MAX_STOP; k++)
		assert_int_equal(nsv_stop_add(st, text, NSV_MAX_STOP_LEN - 1), 0);
	assert_int_equal(nsv_stop_add(st, "x", 1), -ENOSPC);
	/* All but the last byte of the longest, then something else: all of it comes out. */
	assert_int_equal(nsv_stop_feed(st, text, NSV_MAX_STOP_LEN - 2, out, &len, &which), 0);
	assert_int_equal(len, 0);
	assert_int_equal(nsv_stop_feed(st, "x", 1, out, &len, &which), 0);
	assert_int_equal(len, NSV_MAX_STOP_LEN - 1);
	assert_int_equal(nsv_stop_feed(st, text, NSV_MAX_STOP_LEN - 1, out, &len, &which), 1);
	assert_int_equal(len, 0);
	free(st);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_naive_search),
		cmocka_unit_test(test_limits),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
