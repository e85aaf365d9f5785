/* The warps of prefill beside the consumers: one hands out items, two fetch K and V, one fetches q
 * and clears what no row sees. */
#ifndef NSV_KERNELS_CUDA_PREFILL_LOAD_CUH
#define NSV_KERNELS_CUDA_PREFILL_LOAD_CUH

#include "kernels/cuda/prefill_parts.cuh"

namespace nsv
{

constexpr int64_t CACHE_BYTES = 36 << 20; /* of the second-level cache, for K and V */
constexpr int ENDING_STEPS = 2;		  /* yet to be asked for when the next item is taken */

/* ---- Scheduler */

/* Heads of a sequence whose K and V the second-level cache holds beside other things. */
__device__ __forceinline__ int32_t heads_together(const prefill_args &args, const nsv_cuda_seq &seq)
{
	int64_t bytes = (int64_t)(seq.n_past + seq.n_query) * args.head_dim * 4;
	return max((int32_t)min(CACHE_BYTES / bytes, (int64_t)args.shape.n_kv_head), 1);
}

/* Item i of a sequence: heads in sets, of a set the last row tiles first. */
__device__ __forceinline__ int32_t item_at(const prefill_args &args, const work_shape &shape,
	const nsv_cuda_seq &seq, int32_t i, int32_t *ret_head)
{
	int32_t n_tile = n_item(shape, seq) / shape.n_kv_head;
	int32_t together = heads_together(args, seq), head0 = i / (n_tile * together) * together;
	int32_t n_head = min(together, shape.n_kv_head - head0);
	i -= head0 * n_tile;
	*ret_head = head0 + i % n_head;
	return (n_tile - 1 - i / n_head) * shape.n_kv_head + *ret_head;
}

/* `shape`: with the rows that the launch's items have. */
template <int D>
__device__ item make_item(const prefill_args &args, const work_shape &shape, int64_t ticket)
{
	item it;
	it.n_q = shape.row_tile == args.shape.row_tile ? sizes<D>::n_q : 1;
	int32_t s = find_seq(args.ends, args.n_seq, ticket);
	it.seq = args.seqs[s];
	int32_t i = (int32_t)(ticket - (s ? args.ends[s - 1] : 0));
	int32_t at = item_at(args, shape, it.seq, i, &it.kv_head);
	tile_range rows = item_rows(shape, it.seq, at);
	tile_range tiles = item_tiles(shape, it.seq, at);
	it.tok0 = rows.begin;
	it.steps = {tiles.begin / STEP_TILES, step_end(tiles.end - 1) / STEP_TILES};
	it.keys = {window_begin(shape, it.seq.n_past + rows.begin), it.seq.n_past + rows.end};
	return it;
}

/* The next item after the first ones, which are a block's by its number. Each block that has a first
 * one finds none once: the last of the launch to do so leaves the counter as it was. */
__device__ int64_t take_ticket(const prefill_args &args, int64_t n_item, int lane)
{
	uint32_t taken = 0;
	if (lane == 0) {
		taken = atomicAdd(args.ticket, 1);
		if (taken == n_item - 1)
			*args.ticket = 0;
	}
	return (int64_t)gridDim.x + __shfl_sync(~0u, taken, 0);
}

/* An item is taken when the one before nears its end: blocks end together. */
template <int D>
__device__ void schedule(const prefill_args &args, const places<D> &smem, item *items)
{
	int lane = threadIdx.x % 32;
	int64_t n_item = args.ends[args.n_seq - 1], ticket = blockIdx.x;
	uint32_t ending_round = 0;
	work_shape shape = args.shape;
	shape.row_tile = *args.tile;
	for (ring_at at;; at.next(N_PLACE)) {
		item it = {};
		if (ticket < n_item)
			it = make_item<D>(args, shape, ticket);
		else
			it.kv_head = -1;
		mbar_wait(smem.item_empty(at.i), at.round ^ 1);
		if (lane == 0) {
			items[at.i] = it;
			mbar_arrive(smem.item_full(at.i));
		}
		if (it.kv_head < 0)
			break;
		mbar_wait(smem.ending(), ending_round);
		ending_round ^= 1;
		ticket = take_ticket(args, n_item, lane);
	}
}

/* ---- Loaders */

/* Calls body(item) for each in turn, in a whole warp. */
template <int D, typename F>
__device__ __forceinline__ void each_item(const places<D> &smem, const item *items, F body)
{
	for (ring_at in;; in.next(N_PLACE)) {
		mbar_wait(smem.item_full(in.i), in.round);
		const item it = items[in.i];
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			mbar_arrive(smem.item_empty(in.i));
		if (it.kv_head < 0)
			break;
		body(it);
	}
}

/* Keys [begin, end) of a unit that any row sees, counted in the unit. */
template <int D> __device__ __forceinline__ tile_range unit_keys(const item &it, int32_t unit)
{
	constexpr int n = sizes<D>::unit_keys;
	return {min(max(it.keys.begin - unit * n, 0), n), min(max(it.keys.end - unit * n, 0), n)};
}

template <int D> __device__ __forceinline__ bool sees_all(const item &it, int32_t unit)
{
	tile_range keys = unit_keys<D>(it, unit);
	return keys.end - keys.begin == sizes<D>::unit_keys;
}

/* K or V, unit by unit. */
template <int D, bool IS_V>
__device__ void load_keys(const prefill_args &args, const places<D> &smem, const item *items)
{
	using Z = sizes<D>;
	constexpr int n = Z::unit_keys;
	const CUtensorMap *map = IS_V ? &args.v : &args.k;
	int lane = threadIdx.x % 32;
	ring_at at;
	each_item<D>(smem, items, [&](const item &it) {
		int32_t unit = it.steps.begin * Z::step_units, end = it.steps.end * Z::step_units;
		int32_t ending = max(end - ENDING_STEPS * Z::step_units, unit);
		box b = make_box<Z::n_panel, n>(args, it.seq.table, it.keys, unit * n, lane);
		for (; unit < end; unit++) {
			if (!IS_V && unit == ending && lane == 0)
				mbar_arrive(smem.ending());
			uint32_t full = !IS_V			? smem.k_full(at.i)
					: sees_all<D>(it, unit) ? smem.v_full(at.i)
								: smem.v_landed(at.i);
			uint32_t dst = IS_V ? smem.v(at.i * Z::unit_tiles + b.row / TILE, b.panel) +
						       b.row % TILE * ROW_BYTES
					    : smem.k(at.i, b.panel) + b.row * ROW_BYTES;
			uint32_t n_byte = box_bytes(args, b);
			mbar_wait(IS_V ? smem.v_empty(at.i) : smem.k_empty(at.i), at.round ^ 1);
			if (lane == 0)
				mbar_arrive_expect(full, n_byte);
			__syncwarp();
			if (b.used)
				tma_load_4d(dst, map, full, b.panel * PANEL_DIMS, b.tok, it.kv_head,
					b.block);
			b = make_box<Z::n_panel, n>(
				args, it.seq.table, it.keys, (unit + 1) * n, lane);
			at.next(Z::n_unit);
		}
	});
}

/* Zeros for the keys [begin, end) of a unit of V, by a warp. */
template <int D>
__device__ void clear_keys(const places<D> &smem, int unit, int32_t begin, int32_t end, int lane)
{
	constexpr int pieces = D / 8, rows = 32 / pieces;
	int32_t c = lane % pieces;
	for (int i = 0; i < sizes<D>::unit_tiles; i++) {
		uint32_t to = smem.v(unit * sizes<D>::unit_tiles + i, c / 8) + c % 8 * 16;
		int32_t row = max(begin - i * TILE, 0) + lane / pieces;
#pragma unroll 4
		for (; row < min(end - i * TILE, TILE); row += rows)
			st_shared(to + row * ROW_BYTES, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
	}
}

/* Keys of V that no row sees may hold anything, and their weights are zeros: so are they. `rounds`:
 * of the units' barriers, a bit each. */
template <int D>
__device__ void clear_unseen(
	const places<D> &smem, const item &it, ring_at &at, uint32_t &rounds, int lane)
{
	int32_t unit = it.steps.begin * sizes<D>::step_units;
	int32_t end = it.steps.end * sizes<D>::step_units;
	for (; unit < end; unit++, at.next(sizes<D>::n_unit)) {
		if (sees_all<D>(it, unit))
			continue;
		tile_range keys = unit_keys<D>(it, unit);
		mbar_wait(smem.v_landed(at.i), rounds >> at.i & 1);
		rounds ^= 1u << at.i;
		clear_keys(smem, at.i, 0, keys.begin, lane);
		clear_keys(smem, at.i, keys.end, sizes<D>::unit_keys, lane);
		async_proxy_fence();
		__syncwarp();
		if (lane == 0)
			mbar_arrive(smem.v_full(at.i));
	}
}

/* A tile of q when the one before is done with: n_tok tokens a tile, at the end of a sequence one
 * by one. What no token is there for stays as it was: rows that go nowhere. */
template <int D>
__device__ void send_q(const prefill_args &args, const places<D> &smem, const item &it, int ahead,
	int tile, int32_t n_tok, int lane)
{
	constexpr int n_panel = sizes<D>::n_panel;
	int32_t group = args.shape.group, tok = it.tok0 + tile * n_tok;
	int32_t n = max(min(n_tok, it.seq.n_query - tok), 0), step = n == n_tok ? n : 1;
	const CUtensorMap *map = n == n_tok ? &args.q_tile : &args.q_token;
	uint32_t full = smem.q_full(ahead, tile);
	if (lane == 0)
		mbar_arrive_expect(full, n * group * n_panel * ROW_BYTES);
	__syncwarp();
	for (int32_t i = lane, t; (t = i / n_panel * step) < n; i += 32) {
		uint32_t dst = smem.q(ahead, tile) + i % n_panel * smem.q_step(ahead, tile);
		tma_load_3d(dst + t * group * ROW_BYTES, map, full, i % n_panel * PANEL_DIMS,
			it.kv_head * group, it.seq.row0 + tok + t);
	}
}

/* q of the items, and zeros beside their keys. */
template <int D>
__device__ void load_rows(const prefill_args &args, const places<D> &smem, const item *items)
{
	int lane = threadIdx.x % 32;
	int32_t n_tok = args.shape.row_tile / sizes<D>::n_q / args.shape.group;
	ring_at at, q_at;
	uint32_t rounds = 0;
	each_item<D>(smem, items, [&](const item &it) {
		for (int tile = 0; tile < it.n_q; tile++) {
			mbar_wait(smem.q_empty(q_at.i, tile), q_at.round ^ 1);
			send_q(args, smem, it, q_at.i, tile, n_tok, lane);
		}
		q_at.next(sizes<D>::n_ahead);
		clear_unseen(smem, it, at, rounds, lane);
	});
}

} // namespace nsv

#endif
