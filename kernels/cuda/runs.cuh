/* Where the runs of a line begin: integers alone, the same on the host (tests/ops/cuda/plan.cu).
 *
 * The line is cut into equal parts; each cut moves to the nearest chunk edge of the item that it
 * falls into, or behind the item. */
#ifndef NSV_KERNELS_CUDA_RUNS_CUH
#define NSV_KERNELS_CUDA_RUNS_CUH

#include "kernels/cuda/plan.cuh"

namespace nsv
{

/* Tiles that a sequence's items have in the line. */
__host__ __device__ inline int64_t seq_weight(const work_shape &shape, const nsv_cuda_seq &seq)
{
	tile_range tiles = seq_tiles(shape, seq);
	return (int64_t)n_item(shape, seq) * (tiles.end - tiles.begin);
}

/* The nearest chunk edge to `tile` in an item's stretch. */
__host__ __device__ inline int32_t snap(int32_t tile, const tile_range &line)
{
	int32_t below = max(chunk_begin(tile), line.begin), above = min(chunk_end(tile), line.end);
	return tile - below <= above - tile ? below : above;
}

__host__ __device__ inline run_start no_start(const plan_args &args)
{
	return {args.n_seq, 0, 0, -1, {}, 0};
}

/* The item after `item` of sequence s. */
__host__ __device__ inline run_start item_after(const plan_args &args, int32_t s, int32_t item)
{
	nsv_cuda_seq seq = args.seqs[s];
	if (++item == n_item(args.shape, seq)) {
		item = 0;
		s = find_seq(args.ends, args.n_seq, args.ends[s]);
		if (s == args.n_seq)
			return no_start(args);
		seq = args.seqs[s];
	}
	return {s, item, seq_tiles(args.shape, seq).begin, -1, seq, 0};
}

__host__ __device__ inline run_start start_at(const plan_args &args, int64_t at)
{
	int32_t s = find_seq(args.ends, args.n_seq, at);
	if (s == args.n_seq)
		return no_start(args);
	nsv_cuda_seq seq = args.seqs[s];
	tile_range line = seq_tiles(args.shape, seq);
	int64_t local = at - (s ? args.ends[s - 1] : 0);
	int32_t len = line.end - line.begin, item = (int32_t)(local / len);
	int32_t tile = snap(line.begin + (int32_t)(local % len), line);
	if (tile == line.end)
		return item_after(args, s, item);
	return {s, item, tile, -1, seq, 0};
}

__host__ __device__ inline bool is_inside(const plan_args &args, const run_start &a)
{
	return a.seq < args.n_seq && a.tile > seq_tiles(args.shape, a.geom).begin;
}

} // namespace nsv

#endif
