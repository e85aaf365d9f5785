/* What the service manager is told and hands over: the only user of libsystemd. Without a manager
 * ($NOTIFY_SOCKET) every function does nothing and succeeds.
 *
 * The manager's store keeps descriptors that outlive the process. A few with short names, never
 * thousands: it compares each new one with all, and names travel in one environment variable. Sends
 * are datagrams to the manager: few, and none waits for an answer. */
#ifndef NSV_DAEMON_NOTIFY_H
#define NSV_DAEMON_NOTIFY_H

#include "shm/base.h"

bool nsv_notify_managed(void); /* standard error goes to the journal */
void nsv_notify_ready(const char *status); /* one line, for people */
void nsv_notify_stopping(void);
/* A quarter of the watchdog's interval in nanoseconds, 0: none is asked for. */
uint64_t nsv_notify_watchdog_ns(void);
void nsv_notify_watchdog(void);

/* ---- Descriptors that the manager passed at start */

struct nsv_passed {
	uint32_t n;
	int *fds;     /* (n) -1: taken */
	char **names; /* (n) */
};

/* Takes all of them, each close-on-exec. 0 or -errno. */
int nsv_passed_init(struct nsv_passed *p);
/* Has the store forget what nobody took: once the daemon serves. One that fails to start leaves all
 * of it to the next. */
void nsv_passed_forget(struct nsv_passed *p);
void nsv_passed_deinit(struct nsv_passed *p); /* closes what nobody took; zeroed is fine */
/* The first one of that name, now the caller's; -1: there is none. */
int nsv_passed_take(struct nsv_passed *p, const char *name);
/* The one listening SOCK_SEQPACKET socket, whatever its name: 0 and *ret_fd; -ENOENT: none;
 * -EINVAL: another listening socket, or a second one. */
int nsv_passed_take_listener(struct nsv_passed *p, int *ret_fd, struct nsv_err *err);

/* ---- The manager's store */

bool nsv_notify_can_store(void);
/* Stores the descriptors (borrowed, at most 8) under a name. 0 or -errno; that it was done is
 * known by a barrier only. */
int nsv_notify_store(const char *name, const int *fds, uint32_t n);
/* Everything of that name. */
int nsv_notify_forget(const char *name);
/* A pipe's end that hangs up when all that was sent before has been done: to be polled, and closed
 * by the caller. */
int nsv_notify_barrier(int *ret_fd);

#endif
