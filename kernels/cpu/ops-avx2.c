/* The operations on rows, compiled for AVX2. */
#define FN(name) nsv_cpu_##name##_avx2

#include "kernels/cpu/ops-impl.h"
