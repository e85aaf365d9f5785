/* Which sequences of a batch begin with the same blocks, so that a backend may read those keys once
 * for all of them (cascade). Host integers only; plain C, the same on every machine.
 *
 *     table of A   7 3 9 | 4 1          members follow each other in the batch and in q:
 *     table of B   7 3 9 | 8            the caller sorts those that share much beside each other
 *     table of C   7 3 9 | 2 6 5 */
#ifndef NSV_KERNELS_ATTN_SHARED_H
#define NSV_KERNELS_ATTN_SHARED_H

#include "kernels/ops.h"

/* What of sharing a backend can use: its own figures. */
struct nsv_attn_sharing {
	uint32_t unit;	    /* shared keys are whole such numbers: a chunk's edge */
	uint32_t min_key;   /* a shorter prefix does not pay */
	uint64_t min_saved; /* keys that need not be read, below which a group does not pay */
};

struct nsv_attn_shared {
	uint32_t first, n_seq; /* its members: two or more */
	uint32_t row0, n_row;  /* all their rows of q */
	uint32_t n_key;	       /* shared by all, and seen by each of the rows */
};

/* Groups of sequences of a batch that passed nsv_attn_make_plan: their number, at most `max`. A
 * sequence joins the group before it if that does not lessen the keys that need not be read. Reads
 * each table up to what it shares; with a window there are no groups. */
uint32_t nsv_attn_find_shared(const struct nsv_attn_shape *shape, const struct nsv_attn_seq *seqs,
	uint32_t n_seq, const struct nsv_attn_sharing *use, struct nsv_attn_shared *ret,
	uint32_t max);

#endif
