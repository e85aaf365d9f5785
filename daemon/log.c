/* One write(2) a line, so that lines of several threads do not mix. */
#include "daemon/log.h"

#include <string.h>

#define LIMIT_BURST 16u
#define LIMIT_NS 1000000000u /* a line */

static enum nsv_log_level log_max = NSV_LOG_INFO;
static bool log_prefix;

void nsv_log_setup(enum nsv_log_level max, bool prefix)
{
	log_max = max;
	log_prefix = prefix;
}

/* Could a terminal take it as a command? C1 controls are two bytes in UTF-8, 0xc2 0x80 to 0x9f. */
static size_t control_len(const unsigned char *p, size_t left)
{
	if (p[0] < 0x20 || p[0] == 0x7f)
		return 1;
	return left > 1 && p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0 ? 2 : 0;
}

/* What a client or a file wrote may be in a line: no control character reaches the terminal. */
static void make_printable(char *text, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		size_t n = control_len((const unsigned char *)text + i, len - i);

		memset(text + i, '?', n);
		i += n ? n - 1 : 0;
	}
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

static bool has_room(const struct nsv_log_limit *limit, uint64_t now_ns)
{
	return limit->paid_ns <= now_ns + (uint64_t)(LIMIT_BURST - 1) * LIMIT_NS;
}

static uint32_t take_unsaid(struct nsv_log_limit *limit)
{
	uint32_t n = limit->n_unsaid;

	limit->n_unsaid = 0;
	return n;
}

bool nsv_log_may(struct nsv_log_limit *limit, uint64_t now_ns, uint32_t *ret_unsaid)
{
	if (!has_room(limit, now_ns)) {
		limit->n_unsaid++;
		return false;
	}
	limit->paid_ns = nsv_max_u64(limit->paid_ns, now_ns) + LIMIT_NS;
	*ret_unsaid = take_unsaid(limit);
	return true;
}

uint32_t nsv_log_unsaid(struct nsv_log_limit *limit, uint64_t now_ns)
{
	return has_room(limit, now_ns) ? take_unsaid(limit) : 0;
}
