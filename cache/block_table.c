/* Block tables: positions to blocks to slots; every bound is checked before a block moves. */
#include "cache/block_table.h"

int nsv_block_table_reserve(struct nsv_block_table *t, struct nsv_block_alloc *a, uint64_t n_token,
	uint32_t block_size)
{
	uint64_t need = n_token / block_size + (n_token % block_size > 0);

	if (need > t->cap)
		return -ENOSPC;
	if (need <= t->n)
		return 0;
	if (need - t->n > a->n_free)
		return 1;
	while (t->n < need)
		nsv_block_get(a, &t->block[t->n++]);
	return 0;
}

int nsv_block_table_release(struct nsv_block_table *t, struct nsv_block_alloc *a)
{
	int first = 0;

	for (uint32_t i = t->n; i-- > 0;) {
		int ret = nsv_block_unref(a, t->block[i]);

		if (ret < 0 && first == 0)
			first = ret;
	}
	t->n = 0;
	return first;
}

int nsv_block_table_slots(const struct nsv_block_table *t, uint32_t block_size, uint64_t pos,
	uint32_t n, int64_t *ret_slots)
{
	uint64_t end = (uint64_t)t->n * block_size;

	if (pos > end || n > end - pos)
		return -ERANGE;
	for (uint32_t i = 0; i < n; i++, pos++)
		ret_slots[i] = (int64_t)t->block[pos / block_size] * block_size +
			(int64_t)(pos % block_size);
	return 0;
}
