/* What the launcher of the plan needs from its caller (attn.cu). */
#ifndef NSV_KERNELS_CUDA_PLAN_CUH
#define NSV_KERNELS_CUDA_PLAN_CUH

#include "kernels/cuda/pieces.cuh"

#include <cuda_runtime.h>

namespace nsv
{

/* A split item: its first cut, and the numbers of its first and its last among all cuts. */
struct split_cuts {
	int32_t tile, first, last;
};

struct plan_args {
	work_shape shape;
	const nsv_cuda_seq *seqs;
	int32_t n_seq, n_block; /* blocks of threads that decode runs with: below 1024 */
	int64_t *ends;		/* (n_seq): tiles, or chunks, up to and with a sequence */
	run_start *starts;	/* (n_block + 1) */
	run *runs;		/* (n_block) */
	split_cuts *cuts;	/* (n_block) */
	work_shape prefill;	/* items of as many rows as there may be */
	int32_t prefill_least;	/* rows of the smaller items */
	int32_t prefill_few;	/* so few items may be smaller ones */
	int64_t *prefill_ends;	/* (n_seq): items up to and with a sequence; NULL: no prefill */
	int32_t *prefill_tile;	/* rows an item */
};

int plan_launch(const plan_args &args, cudaStream_t stream);

} // namespace nsv

#endif
