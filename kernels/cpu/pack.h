/* Packed weights and activations of the `cpu` backend.
 *
 * Weights: panels of 16 output rows, so that the lanes of a vector are output rows and no sum ever
 * crosses lanes. A quantised type becomes w = d * (q - zero) + m over blocks of 32 inputs:
 *
 *     weight | header | matrix 0: panel 0, panel 1, ... | matrix 1: ...
 *     panel  | block of inputs 0-31 | block of 32-63 | ...
 *     block  | q of 16 rows | 16 d in f16 | 16 m in f16, of types that have them
 *     q      | 8 vectors of 64 bytes: vector j holds, row by row, inputs 4j .. 4j+3 (what vpdpbusd
 *            | multiplies). Of fewer bits than 8, a part for each bit of their number, the lowest
 *            | bits of q first: fours | twos | ones
 *     fours  | 4 vectors: vector 2v in the low halves of the v-th, 2v+1 in the high
 *     twos   | 2 vectors: vector 4v + i in bits 2i and 2i+1 of the v-th
 *     ones   | 8 words of 64 bits: bit i of word j belongs to byte i of vector j
 *
 * Types with super-blocks of 256 keep scales of a byte, whose products with d are exact in fp32:
 *
 *     panel  | head | 8 blocks | head | 8 blocks | ...
 *     head   | 16 d in f16 | 16 m in f16, of types that have them
 *     block  | q of 16 rows | 16 bytes a scale: of d, then of m; or of d of each half of the block
 *
 * What multiplies the activations is the unpacked q: of IQ4 types the value that q numbers, + 128;
 * of Q2_K and Q3_K q - zero times its half's scale, which fits 8 bits (of Q3_K with the signs of d
 * and scale turned, so that -4 * -32 does too, + 128): so the whole block has one d.
 *
 * Float weights: a panel is (n_in, 16), in the type they are stored in; bf16: whole blocks of
 * (16 pairs of inputs, 16 rows, 2), what tdpbf16ps multiplies. A matrix is padded with zero rows to
 * whole panels.
 *
 * Activations: tiles of 16 rows (the last of what is left, h), each row quantised in blocks of 32
 * to d * q, |q| <= 127; and a reference to the floats they came from, which float weights read.
 *
 *     acts | header | tile 0: (n_block, h, 32) q, (n_block, h) struct nsv_cpu_scale | tile 1 ... */
#ifndef NSV_KERNELS_CPU_PACK_H
#define NSV_KERNELS_CPU_PACK_H

#include "kernels/ops.h"
#include "kernels/scan.h"
#include "kernels/team.h"

#define NSV_CPU_PANEL 16u
#define NSV_CPU_BLOCK 32u
#define NSV_CPU_SUPER 8u /* blocks after a head */
#define NSV_CPU_TILE 16u
#define NSV_CPU_MAT_MAX 8u
#define NSV_CPU_SLICE (NSV_SCAN_SLICE / NSV_CPU_PANEL) /* panels */

enum nsv_cpu_form {
	NSV_CPU_Q4_D,  /* a d */
	NSV_CPU_Q4_DM, /* d and m */
	NSV_CPU_Q5_D,
	NSV_CPU_Q5_DM,
	NSV_CPU_Q8_D,
	NSV_CPU_IQ4_NL, /* a d; q numbers one of nsv_cpu_iq4 */
	NSV_CPU_IQ4_XS, /* from here on with a head; a scale of d, q as before */
	NSV_CPU_Q2_K,   /* of each half 4 bits for d and 4 for m, which share a byte */
	NSV_CPU_Q3_K,   /* of each half a scale of d */
	NSV_CPU_Q4_K,   /* a scale of d and of m */
	NSV_CPU_Q5_K,
	NSV_CPU_Q6_K,   /* of each half a scale of d */
	NSV_CPU_F32,
	NSV_CPU_F16,
	NSV_CPU_BF16,
};

struct nsv_cpu_mat {
	uint32_t form, n_out;
	uint32_t panel0; /* panels of the matrices before it */
	uint32_t pad;
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
	float d_first;  /* d times the sum of its first half's */
	int16_t sum[2]; /* of q, first and second half */
};

struct nsv_cpu_acts {
	const float *x;
	size_t ld;
	uint64_t pad[6];
	uint8_t tiles[];
};

/* Panels begin .. end - 1 of a matrix, numbered within it, against rows row0 .. row_end - 1. */
struct nsv_cpu_mat_run {
	const struct nsv_cpu_mat *mat;
	const uint8_t *panels; /* the first of the matrix */
	const struct nsv_cpu_acts *acts;
	float *out; /* the matrix's first column of the first row */
	size_t ld_out, begin, end, row0, row_end;
	uint32_t n_in;
};

/* 32 weights of a quantised row: w = d * scale[i / 16] * value(q[i]) + m * min[i / 16]. */
struct nsv_cpu_block {
	uint8_t q[NSV_CPU_BLOCK];
	int8_t scale[2], min[2]; /* 1: the type has none */
	float d, m;
};

/* Block b of a stored row of a quantised type. */
void nsv_cpu_read_block(uint32_t dtype, const void *row, size_t b, struct nsv_cpu_block *ret);
/* The sixteen values of IQ4 types, + 128. */
extern const uint8_t nsv_cpu_iq4[16];
/* What a q of that type stands for. */
int32_t nsv_cpu_value(uint32_t dtype, uint8_t q);

int nsv_cpu_weight_len(const struct nsv_matrix *m, uint32_t n_m, size_t *ret_len);
void nsv_cpu_weight_pack(
	const struct nsv_part *part, const struct nsv_matrix *m, uint32_t n_m, void *dst);
void nsv_cpu_weight_own(const struct nsv_part *part, const struct nsv_matrix *m, uint32_t n_m,
	size_t *ret_begin, size_t *ret_end);
size_t nsv_cpu_acts_len(uint32_t n_row, uint32_t n_in);

/* What a quantised form's blocks are made of: constants where the form is one. */
struct nsv_cpu_form_info {
	uint8_t bits; /* of a q */
	uint8_t zero; /* the q that stands for 0 */
	uint8_t scale_len, head_len; /* bytes of a block's scales; of a head */
	bool has_m;
};

static const struct nsv_cpu_form_info nsv_cpu_forms[] = {
	[NSV_CPU_Q4_D] = {4, 8, 32, 0, false},
	[NSV_CPU_Q4_DM] = {4, 0, 64, 0, true},
	[NSV_CPU_Q5_D] = {5, 16, 32, 0, false},
	[NSV_CPU_Q5_DM] = {5, 0, 64, 0, true},
	[NSV_CPU_Q8_D] = {8, 128, 32, 0, false},
	[NSV_CPU_IQ4_NL] = {4, 0, 32, 0, false},
	[NSV_CPU_IQ4_XS] = {4, 0, 16, 32, false},
	[NSV_CPU_Q2_K] = {2, 0, 32, 64, true},
	[NSV_CPU_Q3_K] = {3, 4, 32, 32, false},
	[NSV_CPU_Q4_K] = {4, 0, 32, 64, true},
	[NSV_CPU_Q5_K] = {5, 0, 32, 64, true},
	[NSV_CPU_Q6_K] = {6, 32, 32, 32, false},
};

static inline uint32_t nsv_cpu_bits(uint32_t form)
{
	return nsv_cpu_forms[form].bits;
}

/* Where in a block's q, of so many bits, the ones begin: after the fours and the twos. */
static inline uint32_t nsv_cpu_ones_at(uint32_t bits)
{
	return bits / 2 * 128;
}

static inline bool nsv_cpu_has_m(uint32_t form)
{
	return nsv_cpu_forms[form].has_m;
}

/* Bytes of q, of all of a block, and of the head before every NSV_CPU_SUPER of them. */
static inline size_t nsv_cpu_q_len(uint32_t form)
{
	return nsv_cpu_bits(form) * 64u;
}

static inline size_t nsv_cpu_block_len(uint32_t form)
{
	return nsv_cpu_q_len(form) + nsv_cpu_forms[form].scale_len;
}

static inline size_t nsv_cpu_head_len(uint32_t form)
{
	return nsv_cpu_forms[form].head_len;
}

/* Does q number a value of nsv_cpu_iq4? Is it multiplied with its scale when it is unpacked? */
static inline bool nsv_cpu_is_coded(uint32_t form)
{
	return form == NSV_CPU_IQ4_NL || form == NSV_CPU_IQ4_XS;
}

static inline bool nsv_cpu_is_scaled(uint32_t form)
{
	return form == NSV_CPU_Q2_K || form == NSV_CPU_Q3_K;
}

/* Does an unpacked q take all 8 bits? What is subtracted from it then and else. */
static inline bool nsv_cpu_is_wide(uint32_t form)
{
	return form == NSV_CPU_Q8_D || form == NSV_CPU_Q3_K || nsv_cpu_is_coded(form);
}

static inline uint32_t nsv_cpu_zero(uint32_t form)
{
	return nsv_cpu_is_wide(form) ? 128 : nsv_cpu_forms[form].zero;
}

/* Where in a panel the head of block b begins, and the block. */
static inline size_t nsv_cpu_head_at(uint32_t form, size_t b)
{
	return b / NSV_CPU_SUPER *
		(nsv_cpu_head_len(form) + NSV_CPU_SUPER * nsv_cpu_block_len(form));
}

static inline size_t nsv_cpu_block_at(uint32_t form, size_t b)
{
	return nsv_cpu_head_at(form, b) + nsv_cpu_head_len(form) +
		b % NSV_CPU_SUPER * nsv_cpu_block_len(form);
}

static inline size_t nsv_cpu_n_block(uint32_t n_in)
{
	return (n_in + NSV_CPU_BLOCK - 1) / NSV_CPU_BLOCK;
}

/* Bytes of a block of bf16. */
#define NSV_CPU_BF16_LEN (NSV_CPU_BLOCK * NSV_CPU_PANEL * 2u)

/* Bytes of a row of acts; a tile of h rows is h times that. */
static inline size_t nsv_cpu_acts_row_len(uint32_t n_in)
{
	return nsv_cpu_n_block(n_in) * (NSV_CPU_BLOCK + sizeof(struct nsv_cpu_scale));
}

#endif
