/* What the launcher of the generic kernel needs from its caller (attn.cu). */
#ifndef NSV_KERNELS_CUDA_GENERIC_CUH
#define NSV_KERNELS_CUDA_GENERIC_CUH

#include "kernels/cuda/work.cuh"

#include <cuda_runtime.h>

namespace nsv
{

struct generic_args {
	int32_t n_head, head_dim, group, window;
	int32_t block_shift, table_stride;
	struct score score;
	stored_pool k, v;
	const nsv_cuda_seq *seqs;
	const int32_t *tables;
	const void *q;
	void *out;
};

int generic_load();
/* `packed`: K and V are e4m3, not of q's type. */
int generic_launch(uint32_t dtype, bool packed, const generic_args &args, uint32_t max_query,
	uint32_t n_seq, cudaStream_t stream);

} // namespace nsv

#endif
