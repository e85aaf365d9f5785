/* The host's side of a kernel that has instantiations: all of them made ready, one launched. */
#ifndef NSV_CUDA_LAUNCH_CUH
#define NSV_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include <cerrno>
#include <cstddef>

namespace nsv
{

struct launch_shape {
	int n_block, n_thread, smem_bytes;
	bool early; /* set up while the launch before it ends: the kernel waits for that itself */
};

/* Instantiations have `fn`, a list of kernels, and the `smem_bytes` that these need. 0 or -EIO. */
template <typename I, size_t N> int load_instances(const I (&instances)[N])
{
	for (const I &i : instances)
		for (auto fn : i.fn)
			if (cudaFuncSetAttribute(fn, cudaFuncAttributeMaxDynamicSharedMemorySize,
				    i.smem_bytes) != cudaSuccess)
				return -EIO;
	return 0;
}

/* 0 or -EIO. */
template <typename A>
int launch_kernel(void (*fn)(const A), const A &args, const launch_shape &shape, cudaStream_t stream)
{
	cudaLaunchAttribute early = {};
	early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	early.val.programmaticStreamSerializationAllowed = 1;
	cudaLaunchConfig_t launch = {};
	launch.gridDim = dim3(shape.n_block);
	launch.blockDim = dim3(shape.n_thread);
	launch.dynamicSmemBytes = shape.smem_bytes;
	launch.stream = stream;
	launch.attrs = &early;
	launch.numAttrs = shape.early;
	return cudaLaunchKernelEx(&launch, fn, args) == cudaSuccess ? 0 : -EIO;
}

} // namespace nsv

#endif
