/* What the files of a tokenizer share. */
#ifndef NSV_DAEMON_TOK_TOK_IMPL_H
#define NSV_DAEMON_TOK_TOK_IMPL_H

#include "daemon/tok/bpe.h"
#include "daemon/tok/pretok.h"
#include "daemon/tok/special.h"
#include "daemon/tok/spm.h"
#include "daemon/tok/tok.h"

/* As tokenizer.ggml.token_type numbers them. */
enum nsv_tok_type {
	NSV_TOK_NORMAL = 1,
	NSV_TOK_UNKNOWN = 2,
	NSV_TOK_CONTROL = 3,
	NSV_TOK_USER = 4, /* recognised in any text */
	NSV_TOK_UNUSED = 5,
	NSV_TOK_BYTE = 6,
};

struct nsv_tok {
	int32_t n_vocab;
	char *bytes;     /* of all tokens, one after the other */
	uint32_t *begin; /* n_vocab + 1 offsets into bytes */
	uint8_t *type;   /* enum nsv_tok_type */
	bool *is_end;
	const struct nsv_pretok *pre; /* NULL: no words, spm instead of bpe */
	struct nsv_strmap vocab; /* by bytes: what text may become */
	struct nsv_bpe bpe;
	struct nsv_spm spm;
	struct nsv_special special;
	int32_t bos; /* -1: none */
	bool add_bos;
	const struct nsv_chat_format *chat; /* NULL: none */
	char *chat_system; /* what the template says where no system message is given; or NULL */
	size_t chat_system_len;
};

static inline struct nsv_str nsv_tok_str(const struct nsv_tok *tok, int32_t id)
{
	return (struct nsv_str){tok->bytes + tok->begin[id], tok->begin[id + 1] - tok->begin[id]};
}

/* A text whose stretches differ in whether control tokens may be written in them. */
struct nsv_span {
	size_t end;
	bool control;
};

/* Appends the ids of well-formed text, as nsv_tok_encode does. The spans follow each other and the
 * last ends with the text. */
int nsv_tok_encode_spans(const struct nsv_tok *tok, const char *text, const struct nsv_span *spans,
	size_t n_span, bool no_bos, struct nsv_ids *ids, struct nsv_err *err);

/* Recognises the chat format of a template. -ENOMEM. */
int nsv_tok_chat_init(struct nsv_tok *tok, struct nsv_str template);

#endif
