/* What a thread of decode's consumers has of O, of its sums and of its references: of a chunk, or
 * of all chunks so far. */
#ifndef NSV_KERNELS_CUDA_DECODE_ACCUM_CUH
#define NSV_KERNELS_CUDA_DECODE_ACCUM_CUH

#include "kernels/cuda/decode_parts.cuh"

namespace nsv
{

/* Running values of a thread: rows lane % 4 * 2 and the next of each row tile, dims lane / 4 and
 * lane / 4 + 8 of each of its warp's tiles of 16. */
template <int D, int NT, bool PACKED> struct accum {
	using C = config<D, NT, PACKED>;
	float o[NT][C::dim_tiles][4]; /* (dim, row), (dim, next row), (dim + 8, ..), .. */
	float l[NT][4];		      /* l[0] and l[1] are the sums of the two rows */
	float m[NT][2];

	__device__ __forceinline__ void reset()
	{
#pragma unroll
		for (int nt = 0; nt < NT; nt++) {
#pragma unroll
			for (int f = 0; f < C::dim_tiles; f++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					o[nt][f][e] = 0.0f;
#pragma unroll
			for (int e = 0; e < 4; e++)
				l[nt][e] = 0.0f;
			m[nt][0] = m[nt][1] = M_NONE;
		}
	}

	/* Something of every product made so far, V's part of which is in each row of O. */
	__device__ __forceinline__ uint32_t any() const
	{
		uint32_t x = 0;
#pragma unroll
		for (int f = 0; f < C::dim_tiles; f++)
			x |= __float_as_uint(o[0][f][0]);
		return x;
	}

	__device__ __forceinline__ void scale(int nt, const float factor[2])
	{
#pragma unroll
		for (int f = 0; f < C::dim_tiles; f++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				o[nt][f][e] = __fmul_rn(o[nt][f][e], factor[e % 2]);
#pragma unroll
		for (int e = 0; e < 2; e++)
			l[nt][e] = __fmul_rn(l[nt][e], factor[e]);
	}

	__device__ __forceinline__ void fold_chunk(const accum &chunk)
	{
#pragma unroll
		for (int nt = 0; nt < NT; nt++) {
			fold_factors by[2] = {
				fold(m[nt][0], chunk.m[nt][0]), fold(m[nt][1], chunk.m[nt][1])};
#pragma unroll
			for (int f = 0; f < C::dim_tiles; f++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					o[nt][f][e] =
						fold_in(o[nt][f][e], chunk.o[nt][f][e], by[e % 2]);
#pragma unroll
			for (int e = 0; e < 2; e++) {
				l[nt][e] = fold_in(l[nt][e], chunk.l[nt][e], by[e]);
				m[nt][e] = by[e].m;
			}
		}
	}
};

} // namespace nsv

#endif
