/* The machine's free memory, that of control groups of either version, and credit. */
#include "daemon/memory.h"

#include <string.h>

#define CREDIT (32u << 20)
#define SMALL (16u << 10)
#define BELIEVED_NS 10000000u /* a refusal: who asks again and again costs one look in so long */

#define PATH_LEN 512
#define NO_LIMIT (1ull << 62) /* version 1 says that it has none by a number of this size */

/* ---- Control groups */

/* How a version names things. */
struct version {
	const char *mount; /* below where all are */
	const char *limits[2];
	const char *usage;
	const char *cached[2]; /* lines of memory.stat: pages of files */
};

static const struct version v1 = {.mount = "/memory",
	.limits = {"memory.limit_in_bytes"},
	.usage = "memory.usage_in_bytes",
	.cached = {"total_inactive_file", "total_active_file"}};

/* Beyond memory.high a process is slowed down until it hardly moves. */
static const struct version v2 = {.mount = "",
	.limits = {"memory.max", "memory.high"},
	.usage = "memory.current",
	.cached = {"inactive_file", "active_file"}};

static FILE *open_file(const char *group, const char *name)
{
	char path[PATH_LEN + 64];

	snprintf(path, sizeof(path), "%s/%s", group, name);
	return fopen(path, "re");
}

/* The number that a file begins with; `otherwise`: no such file, or no number ("max"). */
static uint64_t read_number(const char *group, const char *name, uint64_t otherwise)
{
	unsigned long long v;
	FILE *f = open_file(group, name);
	uint64_t ret = f && fscanf(f, "%llu", &v) == 1 ? v : otherwise;

	if (f)
		fclose(f);
	return ret;
}

/* Pages of files, which go when memory is wanted; those of regions are not among them. */
static uint64_t read_cached(const struct version *v, const char *group)
{
	FILE *f = open_file(group, "memory.stat");
	unsigned long long n;
	uint64_t sum = 0;
	char name[64];

	while (f && fscanf(f, "%63s %llu", name, &n) == 2)
		if (strcmp(name, v->cached[0]) == 0 || strcmp(name, v->cached[1]) == 0)
			sum += n;
	if (f)
		fclose(f);
	return sum;
}

static uint64_t left_in_one(const struct version *v, const char *group)
{
	uint64_t max = UINT64_MAX;

	for (size_t i = 0; i < NSV_ARRAY_LEN(v->limits) && v->limits[i]; i++)
		max = nsv_min_u64(max, read_number(group, v->limits[i], UINT64_MAX));
	if (max >= NO_LIMIT)
		return UINT64_MAX;
	uint64_t used = read_number(group, v->usage, 0);
	used -= nsv_min_u64(used, read_cached(v, group));
	return max > used ? max - used : 0;
}

/* Of a group and those above it: the topmost is what is mounted, which in a container is its own
 * group, whatever the path says. */
static uint64_t left_in_line(const struct version *v, const char *mounts, char *path)
{
	char group[PATH_LEN];
	uint64_t left = UINT64_MAX;

	for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
		*end = '\0';
		if (snprintf(group, sizeof(group), "%s%s%s", mounts, v->mount, path) <
			(int)sizeof(group))
			left = nsv_min_u64(left, left_in_one(v, group));
	}
	return left;
}

uint64_t nsv_memory_left_in_groups(const char *list, const char *mounts)
{
	char line[PATH_LEN], names[64], path[PATH_LEN];
	uint64_t left = UINT64_MAX;
	FILE *f = fopen(list, "re");

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "0::%511s", path) == 1)
			left = nsv_min_u64(left, left_in_line(&v2, mounts, path));
		else if (sscanf(line, "%*u:%63[^:]:%511s", names, path) == 2 &&
			 strcmp(names, "memory") == 0)
			left = nsv_min_u64(left, left_in_line(&v1, mounts, path));
	}
	if (f)
		fclose(f);
	return left;
}

/* ---- The machine */

uint64_t nsv_memory_available(void)
{
	char line[128];
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return nsv_min_u64(
		kib << 10, nsv_memory_left_in_groups("/proc/self/cgroup", "/sys/fs/cgroup"));
}

/* ---- Credit */

/* A short prompt is served as long as any: the number of requests is limited, and what the daemon
 * keeps to itself has room for them. */
bool nsv_memory_take(struct nsv_memory *m, uint64_t bytes, uint64_t now_ns)
{
	if (bytes <= SMALL)
		return true;
	if (m->refused_ns && now_ns - m->refused_ns >= BELIEVED_NS)
		nsv_memory_look_again(m);
	if (bytes > m->credit) {
		if (m->refused_ns)
			return false;
		m->credit = nsv_min_u64(m->look(m), bytes + CREDIT);
		m->refused_ns = bytes > m->credit ? now_ns : 0;
	}
	if (bytes > m->credit)
		return false;
	m->credit -= bytes;
	return true;
}

/* What was refused left all that the look had seen as credit: that is no longer believed. */
void nsv_memory_look_again(struct nsv_memory *m)
{
	m->credit = nsv_min_u64(m->credit, CREDIT);
	m->refused_ns = 0;
}
