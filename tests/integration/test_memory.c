/* A daemon whose control group has little memory: who asks for more than is left is refused by
 * name, and nobody can have the daemon killed. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/tools/group.h"
#include "tests/tools/proc.h"
#include "tests/tools/raw.h"
#include "tests/tools/serve.h"
#include "tests/tools/wait.h"

#define MIB (1ull << 20)
/* With prompts of 1 MiB, of which each byte may take 40, the daemon keeps 56 MiB to itself. */
#define KEPT (56 * MIB)
#define JSON "{\"limits\": {\"prompt_bytes\": 1048576}}"
#define MOST 200 /* more than the group could have */

static struct nsv_served served;
static struct nsv_test_group group;
static struct nsv_client *witness; /* has been served since before memory was short */

/* The daemon has this beside what it keeps to itself. */
static void begin(uint64_t bytes)
{
	nsv_test_group_begin(&group);
	nsv_serve(&served, JSON);
	witness = nsv_serve_open(&served);
	nsv_test_group_add(&group, served.daemon.pid);
	nsv_test_group_leave(&group, KEPT + bytes);
}

static void expect_served(void)
{
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));

	nsv_serve_ask(witness, a);
	assert_string_equal(a->reason, "");
	assert_int_equal(a->n_token, 2);
}

static int open_session(uint32_t arena_len, struct nsv_client **ret_client)
{
	struct nsv_client_options o;
	char text[256] = "";

	nsv_ask_options(&o);
	o.arena_len = arena_len;
	int ret = nsv_client_open(served.daemon.socket, &o, text, sizeof(text), ret_client);
	if (ret == -ENOMEM)
		assert_non_null(strstr(text, "memory.max"));
	return ret;
}

/* What was given back is there again, as soon as it is back. */
static void end(void)
{
	struct nsv_client *client;

	expect_served();
	assert_int_equal(nsv_test_group_kills(&group), 0);
	assert_true(NSV_WAIT_FOR(open_session(16 * MIB, &client) == 0));
	nsv_client_close(client);
	nsv_client_close(witness);
	nsv_test_group_leave(&group, KEPT + 64 * MIB);
	nsv_serve_end(&served);
	nsv_test_group_end(&group);
}

/* As many sessions as there are, of this size. */
static void fill_with(uint32_t arena_len)
{
	struct nsv_client *clients[MOST];
	int n = 0, ret;

	begin(64 * MIB);
	while ((ret = open_session(arena_len, &clients[n])) == 0)
		assert_true(++n < MOST);
	assert_int_equal(ret, -ENOMEM);
	assert_in_range(n, 1, 64 * MIB / arena_len);
	expect_served();
	while (n > 0)
		nsv_client_close(clients[--n]);
	end();
}

static void test_small_sessions(void **state)
{
	(void)state;
	fill_with(MIB);
}

static void test_large_sessions(void **state)
{
	(void)state;
	fill_with(16 * MIB);
}

/* A session's pages given back by a hole are owed to it: a prompt there takes them again. */
static void test_holes(void **state)
{
	enum { ARENA = 32 << 20, LEN = 1 << 20 };
	struct nsv_geom want = {.n_slot = 2, .arena_len = ARENA, .n_token = 64, .text_len = 1024};
	struct nsv_raw r, other;
	struct nsv_cqe c;
	(void)state;

	begin(56 * MIB);
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, &want), 0);
	assert_int_equal(fallocate(r.up_region.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				 (char *)r.up.arena - (char *)r.up_region.map, ARENA),
		0);
	assert_int_equal(nsv_raw_open(&other, served.daemon.socket, &want), NSV_E_NOMEM);
	for (uint32_t at = 0; at < ARENA; at += LEN) {
		struct nsv_sqe sqe = {.op = NSV_OP_TOKENIZE,
			.request_id = ++r.last_id,
			.prompt_off = at,
			.prompt_len = LEN};
		nsv_raw_put(&r, &sqe);
		do
			assert_true(nsv_raw_next(&r, &c));
		while (c.request_id != sqe.request_id);
		sqe = (struct nsv_sqe){.op = NSV_OP_CANCEL,
			.request_id = sqe.request_id,
			.target_id = sqe.request_id};
		nsv_raw_put(&r, &sqe);
		assert_true(nsv_raw_next(&r, &c));
	}
	expect_served();
	nsv_raw_close(&r);
	end();
}

/* What requests hold is asked for as well: outputs that nobody reads, and the longest of words. */
static void test_prompts(void **state)
{
	enum { LEN = 1 << 20, N = 64 };
	struct nsv_geom want = {.n_slot = N, .arena_len = LEN, .n_token = 64, .text_len = 1024};
	uint32_t n_refused = 0;
	struct nsv_raw r;
	struct nsv_cqe c;
	(void)state;

	begin(32 * MIB);
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, &want), 0);
	for (uint32_t i = 0; i < N; i++) {
		struct nsv_sqe sqe = nsv_raw_tokenize(&r, i, LEN);
		nsv_raw_put(&r, &sqe);
		do
			assert_true(nsv_raw_next(&r, &c));
		while (c.request_id != sqe.request_id);
		if (c.kind != NSV_CQE_ERROR)
			continue;
		assert_int_equal(c.code, NSV_E_NOMEM);
		assert_non_null(strstr(r.down.slots[i].text, "memory.max"));
		n_refused++;
	}
	assert_in_range(n_refused, 1, N - 1);
	expect_served();
	nsv_raw_close(&r);
	end();
}

/* What a long word took for a moment is nobody's: kept, clients could not have it. */
static void test_long_words_leave_nothing(void **state)
{
	enum { LEN = 1 << 20, N = 8 };
	struct nsv_geom want = {.n_slot = 1, .arena_len = LEN, .n_token = 64, .text_len = 1024};
	struct nsv_raw r;
	struct nsv_cqe c;
	(void)state;

	nsv_serve(&served, JSON);
	assert_int_equal(nsv_raw_open(&r, served.daemon.socket, &want), 0);
	long own = nsv_proc_rollup(served.daemon.pid, "Pss_Anon:");
	for (uint32_t i = 0; i < N; i++) {
		struct nsv_sqe sqe = nsv_raw_tokenize(&r, 0, LEN >> i % 3); /* one may have what another left */
		nsv_raw_put(&r, &sqe);
		do
			assert_true(nsv_raw_next(&r, &c));
		while (c.request_id != sqe.request_id);
		assert_int_not_equal(c.kind, NSV_CQE_ERROR);
		sqe = (struct nsv_sqe){.op = NSV_OP_CANCEL,
			.request_id = sqe.request_id,
			.target_id = sqe.request_id};
		nsv_raw_put(&r, &sqe);
		assert_true(nsv_raw_next(&r, &c));
	}
	nsv_raw_close(&r);
	assert_true(NSV_WAIT_FOR(
		nsv_proc_rollup(served.daemon.pid, "Pss_Anon:") < own + (long)(4 * MIB)));
	nsv_serve_end(&served);
}

static void read_groups(char *text, size_t len)
{
	FILE *f = fopen("/proc/self/cgroup", "re");

	assert_non_null(f);
	text[fread(text, 1, len - 1, f)] = '\0';
	fclose(f);
}

/* A daemon that begins with too little for anybody says so, and what would help. */
static void test_warning(void **state)
{
	const char *const jsons[] = {"{\"limits\": {\"prompt_bytes\": 67108864}}", JSON};
	char before[4096], after[4096];
	(void)state;

	read_groups(before, sizeof(before));
	nsv_test_group_begin(&group);
	nsv_test_group_leave(&group, 1024 * MIB); /* less than 40 times the longest prompt */
	for (size_t i = 0; i < NSV_ARRAY_LEN(jsons); i++) {
		nsv_test_group_add(&group, getpid());
		nsv_serve(&served, jsons[i]);
		nsv_test_group_drop(&group, getpid());
		assert_int_equal(nsv_test_daemon_logged(&served.daemon, "are left for sessions"),
			i == 0);
		assert_int_equal(nsv_serve_stop(&served), 0);
	}
	nsv_test_group_end(&group);
	read_groups(after, sizeof(after));
	assert_string_equal(after, before);
}

/* What is freed goes back at once, as without AddressSanitizer. */
static int start(void **state)
{
	(void)state;
	return setenv("ASAN_OPTIONS",
		"quarantine_size_mb=0:thread_local_quarantine_size_kb=0", 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small_sessions),
		cmocka_unit_test(test_large_sessions),
		cmocka_unit_test(test_holes),
		cmocka_unit_test(test_prompts),
		cmocka_unit_test(test_long_words_leave_nothing),
		cmocka_unit_test(test_warning),
	};

	return cmocka_run_group_tests(tests, start, NULL);
}
