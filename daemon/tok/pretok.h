/* Pre-tokenizers: where a text is cut into words before the merges run inside each.
 *
 * Models define theirs by a regular expression; here each is a scanner over Unicode classes that
 * cuts at the same places, looks ahead only and never goes back. */
#ifndef NSV_DAEMON_TOK_PRETOK_H
#define NSV_DAEMON_TOK_PRETOK_H

#include "daemon/load/strmap.h"

struct nsv_pretok {
	const char *name; /* tokenizer.ggml.pre */
	/* The length of the word that the text begins with, at least one character. len > 0. */
	size_t (*next)(const struct nsv_pretok *pre, const char *text, size_t len);
	uint32_t n_digit;  /* digits of a word at most; 0: no limit */
	bool whole_words;  /* a word that is a token is not merged from its bytes */
	bool add_bos;      /* where the file does not say */
};

/* NULL: not a name that we know. */
const struct nsv_pretok *nsv_pretok_find(struct nsv_str name);

#endif
