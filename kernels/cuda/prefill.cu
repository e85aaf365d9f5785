/* Paged attention for many query rows a sequence: the products are the limit.
 *
 * An item is a tile of rows (query row, head of the group) x the keys of one KV head; items are
 * handed out by a counter, longest first among the heads whose keys the cache holds together. A
 * block of threads:
 *
 *     scheduler warp   next item, its q -> one of two buffers
 *     loader warp      block table -> boxes of K and V -> ring of stages (64 keys each, swizzled)
 *     2 or 3           64 rows each: S = Q K^T | P = 2^(S f - m), in registers | O += P V
 *     warpgroups
 *
 *     tensor cores     S1 O0 | S1' O0' | S2 O1 | ...      a warpgroup's products while the others
 *     the rest               | P1      | P1'   | ...      make weights; they take turns
 *
 * V has eight dims more than it has, all ones: their O is the sum of the weights. The panel of ones
 * is one for all stages; a product's panels are equally far apart, so V's panels of a stage lie as
 * far before it as they lie from each other.
 *
 * Chunks are folded in order (order.cuh): the same bits as decode, which has the same tiles, k16
 * slices and roundings.
 *
 * A launch sets itself up while the one before it ends, and reads nothing before it has.
 *
 * Floor: 4 * rows * keys seen * head_dim operations at the rate of the tensor cores; K and V pass
 * through the second-level cache once an item. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefill.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace nsv
{

constexpr int GROUP_THREADS = 128;	/* a warpgroup */
constexpr int GROUP_ROWS = 64;		/* of an item */
constexpr int64_t CACHE_BYTES = 36 << 20; /* of the second-level cache, for K and V */
constexpr uint32_t STAGED = 1;		/* named barriers: a warpgroup's, one each */
constexpr uint32_t TURN = STAGED + 3;	/* a warpgroup's turn on the tensor cores */
constexpr uint32_t CLEARED = TURN + 3;	/* all consumers */

/* Sizes of an instantiation: D dims (padded), G consumer warpgroups. */
template <int D, int G> struct sizes {
	static constexpr int n_consumer = G * GROUP_THREADS;
	static constexpr int n_thread = n_consumer + GROUP_THREADS;
	static constexpr int n_warp = n_consumer / 32;
	static constexpr int rows = G * GROUP_ROWS;
	static constexpr int n_panel = D / PANEL_DIMS;
	static constexpr int q_panel_bytes = rows * ROW_BYTES;
	static constexpr int q_bytes = n_panel * q_panel_bytes;
	static constexpr int tile_bytes = n_panel * PANEL_BYTES;
	static constexpr int n_stage = D == 64 ? 6 : 4;
	static constexpr int n_place = 2 * n_panel * n_stage + 1; /* panels of K, V and ones */
	static constexpr int ones = D == 64 ? n_stage : 10;	  /* the place of the ones */
	static constexpr int n_acc = D / 2 + 4;			  /* O and the sums, in a thread */
	/* Barriers and alignment with them. */
	static constexpr int smem_bytes = n_place * PANEL_BYTES + 2 * q_bytes + 1024 + 1024;
	/* A multiprocessor's 64 K registers: what loading does without, consumers get. */
	static constexpr int loader_regs = G == 2 ? 40 : 32;
	static constexpr int consumer_regs = G == 2 ? 232 : 160;
};

/* Shared memory, by offset: panels, q, barriers. The places of panels, for D = 128:
 *
 *     0   1   2   3   4   5   6   7   8   9   10    11 ...
 *     V3  K0  V2  K0  V1  V3  V2  V1  V0  V0  ones  K1 K1 K2 K2 K3 K3 */
template <int D, int G> struct places {
	using Z = sizes<D, G>;
	uint32_t base;

	__device__ __forceinline__ uint32_t place(int i) const
	{
		return base + i * PANEL_BYTES;
	}
	/* From a panel of V of a stage to the next, and to the ones. */
	__device__ __forceinline__ uint32_t v_step(int stage) const
	{
		return (D == 64 ? stage + 1 : stage ? stage + 2 : 1) * PANEL_BYTES;
	}
	__device__ __forceinline__ uint32_t v(int stage, int panel) const
	{
		return place(Z::ones) - (Z::n_panel - panel) * v_step(stage);
	}
	__device__ __forceinline__ uint32_t k(int stage, int panel) const
	{
		if (D == 64)
			return place(Z::ones + 1 + stage);
		return place(stage ? Z::ones - 1 + 2 * stage + panel : 1 + 2 * panel);
	}
	__device__ __forceinline__ uint32_t q(int i) const
	{
		return place(Z::n_place) + i * Z::q_bytes;
	}
	__device__ __forceinline__ uint32_t bar(int i) const
	{
		return q(2) + i * 8;
	}
	__device__ __forceinline__ uint32_t k_full(int i) const
	{
		return bar(i);
	}
	__device__ __forceinline__ uint32_t v_full(int i) const
	{
		return bar(Z::n_stage + i);
	}
	__device__ __forceinline__ uint32_t k_empty(int i) const
	{
		return bar(2 * Z::n_stage + i);
	}
	__device__ __forceinline__ uint32_t v_empty(int i) const
	{
		return bar(3 * Z::n_stage + i);
	}
	__device__ __forceinline__ uint32_t q_full(int i) const
	{
		return bar(4 * Z::n_stage + i);
	}
	__device__ __forceinline__ uint32_t q_empty(int i) const
	{
		return bar(4 * Z::n_stage + 2 + i);
	}
};

/* What is done for an item; a head below 0 ends the work. */
struct item {
	nsv_cuda_seq seq;
	int32_t kv_head, row0;
	tile_range tiles, keys; /* that any row sees */
};

/* Heads of a sequence whose K and V the second-level cache holds beside other things. */
__device__ __forceinline__ int32_t heads_together(const prefill_args &args, const nsv_cuda_seq &seq)
{
	int64_t bytes = (int64_t)(seq.n_past + seq.n_query) * args.head_dim * 4;
	return max((int32_t)min(CACHE_BYTES / bytes, (int64_t)args.shape.n_kv_head), 1);
}

/* Item i of a sequence: heads in sets, of a set the last row tiles first. */
__device__ __forceinline__ int32_t item_at(
	const prefill_args &args, const nsv_cuda_seq &seq, int32_t i, int32_t *ret_head)
{
	int32_t n_tile = n_item(args.shape, seq) / args.shape.n_kv_head;
	int32_t together = heads_together(args, seq), head0 = i / (n_tile * together) * together;
	int32_t n_head = min(together, args.shape.n_kv_head - head0);
	i -= head0 * n_tile;
	*ret_head = head0 + i % n_head;
	return (n_tile - 1 - i / n_head) * args.shape.n_kv_head + *ret_head;
}

__device__ item make_item(const prefill_args &args, int64_t ticket)
{
	item it;
	int32_t s = find_seq(args.ends, args.n_seq, ticket);
	it.seq = args.seqs[s];
	int32_t i = (int32_t)(ticket - (s ? args.ends[s - 1] : 0));
	int32_t at = item_at(args, it.seq, i, &it.kv_head);
	tile_range rows = item_rows(args.shape, it.seq, at);
	it.row0 = at / args.shape.n_kv_head * args.shape.row_tile;
	it.tiles = item_tiles(args.shape, it.seq, at);
	it.keys = {window_begin(args.shape, it.seq.n_past + rows.begin),
		it.seq.n_past + rows.end};
	return it;
}

/* ---- Scheduler */

/* The last of the launch to find no item leaves the counter as it was. */
__device__ int64_t take_ticket(const prefill_args &args, int64_t n_item, int lane)
{
	uint32_t ticket = 0;
	if (lane == 0) {
		ticket = atomicAdd(args.ticket, 1);
		if (ticket == n_item + gridDim.x - 1)
			*args.ticket = 0;
	}
	return __shfl_sync(~0u, ticket, 0);
}

template <int D, int G>
__device__ void schedule(const prefill_args &args, const places<D, G> &smem, item *items)
{
	int lane = threadIdx.x % 32;
	int64_t n_item = args.ends[args.n_seq - 1];
	for (ring_at at;; at.next(2)) {
		int64_t ticket = take_ticket(args, n_item, lane);
		bool is_end = ticket >= n_item;
		item it = {};
		if (is_end)
			it.kv_head = -1;
		else
			it = make_item(args, ticket);
		mbar_wait(smem.q_empty(at.i), at.round ^ 1);
		if (lane == 0)
			items[at.i] = it;
		if (!is_end)
			load_q<D, sizes<D, G>::rows>(args, it.seq, it.row0,
				it.kv_head * args.shape.group, smem.q(at.i), lane);
		cp_async_commit();
		cp_async_wait<0>();
		async_proxy_fence();
		mbar_arrive(smem.q_full(at.i));
		if (is_end)
			break;
	}
}

/* ---- Loader */

template <int D, int G>
__device__ __forceinline__ void load_tile(const CUtensorMap *map, uint32_t dst, uint32_t full,
	uint32_t empty, uint32_t round, const box &b, uint32_t n_byte, int32_t head, int lane)
{
	mbar_wait(empty, round ^ 1);
	if (lane == 0)
		mbar_arrive_expect(full, n_byte);
	__syncwarp();
	if (b.used)
		tma_load_4d(dst + b.row * ROW_BYTES, map, full, b.panel * PANEL_DIMS, b.tok, head,
			b.block);
}

template <int D, int G>
__device__ void load(const prefill_args &args, const places<D, G> &smem, const item *items)
{
	int lane = threadIdx.x % 32;
	ring_at at;
	for (ring_at q;; q.next(2)) {
		mbar_wait(smem.q_full(q.i), q.round);
		const item it = items[q.i];
		__syncwarp();
		if (lane == 0)
			mbar_arrive(smem.q_empty(q.i));
		if (it.kv_head < 0)
			break;
		box b = make_box<D>(args, it.seq.table, it.keys, it.tiles.begin, lane);
		for (int32_t t = it.tiles.begin; t < it.tiles.end; t++) {
			uint32_t n_byte = box_bytes(args, b);
			load_tile<D, G>(&args.k, smem.k(at.i, b.panel), smem.k_full(at.i),
				smem.k_empty(at.i), at.round, b, n_byte, it.kv_head, lane);
			load_tile<D, G>(&args.v, smem.v(at.i, b.panel), smem.v_full(at.i),
				smem.v_empty(at.i), at.round, b, n_byte, it.kv_head, lane);
			b = make_box<D>(args, it.seq.table, it.keys, t + 1, lane);
			at.next(sizes<D, G>::n_stage);
		}
	}
}

/* ---- Consumers */

/* Of a thread: rows lane/4 and lane/4 + 8 of its warp's 16. */
template <typename E, int D, int G> struct prefill_consumer {
	using Z = sizes<D, G>;
	const prefill_args &args;
	const places<D, G> &smem;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
	int group = __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0); /* the same in a warp */
	ring_at ring; /* the stage whose V comes next */
	uint32_t q_buf;
	item it;
	tile_range seen[2], inner; /* keys of the rows; tiles of which the warp's rows see all */
	uint32_t q_at; /* the warpgroup's rows of q */
	bool is_new;   /* the chunk has nothing yet: o is to be set */
	int32_t stop;  /* the tile that the chunk ends before */
	float o[Z::n_acc], total[Z::n_acc], s[32], m[2], m_total[2];
	uint32_t p[16];

	__device__ prefill_consumer(const prefill_args &a, const places<D, G> &sm)
	    : args(a), smem(sm)
	{
	}

	__device__ __forceinline__ int32_t warp_row0() const
	{
		return it.row0 + group * GROUP_ROWS + warp * 16;
	}

	__device__ __forceinline__ tile_range row_keys(int32_t row) const
	{
		int32_t pos = it.seq.n_past + row / args.shape.group;
		return {window_begin(args.shape, pos), pos + 1};
	}

	__device__ __forceinline__ void begin_item(const item &i, uint32_t buf)
	{
		it = i;
		q_buf = buf;
		q_at = wgmma_at(buf + group * (GROUP_ROWS * ROW_BYTES), 16);
		seen[0] = row_keys(warp_row0() + (lane >> 2));
		seen[1] = row_keys(warp_row0() + (lane >> 2) + 8);
		tile_range first = row_keys(warp_row0()), last = row_keys(warp_row0() + 15);
		inner = {(last.begin + TILE - 1) / TILE, first.end / TILE};
#pragma unroll
		for (int i = 0; i < Z::n_acc; i++)
			total[i] = 0.0f;
		m_total[0] = m_total[1] = M_NONE;
		m[0] = m[1] = M_NONE;
		is_new = true;
		stop = min(chunk_end(it.tiles.begin), it.tiles.end);
	}

	/* S of the keys of a stage: begun. */
	__device__ __forceinline__ void begin_scores(int stage)
	{
		uint32_t k[2] = {wgmma_at(smem.k(stage, 0), 16), wgmma_at(smem.k(stage, 1), 16)};
#pragma unroll
		for (int ks = 0; ks < D / 16; ks++)
			wgmma<E>::qk(s,
				wgmma_move(q_at, ks / 4 * Z::q_panel_bytes + ks % 4 * 32),
				wgmma_move(k[ks / 4], ks % 4 * 32), ks > 0);
		wgmma_commit();
	}

	/* O += P V of the keys of a stage, and its sums: begun. */
	__device__ __forceinline__ void begin_products(int stage)
	{
		uint32_t v = wgmma_at(smem.v(stage, 0), smem.v_step(stage));
#pragma unroll
		for (int ks = 0; ks < TILE / 16; ks++)
			wgmma<E>::pv(o, p + ks * 4, wgmma_move(v, ks * 16 * ROW_BYTES),
				ks > 0 || !is_new);
		wgmma_commit();
	}

	__device__ __forceinline__ void prepare_scores()
	{
		if (is_likely(!args.score.is_prepared()))
			return;
#pragma unroll
		for (int i = 0; i < 32; i++)
			s[i] = args.score.prepared(s[i]);
	}

	__device__ __forceinline__ void mask(int32_t tile)
	{
		if (is_likely(tile >= inner.begin && tile < inner.end))
			return;
		int32_t key0 = tile * TILE + (lane & 3) * 2;
#pragma unroll
		for (int i = 0; i < 32; i++) {
			int32_t key = key0 + i / 4 * 8 + i % 2;
			const tile_range &row = seen[i / 2 % 2];
			s[i] = key >= row.begin && key < row.end ? s[i] : -INFINITY;
		}
	}

	__device__ __forceinline__ float row_maximum(int half) const
	{
		float x = fmaxf(s[half * 2], s[half * 2 + 1]);
#pragma unroll
		for (int i = 4; i < 32; i += 4)
			x = fmaxf(x, fmaxf(s[i + half * 2], s[i + half * 2 + 1]));
		x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
		return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
	}

	/* S becomes weights, m the new references; f brings what the chunk has to them. */
	__device__ __forceinline__ void weights(int32_t tile, float f[2])
	{
		prepare_scores();
		mask(tile);
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float next = next_ref(
				m[half], __fmul_rn(row_maximum(half), args.score.factor));
			f[half] = exp2_fast(__fsub_rn(m[half], next));
			m[half] = next;
#pragma unroll
			for (int i = 0; i < 32; i++)
				if (i / 2 % 2 == half)
					s[i] = args.score.weight(s[i], next);
		}
	}

	/* Rounded, as the first operand of P V. */
	__device__ __forceinline__ void pack_weights()
	{
#pragma unroll
		for (int i = 0; i < 16; i++)
			p[i] = elem<E>::pack(s[i * 2], s[i * 2 + 1]);
	}

	__device__ __forceinline__ void scale_chunk(const float f[2])
	{
		if (!__any_sync(~0u, f[0] != 1.0f || f[1] != 1.0f))
			return;
#pragma unroll
		for (int i = 0; i < Z::n_acc; i++)
			o[i] = __fmul_rn(o[i], f[i / 2 % 2]);
	}

	/* The chunk, whose references are m_chunk, into the total: fold_in() in two steps, since
	 * the first seldom changes anything. */
	__device__ __forceinline__ void fold_chunk(const float m_chunk[2])
	{
		fold_factors f[2] = {fold(m_total[0], m_chunk[0]), fold(m_total[1], m_chunk[1])};
		if (__any_sync(~0u, f[0].a != 1.0f || f[1].a != 1.0f)) {
#pragma unroll
			for (int i = 0; i < Z::n_acc; i++)
				total[i] = __fmul_rn(total[i], f[i / 2 % 2].a);
		}
#pragma unroll
		for (int i = 0; i < Z::n_acc; i++)
			total[i] = __fmaf_rn(o[i], f[i / 2 % 2].b, total[i]);
		m_total[0] = f[0].m;
		m_total[1] = f[1].m;
	}

	/* Keys of V that no row sees may hold anything: where there are any, they become zeros. */
	__device__ __forceinline__ void clear_unseen(int32_t tile)
	{
		int32_t begin = it.keys.begin - tile * TILE, end = it.keys.end - tile * TILE;
		if (is_likely(begin <= 0 && end >= TILE))
			return;
		mbar_wait(smem.v_full(ring.i), ring.round);
		for (int i = threadIdx.x; i < Z::tile_bytes / 16; i += Z::n_consumer) {
			int32_t row = i / 8 % TILE, panel = i / 8 / TILE;
			if (row < begin || row >= end)
				st_shared(smem.v(ring.i, panel) + i % (PANEL_BYTES / 16) * 16,
					make_float4(0.0f, 0.0f, 0.0f, 0.0f));
		}
		async_proxy_fence();
		named_barrier(CLEARED, Z::n_consumer);
	}

	__device__ __forceinline__ void release(uint32_t empty)
	{
		__syncwarp();
		if (lane == 0)
			mbar_arrive(empty);
	}

	/* Warpgroups issue their products in turn. */
	__device__ __forceinline__ void wait_turn()
	{
		named_barrier(TURN + group, 2 * GROUP_THREADS);
	}

	__device__ __forceinline__ void pass_turn()
	{
		named_barrier_arrive(TURN + (group + 1) % G, 2 * GROUP_THREADS);
	}

	/* The item's first scores: nothing else is under way. */
	__device__ __forceinline__ void first_scores(int32_t tile)
	{
		float f[2];
		mbar_wait(smem.k_full(ring.i), ring.round);
		wgmma_fence();
		begin_scores(ring.i);
		wgmma_wait<0>();
		pin(s);
		release(smem.k_empty(ring.i));
		weights(tile, f);
		pack_weights();
	}

	/* O of a tile beside S of the next. */
	__device__ __forceinline__ void step(int32_t tile)
	{
		ring_at next = ring;
		float f[2], m_chunk[2] = {m[0], m[1]};
		bool ends = tile + 1 == stop;
		next.next(Z::n_stage);
		clear_unseen(tile);
		mbar_wait(smem.k_full(next.i), next.round);
		wait_turn();
		pin(o);
		wgmma_fence();
		begin_scores(next.i);
		mbar_wait(smem.v_full(ring.i), ring.round);
		wgmma_fence();
		begin_products(ring.i);
		pass_turn();
		if (ends)
			m[0] = m[1] = M_NONE;
		wgmma_wait<1>();
		pin(s);
		release(smem.k_empty(next.i));
		/* Always; a block of its own, or the assembler waits before it makes them. */
		if (args.head_dim > 0)
			weights(tile + 1, f);
		wgmma_wait<0>();
		pin(o);
		release(smem.v_empty(ring.i));
		if (ends) {
			fold_chunk(m_chunk);
			stop = min(chunk_end(tile + 1), it.tiles.end);
		} else {
			scale_chunk(f);
		}
		is_new = ends;
		pack_weights();
		ring = next;
	}

	__device__ __forceinline__ void last_products(int32_t tile)
	{
		clear_unseen(tile);
		mbar_wait(smem.v_full(ring.i), ring.round);
		pin(o);
		wgmma_fence();
		begin_products(ring.i);
		wgmma_wait<0>();
		pin(o);
		release(smem.v_empty(ring.i));
		ring.next(Z::n_stage);
		fold_chunk(m);
	}

	__device__ __forceinline__ uint32_t staged(int32_t row, int32_t piece) const
	{
		return q_buf + piece / 8 * Z::q_panel_bytes +
		       swizzle(group * GROUP_ROWS + warp * 16 + row, piece % 8);
	}

	/* The warp's rows go out through its part of q, 16 bytes a lane. */
	__device__ __forceinline__ void put_rows()
	{
		named_barrier(STAGED + group, GROUP_THREADS);
#pragma unroll
		for (int i = 0; i < D / 2; i += 2) {
			int32_t half = i / 2 % 2, row = half * 8 + (lane >> 2);
			float l = total[D / 2 + half * 2];
			uint32_t w = elem<E>::pack(
				normalise(total[i], l), normalise(total[i + 1], l));
			st_shared(staged(row, i / 4) + (lane & 3) * 4, __uint_as_float(w));
		}
		__syncwarp();
		constexpr int pieces = D / 8, step = 32 / pieces;
		int32_t in = lane / pieces, piece = lane % pieces;
		int32_t head0 = it.kv_head * args.shape.group;
		if (piece * 8 >= args.head_dim)
			return;
		row_walk row(warp_row0() + in, step, args.shape.group);
#pragma unroll 1
		for (; in < 16 && row.tok < it.seq.n_query; in += step, row.next())
			*reinterpret_cast<float4 *>(
				static_cast<char *>(args.out) +
				(row.at(args, it.seq, head0) + piece * 8) * 2) =
				ld_shared4(staged(in, piece));
	}

	__device__ __forceinline__ void run_item()
	{
		int32_t t = it.tiles.begin;
		first_scores(t);
		for (; t + 1 < it.tiles.end; t++)
			step(t);
		last_products(t);
		put_rows();
	}
};

template <typename E, int D, int G>
__device__ void consume(const prefill_args &args, const places<D, G> &smem, const item *items)
{
	prefill_consumer<E, D, G> c(args, smem);
	if (c.group == G - 1)
		c.pass_turn();
	for (ring_at q;; q.next(2)) {
		mbar_wait(smem.q_full(q.i), q.round);
		if (items[q.i].kv_head < 0)
			break;
		c.begin_item(items[q.i], smem.q(q.i));
		c.run_item();
		c.release(smem.q_empty(q.i));
	}
	if (c.group == 0)
		c.wait_turn();
}

template <typename E, int D, int G>
__global__ void __launch_bounds__((sizes<D, G>::n_thread), 1)
	prefill_kernel(const __grid_constant__ prefill_args args)
{
	using Z = sizes<D, G>;
	extern __shared__ char raw[];
	__shared__ item items[2];
	places<D, G> smem = {(smem_addr(raw) + 1023) & ~1023u};
	int warp = threadIdx.x / 32;
	for (int i = threadIdx.x; i < PANEL_BYTES / 4; i += Z::n_thread)
		st_shared(smem.place(Z::ones) + i * 4, __uint_as_float(elem<E>::ones));
	async_proxy_fence();
	if (threadIdx.x == 0) {
		tma_prefetch_map(&args.k);
		tma_prefetch_map(&args.v);
		for (int i = 0; i < Z::n_stage; i++) {
			mbar_init(smem.k_full(i), 1);
			mbar_init(smem.v_full(i), 1);
			mbar_init(smem.k_empty(i), Z::n_warp);
			mbar_init(smem.v_empty(i), Z::n_warp);
		}
		for (int i = 0; i < 2; i++) {
			mbar_init(smem.q_full(i), 32);
			mbar_init(smem.q_empty(i), Z::n_warp + 1);
		}
		mbar_init_fence();
	}
	__syncthreads();
	grid_wait();
	if (warp >= Z::n_warp) {
		set_fewer_regs<Z::loader_regs>();
		if (warp == Z::n_warp)
			schedule<D, G>(args, smem, items);
		else if (warp == Z::n_warp + 1)
			load<D, G>(args, smem, items);
	} else {
		set_more_regs<Z::consumer_regs>();
		consume<E, D, G>(args, smem, items);
	}
}

/* ---- Host */

using kernel_fn = void (*)(const prefill_args);

struct instance {
	int32_t dim_pad, rows, n_thread, smem_bytes;
	kernel_fn fn[2]; /* bf16, fp16 */
};

template <int D, int G> constexpr instance make_instance()
{
	using Z = sizes<D, G>;
	return {D, Z::rows, Z::n_thread, Z::smem_bytes,
		{prefill_kernel<__nv_bfloat16, D, G>, prefill_kernel<__half, D, G>}};
}

static const instance instances[] = {make_instance<64, 3>(), make_instance<128, 2>()};

static const instance *find_instance(uint32_t head_dim)
{
	for (const instance &i : instances)
		if (head_dim <= (uint32_t)i.dim_pad)
			return &i;
	return nullptr;
}

int32_t prefill_row_tile(uint32_t head_dim)
{
	const instance *i = find_instance(head_dim);
	return i ? i->rows : 0;
}

int prefill_load()
{
	return load_instances(instances);
}

int prefill_launch(bool f16, const prefill_args &args, int n_sm, cudaStream_t stream)
{
	const instance *i = find_instance(args.head_dim);
	if (!i)
		return -ENOTSUP;
	return launch_kernel(i->fn[f16], args, {n_sm, i->n_thread, i->smem_bytes, true}, stream);
}

} // namespace nsv
