/* Paged attention for few query rows a sequence: reads the history once, at the rate of memory.
 *
 * A block of threads takes a run of the plan's line (work.cuh): for each item, a tile of rows
 * (query row, head of the group) x the keys of one KV head.
 *
 *     producer warp   block table -> boxes of K and V -> ring of slots (64 keys each, swizzled)
 *     4 consumer      S = Q K^T, 16 keys a warp | row maxima through shared memory |
 *     warps           P = 2^(S - m) to shared memory | O += P V, a quarter of the dims a warp
 *
 *     slot: panels of 64 dims; a row is 128 bytes, its 16-byte pieces at piece ^ (row % 8)
 *     ring: K0 V0 K1 V1 ..., each slot with a full and an empty barrier
 *
 * Chunks are folded in order (order.cuh). A run that holds an item from its first tile folds as it
 * goes; one that enters an item in the middle leaves a partial a chunk; the run that arrives last
 * at an item folds its partials and writes the rows. Integer counters only; no order depends on
 * who comes when.
 *
 * Floor: 2 * n_kv * n_kv_head * head_dim * 2 bytes a sequence at the device's read rate; products
 * are 4 * 16 / group times what is needed and still a third of what the units do in that time. */
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/ptx.cuh"

namespace nsv
{

constexpr int N_WARP = 4; /* consumers */
constexpr int N_CONSUMER = N_WARP * 32;
constexpr int N_THREAD = N_CONSUMER + 32;
constexpr int PANEL_DIMS = 64;
constexpr int ROW_BYTES = 128;
constexpr int PANEL_BYTES = TILE * ROW_BYTES;
constexpr uint32_t CONSUMERS = 1; /* named barrier */

/* What a run does to one item. An item below 0 ends the run. */
struct piece {
	nsv_cuda_seq seq;
	int32_t seq_index, item, first_run;
	tile_range run; /* its share of the item's stretch of the line */
};

/* Sizes of an instantiation: D dims (padded), MT tiles of 16 rows. */
template <int D, int MT> struct config {
	static constexpr int n_panel = D / PANEL_DIMS;
	static constexpr int rows = MT * 16;
	static constexpr int slot_bytes = n_panel * PANEL_BYTES;
	static constexpr int q_bytes = rows * D * 2;
	static constexpr int p_bytes = rows * ROW_BYTES;
	static constexpr int max_bytes = rows * N_WARP * 4;
	static constexpr int per_sm = D == 256 || MT == 4 ? 1 : D == 64 && MT == 1 ? 3 : 2;
	static constexpr int fixed_bytes = 2 * (q_bytes + p_bytes + max_bytes) + 1024;
	static constexpr int room = 231424 / per_sm - 1024 - 1024 - fixed_bytes;
	static constexpr int n_slot = room / slot_bytes < 16 ? room / slot_bytes : 16;
	static constexpr int smem_bytes = n_slot * slot_bytes + fixed_bytes + 1024;
	static constexpr int dims_warp = D / N_WARP;
	static constexpr int n_frag = dims_warp / 8;
	static constexpr bool q_in_regs = MT == 1;
};

/* Shared memory, by offset: ring, q, p, row maxima, then barriers and pieces. */
template <int D, int MT> struct layout {
	using C = config<D, MT>;
	uint32_t base;

	__device__ uint32_t slot(int i) const
	{
		return base + i * C::slot_bytes;
	}
	__device__ uint32_t q(int parity) const
	{
		return base + C::n_slot * C::slot_bytes + parity * C::q_bytes;
	}
	__device__ uint32_t p(int parity) const
	{
		return q(2) + parity * C::p_bytes;
	}
	__device__ uint32_t row_max(int parity) const
	{
		return p(2) + parity * C::max_bytes;
	}
	__device__ uint32_t full(int i) const
	{
		return row_max(2) + i * 8;
	}
	__device__ uint32_t empty(int i) const
	{
		return full(C::n_slot) + i * 8;
	}
	__device__ uint32_t q_full(int parity) const
	{
		return empty(C::n_slot) + parity * 8;
	}
	__device__ uint32_t q_empty(int parity) const
	{
		return q_full(2) + parity * 8;
	}
};

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

__device__ __forceinline__ uint32_t swizzle(uint32_t row, uint32_t piece16)
{
	return row * ROW_BYTES + ((piece16 ^ (row & 7)) << 4);
}

/* The part of a piece that its rows see. */
__device__ __forceinline__ tile_range piece_tiles(const work_shape &shape, const piece &p)
{
	tile_range seen = item_tiles(shape, p.seq, p.item);
	return {max(p.run.begin, seen.begin), min(p.run.end, seen.end)};
}

/* ---- Producer */

/* Walks the pieces of a run; the same in every lane. */
struct run_walk {
	int32_t run;
	piece at;
	run_start end;

	__device__ run_walk(const decode_args &args)
	{
		run = blockIdx.x;
		run_start begin = args.starts[run];
		end = args.starts[run + 1];
		at.seq_index = begin.seq;
		at.seq = begin.geom;
		at.item = begin.item;
		at.first_run = begin.first;
		at.run.begin = begin.tile;
		set_end(args);
	}

	__device__ void set_end(const decode_args &args)
	{
		bool last = at.seq_index == end.seq && at.item == end.item;
		at.run.end = last ? end.tile : seq_tiles(args.shape, at.seq).end;
	}

	__device__ bool done() const
	{
		if (at.seq_index != end.seq)
			return at.seq_index > end.seq;
		return at.item != end.item ? at.item > end.item : at.run.begin >= end.tile;
	}

	__device__ void next(const decode_args &args)
	{
		if (++at.item == n_item(args.shape, at.seq)) {
			at.item = 0;
			do
				at.seq_index++;
			while (at.seq_index < end.seq && args.seqs[at.seq_index].n_query == 0);
			at.seq = at.seq_index < end.seq ? args.seqs[at.seq_index] : end.geom;
		}
		at.run.begin = seq_tiles(args.shape, at.seq).begin;
		at.first_run = run;
		set_end(args);
	}
};

/* Rows of q into their buffer, zeros where there is none. */
template <int D, int MT>
__device__ void load_q(const decode_args &args, const piece &p, uint32_t dst, int lane)
{
	constexpr int pieces = D / 8;
	const char *q = static_cast<const char *>(args.q);
	int32_t row0 = p.item / args.shape.n_kv_head * args.shape.row_tile;
	int32_t head0 = p.item % args.shape.n_kv_head * args.shape.group;
	for (int i = lane; i < MT * 16 * pieces; i += 32) {
		int32_t r = i / pieces, c = i % pieces, row = row0 + r;
		int32_t tok = row / args.shape.group, head = head0 + row % args.shape.group;
		bool used = tok < p.seq.n_query && c * 8 < args.head_dim;
		int64_t off = used ? ((int64_t)(p.seq.row0 + tok) * args.n_head + head) * args.head_dim +
				c * 8 : 0;
		uint32_t at = dst + c / 8 * (MT * 16 * ROW_BYTES) + swizzle(r, c % 8);
		cp_async_16(at, q + off * 2, used ? 16 : 0);
	}
}

/* One lane's box of a tile: where it is, and whether anyone sees it. */
struct box {
	int32_t tok, dim, block;
	uint32_t dst;
	bool used;
};

template <int D>
__device__ __forceinline__ box make_box(
	const decode_args &args, const piece &p, const tile_range &keys, int32_t tile, int lane)
{
	constexpr int n_panel = D / PANEL_DIMS;
	box b;
	int32_t in_tile = lane / n_panel << args.box_shift, panel = lane % n_panel;
	int32_t key = tile * TILE + in_tile;
	b.used = in_tile < TILE && key < keys.end && key + (1 << args.box_shift) > keys.begin;
	b.tok = key & ((1 << args.block_shift) - 1);
	b.dim = panel * PANEL_DIMS;
	b.dst = panel * PANEL_BYTES + in_tile * ROW_BYTES;
	b.block = b.used ? __ldg(args.tables + (int64_t)p.seq.table * args.table_stride +
				   (key >> args.block_shift)) : 0;
	return b;
}

/* The boxes of one slot, a lane each. */
template <int D, int MT>
__device__ __forceinline__ void load_slot(const decode_args &args, const CUtensorMap *map,
	const layout<D, MT> &smem, ring_at &ring, const box &b, int32_t head, uint64_t policy, int lane)
{
	mbar_wait(smem.empty(ring.i), ring.round ^ 1);
	uint32_t n_byte = __popc(__ballot_sync(~0u, b.used)) * ROW_BYTES << args.box_shift;
	if (lane == 0)
		mbar_arrive_expect(smem.full(ring.i), n_byte);
	__syncwarp();
	if (b.used)
		tma_load_4d(smem.slot(ring.i) + b.dst, map, smem.full(ring.i), b.dim, b.tok, head,
			b.block, policy);
	ring.next(config<D, MT>::n_slot);
}

template <int D, int MT>
__device__ void produce(const decode_args &args, const layout<D, MT> &smem, piece *pieces)
{
	int lane = threadIdx.x % 32;
	uint64_t policy = policy_evict_first();
	ring_at ring, q_ring;
	for (run_walk walk(args);; walk.next(args)) {
		bool done = walk.done();
		mbar_wait(smem.q_empty(q_ring.i), q_ring.round ^ 1);
		if (lane == 0) {
			pieces[q_ring.i] = walk.at;
			if (done)
				pieces[q_ring.i].item = -1;
			mbar_arrive(smem.q_full(q_ring.i));
		}
		if (!done)
			load_q<D, MT>(args, walk.at, smem.q(q_ring.i), lane);
		cp_async_arrive(smem.q_full(q_ring.i));
		q_ring.next(2);
		if (done)
			break;
		const piece &p = walk.at;
		tile_range tiles = piece_tiles(args.shape, p);
		tile_range rows = item_rows(args.shape, p.seq, p.item);
		tile_range keys = {window_begin(args.shape, p.seq.n_past + rows.begin),
			p.seq.n_past + rows.end};
		int32_t head = p.item % args.shape.n_kv_head;
		box b = make_box<D>(args, p, keys, tiles.begin, lane);
		for (int32_t tile = tiles.begin; tile < tiles.end; tile++) {
			box next = make_box<D>(args, p, keys, tile + 1, lane);
			load_slot<D, MT>(args, &args.k, smem, ring, b, head, policy, lane);
			load_slot<D, MT>(args, &args.v, smem, ring, b, head, policy, lane);
			b = next;
		}
	}
}

/* ---- Consumers */

/* Running values of a thread: rows lane/4 and lane/4 + 8 of each row tile, its warp's dims. */
template <int D, int MT> struct accum {
	using C = config<D, MT>;
	float o[MT][C::n_frag][4];
	float l[MT][4];   /* l[0] and l[2] are the sums of the two rows */
	float m[MT][2];

	__device__ __forceinline__ void reset()
	{
#pragma unroll
		for (int mt = 0; mt < MT; mt++) {
#pragma unroll
			for (int f = 0; f < C::n_frag; f++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					o[mt][f][e] = 0.0f;
#pragma unroll
			for (int e = 0; e < 4; e++)
				l[mt][e] = 0.0f;
			m[mt][0] = m[mt][1] = M_NONE;
		}
	}

	__device__ __forceinline__ void scale(int mt, float f0, float f1)
	{
#pragma unroll
		for (int f = 0; f < C::n_frag; f++) {
			o[mt][f][0] = __fmul_rn(o[mt][f][0], f0);
			o[mt][f][1] = __fmul_rn(o[mt][f][1], f0);
			o[mt][f][2] = __fmul_rn(o[mt][f][2], f1);
			o[mt][f][3] = __fmul_rn(o[mt][f][3], f1);
		}
		l[mt][0] = __fmul_rn(l[mt][0], f0);
		l[mt][2] = __fmul_rn(l[mt][2], f1);
	}

	__device__ __forceinline__ void fold_chunk(const accum &chunk)
	{
#pragma unroll
		for (int mt = 0; mt < MT; mt++) {
			fold_factors f[2] = {fold(m[mt][0], chunk.m[mt][0]), fold(m[mt][1], chunk.m[mt][1])};
#pragma unroll
			for (int n = 0; n < C::n_frag; n++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					o[mt][n][e] = fold_in(o[mt][n][e], chunk.o[mt][n][e], f[e / 2]);
			l[mt][0] = fold_in(l[mt][0], chunk.l[mt][0], f[0]);
			l[mt][2] = fold_in(l[mt][2], chunk.l[mt][2], f[1]);
			m[mt][0] = f[0].m;
			m[mt][1] = f[1].m;
		}
	}
};

/* What stays the same over the tiles of a piece. */
struct piece_view {
	nsv_cuda_seq seq;
	int32_t row0, n_row, head0;  /* rows of the item among the sequence's (token, head) pairs */
	tile_range keys;             /* that any row sees */
	int32_t lane, warp;
};

__device__ __forceinline__ piece_view view_piece(const decode_args &args, const piece &p)
{
	piece_view v;
	const work_shape &shape = args.shape;
	v.seq = p.seq;
	v.row0 = p.item / shape.n_kv_head * shape.row_tile;
	v.n_row = min(shape.row_tile, p.seq.n_query * shape.group - v.row0);
	v.head0 = p.item % shape.n_kv_head * shape.group;
	tile_range rows = item_rows(shape, p.seq, p.item);
	v.keys = {window_begin(shape, p.seq.n_past + rows.begin), p.seq.n_past + rows.end};
	v.lane = threadIdx.x % 32;
	v.warp = threadIdx.x / 32;
	return v;
}

template <typename E, int D, int MT> struct consumer {
	using C = config<D, MT>;
	const decode_args &args;
	const layout<D, MT> &smem;
	piece_view v;
	uint32_t q_buf;
	uint32_t q[C::q_in_regs ? D / 16 : 1][4];
	ring_at ring;
	int parity = 0;
	accum<D, MT> acc;

	__device__ consumer(const decode_args &a, const layout<D, MT> &s) : args(a), smem(s)
	{
	}

	__device__ __forceinline__ uint32_t q_addr(int mt, int ks) const
	{
		uint32_t row = mt * 16 + (v.lane & 15);
		return q_buf + ks / 4 * (C::rows * ROW_BYTES) + swizzle(row, ks % 4 * 2 + (v.lane >> 4));
	}

	__device__ __forceinline__ void begin_piece(const piece &p, uint32_t buf)
	{
		v = view_piece(args, p);
		q_buf = buf;
		if constexpr (C::q_in_regs) {
#pragma unroll
			for (int ks = 0; ks < D / 16; ks++)
				ldmatrix_x4(q[ks], q_addr(0, ks));
		}
	}

	/* S of this warp's 16 keys. */
	__device__ __forceinline__ void scores(float s[MT][2][4])
	{
		uint32_t k_slot = smem.slot(ring.i);
		uint32_t row = v.warp * 16 + (v.lane & 7) + (v.lane >> 4 << 3), half = v.lane >> 3 & 1;
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int e = 0; e < 8; e++)
				s[mt][e / 4][e % 4] = 0.0f;
#pragma unroll
		for (int ks = 0; ks < D / 16; ks++) {
			uint32_t b[4], a[4];
			ldmatrix_x4(b, k_slot + ks / 4 * PANEL_BYTES + swizzle(row, ks % 4 * 2 + half));
#pragma unroll
			for (int mt = 0; mt < MT; mt++) {
				if constexpr (!C::q_in_regs)
					ldmatrix_x4(a, q_addr(mt, ks));
				const uint32_t *qa = C::q_in_regs ? q[ks] : a;
				elem<E>::mma(s[mt][0], qa, b[0], b[1]);
				elem<E>::mma(s[mt][1], qa, b[2], b[3]);
			}
		}
	}

	/* Position of the query of a row, and what it sees. */
	__device__ __forceinline__ tile_range row_keys(int mt, int half) const
	{
		int32_t row = v.row0 + mt * 16 + half * 8 + (v.lane >> 2);
		int32_t pos = v.seq.n_past + row / args.shape.group;
		return {window_begin(args.shape, pos), pos + 1};
	}

	/* Does some row not see some key of the tile? */
	__device__ __forceinline__ bool is_edge(int32_t tile) const
	{
		int32_t first = v.seq.n_past + v.row0 / args.shape.group;
		return tile * TILE + TILE > first + 1 ||
			(args.shape.window > 0 && tile * TILE < v.keys.end - args.shape.window);
	}

	__device__ __forceinline__ void mask(float s[MT][2][4], int32_t tile)
	{
		int32_t key0 = tile * TILE + v.warp * 16 + (v.lane & 3) * 2;
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				tile_range keys = row_keys(mt, half);
#pragma unroll
				for (int e = 0; e < 4; e++) {
					int32_t key = key0 + e / 2 * 8 + e % 2;
					float &x = s[mt][e / 2][half * 2 + e % 2];
					x = key >= keys.begin && key < keys.end ? x : -INFINITY;
				}
			}
	}

	/* Leaves this warp's maxima where the others find them. */
	__device__ __forceinline__ void put_maxima(float s[MT][2][4])
	{
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				float x = fmaxf(fmaxf(s[mt][0][half * 2], s[mt][0][half * 2 + 1]),
					fmaxf(s[mt][1][half * 2], s[mt][1][half * 2 + 1]));
				x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
				x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
				uint32_t row = mt * 16 + half * 8 + (v.lane >> 2);
				if ((v.lane & 3) == 0)
					asm volatile("st.shared.f32 [%0], %1;" ::"r"(
							     smem.row_max(parity) + (row * N_WARP + v.warp) * 4),
						"f"(x)
						: "memory");
			}
	}

	__device__ __forceinline__ float get_maximum(int mt, int half) const
	{
		uint32_t row = mt * 16 + half * 8 + (v.lane >> 2);
		float x[4];
		asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
			     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
			     : "r"(smem.row_max(parity) + row * N_WARP * 4)
			     : "memory");
		return fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
	}

	/* New references from all maxima; P of this warp's keys to shared memory. */
	__device__ __forceinline__ void weights(float s[MT][2][4])
	{
#pragma unroll
		for (int mt = 0; mt < MT; mt++) {
			float f[2];
#pragma unroll
			for (int half = 0; half < 2; half++) {
				float m = next_ref(acc.m[mt][half], get_maximum(mt, half));
				f[half] = exp2_fast(__fsub_rn(acc.m[mt][half], m));
				acc.m[mt][half] = m;
				uint32_t row = mt * 16 + half * 8 + (v.lane >> 2);
#pragma unroll
				for (int j = 0; j < 2; j++) {
					uint32_t p = elem<E>::pack(exp2_fast(__fsub_rn(s[mt][j][half * 2], m)),
						exp2_fast(__fsub_rn(s[mt][j][half * 2 + 1], m)));
					uint32_t at = smem.p(parity) + swizzle(row, v.warp * 2 + j) +
						(v.lane & 3) * 4;
					asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(p) : "memory");
				}
			}
			if (__any_sync(~0u, f[0] != 1.0f || f[1] != 1.0f))
				acc.scale(mt, f[0], f[1]);
		}
	}

	/* Keys of a V slot that no row sees may hold anything: make them zeros. */
	__device__ __forceinline__ void clear_unseen(int32_t tile)
	{
		int32_t begin = v.keys.begin - tile * TILE, end = v.keys.end - tile * TILE;
		if (begin <= 0 && end >= TILE)
			return;
		uint32_t v_slot = smem.slot(ring.i);
		for (int i = threadIdx.x; i < C::slot_bytes / 16; i += N_CONSUMER) {
			int32_t row = i / 8 % TILE;
			if (row < begin || row >= end)
				asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(v_slot + i * 16),
					"r"(0)
					: "memory");
		}
		async_proxy_fence();
		named_barrier(CONSUMERS, N_CONSUMER);
	}

	/* O += P V and l += P 1 on this warp's dims. */
	__device__ __forceinline__ void products()
	{
		uint32_t v_slot = smem.slot(ring.i), ones = elem<E>::ones;
#pragma unroll
		for (int ks = 0; ks < TILE / 16; ks++) {
			uint32_t a[MT][4];
#pragma unroll
			for (int mt = 0; mt < MT; mt++) {
				uint32_t row = mt * 16 + (v.lane & 15);
				ldmatrix_x4(a[mt], smem.p(parity) + swizzle(row, ks * 2 + (v.lane >> 4)));
				elem<E>::mma(acc.l[mt], a[mt], ones, ones);
			}
#pragma unroll
			for (int f = 0; f < C::n_frag; f += 2) {
				uint32_t b[4], key = ks * 16 + (v.lane & 15);
				uint32_t dim = v.warp * C::dims_warp + f * 8;
				ldmatrix_x4_trans(b, v_slot + dim / PANEL_DIMS * PANEL_BYTES +
						swizzle(key, dim % PANEL_DIMS / 8 + (v.lane >> 4)));
#pragma unroll
				for (int mt = 0; mt < MT; mt++) {
					elem<E>::mma(acc.o[mt][f], a[mt], b[0], b[1]);
					elem<E>::mma(acc.o[mt][f + 1], a[mt], b[2], b[3]);
				}
			}
		}
	}

	__device__ __forceinline__ void release()
	{
		__syncwarp();
		if (v.lane == 0)
			mbar_arrive(smem.empty(ring.i));
		ring.next(C::n_slot);
	}

	__device__ __forceinline__ void tile(int32_t t)
	{
		float s[MT][2][4];
		mbar_wait(smem.full(ring.i), ring.round);
		scores(s);
		release();
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int e = 0; e < 8; e++)
				s[mt][e / 4][e % 4] = args.score(s[mt][e / 4][e % 4]);
		if (is_edge(t))
			mask(s, t);
		put_maxima(s);
		named_barrier(CONSUMERS, N_CONSUMER);
		weights(s);
		named_barrier(CONSUMERS, N_CONSUMER);
		mbar_wait(smem.full(ring.i), ring.round);
		clear_unseen(t);
		products();
		release();
		parity ^= 1;
	}

	/* Calls put(row of the item, dim, two values) for what this thread holds of `a`. */
	template <typename F> __device__ __forceinline__ void each(const accum<D, MT> &a, F put) const
	{
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				int32_t row = mt * 16 + half * 8 + (v.lane >> 2);
				if (row >= v.n_row)
					continue;
#pragma unroll
				for (int f = 0; f < C::n_frag; f++)
					put(row, v.warp * C::dims_warp + f * 8 + (v.lane & 3) * 2,
						a.o[mt][f][half * 2], a.o[mt][f][half * 2 + 1], a.l[mt][half * 2]);
			}
	}

	__device__ void put_partial(const accum<D, MT> &a, float *slot) const
	{
		each(a, [&](int32_t row, int32_t dim, float x, float y, float) {
			__stcg(reinterpret_cast<float2 *>(slot + row * D + dim), make_float2(x, y));
		});
		int32_t rows = args.slot_len / (D + 2);
		float *m = slot + rows * D, *l = m + rows;
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				int32_t row = mt * 16 + half * 8 + (v.lane >> 2);
				if (v.warp == 0 && (v.lane & 3) == 0 && row < v.n_row) {
					__stcg(m + row, a.m[mt][half]);
					__stcg(l + row, a.l[mt][half * 2]);
				}
			}
	}

	__device__ __forceinline__ char *out_row(int32_t row) const
	{
		int32_t tok = (v.row0 + row) / args.shape.group;
		int32_t head = v.head0 + (v.row0 + row) % args.shape.group;
		int64_t at = (int64_t)(v.seq.row0 + tok) * args.n_head + head;
		return static_cast<char *>(args.out) + at * args.head_dim * 2;
	}

	__device__ void put_rows(const accum<D, MT> &a) const
	{
		each(a, [&](int32_t row, int32_t dim, float x, float y, float l) {
			if (dim < args.head_dim)
				*reinterpret_cast<uint32_t *>(out_row(row) + dim * 2) =
					elem<E>::pack(normalise(x, l), normalise(y, l));
		});
	}

	/* Where the partial of an item's chunk lies, counted from its first. */
	__device__ __forceinline__ float *slot(const piece &p, int32_t chunk) const
	{
		return args.partials + ((int64_t)p.first_run * args.n_slot + chunk) * args.slot_len;
	}

	__device__ void run_piece(const piece &p);
	__device__ void arrive(const piece &p);
	__device__ void merge(const piece &p);
};

/* A chunk at a time: folded where the item's first tile is ours, else left as a partial. What is
 * folded of an item that goes on takes the place of its last chunk. */
template <typename E, int D, int MT>
__device__ void consumer<E, D, MT>::run_piece(const piece &p)
{
	tile_range line = seq_tiles(args.shape, p.seq), tiles = piece_tiles(args.shape, p);
	bool begins = p.run.begin == line.begin, ends = p.run.end == line.end;
	int32_t chunk0 = tile_chunk(line.begin);
	accum<D, MT> total;
	total.reset();
	for (int32_t t = tiles.begin; t < tiles.end;) {
		int32_t stop = min(chunk_end(t), tiles.end), chunk = tile_chunk(t);
		acc.reset();
		for (; t < stop; t++)
			tile(t);
		if (begins)
			total.fold_chunk(acc);
		else
			put_partial(acc, slot(p, chunk - chunk0));
	}
	if (begins && ends) {
		put_rows(total);
	} else {
		if (begins)
			put_partial(total, slot(p, tile_chunk(p.run.end - 1) - chunk0));
		arrive(p);
	}
}

/* Counts the tiles done of an item; whoever completes it folds the partials. */
template <typename E, int D, int MT> __device__ void consumer<E, D, MT>::arrive(const piece &p)
{
	__shared__ uint32_t is_last;
	tile_range line = seq_tiles(args.shape, p.seq);
	__threadfence();
	named_barrier(CONSUMERS, N_CONSUMER);
	if (threadIdx.x == 0) {
		uint32_t n = p.run.end - p.run.begin, all = line.end - line.begin;
		uint32_t *arrived = args.arrived + p.first_run;
		is_last = atomicAdd(arrived, n) + n == all;
		if (is_last)
			*arrived = 0;
		__threadfence();
	}
	named_barrier(CONSUMERS, N_CONSUMER);
	if (is_last)
		merge(p);
}

/* Four dims of one row of a partial, in order. */
struct merge_acc {
	float o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
	float m = M_NONE, l = 0.0f;

	__device__ __forceinline__ void add(float4 x, float mc, float lc)
	{
		fold_factors f = fold(m, mc);
		o[0] = fold_in(o[0], x.x, f);
		o[1] = fold_in(o[1], x.y, f);
		o[2] = fold_in(o[2], x.z, f);
		o[3] = fold_in(o[3], x.w, f);
		l = fold_in(l, lc, f);
		m = f.m;
	}
};

template <typename E, int D, int MT> __device__ void consumer<E, D, MT>::merge(const piece &p)
{
	tile_range line = seq_tiles(args.shape, p.seq), seen = item_tiles(args.shape, p.seq, p.item);
	int32_t rows = args.slot_len / (D + 2), chunk0 = tile_chunk(line.begin);
	int32_t folded = tile_chunk(__ldg(&args.starts[p.first_run + 1].tile) - 1);
	int32_t begin = max(folded, tile_chunk(seen.begin)) - chunk0;
	int32_t end = max(folded, tile_chunk(seen.end - 1)) - chunk0 + 1;
	for (int32_t i = threadIdx.x; i < v.n_row * (D / 4); i += N_CONSUMER) {
		int32_t row = i / (D / 4), dim = i % (D / 4) * 4;
		const float *from = slot(p, begin);
		merge_acc a;
#pragma unroll 8
		for (int32_t c = begin; c < end; c++, from += args.slot_len)
			a.add(__ldcg(reinterpret_cast<const float4 *>(from + row * D + dim)),
				__ldcg(from + rows * D + row), __ldcg(from + rows * D + rows + row));
		if (dim >= args.head_dim)
			continue;
		*reinterpret_cast<uint2 *>(out_row(row) + dim * 2) =
			make_uint2(elem<E>::pack(normalise(a.o[0], a.l), normalise(a.o[1], a.l)),
				elem<E>::pack(normalise(a.o[2], a.l), normalise(a.o[3], a.l)));
	}
}

template <typename E, int D, int MT>
__device__ void consume(const decode_args &args, const layout<D, MT> &smem, const piece *pieces)
{
	consumer<E, D, MT> c(args, smem);
	for (ring_at q_ring;; q_ring.next(2)) {
		mbar_wait(smem.q_full(q_ring.i), q_ring.round);
		piece p = pieces[q_ring.i];
		if (p.item < 0)
			break;
		c.begin_piece(p, smem.q(q_ring.i));
		c.run_piece(p);
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			mbar_arrive(smem.q_empty(q_ring.i));
	}
}

template <typename E, int D, int MT>
__global__ void __launch_bounds__(N_THREAD, (config<D, MT>::per_sm))
	decode_kernel(const __grid_constant__ decode_args args)
{
	using C = config<D, MT>;
	extern __shared__ char raw[];
	__shared__ piece pieces[2];
	layout<D, MT> smem = {(smem_addr(raw) + 1023) & ~1023u};
	if (threadIdx.x == N_CONSUMER) {
		tma_prefetch_map(&args.k);
		tma_prefetch_map(&args.v);
		for (int i = 0; i < C::n_slot; i++) {
			mbar_init(smem.full(i), 1);
			mbar_init(smem.empty(i), N_WARP);
		}
		for (int i = 0; i < 2; i++) {
			mbar_init(smem.q_full(i), 33);
			mbar_init(smem.q_empty(i), N_WARP);
		}
		mbar_init_fence();
	}
	__syncthreads();
	grid_wait();
	grid_launch_next();
	if (threadIdx.x >= N_CONSUMER)
		produce<D, MT>(args, smem, pieces);
	else
		consume<E, D, MT>(args, smem, pieces);
}

/* ---- Host */

using kernel_fn = void (*)(const decode_args);

struct instance {
	int32_t dim_pad, row_tiles, per_sm, smem_bytes;
	kernel_fn fn[2]; /* bf16, fp16 */
};

template <int D, int MT> constexpr instance make_instance()
{
	return {D, MT, config<D, MT>::per_sm, config<D, MT>::smem_bytes,
		{decode_kernel<__nv_bfloat16, D, MT>, decode_kernel<__half, D, MT>}};
}

static const instance instances[] = {
	make_instance<64, 1>(),
	make_instance<64, 2>(),
	make_instance<64, 4>(),
	make_instance<128, 1>(),
	make_instance<128, 2>(),
	make_instance<128, 4>(),
	make_instance<256, 1>(),
	make_instance<256, 2>(),
};

static const instance *find_instance(const decode_config &config)
{
	for (const instance &i : instances)
		if (i.dim_pad == config.dim_pad && i.row_tiles == config.row_tiles)
			return &i;
	return nullptr;
}

decode_config decode_choose(const nsv_attn_shape &shape, uint32_t max_query)
{
	uint64_t rows = (uint64_t)max_query * (shape.n_head / shape.n_kv_head);
	int32_t dim_pad = shape.head_dim <= 64 ? 64 : shape.head_dim <= 128 ? 128 : 256;
	int32_t row_tiles = rows <= 16 ? 1 : rows <= 32 || dim_pad == 256 ? 2 : 4;
	return {shape.kv_dtype == NSV_F16, dim_pad, row_tiles};
}

int decode_load()
{
	for (const instance &i : instances)
		for (kernel_fn fn : i.fn)
			if (cudaFuncSetAttribute(fn, cudaFuncAttributeMaxDynamicSharedMemorySize,
				    i.smem_bytes) != cudaSuccess)
				return -EIO;
	return 0;
}

int32_t decode_n_run(const decode_config &config, int n_sm)
{
	const instance *i = find_instance(config);
	return i ? n_sm * i->per_sm : 0;
}

int decode_launch(const decode_config &config, const decode_args &args, int32_t n_run,
	cudaStream_t stream)
{
	const instance *i = find_instance(config);
	if (!i)
		return -ENOTSUP;
	cudaLaunchAttribute attr = {};
	attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attr.val.programmaticStreamSerializationAllowed = 1;
	cudaLaunchConfig_t launch = {};
	launch.gridDim = dim3(n_run);
	launch.blockDim = dim3(N_THREAD);
	launch.dynamicSmemBytes = i->smem_bytes;
	launch.stream = stream;
	launch.attrs = &attr;
	launch.numAttrs = 1;
	return cudaLaunchKernelEx(&launch, i->fn[config.f16], args) == cudaSuccess ? 0 : -EIO;
}

} // namespace nsv
