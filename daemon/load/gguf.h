/* GGUF v3 files: mapped read-only, every count, length, offset, type and product checked against
 * the file's size before use. Nothing is copied but the index; strings and tensors point into the
 * map.
 *
 * A parsed file is immutable: any thread may read it. */
#ifndef NSV_DAEMON_LOAD_GGUF_H
#define NSV_DAEMON_LOAD_GGUF_H

#include "daemon/load/strmap.h"
#include "kernels/ops.h"

struct nsv_gguf;

struct nsv_tensor {
	struct nsv_str name;
	uint32_t dtype;
	uint32_t n_dim;
	uint64_t dim[4];   /* dim[0] is contiguous; unused ones are 1 */
	const void *data;
	size_t len;        /* bytes */
};

/* Opens and maps a file; refuses directories, empty, short and foreign files with a sentence that
 * says what was expected and what was found. The map lives until close. */
int nsv_gguf_open(const char *path, struct nsv_gguf **ret_g, struct nsv_err *err);
/* The same over caller's memory, aligned as malloc aligns, which must outlive it. */
int nsv_gguf_parse(const void *data, size_t len, struct nsv_gguf **ret_g, struct nsv_err *err);
void nsv_gguf_close(struct nsv_gguf *g);

/* Metadata by key. 0; -ENOENT: no such key; -EPROTOTYPE: another type (integers of every width and
 * sign convert when the value fits). */
int nsv_gguf_u32(const struct nsv_gguf *g, const char *key, uint32_t *ret);
int nsv_gguf_f32(const struct nsv_gguf *g, const char *key, float *ret);
int nsv_gguf_bool(const struct nsv_gguf *g, const char *key, bool *ret);
int nsv_gguf_str(const struct nsv_gguf *g, const char *key, struct nsv_str *ret);
/* Arrays: of strings (an index is built once at parse), int32 (or uint32: the same bits) or
 * float32. Borrowed. Numbers may be unaligned in the file: read them with memcpy. */
int nsv_gguf_arr_str(
	const struct nsv_gguf *g, const char *key, const struct nsv_str **ret, size_t *ret_n);
int nsv_gguf_arr_i32(const struct nsv_gguf *g, const char *key, const void **ret, size_t *ret_n);
int nsv_gguf_arr_f32(const struct nsv_gguf *g, const char *key, const void **ret, size_t *ret_n);

size_t nsv_gguf_n_tensor(const struct nsv_gguf *g);
const struct nsv_tensor *nsv_gguf_tensor_at(const struct nsv_gguf *g, size_t i);
/* NULL: none of that name. Hashed: O(1). */
const struct nsv_tensor *nsv_gguf_tensor(const struct nsv_gguf *g, const char *name);
size_t nsv_gguf_file_len(const struct nsv_gguf *g);

#endif
