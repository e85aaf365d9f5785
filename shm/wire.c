/* Hello and welcome: made, sent, received, checked; descriptors beside them. */
#include "shm/wire.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

#define N_FD 2	  /* descriptors of a welcome: up, down */
#define MAX_FD 16 /* room for surplus ones, so that they are received and closed */

struct nsv_hello nsv_hello_make(const struct nsv_geom *want)
{
	struct nsv_hello h = {
		.magic = NSV_MAGIC_HELLO,
		.major = NSV_ABI_MAJOR,
		.minor = NSV_ABI_MINOR,
		.len = sizeof(h),
		.feat_compat = NSV_FEAT_COMPAT_KNOWN,
		.feat_incompat = NSV_FEAT_INCOMPAT_KNOWN,
	};

	if (want)
		h.want = *want;
	return h;
}

static bool all_zero(const void *data, size_t len)
{
	const unsigned char *p = data;

	for (size_t i = 0; i < len; i++)
		if (p[i])
			return false;
	return true;
}

int nsv_hello_check(const void *data, size_t len, struct nsv_hello *ret, struct nsv_err *err)
{
	struct nsv_hello h;

	if (len < sizeof(h))
		return nsv_fail(
			err, NSV_E_HELLO, "a hello of %zu bytes: at least %zu", len, sizeof(h));
	memcpy(&h, data, sizeof(h));
	if (h.magic != NSV_MAGIC_HELLO)
		return nsv_fail(err, NSV_E_HELLO, "not a hello: it begins with %#x", h.magic);
	if (h.major != NSV_ABI_MAJOR)
		return nsv_fail(err, NSV_E_VERSION,
			"protocol version %u.%u: this daemon speaks %u.%u", h.major, h.minor,
			NSV_ABI_MAJOR, NSV_ABI_MINOR);
	if (h.feat_incompat & ~NSV_FEAT_INCOMPAT_KNOWN)
		return nsv_fail(err, NSV_E_VERSION, "features %#llx are not known to this daemon",
			(unsigned long long)(h.feat_incompat & ~NSV_FEAT_INCOMPAT_KNOWN));
	if (h.len != len)
		return nsv_fail(err, NSV_E_HELLO, "a hello says %u bytes and has %zu", h.len, len);
	if (h.minor <= NSV_ABI_MINOR &&
		(h.reserved0 || !all_zero(h.reserved1, sizeof(h.reserved1)) || len > sizeof(h)))
		return nsv_fail(err, NSV_E_HELLO, "reserved bytes of a hello are not zero");
	*ret = h;
	return 0;
}

/* sendmsg or send, again after a signal; 0 or -errno. A packet is sent whole or not at all. */
static int send_packet(int fd, const struct msghdr *msg, int flags)
{
	ssize_t n;

	do
		n = sendmsg(fd, msg, flags | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

int nsv_hello_send(int fd, const struct nsv_hello *hello)
{
	struct iovec iov = {(void *)hello, sizeof(*hello)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	return send_packet(fd, &msg, 0);
}

struct nsv_welcome nsv_welcome_make(
	uint64_t session_id, const struct nsv_geom *geom, uint64_t up_len, uint64_t down_len)
{
	return (struct nsv_welcome){
		.magic = NSV_MAGIC_WELCOME,
		.major = NSV_ABI_MAJOR,
		.minor = NSV_ABI_MINOR,
		.len = sizeof(struct nsv_welcome),
		.status = NSV_E_OK,
		.feat_compat = NSV_FEAT_COMPAT_KNOWN,
		.feat_incompat = NSV_FEAT_INCOMPAT_KNOWN,
		.session_id = session_id,
		.up_len = up_len,
		.down_len = down_len,
		.geom = *geom,
	};
}

struct nsv_welcome nsv_refusal_make(enum nsv_code status, const char *text)
{
	struct nsv_welcome w = nsv_welcome_make(0, &(struct nsv_geom){0}, 0, 0);

	w.status = status;
	snprintf(w.text, sizeof(w.text), "%s", text);
	return w;
}

int nsv_welcome_check(const void *data, size_t len, struct nsv_welcome *ret, struct nsv_err *err)
{
	struct nsv_welcome w;

	if (len < sizeof(w))
		return nsv_fail(
			err, -EPROTO, "a welcome of %zu bytes: at least %zu", len, sizeof(w));
	memcpy(&w, data, sizeof(w));
	if (w.magic != NSV_MAGIC_WELCOME)
		return nsv_fail(err, -EPROTO, "not a welcome: it begins with %#x", w.magic);
	if (!memchr(w.text, 0, sizeof(w.text)))
		return nsv_fail(err, -EPROTO, "the text of a welcome does not end");
	if (w.status > INT32_MAX)
		return nsv_fail(err, -EPROTO, "a welcome has the status %u", w.status);
	if (w.status != NSV_E_OK) {
		*ret = w;
		return nsv_fail(err, (int)w.status, "%s", w.text);
	}
	if (w.major != NSV_ABI_MAJOR || (w.feat_incompat & ~NSV_FEAT_INCOMPAT_KNOWN))
		return nsv_fail(err, NSV_E_VERSION,
			"the daemon speaks protocol version %u.%u (features %#llx), this library "
			"%u.%u",
			w.major, w.minor, (unsigned long long)w.feat_incompat, NSV_ABI_MAJOR,
			NSV_ABI_MINOR);
	*ret = w;
	return 0;
}

int nsv_welcome_send(int fd, const struct nsv_welcome *welcome, int up_fd, int down_fd)
{
	union {
		char buf[CMSG_SPACE(N_FD * sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {(void *)welcome, sizeof(*welcome)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	const int fds[N_FD] = {up_fd, down_fd};

	if (up_fd >= 0) {
		msg.msg_control = control.buf;
		msg.msg_controllen = sizeof(control.buf);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(fds));
		memcpy(CMSG_DATA(c), fds, sizeof(fds));
	}
	return send_packet(fd, &msg, MSG_DONTWAIT);
}

static void close_all(const int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
}

/* Every descriptor in the message, at most MAX_FD, which is what its control buffer holds. */
static size_t collect_fds(struct msghdr *msg, int *ret_fds)
{
	size_t n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t more = nsv_min((c->cmsg_len - CMSG_LEN(0)) / sizeof(int), MAX_FD - n);
		memcpy(ret_fds + n, CMSG_DATA(c), more * sizeof(int));
		n += more;
	}
	return n;
}

/* A packet with whatever descriptors it has. The bytes received, or -errno with all closed. */
static ssize_t recv_packet(
	int fd, void *buf, size_t len, int *ret_fds, size_t *ret_n_fd, struct nsv_err *err)
{
	union {
		char buf[CMSG_SPACE(MAX_FD * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {buf, len};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.buf,
		.msg_controllen = sizeof(control.buf)};
	ssize_t got;

	do
		got = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got < 0) {
		int code = -errno;
		return nsv_fail(err, code, "no welcome came: %s", strerror(-code));
	}
	*ret_n_fd = collect_fds(&msg, ret_fds);
	if (msg.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) {
		close_all(ret_fds, *ret_n_fd);
		return nsv_fail(
			err, -EPROTO, "the daemon's packet was cut off (descriptor limit?)");
	}
	if (got == 0) {
		close_all(ret_fds, *ret_n_fd);
		return nsv_fail(err, -ECONNRESET, "the daemon closed the connection");
	}
	return got;
}

int nsv_welcome_recv(
	int fd, struct nsv_welcome *ret, int *ret_up_fd, int *ret_down_fd, struct nsv_err *err)
{
	unsigned char buf[1024];
	int fds[MAX_FD];
	size_t n_fd = 0;
	ssize_t got = recv_packet(fd, buf, sizeof(buf), fds, &n_fd, err);

	if (got < 0)
		return (int)got;
	if (got == sizeof(struct nsv_bell)) {
		close_all(fds, n_fd);
		return nsv_fail(err, -ECONNRESET, "the daemon was replaced in the middle of the hello");
	}
	int code = nsv_welcome_check(buf, (size_t)got, ret, err);
	if (code == 0 && n_fd == N_FD) {
		*ret_up_fd = fds[0];
		*ret_down_fd = fds[1];
		return 0;
	}
	close_all(fds, n_fd);
	if (code == 0)
		return nsv_fail(
			err, -EPROTO, "a welcome with %zu descriptors: %d expected", n_fd, N_FD);
	return code;
}

int nsv_bell_send(int fd)
{
	const struct nsv_bell bell = {0};
	ssize_t n;

	do
		n = send(fd, &bell, sizeof(bell), MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno != EAGAIN)
		return -errno;
	return 0;
}

int nsv_bell_drain(int fd)
{
	struct nsv_bell bell;
	ssize_t n;

	do
		n = recv(fd, &bell, sizeof(bell), MSG_DONTWAIT);
	while (n > 0 || (n < 0 && errno == EINTR));
	if (n == 0)
		return -ECONNRESET;
	return errno == EAGAIN ? 0 : -errno;
}

/* The kernel makes it the least that it allows, in which one packet always has room. */
int nsv_wire_keep_few(int fd)
{
	const int least = 1;

	return setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)) < 0 ? -errno : 0;
}

int nsv_wire_refuse_fds(int fd)
{
	const int no = 0;

	return setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no)) < 0 ? -errno : 0;
}
