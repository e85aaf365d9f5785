/* The operations on rows, over sixteen lanes; ops-<isa>.c defines FN(name) and includes this. Each
 * result depends on its own row alone: sums go by lane, element i in lane i % 16, then halving. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

ALWAYS_INLINE uint32_t lanes_at(size_t i, size_t n)
{
	return (uint32_t)nsv_min(n - i, VF_N);
}

static void norm_row(float *out, const float *x, const float *w, uint32_t n, float eps)
{
	vf sum = vf_set1(0), scale;
	for (uint32_t i = 0; i < n; i += VF_N) {
		vf v = vf_load_n(x + i, lanes_at(i, n));
		sum = vf_fma(v, v, sum);
	}
	scale = vf_set1(1.0f / sqrtf(vf_sum(sum) / (float)n + eps));
	for (uint32_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		vf v = vf_mul(vf_load_n(x + i, l), scale);
		vf_store_n(out + i, vf_mul(v, vf_load_n(w + i, l)), l);
	}
}

void FN(rmsnorm)(const struct nsv_part *part, float *out, const float *x, const float *w, size_t ld,
	uint32_t n_row, uint32_t n, float eps)
{
	size_t begin, end;
	nsv_part_range(part, n_row, 1, &begin, &end);
	for (size_t r = begin; r < end; r++)
		norm_row(out + r * ld, x + r * ld, w, n, eps);
}

static void add_span(float *x, const float *y, size_t n)
{
	for (size_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		vf_store_n(x + i, vf_add(vf_load_n(x + i, l), vf_load_n(y + i, l)), l);
	}
}

void FN(add)(const struct nsv_part *part, float *x, const float *y, size_t n)
{
	size_t begin, end;
	nsv_part_range(part, n, VF_N, &begin, &end);
	add_span(x + begin, y + begin, end - begin);
}

void FN(add_bias)(const struct nsv_part *part, float *x, size_t ld, const float *bias,
	uint32_t n_row, uint32_t n)
{
	size_t begin, end;
	nsv_part_range(part, n, VF_N, &begin, &end);
	for (size_t r = 0; r < n_row; r++)
		add_span(x + r * ld + begin, bias + begin, end - begin);
}

static void rope_norm(float *x, const float *cs, uint32_t n_rot)
{
	for (uint32_t i = 0; i + 1 < n_rot; i += 2) {
		float c = cs[i], s = cs[i + 1], x0 = x[i], x1 = x[i + 1];
		x[i] = x0 * c - x1 * s;
		x[i + 1] = x0 * s + x1 * c;
	}
}

static void rope_neox(float *x, const float *cs, uint32_t n_rot)
{
	uint32_t half = n_rot / 2;
	for (uint32_t i = 0; i < half; i++) {
		float c = cs[2 * i], s = cs[2 * i + 1], x0 = x[i], x1 = x[i + half];
		x[i] = x0 * c - x1 * s;
		x[i + half] = x0 * s + x1 * c;
	}
}

void FN(rope)(const struct nsv_part *part, float *x, size_t ld, const float *cs, uint32_t n_row,
	uint32_t n_head, uint32_t head_dim, uint32_t n_rot, enum nsv_rope_kind kind)
{
	size_t begin, end;
	nsv_part_range(part, (size_t)n_row * n_head, 1, &begin, &end);
	for (size_t i = begin; i < end; i++) {
		size_t r = i / n_head;
		float *head = x + r * ld + i % n_head * head_dim;
		if (kind == NSV_ROPE_NORM)
			rope_norm(head, cs + r * (n_rot / 2) * 2, n_rot);
		else
			rope_neox(head, cs + r * (n_rot / 2) * 2, n_rot);
	}
}

/* Both are g * sigmoid(y): SiLU with y = g; tanh's GELU with y = 2 sqrt(2/pi) (g + 0.044715
 * g^3). */
ALWAYS_INLINE vf act_of(vf g, enum nsv_act act)
{
	const vf one = vf_set1(1.0f), zero = vf_set1(0);
	vf y = g;
	if (act == NSV_ACT_GELU_TANH) {
		vf cube = vf_mul(vf_mul(g, g), vf_mul(g, vf_set1(0.044715f)));
		y = vf_mul(vf_set1(1.5957691216f), vf_add(g, cube));
	}
	return vf_div(g, vf_add(one, vf_exp(vf_sub(zero, y))));
}

ALWAYS_INLINE void gate_span(
	float *out, const float *gate, const float *up, size_t n, enum nsv_act act)
{
	for (size_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		vf a = act_of(vf_load_n(gate + i, l), act);
		vf_store_n(out + i, vf_mul(a, vf_load_n(up + i, l)), l);
	}
}

void FN(gate)(const struct nsv_part *part, float *out, const float *gate, const float *up,
	size_t ld, uint32_t n_row, uint32_t n, enum nsv_act act)
{
	size_t begin, end, r;
	nsv_part_range(part, n, VF_N, &begin, &end);
	for (r = 0; r < n_row; r++) {
		size_t at = r * ld + begin;
		if (act == NSV_ACT_SILU)
			gate_span(
				out + r * n + begin, gate + at, up + at, end - begin, NSV_ACT_SILU);
		else
			gate_span(out + r * n + begin, gate + at, up + at, end - begin,
				NSV_ACT_GELU_TANH);
	}
}

static void softmax_row(float *p, const float *x, uint32_t n)
{
	const vf none = vf_set1(-INFINITY);
	vf max = none, sum = vf_set1(0);
	for (uint32_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		max = vf_max(max, vf_between(0, l, vf_load_n(x + i, l), none));
	}
	max = vf_set1(vf_hmax(max));
	for (uint32_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		vf e = vf_exp(vf_sub(vf_load_n(x + i, l), max));
		e = vf_between(0, l, e, vf_set1(0));
		sum = vf_add(sum, e);
		vf_store_n(p + i, e, l);
	}
	sum = vf_set1(vf_sum(sum));
	for (uint32_t i = 0; i < n; i += VF_N) {
		uint32_t l = lanes_at(i, n);
		vf_store_n(p + i, vf_div(vf_load_n(p + i, l), sum), l);
	}
}

void FN(softmax)(const struct nsv_part *part, float *p, const float *x, uint32_t n_row, uint32_t n)
{
	size_t begin, end;
	nsv_part_range(part, n_row, 1, &begin, &end);
	for (size_t r = begin; r < end; r++)
		softmax_row(p + r * n, x + r * n, n);
}

/* ---- Appending to the pools ------------------------------------------------------------- */

/* Sixteen elements, `stride` apart from element `at` on; n of them are there. */
ALWAYS_INLINE void put_f16(uint16_t *pool, int64_t at, int64_t stride, vf x, uint32_t n)
{
	uint16_t h[VF_N];
	if (stride == 1 && n == VF_N) {
		vf_store_f16_kv(pool + at, x);
		return;
	}
	vf_store_f16_kv(h, x);
	for (uint32_t i = 0; i < n; i++)
		pool[at + i * stride] = h[i];
}

/* A head's dimensions to their places, from element `at` on. */
static void append_head(const struct nsv_attn_shape *s, const struct nsv_kv_layout *l, void *pool,
	int64_t at, const float *x)
{
	if (s->kv_dtype == NSV_F32 && l->dim_stride == 1) {
		memcpy((float *)pool + at, x, s->head_dim * sizeof(float));
		return;
	}
	if (s->kv_dtype != NSV_F16) {
		for (uint32_t d = 0; d < s->head_dim; d++)
			nsv_store_kv(s->kv_dtype, pool, at + d * l->dim_stride, x[d]);
		return;
	}
	for (uint32_t d = 0; d < s->head_dim; d += VF_N) {
		uint32_t n = lanes_at(d, s->head_dim);
		put_f16(pool, at + d * l->dim_stride, l->dim_stride, vf_load_n(x + d, n), n);
	}
}

/* (n_kv_head, head_dim) floats to one slot. */
static void append_slot(const struct nsv_attn_shape *s, const struct nsv_kv_layout *l, void *pool,
	const float *x, int64_t slot)
{
	int64_t at = slot / s->block_size * l->block_stride + slot % s->block_size * l->tok_stride;
	for (uint32_t h = 0; h < s->n_kv_head; h++)
		append_head(s, l, pool, at + h * l->head_stride, x + (size_t)h * s->head_dim);
}

void FN(kv_append)(const struct nsv_part *part, const struct nsv_attn_shape *shape, void *k_pool,
	void *v_pool, const float *k, const float *v, size_t ld, const int64_t *slots,
	uint32_t n_row)
{
	size_t begin, end;
	nsv_part_range(part, n_row, 1, &begin, &end);
	for (size_t r = begin; r < end; r++) {
		append_slot(shape, &shape->k, k_pool, k + r * ld, slots[r]);
		append_slot(shape, &shape->v, v_pool, v + r * ld, slots[r]);
	}
}
