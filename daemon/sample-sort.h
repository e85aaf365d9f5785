/* Sorting of a few candidates, or of many. */
#ifndef NSV_DAEMON_SAMPLE_SORT_H
#define NSV_DAEMON_SAMPLE_SORT_H

#include "shm/abi.h"
#include "shm/base.h"

/* The n of x, which come in order of their ids, by falling logit, equals by id, into out. Both
 * arrays are written. */
void nsv_sample_sort(struct nsv_lp *x, struct nsv_lp *out, size_t n);

#endif
