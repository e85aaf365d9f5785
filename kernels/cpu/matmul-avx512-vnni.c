/* Products with vpdpbusd: four inputs of each of 16 rows an instruction, the rows being the
 * lanes. */
#include "kernels/cpu/block.h"

#define FN(name) nsv_cpu_##name##_avx512
#define MAX_ROWS 16
#define WHOLE_TILES 0
#define WIDE_SHIFT 0

typedef __m512i vi;

struct quants {
	__m512i v[8];
};

#define vi_float _mm512_cvtepi32_ps

ALWAYS_INLINE void unpack(struct quants *q, const uint8_t *block, uint32_t form)
{
	UNROLL
	for (uint32_t j = 0; j < 8; j++)
		q->v[j] = load_quants(block, j, form);
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

#include "kernels/cpu/matmul-dot-impl.h"
#include "kernels/cpu/matmul-impl.h"
