/* Writes GGUF files in memory, for tests: key/values of any type, tensors of random values, and
 * whole tiny models with a byte-level vocabulary. Ends the test where there is no memory. */
#ifndef NSV_TESTS_TOOLS_GGUF_WRITE_H
#define NSV_TESTS_TOOLS_GGUF_WRITE_H

#include "kernels/ops.h"

struct nsv_gguf_buf {
	uint8_t *p;
	size_t len, cap;
};

struct nsv_gguf_writer {
	struct nsv_gguf_buf kv, info, data;
	uint64_t n_kv, n_tensor;
	uint32_t version, alignment;
	uint64_t rng;
};

void nsv_gguf_writer_init(struct nsv_gguf_writer *w, uint64_t seed);
void nsv_gguf_writer_deinit(struct nsv_gguf_writer *w);

void nsv_gguf_put_u32(struct nsv_gguf_writer *w, const char *key, uint32_t x);
void nsv_gguf_put_f32(struct nsv_gguf_writer *w, const char *key, float x);
void nsv_gguf_put_bool(struct nsv_gguf_writer *w, const char *key, bool x);
void nsv_gguf_put_str(struct nsv_gguf_writer *w, const char *key, const char *x);
void nsv_gguf_put_strs(
	struct nsv_gguf_writer *w, const char *key, const char *const *x, uint64_t n);
void nsv_gguf_put_i32s(struct nsv_gguf_writer *w, const char *key, const int32_t *x, uint64_t n);
/* A value of any type number, its bytes as they stand in the file. */
void nsv_gguf_put_raw(
	struct nsv_gguf_writer *w, const char *key, uint32_t type, const void *p, size_t len);

/* A tensor of small random values (norms: near 1), of a type that kernels/ops.h knows. */
void nsv_gguf_put_tensor(struct nsv_gguf_writer *w, const char *name, uint32_t dtype,
	uint32_t n_dim, const uint64_t *dim);
/* Only the description of one, whatever it says; the offset is within the data. */
void nsv_gguf_put_info(struct nsv_gguf_writer *w, const char *name, uint32_t dtype, uint32_t n_dim,
	const uint64_t *dim, uint64_t off);

/* The file, of malloc; the writer is then empty again. */
uint8_t *nsv_gguf_finish(struct nsv_gguf_writer *w, size_t *ret_len);

struct nsv_tiny_llama {
	uint32_t n_layer, width, n_ffn, n_head, n_kv_head, head_dim;
	uint32_t n_context;
	uint32_t dtype; /* of the matrices */
	bool untied;    /* with a head of its own */
};

/* The byte-level vocabulary of tiny models: control tokens <|endoftext|>, <|im_start|>, <|im_end|>,
 * a user-defined one, the 256 bytes, and what the few merges make. */
#define NSV_TINY_FIRST_BYTE 4
void nsv_gguf_put_tiny_vocab(struct nsv_gguf_writer *w);
/* The file, of malloc, of a llama model, that vocabulary included. */
uint8_t *nsv_gguf_tiny_llama(
	const struct nsv_tiny_llama *shape, uint64_t seed, size_t *ret_len);

#endif
