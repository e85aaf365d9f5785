/* nanoserve's client library: prompts to the daemon of this machine and tokens back, through shared
 * memory. Compiles as C11 and as C++17; needs nothing but libc.
 *
 *     struct nsv_client *client;
 *     struct nsv_request *request;
 *     struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
 *
 *     nsv_client_open(NULL, NULL, NULL, 0, &client);
 *     nsv_client_submit_text(client, "Once upon", 9, NULL, &request);
 *     while (nsv_request_next(request, -1, &chunk) > 0)
 *             fwrite(chunk.text, 1, chunk.text_len, stdout);
 *     nsv_request_free(request);
 *     nsv_client_close(client);
 *
 * Errors: a function returns 0 (or a documented value above 0) or -errno; nsv_client_error gives
 * the sentence of the last failure. A request that the daemon refused or gave up is no failure of a
 * function: it ends, and nsv_request_result has the code and the sentence.
 *
 * Threads: a client and its requests belong to one thread at a time; which one may change as long
 * as the threads order it. Several clients in a process are independent. After fork() only
 * the parent may use a client. The library has no globals, installs no signal handlers, raises no
 * SIGPIPE, and never logs, exits or aborts.
 *
 * Restarts: under a service manager a daemon that stops, crashes or is upgraded is followed by one
 * that serves the same sessions, and all this library shows of it is a pause: requests go on where
 * they stood, each byte is delivered once, and a tokenization that was cut off is asked for again.
 * A daemon that gives no sign for away_timeout_ms, having been asked for one after a quarter of
 * that time in silence, has gone: -ECONNRESET. Asking takes a call that waits; in the caller's own
 * event loop, an nsv_client_dispatch now and then. Without a service manager the end of the daemon
 * is the end of its sessions: -ECONNRESET at once.
 *
 * Memory: what is passed in is copied before a function returns. */
#ifndef NANOSERVE_CLIENT_H
#define NANOSERVE_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define NSV_CLIENT_DEFAULT_SOCKET "/run/nanoserve/default.sock"

struct nsv_client;  /* a session with a daemon */
struct nsv_request; /* something asked of it */
struct io_uring_sqe; /* of <linux/io_uring.h> or <liburing.h>, for who has a ring */

/* What a session is given. Zeros are defaults. The structure grows at its end: `size` tells which
 * one the caller was compiled with, so always start from nsv_client_options_init. */
struct nsv_client_options {
	uint32_t size;
	uint32_t n_slot;	    /* requests at once [8] */
	uint32_t arena_len;	    /* bytes for prompts on their way: the longest one [1 MiB] */
	uint32_t text_len;	    /* bytes of unread text a request [16 KiB] */
	uint32_t n_token;	    /* unread tokens a request [4096] */
	uint32_t n_lp;		    /* unread log-probabilities a request [1024] */
	int32_t connect_timeout_ms; /* [5000] */
	int32_t spin_us; /* longest spin before sleeping: -1: adaptive, up to 50; 0: never [-1] */
	int32_t away_timeout_ms; /* how long the daemon may be away; below 0: for ever [30000] */
};

enum nsv_client_flag {
	NSV_CLIENT_SPECIAL = 1,	   /* control tokens may be written in the text */
	NSV_CLIENT_NO_BOS = 2,	   /* never put the begin token first */
	NSV_CLIENT_SEED = 4,	   /* `seed` counts; else the daemon draws one */
	NSV_CLIENT_IGNORE_END = 8, /* end tokens are tokens like any other */
	NSV_CLIENT_LOGPROBS = 16,  /* log-probabilities: the token's and n_logprob others' */
	NSV_CLIENT_PROMPT_LOGPROBS = 32, /* likewise for each prompt token but the first */
};

struct nsv_client_bias {
	int32_t id;
	float bias; /* is added to the logit */
};

/* Sampling and limits; nsv_client_params_init sets the neutral values in brackets: greedy, up to
 * the end of the context. The daemon checks the ranges and says which parameter is wrong. The
 * structure grows at its end: `size` tells which one the caller was compiled with.
 *
 * Order: repetition penalty (ids of prompt and output), presence and frequency penalty (ids of the
 * output), biases, allowed and banned ids, temperature, top-k, min-p, top-p, typical-p. The
 * log-probabilities are those of the model, before all of it. */
struct nsv_client_params {
	uint32_t size;
	uint32_t flags; /* enum nsv_client_flag [0] */
	uint64_t seed;
	float temperature;	  /* [0] 0: greedy */
	float top_p;		  /* [1] */
	float min_p;		  /* [0] */
	float typical_p;	  /* [1] */
	int32_t top_k;		  /* [0] 0: all */
	float repetition_penalty; /* [1] */
	float presence_penalty;	  /* [0] */
	float frequency_penalty;  /* [0] */
	uint32_t penalty_window;  /* [0] last tokens that the penalties see; 0: all */
	uint32_t max_tokens;	  /* [0] 0: up to the context's end */
	uint32_t min_tokens;	  /* [0] no end token and no stop id before */
	uint32_t n_logprob;	  /* [0] alternatives a step */
	int32_t priority;	  /* [0] -100 to 100: higher goes first, among one's own */
	uint32_t n_stop;	  /* [0] */
	const char *const *stop;  /* (n_stop) strings that end the text */
	/* Single ids [none], at most 1,024 of each kind; all parameters take 8 KiB at most. */
	const int32_t *stop_id;		    /* (n_stop_id) end the output like an end token */
	const int32_t *allow;		    /* (n_allow) if any: no others may come */
	const int32_t *ban;		    /* (n_ban) may not come */
	const struct nsv_client_bias *bias; /* (n_bias) each id once */
	uint32_t n_stop_id, n_allow, n_ban, n_bias;
	/* Several answers to the prompt, each a request (nsv_request_answer). Random numbers come
	 * from (seed, branch, position): answer i has the branch `branch` + i, and can be had again
	 * alone with that. */
	uint32_t n_branch; /* [1] answers, at most 16 */
	uint32_t branch;   /* [0] of the first */
};

enum nsv_client_role {
	NSV_CLIENT_SYSTEM = 0,
	NSV_CLIENT_USER = 1,
	NSV_CLIENT_ASSISTANT = 2,
};

struct nsv_client_message {
	uint32_t role; /* enum nsv_client_role */
	const char *text;
	size_t len;
};

struct nsv_client_lp {
	int32_t id;
	float logprob;
};

/* Output, in the order of the stream; the memory is the request's. Text comes in whole characters.
 * Text and tokens advance each at its own pace: text may be held back for a stop string. `size` is
 * set by the caller. */
struct nsv_client_chunk {
	uint32_t size;
	const char *text; /* not NUL-terminated */
	size_t text_len;
	const int32_t *tokens;
	size_t n_token;
	const struct nsv_client_lp *lps; /* a step: the token's, then n_logprob others' by rank */
	size_t n_lp;
	size_t n_prompt_lp; /* of n_lp, from the first on: the prompt's. Of several answers the
			     * first one alone has them, of a fork its target */
};

enum nsv_client_finish {
	NSV_CLIENT_FINISH_STOP = 1,   /* an end token or a stop string; or the output is whole */
	NSV_CLIENT_FINISH_LENGTH = 2, /* max_tokens, or the context's end */
	NSV_CLIENT_FINISH_CANCEL = 3,
	NSV_CLIENT_FINISH_ERROR = 4, /* `code` and `text` say why */
};

/* Why the daemon refused a request or gave it up. Numbers stay; whoever meets another one shows the
 * text. */
enum nsv_client_code {
	NSV_CLIENT_CODE_DENIED = 3,	  /* not allowed to this user */
	NSV_CLIENT_CODE_LIMIT = 4,	  /* over a limit of user or session; the text names it */
	NSV_CLIENT_CODE_ENTRY = 6,	  /* this side broke the protocol */
	NSV_CLIENT_CODE_ID = 7,		  /* of a fork: its target has ended */
	NSV_CLIENT_CODE_UTF8 = 8,	  /* the text is not UTF-8 */
	NSV_CLIENT_CODE_PARAM = 9,	  /* a parameter is out of range; the text names it */
	NSV_CLIENT_CODE_UNSUPPORTED = 10, /* a parameter that this daemon or model cannot honour */
	NSV_CLIENT_CODE_CONTEXT = 11,	  /* the prompt does not fit the context */
	NSV_CLIENT_CODE_NOMEM = 12,	  /* it can never fit the KV pool, or memory is out */
	NSV_CLIENT_CODE_NUMERIC = 13,	  /* a logit is not finite */
	NSV_CLIENT_CODE_TOKEN = 14,	  /* an id outside the vocabulary */
	NSV_CLIENT_CODE_INTERNAL = 15,	  /* a fault of the daemon's */
	NSV_CLIENT_CODE_STOPPING = 16,	  /* the daemon is draining: it takes no new requests */
	NSV_CLIENT_CODE_CRASHED = 17,	  /* the request was running in two crashes */
};

/* How a request ended; of a fork, n_output counts the whole answer. Texts are the request's. `size`
 * is set by the caller. */
struct nsv_client_result {
	uint32_t size;
	uint32_t finish; /* enum nsv_client_finish */
	uint32_t code;	 /* enum nsv_client_code; 0 unless finish is NSV_CLIENT_FINISH_ERROR */
	uint32_t n_prompt, n_cached, n_output, n_preempt;
	uint64_t seed; /* the one that was used */
	uint64_t queue_ns, prefill_ns, decode_ns;
	uint64_t first_ns; /* from submission to the first output, as this process saw it; or 0 */
	uint64_t total_ns; /* from submission to the end, likewise */
	const char *text;  /* the error's sentence, or "" */
	const char *stop;  /* the stop string that ended it (cut at 63 bytes), or "" */
};

/* Why the daemon ended a session. */
enum nsv_client_end {
	NSV_CLIENT_END_UNSAID = 0,   /* it went away without a word, or the session goes on */
	NSV_CLIENT_END_DENIED = 3,   /* it no longer serves this user */
	NSV_CLIENT_END_STOPPED = 16, /* it was stopped, or drained */
	NSV_CLIENT_END_LOST = 18, /* the next one serves another model, or has lost its records */
};

/* "0.1.0" */
const char *nsv_client_version(void);

/* ---- A session */

void nsv_client_options_init(struct nsv_client_options *options);

/* Connects. path NULL: $NANOSERVE_SOCKET, else NSV_CLIENT_DEFAULT_SOCKET. options NULL: defaults.
 * On failure the sentence is in text (of text_len bytes; may be NULL, 0): -ENOENT or -ECONNREFUSED:
 * no daemon there; -EACCES: not allowed; -EDQUOT: a limit; -EPROTONOSUPPORT: another protocol
 * version; -ETIMEDOUT: no answer. */
int nsv_client_open(const char *path, const struct nsv_client_options *options, char *text,
	size_t text_len, struct nsv_client **ret_client);
/* Ends the session; the daemon ends its requests. Frees its requests too. NULL is fine. */
void nsv_client_close(struct nsv_client *client);
/* The sentence of the last failure, the client's memory until the next call. */
const char *nsv_client_error(const struct nsv_client *client);
/* After -ECONNRESET, whose sentence says the same: enum nsv_client_end, or an enum
 * nsv_client_code. */
uint32_t nsv_client_end_code(const struct nsv_client *client);
/* The number that the daemon's log and its status call the session by. */
uint64_t nsv_client_session_id(const struct nsv_client *client);

/* ---- Asking. Each makes a request, which ends by itself and is freed by nsv_request_free.
 * -EBUSY: as many requests as slots are under way (several answers take slots side by side);
 * -E2BIG: it will never fit the session's arena; -EINVAL; -EAGAIN: the daemon has taken nothing for
 * a second, which is how long a submission waits for room where earlier ones, or a request that was
 * just freed, still take it. */

/* params NULL: the neutral ones. */
int nsv_client_submit_text(struct nsv_client *client, const char *text, size_t len,
	const struct nsv_client_params *params, struct nsv_request **ret_request);
int nsv_client_submit_ids(struct nsv_client *client, const int32_t *ids, size_t n,
	const struct nsv_client_params *params, struct nsv_request **ret_request);
/* The model's own chat template is applied. */
int nsv_client_submit_chat(struct nsv_client *client, const struct nsv_client_message *messages,
	size_t n, const struct nsv_client_params *params, struct nsv_request **ret_request);
void nsv_client_params_init(struct nsv_client_params *params);
/* Answer i of what a submission with n_branch above 1 returned; 0 is that itself. Each is freed for
 * itself. NULL: there is none, or it was freed. */
struct nsv_request *nsv_request_answer(struct nsv_request *request, uint32_t i);
/* A new request that goes on from where this one stands when the daemon comes to it, with random
 * numbers of another branch. A target that has ended by then: the fork ends with an error. */
int nsv_request_fork(
	struct nsv_request *request, uint32_t branch, struct nsv_request **ret_request);
/* How much of a fork's answer is its target's: the first text_len bytes and n_token tokens, which
 * the fork's own output goes on from. 0 and 0 for others. 0, or -EAGAIN: it has not begun. */
int nsv_request_fork_point(
	const struct nsv_request *request, uint64_t *ret_text_len, uint64_t *ret_n_token);

/* The output is tokens. flags: NSV_CLIENT_SPECIAL, NSV_CLIENT_NO_BOS. */
int nsv_client_tokenize(struct nsv_client *client, const char *text, size_t len, unsigned int flags,
	struct nsv_request **ret_request);
/* The ids that nsv_client_submit_chat would compute from. */
int nsv_client_tokenize_chat(struct nsv_client *client, const struct nsv_client_message *messages,
	size_t n, unsigned int flags, struct nsv_request **ret_request);
/* The output is text. */
int nsv_client_detokenize(
	struct nsv_client *client, const int32_t *ids, size_t n, struct nsv_request **ret_request);
/* The output is text: the daemon's state as JSON. */
int nsv_client_status(struct nsv_client *client, struct nsv_request **ret_request);
/* For root, the daemon's user and its group. begin 1: the daemon takes no new requests (they end
 * with NSV_CLIENT_FINISH_ERROR, NSV_CLIENT_CODE_STOPPING), and ends all sessions and itself when the
 * running requests have ended; 0: it serves again. The output is empty: its end says that it is
 * done. */
int nsv_client_drain(struct nsv_client *client, int begin, struct nsv_request **ret_request);
/* One round trip. 0, -ETIMEDOUT, -errno. timeout_ms as below. */
int nsv_client_ping(struct nsv_client *client, int timeout_ms);

/* ---- Reading. timeout_ms: 0: do not wait, below 0: for ever. A wait that a signal handler of the
 * caller's interrupts returns -EINTR and has lost nothing. -EINVAL: the size of a chunk or a result
 * is not the structure's. */

/* The output since the last call. 1: a chunk, valid until the next call for this request; 0: it has
 * ended and everything has been read; -EAGAIN: nothing yet (timeout 0); -ETIMEDOUT;
 * -ECONNRESET: the daemon went away, after what it had written was delivered. */
int nsv_request_next(
	struct nsv_request *request, int timeout_ms, struct nsv_client_chunk *ret_chunk);
/* All output to the end, less what nsv_request_next delivered. 0, or -errno; after -ETIMEDOUT or
 * -EAGAIN it can be called again and loses nothing. Valid until the next call for this request. */
int nsv_request_collect(
	struct nsv_request *request, int timeout_ms, struct nsv_client_chunk *ret_chunk);
/* 0, or -EAGAIN: it has not ended (nsv_request_next has not yet returned 0). */
int nsv_request_result(const struct nsv_request *request, struct nsv_client_result *ret_result);
/* Asks the daemon to end it. The request then ends with NSV_CLIENT_FINISH_CANCEL, or as it had
 * already ended. Does not wait. */
int nsv_request_cancel(struct nsv_request *request);
/* Cancels it if it has not ended. NULL is fine. */
void nsv_request_free(struct nsv_request *request);
uint64_t nsv_request_id(const struct nsv_request *request);
void nsv_request_set_data(struct nsv_request *request, void *data);
void *nsv_request_data(const struct nsv_request *request);

/* ---- Many requests at once */

/* Waits until a request has news. 1: nsv_client_ready will name it; -EAGAIN, -ETIMEDOUT: none has;
 * -ECONNRESET: the daemon went away. */
int nsv_client_wait(struct nsv_client *client, int timeout_ms);
/* The next request with news (output or end), each once for its news; NULL: no more. Read it with
 * nsv_request_next at timeout 0 until that returns no chunk. */
struct nsv_request *nsv_client_ready(struct nsv_client *client);

/* ---- In the caller's own event loop: poll, epoll or io_uring, for input, on one descriptor.
 *
 *     for (;;) {
 *             while ((request = nsv_client_ready(client)))
 *                     ...
 *             if (nsv_client_arm(client) == 0)
 *                     sleep until nsv_client_fd(client) is readable or whatever else comes;
 *             nsv_client_dispatch(client);
 *     }
 */

/* For polling only: do not read, write or close it. */
int nsv_client_fd(const struct nsv_client *client);
/* Before sleeping: asks for a wake-up. 0: sleep; 1: there is news already: do not; -errno: as
 * nsv_client_wait. */
int nsv_client_arm(struct nsv_client *client);
/* After sleeping, or at any time: takes in what has come. Never blocks. 0 or -errno. */
int nsv_client_dispatch(struct nsv_client *client);
/* For a loop on the caller's own io_uring: fills one of its submission entries with a multishot
 * poll of the descriptor, whose completions carry user_data. It goes on until a completion comes
 * without IORING_CQE_F_MORE; then fill another. The library needs no ring library for it. */
void nsv_client_prep_poll(
	const struct nsv_client *client, struct io_uring_sqe *sqe, uint64_t user_data);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
