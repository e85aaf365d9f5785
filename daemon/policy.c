/* Who may connect, by the kernel's word for the peer. */
#include "daemon/policy.h"

#include <ctype.h>
#include <grp.h>
#include <pwd.h>

#include "shm/abi.h"

static int add(struct nsv_members *ids, uint32_t id)
{
	uint32_t *more = realloc(ids->list, (ids->n + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	more[ids->n++] = id;
	ids->list = more;
	return 0;
}

/* A number as it is; the last one means "none" to the kernel. */
static bool parse_id(const char *text, uint32_t *ret)
{
	char *end;

	errno = 0;
	unsigned long long n = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)text[0]) || *end || errno || n >= UINT32_MAX)
		return false;
	*ret = (uint32_t)n;
	return true;
}

int nsv_members_add_user(struct nsv_members *ids, const char *name, struct nsv_err *err)
{
	const struct passwd *user = getpwnam(name);
	uint32_t id;

	if (!user && !parse_id(name, &id))
		return nsv_fail(err, -EINVAL, "there is no user \"%.64s\"", name);
	return add(ids, user ? user->pw_uid : id);
}

int nsv_members_add_group(struct nsv_members *ids, const char *name, struct nsv_err *err)
{
	const struct group *group = getgrnam(name);
	uint32_t id;

	if (!group && !parse_id(name, &id))
		return nsv_fail(err, -EINVAL, "there is no group \"%.64s\"", name);
	return add(ids, group ? group->gr_gid : id);
}

void nsv_members_deinit(struct nsv_members *ids)
{
	free(ids->list);
	*ids = (struct nsv_members){0};
}

static bool has(const struct nsv_members *ids, uint32_t id)
{
	for (size_t i = 0; i < ids->n; i++)
		if (ids->list[i] == id)
			return true;
	return false;
}

/* A peer's supplementary groups: the caller's to free. */
static int get_groups(int fd, gid_t **ret_groups, size_t *ret_n)
{
	nsv_autofree gid_t *groups = NULL;
	socklen_t len = 0;

	/* Asked with no room, the kernel says how much it needs. */
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &len) < 0 && errno != ERANGE)
		return -errno;
	groups = malloc(nsv_max(len, sizeof(*groups)));
	if (!groups)
		return -ENOMEM;
	if (len > 0 && getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &len) < 0)
		return -errno;
	*ret_n = len / sizeof(*groups);
	*ret_groups = groups;
	groups = NULL;
	return 0;
}

/* 1: the peer is in one of these groups, 0: in none, -errno. */
static int in_groups(const struct nsv_members *these, int fd, const struct ucred *peer)
{
	nsv_autofree gid_t *groups = NULL;
	size_t n = 0;

	if (these->n == 0)
		return 0;
	if (has(these, peer->gid))
		return 1;
	int ret = get_groups(fd, &groups, &n);
	if (ret < 0)
		return ret;
	for (size_t i = 0; i < n; i++)
		if (has(these, groups[i]))
			return 1;
	return 0;
}

int nsv_policy_check(
	const struct nsv_policy *p, int fd, const struct ucred *peer, struct nsv_err *err)
{
	if (!p->users.given && !p->groups.given)
		return 0;
	if (peer->uid == 0 || peer->uid == geteuid() || has(&p->users, peer->uid))
		return 0;
	int ret = in_groups(&p->groups, fd, peer);
	if (ret < 0)
		return ret;
	return ret > 0 ? 0
		       : nsv_fail(err, NSV_E_DENIED,
				 "user %u is not among the users and groups that this "
				 "daemon serves",
				 peer->uid);
}

bool nsv_policy_is_operator(int fd)
{
	uint32_t own = getegid();
	const struct nsv_members group = {.list = &own, .n = 1};
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		return false;
	return peer.uid == 0 || peer.uid == geteuid() || in_groups(&group, fd, &peer) > 0;
}
