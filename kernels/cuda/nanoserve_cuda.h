/* The plain C entry of nanoserve-cuda.so, which the daemon opens at start if it is there.
 *
 * Nothing here keeps static device state: a device is a `struct nsv_cuda`, the working memory of
 * attention a `struct nsv_cuda_attn`; both have one owner thread. Work goes to the caller's stream
 * and is asynchronous. Functions return 0 or -errno and leave a sentence in `err` (may be NULL):
 *     -ENOENT no library or driver, -ENODEV no usable device, -EINVAL refused by a check,
 *     -ENOTSUP a shape that no kernel takes, -ENOMEM, -EIO the device failed.
 *
 * Device pointers are `void *`, streams `nsv_cuda_stream` (a CUstream). q and out have elements of
 * shape->kv_dtype; K and V too, unless a `struct nsv_cuda_kv` says else. */
#ifndef NSV_KERNELS_CUDA_NANOSERVE_CUDA_H
#define NSV_KERNELS_CUDA_NANOSERVE_CUDA_H

#include "shm/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/attn_shared.h"
#include "kernels/ops.h"

#define NSV_CUDA_ABI 2u
#define NSV_CUDA_API __attribute__((visibility("default")))

/* Changed whenever the order of a reduction changes; part of the fingerprint. */
#define NSV_CUDA_NUMERICS 3u

struct nsv_cuda;
struct nsv_cuda_attn;
typedef struct CUstream_st *nsv_cuda_stream;

/* Three questions, each answered by a sentence: can the library run here, is there a driver that
 * is new enough, is there a device that the kernels were built for? */
struct nsv_cuda_probe {
	bool library, driver, device;
	char library_text[128], driver_text[128], device_text[128];
};

/* NSV_CUDA_ABI of the library; the caller compares. */
NSV_CUDA_API uint32_t nsv_cuda_abi(void);
/* 0: all three hold. Else the errno of the first that does not; *ret_probe is always filled. */
NSV_CUDA_API int nsv_cuda_probe(struct nsv_cuda_probe *ret_probe, struct nsv_err *err);

/* Makes the primary context of a device current and loads every kernel (eagerly). */
NSV_CUDA_API int nsv_cuda_open(int device, struct nsv_cuda **ret_cuda, struct nsv_err *err);
NSV_CUDA_API void nsv_cuda_close(struct nsv_cuda *cuda); /* NULL is fine */
NSV_CUDA_API uint32_t nsv_cuda_n_sm(const struct nsv_cuda *cuda);

/* ---- Pools: device memory whose allocation outlives the process while anyone holds `fd`. */
struct nsv_cuda_pool {
	void *base;	/* device */
	size_t len;	/* bytes asked for */
	size_t map_len; /* bytes mapped: len rounded up to the device's granularity */
	int fd;		/* POSIX descriptor of the allocation, owned by the pool */
	uint64_t handle;
	struct nsv_cuda *cuda; /* borrowed: closed after its pools are freed */
};

NSV_CUDA_API int nsv_cuda_pool_new(
	struct nsv_cuda *cuda, size_t len, struct nsv_cuda_pool *ret_pool, struct nsv_err *err);
/* Maps an allocation of `len` asked bytes that another life exported. Takes fd on success. */
NSV_CUDA_API int nsv_cuda_pool_adopt(struct nsv_cuda *cuda, int fd, size_t len,
	struct nsv_cuda_pool *ret_pool, struct nsv_err *err);
/* Unmaps and closes; the memory lives on while another descriptor does. Zeroed pools are fine. */
NSV_CUDA_API void nsv_cuda_pool_free(struct nsv_cuda_pool *pool);

/* ---- Blocks to and from the host tier, in few large pieces. */
struct nsv_cuda_piece {
	uint64_t device_off, host_off, len;
};

/* Host memory that the copies below use; register in chunks, unregister with the same base. */
NSV_CUDA_API int nsv_cuda_host_register(
	struct nsv_cuda *cuda, void *base, size_t len, struct nsv_err *err);
NSV_CUDA_API int nsv_cuda_host_unregister(struct nsv_cuda *cuda, void *base, struct nsv_err *err);
/* Asynchronous on `stream`. Neighbouring pieces are joined. Every piece is checked against the
 * pool and `host_len` before the first is copied. */
NSV_CUDA_API int nsv_cuda_copy(struct nsv_cuda *cuda, const struct nsv_cuda_pool *pool, void *host,
	size_t host_len, const struct nsv_cuda_piece *pieces, size_t n_piece, bool to_device,
	nsv_cuda_stream stream, struct nsv_err *err);

/* ---- Storage of K and V.
 *
 * NSV_CUDA_KV_E4M3: an element is a byte (1 sign, 4 exponent, 3 mantissa bits, no infinity), so
 * strides count bytes, and every token and head has a scale: its dims are byte x scale. The scales
 * of a block lie beside it, fp32 (n_kv_head, block_size), so that what moves a block moves them:
 *
 *     k + block * block_stride         the bytes of K of the block, by tok_stride, head_stride
 *       + k_scales                     the scales of K; likewise v and v_scales
 *
 * A scale is a power of two from 2^-15 to 2^7, so byte x scale is exact in q's type, and a kernel
 * (enum nsv_cuda_path) gives the bits that it gives on a pool of that type with these values. Stored is: the
 * smallest such scale under which the largest magnitude of the head's dims is at most 448, and each
 * dim over it, rounded to nearest, ties to even. Magnitudes above 448 * 2^7 become that; NaN
 * becomes 0. No byte that is stored is NaN. */
enum nsv_cuda_kv_dtype {
	NSV_CUDA_KV_SAME, /* elements of shape->kv_dtype */
	NSV_CUDA_KV_E4M3, /* block strides are whole fours; for tensor cores head_dim, strides, the */
			  /* pools' addresses and k_scales and v_scales are whole sixteens */
};

struct nsv_cuda_kv {
	enum nsv_cuda_kv_dtype dtype;
	int64_t k_scales, v_scales; /* bytes from element 0 of a block, whole fours */
};

/* ---- Paged attention. */
struct nsv_cuda_seq {
	int32_t row0;	 /* first of its rows in q and out */
	int32_t n_query; /* rows; may be 0 */
	int32_t n_past;
	int32_t table;	  /* its row of `tables` */
	int32_t n_shared; /* keys that it shares with others and a prefix stands for; 0: none */
};

/* A prefix whose keys are read once for all sequences that share it. Its members follow each other
 * in q, and it is described as a sequence: row0 and n_query of all their rows together, n_past the
 * keys that are shared, `table` of any member, n_shared 0. Each member's n_shared is that n_past,
 * its n_past is no less, and its table begins with the same blocks. Shared keys are whole
 * NSV_CUDA_SHARED_KEYS, since every multiple of it is the edge of a chunk: the bits are those
 * without a prefix. nsv_attn_find_shared (kernels/attn_shared.h) finds prefixes. Off unless limits
 * allow prefixes: NOTES.md says from where on it pays. */
#define NSV_CUDA_SHARED_KEYS 512u

/* A step's sequences. The arrays are on the device, so that a captured graph replays over what
 * they hold then; the numbers bound them: replays may use fewer, never more. */
struct nsv_cuda_batch {
	const struct nsv_cuda_seq *seqs; /* (n_seq) */
	const int32_t *tables;		 /* (n_table, table_stride) block numbers */
	uint32_t n_seq;
	uint32_t table_stride;
	const struct nsv_cuda_seq *prefixes; /* (n_prefix), in use where n_query is not 0 */
	uint32_t n_prefix;		     /* may be 0 */
};

struct nsv_cuda_limits {
	uint32_t max_seq;
	uint32_t max_query; /* rows a sequence */
	uint32_t max_kv;    /* n_past + n_query */
	uint32_t max_prefix; /* 0: sequences share nothing */
	uint32_t max_shared_row; /* rows of q that sequences with a prefix lie in: the first ones */
};

/* Which kernel serves a shape and limits. */
enum nsv_cuda_path {
	NSV_CUDA_PATH_TENSOR,  /* tensor cores: few rows with their history split over the */
			       /* device, many rows as prefill */
	NSV_CUDA_PATH_GENERIC, /* any layout, any size, fp32 arithmetic */
};

/* The checks of every backend (nsv_attn_make_plan) and those of the device, on host integers. */
NSV_CUDA_API int nsv_cuda_attn_check(const struct nsv_attn_shape *shape,
	const struct nsv_attn_seq *seqs, uint32_t n_seq, uint32_t n_row,
	struct nsv_attn_plan *ret_plan, struct nsv_err *err);
/* Working memory on the device for calls within `limits`; calls that share it must be ordered
 * (one stream). `kv` NULL: NSV_CUDA_KV_SAME. A shape with a window has no prefixes. It can take
 * hundreds of MB (nsv_cuda_attn_work_len), most of it for items that are split over the device:
 * NOTES.md has the sizes. */
NSV_CUDA_API int nsv_cuda_attn_new(struct nsv_cuda *cuda, const struct nsv_attn_shape *shape,
	const struct nsv_cuda_kv *kv, const struct nsv_cuda_limits *limits,
	struct nsv_cuda_attn **ret_attn, struct nsv_err *err);
NSV_CUDA_API void nsv_cuda_attn_free(struct nsv_cuda_attn *attn); /* NULL is fine */
NSV_CUDA_API enum nsv_cuda_path nsv_cuda_attn_path(const struct nsv_cuda_attn *attn);
NSV_CUDA_API size_t nsv_cuda_attn_work_len(const struct nsv_cuda_attn *attn);
/* Spreads the step's work over the device; once a step, before its layers. From here to the last
 * run, `batch` and the keys before each n_past stay as they are: a run reads them while the launch
 * before it is still at work. */
NSV_CUDA_API int nsv_cuda_attn_plan(struct nsv_cuda_attn *attn, const struct nsv_cuda_batch *batch,
	nsv_cuda_stream stream, struct nsv_err *err);
/* One layer: q and out (n_row, n_head, head_dim), k and v element 0 of the layouts. */
NSV_CUDA_API int nsv_cuda_attn_run(struct nsv_cuda_attn *attn, const struct nsv_cuda_batch *batch,
	const void *k, const void *v, const void *q, void *out, nsv_cuda_stream stream,
	struct nsv_err *err);

/* ---- Write path: norm of each head (NULL: none), RoPE, K and V into their slots; q in place. */
struct nsv_cuda_append {
	void *q;	   /* (n_row, n_head, head_dim), rows ld apart; turned in place */
	const void *k, *v; /* (n_row, n_kv_head, head_dim), rows ld apart */
	size_t ld;	   /* elements */
	const float *cs;   /* (n_row, n_rot / 2, 2) cosines and sines */
	const float *q_norm, *k_norm; /* (head_dim) weights of the norm, or NULL */
	float eps;
	uint32_t n_rot;	      /* 0: no RoPE */
	bool neox;	      /* pairs (i, i + n_rot/2), else (2i, 2i+1) */
	const int64_t *slots; /* (n_row); below 0: the row is skipped */
	uint32_t n_row;
};

/* `kv` NULL: NSV_CUDA_KV_SAME. */
NSV_CUDA_API int nsv_cuda_kv_append(struct nsv_cuda *cuda, const struct nsv_attn_shape *shape,
	const struct nsv_cuda_kv *kv, const struct nsv_cuda_append *args, void *k_pool,
	void *v_pool, nsv_cuda_stream stream, struct nsv_err *err);

#ifdef __cplusplus
}
#endif

#endif
