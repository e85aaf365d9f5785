/* UTF-8 in and out: every short sequence against the table of the Unicode standard, and streams cut
 * anywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/tok/tok.h"
#include "daemon/tok/utf8.h"
#include "tests/tools/rnd.h"

static size_t put_char(uint32_t c, char *out)
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 0x3f));
		out[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 0x3f));
	out[2] = (char)(0x80 | (c >> 6 & 0x3f));
	out[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

static void test_every_character(void **state)
{
	char text[8];
	size_t len;
	(void)state;

	for (uint32_t c = 0; c < 0x200000; c++) {
		size_t n = put_char(c, text);
		bool good = c < 0xd800 || (c >= 0xe000 && c <= 0x10ffff);

		assert_int_equal(nsv_utf8_bad(text, n), good ? 0 : 1);
		if (!good)
			continue;
		assert_int_equal(nsv_utf8_decode(text, &len), c);
		assert_int_equal(len, n);
		if (n > 1)
			assert_int_equal(nsv_utf8_bad(text, n - 1), 1);
	}
}

static void test_bad_sequences(void **state)
{
	static const struct {
		const char *text;
		size_t at;
	} rows[] = {
		{"abc\x80", 4},
		{"abc\xc0\x80", 4},
		{"\xc1\xbf", 1},
		{"\xe0\x9f\xbf", 1},
		{"\xf0\x8f\xbf\xbf", 1},
		{"\xed\xa0\x80", 1},
		{"\xf4\x90\x80\x80", 1},
		{"\xf5", 1},
		{"12345678\xff", 9},
		{"1234567\xc3\xa9"
		 "9\xfe",
			11},
		{"\xe4\xb8", 1},
		{"x\xc3(", 2},
	};
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(rows); i++)
		assert_int_equal(nsv_utf8_bad(rows[i].text, strlen(rows[i].text)), rows[i].at);
	assert_int_equal(nsv_utf8_bad("", 0), 0);
}

static size_t detok(const char *p, size_t len, char *out)
{
	struct nsv_detok d = {0};
	size_t n = 0;

	for (size_t at = 0; at < len;) {
		size_t step = nsv_min(len - at, t_below(5));

		n += nsv_detok_feed(&d, p + at, step, out + n);
		assert_int_equal(nsv_utf8_bad(out, n), 0); /* whole characters only, always */
		assert_true(d.n_held <= 3);
		at += step;
	}
	return n + nsv_detok_end(&d, out + n);
}

static void test_detok_keeps_good_text(void **state)
{
	char text[4 * 64], out[3 * (sizeof(text) + 4)];
	(void)state;

	for (int round = 0; round < 20000; round++) {
		size_t len = 0;

		for (uint32_t i = t_below(60); i > 0; i--) {
			uint32_t c = t_below(2) ? t_below(0x300) : t_below(0x110000);

			len += put_char(c >= 0xd800 && c < 0xe000 ? 'x' : c, text + len);
		}
		assert_int_equal(detok(text, len, out), len);
		assert_memory_equal(out, text, len);
	}
}

static void test_detok_of_noise(void **state)
{
	static const unsigned char likely[] = {0xe0, 0xed, 0xf0, 0xf4, 0xc2, 0x80, 0xa0, 0xbf, 'a'};
	char text[64], out[3 * (sizeof(text) + 4)];
	(void)state;

	for (int round = 0; round < 20000; round++) {
		size_t len = t_below(sizeof(text));

		for (size_t i = 0; i < len; i++)
			text[i] =
				(char)(t_below(2) ? likely[t_below(sizeof(likely))] : t_below(256));
		size_t n = detok(text, len, out);
		assert_int_equal(nsv_utf8_bad(out, n), 0);
		assert_true(n <= 3 * (len + 4));
		if (nsv_utf8_bad(text, len))
			assert_non_null(memmem(out, n, "\xef\xbf\xbd", 3));
	}
}

static void test_detok_replaces(void **state)
{
	static const struct {
		const char *in, *out;
	} rows[] = {
		{"a\x80z", "a\ufffdz"},
		{"\xe4\xb8", "\ufffd"},
		{"\xe4\xb8z", "\ufffdz"},
		{"\xe4\xb8\xe4\xb8\xad", "\ufffd中"},
		{"\xf0\x9f\x91", "\ufffd"},
		{"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
		{"\xc0\xaf", "\ufffd\ufffd"},
		{"\xf4\x90", "\ufffd\ufffd"},
	};
	char out[64];
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(rows); i++) {
		size_t n = detok(rows[i].in, strlen(rows[i].in), out);

		assert_int_equal(n, strlen(rows[i].out));
		assert_memory_equal(out, rows[i].out, n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_character),
		cmocka_unit_test(test_bad_sequences),
		cmocka_unit_test(test_detok_keeps_good_text),
		cmocka_unit_test(test_detok_of_noise),
		cmocka_unit_test(test_detok_replaces),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
