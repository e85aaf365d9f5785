/* Embedding rows: copies with a change of form. */
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
