/* The engine thread: takes requests, runs steps over the model, commits tokens to `seqs` and writes
 * them to their clients' logs.
 *
 *     step:  messages -> rooms -> plan -> commit preemptions -> batch -> forward -> for each row
 *            that samples: token -> seqs (commit) -> logs -> slot record -> event -> bell
 *
 * It owns the model, the KV pool, the scheduler, the sequence table and, between submit and end,
 * the slots of the requests. A step does not allocate and takes no lock; the only system call a
 * token can cost is the bell of a client that sleeps. */
#ifndef NSV_DAEMON_ENGINE_H
#define NSV_DAEMON_ENGINE_H

#include "daemon/model/model.h"
#include "daemon/job.h"

struct nsv_engine;

struct nsv_engine_config {
	const char *backend;   /* name, or NULL */
	uint32_t threads;      /* 0: one a CPU */
	uint32_t kv_blocks;    /* 0: from memory */
	uint32_t batch_tokens;
	uint32_t max_requests;
	uint32_t run_ahead;  /* steps under way at once: 1, or more to stand in for a device */
	bool no_prefix_cache;
	bool share_prefixes; /* one domain for all users */
};

/* Fixed once the engine exists; for status and checks. */
struct nsv_engine_info {
	const struct nsv_backend *backend;
	const struct nsv_model_desc *desc;
	uint32_t threads, block_size, n_block;
	size_t weights_len, kv_len, seqs_len;
	uint64_t weights_ns;
	uint32_t text_need; /* bytes of text that one token may bring: the longest one and a held
	                     * stop string; the least text log is this for each step under way */
	uint32_t run_ahead;
};

/* Counters, each written by the engine alone; read with nsv_engine_stats. */
struct nsv_engine_stats {
	uint64_t n_step, n_prompt_token, n_output_token, n_preempt, n_cached_token, n_attention,
		step_ns;
	uint64_t n_accepted, n_ended, n_audit, n_audit_bad;
	uint32_t n_running, n_waiting, n_paused, n_done, blocks_free, blocks_idle;
};

struct nsv_session_close { /* CLOSE and its answer CLOSED; lies in the session */
	struct nsv_msg msg;
	struct nsv_channel *ch;
	/* The engine's: requests that steps under way still have rows of, and one. */
	uint32_t n_left;
};

/* Loads everything; the thread does not run yet. `outbox` is where answers go; it and `g` and `tok`
 * are borrowed. */
int nsv_engine_new(struct nsv_engine **ret_engine, const struct nsv_engine_config *config,
	const struct nsv_gguf *g, const struct nsv_tok *tok, struct nsv_mailbox *outbox,
	struct nsv_err *err);
int nsv_engine_start(struct nsv_engine *e);
/* Tells the thread to stop after its step, and waits. What runs stays committed in `seqs`. */
void nsv_engine_stop(struct nsv_engine *e);
void nsv_engine_free(struct nsv_engine *e); /* stopped; NULL is fine */

const struct nsv_engine_info *nsv_engine_get_info(const struct nsv_engine *e);
/* The table of sequences, for whoever commits sessions. */
const struct nsv_seqs *nsv_engine_get_seqs(const struct nsv_engine *e);
/* Any thread. */
void nsv_engine_post(struct nsv_engine *e, struct nsv_msg *msg);
void nsv_engine_look(struct nsv_engine *e);  /* cursors have moved */
void nsv_engine_audit(struct nsv_engine *e); /* check the invariants between steps and log */
struct nsv_engine_stats nsv_engine_get_stats(const struct nsv_engine *e);

#endif
