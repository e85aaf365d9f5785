/* Stored elements to fp32 and back, rounded to nearest. */
#ifndef NSV_KERNELS_CUDA_CONVERT_CUH
#define NSV_KERNELS_CUDA_CONVERT_CUH

#include "kernels/half.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <math.h>
#include <stdint.h>

namespace nsv
{

__device__ __forceinline__ float to_float(float x)
{
	return x;
}

__device__ __forceinline__ float to_float(__half x)
{
	return __half2float(x);
}

__device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
	return __bfloat162float(x);
}

/* A byte of a head that has a scale. */
struct e4m3 {
	__nv_fp8_storage_t bits;
};

__device__ __forceinline__ float to_float(e4m3 x)
{
	return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
}

template <typename E> __device__ E from_float(float x);

template <> __device__ __forceinline__ float from_float<float>(float x)
{
	return x;
}

template <> __device__ __forceinline__ __half from_float<__half>(float x)
{
	return __float2half_rn(x);
}

template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
	return __float2bfloat16_rn(x);
}

/* As an element of K or V: what fp16 cannot hold becomes NaN, as nsv_f32_f16_kv (kernels/half.h)
 * has it and says why. */
template <typename E> __device__ __forceinline__ E kv_from_float(float x)
{
	return from_float<E>(x);
}

template <> __device__ __forceinline__ __half kv_from_float<__half>(float x)
{
	__half h = __float2half_rn(x);
	return __hle(__habs(h), __ushort_as_half(NSV_F16_MAX)) ? h : __ushort_as_half(NSV_F16_NAN);
}

/* ---- e4m3 with a scale (nanoserve_cuda.h says which) */
constexpr int E4M3_MIN_EXPONENT = -15, E4M3_MAX_EXPONENT = 7;

/* log2 of the smallest scale under which `max` is at most 448 = 1.75 * 2^8. */
__host__ __device__ inline int e4m3_exponent(float max)
{
	int exponent;
	if (!(max > 0.0f))
		return E4M3_MIN_EXPONENT;
	if (isinf(max))
		return E4M3_MAX_EXPONENT;
	float fraction = frexpf(max, &exponent); /* of [0.5, 1): 448 is 0.875 * 2^9 */
	exponent -= fraction > 0.875f ? 8 : 9;
	return exponent < E4M3_MIN_EXPONENT   ? E4M3_MIN_EXPONENT
	       : exponent > E4M3_MAX_EXPONENT ? E4M3_MAX_EXPONENT
					      : exponent;
}

/* To nearest, ties to even; beyond 448 it is that; NaN becomes 0. */
__host__ __device__ inline uint8_t to_e4m3(float x)
{
	return isnan(x) ? 0 : __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

} // namespace nsv

#endif
