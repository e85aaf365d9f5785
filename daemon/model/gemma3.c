/* The gemma3 family (text): embeddings times the root of the width, RMSNorm before and after each
 * half of a layer (weights stored with their 1 added), RMSNorm over the heads of Q and K, RoPE over
 * the two halves of a head, a feed-forward gated by tanh's GELU. Five local layers, then a global
 * one; each kind turns by its own base. */
#include "daemon/model/family.h"

#include <math.h>

#define LAYERS_27B 62u

/* What caps logits: of other Gemmas. */
static int refuse_softcaps(const struct nsv_gguf *g, const char *arch, struct nsv_err *err)
{
	static const char *const keys[] = {"attn_logit_softcapping", "final_logit_softcapping"};

	for (size_t i = 0; i < NSV_ARRAY_LEN(keys); i++) {
		float cap;
		int ret = nsv_meta_f32(g, arch, keys[i], 1e9f, &cap, err);

		if (ret < 0)
			return ret;
		if (ret == 0)
			return nsv_fail(err, -ENOTSUP, "%s.%s %g is not supported", arch, keys[i],
				(double)cap);
	}
	return 0;
}

static int read_window(const struct nsv_gguf *g, struct nsv_model_desc *d, struct nsv_err *err)
{
	static const char window[] = "attention.sliding_window";
	int ret = nsv_meta_u32(g, d->arch, window, 1, UINT32_MAX, &d->window, err);

	ret = nsv_meta_need(ret, d->arch, window, err);
	d->window_period = 6;
	if (ret == 0)
		ret = nsv_meta_u32(g, d->arch, "attention.sliding_window_pattern", 1, d->n_layer,
			&d->window_period, err);
	return ret < 0 ? ret : 0;
}

static int read_bases(const struct nsv_gguf *g, struct nsv_model_desc *d, struct nsv_err *err)
{
	static const char global[] = "rope.freq_base";
	int ret = nsv_meta_f32(g, d->arch, global, 1e12f, &d->rope_base, err);

	ret = nsv_meta_need(ret, d->arch, global, err);
	d->local_rope_base = 10000;
	if (ret == 0)
		ret = nsv_meta_f32(
			g, d->arch, "rope.freq_base_swa", 1e12f, &d->local_rope_base, err);
	return ret < 0 ? ret : 0;
}

/* Files do not carry the scalar of the queries. It is the size of a head, but of the largest model,
 * where it is the width over the heads. */
static int read_scale(const struct nsv_gguf *g, struct nsv_model_desc *d, struct nsv_err *err)
{
	if (d->n_layer == LAYERS_27B)
		d->attn_scale = 1 / sqrtf((float)d->n_embd / (float)d->n_head);
	int ret = nsv_meta_f32(g, d->arch, "attention.scale", 1e9f, &d->attn_scale, err);
	return ret < 0 ? ret : 0;
}

static int describe(const struct nsv_gguf *g, struct nsv_model_desc *desc, struct nsv_err *err)
{
	static const char *const refused[] = {"expert_count"};
	int ret = nsv_meta_refuse(g, desc->arch, refused, NSV_ARRAY_LEN(refused), err);

	desc->rope = NSV_ROPE_NEOX;
	desc->act = NSV_ACT_GELU_TANH;
	desc->qk_norm = desc->post_norm = true;
	desc->embd_scale = sqrtf((float)desc->n_embd);
	if (ret == 0)
		ret = refuse_softcaps(g, desc->arch, err);
	if (ret == 0)
		ret = read_window(g, desc, err);
	if (ret == 0)
		ret = read_bases(g, desc, err);
	return ret < 0 ? ret : read_scale(g, desc, err);
}

const struct nsv_family nsv_family_gemma3 = {.arch = "gemma3", .describe = describe};
