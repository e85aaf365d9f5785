/* The families and their files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "tests/tools/family.h"
#include "tests/tools/rnd.h"

const struct family family_llama = {
	.arch = "llama", .n_layer = 2, .n_embd = FAMILY_N_HEAD * FAMILY_HEAD_DIM, .own_head = true};
const struct family family_qwen2 = {.arch = "qwen2",
	.n_layer = 2,
	.n_embd = 48,
	.names_head_dim = true,
	.bias = true,
	.neox = true};
const struct family family_gemma3 = {.arch = "gemma3",
	.n_layer = FAMILY_MAX_LAYER,
	.n_embd = 48,
	.names_head_dim = true,
	.qk_norm = true,
	.post_norm = true,
	.neox = true,
	.gelu = true,
	.embd_scale = 6.9282032302755088, /* sqrt(n_embd) */
	.window = FAMILY_WINDOW,
	.period = 6,
	.local_base = 10000};

struct writer {
	struct nsv_gguf_writer w;
	const struct family *family;
	const struct family_extra *extra;
	bool has_set; /* the extra's integer took the place of the family's */
};

static bool is_named(const char *want, const char *name)
{
	return want && strcmp(want, name) == 0;
}

/* ---- Keys */

static const char *key_of(const struct writer *w, const char *suffix, char key[128])
{
	snprintf(key, 128, "%s.%s", w->family->arch, suffix);
	return key;
}

static void put_u32(struct writer *w, const char *suffix, uint32_t x)
{
	bool is_set = is_named(w->extra->set_u32, suffix);
	char key[128];

	if (is_named(w->extra->drop_key, suffix))
		return;
	nsv_gguf_put_u32(&w->w, key_of(w, suffix, key), is_set ? w->extra->u32 : x);
	w->has_set |= is_set;
}

static void put_f32(struct writer *w, const char *suffix, float x)
{
	char key[128];

	if (!is_named(w->extra->drop_key, suffix))
		nsv_gguf_put_f32(&w->w, key_of(w, suffix, key), x);
}

static void put_extra_keys(struct writer *w)
{
	const struct family_extra *x = w->extra;
	char key[128];

	if (x->set_u32 && !w->has_set)
		put_u32(w, x->set_u32, x->u32);
	if (x->set_f32)
		put_f32(w, x->set_f32, x->f32);
	if (x->set_bool)
		nsv_gguf_put_bool(&w->w, key_of(w, x->set_bool, key), false);
	if (x->set_str)
		nsv_gguf_put_str(&w->w, key_of(w, x->set_str, key), x->str);
}

static void put_keys(struct writer *w)
{
	const struct family *f = w->family;

	nsv_gguf_put_str(&w->w, "general.architecture", f->arch);
	put_u32(w, "block_count", (uint32_t)f->n_layer);
	put_u32(w, "context_length", FAMILY_N_CTX);
	put_u32(w, "embedding_length", (uint32_t)f->n_embd);
	put_u32(w, "feed_forward_length", FAMILY_N_FF);
	put_u32(w, "attention.head_count", FAMILY_N_HEAD);
	put_u32(w, "attention.head_count_kv", FAMILY_N_KV_HEAD);
	if (f->names_head_dim) {
		put_u32(w, "attention.key_length", FAMILY_HEAD_DIM);
		put_u32(w, "attention.value_length", FAMILY_HEAD_DIM);
	}
	put_f32(w, "attention.layer_norm_rms_epsilon", FAMILY_EPS);
	put_f32(w, "rope.freq_base", FAMILY_ROPE_BASE);
	if (f->window)
		put_u32(w, "attention.sliding_window", f->window);
	put_extra_keys(w);
	nsv_gguf_put_tiny_vocab(&w->w);
}

/* ---- Tensors */

struct shape {
	const char *name;
	int n_in, n_out; /* n_out 0: a vector */
	bool has;
};

static void put_tensor(struct writer *w, const char *name, int n_in, int n_out)
{
	bool is_longer = is_named(w->extra->longer, name);
	uint64_t n_row = (uint64_t)(n_out ? n_out : 1) + is_longer;
	const uint64_t dim[] = {(uint64_t)n_in, n_row};

	if (!is_named(w->extra->drop_tensor, name))
		nsv_gguf_put_tensor(&w->w, name, NSV_F32, n_row > 1 ? 2 : 1, dim);
}

static void put_layer(struct writer *w, int layer)
{
	const struct family *f = w->family;
	const int n_q = FAMILY_N_HEAD * FAMILY_HEAD_DIM, n_kv = FAMILY_N_KV_HEAD * FAMILY_HEAD_DIM;
	const struct shape tensors[] = {
		{"attn_norm.weight", f->n_embd, 0, true},
		{"attn_q.weight", f->n_embd, n_q, true},
		{"attn_k.weight", f->n_embd, n_kv, true},
		{"attn_v.weight", f->n_embd, n_kv, true},
		{"attn_q.bias", n_q, 0, f->bias},
		{"attn_k.bias", n_kv, 0, f->bias},
		{"attn_v.bias", n_kv, 0, f->bias},
		{"attn_q_norm.weight", FAMILY_HEAD_DIM, 0, f->qk_norm},
		{"attn_k_norm.weight", FAMILY_HEAD_DIM, 0, f->qk_norm},
		{"attn_output.weight", n_q, f->n_embd, true},
		{"post_attention_norm.weight", f->n_embd, 0, f->post_norm},
		{"ffn_norm.weight", f->n_embd, 0, true},
		{"ffn_gate.weight", f->n_embd, FAMILY_N_FF, true},
		{"ffn_up.weight", f->n_embd, FAMILY_N_FF, true},
		{"ffn_down.weight", FAMILY_N_FF, f->n_embd, true},
		{"post_ffw_norm.weight", f->n_embd, 0, f->post_norm},
	};
	char name[64];

	for (size_t i = 0; i < NSV_ARRAY_LEN(tensors); i++) {
		snprintf(name, sizeof(name), "blk.%d.%s", layer, tensors[i].name);
		if (tensors[i].has)
			put_tensor(w, name, tensors[i].n_in, tensors[i].n_out);
	}
}

static void put_tensors(struct writer *w)
{
	const struct family *f = w->family;

	put_tensor(w, "token_embd.weight", f->n_embd, FAMILY_N_VOCAB);
	for (int i = 0; i < f->n_layer; i++)
		put_layer(w, i);
	put_tensor(w, "output_norm.weight", f->n_embd, 0);
	if (f->own_head)
		put_tensor(w, "output.weight", f->n_embd, FAMILY_N_VOCAB);
	if (w->extra->add_tensor)
		put_tensor(w, w->extra->add_tensor, f->n_embd, 0);
}

/* Values at which everything matters: norms around 1, biases, products of about the size of x. */
static void fill(struct family_file *f)
{
	for (size_t i = 0; i < nsv_gguf_n_tensor(f->g); i++) {
		const struct nsv_tensor *t = nsv_gguf_tensor_at(f->g, i);
		float *x = (float *)(f->p + ((const uint8_t *)t->data - f->p));
		bool is_matrix = t->dim[1] > 1, is_norm = memmem(t->name.p, t->name.len, "norm", 4);
		float middle = is_norm ? 1 : 0,
		      most = is_matrix ? 2 / sqrtf((float)t->dim[0]) : 0.5f;

		for (size_t k = 0; k < t->len / sizeof(float); k++)
			x[k] = (is_matrix ? 0 : middle) + t_float(-most, most);
	}
}

/* ---- The file */

struct family_file family_file_make(const struct family *family, const struct family_extra *extra)
{
	struct writer w = {.family = family, .extra = extra};
	struct nsv_err err = {""};
	struct family_file f = {0};

	nsv_gguf_writer_init(&w.w, 1);
	put_keys(&w);
	put_tensors(&w);
	f.p = nsv_gguf_finish(&w.w, &f.len);
	nsv_gguf_writer_deinit(&w.w);
	if (nsv_gguf_parse(f.p, f.len, &f.g, &err) < 0)
		fail_msg("%s", err.text);
	fill(&f);
	return f;
}

void family_file_free(struct family_file *f)
{
	nsv_gguf_close(f->g);
	free(f->p);
}

const float *family_weight(const struct family_file *f, int layer, const char *name)
{
	char full[64];

	if (layer < 0)
		snprintf(full, sizeof(full), "%s", name);
	else
		snprintf(full, sizeof(full), "blk.%d.%s", layer, name);
	const struct nsv_tensor *t = nsv_gguf_tensor(f->g, full);
	return t ? t->data : NULL;
}
