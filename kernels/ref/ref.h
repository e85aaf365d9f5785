/* The oracle: every operation in scalar, strict C, one order of evaluation, no cleverness. Never on
 * the path that users run; what the other backends are graded against. The `model` backend is the
 * same operations with another attention (kernels/cpu/model.c).
 *
 * Sums are kept in double. Members of a team share rows, or columns of one row; bits do not depend
 * on how. */
#ifndef NSV_KERNELS_REF_REF_H
#define NSV_KERNELS_REF_REF_H

#include "kernels/backend.h"

extern const struct nsv_backend nsv_reference_backend;
extern const struct nsv_backend nsv_model_backend;

/* n elements of a stored row, from element 0, to float. n is whole blocks; any alignment. */
void nsv_ref_dequant(uint32_t dtype, const void *row, float *out, size_t n);

/* What struct nsv_backend says of each. */
int nsv_ref_probe(struct nsv_err *err);
const char *nsv_ref_isa(void);
int nsv_ref_weight_len(const struct nsv_matrix *m, uint32_t n_m, size_t *ret_len);
void nsv_ref_weight_pack(
	const struct nsv_part *part, const struct nsv_matrix *m, uint32_t n_m, void *dst);
size_t nsv_ref_acts_len(uint32_t n_row, uint32_t n_in);
void nsv_ref_acts_set(const struct nsv_part *part, void *acts, const float *x, size_t ld,
	uint32_t n_row, uint32_t n_in);
void nsv_ref_matmul(const struct nsv_part *part, float *out, size_t ld_out, const void *weight,
	const void *acts, uint32_t n_row, const struct nsv_scan_slices *slices);
void nsv_ref_embed(const struct nsv_part *part, float *out, const struct nsv_matrix *m,
	const int32_t *ids, uint32_t n_row, float scale);
void nsv_ref_rmsnorm(const struct nsv_part *part, float *out, const float *x, const float *w,
	size_t ld, uint32_t n_row, uint32_t n, float eps);
void nsv_ref_add(const struct nsv_part *part, float *x, const float *y, size_t n);
void nsv_ref_add_bias(const struct nsv_part *part, float *x, size_t ld, const float *bias,
	uint32_t n_row, uint32_t n);
void nsv_ref_rope(const struct nsv_part *part, float *x, size_t ld, const float *cs, uint32_t n_row,
	uint32_t n_head, uint32_t head_dim, uint32_t n_rot, enum nsv_rope_kind kind);
void nsv_ref_gate(const struct nsv_part *part, float *out, const float *gate, const float *up,
	size_t ld, uint32_t n_row, uint32_t n, enum nsv_act act);
void nsv_ref_softmax(
	const struct nsv_part *part, float *p, const float *x, uint32_t n_row, uint32_t n);
void nsv_ref_kv_append(const struct nsv_part *part, const struct nsv_attn_shape *shape,
	void *k_pool, void *v_pool, const float *k, const float *v, size_t ld, const int64_t *slots,
	uint32_t n_row);
void nsv_ref_attention(const struct nsv_part *part, const struct nsv_attn_call *call);

/* All of a backend's table that is not its attention: what `reference` and `model` share. */
#define NSV_REF_OPERATIONS \
	.k_dim_major = false, .probe = nsv_ref_probe, .isa = nsv_ref_isa, \
	.weight_len = nsv_ref_weight_len, .weight_pack = nsv_ref_weight_pack, \
	.acts_len = nsv_ref_acts_len, .acts_set = nsv_ref_acts_set, .matmul = nsv_ref_matmul, \
	.embed = nsv_ref_embed, .rmsnorm = nsv_ref_rmsnorm, .add = nsv_ref_add, \
	.add_bias = nsv_ref_add_bias, .rope = nsv_ref_rope, .gate = nsv_ref_gate, \
	.softmax = nsv_ref_softmax, .kv_append = nsv_ref_kv_append

#endif
