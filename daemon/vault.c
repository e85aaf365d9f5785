/* Vaults: made, filled, emptied, and found again. */
#include "daemon/vault.h"

#include <string.h>
#include <sys/socket.h>

#include "daemon/log.h"

#define MAX_DEAD_BESIDE 16
#define NAME_LEN 16
#define MAX_NUMBER (UINT32_MAX - 1)

struct nsv_vault {
	struct nsv_source src; /* first: the barrier's callback gets this */
	struct nsv_vaults *owner;
	struct nsv_vault *link; /* of all */
	struct nsv_vault_place *live;
	uint32_t number, n_live, n_dead;
	int fds[2];     /* sent into the first, looked at in the second */
	int barrier_fd; /* -1: none under way */
	bool confirmed, forgotten;
};

/* What a message says beside its descriptors. */
struct record {
	uint64_t session_id;
	uint32_t rec;
	uint32_t reserved;
};

static void name_of(uint32_t number, char *ret_name)
{
	snprintf(ret_name, NAME_LEN, "v%u", number);
}

/* ---- Life of a vault */

static struct nsv_vault *new_vault(struct nsv_vaults *v, uint32_t number)
{
	struct nsv_vault *vault = calloc(1, sizeof(*vault));

	if (!vault)
		return NULL;
	*vault = (struct nsv_vault){
		.owner = v, .number = number, .fds = {-1, -1}, .barrier_fd = -1};
	vault->link = v->all;
	v->all = vault;
	return vault;
}

/* Numbers grow, that the store does not mistake a vault for one that it is about to forget. Where
 * they begin again, those that have lasted are left out. */
static uint32_t next_number(struct nsv_vaults *v)
{
	const struct nsv_vault *same;

	do {
		v->last_number = v->last_number % MAX_NUMBER + 1;
		for (same = v->all; same && same->number != v->last_number; same = same->link)
			;
	} while (same);
	return v->last_number;
}

static void close_fds(int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

static void free_vault(struct nsv_vault *vault)
{
	struct nsv_vault **p = &vault->owner->all;

	while (*p != vault)
		p = &(*p)->link;
	*p = vault->link;
	close_fds(vault->fds, 2);
	close_fds(&vault->barrier_fd, 1);
	free(vault);
}

static void forget(struct nsv_vault *vault)
{
	char name[NAME_LEN];

	name_of(vault->number, name);
	int ret = nsv_notify_forget(name);
	if (ret < 0)
		nsv_warning("the store keeps vault %s: %s", name, strerror(-ret));
	vault->forgotten = true;
	if (vault->barrier_fd < 0)
		free_vault(vault); /* else when the loop has let go of the barrier */
}

/* ---- The next one */

static void go_on_emptying(struct nsv_vaults *v);

static void on_barrier(struct nsv_source *src, enum nsv_event event, int res, const void *data)
{
	struct nsv_vault *vault = (struct nsv_vault *)src;
	struct nsv_vaults *v = vault->owner;
	(void)res, (void)data;

	if (event == NSV_EV_READY) {
		vault->confirmed = true;
		nsv_source_cancel(v->loop, src);
	} else if (event == NSV_EV_GONE) {
		close_fds(&vault->barrier_fd, 1);
		if (vault->forgotten) {
			free_vault(vault);
			return;
		}
		go_on_emptying(v);
		v->ready(v);
	}
}

static int store(struct nsv_vault *vault)
{
	char name[NAME_LEN];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, vault->fds) < 0)
		return -errno;
	name_of(vault->number, name);
	int ret = nsv_notify_store(name, vault->fds, 2);
	return ret < 0 ? ret : nsv_notify_barrier(&vault->barrier_fd);
}

int nsv_vaults_prepare(struct nsv_vaults *v)
{
	if (!v->on || v->next)
		return 0;
	struct nsv_vault *vault = new_vault(v, next_number(v));
	if (!vault)
		return -ENOMEM;
	int ret = store(vault);
	if (ret < 0) {
		nsv_error("a vault for sessions cannot be stored: %s", strerror(-ret));
		free_vault(vault);
		return ret;
	}
	vault->src.fn = on_barrier;
	nsv_source_poll(v->loop, &vault->src, vault->barrier_fd);
	v->next = vault;
	return 0;
}

void nsv_vaults_init(struct nsv_vaults *v, struct nsv_loop *loop, bool on,
	void (*ready)(struct nsv_vaults *v))
{
	*v = (struct nsv_vaults){.on = on, .loop = loop, .ready = ready};
}

void nsv_vaults_deinit(struct nsv_vaults *v)
{
	while (v->all)
		free_vault(v->all);
	*v = (struct nsv_vaults){0};
}

/* ---- Sessions in */

static void link_place(struct nsv_vault *vault, struct nsv_vault_place *place)
{
	place->vault = vault;
	place->next = vault->live;
	place->prev = &vault->live;
	if (place->next)
		place->next->prev = &place->next;
	vault->live = place;
	vault->n_live++;
}

/* Its message stays behind, dead. */
static void unlink_place(struct nsv_vault_place *place)
{
	struct nsv_vault *vault = place->vault;

	*place->prev = place->next;
	if (place->next)
		place->next->prev = place->prev;
	place->vault = NULL;
	vault->n_live--;
	vault->n_dead++;
}

static int send_place(const struct nsv_vault *vault, const struct nsv_vault_place *place)
{
	union {
		char buf[CMSG_SPACE(sizeof(place->fds))];
		struct cmsghdr align;
	} control = {0};
	struct record record = {.session_id = place->session_id, .rec = place->rec};
	struct iovec iov = {&record, sizeof(record)};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.buf,
		.msg_controllen = sizeof(control.buf)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	ssize_t n;

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(place->fds));
	memcpy(CMSG_DATA(c), place->fds, sizeof(place->fds));
	do
		n = sendmsg(vault->fds[0], &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

/* 0: *ret is the vault that takes sessions; 1: none is ready yet; or why none can be made. */
static int open_vault(struct nsv_vaults *v, struct nsv_vault **ret)
{
	if (!v->open && v->next && v->next->confirmed) {
		v->open = v->next;
		v->next = NULL;
	}
	int code = nsv_vaults_prepare(v); /* matters only to whom it leaves without a vault */
	if (!v->open)
		return code < 0 ? code : 1;
	*ret = v->open;
	return 0;
}

int nsv_vaults_put(struct nsv_vaults *v, struct nsv_vault_place *place)
{
	struct nsv_vault *vault;
	int ret;

	if (!v->on)
		return 0;
	while ((ret = open_vault(v, &vault)) == 0) {
		ret = send_place(vault, place);
		if (ret != -EAGAIN)
			break;
		v->open = NULL; /* full */
	}
	if (ret == 0)
		link_place(vault, place);
	return ret;
}

/* ---- Sessions out */

static bool is_worth_emptying(const struct nsv_vault *vault, bool all)
{
	if (vault->forgotten || vault->n_dead == 0)
		return false;
	if (vault->n_live == 0 && vault != vault->owner->open)
		return true;
	return all || vault->n_dead > vault->n_live / 2 + MAX_DEAD_BESIDE;
}

/* A live one in another vault is safe there before it leaves this one. */
static void go_on_emptying(struct nsv_vaults *v)
{
	struct nsv_vault *vault = v->emptying;

	while (vault && vault->live) {
		struct nsv_vault_place *place = vault->live;
		unlink_place(place);
		if (nsv_vaults_put(v, place) != 0) { /* where it was it is still */
			link_place(vault, place);
			vault->n_dead--;
			return;
		}
	}
	v->emptying = NULL;
	if (vault)
		forget(vault);
}

static struct nsv_vault *find_worth_emptying(const struct nsv_vaults *v, bool all)
{
	struct nsv_vault *vault = v->all;

	while (vault && !is_worth_emptying(vault, all))
		vault = vault->link;
	return vault;
}

void nsv_vaults_tend(struct nsv_vaults *v, bool all)
{
	go_on_emptying(v);
	while (!v->emptying && (v->emptying = find_worth_emptying(v, all))) {
		if (v->open == v->emptying)
			v->open = NULL;
		go_on_emptying(v);
		all = false; /* one at a time of those that nothing else asks for */
	}
}

void nsv_vaults_remove(struct nsv_vaults *v, struct nsv_vault_place *place)
{
	if (!v->on || !place->vault)
		return;
	unlink_place(place);
	nsv_vaults_tend(v, false);
}

uint32_t nsv_vaults_n_dead(const struct nsv_vaults *v)
{
	uint32_t n = 0;

	for (const struct nsv_vault *vault = v->all; vault; vault = vault->link)
		n += vault->forgotten ? 0 : vault->n_dead;
	return n;
}

/* ---- After a restart */

static size_t collect_fds(struct msghdr *msg, int *ret_fds)
{
	size_t n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t more =
			nsv_min((c->cmsg_len - CMSG_LEN(0)) / sizeof(int), NSV_VAULT_N_FD - n);
		memcpy(ret_fds + n, CMSG_DATA(c), more * sizeof(int));
		n += more;
	}
	return n;
}

/* Looks at the next message. 1: *ret is it, its descriptors are the caller's; 0: there are no more;
 * -EPROTO: one that no daemon wrote; -EMFILE: one whose descriptors did not all come; or -errno. */
static int peek(int fd, struct nsv_vault_place *ret)
{
	union {
		char buf[CMSG_SPACE(sizeof(ret->fds))];
		struct cmsghdr align;
	} control;
	struct record record;
	struct iovec iov = {&record, sizeof(record)};
	/* Not the padded size, which has room for a fourth. */
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.buf,
		.msg_controllen = CMSG_LEN(sizeof(ret->fds))};
	struct nsv_vault_place place = {.fds = {-1, -1, -1}};
	ssize_t got;

	do
		got = recvmsg(fd, &msg, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got <= 0)
		return got == 0 || errno == EAGAIN ? 0 : -errno;
	size_t n = collect_fds(&msg, place.fds);
	if (got != sizeof(record) || n != NSV_VAULT_N_FD ||
		(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		bool out_of_fds = n < NSV_VAULT_N_FD && (msg.msg_flags & MSG_CTRUNC);
		close_fds(place.fds, n);
		return out_of_fds ? -EMFILE : -EPROTO;
	}
	place.session_id = record.session_id;
	place.rec = record.rec;
	*ret = place;
	return 1;
}

static void take_message(struct nsv_vault *vault, const struct nsv_vault_place *found,
	nsv_vault_found_fn fn, void *user)
{
	struct nsv_vault_place *place = fn(user, found);

	if (place && !place->vault) {
		link_place(vault, place);
		return;
	}
	int fds[NSV_VAULT_N_FD];
	memcpy(fds, found->fds, sizeof(fds));
	if (!place)
		shutdown(fds[NSV_VAULT_SOCKET], SHUT_RDWR);
	close_fds(fds, NSV_VAULT_N_FD);
	vault->n_dead++;
}

/* Every message of one end, without taking any. The number of them, or -errno. */
static int look_through(struct nsv_vault *vault, int fd, nsv_vault_found_fn fn, void *user)
{
	const int from_the_first = 0;
	struct nsv_vault_place found;
	int n = 0, n_cut = 0, ret;

	if (setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &from_the_first, sizeof(from_the_first)) < 0)
		return -errno;
	while ((ret = peek(fd, &found)) != 0) {
		if (ret == 1)
			take_message(vault, &found, fn, user);
		else if (ret == -EPROTO || ret == -EMFILE)
			vault->n_dead++;
		else
			return ret;
		n_cut += ret == -EMFILE;
		n++;
	}
	if (n_cut > 0)
		nsv_error("%d sessions are lost: their descriptors are too many for RLIMIT_NOFILE "
			  "(LimitNOFILE=)",
			n_cut);
	return n;
}

static int look_at_vault(struct nsv_vault *vault, nsv_vault_found_fn fn, void *user)
{
	int first = look_through(vault, vault->fds[0], fn, user);
	int second = first < 0 || vault->fds[1] < 0
			     ? 0
			     : look_through(vault, vault->fds[1], fn, user);

	if (first > 0) { /* the store keeps no order: this is the end that was sent to */
		int fd = vault->fds[0];
		vault->fds[0] = vault->fds[1];
		vault->fds[1] = fd;
	}
	return first < 0 ? first : second < 0 ? second : 0;
}

static bool vault_number(const char *name, uint32_t *ret_number)
{
	char again[NAME_LEN];
	unsigned int number;

	if (sscanf(name, "v%u", &number) != 1 || number == 0 || number > MAX_NUMBER)
		return false;
	name_of(number, again);
	*ret_number = number;
	return strcmp(name, again) == 0;
}

int nsv_vaults_adopt(struct nsv_vaults *v, struct nsv_passed *passed, nsv_vault_found_fn found,
	void *user, struct nsv_err *err)
{
	for (uint32_t i = 0; i < passed->n; i++) {
		const char *name = passed->names[i];
		uint32_t number;
		if (passed->fds[i] < 0 || !vault_number(name, &number))
			continue;
		struct nsv_vault *vault = new_vault(v, number);
		if (!vault)
			return nsv_fail(err, -ENOMEM, "no memory for vault %s", name);
		v->last_number = (uint32_t)nsv_max(v->last_number, number);
		vault->confirmed = true;
		vault->fds[0] = nsv_passed_take(passed, name);
		vault->fds[1] = nsv_passed_take(passed, name);
		int ret = look_at_vault(vault, found, user);
		/* What was seen of it is served: better than a daemon that never starts. */
		if (ret < 0)
			nsv_error("vault %s cannot be looked through: %s", name, strerror(-ret));
		if (vault->n_live + vault->n_dead == 0 && vault->fds[1] >= 0 && !v->next)
			v->next = vault; /* as good as new */
		else if (vault->n_live == 0)
			forget(vault);
		else if (vault->fds[0] >= 0 && !v->open)
			v->open = vault; /* or each restart would leave one that is hardly used */
	}
	return 0;
}
