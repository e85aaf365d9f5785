/* The memory of a step's logits: rows far enough from a power of two apart that lines of many rows,
 * which a product writes side by side, do not crowd each other out of the caches; in huge pages,
 * where they can be had: a panel's outputs are on as many pages as it has rows. */
#ifndef NSV_DAEMON_MODEL_LOGITS_H
#define NSV_DAEMON_MODEL_LOGITS_H

#include "kernels/scan.h"

struct nsv_logits {
	size_t ld;			/* from a row to the next */
	float *x;			/* (n_row, ld) */
	struct nsv_scan_range *ranges;	/* (n_row, slices of n_vocab) */
	float *scales;			/* (n_row) of their sums; 0: none (kernels/scan.h) */
};

/* 0, -ENOMEM or -EOVERFLOW. Memory is taken as it is written. */
int nsv_logits_init(struct nsv_logits *l, uint32_t n_row, uint32_t n_vocab);
/* All zeros is fine. */
void nsv_logits_deinit(struct nsv_logits *l);

#endif
