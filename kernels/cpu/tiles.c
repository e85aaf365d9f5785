/* The request is the kernel's ABI: arch_prctl(ARCH_REQ_XCOMP_PERM, number of the state). */
#include "kernels/cpu/tiles.h"

#if defined(__x86_64__)

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_TILE_DATA 18

int nsv_cpu_ask_tiles(void)
{
	return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) < 0 ? -errno : 0;
}

#else

#include <errno.h>

int nsv_cpu_ask_tiles(void)
{
	return -ENOSYS;
}

#endif
