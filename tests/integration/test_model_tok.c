/* The tokenizers of the real models beside the default one, against ids on which two other
 * implementations agree (tests/data), and the prompts of the reference cases. A model that is not
 * in the cache folder is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <jansson.h>
#include <string.h>

#include "daemon/tok/tok.h"
#include "shm/abi.h"
#include "tests/tools/model-run.h"

#define DATA "tests/data/"

struct subject {
	const char *file, *data;
	int32_t n_vocab;
	bool has_bos;
	const char *chat; /* its format, or NULL */
	struct nsv_gguf *g;
	struct nsv_tok *tok; /* NULL: not there */
};

static struct subject subjects[] = {
	{.file = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
		.data = "qwen2.5-coder-0.5b-q4_k_m",
		.n_vocab = 151936,
		.chat = "chatml"},
	{.file = "gemma-3-270m-q4_k_m.gguf",
		.data = "gemma3-270m-q4_k_m",
		.n_vocab = 262144,
		.has_bos = true},
};

static int set_up(void **state)
{
	struct subject *s = *state;
	struct nsv_err err = {""};
	char path[512];
	const char *why;

	if (!model_run_find(s->file, path, &why)) {
		printf("%s: %s\n", s->file, why);
		return 0;
	}
	if (nsv_gguf_open(path, &s->g, &err) < 0 || nsv_tok_new(s->g, &s->tok, &err) < 0) {
		printf("%s\n", err.text);
		return -1;
	}
	return 0;
}

static int tear_down(void **state)
{
	struct subject *s = *state;

	nsv_tok_free(s->tok);
	if (s->g)
		nsv_gguf_close(s->g);
	s->tok = NULL;
	s->g = NULL;
	return 0;
}

static const struct subject *get_subject(void **state)
{
	const struct subject *s = *state;

	if (!s->tok)
		skip();
	return s;
}

static json_t *load_json(const char *name)
{
	char path[256];
	json_error_t error;

	snprintf(path, sizeof(path), DATA "%s.json", name);
	json_t *root = json_load_file(path, 0, &error);
	if (!root)
		fail_msg("%s: %s", path, error.text);
	return root;
}

static void assert_encodes(
	const struct subject *s, const char *text, size_t len, size_t max, const json_t *want)
{
	struct nsv_ids ids = {0};
	struct nsv_err err = {""};

	if (nsv_tok_encode(s->tok, text, len, NSV_TOK_SPECIAL, &ids, &err) < 0)
		fail_msg("%.40s: %s", text, err.text);
	ids.n = nsv_min(ids.n, max);
	if (ids.n != json_array_size(want))
		fail_msg("%.40s: %zu ids, expected %zu", text, ids.n, json_array_size(want));
	for (size_t i = 0; i < ids.n; i++)
		if (ids.v[i] != json_integer_value(json_array_get(want, i)))
			fail_msg("%.40s: id %zu is %d, expected %lld", text, i, ids.v[i],
				json_integer_value(json_array_get(want, i)));
	nsv_ids_deinit(&ids);
}

static void test_texts(void **state)
{
	const struct subject *s = get_subject(state);
	char name[128];
	json_t *row;
	size_t i;

	snprintf(name, sizeof(name), "tokens-%s", s->data);
	json_t *rows = load_json(name);
	assert_true(json_array_size(rows) > 50);
	json_array_foreach(rows, i, row)
	{
		const json_t *text = json_object_get(row, "text");

		assert_encodes(s, json_string_value(text), json_string_length(text), SIZE_MAX,
			json_object_get(row, "ids"));
	}
	json_decref(rows);
}

/* The bytes of the ids are the text again; but of a text with the character that stands for a space
 * in SentencePiece, which comes back as one. */
static void test_decodes(void **state)
{
	const struct subject *s = get_subject(state);
	char name[128];
	json_t *row;
	size_t i;

	snprintf(name, sizeof(name), "tokens-%s", s->data);
	json_t *rows = load_json(name);
	json_array_foreach(rows, i, row)
	{
		const char *text = json_string_value(json_object_get(row, "text")), *p;
		struct nsv_ids ids = {0};
		size_t at = 0, len;

		if (strstr(text, "\u2581"))
			continue;
		assert_int_equal(
			nsv_tok_encode(s->tok, text, strlen(text), NSV_TOK_NO_BOS, &ids, NULL), 0);
		for (size_t j = 0; j < ids.n; j++, at += len) {
			assert_int_equal(nsv_tok_piece(s->tok, ids.v[j], false, &p, &len), 0);
			assert_true(at + len <= strlen(text));
			assert_memory_equal(text + at, p, len);
		}
		assert_int_equal(at, strlen(text));
		nsv_ids_deinit(&ids);
	}
	json_decref(rows);
}

static void assert_encodes_file(const struct subject *s, const json_t *row, const json_t *want)
{
	char path[128], *text = NULL;
	size_t cap = 0;

	snprintf(path, sizeof(path), DATA "%s", json_string_value(json_object_get(row, "file")));
	FILE *f = fopen(path, "r");
	assert_non_null(f);
	ssize_t len = getdelim(&text, &cap, EOF, f);
	fclose(f);
	assert_true(len > 0);
	assert_encodes(s, text, (size_t)len,
		(size_t)json_integer_value(json_object_get(row, "max_prompt_tokens")), want);
	free(text);
}

static void test_prompts(void **state)
{
	const struct subject *s = get_subject(state);
	json_t *rows = load_json("cases-raw"), *references = load_json(s->data), *row;
	size_t i;

	assert_int_equal(json_array_size(rows), json_array_size(references));
	json_array_foreach(rows, i, row)
	{
		json_t *want = json_object_get(json_array_get(references, i), "prompt_ids");
		const json_t *prompt = json_object_get(row, "prompt");

		if (prompt)
			assert_encodes(s, json_string_value(prompt), json_string_length(prompt),
				SIZE_MAX, want);
		else
			assert_encodes_file(s, row, want);
	}
	json_decref(rows);
	json_decref(references);
}

/* A conversation is what its markers and texts are as one text. */
static void assert_chat(const struct nsv_tok *tok)
{
	static const char text[] =
		"<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You "
		"are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi"
		"<|im_end|>\n<|im_start|>assistant\n";
	const struct nsv_chat_msg msg = {NSV_ROLE_USER, "Hi", 2};
	struct nsv_ids have = {0}, want = {0};

	assert_int_equal(nsv_tok_chat(tok, &msg, 1, 0, &have, NULL), 0);
	assert_int_equal(
		nsv_tok_encode(tok, text, sizeof(text) - 1, NSV_TOK_SPECIAL, &want, NULL), 0);
	assert_int_equal(have.n, want.n);
	assert_memory_equal(have.v, want.v, want.n * sizeof(*want.v));
	nsv_ids_deinit(&have);
	nsv_ids_deinit(&want);
}

static void test_what_it_is(void **state)
{
	const struct subject *s = get_subject(state);
	struct nsv_ids ids = {0};

	assert_int_equal(nsv_tok_n_vocab(s->tok), s->n_vocab);
	assert_int_equal(nsv_tok_encode(s->tok, "", 0, 0, &ids, NULL), 0);
	assert_int_equal(ids.n, s->has_bos);
	nsv_ids_deinit(&ids);
	if (s->chat) {
		assert_string_equal(nsv_tok_chat_name(s->tok), s->chat);
		assert_chat(s->tok);
	} else {
		assert_null(nsv_tok_chat_name(s->tok));
	}
}

#define TEST(function, subject)                                                                    \
	cmocka_unit_test_prestate_setup_teardown(function, set_up, tear_down, &(subject))
#define TESTS(subject)                                                                             \
	TEST(test_texts, subject), TEST(test_decodes, subject), TEST(test_prompts, subject),       \
		TEST(test_what_it_is, subject)

int main(void)
{
	const struct CMUnitTest tests[] = {TESTS(subjects[0]), TESTS(subjects[1])};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
