/* AMX tiles: registers of 8 KiB a thread, which the kernel gives to a process that asks. */
#ifndef NSV_KERNELS_CPU_TILES_H
#define NSV_KERNELS_CPU_TILES_H

#include "shm/base.h"

/* Asks for tiles, for all threads of the process. 0, or -errno: -ENOSYS where there are none,
 * -EINVAL from a kernel that knows none, -ENOSPC if a signal stack is too small for them. */
int nsv_cpu_ask_tiles(void);

#endif
