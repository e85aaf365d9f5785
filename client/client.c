/* A session's beginning and end, and waiting on all of it. */
#include "client/session.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "shm/version.h"

const char *nsv_client_version(void)
{
	return NSV_VERSION;
}

void nsv_client_options_init(struct nsv_client_options *options)
{
	*options = (struct nsv_client_options){
		.size = sizeof(*options),
		.n_slot = 8,
		.arena_len = 1u << 20,
		.text_len = 16u << 10,
		.n_token = 4096,
		.n_lp = 1024,
		.connect_timeout_ms = 5000,
		.spin_us = -1,
		.away_timeout_ms = 30000,
	};
}

/* A power of two that is at least n and least; 0 stays 0 (the default). */
static uint32_t pow2_at_least(uint32_t n, uint32_t least)
{
	uint32_t r = least;

	while (r < n && r < (1u << 31))
		r <<= 1;
	return n ? r : 0;
}

static struct nsv_geom wanted_geom(const struct nsv_client_options *o)
{
	uint32_t n_entry = o->n_slot < NSV_MAX_SQE / 2 ? 2 * o->n_slot : NSV_MAX_SQE;

	return (struct nsv_geom){
		.n_sqe = pow2_at_least(n_entry, 16),
		.n_slot = o->n_slot,
		.arena_len = pow2_at_least(o->arena_len, NSV_MIN_ARENA),
		.text_len = pow2_at_least(o->text_len, NSV_MIN_TEXT_LOG),
		.n_token = pow2_at_least(o->n_token, NSV_MIN_TOKEN_LOG),
		.n_lp = pow2_at_least(o->n_lp, NSV_MIN_LP_LOG),
	};
}

static const char *choose_path(const char *path)
{
	if (!path)
		path = getenv("NANOSERVE_SOCKET");
	return path && *path ? path : NSV_CLIENT_DEFAULT_SOCKET;
}

static int fail_connect(const char *path, int code, struct nsv_err *err)
{
	if (code == -EACCES)
		return nsv_fail(err, code,
			"%s: permission denied: its owner, group and mode say who may connect",
			path);
	return nsv_fail(err, code, "no daemon at %s: %s", path, strerror(-code));
}

/* A full backlog blocks connect as long as the timeout says. */
static int connect_socket(const char *path, int timeout_ms, int *ret_fd, struct nsv_err *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct timeval tv = {timeout_ms / 1000, timeout_ms % 1000 * 1000};

	if (strlen(path) >= sizeof(addr.sun_path))
		return nsv_fail(err, -ENAMETOOLONG,
			"the socket's path is longer than %zu bytes: %s", sizeof(addr.sun_path) - 1,
			path);
	strcpy(addr.sun_path, path);
	nsv_autoclose int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return nsv_fail(err, -errno, "socket: %s", strerror(errno));
	if (timeout_ms > 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		return fail_connect(path, errno == EAGAIN ? -ETIMEDOUT : -errno, err);
	*ret_fd = fd;
	fd = -1;
	return 0;
}

/* Looks once more when the time is over: a process that was held up finds what has come. */
static int wait_readable(int fd, int64_t deadline_ns, struct nsv_err *err)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	for (;;) {
		int64_t left = deadline_ns < 0 ? -1 : (deadline_ns - nsv_clock_ns()) / 1000000;
		bool late = deadline_ns >= 0 && left <= 0;
		int n = poll(&p, 1, late ? 0 : left > 1000000 ? 1000000 : (int)left);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return nsv_fail(err, -errno, "poll: %s", strerror(errno));
		if (n == 0 && late)
			return nsv_fail(err, -ETIMEDOUT, "the daemon does not answer");
	}
}

/* A refusal's code as an errno. */
static int refusal_errno(int code)
{
	switch (code) {
	case NSV_E_VERSION:
		return -EPROTONOSUPPORT;
	case NSV_E_DENIED:
		return -EACCES;
	case NSV_E_LIMIT:
		return -EDQUOT;
	case NSV_E_NOMEM:
		return -ENOMEM;
	case NSV_E_STOPPING:
		return -ECONNREFUSED;
	default:
		return -EPROTO;
	}
}

static int adopt_regions(struct nsv_client *c, const struct nsv_welcome *w, int *up_fd,
	int *down_fd, struct nsv_err *err)
{
	struct nsv_up_layout up;
	struct nsv_down_layout down;

	if (nsv_layout_up(&w->geom, &up) < 0 || nsv_layout_down(&w->geom, &down) < 0 ||
		w->up_len != up.len || w->down_len != down.len)
		return nsv_fail(err, -EPROTO, "the welcome's sizes are not those of its geometry");
	int ret = nsv_region_adopt(&c->up_region, *up_fd, up.len, true, err);
	if (ret < 0)
		return ret;
	*up_fd = -1;
	ret = nsv_region_adopt(&c->down_region, *down_fd, down.len, false, err);
	if (ret < 0)
		return ret;
	*down_fd = -1;
	ret = nsv_up_check(c->up_region.map, &w->geom, w->session_id, err);
	if (ret == 0)
		ret = nsv_down_check(c->down_region.map, &w->geom, w->session_id, err);
	c->up = nsv_up_at(c->up_region.map, &up);
	c->down = nsv_down_at(c->down_region.map, &down);
	return ret;
}

static int greet(struct nsv_client *c, const struct nsv_client_options *o, struct nsv_err *err)
{
	const struct nsv_geom want = wanted_geom(o);
	const struct nsv_hello hello = nsv_hello_make(&want);
	struct nsv_welcome w;
	nsv_autoclose int up_fd = -1;
	nsv_autoclose int down_fd = -1;
	int ret = nsv_hello_send(c->fd, &hello);

	/* A daemon that does not serve this user says so and closes before it has read anything:
	 * its word can be read even where the connection is said to be broken, once. */
	if (ret < 0 && ret != -EPIPE && ret != -ECONNRESET)
		return nsv_fail(err, ret, "the daemon takes no hello: %s", strerror(-ret));
	ret = wait_readable(c->fd, nsv_deadline_ns(o->connect_timeout_ms), err);
	if (ret == 0)
		ret = nsv_welcome_recv(c->fd, &w, &up_fd, &down_fd, err);
	if (ret == -ECONNRESET)
		ret = nsv_welcome_recv(c->fd, &w, &up_fd, &down_fd, err);
	if (ret > 0)
		return refusal_errno(ret);
	if (ret == 0)
		ret = adopt_regions(c, &w, &up_fd, &down_fd, err);
	if (ret < 0)
		return ret;
	c->geom = w.geom;
	c->session_id = w.session_id;
	return 0;
}

static int prepare(struct nsv_client *c, struct nsv_err *err)
{
	const struct nsv_geom *g = &c->geom;

	c->sq = nsv_sq_producer_at(&c->up, &c->down, g);
	c->reply = nsv_reply_consumer_at(&c->up, &c->down, g);
	c->event = nsv_event_consumer_at(&c->up, &c->down, g);
	c->arena.len = g->arena_len;
	c->epoch = nsv_load_acq_u32(&c->down.head->epoch);
	c->arena_tails = calloc(g->n_sqe, sizeof(*c->arena_tails));
	c->slots = calloc(g->n_slot, sizeof(struct nsv_request *));
	if (!c->arena_tails || !c->slots)
		return nsv_fail(err, -ENOMEM, "out of memory");
	return 0;
}

/* One connection and one hello. */
static int introduce(const char *path, const struct nsv_client_options *o, struct nsv_client *c,
	struct nsv_err *err)
{
	int ret = connect_socket(choose_path(path), o->connect_timeout_ms, &c->fd, err);

	return ret == 0 ? greet(c, o, err) : ret;
}

static void take_leave(struct nsv_client *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}

/* A daemon that ends in the middle of a hello has promised nothing: the next one is asked. */
static int introduce_until(const char *path, const struct nsv_client_options *o,
	struct nsv_client *c, struct nsv_err *err)
{
	int64_t deadline = nsv_deadline_ns(o->connect_timeout_ms);
	int ret = introduce(path, o, c, err);

	for (int nap_ms = 10; ret == -ECONNRESET || ret == -EPIPE; nap_ms *= 2) {
		if (deadline >= 0 && nsv_clock_ns() + nap_ms * 1000000ll >= deadline)
			break;
		take_leave(c);
		poll(NULL, 0, nap_ms);
		ret = introduce(path, o, c, err);
	}
	return ret;
}

static int open_client(const char *path, const struct nsv_client_options *o,
	struct nsv_client **ret_client, struct nsv_err *err)
{
	struct nsv_client *c = calloc(1, sizeof(*c));

	if (!c)
		return nsv_fail(err, -ENOMEM, "out of memory");
	c->fd = -1;
	c->up_region = NSV_REGION_NONE;
	c->down_region = NSV_REGION_NONE;
	c->away_ns = o->away_timeout_ms < 0 ? -1 : o->away_timeout_ms * 1000000ll;
	c->quiet_ns = nsv_clock_ns();
	nsv_spin_init(&c->spin, o->spin_us);
	int ret = introduce_until(path, o, c, err);
	if (ret == 0)
		ret = prepare(c, err);
	if (ret < 0) {
		nsv_client_close(c);
		return ret;
	}
	*ret_client = c;
	return 0;
}

int nsv_client_open(const char *path, const struct nsv_client_options *options, char *text,
	size_t text_len, struct nsv_client **ret_client)
{
	struct nsv_client_options o;
	struct nsv_err err = {0};
	int ret = 0;

	nsv_client_options_init(&o);
	if (options && options->size != sizeof(o))
		ret = nsv_fail(&err, -EINVAL,
			"options of %u bytes: nsv_client_options_init sets %zu", options->size,
			sizeof(o));
	else if (options)
		o = *options;
	if (ret == 0)
		ret = open_client(path, &o, ret_client, &err);
	if (ret < 0 && text && text_len > 0)
		snprintf(text, text_len, "%s", err.text);
	return ret;
}

void nsv_client_close(struct nsv_client *c)
{
	if (!c)
		return;
	nsv_requests_delete(c->all);
	free(c->slots);
	free(c->arena_tails);
	nsv_region_deinit(&c->up_region);
	nsv_region_deinit(&c->down_region);
	take_leave(c);
	free(c);
}

const char *nsv_client_error(const struct nsv_client *c)
{
	return c->err.text;
}

uint64_t nsv_client_session_id(const struct nsv_client *c)
{
	return c->session_id;
}

int nsv_client_fd(const struct nsv_client *c)
{
	return c->fd;
}

int nsv_client_wait(struct nsv_client *c, int timeout_ms)
{
	int64_t deadline = nsv_deadline_ns(timeout_ms);
	int ret = nsv_client_dispatch(c);

	for (;;) {
		if (c->ready_first)
			return 1;
		if (ret < 0)
			return ret;
		if (timeout_ms == 0)
			return -EAGAIN;
		ret = nsv_session_wait(c, deadline);
	}
}

int nsv_client_ping(struct nsv_client *c, int timeout_ms)
{
	int64_t deadline = nsv_deadline_ns(timeout_ms);
	const struct nsv_sqe entry = {
		.op = NSV_OP_NOP, .request_id = c->n_ping + 1, .target_id = c->n_ping + 1};
	int ret = nsv_client_dispatch(c);

	if (ret == 0)
		ret = nsv_session_put(c, &entry, c->arena.tail);
	if (ret < 0)
		return ret;
	c->n_ping++;
	while (c->pong < c->n_ping && ret == 0) {
		if (timeout_ms == 0)
			return -EAGAIN;
		ret = nsv_session_wait(c, deadline);
	}
	if (c->pong >= c->n_ping)
		return 0;
	return ret == -ETIMEDOUT ? nsv_fail(&c->err, ret, "no answer within the time given") : ret;
}
