/* What the service manager is told and hands over: the only user of libsystemd. Without a manager
 * every function does nothing and succeeds. */
#ifndef NSV_DAEMON_NOTIFY_H
#define NSV_DAEMON_NOTIFY_H

#include "shm/base.h"

bool nsv_notify_managed(void); /* standard error goes to the journal */
void nsv_notify_ready(const char *status); /* one line, for people */
void nsv_notify_stopping(void);
/* Half of the watchdog's interval in nanoseconds, 0: none is asked for. */
uint64_t nsv_notify_watchdog_ns(void);
void nsv_notify_watchdog(void);
/* The one listening SOCK_SEQPACKET socket that was passed: 0 and *ret_fd; -ENOENT: none; -EINVAL:
 * something else was passed. */
int nsv_notify_listen_fd(int *ret_fd, struct nsv_err *err);

#endif
