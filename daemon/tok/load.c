/* A tokenizer from a model file. Nothing in the file is believed: tables must fit each other, ids
 * must be in the vocabulary, and a merge that names no tokens is no merge. */
#include <string.h>

#include "daemon/tok/tok-impl.h"
#include "daemon/tok/utf8.h"

struct source {
	const struct nsv_gguf *g;
	const struct nsv_str *tokens;
	size_t n;
	bool is_spm;
	struct nsv_err *err;
};

/* ---- Byte-level spelling: a printable character for each byte */

static bool is_printable(int32_t c)
{
	return (c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

/* The byte that a character spells, or -1. The bytes that are not printable are spelled by the
 * characters from 256 on, in order: 0 to 0x20, 0x7f to 0xa0, 0xad. */
static int unspell_char(int32_t c)
{
	if (is_printable(c))
		return c;
	if (c >= 256 && c <= 288)
		return c - 256;
	if (c >= 289 && c <= 322)
		return c - 289 + 0x7f;
	return c == 323 ? 0xad : -1;
}

/* Writes the bytes that a text spells, at most s.len; false: it spells none. */
static bool unspell(struct nsv_str s, char *out, size_t *ret_len)
{
	size_t n = 0, len;

	if (s.len == 0 || nsv_utf8_bad(s.p, s.len))
		return false;
	for (size_t i = 0; i < s.len; i += len) {
		int byte = unspell_char(nsv_utf8_decode(s.p + i, &len));

		if (byte < 0)
			return false;
		out[n++] = (char)byte;
	}
	*ret_len = n;
	return true;
}

/* ---- The vocabulary */

static int open_source(struct source *src)
{
	struct nsv_str model = {0};
	int e = nsv_gguf_str(src->g, "tokenizer.ggml.model", &model);

	if (e < 0)
		return nsv_fail(src->err, -EINVAL, "the file lacks tokenizer.ggml.model");
	src->is_spm = nsv_str_eq(model, "llama");
	if (!src->is_spm && !nsv_str_eq(model, "gpt2"))
		return nsv_fail(src->err, -ENOTSUP,
			"the tokenizer model \"%.*s\" is not supported, expected \"gpt2\" or "
			"\"llama\"",
			(int)nsv_min(model.len, 40), model.p);
	e = nsv_gguf_arr_str(src->g, "tokenizer.ggml.tokens", &src->tokens, &src->n);
	if (e < 0 || src->n == 0 || src->n > INT32_MAX)
		return nsv_fail(
			src->err, -EINVAL, "the file lacks a list in tokenizer.ggml.tokens");
	return 0;
}

static int find_pretok(const struct source *src, const struct nsv_pretok **ret)
{
	struct nsv_str name = {0};

	if (src->is_spm)
		return 0;
	if (nsv_gguf_str(src->g, "tokenizer.ggml.pre", &name) < 0)
		return nsv_fail(src->err, -EINVAL, "the file lacks tokenizer.ggml.pre");
	*ret = nsv_pretok_find(name);
	if (!*ret)
		return nsv_fail(src->err, -ENOTSUP, "the pre-tokenizer \"%.*s\" is not supported",
			(int)nsv_min(name.len, 40), name.p);
	return 0;
}

static int load_types(struct nsv_tok *tok, const struct source *src)
{
	const void *types = NULL;
	size_t n = 0;
	int e = nsv_gguf_arr_i32(src->g, "tokenizer.ggml.token_type", &types, &n);

	memset(tok->type, NSV_TOK_NORMAL, src->n);
	if (e == -ENOENT)
		return 0;
	if (e < 0 || n != src->n)
		return nsv_fail(src->err, -EINVAL,
			"tokenizer.ggml.token_type has %zu entries, expected one for each of %zu "
			"tokens",
			n, src->n);
	for (size_t i = 0; i < n; i++) {
		int32_t type;

		memcpy(&type, (const char *)types + i * sizeof(type), sizeof(type));
		if (type < NSV_TOK_NORMAL || type > NSV_TOK_BYTE)
			return nsv_fail(src->err, -EINVAL, "token %zu has type %d, expected 1 to 6",
				i, type);
		tok->type[i] = (uint8_t)type;
	}
	return 0;
}

static int load_scores(struct nsv_tok *tok, const struct source *src)
{
	const void *scores = NULL;
	size_t n = 0;
	bool space_prefix = true;

	if (nsv_gguf_arr_f32(src->g, "tokenizer.ggml.scores", &scores, &n) < 0 || n != src->n)
		return nsv_fail(src->err, -EINVAL,
			"tokenizer.ggml.scores has %zu entries, expected one for each of %zu "
			"tokens",
			n, src->n);
	if (nsv_gguf_bool(src->g, "tokenizer.ggml.add_space_prefix", &space_prefix) == -EPROTOTYPE)
		return nsv_fail(
			src->err, -EINVAL, "tokenizer.ggml.add_space_prefix is not a boolean");
	int e = nsv_spm_init(&tok->spm, scores, n);
	if (e < 0)
		return nsv_fail(src->err, e, "tokenizer.ggml.scores: %s",
			e == -EINVAL ? "a score is not a number" : "no memory");
	tok->spm.space_prefix = space_prefix;
	return 0;
}

static bool is_text(const struct nsv_tok *tok, int32_t id)
{
	return tok->type[id] == NSV_TOK_NORMAL || tok->type[id] == NSV_TOK_BYTE;
}

/* The bytes of a SentencePiece token; false: not one that text is joined to. */
static bool unspell_spm(
	struct nsv_tok *tok, int32_t id, struct nsv_str s, char *out, size_t *ret_len)
{
	int byte = tok->type[id] == NSV_TOK_BYTE ? nsv_spm_byte(s) : -1;

	*ret_len = 0;
	if (byte >= 0) {
		tok->spm.byte_id[byte] = id;
		out[0] = (char)byte;
		*ret_len = 1;
	} else if (tok->type[id] == NSV_TOK_NORMAL) {
		*ret_len = nsv_spm_unescape(s, out);
		tok->spm.max_len = nsv_max(tok->spm.max_len, *ret_len);
	}
	return tok->type[id] == NSV_TOK_NORMAL && s.len > 0;
}

/* A token that stands for text goes by the bytes that it spells; one that spells none, as every
 * special token, goes by its own, and text never becomes it by merging. */
static void load_token(struct nsv_tok *tok, int32_t id, struct nsv_str s)
{
	char *out = tok->bytes + tok->begin[id];
	size_t len = 0;
	bool spelled = tok->pre ? is_text(tok, id) && unspell(s, out, &len)
				: unspell_spm(tok, id, s, out, &len);

	if (!spelled && len == 0) {
		memcpy(out, s.p, s.len);
		len = s.len;
	}
	tok->begin[id + 1] = tok->begin[id] + (uint32_t)len;
	if (spelled)
		nsv_strmap_add(&tok->vocab, nsv_tok_str(tok, id), (uint32_t)id);
}

static int load_vocab(struct nsv_tok *tok, const struct source *src)
{
	size_t len = 0;

	for (size_t i = 0; i < src->n; i++)
		len += src->tokens[i].len; /* of strings in one file: no overflow */
	if (len > UINT32_MAX)
		return nsv_fail(src->err, -EOVERFLOW, "the vocabulary has %zu bytes", len);
	tok->bytes = malloc(len + 1);
	tok->begin = calloc(src->n + 1, sizeof(*tok->begin));
	tok->type = calloc(src->n, sizeof(*tok->type));
	tok->is_end = calloc(src->n, sizeof(*tok->is_end));
	if (!tok->bytes || !tok->begin || !tok->type || !tok->is_end ||
		nsv_strmap_init(&tok->vocab, src->n) < 0)
		return nsv_fail(src->err, -ENOMEM, "no memory for %zu tokens", src->n);
	tok->n_vocab = (int32_t)src->n;
	int e = load_types(tok, src);
	if (e == 0 && src->is_spm)
		e = load_scores(tok, src);
	for (int32_t id = 0; id < tok->n_vocab && e == 0; id++)
		load_token(tok, id, src->tokens[id]);
	return e;
}

/* ---- Merges */

static void load_bytes(struct nsv_tok *tok)
{
	for (int byte = 0; byte < 256; byte++) {
		char c = (char)byte;
		uint32_t id;

		if (nsv_strmap_get(&tok->vocab, (struct nsv_str){&c, 1}, &id))
			tok->bpe.byte_id[byte] = (int32_t)id;
	}
}

/* "left right": the ids of both and of what they become; false if one is not in the vocabulary. */
static bool find_merge(
	const struct nsv_tok *tok, struct nsv_str line, char *buf, struct nsv_bpe_merge *ret)
{
	const char *space = line.len > 1 ? memchr(line.p + 1, ' ', line.len - 1) : NULL;
	uint32_t left, right, id;
	size_t n = 0, m = 0;

	if (!space)
		return false;
	size_t left_len = (size_t)(space - line.p);
	if (!unspell((struct nsv_str){line.p, left_len}, buf, &n) ||
		!unspell((struct nsv_str){space + 1, line.len - left_len - 1}, buf + n, &m))
		return false;
	if (!nsv_strmap_get(&tok->vocab, (struct nsv_str){buf, n}, &left) ||
		!nsv_strmap_get(&tok->vocab, (struct nsv_str){buf + n, m}, &right) ||
		!nsv_strmap_get(&tok->vocab, (struct nsv_str){buf, n + m}, &id))
		return false;
	ret->left = (int32_t)left;
	ret->right = (int32_t)right;
	ret->id = (int32_t)id;
	return true;
}

static int load_merges(struct nsv_tok *tok, const struct source *src)
{
	const struct nsv_str *lines = NULL;
	nsv_autofree char *buf = NULL;
	size_t n = 0, longest = 0;

	if (src->is_spm)
		return 0;
	if (nsv_gguf_arr_str(src->g, "tokenizer.ggml.merges", &lines, &n) < 0 || n >= UINT32_MAX)
		return nsv_fail(
			src->err, -EINVAL, "the file lacks a list in tokenizer.ggml.merges");
	for (size_t i = 0; i < n; i++)
		longest = nsv_max(longest, lines[i].len);
	buf = malloc(longest + 1);
	if (!buf || nsv_bpe_init(&tok->bpe, n) < 0)
		return nsv_fail(src->err, -ENOMEM, "no memory for %zu merges", n);
	load_bytes(tok);
	for (size_t i = 0; i < n; i++) {
		struct nsv_bpe_merge merge = {.rank = (uint32_t)i};

		if (find_merge(tok, lines[i], buf, &merge))
			nsv_bpe_add(&tok->bpe, &merge);
	}
	return 0;
}

/* ---- Special tokens */

/* Is it looked for in texts? A spelling that is no whole characters would match inside one and
 * leave halves to those who expect whole ones; a text, being UTF-8, never has it between two. */
static bool is_special(const struct nsv_tok *tok, int32_t id)
{
	struct nsv_str s = nsv_tok_str(tok, id);

	return (tok->type[id] == NSV_TOK_CONTROL || tok->type[id] == NSV_TOK_USER) &&
	       nsv_utf8_bad(s.p, s.len) == 0;
}

static int load_special(struct nsv_tok *tok, struct nsv_err *err)
{
	size_t len = 0;

	for (int32_t id = 0; id < tok->n_vocab; id++) {
		struct nsv_str s = nsv_tok_str(tok, id);

		if (!is_special(tok, id))
			continue;
		if (s.len > NSV_SPECIAL_MAX_LEN)
			return nsv_fail(err, -EINVAL,
				"the special token %d has %zu bytes, expected at most %d", id,
				s.len, NSV_SPECIAL_MAX_LEN);
		len += s.len;
	}
	if (nsv_special_init(&tok->special, len) < 0)
		return nsv_fail(err, -ENOMEM, "no memory for the special tokens");
	for (int32_t id = 0; id < tok->n_vocab; id++) {
		struct nsv_str s = nsv_tok_str(tok, id);

		if (is_special(tok, id) && s.len > 0)
			nsv_special_add(&tok->special, s, id, tok->type[id] == NSV_TOK_CONTROL);
	}
	return 0;
}

/* ---- Begin and end */

/* The token that a key names; untouched if there is no such key. */
static int load_id(const struct source *src, const char *key, int32_t *ret_id)
{
	uint32_t id;
	int e = nsv_gguf_u32(src->g, key, &id);

	if (e == -ENOENT)
		return 0;
	if (e < 0 || id >= src->n)
		return nsv_fail(src->err, -EINVAL, "%s is not a token's id, expected 0 to %zu", key,
			src->n - 1);
	*ret_id = (int32_t)id;
	return 0;
}

static int load_begin(struct nsv_tok *tok, const struct source *src)
{
	tok->bos = -1;
	tok->add_bos = tok->pre ? tok->pre->add_bos : true;
	int e = load_id(src, "tokenizer.ggml.bos_token_id", &tok->bos);
	if (e < 0)
		return e;
	if (nsv_gguf_bool(src->g, "tokenizer.ggml.add_bos_token", &tok->add_bos) == -EPROTOTYPE)
		return nsv_fail(
			src->err, -EINVAL, "tokenizer.ggml.add_bos_token is not a boolean");
	if (tok->add_bos && tok->bos < 0)
		return nsv_fail(
			src->err, -EINVAL, "the file wants a begin token but lacks bos_token_id");
	return 0;
}

/* Control tokens that end a turn or a text in the models that have them. */
static bool is_end_name(struct nsv_str s)
{
	static const char *const names[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>",
		"<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>", "<eos>",
		"<|end_of_turn|>", "<end_of_utterance>", "<|return|>", "<|call|>"};

	for (size_t i = 0; i < NSV_ARRAY_LEN(names); i++)
		if (nsv_str_eq(s, names[i]))
			return true;
	return false;
}

static int load_ends(struct nsv_tok *tok, const struct source *src)
{
	static const char *const keys[] = {"tokenizer.ggml.eos_token_id",
		"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};

	for (size_t i = 0; i < NSV_ARRAY_LEN(keys); i++) {
		int32_t id = -1;
		int e = load_id(src, keys[i], &id);

		if (e < 0)
			return e;
		if (id >= 0)
			tok->is_end[id] = true;
	}
	for (int32_t id = 0; id < tok->n_vocab; id++)
		if (tok->type[id] == NSV_TOK_CONTROL && is_end_name(nsv_tok_str(tok, id)))
			tok->is_end[id] = true;
	return 0;
}

static int load_chat(struct nsv_tok *tok, const struct source *src)
{
	struct nsv_str template = {0};

	if (nsv_gguf_str(src->g, "tokenizer.chat_template", &template) < 0)
		return 0;
	if (nsv_tok_chat_init(tok, template) < 0)
		return nsv_fail(src->err, -ENOMEM, "no memory for the chat format");
	return 0;
}

/* ---- All of it */

static int load(struct nsv_tok *tok, struct source *src)
{
	int e = open_source(src);

	if (e == 0)
		e = find_pretok(src, &tok->pre);
	if (e == 0)
		e = load_vocab(tok, src);
	if (e == 0)
		e = load_merges(tok, src);
	if (e == 0)
		e = load_special(tok, src->err);
	if (e == 0)
		e = load_begin(tok, src);
	if (e == 0)
		e = load_ends(tok, src);
	return e < 0 ? e : load_chat(tok, src);
}

int nsv_tok_new(const struct nsv_gguf *g, struct nsv_tok **ret_tok, struct nsv_err *err)
{
	struct source src = {.g = g, .err = err};
	struct nsv_tok *tok = calloc(1, sizeof(*tok));

	if (!tok)
		return nsv_fail(err, -ENOMEM, "no memory for the tokenizer");
	int e = load(tok, &src);
	if (e < 0)
		nsv_tok_free(tok);
	else
		*ret_tok = tok;
	return e;
}

void nsv_tok_free(struct nsv_tok *tok)
{
	if (!tok)
		return;
	free(tok->bytes);
	free(tok->begin);
	free(tok->type);
	free(tok->is_end);
	free(tok->chat_system);
	nsv_strmap_deinit(&tok->vocab);
	nsv_bpe_deinit(&tok->bpe);
	nsv_spm_deinit(&tok->spm);
	nsv_special_deinit(&tok->special);
	free(tok);
}
