/* An engine without its thread and without a daemon, and its clients, all driven turn by turn by
 * one thread: what must be the same however the engine was cut off is tested over it.
 *
 * A request's client reads its logs by the slot's cursors, as the library does, and keeps what it
 * has read. */
#ifndef NSV_TESTS_TOOLS_WORLD_H
#define NSV_TESTS_TOOLS_WORLD_H

#include "daemon/engine_state.h"

#define NSV_WORLD_SLOTS 8u
#define NSV_WORLD_MAX 12u     /* requests */
#define NSV_WORLD_TOKENS 128u /* of a prompt, and of an output */

/* What a request asks for; its id is its index + 1. */
struct nsv_world_ask {
	uint32_t n_prompt, slot, uid;
	int32_t prompt[NSV_WORLD_TOKENS];
	struct nsv_params params;
	const char *stop; /* NULL: no stop string */
	uint32_t branch;
	uint32_t n_branch; /* it and those after it are one entry's answers; 0 counts as 1 */
	uint32_t target;   /* a fork of request target - 1; 0: none */
};

/* What its client has read. */
struct nsv_world_got {
	int32_t tokens[NSV_WORLD_TOKENS];
	struct nsv_lp lps[4 * NSV_WORLD_TOKENS];
	char text[4096];
	uint64_t n_token, n_lp, n_text;
	uint32_t finish, code;
	bool done;
};

struct nsv_world {
	const struct nsv_gguf *gguf;
	const struct nsv_tok *tok;
	const struct nsv_world_ask *asks;
	struct nsv_engine *engine;
	struct nsv_mailbox outbox;
	struct nsv_channel ch;
	struct nsv_job *jobs[NSV_WORLD_MAX]; /* NULL: not submitted, or released */
	struct nsv_world_got got[NSV_WORLD_MAX];
	bool released[NSV_WORLD_MAX]; /* or about to be */
	bool deaf[NSV_WORLD_MAX];     /* its client does not read */
};

/* All steps of a world abort the program where they fail. */
void nsv_world_open(struct nsv_world *w, const struct nsv_engine_config *config,
	const struct nsv_gguf *g, const struct nsv_tok *tok, const struct nsv_world_ask *asks);
void nsv_world_close(struct nsv_world *w);
void nsv_world_submit(struct nsv_world *w, uint32_t i); /* all of its entry's answers */
void nsv_world_cancel(struct nsv_world *w, uint32_t i);
void nsv_world_release(struct nsv_world *w, uint32_t i);
/* Releases what has ended. true: others are still there. */
bool nsv_world_let_go(struct nsv_world *w);
/* A turn of the engine, then of the clients. false: nothing could run. */
bool nsv_world_turn(struct nsv_world *w);
/* What the daemon that comes after a crash finds: copies of the regions as they are now, taken over
 * by a new engine; `config` is the old one's. Requests in `seqs` are adopted, not resumed yet.
 * without_kv: the pool is lost. */
void nsv_world_reopen(struct nsv_world *w, const struct nsv_world *old,
	const struct nsv_engine_config *config, bool without_kv);
/* Is the request in the sequence table, whatever its state? */
bool nsv_world_has(const struct nsv_world *w, uint32_t i);

#endif
