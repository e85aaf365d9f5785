/* Decode's producers where K and V are e4m3: warps that read bytes and scales through the block
 * table and leave the values, as elements of q's type, in the ring that the consumers read.
 *
 *     pool: 8 dims of a token, 8 bytes --> registers, a tile ahead --> x scale --> 16-byte piece
 *
 * Both steps are exact (nanoserve_cuda.h), so consumers do what they do on a pool of q's type.
 * Tokens that nobody sees and dims that are not there become zeros. */
#ifndef NSV_KERNELS_CUDA_DECODE_PACKED_CUH
#define NSV_KERNELS_CUDA_DECODE_PACKED_CUH

#include "kernels/cuda/decode_load.cuh"

namespace nsv
{

constexpr int N_LOADER = 2; /* warps: with two more, consumers would lack registers */

/* Threads and blocks of a kernel, by how K and V are stored. */
template <int D, int MT, bool PACKED> struct role {
	using C = config<D, MT>;
	static constexpr int n_thread = PACKED ? N_CONSUMER + N_LOADER * 32 : N_THREAD;
	static constexpr int per_sm = PACKED && C::per_sm > 2 ? 2 : C::per_sm;
};

/* Eight e4m3 bytes times a scale. */
template <typename E> __device__ __forceinline__ float4 unpack(uint2 bytes, float scale);

template <> __device__ __forceinline__ float4 unpack<__half>(uint2 bytes, float scale)
{
	__half2 s = __float2half2_rn(scale), x[4];
#pragma unroll
	for (int i = 0; i < 4; i++)
		x[i] = __hmul2(e4m3_pair((i < 2 ? bytes.x : bytes.y) >> i % 2 * 16), s);
	float4 r;
	memcpy(&r, x, sizeof(r));
	return r;
}

template <> __device__ __forceinline__ float4 unpack<__nv_bfloat16>(uint2 bytes, float scale)
{
	uint32_t x[4];
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float2 pair = __half22float2(e4m3_pair((i < 2 ? bytes.x : bytes.y) >> i % 2 * 16));
		x[i] = elem<__nv_bfloat16>::pack(
			__fmul_rn(pair.x, scale), __fmul_rn(pair.y, scale));
	}
	return make_float4(__uint_as_float(x[0]), __uint_as_float(x[1]), __uint_as_float(x[2]),
		__uint_as_float(x[3]));
}

/* A warp has 32 of a tile's tokens, step_rows at a time. */
template <typename E, int D, int MT> struct packed_producer : producer<D, MT> {
	using base = producer<D, MT>;
	using C = config<D, MT>;
	using base::args;
	using base::lane;
	using base::ring;
	using base::smem;
	static constexpr int row_lanes = D / 8; /* lanes that share a token */
	static constexpr int step_rows = 32 / row_lanes;
	static constexpr int n_step = TILE / (N_LOADER * step_rows);
	int warp = threadIdx.x / 32 - N_WARP;

	/* A warp's part of a tile, on its way: this lane's dims of a token a step, and the scale of
	 * the warp's token number `lane`. */
	struct part {
		uint2 bytes[n_step];
		float scale;
	};

	/* Where a tile's tokens are: lane i has its i-th block. */
	struct place {
		int32_t tile, block;
	};

	__device__ packed_producer(const decode_args &a, const layout<D, MT> &s, piece *p)
	    : base(a, s, p)
	{
	}

	/* The tile's row of a step, of the lanes that share `sub`. */
	__device__ __forceinline__ int32_t row_of(int32_t step, int32_t sub) const
	{
		return (step * N_LOADER + warp) * step_rows + sub;
	}

	__device__ __forceinline__ place find(
		int32_t table, const tile_range &keys, int32_t tile) const
	{
		int32_t row = lane << args.box_shift, key = tile * TILE + row;
		bool used =
			row < TILE && key < keys.end && key + (1 << args.box_shift) > keys.begin;
		const int32_t *at = args.tables + (int64_t)table * args.table_stride;
		return {tile, used ? __ldg(at + (key >> args.block_shift)) : 0};
	}

	/* Byte 0 of a row's block, and the token in it. */
	__device__ __forceinline__ const char *block_of(
		const stored_pool &pool, const place &at, int32_t row, int32_t *ret_tok) const
	{
		int32_t block = __shfl_sync(~0u, at.block, row >> args.box_shift);
		*ret_tok = (at.tile * TILE + row) & ((1 << args.block_shift) - 1);
		return static_cast<const char *>(pool.base) + block * pool.layout.block_stride;
	}

	__device__ __forceinline__ bool is_seen(
		const tile_range &keys, const place &at, int32_t row) const
	{
		int32_t key = at.tile * TILE + row;
		return key >= keys.begin && key < keys.end;
	}

	__device__ __forceinline__ void fetch(const stored_pool &pool, const tile_range &keys,
		const place &at, int32_t head, part &ret) const
	{
		int32_t dim = lane % row_lanes * 8, tok;
#pragma unroll
		for (int i = 0; i < n_step; i++) {
			int32_t row = row_of(i, lane / row_lanes);
			const char *from = block_of(pool, at, row, &tok) +
					   tok * pool.layout.tok_stride +
					   head * pool.layout.head_stride + dim;
			bool used = is_seen(keys, at, row) && dim < args.head_dim;
			ret.bytes[i] = used ? ld_global_8(from, base::policy) : make_uint2(0, 0);
		}
		int32_t row = row_of(lane / step_rows, lane % step_rows);
		const char *from = block_of(pool, at, row, &tok) + pool.scales +
				   ((head << args.block_shift) + tok) * (int32_t)sizeof(float);
		ret.scale = is_seen(keys, at, row) ? __ldcg(reinterpret_cast<const float *>(from))
						   : 1.0f;
	}

	/* Into the ring's next slot, when that is free. */
	__device__ __forceinline__ void store(const part &x)
	{
		int32_t piece16 = lane % row_lanes;
		uint32_t panel = smem.slot(ring.i) + piece16 / 8 * PANEL_BYTES;
		mbar_wait(smem.empty(ring.i), ring.round ^ 1);
#pragma unroll
		for (int i = 0; i < n_step; i++) {
			int32_t sub = lane / row_lanes;
			float scale = __shfl_sync(~0u, x.scale, i * step_rows + sub);
			st_shared(panel + swizzle(row_of(i, sub), piece16 % 8),
				unpack<E>(x.bytes[i], scale));
		}
		__syncwarp();
		if (lane == 0)
			mbar_arrive(smem.full(ring.i));
		ring.next(C::n_slot);
	}

	__device__ void load_piece(const piece &p)
	{
		const tile_range tiles = p.tiles, keys = p.keys;
		int32_t head = p.item % args.shape.n_kv_head;
		int32_t end = min(step_end(tiles.begin), tiles.end);
		place at[STEP_TILES];
		part x[STEP_TILES];
		if (warp == 0)
			base::announce(&p);
#pragma unroll
		for (int i = 0; i < STEP_TILES; i++) {
			at[i] = find(p.seq.table, keys, tiles.begin + i);
			if (tiles.begin + i < end)
				fetch(args.packed_k, keys, at[i], head, x[i]);
		}
		for (int32_t tile = tiles.begin; tile < tiles.end;) {
			int32_t next_end = min(step_end(end), tiles.end);
#pragma unroll
			for (int i = 0; i < STEP_TILES; i++)
				if (tile + i < end) {
					store(x[i]);
					fetch(args.packed_v, keys, at[i], head, x[i]);
				}
#pragma unroll
			for (int i = 0; i < STEP_TILES; i++) {
				at[i] = find(p.seq.table, keys, end + i);
				if (tile + i < end)
					store(x[i]);
				if (end + i < next_end)
					fetch(args.packed_k, keys, at[i], head, x[i]);
			}
			tile = end;
			end = next_end;
		}
	}

	__device__ void run()
	{
		base::wait_before();
		for (run_walk walk(args.firsts[blockIdx.x], args.starts[blockIdx.x + 1]);
			!walk.done(); walk.next(args.shape, args.seqs))
			load_piece(walk.at);
		if (warp == 0)
			base::announce(nullptr);
	}
};

} // namespace nsv

#endif
