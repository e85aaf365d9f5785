/* Paged attention, compiled for AVX2. */
#define FN(name) nsv_cpu_##name##_avx2
#define SCORE_ROWS 6u
#define SCORE_VECS 1u
#define VALUE_ROWS 3u
#define VALUE_VECS 2u

#include "kernels/cpu/attention-impl.h"
