/* Small random models of each family, F32, as GGUF files in memory: sound, or with something that a
 * model must not have. Random numbers are tests/tools/rnd.h's; failures are cmocka's. */
#ifndef NSV_TESTS_TOOLS_FAMILY_H
#define NSV_TESTS_TOOLS_FAMILY_H

#include "daemon/load/gguf.h"
#include "tests/tools/gguf_write.h"

/* What all of them have. The vocabulary is the tiny one. */
enum {
	FAMILY_N_FF = 64,
	FAMILY_N_HEAD = 4,
	FAMILY_N_KV_HEAD = 2,
	FAMILY_HEAD_DIM = 16,
	FAMILY_N_VOCAB = 270,
	FAMILY_N_CTX = 512,
	FAMILY_WINDOW = 5,
	FAMILY_MAX_EMBD = 64,
	FAMILY_MAX_LAYER = 7,
};
#define FAMILY_EPS 1e-5f
#define FAMILY_ROPE_BASE 3000.0f

/* What a family is, said once more than its file says it. */
struct family {
	const char *arch;
	int n_layer, n_embd;
	bool bias, qk_norm, post_norm, own_head, neox, gelu;
	bool names_head_dim; /* else it is n_embd / n_head */
	double embd_scale, attn_scale;
	uint32_t window, period; /* of so many layers the last sees all */
	double local_base, factor;
};
extern const struct family family_llama, family_qwen2, family_gemma3;

/* Where a file differs from its family's. Keys are without the architecture. */
struct family_extra {
	const char *set_u32, *set_f32, *set_bool, *set_str; /* added, or changed */
	uint32_t u32;
	float f32;
	const char *str;
	const char *drop_key;
	const char *drop_tensor, *add_tensor;
	const char *longer; /* a tensor with a row too many */
};

struct family_file {
	uint8_t *p;
	size_t len;
	struct nsv_gguf *g;
};

struct family_file family_file_make(const struct family *family, const struct family_extra *extra);
void family_file_free(struct family_file *f);

/* A weight by its name without "blk.N.", of layer -1: by its name. NULL where there is none. */
const float *family_weight(const struct family_file *f, int layer, const char *name);

#endif
