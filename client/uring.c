/* A client in the caller's io_uring. The kernel's own layout of an entry is all that it takes: the
 * library is linked with no ring library, and the caller's may be any. */
#include "client/session.h"

#include <linux/io_uring.h>
#include <poll.h>

void nsv_client_prep_poll(
	const struct nsv_client *c, struct io_uring_sqe *sqe, uint64_t user_data)
{
	*sqe = (struct io_uring_sqe){
		.opcode = IORING_OP_POLL_ADD,
		.fd = c->fd,
		.len = IORING_POLL_ADD_MULTI,
		.poll32_events = POLLIN,
		.user_data = user_data,
	};
}
