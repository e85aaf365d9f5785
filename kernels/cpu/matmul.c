/* Products in plain C: the last row of the table, and the one to read first. */
#include "kernels/cpu/pack.h"
#include "kernels/cpu/vec.h"

#define FN(name) nsv_cpu_##name##_plain
#define MAX_ROWS 1
#define WHOLE_TILES 0
#define WIDE_SHIFT 0

typedef struct {
	int32_t i[16];
} vi;

struct quants {
	uint8_t v[8][64];
};

ALWAYS_INLINE vf vi_float(vi a)
{
	VF_EACH((float)a.i[i]);
}

/* q of byte i of vector j, put together from its parts. */
ALWAYS_INLINE uint32_t load_quant(const uint8_t *block, uint32_t j, uint32_t i, uint32_t form)
{
	const uint32_t bits = nsv_cpu_bits(form), fours = bits & 4;
	uint32_t q = 0;
	if (bits == 8)
		return block[j * 64 + i];
	if (fours)
		q = block[j / 2 * 64 + i] >> (j % 2 * 4) & 15u;
	if (bits & 2)
		q |= (block[fours * 64 + j / 4 * 64 + i] >> (j % 4 * 2) & 3u) << fours;
	if (bits & 1)
		q |= (block[nsv_cpu_ones_at(bits) + j * 8 + i / 8] >> (i % 8) & 1u) << (bits - 1);
	return q;
}

/* What it is multiplied as. */
ALWAYS_INLINE uint32_t unpack_quant(const uint8_t *block, uint32_t j, uint32_t i, uint32_t form)
{
	const uint8_t *scales = block + nsv_cpu_q_len(form) + j / 4 * NSV_CPU_PANEL;
	uint32_t q = load_quant(block, j, i, form);
	if (nsv_cpu_is_coded(form))
		return nsv_cpu_iq4[q];
	if (form == NSV_CPU_Q2_K)
		return q * (scales[i / 4] & 15u);
	if (form == NSV_CPU_Q3_K)
		return (uint32_t)(((int32_t)q - 4) * (int8_t)scales[i / 4] + 128);
	return q;
}

ALWAYS_INLINE void unpack(struct quants *q, const uint8_t *block, uint32_t form)
{
	for (uint32_t j = 0; j < 8; j++)
		for (uint32_t i = 0; i < 64; i++)
			q->v[j][i] = (uint8_t)unpack_quant(block, j, i, form);
}

ALWAYS_INLINE vi dot(const struct quants *q, const int8_t *x, uint32_t first, uint32_t end,
	uint32_t form, int32_t bias)
{
	vi sum;
	(void)form;
	for (uint32_t lane = 0; lane < 16; lane++) {
		sum.i[lane] = bias;
		for (uint32_t j = first; j < end; j++)
			for (uint32_t k = 0; k < 4; k++)
				sum.i[lane] += q->v[j][lane * 4 + k] * x[j * 4 + k];
	}
	return sum;
}

#include "kernels/cpu/matmul-dot-impl.h"
#include "kernels/cpu/matmul-impl.h"
