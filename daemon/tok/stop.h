/* Stop strings over a stream of text: found wherever tokens split them, never leaked, and nothing
 * is held back longer than a proper prefix of one.
 *
 * One owner thread. Holds at most NSV_MAX_STOP_LEN - 1 bytes. Per byte: O(stop strings). */
#ifndef NSV_DAEMON_TOK_STOP_H
#define NSV_DAEMON_TOK_STOP_H

#include "shm/abi.h"
#include "shm/base.h"

struct nsv_stop {
	uint32_t n;
	struct {
		uint16_t len;
		uint16_t matched;           /* longest prefix that is a suffix of the text so far */
		uint16_t fail[NSV_MAX_STOP_LEN]; /* Knuth-Morris-Pratt */
		char text[NSV_MAX_STOP_LEN];
	} s[NSV_MAX_STOP];
	uint32_t n_held;
	char held[NSV_MAX_STOP_LEN];
};

void nsv_stop_init(struct nsv_stop *st);
/* -EINVAL: empty or longer than NSV_MAX_STOP_LEN - 1; -ENOSPC: NSV_MAX_STOP are set. */
int nsv_stop_add(struct nsv_stop *st, const char *text, size_t len);
/* Feeds text; writes what is decided to out (room for len + NSV_MAX_STOP_LEN, no part of text) and
 * its length to *ret_len. 0: go on; 1: stop string *ret_which is complete (the earliest to end; of
 * those the longest): out has what came before it and the stream is over. */
int nsv_stop_feed(struct nsv_stop *st, const char *text, size_t len, char *out, size_t *ret_len,
	uint32_t *ret_which);
/* The end of the stream: what was held is text after all. */
size_t nsv_stop_end(struct nsv_stop *st, char *out);

#endif
