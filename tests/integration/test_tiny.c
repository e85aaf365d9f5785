/* A real daemon over a tiny model: what goes wrong gets its error, and everybody else goes on. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/raw.h"
#include "tests/tools/tiny.h"
#include "tests/tools/wait.h"

static struct nsv_test_daemon served;
static char model[64];

static const char *const extra[] = {"--kv-blocks", "64", "--threads", "2", NULL};

static int start(void **state)
{
	(void)state;

	nsv_tiny_model(model, sizeof(model));
	return nsv_test_daemon_start(&served, model, extra);
}

static int tidy(void **state)
{
	(void)state;
	return nsv_test_daemon_tidy(&served, model, extra);
}

static int stop(void **state)
{
	int status = nsv_test_daemon_stop(&served, SIGTERM);
	(void)state;

	unlink(model);
	return status == 0 ? 0 : -1;
}

static struct nsv_client *open_client(void)
{
	struct nsv_client *client = nsv_ask_open(served.socket);

	assert_non_null(client);
	return client;
}

/* After whatever happened: the daemon serves, and holds nothing of those that have gone. */
static void check_daemon_goes_on(void)
{
	struct nsv_client *client = open_client();
	struct nsv_answer *a = malloc(sizeof(*a));

	nsv_ask_hello(client, a);
	assert_string_equal(a->reason, "");
	assert_int_equal(a->n_token, 8);
	assert_true(nsv_ask_status_until(client, "blocks.free", 64));
	assert_true(nsv_ask_status_until(client, "sessions", 1));
	free(a);
	nsv_client_close(client);
}

/* ---- Requests that are refused */

static void expect_refusal(struct nsv_client *client, const char *text,
	const struct nsv_client_params *p, uint32_t code, const char *sentence)
{
	struct nsv_answer *a = malloc(sizeof(*a));

	nsv_ask_text(client, text, p, a);
	assert_int_equal(a->ret, 0);
	assert_int_equal(a->result.finish, NSV_CLIENT_FINISH_ERROR);
	if (a->result.code != code || !strstr(a->reason, sentence))
		fail_msg("code %u: \"%s\", expected %u: \"%s\"", a->result.code, a->reason, code,
			sentence);
	free(a);
}

static void test_refusals_name_the_fault(void **state)
{
	struct nsv_client *client = open_client();
	struct nsv_client_params p;
	char *long_text = malloc(1000);
	(void)state;

	memset(long_text, 'z', 999);
	long_text[999] = '\0';
	expect_refusal(client, long_text, NULL, NSV_E_CONTEXT, "999 tokens; the context is 512");
	expect_refusal(client, "", NULL, NSV_E_PARAM, "empty");
	expect_refusal(client, "a\xff", NULL, NSV_E_UTF8, "UTF-8");
	nsv_client_params_init(&p);
	p.temperature = NAN;
	expect_refusal(client, "x", &p, NSV_E_PARAM, "temperature");
	nsv_client_params_init(&p);
	p.top_p = 1.5f;
	expect_refusal(client, "x", &p, NSV_E_PARAM, "top_p");
	nsv_client_params_init(&p);
	p.priority = 101;
	expect_refusal(client, "x", &p, NSV_E_PARAM, "priority");
	nsv_client_params_init(&p);
	p.n_logprob = 1000;
	p.flags = NSV_CLIENT_LOGPROBS;
	expect_refusal(client, "x", &p, NSV_E_PARAM, "logprob");
	free(long_text);
	nsv_client_close(client);
	check_daemon_goes_on();
}

static void test_a_prompt_that_fits_exactly(void **state)
{
	struct nsv_client *client = open_client();
	struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_client_params p;
	int32_t ids[NSV_TINY_CONTEXT];
	(void)state;

	for (int i = 0; i < NSV_TINY_CONTEXT; i++)
		ids[i] = 4 + i % 200;
	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	nsv_ask_ids(client, ids, NSV_TINY_CONTEXT - 1, &p, a);
	assert_string_equal(a->reason, "");
	assert_int_equal(a->n_token, 1);
	assert_int_equal(a->result.finish, NSV_CLIENT_FINISH_LENGTH);
	nsv_ask_ids(client, ids, NSV_TINY_CONTEXT, &p, a);
	assert_int_equal(a->result.code, NSV_E_CONTEXT);
	ids[3] = 1 << 20;
	nsv_ask_ids(client, ids, 10, &p, a);
	assert_int_equal(a->result.code, NSV_E_TOKEN);
	free(a);
	nsv_client_close(client);
}

/* ---- Connections */

static int refused_with(const void *packet, size_t len)
{
	int fd = nsv_raw_connect(served.socket), up_fd, down_fd;
	struct nsv_welcome w;
	struct nsv_err err;

	assert_true(fd >= 0);
	assert_int_equal(send(fd, packet, len, MSG_NOSIGNAL), len);
	int ret = nsv_welcome_recv(fd, &w, &up_fd, &down_fd, &err);
	close(fd);
	return ret;
}

static void test_hellos(void **state)
{
	struct nsv_hello h = nsv_hello_make(NULL);
	(void)state;

	assert_int_equal(refused_with("hi", 2), NSV_E_HELLO);
	h.major++;
	assert_int_equal(refused_with(&h, sizeof(h)), NSV_E_VERSION);
	h = nsv_hello_make(NULL);
	h.feat_incompat = 1ull << 60;
	assert_int_equal(refused_with(&h, sizeof(h)), NSV_E_VERSION);
	h = nsv_hello_make(NULL);
	h.want.n_sqe = 3;
	assert_int_equal(refused_with(&h, sizeof(h)), NSV_E_HELLO);
	h = nsv_hello_make(NULL);
	h.want.n_slot = 1u << 31;
	assert_int_equal(refused_with(&h, sizeof(h)), NSV_E_LIMIT);
	check_daemon_goes_on();
}

static void test_connections_that_say_nothing(void **state)
{
	int fds[200];
	(void)state;

	for (int i = 0; i < 200; i++) {
		fds[i] = nsv_raw_connect(served.socket);
		assert_true(fds[i] >= 0);
	}
	check_daemon_goes_on();
	for (int i = 0; i < 200; i++)
		close(fds[i]);
}

/* ---- Entries */

static void test_entries_that_are_wrong(void **state)
{
	struct nsv_raw r;
	struct nsv_cqe c;
	(void)state;

	assert_int_equal(nsv_raw_open(&r, served.socket, NULL), 0);
	const struct nsv_sqe good = nsv_raw_prompt(&r, "abc", NULL);
	struct {
		struct nsv_sqe sqe;
		uint32_t code;
	} wrong[] = {{good, NSV_E_ENTRY}, {good, NSV_E_ENTRY}, {good, NSV_E_ENTRY},
		{good, NSV_E_ENTRY}, {good, NSV_E_ENTRY}, {good, NSV_E_PARAM}, {good, NSV_E_PARAM},
		{good, NSV_E_LIMIT}, {good, NSV_E_LIMIT}, {good, NSV_E_PARAM}, {good, NSV_E_ID},
		{good, NSV_E_ID}, {good, NSV_E_ENTRY}, {good, NSV_E_ENTRY}};
	wrong[0].sqe.op = 99;
	wrong[1].sqe.flags = 0x80;
	wrong[2].sqe.flags = NSV_SQE_KIND;
	wrong[3].sqe.slot = 60000;
	wrong[4].sqe.reserved1[4] = 1;
	wrong[5].sqe.prompt_off = r.welcome.geom.arena_len - 1;
	wrong[6].sqe.prompt_off = 0xfffffff8u;
	wrong[7].sqe.prompt_len = 0xffffffffu;
	wrong[8].sqe.params_len = 0xfffffff0u;
	wrong[9].sqe.op = NSV_OP_FORK;
	wrong[9].sqe.target_id = 1; /* a fork has no prompt of its own */
	wrong[10].sqe.op = NSV_OP_CANCEL;
	wrong[10].sqe.target_id = 1u << 30;
	wrong[11].sqe = (struct nsv_sqe){.op = NSV_OP_FORK, .branch = 1, .target_id = 1};
	wrong[12].sqe.op = NSV_OP_TOKENIZE;
	wrong[12].sqe.branch = 1;
	wrong[13].sqe = (struct nsv_sqe){.op = NSV_OP_DRAIN, .target_id = 1};
	for (size_t i = 0; i < NSV_ARRAY_LEN(wrong); i++) {
		wrong[i].sqe.request_id = ++r.last_id;
		nsv_raw_put(&r, &wrong[i].sqe);
		assert_true(nsv_raw_next(&r, &c));
		assert_int_equal(c.kind, NSV_CQE_ERROR);
		if (c.code != wrong[i].code)
			fail_msg("entry %zu: code %u, expected %u", i, c.code, wrong[i].code);
	}
	struct nsv_sqe again = good;
	again.request_id = 1; /* not growing */
	nsv_raw_put(&r, &again);
	assert_true(nsv_raw_next(&r, &c));
	assert_int_equal(c.code, NSV_E_ID);
	nsv_raw_close(&r);
	check_daemon_goes_on();
}

static void test_a_busy_slot(void **state)
{
	struct nsv_params p = nsv_raw_endless;
	struct nsv_raw r;
	struct nsv_cqe c;
	(void)state;

	p.max_tokens = 400;
	assert_int_equal(nsv_raw_open(&r, served.socket, NULL), 0);
	struct nsv_sqe first = nsv_raw_prompt(&r, "abc", &p);
	struct nsv_sqe second = nsv_raw_prompt(&r, "abc", &p);
	nsv_raw_put(&r, &first);
	nsv_raw_put(&r, &second);
	do {
		assert_true(nsv_raw_next(&r, &c));
	} while (c.kind != NSV_CQE_ERROR);
	assert_int_equal(c.code, NSV_E_BUSY);
	assert_int_equal(c.request_id, second.request_id);
	nsv_raw_close(&r);
	check_daemon_goes_on();
}

static void test_impossible_indices_end_the_session(void **state)
{
	struct nsv_raw r;
	(void)state;

	assert_int_equal(nsv_raw_open(&r, served.socket, NULL), 0);
	nsv_store_rel_u32(&r.up.head->sq_tail, 0x7fffffff);
	nsv_bell_send(r.fd);
	assert_true(nsv_raw_closed(&r));
	nsv_raw_close(&r);

	assert_int_equal(nsv_raw_open(&r, served.socket, NULL), 0);
	nsv_store_rel_u32(&r.up.head->reply_head, 0x7fffffff);
	nsv_bell_send(r.fd);
	assert_true(nsv_raw_closed(&r));
	nsv_raw_close(&r);
	check_daemon_goes_on();
}

static void test_holes_in_the_region(void **state)
{
	struct nsv_raw r;
	(void)state;

	assert_int_equal(nsv_raw_open(&r, served.socket, NULL), 0);
	struct nsv_sqe sqe = nsv_raw_prompt(&r, "abc", NULL);
	nsv_raw_put(&r, &sqe);
	assert_int_equal(fallocate(r.up_region.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
				 (off_t)r.up_region.len),
		0);
	nsv_bell_send(r.fd);
	/* An answer, the end of the session, or nothing, where the indices were gone before it
	 * looked. */
	nsv_raw_close(&r);
	check_daemon_goes_on();
}

/* NOPs without end, replies never taken: the ring fills, and goes on when it is read. */
static void test_replies_that_are_not_taken(void **state)
{
	struct nsv_raw r;
	struct nsv_cqe c;
	struct nsv_sqe nop = {.op = NSV_OP_NOP};
	uint32_t n_got = 0, room = 1, held = 0;
	(void)state;

	/* Places are kept free for two replies of each slot. */
	assert_int_equal(nsv_raw_open(&r, served.socket, NULL), 0);
	const uint32_t full = r.welcome.geom.n_cqe - 2 * r.welcome.geom.n_slot;
	do {
		while (nsv_sq_put(&r.sq, &nop) == 0)
			;
		nsv_sq_publish(&r.sq);
		nsv_bell_send(r.fd);
		assert_int_equal(nsv_cq_ready(&r.reply, &held), 0);
		assert_int_equal(nsv_sq_space(&r.sq, &room), 0);
		usleep(100);
	} while (held < full || room > 0);
	assert_int_equal(held, full);
	while (n_got < r.sq.tail && nsv_raw_next(&r, &c)) {
		assert_int_equal(c.kind, NSV_CQE_PONG);
		n_got++;
		if (nsv_wait_must_ring(&r.down.head->wait, &r.rung))
			nsv_bell_send(r.fd);
	}
	assert_int_equal(n_got, r.sq.tail);
	nsv_raw_close(&r);
	check_daemon_goes_on();
}

/* ---- A slow reader */

static void test_a_slow_reader_waits_alone(void **state)
{
	struct nsv_params p = nsv_raw_endless;
	struct nsv_client *client = open_client();
	struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_client_params cp;
	struct nsv_geom want = {.n_token = 64};
	struct nsv_raw r;
	struct nsv_cqe c;
	int32_t got[400];
	uint32_t n = 0;
	(void)state;

	p.max_tokens = 400;
	nsv_client_params_init(&cp);
	cp.flags = NSV_CLIENT_IGNORE_END;
	cp.max_tokens = 400;
	nsv_ask_text(client, "slow", &cp, a);
	assert_int_equal(a->n_token, 400);

	assert_int_equal(nsv_raw_open(&r, served.socket, &want), 0);
	struct nsv_sqe sqe = nsv_raw_prompt(&r, "slow", &p);
	nsv_raw_put(&r, &sqe);
	assert_true(NSV_WAIT_FOR(nsv_load_acq_u32(&r.down.slots[0].state) == NSV_SLOT_PAUSED));
	assert_int_equal(nsv_load_acq_u64(&r.down.slots[0].token_end), 64);
	nsv_client_close(client);
	client = open_client();
	struct nsv_answer *b = malloc(sizeof(*b));
	nsv_ask_text(client, "slow", &cp, b); /* nobody else waits */
	assert_int_equal(b->n_token, 400);

	while (n < 400) {
		uint64_t end = nsv_load_acq_u64(&r.down.slots[0].token_end);
		for (; n < end; n++)
			got[n] = nsv_down_tokens(&r.down, &r.welcome.geom, 0)[n % 64];
		nsv_cursor_move(&r.up.slots[0].text_read,
			nsv_load_acq_u64(&r.down.slots[0].text_end), &r.down.slots[0]);
		if (nsv_cursor_move(&r.up.slots[0].token_read, n, &r.down.slots[0]))
			nsv_bell_send(r.fd);
		usleep(100);
	}
	assert_memory_equal(got, a->tokens, sizeof(got));
	do {
		assert_true(nsv_raw_next(&r, &c));
	} while (c.kind != NSV_CQE_FINISHED);
	free(a);
	free(b);
	nsv_client_close(client);
	nsv_raw_close(&r);
	check_daemon_goes_on();
}

/* With no step to run, a reader that stays away costs no blocks after a while. */
static void test_a_paused_request_gives_its_blocks_back(void **state)
{
	struct nsv_client_options o;
	struct nsv_client_params p;
	struct nsv_client *client = open_client(), *slow;
	struct nsv_request *r;
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	nsv_autofree struct nsv_answer *b = malloc(sizeof(*b));
	(void)state;

	nsv_ask_options(&o);
	o.n_token = 64;
	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.max_tokens = 300;
	nsv_ask_text(client, "later", &p, a);
	long long before = nsv_ask_status(client, "counters.preemptions");
	assert_int_equal(nsv_client_open(served.socket, &o, NULL, 0, &slow), 0);
	assert_int_equal(nsv_client_submit_text(slow, "later", 5, &p, &r), 0);
	assert_true(NSV_WAIT_FOR(nsv_ask_status(client, "counters.preemptions") > before));
	assert_true(nsv_ask_status_until(client, "blocks.free", 64));
	nsv_ask_finish(slow, 0, r, b);
	assert_int_equal(b->ret, 0);
	assert_true(b->result.n_preempt > 0);
	assert_int_equal(b->n_token, 300);
	assert_memory_equal(b->tokens, a->tokens, 300 * sizeof(*a->tokens));
	nsv_client_close(slow);
	nsv_client_close(client);
}

/* ---- Outputs longer than their logs */

static void test_a_long_tokenize_flows(void **state)
{
	enum { LEN = 100000 };
	struct nsv_client *client = open_client();
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *req;
	char *text = malloc(LEN);
	size_t n = 0;
	int ret;
	(void)state;

	for (size_t i = 0; i < LEN; i++)
		text[i] = (char)('a' + i % 26);
	assert_int_equal(nsv_client_tokenize(client, text, LEN, 0, &req), 0);
	while ((ret = nsv_ask_next(req, &chunk)) > 0)
		for (size_t i = 0; i < chunk.n_token; i++)
			n += chunk.tokens[i] >= 4;
	assert_int_equal(ret, 0);
	assert_true(n > 4096 && n <= LEN);
	nsv_request_free(req);
	free(text);
	nsv_client_close(client);
	check_daemon_goes_on();
}

static void test_audit_on_request(void **state)
{
	struct nsv_client *client = open_client();
	long long n = nsv_ask_status(client, "counters.audits");
	(void)state;

	kill(served.pid, SIGUSR1);
	assert_true(NSV_WAIT_FOR(nsv_test_daemon_logged(&served, "all accounted for")));
	assert_true(NSV_WAIT_FOR(nsv_ask_status(client, "counters.audits") > n));
	nsv_client_close(client);
}

#define TEST(f) cmocka_unit_test_setup(f, tidy)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_refusals_name_the_fault),
		TEST(test_a_prompt_that_fits_exactly),
		TEST(test_hellos),
		TEST(test_connections_that_say_nothing),
		TEST(test_entries_that_are_wrong),
		TEST(test_a_busy_slot),
		TEST(test_impossible_indices_end_the_session),
		TEST(test_holes_in_the_region),
		TEST(test_replies_that_are_not_taken),
		TEST(test_a_slow_reader_waits_alone),
		TEST(test_a_paused_request_gives_its_blocks_back),
		TEST(test_a_long_tokenize_flows),
		TEST(test_audit_on_request),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
