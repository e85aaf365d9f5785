/* The bytes that a client and the daemon share. PROTOCOL.md explains them; this header is their
 * only definition. It includes nothing of nanoserve and compiles alone as C11 and as C++17.
 *
 * Rules: fixed-width integers and offsets from the region's start; one writer a field; a written
 * index on a cache line of its own; reserved fields are zero and checked; append only: a new field
 * takes reserved bytes, a new meaning takes a feature bit.
 *
 *   up   (client writes)    head page | slot cursors | submission entries | arena
 *   down (daemon writes)    head page | slot records | reply ring | event ring |
 *                           text logs | token logs | log-probability logs
 *
 * Version history: 1.0 first. */
#ifndef NSV_SHM_ABI_H
#define NSV_SHM_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define NSV_ABI_ASSERT(c) static_assert(c, #c)
#else
#define NSV_ABI_ASSERT(c) _Static_assert(c, #c)
#endif

#define NSV_ABI_MAJOR 1u
#define NSV_ABI_MINOR 0u

#define NSV_MAGIC_HELLO 0x4f4c4548u   /* "HELO" */
#define NSV_MAGIC_WELCOME 0x4d434c57u /* "WLCM" */
#define NSV_MAGIC_UP 0x50555f56534eull         /* "NSV_UP" */
#define NSV_MAGIC_DOWN 0x4e574f445f56534eull /* "NSV_DOWN" */

/* Feature words. A peer ignores unknown compatible bits and refuses unknown incompatible ones. */
#define NSV_FEAT_COMPAT_KNOWN 0ull
#define NSV_FEAT_INCOMPAT_KNOWN 0ull

/* Limits of the wire; the daemon's config may set lower ones. */
#define NSV_MAX_SQE 4096u
#define NSV_MAX_SLOT 1024u
#define NSV_MAX_ARENA (64u << 20)
#define NSV_MAX_TEXT_LOG (16u << 20)
#define NSV_MAX_TOKEN_LOG (4u << 20)
#define NSV_MAX_LP_LOG (4u << 20)
#define NSV_MIN_TEXT_LOG 256u
#define NSV_MIN_TOKEN_LOG 64u
#define NSV_MAX_LOGPROB 64u /* most alternatives a step */
#define NSV_MAX_BRANCH 16u /* most answers of one SUBMIT */
#define NSV_MAX_STOP 16u
#define NSV_MAX_STOP_LEN 256u

/* What a session consists of. Every count but n_slot is a power of two. 28 bytes. */
struct nsv_geom {
	uint32_t n_sqe;     /* submission entries */
	uint32_t n_cqe;     /* entries of each completion ring; the daemon chooses it */
	uint32_t n_slot;    /* requests at once */
	uint32_t arena_len; /* bytes for prompts and parameters, a multiple of 4096 */
	uint32_t text_len;  /* bytes of a slot's text log */
	uint32_t n_token;   /* tokens of a slot's token log */
	uint32_t n_lp;      /* entries of a slot's log-probability log; 0: none */
};

/* First packet, client to daemon. 96 bytes. */
struct nsv_hello {
	uint32_t magic;
	uint16_t major, minor;
	uint32_t len; /* sizeof(struct nsv_hello) of the sender */
	uint32_t reserved0;
	uint64_t feat_compat, feat_incompat;
	struct nsv_geom want; /* 0: the daemon's default; n_cqe is ignored */
	uint32_t reserved1[9];
};

/* Its answer. status 0: two descriptors follow by SCM_RIGHTS, `up` (read-write), `down`
 * (read-only). Otherwise status is an NSV_E_ code, text says why, and the daemon closes the socket.
 * 256 bytes. */
struct nsv_welcome {
	uint32_t magic;
	uint16_t major, minor;
	uint32_t len;
	uint32_t status;
	uint64_t feat_compat, feat_incompat;
	uint64_t session_id;
	uint64_t up_len, down_len;
	struct nsv_geom geom;
	uint32_t reserved0;
	uint32_t reserved1[12];
	char text[120]; /* NUL-terminated */
};

/* A doorbell, either way: it says nothing but "look". */
struct nsv_bell {
	uint32_t zero;
};

/* What a region is: the beginning of both head pages, written once by the daemon. 64 bytes. */
struct nsv_region_head {
	uint64_t magic;
	uint16_t major, minor;
	uint32_t head_len;
	uint64_t feat_compat, feat_incompat;
	uint64_t region_len;
	uint64_t session_id;
	uint64_t reserved[2];
};

/* `up`, first page. The client writes everything from offset 128 on. */
struct nsv_up_head {
	struct nsv_region_head head;
	struct nsv_geom geom;
	uint32_t reserved0;
	uint32_t slot_off, sqe_off, arena_off;
	uint8_t pad0[64 - 28 - 16];
	uint32_t sq_tail; /* @128 release: entries before it are whole */
	uint8_t pad1[60];
	uint32_t reply_head; /* @192 release: entries before it have been taken */
	uint8_t pad2[60];
	uint32_t event_head; /* @256 likewise */
	uint8_t pad3[60];
	uint32_t wait; /* @320 odd: the client sleeps and wants a doorbell. Grows by one a change */
	uint8_t pad4[60];
};

/* A slot's cursors: how far the client has read. 64 bytes. */
struct nsv_up_slot {
	uint64_t text_read;  /* bytes; never past text_end */
	uint64_t token_read; /* tokens */
	uint64_t lp_read;    /* entries */
	uint64_t ack_id;     /* the request whose end the client has seen: the slot is free again */
	uint64_t reserved[4];
};

enum nsv_op {
	NSV_OP_NOP = 0,    /* answered by a reply at once */
	NSV_OP_SUBMIT = 1, /* start a request in `slot`; `n_branch` of them in as many slots */
	NSV_OP_CANCEL = 2, /* end request `target_id` */
	NSV_OP_FORK = 3,   /* start `request_id` in `slot` as a copy of `target_id` as it stands */
	NSV_OP_TOKENIZE = 4,   /* text to ids, into the token log of `slot` */
	NSV_OP_DETOKENIZE = 5, /* ids to text, into the text log of `slot` */
	NSV_OP_STATUS = 6,     /* a JSON text into the text log of `slot` */
	/* target_id is NSV_DRAIN_ON: the daemon takes no new requests, and ends when the last one
	 * has; NSV_DRAIN_OFF: it goes on as before. An empty output into `slot`. */
	NSV_OP_DRAIN = 7,
};

/* Words that no torn entry has by accident, for the whole service hangs on them. */
#define NSV_DRAIN_ON 0x4e4f5f4e49415244ull  /* "DRAIN_ON" */
#define NSV_DRAIN_OFF 0x46464f4e49415244ull /* "DRAINOFF" */

enum nsv_sqe_flag {
	NSV_SQE_TEXT = 0, /* prompt: UTF-8 bytes */
	NSV_SQE_IDS = 1,  /* prompt: int32 ids */
	NSV_SQE_CHAT = 2, /* prompt: struct nsv_message records; the model's template is applied */
	NSV_SQE_KIND = 3, /* mask of the three */
	NSV_SQE_SPECIAL = 4, /* control tokens may be written in the text */
	NSV_SQE_NO_BOS = 8,  /* never put the begin token first */
	NSV_SQE_FLAGS = 15,
};

/* Submission entry. 64 bytes. Offsets count from the arena's start and are multiples of 8. */
struct nsv_sqe {
	uint8_t op;
	uint8_t flags;
	uint16_t slot;
	uint32_t reserved0;
	uint64_t request_id; /* the client's; grows with every entry but NOP and CANCEL; never 0 */
	uint32_t prompt_off, prompt_len;
	uint32_t params_off, params_len; /* struct nsv_params and its records; 0, 0: all defaults */
	uint64_t target_id;
	uint32_t branch; /* SUBMIT: the number of the first answer; FORK: the copy's */
	uint32_t reserved1[5];
};

/* One chat message: `len` bytes of text follow, padded with zeros to a multiple of 8. */
struct nsv_message {
	uint32_t role; /* enum nsv_role */
	uint32_t len;
};

enum nsv_role { NSV_ROLE_SYSTEM = 0, NSV_ROLE_USER = 1, NSV_ROLE_ASSISTANT = 2, NSV_N_ROLE = 3 };

enum nsv_param_flag {
	NSV_PARAM_SEED = 1,       /* `seed` counts; else the daemon draws one and reports it */
	NSV_PARAM_IGNORE_END = 2, /* end tokens are tokens like any other */
	NSV_PARAM_LOGPROBS = 4,   /* log the chosen token's and n_logprob alternatives' a step */
	/* The same for each prompt token but the first, before those of the output. */
	NSV_PARAM_PROMPT_LOGPROBS = 8,
	NSV_PARAM_FLAGS = 15,
};

/* Sampling and limits. The value in brackets is neutral. Records follow. 128 bytes. */
struct nsv_params {
	uint32_t len; /* this struct and its records, a multiple of 8; equals params_len */
	uint32_t flags;
	uint64_t seed;
	float temperature;        /* [0] 0: greedy */
	float top_p;              /* [1] (0, 1] */
	float min_p;              /* [0] [0, 1] */
	float typical_p;          /* [1] (0, 1] */
	int32_t top_k;            /* [0] 0: all */
	float repetition_penalty; /* [1] > 0 */
	float presence_penalty;   /* [0] */
	float frequency_penalty;  /* [0] */
	uint32_t penalty_window;  /* [0] last tokens that the penalties see; 0: all */
	uint32_t max_tokens;      /* [0] 0: up to the context's end */
	uint32_t min_tokens;      /* [0] */
	uint32_t n_logprob;       /* [0] */
	uint32_t n_branch;        /* [1] answers; 0 counts as 1; b is request_id + b in slot + b */
	int32_t priority;         /* [0] -100 to 100: the higher one's turn comes first */
	uint32_t reserved[14];
};

enum nsv_record_type {
	NSV_REC_STOP = 1,     /* a stop string */
	NSV_REC_STOP_IDS = 2, /* int32 ids */
	NSV_REC_BIAS = 3,     /* pairs of int32 id, float bias */
	NSV_REC_ALLOW = 4,    /* int32 ids: no others */
	NSV_REC_BAN = 5,      /* int32 ids */
};

/* `len` bytes follow, padded with zeros to a multiple of 8. */
struct nsv_record {
	uint32_t type;
	uint32_t len;
};

/* `down`, first page. */
struct nsv_down_head {
	struct nsv_region_head head;
	struct nsv_geom geom;
	uint32_t reserved0;
	uint32_t slot_off, reply_off, event_off, text_off;
	uint64_t token_off, lp_off;
	uint8_t pad0[192 - 64 - 28 - 4 - 16 - 16];
	uint32_t epoch; /* @192 grows by one with each daemon that serves this session */
	uint32_t end; /* @196 release: enum nsv_code: why the daemon ended it; 0: it did not say */
	uint8_t pad1[56];
	uint32_t sq_head; /* @256 release: entries before it are taken and will not be read again */
	uint8_t pad2[60];
	uint32_t reply_tail; /* @320 release */
	uint8_t pad3[60];
	uint32_t event_tail; /* @384 release */
	uint8_t pad4[60];
	uint32_t wait; /* @448 odd: the daemon does not look at this session until a doorbell */
	uint8_t pad5[60];
};

enum nsv_slot_state {
	NSV_SLOT_FREE = 0,
	NSV_SLOT_QUEUED = 1,
	NSV_SLOT_RUNNING = 2,
	NSV_SLOT_PAUSED = 3, /* a log is full */
	NSV_SLOT_DONE = 4,   /* `finish`, `code`, `usage` count; the logs are whole */
};

enum nsv_finish {
	NSV_FINISH_NONE = 0,
	NSV_FINISH_STOP = 1,   /* an end token, or a stop string */
	NSV_FINISH_LENGTH = 2, /* max_tokens, or the context's end */
	NSV_FINISH_CANCEL = 3,
	NSV_FINISH_ERROR = 4,
};

/* A request as the client sees it. 512 bytes. Written in this order: the logs, then the ends
 * (release), then what is fixed at the end, then `state` (release). A reader loads `state`
 * (acquire) first and the ends after it: what it then reads of the logs is whole. */
struct nsv_down_slot {
	uint64_t request_id; /* release, after everything else of this record was reset */
	uint64_t text_end, token_end, lp_end;
	uint32_t state;   /* release */
	uint32_t stalled; /* 1: the daemon waits for a cursor: ring after moving it */
	uint8_t pad0[16];
	uint32_t finish; /* enum nsv_finish */
	uint32_t code;   /* enum nsv_code, 0 unless finish is NSV_FINISH_ERROR */
	uint32_t n_prompt; /* from the beginning */
	uint32_t n_cached, n_output; /* n_output: of the whole answer, a fork's beginning too */
	uint32_t n_preempt;
	uint64_t seed;
	uint64_t queue_ns, prefill_ns, decode_ns;
	/* From the beginning; of a fork: bytes and tokens of the answer that are its target's. Its
	 * logs have what follows them. */
	uint64_t fork_text, fork_token;
	uint64_t reserved[8];
	char stop[64];  /* the stop string that ended it, or empty; cut at 63 bytes */
	char text[256]; /* an error's sentence */
};

enum nsv_cqe_kind {
	/* reply: refused with `code`. Unless the slot could not be taken (NSV_E_BUSY, _ENTRY, an id
	 * that does not grow), it also says so: DONE, NSV_FINISH_ERROR, and a sentence in `text` */
	NSV_CQE_ERROR = 0,
	NSV_CQE_PONG = 1,     /* reply to NOP; text_end is the NOP's target_id */
	NSV_CQE_DONE = 2,     /* reply: tokenize, detokenize or status has an output */
	NSV_CQE_ACCEPTED = 3, /* event: the request is safe; it will be answered whatever happens */
	NSV_CQE_TOKENS = 4,   /* event: the logs now reach at least text_end and token_end */
	NSV_CQE_FINISHED = 5, /* event: the slot's state is NSV_SLOT_DONE */
	NSV_CQE_CANCELLED = 6, /* reply to CANCEL: taken; target may already have ended */
};

/* Completion entry. 32 bytes. */
struct nsv_cqe {
	uint64_t request_id;
	uint16_t kind;
	uint16_t slot;
	uint32_t code;
	uint64_t text_end;
	uint32_t token_end; /* low 32 bits */
	uint32_t reserved;
};

/* One candidate of a step: the chosen token first, then n_logprob alternatives by rank. */
struct nsv_lp {
	int32_t id;
	float logprob;
};

/* Error codes. Numbers stay; a client that meets an unknown one shows the text. */
enum nsv_code {
	NSV_E_OK = 0,
	NSV_E_VERSION = 1,     /* no common version or feature */
	NSV_E_HELLO = 2,       /* malformed hello */
	NSV_E_DENIED = 3,      /* not allowed to this user */
	NSV_E_LIMIT = 4,       /* a limit of the session or user; the text names it */
	NSV_E_BUSY = 5,        /* the slot is in use */
	NSV_E_ENTRY = 6,       /* malformed entry: unknown operation, flag, offset or length */
	NSV_E_ID = 7,          /* request id not growing, or unknown target */
	NSV_E_UTF8 = 8,        /* the text is not UTF-8 */
	NSV_E_PARAM = 9,       /* a parameter is out of range; the text names it */
	NSV_E_UNSUPPORTED = 10, /* a parameter or operation this daemon cannot honour */
	NSV_E_CONTEXT = 11,    /* the prompt does not fit the context; the text has the counts */
	NSV_E_NOMEM = 12,      /* it can never fit the KV pool, or memory is out */
	NSV_E_NUMERIC = 13,    /* a logit is not finite */
	NSV_E_TOKEN = 14,      /* an id outside the vocabulary */
	NSV_E_INTERNAL = 15,
	NSV_E_STOPPING = 16,   /* the daemon was stopped, or drains: it begins no request */
	NSV_E_CRASHED = 17,    /* the request was running in two crashes */
	NSV_E_LOST = 18,       /* the session does not fit the daemon that came after its own */
};

NSV_ABI_ASSERT(sizeof(struct nsv_geom) == 28);
NSV_ABI_ASSERT(sizeof(struct nsv_hello) == 96);
NSV_ABI_ASSERT(offsetof(struct nsv_hello, want) == 32);
NSV_ABI_ASSERT(sizeof(struct nsv_welcome) == 256);
NSV_ABI_ASSERT(offsetof(struct nsv_welcome, geom) == 56);
NSV_ABI_ASSERT(offsetof(struct nsv_welcome, text) == 136);
NSV_ABI_ASSERT(sizeof(struct nsv_region_head) == 64);
NSV_ABI_ASSERT(sizeof(struct nsv_up_head) == 384);
NSV_ABI_ASSERT(offsetof(struct nsv_up_head, sq_tail) == 128);
NSV_ABI_ASSERT(offsetof(struct nsv_up_head, reply_head) == 192);
NSV_ABI_ASSERT(offsetof(struct nsv_up_head, event_head) == 256);
NSV_ABI_ASSERT(offsetof(struct nsv_up_head, wait) == 320);
NSV_ABI_ASSERT(sizeof(struct nsv_up_slot) == 64);
NSV_ABI_ASSERT(sizeof(struct nsv_sqe) == 64);
NSV_ABI_ASSERT(offsetof(struct nsv_sqe, prompt_off) == 16);
NSV_ABI_ASSERT(offsetof(struct nsv_sqe, target_id) == 32);
NSV_ABI_ASSERT(sizeof(struct nsv_message) == 8);
NSV_ABI_ASSERT(sizeof(struct nsv_record) == 8);
NSV_ABI_ASSERT(sizeof(struct nsv_params) == 128);
NSV_ABI_ASSERT(offsetof(struct nsv_params, temperature) == 16);
NSV_ABI_ASSERT(offsetof(struct nsv_params, priority) == 68);
NSV_ABI_ASSERT(sizeof(struct nsv_down_head) == 512);
NSV_ABI_ASSERT(offsetof(struct nsv_down_head, token_off) == 112);
NSV_ABI_ASSERT(offsetof(struct nsv_down_head, epoch) == 192);
NSV_ABI_ASSERT(offsetof(struct nsv_down_head, end) == 196);
NSV_ABI_ASSERT(offsetof(struct nsv_down_head, sq_head) == 256);
NSV_ABI_ASSERT(offsetof(struct nsv_down_head, reply_tail) == 320);
NSV_ABI_ASSERT(offsetof(struct nsv_down_head, event_tail) == 384);
NSV_ABI_ASSERT(offsetof(struct nsv_down_head, wait) == 448);
NSV_ABI_ASSERT(sizeof(struct nsv_down_slot) == 512);
NSV_ABI_ASSERT(offsetof(struct nsv_down_slot, state) == 32);
NSV_ABI_ASSERT(offsetof(struct nsv_down_slot, finish) == 56);
NSV_ABI_ASSERT(offsetof(struct nsv_down_slot, fork_text) == 112);
NSV_ABI_ASSERT(offsetof(struct nsv_down_slot, stop) == 192);
NSV_ABI_ASSERT(sizeof(struct nsv_cqe) == 32);
NSV_ABI_ASSERT(sizeof(struct nsv_lp) == 8);

#endif
