/* Products with SDOT: four inputs of each of four rows an instruction. */
#define VEC_NEON
#include "kernels/cpu/vec.h"

#define FN(name) nsv_cpu_##name##_dotprod

ALWAYS_INLINE int32x4_t add_four(int32x4_t sum, int8x16_t q, int8x16_t x)
{
	return vdotq_s32(sum, q, x);
}

#include "kernels/cpu/matmul-neon-impl.h"
