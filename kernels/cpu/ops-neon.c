/* The operations on rows, compiled for NEON. */
#define VEC_NEON
#define FN(name) nsv_cpu_##name##_neon

#include "kernels/cpu/ops-impl.h"
