/* SentencePiece vocabularies with scores ("llama" in GGUF files): a text's characters are joined,
 * two neighbours at a time, wherever the result is a token, the one of the highest score first and
 * of equal ones the leftmost. What is no token in the end is spelled by tokens of single bytes.
 *
 * There are no words: a whole text is joined at once, with a list and a heap, in O(n log n).
 * Immutable once loaded; any thread may use it. */
#ifndef NSV_DAEMON_TOK_SPM_H
#define NSV_DAEMON_TOK_SPM_H

#include "daemon/tok/tok.h"

struct nsv_spm {
	uint32_t *rank;       /* of each token: the higher its score, the lower */
	int32_t byte_id[256]; /* -1: none */
	size_t max_len;       /* of a token's bytes */
	bool space_prefix;    /* a space is put before a text and after each special token */
};

/* -EINVAL: a score is no number; -ENOMEM. scores: n floats, unaligned. */
int nsv_spm_init(struct nsv_spm *spm, const void *scores, size_t n);
void nsv_spm_deinit(struct nsv_spm *spm); /* of a zeroed one too */

/* The file's spelling of text and bytes; both write at most s.len bytes. A space is U+2581. */
size_t nsv_spm_unescape(struct nsv_str s, char *out);
/* "<0x0A>": the byte, else -1. */
int nsv_spm_byte(struct nsv_str s);

/* Appends the ids of a stretch of well-formed text without special tokens. vocab maps the bytes of
 * the tokens to ids. -ENOTSUP: a byte has no token; -ENOMEM. */
int nsv_spm_text(const struct nsv_spm *spm, const struct nsv_strmap *vocab, const char *text,
	size_t len, struct nsv_ids *ids, struct nsv_err *err);

#endif
