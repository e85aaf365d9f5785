/* The operations on rows, element by element. */
#include "kernels/half.h"
#include "kernels/ref/ref.h"

#define EMBED_MAX 256 /* the largest block of a stored row */

/* The whole blocks of one row that fall to this member. */
static void embed_row(const struct nsv_part *part, float *out, const struct nsv_matrix *m,
	int32_t id, float scale)
{
	const struct nsv_dtype_info *info = nsv_dtype_info(m->dtype);
	size_t row_len = 0, begin, end;
	const char *row;
	nsv_dtype_row_len(m->dtype, m->n_in, &row_len);
	nsv_part_range(part, m->n_in, EMBED_MAX, &begin, &end);
	row = (const char *)m->data + (size_t)id * row_len;
	nsv_ref_dequant(
		m->dtype, row + begin / info->n_elem * info->n_byte, out + begin, end - begin);
	for (size_t i = begin; i < end; i++)
		out[i] *= scale;
}

void nsv_ref_embed(const struct nsv_part *part, float *out, const struct nsv_matrix *m,
	const int32_t *ids, uint32_t n_row, float scale)
{
	for (size_t r = 0; r < n_row; r++)
		embed_row(part, out + r * m->n_in, m, ids[r], scale);
}

void nsv_ref_rmsnorm(const struct nsv_part *part, float *out, const float *x, const float *w,
	size_t ld, uint32_t n_row, uint32_t n, float eps)
{
	size_t begin, end;
	nsv_part_range(part, n_row, 1, &begin, &end);
	for (size_t r = begin; r < end; r++) {
		const float *xr = x + r * ld;
		double sum = 0, scale;
		for (uint32_t i = 0; i < n; i++)
			sum += (double)xr[i] * (double)xr[i];
		scale = 1.0 / sqrt(sum / n + (double)eps);
		for (uint32_t i = 0; i < n; i++)
			out[r * ld + i] = (float)((double)xr[i] * scale) * w[i];
	}
}

void nsv_ref_add(const struct nsv_part *part, float *x, const float *y, size_t n)
{
	size_t begin, end;
	nsv_part_range(part, n, 16, &begin, &end);
	for (size_t i = begin; i < end; i++)
		x[i] += y[i];
}

void nsv_ref_add_bias(const struct nsv_part *part, float *x, size_t ld, const float *bias,
	uint32_t n_row, uint32_t n)
{
	size_t begin, end;
	nsv_part_range(part, n, 16, &begin, &end);
	for (size_t r = 0; r < n_row; r++)
		for (size_t i = begin; i < end; i++)
			x[r * ld + i] += bias[i];
}

static void rope_head(float *x, const float *cs, uint32_t n_rot, enum nsv_rope_kind kind)
{
	uint32_t half = n_rot / 2;
	for (uint32_t i = 0; i < half; i++) {
		float *a = kind == NSV_ROPE_NORM ? &x[2 * i] : &x[i];
		float *b = kind == NSV_ROPE_NORM ? &x[2 * i + 1] : &x[i + half];
		float c = cs[2 * i], s = cs[2 * i + 1], x0 = *a, x1 = *b;
		*a = x0 * c - x1 * s;
		*b = x0 * s + x1 * c;
	}
}

void nsv_ref_rope(const struct nsv_part *part, float *x, size_t ld, const float *cs, uint32_t n_row,
	uint32_t n_head, uint32_t head_dim, uint32_t n_rot, enum nsv_rope_kind kind)
{
	size_t begin, end;
	nsv_part_range(part, (size_t)n_row * n_head, 1, &begin, &end);
	for (size_t i = begin; i < end; i++) {
		size_t r = i / n_head, h = i % n_head;
		rope_head(x + r * ld + h * head_dim, cs + r * (n_rot / 2) * 2, n_rot, kind);
	}
}

static double act_of(double g, enum nsv_act act)
{
	const double c = 0.79788456080286535588; /* sqrt(2 / pi) */
	if (act == NSV_ACT_SILU)
		return g / (1.0 + exp(-g));
	return 0.5 * g * (1.0 + tanh(c * (g + 0.044715 * g * g * g)));
}

void nsv_ref_gate(const struct nsv_part *part, float *out, const float *gate, const float *up,
	size_t ld, uint32_t n_row, uint32_t n, enum nsv_act act)
{
	size_t begin, end;
	nsv_part_range(part, n, 16, &begin, &end);
	for (size_t r = 0; r < n_row; r++)
		for (size_t i = begin; i < end; i++)
			out[r * n + i] =
				(float)act_of((double)gate[r * ld + i], act) * up[r * ld + i];
}

static void softmax_row(float *p, const float *x, uint32_t n)
{
	float max = x[0];
	double sum = 0;
	for (uint32_t i = 1; i < n; i++)
		max = x[i] > max ? x[i] : max;
	for (uint32_t i = 0; i < n; i++) {
		p[i] = expf(x[i] - max);
		sum += (double)p[i];
	}
	for (uint32_t i = 0; i < n; i++)
		p[i] = (float)((double)p[i] / sum);
}

void nsv_ref_softmax(
	const struct nsv_part *part, float *p, const float *x, uint32_t n_row, uint32_t n)
{
	size_t begin, end;
	nsv_part_range(part, n_row, 1, &begin, &end);
	for (size_t r = begin; r < end && n; r++)
		softmax_row(p + r * n, x + r * n, n);
}

static void append_row(const struct nsv_attn_shape *s, const struct nsv_kv_layout *l, void *pool,
	const float *x, int64_t slot)
{
	for (uint32_t h = 0; h < s->n_kv_head; h++)
		for (uint32_t d = 0; d < s->head_dim; d++) {
			int64_t off = 0;
			if (nsv_attn_offset(s, l, (uint64_t)slot, h, d, &off) == NSV_ATTN_OK)
				nsv_store_kv(s->kv_dtype, pool, off, x[h * s->head_dim + d]);
		}
}

void nsv_ref_kv_append(const struct nsv_part *part, const struct nsv_attn_shape *shape,
	void *k_pool, void *v_pool, const float *k, const float *v, size_t ld, const int64_t *slots,
	uint32_t n_row)
{
	size_t begin, end;
	nsv_part_range(part, n_row, 1, &begin, &end);
	for (size_t r = begin; r < end; r++) {
		append_row(shape, &shape->k, k_pool, k + r * ld, slots[r]);
		append_row(shape, &shape->v, v_pool, v + r * ld, slots[r]);
	}
}
