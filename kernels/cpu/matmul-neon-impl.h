/* Products on AArch64, four registers for 16 rows; q and x are both taken as signed, q of all
 * 8 bits as q - 128. matmul-neon[-dotprod].c defines FN(name) and
 *
 *     add_four(sum, q, x)   sum + the four products of each of four rows: 4 x 32 bits
 *
 * over vec.h, then includes this. */
#include "kernels/cpu/pack.h"

#define MAX_ROWS 4
#define WHOLE_TILES 0
#define WIDE_SHIFT 128

typedef struct {
	int32x4_t v[4];
} vi;

struct quants {
	int8x16_t v[8][4];
};

ALWAYS_INLINE vf vi_float(vi a)
{
#define AT(i) vcvtq_f32_s32(a.v[i])
	return VF_4(AT);
#undef AT
}

/* `value` in each byte whose bit of two bytes is set. */
ALWAYS_INLINE uint8x16_t spread_bits(const uint8_t *bits, uint32_t value)
{
	static const uint8_t bit[16] = {
		1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
	uint8x16_t b = vcombine_u8(vdup_n_u8(bits[0]), vdup_n_u8(bits[1]));
	return vandq_u8(vtstq_u8(b, vld1q_u8(bit)), vdupq_n_u8((uint8_t)value));
}

/* Bits from .. from + n - 1 of each byte, moved to bit `to`. */
ALWAYS_INLINE uint8x16_t take_bits(const uint8_t *p, uint32_t from, uint32_t n, uint32_t to)
{
	uint8x16_t v = vshlq_u8(vld1q_u8(p), vdupq_n_s8((int8_t)((int32_t)to - (int32_t)from)));
	return vandq_u8(v, vdupq_n_u8((uint8_t)(((1u << n) - 1u) << to)));
}

/* Four rows, from 4 * quarter on, of vector j of stored q, put together from its parts. */
ALWAYS_INLINE uint8x16_t load_quarter(
	const uint8_t *block, uint32_t j, uint32_t quarter, uint32_t form)
{
	const uint32_t bits = nsv_cpu_bits(form), fours = bits & 4;
	const uint8_t *p = block + quarter * 16;
	uint8x16_t q = vdupq_n_u8(0);
	if (bits == 8)
		return vld1q_u8(p + j * 64);
	if (fours)
		q = take_bits(p + j / 2 * 64, j % 2 * 4, 4, 0);
	if (bits & 2)
		q = vorrq_u8(q, take_bits(p + fours * 64 + j / 4 * 64, j % 4 * 2, 2, fours));
	if (bits & 1)
		q = vorrq_u8(q, spread_bits(block + nsv_cpu_ones_at(bits) + j * 8 + quarter * 2,
					1u << (bits - 1)));
	return q;
}

/* q of four rows times their scales. Of Q3_K without the 128 that pack.h adds. */
ALWAYS_INLINE int8x16_t scale_quarter(uint8x16_t q, const uint8_t *scales, uint32_t form)
{
	static const uint8_t row[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
	uint32_t four;
	uint8x16_t s;
	memcpy(&four, scales, sizeof(four));
	s = vqtbl1q_u8(vreinterpretq_u8_u32(vdupq_n_u32(four)), vld1q_u8(row));
	if (form == NSV_CPU_Q2_K)
		s = vandq_u8(s, vdupq_n_u8(15));
	else
		q = vsubq_u8(q, vdupq_n_u8(4));
	return vreinterpretq_s8_u8(vmulq_u8(q, s));
}

/* The same rows' unpacked q; of all 8 bits: q - 128. */
ALWAYS_INLINE int8x16_t unpack_quarter(
	const uint8_t *block, uint32_t j, uint32_t quarter, uint32_t form)
{
	uint8x16_t q = load_quarter(block, j, quarter, form);
	if (nsv_cpu_is_scaled(form))
		return scale_quarter(q,
			block + nsv_cpu_q_len(form) + j / 4 * NSV_CPU_PANEL + quarter * 4, form);
	if (nsv_cpu_is_coded(form))
		q = vqtbl1q_u8(vld1q_u8(nsv_cpu_iq4), q);
	if (nsv_cpu_is_wide(form))
		q = veorq_u8(q, vdupq_n_u8(0x80));
	return vreinterpretq_s8_u8(q);
}

ALWAYS_INLINE void unpack(struct quants *q, const uint8_t *block, uint32_t form)
{
	UNROLL
	for (uint32_t j = 0; j < 8; j++)
		UNROLL
		for (uint32_t i = 0; i < 4; i++)
			q->v[j][i] = unpack_quarter(block, j, i, form);
}

ALWAYS_INLINE vi dot(const struct quants *q, const int8_t *x, uint32_t first, uint32_t end,
	uint32_t form, int32_t bias)
{
	int32x4_t b = vdupq_n_s32(bias);
	vi sum = {{b, b, b, b}};
	(void)form;
	UNROLL
	for (uint32_t j = first; j < end; j++) {
		int32_t four;
		int8x16_t xs;
		memcpy(&four, x + j * 4, sizeof(four));
		xs = vreinterpretq_s8_s32(vdupq_n_s32(four));
		UNROLL
		for (uint32_t i = 0; i < 4; i++)
			sum.v[i] = add_four(sum.v[i], q->v[j][i], xs);
	}
	return sum;
}

#include "kernels/cpu/matmul-dot-impl.h"
#include "kernels/cpu/matmul-impl.h"
