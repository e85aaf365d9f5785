/* Paged attention for every layout, size and type that the tensor cores are not fed with: fp32
 * caches, head sizes up to 1024 and not whole 16-byte pieces, blocks below 8 slots, dims apart.
 *
 * A block of threads takes one query row and one head; the same for one row and for a thousand.
 *     warps   dot products, 16 keys of a tile each, lanes over dims
 *     threads O over dims, keys of the tile in order
 * Tiles, chunks, references and folding as order.cuh; P is not rounded.
 *
 * Floor: that of decode, times the group (heads of a group do not share reads but through L2);
 * nowhere near it: latency of a tile, and meant for correctness. */
#include "kernels/cuda/generic.cuh"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/ptx.cuh"

#include <type_traits>

namespace nsv
{

constexpr int N_THREAD = 128;
constexpr int MAX_DIM = 1024;
constexpr int DIMS_THREAD = MAX_DIM / N_THREAD;

struct tile_smem {
	float q[MAX_DIM], s[TILE];
};

/* A key's head: elements of S, and what they are to be multiplied by where S is e4m3. */
template <typename S> struct stored_head {
	const S *at;
	float scale;

	__device__ __forceinline__ float operator[](int64_t i) const
	{
		return times(to_float(at[i]));
	}

	__device__ __forceinline__ float times(float x) const
	{
		return std::is_same<S, e4m3>::value ? __fmul_rn(x, scale) : x;
	}
};

/* Where a key of the row's history lies. */
template <typename S>
__device__ __forceinline__ stored_head<S> key_at(const generic_args &args, const stored_pool &pool,
	const int32_t *table, int32_t key, int32_t kv_head)
{
	int64_t block = table[key >> args.block_shift] * pool.layout.block_stride;
	int64_t tok = key & ((1 << args.block_shift) - 1);
	const S *base = static_cast<const S *>(pool.base) + block;
	stored_head<S> head = {
		base + tok * pool.layout.tok_stride + kv_head * pool.layout.head_stride, 1.0f};
	if (std::is_same<S, e4m3>::value)
		head.scale = reinterpret_cast<const float *>(
			reinterpret_cast<const char *>(base) +
			pool.scales)[((int64_t)kv_head << args.block_shift) + tok];
	return head;
}

template <typename S>
__device__ void tile_scores(const generic_args &args, tile_smem &smem, const int32_t *table,
	int32_t key0, const tile_range &keys, int32_t kv_head)
{
	int lane = threadIdx.x % 32;
	for (int i = threadIdx.x / 32; i < TILE; i += N_THREAD / 32) {
		int32_t key = key0 + i;
		float sum = -INFINITY;
		if (key >= keys.begin && key < keys.end) {
			stored_head<S> k = key_at<S>(args, args.k, table, key, kv_head);
			float part = 0.0f;
			for (int d = lane; d < args.head_dim; d += 32)
				part = __fmaf_rn(smem.q[d], k[d * args.k.layout.dim_stride], part);
			for (int x = 16; x > 0; x /= 2)
				part = __fadd_rn(part, __shfl_xor_sync(~0u, part, x));
			sum = args.score.prepared(part);
		}
		if (lane == 0)
			smem.s[i] = sum;
	}
}

__device__ float tile_maximum(const tile_smem &smem)
{
	float x = smem.s[0];
	for (int i = 1; i < TILE; i++)
		x = fmaxf(x, smem.s[i]);
	return x;
}

/* A row's running values: this thread's dims tid, tid + 128, ... */
struct row_acc {
	float o[DIMS_THREAD], l, m;

	__device__ void reset()
	{
		for (int i = 0; i < DIMS_THREAD; i++)
			o[i] = 0.0f;
		l = 0.0f;
		m = M_NONE;
	}
};

template <typename S>
__device__ void add_tile(const generic_args &args, const tile_smem &smem, const int32_t *table,
	int32_t key0, const tile_range &keys, int32_t kv_head, row_acc &acc)
{
	float m = next_ref(acc.m, tile_maximum(smem)), f = exp2_fast(__fsub_rn(acc.m, m));
	acc.m = m;
	acc.l = __fmul_rn(acc.l, f);
#pragma unroll
	for (int i = 0; i < DIMS_THREAD; i++)
		acc.o[i] = __fmul_rn(acc.o[i], f);
	for (int j = max(0, keys.begin - key0); j < min(TILE, keys.end - key0); j++) {
		float p = exp2_fast(__fsub_rn(smem.s[j], m));
		stored_head<S> v = key_at<S>(args, args.v, table, key0 + j, kv_head);
		acc.l = __fadd_rn(acc.l, p);
#pragma unroll
		for (int i = 0; i < DIMS_THREAD; i++) {
			int d = threadIdx.x + i * N_THREAD;
			if (d < args.head_dim)
				acc.o[i] = __fmaf_rn(p, v[d * args.v.layout.dim_stride], acc.o[i]);
		}
	}
}

__device__ void fold_row(row_acc &total, const row_acc &chunk)
{
	fold_factors f = fold(total.m, chunk.m);
#pragma unroll
	for (int i = 0; i < DIMS_THREAD; i++)
		total.o[i] = fold_in(total.o[i], chunk.o[i], f);
	total.l = fold_in(total.l, chunk.l, f);
	total.m = f.m;
}

/* q and out of E, K and V of S. */
template <typename E, typename S>
__global__ void __launch_bounds__(N_THREAD) generic_kernel(generic_args args)
{
	__shared__ tile_smem smem;
	grid_wait();
	nsv_cuda_seq seq = args.seqs[blockIdx.z];
	int32_t row = blockIdx.x, head = blockIdx.y, kv_head = head / args.group;
	if (row >= seq.n_query)
		return;
	const int32_t *table = args.tables + (int64_t)seq.table * args.table_stride;
	int64_t at = ((int64_t)(seq.row0 + row) * args.n_head + head) * args.head_dim;
	for (int d = threadIdx.x; d < args.head_dim; d += N_THREAD)
		smem.q[d] = to_float(static_cast<const E *>(args.q)[at + d]);
	int32_t pos = seq.n_past + row;
	tile_range keys = {args.window > 0 ? max(0, pos + 1 - args.window) : 0, pos + 1};
	row_acc total, chunk;
	total.reset();
	int32_t n_tile = pos / TILE + 1;
	for (int32_t t = keys.begin / TILE; t < n_tile;) {
		int32_t stop = min(chunk_end(t), n_tile);
		chunk.reset();
		for (; t < stop; t++) {
			__syncthreads();
			tile_scores<S>(args, smem, table, t * TILE, keys, kv_head);
			__syncthreads();
			add_tile<S>(args, smem, table, t * TILE, keys, kv_head, chunk);
		}
		fold_row(total, chunk);
	}
#pragma unroll
	for (int i = 0; i < DIMS_THREAD; i++) {
		int d = threadIdx.x + i * N_THREAD;
		if (d < args.head_dim)
			static_cast<E *>(args.out)[at + d] =
				from_float<E>(__fdiv_rn(total.o[i], total.l));
	}
}

using kernel_fn = void (*)(generic_args);

template <typename E> static kernel_fn find_stored(bool packed)
{
	return packed ? generic_kernel<E, e4m3> : generic_kernel<E, E>;
}

static kernel_fn find_kernel(uint32_t dtype, bool packed)
{
	switch (dtype) {
	case NSV_F32:
		return find_stored<float>(packed);
	case NSV_F16:
		return find_stored<__half>(packed);
	case NSV_BF16:
		return find_stored<__nv_bfloat16>(packed);
	default:
		return nullptr;
	}
}

int generic_load()
{
	for (uint32_t dtype : {NSV_F32, NSV_F16, NSV_BF16})
		for (bool packed : {false, true}) {
			cudaFuncAttributes attr;
			if (cudaFuncGetAttributes(&attr, find_kernel(dtype, packed)) != cudaSuccess)
				return -EIO;
		}
	return 0;
}

int generic_launch(uint32_t dtype, bool packed, const generic_args &args, uint32_t max_query,
	uint32_t n_seq, cudaStream_t stream)
{
	kernel_fn fn = find_kernel(dtype, packed);
	if (!fn || n_seq > 65535 || args.n_head > 65535)
		return -ENOTSUP;
	fn<<<dim3(max_query, args.n_head, n_seq), N_THREAD, 0, stream>>>(args);
	return cudaGetLastError() == cudaSuccess ? 0 : -EIO;
}

} // namespace nsv
