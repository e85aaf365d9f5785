/* Tiles of K, V and rows in shared memory, and how they get there through the block table: what
 * decode and prefill share.
 *
 *     a tile: panels of 64 dims; a row is 128 bytes, its 16-byte pieces at piece ^ (row % 8) */
#ifndef NSV_KERNELS_CUDA_TILES_CUH
#define NSV_KERNELS_CUDA_TILES_CUH

#include "kernels/cuda/args.cuh"
#include "kernels/cuda/ptx.cuh"

namespace nsv
{

constexpr int PANEL_DIMS = 64;
constexpr int ROW_BYTES = 128;
constexpr int PANEL_BYTES = TILE * ROW_BYTES;

__device__ __forceinline__ uint32_t swizzle(uint32_t row, uint32_t piece16)
{
	return row * ROW_BYTES + ((piece16 ^ (row & 7)) << 4);
}

/* A place in a ring of n: which one, and the parity of its round. */
struct ring_at {
	int i = 0;
	uint32_t round = 0;

	__device__ __forceinline__ void next(int n)
	{
		if (++i == n) {
			i = 0;
			round ^= 1;
		}
	}
};

/* Where every step-th row, a (token, head of the group), lies in q and out: without a division or
 * a product a row. */
struct row_walk {
	int64_t at; /* element 0 of the row */
	int32_t tok, head, group, step_tok, step_head;
	int64_t step_at, wrap_at;

	__device__ __forceinline__ row_walk(const attn_args &args, const nsv_cuda_seq &seq,
		int32_t head0, int32_t row, int32_t step)
	    : tok(row / args.shape.group), head(row % args.shape.group), group(args.shape.group),
	      step_tok(step / args.shape.group), step_head(step % args.shape.group)
	{
		int64_t width = (int64_t)args.n_head * args.head_dim;
		at = (seq.row0 + tok) * width + (head0 + head) * args.head_dim;
		step_at = step_tok * width + step_head * args.head_dim;
		wrap_at = width - group * args.head_dim;
	}

	__device__ __forceinline__ void next()
	{
		at += step_at;
		tok += step_tok;
		head += step_head;
		if (head >= group) {
			head -= group;
			at += wrap_at;
			tok++;
		}
	}
};

/* The rows of q that a lane copies, where all of a warp's are from row0 on. */
template <int D>
__device__ __forceinline__ row_walk q_walk(
	const attn_args &args, const nsv_cuda_seq &seq, int32_t row0, int32_t head0, int lane)
{
	constexpr int pieces = D / 8;
	return row_walk(args, seq, head0, row0 + lane / pieces, 32 / pieces);
}

/* ROWS rows of q from row0 of a sequence's (token, head of the group) pairs, zeros where there is
 * none, to panels that lie `panel_bytes` apart: copies that are under way when it returns. A lane
 * has one 16-byte piece of its rows. */
template <int D, int ROWS>
__device__ __forceinline__ void load_q(const attn_args &args, const nsv_cuda_seq &seq, row_walk row,
	uint32_t dst, uint32_t panel_bytes, int lane)
{
	constexpr int pieces = D / 8, step = 32 / pieces;
	const char *q = static_cast<const char *>(args.q);
	int32_t r = lane / pieces, c = lane % pieces;
	uint32_t panel = dst + c / 8 * panel_bytes;
#pragma unroll 4
	for (int i = 0; i < ROWS / step; i++, r += step, row.next()) {
		bool used = row.tok < seq.n_query && c * 8 < args.head_dim;
		int64_t off = used ? row.at + c * 8 : 0;
		cp_async_16(panel + swizzle(r, c % 8), q + off * 2, used ? 16 : 0);
	}
}

template <int D, int ROWS>
__device__ void load_q(const attn_args &args, const nsv_cuda_seq &seq, int32_t row0, int32_t head0,
	uint32_t dst, uint32_t panel_bytes, int lane)
{
	load_q<D, ROWS>(args, seq, q_walk<D>(args, seq, row0, head0, lane), dst, panel_bytes, lane);
}

/* One lane's box of KEYS keys from key0 on: where it is, and whether anyone sees it. */
struct box {
	int32_t tok, block; /* in the pool */
	int32_t row, panel; /* among the keys */
	bool used;
};

/* One of two, both in registers. */
__device__ __forceinline__ box choose(bool second, const box &a, const box &b)
{
	return {second ? b.tok : a.tok, second ? b.block : a.block, second ? b.row : a.row,
		second ? b.panel : a.panel, second ? b.used : a.used};
}

template <int N_PANEL, int KEYS>
__device__ __forceinline__ box make_box(
	const attn_args &args, int32_t table, const tile_range &keys, int32_t key0, int lane)
{
	box b;
	b.row = lane / N_PANEL << args.box_shift;
	b.panel = lane % N_PANEL;
	int32_t key = key0 + b.row;
	b.used = b.row < KEYS && key < keys.end && key + (1 << args.box_shift) > keys.begin;
	b.tok = key & ((1 << args.block_shift) - 1);
	b.block = b.used ? __ldg(args.tables + (int64_t)table * args.table_stride +
				   (key >> args.block_shift))
			 : 0;
	return b;
}

/* The bytes that all lanes' boxes bring: for the barrier that counts them. */
__device__ __forceinline__ uint32_t box_bytes(const attn_args &args, const box &b)
{
	return __popc(__ballot_sync(~0u, b.used)) * ROW_BYTES << args.box_shift;
}

} // namespace nsv

#endif
