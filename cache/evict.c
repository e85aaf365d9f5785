/* Two lists of idle blocks, linked through arrays. */
#include "cache/evict.h"

#define END (-1)

int nsv_evict_init(struct nsv_evict *e, uint32_t n_block)
{
	*e = (struct nsv_evict){.leaf = {END, END, 0}, .inner = {END, END, 0}};
	e->since = calloc(n_block, sizeof(*e->since));
	e->prev = calloc(n_block, sizeof(*e->prev));
	e->next = calloc(n_block, sizeof(*e->next));
	if (e->since && e->prev && e->next)
		return 0;
	nsv_evict_deinit(e);
	return -ENOMEM;
}

void nsv_evict_deinit(struct nsv_evict *e)
{
	free(e->since);
	free(e->prev);
	free(e->next);
	*e = (struct nsv_evict){.leaf = {END, END, 0}, .inner = {END, END, 0}};
}

static void push_newest(struct nsv_evict *e, struct nsv_evict_list *list, int32_t block)
{
	e->prev[block] = list->newest;
	e->next[block] = END;
	if (list->newest == END)
		list->oldest = block;
	else
		e->next[list->newest] = block;
	list->newest = block;
	list->n++;
}

static void push_oldest(struct nsv_evict *e, struct nsv_evict_list *list, int32_t block)
{
	e->prev[block] = END;
	e->next[block] = list->oldest;
	if (list->oldest == END)
		list->newest = block;
	else
		e->prev[list->oldest] = block;
	list->oldest = block;
	list->n++;
}

static void take_out(struct nsv_evict *e, struct nsv_evict_list *list, int32_t block)
{
	int32_t prev = e->prev[block], next = e->next[block];

	if (prev == END)
		list->oldest = next;
	else
		e->next[prev] = next;
	if (next == END)
		list->newest = prev;
	else
		e->prev[next] = prev;
	list->n--;
}

void nsv_evict_add(struct nsv_evict *e, int32_t block, bool is_inner)
{
	e->since[block] = ++e->time;
	push_newest(e, is_inner ? &e->inner : &e->leaf, block);
}

void nsv_evict_remove(struct nsv_evict *e, int32_t block, bool is_inner)
{
	take_out(e, is_inner ? &e->inner : &e->leaf, block);
}

void nsv_evict_to_inner(struct nsv_evict *e, int32_t block)
{
	take_out(e, &e->leaf, block);
	push_newest(e, &e->inner, block);
}

void nsv_evict_to_leaf(struct nsv_evict *e, int32_t block)
{
	int32_t oldest = e->leaf.oldest;

	take_out(e, &e->inner, block);
	if (oldest == END || e->since[block] < e->since[oldest])
		push_oldest(e, &e->leaf, block);
	else
		push_newest(e, &e->leaf, block);
}
