/* Text to token ids and back, for one model: byte-level BPE or SentencePiece, special tokens, chat
 * formats.
 *
 * A tokenizer is immutable after nsv_tok_new: any thread may use it. It keeps nothing of the file.
 * No input makes it recurse; encoding n bytes is O(n log n). */
#ifndef NSV_DAEMON_TOK_TOK_H
#define NSV_DAEMON_TOK_TOK_H

#include "daemon/load/gguf.h"

struct nsv_tok;

/* A growable list of ids. Zero-initialise; free with nsv_ids_deinit. */
struct nsv_ids {
	int32_t *v;
	size_t n, cap;
};
int nsv_ids_push(struct nsv_ids *ids, int32_t id);
void nsv_ids_deinit(struct nsv_ids *ids);

enum nsv_tok_flag {
	NSV_TOK_SPECIAL = 1, /* control tokens written in the text become their ids */
	NSV_TOK_NO_BOS = 2,  /* never put the begin token first; else the model's rule decides */
};

/* Refuses an unknown tokenizer model or pre-tokenizer by name, and inconsistent tables. */
int nsv_tok_new(const struct nsv_gguf *g, struct nsv_tok **ret_tok, struct nsv_err *err);
void nsv_tok_free(struct nsv_tok *tok);
int32_t nsv_tok_n_vocab(const struct nsv_tok *tok);

/* Appends the ids of `text`; on failure none. -EILSEQ: not UTF-8 (the sentence has the byte
 * offset); -ENOTSUP: a byte that the model has no token for (the sentence has it); -E2BIG;
 * -ENOMEM. */
int nsv_tok_encode(const struct nsv_tok *tok, const char *text, size_t len, unsigned int flags,
	struct nsv_ids *ids, struct nsv_err *err);

/* The bytes that a token stands for; control tokens give none unless `special`. -ERANGE: no such
 * id. Borrowed from the tokenizer. */
int nsv_tok_piece(
	const struct nsv_tok *tok, int32_t id, bool special, const char **ret_p, size_t *ret_len);
bool nsv_tok_is_end(const struct nsv_tok *tok, int32_t id); /* ends a generation */

/* Chat: the model's own format, recognised in its template text from a table; never executed. */
struct nsv_chat_msg {
	uint32_t role; /* enum nsv_role of shm/abi.h */
	const char *text;
	size_t len;
};
/* "chatml", ..., or NULL: the model has no known chat format. */
const char *nsv_tok_chat_name(const struct nsv_tok *tok);
/* Appends the ids of a conversation and of the opening of the assistant's turn. The markers are
 * control tokens; the messages' text never is (unless flags has NSV_TOK_SPECIAL). -ENOTSUP: no
 * known format; -EINVAL: no such role, or not in the order that the format wants; and as
 * nsv_tok_encode. */
int nsv_tok_chat(const struct nsv_tok *tok, const struct nsv_chat_msg *msgs, size_t n_msg,
	unsigned int flags, struct nsv_ids *ids, struct nsv_err *err);

/* 0, or the offset + 1 of the first byte that is not well-formed UTF-8. */
size_t nsv_utf8_bad(const char *text, size_t len);

/* Bytes to text as they come: gives out whole characters only. A byte that can begin or go on no
 * character comes out as U+FFFD, as does, whole, the unfinished beginning of one; at most 3 bytes
 * are held. */
struct nsv_detok {
	unsigned char held[4];
	uint8_t n_held;
};
/* Appends to out, which has room for 3 * (len + 4) bytes; returns the bytes written. */
size_t nsv_detok_feed(struct nsv_detok *d, const char *p, size_t len, char *out);
size_t nsv_detok_end(struct nsv_detok *d, char *out); /* at most 9 bytes */

#endif
