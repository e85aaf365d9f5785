/* Products on AArch64, four registers for 16 rows; q and x are both taken as signed, 8 bits of q as
 * q - 128. matmul-neon[-dotprod].c defines FN(name) and
 *
 *     add_four(sum, q, x)   sum + the four products of each of four rows: 4 x 32 bits
 *
 * over vec.h, then includes this. */
#include "kernels/cpu/pack.h"

#if defined(NSV_DEBUG)
#define MAX_ROWS 2 /* sanitizers make code of each load: the same bits, compiled in seconds */
#else
#define MAX_ROWS 4
#endif
#define Q8_SHIFT 128

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

/* 16 in each byte whose bit of two bytes is set. */
ALWAYS_INLINE uint8x16_t spread_bits(const uint8_t *bits)
{
	static const uint8_t bit[16] = {
		1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
	uint8x16_t b = vcombine_u8(vdup_n_u8(bits[0]), vdup_n_u8(bits[1]));
	return vandq_u8(vtstq_u8(b, vld1q_u8(bit)), vdupq_n_u8(16));
}

/* Four rows, from 4 * quarter on, of vector j. */
ALWAYS_INLINE int8x16_t unpack_quarter(
	const uint8_t *block, uint32_t j, uint32_t quarter, uint32_t form)
{
	uint8x16_t q;
	if (form >= NSV_CPU_Q8_D)
		return vreinterpretq_s8_u8(veorq_u8(
			vld1q_u8(block + j * 64 + quarter * 16), vdupq_n_u8(0x80)));
	q = vld1q_u8(block + j / 2 * 64 + quarter * 16);
	q = j % 2 ? vshrq_n_u8(q, 4) : vandq_u8(q, vdupq_n_u8(15));
	if (form >= NSV_CPU_Q5_D)
		q = vorrq_u8(q, spread_bits(block + 256 + j * 8 + quarter * 2));
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

#include "kernels/cpu/matmul-impl.h"
