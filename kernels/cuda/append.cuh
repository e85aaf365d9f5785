/* What the launcher of the write path needs from its caller (attn.cu). */
#ifndef NSV_KERNELS_CUDA_APPEND_CUH
#define NSV_KERNELS_CUDA_APPEND_CUH

#include "kernels/cuda/nanoserve_cuda.h"

#include <cuda_runtime.h>

namespace nsv
{

int append_load();
int append_launch(const nsv_attn_shape &shape, const nsv_cuda_kv &kv, const nsv_cuda_append &args,
	void *k_pool, void *v_pool, cudaStream_t stream);

} // namespace nsv

#endif
