/* What the roles of decode share: sizes of an instantiation, places in shared memory. decode.cu has
 * the whole picture. */
#ifndef NSV_KERNELS_CUDA_DECODE_PARTS_CUH
#define NSV_KERNELS_CUDA_DECODE_PARTS_CUH

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/tiles.cuh"

namespace nsv
{

constexpr int N_WARP = 4; /* consumers */
constexpr int N_CONSUMER = N_WARP * 32;
constexpr int N_THREAD = N_CONSUMER + 32;
constexpr uint32_t CONSUMERS = 1; /* named barrier */
constexpr int MERGE_GROUP = 6;	  /* chunks whose partials are asked for together */
constexpr int MAX_SLOTS = 4;	  /* more in flight only crowd the second-level cache */

/* Sizes of an instantiation: D dims (padded), MT tiles of 16 rows. */
template <int D, int MT> struct config {
	static constexpr int n_panel = D / PANEL_DIMS;
	static constexpr int rows = MT * 16;
	static constexpr int slot_bytes = n_panel * PANEL_BYTES;
	static constexpr int q_bytes = rows * D * 2;
	static constexpr int p_bytes = STEP_TILES * rows * ROW_BYTES;
	static constexpr int max_bytes = rows * N_WARP * 4;
	static constexpr int per_sm = D == 256 || MT == 4 ? 1 : D == 64 && MT == 1 ? 3 : 2;
	static constexpr int merge_bytes = 2 * MERGE_GROUP * N_CONSUMER * 16;
	static constexpr int fixed_bytes = 2 * (q_bytes + p_bytes + max_bytes) + merge_bytes + 1024;
	static constexpr int room = 231424 / per_sm - 1024 - 1024 - fixed_bytes;
	static constexpr int n_slot = room / slot_bytes < MAX_SLOTS ? room / slot_bytes : MAX_SLOTS;
	static constexpr int smem_bytes = n_slot * slot_bytes + fixed_bytes + 1024;
	static constexpr int dims_warp = D / N_WARP;
	static constexpr int n_frag = dims_warp / 8;
	static constexpr bool q_in_regs = MT == 1;
};

/* Shared memory, by offset: ring, q, p, row maxima, partials in flight, barriers. */
template <int D, int MT> struct layout {
	using C = config<D, MT>;
	uint32_t base;

	__device__ uint32_t slot(int i) const
	{
		return base + i * C::slot_bytes;
	}
	__device__ uint32_t q(int parity) const
	{
		return base + C::n_slot * C::slot_bytes + parity * C::q_bytes;
	}
	/* Of a tile of a step. */
	__device__ uint32_t p(int parity, int tile) const
	{
		return q(2) + parity * C::p_bytes + tile * (C::rows * ROW_BYTES);
	}
	__device__ uint32_t row_max(int parity) const
	{
		return p(2, 0) + parity * C::max_bytes;
	}
	/* Of each consumer its own places. */
	__device__ uint32_t merge(int thread, int i) const
	{
		return row_max(2) + (i * N_CONSUMER + thread) * 16;
	}
	__device__ uint32_t full(int i) const
	{
		return row_max(2) + C::merge_bytes + i * 8;
	}
	__device__ uint32_t empty(int i) const
	{
		return full(C::n_slot) + i * 8;
	}
	__device__ uint32_t q_full(int parity) const
	{
		return empty(C::n_slot) + parity * 8;
	}
	__device__ uint32_t q_empty(int parity) const
	{
		return q_full(2) + parity * 8;
	}
};

} // namespace nsv

#endif
