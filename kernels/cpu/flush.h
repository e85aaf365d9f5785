/* Between begin and end, numbers below the normal ones count as zeros on this thread, what is read
 * as what is computed: the units that have AMX know no other way, and the others take a hundred
 * cycles for an operation that meets such a number, so that odd weights, or scores that fade out,
 * would slow a step twentyfold. A processor without such a mode goes on as it is.
 *
 * Who calls these does the arithmetic in a function that is not inlined: compilers know nothing of
 * the mode. */
#ifndef NSV_KERNELS_CPU_FLUSH_H
#define NSV_KERNELS_CPU_FLUSH_H

#include "shm/base.h"

#if defined(__x86_64__)

#include <xmmintrin.h>

static inline uint64_t nsv_cpu_flush_begin(void)
{
	uint32_t old = _mm_getcsr();
	_mm_setcsr(old | 0x8040u);
	return old;
}

static inline void nsv_cpu_flush_end(uint64_t old)
{
	_mm_setcsr((uint32_t)old);
}

#elif defined(__aarch64__)

static inline uint64_t nsv_cpu_flush_begin(void)
{
	uint64_t old;
	__asm__ volatile("mrs %0, fpcr" : "=r"(old));
	__asm__ volatile("msr fpcr, %0" : : "r"(old | 1u << 24) : "memory");
	return old;
}

static inline void nsv_cpu_flush_end(uint64_t old)
{
	__asm__ volatile("msr fpcr, %0" : : "r"(old) : "memory");
}

#else

static inline uint64_t nsv_cpu_flush_begin(void)
{
	return 0;
}

static inline void nsv_cpu_flush_end(uint64_t old)
{
	(void)old;
}

#endif

#endif
