/* Paged attention for few query rows a sequence: reads the history once, at the rate of memory.
 *
 * A block of threads takes a run of the plan's line (work.cuh): for each item, a tile of rows
 * (query row, head of the group) x the keys of one KV head.
 *
 *     producer warp   block table -> boxes of K and V -> ring of slots (64 keys each, swizzled)
 *     4 consumer      S = Q K^T, 16 keys of a tile a warp | row maxima through shared memory |
 *     warps           P to shared memory | O += P V, a quarter of the dims a warp
 *
 *     slot: panels of 64 dims; a row is 128 bytes, its 16-byte pieces at piece ^ (row % 8)
 *     ring: K0 K1 V0 V1 | K2 K3 V2 V3 ... by steps, each slot with a full and an empty barrier
 *
 * Chunks are folded in order (order.cuh). A run that holds an item from its first tile folds as it
 * goes; one that enters an item in the middle leaves a partial a chunk; once all of an item's runs
 * have arrived its partials are folded (decode_merge.cuh). Integer counters only; no order depends
 * on who comes when, and nobody waits for anyone without end.
 *
 * Floor: 2 * n_kv * n_kv_head * head_dim * 2 bytes a sequence at the device's read rate; products
 * are 4 * 16 / group times what is needed and still a third of what the units do in that time. */
#include "kernels/cuda/decode_load.cuh"
#include "kernels/cuda/decode_merge.cuh"
#include "kernels/cuda/decode_packed.cuh"
#include "kernels/cuda/launch.cuh"

namespace nsv
{

constexpr int MAX_LOOKS = 64; /* for the other runs of an item, once ours is over */

/* Running values of a thread: rows lane/4 and lane/4 + 8 of each row tile, its warp's dims. */
template <int D, int MT, bool PACKED> struct accum {
	using C = config<D, MT, PACKED>;
	float o[MT][C::n_frag][4];
	float l[MT][4]; /* l[0] and l[2] are the sums of the two rows */
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
			fold_factors f[2] = {
				fold(m[mt][0], chunk.m[mt][0]), fold(m[mt][1], chunk.m[mt][1])};
#pragma unroll
			for (int n = 0; n < C::n_frag; n++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					o[mt][n][e] =
						fold_in(o[mt][n][e], chunk.o[mt][n][e], f[e / 2]);
			l[mt][0] = fold_in(l[mt][0], chunk.l[mt][0], f[0]);
			l[mt][2] = fold_in(l[mt][2], chunk.l[mt][2], f[1]);
			m[mt][0] = f[0].m;
			m[mt][1] = f[1].m;
		}
	}
};

template <typename E, int D, int MT, bool PACKED> struct consumer {
	using C = config<D, MT, PACKED>;
	const decode_args &args;
	const layout<D, MT, PACKED> &smem;
	const piece *p = nullptr; /* the piece in hand, in shared memory */
	tile_range keys, inner;	  /* of it */
	uint32_t q_buf;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t q[C::q_in_regs ? D / 16 : 1][4];
	ring_at ring;
	int parity = 0;
	uint32_t none = (uint32_t)args.n_head >> 31; /* 0, which the compiler does not know */
	accum<D, MT, PACKED> acc;

	__device__ consumer(const decode_args &a, const layout<D, MT, PACKED> &s) : args(a), smem(s)
	{
	}

	/* A of q.k: slice ks of a tile of rows. */
	__device__ __forceinline__ void q_frag(uint32_t a[4], int mt, int ks) const
	{
		uint32_t panel = q_buf + ks / 4 * (C::rows * ROW_BYTES);
		if constexpr (PACKED)
			packed_q_frag(a, panel, mt, ks);
		else
			ldmatrix_x4(a,
				panel + swizzle(mt * 16 + (lane & 15), ks % 4 * 2 + (lane >> 4)));
	}

	/* Of four dims a lane. */
	__device__ __forceinline__ void packed_q_frag(
		uint32_t a[4], uint32_t panel, int mt, int ks) const
	{
#pragma unroll
		for (int half = 0; half < 2; half++) {
			uint32_t row = mt * 16 + half * 8 + (lane >> 2);
			float2 x = ld_shared2(panel + swizzle(row, ks % 4 * 2 + (lane >> 1 & 1)) +
					      (lane & 1) * 8);
			a[half] = __float_as_uint(x.x);
			a[half + 2] = __float_as_uint(x.y);
		}
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
				q_frag(q[ks], 0, ks);
		}
	}

	/* B of q.k: N slices from k0 on of this warp's first 8 keys, and of the others. */
	template <int N> __device__ __forceinline__ void key_frags(uint32_t b[N][4], int k0) const
	{
		uint32_t slot = smem.slot(ring.i), half = lane >> 3 & 1;
		uint32_t row = warp * 16 + (lane & 7) + (lane >> 4 << 3);
		if constexpr (PACKED)
			packed_key_frags<N>(b, slot, row, k0 + half);
		else
#pragma unroll
			for (int i = 0; i < N; i++)
				ldmatrix_x4(b[i], smem.piece_at(slot, row, (k0 + i) * 2 + half));
	}

	template <int N>
	__device__ __forceinline__ void packed_key_frags(
		uint32_t b[N][4], uint32_t slot, uint32_t row, uint32_t piece) const
	{
		uint32_t x[N / 2][4], scales[2];
#pragma unroll
		for (int i = 0; i < N / 2; i++)
			ldmatrix_x4(x[i], smem.piece_at(slot, row, piece + i * 2));
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float scale = ld_shared(
				smem.scales(ring.i) + (warp * 16 + h * 8 + (lane >> 2)) * 4);
			scales[h] = widening<E>::scales(scale, scale);
		}
#pragma unroll
		for (int i = 0; i < N; i++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				uint32_t bytes = x[i / 2][h * 2 + i % 2];
				b[i][h * 2] = widen<E, 0, 1>(bytes, scales[h]);
				b[i][h * 2 + 1] = widen<E, 2, 3>(bytes, scales[h]);
			}
	}

	/* S of this warp's 16 keys. */
	__device__ __forceinline__ void scores(float s[MT][2][4])
	{
		/* Slices whose fragments are under way. */
		constexpr int batch = MT == 1 && D > 64 ? 8 : 4;
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int e = 0; e < 8; e++)
				s[mt][e / 4][e % 4] = 0.0f;
#pragma unroll
		for (int k0 = 0; k0 < D / 16; k0 += batch) {
			uint32_t b[batch][4];
			key_frags<batch>(b, k0);
#pragma unroll
			for (int i = 0; i < batch; i++)
#pragma unroll
				for (int mt = 0; mt < MT; mt++) {
					uint32_t a[4];
					if constexpr (!C::q_in_regs)
						q_frag(a, mt, k0 + i);
					const uint32_t *qa = C::q_in_regs ? q[k0 + i] : a;
					elem<E>::mma(s[mt][0], qa, b[i][0], b[i][1]);
					elem<E>::mma(s[mt][1], qa, b[i][2], b[i][3]);
				}
		}
	}

	__device__ __forceinline__ void prepare_scores(float s[MT][2][4])
	{
		if (!args.score.is_prepared())
			return;
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int e = 0; e < 8; e++)
				s[mt][e / 4][e % 4] = args.score.prepared(s[mt][e / 4][e % 4]);
	}

	/* The scores of keys that no row sees. */
	__device__ __forceinline__ void no_scores(float s[MT][2][4])
	{
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int e = 0; e < 8; e++)
				s[mt][e / 4][e % 4] = -INFINITY;
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
	__device__ __forceinline__ void put_maxima(float s[STEP_TILES][MT][2][4])
	{
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				float x = -INFINITY;
#pragma unroll
				for (int i = 0; i < STEP_TILES * 4; i++)
					x = fmaxf(x, s[i / 4][mt][i / 2 % 2][half * 2 + i % 2]);
				x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
				x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
				uint32_t row = mt * 16 + half * 8 + (lane >> 2);
				if ((lane & 3) == 0)
					st_shared(smem.row_max(parity) + (row * N_WARP + warp) * 4,
						x);
			}
	}

	__device__ __forceinline__ float get_maximum(int mt, int half) const
	{
		uint32_t row = mt * 16 + half * 8 + (lane >> 2);
		float4 x = ld_shared4(smem.row_max(parity) + row * N_WARP * 4);
		return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
	}

	/* New references from all maxima; P of this warp's keys to shared memory. */
	__device__ __forceinline__ void weights(float s[STEP_TILES][MT][2][4])
	{
#pragma unroll
		for (int mt = 0; mt < MT; mt++) {
			float f[2];
#pragma unroll
			for (int half = 0; half < 2; half++) {
				float m = next_ref(acc.m[mt][half],
					__fmul_rn(get_maximum(mt, half), args.score.factor));
				f[half] = exp2_fast(__fsub_rn(acc.m[mt][half], m));
				acc.m[mt][half] = m;
				uint32_t row = mt * 16 + half * 8 + (lane >> 2);
#pragma unroll
				for (int i = 0; i < STEP_TILES * 2; i++) {
					const float *x = &s[i / 2][mt][i % 2][half * 2];
					uint32_t w = elem<E>::pack(args.score.weight(x[0], m),
						args.score.weight(x[1], m));
					uint32_t at = smem.p(parity, i / 2) +
						      swizzle(row, warp * 2 + i % 2) +
						      (lane & 3) * 4;
					st_shared(at, __uint_as_float(w));
				}
			}
			if (__any_sync(~0u, f[0] != 1.0f || f[1] != 1.0f))
				acc.scale(mt, f[0], f[1]);
		}
	}

	/* Keys of a V slot that no row sees may hold anything: make them, or their scales where
	 * these are what may be no number, zeros. */
	__device__ __forceinline__ void clear_unseen(int32_t tile)
	{
		int32_t begin = keys.begin - tile * TILE, end = keys.end - tile * TILE;
		if (begin <= 0 && end >= TILE)
			return;
		uint32_t at = PACKED ? smem.scales(ring.i) : smem.slot(ring.i);
		constexpr int n = PACKED ? TILE : C::slot_bytes / 16;
		for (int i = threadIdx.x; i < n; i += N_CONSUMER) {
			int32_t row = PACKED ? i : i / 8 % TILE;
			if (row >= begin && row < end)
				continue;
			if constexpr (PACKED)
				st_shared(at + i * 4, 0.0f);
			else
				st_shared(at + i * 16, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
		}
		async_proxy_fence();
		named_barrier(CONSUMERS, N_CONSUMER);
	}

	/* B of P V: slice ks of a tile's keys, for all dims of this warp. `bytes`: those of two
	 * slices, read with the first. */
	__device__ __forceinline__ void value_frags(
		uint32_t b[C::n_frag / 2][4], uint32_t bytes[C::n_frag / 2][4], int ks) const
	{
		if constexpr (PACKED)
			packed_value_frags(b, bytes, ks);
		else
#pragma unroll
			for (int f = 0; f < C::n_frag / 2; f++)
				ldmatrix_x4_trans(b[f],
					smem.piece_at(smem.slot(ring.i), ks * 16 + (lane & 15),
						(warp * C::n_frag / 2 + f) * 2 + (lane >> 4)));
	}

	__device__ __forceinline__ void packed_value_frags(
		uint32_t b[C::n_frag / 2][4], uint32_t bytes[C::n_frag / 2][4], int ks) const
	{
		uint32_t slot = smem.slot(ring.i);
		if (ks % 2 == 0)
#pragma unroll
			for (int f = 0; f < C::n_frag / 2; f++)
				ldmatrix_x4_trans(bytes[f], smem.piece_at(slot, ks * 16 + lane,
								    warp * C::n_frag / 2 + f));
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float2 scale = ld_shared2(
				smem.scales(ring.i) + (ks * 16 + h * 8 + (lane & 3) * 2) * 4);
			uint32_t scales = widening<E>::scales(scale.x, scale.y);
#pragma unroll
			for (int f = 0; f < C::n_frag / 2; f++) {
				b[f][h] = widen<E, 0, 2>(bytes[f][ks % 2 * 2 + h], scales);
				b[f][h + 2] = widen<E, 1, 3>(bytes[f][ks % 2 * 2 + h], scales);
			}
		}
	}

	/* O += P V and l += P 1 of tile i of a step, on this warp's dims. Returns what follows from all
	 * of V that it read. */
	__device__ __forceinline__ uint32_t products(int i)
	{
		uint32_t ones = elem<E>::ones, bytes[C::n_frag / 2][4];
#pragma unroll
		for (int ks = 0; ks < TILE / 16; ks++) {
			uint32_t a[MT][4], b[C::n_frag / 2][4];
#pragma unroll
			for (int mt = 0; mt < MT; mt++)
				ldmatrix_x4(
					a[mt], smem.p(parity, i) + swizzle(mt * 16 + (lane & 15),
									   ks * 2 + (lane >> 4)));
			value_frags(b, bytes, ks);
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
		uint32_t made = 0;
#pragma unroll
		for (int f = 0; f < C::n_frag / 2; f++)
			made |= __float_as_uint(acc.o[0][f * 2][0]);
		return made;
	}

	/* Gives the slot back once `made`, which follows from all that was read of it, is there: an
	 * arrival alone goes before the products, while reads of the slot are still under way. */
	__device__ __forceinline__ void release(uint32_t made)
	{
		__syncwarp();
		if (lane == 0)
			mbar_arrive(smem.empty(ring.i) + (made & none));
		ring.next(C::n_slot);
	}

	__device__ __forceinline__ void tile_scores(float s[MT][2][4], int32_t t)
	{
		mbar_wait(smem.full(ring.i), ring.round);
		scores(s);
		release(__float_as_uint(s[0][0][0]));
		prepare_scores(s);
		if (is_edge(t))
			mask(s, t);
	}

	/* The tiles [t, end) of a step: as its last ones. */
	__device__ __forceinline__ void step(int32_t t, int32_t end)
	{
		float s[STEP_TILES][MT][2][4];
#pragma unroll
		for (int i = 0; i < STEP_TILES; i++)
			if (end - STEP_TILES + i >= t)
				tile_scores(s[i], end - STEP_TILES + i);
			else
				no_scores(s[i]);
		put_maxima(s);
		named_barrier(CONSUMERS, N_CONSUMER);
		weights(s);
		named_barrier(CONSUMERS, N_CONSUMER);
#pragma unroll 1
		for (; t < end; t++) {
			mbar_wait(smem.full(ring.i), ring.round);
			clear_unseen(t);
			release(products(STEP_TILES - (end - t)));
		}
		parity ^= 1;
	}

	/* The first of two dims of O that a thread has next to each other: pair f, of lane `at`. */
	__device__ __forceinline__ int32_t pair_dim(int f, int at) const
	{
		return warp * C::dims_warp +
		       (PACKED ? f / 2 * 16 + (at & 3) * 4 + f % 2 * 2 : f * 8 + (at & 3) * 2);
	}

	/* One of its two values, in the upper or lower row. */
	template <typename A>
	static __device__ __forceinline__ auto &pair_value(A &a, int mt, int half, int f, int i)
	{
		return PACKED ? a.o[mt][f / 2 * 2 + i][half * 2 + f % 2] : a.o[mt][f][half * 2 + i];
	}

	/* Calls put(row of the item, dim, two values) for what this thread holds of `a`. */
	template <typename F>
	__device__ __forceinline__ void each(const accum<D, MT, PACKED> &a, F put) const
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
					put(row, pair_dim(f, at), pair_value(a, mt, half, f, 0),
						pair_value(a, mt, half, f, 1), a.l[mt][half * 2]);
			}
	}

	__device__ void put_partial(const accum<D, MT, PACKED> &a, float *slot) const
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

	__device__ void put_shared(const accum<D, MT, PACKED> &a, const out_rows &out) const
	{
		each(a, [&](int32_t row, int32_t dim, float x, float y, float) {
			__stcg(reinterpret_cast<float2 *>(out.shared<D>(row) + dim),
				make_float2(x, y));
		});
		int at = opaque(lane);
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				int32_t row = mt * 16 + half * 8 + (at >> 2);
				if (warp == 0 && (at & 3) == 0 && row < p->n_row)
					__stcg(reinterpret_cast<float2 *>(out.shared<D>(row) + D),
						make_float2(a.m[mt][half], a.l[mt][half * 2]));
			}
	}

	/* What a prefix has of the item's rows, in place of the chunks that it stands for. */
	__device__ void get_shared(accum<D, MT, PACKED> &a) const
	{
		out_rows from(args, *p);
		from.out = reinterpret_cast<char *>(args.shared);
		int at = opaque(lane);
#pragma unroll
		for (int mt = 0; mt < MT; mt++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				int32_t row = mt * 16 + half * 8 + (at >> 2);
				if (row >= p->n_row)
					continue;
				const float *o = from.shared<D>(row);
				float2 ml = __ldcg(reinterpret_cast<const float2 *>(o + D));
				a.m[mt][half] = ml.x;
				a.l[mt][half * 2] = ml.y;
#pragma unroll
				for (int f = 0; f < C::n_frag; f++) {
					float2 x = __ldcg(reinterpret_cast<const float2 *>(
						o + pair_dim(f, at)));
					pair_value(a, mt, half, f, 0) = x.x;
					pair_value(a, mt, half, f, 1) = x.y;
				}
			}
	}

	__device__ void put_rows(const accum<D, MT, PACKED> &a) const
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

	__device__ void run_piece();
	__device__ bool count_done(split_state *state) const;
	__device__ void leave(split_state *state) const;
	__device__ void take_slices(split_state *state, const merge_job &job);
	__device__ void arrive();
};

/* A chunk at a time: folded where the item's first tile is ours, else left as a partial. What is
 * folded of an item that goes on takes the place of its last chunk. */
template <typename E, int D, int MT, bool PACKED>
__device__ void consumer<E, D, MT, PACKED>::run_piece()
{
	tile_range tiles = p->tiles;
	bool begins = p->run.begin == p->line.begin, ends = p->run.end == p->line.end;
	int32_t chunk0 = tile_chunk(p->line.begin);
	accum<D, MT, PACKED> total;
	total.reset();
	if (begins && args.shape.part == OWN_KEYS && p->seq.n_shared > 0)
		get_shared(total);
	for (int32_t t = tiles.begin; t < tiles.end;) {
		int32_t stop = min(chunk_end(t), tiles.end), chunk = tile_chunk(t);
		acc.reset();
		for (int32_t end; t < stop; t = end) {
			end = min(step_end(t), stop);
			step(t, end);
		}
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

/* Counts the run's tiles of an item as done; true when all of the item's are. A run that has no
 * more work waits a little for that where it may take part in what follows. */
template <typename E, int D, int MT, bool PACKED>
__device__ bool consumer<E, D, MT, PACKED>::count_done(split_state *state) const
{
	uint32_t n = p->run.end - p->run.begin, all = p->line.end - p->line.begin;
	__threadfence();
	bool done = atomicAdd(&state->done, n) + n == all;
	int n_look = is_shared() && p->run.end < p->line.end ? MAX_LOOKS : 0;
	for (int i = 0; i < n_look && !done; i++) {
		__nanosleep(64);
		done = *(volatile uint32_t *)&state->done == all;
	}
	__threadfence();
	return done;
}

/* The last run to be through with an item leaves its state as it was. */
template <typename E, int D, int MT, bool PACKED>
__device__ void consumer<E, D, MT, PACKED>::leave(split_state *state) const
{
	uint32_t n = p->run.end - p->run.begin, all = p->line.end - p->line.begin;
	__threadfence();
	if (atomicAdd(&state->left, n) + n == all)
		*state = {0, 0, 0};
}

/* Takes slices of the merge until there are none. */
template <typename E, int D, int MT, bool PACKED>
__device__ void consumer<E, D, MT, PACKED>::take_slices(split_state *state, const merge_job &job)
{
	__shared__ uint32_t next;
	for (uint32_t n_slice = (job.n_row * D + SLICE - 1) / SLICE;;) {
		if (threadIdx.x == 0)
			next = atomicAdd(&state->taken, 1);
		named_barrier(CONSUMERS, N_CONSUMER);
		if (next >= n_slice)
			return;
		merge_slice<E, D, MT, PACKED>(smem, job, next);
	}
}

/* A run is through with its part of a split item: few partials are folded by the last to arrive,
 * of many each run that is there then takes slices. */
template <typename E, int D, int MT, bool PACKED>
__device__ void consumer<E, D, MT, PACKED>::arrive()
{
	__shared__ uint32_t is_done;
	split_state *state = args.splits + p->split;
	named_barrier(CONSUMERS, N_CONSUMER);
	if (threadIdx.x == 0)
		is_done = count_done(state);
	named_barrier(CONSUMERS, N_CONSUMER);
	if (is_done && is_shared())
		take_slices(state, merge_job(args, *p));
	else if (is_done)
		merge<E, D, MT, PACKED>(smem, merge_job(args, *p));
	if (threadIdx.x > 0)
		return;
	if (is_shared())
		leave(state);
	else if (is_done)
		state->done = 0;
}

template <typename E, int D, int MT, bool PACKED>
__device__ void consume(
	const decode_args &args, const layout<D, MT, PACKED> &smem, const piece *pieces)
{
	consumer<E, D, MT, PACKED> c(args, smem);
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

template <typename E, int D, int MT, bool PACKED>
__global__ void __launch_bounds__(N_THREAD, (config<D, MT, PACKED>::per_sm))
	decode_kernel(const __grid_constant__ decode_args args)
{
	using C = config<D, MT, PACKED>;
	extern __shared__ char raw[];
	__shared__ piece pieces[2];
	layout<D, MT, PACKED> smem = {(smem_addr(raw) + 1023) & ~1023u};
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
		producer<D, MT, PACKED>(args, smem, pieces).run();
	} else {
		grid_wait();
		grid_launch_next();
		consume<E, D, MT, PACKED>(args, smem, pieces);
	}
}

/* ---- Host */

using kernel_fn = void (*)(const decode_args);

struct instance {
	int32_t dim_pad, row_tiles, smem_bytes, per_sm;
	bool packed;
	kernel_fn fn[2]; /* bf16, fp16 */
};

template <int D, int MT, bool PACKED> constexpr instance make_instance()
{
	using C = config<D, MT, PACKED>;
	return {D, MT, C::smem_bytes, C::per_sm, PACKED,
		{decode_kernel<__nv_bfloat16, D, MT, PACKED>,
			decode_kernel<__half, D, MT, PACKED>}};
}

static const instance instances[] = {
	make_instance<64, 1, false>(),
	make_instance<64, 2, false>(),
	make_instance<64, 4, false>(),
	make_instance<128, 1, false>(),
	make_instance<128, 2, false>(),
	make_instance<128, 4, false>(),
	make_instance<256, 1, false>(),
	make_instance<256, 2, false>(),
	make_instance<64, 1, true>(),
	make_instance<64, 2, true>(),
	make_instance<64, 4, true>(),
	make_instance<128, 1, true>(),
	make_instance<128, 2, true>(),
	make_instance<128, 4, true>(),
	make_instance<256, 1, true>(),
	make_instance<256, 2, true>(),
};

static const instance *find_instance(const decode_config &config)
{
	for (const instance &i : instances)
		if (i.dim_pad == config.dim_pad && i.row_tiles == config.row_tiles &&
			i.packed == config.packed)
			return &i;
	return nullptr;
}

decode_config decode_choose(const nsv_attn_shape &shape, bool packed, uint64_t max_rows)
{
	int32_t dim_pad = shape.head_dim <= 64 ? 64 : shape.head_dim <= 128 ? 128 : 256;
	int32_t row_tiles = max_rows <= 16 ? 1 : max_rows <= 32 || dim_pad == 256 ? 2 : 4;
	return {shape.kv_dtype == NSV_F16, packed, dim_pad, row_tiles};
}

int decode_load()
{
	return load_instances(instances);
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
	launch_shape shape = {n_block, N_THREAD, i->smem_bytes, early};
	return launch_kernel(i->fn[config.f16], args, shape, stream);
}

} // namespace nsv
