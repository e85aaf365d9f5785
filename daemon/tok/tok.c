/* Encoding: special tokens are cut out first, leftmost and longest; what lies between them is cut
 * into words, and each word is merged. */
#include <string.h>

#include "daemon/tok/tok-impl.h"

#define MAX_TEXT_LEN INT32_MAX

/* ---- Lists of ids */

int nsv_ids_push(struct nsv_ids *ids, int32_t id)
{
	if (ids->n == ids->cap) {
		size_t cap = ids->cap ? 2 * ids->cap : 64;
		int32_t *v = reallocarray(ids->v, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		ids->v = v;
		ids->cap = cap;
	}
	ids->v[ids->n++] = id;
	return 0;
}

void nsv_ids_deinit(struct nsv_ids *ids)
{
	free(ids->v);
	*ids = (struct nsv_ids){0};
}

/* ---- Encoding */

struct encoder {
	const struct nsv_tok *tok;
	const char *text;
	struct nsv_ids *ids;
	struct nsv_err *err;
};

/* A model may lack tokens for bytes that it never saw. To leave them out would change the text. */
static int check_bytes(const struct encoder *e, size_t begin, size_t end)
{
	for (size_t i = begin; i < end; i++)
		if (e->tok->bpe.byte_id[(unsigned char)e->text[i]] < 0)
			return nsv_fail(e->err, -ENOTSUP,
				"the model has no token for the byte 0x%02x at offset %zu of the "
				"text",
				(unsigned char)e->text[i], i);
	return 0;
}

static int encode_word(const struct encoder *e, const char *word, size_t len)
{
	uint32_t id;

	if (e->tok->pre->whole_words &&
		nsv_strmap_get(&e->tok->vocab, (struct nsv_str){word, len}, &id))
		return nsv_ids_push(e->ids, (int32_t)id);
	return nsv_bpe_word(&e->tok->bpe, word, len, e->ids);
}

/* A stretch without special tokens. */
static int encode_plain(const struct encoder *e, size_t begin, size_t end)
{
	const struct nsv_pretok *pre = e->tok->pre;

	if (!pre)
		return nsv_spm_text(
			&e->tok->spm, &e->tok->vocab, e->text + begin, end - begin, e->ids, e->err);
	int ret = check_bytes(e, begin, end);
	while (begin < end && ret == 0) {
		size_t len = pre->next(pre, e->text + begin, end - begin);

		ret = encode_word(e, e->text + begin, len);
		begin += len;
	}
	return ret;
}

static int encode_all(const struct encoder *e, const struct nsv_span *spans, size_t n_span)
{
	size_t len = n_span ? spans[n_span - 1].end : 0, plain = 0, i = 0;
	int32_t id = 0;

	while (i < len) {
		while (i >= spans->end)
			spans++;
		size_t n = nsv_special_match(&e->tok->special, e->text + i, len - i,
			spans->control ? spans->end - i : 0, &id);
		if (n == 0) {
			i++;
			continue;
		}
		int ret = encode_plain(e, plain, i);
		if (ret == 0)
			ret = nsv_ids_push(e->ids, id);
		if (ret < 0)
			return ret;
		i += n;
		plain = i;
	}
	return encode_plain(e, plain, len);
}

/* The begin token is put first here and nowhere else, and not before one that the text has. */
static int put_bos(const struct nsv_tok *tok, struct nsv_ids *ids, size_t first)
{
	if (ids->n > first && ids->v[first] == tok->bos)
		return 0;
	int ret = nsv_ids_push(ids, 0);
	if (ret < 0)
		return ret;
	memmove(ids->v + first + 1, ids->v + first, (ids->n - 1 - first) * sizeof(*ids->v));
	ids->v[first] = tok->bos;
	return 0;
}

int nsv_tok_encode_spans(const struct nsv_tok *tok, const char *text, const struct nsv_span *spans,
	size_t n_span, bool no_bos, struct nsv_ids *ids, struct nsv_err *err)
{
	struct encoder e = {.tok = tok, .text = text, .ids = ids, .err = err};
	size_t first = ids->n;
	int ret = encode_all(&e, spans, n_span);

	if (ret == 0 && tok->add_bos && !no_bos)
		ret = put_bos(tok, ids, first);
	if (ret < 0)
		ids->n = first;
	return ret == -ENOMEM ? nsv_fail(err, ret, "no memory to encode the text") : ret;
}

int nsv_tok_encode(const struct nsv_tok *tok, const char *text, size_t len, unsigned int flags,
	struct nsv_ids *ids, struct nsv_err *err)
{
	struct nsv_span span = {.end = len, .control = flags & NSV_TOK_SPECIAL};

	if (len > MAX_TEXT_LEN)
		return nsv_fail(err, -E2BIG, "the text has %zu bytes, at most %d are possible", len,
			MAX_TEXT_LEN);
	size_t bad = nsv_utf8_bad(text, len);
	if (bad)
		return nsv_fail(err, -EILSEQ, "the text is not UTF-8 at byte %zu", bad - 1);
	return nsv_tok_encode_spans(tok, text, &span, 1, flags & NSV_TOK_NO_BOS, ids, err);
}

/* ---- Single tokens */

int32_t nsv_tok_n_vocab(const struct nsv_tok *tok)
{
	return tok->n_vocab;
}

static bool is_token(const struct nsv_tok *tok, int32_t id)
{
	return id >= 0 && id < tok->n_vocab;
}

/* Placeholders are no more text than control tokens are. */
static bool is_hidden(uint8_t type)
{
	return type == NSV_TOK_UNKNOWN || type == NSV_TOK_CONTROL || type == NSV_TOK_UNUSED;
}

int nsv_tok_piece(
	const struct nsv_tok *tok, int32_t id, bool special, const char **ret_p, size_t *ret_len)
{
	if (!is_token(tok, id))
		return -ERANGE;
	struct nsv_str s = nsv_tok_str(tok, id);
	*ret_p = s.p;
	*ret_len = is_hidden(tok->type[id]) && !special ? 0 : s.len;
	return 0;
}

bool nsv_tok_is_end(const struct nsv_tok *tok, int32_t id)
{
	return is_token(tok, id) && tok->is_end[id];
}
