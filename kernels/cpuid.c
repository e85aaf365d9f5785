/* On x86-64 CPUID says what the processor can do, XGETBV whether the kernel saves the registers it
 * uses; on AArch64 the kernel says both in the auxiliary vector. */
#include "kernels/cpuid.h"

#if defined(__x86_64__)

#include <cpuid.h>

/* Leaf 7, EDX: not in every compiler's cpuid.h. */
#define EDX_AMX_BF16 (1u << 22)
#define EDX_AMX_TILE (1u << 24)
#define EDX_AMX_INT8 (1u << 25)

#define XCR0_AVX 0x6u        /* XMM and YMM */
#define XCR0_AVX512 0xe6u    /* and masks, ZMM */
#define XCR0_AMX 0x60000u    /* tile configuration and data */

static uint64_t read_xcr0(void)
{
	uint32_t lo, hi;
	__asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
	return (uint64_t)hi << 32 | lo;
}

static bool has(uint32_t reg, uint32_t bits)
{
	return (reg & bits) == bits;
}

void nsv_cpuid_read(struct nsv_cpuid *ret)
{
	uint32_t a, b, c, d, c1, a1;
	uint64_t xcr0;
	*ret = (struct nsv_cpuid){0};
	if (!__get_cpuid(1, &a, &b, &c1, &d) || !has(c1, bit_OSXSAVE))
		return;
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
		return;
	if (!__get_cpuid_count(7, 1, &a1, &(uint32_t){0}, &(uint32_t){0}, &(uint32_t){0}))
		a1 = 0;
	xcr0 = read_xcr0();
	ret->avx2 = (xcr0 & XCR0_AVX) == XCR0_AVX && has(c1, bit_AVX | bit_FMA | bit_F16C) &&
		has(b, bit_AVX2);
	ret->avx512 = ret->avx2 && (xcr0 & XCR0_AVX512) == XCR0_AVX512 &&
		has(b, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL);
	ret->avx512_vnni = ret->avx512 && has(c, bit_AVX512VNNI);
	ret->avx512_bf16 = ret->avx512 && has(a1, bit_AVX512BF16);
	ret->amx_int8 = (xcr0 & XCR0_AMX) == XCR0_AMX && has(d, EDX_AMX_TILE | EDX_AMX_INT8);
	ret->amx_bf16 = (xcr0 & XCR0_AMX) == XCR0_AMX && has(d, EDX_AMX_TILE | EDX_AMX_BF16);
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

void nsv_cpuid_read(struct nsv_cpuid *ret)
{
	unsigned long cap = getauxval(AT_HWCAP);
	*ret = (struct nsv_cpuid){0};
	ret->neon = cap & HWCAP_ASIMD;
	ret->neon_dotprod = ret->neon && (cap & HWCAP_ASIMDDP);
}

#else

void nsv_cpuid_read(struct nsv_cpuid *ret)
{
	*ret = (struct nsv_cpuid){0};
}

#endif
