/* The plan: cuts a step's line of tiles into runs (work.cuh), and counts the items of prefill.
 *
 * One block of threads; reads 16 bytes a sequence, writes 32 a run. Floor: its own launch. Runs
 * once a step, for all layers, from what is on the device, so a captured graph replays it. */
#include "kernels/cuda/plan.cuh"
#include "kernels/cuda/runs.cuh"

namespace nsv
{

constexpr int PLAN_THREADS = 1024;

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

__device__ bool same_item(const plan_args &args, const run_start &a, const run_start &b)
{
	return is_inside(args, a) && is_inside(args, b) && a.seq == b.seq && a.item == b.item;
}

/* Numbers the split items, of which there are fewer than runs, and the runs of each that are not
 * empty. */
__device__ void number_splits(const plan_args &args, int64_t *warp_sums)
{
	constexpr int64_t one_split = INT64_C(1) << 32;
	int32_t r = threadIdx.x;
	run_start a = r <= args.n_block ? args.starts[r] : no_start(args);
	run_start before = r > 0 && r <= args.n_block ? args.starts[r - 1] : no_start(args);
	run_start after = r < args.n_block ? args.starts[r + 1] : no_start(args);
	bool inside = is_inside(args, a), goes_on = same_item(args, before, a);
	bool first = inside && !goes_on, is_cut = inside && !(goes_on && before.tile == a.tile);
	int64_t sum = block_scan(first * one_split + is_cut, warp_sums);
	int32_t number = (int32_t)(sum / one_split) - 1, cut = (int32_t)(sum % one_split);
	if (first)
		args.cuts[number].tile = a.tile, args.cuts[number].first = cut;
	if (inside && !same_item(args, a, after))
		args.cuts[number].last = cut;
	__syncthreads();
	if (inside) {
		split_cuts cuts = args.cuts[number];
		run_start *start = &args.starts[r];
		start->split = number;
		start->cut = cuts.tile;
		start->index = cut - cuts.first + 1;
		start->n_run = cuts.last - cuts.first + 2;
	}
}

/* ends[s] = weight(seqs[0]) + ... + weight(seqs[s]); returns the sum of all. */
template <typename F>
__device__ int64_t lay_line(const plan_args &args, int64_t *ends, F weight, int64_t *warp_sums)
{
	__shared__ int64_t total;
	__syncthreads();
	if (threadIdx.x == 0)
		total = 0;
	for (int32_t s0 = 0; s0 < args.n_seq; s0 += PLAN_THREADS) {
		int32_t s = s0 + threadIdx.x;
		__syncthreads();
		int64_t x = s < args.n_seq ? weight(args.seqs[s]) : 0;
		int64_t end = total + block_scan(x, warp_sums);
		if (s < args.n_seq)
			ends[s] = end;
		__syncthreads();
		if (threadIdx.x == PLAN_THREADS - 1)
			total = end;
	}
	__syncthreads();
	return total;
}

/* Where the runs of a line of `total` tiles begin, one a thread: in the way of parts whose longest
 * run is shorter. */
__device__ run_start cut_parts(const plan_args &args, int64_t total)
{
	__shared__ int64_t begins[2][PLAN_THREADS];
	__shared__ int32_t most[2];
	int32_t r = min((int32_t)threadIdx.x, args.n_block);
	run_start a[2];
	for (int i = 0; i < 2; i++) {
		a[i] = start_at(args, part_begin(args, total, r, i));
		begins[i][r] = tiles_before(args, a[i]);
		most[i] = 0;
	}
	__syncthreads();
	for (int i = 0; i < 2; i++)
		if (r < args.n_block)
			atomicMax(&most[i], (int32_t)(begins[i][r + 1] - begins[i][r]));
	__syncthreads();
	return most[1] < most[0] ? a[1] : a[0];
}

/* The same of a line where each chunk is a run, if there are blocks of threads enough. Returns how
 * many of those there are, or 0. */
__device__ int32_t cut_line(const plan_args &args, int64_t *warp_sums)
{
	int32_t r = threadIdx.x;
	int64_t total = lay_line(
		args, args.ends,
		[&](const nsv_cuda_seq &seq) { return seq_chunks(args.shape, seq); }, warp_sums);
	int32_t n_chunk = total <= args.n_block ? (int32_t)total : 0;
	run_start a;
	if (n_chunk) {
		a = start_of_chunk(args, r);
	} else {
		total = lay_line(
			args, args.ends,
			[&](const nsv_cuda_seq &seq) { return seq_weight(args.shape, seq); },
			warp_sums);
		a = cut_parts(args, total);
	}
	if (r <= args.n_block)
		args.starts[r] = a;
	__syncthreads();
	return n_chunk;
}

/* Counts the items of prefill, and says how many rows they have. */
__device__ void count_items(const plan_args &args, int64_t *warp_sums)
{
	work_shape shape = args.prefill;
	auto weight = [&](const nsv_cuda_seq &seq) { return (int64_t)n_item(shape, seq); };
	shape.row_tile = prefill_rows(args, lay_line(args, args.prefill_ends, weight, warp_sums));
	if (shape.row_tile != args.prefill.row_tile)
		lay_line(args, args.prefill_ends, weight, warp_sums);
	if (threadIdx.x == 0)
		*args.prefill_tile = shape.row_tile;
}

__global__ void __launch_bounds__(PLAN_THREADS) plan_kernel(const plan_args args)
{
	__shared__ int64_t warp_sums[PLAN_THREADS / 32];
	int32_t r = threadIdx.x;
	int32_t n_chunk = cut_line(args, warp_sums);
	number_splits(args, warp_sums);
	__syncthreads();
	if (r < args.n_block)
		args.runs[block_of_run(r, n_chunk)] = {
			first_piece(args.shape, args.starts[r], args.starts[r + 1]),
			args.starts[r + 1]};
	if (args.prefill_ends)
		count_items(args, warp_sums);
}

int plan_launch(const plan_args &args, cudaStream_t stream)
{
	plan_kernel<<<1, PLAN_THREADS, 0, stream>>>(args);
	return cudaGetLastError() == cudaSuccess ? 0 : -EIO;
}

} // namespace nsv
