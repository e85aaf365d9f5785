/* The naive float64 oracle of paged attention, device-side filling of pools, and a bump allocator.
 * One thread a key, then one a dim: nothing shared with the kernels that it judges but the layout.
 */
#ifndef NSV_TESTS_OPS_CUDA_ORACLE_CUH
#define NSV_TESTS_OPS_CUDA_ORACLE_CUH

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/nanoserve_cuda.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(x)                                                                                   \
	do {                                                                                       \
		cudaError_t code_ = (x);                                                           \
		if (code_ != cudaSuccess) {                                                        \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #x,                          \
				cudaGetErrorString(code_));                                        \
			exit(2);                                                                   \
		}                                                                                  \
	} while (0)

/* One allocation, handed out from the front; reset between cases. */
struct arena {
	char *base = nullptr;
	size_t len = 0, at = 0;

	void open(size_t n)
	{
		CHECK(cudaMalloc(&base, n));
		len = n;
	}
	template <typename T> T *take(size_t n)
	{
		size_t bytes = (n * sizeof(T) + 1023) & ~(size_t)1023;
		if (bytes > len - at) {
			printf("the arena is too small\n");
			exit(2);
		}
		T *p = reinterpret_cast<T *>(base + at);
		at += bytes;
		return p;
	}
};

__host__ __device__ inline uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* Normal numbers, a function of (seed, index). */
__device__ inline float normal(uint64_t seed, uint64_t i)
{
	uint64_t x = mix(seed ^ mix(i));
	float u = ((uint32_t)x + 1.0f) * 2.3283063e-10f, v = (uint32_t)(x >> 32) * 2.3283063e-10f;
	return sqrtf(-2.0f * logf(fminf(u, 1.0f))) * cospif(2.0f * v);
}

/* Enough of a case for the device. */
struct view {
	nsv_attn_shape shape;
	const nsv_cuda_seq *seqs;
	const int32_t *tables;
	uint32_t table_stride;
};

__device__ inline int64_t key_at(const view &v, const nsv_kv_layout &layout,
	const nsv_cuda_seq &seq, int64_t key, int head, int dim)
{
	int64_t bs = v.shape.block_size;
	int64_t block = v.tables[(int64_t)seq.table * v.table_stride + key / bs];
	return block * layout.block_stride + key % bs * layout.tok_stride +
	       head * layout.head_stride + dim * layout.dim_stride;
}

template <typename E> __global__ void fill_rows(E *x, int64_t n, uint64_t seed, float scale)
{
	for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
		i += (int64_t)gridDim.x * blockDim.x)
		x[i] = nsv::from_float<E>(scale * normal(seed, i));
}

/* Every key of a sequence (blockIdx.y) that is its own, and nothing else of the pool. */
template <typename E>
__global__ void fill_pool(view v, E *k, E *v_pool, uint64_t seed, float k_scale)
{
	nsv_cuda_seq seq = v.seqs[blockIdx.y];
	int64_t width = (int64_t)v.shape.n_kv_head * v.shape.head_dim;
	int64_t n = (int64_t)(seq.n_past + seq.n_query) * width;
	for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
		i += (int64_t)gridDim.x * blockDim.x) {
		int64_t key = i / width, in = i % width;
		if (key < seq.n_shared)
			continue;
		int head = in / v.shape.head_dim, dim = in % v.shape.head_dim;
		uint64_t id = (uint64_t)blockIdx.y << 44 | (uint64_t)i;
		k[key_at(v, v.shape.k, seq, key, head, dim)] =
			nsv::from_float<E>(k_scale * normal(seed, id));
		v_pool[key_at(v, v.shape.v, seq, key, head, dim)] =
			nsv::from_float<E>(normal(seed + 1, id));
	}
}

/* A head of a key as e4m3 and its scale, n dims `stride` apart; x becomes what these say. */
template <typename E>
__device__ void pack_head(E *x, int64_t n, int64_t stride, uint8_t *bytes, float *ret_scale)
{
	float max = 0.0f;
	for (int64_t i = 0; i < n * stride; i += stride)
		max = fmaxf(max, fabsf(nsv::to_float(x[i])));
	int exponent = nsv::e4m3_exponent(max);
	*ret_scale = ldexpf(1.0f, exponent);
	for (int64_t i = 0; i < n * stride; i += stride) {
		bytes[i] = nsv::to_e4m3(ldexpf(nsv::to_float(x[i]), -exponent));
		__half_raw value = __nv_cvt_fp8_to_halfraw(bytes[i], __NV_E4M3);
		x[i] = nsv::from_float<E>(ldexpf(__half2float(__half(value)), exponent));
	}
}

/* Packs the keys of a sequence (blockIdx.y) that are its own. */
template <typename E>
__global__ void pack_pool(view v, nsv_attn_shape packed, nsv_cuda_kv kv, E *k, E *v_pool,
	uint8_t *packed_k, uint8_t *packed_v)
{
	nsv_cuda_seq seq = v.seqs[blockIdx.y];
	view to = {packed, v.seqs, v.tables, v.table_stride};
	int n_head = v.shape.n_kv_head, d = v.shape.head_dim, bs = v.shape.block_size;
	int64_t n = (int64_t)(seq.n_past + seq.n_query) * n_head;
	for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
		i += (int64_t)gridDim.x * blockDim.x) {
		int64_t key = i / n_head, head = i % n_head;
		if (key < seq.n_shared)
			continue;
		int64_t block = v.tables[(int64_t)seq.table * v.table_stride + key / bs];
		int64_t at = block * packed.k.block_stride + (head * bs + key % bs) * 4;
		pack_head(k + key_at(v, v.shape.k, seq, key, (int)head, 0), d, packed.k.dim_stride,
			packed_k + key_at(to, packed.k, seq, key, (int)head, 0),
			(float *)(packed_k + at + kv.k_scales));
		at = block * packed.v.block_stride + (head * bs + key % bs) * 4;
		pack_head(v_pool + key_at(v, v.shape.v, seq, key, (int)head, 0), d,
			packed.v.dim_stride,
			packed_v + key_at(to, packed.v, seq, key, (int)head, 0),
			(float *)(packed_v + at + kv.v_scales));
	}
}

/* A key that decides the answer: K is the direction of the sequence's queries, far out. */
template <typename E>
__global__ void plant_needles(view v, E *k, E *q, const int32_t *needles, uint64_t seed, float far)
{
	int s = blockIdx.x;
	nsv_cuda_seq seq = v.seqs[s];
	int d = v.shape.head_dim;
	for (int i = threadIdx.x; i < d; i += blockDim.x) {
		float u = normal(seed + s, i);
		for (int r = 0; r < seq.n_query * (int)v.shape.n_head; r++)
			q[((int64_t)seq.row0 * v.shape.n_head + r) * d + i] = nsv::from_float<E>(u);
		for (int h = 0; needles[s] >= 0 && h < (int)v.shape.n_kv_head; h++)
			k[key_at(v, v.shape.k, seq, needles[s], h, i)] =
				nsv::from_float<E>(far * u);
	}
}

/* scores (n_seq_row, n_head, max_kv): blockIdx.z is row of the sequence seq_at. */
template <typename E>
__global__ void oracle_scores(
	view v, const E *q, const E *k, double *scores, int64_t max_kv, int seq_at)
{
	nsv_cuda_seq seq = v.seqs[seq_at];
	int64_t key = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
	int head = blockIdx.y, row = blockIdx.z, d = v.shape.head_dim;
	int64_t pos = seq.n_past + row;
	int64_t begin = v.shape.window && pos >= v.shape.window ? pos + 1 - v.shape.window : 0;
	if (key > pos || key >= max_kv)
		return;
	double s = 0.0;
	if (key >= begin) {
		const E *qr = q + ((int64_t)(seq.row0 + row) * v.shape.n_head + head) * d;
		int kv_head = head / (v.shape.n_head / v.shape.n_kv_head);
		for (int i = 0; i < d; i++)
			s += (double)nsv::to_float(qr[i]) *
			     (double)nsv::to_float(k[key_at(v, v.shape.k, seq, key, kv_head, i)]);
		s *= (double)v.shape.scale;
		if (v.shape.softcap > 0.0f)
			s = (double)v.shape.softcap * tanh(s / (double)v.shape.softcap);
	}
	scores[((int64_t)row * v.shape.n_head + head) * max_kv + key] =
		key >= begin ? s : -INFINITY;
}

/* Sum and maximum of a row's scores, which become weights; then the row. */
template <typename E>
__global__ void oracle_rows(
	view v, const E *v_pool, double *scores, double *out, int64_t max_kv, int seq_at)
{
	__shared__ double part[256];
	nsv_cuda_seq seq = v.seqs[seq_at];
	int head = blockIdx.x, row = blockIdx.y, d = v.shape.head_dim, tid = threadIdx.x;
	int64_t n = (int64_t)seq.n_past + row + 1;
	double *s = scores + ((int64_t)row * v.shape.n_head + head) * max_kv, x = -INFINITY;
	for (int64_t i = tid; i < n; i += 256)
		x = fmax(x, s[i]);
	part[tid] = x;
	__syncthreads();
	for (int i = 0; i < 256; i++)
		x = fmax(x, part[i]);
	__syncthreads();
	double sum = 0.0;
	for (int64_t i = tid; i < n; i += 256)
		sum += s[i] = exp(s[i] - x);
	part[tid] = sum;
	__syncthreads();
	sum = 0.0;
	for (int i = 0; i < 256; i++)
		sum += part[i];
	int kv_head = head / (v.shape.n_head / v.shape.n_kv_head);
	for (int i = tid; i < d; i += 256) {
		double o = 0.0;
		for (int64_t j = 0; j < n; j++)
			if (s[j] != 0.0)
				o += s[j] *
				     (double)nsv::to_float(
					     v_pool[key_at(v, v.shape.v, seq, j, kv_head, i)]);
		out[((int64_t)(seq.row0 + row) * v.shape.n_head + head) * d + i] = o / sum;
	}
}

#endif
