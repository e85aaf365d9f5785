/* Packed weights and activations of the `cpu` backend.
 *
 * Weights: panels of 16 output rows, so that the lanes of a vector are output rows and no sum ever
 * crosses lanes. A quantised type becomes w = d * (q - zero) + m over blocks of 32 inputs:
 *
 *     weight | header | matrix 0: panel 0, panel 1, ... | matrix 1: ...
 *     panel  | block of inputs 0-31 | block of 32-63 | ...
 *     block  | q of 16 rows | the fifth bits, for 5-bit q | 16 d | 16 m, or the second 16 d
 *     q      | 8 vectors of 64 bytes: vector j holds, row by row, inputs 4j .. 4j+3 (what vpdpbusd
 *            | multiplies); 4-bit: 4 vectors, vector 2v in the low halves of the v-th, 2v+1 in
 *            | the high
 *     fifth  | 8 words of 64 bits: bit i of word j belongs to byte i of vector j
 *
 * Float weights: a panel is (n_in, 16), in the type they are stored in. A matrix is padded with
 * zero rows to whole panels.
 *
 * Activations: tiles of 16 rows (the last of what is left, h), each row quantised in blocks of 32
 * to d * q, |q| <= 127; and a reference to the floats they came from, which float weights read.
 *
 *     acts | header | tile 0: (n_block, h, 32) q, (n_block, h) struct nsv_cpu_scale | tile 1 ... */
#ifndef NSV_KERNELS_CPU_PACK_H
#define NSV_KERNELS_CPU_PACK_H

#include "kernels/ops.h"
#include "kernels/team.h"

#define NSV_CPU_PANEL 16u
#define NSV_CPU_BLOCK 32u
#define NSV_CPU_TILE 16u
#define NSV_CPU_MAT_MAX 8u

enum nsv_cpu_form {
	NSV_CPU_Q4_D,    /* 4 bits; d in f16 */
	NSV_CPU_Q4_DM,   /* d and m in f16 */
	NSV_CPU_Q4_DM32, /* d and m in f32 */
	NSV_CPU_Q5_D,
	NSV_CPU_Q5_DM,
	NSV_CPU_Q5_DM32,
	NSV_CPU_Q8_D,
	NSV_CPU_Q8_DD32, /* a d in f32 for each half of the block */
	NSV_CPU_F32,
	NSV_CPU_F16,
	NSV_CPU_BF16,
};

struct nsv_cpu_mat {
	uint32_t form, zero;
	uint32_t n_out, panel0; /* rows; panels of the matrices before it */
	uint64_t off, panel_len; /* bytes from the header's start; of a panel */
};

struct nsv_cpu_weight {
	uint32_t n_in, n_mat, n_panel, n_out;
	uint64_t pad[6];
	struct nsv_cpu_mat mats[NSV_CPU_MAT_MAX];
};

struct nsv_cpu_scale {
	float d;        /* NaN where an input was not finite */
	float d_sum;    /* d times the sum of the block's q */
	int32_t sum[2]; /* of q, first and second half */
};

struct nsv_cpu_acts {
	const float *x;
	size_t ld;
	uint64_t pad[6];
	uint8_t tiles[];
};

/* 32 weights of a quantised row: w = d[i / 16] * (q[i] - zero) + m. */
struct nsv_cpu_block {
	uint8_t q[NSV_CPU_BLOCK];
	float d[2], m;
};

/* Block b of a stored row of a quantised type. */
void nsv_cpu_read_block(uint32_t dtype, const void *row, size_t b, struct nsv_cpu_block *ret);
/* What is subtracted from q. */
uint32_t nsv_cpu_zero(uint32_t dtype);

int nsv_cpu_weight_len(const struct nsv_matrix *m, uint32_t n_m, size_t *ret_len);
void nsv_cpu_weight_pack(
	const struct nsv_part *part, const struct nsv_matrix *m, uint32_t n_m, void *dst);
size_t nsv_cpu_acts_len(uint32_t n_row, uint32_t n_in);

/* Bytes of q (with the fifth bits) and of all of a block, for a quantised form. */
static inline size_t nsv_cpu_q_len(uint32_t form)
{
	if (form <= NSV_CPU_Q4_DM32)
		return 256;
	return form <= NSV_CPU_Q5_DM32 ? 320 : 512;
}

static inline size_t nsv_cpu_block_len(uint32_t form)
{
	size_t scale;
	if (form == NSV_CPU_Q4_D || form == NSV_CPU_Q5_D || form == NSV_CPU_Q8_D)
		scale = 32;
	else
		scale = form == NSV_CPU_Q4_DM || form == NSV_CPU_Q5_DM ? 64 : 128;
	return nsv_cpu_q_len(form) + scale;
}

/* Does a form have m? Are its scales in f32? */
static inline bool nsv_cpu_has_m(uint32_t form)
{
	return form == NSV_CPU_Q4_DM || form == NSV_CPU_Q4_DM32 || form == NSV_CPU_Q5_DM ||
		form == NSV_CPU_Q5_DM32;
}

static inline bool nsv_cpu_has_f32_scales(uint32_t form)
{
	return form == NSV_CPU_Q4_DM32 || form == NSV_CPU_Q5_DM32 || form == NSV_CPU_Q8_DD32;
}

static inline size_t nsv_cpu_n_block(uint32_t n_in)
{
	return (n_in + NSV_CPU_BLOCK - 1) / NSV_CPU_BLOCK;
}

/* Bytes of a row of acts; a tile of h rows is h times that. */
static inline size_t nsv_cpu_acts_row_len(uint32_t n_in)
{
	return nsv_cpu_n_block(n_in) * (NSV_CPU_BLOCK + sizeof(struct nsv_cpu_scale));
}

#endif
