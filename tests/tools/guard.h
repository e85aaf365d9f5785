/* A buffer between two pages that may not be touched, so that one byte too far is a fault at once,
 * in code that no sanitizer or emulator sees into as well. */
#ifndef NSV_TESTS_TOOLS_GUARD_H
#define NSV_TESTS_TOOLS_GUARD_H

#include "shm/base.h"

enum nsv_guard_side {
	NSV_GUARD_AFTER,  /* the last byte lies right before a forbidden page */
	NSV_GUARD_BEFORE, /* the first byte lies right after one */
};

/* `len` bytes, filled with 0xa5; with NSV_GUARD_AFTER aligned to `align` by shifting down, so up to
 * align - 1 bytes lie unguarded after it. Never NULL: ends the test where there is no memory. */
void *nsv_guard_new(size_t len, size_t align, enum nsv_guard_side side);
void nsv_guard_free(void *p);

#endif
