/* Steps computed on the CPU, by whoever submits them and a team. */
#include "daemon/exec.h"

#include <string.h>

#include "daemon/model/logits.h"

struct exec_cpu {
	struct nsv_exec base; /* first */
	struct nsv_exec_cpu_parts parts;
	int32_t *last;	 /* (max_seq): the token that each place sampled last */
	int32_t *tokens; /* (max_row) */
	struct nsv_logits logits; /* nsv_exec_max_out rows */
};

static void move_blocks(const struct exec_cpu *x, const struct nsv_exec_step *step)
{
	const struct nsv_attn_shape *shape = &x->parts.kv->shape;
	size_t len = (size_t)shape->k.block_stride * nsv_dtype_info(shape->kv_dtype)->n_byte;
	char *base = x->parts.kv->base;

	for (uint32_t i = 0; i < step->n_swap_out; i++)
		memcpy((char *)x->parts.host + (size_t)step->swaps_out[i].host * len,
			base + (size_t)step->swaps_out[i].pool * len, len);
	for (uint32_t i = 0; i < step->n_swap_in; i++)
		memcpy(base + (size_t)step->swaps_in[i].pool * len,
			(char *)x->parts.host + (size_t)step->swaps_in[i].host * len, len);
	for (uint32_t i = 0; i < step->n_copy; i++)
		memcpy(base + (size_t)step->copies[i].to * len,
			base + (size_t)step->copies[i].from * len, len);
}

/* Tokens that the host did not know yet are put in. */
static void fill_tokens(struct exec_cpu *x, const struct nsv_exec_step *step)
{
	const struct nsv_batch *b = &step->batch;

	for (uint32_t s = 0; s < b->n_seq; s++)
		for (uint32_t r = b->seqs[s].row0; r < b->seqs[s].row0 + b->seqs[s].n_query; r++)
			x->tokens[r] = b->tokens[r] == NSV_TOKEN_LAST ? x->last[step->places[s]]
								      : b->tokens[r];
}

/* ---- Sampling */

struct sampling {
	struct exec_cpu *x;
	const struct nsv_exec_step *step;
};

/* The first member's results count. */
static void sample_row(
	const struct nsv_part *part, struct nsv_sampler *s, uint32_t i, const void *arg)
{
	const struct sampling *a = arg;
	const struct nsv_exec_step *step = a->step;
	struct nsv_exec_result *r = &step->results[i];
	const struct nsv_logits *logits = &a->x->logits;
	struct nsv_sample_in in = step->ins[i];
	int32_t token = step->given[i];
	int ret;

	in.logits = logits->x + i * logits->ld;
	in.ranges = logits->ranges + (size_t)i * nsv_scan_n_slice(s->n_vocab);
	in.sum_scale = logits->scales[i];
	if (token != NSV_TOKEN_SAMPLE) {
		ret = nsv_log_probs(s, part, in.logits, token, r->lps, step->n_lps[i]);
	} else {
		token = 0;
		ret = nsv_sample_next(s, part, &in, &token, r->lps, step->n_lps[i]);
	}
	if (part->index != 0)
		return;
	r->token = token;
	r->ret = ret;
	if (step->given[i] == NSV_TOKEN_SAMPLE)
		a->x->last[step->places[step->out_seqs[i]]] = token;
}

static void sample_member(const struct nsv_part *part, void *arg)
{
	const struct sampling *a = arg;

	nsv_sample_rows(part, a->x->parts.samplers, a->step->batch.n_out, sample_row, a);
}

/* While logits are in cache their slices are looked at, for what sampling can use. */
static struct nsv_scan_slices want_slices(struct exec_cpu *x, const struct nsv_exec_step *step)
{
	for (uint32_t i = 0; i < step->batch.n_out; i++)
		x->logits.scales[i] = step->given[i] == NSV_TOKEN_SAMPLE
					      ? nsv_sample_sum_scale(&step->ins[i])
					      : 0;
	return (struct nsv_scan_slices){x->logits.ranges, x->logits.scales};
}

static int submit(struct nsv_exec *exec, const struct nsv_exec_step *step, struct nsv_err *err)
{
	struct exec_cpu *x = (struct exec_cpu *)exec;
	const struct nsv_exec_cpu_parts *p = &x->parts;
	struct nsv_batch batch = step->batch;

	move_blocks(x, step);
	if (batch.n_row == 0)
		return 0;
	fill_tokens(x, step);
	batch.tokens = x->tokens;
	batch.ld_out = x->logits.ld;
	batch.slices = want_slices(x, step);
	int ret = nsv_model_forward(p->model, p->dispatch, p->kv, &batch, x->logits.x, err);
	if (ret == 0 && batch.n_out > 0)
		nsv_team_run(p->team, sample_member, &(struct sampling){x, step});
	return ret;
}

static int collect(struct nsv_exec *exec, struct nsv_err *err)
{
	(void)exec, (void)err;
	return 0;
}

static void free_cpu(struct nsv_exec *exec)
{
	struct exec_cpu *x = (struct exec_cpu *)exec;

	free(x->last);
	free(x->tokens);
	nsv_logits_deinit(&x->logits);
	free(x);
}

int nsv_exec_cpu_new(const struct nsv_exec_cpu_parts *parts, uint32_t max_seq, uint32_t max_row,
	uint32_t depth, struct nsv_exec **ret_exec)
{
	uint32_t n_out = nsv_exec_max_out(max_seq);
	uint32_t n_vocab = nsv_model_get_desc(parts->model)->n_vocab;
	struct exec_cpu *x = calloc(1, sizeof(*x));

	if (!x)
		return -ENOMEM;
	*x = (struct exec_cpu){.base = {depth, submit, collect, free_cpu},
		.parts = *parts,
		.last = calloc(max_seq, sizeof(*x->last)),
		.tokens = calloc(max_row, sizeof(*x->tokens))};
	int ret = x->last && x->tokens ? nsv_logits_init(&x->logits, n_out, n_vocab) : -ENOMEM;
	if (ret < 0) {
		free_cpu(&x->base);
		return ret;
	}
	*ret_exec = &x->base;
	return 0;
}
