/* Nodes of memory: on a machine of two sockets each has memory of its own, and reads the other's more
 * slowly, through a link with less bandwidth than either's memory has.
 *
 * What a step reads, all members of the team read together: each its share of a matrix, then of the
 * next one. So the memory of all nodes is read at the same time only if a part of each matrix is on
 * each node. Hence:
 *
 *   - Members are spread over the nodes by how many processors each has, and each stays on its
 *     node's, on whichever of them the scheduler likes. The nodes' members are numbered in a row, so
 *     that with fewer or more of them a node still has the same part of all numbers.
 *   - What a member is dealt of a matrix is on its own node: all of it where members are few, three
 *     quarters where they are many (kernels/cpu/share.h).
 *   - The KV pool, whose blocks any member reads, is dealt to the nodes by places of huge pages: where
 *     it is long in reading, it reads many of them.
 *   - All other new memory of the process is interleaved over the nodes page by page, by one policy
 *     of its first thread, which all others inherit: of matrices what goes to whoever is ready, the
 *     scratch of steps, the heap. With it the kernel's own balancing (kernel.numa_balancing) leaves
 *     our pages alone. Regions have their pages when they are made, by the policy of who makes them:
 *     one of their own (mbind) would say the same once more.
 *   - A huge page is on one node. Of weights it holds what is one node's as a whole: a layer of a
 *     small model is less than one, and would keep all other nodes idle while it is read.
 *   - The kernel joins small pages on the node that has most of them, the first of equals: of evenly
 *     interleaved ones always the same. So what is to be joined is on one node before.
 *
 * Nodes are those with memory that this process may use and with a processor that it may run on:
 * memory without processors is slower, and on purpose not the first choice. A process that its
 * control group keeps on one node, or on one node's memory, sees one. With one node nothing of all
 * this is done. Memory that another daemon left stays where that put it: to move it would take as
 * long as to make it anew.
 *
 * What the kernel says is read once, as the daemon starts. System calls are made without libnuma:
 * there are two, and reading the nodes from files lets tests make up machines. */
#ifndef NSV_DAEMON_NUMA_H
#define NSV_DAEMON_NUMA_H

#include "shm/base.h"

#define NSV_NUMA_NODES 1024u /* nodes and processors have lower numbers: the kernel's own limits */
#define NSV_NUMA_CPUS 8192u

#define NSV_NUMA_WORDS(n) ((n) / (8 * sizeof(unsigned long)))

/* A node whose processors we may run on. */
struct nsv_numa_home {
	uint32_t id;
	bool has_memory; /* that we may use */
	uint32_t n_cpu;
	unsigned long cpus[NSV_NUMA_WORDS(NSV_NUMA_CPUS)];
};

struct nsv_numa {
	uint32_t n_node; /* that memory is spread over; 1: none of this is done */
	unsigned long nodes[NSV_NUMA_WORDS(NSV_NUMA_NODES)];
	uint32_t n_home, n_cpu;
	struct nsv_numa_home *homes; /* (n_home), by number */
};

#define NSV_NUMA_NONE ((struct nsv_numa){.n_node = 1})

/* Where the kernel says it: files as those of /sys/devices/system/node and /proc/self/status. */
struct nsv_numa_source {
	const char *nodes, *status;
};

/* What of the machine a team of n_thread uses. 0; -errno and a sentence: what is said makes no
 * sense or cannot be read, and nothing is to be done. A machine of one node costs a look at one
 * file. */
int nsv_numa_init(struct nsv_numa *ret, const struct nsv_numa_source *from, uint32_t n_thread,
	struct nsv_err *err);
void nsv_numa_deinit(struct nsv_numa *n);
/* Of this machine; what is wrong is a warning in the log, and n_node 1. Memory of this thread, and
 * of those that it makes from now on, is spread from then on. */
void nsv_numa_begin(struct nsv_numa *ret, uint32_t n_thread);
/* Nodes take turns: the home of the k-th. */
uint32_t nsv_numa_turn(const struct nsv_numa *n, size_t k);
/* New memory of this thread: on the node of a home, or spread again. */
void nsv_numa_near(const struct nsv_numa *n, uint32_t home);
void nsv_numa_spread(const struct nsv_numa *n);
/* The home of a member of a team of `count`: an index of homes, growing with the member's. */
uint32_t nsv_numa_home_of(const struct nsv_numa *n, uint32_t index, uint32_t count);
/* This thread, a member, stays on its home's processors. Where the system does not let it, it runs
 * anywhere. */
void nsv_numa_settle(const struct nsv_numa *n, uint32_t index, uint32_t count);

#endif
