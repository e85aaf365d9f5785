/* The options that say how tokens are chosen. What is no number is refused here; which numbers make
 * sense, the daemon says. */
#include "client/cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sampling_init(struct sampling *s)
{
	memset(s, 0, sizeof(*s));
	nsv_client_params_init(&s->params);
	s->params.stop = s->stops;
	s->params.stop_id = s->stop_ids;
	s->params.allow = s->allow;
	s->params.ban = s->ban;
	s->params.bias = s->biases;
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
	unsigned long long n = strtoull(text, &end, 10);
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

/* The id at *text, which moves past it. */
static int take_id(const struct cli *cli, const char *name, const char **text, int32_t *ret)
{
	char *end;

	errno = 0;
	long n = strtol(*text, &end, 10);
	if (!isdigit((unsigned char)**text) || errno == ERANGE || n > INT32_MAX)
		return cli_usage(cli, "%s: not an id: %s", name, *text);
	*text = end;
	*ret = (int32_t)n;
	return 0;
}

/* A comma and more, or the end. 1: more follows. */
static int take_comma(const struct cli *cli, const char *name, const char **text)
{
	if (**text == '\0')
		return 0;
	if (**text != ',')
		return -cli_usage(cli, "%s: a comma is missing before %s", name, *text);
	(*text)++;
	return 1;
}

static int check_room(const struct cli *cli, const char *name, uint32_t n)
{
	return n < SAMPLING_MAX_LIST ? 0 : cli_usage(cli, "%s: more than %u", name, n);
}

static int add_ids(
	const struct cli *cli, const char *name, const char *text, int32_t *ids, uint32_t *n)
{
	int more = 1;

	while (more > 0) {
		int ret = check_room(cli, name, *n);

		if (ret == 0)
			ret = take_id(cli, name, &text, &ids[*n]);
		if (ret != 0)
			return ret;
		(*n)++;
		more = take_comma(cli, name, &text);
	}
	return -more;
}

/* "ID=X" at *text, which moves past it. */
static int take_bias(
	const struct cli *cli, const char *name, const char **text, struct nsv_client_bias *ret)
{
	const char *start = *text;
	char *end;
	int code = take_id(cli, name, text, &ret->id);

	if (code != 0)
		return code;
	if (**text != '=')
		return cli_usage(cli, "%s: ID=X is wanted, not %s", name, start);
	ret->bias = strtof(*text + 1, &end);
	if (end == *text + 1)
		return cli_usage(cli, "%s: not a number: %s", name, start);
	*text = end;
	return 0;
}

static int add_biases(const struct cli *cli, struct sampling *s, const char *text)
{
	static const char *const name = "--logit-bias";
	uint32_t *n = &s->params.n_bias;
	int more = 1;

	while (more > 0) {
		int ret = check_room(cli, name, *n);

		if (ret == 0)
			ret = take_bias(cli, name, &text, &s->biases[*n]);
		if (ret != 0)
			return ret;
		(*n)++;
		more = take_comma(cli, name, &text);
	}
	return -more;
}

static int parse_i32(const struct cli *cli, const char *name, const char *text, int32_t *ret)
{
	int64_t n;
	int code = parse_int(cli, name, text, INT32_MIN, INT32_MAX, &n);

	if (code == 0)
		*ret = (int32_t)n;
	return code;
}

/* Where the number of an option goes; NULL: it takes none. */
static float *float_of(struct nsv_client_params *p, int option, const char **ret_name)
{
	const struct {
		int option;
		const char *name;
		float *at;
	} rules[] = {
		{SAMPLING_TEMPERATURE, "--temperature", &p->temperature},
		{SAMPLING_TOP_P, "--top-p", &p->top_p},
		{SAMPLING_MIN_P, "--min-p", &p->min_p},
		{SAMPLING_TYPICAL_P, "--typical-p", &p->typical_p},
		{SAMPLING_REPETITION_PENALTY, "--repetition-penalty", &p->repetition_penalty},
		{SAMPLING_PRESENCE_PENALTY, "--presence-penalty", &p->presence_penalty},
		{SAMPLING_FREQUENCY_PENALTY, "--frequency-penalty", &p->frequency_penalty},
	};

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (rules[i].option == option) {
			*ret_name = rules[i].name;
			return rules[i].at;
		}
	return NULL;
}

int sampling_option(const struct cli *cli, struct sampling *s, int option, const char *value)
{
	struct nsv_client_params *p = &s->params;
	const char *name;
	float *x = float_of(p, option, &name);

	if (x)
		return parse_float(cli, name, value, x);
	switch (option) {
	case 'n':
		return cli_parse_u32(cli, "--max-tokens", value, &p->max_tokens);
	case SAMPLING_MIN_TOKENS:
		return cli_parse_u32(cli, "--min-tokens", value, &p->min_tokens);
	case SAMPLING_PENALTY_WINDOW:
		return cli_parse_u32(cli, "--penalty-window", value, &p->penalty_window);
	case SAMPLING_TOP_K:
		return parse_i32(cli, "--top-k", value, &p->top_k);
	case SAMPLING_PRIORITY:
		return parse_i32(cli, "--priority", value, &p->priority);
	case SAMPLING_SEED:
		return parse_seed(cli, value, p);
	case SAMPLING_STOP:
		return add_stop(cli, s, value);
	case SAMPLING_IGNORE_END:
		p->flags |= NSV_CLIENT_IGNORE_END;
		return 0;
	case SAMPLING_LOGIT_BIAS:
		return add_biases(cli, s, value);
	case SAMPLING_ALLOW:
		return add_ids(cli, "--allow", value, s->allow, &p->n_allow);
	case SAMPLING_BAN:
		return add_ids(cli, "--ban", value, s->ban, &p->n_ban);
	case SAMPLING_STOP_ID:
		return add_ids(cli, "--stop-id", value, s->stop_ids, &p->n_stop_id);
	default: /* getopt_long has said what is wrong */
		return EXIT_USAGE;
	}
}

/* The option that sets a parameter of this name, or NULL. */
static const char *option_of(const char *name, size_t len)
{
	static const struct option options[] = {SAMPLING_OPTIONS, {0}};
	char spelled[32];

	if (len == strlen("n_logprob") && memcmp(name, "n_logprob", len) == 0)
		return "logprobs";
	snprintf(spelled, sizeof(spelled), "%.*s", (int)len, name);
	for (char *p = spelled; *p; p++)
		if (*p == '_')
			*p = '-';
	for (const struct option *o = options; o->name; o++)
		if (strcmp(o->name, spelled) == 0)
			return o->name;
	return NULL;
}

int sampling_refused(const struct cli *cli, const char *sentence)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";
	char text[512] = "";
	size_t n = 0;

	for (const char *p = sentence; *p && n < sizeof(text); p += strcspn(p, letters)) {
		size_t len = strspn(p, letters), rest = strcspn(p + len, letters);
		/* A plain word is a parameter only where the sentence begins with it. */
		const char *option =
			p == sentence || memchr(p, '_', len) ? option_of(p, len) : NULL;
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%.*s%.*s", option ? "--" : "",
			option ? (int)strlen(option) : (int)len, option ? option : p, (int)rest,
			p + len);
		p += len;
	}
	return cli_failed(cli, "%s", text);
}
