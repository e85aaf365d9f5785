/* Checking UTF-8 as it comes in, and mending it as it goes out. What cannot be a character is shown
 * as U+FFFD, one for each longest beginning of a character, as Unicode recommends. */
#include "daemon/tok/utf8.h"

#include <string.h>

#include "daemon/tok/tok.h"

#define REPLACEMENT "\xef\xbf\xbd"
#define HIGH_BITS 0x8080808080808080u

/* The length of the well-formed character at p, 0 if there is none. */
static size_t whole_char(const unsigned char *p, size_t left)
{
	size_t len = nsv_utf8_len(p, 1);

	if (len > left)
		return 0;
	for (size_t n = 2; n <= len; n++)
		if (!nsv_utf8_len(p, n))
			return 0;
	return len;
}

static bool next_8_are_ascii(const char *p)
{
	uint64_t x;

	memcpy(&x, p, sizeof(x));
	return !(x & HIGH_BITS);
}

size_t nsv_utf8_bad(const char *text, size_t len)
{
	size_t i = 0;

	while (i < len) {
		if (len - i >= 8 && next_8_are_ascii(text + i)) {
			i += 8;
			continue;
		}
		size_t n = whole_char((const unsigned char *)text + i, len - i);
		if (n == 0)
			return i + 1;
		i += n;
	}
	return 0;
}

size_t nsv_detok_end(struct nsv_detok *d, char *out)
{
	if (d->n_held == 0)
		return 0;
	d->n_held = 0;
	memcpy(out, REPLACEMENT, 3);
	return 3;
}

/* Takes one byte; returns the bytes written. */
static size_t feed_byte(struct nsv_detok *d, unsigned char c, char *out)
{
	size_t n = 0;

	d->held[d->n_held++] = c;
	size_t len = nsv_utf8_len(d->held, d->n_held);
	if (len == 0 && d->n_held > 1) { /* the bytes before c stay unfinished; c may begin anew */
		n = nsv_detok_end(d, out);
		d->held[d->n_held++] = c;
		len = nsv_utf8_len(d->held, 1);
	}
	if (len == 0)
		return n + nsv_detok_end(d, out + n);
	if (len > d->n_held)
		return n;
	memcpy(out + n, d->held, len);
	d->n_held = 0;
	return n + len;
}

size_t nsv_detok_feed(struct nsv_detok *d, const char *p, size_t len, char *out)
{
	size_t n = 0;

	for (size_t i = 0; i < len; i++)
		n += feed_byte(d, (unsigned char)p[i], out + n);
	return n;
}
