/* Products of a warpgroup on the tensor cores: asynchronous, both operands or the second one from
 * shared memory. Nothing here decides anything.
 *
 *     D (64, N) fp32 in registers: a warp has 16 rows, laid out as by mma.sync m16n8k16
 *     A (64, 16) from registers, laid out likewise, or from panels, dims along a row
 *     B (16, N)  from panels: of K, dims along a row (K-major); of V, dims along a row too, but
 *                there they are N (MN-major)
 *
 * Accumulators are nobody else's between the fence before a product and the wait for it. */
#ifndef NSV_KERNELS_CUDA_WGMMA_CUH
#define NSV_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/tiles.cuh"

namespace nsv
{

/* Descriptor of a place in panels whose rows are swizzled over 128 bytes: its low half; the high
 * one is always that 8 rows are 1024 bytes, and the swizzle. `panel`: bytes from a panel to the
 * next, where N runs over panels. */
#define NSV_DESC_HIGH "0x40000040"

__device__ __forceinline__ uint32_t wgmma_at(uint32_t smem, uint32_t panel)
{
	return (smem & 0x3ffff) >> 4 | panel >> 4 << 16;
}

/* The place `bytes` further on. */
__device__ __forceinline__ uint32_t wgmma_move(uint32_t at, uint32_t bytes)
{
	return at + (bytes >> 4);
}

__device__ __forceinline__ void wgmma_fence()
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* All but the last N groups are done. */
template <int N> __device__ __forceinline__ void wgmma_wait()
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* The compiler reads and writes x on its side of this. */
template <int N> __device__ __forceinline__ void pin(float (&x)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(x[i])::"memory");
}

#define NSV_OUT8(d, i)                                                                             \
	"+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]),                  \
		"+f"((d)[(i) + 4]), "+f"((d)[(i) + 5]), "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])
#define NSV_OUT32(d) NSV_OUT8(d, 0), NSV_OUT8(d, 8), NSV_OUT8(d, 16), NSV_OUT8(d, 24)
#define NSV_OUT4(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define NSV_OUT36(d) NSV_OUT32(d), NSV_OUT4(d, 32)
#define NSV_OUT64(d)                                                                               \
	NSV_OUT32(d), NSV_OUT8(d, 32), NSV_OUT8(d, 40), NSV_OUT8(d, 48), NSV_OUT8(d, 56)
#define NSV_OUT68(d) NSV_OUT64(d), NSV_OUT4(d, 64)
#define NSV_REGS32                                                                                 \
	"{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"                   \
	" %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define NSV_REGS36                                                                                 \
	"{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"                   \
	" %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"         \
	" %32, %33, %34, %35}"
#define NSV_REGS64                                                                                 \
	"{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"                   \
	" %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"         \
	" %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"         \
	" %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define NSV_REGS68                                                                                 \
	"{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"                   \
	" %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"         \
	" %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"         \
	" %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"         \
	" %64, %65, %66, %67}"

/* d (64, N) = or += a b of 16 dims, a and b in shared memory, dims along rows of both. */
#define NSV_WGMMA_QK32(TYPES)                                                                      \
	asm volatile("{\n\t.reg .pred add;\n\t.reg .b64 qa, kb;\n\t"                               \
		     "setp.ne.b32 add, %34, 0;\n\t"                                                \
		     "mov.b64 qa, {%32, " NSV_DESC_HIGH "};\n\t"                                   \
		     "mov.b64 kb, {%33, " NSV_DESC_HIGH "};\n\t"                                   \
		     "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPES " " NSV_REGS32            \
		     ", qa, kb, add, 1, 1, 0, 0;\n\t}"                                             \
		     : NSV_OUT32(d)                                                                \
		     : "r"(a), "r"(b), "r"(add))
#define NSV_WGMMA_QK64(TYPES)                                                                      \
	asm volatile("{\n\t.reg .pred add;\n\t.reg .b64 qa, kb;\n\t"                               \
		     "setp.ne.b32 add, %66, 0;\n\t"                                                \
		     "mov.b64 qa, {%64, " NSV_DESC_HIGH "};\n\t"                                   \
		     "mov.b64 kb, {%65, " NSV_DESC_HIGH "};\n\t"                                   \
		     "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPES " " NSV_REGS64           \
		     ", qa, kb, add, 1, 1, 0, 0;\n\t}"                                             \
		     : NSV_OUT64(d)                                                                \
		     : "r"(a), "r"(b), "r"(add))

/* d (64, N) = or += a b of 16 keys, a in registers, b in shared memory with N along rows. */
#define NSV_WGMMA_PV(N, REGS, A0, A1, A2, A3, B, ADD, TYPES, OUT)                                  \
	asm volatile("{\n\t.reg .pred add;\n\t.reg .b64 vb;\n\t"                                   \
		     "setp.ne.b32 add, " ADD ", 0;\n\t"                                            \
		     "mov.b64 vb, {" B ", " NSV_DESC_HIGH "};\n\t"                                 \
		     "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPES " " REGS ", {" A0      \
		     ", " A1 ", " A2 ", " A3 "}, vb, add, 1, 1, 1;\n\t}"                           \
		     : OUT(d)                                                                      \
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add))
#define NSV_WGMMA_PV72(TYPES)                                                                      \
	NSV_WGMMA_PV("72", NSV_REGS36, "%36", "%37", "%38", "%39", "%40", "%41", TYPES, NSV_OUT36)
#define NSV_WGMMA_PV136(TYPES)                                                                     \
	NSV_WGMMA_PV("136", NSV_REGS68, "%68", "%69", "%70", "%71", "%72", "%73", TYPES, NSV_OUT68)

/* d (64, 136) = or += a b of 16 keys, both in shared memory: a has keys along rows. */
#define NSV_WGMMA_PV_SHARED(TYPES)                                                                 \
	asm volatile("{\n\t.reg .pred add;\n\t.reg .b64 pa, vb;\n\t"                               \
		     "setp.ne.b32 add, %70, 0;\n\t"                                                \
		     "mov.b64 pa, {%68, " NSV_DESC_HIGH "};\n\t"                                   \
		     "mov.b64 vb, {%69, " NSV_DESC_HIGH "};\n\t"                                   \
		     "wgmma.mma_async.sync.aligned.m64n136k16.f32." TYPES " " NSV_REGS68           \
		     ", pa, vb, add, 1, 1, 0, 1;\n\t}"                                             \
		     : NSV_OUT68(d)                                                                \
		     : "r"(a), "r"(b), "r"(add))

template <typename E> struct wgmma;

template <> struct wgmma<__nv_bfloat16> {
	static __device__ __forceinline__ void qk(float (&d)[32], uint32_t a, uint32_t b, int add)
	{
		NSV_WGMMA_QK32("bf16.bf16");
	}
	static __device__ __forceinline__ void qk(float (&d)[64], uint32_t a, uint32_t b, int add)
	{
		NSV_WGMMA_QK64("bf16.bf16");
	}
	static __device__ __forceinline__ void pv(float (&d)[68], uint32_t a, uint32_t b, int add)
	{
		NSV_WGMMA_PV_SHARED("bf16.bf16");
	}
	static __device__ __forceinline__ void pv(
		float (&d)[36], const uint32_t *a, uint32_t b, int add)
	{
		NSV_WGMMA_PV72("bf16.bf16");
	}
	static __device__ __forceinline__ void pv(
		float (&d)[68], const uint32_t *a, uint32_t b, int add)
	{
		NSV_WGMMA_PV136("bf16.bf16");
	}
};

template <> struct wgmma<__half> {
	static __device__ __forceinline__ void qk(float (&d)[32], uint32_t a, uint32_t b, int add)
	{
		NSV_WGMMA_QK32("f16.f16");
	}
	static __device__ __forceinline__ void qk(float (&d)[64], uint32_t a, uint32_t b, int add)
	{
		NSV_WGMMA_QK64("f16.f16");
	}
	static __device__ __forceinline__ void pv(float (&d)[68], uint32_t a, uint32_t b, int add)
	{
		NSV_WGMMA_PV_SHARED("f16.f16");
	}
	static __device__ __forceinline__ void pv(
		float (&d)[36], const uint32_t *a, uint32_t b, int add)
	{
		NSV_WGMMA_PV72("f16.f16");
	}
	static __device__ __forceinline__ void pv(
		float (&d)[68], const uint32_t *a, uint32_t b, int add)
	{
		NSV_WGMMA_PV136("f16.f16");
	}
};

} // namespace nsv

#endif
