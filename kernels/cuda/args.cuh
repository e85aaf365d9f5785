/* What every paged kernel on the tensor cores is given: a layer's K, V, q and out, and the step. */
#ifndef NSV_KERNELS_CUDA_ARGS_CUH
#define NSV_KERNELS_CUDA_ARGS_CUH

#include "kernels/cuda/work.cuh"

#include <cuda.h>

namespace nsv
{

struct attn_args {
	CUtensorMap k, v; /* (dim, token, head, block) */
	work_shape shape;
	struct score score;
	int32_t n_head, head_dim;
	int32_t block_shift; /* log2 of the block size */
	int32_t box_shift;   /* log2 of the tokens of a box of the maps */
	int32_t table_stride;
	const nsv_cuda_seq *seqs;
	const int32_t *tables;
	const void *q; /* (n_row, n_head, head_dim) */
	void *out;
};

} // namespace nsv

#endif
