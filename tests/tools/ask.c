/* Requests through the client library, waited for. */
#include "tests/tools/ask.h"

#include <jansson.h>
#include <string.h>

#include "tests/tools/wait.h"

/* Tries in pieces, each of which is a look. */
#define PATIENTLY(call)                                                                            \
	({                                                                                         \
		struct nsv_patience left_ =                                                        \
			nsv_patience_begin(2 * NSV_HANG_S, nsv_wait_clock_s());                    \
		int ret_;                                                                          \
		do                                                                                 \
			ret_ = (call);                                                             \
		while (ret_ == -ETIMEDOUT && !nsv_patience_ends(&left_, nsv_wait_clock_s()));      \
		ret_;                                                                              \
	})

/* For ever: the library goes by the clock, and what runs the tests ends those that hang. */
void nsv_ask_options(struct nsv_client_options *options)
{
	nsv_client_options_init(options);
	options->connect_timeout_ms = -1;
	options->away_timeout_ms = -1;
}

struct nsv_client *nsv_ask_open(const char *socket)
{
	struct nsv_client_options options;
	struct nsv_client *client = NULL;
	char text[256];

	nsv_ask_options(&options);
	if (nsv_client_open(socket, &options, text, sizeof(text), &client) < 0)
		fprintf(stderr, "nsv_client_open: %s\n", text);
	return client;
}

static void take(struct nsv_answer *a, const struct nsv_client_chunk *c)
{
	for (size_t i = 0; i < c->n_token && a->n_token < NSV_ANSWER_TOKENS; i++)
		a->tokens[a->n_token++] = c->tokens[i];
	for (size_t i = 0; i < c->n_lp && a->n_lp < NSV_ANSWER_TOKENS; i++)
		a->lps[a->n_lp++] = c->lps[i];
	size_t n = nsv_min(c->text_len, NSV_ANSWER_TEXT - 1 - a->text_len);
	if (n)
		memcpy(a->text + a->text_len, c->text, n);
	a->text_len += n;
	a->text[a->text_len] = '\0';
}

int nsv_ask_next(struct nsv_request *request, struct nsv_client_chunk *ret_chunk)
{
	return PATIENTLY(nsv_request_next(request, NSV_LOOK_MS, ret_chunk));
}

int nsv_ask_collect(struct nsv_request *request, struct nsv_client_chunk *ret_chunk)
{
	return PATIENTLY(nsv_request_collect(request, NSV_LOOK_MS, ret_chunk));
}

int nsv_ask_wait(struct nsv_client *client)
{
	return PATIENTLY(nsv_client_wait(client, NSV_LOOK_MS));
}

int nsv_ask_ping(struct nsv_client *client)
{
	return PATIENTLY(nsv_client_ping(client, NSV_LOOK_MS));
}

void nsv_ask_finish(struct nsv_client *client, int submit_ret, struct nsv_request *request,
	struct nsv_answer *a)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};

	memset(a, 0, sizeof(*a));
	a->ret = submit_ret;
	if (submit_ret == 0) {
		while ((a->ret = nsv_ask_next(request, &chunk)) > 0)
			take(a, &chunk);
		a->result.size = sizeof(a->result);
		if (a->ret == 0)
			a->ret = nsv_request_result(request, &a->result);
	}
	const char *why = a->ret < 0 ? nsv_client_error(client) : a->result.text;
	snprintf(a->reason, sizeof(a->reason), "%s", why ? why : "");
	if (submit_ret == 0)
		nsv_request_free(request);
}

void nsv_ask_text(struct nsv_client *client, const char *text,
	const struct nsv_client_params *params, struct nsv_answer *ret)
{
	struct nsv_request *request = NULL;
	int r = nsv_client_submit_text(client, text, strlen(text), params, &request);

	nsv_ask_finish(client, r, request, ret);
}

void nsv_ask_ids(struct nsv_client *client, const int32_t *ids, size_t n,
	const struct nsv_client_params *params, struct nsv_answer *ret)
{
	struct nsv_request *request = NULL;
	int r = nsv_client_submit_ids(client, ids, n, params, &request);

	nsv_ask_finish(client, r, request, ret);
}

void nsv_ask_hello(struct nsv_client *client, struct nsv_answer *ret)
{
	struct nsv_client_params p;

	nsv_client_params_init(&p);
	p.max_tokens = 8;
	p.flags = NSV_CLIENT_IGNORE_END;
	nsv_ask_text(client, "hello", &p, ret);
}

long long nsv_ask_status(struct nsv_client *client, const char *path)
{
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_request *request = NULL;
	char first[64];

	int ret = nsv_client_status(client, &request);
	nsv_ask_finish(client, ret, request, a);
	json_t *root = json_loads(a->text, 0, NULL), *v = root;
	const char *dot = strchr(path, '.');
	if (dot) {
		snprintf(first, sizeof(first), "%.*s", (int)(dot - path), path);
		v = json_object_get(v, first);
	}
	v = json_object_get(v, dot ? dot + 1 : path);
	long long value = json_is_array(v) ? (long long)json_array_size(v)
			  : json_is_integer(v) ? json_integer_value(v)
					       : -1;
	json_decref(root);
	return value;
}

bool nsv_ask_status_until(struct nsv_client *client, const char *path, long long value)
{
	return NSV_WAIT_FOR(nsv_ask_status(client, path) == value);
}

bool nsv_ask_is_alone(const char *socket)
{
	struct nsv_client *client = nsv_ask_open(socket);
	bool alone = client && nsv_ask_status_until(client, "sessions", 1);

	nsv_client_close(client);
	return alone;
}
