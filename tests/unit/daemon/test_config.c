/* The command line over the file over defaults; whatever is wrong is named. */
#include "daemon/config.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/tools/proc.h"

static int parse(struct nsv_config *c, struct nsv_err *err, const char *text)
{
	*c = (struct nsv_config){0};
	return nsv_config_parse(c, text, strlen(text), err);
}

static void test_every_key(void **state)
{
	struct nsv_config c;
	struct nsv_err err;
	(void)state;

	assert_int_equal(
		parse(&c, &err,
			"{\"model\": \"m\", \"socket\": \"s\", \"backend\": \"cpu\","
			" \"kv_blocks\": 9, \"threads\": 2, \"batch_tokens\": 3,"
			" \"mixed_tokens\": 2, \"max_requests\": 4, \"spin_us\": 5,"
			" \"verbose\": true, \"no_numa\": true,"
			" \"users\": [\"root\", 1234, \"77\"], \"groups\": [],"
			" \"limits\": {\"sessions\": 1, \"requests\": 2, \"descriptors\": 9,"
			" \"memory_mib\": 3, \"prompt_bytes\": 4, \"session_slots\": 5,"
			" \"hello_ms\": 6}}"),
		0);
	assert_string_equal(c.model, "m");
	assert_string_equal(c.socket, "s");
	assert_string_equal(c.backend, "cpu");
	assert_int_equal(c.kv_blocks, 9);
	assert_int_equal(c.max_requests, 4);
	assert_int_equal(c.mixed_tokens, 2);
	assert_true(c.verbose && c.no_numa);
	assert_int_equal(c.policy.users.n, 3);
	assert_int_equal(c.policy.users.list[0], 0);
	assert_int_equal(c.policy.users.list[1], 1234);
	assert_int_equal(c.policy.users.list[2], 77);
	assert_true(c.policy.groups.given && c.policy.groups.n == 0);
	assert_int_equal(c.limits.sessions, 1);
	assert_int_equal(c.limits.descriptors, 9);
	assert_int_equal(c.limits.hello_ms, 6);
	nsv_config_deinit(&c);
}

static void test_wrong_files(void **state)
{
	static const char *const wrong[][2] = {
		{"", "line 1"},
		{"[1]", "object"},
		{"{\"model\": 1}", "model must be a string"},
		{"{\"threads\": -1}", "threads is -1"},
		{"{\"threads\": 1e3}", "threads must be an integer"},
		{"{\"threads\": 99999999999}", "threads is 99999999999"},
		{"{\"thread\": 1}", "unknown key \"thread\""},
		{"{\"limits\": {\"model\": \"m\"}}", "unknown key \"model\""},
		{"{\"limits\": 3}", "limits must be an object"},
		{"{\"threads\": 1, \"threads\": 2}", "duplicate"},
		{"{\"batch_tokens\": 0}", "batch_tokens is 0"},
		{"{\"users\": \"root\"}", "users must be a list"},
		{"{\"users\": [\"no such user\"]}", "there is no user \"no such user\""},
		{"{\"users\": [\"\"]}", "there is no user \"\""},
		{"{\"users\": [-1]}", "there is no user \"-1\""},
		{"{\"users\": [4294967295]}", "there is no user \"4294967295\""},
		{"{\"groups\": [\"7x\"]}", "there is no group \"7x\""},
		{"{\"groups\": [1, true]}", "groups: item 1 is neither"},
		{"{\"kv_memory\": 5}", "kv_memory must be a size"},
		{"{\"kv_memory\": \"5\"}", "kv_memory is \"5\""},
		{"{\"kv_memory\": \"0MiB\"}", "kv_memory is \"0MiB\""},
		{"{\"kv_memory\": \"-1GiB\"}", "kv_memory is \"-1GiB\""},
		{"{\"kv_memory\": \"1GB\"}", "kv_memory is \"1GB\""},
		{"{\"kv_memory\": \"9999999999GiB\"}", "kv_memory is"},
		{"{\"kv_memory\": \"99999999999999999999MiB\"}", "kv_memory is"},
	};
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(wrong); i++) {
		struct nsv_config c;
		struct nsv_err err = {""};
		assert_int_equal(parse(&c, &err, wrong[i][0]), -EINVAL);
		if (!strstr(err.text, wrong[i][1]))
			fail_msg("%s: \"%s\" lacks \"%s\"", wrong[i][0], err.text, wrong[i][1]);
		nsv_config_deinit(&c);
	}
}

static int line(struct nsv_config *c, struct nsv_err *err, const char *a, const char *b)
{
	char *argv[] = {"nanoserved", "--model", "m", (char *)a, (char *)b, NULL};

	return nsv_config_init(c, a ? b ? 5 : 4 : 3, argv, err);
}

static void test_command_line(void **state)
{
	struct nsv_config c;
	struct nsv_err err;
	(void)state;

	assert_int_equal(line(&c, &err, NULL, NULL), 0);
	assert_int_equal(c.batch_tokens, 512);
	assert_int_equal(c.mixed_tokens, 32);
	assert_int_equal(c.limits.requests, c.max_requests);
	assert_false(c.policy.users.given || c.policy.groups.given);
	nsv_config_deinit(&c);
	assert_int_equal(line(&c, &err, "--max-requests", "9"), 0);
	assert_int_equal(c.limits.requests, 9);
	nsv_config_deinit(&c);
	assert_int_equal(line(&c, &err, "--groups", "4,root,5"), 0);
	assert_int_equal(c.policy.groups.n, 3);
	assert_int_equal(c.policy.groups.list[1], 0);
	assert_int_equal(c.policy.groups.list[2], 5);
	nsv_config_deinit(&c);
	assert_int_equal(line(&c, &err, "--kv-blocks", "77"), 0);
	assert_int_equal(c.kv_blocks, 77);
	nsv_config_deinit(&c);
	assert_int_equal(line(&c, &err, "--kv-blocks", "7x"), -EINVAL);
	assert_non_null(strstr(err.text, "--kv-blocks is \"7x\""));
	assert_int_equal(line(&c, &err, "--batch-tokens", "0"), -EINVAL);
	assert_non_null(strstr(err.text, "--batch-tokens is 0"));
	assert_int_equal(line(&c, &err, "--users", "root,"), -EINVAL);
	assert_non_null(strstr(err.text, "no user \"\""));
	assert_int_equal(line(&c, &err, "--kv-blocks", NULL), -EINVAL);
	assert_int_equal(line(&c, &err, "--kv-block-size", "7"), -EINVAL);
	assert_int_equal(line(&c, &err, "more", NULL), -EINVAL);
	assert_int_equal(line(&c, &err, "--config", "/nonexistent"), -ENOENT);
	assert_int_equal(line(&c, &err, "--config", "/"), -EISDIR);
}

/* Processors are those that it may run on, however many the machine has. */
static void test_one_processor(void **state)
{
	struct nsv_config c;
	struct nsv_err err;
	cpu_set_t all;
	(void)state;

	assert_int_equal(nsv_proc_stay_on(1, &all), 0);
	int ret = line(&c, &err, NULL, NULL);
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
	assert_int_equal(ret, 0);
	assert_int_equal(c.spin_us, 0);
	nsv_config_deinit(&c);
}

static void test_sizes(void **state)
{
	char *both[] = {
		"nanoserved", "--model", "m", "--kv-blocks", "7", "--kv-memory", "1GiB", NULL};
	struct nsv_config c;
	struct nsv_err err;
	(void)state;

	assert_int_equal(line(&c, &err, "--kv-memory", "3GiB"), 0);
	assert_true(c.kv_memory == 3ull << 30);
	nsv_config_deinit(&c);
	assert_int_equal(line(&c, &err, "--kv-memory", "512MiB"), 0);
	assert_true(c.kv_memory == 512ull << 20);
	nsv_config_deinit(&c);
	assert_int_equal(parse(&c, &err, "{\"kv_memory\": \"8589934591GiB\"}"), 0);
	assert_true(c.kv_memory == 8589934591ull << 30);
	nsv_config_deinit(&c);
	assert_int_equal(line(&c, &err, "--kv-memory", "512"), -EINVAL);
	assert_non_null(strstr(err.text, "--kv-memory is \"512\""));
	assert_int_equal(nsv_config_init(&c, 7, both, &err), -EINVAL);
	assert_non_null(strstr(err.text, "one of them"));
}

static void test_the_command_line_wins(void **state)
{
	char path[] = "/tmp/nanoserve-config-XXXXXX";
	struct nsv_config c;
	struct nsv_err err;
	int fd = mkstemp(path);
	char *argv[] = {"nanoserved", "--threads", "3", "--users", "8", "--config", path, NULL};
	static const char text[] = "{\"model\": \"f\", \"threads\": 2, \"kv_blocks\": 5, "
				   "\"users\": [6, 7]}";
	(void)state;

	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	assert_int_equal(nsv_config_init(&c, 7, argv, &err), 0);
	assert_int_equal(c.policy.users.n, 1);
	assert_int_equal(c.policy.users.list[0], 8);
	assert_int_equal(c.threads, 3);
	assert_int_equal(c.kv_blocks, 5);
	assert_string_equal(c.model, "f");
	nsv_config_deinit(&c);
	close(fd);
	unlink(path);
}

/* A file's word on the pool and a line's, which may be of the other kind. */
static int parse_pool(struct nsv_config *c, const char *text, const char *option, const char *value)
{
	char path[] = "/tmp/nanoserve-config-XXXXXX";
	struct nsv_err err;
	int fd = mkstemp(path);
	char *argv[] = {"nanoserved", "--model", "m", "--config", path, (char *)option,
		(char *)value, NULL};

	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	int ret = nsv_config_init(c, option ? 7 : 5, argv, &err);
	if (ret < 0)
		assert_non_null(strstr(err.text, "one of them"));
	close(fd);
	unlink(path);
	return ret;
}

static void expect_pool(const char *text, const char *option, const char *value, uint32_t kv_blocks,
	uint64_t kv_memory)
{
	struct nsv_config c;

	assert_int_equal(parse_pool(&c, text, option, value), 0);
	assert_true(c.kv_blocks == kv_blocks && c.kv_memory == kv_memory);
	nsv_config_deinit(&c);
}

static void test_one_size_of_the_pool(void **state)
{
	static const char blocks[] = "{\"kv_blocks\": 5}", memory[] = "{\"kv_memory\": \"1GiB\"}";
	static const char both[] = "{\"kv_blocks\": 5, \"kv_memory\": \"1GiB\"}";
	struct nsv_config c;
	(void)state;

	expect_pool(memory, "--kv-blocks", "7", 7, 0);
	expect_pool(blocks, "--kv-memory", "2GiB", 0, 2ull << 30);
	expect_pool(memory, "--kv-blocks", "0", 0, 0);
	expect_pool(blocks, "--kv-blocks", "0", 0, 0);
	expect_pool(memory, "--threads", "1", 0, 1ull << 30);
	expect_pool(blocks, NULL, NULL, 5, 0);
	assert_int_equal(parse_pool(&c, both, NULL, NULL), -EINVAL);
	assert_int_equal(parse_pool(&c, both, "--kv-blocks", "7"), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_key),
		cmocka_unit_test(test_wrong_files),
		cmocka_unit_test(test_command_line),
		cmocka_unit_test(test_one_processor),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_the_command_line_wins),
		cmocka_unit_test(test_one_size_of_the_pool),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
