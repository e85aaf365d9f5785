/* One entry of a client that takes time: a generation, or one whose answer is an output (tokenize,
 * detokenize, status, drain).
 *
 *     io thread: new -> [worker: prepare, if long] -> checked -> engine: commit, run, end
 *                                                        |                     |
 *     io thread: <-------------- an output flows           <----- accepted, ended
 *
 * The io thread makes and frees it. Between submit and `ended` the engine part is the engine's; the
 * embedded messages let either side speak without allocating. */
#ifndef NSV_DAEMON_JOB_H
#define NSV_DAEMON_JOB_H

#include "daemon/channel.h"
#include "daemon/mailbox.h"
#include "daemon/params.h"

#define NSV_NO_SEQ UINT32_MAX /* a fork that came too late */

struct nsv_session;
struct nsv_session_close;
struct nsv_status;

enum nsv_msg_kind {
	NSV_MSG_SUBMIT,    /* io to engine */
	NSV_MSG_CANCEL,    /* io to engine */
	NSV_MSG_RELEASE,   /* io to engine: the end was acknowledged */
	NSV_MSG_NUDGE,     /* to engine: somebody raised a flag */
	NSV_MSG_CLOSE,     /* io to engine: a session has gone */
	NSV_MSG_STOP,      /* io to engine: commit and return */
	NSV_MSG_PREPARE,   /* io to its worker for prompts */
	NSV_MSG_PREPARED,  /* ... and back */
	NSV_MSG_BUILD,     /* io to its worker for memory: make a session's regions */
	NSV_MSG_BUILT,     /* ... and back */
	NSV_MSG_TEAR_DOWN, /* io to its worker for memory: give them back */
	NSV_MSG_TORN_DOWN, /* ... and back: nobody refers to the session any more */
	NSV_MSG_ACCEPTED,  /* engine to io: it is in `seqs` */
	NSV_MSG_ENDED,     /* engine to io: the slot shows the end */
	NSV_MSG_RELEASED,  /* engine to io: nothing refers to it any more */
	NSV_MSG_CLOSED,    /* engine to io: nothing refers to the session any more */
	NSV_MSG_ALIVE,     /* engine to io: are you? nsv_engine_heard answers */
	NSV_MSG_FAILED,    /* engine to io: the engine cannot go on */
};

struct nsv_job_msg {
	struct nsv_msg msg;
	struct nsv_job *job;
};

struct nsv_job {
	struct nsv_job_msg submit, cancel, release, prepare, answer, end;
	struct nsv_session *session;
	struct nsv_channel *ch;
	uint64_t id;
	uint32_t slot, uid;
	uint32_t sq_index; /* of its entry */
	uint64_t bytes;    /* charged to its user */
	uint8_t op, flags;
	uint32_t branch;    /* its random numbers are keyed by (seed, branch, position) */
	uint32_t n_branch;  /* of an entry's first request: slots that the entry took */
	uint64_t target_id; /* of a fork */
	/* With the message SUBMIT: the entry's next answer; whom a fork copies, alive until the
	 * engine has the message, since its release comes after it. */
	struct nsv_job *next_branch, *target;

	/* What the client sent, copied; then what it means. */
	char *input;
	size_t input_len;
	unsigned char *params_data; /* as they go to `seqs` */
	uint32_t params_len;
	struct nsv_wish wish;
	struct nsv_ids ids;  /* the prompt; or the output of tokenize */
	char *text;          /* the output of detokenize; of status, a piece */
	size_t text_len, text_done, ids_done;
	struct nsv_status *status; /* the pieces after that, or NULL */
	enum nsv_code code;
	struct nsv_err err;
	uint64_t start_ns;

	struct nsv_sink sink;

	/* The engine's. */
	struct {
		uint32_t seq;        /* index in `seqs`, or NSV_NO_SEQ */
		uint64_t seed;
		uint32_t n_prompt, n_output, max_token; /* max_token: prompt and output */
		uint32_t n_told_lp; /* groups of the prompt that were told before a restart */
		/* A fork's: what of its answer, tokens and bytes of text, is its target's. */
		uint32_t n_forked;
		uint64_t fork_text;
		uint64_t last_event;
		uint32_t n_flight; /* steps under way that have rows of it */
		bool event_sent, stalled, done, released;
		uint64_t stalled_ns; /* when that began */
		/* Who waits for its release; NULL: the io thread. */
		struct nsv_session_close *close;
		struct nsv_detok detok;
		uint64_t run_ns, first_ns;
	} gen;
};

/* The request that a message is about; `msg` is one of a request's own. */
static inline struct nsv_job *nsv_job_of(struct nsv_msg *msg)
{
	return NSV_CONTAINER_OF(msg, struct nsv_job_msg, msg)->job;
}

void nsv_job_init_msgs(struct nsv_job *job);
void nsv_job_free(struct nsv_job *job); /* NULL is fine */
/* Parses and tokenizes what was copied: pure but for the request; any thread. Leaves job->code. */
void nsv_job_prepare(struct nsv_job *job, const struct nsv_tok *tok);
/* Gives another answer of the same entry what the first one's preparation left. 0 or -ENOMEM. */
int nsv_job_copy(struct nsv_job *job, const struct nsv_job *first);

#endif
