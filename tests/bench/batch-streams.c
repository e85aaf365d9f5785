/* Requests to the daemon: together, one after the other, and ragged ones by two ways of
 * batching. */
#include <math.h>
#include <string.h>

#include "shm/clock.h"
#include "tests/bench/batch.h"
#include "tests/tools/stats.h"

#define N_RAGGED 32u
#define N_AT_ONCE 8u
#define RAGGED_PROMPT 32u
#define RAGGED_LEAST 8
#define RAGGED_MOST 128

struct nsv_client *open_session(const char *socket)
{
	struct nsv_client_options o;
	struct nsv_client *client;
	char text[256];

	nsv_client_options_init(&o);
	o.n_slot = MAX_STREAM;
	if (nsv_client_open(socket, &o, text, sizeof(text), &client) < 0)
		die(text);
	return client;
}

static struct nsv_request *submit(struct nsv_client *client, uint32_t n_prompt, uint32_t n_output)
{
	struct nsv_client_params p;
	struct nsv_request *request;
	int32_t ids[N_PROMPT];

	draw_ids(ids, n_prompt);
	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.max_tokens = n_output;
	if (nsv_client_submit_ids(client, ids, n_prompt, &p, &request) < 0)
		die(nsv_client_error(client));
	return request;
}

/* Reads what has come of any request. Returns one that has ended, or NULL. */
static struct nsv_request *read_some(struct nsv_client *client)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *request;
	int ret;

	if (nsv_client_wait(client, 60000) < 0)
		die(nsv_client_error(client));
	while ((request = nsv_client_ready(client))) {
		while ((ret = nsv_request_next(request, 0, &chunk)) > 0)
			;
		if (ret == 0)
			return request;
		if (ret != -EAGAIN)
			die(nsv_client_error(client));
	}
	return NULL;
}

/* Frees it: what came of it. */
static struct nsv_client_result end_request(struct nsv_request *request)
{
	struct nsv_client_result result = {.size = sizeof(result)};

	if (nsv_request_result(request, &result) < 0 || result.finish != NSV_CLIENT_FINISH_LENGTH)
		die("a request did not end at its length");
	nsv_request_free(request);
	return result;
}

struct served serve_together(struct nsv_client *client, uint32_t n)
{
	double first_ms[MAX_STREAM];
	uint64_t start = nsv_now_ns();

	for (uint32_t i = 0; i < n; i++)
		submit(client, N_PROMPT, N_OUTPUT);
	for (uint32_t n_end = 0; n_end < n;) {
		struct nsv_request *request = read_some(client);
		if (request)
			first_ms[n_end++] = (double)end_request(request).first_ns / 1e6;
	}
	double seconds = (double)(nsv_now_ns() - start) / 1e9;
	return (struct served){n * N_OUTPUT / seconds, nsv_median(first_ms, n)};
}

void serve_in_turn(struct nsv_client *client, struct served ret[MAX_STREAM])
{
	double first_ms[MAX_STREAM], sorted[MAX_STREAM];
	uint64_t start = nsv_now_ns();

	for (uint32_t i = 0; i < MAX_STREAM; i++) {
		double waited_ms = (double)(nsv_now_ns() - start) / 1e6;
		struct nsv_request *request = submit(client, N_PROMPT, N_OUTPUT);
		while (read_some(client) != request)
			;
		double seconds = (double)(nsv_now_ns() - start) / 1e9;
		first_ms[i] = waited_ms + (double)end_request(request).first_ns / 1e6;
		memcpy(sorted, first_ms, sizeof(sorted));
		ret[i] = (struct served){(i + 1) * N_OUTPUT / seconds, nsv_median(sorted, i + 1)};
	}
}

/* Spread evenly over the logarithms, in an order that is no order. */
static uint32_t ragged_len(uint32_t i)
{
	double part = (double)(i * 19 % N_RAGGED) / (N_RAGGED - 1);

	return (uint32_t)lround(RAGGED_LEAST * pow((double)RAGGED_MOST / RAGGED_LEAST, part));
}

double serve_ragged(struct nsv_client *client, bool waits)
{
	uint32_t n_sent = 0, n_end = 0, n_token = 0;
	uint64_t start = nsv_now_ns();

	while (n_end < N_RAGGED) {
		bool may_send = !waits || n_sent == n_end;
		while (may_send && n_sent < N_RAGGED && n_sent - n_end < N_AT_ONCE) {
			n_token += ragged_len(n_sent);
			submit(client, RAGGED_PROMPT, ragged_len(n_sent++));
		}
		struct nsv_request *request = read_some(client);
		if (request) {
			end_request(request);
			n_end++;
		}
	}
	return n_token * 1e9 / (double)(nsv_now_ns() - start);
}
