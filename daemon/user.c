/* A list of users: there are few, and a session keeps its own at hand. */
#include "daemon/user.h"

#include "shm/abi.h"
#include "shm/clock.h"

int nsv_user_get(struct nsv_users *users, uint32_t uid, struct nsv_user **ret_user)
{
	struct nsv_user *u = users->first;

	while (u && u->uid != uid)
		u = u->next;
	if (!u) {
		u = calloc(1, sizeof(*u));
		if (!u)
			return -ENOMEM;
		u->uid = uid;
		u->prompts_end = &u->prompts;
		u->chores_end = &u->chores;
		u->next = users->first;
		users->first = u;
	}
	u->n_ref++;
	*ret_user = u;
	return 0;
}

void nsv_user_put(struct nsv_users *users, struct nsv_user *user)
{
	struct nsv_user **p = &users->first;

	if (!user || --user->n_ref > 0)
		return;
	while (*p != user)
		p = &(*p)->next;
	*p = user->next;
	free(user);
}

/* A connection before its hello is a descriptor; a session has a few. `more` would come on top. */
static int check_descriptors(const struct nsv_users *users, const struct nsv_user *user,
	uint32_t more, struct nsv_err *err)
{
	uint64_t n = user->hellos + (uint64_t)NSV_SESSION_N_FD * user->sessions;

	if (n + more > users->limits->descriptors)
		return nsv_fail(err, NSV_E_LIMIT,
			"connections and sessions of user %u take %llu descriptors: "
			"limits.descriptors is %u",
			user->uid, (unsigned long long)n, users->limits->descriptors);
	return 0;
}

int nsv_user_charge_session(
	const struct nsv_users *users, struct nsv_user *user, uint64_t memory, struct nsv_err *err)
{
	const struct nsv_limits *l = users->limits;

	if (user->sessions >= l->sessions)
		return nsv_fail(err, NSV_E_LIMIT, "user %u has %u sessions: limits.sessions",
			user->uid, user->sessions);
	/* Its socket is counted already. */
	int ret = check_descriptors(users, user, NSV_SESSION_N_FD - 1, err);
	if (ret == 0)
		ret = nsv_user_charge_bytes(users, user, memory, err);
	if (ret == 0)
		user->sessions++;
	return ret;
}

void nsv_user_keep_session(struct nsv_user *user, uint64_t memory)
{
	user->sessions++;
	user->memory += memory;
}

void nsv_user_keep_request(struct nsv_user *user)
{
	user->requests++;
}

void nsv_user_release_session(struct nsv_user *user, uint64_t memory)
{
	user->sessions--;
	nsv_user_release_bytes(user, memory);
}

void nsv_user_session_ends(struct nsv_users *users, struct nsv_user *user)
{
	user->ending++;
	users->n_ending++;
}

void nsv_user_session_ended(struct nsv_users *users, struct nsv_user *user)
{
	user->ending--;
	users->n_ending--;
}

int nsv_user_charge_requests(
	const struct nsv_users *users, struct nsv_user *user, uint32_t n, struct nsv_err *err)
{
	uint32_t limit = users->limits->requests;

	if (user->requests > limit || n > limit - user->requests)
		return nsv_fail(err, NSV_E_LIMIT,
			"user %u has %u requests, and %u more are wanted: limits.requests is %u",
			user->uid, user->requests, n, limit);
	user->requests += n;
	return 0;
}

void nsv_user_release_requests(struct nsv_user *user, uint32_t n)
{
	user->requests -= n;
}

int nsv_user_charge_bytes(
	const struct nsv_users *users, struct nsv_user *user, uint64_t bytes, struct nsv_err *err)
{
	uint32_t limit = users->limits->memory_mib;

	if (user->memory + bytes > (uint64_t)limit << 20)
		return nsv_fail(err, NSV_E_LIMIT,
			"sessions and requests of user %u take %llu bytes, this one %llu more: "
			"limits.memory_mib is %u",
			user->uid, (unsigned long long)user->memory, (unsigned long long)bytes,
			limit);
	if (!nsv_memory_take(users->memory, bytes, nsv_now_ns()))
		return nsv_fail(err, NSV_E_NOMEM,
			"%llu bytes are more than the machine, or the daemon's control group "
			"(memory.max), has left for clients",
			(unsigned long long)bytes);
	user->memory += bytes;
	return 0;
}

void nsv_user_release_bytes(struct nsv_user *user, uint64_t bytes)
{
	user->memory -= bytes;
}

int nsv_user_add_hello(
	const struct nsv_users *users, struct nsv_user *user, struct nsv_err *err)
{
	if (++user->hellos > NSV_USER_MAX_HELLOS)
		return nsv_fail(err, NSV_E_LIMIT,
			"user %u has %u connections without a hello: at most %u are allowed",
			user->uid, user->hellos, NSV_USER_MAX_HELLOS);
	return check_descriptors(users, user, 0, err);
}

void nsv_user_remove_hello(struct nsv_user *user)
{
	user->hellos--;
}
