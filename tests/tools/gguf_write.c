/* GGUF files made in memory, sound or broken on purpose. */
#include "tests/tools/gguf_write.h"

#include <string.h>

#include "tests/tools/rnd.h"

#define TYPE_U32 4
#define TYPE_I32 5
#define TYPE_F32 6
#define TYPE_BOOL 7
#define TYPE_STR 8
#define TYPE_ARR 9

/* ---- Bytes */

static void put(struct nsv_gguf_buf *b, const void *p, size_t len)
{
	if (b->len + len > b->cap) {
		b->cap = 2 * (b->len + len) + 64;
		b->p = realloc(b->p, b->cap);
		if (!b->p)
			abort();
	}
	if (len)
		memcpy(b->p + b->len, p, len);
	b->len += len;
}

static void put_u32(struct nsv_gguf_buf *b, uint32_t x)
{
	put(b, &x, sizeof(x));
}

static void put_u64(struct nsv_gguf_buf *b, uint64_t x)
{
	put(b, &x, sizeof(x));
}

static void put_str(struct nsv_gguf_buf *b, const char *s)
{
	put_u64(b, strlen(s));
	put(b, s, strlen(s));
}

static void pad(struct nsv_gguf_buf *b, size_t align)
{
	while (b->len % align)
		put(b, "", 1);
}

void nsv_gguf_writer_init(struct nsv_gguf_writer *w, uint64_t seed)
{
	*w = (struct nsv_gguf_writer){.version = 3, .alignment = 32, .rng = seed};
}

void nsv_gguf_writer_deinit(struct nsv_gguf_writer *w)
{
	free(w->kv.p);
	free(w->info.p);
	free(w->data.p);
}

/* ---- Key/values */

static void put_key(struct nsv_gguf_writer *w, const char *key, uint32_t type)
{
	put_str(&w->kv, key);
	put_u32(&w->kv, type);
	w->n_kv++;
}

static void put_array_head(struct nsv_gguf_writer *w, const char *key, uint32_t type, uint64_t n)
{
	put_key(w, key, TYPE_ARR);
	put_u32(&w->kv, type);
	put_u64(&w->kv, n);
}

void nsv_gguf_put_raw(
	struct nsv_gguf_writer *w, const char *key, uint32_t type, const void *p, size_t len)
{
	put_key(w, key, type);
	put(&w->kv, p, len);
}

void nsv_gguf_put_u32(struct nsv_gguf_writer *w, const char *key, uint32_t x)
{
	nsv_gguf_put_raw(w, key, TYPE_U32, &x, sizeof(x));
}

void nsv_gguf_put_f32(struct nsv_gguf_writer *w, const char *key, float x)
{
	nsv_gguf_put_raw(w, key, TYPE_F32, &x, sizeof(x));
}

void nsv_gguf_put_bool(struct nsv_gguf_writer *w, const char *key, bool x)
{
	uint8_t byte = x;

	nsv_gguf_put_raw(w, key, TYPE_BOOL, &byte, 1);
}

void nsv_gguf_put_str(struct nsv_gguf_writer *w, const char *key, const char *x)
{
	put_key(w, key, TYPE_STR);
	put_str(&w->kv, x);
}

void nsv_gguf_put_strs(struct nsv_gguf_writer *w, const char *key, const char *const *x, uint64_t n)
{
	put_array_head(w, key, TYPE_STR, n);
	for (uint64_t i = 0; i < n; i++)
		put_str(&w->kv, x[i]);
}

void nsv_gguf_put_i32s(struct nsv_gguf_writer *w, const char *key, const int32_t *x, uint64_t n)
{
	put_array_head(w, key, TYPE_I32, n);
	put(&w->kv, x, n * sizeof(*x));
}

/* ---- Tensors */

/* A half of 2^-8 to 2^-7, of either sign: a scale that keeps values small. */
static uint16_t random_half(struct nsv_gguf_writer *w)
{
	uint64_t r = t_next(&w->rng);

	return (uint16_t)((r & 0x8000) | 0x1c00 | (r >> 16 & 0x3ff));
}

static float random_float(struct nsv_gguf_writer *w, float middle)
{
	return middle + ((float)(t_next(&w->rng) >> 40) / (1 << 24) - 0.5f) * 0.2f;
}

/* Where the scale of a block lies, whether an offset follows it, and how many powers of two it is
 * below others', for what scales and values within the block multiply it with. */
struct scale {
	uint32_t dtype;
	bool has_offset;
	size_t at;
	uint32_t below;
};

static struct scale scale_of(uint32_t dtype)
{
	static const struct scale scales[] = {
		{NSV_Q4_1, true, 0, 0},
		{NSV_Q5_1, true, 0, 0},
		{NSV_Q2_K, true, 80, 0},
		{NSV_Q3_K, false, 108, 2},
		{NSV_Q4_K, true, 0, 5},
		{NSV_Q5_K, true, 0, 5},
		{NSV_Q6_K, false, 208, 6},
		{NSV_IQ4_NL, false, 0, 3},
		{NSV_IQ4_XS, false, 0, 6},
	};

	for (size_t i = 0; i < NSV_ARRAY_LEN(scales); i++)
		if (scales[i].dtype == dtype)
			return scales[i];
	return (struct scale){.dtype = dtype};
}

/* All else in a block may be any bits. */
static void put_scales(struct nsv_gguf_writer *w, uint32_t dtype, uint8_t *block)
{
	const struct scale s = scale_of(dtype);
	uint16_t scale = (uint16_t)(random_half(w) - (s.below << 10));
	uint16_t offset = (uint16_t)(random_half(w) - (s.below << 10));

	memcpy(block + s.at, &scale, sizeof(scale));
	if (s.has_offset)
		memcpy(block + s.at + 2, &offset, sizeof(offset));
}

static void put_block(struct nsv_gguf_writer *w, const struct nsv_dtype_info *info, float middle)
{
	uint8_t block[256];
	float x = random_float(w, middle);
	uint16_t half = random_half(w);

	switch (info->dtype) {
	case NSV_F32:
		put(&w->data, &x, sizeof(x));
		return;
	case NSV_F16:
		put(&w->data, &half, sizeof(half));
		return;
	case NSV_BF16:
		put(&w->data, (const char *)&x + 2, 2);
		return;
	}
	for (uint32_t i = 0; i < info->n_byte; i++)
		block[i] = (uint8_t)t_next(&w->rng);
	put_scales(w, info->dtype, block);
	put(&w->data, block, info->n_byte);
}

void nsv_gguf_put_info(struct nsv_gguf_writer *w, const char *name, uint32_t dtype, uint32_t n_dim,
	const uint64_t *dim, uint64_t off)
{
	put_str(&w->info, name);
	put_u32(&w->info, n_dim);
	for (uint32_t i = 0; i < n_dim; i++)
		put_u64(&w->info, dim[i]);
	put_u32(&w->info, dtype);
	put_u64(&w->info, off);
	w->n_tensor++;
}

void nsv_gguf_put_tensor(struct nsv_gguf_writer *w, const char *name, uint32_t dtype,
	uint32_t n_dim, const uint64_t *dim)
{
	const struct nsv_dtype_info *info = nsv_dtype_info(dtype);
	uint64_t n = 1;

	if (!info)
		abort();
	for (uint32_t i = 0; i < n_dim; i++)
		n *= dim[i];
	pad(&w->data, w->alignment);
	nsv_gguf_put_info(w, name, dtype, n_dim, dim, w->data.len);
	for (uint64_t i = 0; i < n / info->n_elem; i++)
		put_block(w, info, strstr(name, "norm") ? 1.0f : 0.0f);
}

uint8_t *nsv_gguf_finish(struct nsv_gguf_writer *w, size_t *ret_len)
{
	struct nsv_gguf_buf file = {0};

	put(&file, "GGUF", 4);
	put_u32(&file, w->version);
	put_u64(&file, w->n_tensor);
	put_u64(&file, w->n_kv);
	put(&file, w->kv.p, w->kv.len);
	put(&file, w->info.p, w->info.len);
	if (w->n_tensor)
		pad(&file, w->alignment);
	put(&file, w->data.p, w->data.len);
	nsv_gguf_writer_deinit(w);
	nsv_gguf_writer_init(w, w->rng);
	*ret_len = file.len;
	return file.p;
}

/* ---- Tiny models */

#define MAX_TINY_VOCAB 320

static const char *const specials[NSV_TINY_FIRST_BYTE] = {
	"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<user>"};
/* In the spelling of byte-level vocabularies: \u0120 is a space. */
static const char *const merges[] = {"h e", "l l", "i n", "\u0120 t", "\u0120t he", "o \u0120",
	"he ll", "hell o", "a a", "aa aa"};
static const char *const merged[] = {
	"he", "ll", "in", "\u0120t", "\u0120the", "o\u0120", "hell", "hello", "aa", "aaaa"};

/* The character that spells a byte, as UTF-8. */
static void spell(unsigned int byte, char out[4])
{
	unsigned int c = byte;

	if (byte <= 0x20)
		c = 256 + byte;
	else if (byte >= 0x7f && byte <= 0xa0)
		c = 256 + 33 + byte - 0x7f;
	else if (byte == 0xad)
		c = 323;
	if (c < 0x80)
		snprintf(out, 4, "%c", (char)c);
	else
		snprintf(out, 4, "%c%c", (char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f)));
}

void nsv_gguf_put_tiny_vocab(struct nsv_gguf_writer *w)
{
	static const char template[] =
		"{% for message in messages %}{{'<|im_start|>' + message['role']"
		" + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}";
	const char *tokens[MAX_TINY_VOCAB];
	int32_t types[MAX_TINY_VOCAB];
	char bytes[256][4];
	uint32_t n = 0;

	for (; n < NSV_TINY_FIRST_BYTE; n++) {
		tokens[n] = specials[n];
		types[n] = n == NSV_TINY_FIRST_BYTE - 1 ? 4 : 3;
	}
	for (unsigned int byte = 0; byte < 256; byte++, n++) {
		spell(byte, bytes[byte]);
		tokens[n] = bytes[byte];
		types[n] = 1;
	}
	for (size_t i = 0; i < NSV_ARRAY_LEN(merged); i++, n++) {
		tokens[n] = merged[i];
		types[n] = 1;
	}
	nsv_gguf_put_str(w, "tokenizer.ggml.model", "gpt2");
	nsv_gguf_put_str(w, "tokenizer.ggml.pre", "smollm");
	nsv_gguf_put_strs(w, "tokenizer.ggml.tokens", tokens, n);
	nsv_gguf_put_i32s(w, "tokenizer.ggml.token_type", types, n);
	nsv_gguf_put_strs(w, "tokenizer.ggml.merges", merges, NSV_ARRAY_LEN(merges));
	nsv_gguf_put_u32(w, "tokenizer.ggml.bos_token_id", 1);
	nsv_gguf_put_u32(w, "tokenizer.ggml.eos_token_id", 2);
	nsv_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", false);
	nsv_gguf_put_str(w, "tokenizer.chat_template", template);
}

static void put_layer_tensor(struct nsv_gguf_writer *w, uint32_t layer, const char *name,
	uint32_t dtype, uint64_t n_in, uint64_t n_out)
{
	char full[64];

	snprintf(full, sizeof(full), "blk.%u.%s.weight", layer, name);
	nsv_gguf_put_tensor(w, full, dtype, n_out ? 2 : 1, (const uint64_t[]){n_in, n_out});
}

static void put_layer(struct nsv_gguf_writer *w, uint32_t i, const struct nsv_tiny_llama *s)
{
	uint32_t n_q = s->n_head * s->head_dim, n_kv = s->n_kv_head * s->head_dim;

	put_layer_tensor(w, i, "attn_norm", NSV_F32, s->width, 0);
	put_layer_tensor(w, i, "attn_q", s->dtype, s->width, n_q);
	put_layer_tensor(w, i, "attn_k", s->dtype, s->width, n_kv);
	put_layer_tensor(w, i, "attn_v", s->dtype, s->width, n_kv);
	put_layer_tensor(w, i, "attn_output", s->dtype, n_q, s->width);
	put_layer_tensor(w, i, "ffn_norm", NSV_F32, s->width, 0);
	put_layer_tensor(w, i, "ffn_gate", s->dtype, s->width, s->n_ffn);
	put_layer_tensor(w, i, "ffn_up", s->dtype, s->width, s->n_ffn);
	put_layer_tensor(w, i, "ffn_down", s->dtype, s->n_ffn, s->width);
}

static void put_tiny_llama(struct nsv_gguf_writer *w, const struct nsv_tiny_llama *s)
{
	const uint64_t embd[] = {s->width, NSV_TINY_FIRST_BYTE + 256 + NSV_ARRAY_LEN(merged)};

	nsv_gguf_put_str(w, "general.architecture", "llama");
	nsv_gguf_put_str(w, "general.name", "tiny");
	nsv_gguf_put_u32(w, "llama.block_count", s->n_layer);
	nsv_gguf_put_u32(w, "llama.context_length", s->n_context);
	nsv_gguf_put_u32(w, "llama.embedding_length", s->width);
	nsv_gguf_put_u32(w, "llama.feed_forward_length", s->n_ffn);
	nsv_gguf_put_u32(w, "llama.attention.head_count", s->n_head);
	nsv_gguf_put_u32(w, "llama.attention.head_count_kv", s->n_kv_head);
	nsv_gguf_put_u32(w, "llama.attention.key_length", s->head_dim);
	nsv_gguf_put_u32(w, "llama.attention.value_length", s->head_dim);
	nsv_gguf_put_u32(w, "llama.rope.dimension_count", s->head_dim);
	nsv_gguf_put_f32(w, "llama.rope.freq_base", 10000);
	nsv_gguf_put_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
	nsv_gguf_put_tiny_vocab(w);
	nsv_gguf_put_tensor(w, "token_embd.weight", s->dtype, 2, embd);
	for (uint32_t i = 0; i < s->n_layer; i++)
		put_layer(w, i, s);
	nsv_gguf_put_tensor(w, "output_norm.weight", NSV_F32, 1, embd);
	if (s->untied)
		nsv_gguf_put_tensor(w, "output.weight", s->dtype, 2, embd);
}

uint8_t *nsv_gguf_tiny_llama(const struct nsv_tiny_llama *shape, uint64_t seed, size_t *ret_len)
{
	struct nsv_gguf_writer w;

	nsv_gguf_writer_init(&w, seed);
	put_tiny_llama(&w, shape);
	return nsv_gguf_finish(&w, ret_len);
}
