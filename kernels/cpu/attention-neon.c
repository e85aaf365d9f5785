/* Paged attention, compiled for NEON. */
#define VEC_NEON
#define FN(name) nsv_cpu_##name##_neon
#define SCORE_ROWS 6u
#define SCORE_VECS 1u
#define VALUE_ROWS 6u
#define VALUE_VECS 1u
#define VALUE_KEYS 64u
#define WIDEN_ROWS (2 * SCORE_ROWS + 1)
#define AHEAD 16u
#define NEARNESS 3

#include "kernels/cpu/attention-place-impl.h"
#include "kernels/cpu/attention-tiles-impl.h"
#include "kernels/cpu/attention-impl.h"
#include "kernels/cpu/attention-together-impl.h"
