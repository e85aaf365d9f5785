/* One io_uring: set up, restricted, armed, and its completions handed out. */
#include "daemon/loop.h"

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define N_SQE 256
#define N_CQE 16384
#define N_BUF 512
#define BUF_GROUP 1
#define MOST_ACCEPTS 64 /* before the others' turn */

enum source_kind { KIND_ACCEPT, KIND_RECV, KIND_POLL, KIND_TIMER };

struct nsv_loop {
	struct io_uring ring;
	bool ring_ready;
	struct io_uring_buf_ring *bufs;
	unsigned char *buf_mem; /* (N_BUF, NSV_LOOP_BUF_LEN) */
};

static const uint8_t allowed_ops[] = {IORING_OP_RECV, IORING_OP_POLL_ADD, IORING_OP_TIMEOUT,
	IORING_OP_ASYNC_CANCEL, IORING_OP_NOP};

static int refused(int ret, struct nsv_err *err)
{
	const char *why = "";

	if (ret == -EPERM || ret == -EACCES)
		why = ": see the sysctl kernel.io_uring_disabled (0 allows it) and the service's "
		      "SystemCallFilter= or the container's seccomp profile (io_uring_setup)";
	else if (ret == -ENOMEM)
		why = ": see RLIMIT_MEMLOCK (LimitMEMLOCK= in the unit)";
	else if (ret == -ENOSYS || ret == -EINVAL)
		why = ": a kernel of 6.1 or later with io_uring is needed";
	return nsv_fail(err, ret, "io_uring is refused (%s)%s", strerror(-ret), why);
}

static int restrict_ring(struct io_uring *ring)
{
	struct io_uring_restriction res[NSV_ARRAY_LEN(allowed_ops) + 1];
	unsigned int n = 0;

	memset(res, 0, sizeof(res));
	for (; n < NSV_ARRAY_LEN(allowed_ops); n++) {
		res[n].opcode = IORING_RESTRICTION_SQE_OP;
		res[n].sqe_op = allowed_ops[n];
	}
	res[n].opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
	res[n++].sqe_flags = IOSQE_BUFFER_SELECT;
	return io_uring_register_restrictions(ring, res, n);
}

static void give_buffer(struct nsv_loop *loop, unsigned int id)
{
	io_uring_buf_ring_add(loop->bufs, loop->buf_mem + (size_t)id * NSV_LOOP_BUF_LEN,
		NSV_LOOP_BUF_LEN, (unsigned short)id, io_uring_buf_ring_mask(N_BUF), 0);
	io_uring_buf_ring_advance(loop->bufs, 1);
}

static int setup_buffers(struct nsv_loop *loop)
{
	size_t ring_len = N_BUF * sizeof(struct io_uring_buf);

	loop->bufs = aligned_alloc(NSV_PAGE, (ring_len + NSV_PAGE - 1) & ~(size_t)(NSV_PAGE - 1));
	loop->buf_mem = calloc(N_BUF, NSV_LOOP_BUF_LEN);
	if (!loop->bufs || !loop->buf_mem)
		return -ENOMEM;
	io_uring_buf_ring_init(loop->bufs);
	struct io_uring_buf_reg reg = {
		.ring_addr = (uintptr_t)loop->bufs, .ring_entries = N_BUF, .bgid = BUF_GROUP};
	int ret = io_uring_register_buf_ring(&loop->ring, &reg, 0);
	if (ret < 0)
		return ret;
	for (unsigned int i = 0; i < N_BUF; i++)
		give_buffer(loop, i);
	return 0;
}

static int setup_ring(struct nsv_loop *loop)
{
	struct io_uring_params params = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			 IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
		.cq_entries = N_CQE,
	};
	int ret = io_uring_queue_init_params(N_SQE, &loop->ring, &params);

	if (ret < 0)
		return ret;
	loop->ring_ready = true;
	ret = setup_buffers(loop);
	if (ret < 0)
		return ret;
	ret = restrict_ring(&loop->ring);
	if (ret < 0)
		return ret;
	return io_uring_enable_rings(&loop->ring);
}

int nsv_loop_new(struct nsv_loop **ret_loop, struct nsv_err *err)
{
	struct nsv_loop *loop = calloc(1, sizeof(*loop));

	if (!loop)
		return -ENOMEM;
	int ret = setup_ring(loop);
	if (ret < 0) {
		nsv_loop_free(loop);
		return refused(ret, err);
	}
	*ret_loop = loop;
	return 0;
}

void nsv_loop_free(struct nsv_loop *loop)
{
	if (!loop)
		return;
	if (loop->ring_ready)
		io_uring_queue_exit(&loop->ring);
	free(loop->bufs);
	free(loop->buf_mem);
	free(loop);
}

static struct io_uring_sqe *get_sqe(struct nsv_loop *loop)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);

	while (!sqe) { /* full: hand over what is there */
		io_uring_submit(&loop->ring);
		sqe = io_uring_get_sqe(&loop->ring);
	}
	return sqe;
}

static void arm(struct nsv_loop *loop, struct nsv_source *src)
{
	struct io_uring_sqe *sqe = get_sqe(loop);

	switch (src->kind) {
	case KIND_ACCEPT:
		io_uring_prep_poll_add(sqe, src->fd, POLLIN);
		break;
	case KIND_RECV:
		io_uring_prep_recv_multishot(sqe, src->fd, NULL, 0, 0);
		sqe->flags |= IOSQE_BUFFER_SELECT;
		sqe->buf_group = BUF_GROUP;
		break;
	case KIND_POLL:
		io_uring_prep_poll_multishot(sqe, src->fd, POLLIN);
		break;
	case KIND_TIMER:
		io_uring_prep_timeout(sqe, (struct __kernel_timespec *)src->timer_ns, 0, 0);
		break;
	}
	io_uring_sqe_set_data(sqe, src);
	src->armed = true;
}

static void start(struct nsv_loop *loop, struct nsv_source *src, enum source_kind kind, int fd)
{
	src->kind = (uint8_t)kind;
	src->fd = fd;
	src->cancelled = false;
	arm(loop, src);
}

void nsv_source_accept(struct nsv_loop *loop, struct nsv_source *src, int fd)
{
	/* Whoever else has the socket may have taken the connection that it was said to have. */
	(void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	start(loop, src, KIND_ACCEPT, fd);
}

void nsv_source_recv(struct nsv_loop *loop, struct nsv_source *src, int fd)
{
	start(loop, src, KIND_RECV, fd);
}

void nsv_source_poll(struct nsv_loop *loop, struct nsv_source *src, int fd)
{
	start(loop, src, KIND_POLL, fd);
}

void nsv_source_timer(struct nsv_loop *loop, struct nsv_source *src, uint64_t after_ns)
{
	src->timer_ns[0] = (int64_t)(after_ns / 1000000000u);
	src->timer_ns[1] = (int64_t)(after_ns % 1000000000u);
	start(loop, src, KIND_TIMER, -1);
}

void nsv_source_cancel(struct nsv_loop *loop, struct nsv_source *src)
{
	struct io_uring_sqe *sqe = get_sqe(loop);

	src->cancelled = true;
	if (src->armed) {
		io_uring_prep_cancel(sqe, src, 0);
		io_uring_sqe_set_data(sqe, NULL);
	} else {
		io_uring_prep_nop(sqe);
		io_uring_sqe_set_data(sqe, src);
	}
}

static int accept_one(int fd)
{
	int ret = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	return ret < 0 ? -errno : ret;
}

/* Those that wait; what is left over is found as the poll is armed again. false: it has ended. */
static bool accept_some(struct nsv_source *src, int res)
{
	for (int i = 0; res >= 0 && i < MOST_ACCEPTS && !src->cancelled; i++) {
		res = accept_one(src->fd);
		if (res >= 0)
			src->fn(src, NSV_EV_FD, res, NULL);
	}
	if (res >= 0 || res == -EAGAIN || res == -EINTR || res == -ECONNABORTED)
		return true;
	src->fn(src, NSV_EV_ENDED, res, NULL);
	return false;
}

static bool deliver_packet(
	struct nsv_loop *loop, struct nsv_source *src, const struct io_uring_cqe *cqe)
{
	unsigned int id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;

	if (cqe->res == -ENOBUFS)
		return true; /* packets wait in the socket: armed again, they come */
	if (cqe->res > 0)
		src->fn(src, NSV_EV_DATA, cqe->res, loop->buf_mem + (size_t)id * NSV_LOOP_BUF_LEN);
	else
		src->fn(src, NSV_EV_EOF, cqe->res, NULL);
	return cqe->res > 0;
}

/* What a completion of this source means to its owner, while it lives. true: it goes on. */
static bool deliver(struct nsv_loop *loop, struct nsv_source *src, const struct io_uring_cqe *cqe)
{
	switch (src->kind) {
	case KIND_ACCEPT:
		return accept_some(src, cqe->res);
	case KIND_POLL:
		src->fn(src, NSV_EV_READY, cqe->res, NULL);
		return true;
	case KIND_RECV:
		return deliver_packet(loop, src, cqe);
	default:
		src->fn(src, NSV_EV_TIME, 0, NULL);
		return false;
	}
}

static void handle(struct nsv_loop *loop, const struct io_uring_cqe *cqe)
{
	struct nsv_source *src = io_uring_cqe_get_data(cqe);
	bool more = cqe->flags & IORING_CQE_F_MORE;

	if (src && !more)
		src->armed = false;
	if (src && src->cancelled) {
		if (!more)
			src->fn(src, NSV_EV_GONE, 0, NULL);
	} else if (src) {
		bool goes_on = deliver(loop, src, cqe);
		if (goes_on && !src->cancelled && !src->armed)
			arm(loop, src);
	}
	if (cqe->flags & IORING_CQE_F_BUFFER)
		give_buffer(loop, cqe->flags >> IORING_CQE_BUFFER_SHIFT);
}

int nsv_loop_turn(struct nsv_loop *loop, bool wait)
{
	int ret = wait ? io_uring_submit_and_wait(&loop->ring, 1)
		       : io_uring_submit_and_get_events(&loop->ring);

	if (ret < 0 && ret != -EINTR && ret != -EAGAIN && ret != -EBUSY)
		return ret;
	struct io_uring_cqe *cqes[64];
	int n = 0;
	unsigned int got;
	while ((got = io_uring_peek_batch_cqe(&loop->ring, cqes, NSV_ARRAY_LEN(cqes))) > 0) {
		/* Copied first: a callback may submit, and a cancelled source may be freed. */
		struct io_uring_cqe copy[64];
		for (unsigned int i = 0; i < got; i++)
			copy[i] = *cqes[i];
		io_uring_cq_advance(&loop->ring, got);
		for (unsigned int i = 0; i < got; i++)
			handle(loop, &copy[i]);
		n += (int)got;
	}
	return n;
}
