/* The memory of a step's logits. */
#include "daemon/model/logits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/region.h"

#define LINE (NSV_CACHE_LINE / sizeof(float))

/* An odd number of lines: every set of a cache is as near as any other. */
static size_t row_stride(uint32_t n_vocab)
{
	return ((n_vocab + LINE - 1) / LINE | 1) * LINE;
}

int nsv_logits_init(struct nsv_logits *l, uint32_t n_row, uint32_t n_vocab)
{
	size_t len, whole, n_range;

	*l = (struct nsv_logits){.ld = row_stride(n_vocab)};
	if (!nsv_mul(n_row, l->ld * sizeof(float), &len) ||
		!nsv_align_up(len, NSV_HUGE_PAGE, &whole) ||
		!nsv_mul(n_row, nsv_scan_n_slice(n_vocab), &n_range))
		return -EOVERFLOW;
	l->x = aligned_alloc(NSV_HUGE_PAGE, whole);
	l->ranges = calloc(n_range, sizeof(*l->ranges));
	l->scales = calloc(n_row, sizeof(*l->scales));
	if (!l->x || !l->ranges || !l->scales) {
		nsv_logits_deinit(l);
		return -ENOMEM;
	}
	(void)madvise(l->x, whole, MADV_HUGEPAGE);
	return 0;
}

void nsv_logits_deinit(struct nsv_logits *l)
{
	free(l->x);
	free(l->ranges);
	free(l->scales);
	memset(l, 0, sizeof(*l));
}
