/* The table of the `reference` backend. It stores K and V in full, unless it is to be the oracle of
 * another type. */
#include "kernels/ref/ref.h"

int nsv_ref_probe(struct nsv_err *err)
{
	(void)err;
	return 0;
}

const char *nsv_ref_isa(void)
{
	return "";
}

const struct nsv_backend nsv_reference_backend = {
	.name = "reference",
	.numerics = 0x72656601, /* "ref", 1 */
	.kv_dtype = NSV_F32,
	NSV_REF_OPERATIONS,
	.attention = nsv_ref_attention,
};
