/* Nodes of memory of made-up machines: which are used, by whom, and what is not believed. */
#include "daemon/numa.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "tests/tools/proc.h"
#include "tests/tools/rnd.h"

#define MAX_LIST 32768

/* ---- A machine in a folder */

static char root[64], status_path[96];

static void put(const char *name, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

/* A node's processors; NULL: the node has no such file. */
static void put_node(uint32_t id, const char *cpus)
{
	char name[64], path[160];

	snprintf(name, sizeof(name), "node%u", id);
	snprintf(path, sizeof(path), "%s/%s", root, name);
	mkdir(path, 0700);
	snprintf(name, sizeof(name), "node%u/cpulist", id);
	if (cpus)
		put(name, cpus);
}

static void put_status(const char *cpus, const char *mems)
{
	static char text[MAX_LIST + 256];

	snprintf(text, sizeof(text),
		"Name:\tMems_allowed_list:\nCpus_allowed:\tff\nCpus_allowed_list:\t%s\n"
		"Mems_allowed:\t3\nMems_allowed_list:\t%s\nvoluntary_ctxt_switches:\t1\n",
		cpus, mems);
	put("status", text);
}

static int look(struct nsv_numa *n, uint32_t n_thread, struct nsv_err *err)
{
	*n = NSV_NUMA_NONE;
	return nsv_numa_init(
		n, &(struct nsv_numa_source){.nodes = root, .status = status_path}, n_thread, err);
}

/* Over so many nodes is memory spread. */
static void expect_nodes(uint32_t n_thread, uint32_t want)
{
	struct nsv_numa n;
	struct nsv_err err = {""};

	if (look(&n, n_thread, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(n.n_node, want);
	nsv_numa_deinit(&n);
}

static void expect_refused(int code, const char *why)
{
	struct nsv_numa n;
	struct nsv_err err = {""};

	assert_int_equal(look(&n, 8, &err), code);
	if (!strstr(err.text, why))
		fail_msg("\"%s\" is not in \"%s\"", why, err.text);
	assert_int_equal(n.n_node, 1);
	assert_null(n.homes);
}

static bool has(const unsigned long *set, uint32_t i)
{
	return set[i / 64] >> i % 64 & 1;
}

static int setup(void **state)
{
	(void)state;
	snprintf(root, sizeof(root), "/tmp/nanoserve-test-XXXXXX");
	if (!mkdtemp(root))
		return -1;
	snprintf(status_path, sizeof(status_path), "%s/status", root);
	put("online", "0-1\n");
	put("has_memory", "0-1\n");
	put_node(0, "0-3\n");
	put_node(1, "4-7\n");
	put_status("0-7", "0-1");
	return 0;
}

static int teardown(void **state)
{
	char command[128];
	(void)state;

	snprintf(command, sizeof(command), "rm -r %s", root);
	return system(command);
}

/* ---- Which nodes */

static void test_two_sockets(void **state)
{
	struct nsv_numa n;
	(void)state;

	assert_int_equal(look(&n, 8, NULL), 0);
	assert_int_equal(n.n_node, 2);
	assert_int_equal(n.nodes[0], 3);
	assert_int_equal(n.n_home, 2);
	for (uint32_t i = 0; i < 8; i++) {
		assert_int_equal(nsv_numa_home_of(&n, i, 8), i / 4);
		assert_int_equal(has(n.homes[0].cpus, i), i < 4);
		assert_int_equal(has(n.homes[1].cpus, i), i >= 4);
	}
	nsv_numa_deinit(&n);
}

/* A file says that there is one: nothing else is read. */
static void test_one_node(void **state)
{
	char path[160];
	(void)state;

	put("has_memory", "0\n");
	unlink(status_path);
	expect_nodes(8, 1);
	snprintf(path, sizeof(path), "%s/has_memory", root);
	unlink(path);
	expect_nodes(8, 1);
}

/* Who runs on one node alone keeps to its memory; so does a team of one. */
static void test_few_members(void **state)
{
	(void)state;
	expect_nodes(1, 1);
	expect_nodes(2, 2);
	expect_nodes(3, 2);
	expect_nodes(1024, 2);
}

static void test_control_group(void **state)
{
	struct nsv_numa n;
	(void)state;

	put_status("0-7", "1");
	expect_nodes(8, 1);
	put_status("4-7", "0-1");
	expect_nodes(8, 1);
	put_status("0-3", "1"); /* no node has both */
	expect_nodes(8, 1);
	put_status("1,6-7", "0-1");
	assert_int_equal(look(&n, 3, NULL), 0);
	assert_int_equal(n.n_node, 2);
	assert_int_equal(n.homes[0].n_cpu, 1);
	assert_int_equal(n.homes[1].n_cpu, 2);
	assert_true(has(n.homes[0].cpus, 1) && !has(n.homes[0].cpus, 0));
	nsv_numa_deinit(&n);
}

/* Processors without memory of their own compute all the same. */
static void test_node_without_memory(void **state)
{
	struct nsv_numa n;
	(void)state;

	put("online", "0-2\n");
	put("has_memory", "0,2\n");
	put_node(2, "8-11\n");
	put_status("0-11", "0-2");
	assert_int_equal(look(&n, 12, NULL), 0);
	assert_int_equal(n.n_node, 2);
	assert_int_equal(n.nodes[0], 5);
	assert_int_equal(n.n_home, 3);
	for (uint32_t i = 0; i < 12; i++)
		assert_int_equal(nsv_numa_home_of(&n, i, 12), i / 4);
	nsv_numa_deinit(&n);
	put("has_memory", "2\n");
	expect_nodes(12, 1);
}

/* Memory on a card, or behind a link: no processor is near it. */
static void test_node_without_processors(void **state)
{
	struct nsv_numa n;
	(void)state;

	put("online", "0-2\n");
	put("has_memory", "0-2\n");
	put_node(2, "\n");
	put_status("0-7", "0-2");
	assert_int_equal(look(&n, 8, NULL), 0);
	assert_int_equal(n.n_node, 2);
	assert_int_equal(n.nodes[0], 3);
	assert_int_equal(n.n_home, 2);
	nsv_numa_deinit(&n);
	put_node(1, "");
	expect_nodes(8, 1);
}

/* Holes in the numbering, a node that went away, and numbers beyond a word. */
static void test_numbers(void **state)
{
	struct nsv_numa n;
	(void)state;

	put("online", "1,900\n");
	put("has_memory", "0-1,900\n");
	put_node(1, "8191,3\n");
	put_node(900, "77-78,1000-1001\n");
	put_status("0-8191", "0-1023");
	assert_int_equal(look(&n, 6, NULL), 0);
	assert_int_equal(n.n_node, 2);
	assert_int_equal(n.n_home, 2);
	assert_int_equal(n.homes[1].id, 900);
	assert_true(has(n.nodes, 1) && has(n.nodes, 900) && !has(n.nodes, 0));
	assert_true(has(n.homes[0].cpus, 8191) && has(n.homes[0].cpus, 3));
	assert_int_equal(n.homes[0].n_cpu, 2);
	assert_int_equal(n.homes[1].n_cpu, 4);
	nsv_numa_deinit(&n);
}

/* 1,024 processors of eight nodes, numbered round. */
static void test_many(void **state)
{
	static char list[MAX_LIST];
	struct nsv_numa n;
	(void)state;

	put("online", "0-7\n");
	put("has_memory", "0-7\n");
	put_status("0-1023", "0-7");
	for (uint32_t id = 0; id < 8; id++) {
		size_t len = 0;
		for (uint32_t cpu = id; cpu < 1024; cpu += 8)
			len += (size_t)snprintf(
				list + len, sizeof(list) - len, "%s%u", len ? "," : "", cpu);
		put_node(id, list);
	}
	assert_int_equal(look(&n, 1024, NULL), 0);
	assert_int_equal(n.n_node, 8);
	assert_int_equal(n.n_cpu, 1024);
	for (uint32_t i = 0; i < 1024; i++)
		assert_int_equal(nsv_numa_home_of(&n, i, 1024), i / 128);
	nsv_numa_deinit(&n);
	expect_nodes(8, 8);
	expect_nodes(3, 3);
}

/* ---- Who is where */

/* Homes have members by their processors, within one, whatever the count. */
static void test_shares(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 2000; round++) {
		struct nsv_numa_home homes[6] = {{0}};
		struct nsv_numa n = {.n_node = 2, .n_home = 1 + t_below(6), .homes = homes};
		uint32_t count = 1 + t_below(300), n_member[6] = {0}, last = 0;

		for (uint32_t i = 0; i < n.n_home; i++)
			n.n_cpu += homes[i].n_cpu = 1 + t_below(100);
		for (uint32_t i = 0; i < count; i++) {
			uint32_t home = nsv_numa_home_of(&n, i, count);
			assert_in_range(home, last, n.n_home - 1);
			n_member[last = home]++;
		}
		for (uint32_t i = 0; i < n.n_home; i++) {
			int64_t share =
				(int64_t)count * homes[i].n_cpu - (int64_t)n_member[i] * n.n_cpu;
			assert_true(share <= (int64_t)n.n_cpu && -share <= (int64_t)n.n_cpu);
		}
	}
}

/* A member stays on its home's processors, and is free to go elsewhere where there is one node. */
static void test_settle(void **state)
{
	struct nsv_numa_home homes[2] = {{.n_cpu = 1}, {.n_cpu = 1}};
	struct nsv_numa n = {.n_node = 1, .n_home = 2, .n_cpu = 2, .homes = homes};
	cpu_set_t all, one, now;
	(void)state;

	assert_int_equal(nsv_proc_stay_on(1, &all), 0);
	assert_int_equal(sched_getaffinity(0, sizeof(one), &one), 0);
	memcpy(homes[1].cpus, &one, sizeof(one));
	memcpy(homes[0].cpus, &all, sizeof(all));
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
	nsv_numa_settle(&n, 1, 2);
	assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
	assert_true(CPU_EQUAL(&now, &all));
	n.n_node = 2;
	nsv_numa_settle(&n, 1, 2);
	assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
	assert_true(CPU_EQUAL(&now, &one));
	nsv_numa_settle(&n, 0, 2);
	assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
	assert_true(CPU_EQUAL(&now, &all));
}

/* ---- What is not believed */

static void test_wrong_lists(void **state)
{
	static const char *const wrong[] = {"0-", "3-1", "x", "0,,1", ",0", "0 1", "-1", "0-1-2",
		"99999999999999999999", "0-8192", "8192", "0-99999999999999999999", "0x1", "+1"};
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(wrong); i++) {
		put_node(1, wrong[i]);
		expect_refused(-EPROTO, "node1/cpulist: ");
	}
	put_node(1, "4-7\n");
	for (size_t i = 0; i < NSV_ARRAY_LEN(wrong); i++) {
		put_status(wrong[i], "0-1");
		expect_refused(-EPROTO, "Cpus_allowed_list:");
		put_status("0-7", wrong[i]);
		expect_refused(-EPROTO, "Mems_allowed_list:");
	}
	put("status", "Cpus_allowed_list:\t0-7\n");
	expect_refused(-EPROTO, "no line Mems_allowed_list:");
	put_status("0-7", "0-1");
	put("has_memory", "0-1024\n");
	expect_refused(-EPROTO, "has_memory: ");
	put("has_memory", "0-1\n");
	put("online", "0-1,\n1");
	expect_nodes(8, 2);
}

static void test_unreadable(void **state)
{
	static char zeros[300000];
	char path[160];
	(void)state;

	memset(zeros, '0', sizeof(zeros) - 1);
	put_node(1, zeros);
	expect_refused(-EFBIG, "node1/cpulist: ");
	put_node(1, "4-7");
	put("online", "0-2");
	expect_refused(-ENOENT, "node2/cpulist: ");
	put_node(2, NULL);
	snprintf(path, sizeof(path), "%s/node2/cpulist", root);
	assert_int_equal(mkdir(path, 0700), 0);
	expect_refused(-EISDIR, "node2/cpulist: ");
	put("online", "0-1");
	unlink(status_path);
	expect_refused(-ENOENT, "status: ");
}

/* A processor is on one node. */
static void test_overlap(void **state)
{
	struct nsv_numa n;
	(void)state;

	put_node(1, "2-7\n");
	assert_int_equal(look(&n, 8, NULL), 0);
	assert_int_equal(n.homes[0].n_cpu, 4);
	assert_int_equal(n.homes[1].n_cpu, 4);
	nsv_numa_deinit(&n);
	put_node(1, "0-3\n");
	expect_nodes(8, 1);
}

int main(void)
{
#define MACHINE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	const struct CMUnitTest tests[] = {
		MACHINE(test_two_sockets),
		MACHINE(test_one_node),
		MACHINE(test_few_members),
		MACHINE(test_control_group),
		MACHINE(test_node_without_memory),
		MACHINE(test_node_without_processors),
		MACHINE(test_numbers),
		MACHINE(test_many),
		cmocka_unit_test(test_shares),
		cmocka_unit_test(test_settle),
		MACHINE(test_wrong_lists),
		MACHINE(test_unreadable),
		MACHINE(test_overlap),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
