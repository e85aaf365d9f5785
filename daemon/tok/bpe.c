/* Merging short words by scanning and long ones by a heap: the same tokens either way. */
#include "daemon/tok/bpe.h"

#include <string.h>
#include <sys/random.h>

#include "daemon/tok/heap.h"

#define SHORT_WORD 48
#define NO_RANK UINT32_MAX

/* ---- The table of merges */

int nsv_bpe_init(struct nsv_bpe *bpe, size_t n_merge)
{
	struct nsv_bpe b = {.mask = 1};

	if (n_merge > SIZE_MAX / 4 / sizeof(*b.merge))
		return -ENOMEM;
	while (b.mask < 2 * n_merge + 1)
		b.mask *= 2;
	if (getrandom(&b.secret, sizeof(b.secret), 0) != sizeof(b.secret))
		return -errno;
	b.merge = malloc(b.mask * sizeof(*b.merge));
	if (!b.merge)
		return -ENOMEM;
	memset(b.merge, 0xff, b.mask * sizeof(*b.merge));
	memset(b.byte_id, 0xff, sizeof(b.byte_id));
	b.mask--;
	*bpe = b;
	return 0;
}

void nsv_bpe_deinit(struct nsv_bpe *bpe)
{
	free(bpe->merge);
	bpe->merge = NULL;
}

/* The merge of a pair, or the free slot where it belongs. */
static struct nsv_bpe_merge *find(const struct nsv_bpe *bpe, int32_t left, int32_t right)
{
	uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) ^ bpe->secret;

	h = (h ^ h >> 31) * 0x9e3779b97f4a7c15;
	h = (h ^ h >> 29) * (bpe->secret | 1);
	size_t i = (h ^ h >> 32) & bpe->mask;
	while (bpe->merge[i].left >= 0 &&
		(bpe->merge[i].left != left || bpe->merge[i].right != right))
		i = (i + 1) & bpe->mask;
	return &bpe->merge[i];
}

void nsv_bpe_add(struct nsv_bpe *bpe, const struct nsv_bpe_merge *merge)
{
	struct nsv_bpe_merge *m = find(bpe, merge->left, merge->right);

	if (m->left < 0)
		*m = *merge;
}

/* NO_RANK: the two do not merge (a free slot has all bits set). */
static uint32_t rank_of(const struct nsv_bpe *bpe, int32_t left, int32_t right)
{
	return find(bpe, left, right)->rank;
}

/* ---- Short words */

static int short_word(
	const struct nsv_bpe *bpe, const unsigned char *word, size_t len, struct nsv_ids *ids)
{
	int32_t id[SHORT_WORD];
	uint32_t rank[SHORT_WORD]; /* of the pair that begins here */
	size_t n = len;
	int ret = 0;

	for (size_t i = 0; i < n; i++)
		id[i] = bpe->byte_id[word[i]];
	for (size_t i = 0; i + 1 < n; i++)
		rank[i] = rank_of(bpe, id[i], id[i + 1]);
	while (n > 1) {
		size_t best = 0;

		for (size_t i = 1; i + 1 < n; i++)
			if (rank[i] < rank[best])
				best = i;
		if (rank[best] == NO_RANK)
			break;
		id[best] = find(bpe, id[best], id[best + 1])->id;
		n--;
		memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof(*id));
		memmove(rank + best, rank + best + 1, (n - best - 1) * sizeof(*rank));
		if (best > 0)
			rank[best - 1] = rank_of(bpe, id[best - 1], id[best]);
		if (best + 1 < n)
			rank[best] = rank_of(bpe, id[best], id[best + 1]);
	}
	for (size_t i = 0; i < n && ret == 0; i++)
		ret = nsv_ids_push(ids, id[i]);
	return ret;
}

/* ---- Long words */

struct node {
	int32_t id;	     /* -1: merged into the one before */
	uint32_t prev, next; /* UINT32_MAX: none */
};

/* An entry of the heap is true only as long as the pair at its place still has its rank. */
struct work {
	struct node *node;
	struct nsv_heap heap;
};

static uint32_t node_rank(const struct nsv_bpe *bpe, const struct work *w, uint32_t at)
{
	const struct node *node = &w->node[at];

	if (node->id < 0 || node->next == UINT32_MAX)
		return NO_RANK;
	return rank_of(bpe, node->id, w->node[node->next].id);
}

static void propose(const struct nsv_bpe *bpe, struct work *w, uint32_t at)
{
	uint32_t rank = node_rank(bpe, w, at);

	if (rank != NO_RANK)
		nsv_heap_push(&w->heap, rank, at);
}

static void merge_at(const struct nsv_bpe *bpe, struct work *w, uint32_t at)
{
	struct node *node = &w->node[at], *gone = &w->node[node->next];

	node->id = find(bpe, node->id, gone->id)->id;
	node->next = gone->next;
	gone->id = -1;
	if (node->next != UINT32_MAX)
		w->node[node->next].prev = at;
	propose(bpe, w, at);
	if (node->prev != UINT32_MAX)
		propose(bpe, w, node->prev);
}

static int long_word(
	const struct nsv_bpe *bpe, const unsigned char *word, size_t len, struct nsv_ids *ids)
{
	/* Every merge takes at least one entry out and puts at most two in. */
	nsv_autofree struct node *node = malloc(len * sizeof(*node));
	nsv_autofree uint64_t *heap = malloc(2 * len * sizeof(*heap));
	struct work w = {.node = node, .heap.v = heap};
	uint32_t rank, at;
	int ret = 0;

	if (!node || !heap)
		return -ENOMEM;
	for (uint32_t i = 0; i < len; i++)
		node[i] = (struct node){
			bpe->byte_id[word[i]], i - 1, i + 1 < len ? i + 1 : UINT32_MAX};
	for (uint32_t i = 0; i < len; i++)
		propose(bpe, &w, i);
	while (w.heap.n > 0) {
		nsv_heap_pop(&w.heap, &rank, &at);
		if (node_rank(bpe, &w, at) == rank)
			merge_at(bpe, &w, at);
	}
	for (uint32_t i = 0; i != UINT32_MAX && ret == 0; i = node[i].next)
		ret = nsv_ids_push(ids, node[i].id);
	return ret;
}

int nsv_bpe_word(const struct nsv_bpe *bpe, const char *word, size_t len, struct nsv_ids *ids)
{
	const unsigned char *p = (const unsigned char *)word;

	return len <= SHORT_WORD ? short_word(bpe, p, len, ids) : long_word(bpe, p, len, ids);
}
