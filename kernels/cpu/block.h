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

/* The i-th group of 16 scales of a block, which begin at p. */
ALWAYS_INLINE vf load_scales(const uint8_t *p, uint32_t form, uint32_t i)
{
	if (nsv_cpu_has_f32_scales(form))
		return vf_load((const float *)(const void *)p + i * VF_N);
	return vf_load_f16(p + i * VF_N * 2);
}

#if defined(__AVX512BW__)

/* Vector j of a block's q: inputs 4j .. 4j+3 of 16 rows. */
ALWAYS_INLINE __m512i load_quants(const uint8_t *block, uint32_t j, uint32_t form)
{
	uint64_t bits;
	__m512i q;
	if (form >= NSV_CPU_Q8_D)
		return _mm512_loadu_si512(block + j * 64);
	q = _mm512_loadu_si512(block + j / 2 * 64);
	if (j % 2)
		q = _mm512_srli_epi16(q, 4);
	q = _mm512_and_si512(q, _mm512_set1_epi8(15));
	if (form < NSV_CPU_Q5_D)
		return q;
	memcpy(&bits, block + 256 + j * 8, sizeof(bits));
	return _mm512_mask_add_epi8(q, bits, q, _mm512_set1_epi8(16));
}

#endif

#endif
