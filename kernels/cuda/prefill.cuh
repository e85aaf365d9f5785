/* What the launcher of prefill needs from its caller (attn.cu). */
#ifndef NSV_KERNELS_CUDA_PREFILL_CUH
#define NSV_KERNELS_CUDA_PREFILL_CUH

#include "kernels/cuda/args.cuh"

#include <cuda_runtime.h>

namespace nsv
{

struct prefill_args : attn_args {
	/* (dim, head, row) of q; boxes of 64 dims of the heads that share keys, for the tokens of a
	 * product's rows and for one. */
	CUtensorMap q_tile, q_token;
	int32_t n_seq;
	const int64_t *ends; /* (n_seq): items up to and with a sequence */
	const int32_t *tile; /* rows an item: shape's, or those of a product */
	uint32_t *ticket;    /* the next item; zero between launches */
};

/* Tokens whose rows, the heads of a group, are multiplied together; 0: too many heads. */
int32_t prefill_tile_tokens(int32_t group);
/* Most rows an item, for a head size and the heads that share keys; 0: no kernel takes it. */
int32_t prefill_row_tile(uint32_t head_dim, int32_t group);
/* Fewest rows an item: those of a product, or the same where an item has no more. */
int32_t prefill_least_tile(uint32_t head_dim, int32_t group);
/* Loads the kernels and raises their limits; once a context. */
int prefill_load();
int prefill_launch(bool f16, const prefill_args &args, int n_sm, cudaStream_t stream);

} // namespace nsv

#endif
