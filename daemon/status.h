/* The daemon's state as a JSON text: the model, what runs, counters; of sessions the asker's own,
 * all of them for root and the daemon's own user. */
#ifndef NSV_DAEMON_STATUS_H
#define NSV_DAEMON_STATUS_H

#include "daemon/session.h"

/* *ret_text is the caller's to free. -ENOMEM. */
int nsv_status_text(const struct nsv_session *asker, char **ret_text, size_t *ret_len);

#endif
