/* Decode's consumers: four warps that make S, P and O of a run's tiles, a chunk at a time, and
 * leave rows, or partials where an item is split. decode.cu has the drawing. */
#ifndef NSV_KERNELS_CUDA_DECODE_CONSUME_CUH
#define NSV_KERNELS_CUDA_DECODE_CONSUME_CUH

#include "kernels/cuda/decode_accum.cuh"
#include "kernels/cuda/decode_entries.cuh"
#include "kernels/cuda/decode_merge.cuh"
#include "kernels/cuda/decode_packed.cuh"

namespace nsv
{

constexpr int MAX_LOOKS = 64; /* for the other runs of an item, once ours is over */

/* Where a slot's bytes are, and its scales where it has such. */
struct slot_at {
	uint32_t bytes, scales;
};

template <typename E, int D, int NT, bool PACKED> struct consumer {
	using C = config<D, NT, PACKED>;
	const decode_args &args;
	const layout<D, NT, PACKED> &smem;
	const piece *p = nullptr; /* the piece in hand, in shared memory */
	tile_range keys, inner;	  /* of it */
	uint32_t q_buf;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t q[C::q_in_regs ? D / 32 : 1][NT][4];
	ring_at ring;
	int parity = 0;
	uint64_t launch; /* the number of this one, where entries are left */
	uint32_t none = (uint32_t)args.n_head >> 31; /* 0, which the compiler does not know */
	accum<D, NT, PACKED> acc;

	__device__ consumer(const decode_args &a, const layout<D, NT, PACKED> &s) : args(a), smem(s)
	{
	}

	/* A row of the item: this thread's first or second of a tile. */
	__device__ __forceinline__ int32_t row_of(int nt, int e) const
	{
		return nt * ROW_TILE + (lane & 3) * 2 + e;
	}

	/* The first of the dims of O that are this warp's. */
	__device__ __forceinline__ int32_t own_dim() const
	{
		return warp * C::dim_tiles * 16;
	}

	/* Q of two slices of dims. */
	__device__ __forceinline__ void load_rows(int pair, int nt, uint32_t b[4]) const
	{
		uint32_t panel = q_buf + pair / 2 * (C::rows * ROW_BYTES);
		if constexpr (PACKED)
			load_packed_rows(panel, pair, nt, b);
		else
			ldmatrix_x4(b, panel + swizzle(nt * ROW_TILE + (lane & 7),
						       pair % 2 * 4 + (lane >> 3)));
	}

	/* Of four dims of a slice a lane. */
	__device__ __forceinline__ void load_packed_rows(
		uint32_t panel, int pair, int nt, uint32_t b[4]) const
	{
		uint32_t row = nt * ROW_TILE + (lane >> 2);
#pragma unroll
		for (int j = 0; j < 2; j++) {
			uint32_t piece = pair % 2 * 4 + j * 2 + (lane >> 1 & 1);
			float2 x = ld_shared2(panel + swizzle(row, piece) + (lane & 1) * 8);
			b[j * 2] = __float_as_uint(x.x);
			b[j * 2 + 1] = __float_as_uint(x.y);
		}
	}

	__device__ __forceinline__ void begin_piece(const piece *at)
	{
		p = at;
		keys = p->keys;
		inner = p->inner;
	}

	__device__ __forceinline__ void take_q(uint32_t buf)
	{
		q_buf = buf;
		if constexpr (C::q_in_regs) {
#pragma unroll
			for (int i = 0; i < D / 32; i++)
#pragma unroll
				for (int nt = 0; nt < NT; nt++)
					load_rows(i, nt, q[i][nt]);
		}
	}

	/* K of 16 keys of this warp and two slices of dims. */
	__device__ __forceinline__ void load_k(
		const slot_at &slot, const uint32_t scales[2], int pair, uint32_t a[2][4]) const
	{
		uint32_t row = warp * 16 + (lane & 15);
		if constexpr (!PACKED) {
#pragma unroll
			for (int j = 0; j < 2; j++)
				ldmatrix_x4(a[j], smem.piece_at(slot.bytes, row,
							  pair * 4 + j * 2 + (lane >> 4)));
		} else {
			uint32_t x[4];
			ldmatrix_x4(x, smem.piece_at(slot.bytes, row, pair * 2 + (lane >> 4)));
#pragma unroll
			for (int e = 0; e < 4; e++) {
				a[e / 2][e % 2] = widen<E, 0, 1>(x[e], scales[e % 2]);
				a[e / 2][e % 2 + 2] = widen<E, 2, 3>(x[e], scales[e % 2]);
			}
		}
	}

	/* Of this thread's two keys of a slot of K. */
	__device__ __forceinline__ void key_scales(const slot_at &slot, uint32_t scales[2]) const
	{
		if constexpr (PACKED) {
#pragma unroll
			for (int h = 0; h < 2; h++) {
				float x = ld_shared(
					slot.scales + (warp * 16 + h * 8 + (lane >> 2)) * 4);
				scales[h] = widening<E>::scales(x, x);
			}
		}
	}

	/* S of this warp's 16 keys of each tile of a step: chains of products side by side. */
	__device__ __forceinline__ void scores(
		float s[STEP_TILES][NT][4], const slot_at slots[STEP_TILES])
	{
		constexpr int batch = NT == 1 && D <= 128 ? 2 : 1; /* pairs of slices under way */
		uint32_t scales[STEP_TILES][2];
#pragma unroll
		for (int i = 0; i < STEP_TILES; i++) {
			zero(s[i]);
			key_scales(slots[i], scales[i]);
		}
#pragma unroll
		for (int p0 = 0; p0 < D / 32; p0 += batch) {
			uint32_t a[batch][STEP_TILES][2][4];
#pragma unroll
			for (int j = 0; j < batch; j++)
#pragma unroll
				for (int i = 0; i < STEP_TILES; i++)
					load_k(slots[i], scales[i], p0 + j, a[j][i]);
#pragma unroll
			for (int j = 0; j < batch; j++)
#pragma unroll
				for (int nt = 0; nt < NT; nt++) {
					uint32_t b[4];
					if constexpr (!C::q_in_regs)
						load_rows(p0 + j, nt, b);
					const uint32_t *x = C::q_in_regs ? q[p0 + j][nt] : b;
#pragma unroll
					for (int e = 0; e < 2 * STEP_TILES; e++)
						elem<E>::mma(s[e % STEP_TILES][nt],
							a[j][e % STEP_TILES][e / STEP_TILES],
							x[e / STEP_TILES * 2],
							x[e / STEP_TILES * 2 + 1]);
				}
		}
	}

	static __device__ __forceinline__ void zero(float s[NT][4])
	{
#pragma unroll
		for (int nt = 0; nt < NT; nt++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				s[nt][e] = 0.0f;
	}

	__device__ __forceinline__ void prepare_scores(float s[NT][4]) const
	{
#pragma unroll
		for (int nt = 0; nt < NT; nt++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				s[nt][e] = args.score.prepared(s[nt][e]);
	}

	/* Position of the query of a row, and what it sees. */
	__device__ __forceinline__ tile_range row_keys(int nt, int e) const
	{
		int32_t pos = p->seq.n_past + (p->row0 + row_of(nt, e)) / args.shape.group;
		return {window_begin(args.shape, pos), pos + 1};
	}

	/* Takes the scores of keys that a row does not see out of it; no row sees tile -1. */
	__device__ __forceinline__ void mask(float s[NT][4], int32_t tile) const
	{
		int32_t key0 = tile * TILE + warp * 16 + (lane >> 2);
#pragma unroll
		for (int nt = 0; nt < NT; nt++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				tile_range seen = row_keys(nt, e);
#pragma unroll
				for (int h = 0; h < 2; h++) {
					int32_t key = key0 + h * 8;
					float &x = s[nt][h * 2 + e];
					x = key >= seen.begin && key < seen.end ? x : -INFINITY;
				}
			}
	}

	/* Leaves this warp's maxima where the others find them. */
	__device__ __forceinline__ void put_maxima(float s[STEP_TILES][NT][4])
	{
#pragma unroll
		for (int nt = 0; nt < NT; nt++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				float x = -INFINITY;
#pragma unroll
				for (int i = 0; i < STEP_TILES; i++)
					x = fmaxf(x, fmaxf(s[i][nt][e], s[i][nt][2 + e]));
#pragma unroll
				for (int d = 4; d < 32; d *= 2)
					x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
				if (lane < 4)
					st_shared(smem.row_max(parity) +
							  (row_of(nt, e) * N_WARP + warp) * 4,
						x);
			}
	}

	__device__ __forceinline__ float get_maximum(int nt, int e) const
	{
		float4 x = ld_shared4(smem.row_max(parity) + row_of(nt, e) * N_WARP * 4);
		return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
	}

	/* New references from all maxima; P of this warp's keys to shared memory. */
	__device__ __forceinline__ void weights(float s[STEP_TILES][NT][4])
	{
#pragma unroll
		for (int nt = 0; nt < NT; nt++) {
			float *m = acc.m[nt], before[2] = {m[0], m[1]}, by[2];
#pragma unroll
			for (int e = 0; e < 2; e++)
				m[e] = next_ref(
					m[e], __fmul_rn(get_maximum(nt, e), args.score.factor));
#pragma unroll
			for (int i = 0; i < STEP_TILES * 2; i++) {
				const float *x = &s[i / 2][nt][i % 2 * 2];
				int32_t key = i / 2 * TILE + warp * 16 + i % 2 * 8 + (lane >> 2);
				uint32_t w = elem<E>::pack(args.score.weight(x[0], m[0]),
					args.score.weight(x[1], m[1]));
				st_shared(smem.p(parity, nt) + key * 16 + (lane & 3) * 4,
					__uint_as_float(w));
			}
#pragma unroll
			for (int e = 0; e < 2; e++)
				by[e] = exp2_fast(__fsub_rn(before[e], m[e]));
			acc.scale(nt, by);
		}
	}

	/* Keys of a V slot that no row sees may hold anything: make them, or their scales where
	 * these are what may be no number, zeros. */
	__device__ void clear_unseen(const slot_at &slot, int32_t tile)
	{
		int32_t begin = keys.begin - tile * TILE, end = keys.end - tile * TILE;
		constexpr int n = PACKED ? TILE : C::slot_bytes / 16;
		for (int i = threadIdx.x; i < n; i += N_CONSUMER) {
			int32_t row = PACKED ? i : i / 8 % TILE;
			if (row >= begin && row < end)
				continue;
			if constexpr (PACKED)
				st_shared(slot.scales + i * 4, 0.0f);
			else
				st_shared(slot.bytes + i * 16, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
		}
	}

	/* V of two slices of keys and 16 dims of this warp; packed: rows of a product are then dims
	 * by twos. */
	__device__ __forceinline__ void load_v(const slot_at &slot, const uint32_t scales[4],
		int pair, int f, uint32_t a[2][4]) const
	{
		uint32_t tile = warp * C::dim_tiles + f;
		if constexpr (!PACKED) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				uint32_t row =
					(pair * 2 + j) * SLICE_KEYS + (lane & 7) + (lane >> 4) * 8;
				ldmatrix_x4_trans(a[j],
					smem.piece_at(slot.bytes, row, tile * 2 + (lane >> 3 & 1)));
			}
		} else {
			uint32_t x[4];
			ldmatrix_x4_trans(
				x, smem.piece_at(slot.bytes, pair * 2 * SLICE_KEYS + lane, tile));
#pragma unroll
			for (int e = 0; e < 4; e++) {
				a[e / 2][e % 2 * 2] = widen<E, 0, 2>(x[e], scales[e]);
				a[e / 2][e % 2 * 2 + 1] = widen<E, 1, 3>(x[e], scales[e]);
			}
		}
	}

	/* Of this thread's keys of two slices of a slot of V. */
	__device__ __forceinline__ void value_scales(
		const slot_at &slot, int pair, uint32_t scales[4]) const
	{
		if constexpr (PACKED) {
#pragma unroll
			for (int e = 0; e < 4; e++) {
				float2 x = ld_shared2(
					slot.scales + (pair * 32 + e * 8 + (lane & 3) * 2) * 4);
				scales[e] = widening<E>::scales(x.x, x.y);
			}
		}
	}

	/* O += P V and l += P 1 of the tiles of a step from `first` on, on this warp's dims. */
	__device__ __forceinline__ void products(int first, const slot_at slots[STEP_TILES])
	{
		constexpr int n_slice = TILE / SLICE_KEYS, batch = NT == 1 && D <= 128 ? 4 : 2;
		constexpr uint32_t x = elem<E>::ones;
		constexpr uint32_t ones[4] = {x, x, x, x};
#pragma unroll
		for (int k0 = first * n_slice; k0 < STEP_TILES * n_slice; k0 += batch) {
			uint32_t a[C::dim_tiles][batch][4], b[NT][batch * 2];
			const slot_at &slot = slots[k0 / n_slice];
#pragma unroll
			for (int nt = 0; nt < NT; nt++)
#pragma unroll
				for (int ks = 0; ks < batch; ks += 2)
					ldmatrix_x4_trans(&b[nt][ks * 2],
						smem.p(parity, nt) +
							((k0 + ks) * SLICE_KEYS + lane) * 16);
#pragma unroll
			for (int ks = 0; ks < batch; ks += 2) {
				uint32_t scales[4];
				value_scales(slot, (k0 + ks) % n_slice / 2, scales);
#pragma unroll
				for (int f = 0; f < C::dim_tiles; f++)
					load_v(slot, scales, (k0 + ks) % n_slice / 2, f, &a[f][ks]);
			}
#pragma unroll
			for (int ks = 0; ks < batch; ks++)
#pragma unroll
				for (int nt = 0; nt < NT; nt++) {
					const uint32_t *w = b[nt] + ks * 2;
#pragma unroll
					for (int f = 0; f < C::dim_tiles; f++)
						elem<E>::mma(acc.o[nt][f], a[f][ks], w[0], w[1]);
					elem<E>::mma(acc.l[nt], ones, w[0], w[1]);
				}
		}
	}

	/* Waits for the slots of a step's next kind; of one tile alone, which is the step's last,
	 * both are its own. */
	__device__ __forceinline__ void wait_slots(bool is_whole, slot_at slots[STEP_TILES])
	{
		mbar_wait(smem.full(ring.i), ring.round);
		slots[0] = slots[1] = {smem.slot(ring.i), smem.scales(ring.i)};
		if (!is_likely(is_whole))
			return;
		ring_at second = ring;
		second.next(C::n_slot);
		mbar_wait(smem.full(second.i), second.round);
		slots[1] = {smem.slot(second.i), smem.scales(second.i)};
	}

	/* Gives them back once `made`, which follows from all that was read of them, is there. An
	 * arrival alone overtakes reads that nothing has waited for, and while other warps' stores
	 * crowd their way these take longer than the slot's next keys. */
	__device__ __forceinline__ void release(bool is_whole, uint32_t made)
	{
		__syncwarp();
		for (int n = is_whole ? 2 : 1; n > 0; n--) {
			if (lane == 0 || C::slot_arrivals == N_CONSUMER)
				mbar_arrive(smem.empty(ring.i) + (made & none));
			ring.next(C::n_slot);
		}
	}

	/* The tiles [t, end) of a step: as its last ones. */
	__device__ __forceinline__ void step(int32_t t, int32_t end)
	{
		static_assert(STEP_TILES == 2);
		float s[STEP_TILES][NT][4];
		slot_at slots[STEP_TILES];
		bool is_whole = end - t == STEP_TILES;
		wait_slots(is_whole, slots);
		scores(s, slots);
		release(is_whole, __float_as_uint(s[0][0][0]) | __float_as_uint(s[1][0][0]));
		if (args.score.is_prepared()) {
			prepare_scores(s[0]);
			prepare_scores(s[1]);
		}
		if (!is_likely(is_whole && t >= inner.begin && end <= inner.end)) {
			mask(s[0], is_whole ? t : -1);
			mask(s[1], end - 1);
		}
		put_maxima(s);
		named_barrier(CONSUMERS, N_CONSUMER);
		weights(s);
		named_barrier(CONSUMERS, N_CONSUMER);
		wait_slots(is_whole, slots);
		if (!is_likely(t * TILE >= keys.begin && end * TILE <= keys.end)) {
			if (is_whole)
				clear_unseen(slots[0], t);
			clear_unseen(slots[1], end - 1);
			async_proxy_fence();
			named_barrier(CONSUMERS, N_CONSUMER);
		}
		if (is_likely(is_whole))
			products(0, slots);
		else
			products(1, slots);
		release(is_whole, acc.any());
		parity ^= 1;
	}

	/* Calls put(row of the item, dim, values of it and the next, sum) for pairs of what
	 * this thread holds of `a`, or it and that of the next dim: each has one of their rows. */
	template <typename F>
	__device__ __forceinline__ void each(const accum<D, NT, PACKED> &a, F put) const
	{
		int at = opaque(lane), odd = at >> 2 & 1;
#pragma unroll
		for (int nt = 0; nt < NT; nt++)
#pragma unroll
			for (int i = 0; i < C::dim_tiles * 2; i++) {
				const float *o = a.o[nt][i / 2] + (PACKED ? i % 2 : i % 2 * 2);
				int32_t row = row_of(nt, PACKED ? i % 2 : odd);
				int32_t dim = own_dim() + (PACKED ? i / 2 * 16 + (at >> 2) * 2
								  : i * 8 + (at >> 3) * 2);
				float x = o[0], y = PACKED ? o[2] : o[1], l = a.l[nt][i % 2];
				if constexpr (!PACKED) {
					float other = __shfl_xor_sync(~0u, odd ? o[0] : o[1], 4);
					x = odd ? other : x;
					y = odd ? y : other;
					l = odd ? a.l[nt][1] : a.l[nt][0];
				}
				if (row < p->n_row)
					put(row, dim, x, y, l);
			}
	}

	/* Rows have places by twos. */
	__device__ void put_partial(const accum<D, NT, PACKED> &a, float *slot) const
	{
		int32_t rows = args.slot_len / (D + 2);
		each(a, [&](int32_t row, int32_t dim, float x, float y, float) {
			__stcg(reinterpret_cast<float2 *>(slot + row * D + dim), make_float2(x, y));
		});
#pragma unroll
		for (int nt = 0; nt < NT; nt++)
			if (threadIdx.x < 4 && row_of(nt, 0) < p->n_row) {
				float *m = slot + rows * D + row_of(nt, 0), *l = m + rows;
				__stcg(reinterpret_cast<float2 *>(m),
					make_float2(a.m[nt][0], a.m[nt][1]));
				__stcg(reinterpret_cast<float2 *>(l),
					make_float2(a.l[nt][0], a.l[nt][1]));
			}
	}

	/* Where the entries of a split item's chunk lie. */
	__device__ __forceinline__ entry_place<D> place(int32_t chunk) const
	{
		int64_t at = (int64_t)p->split * args.entry_chunks + chunk - p->partials.begin;
		return {args.entries + at * args.entries_len, args.slot_len / (D + 2)};
	}

	__device__ void put_entries(const accum<D, NT, PACKED> &a, int32_t chunk) const
	{
		entry_place<D> place = this->place(chunk);
		each(a, [&](int32_t row, int32_t dim, float x, float y, float) {
			put_entry(place.o(row, dim), x, y, launch);
		});
#pragma unroll
		for (int e = 0; e < 2; e++)
			if (threadIdx.x < 4 && row_of(0, e) < p->n_row)
				put_entry(place.sums(row_of(0, e)), a.m[0][e], a.l[0][e], launch);
	}

	__device__ void put_shared(const accum<D, NT, PACKED> &a, const out_rows &out) const
	{
		each(a, [&](int32_t row, int32_t dim, float x, float y, float) {
			__stcg(reinterpret_cast<float2 *>(out.shared<D>(row) + dim),
				make_float2(x, y));
		});
#pragma unroll
		for (int nt = 0; nt < NT; nt++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				if (threadIdx.x < 4 && row_of(nt, e) < p->n_row)
					__stcg(reinterpret_cast<float2 *>(
						       out.shared<D>(row_of(nt, e)) + D),
						make_float2(a.m[nt][e], a.l[nt][e]));
	}

	/* What a prefix has of the item's rows, in place of the chunks that it stands for. */
	__device__ void get_shared(accum<D, NT, PACKED> &a) const
	{
		out_rows from(args, *p);
		from.out = reinterpret_cast<char *>(args.shared);
		int32_t dim0 = own_dim() + (lane >> 2) * (PACKED ? 2 : 1);
#pragma unroll
		for (int nt = 0; nt < NT; nt++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				if (row_of(nt, e) >= p->n_row)
					continue;
				const float *o = from.shared<D>(row_of(nt, e));
				float2 ml = __ldcg(reinterpret_cast<const float2 *>(o + D));
				a.m[nt][e] = ml.x;
				a.l[nt][e] = ml.y;
#pragma unroll
				for (int i = 0; i < C::dim_tiles * 2; i++)
					a.o[nt][i / 2][i % 2 * 2 + e] = __ldcg(
						o + dim0 + (PACKED ? i / 2 * 16 + i % 2 : i * 8));
			}
	}

	__device__ void put_rows(const accum<D, NT, PACKED> &a) const
	{
		out_rows out(args, *p);
		if (out.is_shared)
			return put_shared(a, out);
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

	/* Is the merge of the item's partials shared by its runs? */
	__device__ __forceinline__ bool is_shared() const
	{
		return p->partials.end - p->partials.begin > ALONE_CHUNKS;
	}

	/* Are partials left as entries? Where few runs have many slices, one block of threads folds
	 * them sooner than a few warps. */
	__device__ __forceinline__ bool leaves_entries() const
	{
		int32_t n_warp = (p->n_run - 1) * N_WARP;
		return NT == 1 && p->partials.end - p->partials.begin <= ENTRY_CHUNKS &&
		       p->n_row * (D / ENTRY_DIMS) <= n_warp * WARP_SLICES;
	}

	__device__ __forceinline__ uint64_t *launches() const
	{
		return args.launches + blockIdx.x * N_WARP + warp;
	}

	__device__ void run_piece(const ring_at &q_ring);
	__device__ void fold_entries();
	__device__ bool count_done(split_state *state) const;
	__device__ slice_claims claims(split_state *state) const;
	__device__ void arrive();
};

/* A chunk at a time: folded where the item's first tile is ours, else left as a partial. What is
 * folded of an item that goes on takes the place of its last chunk. */
template <typename E, int D, int NT, bool PACKED>
__device__ __forceinline__ void consumer<E, D, NT, PACKED>::run_piece(const ring_at &q_ring)
{
	tile_range tiles = p->tiles;
	bool begins = p->run.begin == p->line.begin, ends = p->run.end == p->line.end;
	bool by_entry = !(begins && ends) && leaves_entries();
	bool goes_on = begins && args.shape.part == OWN_KEYS && p->seq.n_shared > 0;
	int32_t chunk0 = tile_chunk(p->line.begin), t = tiles.begin;
	int32_t stop = min(chunk_end(t), tiles.end);
	float *partial = slot(tile_chunk(t) - chunk0);
	accum<D, NT, PACKED> total;
	total.reset();
	grid_wait();
	if (by_entry)
		launch = ld_relaxed(launches()) + 1;
	mbar_wait(smem.q_full(q_ring.i), q_ring.round);
	take_q(smem.q(q_ring.i));
	if (goes_on)
		get_shared(total);
	for (; t < tiles.end; stop = min(chunk_end(stop), tiles.end)) {
		acc.reset();
		for (int32_t end; t < stop; t = end) {
			end = min(step_end(t), stop);
			step(t, end);
		}
		if (begins)
			total.fold_chunk(acc);
		else if (by_entry)
			put_entries(acc, tile_chunk(stop - 1));
		else
			put_partial(acc, partial);
		partial += args.slot_len;
	}
	if (begins && ends) {
		put_rows(total);
	} else if (by_entry) {
		if (begins && tile_chunk(p->run.end - 1) >= p->partials.begin)
			put_entries(total, tile_chunk(p->run.end - 1));
		fold_entries();
	} else {
		if (begins)
			put_partial(total, slot(tile_chunk(p->run.end - 1) - chunk0));
		arrive();
	}
}

/* This warp's part of the fold of a split item, whose entries it has left. */
template <typename E, int D, int NT, bool PACKED>
__device__ __forceinline__ void consumer<E, D, NT, PACKED>::fold_entries()
{
	if constexpr (NT == 1) {
		entry_place<D> first = place(p->partials.begin);
		entry_job job = {first.at, args.entries_len, first.rows,
			p->partials.end - p->partials.begin, launch, out_rows(args, *p)};
		entry_merger<E, D> merger(job, args.splits + p->split, p->run, p->line);
		merger.run(p->index, p->n_run);
	}
}

/* Counts the run's tiles of an item as done; true when all of the item's are. A run that has no
 * more work waits a little for that where it may take part in what follows. */
template <typename E, int D, int NT, bool PACKED>
__device__ bool consumer<E, D, NT, PACKED>::count_done(split_state *state) const
{
	uint32_t n = p->run.end - p->run.begin, all = p->line.end - p->line.begin;
	bool done = count_in_order(&state->done, n) + n == all;
	int n_look = is_shared() && p->run.end < p->line.end ? MAX_LOOKS : 0;
	for (int i = 0; i < n_look && !done; i++)
		done = look_in_order(&state->done) == all;
	return done;
}

template <typename E, int D, int NT, bool PACKED>
__device__ __forceinline__ slice_claims consumer<E, D, NT, PACKED>::claims(split_state *state) const
{
	return {state, (uint32_t)p->n_row * (D / C::slice), (uint32_t)(p->run.end - p->run.begin),
		(uint32_t)(p->line.end - p->line.begin)};
}

/* A run is through with its part of a split item: few partials are folded by the last to arrive,
 * of many each run that is there then takes slices. */
template <typename E, int D, int NT, bool PACKED>
__device__ void consumer<E, D, NT, PACKED>::arrive()
{
	__shared__ uint32_t is_done;
	split_state *state = args.splits + p->split;
	named_barrier(CONSUMERS, N_CONSUMER);
	if (threadIdx.x == 0)
		is_done = count_done(state);
	named_barrier(CONSUMERS, N_CONSUMER);
	if (is_done && is_shared())
		return merge_slices<E, D, NT, PACKED>(smem, merge_job(args, *p), claims(state));
	if (is_done)
		merge<E, D, NT, PACKED>(smem, merge_job(args, *p));
	if (threadIdx.x > 0)
		return;
	if (is_shared())
		claims(state).leave();
	else if (is_done)
		state->done = 0;
}

template <typename E, int D, int NT, bool PACKED>
__device__ void consume(
	const decode_args &args, const layout<D, NT, PACKED> &smem, const piece *pieces)
{
	consumer<E, D, NT, PACKED> c(args, smem);
	for (ring_at q_ring;; q_ring.next(2)) {
		mbar_wait(smem.piece_full(q_ring.i), q_ring.round);
		if (pieces[q_ring.i].item < 0)
			break;
		c.begin_piece(&pieces[q_ring.i]);
		c.run_piece(q_ring);
		mbar_arrive(smem.q_empty(q_ring.i));
	}
	if (NT == 1 && threadIdx.x % 32 == 0)
		count_up(args.launches + blockIdx.x * N_WARP + threadIdx.x / 32);
}

} // namespace nsv

#endif
