/* What the launcher of decode needs from its caller (attn.cu). */
#ifndef NSV_KERNELS_CUDA_DECODE_CUH
#define NSV_KERNELS_CUDA_DECODE_CUH

#include "kernels/cuda/work.cuh"

#include <cuda.h>
#include <cuda_runtime.h>

namespace nsv
{

struct decode_args {
	CUtensorMap k, v; /* (dim, token, head, block) */
	work_shape shape;
	struct score score;
	int32_t n_head, head_dim;
	int32_t block_shift; /* log2 of the block size */
	int32_t box_shift;   /* log2 of the tokens of a box of the maps */
	int32_t table_stride;
	const nsv_cuda_seq *seqs;
	const int32_t *tables;
	const run_start *starts; /* (n_block + 1) */
	uint32_t *arrived;	 /* (n_block) tiles done of a split item; zero between launches */
	float *partials;	 /* (n_block, n_slot, slot_len), a slot a chunk */
	int32_t n_slot, slot_len;
	const void *q; /* (n_row, n_head, head_dim) */
	void *out;
};

struct plan_args {
	work_shape shape;
	const nsv_cuda_seq *seqs;
	int32_t n_seq, n_block; /* blocks of threads that decode runs with: below 1024 */
	int64_t *ends;		/* (n_seq): tiles up to and with a sequence */
	run_start *starts;	/* (n_block + 1) */
	int32_t *cuts;		/* (n_block) */
};

/* Which instantiation serves a shape; fixed with the working memory. */
struct decode_config {
	bool f16;
	int32_t dim_pad;   /* 64, 128, 256 */
	int32_t row_tiles; /* of 16 rows: 1, 2, 4 */
};

/* Floats of a partial result of `rows` rows: o, then the references, then the sums. */
constexpr int32_t slot_floats(int32_t dim_pad, int32_t rows)
{
	return rows * (dim_pad + 2);
}

decode_config decode_choose(const nsv_attn_shape &shape, uint32_t max_query);
/* Loads the kernels and raises their limits; once a context. */
int decode_load();
/* Blocks of threads that the device holds at once. */
int32_t decode_n_block(const decode_config &config, int n_sm);
int plan_launch(const plan_args &args, cudaStream_t stream);
/* `early`: begin before the launch before this one has ended. What it wrote is then read only after
 * it has: q and the keys from n_past on; all else must be older. */
int decode_launch(const decode_config &config, const decode_args &args, int32_t n_block, bool early,
	cudaStream_t stream);

} // namespace nsv

#endif
