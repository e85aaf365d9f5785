/* The operations on rows, compiled for AVX-512. */
#define FN(name) nsv_cpu_##name##_avx512

#include "kernels/cpu/ops-impl.h"
