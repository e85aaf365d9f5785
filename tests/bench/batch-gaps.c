/* The pauses between a running stream's tokens, as its client sees them, while a prompt of 4,000
 * tokens arrives and is computed beside it. */
#include <string.h>

#include "shm/clock.h"
#include "tests/bench/batch.h"
#include "tests/tools/stats.h"

static struct nsv_request *submit(struct nsv_client *client, uint32_t n_prompt, uint32_t max_tokens)
{
	static int32_t ids[LONG_PROMPT];
	struct nsv_client_params p;
	struct nsv_request *request;

	draw_ids(ids, n_prompt);
	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.max_tokens = max_tokens;
	if (nsv_client_submit_ids(client, ids, n_prompt, &p, &request) < 0)
		die(nsv_client_error(client));
	return request;
}

/* Has it ended? Adds the time to those of its tokens that have come. */
static bool take(struct nsv_request *request, uint64_t *token_ns, uint32_t *n)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	uint64_t now = nsv_now_ns();
	int ret;

	while ((ret = nsv_request_next(request, 0, &chunk)) > 0)
		for (size_t i = 0; i < chunk.n_token && *n < MAX_GAP; i++)
			token_ns[(*n)++] = now;
	if (ret < 0 && ret != -EAGAIN)
		die("a stream broke");
	return ret == 0;
}

void measure_gaps(struct nsv_client *client, struct gaps *ret)
{
	static uint64_t token_ns[MAX_GAP];
	uint64_t sent_ns = 0, first_ns[MAX_GAP];
	struct nsv_request *stream = submit(client, 16, MAX_GAP), *prompt = NULL, *r;
	uint32_t n = 0, n_first = 0;
	bool ended = false;

	while (n_first == 0) {
		if (!prompt && n >= N_ALONE) {
			sent_ns = nsv_now_ns();
			prompt = submit(client, LONG_PROMPT, 1);
		}
		if (ended || nsv_client_wait(client, 60000) < 0)
			die("the stream ended before the prompt was computed");
		while ((r = nsv_client_ready(client)))
			if (r == stream)
				ended = take(stream, token_ns, &n);
			else
				take(prompt, first_ns, &n_first);
	}
	nsv_request_free(stream);
	nsv_request_free(prompt);
	fill_gaps(ret, token_ns, n, sent_ns, first_ns[0]);
}

void fill_gaps(
	struct gaps *g, const uint64_t *token_ns, uint32_t n, uint64_t sent_ns, uint64_t first_ns)
{
	double alone[MAX_GAP], mixed[MAX_GAP];
	uint32_t n_alone = 0, n_mixed = 0;

	*g = (struct gaps){.first_s = (double)(first_ns - sent_ns) / 1e9};
	for (uint32_t i = 1; i < n && token_ns[i - 1] <= first_ns; i++) {
		double ms = (double)(token_ns[i] - token_ns[i - 1]) / 1e6;
		g->at_s[g->n] = ((double)token_ns[i] - (double)sent_ns) / 1e9;
		g->ms[g->n++] = ms;
		if (token_ns[i] <= sent_ns)
			alone[n_alone++] = ms;
		else
			mixed[n_mixed++] = ms;
	}
	if (n_alone == 0 || n_mixed == 0)
		die("no token came before or beside the long prompt");
	g->alone_ms = nsv_median(alone, n_alone);
	g->mixed_ms = nsv_median(mixed, n_mixed);
	g->worst_ms = mixed[n_mixed - 1];
}
