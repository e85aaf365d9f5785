/* The team: every member runs, barriers part phases, sleepers are woken, of any size, more members
 * than processors included. A lost wake-up hangs, until the runner's time is over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/team.h"
#include "tests/ops/support.h"
#include "tests/tools/proc.h"
#include "tests/tools/wait.h"

#define MEMBERS 8u

struct count {
	uint32_t runs[MEMBERS];
	uint32_t size;
};

static void count_part(const struct nsv_part *part, void *arg)
{
	struct count *c = arg;
	assert_true(part->index < part->count && part->count == c->size);
	c->runs[part->index]++;
}

static void test_all_run(void **unused)
{
	(void)unused;
	for (uint32_t n = 1; n <= MEMBERS; n++) {
		struct nsv_team *team = NULL;
		struct count c = {.size = n};
		assert_int_equal(nsv_team_new(n, &team), 0);
		assert_int_equal(nsv_team_size(team), n);
		for (uint32_t i = 1; i <= 300; i++) {
			nsv_team_run(team, count_part, &c);
			for (uint32_t m = 0; m < n; m++)
				assert_int_equal(c.runs[m], i);
		}
		nsv_team_free(team);
	}
}

static void look_at_mask(const struct nsv_part *part, void *arg)
{
	pthread_sigmask(SIG_BLOCK, NULL, (sigset_t *)arg + part->index);
}

/* Members leave signals to the owner's threads, but not those that they cause: a fault's handler
 * runs, whoever reads what is not there. */
static void test_members_signals(void **unused)
{
	struct nsv_team *team = NULL;
	sigset_t masks[3];

	(void)unused;
	assert_int_equal(nsv_team_new(3, &team), 0);
	nsv_team_run(team, look_at_mask, masks);
	nsv_team_free(team);
	for (int i = 1; i < 3; i++) {
		assert_int_equal(sigismember(&masks[i], SIGTERM), 1);
		assert_int_equal(sigismember(&masks[i], SIGBUS), 0);
	}
	assert_int_equal(sigismember(&masks[0], SIGTERM), 0);
}

/* Each phase, a member writes its place from its neighbour's of the phase before. */
struct ring {
	uint32_t at[2][MEMBERS];
	uint32_t n_phase;
	bool late; /* now and then a member is late, so that the others sleep */
};

static void ring_part(const struct nsv_part *part, void *arg)
{
	struct ring *r = arg;
	for (uint32_t p = 0; p < r->n_phase; p++) {
		const uint32_t *from = r->at[p % 2];
		r->at[(p + 1) % 2][part->index] = from[(part->index + 1) % part->count] + 1;
		if (r->late && (p + part->index) % 16 == 0)
			nanosleep(&(struct timespec){0, 1000000}, NULL);
		nsv_team_barrier(part);
	}
}

static void check_ring(uint32_t n, uint32_t n_phase, bool late)
{
	struct nsv_team *team = NULL;
	struct ring r = {.n_phase = n_phase, .late = late};
	assert_int_equal(nsv_team_new(n, &team), 0);
	for (uint32_t m = 0; m < n; m++)
		r.at[0][m] = m;
	nsv_team_run(team, ring_part, &r);
	for (uint32_t m = 0; m < n; m++)
		assert_int_equal(r.at[n_phase % 2][m], (m + n_phase) % n + n_phase);
	nsv_team_free(team);
}

static void test_barrier(void **unused)
{
	(void)unused;
	for (uint32_t n = 1; n <= MEMBERS; n++)
		check_ring(n, 1000 + t_below(50), false);
}

static void test_sleepers(void **unused)
{
	(void)unused;
	for (uint32_t n = 2; n <= 5; n++)
		check_ring(n, 60 + t_below(10), true);
}

/* Each phase, every item is taken once, whoever is late, by however many there are. */
struct taking {
	uint32_t n_phase, n_item;
	_Atomic uint32_t times[64];
};

static void take_part(const struct nsv_part *part, void *arg)
{
	struct taking *t = arg;
	for (uint32_t p = 0; p < t->n_phase; p++) {
		uint32_t alone = 0, item;
		if ((p + part->index) % 8 == 0)
			sched_yield();
		while ((item = nsv_team_take(part, &alone)) < t->n_item)
			atomic_fetch_add(&t->times[item], 1);
		nsv_team_barrier(part);
	}
}

static void test_take(void **unused)
{
	(void)unused;
	for (uint32_t n = 1; n <= MEMBERS; n++) {
		struct nsv_team *team = NULL;
		struct taking t = {.n_phase = 100, .n_item = 1 + t_below(64)};
		assert_int_equal(nsv_team_new(n, &team), 0);
		for (uint32_t run = 1; run <= 3; run++) {
			nsv_team_run(team, take_part, &t);
			for (uint32_t i = 0; i < t.n_item; i++)
				assert_int_equal(t.times[i], run * t.n_phase);
		}
		nsv_team_free(team);
	}
}

/* Between runs members sleep; a run wakes them. */
static void test_wake_after_idle(void **unused)
{
	struct nsv_team *team = NULL;
	struct count c = {.size = 4};
	(void)unused;
	assert_int_equal(nsv_team_new(4, &team), 0);
	for (uint32_t i = 1; i <= 20; i++) {
		nanosleep(&(struct timespec){0, (long)t_below(4000000)}, NULL);
		nsv_team_run(team, count_part, &c);
		assert_int_equal(c.runs[3], i);
	}
	nsv_team_free(team);
}

/* Any number up to the first one; nobody misses a run or has one twice. */
static void test_resize(void **unused)
{
	struct nsv_team *team = NULL;
	(void)unused;
	assert_int_equal(nsv_team_new(MEMBERS, &team), 0);
	for (uint32_t i = 0; i < 200; i++) {
		uint32_t n = t_below(MEMBERS + 3), now = (uint32_t)nsv_max(1, nsv_min(n, MEMBERS));
		struct count c = {.size = now};
		nsv_team_resize(team, n);
		assert_int_equal(nsv_team_size(team), now);
		for (uint32_t k = 1; k <= i % 4; k++) {
			nsv_team_run(team, count_part, &c);
			for (uint32_t m = 0; m < MEMBERS; m++)
				assert_int_equal(c.runs[m], m < now ? k : 0);
		}
	}
	nsv_team_free(team);
}

#define DELAY_NS 50000000u

struct delayed {
	const struct nsv_team *team;
	uint64_t until_ns;
	_Atomic uint32_t is_over;
};

static void be_delayed_part(const struct nsv_part *part, void *arg)
{
	struct delayed *d = arg;
	uint64_t now_ns = 0;
	while (!atomic_load(&d->is_over))
		if (part->index == 0 && (nsv_team_delay_ns(d->team, &now_ns) < 0 ||
						now_ns >= d->until_ns))
			atomic_store(&d->is_over, 1);
}

static void new_team_on_one_cpu(uint32_t n, struct nsv_team **ret_team)
{
	cpu_set_t all;
	assert_int_equal(nsv_proc_stay_on(1, &all), 0);
	assert_int_equal(nsv_team_new(n, ret_team), 0);
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

/* Two members share a processor: what one waits while the other runs is seen. */
static void test_delay(void **unused)
{
	struct nsv_team *team = NULL;
	struct delayed d = {0};
	(void)unused;
	if (getenv("NANOSERVE_QUICK"))
		skip(); /* under valgrind threads wait for each other, not for processors */
	new_team_on_one_cpu(3, &team);
	d.team = team;
	if (nsv_team_delay_ns(team, &d.until_ns) == 0) {
		d.until_ns += DELAY_NS;
		nsv_team_run(team, be_delayed_part, &d);
	} else {
		print_message("the kernel does not tell\n");
	}
	nsv_team_free(team);
}

/* ---- Who waits awake lets others have its processor meanwhile. Whether they take it is the
 * scheduler's. */

static _Atomic uint32_t n_yield;
static _Thread_local bool is_counted;

/* The team's too: a program's own function comes before the C library's. */
int sched_yield(void)
{
	if (is_counted)
		atomic_fetch_add(&n_yield, 1);
	return (int)syscall(SYS_sched_yield);
}

/* A member comes only when the other, which waits for it, has yielded: one that sleeps at once does
 * not. */
static void wait_for_yield_part(const struct nsv_part *part, void *arg)
{
	bool *has_yielded = arg;
	is_counted = part->index == 0;
	if (part->index == 1)
		*has_yielded = NSV_WAIT_FOR(atomic_load(&n_yield) > 0);
	nsv_team_barrier(part);
	is_counted = false;
}

static void expect_yield(struct nsv_team *team)
{
	bool has_yielded = false;
	atomic_store(&n_yield, 0);
	nsv_team_run(team, wait_for_yield_part, &has_yielded);
	assert_true(has_yielded);
}

static void test_who_waits_yields(void **unused)
{
	struct nsv_team *team = NULL;
	(void)unused;
	if (nsv_team_cpus() < 2)
		skip(); /* a crowded team hardly spins */
	assert_int_equal(nsv_team_new(2, &team), 0);
	expect_yield(team);
	nsv_team_free(team);
}

/* An owner that keeps to some of the processors makes members for all of them: who waits does so
 * awake, as if there was a processor for each. */
static void test_owner_stays(void **unused)
{
	struct nsv_team *team = NULL;
	cpu_set_t all;
	(void)unused;
	if (nsv_team_cpus() < 2)
		skip(); /* as above */
	assert_int_equal(nsv_team_new(2, &team), 0);
	assert_int_equal(nsv_proc_stay_on(1, &all), 0);
	nsv_team_resize(team, 1);
	nsv_team_resize(team, 2);
	expect_yield(team);
	nsv_team_free(team);
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

static void test_new_and_free(void **unused)
{
	struct nsv_team *team = NULL;
	(void)unused;
	assert_int_equal(nsv_team_new(0, &team), -EINVAL);
	assert_null(team);
	nsv_team_free(NULL);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(nsv_team_new(1 + i % 6, &team), 0);
		nsv_team_free(team);
	}
}

/* Shares are whole, in order, of whole units, and differ by a unit at most. */
static void test_range(void **unused)
{
	(void)unused;
	for (int i = 0; i < 2000; i++) {
		size_t n = t_below(1000), unit = 1 + t_below(40);
		size_t at = 0, least = SIZE_MAX, most = 0;
		uint32_t count = 1 + t_below(9);
		for (uint32_t m = 0; m < count; m++) {
			struct nsv_part part = {m, count, NULL};
			size_t begin, end, units;
			nsv_part_range(&part, n, unit, &begin, &end);
			assert_int_equal(begin, at);
			assert_true(end >= begin && (end == n || end % unit == 0));
			units = (end - begin + unit - 1) / unit;
			least = nsv_min(least, units);
			most = nsv_max(most, units);
			at = end;
		}
		assert_int_equal(at, n);
		assert_true(most - least <= 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_run),
		cmocka_unit_test(test_members_signals),
		cmocka_unit_test(test_barrier),
		cmocka_unit_test(test_sleepers),
		cmocka_unit_test(test_take),
		cmocka_unit_test(test_wake_after_idle),
		cmocka_unit_test(test_resize),
		cmocka_unit_test(test_delay),
		cmocka_unit_test(test_who_waits_yields),
		cmocka_unit_test(test_owner_stays),
		cmocka_unit_test(test_new_and_free),
		cmocka_unit_test(test_range),
	};
	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
