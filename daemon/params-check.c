/* Ranges of the parameters. */
#include "daemon/params.h"

#include <float.h>
#include <string.h>

#define MAX_PRIORITY 100

struct float_rule {
	const char *name;
	size_t off;
	float least, most;
	bool open; /* `least` itself is refused */
};

#define FIELD(f) #f, offsetof(struct nsv_params, f)

static const struct float_rule float_rules[] = {
	{FIELD(temperature), 0, FLT_MAX, false},
	{FIELD(top_p), 0, 1, true},
	{FIELD(min_p), 0, 1, false},
	{FIELD(typical_p), 0, 1, true},
	{FIELD(repetition_penalty), 0, FLT_MAX, true},
	{FIELD(presence_penalty), -FLT_MAX, FLT_MAX, false},
	{FIELD(frequency_penalty), -FLT_MAX, FLT_MAX, false},
};

/* Written so that NaN, which compares false, fits no range. */
static int check_float(const struct float_rule *r, float x, struct nsv_err *err)
{
	bool fits = x <= r->most && (r->open ? x > r->least : x >= r->least);

	if (!fits && r->most == FLT_MAX)
		return nsv_fail(err, NSV_E_PARAM, "%s is %g: it must be finite%s", r->name,
			(double)x,
			r->least < 0 ? ""
			: r->open    ? " and above 0"
				     : " and 0 or more");
	if (!fits)
		return nsv_fail(err, NSV_E_PARAM, "%s is %g: it must lie in %s%g, %g]", r->name,
			(double)x, r->open ? "(" : "[", (double)r->least, (double)r->most);
	return 0;
}

static int check_words(const struct nsv_params *p, struct nsv_err *err)
{
	const uint32_t known = NSV_PARAM_FLAGS;

	for (size_t i = 0; i < NSV_ARRAY_LEN(p->reserved); i++)
		if (p->reserved[i])
			return nsv_fail(err, NSV_E_PARAM, "reserved word %zu is not zero", i);
	if (p->flags & ~known)
		return nsv_fail(err, NSV_E_PARAM, "unknown flags %#x", p->flags & ~known);
	if (p->top_k < 0)
		return nsv_fail(err, NSV_E_PARAM, "top_k is %d: it must be 0 or more", p->top_k);
	if (p->n_branch > NSV_MAX_BRANCH)
		return nsv_fail(err, NSV_E_PARAM, "n_branch is %u: at most %u", p->n_branch,
			NSV_MAX_BRANCH);
	if (p->priority < -MAX_PRIORITY || p->priority > MAX_PRIORITY)
		return nsv_fail(err, NSV_E_PARAM, "priority is %d: it must lie in [%d, %d]",
			p->priority, -MAX_PRIORITY, MAX_PRIORITY);
	if (p->max_tokens && p->min_tokens > p->max_tokens)
		return nsv_fail(err, NSV_E_PARAM, "min_tokens is %u, above max_tokens, %u",
			p->min_tokens, p->max_tokens);
	return 0;
}

static int check_log_probs(const struct nsv_params *p, struct nsv_err *err)
{
	if (p->n_logprob > NSV_MAX_LOGPROB)
		return nsv_fail(err, NSV_E_PARAM, "n_logprob is %u: at most %u are given",
			p->n_logprob, NSV_MAX_LOGPROB);
	if (p->n_logprob > 0 && !(p->flags & (NSV_PARAM_LOGPROBS | NSV_PARAM_PROMPT_LOGPROBS)))
		return nsv_fail(
			err, NSV_E_PARAM, "n_logprob is %u without the flag for it", p->n_logprob);
	return 0;
}

int nsv_params_check(const struct nsv_params *params, struct nsv_err *err)
{
	int ret = check_words(params, err);

	if (ret == 0)
		ret = check_log_probs(params, err);
	for (size_t i = 0; ret == 0 && i < NSV_ARRAY_LEN(float_rules); i++) {
		float x;

		memcpy(&x, (const char *)params + float_rules[i].off, sizeof(x));
		ret = check_float(&float_rules[i], x, err);
	}
	return ret;
}

struct nsv_params nsv_params_default(void)
{
	return (struct nsv_params){.len = sizeof(struct nsv_params),
		.top_p = 1,
		.typical_p = 1,
		.repetition_penalty = 1,
		.n_branch = 1};
}

void nsv_params_drop_prompt_logprobs(struct nsv_params *params)
{
	params->flags &= ~(uint32_t)NSV_PARAM_PROMPT_LOGPROBS;
	if (!(params->flags & NSV_PARAM_LOGPROBS))
		params->n_logprob = 0;
}
