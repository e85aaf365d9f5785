/* Unicode normalisation form C, for the models whose text was brought to it. */
#ifndef NSV_DAEMON_TOK_NFC_H
#define NSV_DAEMON_TOK_NFC_H

#include "shm/base.h"

/* Combining marks in a row: ordering them takes time that grows with the square of their number. */
#define NSV_NFC_MAX_MARKS 1024

/* Of well-formed text. *ret_text is of malloc, or NULL where the text is plain ASCII and stays as it
 * is. -ENOTSUP: too many marks in a row; -ENOMEM. */
int nsv_nfc(const char *text, size_t len, char **ret_text, size_t *ret_len, struct nsv_err *err);

#endif
