/* Steps computed on the CPU, by whoever submits them. */
#include "daemon/exec.h"

#include <string.h>

struct exec_cpu {
	struct nsv_exec base; /* first */
	struct nsv_model *model;
	struct nsv_dispatch *dispatch;
	const struct nsv_model_kv *kv;
	char *host;
	struct nsv_sampler *sampler;
	uint32_t n_vocab;
	int32_t *last;	 /* (max_seq): the token that each place sampled last */
	int32_t *tokens; /* (max_row) */
	float *logits;	 /* (nsv_exec_max_out, n_vocab) */
};

static void move_blocks(const struct exec_cpu *x, const struct nsv_exec_step *step)
{
	const struct nsv_attn_shape *shape = &x->kv->shape;
	size_t len = (size_t)shape->k.block_stride * nsv_dtype_info(shape->kv_dtype)->n_byte;
	char *base = x->kv->base;

	for (uint32_t i = 0; i < step->n_swap_out; i++)
		memcpy(x->host + (size_t)step->swaps_out[i].host * len,
			base + (size_t)step->swaps_out[i].pool * len, len);
	for (uint32_t i = 0; i < step->n_swap_in; i++)
		memcpy(base + (size_t)step->swaps_in[i].pool * len,
			x->host + (size_t)step->swaps_in[i].host * len, len);
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

static void sample(struct exec_cpu *x, const struct nsv_exec_step *step, uint32_t i)
{
	struct nsv_exec_result *r = &step->results[i];
	const float *logits = x->logits + (size_t)i * x->n_vocab;
	struct nsv_sample_in in = step->ins[i];

	if (step->given[i] != NSV_TOKEN_SAMPLE) {
		r->token = step->given[i];
		r->ret = nsv_log_probs(logits, x->n_vocab, r->token, r->lps, step->n_lps[i]);
		return;
	}
	in.logits = logits;
	r->token = 0;
	r->ret = nsv_sample_next(x->sampler, &in, &r->token, r->lps, step->n_lps[i]);
	x->last[step->places[step->out_seqs[i]]] = r->token;
}

static int submit(struct nsv_exec *exec, const struct nsv_exec_step *step, struct nsv_err *err)
{
	struct exec_cpu *x = (struct exec_cpu *)exec;
	struct nsv_batch batch = step->batch;

	move_blocks(x, step);
	if (batch.n_row == 0)
		return 0;
	fill_tokens(x, step);
	batch.tokens = x->tokens;
	int ret = nsv_model_forward(x->model, x->dispatch, x->kv, &batch, x->logits, err);
	for (uint32_t i = 0; ret == 0 && i < batch.n_out; i++)
		sample(x, step, i);
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
	free(x->logits);
	free(x);
}

int nsv_exec_cpu_new(struct nsv_model *model, struct nsv_dispatch *dispatch,
	const struct nsv_model_kv *kv, void *host, struct nsv_sampler *sampler, uint32_t max_seq,
	uint32_t max_row, uint32_t depth, struct nsv_exec **ret_exec)
{
	struct exec_cpu *x = calloc(1, sizeof(*x));

	if (!x)
		return -ENOMEM;
	*x = (struct exec_cpu){.base = {depth, submit, collect, free_cpu},
		.model = model,
		.dispatch = dispatch,
		.kv = kv,
		.host = host,
		.sampler = sampler,
		.n_vocab = nsv_model_get_desc(model)->n_vocab,
		.last = calloc(max_seq, sizeof(*x->last)),
		.tokens = calloc(max_row, sizeof(*x->tokens)),
		.logits = calloc(
			(size_t)nsv_exec_max_out(max_seq) * nsv_model_get_desc(model)->n_vocab,
			sizeof(float))};
	if (!x->last || !x->tokens || !x->logits) {
		free_cpu(&x->base);
		return -ENOMEM;
	}
	*ret_exec = &x->base;
	return 0;
}
