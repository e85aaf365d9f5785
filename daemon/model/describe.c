/* The description of a model, from the metadata of its file: the table of families and the hyper-
 * parameters that all of them have, each bounded before anything is computed from it. */
#include "daemon/model/family.h"

#include <math.h>
#include <string.h>

#define MAX_LAYER 512u
#define MAX_EMBD (1u << 16)
#define MAX_FF (1u << 18)
#define MAX_HEAD 1024u
#define MAX_HEAD_DIM 1024u
#define MAX_CTX (1u << 24)
#define MAX_VOCAB (1u << 22)

static const struct nsv_family *const families[] = {
	&nsv_family_llama,
	&nsv_family_qwen2,
	&nsv_family_gemma3,
};

/* ---- Keys */

static void make_key(char key[128], const char *arch, const char *suffix)
{
	snprintf(key, 128, "%s.%s", arch, suffix);
}

int nsv_meta_u32(const struct nsv_gguf *g, const char *arch, const char *suffix, uint32_t least,
	uint32_t most, uint32_t *ret, struct nsv_err *err)
{
	char key[128];
	uint32_t x;

	make_key(key, arch, suffix);
	int r = nsv_gguf_u32(g, key, &x);
	if (r == -ENOENT)
		return 1;
	if (r < 0)
		return nsv_fail(err, -EINVAL, "%s is not a 32-bit integer", key);
	if (x < least || x > most)
		return nsv_fail(err, -EINVAL, "%s is %u, expected %u to %u", key, x, least, most);
	*ret = x;
	return 0;
}

int nsv_meta_f32(const struct nsv_gguf *g, const char *arch, const char *suffix, float most,
	float *ret, struct nsv_err *err)
{
	char key[128];
	float x;

	make_key(key, arch, suffix);
	int r = nsv_gguf_f32(g, key, &x);
	if (r == -ENOENT)
		return 1;
	if (r < 0)
		return nsv_fail(err, -EINVAL, "%s is not a float", key);
	if (!(x > 0 && x <= most))
		return nsv_fail(err, -EINVAL, "%s is %g, expected above 0 and up to %g", key,
			(double)x, (double)most);
	*ret = x;
	return 0;
}

/* As nsv_meta_u32, for a text, borrowed from the file. */
static int meta_str(const struct nsv_gguf *g, const char *arch, const char *suffix,
	struct nsv_str *ret, struct nsv_err *err)
{
	char key[128];

	make_key(key, arch, suffix);
	int r = nsv_gguf_str(g, key, ret);
	if (r == -ENOENT)
		return 1;
	return r < 0 ? nsv_fail(err, -EINVAL, "%s is not a string", key) : 0;
}

int nsv_meta_need(int ret, const char *arch, const char *suffix, struct nsv_err *err)
{
	return ret == 1 ? nsv_fail(err, -ENOENT, "the file lacks the key %s.%s", arch, suffix)
			: ret;
}

int nsv_meta_refuse(const struct nsv_gguf *g, const char *arch, const char *const *suffixes,
	size_t n, struct nsv_err *err)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t x = 0;
		int ret = nsv_meta_u32(g, arch, suffixes[i], 0, UINT32_MAX, &x, err);

		if (ret < 0)
			return ret;
		if (x > 0)
			return nsv_fail(
				err, -ENOTSUP, "%s.%s %u is not supported", arch, suffixes[i], x);
	}
	return 0;
}

/* ---- What all families have */

/* For messages and status: ASCII, cut to the room there is. */
static void copy_name(char *dst, size_t room, struct nsv_str src)
{
	size_t n = nsv_min(room - 1, src.len);

	for (size_t i = 0; i < n; i++)
		dst[i] = src.p[i] >= ' ' && src.p[i] <= '~' ? src.p[i] : '?';
	dst[n] = '\0';
}

static int read_counts(const struct nsv_gguf *g, struct nsv_model_desc *d, struct nsv_err *err)
{
	const struct {
		const char *suffix;
		uint32_t most, *ret;
	} keys[] = {
		{"block_count", MAX_LAYER, &d->n_layer},
		{"embedding_length", MAX_EMBD, &d->n_embd},
		{"feed_forward_length", MAX_FF, &d->n_ff},
		{"attention.head_count", MAX_HEAD, &d->n_head},
		{"context_length", MAX_CTX, &d->n_ctx},
	};

	for (size_t i = 0; i < NSV_ARRAY_LEN(keys); i++) {
		const char *suffix = keys[i].suffix;
		int ret = nsv_meta_u32(g, d->arch, suffix, 1, keys[i].most, keys[i].ret, err);

		ret = nsv_meta_need(ret, d->arch, suffix, err);
		if (ret < 0)
			return ret;
	}
	return 0;
}

/* The size of a head, where the file gives it or as it follows from the width. */
static int read_head_dim(const struct nsv_gguf *g, struct nsv_model_desc *d, struct nsv_err *err)
{
	uint32_t value_dim;
	int ret = nsv_meta_u32(
		g, d->arch, "attention.key_length", 1, MAX_HEAD_DIM, &d->head_dim, err);

	if (ret < 0)
		return ret;
	if (ret == 1 && (d->n_embd % d->n_head || d->n_embd / d->n_head > MAX_HEAD_DIM))
		return nsv_fail(err, -EINVAL,
			"%u heads do not divide a width of %u into heads of up to %u", d->n_head,
			d->n_embd, MAX_HEAD_DIM);
	if (ret == 1)
		d->head_dim = d->n_embd / d->n_head;
	value_dim = d->head_dim;
	ret = nsv_meta_u32(g, d->arch, "attention.value_length", 1, MAX_HEAD_DIM, &value_dim, err);
	if (ret < 0)
		return ret;
	if (value_dim != d->head_dim)
		return nsv_fail(err, -ENOTSUP,
			"values of %u beside keys of %u a head are not supported", value_dim,
			d->head_dim);
	return 0;
}

static int read_heads(const struct nsv_gguf *g, struct nsv_model_desc *d, struct nsv_err *err)
{
	int ret;

	d->n_kv_head = d->n_head;
	ret = nsv_meta_u32(g, d->arch, "attention.head_count_kv", 1, d->n_head, &d->n_kv_head, err);
	if (ret >= 0 && d->n_head % d->n_kv_head)
		ret = nsv_fail(err, -EINVAL, "%u query heads do not divide among %u KV heads",
			d->n_head, d->n_kv_head);
	if (ret >= 0)
		ret = read_head_dim(g, d, err);
	d->attn_scale = 1 / sqrtf((float)d->head_dim);
	return ret;
}

static bool is_text(struct nsv_str s, const char *text)
{
	return s.len == strlen(text) && memcmp(s.p, text, s.len) == 0;
}

/* Positions as they are, or divided by a factor. */
static int read_rope_scaling(
	const struct nsv_gguf *g, struct nsv_model_desc *d, struct nsv_err *err)
{
	static const char *const keys[] = {"rope.scale_linear", "rope.scaling.factor"};
	struct nsv_str type = {"linear", 6};
	int ret = meta_str(g, d->arch, "rope.scaling.type", &type, err);

	d->rope_factor = 1;
	for (size_t i = 0; ret >= 0 && i < NSV_ARRAY_LEN(keys); i++)
		ret = nsv_meta_f32(g, d->arch, keys[i], 1e6f, &d->rope_factor, err);
	if (ret < 0)
		return ret;
	if (!is_text(type, "linear") && !(is_text(type, "none") && d->rope_factor == 1))
		return nsv_fail(err, -ENOTSUP,
			"%s.rope.scaling.type \"%.*s\" with factor %g is not supported", d->arch,
			(int)nsv_min(type.len, 32), type.p, (double)d->rope_factor);
	return 0;
}

static int read_rope(const struct nsv_gguf *g, struct nsv_model_desc *d, struct nsv_err *err)
{
	int ret;

	d->n_rot = d->head_dim;
	ret = nsv_meta_u32(g, d->arch, "rope.dimension_count", 2, d->head_dim, &d->n_rot, err);
	if (ret >= 0 && d->n_rot % 2)
		ret = nsv_fail(err, -EINVAL,
			"%s.rope.dimension_count is %u, expected an even number", d->arch,
			d->n_rot);
	d->rope_base = 10000;
	if (ret >= 0)
		ret = nsv_meta_f32(g, d->arch, "rope.freq_base", 1e12f, &d->rope_base, err);
	return ret < 0 ? ret : read_rope_scaling(g, d, err);
}

/* The token list's length; a vocabulary size in the metadata must agree. */
static int read_vocab(const struct nsv_gguf *g, struct nsv_model_desc *d, struct nsv_err *err)
{
	const struct nsv_str *tokens;
	size_t n;
	int ret = nsv_gguf_arr_str(g, "tokenizer.ggml.tokens", &tokens, &n);

	if (ret < 0)
		return nsv_fail(err, ret, "the file lacks the token list tokenizer.ggml.tokens");
	if (n == 0 || n > MAX_VOCAB)
		return nsv_fail(err, -EINVAL, "the token list has %zu tokens, expected 1 to %u", n,
			MAX_VOCAB);
	d->n_vocab = (uint32_t)n;
	ret = nsv_meta_u32(g, d->arch, "vocab_size", 1, UINT32_MAX, &d->n_vocab, err);
	if (ret >= 0 && d->n_vocab != n)
		ret = nsv_fail(err, -EINVAL, "%s.vocab_size is %u, the token list has %zu tokens",
			d->arch, d->n_vocab, n);
	return ret < 0 ? ret : 0;
}

/* Every row sees the keys before it alone; a file that says else wants another engine. */
static int check_causal(
	const struct nsv_gguf *g, const struct nsv_model_desc *d, struct nsv_err *err)
{
	char key[128];
	bool causal = true;

	make_key(key, d->arch, "attention.causal");
	if (nsv_gguf_bool(g, key, &causal) == -EPROTOTYPE)
		return nsv_fail(err, -EINVAL, "%s is not a boolean", key);
	return causal ? 0 : nsv_fail(err, -ENOTSUP, "%s false is not supported", key);
}

static int read_common(const struct nsv_gguf *g, struct nsv_model_desc *d, struct nsv_err *err)
{
	static const char eps[] = "attention.layer_norm_rms_epsilon";
	struct nsv_str name = {"", 0};
	int ret = nsv_gguf_str(g, "general.name", &name);

	if (ret < 0 && ret != -ENOENT)
		return nsv_fail(err, -EINVAL, "general.name is not a string");
	copy_name(d->name, sizeof(d->name), name);
	d->embd_scale = 1;
	ret = read_counts(g, d, err);
	if (ret == 0)
		ret = read_heads(g, d, err);
	if (ret == 0)
		ret = read_rope(g, d, err);
	if (ret == 0)
		ret = nsv_meta_need(
			nsv_meta_f32(g, d->arch, eps, 1, &d->norm_eps, err), d->arch, eps, err);
	if (ret >= 0)
		ret = check_causal(g, d, err);
	return ret < 0 ? ret : read_vocab(g, d, err);
}

/* ---- The table */

static const struct nsv_family *find_family(struct nsv_str arch)
{
	for (size_t i = 0; i < NSV_ARRAY_LEN(families); i++)
		if (strlen(families[i]->arch) == arch.len &&
			memcmp(families[i]->arch, arch.p, arch.len) == 0)
			return families[i];
	return NULL;
}

static int refuse_arch(struct nsv_str arch, struct nsv_err *err)
{
	char name[32], known[128] = "";

	copy_name(name, sizeof(name), arch);
	for (size_t i = 0; i < NSV_ARRAY_LEN(families); i++)
		snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s",
			i ? ", " : "", families[i]->arch);
	return nsv_fail(err, -ENOTSUP, "the model's architecture is \"%s\", expected one of: %s",
		name, known);
}

int nsv_describe(const struct nsv_gguf *g, struct nsv_model_desc *ret_desc, struct nsv_err *err)
{
	struct nsv_model_desc d;
	struct nsv_str arch;
	int ret = nsv_gguf_str(g, "general.architecture", &arch);

	if (ret < 0)
		return nsv_fail(err, ret, "the file lacks the string general.architecture");
	const struct nsv_family *family = find_family(arch);
	if (!family)
		return refuse_arch(arch, err);
	memset(&d, 0, sizeof(d)); /* padding too: the description is hashed */
	copy_name(d.arch, sizeof(d.arch), arch);
	ret = read_common(g, &d, err);
	if (ret == 0)
		ret = family->describe(g, &d, err);
	if (ret == 0)
		memcpy(ret_desc, &d, sizeof(d));
	return ret;
}
