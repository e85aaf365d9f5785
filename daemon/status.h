/* The daemon's state as a JSON text: the model, what runs, counters; of sessions the asker's own,
 * all of them for root and the daemon's own user. */
#ifndef NSV_DAEMON_STATUS_H
#define NSV_DAEMON_STATUS_H

#include "daemon/session.h"

#define NSV_STATUS_PIECE 8192 /* bytes of text: some fifty sessions */

struct nsv_status; /* what has not been written yet, as it was when it was asked for */

/* Begins it: *ret_text is the first piece, the caller's to free, with room for any other; *ret_rest
 * the rest, to be freed by free(). -ENOMEM. */
int nsv_status_begin(const struct nsv_session *asker, char **ret_text, size_t *ret_len,
	struct nsv_status **ret_rest);
/* Writes the next piece into text: its length, 0: that was all. */
size_t nsv_status_next(struct nsv_status *rest, char *text);
/* Bytes that the rest takes. */
size_t nsv_status_size(const struct nsv_status *rest);

#endif
