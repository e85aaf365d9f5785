/* The daemon's one io_uring: everything that the io thread waits for. The only user of liburing.
 *
 * A source is one armed multishot operation on one descriptor (or a timer). It is the caller's
 * storage and must stay until its NSV_EV_GONE, which follows nsv_source_cancel once the kernel has
 * let go of it. A multishot that the kernel ends (completion-queue pressure, no buffers) is armed
 * again here: what came meanwhile waits in the descriptor, and completes at once.
 *
 * A listening socket is polled, and connections are taken by accept4. The ring's own accept waits
 * exclusively: of all who wait at a socket a connection wakes one, and that may be the ring of a
 * daemon that was killed, which the kernel takes apart in its own time. The connection would then
 * wait for the next one to come.
 *
 * The ring is created disabled and restricted to the operations used before it is enabled: seccomp
 * does not see what goes through a ring. One thread, the io thread, for everything. */
#ifndef NSV_DAEMON_LOOP_H
#define NSV_DAEMON_LOOP_H

#include "shm/base.h"

struct nsv_loop;

enum nsv_event {
	NSV_EV_FD,    /* accept: res is a descriptor, the callback's own */
	NSV_EV_DATA,  /* recv: res bytes of one packet at data, until the callback returns */
	NSV_EV_EOF,   /* recv: the other side has gone (or res < 0: an error) */
	NSV_EV_READY, /* poll: readable */
	NSV_EV_TIME,  /* timer */
	NSV_EV_ENDED, /* accept failed with res: it ends, and may be begun again */
	NSV_EV_GONE,  /* after cancel: the source may be freed */
};

struct nsv_source {
	void (*fn)(struct nsv_source *src, enum nsv_event event, int res, const void *data);
	int fd;
	uint8_t kind;
	bool armed;     /* the kernel holds it */
	bool cancelled;
	int64_t timer_ns[2]; /* the kernel's timespec while armed */
};

#define NSV_LOOP_BUF_LEN 128 /* longest packet that is received whole: a hello or a bell */

/* On refusal the sentence says which setting refuses io_uring. */
int nsv_loop_new(struct nsv_loop **ret_loop, struct nsv_err *err);
void nsv_loop_free(struct nsv_loop *loop);

/* Makes the socket non-blocking. */
void nsv_source_accept(struct nsv_loop *loop, struct nsv_source *src, int fd);
void nsv_source_recv(struct nsv_loop *loop, struct nsv_source *src, int fd);
void nsv_source_poll(struct nsv_loop *loop, struct nsv_source *src, int fd);
void nsv_source_timer(struct nsv_loop *loop, struct nsv_source *src, uint64_t after_ns);
/* Ends it; NSV_EV_GONE comes from a later turn, also for a source that is not armed. */
void nsv_source_cancel(struct nsv_loop *loop, struct nsv_source *src);

/* Submits, waits for at least one completion if `wait`, and calls back for what has come. Returns
 * the number of completions, or -errno. */
int nsv_loop_turn(struct nsv_loop *loop, bool wait);

#endif
