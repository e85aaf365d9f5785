/* Where words are cut, row by row of the table: as the models' expressions cut. */
#include "daemon/tok/pretok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/tok/utf8.h"
#include "tests/tools/rnd.h"

static const struct nsv_pretok *find(const char *name)
{
	return nsv_pretok_find((struct nsv_str){name, strlen(name)});
}

/* The words of a text with a bar between them. */
static void cut(const struct nsv_pretok *pre, const char *text, char *out)
{
	size_t len = strlen(text), n;

	for (; len > 0; text += n, len -= n) {
		n = pre->next(pre, text, len);
		assert_true(n > 0 && n <= len);
		memcpy(out, text, n);
		out += n;
		if (n < len)
			*out++ = '|';
	}
	*out = '\0';
}

static void test_rows(void **state)
{
	static const char *const rows[][3] = {
		{"gpt-2", "I'm you're 'sand HE'S", "I|'m| you|'re| '|sand| HE|'|S"},
		{"gpt-2", "a  b   c", "a| | b|  | c"},
		{"gpt-2", "abc123 456", "abc|123| 456"},
		{"gpt-2", "x\n\n  y \t", "x|\n\n | y| \t"},
		{"gpt-2", "a\u00a0\u3000b!?é", "a|\u00a0|\u3000|b|!?|é"},
		{"smollm", "abc123 456", "abc|1|2|3| |4|5|6"},
		{"smollm", "a  7", "a| | |7"},
		{"smollm", "3.14 ½x", "3|.|1|4| |½|x"},
		{"smollm", "\n\n  0. D", "\n\n | |0|.| D"},
		{"llama-bpe", "I'M you'Re", "I|'M| you|'Re"},
		{"llama-bpe", "12345 6", "123|45| |6"},
		{"llama-bpe", "(foo)\n\n  bar \n x", "(foo|)\n\n| | bar| \n| x"},
		{"llama-bpe", "\tfoo\nbar", "\tfoo|\n|bar"},
		{"qwen2", "12 ab", "1|2| ab"},
		{"qwen2", "  \r\n\n  !!\n\nx", "  \r\n\n| | !!\n\n|x"},
		{"qwen2", " end  ", " end|  "},
		{"qwen2", "\u3000中文，标点", "\u3000中文|，标点"},
	};
	char out[128];
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(rows); i++) {
		cut(find(rows[i][0]), rows[i][1], out);
		assert_string_equal(out, rows[i][2]);
	}
	assert_null(find("smollm2"));
	assert_null(find(""));
}

/* Whatever the text, words are whole characters and the scan goes on. */
static void test_random_text(void **state)
{
	static const char *const names[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
	static const char *const chars[] = {" ", "\n", "\r", "\t", "a", "Z", "é", "中", "7", "½",
		"'", "s", "l", "!", "👍", "\u0301", "\u00a0", "\u2028", "\u200b"};
	char text[256];
	(void)state;

	for (int round = 0; round < 40000; round++) {
		const struct nsv_pretok *pre = find(names[round % 4]);
		size_t len = 0, n;

		for (uint32_t i = 1 + t_below(40); i > 0; i--) {
			const char *c = chars[t_below(NSV_ARRAY_LEN(chars))];

			len = (size_t)(stpcpy(text + len, c) - text);
		}
		for (size_t at = 0; at < len; at += n) {
			assert_true((text[at] & 0xc0) != 0x80);
			n = pre->next(pre, text + at, len - at);
			assert_true(n > 0 && n <= len - at);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_random_text),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
