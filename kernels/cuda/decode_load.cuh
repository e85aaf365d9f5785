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
			load_q<D, MT * 16>(args, p->seq, p->row0, p->head0, smem.q(q_ring.i), lane);
		cp_async_arrive(smem.q_full(q_ring.i));
		q_ring.next(2);
	}

	__device__ void load_piece(const piece &p)
	{
		const tile_range tiles = p.tiles, keys = p.keys;
		int32_t head = p.item % args.shape.n_kv_head;
		int32_t old = is_ready ? tiles.begin
				       : min(min(tiles.begin + C::n_slot / 2, p.seq.n_past / TILE),
						 tiles.end);
		if (old <= tiles.begin) {
			wait_before();
			announce(&p);
		}
		box b = make_box<D>(args, p.seq.table, keys, tiles.begin, lane);
		for (int32_t tile = tiles.begin; tile < tiles.end; tile++) {
			box next = make_box<D>(args, p.seq.table, keys, tile + 1, lane);
			load_slot<D, MT>(args, &args.k, smem, ring, b, head, policy, lane);
			load_slot<D, MT>(args, &args.v, smem, ring, b, head, policy, lane);
			b = next;
			if (tile + 1 == old) {
				wait_before();
				announce(&p);
			}
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
