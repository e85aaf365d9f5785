/* What the files of the engine share (engine.c: life and loop; regions.c: its memory; step.c: one
 * step; output.c: what a token means; finish.c: requests in and out; kept.c, adopt.c: those of the
 * daemon before; audit.c: invariants). Nobody else includes it, but for tests that drive an engine
 * without its thread. */
#ifndef NSV_DAEMON_ENGINE_STATE_H
#define NSV_DAEMON_ENGINE_STATE_H

#include <pthread.h>

#include "cache/kv.h"
#include "daemon/crowd.h"
#include "daemon/engine.h"
#include "daemon/exec.h"
#include "daemon/sched.h"
#include "daemon/seqs.h"

/* A step from its plan to its results. */
struct nsv_engine_step {
	struct nsv_step_plan plan;
	int32_t *tokens, *pos;	   /* (batch_tokens) */
	int64_t *slots;		   /* (batch_tokens) */
	struct nsv_attn_seq *seqs; /* (max_requests) */
	uint32_t *places;	   /* (max_requests) */
	/* (nsv_exec_max_out(max_requests)) each */
	uint32_t *out_rows, *out_seqs, *n_lps;
	int32_t *given;
	struct nsv_sample_in *ins;
	struct nsv_exec_result *results;
	uint64_t start_ns, number;
};

/* What `seqs` had of a sequence when the engine was made. */
struct nsv_kept {
	struct nsv_engine_kept said;
	struct nsv_seq_commit commit;
	uint64_t arrival;
	bool wrong;    /* the record cannot be believed */
	bool computed; /* what it says of the KV pool can */
};

struct nsv_engine {
	/* Set once. */
	struct nsv_engine_info info;
	const struct nsv_tok *tok;
	struct nsv_team *team;
	struct nsv_numa numa; /* its homes are borrowed */
	struct nsv_model *model;
	struct nsv_dispatch dispatch;
	struct nsv_region kv_region, host_region, seqs_region;
	struct nsv_kv_geom kv_geom;
	struct nsv_model_kv kv;
	struct nsv_seqs seqs;
	struct nsv_mailbox inbox, *outbox;
	uint32_t max_requests; /* records of the sequence table, perhaps more than info says */

	/* The engine thread's. */
	struct nsv_block_alloc alloc, host_alloc;
	struct nsv_prefix_tree tree;
	bool share_prefixes;
	struct nsv_sched sched;
	struct nsv_sampler *samplers; /* one a thread */
	struct nsv_exec *exec;
	/* A ring: first_step is the oldest under way, n_step are. */
	struct nsv_engine_step steps[NSV_MAX_AHEAD];
	uint32_t first_step, n_step;
	struct nsv_job **jobs; /* (max_requests): by sequence index; NULL: free */
	uint32_t *free_seqs, n_free_seqs;
	struct nsv_kept *kept; /* (max_requests), until the start; NULL: nothing was adopted */
	uint64_t arrivals;
	char *text; /* (2, info.text_need): decided text, raw text */
	struct nsv_engine_stats stats;
	/* Fed by both threads' life: the engine does it, once the io thread has answered. */
	uint64_t watchdog_ns, watchdog_last_ns;
	struct nsv_msg alive_msg;
	int io_is_alive; /* atomic: it has answered the last question */
	/* Where the number of threads is left to us; step_ns of the stats and the members' delay
	 * when the window began. */
	struct nsv_crowd crowd;
	bool adapts, has_window;
	uint64_t window_busy_ns, window_delay_ns;

	pthread_t join; /* makes huge pages of the KV pool's, if it could be had */
	bool joins;
	int join_stops; /* atomic */

	pthread_t thread;
	bool started, stopping, failed;
	struct nsv_msg stop_msg, failed_msg;
	int audit; /* atomic: somebody asked for one */
	struct nsv_msg nudge_msg;
	int nudged; /* atomic: nudge_msg is on its way */
};

/* One writer, so a plain sum; relaxed, since other threads read it at any time. */
#define nsv_stat_add(p, n) __atomic_store_n((p), *(p) + (n), __ATOMIC_RELAXED)
#define nsv_stat_set(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)

/* What the thread does over and over: messages, a step, what is due after it. As
 * nsv_engine_step; once it has been told to stop, steps under way are taken and none is begun.
 * Tests drive an engine without a thread by it, between nsv_engine_resume and nsv_engine_free. */
int nsv_engine_turn(struct nsv_engine *e, struct nsv_err *err);
/* Plans and submits a step if one can be under way, and takes the oldest one's results when no more
 * can, or there is nothing to plan. 0; 1: nothing can run; -errno: the model cannot go on. */
int nsv_engine_step(struct nsv_engine *e, struct nsv_err *err);

/* Takes the results of what is under way, without more steps. */
int nsv_engine_drain(struct nsv_engine *e, struct nsv_err *err);

/* The regions, made or taken over: *keep_fd is -1 then. The host tier is always made. The model is
 * set; free_len: of memory, that of its weights taken. */
int nsv_engine_make_kv(struct nsv_engine *e, const struct nsv_engine_config *c, size_t free_len,
	int *keep_fd, struct nsv_err *err);
/* The KV pool's small pages become huge ones, by a thread of its own, beside steps: a start need
 * not wait for them, which takes seconds in memory that is new to the machine. */
void nsv_engine_join_start(struct nsv_engine *e);
void nsv_engine_join_stop(struct nsv_engine *e);
/* The records of a table that was kept and has sessions, else 0. */
uint32_t nsv_engine_kept_records(int keep_fd);
/* A table with sessions in it is taken over whatever its size, n_kept of nsv_engine_kept_records(),
 * which max_requests then becomes. */
int nsv_engine_make_seqs(struct nsv_engine *e, const struct nsv_engine_config *c, uint32_t n_kept,
	int *keep_fd, struct nsv_err *err);

/* The requests of an entry come in, from its first one on: records, slots, scheduler, answers. A
 * crash in between leaves the first of them in `seqs`, none of which has run. */
void nsv_engine_accept(struct nsv_engine *e, struct nsv_job *job);
/* It ends, for the reason given; held text goes out first unless it was cancelled or failed. */
void nsv_engine_finish(struct nsv_engine *e, struct nsv_job *job, enum nsv_finish finish,
	enum nsv_code code, const char *text);
/* It ends with an error that the engine itself finds. */
void nsv_engine_fail(struct nsv_engine *e, struct nsv_job *job, enum nsv_code code);
/* The sentence of such an error. */
const char *nsv_engine_sentence(enum nsv_code code);
/* Commits the end, then shows it: the slot, the event, the io thread. The scheduler has not got it
 * any more. text: the stop string (of finish STOP) or a sentence; NULL: none. */
void nsv_engine_end(struct nsv_engine *e, struct nsv_job *job, const struct nsv_seq_commit *end,
	const char *text);
/* What a token, the last of n_output, means: NSV_FINISH_NONE, or why it is the last one. Its
 * text is in e->text (*ret_len); *ret_stop: the stop string that ended it, or NULL. */
enum nsv_finish nsv_engine_read_token(struct nsv_engine *e, struct nsv_job *job, int32_t token,
	size_t *ret_len, const char **ret_stop);
/* Held text, to e->text: its length. */
size_t nsv_engine_flush_text(struct nsv_engine *e, struct nsv_job *job);
/* Where it ends at the latest: its own limit, the context's end, the pool's size. */
uint32_t nsv_engine_most_tokens(const struct nsv_engine *e, const struct nsv_job *job);
/* Groups of log-probabilities that come before those of the output. */
uint32_t nsv_engine_n_prompt_lp(const struct nsv_job *job);
/* To the scheduler, with its first n_token tokens. Arrivals grow from call to call. leader: a
 * sequence that has all of them but, perhaps, the last, or NSV_SCHED_NO_LEADER. */
void nsv_engine_schedule(struct nsv_engine *e, struct nsv_job *job, uint32_t n_token,
	uint64_t arrival, uint32_t leader);
/* The invariants, between two turns: 0, -ENOMEM, or -EUCLEAN and a sentence. whole: with every
 * key of the prefix cache. */
int nsv_engine_check(const struct nsv_engine *e, bool whole, struct nsv_err *err);
/* Checks, counts, and says what is wrong; loud: also that nothing is. */
void nsv_engine_audit_now(struct nsv_engine *e, bool loud);
/* Looks at what `seqs` and the KV pool were left with. */
int nsv_engine_find_kept(struct nsv_engine *e, struct nsv_err *err);
/* Kept sequences go on where they stood; those that nobody adopted are freed. */
int nsv_engine_resume(struct nsv_engine *e);

/* Its record is free, and can be another's once no step under way has rows of it; then its
 * session or the io thread is told. close NULL: the client acknowledged its end. */
void nsv_engine_release(struct nsv_engine *e, struct nsv_job *job, struct nsv_session_close *close);
/* One thing less refers to a session that closes; after the last one the io thread is told. */
void nsv_engine_left(struct nsv_engine *e, struct nsv_session_close *close);
/* A step with rows of it has come back. */
void nsv_engine_returned(struct nsv_engine *e, struct nsv_job *job);
/* Its logs and slot record are told to the client: publish, one event at most, bell. */
void nsv_engine_tell(struct nsv_job *job, enum nsv_cqe_kind kind);
/* Commits what the scheduler knows of it. */
void nsv_engine_commit(struct nsv_engine *e, const struct nsv_job *job);

#endif
