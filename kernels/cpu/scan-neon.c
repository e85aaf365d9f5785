/* The passes of sampling, compiled for NEON. */
#define VEC_NEON
#define FN(name) nsv_cpu_##name##_neon

#include "kernels/cpu/scan-impl.h"
