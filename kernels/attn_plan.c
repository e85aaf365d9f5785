/* Every integer of paged attention that becomes an address: checked and computed here, in plain C,
 * before a kernel sees it. Reads no K and no V; allocates nothing; the same on every machine. */
#include "kernels/ops.h"

#include <math.h>

#define MAX_DIM 1024u       /* of head_dim and block_size */
#define TILE 32u            /* keys a step of `model` */
#define MAX_LEVEL 40u       /* of chunk sizes: far beyond any 32-bit history */

static const char *const status_names[] = {
	[NSV_ATTN_OK] = "ok",
	[NSV_ATTN_ZERO] = "a dimension is zero",
	[NSV_ATTN_HEADS] = "head count does not divide",
	[NSV_ATTN_HEAD_DIM] = "head size above 1024",
	[NSV_ATTN_BLOCK_SIZE] = "block size is not a power of two up to 1024",
	[NSV_ATTN_DTYPE] = "element type of K and V not supported",
	[NSV_ATTN_STRIDE] = "strides not positive, or places overlap",
	[NSV_ATTN_SCALE] = "scale not finite, or softcap negative",
	[NSV_ATTN_OVERFLOW] = "size or address does not fit",
	[NSV_ATTN_TABLE_SHORT] = "block table shorter than the history",
	[NSV_ATTN_SLOT] = "block or slot outside the pool",
	[NSV_ATTN_QUERY] = "query longer than its history",
	[NSV_ATTN_ROWS] = "rows overlap or lie outside the query",
};

const char *nsv_attn_status_name(int status)
{
	if (status < 0 || (size_t)status >= NSV_ARRAY_LEN(status_names))
		return "unknown status";
	return status_names[status];
}

/* ---- Shape ------------------------------------------------------------------------------ */

struct axis {
	int64_t n, stride;
};

static void sort_axes(struct axis *a, size_t n)
{
	for (size_t i = 1; i < n; i++)
		for (size_t j = i; j > 0 && a[j - 1].stride > a[j].stride; j--) {
			struct axis t = a[j];
			a[j] = a[j - 1];
			a[j - 1] = t;
		}
}

/* No two places overlap if each stride, smallest first, is longer than all below it reach. */
static int check_layout(const struct nsv_attn_shape *shape, const struct nsv_kv_layout *l)
{
	int64_t reach = 0, span, len;
	struct axis axes[] = {
		{shape->n_block, l->block_stride},
		{shape->block_size, l->tok_stride},
		{shape->n_kv_head, l->head_stride},
		{shape->head_dim, l->dim_stride},
	};
	for (size_t i = 0; i < NSV_ARRAY_LEN(axes); i++)
		if (axes[i].stride <= 0)
			return NSV_ATTN_STRIDE;
	sort_axes(axes, NSV_ARRAY_LEN(axes));
	for (size_t i = 0; i < NSV_ARRAY_LEN(axes); i++) {
		if (axes[i].n > 1 && axes[i].stride <= reach)
			return NSV_ATTN_STRIDE;
		if (__builtin_mul_overflow(axes[i].n - 1, axes[i].stride, &span) ||
			__builtin_add_overflow(reach, span, &reach))
			return NSV_ATTN_OVERFLOW;
	}
	if (__builtin_add_overflow(reach, 1, &len) || __builtin_mul_overflow(len, 4, &len) ||
		len > PTRDIFF_MAX)
		return NSV_ATTN_OVERFLOW;
	return NSV_ATTN_OK;
}

static int check_dims(const struct nsv_attn_shape *s)
{
	if (!s->n_head || !s->n_kv_head || !s->head_dim || !s->block_size || !s->n_block)
		return NSV_ATTN_ZERO;
	if (s->n_head % s->n_kv_head)
		return NSV_ATTN_HEADS;
	if (s->head_dim > MAX_DIM)
		return NSV_ATTN_HEAD_DIM;
	if (!nsv_is_pow2(s->block_size) || s->block_size > MAX_DIM)
		return NSV_ATTN_BLOCK_SIZE;
	if (s->kv_dtype != NSV_F32 && s->kv_dtype != NSV_F16 && s->kv_dtype != NSV_BF16)
		return NSV_ATTN_DTYPE;
	if (!isfinite(s->scale) || !isfinite(s->softcap) || s->softcap < 0)
		return NSV_ATTN_SCALE;
	return NSV_ATTN_OK;
}

int nsv_attn_check_shape(const struct nsv_attn_shape *shape)
{
	int status = check_dims(shape);
	if (!status)
		status = check_layout(shape, &shape->k);
	if (!status)
		status = check_layout(shape, &shape->v);
	return status;
}

/* ---- Sequences -------------------------------------------------------------------------- */

static int check_seq(const struct nsv_attn_shape *shape, const struct nsv_attn_seq *seq,
	uint32_t n_row, uint32_t *ret_kv)
{
	uint32_t n_kv;
	uint64_t n_block;
	if (__builtin_add_overflow(seq->n_past, seq->n_query, &n_kv))
		return NSV_ATTN_OVERFLOW;
	if (seq->n_query > n_row || seq->row0 > n_row - seq->n_query)
		return NSV_ATTN_ROWS;
	n_block = ((uint64_t)n_kv + shape->block_size - 1) / shape->block_size;
	if (seq->n_table < n_block || (n_block && !seq->block_table))
		return NSV_ATTN_TABLE_SHORT;
	for (uint64_t i = 0; i < n_block; i++)
		if (seq->block_table[i] < 0 || (uint32_t)seq->block_table[i] >= shape->n_block)
			return NSV_ATTN_SLOT;
	*ret_kv = n_kv;
	return NSV_ATTN_OK;
}

static bool rows_overlap(const struct nsv_attn_seq *a, const struct nsv_attn_seq *b)
{
	return a->n_query && b->n_query && a->row0 < b->row0 + b->n_query &&
		b->row0 < a->row0 + a->n_query;
}

/* In the usual order, rows growing, one look at each; else each pair. Bounds are checked before. */
static bool any_overlap(const struct nsv_attn_seq *seqs, uint32_t n_seq)
{
	uint32_t end = 0, i, j;
	for (i = 0; i < n_seq && (!seqs[i].n_query || seqs[i].row0 >= end); i++)
		if (seqs[i].n_query)
			end = seqs[i].row0 + seqs[i].n_query;
	if (i == n_seq)
		return false;
	for (i = 0; i < n_seq; i++)
		for (j = 0; j < i; j++)
			if (rows_overlap(&seqs[i], &seqs[j]))
				return true;
	return false;
}

int nsv_attn_scratch_len(
	const struct nsv_attn_shape *shape, uint32_t n_row, uint64_t max_kv, size_t *ret_len)
{
	size_t len, dim = (shape->head_dim + 15u) / 16u * 16u + NSV_ATTN_PART_HEAD;
	if (!nsv_mul(nsv_min(n_row, NSV_ATTN_SPLIT_ROWS), shape->n_head, &len) ||
		!nsv_mul(len, nsv_attn_n_chunk(max_kv), &len) || !nsv_mul(len, dim, &len) ||
		!nsv_mul(len, sizeof(float), &len))
		return NSV_ATTN_OVERFLOW;
	*ret_len = len;
	return NSV_ATTN_OK;
}

static uint32_t next_pow2(uint32_t x)
{
	uint32_t p = 1;
	while (p < x)
		p *= 2;
	return p;
}

static int fill_plan(const struct nsv_attn_shape *shape, struct nsv_attn_plan *plan)
{
	size_t len;
	plan->group = shape->n_head / shape->n_kv_head;
	plan->head_dim_pad = next_pow2(shape->head_dim);
	plan->tile = TILE;
	plan->n_chunk = nsv_attn_n_chunk(plan->max_kv);
	plan->grid[1] = shape->n_head;
	plan->grid[2] = plan->n_seq;
	if (!nsv_mul(shape->n_head, shape->head_dim, &plan->q_row_stride) ||
		!nsv_mul(plan->q_row_stride, plan->n_row, &len) ||
		!nsv_mul(len, sizeof(float), &len) || len > PTRDIFF_MAX)
		return NSV_ATTN_OVERFLOW;
	return nsv_attn_scratch_len(shape, plan->n_row, plan->max_kv, &plan->scratch_len);
}

int nsv_attn_make_plan(const struct nsv_attn_shape *shape, const struct nsv_attn_seq *seqs,
	uint32_t n_seq, uint32_t n_row, struct nsv_attn_plan *ret_plan)
{
	struct nsv_attn_plan plan = {.n_seq = n_seq, .n_row = n_row};
	int status = nsv_attn_check_shape(shape);
	if (!status && (!n_seq || !n_row))
		status = NSV_ATTN_ZERO;
	for (uint32_t i = 0; i < n_seq && !status; i++) {
		uint32_t n_kv = 0;
		status = check_seq(shape, &seqs[i], n_row, &n_kv);
		plan.max_kv = n_kv > plan.max_kv ? n_kv : plan.max_kv;
		if (seqs[i].n_query > plan.grid[0])
			plan.grid[0] = seqs[i].n_query;
	}
	if (!status && any_overlap(seqs, n_seq))
		status = NSV_ATTN_ROWS;
	if (!status)
		status = fill_plan(shape, &plan);
	if (!status)
		*ret_plan = plan;
	return status;
}

int nsv_attn_past(uint32_t n_kv, uint32_t n_query, uint32_t *ret_past)
{
	if (n_query > n_kv)
		return NSV_ATTN_QUERY;
	*ret_past = n_kv - n_query;
	return NSV_ATTN_OK;
}

int nsv_attn_offset(const struct nsv_attn_shape *shape, const struct nsv_kv_layout *layout,
	uint64_t slot, uint32_t kv_head, uint32_t d, int64_t *ret_off)
{
	const int64_t at[] = {(int64_t)(slot / shape->block_size),
		(int64_t)(slot % shape->block_size), kv_head, d};
	const int64_t stride[] = {
		layout->block_stride, layout->tok_stride, layout->head_stride, layout->dim_stride};
	int64_t off = 0, term;
	if (slot / shape->block_size >= shape->n_block || kv_head >= shape->n_kv_head ||
		d >= shape->head_dim)
		return NSV_ATTN_SLOT;
	for (size_t i = 0; i < NSV_ARRAY_LEN(at); i++)
		if (__builtin_mul_overflow(at[i], stride[i], &term) ||
			__builtin_add_overflow(off, term, &off))
			return NSV_ATTN_OVERFLOW;
	*ret_off = off;
	return NSV_ATTN_OK;
}

/* ---- Chunks ----------------------------------------------------------------------------- */

/* First position of the chunks of size NSV_ATTN_CHUNK0 << level. */
static uint64_t level_start(uint32_t level)
{
	return (uint64_t)NSV_ATTN_CHUNK0 * NSV_ATTN_CHUNKS_A_SIZE * ((1ull << level) - 1);
}

uint64_t nsv_attn_chunk_edge(uint32_t i)
{
	uint32_t level = i / NSV_ATTN_CHUNKS_A_SIZE;
	if (level > MAX_LEVEL)
		return UINT64_MAX;
	return level_start(level) +
		((uint64_t)NSV_ATTN_CHUNK0 << level) * (i % NSV_ATTN_CHUNKS_A_SIZE);
}

uint32_t nsv_attn_n_chunk(uint64_t n)
{
	uint32_t level = 0;
	uint64_t size;
	if (n == 0)
		return 0;
	while (level < MAX_LEVEL && level_start(level + 1) < n)
		level++;
	size = (uint64_t)NSV_ATTN_CHUNK0 << level;
	return (uint32_t)nsv_min_u64(
		level * NSV_ATTN_CHUNKS_A_SIZE + (n - 1 - level_start(level)) / size + 1,
		(MAX_LEVEL + 1) * NSV_ATTN_CHUNKS_A_SIZE);
}
