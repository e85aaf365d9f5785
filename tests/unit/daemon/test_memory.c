/* What memory there is, by made-up control groups of both versions, and credit. */
#include "daemon/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/tools/rnd.h"

#define MIB (1ull << 20)
#define SMALL (16u << 10) /* what is never refused */

/* ---- Groups */

static char mounts[64];

static void put(const char *folder, const char *name, const char *text)
{
	char path[256];

	snprintf(path, sizeof(path), "%s%s", mounts, folder);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s%s/%s", mounts, folder, name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

/* What is left to a process of which the kernel says this. */
static uint64_t left(const char *list)
{
	char path[256];

	put("", "list", list);
	snprintf(path, sizeof(path), "%s/list", mounts);
	return nsv_memory_left_in_groups(path, mounts);
}

static int setup(void **state)
{
	(void)state;
	snprintf(mounts, sizeof(mounts), "/tmp/nanoserve-test-XXXXXX");
	return mkdtemp(mounts) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[128];
	(void)state;

	snprintf(command, sizeof(command), "rm -r %s", mounts);
	return system(command);
}

static void test_no_limit(void **state)
{
	(void)state;

	assert_true(nsv_memory_left_in_groups("/nonexistent", mounts) == UINT64_MAX);
	assert_true(left("") == UINT64_MAX);
	assert_true(left("0::/\n") == UINT64_MAX);
	put("/a", "memory.max", "max\n");
	put("/a", "memory.current", "1048576\n");
	assert_true(left("0::/a\n") == UINT64_MAX);
	assert_true(left("0::/a/b/c\n") == UINT64_MAX);
}

/* The least of a group's own and of those above it. */
static void test_version_2(void **state)
{
	(void)state;

	put("/a", "memory.max", "67108864\n");
	put("/a", "memory.current", "16777216\n");
	put("/a/b", "memory.max", "max\n");
	put("/a/b", "memory.current", "8388608\n");
	assert_true(left("0::/a/b\n") == 48 * MIB);
	put("/a/b", "memory.max", "33554432\n");
	assert_true(left("0::/a/b\n") == 24 * MIB);
	put("/a/b", "memory.high", "16777216\n");
	assert_true(left("0::/a/b\n") == 8 * MIB);
	put("/a/b", "memory.current", "20000000\n"); /* above its limit */
	assert_true(left("0::/a/b\n") == 0);
	assert_true(left("1:name=systemd:/\n0::/a\n") == 48 * MIB);
	/* A container's own group is what is mounted, whatever the path says. */
	put("", "memory.max", "8388608\n");
	put("", "memory.current", "4194304\n");
	assert_true(left("0::/elsewhere\n") == 4 * MIB);
}

/* Cached files go when memory is wanted; regions, which count as files elsewhere, do not. */
static void test_cached_files_are_free(void **state)
{
	(void)state;

	put("/a", "memory.max", "67108864\n");
	put("/a", "memory.current", "67108864\n");
	put("/a", "memory.stat",
		"anon 1048576\nfile 60000000\nshmem 40000000\ninactive_file 1048576\n"
		"active_file 2097152\nunevictable 5\n");
	assert_true(left("0::/a\n") == 3 * MIB);
	put("/a", "memory.stat", "inactive_file 99999999999\n");
	assert_true(left("0::/a\n") == 64 * MIB);
}

static void test_version_1(void **state)
{
	(void)state;

	put("/memory", "memory.limit_in_bytes", "9223372036854771712\n");
	put("/memory", "memory.usage_in_bytes", "67108864\n");
	put("/memory/a", "memory.limit_in_bytes", "33554432\n");
	put("/memory/a", "memory.usage_in_bytes", "33554432\n");
	put("/memory/a", "memory.stat", "inactive_file 1\ntotal_inactive_file 1048576\n");
	assert_true(left("4:memory:/a\n0::/\n") == MIB);
	assert_true(left("9:name=systemd:/a\n7:cpu,cpuacct:/a\n0::/\n") == UINT64_MAX);
	assert_true(left("4:memory:/\n") == UINT64_MAX);
}

static void test_available(void **state)
{
	uint64_t len = nsv_memory_available();
	(void)state;

	assert_true(len > 0);
	assert_true(len < (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
}

/* ---- Credit */

static uint64_t there; /* what is free, taken from by whoever was given it */
static uint32_t n_look;

static uint64_t look(const struct nsv_memory *m)
{
	(void)m;
	n_look++;
	return there;
}

/* Whatever is asked for: no more is given than there is, and few looks are taken for it. */
static void test_never_more_than_there_is(void **state)
{
	(void)state;

	for (int round = 0; round < 200; round++) {
		struct nsv_memory m = {.look = look};
		uint64_t now = 1, total = t_below(1u << 30), most = 1 + t_below(1u << 24);
		there = total;
		n_look = 0;
		for (int i = 0; i < 2000; i++, now += 1000) {
			uint64_t n = SMALL + 1 + t_below((uint32_t)most);
			if (nsv_memory_take(&m, n, now)) {
				assert_true(n <= there);
				there -= n;
			}
		}
		/* One for 32 MiB, or for what is larger; refused, one in 10 ms. */
		assert_true(n_look < total / (16 * MIB) + 4);
	}
}

static void test_refused_for_a_while(void **state)
{
	struct nsv_memory m = {.look = look};
	(void)state;

	there = MIB;
	n_look = 0;
	assert_false(nsv_memory_take(&m, 2 * MIB, 1));
	there = 4 * MIB;
	assert_false(nsv_memory_take(&m, 2 * MIB, 1000));
	assert_int_equal(n_look, 1);
	assert_true(nsv_memory_take(&m, MIB, 1000)); /* what the look had seen */
	assert_true(nsv_memory_take(&m, 2 * MIB, 20000000));
	there = 1;
	assert_false(nsv_memory_take(&m, 4 * MIB, 40000000));
	there = 4 * MIB;
	nsv_memory_look_again(&m);
	assert_true(nsv_memory_take(&m, 4 * MIB, 40000001));
	there = m.credit = 0;
	assert_true(nsv_memory_take(&m, SMALL, 60000000));
	assert_false(nsv_memory_take(&m, SMALL + 1, 60000000));
}

/* A refusal gives no credit that outlives it, beyond what any look gives. */
static void test_a_refusal_is_forgotten(void **state)
{
	struct nsv_memory m = {.look = look};
	(void)state;

	there = 1000 * MIB;
	assert_false(nsv_memory_take(&m, 2000 * MIB, 1));
	there = 0;
	assert_false(nsv_memory_take(&m, 40 * MIB, 1000000000));
	there = 1000 * MIB;
	assert_false(nsv_memory_take(&m, 2000 * MIB, 2000000000));
	there = 0;
	nsv_memory_look_again(&m);
	assert_false(nsv_memory_take(&m, 40 * MIB, 2000000001));
}

static int begin(void **state)
{
	(void)state;
	t_seed();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_no_limit, setup, teardown),
		cmocka_unit_test_setup_teardown(test_version_2, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cached_files_are_free, setup, teardown),
		cmocka_unit_test_setup_teardown(test_version_1, setup, teardown),
		cmocka_unit_test(test_available),
		cmocka_unit_test(test_never_more_than_there_is),
		cmocka_unit_test(test_refused_for_a_while),
		cmocka_unit_test(test_a_refusal_is_forgotten),
	};

	return cmocka_run_group_tests(tests, begin, NULL);
}
