/* The oracle of whole models: a forward pass of one sequence in double precision, written plainly
 * from the families' definitions. */
#ifndef NSV_TESTS_TOOLS_FAMILY_REF_H
#define NSV_TESTS_TOOLS_FAMILY_REF_H

#include "tests/tools/family.h"

#define FAMILY_REF_MAX_TOKEN 24

/* The logits (n, FAMILY_N_VOCAB) after each of n tokens, at most FAMILY_REF_MAX_TOKEN. */
void family_ref_forward(const struct family_file *file, const struct family *family,
	const int32_t *tokens, int n, double *logits);

#endif
