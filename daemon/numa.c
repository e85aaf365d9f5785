/* Lists of nodes and processors, as the kernel writes them, to a plan; and the plan to the kernel. */
#include "daemon/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>

#include "daemon/file.h"
#include "daemon/log.h"

#define MAX_TEXT (256u << 10) /* a list of 8,192 processors, every second one */
#define WORD_BITS (8 * sizeof(unsigned long))

/* ---- Sets */

static void add(unsigned long *set, unsigned long i)
{
	set[i / WORD_BITS] |= 1ul << i % WORD_BITS;
}

static bool has(const unsigned long *set, unsigned long i)
{
	return set[i / WORD_BITS] >> i % WORD_BITS & 1;
}

static uint32_t count(const unsigned long *set, size_t n_word)
{
	uint32_t n = 0;

	for (size_t i = 0; i < n_word; i++)
		n += (uint32_t)__builtin_popcountl(set[i]);
	return n;
}

/* Of a set, what is in `from` too, and no longer there. */
static void take(unsigned long *set, unsigned long *from, size_t n_word)
{
	for (size_t i = 0; i < n_word; i++) {
		set[i] &= from[i];
		from[i] &= ~set[i];
	}
}

/* "0-3,8,10-11", to the end of the text or of its line; nothing at all is an empty set. */
static int parse_list(const char *text, unsigned long *set, unsigned long limit)
{
	char *end;

	while (*text && *text != '\n') {
		if (*text < '0' || *text > '9')
			return -EPROTO;
		errno = 0;
		unsigned long first = strtoul(text, &end, 10), last = first;
		if (*end == '-' && end[1] >= '0' && end[1] <= '9')
			last = strtoul(end + 1, &end, 10);
		if (errno || last < first || last >= limit || !strchr(",\n", *end))
			return -EPROTO;
		for (unsigned long i = first; i <= last; i++)
			add(set, i);
		text = end + (*end == ',');
	}
	return 0;
}

/* ---- What the kernel says */

/* A file that is a list. `buf` has room for MAX_TEXT. */
static int read_list(const char *folder, const char *name, char *buf, unsigned long *set,
	unsigned long limit, struct nsv_err *err)
{
	char path[512];
	size_t len;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	int ret = nsv_file_read(path, buf, MAX_TEXT, &len);
	if (ret == 0)
		ret = parse_list(buf, set, limit);
	return ret < 0 ? nsv_fail(err, ret, "%s: %s", path, strerror(-ret)) : 0;
}

/* The list of a line of `status`, by the line's name. */
static int find_list(const char *status, const char *name, unsigned long *set, unsigned long limit,
	struct nsv_err *err)
{
	const char *line = status;

	while (line && strncmp(line, name, strlen(name)) != 0)
		line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL;
	if (!line)
		return nsv_fail(err, -EPROTO, "the process's status has no line %s", name);
	line += strlen(name);
	int ret = parse_list(line + strspn(line, " \t"), set, limit);
	return ret < 0 ? nsv_fail(err, ret, "the process's status: wrong %s", name) : 0;
}

/* What this process may use, and the nodes that there are. */
struct allowed {
	unsigned long online[NSV_NUMA_WORDS(NSV_NUMA_NODES)], mems[NSV_NUMA_WORDS(NSV_NUMA_NODES)];
	unsigned long cpus[NSV_NUMA_WORDS(NSV_NUMA_CPUS)];
};

static int read_allowed(
	const struct nsv_numa_source *from, char *buf, struct allowed *a, struct nsv_err *err)
{
	unsigned long given[NSV_NUMA_WORDS(NSV_NUMA_NODES)] = {0};
	size_t len;
	int ret = read_list(from->nodes, "online", buf, a->online, NSV_NUMA_NODES, err);

	if (ret < 0)
		return ret;
	ret = nsv_file_read(from->status, buf, MAX_TEXT, &len);
	if (ret < 0)
		return nsv_fail(err, ret, "%s: %s", from->status, strerror(-ret));
	ret = find_list(buf, "Cpus_allowed_list:", a->cpus, NSV_NUMA_CPUS, err);
	if (ret == 0)
		ret = find_list(buf, "Mems_allowed_list:", given, NSV_NUMA_NODES, err);
	take(a->mems, given, NSV_ARRAY_LEN(given));
	return ret;
}

/* ---- Homes */

/* A processor that two nodes claim is the first one's; a node without any is nobody's home. */
static int read_home(struct nsv_numa *n, const struct nsv_numa_source *from, uint32_t id, char *buf,
	struct allowed *a, struct nsv_err *err)
{
	struct nsv_numa_home *home = &n->homes[n->n_home];
	char name[32];

	*home = (struct nsv_numa_home){.id = id, .has_memory = has(a->mems, id)};
	snprintf(name, sizeof(name), "node%u/cpulist", id);
	int ret = read_list(from->nodes, name, buf, home->cpus, NSV_NUMA_CPUS, err);
	if (ret < 0)
		return ret;
	take(home->cpus, a->cpus, NSV_ARRAY_LEN(home->cpus));
	home->n_cpu = count(home->cpus, NSV_ARRAY_LEN(home->cpus));
	n->n_home += home->n_cpu > 0;
	n->n_cpu += home->n_cpu;
	return 0;
}

static int read_homes(struct nsv_numa *n, const struct nsv_numa_source *from, char *buf,
	struct allowed *a, struct nsv_err *err)
{
	uint32_t n_online = count(a->online, NSV_ARRAY_LEN(a->online));
	int ret = 0;

	n->homes = calloc(n_online, sizeof(*n->homes));
	if (!n->homes)
		return nsv_fail(err, -ENOMEM, "no memory for a list of %u nodes", n_online);
	for (uint32_t id = 0; ret == 0 && id < NSV_NUMA_NODES; id++)
		if (has(a->online, id))
			ret = read_home(n, from, id, buf, a, err);
	return ret;
}

/* In a line of all processors, node after node, a member stands in the middle of its share. */
uint32_t nsv_numa_home_of(const struct nsv_numa *n, uint32_t index, uint32_t count)
{
	uint64_t at = (2 * (uint64_t)index + 1) * n->n_cpu / (2 * (uint64_t)count);
	uint32_t home = 0;

	while (home + 1 < n->n_home && at >= n->homes[home].n_cpu)
		at -= n->homes[home++].n_cpu;
	return home;
}

uint32_t nsv_numa_turn(const struct nsv_numa *n, size_t k)
{
	uint32_t home = 0;

	for (size_t left = k % n->n_node;; home++)
		if (has(n->nodes, n->homes[home].id) && left-- == 0)
			return home;
}

/* Nodes that no member is on have nothing to give. */
static void choose_nodes(struct nsv_numa *n, uint32_t n_thread)
{
	n->n_node = 0;
	for (uint32_t i = 0; n->n_home > 0 && i < n_thread; i++) {
		const struct nsv_numa_home *home = &n->homes[nsv_numa_home_of(n, i, n_thread)];
		if (!home->has_memory || has(n->nodes, home->id))
			continue;
		add(n->nodes, home->id);
		n->n_node++;
	}
}

static int look(struct nsv_numa *n, const struct nsv_numa_source *from, char *buf,
	struct allowed *a, uint32_t n_thread, struct nsv_err *err)
{
	int ret = read_list(from->nodes, "has_memory", buf, a->mems, NSV_NUMA_NODES, err);

	if (ret == -ENOENT || (ret == 0 && count(a->mems, NSV_ARRAY_LEN(a->mems)) < 2))
		return 0; /* a kernel without nodes, or a machine */
	if (ret == 0)
		ret = read_allowed(from, buf, a, err);
	if (ret == 0)
		ret = read_homes(n, from, buf, a, err);
	if (ret == 0)
		choose_nodes(n, n_thread);
	return ret;
}

int nsv_numa_init(struct nsv_numa *ret_numa, const struct nsv_numa_source *from, uint32_t n_thread,
	struct nsv_err *err)
{
	struct nsv_numa n = NSV_NUMA_NONE;
	struct allowed a = {0};
	nsv_autofree char *buf = malloc(MAX_TEXT);
	int ret = buf ? look(&n, from, buf, &a, n_thread, err)
		      : nsv_fail(err, -ENOMEM, "no memory for a look at the nodes");

	if (ret < 0 || n.n_node < 2)
		nsv_numa_deinit(&n);
	if (ret == 0)
		*ret_numa = n;
	return ret;
}

void nsv_numa_deinit(struct nsv_numa *n)
{
	free(n->homes);
	*n = NSV_NUMA_NONE;
}

/* ---- To the kernel */

static int set_policy(int mode, const unsigned long *nodes)
{
	/* The kernel reads one bit less than it is told. */
	return syscall(SYS_set_mempolicy, mode, nodes, NSV_NUMA_NODES + 1) < 0 ? -errno : 0;
}

void nsv_numa_near(const struct nsv_numa *n, uint32_t home)
{
	unsigned long one[NSV_NUMA_WORDS(NSV_NUMA_NODES)] = {0};

	add(one, n->homes[home].id);
	(void)set_policy(MPOL_PREFERRED, one);
}

void nsv_numa_spread(const struct nsv_numa *n)
{
	(void)set_policy(MPOL_INTERLEAVE, n->nodes);
}

void nsv_numa_begin(struct nsv_numa *ret, uint32_t n_thread)
{
	static const struct nsv_numa_source machine = {
		"/sys/devices/system/node", "/proc/self/status"};
	struct nsv_err err = {""};
	int code = nsv_numa_init(ret, &machine, n_thread, &err);

	if (code < 0) {
		*ret = NSV_NUMA_NONE;
		nsv_warning("nodes of memory are not told apart: %s", err.text);
		return;
	}
	if (ret->n_node < 2)
		return;
	code = set_policy(MPOL_INTERLEAVE, ret->nodes);
	if (code == 0)
		return;
	nsv_warning("memory is not spread over %u nodes: set_mempolicy: %s", ret->n_node,
		strerror(-code));
	nsv_numa_deinit(ret);
}

void nsv_numa_settle(const struct nsv_numa *n, uint32_t index, uint32_t count)
{
	if (n->n_node < 2)
		return;
	const struct nsv_numa_home *home = &n->homes[nsv_numa_home_of(n, index, count)];
	(void)syscall(SYS_sched_setaffinity, 0, sizeof(home->cpus), home->cpus);
}
