/* What one user (uid) makes the daemon hold, all sessions together, against its limits. Every charge
 * has one release. The io thread owns it. */
#ifndef NSV_DAEMON_USER_H
#define NSV_DAEMON_USER_H

#include "daemon/config.h"

struct nsv_user {
	struct nsv_user *next;
	uint32_t uid;
	uint32_t n_ref; /* holders: sessions */
	uint32_t sessions, requests;
	uint64_t memory; /* bytes */
};

struct nsv_users {
	struct nsv_user *first;
	const struct nsv_limits *limits; /* borrowed */
};

/* The user's record, made if new; each get is undone by put, which frees it with the last. */
int nsv_user_get(struct nsv_users *users, uint32_t uid, struct nsv_user **ret_user);
void nsv_user_put(struct nsv_users *users, struct nsv_user *user);

/* 0, or NSV_E_LIMIT and a sentence with the limit's name and value; nothing is charged then. */
int nsv_user_charge_session(
	const struct nsv_users *users, struct nsv_user *user, uint64_t memory, struct nsv_err *err);
void nsv_user_release_session(struct nsv_user *user, uint64_t memory);
int nsv_user_charge_request(
	const struct nsv_users *users, struct nsv_user *user, struct nsv_err *err);
void nsv_user_release_request(struct nsv_user *user);

#endif
