/* K and V as e4m3, in decode's consumers: bytes from the ring become fragments of products of q's
 * type in registers.
 *
 *     byte  s eeee mmm  -->  s 0000 eeee mmm 0000  bf16, short by 2^-120  -->  x 2^120 x scale
 *                            s 0 eeee mmm 0000000  fp16, short by 2^-8    -->  x 2^8 x scale
 *
 * Both steps are exact, subnormal ones too (nanoserve_cuda.h says which scales there are), so a
 * product has the values that it has on a pool of q's type. No byte becomes an infinity or NaN.
 *
 *     K: a lane's four bytes are dims 4t to 4t + 3 of a slice (t: lane % 4), so q's are as well:
 *        within a slice of 16 the order changes no bit
 *     V: a lane's four bytes are two dims of two keys, so the dims of O lie in pairs */
#ifndef NSV_KERNELS_CUDA_DECODE_PACKED_CUH
#define NSV_KERNELS_CUDA_DECODE_PACKED_CUH

#include "kernels/cuda/decode_parts.cuh"

namespace nsv
{

/* Bytes a and b of four, each behind eight copies of its sign: what prmt is told. */
__host__ __device__ constexpr uint32_t two_bytes(uint32_t a, uint32_t b)
{
	return (b | 8) << 12 | b << 8 | (a | 8) << 4 | a;
}

template <typename E> struct widening;

template <> struct widening<__nv_bfloat16> {
	static constexpr int shift = 4;
	static constexpr uint32_t mask = 0x87f087f0u;

	/* Two scales, with what bytes are short by: their exponents, moved. */
	static __device__ __forceinline__ uint32_t scales(float lo, float hi)
	{
		return permute(__float_as_uint(lo), __float_as_uint(hi), 0x7632) + 0x3c003c00u;
	}
};

template <> struct widening<__half> {
	static constexpr int shift = 7;
	static constexpr uint32_t mask = 0xbf80bf80u;

	static __device__ __forceinline__ uint32_t scales(float lo, float hi)
	{
		return elem<__half>::pack(__fmul_rn(lo, 0x1p8f), __fmul_rn(hi, 0x1p8f));
	}
};

/* Bytes A and B of x times their scales. */
template <typename E, int A, int B>
__device__ __forceinline__ uint32_t widen(uint32_t x, uint32_t scales)
{
	using W = widening<E>;
	return elem<E>::mul(permute(x, 0, two_bytes(A, B)) << W::shift & W::mask, scales);
}

} // namespace nsv

#endif
