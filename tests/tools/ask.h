/* Requests through the client library, in one call, for tests. */
#ifndef NSV_TESTS_TOOLS_ASK_H
#define NSV_TESTS_TOOLS_ASK_H

#include <nanoserve/client.h>

#include "shm/base.h"

#define NSV_ANSWER_TOKENS 4096
#define NSV_ANSWER_TEXT 65536

struct nsv_answer {
	int ret; /* of the call that failed, or 0 */
	struct nsv_client_result result;
	size_t n_token, text_len, n_lp;
	int32_t tokens[NSV_ANSWER_TOKENS];
	struct nsv_client_lp lps[NSV_ANSWER_TOKENS];
	char text[NSV_ANSWER_TEXT];
	char reason[256]; /* the error's sentence */
};

/* The library's defaults, but with no end to what waits for the daemon. */
void nsv_ask_options(struct nsv_client_options *options);
/* Opens a session at the socket, or returns NULL. */
struct nsv_client *nsv_ask_open(const char *socket);
/* The library's calls with a test's patience: -ETIMEDOUT only from what hangs. */
int nsv_ask_next(struct nsv_request *request, struct nsv_client_chunk *ret_chunk);
int nsv_ask_collect(struct nsv_request *request, struct nsv_client_chunk *ret_chunk);
int nsv_ask_wait(struct nsv_client *client);
int nsv_ask_ping(struct nsv_client *client);
/* Waits for the end of a request, collects everything and frees it. submit_ret is what the submit
 * call returned. */
void nsv_ask_finish(struct nsv_client *client, int submit_ret, struct nsv_request *request,
	struct nsv_answer *ret);
void nsv_ask_text(struct nsv_client *client, const char *text,
	const struct nsv_client_params *params, struct nsv_answer *ret);
void nsv_ask_ids(struct nsv_client *client, const int32_t *ids, size_t n,
	const struct nsv_client_params *params, struct nsv_answer *ret);

/* A short prompt answered with 8 tokens: does it serve? */
void nsv_ask_hello(struct nsv_client *client, struct nsv_answer *ret);

/* Is nobody else connected there, once those who have just gone are forgotten? */
bool nsv_ask_is_alone(const char *socket);

/* The daemon's status: an integer by its path of at most two names ("blocks.free"), or -1. */
long long nsv_ask_status(struct nsv_client *client, const char *path);
/* Waits until it has that value; false: it hangs. What a step did is counted behind its tokens,
 * and a session or a request that has gone counts until the daemon has seen it: nothing that
 * follows an event can be read at once. */
bool nsv_ask_status_until(struct nsv_client *client, const char *path, long long value);

#endif
