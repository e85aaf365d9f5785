/* The arena of a session: bytes for prompts and parameters, taken and given back in the order of
 * the submission entries.
 *
 *       give back -> [ in use by entries not yet taken ] -> take
 *
 * Positions run freely; a piece is contiguous, so the end of the arena may be skipped. */
#ifndef NSV_CLIENT_ARENA_H
#define NSV_CLIENT_ARENA_H

#include "shm/base.h"

struct nsv_arena {
	uint32_t len;	     /* a power of two */
	uint64_t head, tail; /* in use: head up to tail */
};

/* Finds `len` bytes (rounded up to 8; 0 is fine): their offset, and the position to commit once the
 * entry is in its ring. Changes nothing. 0, -EAGAIN: not now, -E2BIG: never. */
int nsv_arena_find(
	const struct nsv_arena *arena, size_t len, uint32_t *ret_off, uint64_t *ret_tail);
void nsv_arena_commit(struct nsv_arena *arena, uint64_t tail);
/* Everything before the position `head`, which a commit has had, is free again. */
void nsv_arena_release(struct nsv_arena *arena, uint64_t head);

#endif
