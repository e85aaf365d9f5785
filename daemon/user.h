/* What one user (uid) makes the daemon hold, all sessions together, against its limits. Every
 * charge has one release. The io thread owns it. */
#ifndef NSV_DAEMON_USER_H
#define NSV_DAEMON_USER_H

#include "daemon/config.h"
#include "daemon/mailbox.h"
#include "daemon/memory.h"

#define NSV_USER_MAX_HELLOS 256 /* connections of a user that have not said hello */
#define NSV_SESSION_N_FD 3	/* its socket, `up`, `down` */

struct nsv_session;

struct nsv_user {
	struct nsv_user *next;
	uint32_t uid;
	uint32_t n_ref; /* holders: sessions */
	uint32_t sessions, requests, hellos;
	uint32_t ending; /* of the sessions: closed, but not released yet */
	uint64_t memory; /* bytes: of sessions, and what requests hold */
	uint64_t visited_turn, visited_ns; /* how long its sessions were visited in that turn */
	/* Prompts for the worker: it has one of a user at a time, so that users take turns. */
	bool worker_has_one;
	struct nsv_msg *prompts, **prompts_end; /* those that wait, oldest first */
	/* Sessions with something put off, oldest first; and the next user with such. */
	struct nsv_session *chores, **chores_end;
	struct nsv_user *next_busy;
};

struct nsv_users {
	struct nsv_user *first;
	uint32_t n_ending; /* sessions of all */
	const struct nsv_limits *limits; /* borrowed */
	struct nsv_memory *memory;       /* borrowed: where all of them take from */
};

/* The user's record, made if new; each get is undone by put, which frees it with the last. */
int nsv_user_get(struct nsv_users *users, uint32_t uid, struct nsv_user **ret_user);
void nsv_user_put(struct nsv_users *users, struct nsv_user *user);

/* 0; NSV_E_LIMIT and a sentence with the limit's name and value; NSV_E_NOMEM: it is within the
 * limits, but memory is short. Nothing is charged then. */
int nsv_user_charge_session(
	const struct nsv_users *users, struct nsv_user *user, uint64_t memory, struct nsv_err *err);
/* One that another daemon let in: counted in any case, so a limit that was lowered since keeps new
 * ones out and ends nothing. Likewise a request. */
void nsv_user_keep_session(struct nsv_user *user, uint64_t memory);
void nsv_user_keep_request(struct nsv_user *user);
void nsv_user_release_session(struct nsv_user *user, uint64_t memory);
/* One that was charged will be released before long; and now it has been. */
void nsv_user_session_ends(struct nsv_users *users, struct nsv_user *user);
void nsv_user_session_ended(struct nsv_users *users, struct nsv_user *user);
int nsv_user_charge_requests(
	const struct nsv_users *users, struct nsv_user *user, uint32_t n, struct nsv_err *err);
void nsv_user_release_requests(struct nsv_user *user, uint32_t n);
/* Bytes that a request makes the daemon hold; as nsv_user_charge_session. */
int nsv_user_charge_bytes(
	const struct nsv_users *users, struct nsv_user *user, uint64_t bytes, struct nsv_err *err);
void nsv_user_release_bytes(struct nsv_user *user, uint64_t bytes);
/* A connection before its hello: counted in any case; NSV_E_LIMIT: it is one too many. */
int nsv_user_add_hello(
	const struct nsv_users *users, struct nsv_user *user, struct nsv_err *err);
void nsv_user_remove_hello(struct nsv_user *user);

#endif
