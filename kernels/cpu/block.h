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

/* What the sums of a block are multiplied with, of 16 rows; [1] where halves of it differ. */
struct factors {
	vf d[2], m;
};

/* From the scales of a block and the head before it. */
ALWAYS_INLINE void load_factors(
	struct factors *f, const uint8_t *scales, const uint8_t *head, uint32_t form)
{
	const bool has_head = nsv_cpu_head_len(form) > 0;
	const uint8_t *second = scales + NSV_CPU_PANEL, *wide = has_head ? head : scales;
	vf d = vf_load_f16(wide);
	f->d[0] = has_head ? vf_mul(d, vf_load_s8(scales)) : d;
	if (form == NSV_CPU_Q6_K)
		f->d[1] = vf_mul(d, vf_load_s8(second));
	if (!nsv_cpu_has_m(form))
		return;
	f->m = vf_load_f16(wide + 2 * NSV_CPU_PANEL);
	if (has_head)
		f->m = vf_mul(f->m, vf_load_s8(second));
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

/* Vector j of a block's q: inputs 4j .. 4j+3 of 16 rows. */
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
	return q;
}

#endif

#endif
