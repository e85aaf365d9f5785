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

/* The four inputs straight from memory: what the intrinsic compiles to is a load of its own, 64 of
 * them in a block of eight rows, and the products come up to a tenth slower. */
ALWAYS_INLINE __m512i add_four(__m512i sum, __m512i q, const int8_t *x)
{
	__asm__("vpdpbusd\t%2%{1to16%}, %1, %0"
		: "+v"(sum)
		: "v"(q), "m"(*(const int8_t(*)[4])x));
	return sum;
}

/* Of a whole block two sums, even vectors and odd: one instruction waits for the one before. */
ALWAYS_INLINE __m512i dot(const struct quants *q, const int8_t *x, uint32_t first, uint32_t end,
	uint32_t form, int32_t bias)
{
	const bool is_whole = end - first == NSV_ARRAY_LEN(q->v);
	__m512i sum = _mm512_set1_epi32(bias), odd = _mm512_setzero_si512();
	(void)form;
	UNROLL
	for (uint32_t j = first; j < end; j++)
		if (is_whole && j % 2)
			odd = add_four(odd, q->v[j], x + j * 4);
		else
			sum = add_four(sum, q->v[j], x + j * 4);
	return is_whole ? _mm512_add_epi32(sum, odd) : sum;
}

#include "kernels/cpu/matmul-dot-impl.h"
#include "kernels/cpu/matmul-impl.h"
