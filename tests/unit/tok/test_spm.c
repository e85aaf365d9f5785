/* SentencePiece: joining against a naive rule, byte tokens, the space before a text, and tables
 * that do not fit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/tok/tok.h"
#include "tests/tools/rnd.h"
#include "tests/unit/tok/tok_model.h"

#define MAX_TOKEN 80
#define MAX_TEXT 200

struct vocab {
	uint32_t n;
	int32_t type[MAX_TOKEN];
	float score[MAX_TOKEN];
	char text[MAX_TOKEN][16];
};

static void add_token(struct vocab *v, const char *text, int32_t type, float score)
{
	snprintf(v->text[v->n], sizeof(v->text[0]), "%s", text);
	v->type[v->n] = type;
	v->score[v->n++] = score;
}

static void put_vocab(struct nsv_gguf_writer *w, const struct vocab *v, uint64_t n_score)
{
	uint8_t array[12 + sizeof(v->score)] = {6};
	const char *tokens[MAX_TOKEN];

	for (uint32_t i = 0; i < v->n; i++)
		tokens[i] = v->text[i];
	memcpy(array + 4, &n_score, 8);
	memcpy(array + 12, v->score, n_score * sizeof(*v->score));
	nsv_gguf_writer_init(w, 1);
	nsv_gguf_put_str(w, "tokenizer.ggml.model", "llama");
	nsv_gguf_put_strs(w, "tokenizer.ggml.tokens", tokens, v->n);
	nsv_gguf_put_i32s(w, "tokenizer.ggml.token_type", v->type, v->n);
	nsv_gguf_put_raw(w, "tokenizer.ggml.scores", 9, array, 12 + n_score * sizeof(*v->score));
	nsv_gguf_put_u32(w, "tokenizer.ggml.bos_token_id", 0);
}

static void assert_encodes(
	const struct nsv_tok *tok, const char *text, const int32_t *want, size_t n)
{
	struct nsv_ids ids = {0};

	assert_int_equal(nsv_tok_encode(tok, text, strlen(text), NSV_TOK_SPECIAL, &ids, NULL), 0);
	assert_int_equal(ids.n, n);
	assert_memory_equal(ids.v, want, n * sizeof(*want));
	nsv_ids_deinit(&ids);
}

#define ASSERT_ENCODES(tok, text, ...)                                                             \
	assert_encodes(tok, text, (const int32_t[]){__VA_ARGS__},                                  \
		sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static struct vocab small_vocab(void)
{
	struct vocab v = {0};
	char name[8];

	add_token(&v, "<s>", 3, 0);	       /* 0 */
	add_token(&v, "</s>", 3, 0);	       /* 1 */
	add_token(&v, "\u2581", 1, -9);	       /* 2 */
	add_token(&v, "a", 1, -5);	       /* 3 */
	add_token(&v, "b", 1, -6);	       /* 4 */
	add_token(&v, "ab", 1, -2);	       /* 5 */
	add_token(&v, "\u2581a", 1, -1);       /* 6 */
	add_token(&v, "ba", 1, -3);	       /* 7 */
	add_token(&v, "\n\n", 4, -1000);       /* 8 */
	for (unsigned int i = 0; i < 3; i++) { /* é and a newline */
		snprintf(name, sizeof(name), "<0x%02X>", "\xc3\xa9\n"[i] & 0xffu);
		add_token(&v, name, 6, 0);
	}
	return v;
}

static void test_small(void **state)
{
	struct vocab v = small_vocab();
	struct nsv_gguf_writer w;
	struct nsv_err err = {0};
	struct nsv_ids ids = {0};
	struct model m;
	const char *p;
	size_t len;
	(void)state;

	put_vocab(&w, &v, v.n);
	nsv_gguf_put_bool(&w, "tokenizer.ggml.add_space_prefix", false);
	if (open_model(&w, &m, &err) < 0)
		fail_msg("%s", err.text);
	ASSERT_ENCODES(m.tok, "ab ab", 0, 5, 6, 4);
	ASSERT_ENCODES(m.tok, "ab\u2581ab", 0, 5, 6, 4); /* how the file spells a space is one */
	ASSERT_ENCODES(m.tok, "é\nb", 0, 9, 10, 11, 4);
	ASSERT_ENCODES(m.tok, "a\n\n\nb", 0, 3, 8, 11, 4);
	ASSERT_ENCODES(m.tok, "<s>b</s>", 0, 4, 1);
	assert_int_equal(nsv_tok_encode(m.tok, "abc", 3, 0, &ids, &err), -ENOTSUP);
	assert_non_null(strstr(err.text, "0x63"));
	assert_int_equal(nsv_tok_piece(m.tok, 6, false, &p, &len), 0);
	assert_int_equal(len, 2);
	assert_memory_equal(p, " a", 2);
	assert_int_equal(nsv_tok_piece(m.tok, 11, false, &p, &len), 0);
	assert_int_equal(len, 1);
	assert_int_equal(*p, '\n');
	nsv_ids_deinit(&ids);
	close_model(&m);
}

static void test_space_before_a_text(void **state)
{
	struct vocab v = small_vocab();
	struct nsv_gguf_writer w;
	struct nsv_err err = {0};
	struct model m;
	(void)state;

	put_vocab(&w, &v, v.n);
	assert_int_equal(open_model(&w, &m, &err), 0);
	ASSERT_ENCODES(m.tok, "ab", 0, 6, 4);
	ASSERT_ENCODES(m.tok, "", 0);
	close_model(&m);
}

/* ---- Against the rule itself */

struct piece {
	char text[MAX_TEXT];
};

static int find_token(const struct vocab *v, const char *text)
{
	for (uint32_t i = 1; i < v->n; i++)
		if (strcmp(v->text[i], text) == 0)
			return (int)i;
	return -1;
}

static size_t naive(const struct vocab *v, struct piece *pieces, size_t n)
{
	for (;;) {
		struct piece both;
		size_t best = n;
		float best_score = 0;

		for (size_t i = 0; i + 1 < n; i++) {
			snprintf(both.text, sizeof(both.text), "%.90s%.90s", pieces[i].text,
				pieces[i + 1].text);
			int id = find_token(v, both.text);
			if (id >= 0 && (best == n || v->score[id] > best_score)) {
				best = i;
				best_score = v->score[id];
			}
		}
		if (best == n)
			return n;
		snprintf(both.text, sizeof(both.text), "%.90s%.90s", pieces[best].text,
			pieces[best + 1].text);
		pieces[best] = both;
		memmove(pieces + best + 1, pieces + best + 2, (n - best - 2) * sizeof(*pieces));
		n--;
	}
}

static struct vocab random_vocab(void)
{
	struct vocab v = {0};

	add_token(&v, "<s>", 3, 0);
	add_token(&v, "a", 1, -100);
	add_token(&v, "b", 1, -100);
	add_token(&v, "c", 1, -100);
	for (uint32_t i = t_below(50); i > 0; i--) {
		char text[8] = {0};

		for (uint32_t j = 2 + t_below(5); j > 0; j--)
			text[j - 1] = (char)('a' + t_below(3));
		if (find_token(&v, text) < 0)
			add_token(&v, text, 1, (float)t_below(20) - 10);
	}
	return v;
}

static void check_round(void)
{
	static struct piece pieces[MAX_TEXT];
	struct vocab v = random_vocab();
	struct nsv_gguf_writer w;
	struct nsv_err err = {0};
	struct nsv_ids ids = {0};
	struct model m;
	char text[MAX_TEXT];
	size_t len = 1 + t_below(MAX_TEXT / 2);

	for (size_t i = 0; i < len; i++) {
		text[i] = (char)('a' + t_below(1 + t_below(3)));
		pieces[i] = (struct piece){.text = {text[i]}};
	}
	put_vocab(&w, &v, v.n);
	nsv_gguf_put_bool(&w, "tokenizer.ggml.add_space_prefix", false);
	assert_int_equal(open_model(&w, &m, &err), 0);
	assert_int_equal(nsv_tok_encode(m.tok, text, len, NSV_TOK_NO_BOS, &ids, &err), 0);
	assert_int_equal(ids.n, naive(&v, pieces, len));
	for (size_t i = 0; i < ids.n; i++)
		assert_string_equal(v.text[ids.v[i]], pieces[i].text);
	nsv_ids_deinit(&ids);
	close_model(&m);
}

static void test_against_naive_joining(void **state)
{
	(void)state;
	for (int round = 0; round < 1000; round++)
		check_round();
}

/* A special token that is half a character: no text has it. */
static void test_half_a_character(void **state)
{
	struct vocab v = small_vocab();
	struct nsv_gguf_writer w;
	struct nsv_err err = {0};
	struct model m;
	(void)state;

	add_token(&v, "\xc3", 4, -1000);
	add_token(&v, "\xa9", 4, -1000);
	add_token(&v, "\xa9" "b", 3, -1000);
	put_vocab(&w, &v, v.n);
	if (open_model(&w, &m, &err) < 0)
		fail_msg("%s", err.text);
	ASSERT_ENCODES(m.tok, "é", 0, 2, 9, 10);
	ASSERT_ENCODES(m.tok, "éb", 0, 2, 9, 10, 4);
	close_model(&m);
}

static void test_refusals(void **state)
{
	struct vocab v = small_vocab();
	struct nsv_gguf_writer w;
	struct nsv_err err = {0};
	struct model m;
	(void)state;

	put_vocab(&w, &v, v.n - 1);
	assert_int_equal(open_model(&w, &m, &err), -EINVAL);
	assert_non_null(strstr(err.text, "scores has 11 entries"));
	close_model(&m);
	v.score[3] = NAN;
	put_vocab(&w, &v, v.n);
	assert_int_equal(open_model(&w, &m, &err), -EINVAL);
	assert_non_null(strstr(err.text, "not a number"));
	close_model(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small),
		cmocka_unit_test(test_space_before_a_text),
		cmocka_unit_test(test_against_naive_joining),
		cmocka_unit_test(test_half_a_character),
		cmocka_unit_test(test_refusals),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
