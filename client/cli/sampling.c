/* The options that say how tokens are chosen. What is no number is refused here; which numbers make
 * sense, the daemon says. */
#include "client/cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void sampling_init(struct sampling *s)
{
	memset(s, 0, sizeof(*s));
	nsv_client_params_init(&s->params);
	s->params.stop = s->stops;
}

/* A whole number from least to most, or EXIT_USAGE. */
static int parse_int(const struct cli *cli, const char *name, const char *text, int64_t least,
	int64_t most, int64_t *ret)
{
	char *end;

	errno = 0;
	long long n = strtoll(text, &end, 10);
	if (end == text || *end || isspace((unsigned char)text[0]))
		return cli_usage(cli, "%s: not a whole number: %s", name, text);
	if (errno == ERANGE || n < least || n > most)
		return cli_usage(cli, "%s: %s is out of range", name, text);
	*ret = n;
	return 0;
}

int cli_parse_u32(const struct cli *cli, const char *name, const char *text, uint32_t *ret)
{
	int64_t n;
	int code = parse_int(cli, name, text, 0, UINT32_MAX, &n);

	if (code == 0)
		*ret = (uint32_t)n;
	return code;
}

static int parse_seed(const struct cli *cli, const char *text, struct nsv_client_params *p)
{
	char *end;

	errno = 0;
	unsigned long long n = strtoull(text, &end, 0);
	if (!isdigit((unsigned char)text[0]) || *end || errno == ERANGE)
		return cli_usage(cli, "--seed: not a number from 0 to 2^64 - 1: %s", text);
	p->seed = n;
	p->flags |= NSV_CLIENT_SEED;
	return 0;
}

/* "nan" and "inf" are numbers to C: the daemon refuses them by the parameter's name. */
static int parse_float(const struct cli *cli, const char *name, const char *text, float *ret)
{
	char *end;
	float x = strtof(text, &end);

	if (end == text || *end || isspace((unsigned char)text[0]))
		return cli_usage(cli, "%s: not a number: %s", name, text);
	*ret = x;
	return 0;
}

static int add_stop(const struct cli *cli, struct sampling *s, const char *text)
{
	if (s->params.n_stop == sizeof(s->stops) / sizeof(s->stops[0]))
		return cli_usage(cli, "--stop: more than %u", s->params.n_stop);
	s->stops[s->params.n_stop++] = text;
	return 0;
}

int sampling_option(const struct cli *cli, struct sampling *s, int option, const char *value)
{
	struct nsv_client_params *p = &s->params;
	int64_t n;
	int ret;

	switch (option) {
	case 'n':
		return cli_parse_u32(cli, "--max-tokens", value, &p->max_tokens);
	case SAMPLING_FIRST:
		return parse_float(cli, "--temperature", value, &p->temperature);
	case SAMPLING_FIRST + 1:
		ret = parse_int(cli, "--top-k", value, INT32_MIN, INT32_MAX, &n);
		if (ret == 0)
			p->top_k = (int32_t)n;
		return ret;
	case SAMPLING_FIRST + 2:
		return parse_float(cli, "--top-p", value, &p->top_p);
	case SAMPLING_FIRST + 3:
		return parse_float(cli, "--min-p", value, &p->min_p);
	case SAMPLING_FIRST + 4:
		return parse_seed(cli, value, p);
	case SAMPLING_FIRST + 5:
		return add_stop(cli, s, value);
	default: /* getopt_long has said what is wrong */
		return EXIT_USAGE;
	}
}
