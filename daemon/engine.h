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
#include "daemon/numa.h"
#include "daemon/seqs.h"

#define NSV_MAX_SESSIONS 4096u /* records of the session table */

/* A request whose reader is behind keeps its blocks for so long, if nobody else needs them; then
 * they go back, and it computes them again (or swaps them in) when its reader has come. */
#define NSV_PAUSE_KEEPS_NS 5000000000u

struct nsv_engine;

/* Regions that another daemon left; -1: none. What does not fit (geometry, model, numerics,
 * size) is named in the log and made afresh. The region is what counts, never who wrote it: it
 * may have been cut off at any store. */
struct nsv_engine_keep {
	int kv_fd, seqs_fd, weights_fd;
};

struct nsv_engine_config {
	const char *backend;  /* name, or NULL */
	uint32_t threads;     /* 0: one a CPU, fewer while they have to wait for it */
	const char *kv_dtype; /* name, or NULL: the backend's */
	uint32_t kv_blocks;   /* 0: from memory */
	uint64_t kv_memory;   /* bytes; 0: from free memory */
	uint32_t swap_blocks; /* of the host tier; 0: none */
	uint32_t batch_tokens;
	uint32_t mixed_tokens; /* 0: NSV_SCHED_MIXED_TOKENS */
	uint32_t max_requests; /* at once */
	uint32_t run_ahead; /* steps under way at once: 1, or more to stand in for a device */
	bool no_prefix_cache;
	bool share_prefixes; /* one domain for all users */
	const struct nsv_numa *numa; /* NULL: one node; borrowed */
	/* NULL: nothing. The descriptors are the engine's from nsv_engine_new on, in any case. */
	const struct nsv_engine_keep *keep;
};

/* Fixed once the engine exists; for status and checks. */
struct nsv_engine_info {
	const struct nsv_backend *backend;
	const struct nsv_model_desc *desc;
	uint32_t threads; /* at most */
	uint32_t n_node;  /* of memory */
	uint32_t block_size, n_block;
	uint32_t n_host_block;
	uint32_t kv_dtype;
	size_t weights_len, kv_len, host_len, seqs_len;
	size_t kv_token_len; /* bytes of K and V of a token, all layers */
	uint64_t weights_ns;
	uint32_t text_need; /* bytes of text that one token may bring: the longest one and a held
	                     * stop string; the least text log is this for each step under way */
	uint32_t run_ahead;
	/* At once: fewer than was asked for while an adopted table has no room. */
	uint32_t max_requests;
	bool adopted_kv, adopted_seqs, adopted_weights;
	enum nsv_suspect suspect; /* cast by crashes of the daemons before, `seqs` adopted */
};

/* A sequence that another daemon left, as its record says. */
struct nsv_engine_kept {
	uint64_t session_id, request_id;
	uint32_t uid, slot;
	enum nsv_seq_state state;
	bool in_step; /* of a step that was under way when the process died */
};

/* Counters, each written by the engine alone; read with nsv_engine_stats. */
struct nsv_engine_stats {
	uint64_t n_step, n_prompt_token, n_output_token, n_preempt, n_cached_token, n_attention,
		step_ns;
	uint64_t n_accepted, n_ended, n_audit, n_audit_bad;
	uint64_t n_swap_out, n_swap_in; /* blocks */
	uint64_t n_fork_token;
	uint64_t n_branch, n_fork; /* accepted: answers after an entry's first, forks */
	uint64_t n_prompt_lp;	   /* prompt tokens whose log-probabilities were told */
	uint32_t n_running, n_waiting, n_paused, n_done, blocks_free, blocks_idle, host_free;
	uint32_t waste; /* slots of held blocks without a token */
	uint32_t n_thread; /* that compute now */
};

struct nsv_session_close { /* CLOSE and its answer CLOSED; lies in the session */
	struct nsv_msg msg;
	struct nsv_channel *ch;
	/* The engine's: requests that steps under way still have rows of, and one. */
	uint32_t n_left;
};

/* Loads the model and makes or takes over the regions; the thread does not run yet. `outbox` is
 * where answers go; it and `g` are borrowed. */
int nsv_engine_new(struct nsv_engine **ret_engine, const struct nsv_engine_config *config,
	const struct nsv_gguf *g, struct nsv_mailbox *outbox, struct nsv_err *err);
/* Once, before anything below: the tokenizer, borrowed, which can be loaded meanwhile. It must be
 * the model's. */
int nsv_engine_set_tok(struct nsv_engine *e, const struct nsv_tok *tok, struct nsv_err *err);
/* What `seqs` had of sequence `seq` (below the table's n_seq) when the engine was made. false: it
 * was free, or nothing was adopted. */
bool nsv_engine_get_kept(
	const struct nsv_engine *e, uint32_t seq, struct nsv_engine_kept *ret_kept);
/* Puts a kept sequence back, before nsv_engine_start, by the thread that makes sessions.
 * job->gen.seq is its index; session, ch, slot, id and uid are set, and the messages made
 * (nsv_job_init_msgs); no two have one slot. Its parameters are parsed again from the record,
 * its logs are written again where the client has not read them, its slot shows where it stands,
 * and an event says so. 0: it is accepted and will go on; 1: it has ended (so it had before, or
 * its record was wrong, which the log says and NSV_E_CRASHED the client): `ended` comes through
 * the outbox either way it ends. -ENOMEM: nothing was done, and it may be tried again. */
int nsv_engine_adopt(struct nsv_engine *e, struct nsv_job *job);
/* As nsv_engine_adopt, but one that would go on ends, with this code and sentence (NULL: the code's
 * own): for what must not run again. */
int nsv_engine_adopt_end(
	struct nsv_engine *e, struct nsv_job *job, enum nsv_code code, const char *text);
/* Kept sequences that nobody adopted are freed. */
int nsv_engine_start(struct nsv_engine *e);
/* Tells the thread to stop after its step, and waits. What runs stays committed in `seqs`. */
void nsv_engine_stop(struct nsv_engine *e);
void nsv_engine_free(struct nsv_engine *e); /* stopped; NULL is fine */

const struct nsv_engine_info *nsv_engine_get_info(const struct nsv_engine *e);
/* The table of sequences, for whoever commits sessions. */
const struct nsv_seqs *nsv_engine_get_seqs(const struct nsv_engine *e);
/* The regions' descriptors, borrowed: for whoever keeps them beyond this process. */
struct nsv_engine_keep nsv_engine_get_keep(const struct nsv_engine *e);
/* Any thread. */
void nsv_engine_post(struct nsv_engine *e, struct nsv_msg *msg);
void nsv_engine_look(struct nsv_engine *e);  /* cursors have moved */
void nsv_engine_heard(struct nsv_engine *e); /* whoever reads the outbox is alive */
void nsv_engine_audit(struct nsv_engine *e); /* check the invariants between steps and log */
struct nsv_engine_stats nsv_engine_get_stats(const struct nsv_engine *e);

#endif
