/* Paged attention, the oracle: walks the history through the block table and takes one plain causal
 * softmax over all of it. Two passes over the keys (maximum, then sums), so that no copy of the
 * history is held; a score is computed twice and is the same twice. */
#include "kernels/half.h"
#include "kernels/ref/ref.h"

struct head {
	const struct nsv_attn_call *call;
	const struct nsv_attn_seq *seq;
	const float *q; /* (head_dim) */
	uint32_t kv_head;
};

static int64_t offset_of(
	const struct head *h, const struct nsv_kv_layout *l, uint32_t pos, uint32_t d)
{
	const struct nsv_attn_shape *s = h->call->shape;
	uint64_t slot = (uint64_t)h->seq->block_table[pos / s->block_size] * s->block_size +
		pos % s->block_size;
	int64_t off = 0;
	nsv_attn_offset(s, l, slot, h->kv_head, d, &off);
	return off;
}

static float score(const struct head *h, uint32_t pos)
{
	const struct nsv_attn_shape *s = h->call->shape;
	double sum = 0;
	for (uint32_t d = 0; d < s->head_dim; d++)
		sum += (double)h->q[d] *
			(double)nsv_load_elem(s->kv_dtype, h->call->k, offset_of(h, &s->k, pos, d));
	sum *= (double)s->scale;
	if (s->softcap > 0)
		sum = (double)s->softcap * tanh(sum / (double)s->softcap);
	return (float)sum;
}

static void add_value(const struct head *h, uint32_t pos, double p, double *acc)
{
	const struct nsv_attn_shape *s = h->call->shape;
	for (uint32_t d = 0; d < s->head_dim; d++)
		acc[d] += p *
			(double)nsv_load_elem(s->kv_dtype, h->call->v, offset_of(h, &s->v, pos, d));
}

/* Keys [begin, end). */
static void attend(const struct head *h, uint32_t begin, uint32_t end, float *out)
{
	double acc[1024] = {0}, sum = 0;
	float max = -INFINITY;
	for (uint32_t i = begin; i < end; i++)
		max = fmaxf(max, score(h, i));
	for (uint32_t i = begin; i < end; i++) {
		double p = exp((double)score(h, i) - (double)max);
		add_value(h, i, p, acc);
		sum += p;
	}
	for (uint32_t d = 0; d < h->call->shape->head_dim; d++)
		out[d] = (float)(acc[d] / sum);
}

void nsv_ref_attention(const struct nsv_part *part, const struct nsv_attn_call *call)
{
	const struct nsv_attn_shape *s = call->shape;
	size_t n = 0;
	for (uint32_t i = 0; i < call->plan->n_seq; i++) {
		const struct nsv_attn_seq *seq = &call->seqs[i];
		for (size_t j = 0; j < (size_t)seq->n_query * s->n_head; j++, n++) {
			uint32_t row = (uint32_t)(j / s->n_head), head = (uint32_t)(j % s->n_head);
			size_t at = (seq->row0 + row) * call->plan->q_row_stride +
				(size_t)head * s->head_dim;
			struct head h = {call, seq, call->q + at, head / call->plan->group};
			uint32_t end = seq->n_past + row + 1;
			if (n % part->count == part->index)
				attend(&h, s->window && end > s->window ? end - s->window : 0, end,
					call->out + at);
		}
	}
}
