/* Special tokens in a text: a trie over their spellings. Each is at most NSV_SPECIAL_MAX_LEN bytes
 * long, which bounds the work at each place of a text. Immutable once all are added. */
#ifndef NSV_DAEMON_TOK_SPECIAL_H
#define NSV_DAEMON_TOK_SPECIAL_H

#include "daemon/load/strmap.h"

#define NSV_SPECIAL_MAX_LEN 256

struct nsv_special_node {
	uint32_t child, sibling; /* 0: none */
	int32_t id;              /* of the token that ends here, else -1 */
	unsigned char byte;
	bool control;
};

struct nsv_special {
	struct nsv_special_node *node; /* node 0 is unused */
	uint32_t n;
	uint32_t root[256]; /* by first byte */
};

/* Room for tokens of `len` bytes in all. -ENOMEM. */
int nsv_special_init(struct nsv_special *s, size_t len);
void nsv_special_deinit(struct nsv_special *s); /* of a zeroed one too */
/* text.len > 0. Of two with one spelling the first counts. */
void nsv_special_add(struct nsv_special *s, struct nsv_str text, int32_t id, bool control);
/* The length of the longest token that the text begins with, 0 if none; control tokens only among
 * the first control_len bytes. */
size_t nsv_special_match(const struct nsv_special *s, const char *text, size_t len,
	size_t control_len, int32_t *ret_id);

#endif
