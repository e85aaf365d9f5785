/* The blocks of a KV pool: a free list with reference counts.
 *
 *     free list: head -> b -> b' -> ... -> -1      (a stack: the block freed last goes out first,
 *     ref[b] > 0: held by that many holders         its memory is still warm)
 *
 * Invariant: every block is on the free list with ref 0, or held with ref > 0, never both.
 * No I/O, locks or clocks. One owner thread. */
#ifndef NSV_CACHE_BLOCK_ALLOC_H
#define NSV_CACHE_BLOCK_ALLOC_H

#include "shm/base.h"

struct nsv_block_alloc {
	uint32_t n_block, n_free;
	int32_t head;
	int32_t *next;  /* (n_block): next free block, -1 the end, -2 not free */
	uint32_t *ref;  /* (n_block) */
};

int nsv_block_alloc_init(struct nsv_block_alloc *a, uint32_t n_block);
void nsv_block_alloc_deinit(struct nsv_block_alloc *a);
/* Takes a free block, ref 1. 1: none is free. */
int nsv_block_get(struct nsv_block_alloc *a, int32_t *ret_block);
/* Takes this block for a holder (rebuilding, sharing): free ones leave the free list. -ERANGE:
 * no block of this pool; -EOVERFLOW: too many holders. O(1) when held, O(free) when free. */
int nsv_block_ref(struct nsv_block_alloc *a, int32_t block);
/* Gives one holding back. 0: still held; 1: it is free now; -ERANGE: foreign; -EALREADY: double. */
int nsv_block_unref(struct nsv_block_alloc *a, int32_t block);
uint32_t nsv_block_n_ref(const struct nsv_block_alloc *a, int32_t block);
/* The invariant, walked: 0, or -EUCLEAN and a sentence. O(n_block). */
int nsv_block_audit(const struct nsv_block_alloc *a, struct nsv_err *err);

#endif
