/* The free list: get and unref work at its head, ref unlinks from its middle. */
#include "cache/block_alloc.h"

#include <string.h>

#define END (-1)
#define HELD (-2)

static bool is_ours(const struct nsv_block_alloc *a, int32_t block)
{
	return block >= 0 && (uint32_t)block < a->n_block;
}

int nsv_block_alloc_init(struct nsv_block_alloc *a, uint32_t n_block)
{
	memset(a, 0, sizeof(*a));
	if (n_block == 0 || n_block > INT32_MAX)
		return -EINVAL;
	a->next = calloc(n_block, sizeof(*a->next));
	a->ref = calloc(n_block, sizeof(*a->ref));
	a->cached = calloc(n_block, sizeof(*a->cached));
	if (nsv_evict_init(&a->idle, n_block) < 0 || !a->next || !a->ref || !a->cached) {
		nsv_block_alloc_deinit(a);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n_block; i++)
		a->next[i] = i + 1 < n_block ? (int32_t)(i + 1) : END;
	a->n_block = a->n_free = n_block;
	return 0;
}

void nsv_block_alloc_deinit(struct nsv_block_alloc *a)
{
	free(a->next);
	free(a->ref);
	free(a->cached);
	nsv_evict_deinit(&a->idle);
	memset(a, 0, sizeof(*a));
	a->head = END;
}

int nsv_block_get(struct nsv_block_alloc *a, int32_t *ret_block)
{
	int32_t block = a->head;

	if (a->n_free == 0)
		return 1;
	a->head = a->next[block];
	a->next[block] = HELD;
	a->ref[block] = 1;
	a->n_free--;
	*ret_block = block;
	return 0;
}

/* Takes a free block out of the middle of the list. */
static void unlink_free(struct nsv_block_alloc *a, int32_t block)
{
	int32_t *link = &a->head;

	while (*link != block)
		link = &a->next[*link];
	*link = a->next[block];
	a->next[block] = HELD;
	a->n_free--;
}

static bool is_idle(const struct nsv_block_alloc *a, int32_t block)
{
	return a->cached[block] && a->ref[block] == 1;
}

static bool is_inner(const struct nsv_block_alloc *a, int32_t block)
{
	return a->cached[block] == NSV_BLOCK_INNER;
}

int nsv_block_ref(struct nsv_block_alloc *a, int32_t block)
{
	if (!is_ours(a, block))
		return -ERANGE;
	if (a->ref[block] == UINT32_MAX)
		return -EOVERFLOW;
	if (a->ref[block] == 0)
		unlink_free(a, block);
	else if (is_idle(a, block))
		nsv_evict_remove(&a->idle, block, is_inner(a, block));
	a->ref[block]++;
	return 0;
}

void nsv_block_hold(struct nsv_block_alloc *a, const uint32_t *n_ref)
{
	int32_t *link = &a->head;

	for (uint32_t i = 0; i < a->n_block; i++) {
		a->ref[i] = n_ref[i];
		if (n_ref[i] > 0) {
			a->next[i] = HELD;
			a->n_free--;
		} else {
			*link = (int32_t)i;
			link = &a->next[i];
		}
	}
	*link = END;
}

static int give_back(struct nsv_block_alloc *a, int32_t block)
{
	if (--a->ref[block] > 0)
		return 0;
	a->next[block] = a->head;
	a->head = block;
	a->n_free++;
	return 1;
}

int nsv_block_unref(struct nsv_block_alloc *a, int32_t block)
{
	if (!is_ours(a, block))
		return -ERANGE;
	if (a->ref[block] == 0 || is_idle(a, block))
		return -EALREADY;
	int ret = give_back(a, block);
	if (is_idle(a, block))
		nsv_evict_add(&a->idle, block, is_inner(a, block));
	return ret;
}

int nsv_block_cache(struct nsv_block_alloc *a, int32_t block)
{
	if (!is_ours(a, block))
		return -ERANGE;
	if (a->ref[block] == 0)
		return -EINVAL;
	if (a->cached[block])
		return -EALREADY;
	if (a->ref[block] == UINT32_MAX)
		return -EOVERFLOW;
	a->ref[block]++;
	a->cached[block] = NSV_BLOCK_LEAF;
	return 0;
}

int nsv_block_uncache(struct nsv_block_alloc *a, int32_t block)
{
	if (!is_ours(a, block))
		return -ERANGE;
	if (!a->cached[block])
		return -EALREADY;
	if (is_idle(a, block))
		nsv_evict_remove(&a->idle, block, is_inner(a, block));
	a->cached[block] = NSV_BLOCK_NOT_CACHED;
	return give_back(a, block);
}

void nsv_block_set_inner(struct nsv_block_alloc *a, int32_t block, bool inner)
{
	if (is_inner(a, block) == inner)
		return;
	if (is_idle(a, block) && inner)
		nsv_evict_to_inner(&a->idle, block);
	else if (is_idle(a, block))
		nsv_evict_to_leaf(&a->idle, block);
	a->cached[block] = inner ? NSV_BLOCK_INNER : NSV_BLOCK_LEAF;
}

uint32_t nsv_block_n_ref(const struct nsv_block_alloc *a, int32_t block)
{
	return is_ours(a, block) ? a->ref[block] : 0;
}

bool nsv_block_is_cached(const struct nsv_block_alloc *a, int32_t block)
{
	return is_ours(a, block) && a->cached[block];
}

/* Walks the free list; a cycle shows as a list longer than its count. */
static int audit_free_list(const struct nsv_block_alloc *a, struct nsv_err *err)
{
	uint32_t n = 0;

	for (int32_t b = a->head; b != END; b = a->next[b]) {
		if (!is_ours(a, b))
			return nsv_fail(err, -EUCLEAN, "the free list leads to block %d of %u", b,
				a->n_block);
		if (a->ref[b] > 0)
			return nsv_fail(err, -EUCLEAN, "block %d is free and has %u holders", b,
				a->ref[b]);
		if (++n > a->n_free)
			return nsv_fail(err, -EUCLEAN,
				"the free list is longer than its count %u, or a ring", a->n_free);
	}
	if (n != a->n_free)
		return nsv_fail(err, -EUCLEAN, "the free list has %u blocks, its count is %u", n,
			a->n_free);
	return 0;
}

/* Walks a list of idle blocks: of its kind, linked both ways, counted right. */
static int audit_idle_list(const struct nsv_block_alloc *a, const struct nsv_evict_list *list,
	enum nsv_block_cached kind, struct nsv_err *err)
{
	uint32_t n = 0;
	int32_t prev = END;

	for (int32_t b = list->oldest; b != END; prev = b, b = a->idle.next[b]) {
		if (!is_ours(a, b))
			return nsv_fail(err, -EUCLEAN, "an idle list leads to block %d of %u", b,
				a->n_block);
		if (!is_idle(a, b) || a->cached[b] != kind)
			return nsv_fail(err, -EUCLEAN,
				"block %d in idle list %d is cached as %u and has %u holders",
				b, kind, a->cached[b], a->ref[b]);
		if (a->idle.prev[b] != prev || ++n > list->n)
			return nsv_fail(err, -EUCLEAN, "idle list %d is torn at block %d", kind, b);
	}
	if (n != list->n || prev != list->newest)
		return nsv_fail(err, -EUCLEAN, "idle list %d has %u blocks, its count is %u", kind,
			n, list->n);
	return 0;
}

/* Both lists, and no idle block beside them. */
static int audit_idle(const struct nsv_block_alloc *a, struct nsv_err *err)
{
	uint32_t n_idle = 0;
	int ret = audit_idle_list(a, &a->idle.leaf, NSV_BLOCK_LEAF, err);

	if (ret == 0)
		ret = audit_idle_list(a, &a->idle.inner, NSV_BLOCK_INNER, err);
	if (ret < 0)
		return ret;
	for (uint32_t i = 0; i < a->n_block; i++) {
		if (a->cached[i] && a->ref[i] == 0)
			return nsv_fail(err, -EUCLEAN, "block %u is cached and has no holder", i);
		n_idle += is_idle(a, (int32_t)i);
	}
	if (n_idle != nsv_block_n_idle(a))
		return nsv_fail(err, -EUCLEAN, "%u blocks are idle, the lists have %u", n_idle,
			nsv_block_n_idle(a));
	return 0;
}

int nsv_block_audit(const struct nsv_block_alloc *a, struct nsv_err *err)
{
	uint32_t n_held = 0;
	int ret = audit_free_list(a, err);

	if (ret == 0)
		ret = audit_idle(a, err);
	if (ret < 0)
		return ret;
	for (uint32_t i = 0; i < a->n_block; i++) {
		bool held = a->next[i] == HELD;

		if (held != (a->ref[i] > 0))
			return nsv_fail(err, -EUCLEAN, "block %u is marked %s and has %u holders",
				i, held ? "held" : "free", a->ref[i]);
		n_held += held;
	}
	if (n_held + a->n_free != a->n_block)
		return nsv_fail(err, -EUCLEAN, "%u blocks held and %u free, of %u", n_held,
			a->n_free, a->n_block);
	return 0;
}
