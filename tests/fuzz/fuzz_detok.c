/* Bytes of tokens as they come, through the detokenizer and the stop strings: what comes out is
 * well-formed, is what comes out of all bytes at once, and holds no stop string. */
#include <stdlib.h>
#include <string.h>

#include "daemon/tok/stop.h"
#include "daemon/tok/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define N_STOP 3

static void check(bool ok)
{
	if (!ok)
		abort();
}

/* In steps of 0 to 7 bytes, or (step 0) at once. */
static size_t detok(const char *p, size_t len, uint32_t step, char *out)
{
	struct nsv_detok d = {0};
	size_t n = 0, at = 0;

	for (uint32_t i = 1; at < len; i++) {
		size_t take = step ? nsv_min(len - at, step * i % 8) : len;

		n += nsv_detok_feed(&d, p + at, take, out + n);
		check(nsv_utf8_bad(out, n) == 0);
		at += take;
	}
	return n + nsv_detok_end(&d, out + n);
}

static void check_stop(const char *text, size_t len, const uint8_t *stops, char *out)
{
	struct nsv_stop *st = malloc(sizeof(*st));
	size_t n = 0, n_out = 0, at = 0;
	uint32_t which;
	int ret = 0;

	check(st != NULL);
	nsv_stop_init(st);
	for (int i = 0; i < N_STOP; i++)
		nsv_stop_add(st, (const char *)stops + i, 1 + stops[i] % 4);
	for (uint32_t i = 1; at < len && ret == 0; i++) {
		size_t take = nsv_min(len - at, 3 * i % 7);

		ret = nsv_stop_feed(st, text + at, take, out + n_out, &n, &which);
		at += take;
		n_out += n;
	}
	if (ret == 0)
		n_out += nsv_stop_end(st, out + n_out);
	check(ret == 0 ? n_out == len : n_out < len);
	check(memcmp(out, text, n_out) == 0);
	for (uint32_t k = 0; k < st->n; k++)
		check(!memmem(out, n_out, st->s[k].text, st->s[k].len));
	free(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	const size_t head = 1 + N_STOP + 4;

	if (len < head || len > 65536)
		return 0;
	const char *p = (const char *)data + head;
	size_t n = len - head, room = 3 * (n + 4) + 2 * NSV_MAX_STOP_LEN;
	char *once = malloc(room), *parts = malloc(room);

	check(once && parts);
	size_t n_once = detok(p, n, 0, once), n_parts = detok(p, n, 1 + data[0] % 7, parts);
	check(n_once == n_parts && memcmp(once, parts, n_once) == 0);
	check(nsv_utf8_bad(p, n) || (n_once == n && memcmp(once, p, n) == 0));
	check_stop(once, n_once, data + 1, parts);
	free(once);
	free(parts);
	return 0;
}
