/* The library against a daemon in a thread of this process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <nanoserve/client.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/tools/ask.h"
#include "tests/tools/rnd.h"
#include "tests/tools/wait.h"
#include "tests/unit/client/fake_daemon.h"

static struct fake_daemon daemon_;

static int begin(void **state)
{
	*state = &daemon_;
	return fake_begin(&daemon_);
}

static int end(void **state)
{
	fake_end(*state);
	return 0;
}

/* A session with small logs, so that they wrap and fill. */
static struct nsv_client *open_small(struct fake_daemon *d, uint32_t n_slot)
{
	struct nsv_client_options o;
	struct nsv_client *c = NULL;
	char text[256] = "";

	nsv_ask_options(&o);
	o.n_slot = n_slot;
	o.arena_len = 16384;
	o.text_len = 256;
	o.n_token = 64;
	o.n_lp = 128;
	int ret = nsv_client_open(d->path, &o, text, sizeof(text), &c);
	if (ret < 0)
		fail_msg("open: %s", text);
	return c;
}

static char *random_text(size_t len)
{
	char *text = malloc(len + 1);

	for (size_t i = 0; i < len; i++)
		text[i] = (char)('a' + t_below(26));
	text[len] = 0;
	return text;
}

/* Reads to the end and compares with what was sent. */
static void read_echo(struct nsv_request *r, const char *text, size_t len, bool lps)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	size_t got = 0, tokens = 0, n_lp = 0;
	int ret;

	while ((ret = nsv_ask_next(r, &chunk)) > 0) {
		assert_true(got + chunk.text_len <= len);
		assert_memory_equal(chunk.text, text + got, chunk.text_len);
		for (size_t i = 0; i < chunk.n_token; i++)
			assert_int_equal(chunk.tokens[i], (unsigned char)text[tokens + i]);
		for (size_t i = 0; i < chunk.n_lp; i++)
			assert_int_equal(chunk.lps[i].id, (unsigned char)text[n_lp + i]);
		got += chunk.text_len;
		tokens += chunk.n_token;
		n_lp += chunk.n_lp;
	}
	assert_int_equal(ret, 0);
	assert_int_equal(got, len);
	assert_int_equal(tokens, len);
	assert_int_equal(n_lp, lps ? len : 0);
}

/* The library waits a second for the end of a freed request, or for room: the daemon's thread may
 * stand still for longer. */
#define PATIENTLY(submit)                                                                          \
	({                                                                                         \
		int ret_ = 0;                                                                      \
		(void)NSV_WAIT_FOR((ret_ = (submit)) != -EBUSY && ret_ != -EAGAIN);                \
		ret_;                                                                              \
	})

static struct nsv_client_result result_of(const struct nsv_request *r)
{
	struct nsv_client_result result = {.size = sizeof(result)};

	assert_int_equal(nsv_request_result(r, &result), 0);
	return result;
}

static void test_stream(void **state)
{
	struct nsv_client *c = open_small(*state, 2);

	for (int round = 0; round < 50; round++) {
		size_t len = 1 + t_below(5000);
		char *text = random_text(len);
		struct nsv_client_params p;
		struct nsv_request *r;
		bool lps = round & 1;

		nsv_client_params_init(&p);
		if (lps)
			p.flags |= NSV_CLIENT_LOGPROBS;
		assert_int_equal(nsv_client_submit_text(c, text, len, &p, &r), 0);
		read_echo(r, text, len, lps);
		struct nsv_client_result result = result_of(r);
		assert_int_equal(result.finish, NSV_CLIENT_FINISH_STOP);
		assert_int_equal(result.n_output, len);
		assert_int_equal(result.seed, 42);
		assert_true(result.first_ns > 0 && result.first_ns <= result.total_ns);
		nsv_request_free(r);
		free(text);
	}
	nsv_client_close(c);
}

/* A program that was compiled with another structure: nothing is written, and nothing lost. */
static void test_chunk_size(void **state)
{
	struct nsv_client *c = open_small(*state, 1);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_client_chunk other = {.size = sizeof(chunk) - 8};
	struct nsv_request *r;

	assert_int_equal(nsv_client_submit_text(c, "abc", 3, NULL, &r), 0);
	assert_int_equal(nsv_ask_next(r, &other), -EINVAL);
	assert_int_equal(nsv_ask_collect(r, &other), -EINVAL);
	assert_non_null(strstr(nsv_client_error(c), "chunk"));
	assert_null(other.text);
	assert_int_equal(nsv_ask_collect(r, &chunk), 0);
	assert_int_equal(chunk.size, sizeof(chunk));
	assert_int_equal(chunk.text_len, 3);
	nsv_request_free(r);
	nsv_client_close(c);
}

static void test_limit_and_error(void **state)
{
	struct nsv_client *c = open_small(*state, 1);
	struct nsv_client_params p;
	struct nsv_request *r;

	nsv_client_params_init(&p);
	p.max_tokens = 4;
	assert_int_equal(nsv_client_submit_text(c, "abcdefgh", 8, &p, &r), 0);
	read_echo(r, "abcd", 4, false);
	assert_int_equal(result_of(r).finish, NSV_CLIENT_FINISH_LENGTH);
	nsv_request_free(r);

	assert_int_equal(nsv_client_submit_text(c, "bad", 3, NULL, &r), 0);
	read_echo(r, "", 0, false);
	struct nsv_client_result result = result_of(r);
	assert_int_equal(result.finish, NSV_CLIENT_FINISH_ERROR);
	assert_int_equal(result.code, NSV_E_PARAM);
	assert_string_equal(result.text, "the fake says no");
	nsv_request_free(r);
	nsv_client_close(c);
}

/* Every answer is a request of its own: read in any order, freed at any time. */
static void test_answers(void **state)
{
	enum { N_SLOT = 6 };
	struct nsv_client *c = open_small(*state, N_SLOT);
	struct nsv_client_params p;
	struct nsv_request *r[N_SLOT];

	nsv_client_params_init(&p);
	for (int round = 0; round < 60; round++) {
		size_t len = 1 + t_below(2000);
		uint32_t n = 1 + t_below(N_SLOT);
		char *text = random_text(len);

		p.n_branch = n;
		p.flags = round & 1 ? NSV_CLIENT_LOGPROBS : 0;
		assert_int_equal(PATIENTLY(nsv_client_submit_text(c, text, len, &p, &r[0])), 0);
		for (uint32_t i = 0; i < n; i++) {
			r[i] = nsv_request_answer(r[0], i);
			assert_non_null(r[i]);
			assert_int_equal(nsv_request_id(r[i]), nsv_request_id(r[0]) + i);
		}
		assert_null(nsv_request_answer(r[0], n));
		uint32_t dropped = 1 + t_below(N_SLOT);
		if (dropped < n) { /* unread: its slot is had back */
			nsv_request_free(r[dropped]);
			assert_null(nsv_request_answer(r[0], dropped));
		}
		for (uint32_t i = n; i-- > 0;)
			if (i != dropped) {
				read_echo(r[i], text, len, p.flags != 0);
				nsv_request_free(r[i]);
			}
		free(text);
	}
	nsv_client_close(c);
}

/* More answers than slots are refused, and fewer than are free side by side must wait. */
static void test_answers_without_slots(void **state)
{
	struct nsv_client *c = open_small(*state, 4);
	struct nsv_request *r[4], *more;
	struct nsv_client_params p;

	nsv_client_params_init(&p);
	p.n_branch = 5;
	assert_int_equal(nsv_client_submit_text(c, "abc", 3, &p, &more), -EINVAL);
	p.n_branch = 17;
	assert_int_equal(nsv_client_submit_text(c, "abc", 3, &p, &more), -EINVAL);
	assert_non_null(strstr(nsv_client_error(c), "17 answers"));
	p.n_branch = 0; /* counts as 1 */
	for (int i = 0; i < 4; i++)
		assert_int_equal(nsv_client_submit_text(c, "abc", 3, &p, &r[i]), 0);
	read_echo(r[0], "abc", 3, false);
	read_echo(r[2], "abc", 3, false);
	p.n_branch = 2;
	assert_int_equal(nsv_client_submit_text(c, "abc", 3, &p, &more), -EBUSY);
	read_echo(r[1], "abc", 3, false);
	assert_int_equal(nsv_client_submit_text(c, "abcd", 4, &p, &more), 0);
	read_echo(nsv_request_answer(more, 1), "abcd", 4, false);
	read_echo(more, "abcd", 4, false);
	read_echo(r[3], "abc", 3, false);
	nsv_client_close(c);
}

/* A fork's output goes on behind the fork point. */
static void test_fork(void **state)
{
	struct nsv_client *c = open_small(*state, 2);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r, *fork;
	uint64_t text_len = 7, n_token = 7;

	for (int round = 0; round < 20; round++) {
		char *text = random_text(4000);
		assert_int_equal(nsv_client_submit_text(c, text, 4000, NULL, &r), 0);
		assert_true(nsv_ask_next(r, &chunk) > 0);
		assert_int_equal(nsv_request_fork_point(r, &text_len, &n_token), 0);
		assert_int_equal(text_len + n_token, 0);
		assert_int_equal(PATIENTLY(nsv_request_fork(r, 1, &fork)), 0);
		assert_true(nsv_ask_next(fork, &chunk) > 0);
		assert_int_equal(nsv_request_fork_point(fork, &text_len, &n_token), 0);
		assert_true(text_len > 0 && text_len < 4000 && n_token == text_len);
		assert_memory_equal(chunk.text, text + text_len, chunk.text_len);
		size_t at = text_len + chunk.text_len;
		nsv_request_free(r);
		while (nsv_ask_next(fork, &chunk) > 0) {
			assert_memory_equal(chunk.text, text + at, chunk.text_len);
			at += chunk.text_len;
		}
		assert_int_equal(at, 4000);
		nsv_request_free(fork);
		free(text);
	}
	nsv_client_close(c);
}

/* More requests than anyone reads in order: each gets its own bytes, slots are used again. */
static void test_many(void **state)
{
	enum { N = 7 };
	struct nsv_client *c = open_small(*state, N);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r;
	char *texts[N];
	size_t got[N] = {0}, len[N];
	int left = 300, active = 0;

	for (int i = 0; i < N; i++) {
		len[i] = 1 + t_below(3000);
		texts[i] = random_text(len[i]);
		assert_int_equal(nsv_client_submit_text(c, texts[i], len[i], NULL, &r), 0);
		nsv_request_set_data(r, (void *)(intptr_t)i);
		active++;
	}
	assert_int_equal(nsv_client_submit_text(c, "x", 1, NULL, &r), -EBUSY);
	while (active > 0) {
		assert_int_equal(nsv_ask_wait(c), 1);
		while ((r = nsv_client_ready(c))) {
			int i = (int)(intptr_t)nsv_request_data(r);
			int ret;
			while ((ret = nsv_request_next(r, 0, &chunk)) > 0) {
				assert_memory_equal(chunk.text, texts[i] + got[i], chunk.text_len);
				got[i] += chunk.text_len;
			}
			if (ret == -EAGAIN)
				continue;
			assert_int_equal(ret, 0);
			assert_int_equal(got[i], len[i]);
			nsv_request_free(r);
			active--;
			if (left-- <= 0)
				continue;
			got[i] = 0;
			assert_int_equal(nsv_client_submit_text(c, texts[i], len[i], NULL, &r), 0);
			nsv_request_set_data(r, (void *)(intptr_t)i);
			active++;
		}
	}
	for (int i = 0; i < N; i++)
		free(texts[i]);
	nsv_client_close(c);
}

static void test_event_loop(void **state)
{
	struct fake_daemon *d = *state;
	struct nsv_client *c = open_small(d, 2);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r, *ready;
	char *text = random_text(4000);
	size_t got = 0;
	int ret = -EAGAIN;

	assert_int_equal(nsv_client_submit_text(c, text, 4000, NULL, &r), 0);
	while (ret == -EAGAIN) {
		while ((ready = nsv_client_ready(c))) {
			assert_ptr_equal(ready, r);
			while ((ret = nsv_request_next(r, 0, &chunk)) > 0)
				got += chunk.text_len;
		}
		if (ret == 0)
			break;
		if (nsv_client_arm(c) == 0)
			assert_true(nsv_wait_readable(nsv_client_fd(c)));
		assert_int_equal(nsv_client_dispatch(c), 0);
	}
	assert_int_equal(got, 4000);
	nsv_request_free(r);
	free(text);
	nsv_client_close(c);
}

static void test_cancel(void **state)
{
	struct nsv_client *c = open_small(*state, 1);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r;
	int ret;

	for (int round = 0; round < 20; round++) {
		assert_int_equal(nsv_client_submit_text(c, "for ever", 8, NULL, &r), 0);
		for (uint32_t i = t_below(10); i > 0; i--)
			assert_int_equal(nsv_ask_next(r, &chunk), 1);
		assert_int_equal(nsv_request_cancel(r), 0);
		while ((ret = nsv_ask_next(r, &chunk)) > 0)
			;
		assert_int_equal(ret, 0);
		assert_int_equal(result_of(r).finish, NSV_CLIENT_FINISH_CANCEL);
		nsv_request_free(r);
	}
	/* Freed in mid-stream: the one slot comes back by itself. */
	for (int round = 0; round < 20; round++) {
		assert_int_equal(PATIENTLY(nsv_client_submit_text(c, "for ever", 8, NULL, &r)), 0);
		if (round & 1)
			assert_int_equal(nsv_ask_next(r, &chunk), 1);
		nsv_request_free(r);
	}
	nsv_client_close(c);
}

static void test_collect(void **state)
{
	struct nsv_client *c = open_small(*state, 3);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r;
	int32_t ids[1000];

	assert_int_equal(nsv_client_status(c, &r), 0);
	assert_int_equal(nsv_ask_collect(r, &chunk), 0);
	assert_int_equal(chunk.text_len, strlen(FAKE_STATUS));
	assert_memory_equal(chunk.text, FAKE_STATUS, chunk.text_len);
	nsv_request_free(r);

	char *text = random_text(1000);
	assert_int_equal(nsv_client_tokenize(c, text, 1000, 0, &r), 0);
	assert_int_equal(nsv_ask_collect(r, &chunk), 0);
	assert_int_equal(chunk.n_token, 1000);
	for (size_t i = 0; i < 1000; i++)
		ids[i] = chunk.tokens[i];
	nsv_request_free(r);
	assert_int_equal(nsv_client_detokenize(c, ids, 1000, &r), 0);
	assert_int_equal(nsv_ask_collect(r, &chunk), 0);
	assert_int_equal(chunk.text_len, 1000);
	assert_memory_equal(chunk.text, text, 1000);
	nsv_request_free(r);
	free(text);
	nsv_client_close(c);
}

/* What collect has when it times out is not lost, whether collect or next goes on. */
static void test_collect_timeout(void **state)
{
	struct nsv_client *c = open_small(*state, 1);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r;

	assert_int_equal(nsv_client_submit_text(c, "for ever", 8, NULL, &r), 0);
	assert_int_equal(nsv_ask_next(r, &chunk), 1);
	size_t before = chunk.text_len;
	int ret = nsv_request_collect(r, 20, &chunk);
	assert_true(ret == -ETIMEDOUT);
	assert_int_equal(nsv_ask_next(r, &chunk), 1);
	assert_true(chunk.text_len > 0);
	assert_int_equal(chunk.text[0], "for ever"[before % 8]);
	nsv_request_free(r);
	nsv_client_close(c);
}

static void test_ping_and_sizes(void **state)
{
	struct nsv_client *c = open_small(*state, 1);
	struct nsv_client_params p;
	struct nsv_request *r;
	char *big = random_text(20000);

	for (int i = 0; i < 200; i++)
		assert_int_equal(nsv_ask_ping(c), 0);
	assert_int_equal(nsv_client_session_id(c), 7);
	assert_int_equal(nsv_client_submit_text(c, big, 20000, NULL, &r), -E2BIG);
	assert_non_null(strstr(nsv_client_error(c), "16384"));
	nsv_client_params_init(&p);
	p.size = 3;
	assert_int_equal(nsv_client_submit_text(c, "x", 1, &p, &r), -EINVAL);
	nsv_client_params_init(&p);
	p.flags = 1u << 30;
	assert_int_equal(nsv_client_submit_text(c, "x", 1, &p, &r), -EINVAL);
	const char *empty[] = {""};
	nsv_client_params_init(&p);
	p.stop = empty;
	p.n_stop = 1;
	assert_int_equal(nsv_client_submit_text(c, "x", 1, &p, &r), -EINVAL);
	/* A prompt as long as the arena holds (less the parameters), again and again. */
	for (int i = 0; i < 5; i++) {
		assert_int_equal(nsv_client_submit_text(c, big, 16384 - 128, NULL, &r), 0);
		read_echo(r, big, 16384 - 128, false);
		nsv_request_free(r);
	}
	free(big);
	nsv_client_close(c);
}

/* A chat's wire form: roles and texts with their padding, as the fake echoes it. */
static void test_chat(void **state)
{
	const struct nsv_client_message m[] = {
		{NSV_CLIENT_SYSTEM, "be brief", 8}, {NSV_CLIENT_USER, "hi", 2}};
	static const char wire[] = "\0\0\0\0\x08\0\0\0be brief\1\0\0\0\2\0\0\0hi\0\0\0\0\0\0";
	struct nsv_client *c = open_small(*state, 1);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r;

	assert_int_equal(nsv_client_submit_chat(c, m, 2, NULL, &r), 0);
	assert_int_equal(nsv_ask_collect(r, &chunk), 0);
	assert_int_equal(chunk.text_len, sizeof(wire) - 1);
	assert_memory_equal(chunk.text, wire, sizeof(wire) - 1);
	nsv_request_free(r);
	const struct nsv_client_message bad = {9, "x", 1};
	assert_int_equal(nsv_client_submit_chat(c, &bad, 1, NULL, &r), -EINVAL);
	assert_int_equal(nsv_client_submit_chat(c, m, 0, NULL, &r), -EINVAL);
	nsv_client_close(c);
}

static void test_gone(void **state)
{
	struct fake_daemon *d = *state;
	struct nsv_client *c = open_small(d, 2);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r, *other;
	int ret;

	assert_int_equal(nsv_client_submit_text(c, "for ever", 8, NULL, &r), 0);
	assert_int_equal(nsv_client_submit_text(c, "for ever", 8, NULL, &other), 0);
	assert_int_equal(nsv_ask_next(r, &chunk), 1);
	fake_set(&d->gone, 1);
	while ((ret = nsv_ask_next(r, &chunk)) > 0)
		;
	assert_int_equal(ret, -ECONNRESET);
	assert_non_null(strstr(nsv_client_error(c), "went away"));
	while ((ret = nsv_ask_next(other, &chunk)) > 0)
		;
	assert_int_equal(ret, -ECONNRESET);
	struct nsv_client_result result = {.size = sizeof(result)};
	assert_int_equal(nsv_request_result(r, &result), -EAGAIN);
	nsv_request_free(other);
	assert_int_equal(nsv_client_submit_text(c, "x", 1, NULL, &other), -ECONNRESET);
	assert_int_equal(nsv_ask_ping(c), -ECONNRESET);
	nsv_client_close(c);
	fake_set(&d->gone, 0);
}

static bool has_hung_up(const struct nsv_client *c)
{
	struct pollfd p = {.fd = nsv_client_fd(c)};

	return poll(&p, 1, 0) == 1 && (p.revents & POLLHUP);
}

/* A request had ended before the daemon went, and nobody had looked: it ends as it had, though the
 * session broke as another one's reader wanted to ring. */
static void test_an_end_before_the_end(void **state)
{
	struct fake_daemon *d = *state;
	struct nsv_client *c = open_small(d, 2);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r, *stalled;

	assert_int_equal(nsv_client_submit_text(c, "for ever", 8, NULL, &stalled), 0);
	assert_int_equal(nsv_client_submit_text(c, "abc", 3, NULL, &r), 0);
	assert_true(NSV_WAIT_FOR(nsv_load_acq_u32(&d->down.slots[1].state) == NSV_SLOT_DONE));
	assert_true(NSV_WAIT_FOR(nsv_load_acq_u32(&d->down.slots[0].stalled)));
	fake_set(&d->gone, 1);
	assert_true(NSV_WAIT_FOR(has_hung_up(c)));
	assert_int_equal(nsv_request_next(stalled, 0, &chunk), 1);
	assert_int_equal(nsv_request_next(stalled, 0, &chunk), -ECONNRESET);
	read_echo(r, "abc", 3, false);
	assert_int_equal(result_of(r).finish, NSV_CLIENT_FINISH_STOP);
	nsv_client_close(c);
	fake_set(&d->gone, 0);
}

static void test_open_errors(void **state)
{
	struct fake_daemon *d = *state;
	struct nsv_client *c = NULL;
	struct nsv_client_options o;
	char text[256], far[200];

	nsv_ask_options(&o);
	assert_int_equal(nsv_client_open("/nowhere/at/all", NULL, text, sizeof(text), &c), -ENOENT);
	assert_non_null(strstr(text, "/nowhere/at/all"));
	memset(far, 'x', sizeof(far));
	far[199] = 0;
	assert_int_equal(nsv_client_open(far, NULL, text, sizeof(text), &c), -ENAMETOOLONG);
	fake_set(&d->refuse, NSV_E_VERSION);
	assert_int_equal(nsv_client_open(d->path, &o, text, sizeof(text), &c), -EPROTONOSUPPORT);
	assert_string_equal(text, "the fake refuses");
	fake_set(&d->refuse, NSV_E_LIMIT);
	assert_int_equal(nsv_client_open(d->path, &o, NULL, 0, &c), -EDQUOT);
	fake_set(&d->refuse, 0);
	assert_null(c);
}

/* The mode of the socket's folder or of the socket says no: that is not "no daemon". */
static void test_permission_denied(void **state)
{
	struct fake_daemon *d = *state;
	struct nsv_client *c = NULL;
	char text[256];

	if (getuid() == 0 && seteuid(65534) < 0)
		skip();
	chmod(d->path, 0);
	int ret = nsv_client_open(d->path, NULL, text, sizeof(text), &c);
	if (getuid() == 0)
		assert_int_equal(seteuid(0), 0);
	chmod(d->path, 0600);
	assert_int_equal(ret, -EACCES);
	assert_non_null(strstr(text, "permission denied"));
	assert_null(strstr(text, "no daemon"));
}

/* Refused before the hello is read: the reason arrives however the connection ends. */
static void test_refused_unread(void **state)
{
	struct fake_daemon *d = *state;
	struct nsv_client_options o;
	struct nsv_client *c = NULL;
	char text[256];

	nsv_ask_options(&o);
	fake_set(&d->refuse, NSV_E_DENIED);
	for (uint32_t i = 0; i < 200; i++) {
		fake_set(&d->unread, 1 + i % 2);
		text[0] = '\0';
		assert_int_equal(nsv_client_open(d->path, &o, text, sizeof(text), &c), -EACCES);
		assert_string_equal(text, "the fake refuses");
	}
	fake_set(&d->unread, 0);
	fake_set(&d->refuse, 0);
}

static bool has_ended(const struct fake_daemon *d, const struct nsv_request *r)
{
	const struct nsv_down_slot *slot = &d->down.slots[0];

	return nsv_load_acq_u64(&slot->request_id) == nsv_request_id(r) &&
	       nsv_load_acq_u32(&slot->state) == NSV_SLOT_DONE;
}

/* An answer that is there counts, however late it is looked at: here there is no time at all, and
 * now and then it is there all the same. */
static void test_an_answer_after_the_time(void **state)
{
	struct fake_daemon *d = *state;
	struct nsv_client_options o;
	struct nsv_client *c = NULL;

	nsv_client_options_init(&o);
	o.connect_timeout_ms = 0;
	fake_set(&d->refuse, NSV_E_DENIED);
	fake_set(&d->unread, 1);
	assert_true(NSV_WAIT_FOR(nsv_client_open(d->path, &o, NULL, 0, &c) == -EACCES));
	fake_set(&d->unread, 0);
	fake_set(&d->refuse, 0);
}

/* Collecting without waiting: a request whose output is not whole yet has more news to come. */
static void test_collect_on_news(void **state)
{
	struct fake_daemon *d = *state;
	struct nsv_client *c = open_small(d, 1);
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};

	for (int i = 0; i < 20; i++) {
		struct nsv_request *r;
		int ret = -EAGAIN;
		assert_int_equal(nsv_client_submit_text(c, "all at once", 11, NULL, &r), 0);
		if (i % 2) /* the end has come before anybody looks */
			assert_true(NSV_WAIT_FOR(has_ended(d, r)));
		while (ret == -EAGAIN) {
			assert_int_equal(nsv_ask_wait(c), 1);
			assert_ptr_equal(nsv_client_ready(c), r);
			ret = nsv_request_collect(r, 0, &chunk);
		}
		assert_int_equal(ret, 0);
		assert_int_equal(chunk.text_len, 11);
		nsv_request_free(r);
	}
	nsv_client_close(c);
}

/* A daemon so slow that the client sleeps before each letter and the end: each sleep gets its bell,
 * and the submission's answer may find it asleep too. */
static void test_sleep(void **state)
{
	struct fake_daemon *d = *state;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r;
	size_t got = 0;

	fake_set(&d->step_asleep, 1);
	fake_set(&d->burst, 1);
	struct nsv_client *c = open_small(d, 1);
	uint32_t before = fake_get(&d->n_bell);
	assert_int_equal(nsv_client_submit_text(c, "sixteen letters.", 16, NULL, &r), 0);
	while (nsv_ask_next(r, &chunk) > 0)
		got += chunk.text_len;
	assert_int_equal(got, 16);
	uint32_t bells = fake_get(&d->n_bell) - before;
	assert_in_range(bells, 17, 18);
	nsv_request_free(r);
	nsv_client_close(c);
	fake_set(&d->step_asleep, 0);
	fake_set(&d->burst, 0);
}

/* A full ring: what an entry that was not yet taken refers to stays in the arena. The submission
 * behind it waits, asleep, which lets the daemon go on. */
static void test_full_ring(void **state)
{
	struct fake_daemon *d = *state;
	struct nsv_client *c = open_small(d, 2);
	struct nsv_request *first, *second;
	char *one = random_text(10000), *two = random_text(10000);

	for (int round = 0; round < 3; round++) {
		fake_set(&d->hold, 1);
		assert_int_equal(nsv_client_submit_text(c, one, 10000, NULL, &first), 0);
		for (int i = 0; i < 15; i++)
			assert_int_equal(nsv_client_ping(c, 0), -EAGAIN);
		assert_int_equal(nsv_client_ping(c, 0), -EAGAIN); /* for want of a place */
		assert_non_null(strstr(nsv_client_error(c), "16 entries wait"));
		assert_int_equal(
			PATIENTLY(nsv_client_submit_text(c, two, 10000, NULL, &second)), 0);
		read_echo(first, one, 10000, false);
		read_echo(second, two, 10000, false);
		nsv_request_free(first);
		nsv_request_free(second);
	}
	free(one);
	free(two);
	nsv_client_close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stream),
		cmocka_unit_test(test_chunk_size),
		cmocka_unit_test(test_limit_and_error),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_answers_without_slots),
		cmocka_unit_test(test_fork),
		cmocka_unit_test(test_event_loop),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_collect),
		cmocka_unit_test(test_collect_timeout),
		cmocka_unit_test(test_ping_and_sizes),
		cmocka_unit_test(test_chat),
		cmocka_unit_test(test_gone),
		cmocka_unit_test(test_an_end_before_the_end),
		cmocka_unit_test(test_open_errors),
		cmocka_unit_test(test_permission_denied),
		cmocka_unit_test(test_refused_unread),
		cmocka_unit_test(test_an_answer_after_the_time),
		cmocka_unit_test(test_collect_on_news),
		cmocka_unit_test(test_sleep),
		cmocka_unit_test(test_full_ring),
	};

	t_seed();
	return cmocka_run_group_tests(tests, begin, end);
}
