/* The pool's size. */
#include "daemon/pool.h"

#include "cache/block_table.h"

size_t nsv_pool_most(size_t free_len)
{
	return free_len - free_len / NSV_POOL_MARGIN;
}

static size_t wanted_memory(const struct nsv_pool_wish *w, size_t free_len)
{
	if (w->memory)
		return (size_t)nsv_min_u64(w->memory, SIZE_MAX);
	return free_len / 4;
}

int nsv_pool_choose(const struct nsv_kv_geom *geom, const struct nsv_pool_wish *wish,
	size_t free_len, uint32_t *ret_n_block, struct nsv_err *err)
{
	uint32_t most, n = wish->n_block, budget;
	int ret = nsv_kv_blocks_in(geom, nsv_pool_most(free_len), &most);

	if (ret == 0)
		ret = nsv_kv_blocks_in(geom, wanted_memory(wish, free_len), &budget);
	if (ret < 0)
		return nsv_fail(err, ret, "the KV pool's geometry is impossible");
	if (n == 0)
		n = budget;
	if (wish->n_block == 0 && wish->memory == 0)
		n = (uint32_t)nsv_min(
			n, nsv_blocks_for(2 * (uint64_t)wish->n_ctx, geom->block_size));
	if (n == 0)
		return nsv_fail(err, -ENOMEM,
			"not one KV block fits the memory that is given to them "
			"(see --kv-memory)");
	if (n > most || wish->n_host > most - n)
		return nsv_fail(err, -ENOMEM,
			"%u KV blocks and %u to swap are wanted, memory for %u is free (see "
			"--kv-blocks, --kv-memory and --swap-blocks)",
			n, wish->n_host, most);
	*ret_n_block = n;
	return 0;
}
