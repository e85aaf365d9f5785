/* What the processor offers and the kernel lets us use. */
#ifndef NSV_KERNELS_CPUID_H
#define NSV_KERNELS_CPUID_H

#include "shm/base.h"

/* Each is set only if the operating system also saves the registers it needs. */
struct nsv_cpuid {
	bool avx2;        /* with FMA and F16C */
	bool avx512;      /* F, BW, DQ, VL */
	bool avx512_vnni; /* with avx512 */
	bool avx512_bf16; /* with avx512 */
	bool amx_int8, amx_bf16;
	bool neon;         /* AArch64's */
	bool neon_dotprod; /* with neon */
};

/* Never fails: on processors other than x86-64 and AArch64 nothing is set. */
void nsv_cpuid_read(struct nsv_cpuid *ret);

#endif
