/* Who may connect, beyond who can open the socket: users and groups, named in the config. With
 * neither given, everybody; else those listed, root, and the daemon's own user. A peer's groups are
 * those it had when it connected (SO_PEERCRED, SO_PEERGROUPS). Set before any thread is started,
 * read-only from then on. And who, once connected, may see the whole, and drain it. */
#ifndef NSV_DAEMON_POLICY_H
#define NSV_DAEMON_POLICY_H

#include <sys/socket.h>

#include "shm/base.h"

struct nsv_members {
	uint32_t *list;
	size_t n;
	bool given; /* an empty list that was given lets nobody in */
};

struct nsv_policy {
	struct nsv_members users, groups;
};

/* Adds a user or group by name or number. 0, -EINVAL and a sentence: there is none of this name,
 * -ENOMEM. */
int nsv_members_add_user(struct nsv_members *ids, const char *name, struct nsv_err *err);
int nsv_members_add_group(struct nsv_members *ids, const char *name, struct nsv_err *err);
void nsv_members_deinit(struct nsv_members *ids);

/* May the peer of this connected socket, whose credentials are given, have a session? 0,
 * NSV_E_DENIED and a sentence, or -errno. */
int nsv_policy_check(
	const struct nsv_policy *policy, int fd, const struct ucred *peer, struct nsv_err *err);

/* May the peer see what belongs to others, counts of the whole service and their sessions, and ask
 * the daemon to drain? Root, the daemon's own user, and members of its own group. Who cannot be
 * told apart may not. */
bool nsv_policy_is_operator(int fd);

#endif
