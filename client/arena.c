/* The arena: one ring of bytes, in pieces that do not wrap. */
#include "client/arena.h"

int nsv_arena_find(const struct nsv_arena *arena, size_t len, uint32_t *ret_off, uint64_t *ret_tail)
{
	size_t need;

	if (!nsv_align_up(len, 8, &need) || need > arena->len)
		return -E2BIG;
	/* An idle arena begins anew, so that a piece as long as the arena fits at any time. */
	uint64_t tail = arena->tail;
	bool idle = arena->head == arena->tail;
	size_t at = (size_t)(tail & (arena->len - 1));
	size_t skip = at + need > arena->len ? arena->len - at : 0;

	if (!idle && tail + skip + need - arena->head > arena->len)
		return -EAGAIN;
	*ret_off = (uint32_t)((tail + skip) & (arena->len - 1));
	*ret_tail = tail + skip + need;
	return 0;
}

void nsv_arena_commit(struct nsv_arena *arena, uint64_t tail)
{
	if (arena->head == arena->tail && tail - arena->head > arena->len)
		arena->head = tail - arena->len; /* what an idle arena skipped is not in use */
	arena->tail = tail;
}

void nsv_arena_release(struct nsv_arena *arena, uint64_t head)
{
	if (head > arena->head)
		arena->head = head;
}
