/* What the launcher of decode needs from its caller (attn.cu). */
#ifndef NSV_KERNELS_CUDA_DECODE_CUH
#define NSV_KERNELS_CUDA_DECODE_CUH

#include "kernels/cuda/args.cuh"
#include "kernels/cuda/pieces.cuh"

#include <cuda_runtime.h>

namespace nsv
{

constexpr int DECODE_WARPS = 4; /* consumers of a block of threads */
/* Most chunks and rows of a split item whose partials are entries. */
constexpr int ENTRY_CHUNKS = 32, ENTRY_ROWS = 8;

/* How far the runs of a split item are, in tiles; zero between launches. Of an item that is folded
 * from entries: tiles that each warp counts, and the slices that were given up. */
struct alignas(16) split_state {
	uint32_t done, left; /* tiles of runs that have arrived, and of those that are through */
	uint32_t taken;	     /* slices of the merge */
};

struct decode_args : attn_args {
	const run *runs;	 /* (n_block) */
	split_state *splits;	 /* (n_block) */
	float *partials;	 /* (n_split, n_slot, slot_len), a slot a chunk */
	int32_t n_slot, slot_len;
	char *entries; /* (n_split, entry_chunks, entries_len) */
	int32_t entry_chunks, entries_len;
	uint64_t *launches; /* (n_block, DECODE_WARPS): how many there were, a count a warp */
	/* (row of q, head, shared_floats()): what prefixes have of rows: written for SHARED_KEYS,
	 * where sequences with n_shared begin for OWN_KEYS. */
	float *shared;
	stored_pool packed_k, packed_v; /* in place of the maps, where config.packed */
};

/* Which instantiation serves a shape; fixed with the working memory. */
struct decode_config {
	bool f16, packed;  /* fp16, not bf16; K and V are e4m3 */
	int32_t dim_pad;  /* 64, 128, 256 */
	int32_t row_tile; /* rows an item: 8, 16, 32, 64 */
};

/* Floats of a partial result of `rows` rows: o, then the references, then the sums. */
constexpr int32_t slot_floats(int32_t dim_pad, int32_t rows)
{
	return rows * (dim_pad + 2);
}

/* Bytes of the entries of a chunk of `rows` rows (decode_entries.cuh). */
constexpr int32_t entry_bytes(int32_t dim_pad, int32_t rows)
{
	return rows * (dim_pad / 2 + 1) * 16;
}

/* Floats of what a prefix has of a row: o, its reference, its sum; whole 16-byte pieces. */
__host__ __device__ constexpr int32_t shared_floats(int32_t dim_pad)
{
	return dim_pad + 4;
}

decode_config decode_choose(const nsv_attn_shape &shape, bool packed, uint64_t max_rows);
/* Loads the kernels and raises their limits; once a context. */
int decode_load();
/* Blocks of threads that the device holds at once. */
int32_t decode_n_block(const decode_config &config, int n_sm);
/* `early`: begin before the launch before this one has ended. What it wrote is then read only after
 * it has: q and the keys from n_past on; all else must be older. */
int decode_launch(const decode_config &config, const decode_args &args, int32_t n_block, bool early,
	cudaStream_t stream);

} // namespace nsv

#endif
