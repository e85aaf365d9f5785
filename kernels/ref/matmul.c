/* Weights as plain floats, (n_out, n_in) after a short header; a product is one dot a number. */
#include "kernels/ref/ref.h"

#include <string.h>

struct weight {
	uint32_t n_out, n_in;
	char pad[56];
	float w[]; /* (n_out, n_in) */
};

int nsv_ref_weight_len(const struct nsv_matrix *m, uint32_t n_m, size_t *ret_len)
{
	size_t n_out = 0, len;
	for (uint32_t i = 0; i < n_m; i++) {
		int r = nsv_dtype_row_len(m[i].dtype, m[i].n_in, &len);
		if (r < 0)
			return r;
		if (m[i].n_in != m[0].n_in || !m[i].n_in || !m[i].n_out)
			return -EINVAL;
		n_out += m[i].n_out;
	}
	if (n_m == 0)
		return -EINVAL;
	if (n_out > UINT32_MAX || !nsv_mul(n_out, m[0].n_in, &len) ||
		!nsv_mul(len, sizeof(float), &len) || !nsv_add(len, sizeof(struct weight), &len))
		return -EOVERFLOW;
	*ret_len = len;
	return 0;
}

static void pack_rows(const struct nsv_part *part, const struct nsv_matrix *m, float *w)
{
	size_t row_len = 0, begin, end;
	nsv_dtype_row_len(m->dtype, m->n_in, &row_len);
	nsv_part_range(part, m->n_out, 1, &begin, &end);
	for (size_t o = begin; o < end; o++)
		nsv_ref_dequant(
			m->dtype, (const char *)m->data + o * row_len, w + o * m->n_in, m->n_in);
}

void nsv_ref_weight_pack(
	const struct nsv_part *part, const struct nsv_matrix *m, uint32_t n_m, void *dst)
{
	struct weight *weight = dst;
	size_t n_out = 0;
	for (uint32_t i = 0; i < n_m; i++) {
		pack_rows(part, &m[i], weight->w + n_out * m[i].n_in);
		n_out += m[i].n_out;
	}
	if (part->index == 0) {
		weight->n_out = (uint32_t)n_out;
		weight->n_in = m[0].n_in;
	}
}

size_t nsv_ref_acts_len(uint32_t n_row, uint32_t n_in)
{
	return (size_t)n_row * n_in * sizeof(float);
}

void nsv_ref_acts_set(const struct nsv_part *part, void *acts, const float *x, size_t ld,
	uint32_t n_row, uint32_t n_in)
{
	size_t begin, end;
	nsv_part_range(part, n_row, 1, &begin, &end);
	for (size_t r = begin; r < end; r++)
		memcpy((float *)acts + r * n_in, x + r * ld, n_in * sizeof(float));
}

/* Eight sums, element i in sum i % 8, then added in order. */
static float dot(const float *a, const float *b, uint32_t n)
{
	double sum[8] = {0}, all = 0;
	uint32_t i = 0;
	for (; i + 8 <= n; i += 8)
		for (uint32_t j = 0; j < 8; j++)
			sum[j] += (double)a[i + j] * (double)b[i + j];
	for (; i < n; i++)
		sum[i % 8] += (double)a[i] * (double)b[i];
	for (uint32_t j = 0; j < 8; j++)
		all += sum[j];
	return (float)all;
}

void nsv_ref_matmul(const struct nsv_part *part, float *out, size_t ld_out, const void *weight,
	const void *acts, uint32_t n_row, const struct nsv_scan_slices *slices)
{
	const struct weight *w = weight;
	const float *x = acts;
	size_t begin, end;
	nsv_part_range(part, w->n_out, slices ? NSV_SCAN_SLICE : 16, &begin, &end);
	for (size_t o = begin; o < end; o++)
		for (size_t r = 0; r < n_row; r++)
			out[r * ld_out + o] = dot(x + r * w->n_in, w->w + o * w->n_in, w->n_in);
	if (slices)
		nsv_scan_look(out, ld_out, n_row, w->n_out, begin / NSV_SCAN_SLICE,
			nsv_scan_n_slice((uint32_t)end), slices);
}
