/* Device pools through the virtual-memory API, and copies of blocks to and from the host tier.
 *
 *     allocation (handle) --export--> fd      any process that holds the fd keeps the memory
 *         \--map--> base .. base + map_len    in this process's device addresses
 */
#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>
#include <string.h>

static int fail_driver(
	const struct nsv_cuda *cuda, CUresult code, const char *what, struct nsv_err *err)
{
	const char *text = "unknown error";
	cuda->driver.error_string(code, &text);
	return nsv_fail(
		err, code == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO, "%s: %s", what, text);
}

static CUmemAllocationProp pool_prop(const struct nsv_cuda *cuda)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->device},
	};
	return prop;
}

static int pool_map_len(
	const struct nsv_cuda *cuda, size_t len, size_t *ret_map_len, struct nsv_err *err)
{
	CUmemAllocationProp prop = pool_prop(cuda);
	size_t unit;
	CUresult code =
		cuda->driver.mem_granularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
	if (code != CUDA_SUCCESS)
		return fail_driver(cuda, code, "granularity of device memory", err);
	if (len == 0 || !nsv_align_up(len, unit, ret_map_len))
		return nsv_fail(err, -EINVAL, "a pool of %zu bytes", len);
	return 0;
}

static int pool_map(const struct nsv_cuda *cuda, struct nsv_cuda_pool *pool, struct nsv_err *err)
{
	const struct nsv_cuda_driver *driver = &cuda->driver;
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUdeviceptr at;
	CUresult code = driver->address_reserve(&at, pool->map_len, 0, 0, 0);
	if (code != CUDA_SUCCESS)
		return fail_driver(cuda, code, "addresses for a pool", err);
	code = driver->mem_map(at, pool->map_len, 0, pool->handle, 0);
	if (code != CUDA_SUCCESS) {
		driver->address_free(at, pool->map_len);
		return fail_driver(cuda, code, "mapping a pool", err);
	}
	code = driver->mem_access(at, pool->map_len, &access, 1);
	if (code != CUDA_SUCCESS) {
		driver->mem_unmap(at, pool->map_len);
		driver->address_free(at, pool->map_len);
		return fail_driver(cuda, code, "access to a pool", err);
	}
	pool->base = (void *)(uintptr_t)at;
	return 0;
}

int nsv_cuda_pool_new(
	struct nsv_cuda *cuda, size_t len, struct nsv_cuda_pool *ret_pool, struct nsv_err *err)
{
	struct nsv_cuda_pool pool = {.len = len, .fd = -1, .cuda = cuda};
	CUmemAllocationProp prop = pool_prop(cuda);
	CUmemGenericAllocationHandle handle;
	int r = pool_map_len(cuda, len, &pool.map_len, err);
	if (r < 0)
		return r;
	CUresult code = cuda->driver.mem_create(&handle, pool.map_len, &prop, 0);
	if (code != CUDA_SUCCESS)
		return fail_driver(cuda, code, "device memory for a pool", err);
	pool.handle = handle;
	code = cuda->driver.mem_export(
		&pool.fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	r = code == CUDA_SUCCESS ? pool_map(cuda, &pool, err)
				 : fail_driver(cuda, code, "exporting a pool", err);
	if (r < 0) {
		nsv_cuda_pool_free(&pool);
		return r;
	}
	*ret_pool = pool;
	return 0;
}

int nsv_cuda_pool_adopt(struct nsv_cuda *cuda, int fd, size_t len, struct nsv_cuda_pool *ret_pool,
	struct nsv_err *err)
{
	struct nsv_cuda_pool pool = {.len = len, .fd = -1, .cuda = cuda};
	CUmemGenericAllocationHandle handle;
	int r = pool_map_len(cuda, len, &pool.map_len, err);
	if (r < 0)
		return r;
	CUresult code = cuda->driver.mem_import(
		&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (code != CUDA_SUCCESS)
		return fail_driver(cuda, code, "adopting a pool", err);
	pool.handle = handle;
	r = pool_map(cuda, &pool, err);
	if (r < 0) {
		nsv_cuda_pool_free(&pool);
		return r;
	}
	pool.fd = fd;
	*ret_pool = pool;
	return 0;
}

void nsv_cuda_pool_free(struct nsv_cuda_pool *pool)
{
	if (!pool->cuda)
		return;
	const struct nsv_cuda_driver *driver = &pool->cuda->driver;
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)pool->base;
	if (at) {
		driver->mem_unmap(at, pool->map_len);
		driver->address_free(at, pool->map_len);
	}
	driver->mem_release(pool->handle);
	nsv_cleanup_close(&pool->fd);
	memset(pool, 0, sizeof(*pool));
	pool->fd = -1;
}

static int fail_runtime(cudaError_t code, const char *what, struct nsv_err *err)
{
	return nsv_fail(err, code == cudaErrorMemoryAllocation ? -ENOMEM : -EIO, "%s: %s", what,
		cudaGetErrorString(code));
}

int nsv_cuda_host_register(struct nsv_cuda *cuda, void *base, size_t len, struct nsv_err *err)
{
	(void)cuda;
	cudaError_t code = cudaHostRegister(base, len, cudaHostRegisterDefault);
	return code == cudaSuccess ? 0 : fail_runtime(code, "registering host memory", err);
}

int nsv_cuda_host_unregister(struct nsv_cuda *cuda, void *base, struct nsv_err *err)
{
	(void)cuda;
	cudaError_t code = cudaHostUnregister(base);
	return code == cudaSuccess ? 0 : fail_runtime(code, "unregistering host memory", err);
}

static bool inside(uint64_t off, uint64_t len, size_t all)
{
	return off <= all && len <= all - off;
}

static bool follows(const struct nsv_cuda_piece *a, const struct nsv_cuda_piece *b)
{
	return a->device_off + a->len == b->device_off && a->host_off + a->len == b->host_off;
}

int nsv_cuda_copy(struct nsv_cuda *cuda, const struct nsv_cuda_pool *pool, void *host,
	size_t host_len, const struct nsv_cuda_piece *pieces, size_t n_piece, bool to_device,
	nsv_cuda_stream stream, struct nsv_err *err)
{
	(void)cuda;
	for (size_t i = 0; i < n_piece; i++)
		if (!inside(pieces[i].device_off, pieces[i].len, pool->len) ||
			!inside(pieces[i].host_off, pieces[i].len, host_len))
			return nsv_fail(
				err, -EINVAL, "piece %zu of a copy lies outside its pool", i);
	for (size_t i = 0; i < n_piece;) {
		struct nsv_cuda_piece run = pieces[i++];
		while (i < n_piece && follows(&run, &pieces[i]))
			run.len += pieces[i++].len;
		char *device_at = (char *)pool->base + run.device_off;
		char *host_at = (char *)host + run.host_off;
		cudaError_t code = to_device ? cudaMemcpyAsync(device_at, host_at, run.len,
						       cudaMemcpyHostToDevice, stream)
					     : cudaMemcpyAsync(host_at, device_at, run.len,
						       cudaMemcpyDeviceToHost, stream);
		if (code != cudaSuccess)
			return fail_runtime(code, "copying blocks", err);
	}
	return 0;
}
