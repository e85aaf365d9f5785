/* The write path: the norm of each head where the model has one, RoPE, and K and V into their
 * slots, in one launch.
 *
 *     grid (row, head of q | head of k | head of v), a block of threads a head
 *
 * A head of K or V that is stored as e4m3 gets its scale here (nanoserve_cuda.h). q is turned in
 * place; k and v rows are only read. Floor: the rows read and written once. */
#include "kernels/cuda/append.cuh"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/ptx.cuh"

namespace nsv
{

constexpr int N_THREAD = 128;
constexpr int MAX_DIM = 1024;

struct append_args {
	nsv_attn_shape shape;
	nsv_cuda_kv kv;
	nsv_cuda_append in;
	void *k_pool, *v_pool;
};

/* Sum over the block of threads, in a fixed order. */
__device__ float block_sum(float x, float *warp_sums)
{
	for (int d = 16; d > 0; d /= 2)
		x = __fadd_rn(x, __shfl_xor_sync(~0u, x, d));
	if (threadIdx.x % 32 == 0)
		warp_sums[threadIdx.x / 32] = x;
	__syncthreads();
	float sum = warp_sums[0];
	for (int w = 1; w < N_THREAD / 32; w++)
		sum = __fadd_rn(sum, warp_sums[w]);
	return sum;
}

__device__ void norm(float *x, const float *weight, int n, float eps)
{
	__shared__ float warp_sums[N_THREAD / 32];
	float part = 0.0f;
	for (int i = threadIdx.x; i < n; i += N_THREAD)
		part = __fmaf_rn(x[i], x[i], part);
	float f = rsqrtf(block_sum(part, warp_sums) / n + eps);
	for (int i = threadIdx.x; i < n; i += N_THREAD)
		x[i] = x[i] * f * weight[i];
	__syncthreads();
}

__device__ void rope(float *x, const float *cs, int n_rot, bool neox)
{
	for (int i = threadIdx.x; i < n_rot / 2; i += N_THREAD) {
		int a = neox ? i : 2 * i, b = neox ? i + n_rot / 2 : 2 * i + 1;
		float c = cs[2 * i], s = cs[2 * i + 1], xa = x[a], xb = x[b];
		x[a] = xa * c - xb * s;
		x[b] = xa * s + xb * c;
	}
	__syncthreads();
}

/* Largest magnitude over the block of threads; what is no number does not count. */
__device__ float block_max(const float *x, int n)
{
	__shared__ float warp_max[N_THREAD / 32];
	float max = 0.0f;
	for (int i = threadIdx.x; i < n; i += N_THREAD)
		max = fmaxf(max, fabsf(x[i]));
	for (int d = 16; d > 0; d /= 2)
		max = fmaxf(max, __shfl_xor_sync(~0u, max, d));
	if (threadIdx.x % 32 == 0)
		warp_max[threadIdx.x / 32] = max;
	__syncthreads();
	max = warp_max[0];
	for (int w = 1; w < N_THREAD / 32; w++)
		max = fmaxf(max, warp_max[w]);
	return max;
}

/* Element 0 of a head in a slot. */
__device__ int64_t slot_at(
	const nsv_attn_shape &shape, const nsv_kv_layout &layout, int64_t slot, int head)
{
	return slot / shape.block_size * layout.block_stride +
	       slot % shape.block_size * layout.tok_stride + head * layout.head_stride;
}

template <typename E> __device__ void head_in(float *x, const void *rows, int64_t at, int n)
{
	for (int i = threadIdx.x; i < n; i += N_THREAD)
		x[i] = to_float(static_cast<const E *>(rows)[at + i]);
	__syncthreads();
}

template <typename E> __device__ void head_out_q(const float *x, void *to, int64_t at, int n)
{
	for (int i = threadIdx.x; i < n; i += N_THREAD)
		static_cast<E *>(to)[at + i] = from_float<E>(x[i]);
}

template <typename E>
__device__ void head_out_kv(const float *x, const nsv_attn_shape &shape,
	const nsv_kv_layout &layout, void *pool, int64_t slot, int head)
{
	E *to = static_cast<E *>(pool) + slot_at(shape, layout, slot, head);
	for (int i = threadIdx.x; i < shape.head_dim; i += N_THREAD)
		to[i * layout.dim_stride] = kv_from_float<E>(x[i]);
}

/* A head as e4m3: its bytes, and its scale among those of the block. */
__device__ void head_out_packed(const float *x, const nsv_attn_shape &shape,
	const nsv_kv_layout &layout, int64_t scales, void *pool, int64_t slot, int head)
{
	int exponent = e4m3_exponent(block_max(x, shape.head_dim));
	char *to = static_cast<char *>(pool);
	int64_t at = slot_at(shape, layout, slot, head);
	for (int i = threadIdx.x; i < shape.head_dim; i += N_THREAD)
		to[at + i * layout.dim_stride] = to_e4m3(ldexpf(x[i], -exponent));
	to += slot / shape.block_size * layout.block_stride + scales;
	if (threadIdx.x == 0)
		reinterpret_cast<float *>(
			to)[(int64_t)head * shape.block_size + slot % shape.block_size] =
			ldexpf(1.0f, exponent);
}

/* A head of K or V into its slot. */
template <typename E>
__device__ void head_store(
	const float *x, const append_args &args, bool is_v, int64_t slot, int head)
{
	const nsv_attn_shape &shape = args.shape;
	const nsv_kv_layout &layout = is_v ? shape.v : shape.k;
	void *pool = is_v ? args.v_pool : args.k_pool;
	if (args.kv.dtype == NSV_CUDA_KV_E4M3)
		head_out_packed(x, shape, layout, is_v ? args.kv.v_scales : args.kv.k_scales, pool,
			slot, head);
	else
		head_out_kv<E>(x, shape, layout, pool, slot, head);
}

template <typename E> __global__ void __launch_bounds__(N_THREAD) append_kernel(append_args args)
{
	__shared__ float x[MAX_DIM];
	const nsv_attn_shape &shape = args.shape;
	const nsv_cuda_append &in = args.in;
	int row = blockIdx.x, head = blockIdx.y, n = shape.head_dim;
	int n_head = shape.n_head, n_kv = shape.n_kv_head;
	bool is_q = head < n_head, is_v = head >= n_head + n_kv;
	grid_wait();
	int64_t slot = in.slots[row];
	if (!is_q && slot < 0)
		return;
	if (!is_q)
		head -= is_v ? n_head + n_kv : n_head;
	int64_t at = (int64_t)row * in.ld + (int64_t)head * n;
	head_in<E>(x, is_q ? in.q : is_v ? in.v : in.k, at, n);
	const float *weight = is_q ? in.q_norm : in.k_norm;
	if (!is_v && weight)
		norm(x, weight, n, in.eps);
	if (!is_v && in.n_rot)
		rope(x, in.cs + (int64_t)row * in.n_rot, in.n_rot, in.neox);
	if (is_q)
		head_out_q<E>(x, in.q, at, n);
	else
		head_store<E>(x, args, is_v, slot, head);
}

using kernel_fn = void (*)(append_args);

static kernel_fn find_kernel(uint32_t dtype)
{
	switch (dtype) {
	case NSV_F32:
		return append_kernel<float>;
	case NSV_F16:
		return append_kernel<__half>;
	case NSV_BF16:
		return append_kernel<__nv_bfloat16>;
	default:
		return nullptr;
	}
}

int append_load()
{
	for (uint32_t dtype : {NSV_F32, NSV_F16, NSV_BF16}) {
		cudaFuncAttributes attr;
		if (cudaFuncGetAttributes(&attr, find_kernel(dtype)) != cudaSuccess)
			return -EIO;
	}
	return 0;
}

int append_launch(const nsv_attn_shape &shape, const nsv_cuda_kv &kv, const nsv_cuda_append &args,
	void *k_pool, void *v_pool, cudaStream_t stream)
{
	kernel_fn fn = find_kernel(shape.kv_dtype);
	if (!fn || shape.head_dim > MAX_DIM)
		return -ENOTSUP;
	dim3 grid(args.n_row, shape.n_head + 2 * shape.n_kv_head);
	fn<<<grid, N_THREAD, 0, stream>>>({shape, kv, args, k_pool, v_pool});
	return cudaGetLastError() == cudaSuccess ? 0 : -EIO;
}

} // namespace nsv
