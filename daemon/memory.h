/* What memory there is, and what of it clients may have.
 *
 * Who is out of memory in a control group is not told so but killed: memory.max ends the whole
 * daemon in the middle of a fallocate, or of a prompt's copy. So what a client makes the daemon
 * take is asked for here before it is taken. Looking costs system calls, so a look gives credit:
 * what may be taken until the next one. The io thread owns it. */
#ifndef NSV_DAEMON_MEMORY_H
#define NSV_DAEMON_MEMORY_H

#include "shm/base.h"

struct nsv_memory {
	/* What can be given to clients now, their holes and the daemon's own needs left out. */
	uint64_t (*look)(const struct nsv_memory *m);
	uint64_t credit, refused_ns;
};

/* Bytes that can be had without pushing anything out but cached files: of the machine's and of this
 * process's control groups. */
uint64_t nsv_memory_available(void);
/* What the groups leave that a file like /proc/self/cgroup names, and those above them; `mounts` is
 * where they are mounted. UINT64_MAX: no limit. */
uint64_t nsv_memory_left_in_groups(const char *list, const char *mounts);

/* true: they may be taken now, as 16 KiB always may. false: there is not so much, or there was not
 * so shortly before. */
bool nsv_memory_take(struct nsv_memory *m, uint64_t bytes, uint64_t now_ns);
/* Something came back: who was refused may try again at once. */
void nsv_memory_look_again(struct nsv_memory *m);

#endif
