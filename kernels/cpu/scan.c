/* The passes of sampling, compiled for plain C. */
#define FN(name) nsv_cpu_##name##_plain

#include "kernels/cpu/scan-impl.h"
