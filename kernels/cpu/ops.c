/* The operations on rows, compiled for plain C. */
#define FN(name) nsv_cpu_##name##_plain

#include "kernels/cpu/ops-impl.h"
