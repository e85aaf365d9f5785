/* Decode's producers where K and V are e4m3: warps that read bytes and scales through the block
 * table and leave the values, as elements of q's type, in the ring that the consumers read.
 *
 *     pool: 16 dims of a token, 16 bytes --> registers, a tile ahead --> x scale --> two pieces
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

/* A scale twice, as unpack() takes it. */
template <typename E> __device__ __forceinline__ uint32_t pack_scale(float scale);

template <> __device__ __forceinline__ uint32_t pack_scale<__half>(float scale)
{
	return elem<__half>::pack(scale, scale);
}

/* With the 2^120 by which unpack() is short. */
template <> __device__ __forceinline__ uint32_t pack_scale<__nv_bfloat16>(float scale)
{
	scale = __fmul_rn(scale, 0x1p120f);
	return elem<__nv_bfloat16>::pack(scale, scale);
}

/* The two e4m3 in the low half of `bytes`, or in the high one, times a scale. */
template <typename E, bool HIGH>
__device__ __forceinline__ uint32_t unpack(uint32_t bytes, uint32_t scale);

template <>
__device__ __forceinline__ uint32_t unpack<__half, false>(uint32_t bytes, uint32_t scale)
{
	return mul_f16x2(e4m3_pair(bytes), scale);
}

template <> __device__ __forceinline__ uint32_t unpack<__half, true>(uint32_t bytes, uint32_t scale)
{
	return mul_f16x2(e4m3_pair(bytes >> 16), scale);
}

/* Exponent and fraction of e4m3 are the low ones of bf16: the value over 2^120, whose exponent has
 * another bias. Multiplications, where masks and shifts would all be the same unit's work. */
template <bool HIGH>
__device__ __forceinline__ uint32_t unpack_bf16(uint32_t bytes, uint32_t scale)
{
	uint32_t x = __byte_perm(bytes, 0, HIGH ? 0x4342 : 0x4140), sign = x & 0x00800080u;
	return mul_bf16x2(x * 16 + sign * (0x8000 / 0x80 - 16), scale);
}

template <>
__device__ __forceinline__ uint32_t unpack<__nv_bfloat16, false>(uint32_t bytes, uint32_t scale)
{
	return unpack_bf16<false>(bytes, scale);
}

template <>
__device__ __forceinline__ uint32_t unpack<__nv_bfloat16, true>(uint32_t bytes, uint32_t scale)
{
	return unpack_bf16<true>(bytes, scale);
}

/* Eight of them, as a 16-byte piece. */
template <typename E> __device__ __forceinline__ float4 unpack_piece(uint2 bytes, uint32_t scale)
{
	return make_float4(__uint_as_float(unpack<E, false>(bytes.x, scale)),
		__uint_as_float(unpack<E, true>(bytes.x, scale)),
		__uint_as_float(unpack<E, false>(bytes.y, scale)),
		__uint_as_float(unpack<E, true>(bytes.y, scale)));
}

/* A warp has half of a tile's tokens, step_rows at a time; a lane 16 dims of each. */
template <typename E, int D, int MT> struct packed_producer : producer<D, MT> {
	using base = producer<D, MT>;
	using C = config<D, MT>;
	using base::args;
	using base::lane;
	using base::ring;
	using base::smem;
	static constexpr int row_lanes = D / 16; /* lanes that share a token */
	static constexpr int step_rows = 32 / row_lanes;
	static constexpr int warp_rows = TILE / N_LOADER;
	static constexpr int n_step = warp_rows / step_rows;
	int row0 = (threadIdx.x / 32 - N_WARP) * warp_rows;
	int sub = lane / row_lanes, dim = lane % row_lanes * 16;

	/* A warp's part of a tile, on its way: this lane's dims of a token a step, and the scale of
	 * the warp's token number `lane`. */
	struct part {
		uint4 bytes[n_step];
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

	__device__ __forceinline__ place find(
		int32_t table, const tile_range &keys, int32_t tile) const
	{
		int32_t row = lane << args.box_shift, key = tile * TILE + row;
		bool used =
			row < TILE && key < keys.end && key + (1 << args.box_shift) > keys.begin;
		const int32_t *at = args.tables + (int64_t)table * args.table_stride;
		return {tile, used ? __ldg(at + (key >> args.block_shift)) : 0};
	}

	/* Byte 0 of the block of a tile's row. Strides of bytes fit 32 bits here. */
	__device__ __forceinline__ const char *block_of(
		const stored_pool &pool, const place &at, int32_t row) const
	{
		uint32_t block = __shfl_sync(~0u, at.block, row >> args.box_shift);
		return static_cast<const char *>(pool.base) +
		       (uint64_t)block * (uint32_t)pool.layout.block_stride;
	}

	__device__ __forceinline__ uint32_t tok_of(const place &at, int32_t row) const
	{
		return (at.tile * TILE | row) & ((1 << args.block_shift) - 1);
	}

	__device__ __forceinline__ bool is_seen(
		const tile_range &keys, const place &at, int32_t row) const
	{
		uint32_t from_begin = at.tile * TILE - keys.begin + row;
		return from_begin < (uint32_t)(keys.end - keys.begin);
	}

	__device__ __forceinline__ void fetch(const stored_pool &pool, const tile_range &keys,
		const place &at, int32_t head, part &ret) const
	{
		const char *from[n_step];
		uint32_t in_row = head * (uint32_t)pool.layout.head_stride + dim;
#pragma unroll
		for (int i = 0; i < n_step; i++) {
			int32_t row = row0 + i * step_rows + sub;
			from[i] = block_of(pool, at, row) + in_row +
				  (uint64_t)tok_of(at, row) * (uint32_t)pool.layout.tok_stride;
		}
		int32_t row = row0 + lane % warp_rows;
		const char *scale = block_of(pool, at, row) + pool.scales +
				    ((head << args.block_shift) + tok_of(at, row)) * 4;
#pragma unroll
		for (int i = 0; i < n_step; i++) {
			bool used = is_seen(keys, at, row0 + i * step_rows + sub) &&
				    dim < args.head_dim;
			ret.bytes[i] =
				used ? ld_global_16(from[i], base::policy) : make_uint4(0, 0, 0, 0);
		}
		ret.scale = is_seen(keys, at, row) ? __ldcg(reinterpret_cast<const float *>(scale))
						   : 1.0f;
	}

	/* Into the ring's next slot, when that is free. Lanes of the second panel of a row begin
	 * with their second piece: the banks of their first are the first panel's. */
	__device__ __forceinline__ void store(const part &x)
	{
		uint32_t piece16 = dim / 8, swap = piece16 / 8 & 1, first = piece16 % 8 + swap;
		uint32_t panel = smem.slot(ring.i) + piece16 / 8 * PANEL_BYTES;
		uint32_t own = pack_scale<E>(x.scale), scale[n_step];
#pragma unroll
		for (int i = 0; i < n_step; i++)
			scale[i] = __shfl_sync(~0u, own, i * step_rows + sub);
		mbar_wait(smem.empty(ring.i), ring.round ^ 1);
#pragma unroll
		for (int i = 0; i < n_step; i++) {
			uint32_t row = row0 + i * step_rows + sub;
			const uint4 &b = x.bytes[i];
			uint2 lo = make_uint2(b.x, b.y), hi = make_uint2(b.z, b.w);
			uint32_t at = panel + swizzle(row, first);
			st_shared(at, unpack_piece<E>(swap ? hi : lo, scale[i]));
			st_shared(at ^ 16, unpack_piece<E>(swap ? lo : hi, scale[i]));
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
		if (row0 == 0)
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
		if (row0 == 0)
			base::announce(nullptr);
	}
};

} // namespace nsv

#endif
