/* The peer of the benchmarks: a build of llama.cpp in the folder that $LLAMA_CPP names, on the same
 * file and threads in the same run. */
#ifndef NSV_TESTS_TOOLS_PEER_H
#define NSV_TESTS_TOOLS_PEER_H

#include <jansson.h>
#include <sys/types.h>

#include "shm/base.h"

bool nsv_peer_is_there(void);
/* One program of the build with these arguments: its output, a JSON text a line or one in all, as a
 * list; NULL: it failed. */
json_t *nsv_peer_run(const char *program, const char *arguments);
/* llama-bench's tokens a second for one work, or 0. */
double nsv_peer_rate(const char *model, const char *threads, int n_prompt, int n_gen, int depth);

/* llama-server on a free port of the loopback interface. */
struct nsv_peer_server {
	pid_t pid;
	int port;
};

/* 0 once it is healthy, or -errno. n_ctx is all slots' together. */
int nsv_peer_server_start(struct nsv_peer_server *s, const char *model, const char *threads,
	uint32_t n_slot, uint32_t n_ctx);
void nsv_peer_server_stop(struct nsv_peer_server *s);

#define NSV_PEER_EVENTS 1024

/* A completion as it streams over HTTP. */
struct nsv_peer_stream {
	int fd;
	uint64_t start_ns; /* of the request */
	/* When tokens came, up to so many: one event each, but for what ends within a character,
	 * and one more for the end. */
	uint64_t event_ns[NSV_PEER_EVENTS];
	uint32_t n_event;
	char tail[64]; /* the end of what was read, in which an event may have begun */
	size_t n_tail;
};

/* Asks for n_output tokens after the ids, ends ignored, greedy, nothing cached. 0, -errno. */
int nsv_peer_stream_open(struct nsv_peer_stream *st, const struct nsv_peer_server *s,
	const int32_t *ids, uint32_t n_id, uint32_t n_output);
/* Reads all of them to their ends. 0, -errno. */
int nsv_peer_streams_read(struct nsv_peer_stream *st, size_t n);
/* Reads one until it has so many events. 0, -errno. */
int nsv_peer_stream_read_until(struct nsv_peer_stream *st, uint32_t n_event);

#endif
