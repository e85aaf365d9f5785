/* Decode's producer: one warp that walks a run, looks blocks up and keeps the ring full.
 *
 * History is asked for before the launch before this one has ended; q and new keys are not. */
#ifndef NSV_KERNELS_CUDA_DECODE_LOAD_CUH
#define NSV_KERNELS_CUDA_DECODE_LOAD_CUH

#include "kernels/cuda/decode_parts.cuh"

namespace nsv
{

/* The boxes of one slot, a lane each. */
template <int D, int MT>
__device__ __forceinline__ void load_slot(const decode_args &args, const CUtensorMap *map,
	const layout<D, MT> &smem, ring_at &ring, const box &b, int32_t head, uint64_t policy,
	int lane)
{
	mbar_wait(smem.empty(ring.i), ring.round ^ 1);
	uint32_t n_byte = box_bytes(args, b);
	if (lane == 0)
		mbar_arrive_expect(smem.full(ring.i), n_byte);
	__syncwarp();
	if (b.used)
		tma_load_4d(smem.slot(ring.i) + b.panel * PANEL_BYTES + b.row * ROW_BYTES, map,
			smem.full(ring.i), b.panel * PANEL_DIMS, b.tok, head, b.block, policy);
	ring.next(config<D, MT>::n_slot);
}

template <int D, int MT> struct producer {
	using C = config<D, MT>;
	const decode_args &args;
	const layout<D, MT> &smem;
	piece *pieces;
	ring_at ring, q_ring;
	uint64_t policy; /* a prefix is read by several tiles of rows, all else once */
	int lane = threadIdx.x % 32;
	bool is_ready = false; /* the launch before this one has ended */

	__device__ producer(const decode_args &a, const layout<D, MT> &s, piece *p)
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

	/* Hands a piece and its q to the consumers; with none, the end. */
	__device__ void announce(const piece *p)
	{
		mbar_wait(smem.q_empty(q_ring.i), q_ring.round ^ 1);
		if (lane == 0) {
			if (p)
				pieces[q_ring.i] = *p;
			else
				pieces[q_ring.i].item = -1;
			mbar_arrive(smem.q_full(q_ring.i));
		}
		if (p)
			load_q<D, MT * 16>(args, p->seq, p->row0, p->head0, smem.q(q_ring.i),
				C::rows * ROW_BYTES, lane);
		cp_async_arrive(smem.q_full(q_ring.i));
		q_ring.next(2);
	}

	/* Slots that may be asked for before the launch before this one has ended, since what it
	 * wrote is not among them: those of the piece's first step, or its first keys alone. */
	__device__ int32_t early_slots(const piece &p) const
	{
		int32_t n = min(step_end(p.tiles.begin), p.tiles.end) - p.tiles.begin;
		int32_t n_old = min(p.seq.n_past / TILE - p.tiles.begin, n);
		if (is_ready || n_old <= 0)
			return 0;
		return n_old == n ? min(2 * n, C::n_slot) : n_old;
	}

	__device__ void tile_boxes(const piece &p, int32_t tile, box b[STEP_TILES]) const
	{
#pragma unroll
		for (int i = 0; i < STEP_TILES; i++)
			b[i] = make_box<D, TILE>(
				args, p.seq.table, p.keys, (tile + i) * TILE, lane);
	}

	__device__ void load_piece(const piece &p)
	{
		int32_t head = p.item % args.shape.n_kv_head, early = early_slots(p);
		box b[STEP_TILES], next[STEP_TILES];
		tile_boxes(p, p.tiles.begin, b);
		if (early == 0) {
			wait_before();
			announce(&p);
		}
		for (int32_t tile = p.tiles.begin, end; tile < p.tiles.end; tile = end) {
			end = min(step_end(tile), p.tiles.end);
			tile_boxes(p, end, next);
#pragma unroll
			for (int i = 0; i < 2 * STEP_TILES; i++) {
				if (tile + i % STEP_TILES >= end)
					continue;
				load_slot<D, MT>(args, i < STEP_TILES ? &args.k : &args.v, smem,
					ring, b[i % STEP_TILES], head, policy, lane);
				if (--early == 0) {
					wait_before();
					announce(&p);
				}
			}
#pragma unroll
			for (int i = 0; i < STEP_TILES; i++)
				b[i] = next[i];
		}
	}

	__device__ void load_run(int32_t run)
	{
		for (run_walk walk(args.firsts[run], args.starts[run + 1]); !walk.done();
			walk.next(args.shape, args.seqs))
			load_piece(walk.at);
	}

	__device__ void run()
	{
		load_run(blockIdx.x);
		wait_before();
		announce(nullptr);
	}
};

} // namespace nsv

#endif
