/* What the roles of prefill share: sizes of an instantiation, places in shared memory, the items.
 * prefill.cu has the whole picture. */
#ifndef NSV_KERNELS_CUDA_PREFILL_PARTS_CUH
#define NSV_KERNELS_CUDA_PREFILL_PARTS_CUH

#include "kernels/cuda/prefill.cuh"
#include "kernels/cuda/tiles.cuh"

namespace nsv
{

constexpr int GROUP_THREADS = 128; /* a warpgroup */
constexpr int GROUP_ROWS = 64;	   /* of a product */
constexpr int N_PLACE = 2;	   /* of items */
constexpr int N_HELPER = 3;	   /* warps that follow the items beside the consumers */

/* Sizes of an instantiation: D dims (padded). Above 128 it is wide: both warpgroups have the item's
 * 64 rows, each half of a step's keys for S and half of the dims for O. */
template <int D> struct sizes {
	static constexpr bool wide = D > 128;
	static constexpr int groups = D == 64 ? 3 : 2;
	static constexpr int n_consumer = groups * GROUP_THREADS, n_warp = n_consumer / 32;
	static constexpr int n_thread = n_consumer + GROUP_THREADS;
	/* A multiprocessor's 64 K registers: what loading does without, consumers get. */
	static constexpr int consumer_regs = groups == 3 ? 160 : 232;
	static constexpr int loader_regs = groups == 3 ? 32 : 40;
	static constexpr int n_panel = D / PANEL_DIMS;
	static constexpr int n_q = wide ? 1 : groups; /* tiles of q an item */
	static constexpr int n_ahead = wide ? 1 : 2;  /* items whose q there is place for */
	static constexpr int keys = wide ? STEP_KEYS / groups : STEP_KEYS; /* of a product S */
	static constexpr int dims = wide ? D / groups : D;		   /* of a product O */
	static constexpr int n_stage = wide ? 1 : D == 64 ? 3 : 2;
	static constexpr bool looks_ahead = D == 128; /* for K: registers allow it */
	/* K and V come in units that have a barrier each. */
	static constexpr int unit_keys = keys, unit_tiles = unit_keys / TILE;
	static constexpr int step_units = STEP_KEYS / unit_keys, n_unit = n_stage * step_units;
	static constexpr int n_score = keys / 2;			 /* S in a thread */
	static constexpr int n_early = wide ? n_score : n_score * 3 / 8; /* weights beside O */
	static constexpr int n_acc = dims / 2 + 4; /* O and the sums, in a thread */
	/* Fours of the total in shared memory, as many as registers want. */
	static constexpr int n_far = wide ? 4 : D == 128 ? 5 : 8;
	static constexpr int n_near = dims / 2 - 4 * n_far;
	static constexpr int own_bytes = n_far * 32 * 16; /* a warp's */
	/* Places of a panel of 64 rows: V, ones, q that has no gap among them, K, q of the second
	 * item, P. */
	static constexpr int ones = D == 64 ? 2 * n_stage : 10;
	static constexpr int k0 = ones + 1 + (D == 64 ? n_q : n_panel);
	static constexpr int q2 = k0 + STEP_TILES * n_stage * n_panel;
	static constexpr int p0 = q2 + (n_ahead - 1) * n_q * n_panel;
	static constexpr int n_place = p0 + (wide ? 2 * STEP_TILES : 0);
	static constexpr int max_bytes = wide ? groups * GROUP_ROWS * 4 : 0;
	/* Barriers and alignment with them; the wide total lies in gaps. */
	static constexpr int smem_bytes =
		n_place * PANEL_BYTES + (wide ? 0 : n_warp * own_bytes) + max_bytes + 1024 + 1024;
};

/* Shared memory, by offset: panels, what warps own, maxima, barriers. The places of panels:
 *
 *            0   1   2   3   4   5   6   7   8   9   10    11 ...
 *     128    V3  Q0  V2  Q0  V1  V3  V2  V1  V0  V0  ones  Q1 Q1 K0 K0 K0 K0 K1 K1 K1 K1
 *     256    V3  far V2  far V1  V3  V2  V1  V0  V0  ones  Q  Q  Q  Q  K0 K0 .. K1 P0 P0 P1 P1
 *
 * V0 to V3 are pairs of panels of 64 keys: at 128 dims the halves of two stages, at 256 dims the
 * first half of the keys for either group, then the second. A panel of K has two places at 128
 * dims; at 256, K0 and K1 are halves of the keys. P has two buffers, a panel for 64 keys. Behind K,
 * up to 128 dims: q of every other item. */
template <int D> struct places {
	using Z = sizes<D>;
	uint32_t base;

	__device__ __forceinline__ uint32_t place(int i) const
	{
		return base + i * PANEL_BYTES;
	}
	/* From a panel of a pair of V to the next, and to the ones. */
	__device__ __forceinline__ uint32_t v_step(int pair) const
	{
		return (D == 64 ? pair + 1 : pair ? pair + 2 : 1) * PANEL_BYTES;
	}
	/* The pair of a tile of 64 keys that has the first of a group's panels. */
	__device__ __forceinline__ int v_pair(int tile, int group) const
	{
		return Z::wide ? tile * Z::groups + group : tile;
	}
	__device__ __forceinline__ uint32_t v(int tile, int panel) const
	{
		constexpr int n = Z::dims / PANEL_DIMS;
		return place(Z::ones) - (n - panel % n) * v_step(v_pair(tile, panel / n));
	}
	/* Of a unit. */
	__device__ __forceinline__ uint32_t k(int unit, int panel) const
	{
		return place(Z::k0 + (unit * Z::n_panel + panel) * Z::unit_tiles);
	}
	/* From a panel of q to the next; `ahead`: of which of the items. */
	__device__ __forceinline__ uint32_t q_step(int ahead, int group) const
	{
		return (D == 128 && !ahead && !group ? 2 : 1) * PANEL_BYTES;
	}
	__device__ __forceinline__ uint32_t q(int ahead, int group) const
	{
		if (ahead)
			return place(Z::q2 + group * Z::n_panel);
		return place(D == 128 && !group ? 1 : Z::ones + 1 + (D == 64 ? group : 0));
	}
	__device__ __forceinline__ uint32_t p(int buffer, int tile) const
	{
		return place(Z::p0 + buffer * STEP_TILES + tile);
	}
	__device__ __forceinline__ uint32_t own(int warp) const
	{
		if (Z::wide)
			return place(1 + warp / 4 * 2) + warp % 4 * Z::own_bytes;
		return place(Z::n_place) + warp * Z::own_bytes;
	}
	/* A group's maximum of a row. */
	__device__ __forceinline__ uint32_t maximum(int group, int row) const
	{
		return place(Z::n_place) + (group * GROUP_ROWS + row) * 4;
	}
	__device__ __forceinline__ uint32_t bar(int i) const
	{
		return base + Z::smem_bytes - 2048 + i * 8;
	}
	__device__ __forceinline__ uint32_t k_full(int unit) const
	{
		return bar(unit);
	}
	__device__ __forceinline__ uint32_t v_full(int unit) const
	{
		return bar(Z::n_unit + unit);
	}
	__device__ __forceinline__ uint32_t k_empty(int unit) const
	{
		return bar(2 * Z::n_unit + unit);
	}
	__device__ __forceinline__ uint32_t v_empty(int unit) const
	{
		return bar(3 * Z::n_unit + unit);
	}
	/* V with keys that no row sees has landed: these are to be cleared before it is full. */
	__device__ __forceinline__ uint32_t v_landed(int unit) const
	{
		return bar(4 * Z::n_unit + unit);
	}
	__device__ __forceinline__ uint32_t item_full(int i) const
	{
		return bar(5 * Z::n_unit + i);
	}
	__device__ __forceinline__ uint32_t item_empty(int i) const
	{
		return bar(5 * Z::n_unit + N_PLACE + i);
	}
	__device__ __forceinline__ uint32_t q_full(int ahead, int group) const
	{
		return bar(5 * Z::n_unit + 2 * N_PLACE + ahead * Z::n_q + group);
	}
	__device__ __forceinline__ uint32_t q_empty(int ahead, int group) const
	{
		return q_full(Z::n_ahead + ahead, group);
	}
	/* The last keys of the item will be asked for soon. */
	__device__ __forceinline__ uint32_t ending() const
	{
		return q_full(2 * Z::n_ahead, 0);
	}
};

/* What is done for an item; a head below 0 ends the work. */
struct item {
	nsv_cuda_seq seq;
	int32_t n_q;	       /* tiles of q: all items of a launch have as many, or all have one */
	int32_t kv_head, tok0; /* the first row's token */
	tile_range steps;      /* of 128 keys */
	tile_range keys;       /* that any row sees */
};

} // namespace nsv

#endif
