/* Stop strings by Knuth-Morris-Pratt, all of them side by side. After each byte `matched` of a stop
 * string is how much of it the text ends with; the longest of them is what must be held back. */
#include "daemon/tok/stop.h"

#include <string.h>

void nsv_stop_init(struct nsv_stop *st)
{
	st->n = 0;
	st->n_held = 0;
}

/* The longest beginning of s that the text ends with after c, given that it was m before. */
static uint32_t advance(const char *s, const uint16_t *fail, uint32_t m, char c)
{
	while (m > 0 && s[m] != c)
		m = fail[m - 1];
	return s[m] == c ? m + 1 : 0;
}

int nsv_stop_add(struct nsv_stop *st, const char *text, size_t len)
{
	if (len == 0 || len > NSV_MAX_STOP_LEN - 1)
		return -EINVAL;
	if (st->n == NSV_MAX_STOP)
		return -ENOSPC;
	uint32_t k = st->n++;
	memcpy(st->s[k].text, text, len);
	st->s[k].len = (uint16_t)len;
	st->s[k].matched = 0;
	st->s[k].fail[0] = 0;
	for (uint32_t i = 1; i < len; i++)
		st->s[k].fail[i] =
			(uint16_t)advance(text, st->s[k].fail, st->s[k].fail[i - 1], text[i]);
	return 0;
}

/* Takes one byte; true: *ret_which, the longest of those that end here, is complete. */
static bool feed_byte(struct nsv_stop *st, char c, uint32_t *ret_which)
{
	uint32_t longest = 0;

	for (uint32_t k = 0; k < st->n; k++) {
		uint32_t m = advance(st->s[k].text, st->s[k].fail, st->s[k].matched, c);

		st->s[k].matched = (uint16_t)m;
		if (m < st->s[k].len || m <= longest)
			continue;
		longest = m;
		*ret_which = k;
	}
	return longest > 0;
}

static uint32_t longest_matched(const struct nsv_stop *st)
{
	uint32_t longest = 0;

	for (uint32_t k = 0; k < st->n; k++)
		if (st->s[k].matched > longest)
			longest = st->s[k].matched;
	return longest;
}

int nsv_stop_feed(struct nsv_stop *st, const char *text, size_t len, char *out, size_t *ret_len,
	uint32_t *ret_which)
{
	size_t n = nsv_stop_end(st, out);

	for (size_t i = 0; i < len; i++) {
		out[n++] = text[i];
		if (feed_byte(st, text[i], ret_which)) {
			*ret_len = n - st->s[*ret_which].len;
			return 1;
		}
	}
	st->n_held = longest_matched(st);
	memcpy(st->held, out + n - st->n_held, st->n_held);
	*ret_len = n - st->n_held;
	return 0;
}

size_t nsv_stop_end(struct nsv_stop *st, char *out)
{
	size_t n = st->n_held;

	memcpy(out, st->held, n);
	st->n_held = 0;
	return n;
}
