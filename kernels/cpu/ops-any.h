/* What is the same on every row of the instruction-set table, and where speed is memory's. */
#ifndef NSV_KERNELS_CPU_OPS_ANY_H
#define NSV_KERNELS_CPU_OPS_ANY_H

#include "kernels/backend.h"

/* struct nsv_backend says what each does. */
void nsv_cpu_embed(const struct nsv_part *part, float *out, const struct nsv_matrix *m,
	const int32_t *ids, uint32_t n_row, float scale);

#endif
