/* The daemon's log: one line an event on standard error, with the priority prefix that the journal
 * reads when systemd collects it. Any thread. Only the daemon logs; libraries return errors. */
#ifndef NSV_DAEMON_LOG_H
#define NSV_DAEMON_LOG_H

#include "shm/base.h"

enum nsv_log_level { NSV_LOG_ERROR = 3, NSV_LOG_WARNING = 4, NSV_LOG_INFO = 6, NSV_LOG_DEBUG = 7 };

/* Lines above `max` are dropped. `prefix`: write "<N>" first. Before any thread is started. */
void nsv_log_setup(enum nsv_log_level max, bool prefix);
__attribute__((format(printf, 2, 3))) void nsv_log(enum nsv_log_level level, const char *fmt, ...);

/* A limit to lines that somebody can cause at will: some at once, then one a second. */
struct nsv_log_limit {
	uint64_t paid_ns;  /* what was said is paid for at this time */
	uint32_t n_unsaid; /* lines that the limit kept back since the last that it let through */
};

/* May a line be said now? If so, *ret_unsaid is how many were kept back before it. */
bool nsv_log_may(struct nsv_log_limit *limit, uint64_t now_ns, uint32_t *ret_unsaid);
/* How many were kept back, once a line may be said again: to be told, though no other follows. */
uint32_t nsv_log_unsaid(struct nsv_log_limit *limit, uint64_t now_ns);

#define nsv_error(...) nsv_log(NSV_LOG_ERROR, __VA_ARGS__)
#define nsv_warning(...) nsv_log(NSV_LOG_WARNING, __VA_ARGS__)
#define nsv_info(...) nsv_log(NSV_LOG_INFO, __VA_ARGS__)
#define nsv_debug(...) nsv_log(NSV_LOG_DEBUG, __VA_ARGS__)

#endif
