/* The blocks of one sequence, in order: position p lives in block[p / block_size].
 *
 *     position   0 .. 15 | 16 .. 31 | 32 .. 36
 *     block          7   |     2    |    11        n = 3, n_token = 37
 *
 * Storage is the caller's (it lies in the `seqs` region). No I/O, locks or clocks. */
#ifndef NSV_CACHE_BLOCK_TABLE_H
#define NSV_CACHE_BLOCK_TABLE_H

#include "cache/block_alloc.h"

struct nsv_block_table {
	int32_t *block; /* (cap) */
	uint32_t n, cap;
};

/* Blocks that n_token tokens need. */
static inline uint32_t nsv_blocks_for(uint64_t n_token, uint32_t block_size)
{
	return (uint32_t)((n_token + block_size - 1) / block_size);
}

/* Grows the table to hold n_token tokens. All or nothing: 1 when the pool has too few free blocks,
 * -ENOSPC when the table's own storage is too small. */
int nsv_block_table_reserve(struct nsv_block_table *t, struct nsv_block_alloc *a, uint64_t n_token,
	uint32_t block_size);
/* Gives all blocks back and empties the table. -errno of the first bad block; goes on with the
 * rest. */
int nsv_block_table_release(struct nsv_block_table *t, struct nsv_block_alloc *a);
/* Slots of the positions [pos, pos + n): -ERANGE outside the table. */
int nsv_block_table_slots(const struct nsv_block_table *t, uint32_t block_size, uint64_t pos,
	uint32_t n, int64_t *ret_slots);

#endif
