/* Steps 3 to 6 of sampling: what a request's history and its lists do to the logits. The counts are
 * put back to zero by the pass that reads them, so that no request sees another's. */
#include "daemon/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* A span of the history. */
struct span {
	const int32_t *tokens;
	size_t n;
};

static float to_float(double x)
{
	return (float)fmin(fmax(x, -FLT_MAX), FLT_MAX);
}

/* The last tokens that the penalties see, but none before `first`. */
static struct span window(const struct nsv_sample_in *in, size_t first)
{
	size_t n = (size_t)in->n_prompt + in->n_output, w = in->params->penalty_window;

	if (w > 0 && w < n)
		first = nsv_max(first, n - w);
	return (struct span){in->tokens + first, n - first};
}

static bool known(const struct nsv_sampler *s, int32_t id)
{
	return id >= 0 && (uint32_t)id < s->n_vocab;
}

static void count(struct nsv_sampler *s, struct span span)
{
	for (size_t i = 0; i < span.n; i++)
		if (known(s, span.tokens[i]))
			s->count[span.tokens[i]]++;
}

/* How often the id was counted, the first time that it is asked. */
static uint32_t take_count(struct nsv_sampler *s, int32_t id)
{
	uint32_t n = known(s, id) ? s->count[id] : 0;

	if (n > 0)
		s->count[id] = 0;
	return n;
}

static void penalise_repetition(struct nsv_sampler *s, const struct nsv_sample_in *in)
{
	double r = in->params->repetition_penalty;

	if (r == 1)
		return;
	struct span span = window(in, 0);
	count(s, span);
	for (size_t i = 0; i < span.n; i++)
		if (take_count(s, span.tokens[i]) > 0) {
			float *l = &s->adjusted[span.tokens[i]];
			*l = to_float(*l > 0 ? *l / r : *l * r);
		}
}

static void penalise_output(struct nsv_sampler *s, const struct nsv_sample_in *in)
{
	double presence = in->params->presence_penalty;
	double frequency = in->params->frequency_penalty;

	if (presence == 0 && frequency == 0)
		return;
	struct span span = window(in, in->n_prompt);
	count(s, span);
	for (size_t i = 0; i < span.n; i++) {
		uint32_t n = take_count(s, span.tokens[i]);

		if (n > 0) {
			float *l = &s->adjusted[span.tokens[i]];
			*l = to_float(*l - (presence + frequency * n));
		}
	}
}

static void add_bias(struct nsv_sampler *s, const struct nsv_sample_lists *lists)
{
	for (uint32_t i = 0; i < lists->n_bias; i++) {
		const struct nsv_bias *b = &lists->bias[i];

		if (known(s, b->id))
			s->adjusted[b->id] = to_float((double)s->adjusted[b->id] + b->bias);
	}
}

/* Returns how many ids are left. */
static size_t keep_allowed(struct nsv_sampler *s, const struct nsv_id_list *allow)
{
	float kept[NSV_MAX_LIST];
	size_t n = 0;

	if (allow->n == 0)
		return s->n_vocab;
	for (uint32_t i = 0; i < allow->n; i++)
		kept[i] = known(s, allow->id[i]) ? s->adjusted[allow->id[i]] : 0;
	for (uint32_t i = 0; i < s->n_vocab; i++)
		s->adjusted[i] = -INFINITY;
	for (uint32_t i = 0; i < allow->n; i++)
		if (known(s, allow->id[i])) {
			s->adjusted[allow->id[i]] = kept[i];
			n++;
		}
	return n;
}

/* Returns how many of n are left. */
static size_t ban(struct nsv_sampler *s, const int32_t *ids, size_t n_id, size_t n)
{
	for (size_t i = 0; i < n_id; i++)
		if (known(s, ids[i]) && s->adjusted[ids[i]] != -INFINITY) {
			s->adjusted[ids[i]] = -INFINITY;
			n--;
		}
	return n;
}

static bool has_lists(const struct nsv_sample_lists *l)
{
	return l && (l->n_bias || l->allow.n || l->ban.n);
}

static bool too_early(const struct nsv_sample_in *in)
{
	return in->n_output < in->params->min_tokens;
}

bool nsv_sample_is_neutral(const struct nsv_sample_in *in)
{
	const struct nsv_params *p = in->params;

	return p->repetition_penalty == 1 && p->presence_penalty == 0 &&
	       p->frequency_penalty == 0 && !has_lists(in->lists) && !too_early(in);
}

size_t nsv_sample_adjust(struct nsv_sampler *s, const struct nsv_sample_in *in, const float **ret_x)
{
	const struct nsv_sample_lists *lists = in->lists;
	size_t n = s->n_vocab;

	*ret_x = in->logits;
	if (nsv_sample_is_neutral(in))
		return n;
	*ret_x = s->adjusted;
	memcpy(s->adjusted, in->logits, n * sizeof(*s->adjusted));
	penalise_repetition(s, in);
	penalise_output(s, in);
	if (lists) {
		add_bias(s, lists);
		n = keep_allowed(s, &lists->allow);
		n = ban(s, lists->ban.id, lists->ban.n, n);
	}
	if (lists && too_early(in))
		n = ban(s, lists->stop.id, lists->stop.n, n);
	if (too_early(in) && !(in->params->flags & NSV_PARAM_IGNORE_END))
		n = ban(s, s->end, s->n_end, n);
	return n;
}

bool nsv_id_list_has(const struct nsv_id_list *list, int32_t id)
{
	uint32_t low = 0, high = list->n;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (list->id[mid] == id)
			return true;
		if (list->id[mid] < id)
			low = mid + 1;
		else
			high = mid;
	}
	return false;
}
