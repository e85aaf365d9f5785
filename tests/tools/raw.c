/* The wire by hand. */
#include "tests/tools/raw.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/tools/wait.h"

int nsv_raw_connect(const char *socket_path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", socket_path);
	if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		return -errno;
	return fd;
}

static int map(struct nsv_raw *r, int up_fd, int down_fd)
{
	const struct nsv_geom *g = &r->welcome.geom;
	struct nsv_up_layout up;
	struct nsv_down_layout down;
	struct nsv_err err;

	if (nsv_layout_up(g, &up) < 0 || nsv_layout_down(g, &down) < 0 ||
		nsv_region_adopt(&r->up_region, up_fd, up.len, true, &err) < 0 ||
		nsv_region_adopt(&r->down_region, down_fd, down.len, false, &err) < 0)
		return -EPROTO;
	r->up = nsv_up_at(r->up_region.map, &up);
	r->down = nsv_down_at(r->down_region.map, &down);
	r->sq = nsv_sq_producer_at(&r->up, &r->down, g);
	r->reply = nsv_reply_consumer_at(&r->up, &r->down, g);
	r->event = nsv_event_consumer_at(&r->up, &r->down, g);
	return 0;
}

int nsv_raw_open(struct nsv_raw *r, const char *socket_path, const struct nsv_geom *want)
{
	struct nsv_hello hello = nsv_hello_make(want);
	struct nsv_err err;
	int up_fd, down_fd;

	*r = (struct nsv_raw){.up_region = NSV_REGION_NONE, .down_region = NSV_REGION_NONE};
	r->fd = nsv_raw_connect(socket_path);
	if (r->fd < 0)
		return r->fd;
	int ret = nsv_hello_send(r->fd, &hello);
	if (ret == 0)
		ret = nsv_welcome_recv(r->fd, &r->welcome, &up_fd, &down_fd, &err);
	if (ret == 0)
		ret = map(r, up_fd, down_fd);
	if (ret != 0)
		nsv_raw_close(r);
	return ret;
}

void nsv_raw_close(struct nsv_raw *r)
{
	nsv_region_deinit(&r->up_region);
	nsv_region_deinit(&r->down_region);
	if (r->fd >= 0)
		close(r->fd);
	r->fd = -1;
}

void nsv_raw_put(struct nsv_raw *r, const struct nsv_sqe *sqe)
{
	while (nsv_sq_put(&r->sq, sqe) == 1)
		usleep(100);
	nsv_sq_publish(&r->sq);
	if (nsv_wait_must_ring(&r->down.head->wait, &r->rung))
		nsv_bell_send(r->fd);
}

static bool take(struct nsv_cq_consumer *cq, struct nsv_cqe *ret)
{
	uint32_t n;

	if (nsv_cq_ready(cq, &n) < 0 || n == 0)
		return false;
	nsv_cq_peek(cq, 0, ret);
	nsv_cq_advance(cq, 1);
	return true;
}

static bool take_any(struct nsv_raw *r, struct nsv_cqe *ret)
{
	return take(&r->reply, ret) || take(&r->event, ret);
}

static bool is_closed(const struct nsv_raw *r)
{
	struct pollfd p = {.fd = r->fd};

	return poll(&p, 1, 0) == 1 && (p.revents & POLLHUP);
}

bool nsv_raw_next(struct nsv_raw *r, struct nsv_cqe *ret)
{
	bool taken = false;

	if (!NSV_WAIT_FOR((taken = take_any(r, ret)) || is_closed(r)))
		return false;
	return taken || take_any(r, ret); /* it may have come right before the close */
}

bool nsv_raw_closed(struct nsv_raw *r)
{
	char buf[4096];

	while (nsv_wait_readable(r->fd)) {
		ssize_t n = recv(r->fd, buf, sizeof(buf), MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno == ECONNRESET))
			return true;
	}
	return false;
}

struct nsv_sqe nsv_raw_prompt(struct nsv_raw *r, const char *text, const struct nsv_params *params)
{
	struct nsv_sqe sqe = {.op = NSV_OP_SUBMIT, .request_id = ++r->last_id};
	size_t len = strlen(text), at = (len + 7) & ~(size_t)7;

	memcpy(r->up.arena, text, len);
	sqe.prompt_len = (uint32_t)len;
	if (params) {
		memcpy(r->up.arena + at, params, sizeof(*params));
		sqe.params_off = (uint32_t)at;
		sqe.params_len = sizeof(*params);
	}
	return sqe;
}

const struct nsv_params nsv_raw_endless = {.len = sizeof(nsv_raw_endless),
	.top_p = 1,
	.typical_p = 1,
	.repetition_penalty = 1,
	.flags = NSV_PARAM_IGNORE_END};

struct nsv_sqe nsv_raw_tokenize(struct nsv_raw *r, uint32_t slot, uint32_t len)
{
	memset(r->up.arena, 'a' + (int)slot % 26, len);
	return (struct nsv_sqe){.op = NSV_OP_TOKENIZE,
		.slot = (uint16_t)slot,
		.request_id = ++r->last_id,
		.prompt_len = len};
}
