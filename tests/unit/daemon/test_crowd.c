/* How many members compute, against machines made up: what each waits is a function of how many
 * they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/crowd.h"

#define WINDOW NSV_CROWD_WINDOW_NS
#define SECOND 1000000000u

/* Processors, and programs that never wait. */
struct machine {
	uint32_t n_cpu, n_hog;
	double noise; /* members' worth, whatever else there is */
};

/* Members' worth of waiting, as measured: two that meet where a third runs wait nearly all of the
 * time that they do not run. */
static double waited(const struct machine *m, uint32_t n)
{
	uint32_t n_all = n + m->n_hog;
	double over = n_all > m->n_cpu ? (double)(n_all - m->n_cpu) : 0;
	double most = 0.45 * n;

	over *= 0.86;
	return (over < most ? over : most) + m->noise;
}

struct run {
	struct nsv_crowd c;
	uint64_t now_ns;
	uint32_t n_change, n_window[17]; /* windows with so many members */
};

static void run(struct run *r, const struct machine *m, uint64_t seconds)
{
	for (uint64_t end = r->now_ns + seconds * SECOND; r->now_ns < end; r->now_ns += WINDOW) {
		uint32_t n = r->c.n;
		uint64_t delay_ns = (uint64_t)(waited(m, n) * WINDOW);

		r->n_window[n]++;
		uint32_t next = nsv_crowd_next(&r->c, r->now_ns, WINDOW, delay_ns);
		assert_in_range(next, 1, r->c.most);
		r->n_change += next != n;
	}
}

static struct run begin(uint32_t most)
{
	struct run r = {.now_ns = 1000 * (uint64_t)SECOND};

	nsv_crowd_init(&r.c, most);
	return r;
}

/* What it stays at if a trial under way fails. */
static uint32_t settled(const struct run *r)
{
	return r->c.trial == NSV_CROWD_STEADY ? r->c.n : r->c.from;
}

static void test_alone_all_compute(void **state)
{
	static const struct machine quiet[] = {{2, 0, 0}, {2, 0, 0.05}, {16, 0, 0.1}, {1, 0, 0}};
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(quiet); i++) {
		struct run r = begin(quiet[i].n_cpu);
		run(&r, &quiet[i], 100);
		assert_int_equal(r.n_change, 0);
	}
}

/* In a second a processor is left to each, and is taken back when they have gone. */
static void check_hogs(uint32_t n_cpu, uint32_t n_hog)
{
	const struct machine crowded = {n_cpu, n_hog, 0.04}, quiet = {n_cpu, 0, 0.04};
	struct run r = begin(n_cpu);

	run(&r, &crowded, 1);
	assert_true(settled(&r) <= n_cpu - n_hog);
	run(&r, &crowded, 100);
	/* The rest are trials: one in eight seconds. */
	assert_true(r.n_window[n_cpu - n_hog] > 950);
	run(&r, &quiet, 12);
	assert_int_equal(r.c.n, n_cpu);
	uint32_t n_change = r.n_change;
	run(&r, &quiet, 100);
	assert_int_equal(r.n_change, n_change);
	run(&r, &crowded, 2);
	assert_true(settled(&r) <= n_cpu - n_hog);
}

static void test_beside_those_that_never_wait(void **state)
{
	(void)state;
	check_hogs(2, 1);
	check_hogs(4, 1);
	check_hogs(4, 3);
	check_hogs(16, 1);
	check_hogs(16, 7);
}

/* With every processor taken fewer members wait as much each: all stay. */
static void test_no_processor_is_free(void **state)
{
	const struct machine full = {2, 4, 0};
	struct run r = begin(2);
	(void)state;

	run(&r, &full, 100);
	assert_int_equal(r.c.n, 2);
	assert_true(r.n_window[1] < 30);
}

/* A trial that went well by accident does not last. */
static void test_what_helps_no_more_is_undone(void **state)
{
	const struct machine full = {2, 4, 0};
	struct run r = begin(2);
	(void)state;

	while (r.c.trial != NSV_CROWD_LESS) {
		r.now_ns += WINDOW;
		nsv_crowd_next(&r.c, r.now_ns, WINDOW, WINDOW);
	}
	assert_int_equal(nsv_crowd_next(&r.c, r.now_ns, WINDOW, 0), 1);
	run(&r, &full, 1);
	assert_int_equal(settled(&r), 2);
}

/* One bad window is an accident. */
static void test_an_accident_changes_nothing(void **state)
{
	struct run r = begin(2);
	(void)state;

	for (int i = 0; i < 100; i++) {
		r.now_ns += WINDOW;
		uint64_t delay_ns = i % 2 ? WINDOW : 0;
		assert_int_equal(nsv_crowd_next(&r.c, r.now_ns, WINDOW, delay_ns), 2);
	}
}

/* One that comes and goes does not make the count go up and down all the time. */
static void test_one_that_comes_and_goes(void **state)
{
	const struct machine crowded = {2, 1, 0}, quiet = {2, 0, 0};
	struct run r = begin(2);
	(void)state;

	for (int i = 0; i < 50; i++) {
		run(&r, &crowded, 1);
		run(&r, &quiet, 1);
	}
	assert_true(r.n_change < 60);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_alone_all_compute),
		cmocka_unit_test(test_beside_those_that_never_wait),
		cmocka_unit_test(test_no_processor_is_free),
		cmocka_unit_test(test_what_helps_no_more_is_undone),
		cmocka_unit_test(test_an_accident_changes_nothing),
		cmocka_unit_test(test_one_that_comes_and_goes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
