/* The `seqs` region: the truth about sessions and sequences, readable at every instant.
 *
 *     head page | session records | sequence records
 *     sequence record:  active | identity | commit[2] | params | tokens[] | blocks[]
 *
 * A record has two commits; `active` says which one counts. A writer fills the other and then
 * stores `active` (release): whoever maps the region after a crash, at whatever store it came,
 * finds either the old state or the new one. tokens[] and blocks[] only grow past what the active
 * commit counts, so what it counts is whole. Identity and params are written while the state is
 * NSV_SEQ_FREE.
 *
 * One committing thread a table: sessions the io thread, sequences the engine thread. Reference
 * counts, the scheduler's state and the prefix index are not here: they are rebuilt.
 *
 * Whoever takes a region over believes none of it: nsv_seqs_open checks the head, nsv_seqs_check
 * one record. What a record leaves out: log-probabilities (the last group is computed again where
 * the client was not told of it yet), times (they begin again with the daemon, so `usage` has those
 * since then), and the sentence of an error (the code's own is shown). */
#ifndef NSV_DAEMON_SEQS_H
#define NSV_DAEMON_SEQS_H

#include "shm/abi.h"
#include "shm/base.h"

#define NSV_SEQS_MAGIC 0x535145535f56534eull /* "NSV_SEQS" */
#define NSV_SEQS_MAJOR 1u
#define NSV_SEQS_PARAMS_LEN 8192u /* of one request, records included */

struct nsv_seqs_geom {
	uint32_t n_session, n_seq;
	uint32_t n_token; /* of a sequence, prompt and output */
	uint32_t n_block; /* of a sequence's block table */
};

struct nsv_seqs_head { /* first page */
	uint64_t magic;
	uint32_t major, head_len;
	uint64_t region_len;
	struct nsv_seqs_geom geom;
	uint64_t model_id;
	uint32_t epoch;	      /* daemons that have served this region */
	uint32_t n_crash;     /* under a step, in a row, without progress between them */
	uint32_t clean;	      /* 1: the last daemon was stopped; 0: one serves, or it crashed */
	uint32_t n_stillborn; /* crashes before the daemon served, in a row */
	uint64_t n_begun, n_ended; /* steps, of all daemons: between the two they were under way */
	uint64_t n_progress;	   /* tokens sampled by this daemon */
	uint64_t first_step;	   /* n_begun when it began */
	uint32_t stage;		   /* enum nsv_seqs_stage */
	uint32_t reserved;
};

enum nsv_seqs_stage {
	NSV_SEQS_STARTS = 0,
	NSV_SEQS_SERVES = 1,
	NSV_SEQS_GAVE_UP = 2, /* it could not start, and said so */
};

/* What crashes cast suspicion on. Two under steps without progress: on the batch that ran;
 * three, or two daemons that never served: on all requests; one more: on everything that was
 * kept. A crash with nothing under way is nobody's. */
enum nsv_suspect {
	NSV_SUSPECT_NOTHING = 0,
	NSV_SUSPECT_BATCH,
	NSV_SUSPECT_REQUESTS,
	NSV_SUSPECT_EVERYTHING,
};

struct nsv_session_commit { /* 88 bytes */
	uint32_t state;	    /* 0: free, 1: open */
	uint32_t uid;
	uint64_t session_id;
	uint64_t last_id; /* the highest request id taken */
	struct nsv_geom geom;
	uint32_t sq_head;
	uint32_t epoch;
	uint32_t reserved[7];
};

struct nsv_session_rec { /* 192 bytes */
	uint32_t active;
	uint32_t reserved[3];
	struct nsv_session_commit commit[2];
};

enum nsv_seq_state {
	NSV_SEQ_FREE = 0,
	NSV_SEQ_WAITING = 1, /* holds no blocks */
	NSV_SEQ_RUNNING = 2,
	NSV_SEQ_PAUSED = 3, /* its reader is behind; keeps its blocks */
	NSV_SEQ_DONE = 4,   /* until its client acknowledges the end */
	/* One of an entry's several answers, before all are there: it is WAITING if the first
	 * answer's record is taken, else FREE. So one store takes the whole entry. */
	NSV_SEQ_JOINING = 5,
};

struct nsv_seq_ident { /* 64 bytes */
	uint64_t session_id, request_id;
	uint64_t seed;
	uint64_t arrival; /* order of acceptance */
	uint32_t uid, slot, branch;
	uint32_t n_prompt;
	uint32_t params_len;
	uint32_t n_forked; /* output tokens that it began with: a fork's */
	uint64_t first_id; /* of the entry's first answer: its own where there is one */
};

struct nsv_seq_commit { /* 32 bytes */
	uint32_t state;
	uint32_t n_token; /* prompt and output */
	uint32_t n_past;  /* of them in the KV pool */
	uint32_t n_block;
	uint32_t finish, code;
	uint32_t n_cached, n_preempt; /* for `usage` */
};

struct nsv_seq_rec { /* 192 bytes, then params, tokens, blocks */
	uint32_t active;
	uint32_t reserved0;
	uint64_t last_step; /* that had rows of it */
	uint32_t reserved[12];
	struct nsv_seq_ident ident;
	struct nsv_seq_commit commit[2];
};

/* The region as mapped: addresses by index, all bounds the caller's. */
struct nsv_seqs {
	unsigned char *base;
	struct nsv_seqs_geom geom;
	size_t seq_off, seq_len; /* first sequence record; bytes from one to the next */
};

/* Bytes of a region: 0, -EINVAL: a zero count, -EOVERFLOW. */
int nsv_seqs_len(const struct nsv_seqs_geom *geom, size_t *ret_len);
/* Writes the head of a fresh region (all zeros: every record is free) and makes the view. */
int nsv_seqs_format(
	struct nsv_seqs *s, void *base, const struct nsv_seqs_geom *geom, uint64_t model_id);
/* The view of a region that another daemon wrote. -EPROTO and what differs. */
int nsv_seqs_open(struct nsv_seqs *s, void *base, size_t len, const struct nsv_seqs_geom *geom,
	uint64_t model_id, struct nsv_err *err);

struct nsv_seqs_head *nsv_seqs_head(const struct nsv_seqs *s);
struct nsv_seq_ident *nsv_seqs_ident(const struct nsv_seqs *s, uint32_t i);
unsigned char *nsv_seqs_params(const struct nsv_seqs *s, uint32_t i); /* (NSV_SEQS_PARAMS_LEN) */
int32_t *nsv_seqs_tokens(const struct nsv_seqs *s, uint32_t i);	      /* (geom.n_token) */
int32_t *nsv_seqs_blocks(const struct nsv_seqs *s, uint32_t i);	      /* (geom.n_block) */

/* The state that counts, by value: a commit cannot change it under the caller. */
struct nsv_seq_commit nsv_seqs_get(const struct nsv_seqs *s, uint32_t i);
void nsv_seqs_commit(const struct nsv_seqs *s, uint32_t i, const struct nsv_seq_commit *next);
struct nsv_session_commit nsv_seqs_get_session(const struct nsv_seqs *s, uint32_t i);
void nsv_seqs_commit_session(
	const struct nsv_seqs *s, uint32_t i, const struct nsv_session_commit *next);

/* Is record i, which is not free, one that a daemon writes? 0, or -EUCLEAN and a sentence. What it
 * counts of tokens[] is then in the vocabulary, and every count inside the geometry. Not looked at:
 * blocks[] and params. */
int nsv_seqs_check(const struct nsv_seqs *s, uint32_t i, uint32_t n_vocab, struct nsv_err *err);

/* ---- What the next daemon must know of this one */

/* A daemon begins to serve the region: counts its epoch, and the crash that ended the last one. */
void nsv_seqs_begin(const struct nsv_seqs *s);
enum nsv_suspect nsv_seqs_suspect(const struct nsv_seqs *s);
/* It serves; or it ends before it did, in good order. */
void nsv_seqs_serve(const struct nsv_seqs *s);
void nsv_seqs_give_up(const struct nsv_seqs *s);
/* It has stopped, nothing being under way. */
void nsv_seqs_end(const struct nsv_seqs *s);
/* A step begins: nsv_seqs_in_step for each sequence with rows in it, then nsv_seqs_step_begins.
 * Steps end in their order. */
uint64_t nsv_seqs_next_step(const struct nsv_seqs *s);
void nsv_seqs_in_step(const struct nsv_seqs *s, uint32_t i, uint64_t step);
void nsv_seqs_step_begins(const struct nsv_seqs *s, uint64_t step);
void nsv_seqs_step_ends(const struct nsv_seqs *s, uint64_t step);
/* Has a step that began and did not end rows of it? Holds over a restart, until the new daemon's
 * first step has ended. */
bool nsv_seqs_is_in_step(const struct nsv_seqs *s, uint32_t i);
void nsv_seqs_progress(const struct nsv_seqs *s); /* a token was committed */

#endif
