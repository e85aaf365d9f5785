/* Byte-pair merges: a word's bytes become tokens, two neighbours at a time, the merge of the lowest
 * rank first and of equal ones the leftmost.
 *
 * A short word is merged by looking at all its pairs each time; a long one with a linked list and a
 * heap: O(n log n) whatever the word. Merges are found by the pair of ids, in a table hashed with a
 * random secret. Immutable once all merges are added; any thread may read it. */
#ifndef NSV_DAEMON_TOK_BPE_H
#define NSV_DAEMON_TOK_BPE_H

#include "daemon/tok/tok.h"

struct nsv_bpe_merge {
	int32_t left, right; /* left < 0: a free slot */
	uint32_t rank;
	int32_t id; /* what they become */
};

struct nsv_bpe {
	int32_t byte_id[256]; /* -1: no token for this byte */
	struct nsv_bpe_merge *merge;
	size_t mask;
	uint64_t secret;
};

/* Room for n_merge merges; no bytes are known yet. -ENOMEM, or what getrandom says. */
int nsv_bpe_init(struct nsv_bpe *bpe, size_t n_merge);
void nsv_bpe_deinit(struct nsv_bpe *bpe); /* of a zeroed one too */
/* Of a pair that is added twice the first counts. */
void nsv_bpe_add(struct nsv_bpe *bpe, const struct nsv_bpe_merge *merge);
/* Appends the ids of a word of at most INT32_MAX bytes; all of them have tokens. -ENOMEM. */
int nsv_bpe_word(const struct nsv_bpe *bpe, const char *word, size_t len, struct nsv_ids *ids);

#endif
