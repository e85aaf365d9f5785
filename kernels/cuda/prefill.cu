/* Paged attention for many query rows a sequence: the products are the limit.
 *
 * An item is a tile of rows (query row, head of the group) x the keys of one KV head; items are
 * handed out by a counter, longest first among the heads whose keys the cache holds together. A
 * block of threads:
 *
 *     scheduler warp   next item -> one of two places; a warpgroup's q, once its scores of the
 *                      item before are made
 *     loaders of K, V  block table -> boxes -> ring of stages (128 keys each, swizzled)
 *     2 warpgroups     64 rows each: S = Q K^T | P = 2^(S f - m), in registers | O += P V
 *
 *     tensor cores     S1 O0 | S1' O0' | S2 O1 | ...      a warpgroup's products while the other
 *     the rest               | P1      | P1'   | ...      makes weights; they take turns
 *
 * V has eight dims more than it has, all ones: their O is the sum of the weights. The panel of ones
 * is one for all stages; a product's panels are equally far apart, so V's panels of 64 keys lie as
 * far before it as they lie from each other.
 *
 * S, P and O fill the registers at 128 dims: most of what chunks are folded into lies in shared
 * memory, each warp's part its own. When the item is over, its rows go out through it.
 *
 * Chunks are folded in order (order.cuh): the same bits as decode, which has the same steps, k16
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

constexpr int GROUP_THREADS = 128; /* a warpgroup */
constexpr int GROUP_ROWS = 64;	   /* of an item */
constexpr int GROUPS = 2;
constexpr int N_CONSUMER = GROUPS * GROUP_THREADS;
constexpr int N_THREAD = N_CONSUMER + GROUP_THREADS;
constexpr int N_WARP = N_CONSUMER / 32;
constexpr int ITEM_ROWS = GROUPS * GROUP_ROWS;
constexpr int N_LOADER = 2;
constexpr int64_t CACHE_BYTES = 36 << 20;   /* of the second-level cache, for K and V */
constexpr uint32_t TURN = 1;		    /* named barriers: a warpgroup's turn, one each */
constexpr uint32_t CLEARED = TURN + GROUPS; /* all consumers */
/* A multiprocessor's 64 K registers: what loading does without, consumers get. */
constexpr int LOADER_REGS = 40, CONSUMER_REGS = 232;

/* Sizes of an instantiation: D dims (padded). */
template <int D> struct sizes {
	static constexpr int n_panel = D / PANEL_DIMS;
	static constexpr int n_stage = D == 64 ? 3 : 2;
	static constexpr int v_places = 2 * n_stage * n_panel;
	static constexpr int ones = D == 64 ? v_places : 10; /* the place of the ones */
	static constexpr int n_acc = D / 2 + 4;		     /* O and the sums, in a thread */
	static constexpr int n_far = D == 64 ? 0 : 14; /* fours of the total in shared memory */
	static constexpr int n_near = D / 2 - 4 * n_far;
	static constexpr int row_bytes = D * 2; /* of a row on its way out */
	/* A warp's: its total, then its rows. */
	static constexpr int own_bytes = n_far ? n_far * 32 * 16 : 16 * row_bytes;
	/* Places of a panel of 64 rows: V, ones, q of the second group, K. */
	static constexpr int q1 = ones + (D == 64 ? 2 : 1);
	static constexpr int k0 = q1 + n_panel;
	static constexpr int n_place = k0 + 2 * n_stage * n_panel;
	/* Barriers and alignment with them. */
	static constexpr int smem_bytes = n_place * PANEL_BYTES + N_WARP * own_bytes + 1024 + 1024;
};

/* Shared memory, by offset: panels, what warps own, barriers. The places of panels, for D = 128:
 *
 *     0   1   2   3   4   5   6   7   8   9   10    11  12  13 ...
 *     V3  Q0  V2  Q0  V1  V3  V2  V1  V0  V0  ones  Q1  Q1  K0 K0 K0 K0 K1 K1 K1 K1
 *
 * V0 and V1 are the halves of V's first stage; a panel of K has two places. */
template <int D> struct places {
	using Z = sizes<D>;
	uint32_t base;

	__device__ __forceinline__ uint32_t place(int i) const
	{
		return base + i * PANEL_BYTES;
	}
	/* From a panel of a half stage of V to the next, and to the ones. */
	__device__ __forceinline__ uint32_t v_step(int half) const
	{
		return (D == 64 ? half + 1 : half ? half + 2 : 1) * PANEL_BYTES;
	}
	__device__ __forceinline__ uint32_t v(int half, int panel) const
	{
		return place(Z::ones) - (Z::n_panel - panel) * v_step(half);
	}
	__device__ __forceinline__ uint32_t k(int stage, int panel) const
	{
		return place(Z::k0 + (stage * Z::n_panel + panel) * 2);
	}
	__device__ __forceinline__ uint32_t q_step(int group) const
	{
		return (D == 64 || group ? 1 : 2) * PANEL_BYTES;
	}
	__device__ __forceinline__ uint32_t q(int group) const
	{
		return place(group ? Z::q1 : D == 64 ? Z::ones + 1 : 1);
	}
	__device__ __forceinline__ uint32_t own(int warp) const
	{
		return place(Z::n_place) + warp * Z::own_bytes;
	}
	__device__ __forceinline__ uint32_t bar(int i) const
	{
		return own(N_WARP) + i * 8;
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
	__device__ __forceinline__ uint32_t item_full(int i) const
	{
		return bar(4 * Z::n_stage + i);
	}
	__device__ __forceinline__ uint32_t item_empty(int i) const
	{
		return bar(4 * Z::n_stage + 2 + i);
	}
	__device__ __forceinline__ uint32_t q_full(int group) const
	{
		return bar(4 * Z::n_stage + 4 + group);
	}
	__device__ __forceinline__ uint32_t q_empty(int group) const
	{
		return bar(4 * Z::n_stage + 4 + GROUPS + group);
	}
};

/* What is done for an item; a head below 0 ends the work. */
struct item {
	nsv_cuda_seq seq;
	int32_t kv_head, row0;
	tile_range steps; /* of 128 keys */
	tile_range keys;  /* that any row sees */
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
	tile_range tiles = item_tiles(args.shape, it.seq, at);
	it.row0 = at / args.shape.n_kv_head * args.shape.row_tile;
	it.steps = {tiles.begin / STEP_TILES, step_end(tiles.end - 1) / STEP_TILES};
	it.keys = {window_begin(args.shape, it.seq.n_past + rows.begin), it.seq.n_past + rows.end};
	return it;
}

/* The end of the chunk that a step is in. */
__device__ __forceinline__ int32_t chunk_stop(int32_t step)
{
	return chunk_end(step * STEP_TILES) / STEP_TILES;
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

/* A warpgroup's rows of q, when it has done with those before: there when the barrier says so. */
template <int D>
__device__ void send_q(
	const prefill_args &args, const places<D> &smem, const item &it, int group, uint32_t round)
{
	mbar_wait(smem.q_empty(group), round ^ 1);
	load_q<D, GROUP_ROWS>(args, it.seq, it.row0 + group * GROUP_ROWS,
		it.kv_head * args.shape.group, smem.q(group), smem.q_step(group), threadIdx.x % 32);
	cp_async_commit();
	cp_async_wait<0>();
	async_proxy_fence();
	mbar_arrive(smem.q_full(group));
}

template <int D>
__device__ void schedule(const prefill_args &args, const places<D> &smem, item *items)
{
	int lane = threadIdx.x % 32;
	int64_t n_item = args.ends[args.n_seq - 1];
	uint32_t round = 0;
	for (ring_at at;; at.next(2), round ^= 1) {
		int64_t ticket = take_ticket(args, n_item, lane);
		item it = {};
		if (ticket < n_item)
			it = make_item(args, ticket);
		else
			it.kv_head = -1;
		mbar_wait(smem.item_empty(at.i), at.round ^ 1);
		if (lane == 0) {
			items[at.i] = it;
			mbar_arrive(smem.item_full(at.i));
		}
		if (it.kv_head < 0)
			break;
#pragma unroll 1
		for (int g = 0; g < GROUPS; g++)
			send_q<D>(args, smem, it, g, round);
	}
}

/* ---- Loaders */

/* Calls body(item) for each in turn, in a whole warp. */
template <int D, typename F>
__device__ __forceinline__ void each_item(const places<D> &smem, const item *items, F body)
{
	for (ring_at in;; in.next(2)) {
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

/* K or V, step by step. */
template <int D, bool IS_V>
__device__ void load_keys(const prefill_args &args, const places<D> &smem, const item *items)
{
	const CUtensorMap *map = IS_V ? &args.v : &args.k;
	int lane = threadIdx.x % 32;
	ring_at at;
	each_item<D>(smem, items, [&](const item &it) {
		box b = make_box<sizes<D>::n_panel, STEP_KEYS>(
			args, it.seq.table, it.keys, it.steps.begin * STEP_KEYS, lane);
		for (int32_t t = it.steps.begin; t < it.steps.end; t++) {
			uint32_t full = IS_V ? smem.v_full(at.i) : smem.k_full(at.i);
			uint32_t dst = IS_V ? smem.v(at.i * STEP_TILES + b.row / TILE, b.panel) +
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
			b = make_box<sizes<D>::n_panel, STEP_KEYS>(
				args, it.seq.table, it.keys, (t + 1) * STEP_KEYS, lane);
			at.next(sizes<D>::n_stage);
		}
	});
}

/* ---- Consumers */

/* Of a thread: rows lane/4 and lane/4 + 8 of its warp's 16. */
template <typename E, int D> struct prefill_consumer {
	using Z = sizes<D>;
	const prefill_args &args;
	const places<D> &smem;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
	int group = __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0); /* the same in a warp */
	ring_at ring; /* the stage whose V comes next */
	uint32_t q_round = 0;
	item it;
	tile_range seen[2], inner; /* keys of the rows; steps of which the warp's rows see all */
	bool is_new;		   /* the chunk has nothing yet: o is to be set */
	int32_t stop;		   /* the step that the chunk ends before */
	float o[Z::n_acc], s[64], m[2];
	float near[Z::n_near], sums[2], m_total[2]; /* the total, but for what is far */
	uint32_t p[32];

	__device__ prefill_consumer(const prefill_args &a, const places<D> &sm) : args(a), smem(sm)
	{
	}

	__device__ __forceinline__ int32_t warp_row0() const
	{
		return it.row0 + group * GROUP_ROWS + warp * 16;
	}

	__device__ __forceinline__ uint32_t own() const
	{
		return smem.own(group * 4 + warp);
	}

	/* Four values of the total of this thread. */
	__device__ __forceinline__ uint32_t far(int i) const
	{
		return own() + i * 512 + lane * 16;
	}

	__device__ __forceinline__ tile_range row_keys(int32_t row) const
	{
		int32_t pos = it.seq.n_past + row / args.shape.group;
		return {window_begin(args.shape, pos), pos + 1};
	}

	__device__ __forceinline__ void begin_item(const item &i)
	{
		it = i;
		seen[0] = row_keys(warp_row0() + (lane >> 2));
		seen[1] = row_keys(warp_row0() + (lane >> 2) + 8);
		tile_range first = row_keys(warp_row0()), last = row_keys(warp_row0() + 15);
		inner = {(last.begin + STEP_KEYS - 1) / STEP_KEYS, first.end / STEP_KEYS};
#pragma unroll
		for (int i = 0; i < Z::n_far; i++)
			st_shared(far(i), make_float4(0.0f, 0.0f, 0.0f, 0.0f));
#pragma unroll
		for (int i = 0; i < Z::n_near; i++)
			near[i] = 0.0f;
		sums[0] = sums[1] = 0.0f;
		m_total[0] = m_total[1] = M_NONE;
		m[0] = m[1] = M_NONE;
		is_new = true;
		stop = min(chunk_stop(it.steps.begin), it.steps.end);
	}

	/* S of the keys of a stage: begun. */
	__device__ __forceinline__ void begin_scores(int stage)
	{
#pragma unroll
		for (int panel = 0; panel < Z::n_panel; panel++) {
			uint32_t q = wgmma_at(smem.q(group) + panel * smem.q_step(group), 16);
			uint32_t k = wgmma_at(smem.k(stage, panel), 16);
#pragma unroll
			for (int ks = 0; ks < PANEL_DIMS / 16; ks++)
				wgmma<E>::qk(s, wgmma_move(q, ks * 32), wgmma_move(k, ks * 32),
					panel + ks > 0);
		}
		wgmma_commit();
	}

	/* O += P V of the keys of a stage, and its sums: begun. */
	__device__ __forceinline__ void begin_products(int stage)
	{
#pragma unroll
		for (int half = 0; half < STEP_TILES; half++) {
			int at = stage * STEP_TILES + half;
			uint32_t v = wgmma_at(smem.v(at, 0), smem.v_step(at));
#pragma unroll
			for (int ks = 0; ks < TILE / 16; ks++)
				wgmma<E>::pv(o, p + half * 16 + ks * 4,
					wgmma_move(v, ks * 16 * ROW_BYTES),
					half + ks > 0 || !is_new);
		}
		wgmma_commit();
	}

	__device__ __forceinline__ void prepare_scores()
	{
		if (is_likely(!args.score.is_prepared()))
			return;
#pragma unroll
		for (int i = 0; i < 64; i++)
			s[i] = args.score.prepared(s[i]);
	}

	__device__ __forceinline__ void mask(int32_t step)
	{
		if (is_likely(step >= inner.begin && step < inner.end))
			return;
		int32_t key0 = step * STEP_KEYS + (lane & 3) * 2;
#pragma unroll
		for (int i = 0; i < 64; i++) {
			int32_t key = key0 + i / 4 * 8 + i % 2;
			const tile_range &row = seen[i / 2 % 2];
			s[i] = key >= row.begin && key < row.end ? s[i] : -INFINITY;
		}
	}

	__device__ __forceinline__ float thread_maximum(int half) const
	{
		float x[2] = {s[half * 2], s[half * 2 + 1]};
#pragma unroll
		for (int i = 4; i < 64; i += 4) {
			x[0] = fmaxf(x[0], s[i + half * 2]);
			x[1] = fmaxf(x[1], s[i + half * 2 + 1]);
		}
		return fmaxf(x[0], x[1]);
	}

	/* m becomes the references with S among them; f brings what the chunk has to them. */
	__device__ __forceinline__ void references(int32_t step, float f[2])
	{
		prepare_scores();
		mask(step);
		float x[2] = {thread_maximum(0), thread_maximum(1)};
#pragma unroll
		for (int d = 1; d < 4; d *= 2) {
			x[0] = fmaxf(x[0], __shfl_xor_sync(~0u, x[0], d));
			x[1] = fmaxf(x[1], __shfl_xor_sync(~0u, x[1], d));
		}
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float next = next_ref(m[half], __fmul_rn(x[half], args.score.factor));
			f[half] = exp2_fast(__fsub_rn(m[half], next));
			m[half] = next;
		}
	}

	/* S of the first or second 64 keys becomes weights. */
	__device__ __forceinline__ void weights(int half)
	{
#pragma unroll
		for (int i = half * 32; i < half * 32 + 32; i++)
			s[i] = args.score.weight(s[i], m[i / 2 % 2]);
	}

	/* Rounded, as the first operand of P V. */
	__device__ __forceinline__ void pack_weights()
	{
#pragma unroll
		for (int i = 0; i < 32; i++)
			p[i] = elem<E>::pack(s[i * 2], s[i * 2 + 1]);
	}

	__device__ __forceinline__ void scale_chunk(const float f[2])
	{
#pragma unroll
		for (int i = 0; i < Z::n_acc; i++)
			o[i] = __fmul_rn(o[i], f[i / 2 % 2]);
	}

	/* Four values of a chunk into what is far of the total; all reads are under way together. */
	template <bool IS_LAST> __device__ __forceinline__ void fold_far(const fold_factors f[2])
	{
		float4 x[Z::n_far];
#pragma unroll
		for (int i = 0; i < Z::n_far; i++)
			x[i] = ld_shared4(far(i));
#pragma unroll
		for (int i = 0; i < Z::n_far; i++) {
			float *c = o + i * 4;
			x[i] = {fold_in(x[i].x, c[0], f[0]), fold_in(x[i].y, c[1], f[0]),
				fold_in(x[i].z, c[2], f[1]), fold_in(x[i].w, c[3], f[1])};
			if (IS_LAST) {
				c[0] = x[i].x;
				c[1] = x[i].y;
				c[2] = x[i].z;
				c[3] = x[i].w;
			} else {
				st_shared(far(i), x[i]);
			}
		}
	}

	/* The chunk, whose references are m_chunk, into the total; the item's last one leaves the
	 * total where the chunk was. */
	template <bool IS_LAST> __device__ __forceinline__ void fold_chunk(const float m_chunk[2])
	{
		fold_factors f[2] = {fold(m_total[0], m_chunk[0]), fold(m_total[1], m_chunk[1])};
		if constexpr (Z::n_far > 0)
			fold_far<IS_LAST>(f);
#pragma unroll
		for (int i = 0; i < Z::n_near; i++) {
			float &c = o[Z::n_far * 4 + i];
			near[i] = fold_in(near[i], c, f[i / 2 % 2]);
			if (IS_LAST)
				c = near[i];
		}
		sums[0] = fold_in(sums[0], o[D / 2], f[0]);
		sums[1] = fold_in(sums[1], o[D / 2 + 2], f[1]);
		m_total[0] = f[0].m;
		m_total[1] = f[1].m;
	}

	/* Keys of V that no row sees may hold anything: where there are any, they become zeros. */
	__device__ __forceinline__ void clear_unseen(int32_t step)
	{
		int32_t begin = it.keys.begin - step * STEP_KEYS;
		int32_t end = it.keys.end - step * STEP_KEYS;
		if (is_likely(begin <= 0 && end >= STEP_KEYS))
			return;
		mbar_wait(smem.v_full(ring.i), ring.round);
		for (int i = threadIdx.x; i < Z::n_panel * STEP_KEYS * 8; i += N_CONSUMER) {
			int32_t row = i / 8 % STEP_KEYS, panel = i / 8 / STEP_KEYS;
			if (row < begin || row >= end)
				st_shared(smem.v(ring.i * STEP_TILES + row / TILE, panel) +
						  row % TILE * ROW_BYTES + i % 8 * 16,
					make_float4(0.0f, 0.0f, 0.0f, 0.0f));
		}
		async_proxy_fence();
		named_barrier(CLEARED, N_CONSUMER);
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
		named_barrier_arrive(TURN + (group + 1) % GROUPS, 2 * GROUP_THREADS);
	}

	/* S of the stage is there; where it is the item's last, q is done with. */
	__device__ __forceinline__ void end_scores(int stage, bool is_last)
	{
		pin(s);
		release(smem.k_empty(stage));
		if (is_last)
			release(smem.q_empty(group));
	}

	/* The item's first scores: nothing else is under way. */
	__device__ __forceinline__ void first_scores(int32_t step)
	{
		float f[2];
		mbar_wait(smem.q_full(group), q_round);
		q_round ^= 1;
		mbar_wait(smem.k_full(ring.i), ring.round);
		wgmma_fence();
		begin_scores(ring.i);
		wgmma_wait<0>();
		end_scores(ring.i, step + 1 == it.steps.end);
		references(step, f);
		weights(0);
		weights(1);
		pack_weights();
	}

	/* O of a step beside S of the next. */
	__device__ __forceinline__ void middle_step(int32_t step)
	{
		ring_at next = ring;
		float f[2], m_chunk[2] = {m[0], m[1]};
		bool ends = step + 1 == stop;
		next.next(Z::n_stage);
		clear_unseen(step);
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
		end_scores(next.i, step + 2 == it.steps.end);
		/* Always; a block of its own, or the assembler waits before it makes them. */
		if (args.head_dim > 0) {
			references(step + 1, f);
			weights(0);
		}
		wgmma_wait<0>();
		pin(o);
		release(smem.v_empty(ring.i));
		/* The rest of the weights beside what is done with O: other units. */
		if (ends) {
			fold_chunk<false>(m_chunk);
			stop = min(chunk_stop(step + 1), it.steps.end);
			weights(1);
		} else {
			scale_chunk(f);
			weights(1);
		}
		is_new = ends;
		pack_weights();
		ring = next;
	}

	__device__ __forceinline__ void last_products(int32_t step)
	{
		clear_unseen(step);
		mbar_wait(smem.v_full(ring.i), ring.round);
		pin(o);
		wgmma_fence();
		begin_products(ring.i);
		wgmma_wait<0>();
		pin(o);
		release(smem.v_empty(ring.i));
		ring.next(Z::n_stage);
		fold_chunk<true>(m);
	}

	/* A piece of a row of the warp's, on its way out. */
	__device__ __forceinline__ uint32_t staged(int32_t row, int32_t piece) const
	{
		return own() + row * Z::row_bytes + ((piece ^ (row & 7)) << 4);
	}

	/* The warp's rows go out through what it owns, 16 bytes a lane. */
	__device__ __forceinline__ void put_rows()
	{
		__syncwarp();
#pragma unroll
		for (int i = 0; i < D / 2; i += 2) {
			int32_t half = i / 2 % 2, row = half * 8 + (lane >> 2);
			uint32_t w = elem<E>::pack(
				normalise(o[i], sums[half]), normalise(o[i + 1], sums[half]));
			st_shared(staged(row, i / 4) + (lane & 3) * 4, __uint_as_float(w));
		}
		__syncwarp();
		constexpr int pieces = D / 8, step = 32 / pieces;
		int32_t in = lane / pieces, piece = lane % pieces;
		int32_t head0 = it.kv_head * args.shape.group;
		row_walk row(args, it.seq, head0, warp_row0() + in, step);
#pragma unroll 2
		for (int i = 0; i < 16 / step; i++, in += step, row.next())
			if (row.tok < it.seq.n_query && piece * 8 < args.head_dim)
				*reinterpret_cast<float4 *>(
					static_cast<char *>(args.out) + (row.at + piece * 8) * 2) =
					ld_shared4(staged(in, piece));
		__syncwarp();
	}

	__device__ __forceinline__ void run_item()
	{
		int32_t t = it.steps.begin;
		first_scores(t);
		for (; t + 1 < it.steps.end; t++)
			middle_step(t);
		last_products(t);
		put_rows();
	}
};

template <typename E, int D>
__device__ void consume(const prefill_args &args, const places<D> &smem, const item *items)
{
	prefill_consumer<E, D> c(args, smem);
	if (c.group == GROUPS - 1)
		c.pass_turn();
	for (ring_at in;; in.next(2)) {
		mbar_wait(smem.item_full(in.i), in.round);
		const item it = items[in.i];
		c.release(smem.item_empty(in.i));
		if (it.kv_head < 0)
			break;
		c.begin_item(it);
		c.run_item();
	}
	if (c.group == 0)
		c.wait_turn();
}

template <int D> __device__ void init_barriers(const places<D> &smem)
{
	for (int i = 0; i < sizes<D>::n_stage; i++) {
		mbar_init(smem.k_full(i), 1);
		mbar_init(smem.v_full(i), 1);
		mbar_init(smem.k_empty(i), N_WARP);
		mbar_init(smem.v_empty(i), N_WARP);
	}
	for (int i = 0; i < 2; i++) {
		mbar_init(smem.item_full(i), 1);
		mbar_init(smem.item_empty(i), N_WARP + N_LOADER);
	}
	for (int g = 0; g < GROUPS; g++) {
		mbar_init(smem.q_full(g), 32);
		mbar_init(smem.q_empty(g), N_WARP / GROUPS);
	}
	mbar_init_fence();
}

template <typename E, int D>
__global__ void __launch_bounds__(N_THREAD, 1)
	prefill_kernel(const __grid_constant__ prefill_args args)
{
	extern __shared__ char raw[];
	__shared__ item items[2];
	places<D> smem = {(smem_addr(raw) + 1023) & ~1023u};
	int warp = threadIdx.x / 32;
	for (int i = threadIdx.x; i < PANEL_BYTES / 4; i += N_THREAD)
		st_shared(smem.place(sizes<D>::ones) + i * 4, __uint_as_float(elem<E>::ones));
	async_proxy_fence();
	if (threadIdx.x == 0) {
		tma_prefetch_map(&args.k);
		tma_prefetch_map(&args.v);
		init_barriers(smem);
	}
	__syncthreads();
	grid_wait();
	if (warp >= N_WARP) {
		set_fewer_regs<LOADER_REGS>();
		if (warp == N_WARP)
			schedule<D>(args, smem, items);
		else if (warp == N_WARP + 1)
			load_keys<D, false>(args, smem, items);
		else if (warp == N_WARP + 2)
			load_keys<D, true>(args, smem, items);
	} else {
		set_more_regs<CONSUMER_REGS>();
		consume<E, D>(args, smem, items);
	}
}

/* ---- Host */

using kernel_fn = void (*)(const prefill_args);

struct instance {
	int32_t dim_pad, smem_bytes;
	kernel_fn fn[2]; /* bf16, fp16 */
};

template <int D> constexpr instance make_instance()
{
	return {D, sizes<D>::smem_bytes,
		{prefill_kernel<__nv_bfloat16, D>, prefill_kernel<__half, D>}};
}

static const instance instances[] = {make_instance<64>(), make_instance<128>()};

static const instance *find_instance(uint32_t head_dim)
{
	for (const instance &i : instances)
		if (head_dim <= (uint32_t)i.dim_pad)
			return &i;
	return nullptr;
}

int32_t prefill_row_tile(uint32_t head_dim)
{
	return find_instance(head_dim) ? ITEM_ROWS : 0;
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
	return launch_kernel(i->fn[f16], args, {n_sm, N_THREAD, i->smem_bytes, true}, stream);
}

} // namespace nsv
