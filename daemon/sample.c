/* The sampler: random numbers, log-probabilities, and a row from its logits to its token. */
#include "daemon/sample.h"

#include <math.h>
#include <string.h>

#include "daemon/sample-draw.h"

/* ---- Random numbers */

#define PHILOX_M0 0xd2511f53u
#define PHILOX_M1 0xcd9e8d57u
#define PHILOX_W0 0x9e3779b9u
#define PHILOX_W1 0xbb67ae85u

float nsv_uniform(uint64_t seed, uint32_t branch, uint64_t position)
{
	uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), branch, 0};
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

	for (int round = 0; round < 10; round++, k0 += PHILOX_W0, k1 += PHILOX_W1) {
		uint64_t a = (uint64_t)PHILOX_M0 * c[0], b = (uint64_t)PHILOX_M1 * c[2];

		c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
		c[1] = (uint32_t)b;
		c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
		c[3] = (uint32_t)a;
	}
	return (float)(c[0] >> 8) * 0x1p-24f;
}

/* ---- Log-probabilities of the logits as they came */

/* The n largest by rank: ids come in order, so an equal logit stays behind. */
static void find_largest(const struct nsv_draw *d, struct nsv_lp *best, uint32_t n)
{
	const float *logits = d->in->logits;

	for (uint32_t i = 0; i < n; i++)
		best[i] = (struct nsv_lp){-1, -INFINITY};
	for (uint32_t i = 0; n > 0; i++) {
		uint32_t j = n - 1;

		i = nsv_draw_first(d, logits, i, nextafterf(best[j].logprob, INFINITY));
		if (i == d->s->n_vocab)
			break;
		for (; j > 0 && logits[i] > best[j - 1].logprob; j--)
			best[j] = best[j - 1];
		best[j] = (struct nsv_lp){(int32_t)i, logits[i]};
	}
}

/* log_sum: ln of the sum of e^logit. The token is one of them. */
static void write_log_probs(const struct nsv_draw *d, double log_sum, int32_t token,
	struct nsv_lp *lp, uint32_t n_lp)
{
	const float *logits = d->in->logits;

	lp[0] = (struct nsv_lp){token, logits[token]};
	find_largest(d, lp + 1, n_lp - 1);
	for (uint32_t i = 0; i < n_lp; i++)
		lp[i].logprob = (float)(lp[i].logprob - log_sum);
}

int nsv_log_probs(struct nsv_sampler *s, const struct nsv_part *part, const float *logits,
	int32_t token, struct nsv_lp *lp, uint32_t n_lp)
{
	const struct nsv_sample_in in = {.logits = logits};
	struct nsv_scan_range range;
	struct nsv_draw d;

	if (token < 0 || (uint32_t)token >= s->n_vocab)
		return -EINVAL;
	nsv_draw_begin(&d, s, part, &in);
	nsv_draw_range(&d, logits, &range);
	double log_sum = range.finite ? nsv_draw_log_sum(&d, &range) : 0;
	if (range.finite && part->index == 0)
		write_log_probs(&d, log_sum, token, lp, n_lp);
	nsv_team_barrier(part);
	return range.finite ? 0 : -EDOM;
}

/* ---- The sampler */

int nsv_sampler_init(struct nsv_sampler *s, uint32_t n_vocab, uint32_t n_member)
{
	*s = (struct nsv_sampler){.n_vocab = n_vocab};
	if (n_vocab == 0 || n_vocab > INT32_MAX)
		return -EINVAL;
	s->cand = calloc(n_vocab, sizeof(*s->cand));
	s->rank = calloc(n_vocab, sizeof(*s->rank));
	s->weight = calloc(n_vocab, sizeof(*s->weight));
	s->key = calloc(n_vocab, sizeof(*s->key));
	s->left = calloc(n_vocab, sizeof(*s->left));
	s->left_id = calloc(n_vocab, sizeof(*s->left_id));
	s->place = calloc(n_vocab, sizeof(*s->place));
	s->adjusted = calloc(n_vocab, sizeof(*s->adjusted));
	s->count = calloc(n_vocab, sizeof(*s->count));
	s->mass = calloc((size_t)n_member * NSV_SCAN_BUCKETS, sizeof(*s->mass));
	s->share = aligned_alloc(NSV_CACHE_LINE, 2 * n_member * sizeof(*s->share));
	if (s->cand && s->rank && s->weight && s->key && s->left && s->left_id && s->place &&
		s->adjusted && s->count && s->mass && s->share)
		return 0;
	nsv_sampler_deinit(s);
	return -ENOMEM;
}

void nsv_sampler_deinit(struct nsv_sampler *s)
{
	free(s->cand);
	free(s->rank);
	free(s->weight);
	free(s->key);
	free(s->left);
	free(s->left_id);
	free(s->place);
	free(s->adjusted);
	free(s->count);
	free(s->mass);
	free(s->share);
	*s = (struct nsv_sampler){0};
}

int nsv_sampler_add_end(struct nsv_sampler *s, int32_t id)
{
	if (id < 0 || (uint32_t)id >= s->n_vocab)
		return -EINVAL;
	if (s->n_end == NSV_MAX_END)
		return -ENOSPC;
	s->end[s->n_end++] = id;
	return 0;
}

/* All that the members do together, up to the last meeting. */
static int sample(struct nsv_draw *d, int32_t *ret_token, struct nsv_lp *lp, uint32_t n_lp)
{
	const struct nsv_part *part = d->part;
	struct nsv_sampler *s = d->s;
	struct nsv_scan_range raw, range;

	nsv_draw_range(d, d->in->logits, &raw);
	if (!raw.finite)
		return -EDOM;
	double log_sum = n_lp > 0 ? nsv_draw_log_sum(d, &raw) : 0;
	if (part->index == 0)
		s->n_cand = nsv_sample_adjust(s, d->in, &s->x);
	nsv_team_barrier(part);
	if (s->n_cand == 0)
		return -ENODATA;
	range = raw;
	if (s->x != d->in->logits)
		nsv_draw_range(d, s->x, &range);
	int32_t token = nsv_draw_token(d, s->x, s->n_cand, &range);
	if (part->index != 0)
		return 0;
	if (n_lp > 0)
		write_log_probs(d, log_sum, token, lp, n_lp);
	*ret_token = token;
	return 0;
}

int nsv_sample_next(struct nsv_sampler *s, const struct nsv_part *part,
	const struct nsv_sample_in *in, int32_t *ret_token, struct nsv_lp *lp, uint32_t n_lp)
{
	struct nsv_draw d;

	nsv_draw_begin(&d, s, part, in);
	int ret = sample(&d, ret_token, lp, n_lp);
	nsv_team_barrier(part); /* the next row writes where this one is still read */
	return ret;
}

void nsv_sample_rows(const struct nsv_part *part, struct nsv_sampler *samplers, uint32_t n,
	nsv_sample_row_fn *fn, const void *arg)
{
	uint32_t n_taken = 0, i = 0;

	if (n < part->count)
		for (; i < n; i++)
			fn(part, &samplers[0], i, arg);
	else
		for (; (i = nsv_team_take(part, &n_taken)) < n;)
			fn(&nsv_team_alone, &samplers[part->index], i, arg);
}
