/* What a client sent in its arena, parsed: parameters with their records, and chat messages. Pure
 * functions on (pointer, length) of memory that is already the daemon's own copy.
 *
 * Limits: 16 stop strings of 255 bytes; 1,024 stop ids, allowed ids, banned ids and biases each
 * (NSV_MAX_LIST); and what the caller allows in bytes (NSV_SEQS_PARAMS_LEN, 8 KiB, holds about
 * 1,000 biases or 2,000 ids in all). A list may come in several records. An id twice in a list of
 * ids is as once; two biases for an id are an error. */
#ifndef NSV_DAEMON_PARAMS_H
#define NSV_DAEMON_PARAMS_H

#include "daemon/sample.h"
#include "daemon/tok/stop.h"
#include "daemon/tok/tok.h"

/* What a request asks for. */
struct nsv_wish {
	struct nsv_params params;
	struct nsv_stop stop;
	struct nsv_sample_lists lists;
};

/* The neutral parameters: greedy, no limits. */
struct nsv_params nsv_params_default(void);
/* A request that shares its prompt with another one, which has the prompt's log-probabilities. */
void nsv_params_drop_prompt_logprobs(struct nsv_params *params);
/* Range checks: 0, or an enum nsv_code and a sentence that names the parameter. NaN fits no range.
 */
int nsv_params_check(const struct nsv_params *params, struct nsv_err *err);
/* 0, or an enum nsv_code and a sentence that names the parameter. No bytes: the defaults. n_vocab:
 * ids lie below it. */
int nsv_wish_parse(const void *data, size_t len, int32_t n_vocab, struct nsv_wish *ret_wish,
	struct nsv_err *err);
/* Messages borrow their text from data. *ret_msgs is the caller's to free. */
int nsv_messages_parse(const void *data, size_t len, struct nsv_chat_msg **ret_msgs, size_t *ret_n,
	struct nsv_err *err);

#endif
