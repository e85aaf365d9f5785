/* Embedding rows and appending to the KV pools: copies with a change of form. */
#include "kernels/cpu/ops-any.h"
#include "kernels/cpu/pack.h"
#include "kernels/half.h"

static void embed_block(float *out, const struct nsv_matrix *m, const void *row, size_t b)
{
	struct nsv_cpu_block block;
	nsv_cpu_read_block(m->dtype, row, b, &block);
	for (uint32_t i = 0; i < NSV_CPU_BLOCK; i++)
		out[i] = block.d * (float)block.scale[i / 16] *
				(float)nsv_cpu_value(m->dtype, block.q[i]) +
			block.m * (float)block.min[i / 16];
}

static void embed_span(
	float *out, const struct nsv_matrix *m, const void *row, size_t begin, size_t end)
{
	if (nsv_dtype_info(m->dtype)->n_elem == 1) {
		for (size_t i = begin; i < end; i++)
			out[i] = nsv_load_elem(m->dtype, row, (int64_t)i);
		return;
	}
	for (size_t i = begin; i < end; i += NSV_CPU_BLOCK)
		embed_block(out + i, m, row, i / NSV_CPU_BLOCK);
}

void nsv_cpu_embed(const struct nsv_part *part, float *out, const struct nsv_matrix *m,
	const int32_t *ids, uint32_t n_row, float scale)
{
	size_t row_len = 0, begin, end;
	nsv_dtype_row_len(m->dtype, m->n_in, &row_len);
	nsv_part_range(part, m->n_in, NSV_CPU_BLOCK, &begin, &end);
	for (size_t r = 0; r < n_row; r++) {
		float *row = out + r * m->n_in;
		embed_span(row, m, (const char *)m->data + (size_t)ids[r] * row_len, begin, end);
		for (size_t i = begin; i < end; i++)
			row[i] *= scale;
	}
}

/* (n_kv_head, head_dim) floats to one slot. */
static void append(const struct nsv_attn_shape *s, const struct nsv_kv_layout *l, void *pool,
	const float *x, int64_t slot)
{
	int64_t at = slot / s->block_size * l->block_stride + slot % s->block_size * l->tok_stride;
	for (uint32_t h = 0; h < s->n_kv_head; h++, at += l->head_stride, x += s->head_dim) {
		if (s->kv_dtype == NSV_F32 && l->dim_stride == 1) {
			memcpy((float *)pool + at, x, s->head_dim * sizeof(float));
			continue;
		}
		for (uint32_t d = 0; d < s->head_dim; d++)
			nsv_store_elem(s->kv_dtype, pool, at + d * l->dim_stride, x[d]);
	}
}

void nsv_cpu_kv_append(const struct nsv_part *part, const struct nsv_attn_shape *shape,
	void *k_pool, void *v_pool, const float *k, const float *v, size_t ld, const int64_t *slots,
	uint32_t n_row)
{
	size_t begin, end;
	nsv_part_range(part, n_row, 1, &begin, &end);
	for (size_t r = begin; r < end; r++) {
		append(shape, &shape->k, k_pool, k + r * ld, slots[r]);
		append(shape, &shape->v, v_pool, v + r * ld, slots[r]);
	}
}
