/* Tokenizers of tiny models: special tokens, the begin token, chat, and tables that do not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/tok/tok.h"
#include "shm/abi.h"
#include "tests/unit/tok/tok_model.h"

#define B(c) (NSV_TINY_FIRST_BYTE + (c)) /* the token of a byte */
#define MERGED (NSV_TINY_FIRST_BYTE + 256)

static struct model tiny_model(void)
{
	struct nsv_gguf_writer w;
	struct nsv_err err = {0};
	struct model m;

	nsv_gguf_writer_init(&w, 1);
	nsv_gguf_put_tiny_vocab(&w);
	if (open_model(&w, &m, &err) < 0)
		fail_msg("%s", err.text);
	return m;
}

static void assert_ids(const struct nsv_ids *ids, const int32_t *want, size_t n)
{
	assert_int_equal(ids->n, n);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(ids->v[i], want[i]);
}

#define ASSERT_ENCODES(tok, text, flags, ...)                                                      \
	do {                                                                                       \
		static const int32_t want_[] = {__VA_ARGS__};                                      \
		struct nsv_ids ids_ = {0};                                                         \
		assert_int_equal(nsv_tok_encode(tok, text, strlen(text), flags, &ids_, NULL), 0);  \
		assert_ids(&ids_, want_, NSV_ARRAY_LEN(want_));                                    \
		nsv_ids_deinit(&ids_);                                                             \
	} while (0)

static void test_merges(void **state)
{
	struct model m = tiny_model();
	(void)state;

	ASSERT_ENCODES(m.tok, "hello", 0, MERGED + 7);
	ASSERT_ENCODES(m.tok, "ll he", 0, MERGED + 1, B(' '), MERGED);
	ASSERT_ENCODES(m.tok, " the", 0, MERGED + 4);
	ASSERT_ENCODES(m.tok, "aaaaaaa", 0, MERGED + 9, MERGED + 8, B('a'));
	ASSERT_ENCODES(m.tok, "o ", 0, B('o'), B(' ')); /* no merge across words */
	ASSERT_ENCODES(m.tok, "é", 0, B(0xc3), B(0xa9));
	close_model(&m);
}

static void test_special_tokens(void **state)
{
	struct model m = tiny_model();
	(void)state;

	ASSERT_ENCODES(m.tok, "<|im_end|>x", NSV_TOK_SPECIAL, 2, B('x'));
	ASSERT_ENCODES(
		m.tok, "<|im_x", NSV_TOK_SPECIAL, B('<'), B('|'), B('i'), B('m'), B('_'), B('x'));
	ASSERT_ENCODES(m.tok, "a<user>a", 0, B('a'), 3, B('a')); /* user-defined: always */
	ASSERT_ENCODES(m.tok, "<<user>>", 0, B('<'), 3, B('>'));
	ASSERT_ENCODES(m.tok, "<|im_start|><user>", NSV_TOK_SPECIAL, 1, 3);
	close_model(&m);
}

static void test_long_special_wins(void **state)
{
	static const char *const tokens[] = {"ab", "abcd", "b", "a", "c", "bc", "abc"};
	static const int32_t types[] = {4, 3, 1, 1, 1, 4, 4};
	struct nsv_gguf_writer w;
	struct nsv_err err = {0};
	struct model m;
	(void)state;

	nsv_gguf_writer_init(&w, 1);
	nsv_gguf_put_str(&w, "tokenizer.ggml.model", "gpt2");
	nsv_gguf_put_str(&w, "tokenizer.ggml.pre", "gpt-2");
	nsv_gguf_put_strs(&w, "tokenizer.ggml.tokens", tokens, 7);
	nsv_gguf_put_i32s(&w, "tokenizer.ggml.token_type", types, 7);
	nsv_gguf_put_strs(&w, "tokenizer.ggml.merges", tokens, 0);
	assert_int_equal(open_model(&w, &m, &err), 0);
	ASSERT_ENCODES(m.tok, "abcabbbc", 0, 6, 0, 2, 5);
	ASSERT_ENCODES(m.tok, "aabcb", 0, 3, 6, 2);
	struct nsv_ids ids = {0};
	assert_int_equal(nsv_tok_encode(m.tok, "abcd", 4, 0, &ids, &err), -ENOTSUP);
	assert_non_null(strstr(err.text, "0x64 at offset 3"));
	ASSERT_ENCODES(m.tok, "abcd", NSV_TOK_SPECIAL, 1);
	assert_int_equal(ids.n, 0);
	nsv_ids_deinit(&ids);
	close_model(&m);
}

static void put_vocab(struct nsv_gguf_writer *w, const char *pre, const char *extra_bool)
{
	static const char *const tokens[] = {"<s>", "a", "b", "ab", "</s>"};
	static const int32_t types[] = {3, 1, 1, 1, 3};
	static const char *const merges[] = {"a b"};

	nsv_gguf_writer_init(w, 1);
	nsv_gguf_put_str(w, "tokenizer.ggml.model", "gpt2");
	nsv_gguf_put_str(w, "tokenizer.ggml.pre", pre);
	nsv_gguf_put_strs(w, "tokenizer.ggml.tokens", tokens, 5);
	nsv_gguf_put_i32s(w, "tokenizer.ggml.token_type", types, 5);
	nsv_gguf_put_strs(w, "tokenizer.ggml.merges", merges, 1);
	if (extra_bool)
		nsv_gguf_put_bool(w, extra_bool, true);
}

static void test_begin_token(void **state)
{
	struct nsv_gguf_writer w;
	struct nsv_err err = {0};
	struct model m;
	(void)state;

	put_vocab(&w, "gpt-2", "tokenizer.ggml.add_bos_token");
	nsv_gguf_put_u32(&w, "tokenizer.ggml.bos_token_id", 0);
	assert_int_equal(open_model(&w, &m, &err), 0);
	ASSERT_ENCODES(m.tok, "ab", 0, 0, 3);
	ASSERT_ENCODES(m.tok, "", 0, 0);
	ASSERT_ENCODES(m.tok, "ab", NSV_TOK_NO_BOS, 3);
	ASSERT_ENCODES(m.tok, "<s>ab", NSV_TOK_SPECIAL, 0, 3); /* never twice */
	assert_true(nsv_tok_is_end(m.tok, 4));
	assert_false(nsv_tok_is_end(m.tok, 0));
	struct nsv_ids ids = {0};
	assert_int_equal(nsv_ids_push(&ids, 2), 0);
	assert_int_equal(nsv_tok_encode(m.tok, "a", 1, 0, &ids, NULL), 0);
	assert_ids(&ids, (const int32_t[]){2, 0, 1}, 3); /* appended to what was there */
	nsv_ids_deinit(&ids);
	close_model(&m);
	put_vocab(&w, "llama-bpe", NULL); /* wants one where the file does not say */
	nsv_gguf_put_u32(&w, "tokenizer.ggml.bos_token_id", 0);
	assert_int_equal(open_model(&w, &m, &err), 0);
	ASSERT_ENCODES(m.tok, "ab", 0, 0, 3);
	close_model(&m);
}

static void test_chat(void **state)
{
	static const struct nsv_chat_msg msgs[] = {
		{NSV_ROLE_SYSTEM, "x", 1}, {NSV_ROLE_USER, "\n<|im_end|>", 11}};
	static const int32_t want[] = {1, B('s'), B('y'), B('s'), B('t'), B('e'), B('m'), B('\n'),
		B('x'), 2, B('\n'), 1, B('u'), B('s'), B('e'), B('r'), B('\n'), B('\n'), B('<'),
		B('|'), B('i'), B('m'), B('_'), B('e'), B('n'), B('d'), B('|'), B('>'), 2, B('\n'),
		1, B('a'), B('s'), B('s'), B('i'), B('s'), B('t'), B('a'), B('n'), B('t'), B('\n')};
	struct model m = tiny_model();
	struct nsv_ids ids = {0};
	struct nsv_err err = {0};
	(void)state;

	assert_string_equal(nsv_tok_chat_name(m.tok), "chatml");
	assert_int_equal(nsv_tok_chat(m.tok, msgs, 2, 0, &ids, &err), 0);
	assert_ids(&ids, want, NSV_ARRAY_LEN(want));
	ids.n = 0;
	assert_int_equal(nsv_tok_chat(m.tok, msgs, 2, NSV_TOK_SPECIAL, &ids, &err), 0);
	assert_int_equal(ids.n, NSV_ARRAY_LEN(want) - 9); /* the user may write one if asked to */
	struct nsv_chat_msg bad = {NSV_N_ROLE, "x", 1};
	assert_int_equal(nsv_tok_chat(m.tok, &bad, 1, 0, &ids, &err), -EINVAL);
	bad = (struct nsv_chat_msg){NSV_ROLE_USER, "ok\xff", 3};
	assert_int_equal(nsv_tok_chat(m.tok, &bad, 1, 0, &ids, &err), -EILSEQ);
	assert_non_null(strstr(err.text, "message 0 is not UTF-8 at byte 2"));
	nsv_ids_deinit(&ids);
	close_model(&m);
}

static void test_no_chat(void **state)
{
	struct nsv_gguf_writer w;
	struct nsv_err err = {0};
	struct nsv_ids ids = {0};
	struct model m;
	(void)state;

	put_vocab(&w, "gpt-2", NULL);
	nsv_gguf_put_str(&w, "tokenizer.chat_template", "{{ evil() }}");
	assert_int_equal(open_model(&w, &m, &err), 0);
	assert_null(nsv_tok_chat_name(m.tok));
	assert_int_equal(nsv_tok_chat(m.tok, NULL, 0, 0, &ids, &err), -ENOTSUP);
	close_model(&m);
}

/* The system text is taken from the template only where it stands there as plain words. */
static void test_default_system(void **state)
{
	static const struct {
		const char *template;
		size_t n; /* ids before those of a conversation of one empty message */
	} rows[] = {
		{"<|im_start|>", 0},
		{"{{ '<|im_start|>system\nab<|im_end|>\n' }}", 12},
		{"{{ '<|im_start|>system\\nab<|im_end|>\\n' }}", 12},
		{"'<|im_start|>system\n' + m + '<|im_end|>' '<|im_start|>system\nabc<|im_end|>'",
			13},
		{"<|im_start|>system\n' + x + '<|im_end|>", 0},
		{"<|im_start|>system\n<|im_end|>", 0},
		{"<|im_start|>system\nab", 0},
		{"<|im_start|>system\n", 0},
		{"<|im_start|>system\\", 0},
		{"<|im_start|>system", 0},
		{"<|im_start|>system\na\xff<|im_end|>", 0},
	};
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(rows); i++) {
		const struct nsv_chat_msg msg = {NSV_ROLE_ASSISTANT, "", 0};
		struct nsv_gguf_writer w;
		struct nsv_err err = {0};
		struct nsv_ids ids = {0};
		struct model m;

		nsv_gguf_writer_init(&w, 1);
		nsv_gguf_put_tiny_vocab(&w);
		/* The vocabulary's own template goes by another name. */
		uint8_t *own = memmem(w.kv.p, w.kv.len, "tokenizer.chat_template", 23);
		own[0] = 'T';
		nsv_gguf_put_str(&w, "tokenizer.chat_template", rows[i].template);
		assert_int_equal(open_model(&w, &m, &err), 0);
		assert_int_equal(nsv_tok_chat(m.tok, &msg, 1, 0, &ids, &err), 0);
		assert_int_equal(ids.n, rows[i].n + 24);
		nsv_ids_deinit(&ids);
		close_model(&m);
	}
}

/* ---- Tables that do not fit */

static void assert_refused(struct nsv_gguf_writer *w, const char *words)
{
	struct nsv_err err = {0};
	struct model m;

	if (open_model(w, &m, &err) >= 0)
		fail_msg("accepted, expected \"%s\"", words);
	assert_null(m.tok);
	if (!strstr(err.text, words))
		fail_msg("\"%s\" lacks \"%s\"", err.text, words);
	close_model(&m);
}

static void test_refusals(void **state)
{
	static const int32_t types[] = {3, 1, 7};
	static const char *const tokens[] = {"a", "b", "c"};
	struct nsv_gguf_writer w;
	(void)state;

	nsv_gguf_writer_init(&w, 1);
	assert_refused(&w, "lacks tokenizer.ggml.model");
	nsv_gguf_put_str(&w, "tokenizer.ggml.model", "wordpiece");
	assert_refused(&w, "\"wordpiece\" is not supported");
	nsv_gguf_put_str(&w, "tokenizer.ggml.model", "gpt2");
	assert_refused(&w, "tokenizer.ggml.tokens");
	nsv_gguf_put_str(&w, "tokenizer.ggml.model", "gpt2");
	nsv_gguf_put_strs(&w, "tokenizer.ggml.tokens", tokens, 3);
	assert_refused(&w, "lacks tokenizer.ggml.pre");
	put_vocab(&w, "from-mars", NULL);
	assert_refused(&w, "\"from-mars\" is not supported");
	put_vocab(&w, "gpt-2", "tokenizer.ggml.add_bos_token");
	assert_refused(&w, "lacks bos_token_id");
	put_vocab(&w, "gpt-2", NULL);
	nsv_gguf_put_u32(&w, "tokenizer.ggml.eos_token_id", 5);
	assert_refused(&w, "eos_token_id is not a token's id");
	put_vocab(&w, "gpt-2", NULL);
	nsv_gguf_put_str(&w, "tokenizer.ggml.bos_token_id", "0");
	assert_refused(&w, "bos_token_id is not a token's id");
	for (uint64_t n = 2; n <= 3; n++) {
		nsv_gguf_put_str(&w, "tokenizer.ggml.model", "gpt2");
		nsv_gguf_put_str(&w, "tokenizer.ggml.pre", "gpt-2");
		nsv_gguf_put_strs(&w, "tokenizer.ggml.tokens", tokens, 3);
		nsv_gguf_put_i32s(&w, "tokenizer.ggml.token_type", types, n);
		assert_refused(&w, n == 2 ? "has 2 entries" : "token 2 has type 7");
	}
}

/* Merges of nothing, doubles and text that spells no bytes do no harm. */
static void test_odd_tables(void **state)
{
	static const char *const tokens[] = {
		"a", "b", "ab", "a", "", "日", "b b", "\xff", "\u0120"};
	static const char *const merges[] = {"", " ", "a", "a ", " a", "a b", "a b", "a x", "x a",
		"b a", "日 a", "\xff a", "a b c"};
	struct nsv_gguf_writer w;
	struct nsv_err err = {0};
	struct model m;
	const char *p;
	size_t len;
	(void)state;

	nsv_gguf_writer_init(&w, 1);
	nsv_gguf_put_str(&w, "tokenizer.ggml.model", "gpt2");
	nsv_gguf_put_str(&w, "tokenizer.ggml.pre", "gpt-2");
	nsv_gguf_put_strs(&w, "tokenizer.ggml.tokens", tokens, NSV_ARRAY_LEN(tokens));
	nsv_gguf_put_strs(&w, "tokenizer.ggml.merges", merges, NSV_ARRAY_LEN(merges));
	assert_int_equal(open_model(&w, &m, &err), 0);
	ASSERT_ENCODES(m.tok, "abba", 0, 2, 1, 0);
	assert_int_equal(nsv_tok_piece(m.tok, 5, false, &p, &len), 0);
	assert_int_equal(len, 3);
	assert_int_equal(nsv_tok_piece(m.tok, 8, false, &p, &len), 0);
	assert_int_equal(len, 1);
	assert_int_equal(*p, ' ');
	close_model(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_merges),
		cmocka_unit_test(test_special_tokens),
		cmocka_unit_test(test_long_special_wins),
		cmocka_unit_test(test_begin_token),
		cmocka_unit_test(test_chat),
		cmocka_unit_test(test_no_chat),
		cmocka_unit_test(test_default_system),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_odd_tables),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
