/* The pool's size, and what memory there is. */
#include "daemon/pool.h"

#include <string.h>

#include "cache/block_table.h"

/* The number in a file that begins with one; what is no number ("max") is no limit. */
static size_t read_number(const char *path)
{
	unsigned long long v;
	FILE *f = fopen(path, "re");
	size_t ret = f && fscanf(f, "%llu", &v) == 1 ? (size_t)nsv_min_u64(v, SIZE_MAX) : SIZE_MAX;

	if (f)
		fclose(f);
	return ret;
}

/* What control group `path` and those above it leave. */
static size_t left_in_group(char *path)
{
	size_t left = SIZE_MAX;
	char file[512];

	for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
		*end = '\0';
		snprintf(file, sizeof(file), "/sys/fs/cgroup%s/memory.max", path);
		size_t max = read_number(file);
		snprintf(file, sizeof(file), "/sys/fs/cgroup%s/memory.current", path);
		size_t now = max == SIZE_MAX ? 0 : read_number(file);
		if (max != SIZE_MAX)
			left = nsv_min(left, max > now ? max - now : 0);
	}
	return left;
}

static size_t left_in_own_group(void)
{
	char line[448], path[448];
	size_t left = SIZE_MAX;
	FILE *f = fopen("/proc/self/cgroup", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "0::%447s", path) == 1)
			left = left_in_group(path);
	if (f)
		fclose(f);
	return left;
}

size_t nsv_memory_available(void)
{
	char line[128];
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return nsv_min((size_t)kib << 10, left_in_own_group());
}

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
