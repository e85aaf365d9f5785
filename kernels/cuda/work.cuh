/* The items of a step, and how decode's are spread: one flat line of tiles, cut into a run for each
 * block of threads.
 *
 *     sequence 0               sequence 1
 *     item 0      item 1       item 0         item = (row tile, KV head)
 *     |oooooooooo|oooooooooo  |oooo| ...      o    = a tile of 64 keys
 *         ^ run 0 ends, run 1 begins: always at a chunk edge of its item
 *
 * The plan kernel writes where each run begins. Items of one sequence have equal stretches (tiles
 * that causality or a window lets an item skip are clipped when they are read). An item that a cut
 * falls into is a split item; it has a number, a counter and partials. */
#ifndef NSV_KERNELS_CUDA_WORK_CUH
#define NSV_KERNELS_CUDA_WORK_CUH

#include "kernels/cuda/nanoserve_cuda.h"
#include "kernels/cuda/order.cuh"

namespace nsv
{

/* Where a run begins. `split` is the number of its item if that began before. */
struct alignas(16) run_start {
	int32_t seq, item, tile, split;
	nsv_cuda_seq geom;
	int32_t cut; /* first cut of the split item: what lies before it is folded by one run */
	int32_t index, n_run; /* which of the split item's runs this is, and how many there are */
};

/* Which keys of a history a launch is for. */
enum keys_part : int32_t {
	ALL_KEYS,
	OWN_KEYS,    /* from n_shared on: what lies before is some prefix's */
	SHARED_KEYS, /* the sequences are prefixes: all rows see the keys before n_past, no others */
};

/* What the plan and the kernels must agree on. */
struct work_shape {
	int32_t n_kv_head, group, window;
	int32_t row_tile;	    /* rows an item: (query row, head of the group) pairs */
	int32_t min_rows, max_rows; /* a sequence with fewer or more of them is not this kernel's */
	keys_part part;
};

struct tile_range {
	int32_t begin, end;
};

/* K or V, where no map of the copy engine stands for it. */
struct stored_pool {
	const void *base; /* element 0 */
	nsv_kv_layout layout;
	int64_t scales; /* bytes from element 0 of a block, where they are e4m3 */
};

#ifdef __CUDACC__

__host__ __device__ __forceinline__ int32_t n_item(const work_shape &shape, const nsv_cuda_seq &seq)
{
	int32_t rows = seq.n_query * shape.group;
	if (rows < shape.min_rows || rows > shape.max_rows)
		return 0;
	if (shape.part == SHARED_KEYS && seq.n_past < TILE)
		return 0;
	return (rows + shape.row_tile - 1) / shape.row_tile * shape.n_kv_head;
}

/* The first sequence whose end lies beyond `at`. */
__host__ __device__ __forceinline__ int32_t find_seq(const int64_t *ends, int32_t n_seq, int64_t at)
{
	int32_t lo = 0, hi = n_seq;
	while (lo < hi) {
		int32_t mid = (lo + hi) / 2;
		if (ends[mid] > at)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

/* First key that the row at position `pos` sees. */
__host__ __device__ __forceinline__ int32_t window_begin(const work_shape &shape, int32_t pos)
{
	return shape.window > 0 && pos >= shape.window ? pos + 1 - shape.window : 0;
}

/* First key that the row at position `pos` of a sequence sees, of those that the launch is for. */
__host__ __device__ __forceinline__ int32_t first_key(
	const work_shape &shape, const nsv_cuda_seq &seq, int32_t pos)
{
	int32_t begin = window_begin(shape, pos);
	return shape.part == OWN_KEYS ? max(begin, seq.n_shared) : begin;
}

/* The tiles that every item of a sequence has in the line. */
__host__ __device__ __forceinline__ tile_range seq_tiles(
	const work_shape &shape, const nsv_cuda_seq &seq)
{
	int32_t n_kv = seq.n_past + seq.n_query;
	if (shape.part == SHARED_KEYS)
		return {0, seq.n_past / TILE};
	return {first_key(shape, seq, seq.n_past) / TILE, (n_kv + TILE - 1) / TILE};
}

/* The query rows [begin, end) of an item, and the tiles that they see. */
__host__ __device__ __forceinline__ tile_range item_rows(
	const work_shape &shape, const nsv_cuda_seq &seq, int32_t item)
{
	int32_t row = item / shape.n_kv_head * shape.row_tile;
	int32_t last = min(row + shape.row_tile, seq.n_query * shape.group) - 1;
	return {row / shape.group, last / shape.group + 1};
}

__host__ __device__ __forceinline__ tile_range item_tiles(
	const work_shape &shape, const nsv_cuda_seq &seq, int32_t item)
{
	if (shape.part == SHARED_KEYS)
		return seq_tiles(shape, seq);
	tile_range rows = item_rows(shape, seq, item);
	int32_t begin = first_key(shape, seq, seq.n_past + rows.begin);
	return {begin / TILE, (seq.n_past + rows.end - 1) / TILE + 1};
}

#endif

} // namespace nsv

#endif
