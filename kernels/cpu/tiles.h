/* AMX tiles: registers of 8 KiB a thread, which the kernel gives to a process that asks. */
#ifndef NSV_KERNELS_CPU_TILES_H
#define NSV_KERNELS_CPU_TILES_H

#include "shm/base.h"

/* What the processor reads to set them up: a row of bytes and of rows for each of 16 registers. */
struct nsv_cpu_tile_config {
	uint8_t palette, start_row, zero[14];
	uint16_t n_byte[16];
	uint8_t n_row[16];
};

static inline void nsv_cpu_tile_set(
	struct nsv_cpu_tile_config *c, uint32_t t, uint32_t n_row, uint32_t n_byte)
{
	c->n_row[t] = (uint8_t)n_row;
	c->n_byte[t] = (uint16_t)n_byte;
}

#if defined(__x86_64__)
/* gcc's _tile_loadconfig says that it reads the first 8 bytes: stores to the others could go. */
static inline void nsv_cpu_tile_load(const struct nsv_cpu_tile_config *c)
{
	__asm__ volatile("ldtilecfg\t%0" : : "m"(*c));
}
#endif

/* Asks for tiles, for all threads of the process. 0, or -errno: -ENOSYS where there are none,
 * -EINVAL from a kernel that knows none, -ENOSPC if a signal stack is too small for them. */
int nsv_cpu_ask_tiles(void);

#endif
