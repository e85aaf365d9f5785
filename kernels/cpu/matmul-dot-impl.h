/* What a block adds to the sums of some rows, one row after the other: for rows of the
 * instruction-set table that have the registers to keep a block unpacked, or that leave it to the
 * compiler. matmul-<isa>.c defines, then includes this before matmul-impl.h:
 *
 *     WIDE_SHIFT           what dot() subtracts from a q of all 8 bits by itself
 *     struct quants        the q of 32 inputs and 16 rows, unpacked
 *     vi                   16 integer sums
 *     unpack(q, block, form)
 *     dot(q, x, first, end, form, bias)   bias + the products of vectors first .. end - 1
 *     vi_float(vi)         to vf */
#include "kernels/cpu/block.h"

/* (q - zero) * x summed over vectors first .. end - 1, whose x add up to sum. */
ALWAYS_INLINE vf block_sum(const struct quants *q, const int8_t *x, uint32_t first, uint32_t end,
	uint32_t form, int32_t sum)
{
	int32_t shift = nsv_cpu_is_wide(form) ? WIDE_SHIFT : 0;
	return vi_float(dot(q, x, first, end, form, (shift - (int32_t)nsv_cpu_zero(form)) * sum));
}

ALWAYS_INLINE vf add_row(vf acc, const struct quants *q, const struct factors *f,
	const int8_t *x, const struct nsv_cpu_scale *s, uint32_t form)
{
	vf dx = vf_set1(s->d);
	if (form == NSV_CPU_Q6_K) {
		vf half = block_sum(q, x, 0, 4, form, s->sum[0]);
		acc = vf_fma(vf_mul(f->d[0], dx), half, acc);
		half = block_sum(q, x, 4, 8, form, s->sum[1]);
		return vf_fma(vf_mul(f->d[1], dx), half, acc);
	}
	acc = vf_fma(vf_mul(f->d[0], dx), block_sum(q, x, 0, 8, form, s->sum[0] + s->sum[1]), acc);
	return nsv_cpu_has_m(form) ? add_m(acc, f, s, form) : acc;
}

ALWAYS_INLINE void add_block(vf *acc, const uint8_t *block, const uint8_t *head,
	const int8_t *x, const struct nsv_cpu_scale *s, uint32_t rows, uint32_t form)
{
	struct factors f;
	struct quants q;
	unpack(&q, block, form);
	load_factors(&f, block + nsv_cpu_q_len(form), head, form);
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		acc[r] = add_row(acc[r], &q, &f, x + r * NSV_CPU_BLOCK, &s[r], form);
}
