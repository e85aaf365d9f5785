/* A device as the folder's own files see it; the driver's functions are found at run time, so that
 * the library opens (and can say what is missing) on a machine without a driver. */
#ifndef NSV_KERNELS_CUDA_DEVICE_H
#define NSV_KERNELS_CUDA_DEVICE_H

#include "kernels/cuda/nanoserve_cuda.h"

#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

struct nsv_cuda_driver {
	void *lib;
	CUresult (*init)(unsigned int flags);
	CUresult (*error_string)(CUresult code, const char **ret_text);
	CUresult (*mem_granularity)(size_t *ret_len, const CUmemAllocationProp *prop,
		CUmemAllocationGranularity_flags kind);
	CUresult (*mem_create)(CUmemGenericAllocationHandle *ret_handle, size_t len,
		const CUmemAllocationProp *prop, unsigned long long flags);
	CUresult (*mem_release)(CUmemGenericAllocationHandle handle);
	CUresult (*mem_export)(void *ret_fd, CUmemGenericAllocationHandle handle,
		CUmemAllocationHandleType kind, unsigned long long flags);
	CUresult (*mem_import)(
		CUmemGenericAllocationHandle *ret_handle, void *fd, CUmemAllocationHandleType kind);
	CUresult (*address_reserve)(CUdeviceptr *ret_at, size_t len, size_t align, CUdeviceptr want,
		unsigned long long flags);
	CUresult (*address_free)(CUdeviceptr at, size_t len);
	CUresult (*mem_map)(CUdeviceptr at, size_t len, size_t off,
		CUmemGenericAllocationHandle handle, unsigned long long flags);
	CUresult (*mem_unmap)(CUdeviceptr at, size_t len);
	CUresult (*mem_access)(
		CUdeviceptr at, size_t len, const CUmemAccessDesc *desc, size_t n_desc);
	CUresult (*tensor_map)(CUtensorMap *ret_map, CUtensorMapDataType type, cuuint32_t rank,
		void *base, const cuuint64_t *dims, const cuuint64_t *strides,
		const cuuint32_t *box, const cuuint32_t *elem_strides,
		CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
		CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);
};

struct nsv_cuda {
	int device, n_sm;
	struct nsv_cuda_driver driver;
};

/* Loads every kernel and raises its limits (attn.cu). 0 or -EIO. */
int nsv_cuda_load_kernels(struct nsv_err *err);

#ifdef __cplusplus
}
#endif

#endif
