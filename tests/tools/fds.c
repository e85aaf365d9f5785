/* Descriptors in one message, SCM_RIGHTS. */
#include "tests/tools/fds.h"

#include <string.h>
#include <sys/socket.h>

union control {
	char buf[CMSG_SPACE(NSV_FDS_MAX * sizeof(int))];
	struct cmsghdr align;
};

ssize_t nsv_fds_send(int socket, const void *data, size_t len, const int *fds, size_t n)
{
	union control control = {0};
	struct iovec iov = {(void *)data, len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (n > 0) {
		msg.msg_control = control.buf;
		msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	}
	return sendmsg(socket, &msg, 0);
}

ssize_t nsv_fds_recv(int socket, void *data, size_t len, int *ret_fds, size_t *ret_n)
{
	union control control;
	struct iovec iov = {data, len};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.buf,
		.msg_controllen = sizeof(control.buf)};
	ssize_t got = recvmsg(socket, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	*ret_n = 0;
	for (struct cmsghdr *c = got < 0 ? NULL : CMSG_FIRSTHDR(&msg); c;
		c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_type != SCM_RIGHTS)
			continue;
		*ret_n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(ret_fds, CMSG_DATA(c), *ret_n * sizeof(int));
	}
	return got;
}
