/* The passes of sampling, compiled for AVX2. */
#define FN(name) nsv_cpu_##name##_avx2

#include "kernels/cpu/scan-impl.h"
