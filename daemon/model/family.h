/* Families of models: how the metadata of an architecture becomes a description. A family is one
 * file with a `struct nsv_family` and one row of the table in model/describe.c. */
#ifndef NSV_DAEMON_MODEL_FAMILY_H
#define NSV_DAEMON_MODEL_FAMILY_H

#include "daemon/model/model.h"

struct nsv_family {
	const char *arch; /* general.architecture, and the prefix of its keys */
	/* Sets what differs between families and refuses by name what is not built. The common
	 * hyper-parameters are in `desc` already, each inside its bounds. */
	int (*describe)(const struct nsv_gguf *g, struct nsv_model_desc *desc, struct nsv_err *err);
};

extern const struct nsv_family nsv_family_gemma3, nsv_family_llama, nsv_family_qwen2;

/* Finds the family and describes the model. 0; -ENOTSUP, -EINVAL or -ENOENT and a sentence. */
int nsv_describe(const struct nsv_gguf *g, struct nsv_model_desc *ret_desc, struct nsv_err *err);

/* The key "<arch>.<suffix>" as an integer inside [least, most]. An absent key leaves *ret alone: 1
 * is returned. -EINVAL and a sentence: of another type, or out of bounds. */
int nsv_meta_u32(const struct nsv_gguf *g, const char *arch, const char *suffix, uint32_t least,
	uint32_t most, uint32_t *ret, struct nsv_err *err);
/* The same for a finite float above 0 and up to `most`. */
int nsv_meta_f32(const struct nsv_gguf *g, const char *arch, const char *suffix, float most,
	float *ret, struct nsv_err *err);
/* Forwards what one of them returned, but an absent key, 1, is -ENOENT and a sentence. */
int nsv_meta_need(int ret, const char *arch, const char *suffix, struct nsv_err *err);
/* -ENOTSUP and a sentence if one of the counts "<arch>.<suffix>" is there and not 0. */
int nsv_meta_refuse(const struct nsv_gguf *g, const char *arch, const char *const *suffixes,
	size_t n, struct nsv_err *err);

#endif
