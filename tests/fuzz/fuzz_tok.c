/* Two kinds of hostile input: a model file's tables, and a text. The first byte says which.
 *
 * Text goes through the tokenizer of a tiny model, and the ids through its pieces back: they must
 * be the text again. */
#include <stdlib.h>
#include <string.h>

#include "daemon/tok/tok.h"
#include "shm/abi.h"
#include "tests/tools/gguf_write.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static struct nsv_tok *tiny_tok(void)
{
	static struct nsv_tok *tok; /* it is immutable: one serves all */
	struct nsv_gguf_writer w;
	struct nsv_gguf *g;
	size_t len;

	if (tok)
		return tok;
	nsv_gguf_writer_init(&w, 1);
	nsv_gguf_put_tiny_vocab(&w);
	uint8_t *p = nsv_gguf_finish(&w, &len);
	if (nsv_gguf_parse(p, len, &g, NULL) < 0 || nsv_tok_new(g, &tok, NULL) < 0)
		abort();
	nsv_gguf_close(g);
	free(p);
	return tok;
}

static void check_round_trip(
	const struct nsv_tok *tok, const struct nsv_ids *ids, const char *text, size_t len)
{
	size_t at = 0, n;
	const char *p;

	for (size_t i = 0; i < ids->n; i++) {
		if (nsv_tok_piece(tok, ids->v[i], true, &p, &n) < 0 || n > len - at ||
			memcmp(text + at, p, n) != 0)
			abort();
		at += n;
	}
	if (at != len)
		abort();
}

static void fuzz_text(const char *text, size_t len, unsigned int flags)
{
	const struct nsv_tok *tok = tiny_tok();
	const struct nsv_chat_msg msgs[] = {
		{NSV_ROLE_USER, text, len / 2}, {NSV_ROLE_ASSISTANT, text, len}};
	struct nsv_ids ids = {0};
	int ret = nsv_tok_encode(tok, text, len, flags, &ids, NULL);

	if ((ret == 0) != (nsv_utf8_bad(text, len) == 0))
		abort();
	if (ret == 0)
		check_round_trip(tok, &ids, text, len);
	nsv_tok_chat(tok, msgs, 2, flags, &ids, NULL);
	nsv_ids_deinit(&ids);
}

static void fuzz_tables(const uint8_t *data, size_t len)
{
	static const char text[] = "ab\n  12 it's <|im_end|> caf\xc3\xa9 aaaa";
	const struct nsv_chat_msg msg = {NSV_ROLE_USER, text, sizeof(text) - 1};
	struct nsv_gguf *g = NULL;
	struct nsv_tok *tok = NULL;
	struct nsv_ids ids = {0};
	const char *p;
	size_t n;

	if (nsv_gguf_parse(data, len, &g, NULL) < 0)
		return;
	if (nsv_tok_new(g, &tok, NULL) == 0) {
		nsv_tok_encode(tok, text, sizeof(text) - 1, NSV_TOK_SPECIAL, &ids, NULL);
		nsv_tok_chat(tok, &msg, 1, 0, &ids, NULL);
		for (size_t i = 0; i < ids.n; i++)
			if (nsv_tok_piece(tok, ids.v[i], true, &p, &n) < 0)
				abort();
	}
	nsv_ids_deinit(&ids);
	nsv_tok_free(tok);
	nsv_gguf_close(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	if (len == 0)
		return 0;
	if (data[0] & 1) {
		fuzz_text((const char *)data + 1, len - 1,
			data[0] & 2 ? NSV_TOK_SPECIAL : NSV_TOK_NO_BOS);
		return 0;
	}
	uint8_t *file = malloc(len); /* aligned, as a mapped file is */
	if (!file)
		return 0;
	memcpy(file, data + 1, len - 1);
	fuzz_tables(file, len - 1);
	free(file);
	return 0;
}
