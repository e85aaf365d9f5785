/* Reading packed blocks (pack.h) into vectors: for the files that define products. Include vec.h
 * first. */
#ifndef NSV_KERNELS_CPU_BLOCK_H
#define NSV_KERNELS_CPU_BLOCK_H

#include "kernels/cpu/pack.h"
#include "kernels/cpu/vec.h"

/* Asks for the bytes of a block. */
ALWAYS_INLINE void prefetch_block(const uint8_t *block, size_t block_len)
{
	for (size_t i = 0; i < block_len; i += NSV_CACHE_LINE)
		__builtin_prefetch(block + i);
}

/* What the sums of a block are multiplied with, of 16 rows: d[1] is the second half's, where halves
 * differ, and m_first what the first half's m is above m. */
struct factors {
	vf d[2], m, m_first;
};

/* From the head of a block and its scales, of a form that has a head. */
ALWAYS_INLINE void load_small_factors(
	struct factors *f, const uint8_t *scales, const uint8_t *head, uint32_t form)
{
	const uint8_t *second = scales + NSV_CPU_PANEL;
	vf d = vf_load_f16(head);
	f->d[0] = nsv_cpu_is_scaled(form) ? d : vf_mul(d, vf_load_s8(scales));
	if (form == NSV_CPU_Q6_K)
		f->d[1] = vf_mul(d, vf_load_s8(second));
	if (!nsv_cpu_has_m(form))
		return;
	vf m = vf_load_f16(head + 2 * NSV_CPU_PANEL);
	if (form == NSV_CPU_Q2_K) {
		f->m = vf_mul(m, vf_load_high4(second));
		f->m_first = vf_sub(vf_mul(m, vf_load_high4(scales)), f->m);
	} else {
		f->m = vf_mul(m, vf_load_s8(second));
	}
}

ALWAYS_INLINE void load_factors(
	struct factors *f, const uint8_t *scales, const uint8_t *head, uint32_t form)
{
	if (nsv_cpu_head_len(form)) {
		load_small_factors(f, scales, head, form);
		return;
	}
	f->d[0] = vf_load_f16(scales);
	if (nsv_cpu_has_m(form))
		f->m = vf_load_f16(scales + 2 * NSV_CPU_PANEL);
}

/* acc and what m adds for a block of activations, of a form that has m. */
ALWAYS_INLINE vf add_m(
	vf acc, const struct factors *f, const struct nsv_cpu_scale *x, uint32_t form)
{
	acc = vf_fma(f->m, vf_set1(x->d_sum), acc);
	return form == NSV_CPU_Q2_K ? vf_fma(f->m_first, vf_set1(x->d_first), acc) : acc;
}

#if defined(__AVX512BW__)

/* Bits from .. from + n - 1 of each byte, moved to bit `to`. */
ALWAYS_INLINE __m512i take_bits(const uint8_t *p, uint32_t from, uint32_t n, uint32_t to)
{
	__m512i v = _mm512_loadu_si512(p);
	if (from > to)
		v = _mm512_srli_epi16(v, from - to);
	else if (to > from)
		v = _mm512_slli_epi16(v, to - from);
	return _mm512_and_si512(v, _mm512_set1_epi8((char)(((1u << n) - 1u) << to)));
}

/* Unpacked q of the 16 rows whose scales are given. A pair of bytes is multiplied as one number of
 * 16 bits: each product comes out within its byte, so nothing is carried between them. */
ALWAYS_INLINE __m512i scale_quants(__m512i q, const uint8_t *scales, uint32_t form)
{
	__m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)scales);
	__m512i s, add;
	if (form == NSV_CPU_Q2_K)
		s = _mm512_cvtepu8_epi32(_mm_and_si128(bytes, _mm_set1_epi8(15)));
	else
		s = _mm512_cvtepi8_epi32(bytes);
	s = _mm512_mask_blend_epi16(0xaaaaaaaa, s, _mm512_slli_epi32(s, 16));
	q = _mm512_mullo_epi16(q, s);
	if (form == NSV_CPU_Q2_K)
		return q;
	add = _mm512_sub_epi16(_mm512_set1_epi16(128), _mm512_slli_epi16(s, 2));
	return _mm512_add_epi16(q, _mm512_add_epi16(add, _mm512_slli_epi16(add, 8)));
}

/* Vector j of a block's unpacked q: inputs 4j .. 4j+3 of 16 rows. */
ALWAYS_INLINE __m512i load_quants(const uint8_t *block, uint32_t j, uint32_t form)
{
	const uint32_t bits = nsv_cpu_bits(form), fours = bits & 4;
	uint64_t ones;
	__m512i q = _mm512_setzero_si512();
	if (bits == 8)
		return _mm512_loadu_si512(block + j * 64);
	if (fours)
		q = take_bits(block + j / 2 * 64, j % 2 * 4, 4, 0);
	if (bits & 2)
		q = _mm512_or_si512(q,
			take_bits(block + fours * 64 + j / 4 * 64, j % 4 * 2, 2, fours));
	if (bits & 1) {
		memcpy(&ones, block + nsv_cpu_ones_at(bits) + j * 8, sizeof(ones));
		q = _mm512_mask_add_epi8(q, ones, q, _mm512_set1_epi8((char)(1u << (bits - 1))));
	}
	if (nsv_cpu_is_coded(form))
		return _mm512_shuffle_epi8(
			_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)nsv_cpu_iq4)), q);
	if (nsv_cpu_is_scaled(form))
		return scale_quants(
			q, block + nsv_cpu_q_len(form) + j / 4 * NSV_CPU_PANEL, form);
	return q;
}

#endif

#endif
