/* Paged attention's entry: which kernel serves a shape, its working memory, the copy engine's maps
 * of the pools, and the checks on host integers. No kernel here. */
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/generic.cuh"
#include "kernels/cuda/append.cuh"
#include "kernels/cuda/plan.cuh"
#include "kernels/cuda/prefill.cuh"

#include <cuda_runtime.h>
#include <string.h>

using namespace nsv;

static_assert(NSV_CUDA_SHARED_KEYS == STEP_KEYS << CHUNK_LEVELS &&
		      CHUNKS_A_SIZE % (1 << CHUNK_LEVELS) == 0,
	"the largest chunk: all chunks end where it may begin");

static constexpr float LOG2E = 1.44269504f;
/* Sequences of more rows (query row, head of the group) are prefill's, where limits allow them. */
static constexpr int32_t DECODE_ROWS = 64, DECODE_ROWS_BESIDE_PREFILL = 32;
/* A tile of a prefix: larger ones were slower, for want of registers. */
static constexpr int32_t SHARED_ROW_TILE = 16;

/* A line of items that decode's kernel spreads over the device: how, and what the plan leaves. */
struct decode_line {
	decode_config config;
	work_shape work;
	int32_t n_block, n_split, slot_len; /* n_split: most split items */
	int32_t entry_chunks, entries_len;
	run_start *starts;
	run *runs;
	split_cuts *cuts;
	split_state *splits;
	int64_t *ends;
	char *entries;
	uint64_t *launches;
};

struct nsv_cuda_attn {
	struct nsv_cuda *cuda;
	struct nsv_attn_shape shape;
	struct nsv_cuda_kv kv;
	struct nsv_cuda_limits limits;
	enum nsv_cuda_path path;
	decode_line own, shared; /* of sequences, of prefixes */
	work_shape prefill;	 /* row_tile 0: all is decode's */
	int32_t n_slot;
	bool is_fresh; /* nothing ran since the plan */
	size_t work_len;
	char *memory; /* the parts below and those of the lines, one allocation */
	int64_t *prefill_ends;
	uint32_t *ticket;
	int32_t *prefill_tile;
	float *partials, *shared_rows;
};

static int fail_runtime(cudaError_t code, const char *what, struct nsv_err *err)
{
	return nsv_fail(err, code == cudaErrorMemoryAllocation ? -ENOMEM : -EIO, "%s: %s", what,
		cudaGetErrorString(code));
}

static int fail_launch(int code, const char *what, struct nsv_err *err)
{
	return code == -EIO ? fail_runtime(cudaGetLastError(), what, err)
			    : nsv_fail(err, code, "%s: no kernel takes this shape", what);
}

int nsv_cuda_load_kernels(struct nsv_err *err)
{
	if (decode_load() < 0 || prefill_load() < 0 || generic_load() < 0 || append_load() < 0)
		return fail_runtime(cudaGetLastError(), "loading the kernels", err);
	return 0;
}

int nsv_cuda_attn_check(const struct nsv_attn_shape *shape, const struct nsv_attn_seq *seqs,
	uint32_t n_seq, uint32_t n_row, struct nsv_attn_plan *ret_plan, struct nsv_err *err)
{
	int status = nsv_attn_make_plan(shape, seqs, n_seq, n_row, ret_plan);
	if (status != NSV_ATTN_OK)
		return nsv_fail(err, -EINVAL, "attention: %s", nsv_attn_status_name(status));
	return 0;
}

/* Can tiles be fetched from this layout in 16-byte pieces, and by boxes that a tile is whole of?
 * `unit`: elements of a piece. */
static bool layout_fits(
	const struct nsv_attn_shape *shape, const struct nsv_kv_layout *layout, int64_t unit)
{
	int64_t limit = INT64_C(1) << 39;
	return layout->dim_stride == 1 && layout->tok_stride % unit == 0 &&
	       layout->head_stride % unit == 0 && layout->block_stride % unit == 0 &&
	       layout->tok_stride < limit && layout->head_stride < limit &&
	       layout->block_stride < limit && shape->block_size >= 8;
}

static bool is_packed(const struct nsv_cuda_attn *attn)
{
	return attn->kv.dtype == NSV_CUDA_KV_E4M3;
}

/* Can the scales of tokens be fetched in 16-byte pieces? */
static bool scales_fit_pieces(const struct nsv_cuda_kv *kv)
{
	return kv->k_scales % 16 == 0 && kv->v_scales % 16 == 0;
}

static enum nsv_cuda_path choose_path(
	const struct nsv_attn_shape *shape, const struct nsv_cuda_kv *kv)
{
	bool packed = kv->dtype == NSV_CUDA_KV_E4M3;
	int64_t unit = packed ? 16 : 8;
	bool fits = shape->kv_dtype != NSV_F32 && shape->head_dim % unit == 0 &&
		    shape->head_dim <= 256 && layout_fits(shape, &shape->k, unit) &&
		    layout_fits(shape, &shape->v, unit) && (!packed || scales_fit_pieces(kv));
	return fits ? NSV_CUDA_PATH_TENSOR : NSV_CUDA_PATH_GENERIC;
}

enum line_part { STARTS, RUNS, CUTS, SPLITS, ENDS, ENTRIES, LAUNCHES, N_LINE_PART };
enum part { TICKET = 2 * N_LINE_PART, PREFILL_TILE, PREFILL_ENDS, PARTIALS, SHARED_ROWS, N_PART };

static void size_line(const decode_line &line, uint32_t max_seq, size_t len[N_LINE_PART])
{
	size_t n_block = (size_t)line.n_block;
	len[STARTS] = n_block ? (n_block + 1) * sizeof(run_start) : 0;
	len[RUNS] = n_block * sizeof(run);
	len[CUTS] = n_block * sizeof(split_cuts);
	len[SPLITS] = n_block * sizeof(split_state);
	len[ENDS] = max_seq * sizeof(int64_t);
	len[ENTRIES] = (size_t)line.n_split * line.entry_chunks * line.entries_len;
	len[LAUNCHES] = n_block * DECODE_WARPS * sizeof(uint64_t);
}

/* Floats of the partials: one line's launch has ended before the other's writes any. */
static bool size_partials(const struct nsv_cuda_attn *attn, size_t *ret_len)
{
	size_t own = (size_t)attn->own.n_split * (size_t)attn->own.slot_len;
	size_t shared = (size_t)attn->shared.n_split * (size_t)attn->shared.slot_len;
	return nsv_mul(own > shared ? own : shared, (size_t)attn->n_slot, ret_len) &&
	       nsv_mul(*ret_len, sizeof(float), ret_len);
}

static bool size_shared_rows(const struct nsv_cuda_attn *attn, size_t *ret_len)
{
	size_t row = (size_t)attn->shape.n_head * (size_t)shared_floats(attn->own.config.dim_pad) *
		     sizeof(float);
	*ret_len = 0;
	return !attn->shared.n_block || nsv_mul(row, attn->limits.max_shared_row, ret_len);
}

/* Sets the offsets of the parts; false on overflow. */
static bool lay_out(struct nsv_cuda_attn *attn, size_t off[N_PART])
{
	size_t len[N_PART], at = 0;
	size_line(attn->own, attn->limits.max_seq, len);
	size_line(attn->shared, attn->limits.max_prefix, len + N_LINE_PART);
	len[TICKET] = sizeof(uint32_t);
	len[PREFILL_TILE] = sizeof(int32_t);
	len[PREFILL_ENDS] = len[ENDS];
	if (!size_partials(attn, &len[PARTIALS]) || !size_shared_rows(attn, &len[SHARED_ROWS]))
		return false;
	for (int i = 0; i < N_PART; i++) {
		off[i] = at;
		if (!nsv_add(at, len[i], &at) || !nsv_align_up(at, 256, &at))
			return false;
	}
	attn->work_len = at;
	return true;
}

static void place_line(decode_line *line, char *memory, const size_t off[N_LINE_PART])
{
	line->starts = (run_start *)(memory + off[STARTS]);
	line->runs = (run *)(memory + off[RUNS]);
	line->cuts = (split_cuts *)(memory + off[CUTS]);
	line->splits = (split_state *)(memory + off[SPLITS]);
	line->ends = (int64_t *)(memory + off[ENDS]);
	line->entries = memory + off[ENTRIES];
	line->launches = (uint64_t *)(memory + off[LAUNCHES]);
}

static int alloc_work(struct nsv_cuda_attn *attn, struct nsv_err *err)
{
	size_t off[N_PART];
	if (!lay_out(attn, off))
		return nsv_fail(err, -EOVERFLOW, "attention's working memory is too large");
	cudaError_t code = cudaMalloc((void **)&attn->memory, attn->work_len);
	if (code != cudaSuccess)
		return fail_runtime(code, "attention's working memory", err);
	place_line(&attn->own, attn->memory, off);
	place_line(&attn->shared, attn->memory, off + N_LINE_PART);
	attn->ticket = (uint32_t *)(attn->memory + off[TICKET]);
	attn->prefill_tile = (int32_t *)(attn->memory + off[PREFILL_TILE]);
	attn->prefill_ends = (int64_t *)(attn->memory + off[PREFILL_ENDS]);
	attn->partials = (float *)(attn->memory + off[PARTIALS]);
	attn->shared_rows = (float *)(attn->memory + off[SHARED_ROWS]);
	code = cudaMemset(attn->memory, 0, off[PARTIALS]);
	/* A caller's stream need not wait for the default one. */
	if (code == cudaSuccess)
		code = cudaStreamSynchronize(0);
	return code == cudaSuccess ? 0 : fail_runtime(code, "attention's working memory", err);
}

/* Split items: fewer than blocks of threads, and no more than items. */
static int32_t most_splits(const decode_line &line, uint64_t n_seq, uint64_t rows)
{
	uint64_t tiles = (rows + line.work.row_tile - 1) / line.work.row_tile;
	uint64_t n = (uint64_t)line.n_block;
	return (int32_t)nsv_min_u64(n, n_seq * nsv_min_u64(n, tiles * line.work.n_kv_head));
}

/* A line of n_seq sequences of up to `rows` rows each, up to most_tile rows an item. */
static void init_line(const struct nsv_cuda_attn *attn, uint64_t n_seq, uint64_t rows,
	int32_t most_tile, decode_line *line)
{
	line->config = decode_choose(
		attn->shape, is_packed(attn), nsv_min_u64(rows, (uint64_t)most_tile));
	line->work.row_tile = line->config.row_tile;
	line->n_block = decode_n_block(line->config, attn->cuda->n_sm);
	line->n_split = most_splits(*line, n_seq, rows);
	/* Even: partials are read in whole 16-byte pieces. */
	int32_t n = ((int32_t)nsv_min_u64(rows, (uint64_t)line->work.row_tile) + 1) & ~1;
	line->slot_len = slot_floats(line->config.dim_pad, n);
	line->entry_chunks = attn->n_slot < ENTRY_CHUNKS ? attn->n_slot : ENTRY_CHUNKS;
	line->entries_len = n > ENTRY_ROWS ? 0 : entry_bytes(line->config.dim_pad, n);
}

static int init_tensor(struct nsv_cuda_attn *attn, struct nsv_err *err)
{
	const struct nsv_attn_shape *shape = &attn->shape;
	int32_t group = (int32_t)(shape->n_head / shape->n_kv_head);
	int32_t prefill_tile = is_packed(attn) ? 0 : prefill_row_tile(shape->head_dim, group);
	uint64_t rows = (uint64_t)group * attn->limits.max_query;
	work_shape work = {(int32_t)shape->n_kv_head, group, (int32_t)shape->window, 0, 1,
		INT32_MAX, ALL_KEYS};
	attn->own.work = attn->shared.work = attn->prefill = work;
	attn->own.work.part = OWN_KEYS;
	attn->shared.work.part = SHARED_KEYS;
	if (rows > (uint64_t)DECODE_ROWS && prefill_tile) {
		rows = DECODE_ROWS_BESIDE_PREFILL;
		attn->own.work.max_rows = DECODE_ROWS_BESIDE_PREFILL;
		attn->prefill.min_rows = DECODE_ROWS_BESIDE_PREFILL + 1;
		attn->prefill.row_tile = prefill_tile;
	}
	attn->n_slot = tile_chunk((int32_t)(attn->limits.max_kv / TILE)) + 1;
	init_line(attn, attn->limits.max_seq, rows, DECODE_ROWS, &attn->own);
	if (attn->limits.max_prefix)
		init_line(attn, attn->limits.max_prefix,
			(uint64_t)group * attn->limits.max_shared_row, SHARED_ROW_TILE,
			&attn->shared);
	return alloc_work(attn, err);
}

/* Are scales where whole floats are? */
static bool scales_fit(const struct nsv_attn_shape *shape, const struct nsv_cuda_kv *kv)
{
	return kv->k_scales % 4 == 0 && kv->v_scales % 4 == 0 && shape->k.block_stride % 4 == 0 &&
	       shape->v.block_stride % 4 == 0;
}

static int check_new(const struct nsv_attn_shape *shape, const struct nsv_cuda_kv *kv,
	const struct nsv_cuda_limits *limits, struct nsv_err *err)
{
	int status = nsv_attn_check_shape(shape);
	if (status != NSV_ATTN_OK)
		return nsv_fail(err, -EINVAL, "attention: %s", nsv_attn_status_name(status));
	if (limits->max_seq == 0 || limits->max_query == 0 || limits->max_kv == 0 ||
		limits->max_kv > INT32_MAX / 2 || limits->max_query > limits->max_kv ||
		shape->window > INT32_MAX / 2)
		return nsv_fail(err, -EINVAL, "attention: limits of zero or beyond 2^30 keys");
	if (kv->dtype == NSV_CUDA_KV_E4M3 && !scales_fit(shape, kv))
		return nsv_fail(err, -EINVAL, "attention: scales that are not whole floats apart");
	if (limits->max_prefix && (shape->window || !limits->max_shared_row))
		return nsv_fail(err, -EINVAL, "attention: prefixes of %s",
			shape->window ? "a sliding window" : "no rows");
	if (limits->max_prefix && choose_path(shape, kv) != NSV_CUDA_PATH_TENSOR)
		return nsv_fail(
			err, -ENOTSUP, "attention: prefixes of a shape not for tensor cores");
	return 0;
}

int nsv_cuda_attn_new(struct nsv_cuda *cuda, const struct nsv_attn_shape *shape,
	const struct nsv_cuda_kv *kv, const struct nsv_cuda_limits *limits,
	struct nsv_cuda_attn **ret_attn, struct nsv_err *err)
{
	struct nsv_cuda_kv same = {NSV_CUDA_KV_SAME, 0, 0};
	kv = kv ? kv : &same;
	int r = check_new(shape, kv, limits, err);
	if (r < 0)
		return r;
	nsv_autofree struct nsv_cuda_attn *attn = (struct nsv_cuda_attn *)calloc(1, sizeof(*attn));
	if (!attn)
		return nsv_fail(err, -ENOMEM, "no memory for attention");
	attn->cuda = cuda;
	attn->shape = *shape;
	attn->kv = *kv;
	attn->limits = *limits;
	attn->path = choose_path(shape, kv);
	r = attn->path == NSV_CUDA_PATH_GENERIC ? 0 : init_tensor(attn, err);
	if (r < 0) {
		cudaFree(attn->memory);
		return r;
	}
	*ret_attn = attn;
	attn = NULL;
	return 0;
}

void nsv_cuda_attn_free(struct nsv_cuda_attn *attn)
{
	if (!attn)
		return;
	cudaFree(attn->memory);
	free(attn);
}

enum nsv_cuda_path nsv_cuda_attn_path(const struct nsv_cuda_attn *attn)
{
	return attn->path;
}

size_t nsv_cuda_attn_work_len(const struct nsv_cuda_attn *attn)
{
	return attn->work_len;
}

static int check_batch(
	const struct nsv_cuda_attn *attn, const struct nsv_cuda_batch *batch, struct nsv_err *err)
{
	if (batch->n_seq == 0 || batch->n_seq > attn->limits.max_seq)
		return nsv_fail(err, -EINVAL, "attention: %u sequences where 1 to %u are allowed",
			batch->n_seq, attn->limits.max_seq);
	if ((uint64_t)batch->table_stride * attn->shape.block_size < attn->limits.max_kv)
		return nsv_fail(err, -EINVAL, "attention: a table of %u blocks is short of %u keys",
			batch->table_stride, attn->limits.max_kv);
	return 0;
}

/* The line's plan, and prefill's beside it. */
static int plan_line(const struct nsv_cuda_attn *attn, const decode_line &line,
	const struct nsv_cuda_seq *seqs, uint32_t n_seq, bool has_prefill, cudaStream_t stream)
{
	plan_args args = {line.work, seqs, (int32_t)n_seq, line.n_block, line.ends, line.starts,
		line.runs, line.cuts, attn->prefill, 0, 0, NULL, attn->prefill_tile};
	if (has_prefill) {
		args.prefill_least = prefill_least_tile(attn->shape.head_dim, args.prefill.group);
		args.prefill_few = (int32_t)attn->cuda->n_sm / 2;
		args.prefill_ends = attn->prefill_ends;
	}
	return plan_launch(args, stream);
}

int nsv_cuda_attn_plan(struct nsv_cuda_attn *attn, const struct nsv_cuda_batch *batch,
	nsv_cuda_stream stream, struct nsv_err *err)
{
	int r = check_batch(attn, batch, err);
	if (r < 0 || attn->path == NSV_CUDA_PATH_GENERIC)
		return r;
	attn->is_fresh = true;
	if (batch->n_prefix)
		r = plan_line(attn, attn->shared, batch->prefixes, batch->n_prefix, false, stream);
	if (r == 0)
		r = plan_line(attn, attn->own, batch->seqs, batch->n_seq,
			attn->prefill.row_tile != 0, stream);
	return r < 0 ? fail_launch(r, "planning attention", err) : 0;
}

static struct score make_score(const struct nsv_attn_shape *shape)
{
	if (shape->softcap > 0.0f)
		return {shape->scale / shape->softcap, shape->softcap * LOG2E, 1.0f};
	float scale = shape->scale * LOG2E;
	return {scale, 0.0f, scale > 0.0f ? scale : 1.0f};
}

static int32_t log2_u32(uint32_t x)
{
	return 31 - __builtin_clz(x);
}

static CUtensorMapDataType element_type(const struct nsv_cuda_attn *attn)
{
	return attn->shape.kv_dtype == NSV_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
					       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

struct map_shape {
	CUtensorMapDataType type;
	cuuint32_t rank;
	cuuint64_t dims[4], strides[3]; /* strides in bytes */
	cuuint32_t box[4];
	CUtensorMapSwizzle swizzle;
};

/* `what` has the layout that the copy engine may refuse. */
static int encode_map(const struct nsv_cuda_attn *attn, const void *base, const map_shape &map,
	CUtensorMap *ret_map, const char *what, struct nsv_err *err)
{
	cuuint32_t ones[4] = {1, 1, 1, 1};
	CUresult code = attn->cuda->driver.tensor_map(ret_map, map.type, map.rank, (void *)base,
		map.dims, map.strides, map.box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, map.swizzle,
		CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	if (code != CUDA_SUCCESS)
		return nsv_fail(err, -EINVAL, "attention: the copy engine refuses %s", what);
	return 0;
}

/* The map (dim, token, head, block) of a pool, boxes of 128 bytes (of 64 where a head has no more)
 * and up to 64 tokens. */
static int make_map(const struct nsv_cuda_attn *attn, const struct nsv_kv_layout *layout,
	const void *pool, CUtensorMap *ret_map, struct nsv_err *err)
{
	const struct nsv_attn_shape *shape = &attn->shape;
	cuuint64_t elem = is_packed(attn) ? 1 : 2;
	cuuint32_t row = (cuuint32_t)(attn->own.config.dim_pad * elem);
	map_shape map = {is_packed(attn) ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : element_type(attn), 4,
		{shape->head_dim, shape->block_size, shape->n_kv_head, shape->n_block},
		{(cuuint64_t)layout->tok_stride * elem, (cuuint64_t)layout->head_stride * elem,
			(cuuint64_t)layout->block_stride * elem},
		{(cuuint32_t)((row < 128 ? row : 128) / elem),
			shape->block_size < TILE ? shape->block_size : TILE, 1, 1},
		row < 128 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B};
	return encode_map(attn, pool, map, ret_map, "the pool's layout", err);
}

/* The map (dim, head, row) of q, boxes of 64 dims of the heads that share keys and of n_tok tokens.
 * Rows have no end here: none is asked for that is not there. */
static int make_q_map(const struct nsv_cuda_attn *attn, const void *q, uint32_t n_tok,
	CUtensorMap *ret_map, struct nsv_err *err)
{
	const struct nsv_attn_shape *shape = &attn->shape;
	cuuint64_t head = shape->head_dim * sizeof(uint16_t);
	map_shape map = {element_type(attn), 3, {shape->head_dim, shape->n_head, INT32_MAX},
		{head, shape->n_head * head}, {64, shape->n_head / shape->n_kv_head, n_tok},
		CU_TENSOR_MAP_SWIZZLE_128B};
	return encode_map(attn, q, map, ret_map, "q", err);
}

static int run_generic(const struct nsv_cuda_attn *attn, const struct nsv_cuda_batch *batch,
	const void *k, const void *v, const void *q, void *out, cudaStream_t stream)
{
	const struct nsv_attn_shape *shape = &attn->shape;
	generic_args args = {(int32_t)shape->n_head, (int32_t)shape->head_dim,
		(int32_t)(shape->n_head / shape->n_kv_head), (int32_t)shape->window,
		log2_u32(shape->block_size), (int32_t)batch->table_stride, make_score(shape),
		{k, shape->k, attn->kv.k_scales}, {v, shape->v, attn->kv.v_scales}, batch->seqs,
		batch->tables, q, out};
	return generic_launch(shape->kv_dtype, is_packed(attn), args, attn->limits.max_query,
		batch->n_seq, stream);
}

/* The copy engine's maps. */
static int make_maps(const struct nsv_cuda_attn *attn, const void *k, const void *v,
	attn_args *args, struct nsv_err *err)
{
	if (is_packed(attn) && ((uintptr_t)k | (uintptr_t)v) % 16)
		return nsv_fail(err, -EINVAL, "attention: K or V at no whole 16 bytes");
	int r = make_map(attn, &attn->shape.k, k, &args->k, err);
	return r < 0 ? r : make_map(attn, &attn->shape.v, v, &args->v, err);
}

static int make_args(const struct nsv_cuda_attn *attn, const struct nsv_cuda_batch *batch,
	const void *k, const void *v, const void *q, void *out, decode_args *ret,
	struct nsv_err *err)
{
	const struct nsv_attn_shape *shape = &attn->shape;
	memset(ret, 0, sizeof(*ret));
	int r = make_maps(attn, k, v, ret, err);
	if (r < 0)
		return r;
	ret->score = make_score(shape);
	ret->n_head = (int32_t)shape->n_head;
	ret->head_dim = (int32_t)shape->head_dim;
	ret->block_shift = log2_u32(shape->block_size);
	ret->box_shift = shape->block_size < TILE ? ret->block_shift : log2_u32(TILE);
	ret->table_stride = (int32_t)batch->table_stride;
	ret->tables = batch->tables;
	ret->q = q;
	ret->out = out;
	ret->partials = attn->partials;
	ret->n_slot = attn->n_slot;
	ret->shared = attn->shared_rows;
	ret->packed_k = {k, shape->k, attn->kv.k_scales};
	ret->packed_v = {v, shape->v, attn->kv.v_scales};
	return 0;
}

static int make_prefill_args(const struct nsv_cuda_attn *attn, const decode_args &common,
	const struct nsv_cuda_batch *batch, prefill_args *ret, struct nsv_err *err)
{
	static_cast<attn_args &>(*ret) = common;
	ret->shape = attn->prefill;
	ret->seqs = batch->seqs;
	ret->n_seq = (int32_t)batch->n_seq;
	ret->ends = attn->prefill_ends;
	ret->tile = attn->prefill_tile;
	ret->ticket = attn->ticket;
	int r = make_q_map(attn, common.q, 1, &ret->q_token, err);
	if (r < 0)
		return r;
	return make_q_map(
		attn, common.q, (uint32_t)prefill_tile_tokens(ret->shape.group), &ret->q_tile, err);
}

static int run_line(const decode_line &line, const struct nsv_cuda_seq *seqs, decode_args args,
	bool early, cudaStream_t stream)
{
	args.shape = line.work;
	args.seqs = seqs;
	args.runs = line.runs;
	args.splits = line.splits;
	args.entries = line.entries;
	args.entry_chunks = line.entry_chunks;
	args.entries_len = line.entries_len;
	args.launches = line.launches;
	args.slot_len = line.slot_len;
	return decode_launch(line.config, args, line.n_block, early, stream);
}

/* What sequences share, then what is their own: the second launch waits for the first. */
static int run_tensor(struct nsv_cuda_attn *attn, const struct nsv_cuda_batch *batch, const void *k,
	const void *v, const void *q, void *out, cudaStream_t stream, struct nsv_err *err)
{
	decode_args args;
	prefill_args rows;
	bool early = !attn->is_fresh;
	int r = make_args(attn, batch, k, v, q, out, &args, err);
	if (r == 0 && attn->prefill.row_tile)
		r = make_prefill_args(attn, args, batch, &rows, err);
	if (r < 0)
		return r;
	attn->is_fresh = false;
	if (batch->n_prefix) {
		r = run_line(attn->shared, batch->prefixes, args, early, stream);
		early = true;
	}
	if (r == 0)
		r = run_line(attn->own, batch->seqs, args, early, stream);
	if (r == 0 && attn->prefill.row_tile)
		r = prefill_launch(attn->own.config.f16, rows, (int)attn->cuda->n_sm, stream);
	return r < 0 ? fail_launch(r, "attention", err) : 0;
}

int nsv_cuda_attn_run(struct nsv_cuda_attn *attn, const struct nsv_cuda_batch *batch, const void *k,
	const void *v, const void *q, void *out, nsv_cuda_stream stream, struct nsv_err *err)
{
	int r = check_batch(attn, batch, err);
	if (r < 0)
		return r;
	if (attn->path != NSV_CUDA_PATH_GENERIC)
		return run_tensor(attn, batch, k, v, q, out, stream, err);
	r = run_generic(attn, batch, k, v, q, out, stream);
	return r < 0 ? fail_launch(r, "attention", err) : 0;
}

int nsv_cuda_kv_append(struct nsv_cuda *cuda, const struct nsv_attn_shape *shape,
	const struct nsv_cuda_kv *kv, const struct nsv_cuda_append *args, void *k_pool,
	void *v_pool, nsv_cuda_stream stream, struct nsv_err *err)
{
	struct nsv_cuda_kv same = {NSV_CUDA_KV_SAME, 0, 0};
	(void)cuda;
	if (args->n_rot % 2 || args->n_rot > shape->head_dim)
		return nsv_fail(
			err, -EINVAL, "RoPE turns %u of %u dims", args->n_rot, shape->head_dim);
	if (args->n_row == 0)
		return 0;
	int r = append_launch(*shape, kv ? *kv : same, *args, k_pool, v_pool, stream);
	return r < 0 ? fail_launch(r, "appending K and V", err) : 0;
}
