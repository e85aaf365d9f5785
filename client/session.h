/* What the library's files share: a session, its requests, and the few steps that all of it is made
 * of. Private.
 *
 * The life of a request:
 *
 *     submit        last completion came      all was read        nsv_request_free
 *     ------> OPEN ---------------------> ENDED ----------> FINISHED ------------> gone
 *
 * OPEN and ENDED requests hold their slot; FINISHED ones have a result and no slot. One that is
 * freed before it is FINISHED becomes an orphan: cancelled, read to its end for nobody, then gone.
 */
#ifndef NSV_CLIENT_SESSION_H
#define NSV_CLIENT_SESSION_H

#include <nanoserve/client.h>

#include "client/arena.h"
#include "client/spin.h"
#include "shm/region.h"
#include "shm/ring.h"
#include "shm/wire.h"

/* One of a request's three logs, and what was read from it and not yet given to the caller. */
struct nsv_stream {
	const void *log;
	uint32_t n, size; /* elements, bytes of one */
	uint64_t *cursor; /* in `up` */
	uint64_t read, end;
	uint64_t skip; /* of what comes next, elements that the caller has had already */
	unsigned char *buf;
	size_t len, cap; /* elements in buf; bytes of it */
};

/* What was asked, to ask it once more: an output that was cut off by the daemon's end. */
struct nsv_question {
	uint8_t op, flags;
	size_t len;
	unsigned char prompt[]; /* (len) as on the wire */
};

enum { NSV_STREAM_TEXT, NSV_STREAM_TOKENS, NSV_STREAM_LPS, NSV_N_STREAM };

struct nsv_request {
	struct nsv_client *client;
	struct nsv_request *next;	/* of the client's list of all */
	struct nsv_request *next_ready; /* of those with news, while is_ready */
	bool is_ready;
	bool ended;	 /* its last completion has come */
	bool finished;	 /* ... and all has been read: `result` counts, the slot is free */
	bool orphan;	 /* freed by the caller */
	bool cancel;	 /* a CANCEL waits for room in the ring */
	bool cancelled;	 /* one was asked for: the next daemon must hear of it too */
	bool survived;	 /* a daemon: its completions may be lost, the slot record counts */
	bool collecting; /* the buffers hold what nsv_request_collect has so far */
	uint32_t n_branch; /* of a submission's first answer: how many there are */
	uint32_t n_lp_group; /* entries a prompt token, where the prompt has log-probabilities */
	bool begun;	   /* the daemon has it, and said what follows */
	uint32_t n_prompt;
	uint64_t fork_text, fork_token;
	uint32_t slot;
	uint32_t state;	  /* as last seen */
	uint32_t refusal; /* the code of an ERROR reply */
	uint64_t id;
	struct nsv_stream streams[NSV_N_STREAM];
	struct nsv_question *question; /* NULL: not to be asked again */
	int64_t start_ns, first_ns, end_ns;
	void *data;
	struct nsv_client_result result;
	char text[256], stop[64];
};

struct nsv_client {
	int fd;
	uint64_t session_id;
	struct nsv_geom geom;
	struct nsv_region up_region, down_region;
	struct nsv_up up;
	struct nsv_down down;
	struct nsv_sq_producer sq;
	struct nsv_cq_consumer reply, event;
	struct nsv_arena arena;
	uint64_t *arena_tails; /* (n_sqe) the arena's tail after each entry */
	uint32_t n_taken;      /* entries that the daemon had taken when last looked, modulo 2^32 */
	struct nsv_request **slots; /* (n_slot) who holds it, or NULL */
	struct nsv_request *all, *ready_first, *ready_last;
	uint32_t last_rung; /* the daemon's wait word that a bell was sent for */
	uint64_t last_id;
	uint64_t n_ping, pong; /* NOPs sent; the last one answered */
	bool armed;	       /* our wait word is odd */
	uint32_t epoch;	       /* the daemon that was last seen */
	/* Is the daemon there? Asked only in a long silence: a NOP, any sign answers it. */
	bool heard;	  /* a sign since quiet_ns was set */
	bool asked;	  /* since quiet_ns */
	int64_t quiet_ns; /* when silence began, or the question was put */
	int64_t away_ns;  /* unanswered for so long, the daemon has gone; below 0: never */
	int broken;	       /* 0, or the -errno that ended the session */
	bool losing;	       /* the end is being taken in: not a second time */
	struct nsv_spin spin;
	struct nsv_err err;
};

/* Entries ---- session.c */

/* Puts an entry whose arena piece ends at arena_tail, publishes it, and rings if the daemon sleeps.
 * 0, -EAGAIN: the ring is full, -errno. */
int nsv_session_put(struct nsv_client *c, const struct nsv_sqe *entry, uint64_t arena_tail);
/* Is there room for an entry? 0, -EAGAIN: no, -errno. */
int nsv_session_room(struct nsv_client *c);
int nsv_session_ring(struct nsv_client *c);
/* Takes completions and looks at the slots; no system call unless an entry must be sent. */
int nsv_session_take(struct nsv_client *c);
/* Waits until something may have come: spins, then sleeps. deadline_ns below 0: none. 0,
 * -ETIMEDOUT, -EINTR, or what ended the session. */
int nsv_session_wait(struct nsv_client *c, int64_t deadline_ns);
/* The session cannot go on: every request with no end yet is told. Returns `code`. */
int nsv_session_break(struct nsv_client *c, int code, const char *text);
int64_t nsv_deadline_ns(int timeout_ms);

/* Requests ---- request.c */

/* n requests in free slots side by side, linked by `next`, with their cursors reset; they are in no
 * list of the client's until nsv_requests_start. */
int nsv_requests_new(struct nsv_client *c, uint32_t n, struct nsv_request **ret_first);
/* The first gets the id, the others those after it. */
void nsv_requests_start(struct nsv_request *first, uint64_t id);
/* Frees the memory of all that are linked. */
void nsv_requests_delete(struct nsv_request *first);
/* Its slot starts from the beginning, for another entry: cursors, ends, state. */
void nsv_request_reset(struct nsv_request *r);
/* An output that the daemon's end cut off is asked for once more. 1: it goes on; 0: it does not,
 * its end counts; -errno. ---- submit.c */
int nsv_request_ask_again(struct nsv_request *r);
/* Another daemon serves the session: what only the last one knew is said again. */
void nsv_request_survive(struct nsv_request *r);
void nsv_request_mark_ready(struct nsv_request *r);
/* Loads what the daemon has written so far. 0, 1: something changed, -EPROTO. */
int nsv_request_look(struct nsv_request *r);
/* Has it ended, with all output seen by nsv_request_look? */
bool nsv_request_at_end(const struct nsv_request *r);
/* At the end, with everything read: keeps the result, gives the slot back. */
void nsv_request_finish(struct nsv_request *r);
/* Sends a CANCEL that is due, if there is room. */
int nsv_request_flush_cancel(struct nsv_request *r);
/* Reads an orphan's output away, and deletes it at its end. */
int nsv_request_sweep(struct nsv_request *r);

#endif
