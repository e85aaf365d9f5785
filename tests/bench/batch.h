/* What the parts of `make bench NAME=batch` share. All requests are random ids, greedy, ends
 * ignored; ours go through one session of the client library with a daemon without a prefix
 * cache. */
#ifndef NSV_TESTS_BENCH_BATCH_H
#define NSV_TESTS_BENCH_BATCH_H

#include <nanoserve/client.h>

#include "tests/tools/peer.h"

#define N_PROMPT 64u
#define N_OUTPUT 32u
#define MAX_STREAM 32u

_Noreturn void die(const char *what);
void draw_ids(int32_t *ids, uint32_t n);

/* One way to serve n requests that are all there at the start. */
struct served {
	double rate;	 /* output tokens a second, from the start to the last end */
	double first_ms; /* the median time from the start to a first token */
};

/* ---- Ours (batch-streams.c) */

struct nsv_client *open_session(const char *socket);
struct served serve_together(struct nsv_client *client, uint32_t n);
/* One after the other, MAX_STREAM of them: ret[n - 1] is what the first n got. */
void serve_in_turn(struct nsv_client *client, struct served ret[MAX_STREAM]);
/* Ragged requests, a few at a time: output tokens a second. `waits`: the next few are sent when
 * the last have all ended; else one is sent for each that ends. The same lengths either way. */
double serve_ragged(struct nsv_client *client, bool waits);

/* ---- A running stream and a long prompt (batch-gaps.c) */

#define LONG_PROMPT 4000u
#define MAX_GAP 1024u
#define N_ALONE 100u /* tokens of the stream before it arrives */

struct gaps {
	double at_s[MAX_GAP], ms[MAX_GAP]; /* (n) when after the long prompt, and how long */
	uint32_t n;
	double alone_ms, mixed_ms, worst_ms; /* medians without and beside it; the longest */
	double first_s;			     /* the long prompt's first token */
};
void measure_gaps(struct nsv_client *client, struct gaps *ret);

/* ---- The peer (batch-peers.c); call these only if nsv_peer_is_there() */

/* llama-batched-bench at the numbers of streams n, (n_size); first_ms is its prefill's time */
void serve_by_bench(const uint32_t *n, size_t n_size, struct served *ret);
struct served serve_by_server(const struct nsv_peer_server *s, uint32_t n);
void measure_server_gaps(const struct nsv_peer_server *s, struct gaps *ret);

/* From the times at which tokens came. */
void fill_gaps(
	struct gaps *g, const uint64_t *token_ns, uint32_t n, uint64_t sent_ns, uint64_t first_ns);

#endif
