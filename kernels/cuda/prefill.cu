/* Paged attention for many query rows a sequence: the products are the limit.
 *
 * An item is a tile of rows (query row, head of the group) x the keys of one KV head; items are
 * handed out by a counter, longest first among the heads whose keys the cache holds together. A
 * block of threads:
 *
 *     scheduler warp   next item -> one of two places
 *     loaders of K, V  block table -> boxes -> ring of stages (128 keys each, swizzled)
 *     loader of rows   a tile of q, once its scores of the item before are made; zeros where V has
 *                      keys that no row sees
 *     2 warpgroups     64 rows each: S = Q K^T | P = 2^(S f - m), in registers | O += P V
 *                      (3 for heads of up to 64 dims)
 *
 *     tensor cores     S1 O0 | S1' O0' | S2 O1 | ...      a warpgroup's products while the other
 *     the rest               | P1      | P1'   | ...      makes weights; they take turns
 *
 * The step after an item's last is the next item's first: S of the one beside O of the other. Its
 * q has a place of its own, where shared memory allows it.
 *
 * Where items are few they have the rows of one warpgroup, and the others of a block nothing to do:
 * a row's bits do not depend on its tile.
 *
 * A tile of rows is the heads of whole tokens, as q's boxes are: 63 of 64 rows where 3 heads share
 * keys. V has eight dims more than it has, all ones: their O is the sum of the weights. The panel
 * of ones is one for all stages; a product's panels are equally far apart, so V's panels of 64 keys
 * lie as far before it as they lie from each other.
 *
 * Above 128 dims O does not fit a warpgroup: both have the same 64 rows. Each makes S of half of a
 * step's keys; they share the rows' maxima and P by shared memory; each has half of the dims of O.
 *
 * S, P, O and what chunks are folded into fill the registers: some of the last lies in shared
 * memory, each warp's part its own.
 *
 * Chunks are folded in order (order.cuh): the same bits as decode, which has the same steps, k16
 * slices and roundings.
 *
 * A launch sets itself up while the one before it ends, and reads nothing before it has.
 *
 * Floor: 4 * rows * keys seen * head_dim operations at the rate of the tensor cores; K and V pass
 * through the second-level cache once an item. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefill_load.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace nsv
{

/* Named barriers: a warpgroup's turn, one each; or all warpgroups. */
constexpr uint32_t TURN = 1, MAXIMA = 4, WEIGHTS = 5, BEGUN = 6;
constexpr int FAR_READS = 4;

/* The end of the chunk that a step is in. */
__device__ __forceinline__ int32_t chunk_stop(int32_t step)
{
	return chunk_end(step * STEP_TILES) / STEP_TILES;
}

/* ---- Consumers */

/* Of a thread: rows lane/4 and lane/4 + 8 of its warp's 16. */
template <typename E, int D> struct prefill_consumer {
	using Z = sizes<D>;
	const prefill_args &args;
	const places<D> &smem;
	const item *items;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
	int group = __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0); /* the same in a warp */
	ring_at ring;		    /* the stage whose V comes next */
	ring_at next;		    /* the stage whose K comes next */
	bool is_late;		    /* that K was not there when last looked for */
	ring_at at;		    /* the item's place */
	ring_at q_at;		    /* where the next item's q comes */
	uint32_t q, q_step, q_done; /* of the group: q, its panels' distance, who gives it back */
	int32_t group_inverse = 65535 / args.shape.group + 1; /* of the heads that share keys */
	tile_range seen[2], inner; /* keys of the rows; steps of which the warp's rows see all */
	bool is_new;		   /* P is its chunk's first: O is to be set */
	int32_t step, end;	   /* whose scores were made last; of the item */
	int32_t stop;		   /* the step that the chunk ends before */
	float o[Z::n_acc], s[Z::n_score], m[2];
	float near[Z::n_near], sums[2], m_total[2]; /* the total, but for what is far */
	uint32_t p[Z::n_score / 2];
	int p_at = 0; /* the buffer that P is in, where groups share it */
	/* For how many groups this one arrives: all, where items have one tile of q and the others
	 * nothing to do; there are no turns then. */
	uint32_t n_arrive;

	__device__ prefill_consumer(const prefill_args &a, const places<D> &sm, const item *list)
	    : args(a), smem(sm), items(list)
	{
	}

	/* The tile of q and the unit of a stage's keys that S of the group is made from. */
	__device__ __forceinline__ int q_tile() const
	{
		return Z::wide ? 0 : group;
	}

	__device__ __forceinline__ int k_unit(int stage) const
	{
		return Z::wide ? group : stage;
	}

	/* Rows of a product, the heads of whole tokens. */
	__device__ __forceinline__ int32_t tile_rows() const
	{
		return args.shape.row_tile / Z::n_q;
	}

	/* The token of a row among those of an item's: exact below 65,536 / group rows. */
	__device__ __forceinline__ int32_t row_token(int32_t row) const
	{
		return row * group_inverse >> 16;
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

	/* The keys that a row of the group's sees. */
	__device__ __forceinline__ tile_range row_keys(const item &it, int32_t row) const
	{
		int32_t tok = it.tok0 + row_token(q_tile() * tile_rows() + row);
		int32_t pos = it.seq.n_past + tok;
		return {window_begin(args.shape, pos), pos + 1};
	}

	/* The item at its place, and its q: false where there is none. */
	__device__ __forceinline__ bool begin_item()
	{
		mbar_wait(smem.item_full(at.i), at.round);
		const item &it = items[at.i];
		if (it.kv_head < 0 || q_tile() >= it.n_q)
			return false;
		int32_t row = warp * 16;
		seen[0] = row_keys(it, row + (lane >> 2));
		seen[1] = row_keys(it, row + (lane >> 2) + 8);
		tile_range first = row_keys(it, row), last = row_keys(it, row + 15);
		inner = {(last.begin + STEP_KEYS - 1) / STEP_KEYS, first.end / STEP_KEYS};
		step = it.steps.begin;
		end = it.steps.end;
		mbar_wait(smem.q_full(q_at.i, q_tile()), q_at.round);
		q = smem.q(q_at.i, q_tile());
		q_step = smem.q_step(q_at.i, q_tile());
		q_done = smem.q_empty(q_at.i, q_tile());
		q_at.next(Z::n_ahead);
		return true;
	}

	__device__ __forceinline__ void clear_total()
	{
#pragma unroll
		for (int i = 0; i < Z::n_far; i++)
			st_shared(far(i), make_float4(0.0f, 0.0f, 0.0f, 0.0f));
#pragma unroll
		for (int i = 0; i < Z::n_near; i++)
			near[i] = 0.0f;
		sums[0] = sums[1] = 0.0f;
		m_total[0] = m_total[1] = M_NONE;
	}

	__device__ __forceinline__ void release(uint32_t empty) const
	{
		__syncwarp();
		if (lane == 0)
			mbar_arrive(empty, n_arrive);
	}

	/* S of the group's keys of a stage: begun. */
	__device__ __forceinline__ void begin_scores(int stage)
	{
#pragma unroll
		for (int panel = 0; panel < Z::n_panel; panel++) {
			uint32_t a = wgmma_at(q + panel * q_step, 16),
				 b = wgmma_at(smem.k(k_unit(stage), panel), 16);
#pragma unroll
			for (int ks = 0; ks < PANEL_DIMS / 16; ks++)
				wgmma<E>::qk(s, wgmma_move(a, ks * 32), wgmma_move(b, ks * 32),
					panel + ks > 0);
		}
		wgmma_commit();
	}

	__device__ __forceinline__ void wait_values() const
	{
#pragma unroll
		for (int i = 0; i < Z::step_units; i++)
			mbar_wait(smem.v_full(ring.i * Z::step_units + i), ring.round);
	}

	__device__ __forceinline__ void release_values(int stage) const
	{
#pragma unroll
		for (int i = 0; i < Z::step_units; i++)
			release(smem.v_empty(stage * Z::step_units + i));
	}

	/* O += P V of the keys of a stage, and its sums: begun. */
	__device__ __forceinline__ void begin_products(int stage)
	{
#pragma unroll
		for (int i = 0; i < STEP_TILES; i++) {
			int tile = stage * STEP_TILES + i, half = Z::wide ? group : 0;
			uint32_t a = Z::wide ? wgmma_at(smem.p(p_at, i), 16) : 0;
			uint32_t b = wgmma_at(smem.v(tile, half * Z::dims / PANEL_DIMS),
				smem.v_step(smem.v_pair(tile, half)));
#pragma unroll
			for (int ks = 0; ks < TILE / 16; ks++) {
				uint32_t v = wgmma_move(b, ks * 16 * ROW_BYTES);
				bool add = i + ks > 0 || !is_new;
				if constexpr (Z::wide)
					wgmma<E>::pv(o, wgmma_move(a, ks * 32), v, add);
				else
					wgmma<E>::pv(o, p + i * 16 + ks * 4, v, add);
			}
		}
		wgmma_commit();
	}

	/* Nothing is done to the step's S before its maxima are taken. */
	__device__ __forceinline__ bool is_plain() const
	{
		return !args.score.is_prepared() && step >= inner.begin && step < inner.end;
	}

	__device__ __forceinline__ void prepare_scores()
	{
		if (!args.score.is_prepared())
			return;
#pragma unroll
		for (int i = 0; i < Z::n_score; i++)
			s[i] = args.score.prepared(s[i]);
	}

	/* The first key of S that the thread has, counted from a row's. */
	__device__ __forceinline__ int32_t key_from(int32_t key) const
	{
		return step * STEP_KEYS + (Z::wide ? group * Z::keys : 0) + (lane & 3) * 2 - key;
	}

	__device__ __forceinline__ void mask()
	{
		if (step >= inner.begin && step < inner.end)
			return;
		int32_t end[2] = {key_from(seen[0].end), key_from(seen[1].end)};
#pragma unroll
		for (int i = 0; i < Z::n_score; i++)
			s[i] = i / 4 * 8 + i % 2 < -end[i / 2 % 2] ? s[i] : -INFINITY;
		if (is_likely(step >= inner.begin))
			return;
		int32_t begin[2] = {key_from(seen[0].begin), key_from(seen[1].begin)};
#pragma unroll
		for (int i = 0; i < Z::n_score; i++)
			s[i] = i / 4 * 8 + i % 2 >= -begin[i / 2 % 2] ? s[i] : -INFINITY;
	}

	__device__ __forceinline__ float thread_maximum(int half) const
	{
		float x[2] = {s[half * 2], s[half * 2 + 1]};
#pragma unroll
		for (int i = 4; i < Z::n_score; i += 4) {
			x[0] = fmaxf(x[0], s[i + half * 2]);
			x[1] = fmaxf(x[1], s[i + half * 2 + 1]);
		}
		return fmaxf(x[0], x[1]);
	}

	/* Bits of the greatest of the thread's S of a row, if it is not negative: floats are then in
	 * the order of their bits, and an instruction compares three. */
	__device__ __forceinline__ int32_t thread_maximum_bits(int half) const
	{
		int32_t x[2] = {__float_as_int(s[half * 2]), __float_as_int(s[half * 2 + 1])};
#pragma unroll
		for (int i = 4; i + 4 < Z::n_score; i += 8)
#pragma unroll
			for (int j = 0; j < 2; j++)
				x[j] = __vimax3_s32(x[j], __float_as_int(s[i + half * 2 + j]),
					__float_as_int(s[i + 4 + half * 2 + j]));
		constexpr int last = Z::n_score - 4;
		return max(__vimax3_s32(x[0], x[1], __float_as_int(s[last + half * 2])),
			__float_as_int(s[last + half * 2 + 1]));
	}

	/* Over the lanes of a row. */
	template <typename T, typename F>
	__device__ __forceinline__ static void over_row(T x[2], F greater)
	{
#pragma unroll
		for (int d = 1; d < 4; d *= 2) {
			x[0] = greater(x[0], __shfl_xor_sync(~0u, x[0], d));
			x[1] = greater(x[1], __shfl_xor_sync(~0u, x[1], d));
		}
	}

	/* The greatest S of the thread's rows. */
	__device__ __forceinline__ void maxima(float x[2]) const
	{
		int32_t bits[2] = {thread_maximum_bits(0), thread_maximum_bits(1)};
		over_row(bits, [](int32_t a, int32_t b) { return max(a, b); });
		x[0] = __int_as_float(bits[0]);
		x[1] = __int_as_float(bits[1]);
		if (is_likely(!__any_sync(~0u, (bits[0] | bits[1]) < 0)))
			return;
		x[0] = thread_maximum(0);
		x[1] = thread_maximum(1);
		over_row(x, [](float a, float b) { return fmaxf(a, b); });
	}

	/* The maxima of both groups' keys. */
	__device__ __forceinline__ void share_maxima(float x[2])
	{
		int row = warp * 16 + (lane >> 2);
		if ((lane & 3) == 0) {
			st_shared(smem.maximum(group, row), x[0]);
			st_shared(smem.maximum(group, row + 8), x[1]);
		}
		named_barrier(MAXIMA, Z::n_consumer);
		x[0] = fmaxf(x[0], ld_shared(smem.maximum(group ^ 1, row)));
		x[1] = fmaxf(x[1], ld_shared(smem.maximum(group ^ 1, row + 8)));
	}

	/* m becomes the references with S among them; f brings what the chunk has to them. */
	__device__ __forceinline__ void references(bool is_plain, float f[2])
	{
		if (!is_likely(is_plain)) {
			prepare_scores();
			mask();
		}
		float x[2];
		pin(s);
		maxima(x);
		if constexpr (Z::wide)
			share_maxima(x);
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float next = next_ref(m[half], __fmul_rn(x[half], args.score.factor));
			f[half] = exp2_fast(__fsub_rn(m[half], next));
			m[half] = next;
		}
	}

	/* S [BEGIN, END) of the thread becomes weights. */
	template <int BEGIN, int END> __device__ __forceinline__ void weights()
	{
#pragma unroll
		for (int i = BEGIN; i < END; i++)
			s[i] = args.score.weight(s[i], m[i / 2 % 2]);
	}

	/* Rounded, as the first operand of P V. */
	__device__ __forceinline__ void pack_weights()
	{
#pragma unroll
		for (int i = 0; i < Z::n_score / 2; i++)
			p[i] = elem<E>::pack(s[i * 2], s[i * 2 + 1]);
	}

	/* P of the group's keys goes where both groups read it, in the other buffer. */
	__device__ __forceinline__ void share_weights()
	{
		pack_weights();
		p_at ^= 1;
		int row = warp * 16 + (lane >> 2);
#pragma unroll
		for (int i = 0; i < Z::n_score / 2; i++)
			st_shared(smem.p(p_at, group) + swizzle(row + i % 2 * 8, i / 2) +
					  (lane & 3) * 4,
				__uint_as_float(p[i]));
		async_proxy_fence();
	}

	__device__ __forceinline__ void scale_chunk(const float f[2])
	{
#pragma unroll
		for (int i = 0; i < Z::n_acc; i++)
			o[i] = __fmul_rn(o[i], f[i / 2 % 2]);
	}

	/* Fours of a chunk into what is far of the total, FAR_READS of these under way together. */
	template <bool IS_LAST> __device__ __forceinline__ void fold_far(const fold_factors f[2])
	{
#pragma unroll
		for (int from = 0; from < Z::n_far; from += FAR_READS) {
			float4 x[FAR_READS];
#pragma unroll
			for (int i = 0; i < FAR_READS && from + i < Z::n_far; i++)
				x[i] = ld_shared4(far(from + i));
#pragma unroll
			for (int i = 0; i < FAR_READS && from + i < Z::n_far; i++) {
				float *c = o + (from + i) * 4;
				x[i] = {fold_in(x[i].x, c[0], f[0]), fold_in(x[i].y, c[1], f[0]),
					fold_in(x[i].z, c[2], f[1]), fold_in(x[i].w, c[3], f[1])};
				if (IS_LAST) {
					c[0] = x[i].x;
					c[1] = x[i].y;
					c[2] = x[i].z;
					c[3] = x[i].w;
				} else {
					st_shared(far(from + i), x[i]);
				}
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
		sums[0] = fold_in(sums[0], o[Z::dims / 2], f[0]);
		sums[1] = fold_in(sums[1], o[Z::dims / 2 + 2], f[1]);
		m_total[0] = f[0].m;
		m_total[1] = f[1].m;
	}

	/* 64 dims of the warp's rows to what it owns, from dim `from` of O on: row by row, 128 bytes
	 * each, pieces swizzled. f: of the rows. */
	__device__ __forceinline__ void stage_rows(int from, const float f[2])
	{
		uint32_t to = own() + swizzle(lane & 15, lane >> 4);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const float *x = o + from / 2 + i * 8;
			uint32_t w[4];
#pragma unroll
			for (int j = 0; j < 4; j++)
				w[j] = elem<E>::pack(__fmul_rn(x[j * 2], f[j % 2]),
					__fmul_rn(x[j * 2 + 1], f[j % 2]));
			stmatrix_x4(to ^ i * 32, w);
		}
	}

	/* The warp's rows go out through what it owns, 16 bytes a lane. */
	__device__ __forceinline__ void put_rows(const item &it)
	{
		float f[2] = {inverse(sums[0]), inverse(sums[1])};
		int32_t dim = (Z::wide ? group * Z::dims : 0) + lane % 8 * 8;
		char *to[4];
#pragma unroll
		for (int i = 0; i < 4; i++)
			to[i] = row_out(it, warp * 16 + i * 4 + lane / 8);
#pragma unroll
		for (int from = 0; from < Z::dims; from += 64, dim += 64) {
			__syncwarp();
			stage_rows(from, f);
			__syncwarp();
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (to[i] && dim < args.head_dim)
					*reinterpret_cast<float4 *>(to[i] + dim * 2) = ld_shared4(
						own() + swizzle(i * 4 + lane / 8, lane % 8));
		}
		__syncwarp();
	}

	/* Where a row of the group's goes; null: nowhere. */
	__device__ __forceinline__ char *row_out(const item &it, int32_t in) const
	{
		int32_t row = q_tile() * tile_rows() + in, tok = row_token(row);
		int32_t head = it.kv_head * args.shape.group + row - tok * args.shape.group;
		tok += it.tok0;
		if (in >= tile_rows() || tok >= it.seq.n_query)
			return nullptr;
		int64_t at = ((int64_t)(it.seq.row0 + tok) * args.n_head + head) * args.head_dim;
		return static_cast<char *>(args.out) + at * 2;
	}

	/* The item in a place is over: O has its last chunk. */
	__device__ __forceinline__ void end_item(int place, const float m_chunk[2])
	{
		fold_chunk<true>(m_chunk);
		put_rows(items[place]);
		release(smem.item_empty(place));
		clear_total();
	}

	/* Warpgroups issue their products in turn, where these do not go together. */
	__device__ __forceinline__ void wait_turn()
	{
		if (!Z::wide && n_arrive == 1)
			named_barrier(TURN + group, 2 * GROUP_THREADS);
	}

	__device__ __forceinline__ void pass_turn()
	{
		if (!Z::wide && n_arrive == 1)
			named_barrier_arrive(TURN + (group + 1) % Z::groups, 2 * GROUP_THREADS);
	}

	/* S of the step is there; where it is the item's last, q is done with. */
	__device__ __forceinline__ void end_scores(int stage)
	{
		pin(s);
		release(smem.k_empty(k_unit(stage)));
		if (step + 1 == end && lane == 0)
			mbar_arrive(q_done);
	}

	/* S becomes weights, all but what more_weights() makes; f brings the chunk to them. */
	__device__ __forceinline__ void make_weights(bool is_plain, float f[2])
	{
		references(is_plain, f);
		weights<0, Z::n_early>();
		if constexpr (Z::wide)
			share_weights();
	}

	__device__ __forceinline__ void more_weights()
	{
		weights<Z::n_early, Z::n_score>();
	}

	__device__ __forceinline__ void end_weights()
	{
		if constexpr (!Z::wide)
			pack_weights();
	}

	__device__ __forceinline__ void begin_chunk()
	{
		stop = min(chunk_stop(step), end);
		is_new = true;
	}

	/* The launch's first scores: nothing else is under way. */
	__device__ __forceinline__ void first_scores()
	{
		float f[2];
		m[0] = m[1] = M_NONE;
		clear_total();
		begin_chunk();
		mbar_wait(smem.k_full(k_unit(ring.i)), ring.round);
		wgmma_fence();
		begin_scores(ring.i);
		wgmma_wait<0>();
		end_scores(ring.i);
		make_weights(is_plain(), f);
		more_weights();
		end_weights();
		next = ring;
		next.next(Z::n_stage);
		is_late = true;
	}

	/* O += P V, when V and P are there: begun. */
	__device__ __forceinline__ void begin_output()
	{
		if (Z::wide)
			named_barrier(WEIGHTS, Z::n_consumer);
		wait_values();
		wgmma_fence();
		begin_products(ring.i);
	}

	/* O of a step beside S of the next one, be it the next item's; false where there is none. */
	__device__ __forceinline__ bool next_step()
	{
		float f[2], m_chunk[2] = {m[0], m[1]};
		int place = at.i;
		bool over = ++step == end, ends = step == stop;
		if (!Z::looks_ahead || !is_likely(!over && !is_late)) {
			if (over) {
				at.next(N_PLACE);
				if (!begin_item())
					return false;
			}
			mbar_wait(smem.k_full(k_unit(next.i)), next.round);
		}
		wait_turn();
		pin(o);
		wgmma_fence();
		begin_scores(next.i);
		uint32_t plain = __ballot_sync(~0u, is_plain()); /* none or all */
		begin_output();
		pass_turn();
		if (ends)
			m[0] = m[1] = M_NONE;
		wgmma_wait<1>();
		end_scores(next.i);
		int at_v = ring.i;
		ring = next;
		next.next(Z::n_stage);
		bool is_there =
			Z::looks_ahead && mbar_test(smem.k_full(k_unit(next.i)), next.round);
		/* Always; in a block of its own, or the assembler waits for O before it makes them. */
		if (plain != 1)
			make_weights(plain != 0, f);
		wgmma_wait<0>();
		pin(o);
		release_values(at_v);
		is_late = __any_sync(~0u, !is_there); /* the same in a warp */
		/* The rest of the weights beside what is done with O: other units. */
		if (!ends) {
			is_new = false;
			scale_chunk(f);
			more_weights();
			end_weights();
		} else if (!over) {
			begin_chunk();
			fold_chunk<false>(m_chunk);
			more_weights();
			end_weights();
		} else {
			begin_chunk();
			end_item(place, m_chunk);
			more_weights();
			end_weights();
		}
		return true;
	}

	/* O of the launch's last step, and what follows. */
	__device__ __forceinline__ void last_step()
	{
		pin(o);
		begin_output();
		wgmma_wait<0>();
		pin(o);
		end_item((at.i + N_PLACE - 1) % N_PLACE, m);
	}

	__device__ __forceinline__ void run()
	{
		bool has_item = begin_item();
		/* The place is not given to another item before all groups have looked. */
		if (Z::n_q > 1)
			named_barrier(BEGUN, Z::n_consumer);
		if (!has_item)
			return;
		n_arrive = Z::n_q / __shfl_sync(~0u, items[at.i].n_q, 0);
		if (group == Z::groups - 1)
			pass_turn();
		first_scores();
		while (next_step())
			continue;
		last_step();
		if (group == 0)
			wait_turn();
	}
};

template <typename E, int D>
__device__ void consume(const prefill_args &args, const places<D> &smem, const item *items)
{
	prefill_consumer<E, D>(args, smem, items).run();
}

template <int D> __device__ void init_barriers(const places<D> &smem)
{
	using Z = sizes<D>;
	for (int i = 0; i < Z::n_unit; i++) {
		mbar_init(smem.k_full(i), 1);
		mbar_init(smem.v_full(i), 1);
		mbar_init(smem.k_empty(i), Z::n_warp / Z::step_units);
		mbar_init(smem.v_empty(i), Z::n_warp);
		mbar_init(smem.v_landed(i), 1);
	}
	for (int i = 0; i < N_PLACE; i++) {
		mbar_init(smem.item_full(i), 1);
		mbar_init(smem.item_empty(i), Z::n_warp + N_HELPER);
	}
	for (int g = 0; g < Z::n_ahead * Z::n_q; g++) {
		mbar_init(smem.q_full(0, g), 1);
		mbar_init(smem.q_empty(0, g), Z::n_warp / Z::n_q);
	}
	mbar_init(smem.ending(), 1);
	mbar_init_fence();
}

template <typename E, int D>
__global__ void __launch_bounds__(sizes<D>::n_thread, 1)
	prefill_kernel(const __grid_constant__ prefill_args args)
{
	extern __shared__ char raw[];
	__shared__ item items[N_PLACE];
	places<D> smem = {(smem_addr(raw) + 1023) & ~1023u};
	int warp = threadIdx.x / 32;
	for (int i = threadIdx.x; i < PANEL_BYTES / 4; i += sizes<D>::n_thread)
		st_shared(smem.place(sizes<D>::ones) + i * 4, __uint_as_float(elem<E>::ones));
	async_proxy_fence();
	if (threadIdx.x == 0) {
		tma_prefetch_map(&args.q_tile);
		tma_prefetch_map(&args.k);
		tma_prefetch_map(&args.v);
		init_barriers(smem);
	}
	__syncthreads();
	grid_wait();
	if (warp >= sizes<D>::n_warp) {
		set_fewer_regs<sizes<D>::loader_regs>();
		if (warp == sizes<D>::n_warp)
			schedule<D>(args, smem, items);
		else if (warp == sizes<D>::n_warp + 1)
			load_keys<D, false>(args, smem, items);
		else if (warp == sizes<D>::n_warp + 2)
			load_keys<D, true>(args, smem, items);
		else
			load_rows<D>(args, smem, items);
	} else {
		set_more_regs<sizes<D>::consumer_regs>();
		consume<E, D>(args, smem, items);
	}
}

/* ---- Host */

using kernel_fn = void (*)(const prefill_args);

struct instance {
	int32_t dim_pad, n_q, n_thread, smem_bytes;
	kernel_fn fn[2]; /* bf16, fp16 */
};

template <int D> constexpr instance make_instance()
{
	return {D, sizes<D>::n_q, sizes<D>::n_thread, sizes<D>::smem_bytes,
		{prefill_kernel<__nv_bfloat16, D>, prefill_kernel<__half, D>}};
}

static const instance instances[] = {
	make_instance<64>(), make_instance<128>(), make_instance<256>()};

static const instance *find_instance(uint32_t head_dim)
{
	for (const instance &i : instances)
		if (head_dim <= (uint32_t)i.dim_pad)
			return &i;
	return nullptr;
}

int32_t prefill_tile_tokens(int32_t group)
{
	return GROUP_ROWS / group;
}

int32_t prefill_row_tile(uint32_t head_dim, int32_t group)
{
	const instance *i = find_instance(head_dim);
	return i ? i->n_q * prefill_tile_tokens(group) * group : 0;
}

int32_t prefill_least_tile(uint32_t head_dim, int32_t group)
{
	const instance *i = find_instance(head_dim);
	return i ? prefill_row_tile(head_dim, group) / i->n_q : 0;
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
