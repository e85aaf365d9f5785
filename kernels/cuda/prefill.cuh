/* What the launcher of prefill needs from its caller (attn.cu). */
#ifndef NSV_KERNELS_CUDA_PREFILL_CUH
#define NSV_KERNELS_CUDA_PREFILL_CUH

#include "kernels/cuda/args.cuh"

#include <cuda_runtime.h>

namespace nsv
{

struct prefill_args : attn_args {
	int32_t n_seq;
	const int64_t *ends; /* (n_seq): items up to and with a sequence */
	uint32_t *ticket;    /* the next item; zero between launches */
};

/* Rows an item, for a head size; 0: no kernel takes it. */
int32_t prefill_row_tile(uint32_t head_dim);
/* Loads the kernels and raises their limits; once a context. */
int prefill_load();
int prefill_launch(bool f16, const prefill_args &args, int n_sm, cudaStream_t stream);

} // namespace nsv

#endif
