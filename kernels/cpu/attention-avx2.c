/* Paged attention, compiled for AVX2. */
#define FN(name) nsv_cpu_##name##_avx2
#define SCORE_ROWS 6u
#define SCORE_VECS 2u
#define VALUE_ROWS 6u
#define VALUE_KEYS 64u
#define WIDEN_ROWS (2 * SCORE_ROWS + 1)
#define AHEAD 32u
#define NEARNESS 2

#include "kernels/cpu/attention-place-impl.h"
#include "kernels/cpu/attention-tiles-avx2.h"
#include "kernels/cpu/attention-impl.h"
#include "kernels/cpu/attention-together-impl.h"
