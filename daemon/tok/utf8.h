/* Steps through UTF-8. Well-formed is what Unicode says: no overlong forms, no surrogates, nothing
 * above U+10FFFF. */
#ifndef NSV_DAEMON_TOK_UTF8_H
#define NSV_DAEMON_TOK_UTF8_H

#include "shm/base.h"

/* The length of the character that these n > 0 bytes begin, or are; 0: no character begins so.
 * Looks at the last of the bytes only: the others were asked about before. */
static inline size_t nsv_utf8_len(const unsigned char *p, size_t n)
{
	unsigned char lead = p[0], low = 0x80, high = 0xbf;
	size_t len = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;

	if (n == 1)
		return lead <= 0xf4 ? len : 0;
	if (n == 2) {
		low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
		high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
	}
	return p[n - 1] >= low && p[n - 1] <= high ? len : 0;
}

/* Decodes one character of well-formed text. */
static inline int32_t nsv_utf8_decode(const char *text, size_t *ret_len)
{
	const unsigned char *p = (const unsigned char *)text;

	if (p[0] < 0x80) {
		*ret_len = 1;
		return p[0];
	}
	if (p[0] < 0xe0) {
		*ret_len = 2;
		return (p[0] & 0x1f) << 6 | (p[1] & 0x3f);
	}
	if (p[0] < 0xf0) {
		*ret_len = 3;
		return (p[0] & 0x0f) << 12 | (p[1] & 0x3f) << 6 | (p[2] & 0x3f);
	}
	*ret_len = 4;
	return (p[0] & 0x07) << 18 | (p[1] & 0x3f) << 12 | (p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

#endif
