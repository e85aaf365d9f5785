/* The one order in which a history is reduced: promise 1 for every kernel of this folder.
 *
 *     keys     0 ........... 1024 ........... 3072 .......
 *     chunks   8 x 128 keys       8 x 256 keys     512 each
 *     steps    of 128 keys: a chunk is whole steps
 *     tiles    of 64 keys, two a step: what decode loads and what its work is counted in
 *
 * A step: x = q.k over k16 slices in order; the row's reference m becomes max(m, max x f) (f:
 * struct score) and what the chunk has is scaled to it; p = 2^(x f - m) with one rounding, then
 * rounded to the element type (the largest is 1, with no error); o += p v and l += p 1, over k16
 * slices of keys in order. A chunk begins with o = l = 0 and no reference. The chunks of a row are
 * folded from the first to the last by fold(). A tile, step or chunk that a row sees nothing of
 * changes no bit of it. (What decode and prefill do; generic.cu has steps of a tile.)
 *
 * The edges depend on positions alone, so the bits depend on neither the batch nor the split. */
#ifndef NSV_KERNELS_CUDA_ORDER_CUH
#define NSV_KERNELS_CUDA_ORDER_CUH

#include <stdint.h>

namespace nsv
{

constexpr int TILE = 64;
constexpr int STEP_SHIFT = 1;
constexpr int STEP_TILES = 1 << STEP_SHIFT;
constexpr int STEP_KEYS = STEP_TILES * TILE;
constexpr int CHUNKS_A_SIZE = 8;
constexpr int CHUNK_LEVELS = 2; /* doublings; then the size stays */

/* The end of the step that a tile is in. */
__host__ __device__ constexpr int step_end(int tile)
{
	return (tile | (STEP_TILES - 1)) + 1;
}

/* First tile of the chunks of 2^level steps. */
__host__ __device__ constexpr int level_tile(int level)
{
	return ((1 << level) - 1) * CHUNKS_A_SIZE << STEP_SHIFT;
}

__host__ __device__ inline int tile_level(int tile)
{
	int level = 0;
	for (int next = 1; next <= CHUNK_LEVELS; next++)
		level += tile >= level_tile(next);
	return level;
}

/* First tile of chunk i. */
__host__ __device__ inline int chunk_tile(int i)
{
	int level = i / CHUNKS_A_SIZE < CHUNK_LEVELS ? i / CHUNKS_A_SIZE : CHUNK_LEVELS;
	return level_tile(level) + ((i - level * CHUNKS_A_SIZE) << (level + STEP_SHIFT));
}

/* The chunk that a tile is in. */
__host__ __device__ inline int tile_chunk(int tile)
{
	int level = tile_level(tile);
	return level * CHUNKS_A_SIZE + ((tile - level_tile(level)) >> (level + STEP_SHIFT));
}

/* The chunk edge at or below a tile, and the one above it. */
__host__ __device__ inline int chunk_begin(int tile)
{
	int level = tile_level(tile), base = level_tile(level), shift = level + STEP_SHIFT;
	return base + (((tile - base) >> shift) << shift);
}

__host__ __device__ inline int chunk_end(int tile)
{
	return chunk_begin(tile) + (1 << (tile_level(tile) + STEP_SHIFT));
}

#ifdef __CUDACC__

/* The reference of a row that has seen nothing: finite, so that differences are. */
constexpr float M_NONE = -1e30f;

__device__ __forceinline__ float exp2_fast(float x)
{
	float r;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
	return r;
}

/* How q.k becomes an exponent of 2. */
struct score {
	float scale;  /* of q.k, log2(e) included where there is no cap */
	float cap;    /* 0: none; else the cap, log2(e) included */
	float factor; /* of what maxima are taken of: scale of q.k itself, or 1 of prepared() */

	__host__ __device__ bool is_prepared() const
	{
		return cap != 0.0f || !(scale > 0.0f);
	}

	/* cap tanh(x), tanh(x) = 1 - 2 / (1 + e^2x) */
	__device__ __forceinline__ float prepared(float qk) const
	{
		float x = __fmul_rn(qk, scale);
		if (cap == 0.0f)
			return x;
		float e = exp2_fast(__fmul_rn(x, 2.885390082f));
		return __fmul_rn(cap, __fsub_rn(1.0f, __fdividef(2.0f, __fadd_rn(1.0f, e))));
	}

	__device__ __forceinline__ float weight(float x, float m) const
	{
		return exp2_fast(__fmaf_rn(x, factor, -m));
	}
};

__device__ __forceinline__ float next_ref(float m, float tile_max)
{
	return fmaxf(m, tile_max);
}

/* The factors that bring a running result (reference m) and a chunk's (mc) to a common one. */
struct fold_factors {
	float m, a, b;
};

__device__ __forceinline__ fold_factors fold(float m, float mc)
{
	float n = fmaxf(m, mc);
	return {n, exp2_fast(__fsub_rn(m, n)), exp2_fast(__fsub_rn(mc, n))};
}

__device__ __forceinline__ float fold_in(float total, float chunk, const fold_factors &f)
{
	return __fmaf_rn(chunk, f.b, __fmul_rn(total, f.a));
}

/* What O is multiplied by, for a sum of weights; 0 where a row has seen nothing, as O is then. */
__device__ __forceinline__ float inverse(float l)
{
	return l > 0.0f ? __fdividef(1.0f, l) : 0.0f;
}

__device__ __forceinline__ float normalise(float o, float l)
{
	return __fmul_rn(o, inverse(l));
}

#endif

} // namespace nsv

#endif
