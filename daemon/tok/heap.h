/* A heap of possible merges: the least first. An entry is the merge's rank above the place of its
 * left half, so that of equal ranks the leftmost comes first. Room is the caller's. */
#ifndef NSV_DAEMON_TOK_HEAP_H
#define NSV_DAEMON_TOK_HEAP_H

#include "shm/base.h"

struct nsv_heap {
	uint64_t *v;
	size_t n;
};

static inline void nsv_heap_push(struct nsv_heap *h, uint32_t rank, uint32_t at)
{
	uint64_t x = (uint64_t)rank << 32 | at;
	size_t i = h->n++;

	for (; i > 0 && h->v[(i - 1) / 2] > x; i = (i - 1) / 2)
		h->v[i] = h->v[(i - 1) / 2];
	h->v[i] = x;
}

/* h->n > 0. */
static inline void nsv_heap_pop(struct nsv_heap *h, uint32_t *ret_rank, uint32_t *ret_at)
{
	uint64_t x = h->v[--h->n];
	size_t i = 0;

	*ret_rank = (uint32_t)(h->v[0] >> 32);
	*ret_at = (uint32_t)h->v[0];
	for (;;) {
		size_t child = 2 * i + 1;

		if (child + 1 < h->n && h->v[child + 1] < h->v[child])
			child++;
		if (child >= h->n || h->v[child] >= x)
			break;
		h->v[i] = h->v[child];
		i = child;
	}
	h->v[i] = x;
}

#endif
