/* Finding shared prefixes: one walk over the batch, each sequence against the first of its
 * group. */
#include "kernels/attn_shared.h"

/* Keys, of the first `limit`, that lie in the same blocks and before the rows of both. */
static uint32_t common_keys(const struct nsv_attn_shape *shape, const struct nsv_attn_seq *a,
	const struct nsv_attn_seq *b, uint32_t limit)
{
	uint32_t n = nsv_min(nsv_min(a->n_past, b->n_past), limit), i = 0;
	while (i < n / shape->block_size && a->block_table[i] == b->block_table[i])
		i++;
	return i * shape->block_size;
}

static struct nsv_attn_shared group_of(const struct nsv_attn_seq *seqs, uint32_t i)
{
	return (struct nsv_attn_shared){
		.first = i,
		.n_seq = 1,
		.row0 = seqs[i].row0,
		.n_row = seqs[i].n_query,
		.n_key = seqs[i].n_past,
	};
}

/* Takes a sequence into a group, if it shares enough and its rows are the next ones. */
static bool try_join(const struct nsv_attn_shape *shape, const struct nsv_attn_seq *seqs,
	const struct nsv_attn_seq *seq, uint32_t unit, struct nsv_attn_shared *group)
{
	if (!seq->n_query || !group->n_row || seq->row0 != group->row0 + group->n_row)
		return false;
	uint32_t n_key = common_keys(shape, &seqs[group->first], seq, group->n_key);
	n_key -= n_key % unit;
	if (!n_key || (uint64_t)group->n_seq * n_key < (uint64_t)(group->n_seq - 1) * group->n_key)
		return false;
	group->n_seq++;
	group->n_row += seq->n_query;
	group->n_key = n_key;
	return true;
}

static bool pays(const struct nsv_attn_sharing *use, const struct nsv_attn_shared *group)
{
	uint64_t saved = (uint64_t)(group->n_seq - 1) * group->n_key;
	return group->n_seq > 1 && group->n_key >= use->min_key && saved >= use->min_saved;
}

uint32_t nsv_attn_find_shared(const struct nsv_attn_shape *shape, const struct nsv_attn_seq *seqs,
	uint32_t n_seq, const struct nsv_attn_sharing *use, struct nsv_attn_shared *ret,
	uint32_t max)
{
	uint32_t n = 0, i = 0;
	while (!shape->window && i < n_seq && n < max) {
		struct nsv_attn_shared group = group_of(seqs, i++);
		while (i < n_seq && try_join(shape, seqs, &seqs[i], use->unit, &group))
			i++;
		if (pays(use, &group))
			ret[n++] = group;
	}
	return n;
}
