/* Paged attention, compiled for AVX-512. */
#define FN(name) nsv_cpu_##name##_avx512
#define SCORE_ROWS 7u
#define SCORE_VECS 4u
#define VALUE_ROWS 7u
#define VALUE_VECS 4u
#define VALUE_KEYS STRIP
#define WIDEN_ROWS (ROWS + 1) /* never: it is made fp32 within the time of the products */
#define AHEAD 64u
#define NEARNESS 2

#include "kernels/cpu/attention-place-impl.h"
#include "kernels/cpu/attention-tiles-impl.h"
#include "kernels/cpu/attention-impl.h"
#include "kernels/cpu/attention-together-impl.h"
