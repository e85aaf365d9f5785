/* Paged attention, compiled for processors with AMX: the same code as AVX-512's, other sizes. */
#define FN(name) nsv_cpu_##name##_amx
#define SCORE_ROWS 7u
#define SCORE_VECS 4u
#define VALUE_ROWS 7u
#define VALUE_VECS 4u
#define VALUE_KEYS 64u
#define WIDEN_ROWS (2 * SCORE_ROWS + 1)
#define AHEAD 64u
#define NEARNESS 2

#include "kernels/cpu/attention-place-impl.h"
#include "kernels/cpu/attention-tiles-impl.h"
#include "kernels/cpu/attention-impl.h"
#include "kernels/cpu/attention-together-impl.h"
