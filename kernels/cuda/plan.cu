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

/* Numbers the split items: there are fewer of them than runs. */
__device__ void number_splits(const plan_args &args, int64_t *warp_sums)
{
	int32_t r = threadIdx.x;
	run_start a = r <= args.n_block ? args.starts[r] : no_start(args);
	run_start b = r > 0 && r <= args.n_block ? args.starts[r - 1] : no_start(args);
	bool inside = is_inside(args, a);
	bool first = inside && !(is_inside(args, b) && b.seq == a.seq && b.item == a.item);
	int32_t number = (int32_t)block_scan(first, warp_sums) - 1;
	if (first)
		args.cuts[number] = a.tile;
	__syncthreads();
	if (inside) {
		args.starts[r].split = number;
		args.starts[r].cut = args.cuts[number];
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

__global__ void __launch_bounds__(PLAN_THREADS) plan_kernel(const plan_args args)
{
	__shared__ int64_t warp_sums[PLAN_THREADS / 32];
	int64_t total = lay_line(
		args, args.ends,
		[&](const nsv_cuda_seq &seq) { return seq_weight(args.shape, seq); }, warp_sums);
	int64_t n_run = min(total, (int64_t)args.n_block);
	int32_t r = threadIdx.x;
	if (r <= args.n_block)
		args.starts[r] = start_at(args, r < n_run ? total * r / n_run : total);
	__syncthreads();
	number_splits(args, warp_sums);
	__syncthreads();
	if (r < args.n_block)
		args.firsts[r] = first_piece(args.shape, args.starts[r], args.starts[r + 1]);
	if (args.prefill_ends)
		lay_line(
			args, args.prefill_ends,
			[&](const nsv_cuda_seq &seq) { return (int64_t)n_item(args.prefill, seq); },
			warp_sums);
}

int plan_launch(const plan_args &args, cudaStream_t stream)
{
	plan_kernel<<<1, PLAN_THREADS, 0, stream>>>(args);
	return cudaGetLastError() == cudaSuccess ? 0 : -EIO;
}

} // namespace nsv
