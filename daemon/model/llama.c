/* The llama family: RMSNorm before each half of a layer, grouped queries, RoPE over neighbouring
 * pairs, a SiLU-gated feed-forward, no biases. Mistral and SmolLM files say "llama" too. */
#include "daemon/model/family.h"

#include <string.h>

static bool is_text(struct nsv_str s, const char *text)
{
	return s.len == strlen(text) && memcmp(s.p, text, s.len) == 0;
}

static int refuse_scaling(const struct nsv_gguf *g, struct nsv_err *err)
{
	struct nsv_str type = {"none", 4};
	float factor = 1;
	int ret = nsv_meta_str(g, "llama", "rope.scaling.type", &type, err);

	if (ret < 0)
		return ret;
	if (!is_text(type, "none"))
		return nsv_fail(err, -ENOTSUP, "llama.rope.scaling.type \"%.*s\" is not supported",
			(int)nsv_min(type.len, 32), type.p);
	for (int i = 0; i < 2; i++) {
		const char *key = i ? "rope.scaling.factor" : "rope.scale_linear";

		ret = nsv_meta_f32(g, "llama", key, 1e9f, &factor, err);
		if (ret < 0)
			return ret;
		if (factor != 1)
			return nsv_fail(
				err, -ENOTSUP, "llama.%s %g is not supported", key, (double)factor);
	}
	return 0;
}

static int refuse_counts(const struct nsv_gguf *g, struct nsv_err *err)
{
	static const char *const keys[] = {"expert_count", "attention.sliding_window"};

	for (size_t i = 0; i < NSV_ARRAY_LEN(keys); i++) {
		uint32_t n = 0;
		int ret = nsv_meta_u32(g, "llama", keys[i], 0, UINT32_MAX, &n, err);

		if (ret < 0)
			return ret;
		if (n > 0)
			return nsv_fail(err, -ENOTSUP, "llama.%s %u is not supported", keys[i], n);
	}
	return 0;
}

static int describe(const struct nsv_gguf *g, struct nsv_model_desc *desc, struct nsv_err *err)
{
	int ret = refuse_scaling(g, err);

	if (ret == 0)
		ret = refuse_counts(g, err);
	desc->rope = NSV_ROPE_NORM;
	desc->act = NSV_ACT_SILU;
	return ret;
}

const struct nsv_family nsv_family_llama = {.arch = "llama", .describe = describe};
