/* What the roles of decode share: sizes of an instantiation, places in shared memory. decode.cu has
 * the whole picture. */
#ifndef NSV_KERNELS_CUDA_DECODE_PARTS_CUH
#define NSV_KERNELS_CUDA_DECODE_PARTS_CUH

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/tiles.cuh"

namespace nsv
{

constexpr int ROW_TILE = 8;    /* rows of a product: they are its columns */
constexpr int SLICE_KEYS = 16; /* keys or dims that a product adds up */
constexpr int N_WARP = DECODE_WARPS;
constexpr int N_CONSUMER = N_WARP * 32;
constexpr int N_THREAD = N_CONSUMER + 32;
constexpr uint32_t CONSUMERS = 1; /* named barrier */
/* Of a multiprocessor where it has one or two blocks of threads; at 64 dims more was slower. */
constexpr int ring_bytes(int dims)
{
	return (dims == 64 ? 128 : 160) * 1024;
}
static_assert(N_WARP * 16 == TILE);

/* Sizes of an instantiation: D dims (padded), NT tiles of rows, K and V as e4m3 or not. */
template <int D, int NT, bool PACKED> struct config {
	static constexpr int elem_bytes = PACKED ? 1 : 2;
	static constexpr int row_bytes = D * elem_bytes < ROW_BYTES ? D * elem_bytes : ROW_BYTES;
	static constexpr int row_pieces = row_bytes / 16;
	static constexpr int panel_dims = row_bytes / elem_bytes; /* of K and V; of q 64 */
	static constexpr int panel_bytes = TILE * row_bytes;
	static constexpr int n_panel = D / panel_dims;
	static constexpr int rows = NT * ROW_TILE;
	static constexpr int dim_tiles = D / 16 / N_WARP; /* of 16 dims, a warp's */
	/* Runs of a third block of threads are shorter, which counts where steps are short; merges
	 * in slices then have less room, and others are of entries. */
	static constexpr bool is_small = PACKED && D == 64 && NT == 1;
	static constexpr int per_sm = D == 256 || NT == 8 ? 1 : is_small ? 3 : 2;
	static constexpr int slot_bytes = n_panel * panel_bytes;
	static constexpr int scale_bytes = PACKED ? TILE * 4 : 0; /* of a slot, apart from it */
	static constexpr int q_bytes = rows * D * 2;
	static constexpr int p_tile_bytes = STEP_KEYS * ROW_TILE * 2;
	static constexpr int p_bytes = NT * p_tile_bytes;
	static constexpr int max_bytes = rows * N_WARP * 4;
	static constexpr int merge_group = is_small ? 2 : 5; /* chunks asked for together */
	static constexpr int slice = is_small ? 32 : 64; /* values of o that are folded together */
	static constexpr int slice_chunks = 80;		 /* asked for together */
	static constexpr int merge_bytes = slice_chunks * slice * 4;
	static_assert(merge_bytes >= 2 * merge_group * N_CONSUMER * 16);
	static constexpr int fixed_bytes = 2 * (q_bytes + p_bytes + max_bytes) + merge_bytes + 1024;
	static constexpr int room = 233472 / per_sm - 1024 - 1024 - 512 - fixed_bytes;
	static constexpr int share = is_small ? room : ring_bytes(D) / per_sm;
	static constexpr int n_slot = (room < share ? room : share) / (slot_bytes + scale_bytes);
	static constexpr int smem_bytes = n_slot * (slot_bytes + scale_bytes) + fixed_bytes + 1024;
	static constexpr bool q_in_regs = NT * D <= 256;
	/* Threads that give a slot back: of reads of scales racecheck takes no lane's word for
	 * those of others. */
	static constexpr int slot_arrivals = PACKED ? N_CONSUMER : N_WARP;
};

/* Shared memory, by offset: ring, q, p, row maxima, partials in flight, scales,
 * barriers. */
template <int D, int NT, bool PACKED> struct layout {
	using C = config<D, NT, PACKED>;
	uint32_t base;

	__device__ uint32_t slot(int i) const
	{
		return base + i * C::slot_bytes;
	}
	/* A 16-byte piece of a token in a slot, as the copy engine leaves it. */
	__device__ __forceinline__ static uint32_t piece_at(
		uint32_t slot, uint32_t row, uint32_t piece)
	{
		uint32_t in = piece % C::row_pieces,
			 at = slot + piece / C::row_pieces * C::panel_bytes;
		return C::row_pieces == 8 ? at + swizzle(row, in)
					  : at + row * 64 + ((in ^ (row >> 1 & 3)) << 4);
	}
	__device__ uint32_t q(int parity) const
	{
		return base + C::n_slot * C::slot_bytes + parity * C::q_bytes;
	}
	/* Of a tile of rows: 16 bytes a key of the step. */
	__device__ uint32_t p(int parity, int row_tile) const
	{
		return q(2) + parity * C::p_bytes + row_tile * C::p_tile_bytes;
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
	/* Of the tokens of a slot. */
	__device__ uint32_t scales(int i) const
	{
		return row_max(2) + C::merge_bytes + i * C::scale_bytes;
	}
	__device__ uint32_t full(int i) const
	{
		return scales(C::n_slot) + i * 8;
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
	__device__ uint32_t piece_full(int parity) const
	{
		return q_empty(2) + parity * 8;
	}
};

} // namespace nsv

#endif
