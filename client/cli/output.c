/* Text to people and JSON to programs. */
#include "client/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool escape;

void output_init(void)
{
	escape = isatty(STDOUT_FILENO);
}

/* Could a terminal take it as a command? C1 controls are two bytes in UTF-8, 0xc2 0x80 to 0x9f. */
static size_t control_len(const unsigned char *p, size_t left)
{
	if (p[0] == '\n' || p[0] == '\t')
		return 0;
	if (p[0] < 0x20 || p[0] == 0x7f)
		return 1;
	return left > 1 && p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0 ? 2 : 0;
}

int output_text(const char *text, size_t len)
{
	const unsigned char *p = (const unsigned char *)text;

	for (size_t i = 0; i < len;) {
		size_t n = escape ? control_len(p + i, len - i) : 0;
		if (n == 0)
			putchar(p[i]);
		else
			printf("\\x%02x", p[i + n - 1]);
		i += n ? n : 1;
	}
	errno = 0;
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	return errno ? -errno : -EIO;
}

json_t *json_ids(const int32_t *ids, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, json_integer(ids[i]));
	return list;
}

json_t *json_text(const char *text, size_t len)
{
	json_t *string = json_stringn(text ? text : "", len);

	if (string)
		return string;
	/* Bytes that are no UTF-8 (half a character at the limit): one replacement each. */
	char *fixed = malloc(3 * len + 1);
	size_t n = 0;
	for (size_t i = 0; fixed && i < len; i++) {
		bool ascii = (unsigned char)text[i] < 0x80;
		memcpy(fixed + n, ascii ? text + i : "\xef\xbf\xbd", ascii ? 1 : 3);
		n += ascii ? 1 : 3;
	}
	string = fixed ? json_stringn(fixed, n) : NULL;
	free(fixed);
	return string;
}

int output_json(const struct cli *cli, json_t *object)
{
	int ret = object ? json_dumpf(object, stdout, JSON_REAL_PRECISION(9)) : -1;

	json_decref(object);
	if (ret < 0 || putchar('\n') == EOF || fflush(stdout) == EOF)
		return cli_failed(cli, "standard output: %s", strerror(errno));
	return EXIT_DONE;
}
