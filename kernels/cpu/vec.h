/* Sixteen floats as one value, over whatever the file that includes this is compiled for: one zmm,
 * two ymm, four NEON registers, or an array. Every operation rounds the same way in all (fma is
 * fused everywhere; sums over lanes halve: lane i with i + 8, then 4, 2, 1), so that code written
 * once over it gives the same bits on every row of the instruction-set table.
 *
 * NEON is taken where VEC_NEON is defined, not wherever the compiler has it: on AArch64 that is
 * everywhere, and the row in plain C is to do without. */
#ifndef NSV_KERNELS_CPU_VEC_H
#define NSV_KERNELS_CPU_VEC_H

#include "kernels/half.h"

#include <math.h>
#include <string.h>

#define VF_N 16u
/* What must be inlined for its constants to be known and its values to stay in registers. In plain
 * C it is left to the compiler; with sanitizers, which would take minutes over the code of each
 * load, nothing is: the same loads and the same bits. */
#if defined(NSV_DEBUG)
#define ALWAYS_INLINE static __attribute__((noinline, unused))
#define UNROLL
#elif !defined(__AVX2__) && !defined(VEC_NEON)
#define ALWAYS_INLINE static inline
#define UNROLL
#else
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#endif

#if defined(__AVX512F__)

#include <immintrin.h>

typedef __m512 vf;

ALWAYS_INLINE __mmask16 vf_lanes(uint32_t n)
{
	return (__mmask16)((1u << n) - 1u);
}

ALWAYS_INLINE vf vf_set1(float x)
{
	return _mm512_set1_ps(x);
}

ALWAYS_INLINE vf vf_load(const float *p)
{
	return _mm512_loadu_ps(p);
}

ALWAYS_INLINE void vf_store(float *p, vf a)
{
	_mm512_storeu_ps(p, a);
}

/* The first n lanes, n <= 16; zeros in the others. Touches no more. */
ALWAYS_INLINE vf vf_load_n(const float *p, uint32_t n)
{
	return _mm512_maskz_loadu_ps(vf_lanes(n), p);
}

ALWAYS_INLINE void vf_store_n(float *p, vf a, uint32_t n)
{
	_mm512_mask_storeu_ps(p, vf_lanes(n), a);
}

ALWAYS_INLINE vf vf_load_f16(const void *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

/* As nsv_f32_f16_kv. */
ALWAYS_INLINE void vf_store_f16_kv(void *p, vf a)
{
	__m256i h = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	__m256i abs = _mm256_and_si256(h, _mm256_set1_epi16(0x7fff));
	__mmask16 beyond = _mm256_cmpgt_epi16_mask(abs, _mm256_set1_epi16(NSV_F16_MAX));
	_mm256_storeu_si256(p, _mm256_mask_mov_epi16(h, beyond, _mm256_set1_epi16(NSV_F16_NAN)));
}

ALWAYS_INLINE vf vf_load_bf16(const void *p)
{
	return _mm512_castsi512_ps(
		_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}

/* The first, or the second, of sixteen pairs of bf16. */
ALWAYS_INLINE vf vf_load_first(const void *p)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}

ALWAYS_INLINE vf vf_load_second(const void *p)
{
	return _mm512_castsi512_ps(_mm512_and_si512(
		_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000u)));
}

/* To what bf16 can hold, the nearest, ties to even; a NaN stays one. */
ALWAYS_INLINE vf vf_round_bf16(vf a)
{
	__m512i b = _mm512_castps_si512(a);
	__m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
	__m512i r = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
	r = _mm512_and_si512(r, _mm512_set1_epi32((int)0xffff0000u));
	return _mm512_mask_mov_ps(
		_mm512_castsi512_ps(r), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
}

/* Sixteen signed bytes. */
ALWAYS_INLINE vf vf_load_s8(const void *p)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}

/* The high halves of sixteen bytes. */
ALWAYS_INLINE vf vf_load_high4(const void *p)
{
	return _mm512_cvtepi32_ps(
		_mm512_srli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(p)), 4));
}

ALWAYS_INLINE vf vf_add(vf a, vf b)
{
	return _mm512_add_ps(a, b);
}

ALWAYS_INLINE vf vf_sub(vf a, vf b)
{
	return _mm512_sub_ps(a, b);
}

ALWAYS_INLINE vf vf_mul(vf a, vf b)
{
	return _mm512_mul_ps(a, b);
}

ALWAYS_INLINE vf vf_div(vf a, vf b)
{
	return _mm512_div_ps(a, b);
}

ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c)
{
	return _mm512_fmadd_ps(a, b, c);
}

/* a > b ? a : b: a NaN in b comes through, one in a does not. */
ALWAYS_INLINE vf vf_max(vf a, vf b)
{
	return _mm512_max_ps(a, b);
}

ALWAYS_INLINE vf vf_min(vf a, vf b)
{
	return _mm512_min_ps(a, b);
}

/* Lanes begin .. end - 1 of a, the others of b; end <= 16. */
ALWAYS_INLINE vf vf_between(uint32_t begin, uint32_t end, vf a, vf b)
{
	return _mm512_mask_blend_ps(vf_lanes(end) & (__mmask16)~vf_lanes(begin), b, a);
}

/* x < low ? 0 : y */
ALWAYS_INLINE vf vf_zero_below(vf x, vf low, vf y)
{
	return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), y);
}

/* a * 2^n, n in the low bits of t as adding 1.5 * 2^23 leaves it. */
ALWAYS_INLINE vf vf_ldexp(vf a, vf t)
{
	return _mm512_castsi512_ps(_mm512_add_epi32(
		_mm512_slli_epi32(_mm512_castps_si512(t), 23), _mm512_castps_si512(a)));
}

/* The larger magnitude of each lane, as bits: a NaN is larger than infinity. */
ALWAYS_INLINE vf vf_max_abs(vf a, vf b)
{
	__m512i abs = _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(0x7fffffff));
	return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), abs));
}

/* Rounds to nearest even, stores 16 bytes, returns their sum. Lanes are within +-127. */
ALWAYS_INLINE int32_t vf_store_s8(int8_t *p, vf a)
{
	__m128i b = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a));
	_mm_storeu_si128((__m128i *)p, b);
	b = _mm_xor_si128(b, _mm_set1_epi8(-128)); /* + 128: bytes without a sign add up at once */
	b = _mm_sad_epu8(b, _mm_setzero_si128());
	return _mm_cvtsi128_si32(b) + _mm_extract_epi32(b, 2) - 128 * (int32_t)VF_N;
}

ALWAYS_INLINE float vf_hmax(vf a)
{
	return _mm512_reduce_max_ps(a);
}

ALWAYS_INLINE __m256 vf_fold(vf a)
{
	return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

/* Bit i: lane i of x is at least that of low. */
ALWAYS_INLINE uint32_t vf_at_least(vf x, vf low)
{
	return _mm512_cmp_ps_mask(x, low, _CMP_GE_OQ);
}

/* Stores i + the number of each lane that is hit, then what does not matter: sixteen in all. */
ALWAYS_INLINE void vf_store_places(uint32_t *p, uint32_t i, uint32_t hit)
{
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	__m512i place = _mm512_add_epi32(lane, _mm512_set1_epi32((int)i));

	_mm512_storeu_si512(p, _mm512_maskz_compress_epi32((__mmask16)hit, place));
}

/* Sixteen sums in double precision. */
typedef struct {
	__m512d lo, hi;
} vd;

ALWAYS_INLINE vd vd_zero(void)
{
	return (vd){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

ALWAYS_INLINE vd vd_add(vd a, vf b)
{
	return (vd){_mm512_add_pd(a.lo, _mm512_cvtps_pd(_mm512_castps512_ps256(b))),
		_mm512_add_pd(a.hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(b, 1)))};
}

ALWAYS_INLINE void vd_store(double *p, vd a)
{
	_mm512_storeu_pd(p, a.lo);
	_mm512_storeu_pd(p + 8, a.hi);
}

#elif defined(__AVX2__)

#include <immintrin.h>

typedef struct {
	__m256 lo, hi;
} vf;

ALWAYS_INLINE vf vf_set1(float x)
{
	return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

ALWAYS_INLINE vf vf_load(const float *p)
{
	return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

ALWAYS_INLINE void vf_store(float *p, vf a)
{
	_mm256_storeu_ps(p, a.lo);
	_mm256_storeu_ps(p + 8, a.hi);
}

ALWAYS_INLINE vf vf_load_f16(const void *p)
{
	const __m128i *q = p;
	return (vf){_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}

ALWAYS_INLINE void store_f16_kv8(__m128i *p, __m256 a)
{
	__m128i h = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	__m128i abs = _mm_and_si128(h, _mm_set1_epi16(0x7fff));
	__m128i beyond = _mm_cmpgt_epi16(abs, _mm_set1_epi16(NSV_F16_MAX));
	_mm_storeu_si128(p, _mm_blendv_epi8(h, _mm_set1_epi16(NSV_F16_NAN), beyond));
}

ALWAYS_INLINE void vf_store_f16_kv(void *p, vf a)
{
	store_f16_kv8(p, a.lo);
	store_f16_kv8((__m128i *)p + 1, a.hi);
}

ALWAYS_INLINE vf vf_load_bf16(const void *p)
{
	const __m128i *q = p;
	__m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(q));
	__m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1));
	return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
		_mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

ALWAYS_INLINE vf vf_load_first(const void *p)
{
	const __m256i *q = p;
	return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(q), 16)),
		_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(q + 1), 16))};
}

ALWAYS_INLINE vf vf_load_second(const void *p)
{
	const __m256 high = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000u));
	const float *q = p;
	return (vf){_mm256_and_ps(_mm256_loadu_ps(q), high),
		_mm256_and_ps(_mm256_loadu_ps(q + 8), high)};
}

ALWAYS_INLINE __m256 round_bf16_8(__m256 a)
{
	__m256i b = _mm256_castps_si256(a);
	__m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
	__m256i r = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
	r = _mm256_and_si256(r, _mm256_set1_epi32((int)0xffff0000u));
	return _mm256_blendv_ps(_mm256_castsi256_ps(r), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}

ALWAYS_INLINE vf vf_round_bf16(vf a)
{
	return (vf){round_bf16_8(a.lo), round_bf16_8(a.hi)};
}

ALWAYS_INLINE vf vf_load_s8(const void *p)
{
	__m128i b = _mm_loadu_si128(p);
	return (vf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
		_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
}

ALWAYS_INLINE vf vf_load_high4(const void *p)
{
	__m128i b = _mm_and_si128(
		_mm_srli_epi16(_mm_loadu_si128((const __m128i *)p), 4), _mm_set1_epi8(15));
	return (vf){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)),
		_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(b, 8)))};
}

ALWAYS_INLINE vf vf_add(vf a, vf b)
{
	return (vf){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

ALWAYS_INLINE vf vf_sub(vf a, vf b)
{
	return (vf){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

ALWAYS_INLINE vf vf_mul(vf a, vf b)
{
	return (vf){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

ALWAYS_INLINE vf vf_div(vf a, vf b)
{
	return (vf){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c)
{
	return (vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

ALWAYS_INLINE vf vf_max(vf a, vf b)
{
	return (vf){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

ALWAYS_INLINE vf vf_min(vf a, vf b)
{
	return (vf){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

ALWAYS_INLINE vf vf_between(uint32_t begin, uint32_t end, vf a, vf b)
{
	const __m256i lo = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
	const __m256i hi = _mm256_add_epi32(lo, _mm256_set1_epi32(8));
	__m256i from = _mm256_set1_epi32((int)begin - 1), to = _mm256_set1_epi32((int)end);
	__m256i in_lo = _mm256_and_si256(_mm256_cmpgt_epi32(lo, from), _mm256_cmpgt_epi32(to, lo));
	__m256i in_hi = _mm256_and_si256(_mm256_cmpgt_epi32(hi, from), _mm256_cmpgt_epi32(to, hi));
	return (vf){_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(in_lo)),
		_mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(in_hi))};
}

ALWAYS_INLINE vf vf_zero_below(vf x, vf low, vf y)
{
	return (vf){_mm256_and_ps(_mm256_cmp_ps(x.lo, low.lo, _CMP_NLT_UQ), y.lo),
		_mm256_and_ps(_mm256_cmp_ps(x.hi, low.hi, _CMP_NLT_UQ), y.hi)};
}

ALWAYS_INLINE __m256 ldexp8(__m256 a, __m256 t)
{
	return _mm256_castsi256_ps(_mm256_add_epi32(
		_mm256_slli_epi32(_mm256_castps_si256(t), 23), _mm256_castps_si256(a)));
}

ALWAYS_INLINE vf vf_ldexp(vf a, vf t)
{
	return (vf){ldexp8(a.lo, t.lo), ldexp8(a.hi, t.hi)};
}

ALWAYS_INLINE __m256 max_abs8(__m256 a, __m256 b)
{
	__m256i abs = _mm256_and_si256(_mm256_castps_si256(b), _mm256_set1_epi32(0x7fffffff));
	return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), abs));
}

ALWAYS_INLINE vf vf_max_abs(vf a, vf b)
{
	return (vf){max_abs8(a.lo, b.lo), max_abs8(a.hi, b.hi)};
}

ALWAYS_INLINE int32_t vf_store_s8(int8_t *p, vf a)
{
	__m256i lo = _mm256_cvtps_epi32(a.lo), hi = _mm256_cvtps_epi32(a.hi);
	__m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
	__m256i sum = _mm256_add_epi32(lo, hi);
	__m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
	_mm_storeu_si128((__m128i *)p,
		_mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
	return _mm_cvtsi128_si32(s);
}

ALWAYS_INLINE float vf_hmax(vf a)
{
	__m256 m = _mm256_max_ps(a.lo, a.hi);
	__m128 s = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
	s = _mm_max_ps(s, _mm_movehl_ps(s, s));
	s = _mm_max_ss(s, _mm_shuffle_ps(s, s, 1));
	return _mm_cvtss_f32(s);
}

ALWAYS_INLINE __m256 vf_fold(vf a)
{
	return _mm256_add_ps(a.lo, a.hi);
}

ALWAYS_INLINE uint32_t vf_at_least(vf x, vf low)
{
	int lo = _mm256_movemask_ps(_mm256_cmp_ps(x.lo, low.lo, _CMP_GE_OQ));
	int hi = _mm256_movemask_ps(_mm256_cmp_ps(x.hi, low.hi, _CMP_GE_OQ));
	return (uint32_t)(lo | hi << 8);
}

typedef struct {
	__m256d q[4];
} vd;

ALWAYS_INLINE vd vd_zero(void)
{
	__m256d z = _mm256_setzero_pd();
	return (vd){{z, z, z, z}};
}

ALWAYS_INLINE __m256d add_quad(__m256d a, __m128 b)
{
	return _mm256_add_pd(a, _mm256_cvtps_pd(b));
}

ALWAYS_INLINE vd vd_add(vd a, vf b)
{
	return (vd){{add_quad(a.q[0], _mm256_castps256_ps128(b.lo)),
		add_quad(a.q[1], _mm256_extractf128_ps(b.lo, 1)),
		add_quad(a.q[2], _mm256_castps256_ps128(b.hi)),
		add_quad(a.q[3], _mm256_extractf128_ps(b.hi, 1))}};
}

ALWAYS_INLINE void vd_store(double *p, vd a)
{
	for (uint32_t i = 0; i < 4; i++)
		_mm256_storeu_pd(p + 4 * i, a.q[i]);
}

#elif defined(VEC_NEON)

#include "kernels/cpu/vec-neon.h"

#else

typedef struct {
	float f[VF_N];
} vf;

#define VF_EACH(expr) \
	do { \
		vf r; \
		for (uint32_t i = 0; i < VF_N; i++) \
			r.f[i] = (expr); \
		return r; \
	} while (0)

ALWAYS_INLINE vf vf_set1(float x)
{
	VF_EACH(x);
}

ALWAYS_INLINE vf vf_load(const float *p)
{
	VF_EACH(p[i]);
}

ALWAYS_INLINE void vf_store(float *p, vf a)
{
	memcpy(p, a.f, sizeof(a.f));
}

ALWAYS_INLINE vf vf_load_n(const float *p, uint32_t n)
{
	VF_EACH(i < n ? p[i] : 0.0f);
}

ALWAYS_INLINE void vf_store_n(float *p, vf a, uint32_t n)
{
	memcpy(p, a.f, n * sizeof(float));
}

ALWAYS_INLINE vf vf_load_f16(const void *p)
{
	VF_EACH(nsv_load_elem(NSV_F16, p, i));
}

ALWAYS_INLINE void vf_store_f16_kv(void *p, vf a)
{
	for (uint32_t i = 0; i < VF_N; i++)
		nsv_store_kv(NSV_F16, p, i, a.f[i]);
}

ALWAYS_INLINE vf vf_load_bf16(const void *p)
{
	VF_EACH(nsv_load_elem(NSV_BF16, p, i));
}

ALWAYS_INLINE vf vf_load_first(const void *p)
{
	VF_EACH(nsv_load_elem(NSV_BF16, p, 2 * i));
}

ALWAYS_INLINE vf vf_load_second(const void *p)
{
	VF_EACH(nsv_load_elem(NSV_BF16, p, 2 * i + 1));
}

ALWAYS_INLINE vf vf_round_bf16(vf a)
{
	VF_EACH(nsv_bf16_f32(nsv_f32_bf16(a.f[i])));
}

ALWAYS_INLINE vf vf_load_s8(const void *p)
{
	VF_EACH((float)((const int8_t *)p)[i]);
}

ALWAYS_INLINE vf vf_load_high4(const void *p)
{
	VF_EACH((float)(((const uint8_t *)p)[i] >> 4));
}

ALWAYS_INLINE vf vf_add(vf a, vf b)
{
	VF_EACH(a.f[i] + b.f[i]);
}

ALWAYS_INLINE vf vf_sub(vf a, vf b)
{
	VF_EACH(a.f[i] - b.f[i]);
}

ALWAYS_INLINE vf vf_mul(vf a, vf b)
{
	VF_EACH(a.f[i] * b.f[i]);
}

ALWAYS_INLINE vf vf_div(vf a, vf b)
{
	VF_EACH(a.f[i] / b.f[i]);
}

ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c)
{
	VF_EACH(fmaf(a.f[i], b.f[i], c.f[i]));
}

ALWAYS_INLINE vf vf_max(vf a, vf b)
{
	VF_EACH(a.f[i] > b.f[i] ? a.f[i] : b.f[i]);
}

ALWAYS_INLINE vf vf_min(vf a, vf b)
{
	VF_EACH(a.f[i] < b.f[i] ? a.f[i] : b.f[i]);
}

ALWAYS_INLINE vf vf_between(uint32_t begin, uint32_t end, vf a, vf b)
{
	VF_EACH(i >= begin && i < end ? a.f[i] : b.f[i]);
}

ALWAYS_INLINE vf vf_zero_below(vf x, vf low, vf y)
{
	VF_EACH(x.f[i] < low.f[i] ? 0.0f : y.f[i]);
}

ALWAYS_INLINE vf vf_ldexp(vf a, vf t)
{
	VF_EACH(nsv_bits_f32((nsv_f32_bits(t.f[i]) << 23) + nsv_f32_bits(a.f[i])));
}

ALWAYS_INLINE float abs_bits_max(float a, float b)
{
	uint32_t abs = nsv_f32_bits(b) & 0x7fffffffu;
	return nsv_bits_f32(nsv_f32_bits(a) > abs ? nsv_f32_bits(a) : abs);
}

ALWAYS_INLINE vf vf_max_abs(vf a, vf b)
{
	VF_EACH(abs_bits_max(a.f[i], b.f[i]));
}

ALWAYS_INLINE int32_t vf_store_s8(int8_t *p, vf a)
{
	int32_t sum = 0;
	for (uint32_t i = 0; i < VF_N; i++) {
		p[i] = (int8_t)lrintf(a.f[i]);
		sum += p[i];
	}
	return sum;
}

ALWAYS_INLINE float vf_hmax(vf a)
{
	float m = a.f[0];
	for (uint32_t i = 1; i < VF_N; i++)
		m = m > a.f[i] ? m : a.f[i];
	return m;
}

ALWAYS_INLINE uint32_t vf_at_least(vf x, vf low)
{
	uint32_t bits = 0;
	for (uint32_t i = 0; i < VF_N; i++)
		bits |= (uint32_t)(x.f[i] >= low.f[i]) << i;
	return bits;
}

typedef struct {
	double d[VF_N];
} vd;

ALWAYS_INLINE vd vd_zero(void)
{
	return (vd){{0}};
}

ALWAYS_INLINE vd vd_add(vd a, vf b)
{
	for (uint32_t i = 0; i < VF_N; i++)
		a.d[i] += (double)b.f[i];
	return a;
}

ALWAYS_INLINE void vd_store(double *p, vd a)
{
	memcpy(p, a.d, sizeof(a.d));
}

#endif

/* Rows that have no masks. */
#if defined(VEC_NEON) || (defined(__AVX2__) && !defined(__AVX512F__))

ALWAYS_INLINE vf vf_load_n(const float *p, uint32_t n)
{
	float t[VF_N] = {0};
	if (n >= VF_N)
		return vf_load(p);
	for (uint32_t i = 0; i < n; i++)
		t[i] = p[i];
	return vf_load(t);
}

ALWAYS_INLINE void vf_store_n(float *p, vf a, uint32_t n)
{
	float t[VF_N];
	if (n >= VF_N) {
		vf_store(p, a);
		return;
	}
	vf_store(t, a);
	for (uint32_t i = 0; i < n; i++)
		p[i] = t[i];
}

#endif

#if defined(__AVX2__)

ALWAYS_INLINE float vf_sum(vf a)
{
	__m256 h = vf_fold(a);
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
	return _mm_cvtss_f32(s);
}

#elif !defined(VEC_NEON)

ALWAYS_INLINE float vf_sum(vf a)
{
	for (uint32_t n = VF_N / 2; n; n /= 2)
		for (uint32_t i = 0; i < n; i++)
			a.f[i] += a.f[i + n];
	return a.f[0];
}

#endif

/* The largest magnitude over lanes, of what vf_max_abs gathered; as bits, NaN above all. */
ALWAYS_INLINE uint32_t vf_hmax_bits(vf a)
{
	uint32_t bits[VF_N], m = 0;
	float f[VF_N];
	vf_store(f, a);
	memcpy(bits, f, sizeof(bits));
	for (uint32_t i = 0; i < VF_N; i++)
		m = m > bits[i] ? m : bits[i];
	return m;
}

/* Halving, as vf_sum. */
ALWAYS_INLINE double vd_sum(vd a)
{
	double d[VF_N];
	vd_store(d, a);
	for (uint32_t n = VF_N / 2; n; n /= 2)
		for (uint32_t i = 0; i < n; i++)
			d[i] += d[i + n];
	return d[0];
}

/* e^x within 2 ulp; 0 below -87, e^88 above 88; e^0 is 1 exactly; a NaN stays one. */
ALWAYS_INLINE vf vf_exp(vf x)
{
	const vf low = vf_set1(-87.0f), shift = vf_set1(12582912.0f), one = vf_set1(1.0f);
	vf c = vf_min(vf_set1(88.0f), vf_max(low, x));
	vf t = vf_fma(c, vf_set1(1.44269504f), shift);
	vf n = vf_sub(t, shift);
	vf r = vf_fma(n, vf_set1(2.12194440e-4f), vf_fma(n, vf_set1(-0.693359375f), c));
	vf p = vf_set1(1.9875691500e-4f);
	p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
	p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
	p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
	p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
	p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
	p = vf_add(vf_fma(p, vf_mul(r, r), r), one);
	return vf_zero_below(x, low, vf_ldexp(p, t));
}

#endif
