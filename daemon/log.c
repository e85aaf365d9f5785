/* One write(2) a line, so that lines of several threads do not mix. */
#include "daemon/log.h"

#include <string.h>

static enum nsv_log_level log_max = NSV_LOG_INFO;
static bool log_prefix;

void nsv_log_setup(enum nsv_log_level max, bool prefix)
{
	log_max = max;
	log_prefix = prefix;
}

/* What a client or a file wrote may be in a line: no control character reaches the terminal. */
static void make_printable(char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
			text[i] = '?';
}

void nsv_log(enum nsv_log_level level, const char *fmt, ...)
{
	char line[1024];
	size_t n = 0;
	va_list ap;

	if (level > log_max)
		return;
	if (log_prefix)
		n = (size_t)snprintf(line, sizeof(line), "<%d>", level);
	va_start(ap, fmt);
	int got = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
	va_end(ap);
	if (got < 0)
		return;
	size_t len = nsv_min((size_t)got, sizeof(line) - n - 2);
	make_printable(line + n, len);
	line[n + len] = '\n';
	/* A log that cannot be written has nowhere to say so. */
	ssize_t ignored = write(STDERR_FILENO, line, n + len + 1);
	(void)ignored;
}
