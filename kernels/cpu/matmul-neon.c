/* Products with the NEON that every AArch64 has: 16 bits hold a product (|x| <= 127), and pairs are
 * widened as they are added, so nothing saturates. */
#define VEC_NEON
#include "kernels/cpu/vec.h"

#define FN(name) nsv_cpu_##name##_neon

ALWAYS_INLINE int32x4_t add_four(int32x4_t sum, int8x16_t q, int8x16_t x)
{
	int32x4_t lo = vpaddlq_s16(vmull_s8(vget_low_s8(q), vget_low_s8(x)));
	int32x4_t hi = vpaddlq_s16(vmull_high_s8(q, x));
	return vaddq_s32(sum, vpaddq_s32(lo, hi));
}

#include "kernels/cpu/matmul-neon-impl.h"
