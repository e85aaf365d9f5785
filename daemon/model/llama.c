/* The llama family: RMSNorm before each half of a layer, grouped queries, RoPE over neighbouring
 * pairs, a SiLU-gated feed-forward, no biases. Mistral and SmolLM files say "llama" too. */
#include "daemon/model/family.h"

static int describe(const struct nsv_gguf *g, struct nsv_model_desc *desc, struct nsv_err *err)
{
	static const char *const refused[] = {"expert_count", "attention.sliding_window"};

	desc->rope = NSV_ROPE_NORM;
	desc->act = NSV_ACT_SILU;
	return nsv_meta_refuse(g, desc->arch, refused, NSV_ARRAY_LEN(refused), err);
}

const struct nsv_family nsv_family_llama = {.arch = "llama", .describe = describe};
