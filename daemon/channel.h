/* A session's shared memory as the daemon's threads write and read it.
 *
 * Two threads use a channel, each its own fields: the io thread takes submissions and writes
 * replies, the engine thread writes events. A request slot belongs to one of them at a time: to the
 * io thread until it hands the request to the engine, to the engine until it says the request has
 * ended. Nothing read from `up` is believed: indices are bounded where they are used, and a channel
 * whose memory faulted says so (nsv_channel_broken). */
#ifndef NSV_DAEMON_CHANNEL_H
#define NSV_DAEMON_CHANNEL_H

#include "shm/region.h"
#include "shm/ring.h"

struct nsv_channel {
	struct nsv_region up_region, down_region;
	struct nsv_geom geom;
	struct nsv_up up;
	struct nsv_down down;
	int fd;           /* the session's socket, borrowed: the doorbell */
	int sigbus_index; /* of the guard over `up` */
	struct {
		struct nsv_sq_consumer sq; /* head: the next entry to look at; what the client sees
		                            * of it follows in nsv_channel_taken */
		struct nsv_cq_producer reply;
		uint32_t rung;
	} io;
	struct {
		struct nsv_cq_producer event;
		uint32_t rung;
	} engine;
};

/* Nothing yet but a geometry, which has been checked. */
void nsv_channel_prepare(struct nsv_channel *ch, const struct nsv_geom *geom);
/* Makes the regions: any thread that has the channel to itself. */
int nsv_channel_allocate(struct nsv_channel *ch, struct nsv_err *err);
/* Writes their heads: the channel can be used. */
int nsv_channel_init(struct nsv_channel *ch, uint64_t session_id, int fd);
/* Takes over the regions of a session that another daemon served: seals and sizes are checked, both
 * descriptors taken on success. sq_head comes from the session's record. The tails of the
 * completion rings come from `down`: a client cannot write it, and any value of them is safe. */
int nsv_channel_adopt(struct nsv_channel *ch, const struct nsv_geom *geom, uint64_t session_id,
	int fd, int up_fd, int down_fd, uint32_t sq_head, struct nsv_err *err);
/* Says which daemon serves it: the last thing, when everything in `down` is as it shall be. */
void nsv_channel_set_epoch(struct nsv_channel *ch, uint32_t epoch);
/* Says why the session ends: before its socket is shut down. */
void nsv_channel_say_end(struct nsv_channel *ch, enum nsv_code code);
/* Likewise of a session that is not taken over; a reason that it has stays. */
void nsv_channel_say_lost(int down_fd);
/* Gives the regions' memory back, whoever holds their descriptors: what is left in them is zeros,
 * but for the head of `down`, and all of `down` where the end was none of the client's doing: what
 * it was told last can then be read. */
void nsv_channel_empty(struct nsv_channel *ch);
/* `up` will not be read any more; what is left, any thread can do that has the channel to
 * itself. */
void nsv_channel_unguard(struct nsv_channel *ch);
void nsv_channel_deinit(struct nsv_channel *ch);
/* Reading `up` faulted: the session is to be dropped. */
bool nsv_channel_broken(const struct nsv_channel *ch);

/* ---- io thread */

/* 1: an entry can be taken; 0: none is there, or its reply would have no room (a client that makes
 * room rings, if it sees entries that were not taken); -EPROTO: a hostile index. */
int nsv_channel_ready(const struct nsv_channel *ch);
/* One entry into *ret: 0; 1: not ready; -EPROTO. It is the client's again only after
 * nsv_channel_taken. */
int nsv_channel_next(struct nsv_channel *ch, struct nsv_sqe *ret);
/* Entries before `index` are the client's again. */
void nsv_channel_taken(struct nsv_channel *ch, uint32_t index);
/* Copies from the arena: -ERANGE: outside it, or off is no multiple of 8. */
int nsv_channel_copy(const struct nsv_channel *ch, uint32_t off, uint32_t len, void *dst);
/* Posts an answer; the bell is the caller's, once for a burst (nsv_channel_ring). */
void nsv_channel_reply(struct nsv_channel *ch, const struct nsv_cqe *cqe);
/* Does the daemon look at this session by itself (false) or need a doorbell (true)? Fences: look
 * once more after raising it. */
void nsv_channel_set_waiting(struct nsv_channel *ch, bool waiting);

/* Rings if the client sleeps and was not rung by this thread since it said so; `rung` is the
 * calling thread's. */
void nsv_channel_ring(struct nsv_channel *ch, uint32_t *rung);

/* ---- A slot's output: who owns the slot calls these */

struct nsv_sink {
	struct nsv_channel *ch;
	struct nsv_down_slot *rec;
	const struct nsv_up_slot *cursors;
	uint32_t slot;
	uint64_t text_end, token_end, lp_end; /* written; published by nsv_sink_publish */
};

/* What the record says of a request from its beginning. */
struct nsv_origin {
	uint32_t n_prompt;
	uint64_t fork_text, fork_token;
};

/* Takes the slot for a request: resets the record, then publishes the id. origin NULL: zeros. */
void nsv_sink_begin(struct nsv_sink *s, struct nsv_channel *ch, uint32_t slot, uint64_t request_id,
	const struct nsv_origin *origin);
/* Goes on with a slot whose record shows this request already: resets nothing, so that whoever
 * reads sees ends that only grow. The caller sets the ends, and writes what lies before them. */
void nsv_sink_resume(struct nsv_sink *s, struct nsv_channel *ch, uint32_t slot);
uint32_t nsv_sink_text_room(const struct nsv_sink *s);
uint32_t nsv_sink_token_room(const struct nsv_sink *s);
uint32_t nsv_sink_lp_room(const struct nsv_sink *s);
/* The caller has checked the room. */
void nsv_sink_text(struct nsv_sink *s, const char *p, size_t len);
void nsv_sink_tokens(struct nsv_sink *s, const int32_t *ids, size_t n);
void nsv_sink_lps(struct nsv_sink *s, const struct nsv_lp *lps, size_t n);
void nsv_sink_publish(struct nsv_sink *s);
void nsv_sink_state(struct nsv_sink *s, enum nsv_slot_state state);
/* Says "ring me when you have read" (or takes it back). After raising it look at the room again. */
void nsv_sink_stalled(struct nsv_sink *s, bool stalled);

struct nsv_result { /* what is fixed when a request ends */
	enum nsv_finish finish;
	enum nsv_code code;
	uint32_t n_cached, n_output, n_preempt;
	uint64_t seed, queue_ns, prefill_ns, decode_ns;
	const char *stop, *text; /* NULL: empty */
};
void nsv_sink_finish(struct nsv_sink *s, const struct nsv_result *result);

#endif
