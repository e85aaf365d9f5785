/* Finding the driver and the device, opening it, and the sentences that say what is missing. */
#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <string.h>

#define MIN_DRIVER 13000

static const struct {
	const char *name;
	size_t off;
} symbols[] = {
	{"cuInit", offsetof(struct nsv_cuda_driver, init)},
	{"cuGetErrorString", offsetof(struct nsv_cuda_driver, error_string)},
	{"cuMemGetAllocationGranularity", offsetof(struct nsv_cuda_driver, mem_granularity)},
	{"cuMemCreate", offsetof(struct nsv_cuda_driver, mem_create)},
	{"cuMemRelease", offsetof(struct nsv_cuda_driver, mem_release)},
	{"cuMemExportToShareableHandle", offsetof(struct nsv_cuda_driver, mem_export)},
	{"cuMemImportFromShareableHandle", offsetof(struct nsv_cuda_driver, mem_import)},
	{"cuMemAddressReserve", offsetof(struct nsv_cuda_driver, address_reserve)},
	{"cuMemAddressFree", offsetof(struct nsv_cuda_driver, address_free)},
	{"cuMemMap", offsetof(struct nsv_cuda_driver, mem_map)},
	{"cuMemUnmap", offsetof(struct nsv_cuda_driver, mem_unmap)},
	{"cuMemSetAccess", offsetof(struct nsv_cuda_driver, mem_access)},
	{"cuTensorMapEncodeTiled", offsetof(struct nsv_cuda_driver, tensor_map)},
};

uint32_t nsv_cuda_abi(void)
{
	return NSV_CUDA_ABI;
}

static void driver_close(struct nsv_cuda_driver *driver)
{
	if (driver->lib)
		dlclose(driver->lib);
	driver->lib = NULL;
}

static int driver_open(struct nsv_cuda_driver *ret_driver, struct nsv_err *err)
{
	struct nsv_cuda_driver driver = {.lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)};
	if (!driver.lib)
		return nsv_fail(err, -ENOENT, "no CUDA driver: libcuda.so.1 is not installed");
	for (size_t i = 0; i < NSV_ARRAY_LEN(symbols); i++) {
		void *fn = dlsym(driver.lib, symbols[i].name);
		if (!fn) {
			driver_close(&driver);
			return nsv_fail(err, -ENOENT, "the CUDA driver is too old: it has no %s",
				symbols[i].name);
		}
		memcpy((char *)&driver + symbols[i].off, &fn, sizeof(fn));
	}
	*ret_driver = driver;
	return 0;
}

static int probe_driver(struct nsv_cuda_probe *probe)
{
	struct nsv_cuda_driver driver;
	struct nsv_err err;
	int version = 0, r = driver_open(&driver, &err);
	if (r < 0) {
		snprintf(probe->driver_text, sizeof(probe->driver_text), "%.127s", err.text);
		return r;
	}
	CUresult code = driver.init(0);
	const char *text = "unknown error";
	if (code != CUDA_SUCCESS)
		driver.error_string(code, &text);
	cudaDriverGetVersion(&version);
	probe->driver = code == CUDA_SUCCESS && version >= MIN_DRIVER;
	if (code != CUDA_SUCCESS)
		snprintf(probe->driver_text, sizeof(probe->driver_text),
			"the CUDA driver does not start: %.80s", text);
	else
		snprintf(probe->driver_text, sizeof(probe->driver_text),
			"the CUDA driver is for version %d.%d; %d.%d is needed", version / 1000,
			version % 1000 / 10, MIN_DRIVER / 1000, MIN_DRIVER % 1000 / 10);
	driver_close(&driver);
	return probe->driver ? 0 : -ENOENT;
}

/* The first device that the kernels were built for. */
static int find_device(int *ret_device, char *text, size_t text_len)
{
	int n = 0;
	if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
		snprintf(text, text_len, "no CUDA device");
		return -ENODEV;
	}
	for (int i = 0; i < n; i++) {
		struct cudaDeviceProp prop;
		if (cudaGetDeviceProperties(&prop, i) != cudaSuccess)
			continue;
		snprintf(text, text_len, "device %d is %.60s, capability %d.%d; 9.0 is needed", i,
			prop.name, prop.major, prop.minor);
		if (prop.major == 9 && prop.minor == 0) {
			*ret_device = i;
			return 0;
		}
	}
	return -ENODEV;
}

int nsv_cuda_probe(struct nsv_cuda_probe *ret_probe, struct nsv_err *err)
{
	int device, version = 0;
	memset(ret_probe, 0, sizeof(*ret_probe));
	ret_probe->library = cudaRuntimeGetVersion(&version) == cudaSuccess;
	snprintf(ret_probe->library_text, sizeof(ret_probe->library_text),
		"the library was built with CUDA %d.%d", version / 1000, version % 1000 / 10);
	snprintf(ret_probe->device_text, sizeof(ret_probe->device_text),
		"no device is looked for without a driver");
	int r = probe_driver(ret_probe);
	if (r < 0)
		return nsv_fail(err, r, "%s", ret_probe->driver_text);
	r = find_device(&device, ret_probe->device_text, sizeof(ret_probe->device_text));
	ret_probe->device = r == 0;
	if (r < 0)
		return nsv_fail(err, r, "%s", ret_probe->device_text);
	return 0;
}

int nsv_cuda_open(int device, struct nsv_cuda **ret_cuda, struct nsv_err *err)
{
	nsv_autofree struct nsv_cuda *cuda = calloc(1, sizeof(*cuda));
	if (!cuda)
		return nsv_fail(err, -ENOMEM, "no memory for a CUDA device");
	int r = driver_open(&cuda->driver, err);
	if (r < 0)
		return r;
	cudaError_t code = cudaSetDevice(device);
	if (code == cudaSuccess)
		code = cudaDeviceGetAttribute(&cuda->n_sm, cudaDevAttrMultiProcessorCount, device);
	r = code == cudaSuccess ? nsv_cuda_load_kernels(err)
				: nsv_fail(err, -ENODEV, "CUDA device %d: %s", device,
					  cudaGetErrorString(code));
	if (r < 0) {
		driver_close(&cuda->driver);
		return r;
	}
	cuda->device = device;
	*ret_cuda = cuda;
	cuda = NULL;
	return 0;
}

void nsv_cuda_close(struct nsv_cuda *cuda)
{
	if (!cuda)
		return;
	driver_close(&cuda->driver);
	free(cuda);
}

uint32_t nsv_cuda_n_sm(const struct nsv_cuda *cuda)
{
	return (uint32_t)cuda->n_sm;
}
