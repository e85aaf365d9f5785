/* Shapes, element types and tolerances of every operation, and the host-side checks that turn
 * integers into addresses. Plain C: the same on every machine, whatever backend then runs.
 *
 * Arrays are row-major, last dimension contiguous, unless a stride says else. float is IEEE
 * binary32.
 *
 * Tolerance to `reference`: |a - b| <= 1e-5 + 1e-4 |b| where operands and accumulators are fp32
 * over the same stored K and V. Bounds for 16-bit and 8-bit operands: see tests/ops. */
#ifndef NSV_KERNELS_OPS_H
#define NSV_KERNELS_OPS_H

#include "shm/base.h"

/* Element types of tensors, numbered as in GGUF files. */
enum nsv_dtype {
	NSV_F32 = 0,
	NSV_F16 = 1,
	NSV_Q4_0 = 2,
	NSV_Q4_1 = 3,
	NSV_Q5_0 = 6,
	NSV_Q5_1 = 7,
	NSV_Q8_0 = 8,
	NSV_Q2_K = 10,
	NSV_Q3_K = 11,
	NSV_Q4_K = 12,
	NSV_Q5_K = 13,
	NSV_Q6_K = 14,
	NSV_IQ4_NL = 20,
	NSV_IQ4_XS = 23,
	NSV_BF16 = 30,
};

struct nsv_dtype_info {
	uint32_t dtype;
	const char *name;  /* "Q4_1" */
	uint32_t n_elem;   /* elements of a block; rows are whole blocks */
	uint32_t n_byte;   /* bytes of a block */
};

/* NULL: not a type that this build can compute with. */
const struct nsv_dtype_info *nsv_dtype_info(uint32_t dtype);
/* Any type number to a name for messages, known to GGUF but unsupported ones too; never NULL. */
const char *nsv_dtype_name(uint32_t dtype);
/* Bytes of a row of n elements. -EINVAL: unsupported type or not whole blocks; -EOVERFLOW. */
int nsv_dtype_row_len(uint32_t dtype, size_t n, size_t *ret_len);

/* A stored matrix (n_out, n_in): out = x W^T. `data` is borrowed, n_out rows without padding. */
struct nsv_matrix {
	uint32_t dtype;
	uint32_t n_out, n_in;
	const void *data;
};

/* ---- Paged attention --------------------------------------------------------------------
 *
 * Queries q (n_row, n_head, head_dim), output the same; K and V live in pools of blocks of
 * `block_size` slots. The element (slot, kv_head, d) of a pool is at
 *
 *     (slot / block_size) * block_stride + (slot % block_size) * tok_stride
 *         + kv_head * head_stride + d * dim_stride
 *
 * in elements, so that (n_slot, n_kv_head, head_dim) is {block_size*n_kv_head*head_dim,
 * n_kv_head*head_dim, head_dim, 1}, and a block kept dimension-major is also just strides.
 * Position p of a sequence is slot block_table[p / block_size] * block_size + p % block_size;
 * with block_size 1 the block table is a slot mapping.
 *
 * A sequence's rows are its positions n_past .. n_past + n_query - 1; row i sees the keys
 * 0 .. n_past + i (with `window` > 0: the last `window` of them). K and V of the rows
 * themselves are in the pool before attention is called. */
struct nsv_kv_layout {
	int64_t block_stride, tok_stride, head_stride, dim_stride;
};

struct nsv_attn_shape {
	uint32_t n_head, n_kv_head, head_dim;
	uint32_t block_size; /* slots a block, a power of two up to 1024 */
	uint32_t n_block;    /* blocks in the pool */
	uint32_t kv_dtype;   /* NSV_F32, NSV_F16 or NSV_BF16 */
	uint32_t window;     /* 0: all keys */
	float scale;         /* of q.k; finite */
	float softcap;       /* 0: none; else s = softcap * tanh(s / softcap) */
	struct nsv_kv_layout k, v;
};

struct nsv_attn_seq {
	uint32_t row0;     /* first of its rows in q and out */
	uint32_t n_query;  /* may be 0 */
	uint32_t n_past;
	uint32_t n_table;  /* entries of block_table */
	const int32_t *block_table; /* borrowed for the call */
};

/* Launch geometry: every integer that becomes an address, computed and checked once a step. */
struct nsv_attn_plan {
	uint32_t n_seq, n_row;
	uint32_t group;           /* query heads a KV head */
	uint32_t head_dim_pad;    /* next power of two: what `model` masks to */
	uint32_t tile;            /* keys a step of the inner loop */
	uint32_t max_kv;          /* longest n_past + n_query */
	uint32_t n_chunk;         /* chunks of the longest history */
	uint32_t grid[3];         /* (query tiles, query heads, sequences) of `model` */
	size_t q_row_stride;      /* elements */
	size_t scratch_len;       /* bytes that every backend may need, whole team */
};

enum nsv_attn_status {
	NSV_ATTN_OK = 0,
	NSV_ATTN_ZERO,          /* a dimension is zero */
	NSV_ATTN_HEADS,         /* n_head is no multiple of n_kv_head */
	NSV_ATTN_HEAD_DIM,      /* head_dim above 1024 */
	NSV_ATTN_BLOCK_SIZE,    /* no power of two, or above 1024 */
	NSV_ATTN_DTYPE,
	NSV_ATTN_STRIDE,        /* a stride is not positive, or places overlap */
	NSV_ATTN_SCALE,         /* not finite, or softcap negative */
	NSV_ATTN_OVERFLOW,      /* a size or address does not fit */
	NSV_ATTN_TABLE_SHORT,   /* the table has fewer blocks than the history needs */
	NSV_ATTN_SLOT,          /* a block outside the pool */
	NSV_ATTN_QUERY,         /* more query rows than keys: a query longer than its history */
	NSV_ATTN_ROWS,          /* rows of two sequences overlap or lie past n_row */
};

/* The name of a status, as messages show it ("head count does not divide"). */
const char *nsv_attn_status_name(int status);

/* Checks shape alone (once, at start). An nsv_attn_status. */
int nsv_attn_check_shape(const struct nsv_attn_shape *shape);
/* Checks every sequence and computes the plan: once a step, host integers only, no K or V read.
 * An nsv_attn_status; *ret is untouched unless it is NSV_ATTN_OK. `n_row` is the rows of q.
 * n_kv of a sequence (keys after the append) is n_past + n_query; NSV_ATTN_QUERY arises where a
 * caller states `n_kv` itself: see nsv_attn_past. */
int nsv_attn_make_plan(const struct nsv_attn_shape *shape, const struct nsv_attn_seq *seqs,
	uint32_t n_seq, uint32_t n_row, struct nsv_attn_plan *ret_plan);
/* Bytes of scratch that no plan of at most n_row rows and max_kv keys exceeds: what to allocate
 * once. Grows with both. Holds the partial results of few rows (see NSV_ATTN_SPLIT_ROWS), whose
 * chunks are shared out among the team. An nsv_attn_status. */
#define NSV_ATTN_SPLIT_ROWS 16u
#define NSV_ATTN_PART_HEAD 16u /* floats before a partial's output: its maximum, its sum, padding */
int nsv_attn_scratch_len(
	const struct nsv_attn_shape *shape, uint32_t n_row, uint64_t max_kv, size_t *ret_len);
/* past = n_kv - n_query, checked. An nsv_attn_status. */
int nsv_attn_past(uint32_t n_kv, uint32_t n_query, uint32_t *ret_past);
/* Element offset of (slot, kv_head, d): checked against the pool. An nsv_attn_status. */
int nsv_attn_offset(const struct nsv_attn_shape *shape, const struct nsv_kv_layout *layout,
	uint64_t slot, uint32_t kv_head, uint32_t d, int64_t *ret_off);

/* Promise 1: a history is reduced in chunks whose edges depend on the position alone, each from
 * fresh accumulators, and chunks are merged in a fixed tree. First position of chunk i; the size
 * doubles every 16 chunks, beginning with NSV_ATTN_CHUNK0. Beyond any history: UINT64_MAX. */
#define NSV_ATTN_CHUNK0 256u
#define NSV_ATTN_CHUNKS_A_SIZE 16u
uint64_t nsv_attn_chunk_edge(uint32_t i);
/* The number of chunks that n keys touch; the chunk that a position is in is this of p + 1, - 1. */
uint32_t nsv_attn_n_chunk(uint64_t n);

#endif
