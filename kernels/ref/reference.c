/* The table of the `reference` backend. */
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
	.k_dim_major = false,
	.probe = nsv_ref_probe,
	.isa = nsv_ref_isa,
	.weight_len = nsv_ref_weight_len,
	.weight_pack = nsv_ref_weight_pack,
	.acts_len = nsv_ref_acts_len,
	.acts_set = nsv_ref_acts_set,
	.matmul = nsv_ref_matmul,
	.embed = nsv_ref_embed,
	.rmsnorm = nsv_ref_rmsnorm,
	.add = nsv_ref_add,
	.add_bias = nsv_ref_add_bias,
	.rope = nsv_ref_rope,
	.gate = nsv_ref_gate,
	.softmax = nsv_ref_softmax,
	.kv_append = nsv_ref_kv_append,
	.attention = nsv_ref_attention,
};
