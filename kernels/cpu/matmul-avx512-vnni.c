/* Products with vpdpbusd: four inputs of each of 16 rows an instruction, the rows being the
 * lanes. */
#include "kernels/cpu/pack.h"
#include "kernels/cpu/vec.h"

#define FN(name) nsv_cpu_##name##_avx512
#if defined(NSV_DEBUG)
#define MAX_ROWS 2 /* sanitizers make code of each load: the same bits, compiled in seconds */
#else
#define MAX_ROWS 16
#endif
#define Q8_SHIFT 0

typedef __m512i vi;

struct quants {
	__m512i v[8];
};

#define vi_float _mm512_cvtepi32_ps

ALWAYS_INLINE void unpack(struct quants *q, const uint8_t *block, uint32_t form)
{
	const __m512i low = _mm512_set1_epi8(15), fifth = _mm512_set1_epi8(16);
	UNROLL
	for (uint32_t j = 0; j < 8; j++) {
		uint64_t bits;
		if (form >= NSV_CPU_Q8_D) {
			q->v[j] = _mm512_loadu_si512(block + j * 64);
			continue;
		}
		q->v[j] = _mm512_loadu_si512(block + j / 2 * 64);
		if (j % 2)
			q->v[j] = _mm512_srli_epi16(q->v[j], 4);
		q->v[j] = _mm512_and_si512(q->v[j], low);
		if (form >= NSV_CPU_Q5_D) {
			memcpy(&bits, block + 256 + j * 8, sizeof(bits));
			q->v[j] = _mm512_mask_add_epi8(q->v[j], bits, q->v[j], fifth);
		}
	}
}

ALWAYS_INLINE __m512i dot(const struct quants *q, const int8_t *x, uint32_t first, uint32_t end,
	uint32_t form, int32_t bias)
{
	__m512i sum = _mm512_set1_epi32(bias);
	(void)form;
	UNROLL
	for (uint32_t j = first; j < end; j++) {
		int32_t four;
		memcpy(&four, x + j * 4, sizeof(four));
		sum = _mm512_dpbusd_epi32(sum, q->v[j], _mm512_set1_epi32(four));
	}
	return sum;
}

#include "kernels/cpu/matmul-impl.h"
