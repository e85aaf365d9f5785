/* How large the KV pool is: what was asked for, as far as free memory goes with a margin. Memory is
 * taken when the pool is made, never promised beyond what there is. Pure functions. */
#ifndef NSV_DAEMON_POOL_H
#define NSV_DAEMON_POOL_H

#include "cache/kv.h"

#define NSV_POOL_MARGIN 16u /* one part in so many of free memory is left to others */

struct nsv_pool_wish {
	uint32_t n_block; /* 0: as memory says */
	uint64_t memory;  /* bytes of the pool, where n_block is 0; 0: two contexts, at most a
			   * quarter of what is free */
	uint32_t n_host;  /* blocks of the host tier beside the pool */
	uint32_t n_ctx;   /* tokens of the longest sequence */
};

/* Of free memory, what may be taken. */
size_t nsv_pool_most(size_t free_len);
/* 0; -ENOMEM: the pool and the host tier do not fit free_len less the margin, or not one block fits
 * the budget; -EINVAL, -EOVERFLOW: an impossible geometry. geom->n_block is ignored. */
int nsv_pool_choose(const struct nsv_kv_geom *geom, const struct nsv_pool_wish *wish,
	size_t free_len, uint32_t *ret_n_block, struct nsv_err *err);

#endif
