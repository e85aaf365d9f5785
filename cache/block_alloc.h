/* The blocks of a KV pool: a free list with reference counts.
 *
 *     free list: head -> b -> b' -> ... -> -1      (a stack: the block freed last goes out first,
 *     ref[b] > 0: held by that many holders         its memory is still warm)
 *
 * Invariant: every block is on the free list with ref 0, or held with ref > 0, never both.
 *
 * A block may also be cached: the prefix cache is one of its holders, and once the others are gone
 * it is idle. Only the cache can free an idle block, so n_free + n_idle blocks can be had at once.
 *
 *     get       cache            unref           uncache
 *     ----> held ----> held, cached <----> idle --------> free
 *                                    ref
 * No I/O, locks or clocks. One owner thread. */
#ifndef NSV_CACHE_BLOCK_ALLOC_H
#define NSV_CACHE_BLOCK_ALLOC_H

#include "cache/evict.h"

enum nsv_block_cached { NSV_BLOCK_NOT_CACHED = 0, NSV_BLOCK_LEAF, NSV_BLOCK_INNER };

struct nsv_block_alloc {
	uint32_t n_block, n_free;
	int32_t head;
	int32_t *next;         /* (n_block): next free block, -1 the end, -2 not free */
	uint32_t *ref;         /* (n_block) */
	uint8_t *cached;       /* (n_block): enum nsv_block_cached */
	struct nsv_evict idle; /* of the blocks that are cached and have ref 1 */
};

/* All blocks are free. -EINVAL: none, or over 2^31 - 1; -ENOMEM: nothing is held. */
int nsv_block_alloc_init(struct nsv_block_alloc *a, uint32_t n_block);
/* Whoever still holds blocks. Accepts zeros. */
void nsv_block_alloc_deinit(struct nsv_block_alloc *a);
/* Takes a free block, ref 1. 1: none is free. */
int nsv_block_get(struct nsv_block_alloc *a, int32_t *ret_block);
/* Takes this block for a holder (rebuilding, sharing): free ones leave the free list. -ERANGE:
 * no block of this pool; -EOVERFLOW: too many holders. O(1) when held, O(free) when free. */
int nsv_block_ref(struct nsv_block_alloc *a, int32_t block);
/* Takes every block b for its n_ref[b] holders at once: of an allocator from which nothing was
 * taken yet. O(n_block). */
void nsv_block_hold(struct nsv_block_alloc *a, const uint32_t *n_ref);
/* Gives one holding back. 0: still held; 1: it is free now; -ERANGE: foreign; -EALREADY: double
 * (the cache's holding of an idle block counts: it is not the caller's to give). */
int nsv_block_unref(struct nsv_block_alloc *a, int32_t block);
/* Its holders, the cache included; 0: it is free, or foreign. */
uint32_t nsv_block_n_ref(const struct nsv_block_alloc *a, int32_t block);

/* ---- For the prefix cache. O(1) each. */
/* Takes one holding for the cache, as a leaf. -ERANGE: foreign; -EINVAL: it is free; -EALREADY: it
 * is cached; -EOVERFLOW: too many holders. */
int nsv_block_cache(struct nsv_block_alloc *a, int32_t block);
/* Gives the cache's holding back. 0: still held; 1: it is free now; -ERANGE: foreign; -EALREADY: it
 * is not cached. */
int nsv_block_uncache(struct nsv_block_alloc *a, int32_t block);
/* Others build on this cached block in the cache (inner), or none does. */
void nsv_block_set_inner(struct nsv_block_alloc *a, int32_t block, bool inner);
/* Is one of its holders the cache? */
bool nsv_block_is_cached(const struct nsv_block_alloc *a, int32_t block);
static inline uint32_t nsv_block_n_idle(const struct nsv_block_alloc *a)
{
	return a->idle.leaf.n + a->idle.inner.n;
}

/* The invariant, walked: 0, or -EUCLEAN and a sentence. O(n_block). */
int nsv_block_audit(const struct nsv_block_alloc *a, struct nsv_err *err);

#endif
