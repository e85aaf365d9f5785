/* What the files of entries share (entry.c: what an entry says; entry-begin.c: requests on their
 * way to the engine; entry-slot.c: slots, what they show and hold). Nobody else includes it. The io
 * thread owns all of it; a slot is of the session given. */
#ifndef NSV_DAEMON_ENTRY_H
#define NSV_DAEMON_ENTRY_H

#include "daemon/session.h"

/* ---- entry-slot.c */

void nsv_entry_reply(struct nsv_session *se, const struct nsv_sqe *sqe, enum nsv_cqe_kind kind,
	enum nsv_code code);
/* The request that has or had a slot, or NULL. */
struct nsv_session_slot *nsv_entry_find(struct nsv_session *se, uint64_t id);
/* Charges what a request makes the daemon hold, instead of what it was charged before. */
enum nsv_code nsv_entry_hold(struct nsv_session *se, struct nsv_job *job, uint64_t bytes);
/* Frees its request, which nobody else knows, and what it was charged for. */
void nsv_entry_free_job(struct nsv_session *se, struct nsv_session_slot *slot);

/* The slot shows an end that the engine never saw. */
void nsv_entry_end_slot(struct nsv_session *se, struct nsv_session_slot *slot,
	enum nsv_finish finish, enum nsv_code code, const char *text);
/* Refuses what was taken into a slot: code and text are in the request. */
void nsv_entry_refuse(struct nsv_session *se, struct nsv_session_slot *slot);
/* It was cancelled before the engine had it. */
void nsv_entry_end_cancelled(struct nsv_session *se, struct nsv_session_slot *slot);
/* An output begins, and ends, all of it written or not. */
void nsv_entry_start_output(struct nsv_session *se, struct nsv_session_slot *slot);
void nsv_entry_end_output(
	struct nsv_session *se, struct nsv_session_slot *slot, enum nsv_finish finish);

/* ---- entry-begin.c */

/* The entry is parsed: to the engine, or its answer out. */
void nsv_entry_go_on(struct nsv_session *se, struct nsv_session_slot *slot);
/* To the worker, in its user's turn; nsv_session_prepared follows. */
void nsv_entry_queue_prompt(struct nsv_session *se, struct nsv_job *job);

#endif
