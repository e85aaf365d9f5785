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
constexpr int ENTRY_BATCH = 8;	 /* chunks looked for together */
constexpr int WARP_SLICES = 2;	 /* most of a warp */
constexpr int ENTRY_LOOKS = 128; /* of a warp, before it gives a slice up */

/* Launches are numbered from 1, in 64 bits: memory that was never written has none of their numbers,
 * and what a launch left has that of no later one, however long its place was not written. */
__device__ __forceinline__ void put_entry(void *at, float x, float y, uint64_t launch)
{
	st_relaxed_16(at, (uint64_t)__float_as_uint(y) << 32 | __float_as_uint(x), launch);
}

/* False where it is not, or not yet, of this launch. */
__device__ __forceinline__ bool get_entry(const void *at, uint64_t launch, float2 &ret)
{
	uint64_t xy, number;
	ld_relaxed_16(at, xy, number);
	ret = make_float2(__uint_as_float((uint32_t)xy), __uint_as_float((uint32_t)(xy >> 32)));
	return number == launch;
}

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

/* A warp's fold of a slice. */
template <typename E, int D> struct slice_fold {
	const entry_job &job;
	int32_t row, dim;
	int32_t lane = threadIdx.x % 32;
	float m = M_NONE, l = 0.0f, x = 0.0f, y = 0.0f;

	__device__ slice_fold(const entry_job &j, int32_t slice)
	    : job(j), row(slice / (D / ENTRY_DIMS)),
	      dim(slice % (D / ENTRY_DIMS) * ENTRY_DIMS + threadIdx.x % 32 * 2)
	{
	}

	/* The entries of a batch from chunk c on, the last one's in place of those beyond; true
	 * where all are this launch's. */
	__device__ __forceinline__ bool look(
		int32_t c, float2 o[ENTRY_BATCH], float2 sums[ENTRY_BATCH]) const
	{
		bool there = true;
#pragma unroll
		for (int j = 0; j < ENTRY_BATCH; j++) {
			int64_t off = (int64_t)min(c + j, job.n_chunk - 1) * job.place_len;
			entry_place<D> place = {job.first + off, job.rows};
			there &= get_entry(place.o(row, dim), job.launch, o[j]);
			there &= get_entry(place.sums(row), job.launch, sums[j]);
		}
		return __all_sync(~0u, there);
	}

	__device__ __forceinline__ void fold_in_order(
		int32_t n, const float2 o[ENTRY_BATCH], const float2 sums[ENTRY_BATCH])
	{
#pragma unroll
		for (int j = 0; j < ENTRY_BATCH; j++) {
			if (j >= n)
				break;
			fold_factors f = fold(m, sums[j].x);
			x = fold_in(x, o[j].x, f);
			y = fold_in(y, o[j].y, f);
			l = fold_in(l, sums[j].y, f);
			m = f.m;
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

	__device__ bool run(int32_t n_look)
	{
		for (int32_t c = 0; c < job.n_chunk; c += ENTRY_BATCH) {
			float2 o[ENTRY_BATCH], sums[ENTRY_BATCH];
			while (!look(c, o, sums))
				if (--n_look < 0)
					return false;
			fold_in_order(job.n_chunk - c, o, sums);
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

	__device__ void run(int32_t index, int32_t n_run) const
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
			} else if (slice_fold<E, D>(job, s).run(n_look) || give_up(s)) {
				slices &= slices - 1;
			} else {
				n_look = INT32_MAX;
			}
		}
	}
};

} // namespace nsv

#endif
