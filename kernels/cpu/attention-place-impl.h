/* What paged attention works on, an item, and where its keys and values lie: the first part of
 * attention-impl.h, which explains both. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

#define ROWS 48u
#define STRIP 256u
#define DIM_MAX 1024u
#define PART_HEAD NSV_ATTN_PART_HEAD

struct item {
	const struct nsv_attn_call *call;
	const struct nsv_attn_seq *seq;
	uint32_t kv_head, head0, n_head; /* the query heads */
	uint32_t query0, n_query;	 /* of the sequence's rows */
	uint32_t n_row; /* n_query * n_head; row r is query r / n_head, head r % n_head */
	uint32_t begin[ROWS], end[ROWS]; /* the keys that a row sees */
	float *part[ROWS];		 /* where the chunk's partial is made */
};

/* What an item needs, on the stack of the member that runs it. */
struct work {
	float q[DIM_MAX * ROWS];	  /* (head_dim, n_row) */
	float s[ROWS * STRIP];		  /* scores, then weights */
	float k[DIM_MAX * VF_N];	  /* gathered or widened: (head_dim, 16 or more) */
	float v[VF_N * DIM_MAX];	  /* gathered or widened: (16 or more, dim) */
	const char *v_row[STRIP + AHEAD]; /* of each key of the strip; then any */
	float chunk[ROWS * (DIM_MAX + PART_HEAD)];
	float total[ROWS * (DIM_MAX + PART_HEAD)];
};

static uint32_t padded_dim(const struct nsv_attn_shape *s)
{
	return (s->head_dim + VF_N - 1) / VF_N * VF_N;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static uint32_t clamp_to(uint32_t x, uint32_t from, uint32_t n)
{
	return x <= from ? 0 : min_u32(x - from, n);
}

/* The most rows of a tile, such that tiles are nearly alike. */
static uint32_t even_rows(uint32_t n, uint32_t most)
{
	uint32_t n_tile = (n + most - 1) / most;
	return (n + n_tile - 1) / n_tile;
}

/* ---- Addresses -------------------------------------------------------------------------- */

static bool is_half(const struct nsv_attn_shape *s)
{
	return s->kv_dtype == NSV_F16;
}

/* fp32 or fp16: what vectors are loaded from. */
static bool is_float(const struct nsv_attn_shape *s)
{
	return s->kv_dtype == NSV_F32 || is_half(s);
}

static bool k_in_place(const struct nsv_attn_shape *s)
{
	return is_float(s) && s->k.tok_stride == 1 && s->block_size % VF_N == 0;
}

static bool v_in_place(const struct nsv_attn_shape *s)
{
	return is_float(s) && s->v.dim_stride == 1 && s->head_dim % VF_N == 0;
}

static size_t elem_len(bool half)
{
	return half ? sizeof(uint16_t) : sizeof(float);
}

ALWAYS_INLINE vf load_vec(bool half, const char *p)
{
	return half ? vf_load_f16(p) : vf_load((const float *)(const void *)p);
}

/* Element offset of a position's dimension 0. */
static int64_t place(const struct item *it, const struct nsv_kv_layout *l, uint32_t pos)
{
	const struct nsv_attn_shape *s = it->call->shape;
	uint32_t log = (uint32_t)__builtin_ctz(s->block_size);
	return it->seq->block_table[pos >> log] * l->block_stride +
	       (pos & (s->block_size - 1)) * l->tok_stride + it->kv_head * l->head_stride;
}

/* Keys pos .. pos + 15 to (head_dim, 16); those outside [begin, end) are zero. */
static void gather_k(const struct item *it, uint32_t pos, uint32_t begin, uint32_t end, float *dst)
{
	const struct nsv_attn_shape *s = it->call->shape;
	for (uint32_t i = 0; i < VF_N; i++) {
		bool in = pos + i >= begin && pos + i < end;
		int64_t at = in ? place(it, &s->k, pos + i) : 0;
		for (uint32_t d = 0; d < s->head_dim; d++)
			dst[d * VF_N + i] = in ? nsv_load_elem(s->kv_dtype, it->call->k,
							 at + d * s->k.dim_stride)
					       : 0.0f;
	}
}

/* Values of one key, padded with zeros to whole vectors. */
static void gather_v(const struct item *it, uint32_t pos, float *dst)
{
	const struct nsv_attn_shape *s = it->call->shape;
	int64_t at = place(it, &s->v, pos);
	uint32_t d = 0;
	for (; d < s->head_dim; d++)
		dst[d] = nsv_load_elem(s->kv_dtype, it->call->v, at + d * s->v.dim_stride);
	for (; d < padded_dim(s); d++)
		dst[d] = 0;
}

ALWAYS_INLINE void ask_ahead(const void *p)
{
	__builtin_prefetch(p, 0, NEARNESS);
}

/* Groups of sixteen keys: where they lie, gathered or widened. */
struct keys {
	bool half;
	const char *k[SCORE_VECS];
	size_t stride;		      /* bytes from a dimension to the next */
	const char *next[SCORE_VECS]; /* those after them, to ask for; NULL: none */
};

/* Values of a strip's keys, and what to ask for at each: AHEAD of it or, for nothing, itself. */
struct values {
	bool half;
	const char *const *row, *const *next;
	size_t at; /* bytes beyond these */
};
