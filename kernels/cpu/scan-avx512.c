/* The passes of sampling, compiled for AVX-512. */
#define FN(name) nsv_cpu_##name##_avx512

#include "kernels/cpu/scan-impl.h"
