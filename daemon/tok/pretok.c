/* Two families of expressions. GPT-2's:
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * for smollm with every digit then cut off; and the one of newer models, with k = 1 (qwen2) or 3
 * (llama-bpe):
 *
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,k}
 *         | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * The references cut smollm's digits after the words, so that white space before a digit is white
 * space before a word ("  7" is " ", " ", "7"); where digits are cut out first it would be "  ",
 * "7".
 *
 * A run of white space is scanned once whole and at most once more from its last newline or its
 * last character on: the work is linear in the text. */
#include "daemon/tok/pretok.h"

#include <string.h>
#include <utf8proc.h>

#include "daemon/tok/utf8.h"

enum kind { LETTER, NUMBER, SPACE, OTHER, END };

static enum kind kind_of(int32_t c)
{
	if (c == 0x85 || (c >= '\t' && c <= '\r'))
		return SPACE;
	switch (utf8proc_category(c)) {
	case UTF8PROC_CATEGORY_LU:
	case UTF8PROC_CATEGORY_LL:
	case UTF8PROC_CATEGORY_LT:
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_LO:
		return LETTER;
	case UTF8PROC_CATEGORY_ND:
	case UTF8PROC_CATEGORY_NL:
	case UTF8PROC_CATEGORY_NO:
		return NUMBER;
	case UTF8PROC_CATEGORY_ZS:
	case UTF8PROC_CATEGORY_ZL:
	case UTF8PROC_CATEGORY_ZP:
		return SPACE;
	default:
		return OTHER;
	}
}

/* The kind at an offset, and the offset after that character. */
static enum kind kind_at(const char *text, size_t len, size_t at, size_t *ret_next)
{
	size_t n;

	if (at == len)
		return END;
	int32_t c = nsv_utf8_decode(text + at, &n);
	*ret_next = at + n;
	return kind_of(c);
}

/* The end of a run of at most max characters of a kind that begins at an offset. */
static size_t run_end(const char *text, size_t len, size_t at, enum kind kind, size_t max)
{
	size_t next = at;

	for (size_t n = 0; n < max && kind_at(text, len, at, &next) == kind; n++)
		at = next;
	return at;
}

static bool is_newline(char c)
{
	return c == '\r' || c == '\n';
}

/* 's, 't, 're, 've, 'm, 'll, 'd at the begin of the text: its length or 0. The one letter outside
 * of ASCII that is one of these in another case is the long s. */
static size_t contraction(const char *text, size_t len, bool any_case)
{
	static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d"};

	if (text[0] != '\'')
		return 0;
	if (any_case && len >= 3 && memcmp(text + 1, "\xc5\xbf", 2) == 0)
		return 3;
	for (size_t i = 0; i < NSV_ARRAY_LEN(ends); i++) {
		size_t n = strlen(ends[i]);

		if (len - 1 < n)
			continue;
		if ((any_case ? strncasecmp(text + 1, ends[i], n)
			      : strncmp(text + 1, ends[i], n)) == 0)
			return 1 + n;
	}
	return 0;
}

/* \s+(?!\S)|\s+ where the text begins with white space that ends at `end`: the last character goes
 * to the word after it, if there is one and something is left. */
static size_t space_word(const char *text, size_t end, bool followed)
{
	size_t last = end - 1;

	if (!followed)
		return end;
	while ((text[last] & 0xc0) == 0x80)
		last--;
	return last > 0 ? last : end;
}

static size_t next_gpt2(const struct nsv_pretok *pre, const char *text, size_t len)
{
	size_t word = contraction(text, len, false);
	size_t begin = text[0] == ' ' ? 1 : 0, next = 0;

	if (word)
		return word;
	enum kind kind = kind_at(text, len, begin, &next);
	if (kind == NUMBER && pre->n_digit == 1)
		return begin ? begin : next;
	if (kind == LETTER || kind == NUMBER || kind == OTHER)
		return run_end(text, len, next, kind, SIZE_MAX);
	size_t end = run_end(text, len, begin, SPACE, SIZE_MAX);
	return space_word(text, end, end < len);
}

/* White space of the newer expression: up to its last newline, if it has one. */
static size_t space_or_lines(const char *text, size_t len)
{
	size_t end = run_end(text, len, 0, SPACE, SIZE_MAX), line = end;

	while (line > 0 && !is_newline(text[line - 1]))
		line--;
	return line ? line : space_word(text, end, end < len);
}

static size_t next_newer(const struct nsv_pretok *pre, const char *text, size_t len)
{
	size_t word = contraction(text, len, true);
	size_t first = 0, second = 0;

	if (word)
		return word;
	enum kind kind = kind_at(text, len, 0, &first);
	if (kind == LETTER)
		return run_end(text, len, first, LETTER, SIZE_MAX);
	if (kind == NUMBER)
		return run_end(text, len, 0, NUMBER, pre->n_digit);
	enum kind after = kind_at(text, len, first, &second);
	if (after == LETTER && !is_newline(text[0]))
		return run_end(text, len, second, LETTER, SIZE_MAX);
	if (kind == SPACE && !(text[0] == ' ' && after == OTHER))
		return space_or_lines(text, len);
	word = run_end(text, len, first, OTHER, SIZE_MAX);
	while (word < len && is_newline(text[word]))
		word++;
	return word;
}

static const struct nsv_pretok pretoks[] = {
	{.name = "gpt-2", .next = next_gpt2},
	{.name = "smollm", .next = next_gpt2, .n_digit = 1},
	{.name = "llama-bpe",
		.next = next_newer,
		.n_digit = 3,
		.whole_words = true,
		.add_bos = true},
	{.name = "qwen2", .next = next_newer, .n_digit = 1},
};

const struct nsv_pretok *nsv_pretok_find(struct nsv_str name)
{
	for (size_t i = 0; i < NSV_ARRAY_LEN(pretoks); i++)
		if (nsv_str_eq(name, pretoks[i].name))
			return &pretoks[i];
	return NULL;
}
