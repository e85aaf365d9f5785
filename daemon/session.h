/* A client's session, from its connection to the last reference that the engine had to it.
 *
 *     HELLO --hello, welcome--> OPEN --hang-up, or dropped--> CLOSING --all let go--> freed
 *
 * (all: the engine, the workers, the loop.) Between hello and welcome its regions are made, and its
 * descriptors are put into a vault; either may take a while.
 *
 * A slot of an open session:
 *
 *     FREE --> PREPARING --> COMMITTING --> LIVE --> ENDED --acknowledged, or used again--> FREE
 *       \          \--(job)--> OUTPUT ----------------^
 *        \--refused-------------------------------------/
 *
 * The io thread owns sessions. */
#ifndef NSV_DAEMON_SESSION_H
#define NSV_DAEMON_SESSION_H

#include "daemon/server.h"

enum nsv_slot_phase {
	NSV_PHASE_FREE,
	NSV_PHASE_PREPARING,  /* the worker has its entry, or that of a fork's target */
	NSV_PHASE_COMMITTING, /* the engine has it; not in `seqs` yet */
	NSV_PHASE_LIVE,
	NSV_PHASE_OUTPUT,     /* its answer flows, as the client reads */
	NSV_PHASE_ENDED,      /* the client has not said yet that it has seen the end */
};

struct nsv_session_slot {
	enum nsv_slot_phase phase;
	bool cancel_sent;
	uint64_t id;             /* of the request that has or had it */
	struct nsv_job *job; /* NULL: refused, or free */
};

struct nsv_session {
	struct nsv_source src; /* first: the loop's callback gets this */
	struct nsv_server *server;
	struct nsv_session *next, **prev;       /* all sessions */
	struct nsv_session *next_hello, **prev_hello;
	struct nsv_session *next_ready, *next_hot, *next_chore;
	struct nsv_session_close close;
	enum { NSV_SESSION_HELLO, NSV_SESSION_OPEN, NSV_SESSION_CLOSING } state;
	int fd;
	uint32_t uid, rec; /* rec: its place in the session table */
	int32_t pid;
	uint64_t id, last_id, memory, deadline_ns;
	/* As committed: entries before safe_head, whose ids go up to safe_id, are never read
	 * again. */
	uint32_t safe_head, epoch;
	uint64_t safe_id;
	struct nsv_vault_place place;
	bool waits_for_turn;   /* its hello is to be looked at */
	bool waits_for_memory; /* it can be asked for again once sessions that end have ended */
	bool waits_for_vault;  /* its welcome does */
	uint32_t n_replay;    /* entries still to come that another daemon may have taken */
	uint32_t *last_entries; /* (ch.geom.n_slot) the last of them that uses each slot, or NULL */
	struct nsv_user *user;
	struct nsv_channel ch; /* the memory worker's while that has memory_msg */
	struct nsv_msg memory_msg;
	int built; /* its answer: 0 or -errno */
	bool is_building;
	bool is_ending; /* it counts among those that its user and the server have ending */
	bool is_left; /* for the next daemon, or to its client: what is in its regions stays */
	struct nsv_session_slot *slots; /* (ch.geom.n_slot) */
	uint32_t n_used, n_live;        /* of them: not free; neither free nor ended */
	uint32_t n_preparing;           /* requests that the worker holds */
	bool is_put_off; /* it is among its user's chores */
	bool has_hung_up, is_early; /* is_early: it spoke before it was welcomed */
	bool is_over; /* everybody has let go of it */
	bool is_ready, is_hot, source_gone, engine_gone;
};

/* A connection was accepted; takes fd. */
void nsv_session_new(struct nsv_server *server, int fd);
/* A session of that socket in no list yet; NULL: no memory. */
struct nsv_session *nsv_session_alloc(struct nsv_server *server, int fd);
/* A built session that another daemon served is open again. */
void nsv_session_resume(struct nsv_session *se);
/* What is to be done for it next (see session-chores.c) comes in its user's turn. It has a user. */
void nsv_session_put_off(struct nsv_session *se);
void nsv_session_do_chore(struct nsv_session *se);
/* Some of what was put off (server->busy: there is more); then, if sessions have ended, those who wait
 * for that ask again. */
void nsv_session_do_chores(struct nsv_server *s);
/* Its hello has passed: makes its regions, at once or by the worker; nsv_session_built follows.
 * Gives them back in the same way; nsv_session_torn_down follows. ---- session-memory.c */
void nsv_session_build(struct nsv_session *se);
void nsv_session_tear_down(struct nsv_session *se);
/* What can be given to clients now; m is a server's. */
uint64_t nsv_session_memory_left(const struct nsv_memory *m);
/* Its regions are there: puts it into a vault and sends its welcome, or does so when a vault is
 * ready. */
void nsv_session_welcome(struct nsv_session *se);
/* Looks at an open session: entries, acknowledgements, outputs. true: there is more. */
bool nsv_session_visit(struct nsv_session *se);
/* Has it a request, or an output, that began before then and has not ended? */
bool nsv_session_is_busy(const struct nsv_session *se, uint64_t before_ns);
/* Puts it on the server's list of sessions to visit. */
void nsv_session_make_ready(struct nsv_session *se);
/* Drops it when it has waited for too long, for its hello or for a vault. */
void nsv_session_check_deadline(struct nsv_session *se, uint64_t now_ns);
/* Closes it for a reason (NULL: it hung up, or the daemon ends), which the log gets, and the client
 * as a code; everything that it held is given back. */
void nsv_session_drop(struct nsv_session *se, enum nsv_code code, const char *why);
/* Gives back every slot whose end was acknowledged unseen, for an idle client does not ring to say
 * so. Looks at all sessions, so at most once a millisecond. */
void nsv_session_collect_ends(struct nsv_server *server);
/* The end of the server: frees it, whoever still refers to it having stopped. */
void nsv_session_free(struct nsv_session *se);

/* What the workers do, each on its thread. */
void nsv_session_work_on_prompt(struct nsv_msg *msg, const void *tok);
void nsv_session_work_on_memory(struct nsv_msg *msg, const void *arg);

/* What the engine and the workers say. */
void nsv_session_built(struct nsv_session *se);
void nsv_session_torn_down(struct nsv_session *se);
/* Sessions have ended: those who wait for that ask again, oldest first. */
void nsv_session_ask_again(struct nsv_server *s);
void nsv_session_prepared(struct nsv_job *job);
void nsv_session_accepted(struct nsv_job *job);
void nsv_session_ended(struct nsv_job *job);
void nsv_session_released(struct nsv_job *job);
void nsv_session_closed(struct nsv_session_close *close);

/* ---- Between session.c, entry*.c and takeover.c */

/* Handles one entry, whose index in the ring is given. */
void nsv_session_entry(struct nsv_session *se, const struct nsv_sqe *sqe, uint32_t index);
/* How many slots an entry takes: one for each answer, where the session has so many from its own
 * on. Where it has not, one, and the request is refused. *ret_head gets the parameters as far as
 * that needs them: they are read once, and what the arena holds later does not matter. */
uint32_t nsv_session_count_slots(
	const struct nsv_session *se, const struct nsv_sqe *sqe, struct nsv_params *ret_head);
/* A valid entry for n slots that another daemon may have taken: so many of its answers, from the
 * first on, are known, and what was said of them has been said again. */
uint32_t nsv_session_replay(
	struct nsv_session *se, const struct nsv_sqe *sqe, uint32_t index, uint32_t n);
/* Writes a piece of an output, as far as the client has room; the slot ends with the last of it. */
void nsv_session_output(struct nsv_session *se, struct nsv_session_slot *slot);
void nsv_session_set_phase(
	struct nsv_session *se, struct nsv_session_slot *slot, enum nsv_slot_phase phase);
/* Has its request ended, as the client can see? */
bool nsv_session_slot_ended(const struct nsv_session *se, const struct nsv_session_slot *slot);
/* Gives a slot whose end was acknowledged back. */
void nsv_session_release_slot(struct nsv_session *se, struct nsv_session_slot *slot);
/* Its prompts that wait for the worker will not be prepared. */
void nsv_session_drop_prompts(struct nsv_session *se);
/* Commits how far the submission ring is safe, then moves the client's view of it, and rings for
 * that and for the replies since the last time: a client may sleep for want of room in the ring. */
void nsv_session_taken(struct nsv_session *se);

#endif
