/* What a client sent in its arena, parsed: parameters with their records, and chat messages. Pure
 * functions on (pointer, length) of memory that is already the daemon's own copy. */
#ifndef NSV_DAEMON_PARAMS_H
#define NSV_DAEMON_PARAMS_H

#include "daemon/tok/stop.h"
#include "daemon/tok/tok.h"

/* 0, or an enum nsv_code and a sentence that names the parameter. No bytes: the defaults. */
int nsv_params_parse(const void *data, size_t len, struct nsv_params *ret_params,
	struct nsv_stop *ret_stop, struct nsv_err *err);
/* Messages borrow their text from data. *ret_msgs is the caller's to free. */
int nsv_messages_parse(const void *data, size_t len, struct nsv_chat_msg **ret_msgs, size_t *ret_n,
	struct nsv_err *err);

#endif
