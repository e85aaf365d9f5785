/* Folding the partials of a split item, once all of its runs have arrived.
 *
 *     a slot a chunk: o (rows, D), references (rows), sums (rows)
 *
 * Few chunks: the run that arrives last folds them all. Factors of fold() first, a lane a chunk;
 * then each thread folds four dims of a row over the chunks in order, its copies two groups ahead.
 * Many chunks: slices of 32 or 64 values of o, taken one by one by whichever runs of the item are still
 * there. A thread folds one value; the copies are shared.
 *
 * Whoever folds, a value's additions are the same. Floor: the partials read once, at the rate of
 * the multiprocessors that take part. */
#ifndef NSV_KERNELS_CUDA_DECODE_MERGE_CUH
#define NSV_KERNELS_CUDA_DECODE_MERGE_CUH

#include "kernels/cuda/decode_parts.cuh"

namespace nsv
{

constexpr int ALONE_CHUNKS = 32; /* what one run folds alone: a warp's lanes */

/* Where an item's rows go, and what of the arguments that takes: to q's places in `out`, or what a
 * prefix has of them to args.shared. */
struct out_rows {
	char *out;
	int32_t row0, n_row, head0, tok0, group, n_head, head_dim;
	bool is_shared;

	__device__ __forceinline__ out_rows(const decode_args &args, const piece &p)
	    : out(static_cast<char *>(args.out)), row0(p.row0), n_row(p.n_row), head0(p.head0),
	      tok0(p.seq.row0), group(args.shape.group), n_head(args.n_head),
	      head_dim(args.head_dim), is_shared(args.shape.part == SHARED_KEYS)
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

/* The partials of a split item that are folded: all by value, since the call that gets it is out of
 * line. */
struct merge_job {
	const float *slots;
	int32_t slot_len, n_row, n_chunk;
	out_rows out;

	__device__ __forceinline__ merge_job(const decode_args &args, const piece &p) : out(args, p)
	{
		int32_t at = p.partials.begin - tile_chunk(p.line.begin);
		slot_len = args.slot_len;
		n_row = p.n_row;
		n_chunk = p.partials.end - p.partials.begin;
		slots = args.partials + ((int64_t)p.split * args.n_slot + at) * slot_len;
	}
};

/* The maximum of x over the lanes up to and with this one. */
__device__ __forceinline__ float running_maximum(float x, int lane)
{
	for (int d = 1; d < 32; d *= 2) {
		float y = __shfl_up_sync(~0u, x, d);
		x = lane >= d ? fmaxf(x, y) : x;
	}
	return x;
}

/* Folding by one run: kept out of line, since it needs registers of its own. */
template <typename E, int D, int NT, bool PACKED> struct merger {
	using C = config<D, NT, PACKED>;
	static_assert(C::rows * (ALONE_CHUNKS * 12 + 4) <= 2 * C::p_bytes, "all in the place of P");
	layout<D, NT, PACKED> smem;
	merge_job job;
	int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

	__device__ merger(const layout<D, NT, PACKED> &s, const merge_job &j) : smem(s), job(j)
	{
	}

	__device__ __forceinline__ const float *slot(int32_t chunk) const
	{
		return job.slots + (int64_t)chunk * job.slot_len;
	}

	/* (a, b) of a chunk and row, in the place of both P; the sums l lie behind all of these,
	 * the rows' references behind those. Not in the place of maxima: a warp that has folded
	 * its part goes on, and writes its next maxima before it waits for the others. */
	__device__ uint32_t factor_at(int32_t i, int32_t row) const
	{
		return smem.p(0, 0) + (i * job.n_row + row) * 8;
	}

	__device__ uint32_t sum_at(int32_t i, int32_t row) const
	{
		return factor_at(ALONE_CHUNKS, 0) + (i * job.n_row + row) * 4;
	}

	__device__ uint32_t reference_at(int32_t row) const
	{
		return sum_at(ALONE_CHUNKS, row);
	}

	/* The factors of fold() of a row's chunks, their sums, and the reference of all, to shared
	 * memory: from what a lane has of its chunk. */
	__device__ __forceinline__ void factors(int32_t row, float m, float l) const
	{
		float seen = running_maximum(m, lane), before = __shfl_up_sync(~0u, seen, 1);
		fold_factors f = fold(lane ? before : M_NONE, m);
		if (lane < job.n_chunk) {
			st_shared(factor_at(lane, row), make_float2(f.a, f.b));
			st_shared(sum_at(lane, row), l);
		}
		if (lane == 31)
			st_shared(reference_at(row), seen);
	}

	/* Of all rows, those of a warp two at a time: what takes the time is asking. */
	__device__ __forceinline__ void all_factors() const
	{
		int32_t rows = job.slot_len / (D + 2);
		const float *ml = slot(min(lane, job.n_chunk - 1)) + rows * D;
#pragma unroll 1
		for (int32_t r = warp; r < job.n_row; r += 2 * N_WARP) {
			int32_t second = min(r + N_WARP, job.n_row - 1);
			float m0 = __ldcg(ml + r), l0 = __ldcg(ml + rows + r);
			float m1 = __ldcg(ml + second), l1 = __ldcg(ml + rows + second);
			factors(r, lane < job.n_chunk ? m0 : M_NONE, l0);
			if (r + N_WARP < job.n_row)
				factors(second, lane < job.n_chunk ? m1 : M_NONE, l1);
		}
	}

	/* Asks for this thread's part of a group of chunks: one group of copies, maybe empty. */
	__device__ __forceinline__ void fetch(int32_t c0, int32_t off) const
	{
		const float *from = slot(c0) + off;
		uint32_t to = group_at(c0);
#pragma unroll
		for (int j = 0; j < C::merge_group; j++)
			if (c0 + j < job.n_chunk)
				cp_async_16(to + j * N_CONSUMER * 16, from + j * job.slot_len, 16);
		cp_async_commit();
	}

	/* Two groups take turns. */
	__device__ __forceinline__ uint32_t group_at(int32_t c0) const
	{
		int32_t odd = c0 / C::merge_group & 1;
		return smem.merge(threadIdx.x, odd * C::merge_group);
	}

	struct row_part {
		float4 o;
		float l;
	};

	/* Folds a group in order; chunks beyond the end have factors (1, 0). */
	__device__ __forceinline__ void fold_group(row_part &r, int32_t c0, int32_t row) const
	{
		float4 x[C::merge_group];
		float2 ab[C::merge_group];
		float l[C::merge_group];
		uint32_t at = group_at(c0), ab_at = factor_at(c0, row), l_at = sum_at(c0, row);
#pragma unroll
		for (int j = 0; j < C::merge_group; j++) {
			bool used = c0 + j < job.n_chunk;
			x[j] = ld_shared4(at + j * N_CONSUMER * 16);
			ab[j] = ld_shared2(ab_at + j * job.n_row * 8);
			l[j] = ld_shared(l_at + j * job.n_row * 4);
			x[j] = used ? x[j] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
			ab[j] = used ? ab[j] : make_float2(1.0f, 0.0f);
			l[j] = used ? l[j] : 0.0f;
		}
#pragma unroll
		for (int j = 0; j < C::merge_group; j++) {
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

	/* Four dims of a row: all chunks in order, of which the first group has been asked for. */
	__device__ void fold_row(int32_t row, int32_t dim, bool used) const
	{
		row_part r = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), 0.0f};
		float m = ld_shared(reference_at(row));
		for (int32_t c = 0; c < job.n_chunk; c += C::merge_group) {
			fetch(c + C::merge_group, row * D + dim);
			cp_async_wait<1>();
			fold_group(r, c, row);
		}
		cp_async_wait<0>();
		if (used && (dim < job.out.head_dim || job.out.is_shared))
			put(r, m, row, dim);
	}

	__device__ void run() const
	{
		for (int32_t i0 = 0; i0 < job.n_row * (D / 4); i0 += N_CONSUMER) {
			int32_t i = i0 + threadIdx.x, dim = i % (D / 4) * 4;
			int32_t row = min(i / (D / 4), job.n_row - 1);
			fetch(0, row * D + dim);
			if (i0 == 0) {
				all_factors();
				named_barrier(CONSUMERS, N_CONSUMER);
			}
			fold_row(row, dim, i / (D / 4) < job.n_row);
		}
	}
};

template <typename E, int D, int NT, bool PACKED>
__device__ __noinline__ void merge(layout<D, NT, PACKED> smem, merge_job job)
{
	merger<E, D, NT, PACKED>(smem, job).run();
}

/* How runs share a merge: who takes which slice, and who is the last to leave. */
struct slice_claims {
	split_state *state;
	uint32_t n_slice, n, all; /* tiles of this run, of the item */

	__device__ __forceinline__ uint32_t take() const
	{
		return atomicAdd(&state->taken, 1);
	}

	/* The last run to leave leaves the state as it was. */
	__device__ __forceinline__ void leave() const
	{
		if (count_in_order(&state->left, n) + n == all)
			*state = {0, 0, 0};
	}
};

/* Folding slices: some dims of a row each. The copies of all chunks that shared memory has place
 * for are under way at once, since each trip to the second-level cache takes as long as folding
 * them; so is the claim to the slice after. */
template <typename E, int D, int NT, bool PACKED> struct slice_merger {
	using C = config<D, NT, PACKED>;
	static_assert(C::slice_chunks * 16 <= 2 * C::p_bytes);
	static_assert(C::slice_chunks <= 2 * N_CONSUMER && C::slice < N_CONSUMER);
	layout<D, NT, PACKED> smem;
	merge_job job;
	slice_claims claims;
	int32_t row, dim0;
	int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float before; /* the row's reference so far */

	__device__ slice_merger(
		const layout<D, NT, PACKED> &s, const merge_job &j, const slice_claims &c)
	    : smem(s), job(j), claims(c)
	{
	}

	/* (a, b, l) of a chunk of a batch: in the place of both P. */
	__device__ __forceinline__ uint32_t factor_at(int32_t i) const
	{
		return smem.p(0, 0) + i * 16;
	}

	/* Asks for the slice's part of n chunks. */
	__device__ __forceinline__ void fetch(int32_t c0, int32_t n) const
	{
		constexpr int pieces = C::slice / 4, step = N_CONSUMER / pieces;
		int32_t c = threadIdx.x / pieces, in = threadIdx.x % pieces * 4;
		const float *from =
			job.slots + (int64_t)(c0 + c) * job.slot_len + row * D + dim0 + in;
		uint32_t to = smem.merge(threadIdx.x, 0);
		for (; c < n; c += step, from += step * job.slot_len, to += N_CONSUMER * 16)
			cp_async_16(to, from, 16);
		cp_async_commit();
	}

	/* The factors of fold() of up to N_CONSUMER chunks from i0 of a batch, a thread each. */
	__device__ __forceinline__ void factors(int32_t c0, int32_t i0, int32_t n)
	{
		int32_t rows = job.slot_len / (D + 2), i = i0 + threadIdx.x;
		const float *ml =
			job.slots + (int64_t)(c0 + min(i, n - 1)) * job.slot_len + rows * D + row;
		float m = __ldcg(ml), l = __ldcg(ml + rows);
		float seen = running_maximum(m, lane), up = __shfl_up_sync(~0u, seen, 1),
		      x = before;
		if (lane == 31)
			st_shared(smem.row_max(0) + warp * 4, seen);
		named_barrier(CONSUMERS, N_CONSUMER);
		for (int w = 0; w < N_WARP; w++) {
			float y = ld_shared(smem.row_max(0) + w * 4);
			x = w < warp ? fmaxf(x, y) : x;
			before = fmaxf(before, y);
		}
		fold_factors f = fold(lane ? fmaxf(x, up) : x, m);
		if (i < n)
			st_shared(factor_at(i), make_float4(f.a, f.b, l, 0.0f));
	}

	/* This thread's value: n chunks in order. */
	__device__ __forceinline__ void fold_batch(float &o, float &l, int32_t n) const
	{
		uint32_t x_at = smem.merge(0, 0) + threadIdx.x * 4, f_at = factor_at(0);
#pragma unroll 8
		for (int32_t j = 0; j < n; j++) {
			float x = ld_shared(x_at + j * C::slice * 4);
			float4 k = ld_shared4(f_at + j * 16);
			fold_factors f = {0.0f, k.x, k.y};
			o = fold_in(o, x, f);
			l = fold_in(l, k.z, f);
		}
	}

	/* The value's part of a prefix goes on in each of its sequences. */
	__device__ void put_shared(float o, float l, int32_t dim) const
	{
		float *to = job.out.template shared<D>(row);
		__stcg(to + dim, o);
		if (dim == 0)
			__stcg(reinterpret_cast<float2 *>(to + D), make_float2(before, l));
	}

	__device__ void put(float o, float l) const
	{
		int32_t dim = dim0 + threadIdx.x;
		if (job.out.is_shared)
			return put_shared(o, l, dim);
		float x = normalise(o, l), y = __shfl_down_sync(~0u, x, 1);
		if (lane % 2 == 0 && dim < job.out.head_dim)
			*reinterpret_cast<uint32_t *>(job.out(row) + dim * 2) = elem<E>::pack(x, y);
	}

	/* Of all chunks; what lies in shared memory is read until the next barrier. */
	__device__ __forceinline__ void fold_slice(uint32_t slice, uint32_t *next)
	{
		bool folds = threadIdx.x < C::slice, claims_next = threadIdx.x == N_CONSUMER - 1;
		uint32_t claim = 0;
		float o = 0.0f, l = 0.0f;
		row = slice / (D / C::slice);
		dim0 = slice % (D / C::slice) * C::slice;
		before = M_NONE;
		if (claims_next)
			claim = claims.take();
		for (int32_t c = 0; c < job.n_chunk; c += C::slice_chunks) {
			int32_t n = min(C::slice_chunks, job.n_chunk - c);
			if (c > 0)
				named_barrier(CONSUMERS, N_CONSUMER);
			fetch(c, n);
			for (int32_t i = 0; i < n; i += N_CONSUMER) {
				if (i > 0)
					named_barrier(CONSUMERS, N_CONSUMER);
				factors(c, i, n);
			}
			if (claims_next && c == 0)
				*next = claim;
			cp_async_wait<0>();
			named_barrier(CONSUMERS, N_CONSUMER);
			if (folds)
				fold_batch(o, l, n);
		}
		if (folds)
			put(o, l);
	}

	/* Until there are none. The run has left before its last one is folded: nothing more of the
	 * state is asked for then. */
	__device__ void run()
	{
		__shared__ uint32_t next;
		if (threadIdx.x == N_CONSUMER - 1)
			next = claims.take();
		named_barrier(CONSUMERS, N_CONSUMER);
		for (uint32_t slice = next; slice < claims.n_slice; slice = next) {
			named_barrier(CONSUMERS, N_CONSUMER);
			fold_slice(slice, &next);
		}
		if (threadIdx.x == N_CONSUMER - 1)
			claims.leave();
	}
};

template <typename E, int D, int NT, bool PACKED>
__device__ __noinline__ void merge_slices(
	layout<D, NT, PACKED> smem, merge_job job, slice_claims claims)
{
	slice_merger<E, D, NT, PACKED>(smem, job, claims).run();
}

} // namespace nsv

#endif
