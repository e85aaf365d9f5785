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
#define Q8_SHIFT 128

typedef struct {
	__m256i lo, hi;
} vi;

struct quants {
	__m256i v[8][2];
};

#define vi_float(a) ((vf){_mm256_cvtepi32_ps((a).lo), _mm256_cvtepi32_ps((a).hi)})

/* 16 in each byte whose bit is set. */
ALWAYS_INLINE __m256i spread_bits(uint32_t bits)
{
	const __m256i byte = _mm256_setr_epi8(
		0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, /* lower half */
		2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
	const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
	__m256i b = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), byte);
	b = _mm256_cmpeq_epi8(_mm256_and_si256(b, bit), bit);
	return _mm256_and_si256(b, _mm256_set1_epi8(16));
}

ALWAYS_INLINE __m256i unpack_half(const uint8_t *block, uint32_t j, uint32_t half, uint32_t form)
{
	const __m256i *p = (const __m256i *)(const void *)block;
	uint32_t bits;
	__m256i q;
	if (form >= NSV_CPU_Q8_D)
		return _mm256_xor_si256(
			_mm256_loadu_si256(p + j * 2 + half), _mm256_set1_epi8((char)0x80));
	q = _mm256_loadu_si256(p + j / 2 * 2 + half);
	if (j % 2)
		q = _mm256_srli_epi16(q, 4);
	q = _mm256_and_si256(q, _mm256_set1_epi8(15));
	if (form < NSV_CPU_Q5_D)
		return q;
	memcpy(&bits, block + 256 + j * 8 + half * 4, sizeof(bits));
	return _mm256_or_si256(q, spread_bits(bits));
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
	__m256i pairs = form >= NSV_CPU_Q8_D ?
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
