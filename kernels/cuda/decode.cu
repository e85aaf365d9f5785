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
 * History is fetched before the launch before this one has ended; q and new keys are not.
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
constexpr int MERGE_GROUP = 6;    /* chunks whose partials are asked for together */
constexpr int MAX_SLOTS = 4;      /* more in flight only crowd the second-level cache */

/* What a run does to one item; what consumers need of it is worked out once, by the producer. An
 * item below 0 ends the work. */
struct piece {
	nsv_cuda_seq seq;
	int32_t seq_index, item, split, cut;
	tile_range run;              /* its share of the item's stretch of the line */
	int32_t row0, n_row, head0;  /* rows of the item among the sequence's (token, head) pairs */
	tile_range line;             /* the item's stretch */
	tile_range tiles;            /* those of the run that any row sees */
	tile_range keys;             /* that any row sees */
	tile_range inner;            /* tiles of which every row sees every key */
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
	static constexpr int merge_bytes = 2 * MERGE_GROUP * N_CONSUMER * 16;
	static constexpr int fixed_bytes = 2 * (q_bytes + p_bytes + max_bytes) + merge_bytes + 1024;
	static constexpr int room = 231424 / per_sm - 1024 - 1024 - fixed_bytes;
	static constexpr int n_slot = room / slot_bytes < MAX_SLOTS ? room / slot_bytes : MAX_SLOTS;
	static constexpr int smem_bytes = n_slot * slot_bytes + fixed_bytes + 1024;
	static constexpr int dims_warp = D / N_WARP;
	static constexpr int n_frag = dims_warp / 8;
	static constexpr bool q_in_regs = MT == 1;
};

/* Shared memory, by offset: ring, q, p, row maxima, partials in flight, barriers. */
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
	/* Of each consumer its own places. */
	__device__ uint32_t merge(int thread, int i) const
	{
		return row_max(2) + (i * N_CONSUMER + thread) * 16;
	}
	__device__ uint32_t full(int i) const
	{
		return row_max(2) + C::merge_bytes + i * 8;
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

/* Fills in what follows from the sequence, the item and the run. */
__device__ __forceinline__ void complete(const work_shape &shape, piece &p)
{
	tile_range rows = item_rows(shape, p.seq, p.item), seen = item_tiles(shape, p.seq, p.item);
	int32_t first = p.seq.n_past + rows.begin, last = p.seq.n_past + rows.end - 1;
	p.row0 = p.item / shape.n_kv_head * shape.row_tile;
	p.n_row = min(shape.row_tile, p.seq.n_query * shape.group - p.row0);
	p.head0 = p.item % shape.n_kv_head * shape.group;
	p.line = seq_tiles(shape, p.seq);
	p.tiles = {max(p.run.begin, seen.begin), min(p.run.end, seen.end)};
	p.keys = {window_begin(shape, first), last + 1};
	p.inner = {(window_begin(shape, last) + TILE - 1) / TILE, (first + 1) / TILE};
}

/* ---- Producer */

/* Walks the pieces of a run; the same in every lane. */
struct run_walk {
	piece at;
	run_start end;

	__device__ run_walk(const decode_args &args, int32_t run)
	{
		run_start begin = args.starts[run];
		end = args.starts[run + 1];
		at.seq_index = begin.seq;
		at.seq = begin.geom;
		at.item = begin.item;
		at.run.begin = begin.tile;
		set_end(args, begin);
	}

	/* `split`, `cut`: of an item that began in an earlier run. */
	__device__ void set_end(const decode_args &args, const run_start &begin)
	{
		bool last = at.seq_index == end.seq && at.item == end.item;
		at.run.end = last ? end.tile : seq_tiles(args.shape, at.seq).end;
		at.split = last ? end.split : begin.split;
		at.cut = last ? end.cut : begin.cut;
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
		set_end(args, end);
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

template <int D, int MT> struct producer {
	using C = config<D, MT>;
	const decode_args &args;
	const layout<D, MT> &smem;
	piece *pieces;
	ring_at ring, q_ring;
	uint64_t policy = policy_evict_first();
	int lane = threadIdx.x % 32;
	bool is_ready = false; /* the launch before this one has ended */

	__device__ producer(const decode_args &a, const layout<D, MT> &s, piece *p)
		: args(a), smem(s), pieces(p)
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
			load_q<D, MT>(args, *p, smem.q(q_ring.i), lane);
		cp_async_arrive(smem.q_full(q_ring.i));
		q_ring.next(2);
	}

	__device__ void load_piece(const piece &p)
	{
		const tile_range tiles = p.tiles, keys = p.keys;
		int32_t head = p.item % args.shape.n_kv_head;
		int32_t old = is_ready ? tiles.begin :
			min(min(tiles.begin + C::n_slot / 2, p.seq.n_past / TILE), tiles.end);
		if (old <= tiles.begin) {
			wait_before();
			announce(&p);
		}
		box b = make_box<D>(args, p, keys, tiles.begin, lane);
		for (int32_t tile = tiles.begin; tile < tiles.end; tile++) {
			box next = make_box<D>(args, p, keys, tile + 1, lane);
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
		for (run_walk walk(args, run); !walk.done(); walk.next(args)) {
			complete(args.shape, walk.at);
			load_piece(walk.at);
		}
	}

	__device__ void run()
	{
		load_run(blockIdx.x);
		wait_before();
		announce(nullptr);
	}
};

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

/* Where an item's rows go, and what of the arguments that takes. */
struct out_rows {
	char *out;
	int32_t row0, head0, tok0, group, n_head, head_dim;

	__device__ __forceinline__ out_rows(const decode_args &args, const piece &p)
		: out(static_cast<char *>(args.out)), row0(p.row0), head0(p.head0), tok0(p.seq.row0),
		  group(args.shape.group), n_head(args.n_head), head_dim(args.head_dim)
	{
	}

	__device__ __forceinline__ char *operator()(int32_t row) const
	{
		int32_t tok = (row0 + row) / group, head = head0 + (row0 + row) % group;
		return out + ((int64_t)(tok0 + tok) * n_head + head) * head_dim * 2;
	}
};

/* The partials of a split item, from the first that counts: all by value, since the call that gets
 * it is out of line. */
struct merge_job {
	const float *slots;
	int32_t slot_len, n_row, n_chunk;
	out_rows out;

	__device__ __forceinline__ merge_job(const decode_args &args, const piece &p) : out(args, p)
	{
		tile_range seen = item_tiles(args.shape, p.seq, p.item);
		int32_t folded = tile_chunk(p.cut - 1), first = max(folded, tile_chunk(seen.begin));
		slot_len = args.slot_len;
		n_row = p.n_row;
		n_chunk = max(folded, tile_chunk(seen.end - 1)) - first + 1;
		slots = args.partials + ((int64_t)p.split * args.n_slot + first -
			tile_chunk(p.line.begin)) * slot_len;
	}
};

/* Folding the partials of a split item: kept out of line, since it needs registers of its own. */
template <typename E, int D, int MT> struct merger {
	using C = config<D, MT>;
	layout<D, MT> smem;
	merge_job job;
	int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

	__device__ merger(const layout<D, MT> &s, const merge_job &j) : smem(s), job(j)
	{
	}

	__device__ __forceinline__ const float *slot(int32_t chunk) const
	{
		return job.slots + (int64_t)chunk * job.slot_len;
	}

	/* Chunks whose factors there is room for: they take the place of both P. Whole groups. */
	__device__ int32_t batch() const
	{
		return 2 * C::p_bytes / 12 / job.n_row / MERGE_GROUP * MERGE_GROUP;
	}

	/* (a, b) of a chunk and row; the sums l lie behind all of these. */
	__device__ uint32_t factor_at(int32_t i, int32_t row) const
	{
		return smem.p(0) + (i * job.n_row + row) * 8;
	}

	__device__ uint32_t sum_at(int32_t i, int32_t row) const
	{
		return factor_at(batch(), 0) + (i * job.n_row + row) * 4;
	}

	/* The factors of fold() of the chunks [c0, c0 + n), and their sums, to shared memory: a warp a
	 * row, a lane a chunk. `before`: the row's reference so far. */
	__device__ float factors(int32_t row, int32_t c0, int32_t n, float before) const
	{
		int32_t rows = job.slot_len / (D + 2);
		for (int32_t i0 = 0; i0 < n; i0 += 32) {
			int32_t i = i0 + lane;
			const float *ml = slot(c0 + min(i, n - 1)) + rows * D + row;
			float m = i < n ? __ldcg(ml) : M_NONE, l = __ldcg(ml + rows);
			float seen = fmaxf(m, before);
			for (int d = 1; d < 32; d *= 2) {
				float x = __shfl_up_sync(~0u, seen, d);
				seen = lane >= d ? fmaxf(seen, x) : seen;
			}
			float x = __shfl_up_sync(~0u, seen, 1);
			fold_factors f = fold(lane ? x : before, m);
			if (i < n) {
				st_shared(factor_at(i, row), make_float2(f.a, f.b));
				st_shared(sum_at(i, row), l);
			}
			before = __shfl_sync(~0u, seen, 31);
		}
		return before;
	}

	/* Factors of all rows; the rows' references lie in shared memory between batches. */
	__device__ void all_factors(int32_t c0, int32_t n) const
	{
		for (int32_t row = warp; row < job.n_row; row += N_WARP) {
			uint32_t ref = smem.row_max(0) + row * 4;
			float before = c0 > 0 ? ld_shared(ref) : M_NONE;
			before = factors(row, c0, n, before);
			__syncwarp();
			if (lane == 0)
				st_shared(ref, before);
			__syncwarp();
		}
	}

	/* Asks for this thread's part of a group of chunks: one group of copies, maybe empty. */
	__device__ __forceinline__ void fetch(int32_t c0, int32_t off) const
	{
		const float *from = slot(c0) + off;
		uint32_t to = group_at(c0);
#pragma unroll
		for (int j = 0; j < MERGE_GROUP; j++)
			if (c0 + j < job.n_chunk)
				cp_async_16(to + j * N_CONSUMER * 16, from + j * job.slot_len, 16);
		cp_async_commit();
	}

	/* Two groups take turns. */
	__device__ __forceinline__ uint32_t group_at(int32_t c0) const
	{
		int32_t odd = c0 / MERGE_GROUP & 1;
		return smem.merge(threadIdx.x, odd * MERGE_GROUP);
	}

	struct row_part {
		float4 o;
		float l;
	};

	/* Folds a group in order; chunks beyond the end have factors (1, 0). */
	__device__ __forceinline__ void fold_group(
		row_part &r, int32_t c0, int32_t batch0, int32_t row) const
	{
		float4 x[MERGE_GROUP];
		float2 ab[MERGE_GROUP];
		float l[MERGE_GROUP];
		uint32_t at = group_at(c0), ab_at = factor_at(c0 - batch0, row);
		uint32_t l_at = sum_at(c0 - batch0, row);
#pragma unroll
		for (int j = 0; j < MERGE_GROUP; j++) {
			bool used = c0 + j < job.n_chunk;
			x[j] = ld_shared4(at + j * N_CONSUMER * 16);
			ab[j] = ld_shared2(ab_at + j * job.n_row * 8);
			l[j] = ld_shared(l_at + j * job.n_row * 4);
			x[j] = used ? x[j] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
			ab[j] = used ? ab[j] : make_float2(1.0f, 0.0f);
			l[j] = used ? l[j] : 0.0f;
		}
#pragma unroll
		for (int j = 0; j < MERGE_GROUP; j++) {
			fold_factors f = {0.0f, ab[j].x, ab[j].y};
			r.o.x = fold_in(r.o.x, x[j].x, f);
			r.o.y = fold_in(r.o.y, x[j].y, f);
			r.o.z = fold_in(r.o.z, x[j].z, f);
			r.o.w = fold_in(r.o.w, x[j].w, f);
			r.l = fold_in(r.l, l[j], f);
		}
	}

	__device__ void put(const row_part &r, int32_t row, int32_t dim) const
	{
		*reinterpret_cast<uint2 *>(job.out(row) + dim * 2) =
			make_uint2(elem<E>::pack(normalise(r.o.x, r.l), normalise(r.o.y, r.l)),
				elem<E>::pack(normalise(r.o.z, r.l), normalise(r.o.w, r.l)));
	}

	/* Four dims of a row: all chunks in order. Where one batch holds all factors, the first call
	 * leaves them for the next. */
	__device__ void fold_row(int32_t row, int32_t dim, bool used, bool is_first) const
	{
		row_part r = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), 0.0f};
		int32_t off = row * D + dim, size = batch();
		fetch(0, off);
		for (int32_t b0 = 0; b0 < job.n_chunk; b0 += size) {
			int32_t end = min(b0 + size, job.n_chunk);
			if (is_first || size < job.n_chunk)
				all_factors(b0, end - b0);
			named_barrier(CONSUMERS, N_CONSUMER);
			for (int32_t c = b0; c < end; c += MERGE_GROUP) {
				fetch(c + MERGE_GROUP, off);
				cp_async_wait<1>();
				fold_group(r, c, b0, row);
			}
			named_barrier(CONSUMERS, N_CONSUMER);
		}
		cp_async_wait<0>();
		if (used && dim < job.out.head_dim)
			put(r, row, dim);
	}

	__device__ void run() const
	{
		for (int32_t i0 = 0; i0 < job.n_row * (D / 4); i0 += N_CONSUMER) {
			int32_t i = i0 + threadIdx.x, row = i / (D / 4);
			fold_row(min(row, job.n_row - 1), i % (D / 4) * 4, row < job.n_row, i0 == 0);
		}
	}
};

template <typename E, int D, int MT>
__device__ __noinline__ void merge(layout<D, MT> smem, merge_job job)
{
	merger<E, D, MT>(smem, job).run();
}

template <typename E, int D, int MT> struct consumer {
	using C = config<D, MT>;
	const decode_args &args;
	const layout<D, MT> &smem;
	const piece *p = nullptr; /* the piece in hand, in shared memory */
	tile_range keys, inner;   /* of it */
	uint32_t q_buf;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t q[C::q_in_regs ? D / 16 : 1][4];
	ring_at ring;
	int parity = 0;
	accum<D, MT> acc;

	__device__ consumer(const decode_args &a, const layout<D, MT> &s) : args(a), smem(s)
	{
	}

	__device__ __forceinline__ uint32_t q_addr(int mt, int ks) const
	{
		uint32_t row = mt * 16 + (lane & 15);
		return q_buf + ks / 4 * (C::rows * ROW_BYTES) + swizzle(row, ks % 4 * 2 + (lane >> 4));
	}

	__device__ __forceinline__ void begin_piece(const piece *at, uint32_t buf)
	{
		p = at;
		keys = p->keys;
		inner = p->inner;
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
		constexpr int batch = 8; /* k16 slices whose fragments are in flight together */
		uint32_t k_slot = smem.slot(ring.i);
		uint32_t row = warp * 16 + (lane & 7) + (lane >> 4 << 3), half = lane >> 3 & 1;
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int e = 0; e < 8; e++)
				s[mt][e / 4][e % 4] = 0.0f;
#pragma unroll
		for (int k0 = 0; k0 < D / 16; k0 += batch) {
			uint32_t b[batch][4];
#pragma unroll
			for (int i = 0; i < batch && k0 + i < D / 16; i++)
				ldmatrix_x4(b[i], k_slot + (k0 + i) / 4 * PANEL_BYTES +
							  swizzle(row, (k0 + i) % 4 * 2 + half));
#pragma unroll
			for (int i = 0; i < batch && k0 + i < D / 16; i++)
#pragma unroll
				for (int mt = 0; mt < MT; mt++) {
					uint32_t a[4];
					if constexpr (!C::q_in_regs)
						ldmatrix_x4(a, q_addr(mt, k0 + i));
					const uint32_t *qa = C::q_in_regs ? q[k0 + i] : a;
					elem<E>::mma(s[mt][0], qa, b[i][0], b[i][1]);
					elem<E>::mma(s[mt][1], qa, b[i][2], b[i][3]);
				}
		}
	}

	__device__ __forceinline__ void scale_scores(float s[MT][2][4])
	{
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int e = 0; e < 8; e++)
				s[mt][e / 4][e % 4] = args.score.scaled(s[mt][e / 4][e % 4]);
		if (args.score.cap == 0.0f)
			return;
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int e = 0; e < 8; e++)
				s[mt][e / 4][e % 4] = args.score.capped(s[mt][e / 4][e % 4]);
	}

	/* Position of the query of a row, and what it sees. */
	__device__ __forceinline__ tile_range row_keys(int mt, int half) const
	{
		int32_t row = p->row0 + mt * 16 + half * 8 + (lane >> 2);
		int32_t pos = p->seq.n_past + row / args.shape.group;
		return {window_begin(args.shape, pos), pos + 1};
	}

	/* Does some row not see some key of the tile? */
	__device__ __forceinline__ bool is_edge(int32_t tile) const
	{
		return tile < inner.begin || tile >= inner.end;
	}

	__device__ __forceinline__ void mask(float s[MT][2][4], int32_t tile)
	{
		int32_t key0 = tile * TILE + warp * 16 + (lane & 3) * 2;
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				tile_range seen = row_keys(mt, half);
#pragma unroll
				for (int e = 0; e < 4; e++) {
					int32_t key = key0 + e / 2 * 8 + e % 2;
					float &x = s[mt][e / 2][half * 2 + e % 2];
					x = key >= seen.begin && key < seen.end ? x : -INFINITY;
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
				uint32_t row = mt * 16 + half * 8 + (lane >> 2);
				if ((lane & 3) == 0)
					st_shared(smem.row_max(parity) + (row * N_WARP + warp) * 4, x);
			}
	}

	__device__ __forceinline__ float get_maximum(int mt, int half) const
	{
		uint32_t row = mt * 16 + half * 8 + (lane >> 2);
		float4 x = ld_shared4(smem.row_max(parity) + row * N_WARP * 4);
		return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
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
				uint32_t row = mt * 16 + half * 8 + (lane >> 2);
#pragma unroll
				for (int j = 0; j < 2; j++) {
					uint32_t w = elem<E>::pack(exp2_fast(__fsub_rn(s[mt][j][half * 2], m)),
						exp2_fast(__fsub_rn(s[mt][j][half * 2 + 1], m)));
					uint32_t at = smem.p(parity) + swizzle(row, warp * 2 + j) +
						(lane & 3) * 4;
					st_shared(at, __uint_as_float(w));
				}
			}
			if (__any_sync(~0u, f[0] != 1.0f || f[1] != 1.0f))
				acc.scale(mt, f[0], f[1]);
		}
	}

	/* Keys of a V slot that no row sees may hold anything: make them zeros. */
	__device__ __forceinline__ void clear_unseen(int32_t tile)
	{
		int32_t begin = keys.begin - tile * TILE, end = keys.end - tile * TILE;
		if (begin <= 0 && end >= TILE)
			return;
		uint32_t v_slot = smem.slot(ring.i);
		for (int i = threadIdx.x; i < C::slot_bytes / 16; i += N_CONSUMER) {
			int32_t row = i / 8 % TILE;
			if (row < begin || row >= end)
				st_shared(v_slot + i * 16, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
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
			uint32_t a[MT][4], b[C::n_frag / 2][4];
#pragma unroll
			for (int mt = 0; mt < MT; mt++)
				ldmatrix_x4(a[mt], smem.p(parity) +
							   swizzle(mt * 16 + (lane & 15), ks * 2 + (lane >> 4)));
#pragma unroll
			for (int f = 0; f < C::n_frag / 2; f++) {
				uint32_t dim = warp * C::dims_warp + f * 16;
				ldmatrix_x4_trans(b[f], v_slot + dim / PANEL_DIMS * PANEL_BYTES +
						swizzle(ks * 16 + (lane & 15), dim % PANEL_DIMS / 8 + (lane >> 4)));
			}
#pragma unroll
			for (int mt = 0; mt < MT; mt++) {
				elem<E>::mma(acc.l[mt], a[mt], ones, ones);
#pragma unroll
				for (int f = 0; f < C::n_frag / 2; f++) {
					elem<E>::mma(acc.o[mt][f * 2], a[mt], b[f][0], b[f][1]);
					elem<E>::mma(acc.o[mt][f * 2 + 1], a[mt], b[f][2], b[f][3]);
				}
			}
		}
	}

	__device__ __forceinline__ void release()
	{
		__syncwarp();
		if (lane == 0)
			mbar_arrive(smem.empty(ring.i));
		ring.next(C::n_slot);
	}

	__device__ __forceinline__ void tile(int32_t t)
	{
		float s[MT][2][4];
		mbar_wait(smem.full(ring.i), ring.round);
		scores(s);
		release();
		scale_scores(s);
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
		int at = opaque(lane);
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				int32_t row = mt * 16 + half * 8 + (at >> 2);
				if (row >= p->n_row)
					continue;
#pragma unroll
				for (int f = 0; f < C::n_frag; f++)
					put(row, warp * C::dims_warp + f * 8 + (at & 3) * 2,
						a.o[mt][f][half * 2], a.o[mt][f][half * 2 + 1], a.l[mt][half * 2]);
			}
	}

	__device__ void put_partial(const accum<D, MT> &a, float *slot) const
	{
		each(a, [&](int32_t row, int32_t dim, float x, float y, float) {
			__stcg(reinterpret_cast<float2 *>(slot + row * D + dim), make_float2(x, y));
		});
		int32_t rows = args.slot_len / (D + 2), at = opaque(lane);
		float *m = slot + rows * D, *l = m + rows;
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				int32_t row = mt * 16 + half * 8 + (at >> 2);
				if (warp == 0 && (at & 3) == 0 && row < p->n_row) {
					__stcg(m + row, a.m[mt][half]);
					__stcg(l + row, a.l[mt][half * 2]);
				}
			}
	}

	__device__ void put_rows(const accum<D, MT> &a) const
	{
		out_rows out(args, *p);
		each(a, [&](int32_t row, int32_t dim, float x, float y, float l) {
			if (dim < args.head_dim)
				*reinterpret_cast<uint32_t *>(out(row) + dim * 2) =
					elem<E>::pack(normalise(x, l), normalise(y, l));
		});
	}

	/* Where the partial of a split item's chunk lies, counted from its first. */
	__device__ __forceinline__ float *slot(int32_t chunk) const
	{
		return args.partials + ((int64_t)p->split * args.n_slot + chunk) * args.slot_len;
	}

	__device__ void run_piece();
	__device__ void arrive();
};

/* A chunk at a time: folded where the item's first tile is ours, else left as a partial. What is
 * folded of an item that goes on takes the place of its last chunk. */
template <typename E, int D, int MT> __device__ void consumer<E, D, MT>::run_piece()
{
	tile_range tiles = p->tiles;
	bool begins = p->run.begin == p->line.begin, ends = p->run.end == p->line.end;
	int32_t chunk0 = tile_chunk(p->line.begin);
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
			put_partial(acc, slot(chunk - chunk0));
	}
	if (begins && ends) {
		put_rows(total);
	} else {
		if (begins)
			put_partial(total, slot(tile_chunk(p->run.end - 1) - chunk0));
		arrive();
	}
}

/* Counts the tiles done of an item; whoever completes it folds the partials. */
template <typename E, int D, int MT> __device__ void consumer<E, D, MT>::arrive()
{
	__shared__ uint32_t is_last;
	named_barrier(CONSUMERS, N_CONSUMER);
	if (threadIdx.x == 0) {
		uint32_t n = p->run.end - p->run.begin, all = p->line.end - p->line.begin;
		uint32_t *arrived = args.arrived + p->split;
		__threadfence();
		is_last = atomicAdd(arrived, n) + n == all;
		__threadfence();
	}
	named_barrier(CONSUMERS, N_CONSUMER);
	if (!is_last)
		return;
	merge<E, D, MT>(smem, merge_job(args, *p));
	if (threadIdx.x == 0)
		args.arrived[p->split] = 0;
}

template <typename E, int D, int MT>
__device__ void consume(const decode_args &args, const layout<D, MT> &smem, const piece *pieces)
{
	consumer<E, D, MT> c(args, smem);
	for (ring_at q_ring;; q_ring.next(2)) {
		mbar_wait(smem.q_full(q_ring.i), q_ring.round);
		if (pieces[q_ring.i].item < 0)
			break;
		c.begin_piece(&pieces[q_ring.i], smem.q(q_ring.i));
		c.run_piece();
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
	if (threadIdx.x >= N_CONSUMER) {
		producer<D, MT>(args, smem, pieces).run();
	} else {
		grid_wait();
		grid_launch_next();
		consume<E, D, MT>(args, smem, pieces);
	}
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

int32_t decode_n_block(const decode_config &config, int n_sm)
{
	const instance *i = find_instance(config);
	return i ? n_sm * i->per_sm : 0;
}

int decode_launch(const decode_config &config, const decode_args &args, int32_t n_block, bool early,
	cudaStream_t stream)
{
	const instance *i = find_instance(config);
	if (!i)
		return -ENOTSUP;
	cudaLaunchAttribute attr = {};
	attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attr.val.programmaticStreamSerializationAllowed = 1;
	cudaLaunchConfig_t launch = {};
	launch.gridDim = dim3(n_block);
	launch.blockDim = dim3(N_THREAD);
	launch.dynamicSmemBytes = i->smem_bytes;
	launch.stream = stream;
	launch.attrs = &attr;
	launch.numAttrs = early;
	return cudaLaunchKernelEx(&launch, i->fn[config.f16], args) == cudaSuccess ? 0 : -EIO;
}

} // namespace nsv
