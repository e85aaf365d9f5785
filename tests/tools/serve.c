#include "tests/tools/serve.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/tools/tiny.h"

#define PATIENCE_MS 600000

/* The config with more patience for a hello, unless it says how much: a test may be held up between
 * a connection and what it sends. The caller frees it. */
static char *make_patient(const char *json)
{
	json_t *config = json_loads(json, 0, NULL), *limits = json_object_get(config, "limits");

	if (!limits) {
		limits = json_object();
		json_object_set_new(config, "limits", limits);
	}
	if (!json_object_get(limits, "hello_ms"))
		json_object_set_new(limits, "hello_ms", json_integer(PATIENCE_MS));
	char *text = json_dumps(config, 0);
	json_decref(config);
	return text;
}

void nsv_serve(struct nsv_served *s, const char *json)
{
	nsv_autofree char *patient = make_patient(json);
	const char *extra[] = {"--kv-blocks", "64", "--threads", "1", "--verbose", "--config",
		s->config, NULL};

	nsv_tiny_model(s->model, sizeof(s->model));
	assert_int_equal(nsv_test_config(s->config, sizeof(s->config), patient), 0);
	assert_int_equal(nsv_test_daemon_start(&s->daemon, s->model, extra), 0);
	assert_int_equal(nsv_test_daemon_let_all(&s->daemon), 0);
}

struct nsv_client *nsv_serve_open(const struct nsv_served *s)
{
	struct nsv_client *client = nsv_ask_open(s->daemon.socket);

	assert_non_null(client);
	return client;
}

void nsv_serve_ask(struct nsv_client *client, struct nsv_answer *a)
{
	struct nsv_client_params p;

	nsv_client_params_init(&p);
	p.max_tokens = 2;
	p.flags = NSV_CLIENT_IGNORE_END;
	nsv_ask_text(client, "abc", &p, a);
}

int nsv_serve_stop(struct nsv_served *s)
{
	int status = nsv_test_daemon_stop(&s->daemon, SIGTERM);

	unlink(s->config);
	unlink(s->model);
	return status;
}

void nsv_serve_end(struct nsv_served *s)
{
	struct nsv_client *client = nsv_serve_open(s);
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));

	assert_true(nsv_ask_status_until(client, "sessions", 1));
	nsv_ask_hello(client, a);
	assert_string_equal(a->reason, "");
	assert_int_equal(a->n_token, 8);
	assert_true(nsv_ask_status_until(client, "blocks.free", NSV_SERVE_BLOCKS));
	assert_true(nsv_ask_status_until(client, "requests.ended", 0));
	assert_int_equal(nsv_ask_status(client, "counters.audits_failed"), 0);
	nsv_client_close(client);
	assert_int_equal(nsv_serve_stop(s), 0);
}
