/* Products with vpmaddubsw, two ymm for 16 rows. Its pairs of 16 bits saturate, so: up to 6 bits
 * of q times 7 of x fit; 8 bits are taken as |q - 128| times x with the sign of q - 128, which fits
 * as well, since x is never -128. */
#include "kernels/cpu/pack.h"
#include "kernels/cpu/vec.h"

#define FN(name) nsv_cpu_##name##_avx2
#if defined(NSV_DEBUG)
#define MAX_ROWS 2 /* sanitizers make code of each load: the same bits, compiled in seconds */
#else
#define MAX_ROWS 4
#endif
#define WIDE_SHIFT 128

typedef struct {
	__m256i lo, hi;
} vi;

struct quants {
	__m256i v[8][2];
};

#define vi_float(a) ((vf){_mm256_cvtepi32_ps((a).lo), _mm256_cvtepi32_ps((a).hi)})

/* `value` in each byte whose bit is set. */
ALWAYS_INLINE __m256i spread_bits(uint32_t bits, uint32_t value)
{
	const __m256i byte = _mm256_setr_epi8(
		0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, /* lower half */
		2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
	const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
	__m256i b = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), byte);
	b = _mm256_cmpeq_epi8(_mm256_and_si256(b, bit), bit);
	return _mm256_and_si256(b, _mm256_set1_epi8((char)value));
}

/* Bits from .. from + n - 1 of each byte, moved to bit `to`. */
ALWAYS_INLINE __m256i take_bits(const uint8_t *p, uint32_t from, uint32_t n, uint32_t to)
{
	__m256i v = _mm256_loadu_si256((const __m256i *)(const void *)p);
	if (from > to)
		v = _mm256_srli_epi16(v, (int)(from - to));
	else if (to > from)
		v = _mm256_slli_epi16(v, (int)(to - from));
	return _mm256_and_si256(v, _mm256_set1_epi8((char)(((1u << n) - 1u) << to)));
}

/* q of 8 rows times the scales that are given, as block.h's scale_quants does; of Q3_K the 128 is
 * taken off again. */
ALWAYS_INLINE __m256i scale_half(__m256i q, const uint8_t *scales, uint32_t form)
{
	__m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)scales);
	__m256i s, add;
	if (form == NSV_CPU_Q2_K)
		s = _mm256_cvtepu8_epi32(_mm_and_si128(bytes, _mm_set1_epi8(15)));
	else
		s = _mm256_cvtepi8_epi32(bytes);
	s = _mm256_blend_epi16(s, _mm256_slli_epi32(s, 16), 0xaa);
	q = _mm256_mullo_epi16(q, s);
	if (form == NSV_CPU_Q2_K)
		return q;
	add = _mm256_sub_epi16(_mm256_set1_epi16(128), _mm256_slli_epi16(s, 2));
	q = _mm256_add_epi16(q, _mm256_add_epi16(add, _mm256_slli_epi16(add, 8)));
	return _mm256_xor_si256(q, _mm256_set1_epi8((char)0x80));
}

/* The values that q numbers. */
ALWAYS_INLINE __m256i decode_half(__m256i q)
{
	const __m256i plus_128 = _mm256_broadcastsi128_si256(
		_mm_loadu_si128((const __m128i *)(const void *)nsv_cpu_iq4));
	return _mm256_shuffle_epi8(_mm256_xor_si256(plus_128, _mm256_set1_epi8((char)0x80)), q);
}

/* Half a vector of stored q of fewer than 8 bits, put together from its parts. */
ALWAYS_INLINE __m256i load_half(const uint8_t *block, uint32_t j, uint32_t half, uint32_t form)
{
	const uint32_t bits = nsv_cpu_bits(form), fours = bits & 4;
	const uint8_t *p = block + half * 32;
	uint32_t ones;
	__m256i q = _mm256_setzero_si256();
	if (fours)
		q = take_bits(p + j / 2 * 64, j % 2 * 4, 4, 0);
	if (bits & 2)
		q = _mm256_or_si256(
			q, take_bits(p + fours * 64 + j / 4 * 64, j % 4 * 2, 2, fours));
	if (bits & 1) {
		memcpy(&ones, block + nsv_cpu_ones_at(bits) + j * 8 + half * 4, sizeof(ones));
		q = _mm256_or_si256(q, spread_bits(ones, 1u << (bits - 1)));
	}
	return q;
}

/* Half a vector of unpacked q; of all 8 bits: q - 128. */
ALWAYS_INLINE __m256i unpack_half(const uint8_t *block, uint32_t j, uint32_t half, uint32_t form)
{
	const uint8_t *scales = block + nsv_cpu_q_len(form) + j / 4 * NSV_CPU_PANEL + half * 8;
	if (form == NSV_CPU_Q8_D)
		return _mm256_xor_si256(take_bits(block + j * 64 + half * 32, 0, 8, 0),
			_mm256_set1_epi8((char)0x80));
	__m256i q = load_half(block, j, half, form);
	if (nsv_cpu_is_coded(form))
		return decode_half(q);
	return nsv_cpu_is_scaled(form) ? scale_half(q, scales, form) : q;
}

ALWAYS_INLINE void unpack(struct quants *q, const uint8_t *block, uint32_t form)
{
	UNROLL
	for (uint32_t j = 0; j < 8; j++) {
		q->v[j][0] = unpack_half(block, j, 0, form);
		q->v[j][1] = unpack_half(block, j, 1, form);
	}
}

ALWAYS_INLINE __m256i add_four(__m256i sum, __m256i q, __m256i x, uint32_t form)
{
	__m256i pairs = nsv_cpu_is_wide(form) ?
		_mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q)) :
		_mm256_maddubs_epi16(q, x);
	return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

ALWAYS_INLINE vi dot(const struct quants *q, const int8_t *x, uint32_t first, uint32_t end,
	uint32_t form, int32_t bias)
{
	vi sum = {_mm256_set1_epi32(bias), _mm256_set1_epi32(bias)};
	UNROLL
	for (uint32_t j = first; j < end; j++) {
		int32_t four;
		__m256i xs;
		memcpy(&four, x + j * 4, sizeof(four));
		xs = _mm256_set1_epi32(four);
		sum.lo = add_four(sum.lo, q->v[j][0], xs, form);
		sum.hi = add_four(sum.hi, q->v[j][1], xs, form);
	}
	return sum;
}

#include "kernels/cpu/matmul-impl.h"
