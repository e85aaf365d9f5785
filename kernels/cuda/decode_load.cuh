/* Decode's producer: one warp that walks a run, looks blocks up and keeps the ring full.
 *
 * History is asked for before the launch before this one has ended; q and new keys are not. */
#ifndef NSV_KERNELS_CUDA_DECODE_LOAD_CUH
#define NSV_KERNELS_CUDA_DECODE_LOAD_CUH

#include "kernels/cuda/decode_parts.cuh"

namespace nsv
{

/* K or V, where a step's boxes come from. */
struct slot_source {
	const CUtensorMap *map;
	const stored_pool *pool;
	int32_t head;
	uint64_t policy;
};

/* The scales of a box's tokens, which lie beside its block. */
__device__ __forceinline__ void load_scales(
	const decode_args &args, const slot_source &from, const box &b, uint32_t dst, uint32_t bar)
{
	const char *at = static_cast<const char *>(from.pool->base) +
			 b.block * from.pool->layout.block_stride + from.pool->scales;
	bulk_load(
		dst, at + ((from.head << args.block_shift) + b.tok) * 4, 4 << args.box_shift, bar);
}

/* The boxes of one slot, a lane each. */
template <int D, int NT, bool PACKED>
__device__ __forceinline__ void load_slot(const decode_args &args, const slot_source &from,
	const layout<D, NT, PACKED> &smem, ring_at &ring, const box &b, int lane)
{
	using C = config<D, NT, PACKED>;
	uint32_t full = smem.full(ring.i);
	mbar_wait(smem.empty(ring.i), ring.round ^ 1);
	uint32_t n_row = __popc(__ballot_sync(~0u, b.used)) << args.box_shift;
	if (lane == 0)
		mbar_arrive_expect(
			full, n_row * (C::row_bytes + C::scale_bytes / TILE / C::n_panel));
	__syncwarp();
	if (b.used) {
		tma_load_4d(smem.slot(ring.i) + b.panel * C::panel_bytes + b.row * C::row_bytes,
			from.map, full, b.panel * C::panel_dims, b.tok, from.head, b.block,
			from.policy);
		if (PACKED && b.panel == 0)
			load_scales(args, from, b, smem.scales(ring.i) + b.row * 4, full);
	}
	ring.next(C::n_slot);
}

template <int D, int NT, bool PACKED> struct producer {
	using C = config<D, NT, PACKED>;
	const decode_args &args;
	const layout<D, NT, PACKED> &smem;
	piece *pieces;
	ring_at ring, q_ring;
	uint64_t policy; /* a prefix is read by several tiles of rows, all else once */
	int lane = threadIdx.x % 32;
	bool is_ready = false; /* the launch before this one has ended */

	__device__ producer(const decode_args &a, const layout<D, NT, PACKED> &s, piece *p)
	    : args(a), smem(s), pieces(p),
	      policy(a.shape.part == SHARED_KEYS ? policy_evict_normal() : policy_evict_first())
	{
	}

	__device__ void wait_before()
	{
		if (is_ready)
			return;
		grid_wait();
		grid_launch_next();
		is_ready = true;
	}

	/* Hands a piece to the consumers; with none, the end. */
	__device__ void announce(const piece *p)
	{
		mbar_wait(smem.q_empty(q_ring.i), q_ring.round ^ 1);
		if (lane > 0)
			return;
		if (p)
			pieces[q_ring.i] = *p;
		else
			pieces[q_ring.i].item = -1;
		mbar_arrive(smem.piece_full(q_ring.i));
	}

	/* Lets the announced piece's q follow. */
	__device__ void bring_q(const piece &p, const row_walk &rows)
	{
		wait_before();
		load_q<D, C::rows>(args, p.seq, rows, smem.q(q_ring.i), C::rows * ROW_BYTES, lane);
		cp_async_arrive(smem.q_full(q_ring.i));
		q_ring.next(2);
	}

	/* Slots that may be asked for before the launch before this one has ended, since what it
	 * wrote is not among them: those of the piece's first steps, or its first keys alone. */
	__device__ int32_t early_slots(const piece &p) const
	{
		if (is_ready)
			return 0;
		int32_t old = min(p.seq.n_past / TILE, p.tiles.end), begin = p.tiles.begin;
		int32_t steps_end = old == p.tiles.end ? old : old & ~(STEP_TILES - 1);
		return steps_end > begin ? min(2 * (steps_end - begin), C::n_slot)
					 : max(old - begin, 0);
	}

	__device__ void tile_boxes(const piece &p, int32_t tile, box b[STEP_TILES]) const
	{
#pragma unroll
		for (int i = 0; i < STEP_TILES; i++)
			b[i] = make_box<C::n_panel, TILE>(
				args, p.seq.table, p.keys, (tile + i) * TILE, lane);
	}

	__device__ void load_piece(const piece &p)
	{
		int32_t head = p.item % args.shape.n_kv_head, early = early_slots(p);
		box b[STEP_TILES], next[STEP_TILES];
		tile_boxes(p, p.tiles.begin, b);
		announce(&p);
		row_walk rows = q_walk<D>(args, p.seq, p.row0, p.head0, lane);
		if (early == 0)
			bring_q(p, rows);
		for (int32_t tile = p.tiles.begin, end; tile < p.tiles.end; tile = end) {
			end = min(step_end(tile), p.tiles.end);
			tile_boxes(p, end, next);
#pragma unroll 1
			for (int i = 0; i < 2 * (end - tile); i++) {
				bool is_k = i<end - tile, second = (is_k ? i : i - (end - tile))> 0;
				slot_source from = {is_k ? &args.k : &args.v,
					is_k ? &args.packed_k : &args.packed_v, head, policy};
				load_slot(args, from, smem, ring, choose(second, b[0], b[1]), lane);
				if (--early == 0)
					bring_q(p, rows);
			}
#pragma unroll
			for (int i = 0; i < STEP_TILES; i++)
				b[i] = next[i];
		}
	}

	__device__ void load()
	{
		for (run_walk walk(args.runs[blockIdx.x]); !walk.done();
			walk.next(args.shape, args.seqs))
			load_piece(walk.at);
		wait_before();
		announce(nullptr);
	}
};

} // namespace nsv

#endif
