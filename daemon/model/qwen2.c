/* The qwen2 family (Qwen2, Qwen2.5): as llama, but RoPE over the two halves of a head, and biases
 * of Q, K and V. A head of its own or the embedding's, as the file has it. */
#include "daemon/model/family.h"

static int describe(const struct nsv_gguf *g, struct nsv_model_desc *desc, struct nsv_err *err)
{
	static const char *const refused[] = {"expert_count", "attention.sliding_window"};

	desc->rope = NSV_ROPE_NEOX;
	desc->act = NSV_ACT_SILU;
	desc->qkv_bias = true;
	return nsv_meta_refuse(g, desc->arch, refused, NSV_ARRAY_LEN(refused), err);
}

const struct nsv_family nsv_family_qwen2 = {.arch = "qwen2", .describe = describe};
