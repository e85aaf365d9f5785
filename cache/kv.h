/* The layout of the `kv` region: a header page, then the blocks. Block-major: all layers of a block
 * lie together, so that a block moves in one copy.
 *
 *     header | block 0: [layer 0: K | V][layer 1: K | V]... | block 1 | ...
 *     K of a layer in a block: (n_kv_head, head_dim, block_size) dimension-major, or
 *                              (n_kv_head, block_size, head_dim) token-major
 *     V of a layer in a block: (n_kv_head, block_size, head_dim)
 *
 * A block's bytes are rounded up to 64. Pure functions over geometry and a mapped header. */
#ifndef NSV_CACHE_KV_H
#define NSV_CACHE_KV_H

#include "shm/base.h"

#define NSV_KV_MAGIC 0x564b5f56534eull /* "NSV_KV" */
#define NSV_KV_MAJOR 1u

struct nsv_kv_geom {
	uint32_t n_layer, n_kv_head, head_dim;
	uint32_t block_size; /* tokens a block */
	uint32_t n_block;
	uint32_t elem_len;   /* bytes of an element: 4 or 2 */
	uint32_t dtype;      /* number of the element type, as the kernels name it */
	uint32_t k_dim_major;
};

/* First page of the region. 4096 bytes reserved. */
struct nsv_kv_head {
	uint64_t magic;
	uint32_t major, head_len;
	uint64_t region_len;
	struct nsv_kv_geom geom;
	uint64_t model_id;    /* fingerprint of the model file */
	uint32_t numerics;    /* of the backend that wrote the blocks */
	uint32_t reserved[7];
};

/* Derived sizes, all in bytes. */
struct nsv_kv_size {
	size_t plane;      /* K or V of one layer of one block */
	size_t block;      /* all of a block */
	size_t region;     /* header page and all blocks */
	size_t token;      /* what a token costs, all layers, K and V */
};

/* 0; -EINVAL: a zero or unsupported dimension; -EOVERFLOW. */
int nsv_kv_sizes(const struct nsv_kv_geom *geom, struct nsv_kv_size *ret_size);
/* How many blocks fit `budget` bytes, at most UINT32_MAX; geom->n_block is ignored. */
int nsv_kv_blocks_in(const struct nsv_kv_geom *geom, size_t budget, uint32_t *ret_n_block);
/* The whole header. The geometry passes nsv_kv_sizes. */
void nsv_kv_head_write(struct nsv_kv_head *head, const struct nsv_kv_geom *geom, uint64_t model_id,
	uint32_t numerics);
/* 0, or -EPROTO and what differs: a region of another geometry, model or numerics. */
int nsv_kv_head_check(const struct nsv_kv_head *head, size_t region_len,
	const struct nsv_kv_geom *geom, uint64_t model_id, uint32_t numerics, struct nsv_err *err);
/* Byte offset from the region's start of layer `layer`'s K (is_v false) or V plane of block 0; a
 * block further is size.block bytes further. */
size_t nsv_kv_plane_off(const struct nsv_kv_geom *geom, uint32_t layer, bool is_v);

#endif
