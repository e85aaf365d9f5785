/* Thin names for the instructions that the kernels use: barriers in shared memory, the tensor copy
 * engine, warp-wide tensor-core products. Nothing here decides anything. */
#ifndef NSV_KERNELS_CUDA_PTX_CUH
#define NSV_KERNELS_CUDA_PTX_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace nsv
{

__device__ __forceinline__ uint32_t smem_addr(const void *p)
{
	return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* x, computed anew: what follows from it is not kept in registers across a loop. */
__device__ __forceinline__ int opaque(int x)
{
	asm volatile("" : "+r"(x));
	return x;
}

/* The other way's code goes out of the way. */
__device__ __forceinline__ bool is_likely(bool x)
{
	return __builtin_expect(x, true);
}

__device__ __forceinline__ float ld_shared(uint32_t at)
{
	float x;
	asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
	return x;
}

__device__ __forceinline__ float2 ld_shared2(uint32_t at)
{
	float2 x;
	asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
		     : "=f"(x.x), "=f"(x.y)
		     : "r"(at)
		     : "memory");
	return x;
}

__device__ __forceinline__ float4 ld_shared4(uint32_t at)
{
	float4 x;
	asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
		     : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
		     : "r"(at)
		     : "memory");
	return x;
}

__device__ __forceinline__ void st_shared(uint32_t at, float x)
{
	asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}

__device__ __forceinline__ void st_shared(uint32_t at, float2 x)
{
	asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x.x), "f"(x.y) : "memory");
}

__device__ __forceinline__ void st_shared(uint32_t at, float4 x)
{
	asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x.x), "f"(x.y),
		     "f"(x.z), "f"(x.w)
		     : "memory");
}

/* ---- mbarrier */
__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void mbar_arrive(uint32_t bar)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* n arrivals at once. */
__device__ __forceinline__ void mbar_arrive(uint32_t bar, uint32_t n)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(n) : "memory");
}

__device__ __forceinline__ void mbar_arrive_expect(uint32_t bar, uint32_t n_byte)
{
	asm volatile(
		"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(n_byte)
		: "memory");
}

__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity)
{
	asm volatile("{\n\t.reg .pred done;\n"
		     "again:\n\t"
		     "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
		     "@!done bra again;\n\t}" ::"r"(bar),
		     "r"(parity)
		     : "memory");
}

/* Is the phase over? Does not wait. */
__device__ __forceinline__ bool mbar_test(uint32_t bar, uint32_t parity)
{
	uint32_t done;
	asm volatile("{\n\t.reg .pred p;\n\t"
		     "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
		     "selp.b32 %0, 1, 0, p;\n\t}"
		     : "=r"(done)
		     : "r"(bar), "r"(parity)
		     : "memory");
	return done;
}

/* Barriers initialised by one thread become visible to the copy engine. */
__device__ __forceinline__ void mbar_init_fence()
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void async_proxy_fence()
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void named_barrier(uint32_t id, uint32_t n_thread)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_thread) : "memory");
}

/* Counts towards the barrier, and goes on. */
__device__ __forceinline__ void named_barrier_arrive(uint32_t id, uint32_t n_thread)
{
	asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_thread) : "memory");
}

/* ---- Counters that order what lies around them, on the whole device */
/* What this block of threads wrote before is there for those who see the new count; returns the
 * count before, and what was there for those who made it is there for us. */
__device__ __forceinline__ uint32_t count_in_order(uint32_t *counter, uint32_t n)
{
	uint32_t r;
	asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
		     : "=r"(r)
		     : "l"(counter), "r"(n)
		     : "memory");
	return r;
}

__device__ __forceinline__ uint32_t look_in_order(const uint32_t *counter)
{
	uint32_t r;
	asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(r) : "l"(counter) : "memory");
	return r;
}

__device__ __forceinline__ uint64_t ld_relaxed(const uint64_t *at)
{
	uint64_t r;
	asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(r) : "l"(at) : "memory");
	return r;
}

/* Orders nothing. */
__device__ __forceinline__ void count_up(uint64_t *counter)
{
	asm volatile("red.relaxed.gpu.global.add.u64 [%0], 1;" ::"l"(counter) : "memory");
}

/* 16 bytes that are written, or read, as one; nothing is ordered around them. */
__device__ __forceinline__ void st_relaxed_16(void *at, uint64_t lo, uint64_t hi)
{
	asm volatile("{\n\t.reg .b128 x;\n\tmov.b128 x, {%1, %2};\n\t"
		     "st.relaxed.gpu.global.b128 [%0], x;\n\t}" ::"l"(at),
		     "l"(lo), "l"(hi)
		     : "memory");
}

__device__ __forceinline__ void ld_relaxed_16(const void *at, uint64_t &lo, uint64_t &hi)
{
	asm volatile("{\n\t.reg .b128 x;\n\tld.relaxed.gpu.global.b128 x, [%2];\n\t"
		     "mov.b128 {%0, %1}, x;\n\t}"
		     : "=l"(lo), "=l"(hi)
		     : "l"(at)
		     : "memory");
}

/* ---- Copies */
__device__ __forceinline__ void cp_async_16(uint32_t dst, const void *src, uint32_t n_byte)
{
	asm volatile(
		"cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(n_byte)
		: "memory");
}

__device__ __forceinline__ void cp_async_commit()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All but the last N groups of this thread's copies have landed. */
template <int N> __device__ __forceinline__ void cp_async_wait()
{
	asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* The barrier gets one arrival when this thread's copies so far have landed. */
__device__ __forceinline__ void cp_async_arrive(uint32_t bar)
{
	asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

__device__ __forceinline__ uint64_t policy_evict_first()
{
	uint64_t policy;
	asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
	return policy;
}

__device__ __forceinline__ uint64_t policy_evict_normal()
{
	uint64_t policy;
	asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
	return policy;
}

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap *map)
{
	asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* A box of a (dim, token, head, block) map. */
__device__ __forceinline__ void tma_load_4d(uint32_t dst, const CUtensorMap *map, uint32_t bar,
	int32_t dim, int32_t tok, int32_t head, int32_t block, uint64_t policy)
{
	asm volatile(
		"cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
		".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
		"l"(map), "r"(bar), "r"(dim), "r"(tok), "r"(head), "r"(block), "l"(policy)
		: "memory");
}

/* The same, kept in the second-level cache as others are. */
__device__ __forceinline__ void tma_load_4d(uint32_t dst, const CUtensorMap *map, uint32_t bar,
	int32_t dim, int32_t tok, int32_t head, int32_t block)
{
	asm volatile(
		"cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
		"[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst),
		"l"(map), "r"(bar), "r"(dim), "r"(tok), "r"(head), "r"(block)
		: "memory");
}

/* n_byte bytes that lie together: whole sixteens, as the addresses are. */
__device__ __forceinline__ void bulk_load(
	uint32_t dst, const void *src, uint32_t n_byte, uint32_t bar)
{
	asm volatile(
		"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
		"%2, [%3];" ::"r"(dst),
		"l"(src), "r"(n_byte), "r"(bar)
		: "memory");
}

/* A box of a (dim, head, row) map. */
__device__ __forceinline__ void tma_load_3d(
	uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t dim, int32_t head, int32_t row)
{
	asm volatile(
		"cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
		"[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
		"l"(map), "r"(bar), "r"(dim), "r"(head), "r"(row)
		: "memory");
}

/* ---- A warpgroup's registers */
template <int N> __device__ __forceinline__ void set_more_regs()
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void set_fewer_regs()
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- Programmatic dependent launch */
__device__ __forceinline__ void grid_wait()
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void grid_launch_next()
{
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* ---- Warp-wide matrix fragments */
__device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], uint32_t addr)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(addr)
		     : "memory");
}

/* Four matrices of 8 x 8: lane l gives where row l % 8 of matrix l / 8 goes. */
__device__ __forceinline__ void stmatrix_x4(uint32_t addr, const uint32_t r[4])
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr),
		     "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
		     : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], uint32_t addr)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(addr)
		     : "memory");
}

/* Four of the eight bytes of lo and hi, each picked by a digit; 8 more: its sign, eight times. */
__device__ __forceinline__ uint32_t permute(uint32_t lo, uint32_t hi, uint32_t digits)
{
	uint32_t r;
	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(lo), "r"(hi), "r"(digits));
	return r;
}

/* What a 16-bit element type needs: its product, its packing, two ones; products of pairs, of
 * subnormal ones too. */
template <typename E> struct elem;

template <> struct elem<__nv_bfloat16> {
	static constexpr uint32_t ones = 0x3f803f80u;

	static __device__ __forceinline__ void mma(
		float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
	{
		asm volatile(
			"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
			"{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
			: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
			: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
	}

	static __device__ __forceinline__ uint32_t pack(float lo, float hi)
	{
		uint32_t r;
		asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
		return r;
	}

	static __device__ __forceinline__ uint32_t mul(uint32_t a, uint32_t b)
	{
		uint32_t r;
		asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
		return r;
	}
};

template <> struct elem<__half> {
	static constexpr uint32_t ones = 0x3c003c00u;

	static __device__ __forceinline__ void mma(
		float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
	{
		asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
			     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
			     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
	}

	static __device__ __forceinline__ uint32_t pack(float lo, float hi)
	{
		uint32_t r;
		asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
		return r;
	}

	static __device__ __forceinline__ uint32_t mul(uint32_t a, uint32_t b)
	{
		uint32_t r;
		asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
		return r;
	}
};

} // namespace nsv

#endif
