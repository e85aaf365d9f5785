/* A daemon that takes over from one with another configuration: who is not allowed any more goes,
 * and is told why; limits that are lower now end nothing; another max_requests loses nothing. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "shm/abi.h"
#include "tests/tools/ask.h"
#include "tests/tools/rnd.h"
#include "tests/tools/service.h"
#include "tests/tools/tiny.h"
#include "tests/tools/users.h"
#include "tests/tools/wait.h"

#define LOG_TOKENS 64 /* a stream stands still there until it is read */
#define N_TOKEN 200

static struct nsv_test_service service;
static char config[64];

/* ---- One daemon after another */

static void write_config(const char *json)
{
	FILE *f = fopen(config, "we");

	assert_non_null(f);
	fputs(json, f);
	assert_int_equal(fclose(f), 0);
}

static void serve(const char *json)
{
	const char *extra[] = {"--kv-blocks", "200", "--config", config, NULL};

	assert_int_equal(nsv_test_config(config, sizeof(config), json), 0);
	assert_int_equal(nsv_test_service_start(&service, nsv_tiny_path, extra), 0);
	assert_int_equal(chmod(service.dir, 0755), 0);
	assert_int_equal(chmod(service.socket, 0666), 0);
}

static void serve_anew(const char *json)
{
	unsigned int n = nsv_test_service_logged(&service, "ready after");

	write_config(json);
	nsv_test_service_kill(&service, t_below(2) ? SIGKILL : SIGTERM);
	assert_true(NSV_WAIT_FOR(nsv_test_service_logged(&service, "ready after") > n));
}

static void end_serving(void)
{
	assert_int_equal(nsv_test_service_stop(&service), 0);
	unlink(config);
}

/* ---- Streams that are under way for sure */

struct stream {
	struct nsv_client *client;
	struct nsv_request *request;
	struct nsv_answer alone, got;
};

static struct nsv_client *open_narrow(void)
{
	struct nsv_client_options o;
	struct nsv_client *client = NULL;

	nsv_ask_options(&o);
	o.n_token = LOG_TOKENS;
	return nsv_client_open(service.socket, &o, NULL, 0, &client) == 0 ? client : NULL;
}

static struct nsv_client_params params_of(uint64_t seed)
{
	struct nsv_client_params p;

	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END | NSV_CLIENT_SEED;
	p.seed = seed;
	p.temperature = 1;
	p.max_tokens = N_TOKEN;
	return p;
}

static void take(struct stream *s, const struct nsv_client_chunk *c)
{
	if (c->n_token > 0)
		memcpy(s->got.tokens + s->got.n_token, c->tokens, c->n_token * sizeof(*c->tokens));
	s->got.n_token += c->n_token;
}

/* Its first token has come. */
static bool begin_stream(struct stream *s, uint64_t seed)
{
	struct nsv_client_params p = params_of(seed);
	struct nsv_client_chunk c = {.size = sizeof(c)};

	s->client = open_narrow();
	if (!s->client)
		return false;
	nsv_ask_text(s->client, "a stream", &p, &s->alone);
	if (nsv_client_submit_text(s->client, "a stream", 8, &p, &s->request) < 0 ||
		nsv_ask_next(s->request, &c) != 1)
		return false;
	take(s, &c);
	return s->got.n_token < N_TOKEN;
}

/* To a token for which the log of the daemon before had no room: so this one has made it. Two that
 * are killed in a step without one between give up what ran. */
static void read_on(struct stream *s)
{
	struct nsv_client_chunk c = {.size = sizeof(c)};

	for (size_t end = s->got.n_token + LOG_TOKENS; s->got.n_token <= end; take(s, &c))
		assert_int_equal(nsv_ask_next(s->request, &c), 1);
}

static void end_stream(struct stream *s)
{
	nsv_autofree struct nsv_answer *rest = malloc(sizeof(*rest));
	size_t n = s->got.n_token;

	nsv_ask_finish(s->client, 0, s->request, rest);
	assert_string_equal(rest->reason, "");
	assert_int_equal(n + rest->n_token, N_TOKEN);
	assert_memory_equal(s->got.tokens, s->alone.tokens, n * sizeof(int32_t));
	assert_memory_equal(rest->tokens, s->alone.tokens + n, rest->n_token * sizeof(int32_t));
}

/* ---- Who may connect */

/* Of the user who is not allowed any more: its stream, which it does not read before the parent
 * says so, ends with the reason, and then its session. */
static int be_dropped(void *arg)
{
	int parent = *(int *)arg;
	char c;
	struct stream *s = calloc(1, sizeof(*s));
	struct nsv_answer *rest = malloc(sizeof(*rest));

	NSV_EXPECT(begin_stream(s, 1));
	NSV_EXPECT(write(parent, "x", 1) == 1 && read(parent, &c, 1) == 1);
	nsv_ask_finish(s->client, 0, s->request, rest);
	NSV_EXPECT(rest->ret == 0);
	NSV_EXPECT(rest->result.finish == NSV_CLIENT_FINISH_ERROR);
	NSV_EXPECT(rest->result.code == NSV_E_DENIED);
	NSV_EXPECT(strstr(rest->reason, "not among the users"));
	NSV_EXPECT(nsv_ask_ping(s->client) == -ECONNRESET);
	NSV_EXPECT(nsv_client_end_code(s->client) == NSV_CLIENT_END_DENIED);
	nsv_client_close(s->client);
	free(rest);
	free(s);
	return 0;
}

static void test_who_is_not_allowed_any_more_goes(void **state)
{
	nsv_autofree struct stream *mine = calloc(1, sizeof(*mine));
	int ends[2];
	char c;
	(void)state;

	nsv_user_need_root();
	serve("{}");
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	pid_t other = nsv_user_begin(NSV_USER_A, be_dropped, &ends[1]);
	close(ends[1]);
	assert_true(begin_stream(mine, 2));
	assert_int_equal(read(ends[0], &c, 1), 1);
	serve_anew("{\"users\": [64002]}");
	assert_int_equal(write(ends[0], "x", 1), 1);
	close(ends[0]);
	assert_int_equal(nsv_user_end(other), 0);
	assert_true(nsv_test_service_logged(&service, "is dropped: user 64001 is not among") > 0);
	end_stream(mine);
	assert_true(nsv_ask_status_until(mine->client, "sessions", 1));
	nsv_client_close(mine->client);
	end_serving();
}

/* ---- Another model */

/* What was written is read first, then the reason comes. A session after it is as any other. */
static void test_another_model_ends_sessions(void **state)
{
	nsv_autofree struct stream *s = calloc(1, sizeof(*s));
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	char other[64];
	int ret;
	(void)state;

	serve("{}");
	assert_true(begin_stream(s, 1));
	nsv_tiny_model_of(other, sizeof(other), NSV_TINY_CONTEXT / 2);
	assert_int_equal(rename(other, nsv_tiny_path), 0);
	serve_anew("{}");
	while ((ret = nsv_ask_next(s->request, &chunk)) > 0)
		;
	assert_int_equal(ret, -ECONNRESET);
	assert_int_equal(nsv_client_end_code(s->client), NSV_CLIENT_END_LOST);
	assert_non_null(strstr(nsv_client_error(s->client), "another model"));
	nsv_client_close(s->client);
	s->client = open_narrow();
	assert_non_null(s->client);
	nsv_ask_hello(s->client, a);
	assert_string_equal(a->reason, "");
	assert_int_equal(nsv_client_end_code(s->client), NSV_CLIENT_END_UNSAID);
	nsv_client_close(s->client);
	end_serving();
}

/* ---- Limits */

/* What was let in stays, and is counted. */
static void test_lower_limits_end_nothing(void **state)
{
	enum { N = 3 };
	struct stream *s = calloc(N, sizeof(*s));
	struct nsv_client_params p = params_of(1);
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_client_options o;
	char text[256];
	(void)state;

	nsv_ask_options(&o);
	serve("{}");
	for (uint64_t i = 0; i < N; i++)
		assert_true(begin_stream(&s[i], i));
	serve_anew("{\"limits\": {\"sessions\": 3, \"requests\": 2}}");
	struct nsv_client *more = NULL;
	assert_int_equal(nsv_client_open(service.socket, &o, text, sizeof(text), &more), -EDQUOT);
	assert_non_null(strstr(text, "limits.sessions"));
	nsv_ask_text(s[0].client, "more", &p, a);
	assert_int_equal(a->result.code, NSV_E_LIMIT);
	assert_non_null(strstr(a->reason, "limits.requests is 2"));
	for (int i = 0; i < N; i++)
		end_stream(&s[i]);
	nsv_ask_text(s[0].client, "more", &p, a);
	assert_string_equal(a->reason, "");
	for (int i = 0; i < N; i++)
		nsv_client_close(s[i].client);
	assert_true(NSV_WAIT_FOR(nsv_client_open(service.socket, &o, NULL, 0, &more) == 0));
	assert_true(nsv_ask_status_until(more, "sessions", 1));
	nsv_client_close(more);
	free(s);
	end_serving();
}

static void expect_limit(struct nsv_client *client, const char *text)
{
	struct nsv_client_params p = params_of(1);
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));

	nsv_ask_text(client, "more", &p, a);
	assert_int_equal(a->result.code, NSV_E_LIMIT);
	assert_non_null(strstr(a->reason, text));
}

static unsigned int n_warned(void)
{
	return nsv_test_service_logged(&service, "max_requests is 5, not 64");
}

/* The table of requests keeps its size while it has sessions. */
static void test_another_max_requests(void **state)
{
	enum { N = 4 };
	struct stream *s = calloc(N, sizeof(*s));
	unsigned int n_before = 0;
	(void)state;

	serve("{\"max_requests\": 5}");
	for (uint64_t i = 0; i < N; i++)
		assert_true(begin_stream(&s[i], i));
	serve_anew("{\"max_requests\": 2}");
	expect_limit(s[0].client, "requests is 2");
	read_on(&s[0]);
	serve_anew("{\"max_requests\": 64}");
	assert_int_equal(n_warned(), 1);
	for (int i = 0; i < N; i++)
		end_stream(&s[i]);
	for (int i = 0; i < N; i++)
		nsv_client_close(s[i].client);
	/* Without sessions the table is made anew; a daemon that dies may not have seen their
	 * end. */
	for (int i = 0; i < 20 && n_warned() > n_before; i++) {
		n_before = n_warned();
		serve_anew("{\"max_requests\": 64}");
	}
	assert_int_equal(n_warned(), n_before);
	free(s);
	end_serving();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_who_is_not_allowed_any_more_goes),
		cmocka_unit_test(test_another_model_ends_sessions),
		cmocka_unit_test(test_lower_limits_end_nothing),
		cmocka_unit_test(test_another_max_requests),
	};

	return cmocka_run_group_tests(tests, nsv_tiny_setup, nsv_tiny_teardown);
}
