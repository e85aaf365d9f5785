/* Folding the partials of a split item, by the consumers of the run that completes it.
 *
 *     a slot a chunk: o (rows, D), references (rows), sums (rows)
 *
 * Factors of fold() for a batch of chunks first, a lane a chunk; then each thread folds four dims
 * of a row over the chunks in order, its copies two groups ahead. Floor: the partials read once, at
 * the rate of one multiprocessor. */
#ifndef NSV_KERNELS_CUDA_DECODE_MERGE_CUH
#define NSV_KERNELS_CUDA_DECODE_MERGE_CUH

#include "kernels/cuda/decode_parts.cuh"

namespace nsv
{

/* Where an item's rows go, and what of the arguments that takes: to q's places in `out`, or what a
 * prefix has of them to args.shared. */
struct out_rows {
	char *out;
	int32_t row0, head0, tok0, group, n_head, head_dim;
	bool is_shared;

	__device__ __forceinline__ out_rows(const decode_args &args, const piece &p)
	    : out(static_cast<char *>(args.out)), row0(p.row0), head0(p.head0), tok0(p.seq.row0),
	      group(args.shape.group), n_head(args.n_head), head_dim(args.head_dim),
	      is_shared(args.shape.part == SHARED_KEYS)
	{
		if (is_shared)
			out = reinterpret_cast<char *>(args.shared);
	}

	/* Of all (row of q, head). */
	__device__ __forceinline__ int64_t index(int32_t row) const
	{
		int32_t tok = (row0 + row) / group, head = head0 + (row0 + row) % group;
		return (int64_t)(tok0 + tok) * n_head + head;
	}

	__device__ __forceinline__ char *operator()(int32_t row) const
	{
		return out + index(row) * head_dim * 2;
	}

	/* What a prefix has of a row: o (D), its reference, its sum. */
	template <int D> __device__ __forceinline__ float *shared(int32_t row) const
	{
		return reinterpret_cast<float *>(out) + index(row) * shared_floats(D);
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
		slots = args.partials +
			((int64_t)p.split * args.n_slot + first - tile_chunk(p.line.begin)) *
				slot_len;
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

	/* The factors of fold() of the chunks [c0, c0 + n), and their sums, to shared memory: a
	 * warp a row, a lane a chunk. `before`: the row's reference so far. */
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

	/* The row's part of a prefix goes on in each of its sequences. */
	__device__ void put_shared(const row_part &r, float m, int32_t row, int32_t dim) const
	{
		float *to = job.out.template shared<D>(row);
		__stcg(reinterpret_cast<float4 *>(to + dim), r.o);
		if (dim == 0)
			__stcg(reinterpret_cast<float2 *>(to + D), make_float2(m, r.l));
	}

	__device__ void put(const row_part &r, float m, int32_t row, int32_t dim) const
	{
		if (job.out.is_shared)
			return put_shared(r, m, row, dim);
		*reinterpret_cast<uint2 *>(job.out(row) + dim * 2) =
			make_uint2(elem<E>::pack(normalise(r.o.x, r.l), normalise(r.o.y, r.l)),
				elem<E>::pack(normalise(r.o.z, r.l), normalise(r.o.w, r.l)));
	}

	/* Four dims of a row: all chunks in order. Where one batch holds all factors, the first
	 * call leaves them for the next. */
	__device__ void fold_row(int32_t row, int32_t dim, bool used, bool is_first) const
	{
		row_part r = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), 0.0f};
		float m = M_NONE;
		int32_t off = row * D + dim, size = batch();
		fetch(0, off);
		for (int32_t b0 = 0; b0 < job.n_chunk; b0 += size) {
			int32_t end = min(b0 + size, job.n_chunk);
			if (is_first || size < job.n_chunk)
				all_factors(b0, end - b0);
			named_barrier(CONSUMERS, N_CONSUMER);
			m = ld_shared(smem.row_max(0) + row * 4);
			for (int32_t c = b0; c < end; c += MERGE_GROUP) {
				fetch(c + MERGE_GROUP, off);
				cp_async_wait<1>();
				fold_group(r, c, b0, row);
			}
			named_barrier(CONSUMERS, N_CONSUMER);
		}
		cp_async_wait<0>();
		if (used && (dim < job.out.head_dim || job.out.is_shared))
			put(r, m, row, dim);
	}

	__device__ void run() const
	{
		for (int32_t i0 = 0; i0 < job.n_row * (D / 4); i0 += N_CONSUMER) {
			int32_t i = i0 + threadIdx.x, row = i / (D / 4);
			fold_row(
				min(row, job.n_row - 1), i % (D / 4) * 4, row < job.n_row, i0 == 0);
		}
	}
};

template <typename E, int D, int MT>
__device__ __noinline__ void merge(layout<D, MT> smem, merge_job job)
{
	merger<E, D, MT>(smem, job).run();
}

} // namespace nsv

#endif
