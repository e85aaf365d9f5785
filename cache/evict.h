/* Which idle block goes first. A block is idle when only the prefix cache holds it.
 *
 *     leaf:   oldest <-> ... <-> newest      nothing in the cache builds on these: they go first
 *     inner:  oldest <-> ... <-> newest      other cached blocks build on these
 *
 * Every idle block is in one of the two lists; the age is the time since it became idle, told by a
 * counter. A sequence gives its last block back first, so a chain is in the list from its end to
 * its beginning and the lists need no search: every function is O(1). When the last block that
 * built on one is gone, it becomes a leaf: the oldest, if it has been idle for longer than the
 * oldest leaf (a chain goes whole), else the newest (it has been used since, alone: it is kept
 * rather longer than it would be in exact order).
 *
 * Part of struct nsv_block_alloc, which calls all of it. No I/O, locks or clocks. */
#ifndef NSV_CACHE_EVICT_H
#define NSV_CACHE_EVICT_H

#include "shm/base.h"

struct nsv_evict_list {
	int32_t oldest, newest; /* -1: the list is empty */
	uint32_t n;
};

struct nsv_evict {
	struct nsv_evict_list leaf, inner;
	uint64_t time;
	uint64_t *since;      /* (n_block): when it became idle */
	int32_t *prev, *next; /* (n_block): neighbours in its list, -1 the end */
};

/* -ENOMEM: nothing is held, deinit may still be called. */
int nsv_evict_init(struct nsv_evict *e, uint32_t n_block);
void nsv_evict_deinit(struct nsv_evict *e);
/* It has become idle now. */
void nsv_evict_add(struct nsv_evict *e, int32_t block, bool is_inner);
/* It is idle no more. */
void nsv_evict_remove(struct nsv_evict *e, int32_t block, bool is_inner);
/* An idle leaf became an inner one, or the other way round. */
void nsv_evict_to_inner(struct nsv_evict *e, int32_t block);
void nsv_evict_to_leaf(struct nsv_evict *e, int32_t block);

#endif
