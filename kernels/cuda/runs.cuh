/* Where the runs of a line begin: integers alone, the same on the host (tests/ops/cuda/plan.cu).
 *
 * Where there are blocks of threads enough, each chunk is a run. Else the line is cut into parts of
 * as many tiles, in the one of two ways whose longest run is shorter; each cut moves to the nearest
 * chunk edge of the item that it falls into, or behind the item. */
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

/* Chunks that the items of a sequence have in the line. */
__host__ __device__ inline int32_t item_chunks(const tile_range &line)
{
	return tile_chunk(line.end - 1) - tile_chunk(line.begin) + 1;
}

__host__ __device__ inline int64_t seq_chunks(const work_shape &shape, const nsv_cuda_seq &seq)
{
	int32_t n = n_item(shape, seq);
	return n ? (int64_t)n * item_chunks(seq_tiles(shape, seq)) : 0;
}

/* The nearest chunk edge to `tile` in an item's stretch. */
__host__ __device__ inline int32_t snap(int32_t tile, const tile_range &line)
{
	int32_t below = max(chunk_begin(tile), line.begin), above = min(chunk_end(tile), line.end);
	return tile - below <= above - tile ? below : above;
}

__host__ __device__ inline run_start no_start(const plan_args &args)
{
	return {args.n_seq, 0, 0, -1, {}, 0, 0, 0};
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
	return {s, item, seq_tiles(args.shape, seq).begin, -1, seq, 0, 0, 0};
}

/* Where the run begins that has chunk `at` of a line, whose ends are counted in chunks. */
__host__ __device__ inline run_start start_of_chunk(const plan_args &args, int64_t at)
{
	int32_t s = find_seq(args.ends, args.n_seq, at);
	if (s == args.n_seq)
		return no_start(args);
	nsv_cuda_seq seq = args.seqs[s];
	tile_range line = seq_tiles(args.shape, seq);
	int32_t local = (int32_t)(at - (s ? args.ends[s - 1] : 0)), n = item_chunks(line);
	int32_t tile = chunk_tile(tile_chunk(line.begin) + local % n);
	return {s, local / n, max(tile, line.begin), -1, seq, 0, 0, 0};
}

/* The block of threads that takes run r. Where each of n_chunk chunks is a run, the last ones come
 * first: they are the largest. */
__host__ __device__ inline int32_t block_of_run(int32_t r, int32_t n_chunk)
{
	return r < n_chunk ? n_chunk - 1 - r : r;
}

/* Where part r of a line of `total` tiles begins. Parts have the same length, or that of whole
 * chunks of the largest size: cuts then stay where they are if items begin at such chunks. */
__host__ __device__ inline int64_t part_begin(
	const plan_args &args, int64_t total, int32_t r, bool is_whole)
{
	constexpr int64_t most = STEP_TILES << CHUNK_LEVELS;
	int64_t whole = (total + args.n_block * most - 1) / (args.n_block * most) * most;
	return is_whole ? min(whole * r, total) : total * r / args.n_block;
}

/* Where the run begins whose part begins at tile `at` of the line. */
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
	return {s, item, tile, -1, seq, 0, 0, 0};
}

/* Tiles from the line's begin to where a run begins; the line's ends are counted in tiles. */
__host__ __device__ inline int64_t tiles_before(const plan_args &args, const run_start &a)
{
	if (a.seq == args.n_seq)
		return args.ends[args.n_seq - 1];
	tile_range line = seq_tiles(args.shape, a.geom);
	return (a.seq ? args.ends[a.seq - 1] : 0) + (int64_t)a.item * (line.end - line.begin) +
	       a.tile - line.begin;
}

__host__ __device__ inline bool is_inside(const plan_args &args, const run_start &a)
{
	return a.seq < args.n_seq && a.tile > seq_tiles(args.shape, a.geom).begin;
}

/* Rows an item of prefill, where there would be n items of the most rows: the fewest if most
 * multiprocessors would have none of them. */
__host__ __device__ inline int32_t prefill_rows(const plan_args &args, int64_t n)
{
	return n <= args.prefill_few ? args.prefill_least : args.prefill.row_tile;
}

} // namespace nsv

#endif
