/* The plan: cuts a step's line of tiles into runs of equal length (work.cuh).
 *
 * One block of threads; reads 16 bytes a sequence, writes 32 a run. Floor: its own launch. Runs
 * once a step, for all layers, from what is on the device, so a captured graph replays it. */
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/ptx.cuh"

namespace nsv
{

constexpr int PLAN_THREADS = 1024;

__device__ int64_t seq_weight(const work_shape &shape, const nsv_cuda_seq &seq)
{
	tile_range tiles = seq_tiles(shape, seq);
	return seq.n_query > 0 ? (int64_t)n_item(shape, seq) * (tiles.end - tiles.begin) : 0;
}

/* Sum of x over the threads up to and with this one. */
__device__ int64_t block_scan(int64_t x, int64_t *warp_sums)
{
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	for (int d = 1; d < 32; d *= 2) {
		int64_t y = __shfl_up_sync(~0u, x, d);
		x += lane >= d ? y : 0;
	}
	if (lane == 31)
		warp_sums[warp] = x;
	__syncthreads();
	int64_t before = 0;
	for (int w = 0; w < warp; w++)
		before += warp_sums[w];
	return before + x;
}

/* The first sequence whose end lies beyond `at`. */
__device__ int32_t find_seq(const int64_t *ends, int32_t n_seq, int64_t at)
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

/* The nearest chunk edge to `tile` inside an item's tiles. */
__device__ int32_t snap(int32_t tile, const tile_range &tiles)
{
	int32_t below = max(chunk_begin(tile), tiles.begin), above = chunk_end(tile);
	return tile - below <= above - tile ? below : min(above, tiles.end);
}

__device__ run_start start_at(const plan_args &args, int64_t at)
{
	int32_t s = find_seq(args.ends, args.n_seq, at);
	if (s == args.n_seq)
		return {args.n_seq, 0, 0, 0, {0, 0, 0, 0}};
	nsv_cuda_seq seq = args.seqs[s];
	tile_range tiles = seq_tiles(args.shape, seq);
	int64_t local = at - (s ? args.ends[s - 1] : 0);
	int32_t len = tiles.end - tiles.begin;
	int32_t item = (int32_t)(local / len);
	int32_t tile = snap(tiles.begin + (int32_t)(local % len), tiles);
	if (tile == tiles.end) {
		tile = tiles.begin;
		item++;
	}
	if (item < n_item(args.shape, seq))
		return {s, item, tile, 0, seq};
	int64_t end = args.ends[s];
	int32_t next = find_seq(args.ends, args.n_seq, end);
	if (next == args.n_seq)
		return {args.n_seq, 0, 0, 0, {0, 0, 0, 0}};
	seq = args.seqs[next];
	return {next, 0, seq_tiles(args.shape, seq).begin, 0, seq};
}

__device__ bool starts_by(const run_start &a, int32_t seq, int32_t item, int32_t tile)
{
	if (a.seq != seq)
		return a.seq < seq;
	return a.item != item ? a.item < item : a.tile <= tile;
}

/* The last run that begins at or before the first tile of the item that `run` begins in. */
__device__ int32_t first_run(const plan_args &args, int32_t run)
{
	const run_start start = args.starts[run];
	if (start.seq == args.n_seq)
		return run;
	int32_t tile = seq_tiles(args.shape, start.geom).begin, lo = 0, hi = run;
	while (lo < hi) {
		int32_t mid = (lo + hi + 1) / 2;
		if (starts_by(args.starts[mid], start.seq, start.item, tile))
			lo = mid;
		else
			hi = mid - 1;
	}
	return lo;
}

__global__ void __launch_bounds__(PLAN_THREADS) plan_kernel(const plan_args args)
{
	__shared__ int64_t warp_sums[PLAN_THREADS / 32], total;
	grid_wait();
	if (threadIdx.x == 0)
		total = 0;
	for (int32_t s0 = 0; s0 < args.n_seq; s0 += PLAN_THREADS) {
		int32_t s = s0 + threadIdx.x;
		__syncthreads();
		int64_t weight = s < args.n_seq ? seq_weight(args.shape, args.seqs[s]) : 0;
		int64_t end = total + block_scan(weight, warp_sums);
		if (s < args.n_seq)
			args.ends[s] = end;
		__syncthreads();
		if (threadIdx.x == PLAN_THREADS - 1)
			total = end;
	}
	__syncthreads();
	int32_t run = threadIdx.x;
	int64_t n_used = min(total, (int64_t)args.n_run);
	if (run <= args.n_run)
		args.starts[run] = start_at(args, run < n_used ? total * run / n_used : total);
	__syncthreads();
	if (run <= args.n_run)
		args.starts[run].first = first_run(args, run);
}

int plan_launch(const plan_args &args, cudaStream_t stream)
{
	plan_kernel<<<1, PLAN_THREADS, 0, stream>>>(args);
	return cudaGetLastError() == cudaSuccess ? 0 : -EIO;
}

} // namespace nsv
