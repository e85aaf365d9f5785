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
 * counts, the scheduler's state and the prefix index are not here: they are rebuilt. */
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
	uint32_t epoch;    /* daemons that have served this region */
	uint32_t n_crash;  /* ends without a clean stop */
	uint64_t reserved[4];
};

struct nsv_session_commit { /* 88 bytes */
	uint32_t state; /* 0: free, 1: open */
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
	NSV_SEQ_PAUSED = 3,  /* its reader is behind; keeps its blocks */
	NSV_SEQ_DONE = 4,    /* until its client acknowledges the end */
};

struct nsv_seq_ident { /* 64 bytes */
	uint64_t session_id, request_id;
	uint64_t seed;
	uint64_t arrival; /* order of acceptance */
	uint32_t uid, slot, branch;
	uint32_t n_prompt;
	uint32_t params_len;
	uint32_t reserved[3];
};

struct nsv_seq_commit { /* 32 bytes */
	uint32_t state;
	uint32_t n_token; /* prompt and output */
	uint32_t n_past;  /* of them in the KV pool */
	uint32_t n_block;
	uint32_t finish, code;
	uint32_t reserved[2];
};

struct nsv_seq_rec { /* 192 bytes, then params, tokens, blocks */
	uint32_t active;
	uint32_t reserved[15];
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
int32_t *nsv_seqs_tokens(const struct nsv_seqs *s, uint32_t i);       /* (geom.n_token) */
int32_t *nsv_seqs_blocks(const struct nsv_seqs *s, uint32_t i);       /* (geom.n_block) */

/* The state that counts, by value: a commit cannot change it under the caller. */
struct nsv_seq_commit nsv_seqs_get(const struct nsv_seqs *s, uint32_t i);
void nsv_seqs_commit(const struct nsv_seqs *s, uint32_t i, const struct nsv_seq_commit *next);
struct nsv_session_commit nsv_seqs_get_session(const struct nsv_seqs *s, uint32_t i);
void nsv_seqs_commit_session(
	const struct nsv_seqs *s, uint32_t i, const struct nsv_session_commit *next);

#endif
