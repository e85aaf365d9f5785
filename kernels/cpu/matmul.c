/* Products in plain C: the last row of the table, and the one to read first. */
#include "kernels/cpu/pack.h"
#include "kernels/cpu/vec.h"

#define FN(name) nsv_cpu_##name##_plain
#define MAX_ROWS 1
#define Q8_SHIFT 0

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

ALWAYS_INLINE void unpack(struct quants *q, const uint8_t *block, uint32_t form)
{
	for (uint32_t j = 0; j < 8; j++)
		for (uint32_t i = 0; i < 64; i++) {
			uint32_t v;
			if (form >= NSV_CPU_Q8_D)
				v = block[j * 64 + i];
			else
				v = block[j / 2 * 64 + i] >> (j % 2 * 4) & 15u;
			if (form >= NSV_CPU_Q5_D && form < NSV_CPU_Q8_D)
				v |= (block[256 + j * 8 + i / 8] >> (i % 8) & 1u) << 4;
			q->v[j][i] = (uint8_t)v;
		}
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

#include "kernels/cpu/matmul-impl.h"
