/* Folding a split item of few chunks: by warps, as chunks arrive.
 *
 *     a place a chunk: o (rows, D / 2), then references and sums (rows)
 *     an entry: two values and the number of the launch, which is never used again
 *
 * An entry with this launch's number is there, so between the last run and the fold lies neither a
 * fence nor a counter. A slice, 64 dims of a row, is one warp's, which looks for its chunks in
 * order. A warp that has looked often enough gives its slice up, and the warp that is counted last
 * folds it: all entries are on their way then. So nobody waits without end, and whoever folds, a
 * value's additions are those of decode_merge.cuh.
 *
 * Floor: one trip to the second-level cache and back, after the last entry. */
#ifndef NSV_KERNELS_CUDA_DECODE_ENTRIES_CUH
#define NSV_KERNELS_CUDA_DECODE_ENTRIES_CUH

#include "kernels/cuda/decode_merge.cuh"

namespace nsv
{

constexpr int ENTRY_DIMS = 64;	 /* of a slice: two a lane */
constexpr int FEW_CHUNKS = 8;	 /* chunks looked for together, and where there are more */
constexpr int MANY_CHUNKS = 16;
constexpr int WARP_SLICES = 2;	 /* most of a warp */
constexpr int ENTRY_LOOKS = 128; /* of a warp, before it gives a slice up */

/* Launches are numbered from 1, in 64 bits: memory that was never written has none of their numbers,
 * and what a launch left has that of no later one, however long its place was not written. */
__device__ __forceinline__ void put_entry(void *at, float x, float y, uint64_t launch)
{
	st_relaxed_16(at, (uint64_t)__float_as_uint(y) << 32 | __float_as_uint(x), launch);
}

/* An entry as it was read: it is there if `launch` is this one's number. */
struct entry {
	uint64_t values, launch;

	__device__ __forceinline__ void ask(const void *at)
	{
		ld_relaxed_16(at, values, launch);
	}

	__device__ __forceinline__ float2 get() const
	{
		return make_float2(__uint_as_float((uint32_t)values),
			__uint_as_float((uint32_t)(values >> 32)));
	}
};

/* Where a chunk's entries are: `rows` as the working memory has them. */
template <int D> struct entry_place {
	char *at;
	int32_t rows;

	__device__ __forceinline__ char *o(int32_t row, int32_t dim) const
	{
		return at + (row * D + dim) / 2 * 16;
	}

	__device__ __forceinline__ char *sums(int32_t row) const
	{
		return at + (rows * D / 2 + row) * 16;
	}
};

/* What a fold reads, and where it writes. */
struct entry_job {
	char *first; /* the place of the first chunk that is folded */
	int32_t place_len, rows, n_chunk;
	uint64_t launch;
	out_rows out;
};

/* A batch of chunks: their part of a slice, and the row's sums. Of few each lane has the sums of all,
 * and makes all factors of fold(); of many it has one chunk's, and makes those. */
struct few_chunks {
	static constexpr int size = FEW_CHUNKS;
	entry o[size], sums[size];
};

struct many_chunks {
	static constexpr int size = MANY_CHUNKS;
	entry o[size], sums;
};

/* A warp's fold of a slice: two dims a lane, over the chunks in order. */
template <typename E, int D> struct slice_fold {
	const entry_job &job;
	int32_t row, dim;
	int32_t lane = threadIdx.x % 32, own = lane % MANY_CHUNKS; /* own: the lane's chunk */
	float m = M_NONE, l = 0.0f, x = 0.0f, y = 0.0f;

	__device__ slice_fold(const entry_job &j, int32_t slice)
	    : job(j), row(slice / (D / ENTRY_DIMS)),
	      dim(slice % (D / ENTRY_DIMS) * ENTRY_DIMS + threadIdx.x % 32 * 2)
	{
	}

	__device__ __forceinline__ entry_place<D> place(int32_t chunk) const
	{
		return {job.first + (int64_t)chunk * job.place_len, job.rows};
	}

	/* The entries of the n chunks from c on, the last one's in place of those beyond, so that
	 * all are asked for before one is waited for; true where all are this launch's. */
	__device__ __forceinline__ bool look(int32_t c, int32_t n, few_chunks &b) const
	{
#pragma unroll
		for (int j = 0; j < FEW_CHUNKS; j++) {
			entry_place<D> from = place(c + min(j, n - 1));
			b.o[j].ask(from.o(row, dim));
			b.sums[j].ask(from.sums(row));
		}
		bool there = true;
#pragma unroll
		for (int j = 0; j < FEW_CHUNKS; j++)
			there &= b.o[j].launch == job.launch && b.sums[j].launch == job.launch;
		return __all_sync(~0u, there);
	}

	__device__ __forceinline__ bool look(int32_t c, int32_t n, many_chunks &b) const
	{
		b.sums.ask(place(c + min(own, n - 1)).sums(row));
#pragma unroll
		for (int j = 0; j < MANY_CHUNKS; j++)
			b.o[j].ask(place(c + min(j, n - 1)).o(row, dim));
		bool there = b.sums.launch == job.launch;
#pragma unroll
		for (int j = 0; j < MANY_CHUNKS; j++)
			there &= b.o[j].launch == job.launch;
		return __all_sync(~0u, there);
	}

	__device__ __forceinline__ void fold_in_order(const few_chunks &b, int32_t n)
	{
#pragma unroll
		for (int j = 0; j < FEW_CHUNKS; j++) {
			if (j >= n)
				break;
			float2 o = b.o[j].get(), sums = b.sums[j].get();
			fold_factors f = fold(m, sums.x);
			x = fold_in(x, o.x, f);
			y = fold_in(y, o.y, f);
			l = fold_in(l, sums.y, f);
			m = f.m;
		}
	}

	/* Of this lane's chunk, whose reference is chunk_m; the row's becomes that of all. */
	__device__ __forceinline__ fold_factors factors(float chunk_m)
	{
		float seen = chunk_m;
#pragma unroll
		for (int d = 1; d < MANY_CHUNKS; d *= 2) {
			float up = __shfl_up_sync(~0u, seen, d, MANY_CHUNKS);
			seen = own >= d ? fmaxf(seen, up) : seen;
		}
		float up = __shfl_up_sync(~0u, seen, 1, MANY_CHUNKS);
		fold_factors f = fold(own ? fmaxf(m, up) : m, chunk_m);
		m = fmaxf(m, __shfl_sync(~0u, seen, MANY_CHUNKS - 1));
		return f;
	}

	__device__ __forceinline__ void fold_in_order(const many_chunks &b, int32_t n)
	{
		float2 sums = b.sums.get();
		fold_factors by = factors(own < n ? sums.x : M_NONE);
#pragma unroll
		for (int j = 0; j < MANY_CHUNKS; j++) {
			fold_factors f = {
				0.0f, __shfl_sync(~0u, by.a, j), __shfl_sync(~0u, by.b, j)};
			float chunk_l = __shfl_sync(~0u, sums.y, j);
			float2 o = b.o[j].get();
			x = j < n ? fold_in(x, o.x, f) : x;
			y = j < n ? fold_in(y, o.y, f) : y;
			l = j < n ? fold_in(l, chunk_l, f) : l;
		}
	}

	/* The row's part of a prefix goes on in each of its sequences. */
	__device__ void put_shared() const
	{
		float *to = job.out.template shared<D>(row);
		__stcg(reinterpret_cast<float2 *>(to + dim), make_float2(x, y));
		if (dim == 0)
			__stcg(reinterpret_cast<float2 *>(to + D), make_float2(m, l));
	}

	__device__ void put() const
	{
		if (job.out.is_shared)
			return put_shared();
		if (dim < job.out.head_dim)
			*reinterpret_cast<uint32_t *>(job.out(row) + dim * 2) =
				elem<E>::pack(normalise(x, l), normalise(y, l));
	}

	/* By batches of type B; false once it has looked n_look times in vain. */
	template <typename B> __device__ __forceinline__ bool run(int32_t n_look)
	{
		for (int32_t c = 0; c < job.n_chunk; c += B::size) {
			int32_t n = min(B::size, job.n_chunk - c);
			B b;
			while (!look(c, n, b))
				if (--n_look < 0)
					return false;
			fold_in_order(b, n);
		}
		put();
		return true;
	}
};

/* A warp's part of an item: its slices, and those that others have given up if it is counted
 * last. */
template <typename E, int D> struct entry_merger {
	entry_job job;
	unsigned long long *state; /* low half: tiles counted, by each warp; high: slices given up */
	uint32_t n, all;	   /* tiles of this run, of the item */
	int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

	__device__ entry_merger(const entry_job &j, split_state *s, const tile_range &run,
		const tile_range &line)
	    : job(j), state(reinterpret_cast<unsigned long long *>(s)), n(run.end - run.begin),
	      all((line.end - line.begin) * N_WARP)
	{
	}

	/* False if all warps have been counted by now: the slice is still ours. One lane's. */
	__device__ bool mark(int32_t slice) const
	{
		unsigned long long seen = atomicAdd(state, 0), before;
		do {
			before = seen;
			if ((uint32_t)seen == 0 || (uint32_t)seen == all)
				return false;
			seen = atomicCAS(state, before, before | 1ull << (32 + slice));
		} while (seen != before);
		return true;
	}

	__device__ bool give_up(int32_t slice) const
	{
		return __shfl_sync(~0u, lane == 0 && mark(slice), 0);
	}

	/* This warp's slices: of n runs, all but the last, which may have more to do. Many runs
	 * have up to one slice each, since two are folded later by one multiprocessor than by two;
	 * of few the first ones have them all, so that others end and the next launch begins. */
	__device__ uint32_t own_slices(int32_t index, int32_t n_run) const
	{
		int32_t n_slice = job.out.n_row * (D / ENTRY_DIMS), n = n_run - 1;
		int32_t first = n >= 2 * n_slice ? index + warp * n : index * N_WARP + warp;
		uint32_t slices = 0;
		if (index < n)
			for (int32_t s = first; s < n_slice; s += n * N_WARP)
				slices |= 1u << s;
		return slices;
	}

	/* What is left for the warp that is counted last; then the state is as it was. */
	__device__ uint32_t left_slices(unsigned long long before) const
	{
		bool is_last = (uint32_t)before + n == all;
		if (lane == 0 && is_last)
			atomicExch(state, 0);
		return __shfl_sync(~0u, is_last ? (uint32_t)(before >> 32) : 0, 0);
	}

	template <typename B>
	__device__ __forceinline__ void run_by(int32_t index, int32_t n_run) const
	{
		unsigned long long before = lane == 0 ? atomicAdd(state, n) : 0;
		uint32_t slices = own_slices(index, n_run);
		int32_t n_look = ENTRY_LOOKS;
		for (bool are_own = true; slices || are_own;) {
			int32_t s = __ffs(slices) - 1;
			if (!slices) {
				slices = left_slices(before);
				n_look = INT32_MAX;
				are_own = false;
			} else if (slice_fold<E, D>(job, s).template run<B>(n_look) || give_up(s)) {
				slices &= slices - 1;
			} else {
				n_look = INT32_MAX;
			}
		}
	}

	/* At 128 dims many chunks at once were slower. */
	__device__ __forceinline__ void run(int32_t index, int32_t n_run) const
	{
		if (D == 64 && job.n_chunk > FEW_CHUNKS)
			run_by<many_chunks>(index, n_run);
		else
			run_by<few_chunks>(index, n_run);
	}
};

} // namespace nsv

#endif
