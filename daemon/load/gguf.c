/* Parsing of GGUF: a header, key/values, tensor descriptions, then the tensors' data:
 *
 *     "GGUF" version n_tensor n_kv | key type value ... | name n_dim dims type offset ... | pad |
 * data
 *
 * One reader walks the file once, front to back, and never past its end. A count is believed only
 * if that many of the smallest possible entry fit into the bytes left, so that what is allocated is
 * a small multiple of the file's own length. Sizes are checked as products, as sums and against the
 * end of the file. */
#include "daemon/load/gguf.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "daemon/sigbus.h"

#define VERSION 3
#define DEFAULT_ALIGNMENT 32
#define MIN_ALIGNMENT 8
#define MAX_KEY_LEN 65535
#define MAX_NAME_LEN 64
#define MIN_KV_LEN 14	  /* a key of one byte, a type, a value of one byte */
#define MIN_TENSOR_LEN 33 /* a name of one byte, one dimension */

enum value_type {
	TYPE_U8 = 0,
	TYPE_I8 = 1,
	TYPE_U16 = 2,
	TYPE_I16 = 3,
	TYPE_U32 = 4,
	TYPE_I32 = 5,
	TYPE_F32 = 6,
	TYPE_BOOL = 7,
	TYPE_STR = 8,
	TYPE_ARR = 9,
	TYPE_U64 = 10,
	TYPE_I64 = 11,
	TYPE_F64 = 12,
	N_TYPE = 13,
};

/* Bytes of a value, or the fewest that one takes. */
static const size_t type_len[N_TYPE] = {[TYPE_U8] = 1,
	[TYPE_I8] = 1,
	[TYPE_U16] = 2,
	[TYPE_I16] = 2,
	[TYPE_U32] = 4,
	[TYPE_I32] = 4,
	[TYPE_F32] = 4,
	[TYPE_BOOL] = 1,
	[TYPE_STR] = 8,
	[TYPE_ARR] = 12,
	[TYPE_U64] = 8,
	[TYPE_I64] = 8,
	[TYPE_F64] = 8};

struct kv {
	struct nsv_str key;
	uint32_t type;
	uint32_t elem_type;   /* of an array */
	size_t n;	      /* elements of an array, bytes of a string, else 1 */
	const uint8_t *data;  /* of a string or array: its content */
	struct nsv_str *strs; /* of an array of strings */
};

struct nsv_gguf {
	const uint8_t *data;
	size_t len;
	void *map; /* NULL: the memory is the caller's */
	struct kv *kv;
	size_t n_kv;
	struct nsv_tensor *tensor;
	size_t n_tensor;
	struct nsv_strmap kv_index, tensor_index;
};

/* Where the parser is. */
struct reader {
	const uint8_t *p;
	size_t len, pos;
	struct nsv_err *err;
};

/* A name as messages show it: names come from the file and may hold anything. */
struct shown {
	char text[MAX_NAME_LEN + 4];
};

static struct shown show(struct nsv_str s)
{
	struct shown ret = {0};
	size_t n = nsv_min(s.len, MAX_NAME_LEN);

	for (size_t i = 0; i < n; i++)
		ret.text[i] = s.p[i] >= ' ' && s.p[i] <= '~' ? s.p[i] : '?';
	if (s.len > n)
		memcpy(ret.text + n, "...", 3);
	return ret;
}

/* ---- The reader */

static size_t left(const struct reader *r)
{
	return r->len - r->pos;
}

static int take(struct reader *r, size_t n, const char *what, const uint8_t **ret)
{
	if (n > left(r))
		return nsv_fail(r->err, -EINVAL,
			"the file is cut short: it has %zu bytes, but %s at byte %zu needs %zu",
			r->len, what, r->pos, n);
	*ret = r->p + r->pos;
	r->pos += n;
	return 0;
}

static int take_u32(struct reader *r, const char *what, uint32_t *ret)
{
	const uint8_t *p = NULL;
	int e = take(r, sizeof(*ret), what, &p);

	if (e == 0)
		memcpy(ret, p, sizeof(*ret));
	return e;
}

static int take_u64(struct reader *r, const char *what, uint64_t *ret)
{
	const uint8_t *p = NULL;
	int e = take(r, sizeof(*ret), what, &p);

	if (e == 0)
		memcpy(ret, p, sizeof(*ret));
	return e;
}

static int take_str(struct reader *r, const char *what, struct nsv_str *ret)
{
	const uint8_t *p = NULL;
	uint64_t len = 0;
	int e = take_u64(r, what, &len);

	if (e < 0)
		return e;
	e = take(r, len, what, &p);
	if (e == 0)
		*ret = (struct nsv_str){(const char *)p, len};
	return e;
}

/* A count of entries that take at least min_len bytes each. */
static int check_count(const struct reader *r, uint64_t n, size_t min_len, const char *what)
{
	if (n > UINT32_MAX || n > left(r) / min_len)
		return nsv_fail(r->err, -EINVAL,
			"the file is cut short: it has %zu bytes, %zu from byte %zu on, too few "
			"for "
			"%llu %s",
			r->len, left(r), r->pos, (unsigned long long)n, what);
	return 0;
}

/* ---- Key/values */

static int read_str_array(struct reader *r, struct kv *kv)
{
	kv->strs = calloc(kv->n ? kv->n : 1, sizeof(*kv->strs));
	if (!kv->strs)
		return nsv_fail(r->err, -ENOMEM, "no memory for the %zu strings of %s", kv->n,
			show(kv->key).text);
	for (size_t i = 0; i < kv->n; i++) {
		int e = take_str(r, "a string", &kv->strs[i]);

		if (e < 0)
			return e;
	}
	return 0;
}

static int check_bools(const struct reader *r, const struct kv *kv)
{
	for (size_t i = 0; i < kv->n; i++)
		if (kv->data[i] > 1)
			return nsv_fail(r->err, -EINVAL,
				"%s holds %u, expected a boolean, 0 or 1", show(kv->key).text,
				kv->data[i]);
	return 0;
}

static int read_array(struct reader *r, struct kv *kv)
{
	uint64_t n = 0;
	int e = take_u32(r, "an array's type", &kv->elem_type);

	if (e == 0)
		e = take_u64(r, "an array's length", &n);
	if (e < 0)
		return e;
	if (kv->elem_type >= N_TYPE || kv->elem_type == TYPE_ARR)
		return nsv_fail(r->err, -EINVAL,
			"%s is an array of type %u, expected 0 to 12, and no array of arrays",
			show(kv->key).text, kv->elem_type);
	e = check_count(r, n, type_len[kv->elem_type], "array elements");
	if (e < 0)
		return e;
	kv->n = n;
	if (kv->elem_type == TYPE_STR)
		return read_str_array(r, kv);
	e = take(r, n * type_len[kv->elem_type], "an array", &kv->data);
	return e == 0 && kv->elem_type == TYPE_BOOL ? check_bools(r, kv) : e;
}

static int read_value(struct reader *r, struct kv *kv)
{
	struct nsv_str s = {0};
	int e;

	switch (kv->type) {
	case TYPE_STR:
		e = take_str(r, "a string", &s);
		if (e == 0) {
			kv->data = (const uint8_t *)s.p;
			kv->n = s.len;
		}
		return e;
	case TYPE_ARR:
		return read_array(r, kv);
	default:
		kv->n = 1;
		e = take(r, type_len[kv->type], "a value", &kv->data);
		return e == 0 && kv->type == TYPE_BOOL ? check_bools(r, kv) : e;
	}
}

static int read_kv(struct reader *r, struct kv *kv)
{
	int e = take_str(r, "a key", &kv->key);

	if (e < 0)
		return e;
	if (kv->key.len == 0 || kv->key.len > MAX_KEY_LEN)
		return nsv_fail(r->err, -EINVAL, "a key has %zu bytes, expected 1 to %d",
			kv->key.len, MAX_KEY_LEN);
	e = take_u32(r, "a value's type", &kv->type);
	if (e < 0)
		return e;
	if (kv->type >= N_TYPE)
		return nsv_fail(r->err, -EINVAL, "%s has value type %u, expected 0 to 12",
			show(kv->key).text, kv->type);
	return read_value(r, kv);
}

static int read_kvs(struct nsv_gguf *g, struct reader *r, uint64_t n)
{
	int e = check_count(r, n, MIN_KV_LEN, "key/values");

	if (e < 0)
		return e;
	g->kv = calloc(n ? n : 1, sizeof(*g->kv));
	if (!g->kv || nsv_strmap_init(&g->kv_index, n) < 0)
		return nsv_fail(r->err, -ENOMEM, "no memory for %zu key/values", (size_t)n);
	while (g->n_kv < n) {
		struct kv *kv = &g->kv[g->n_kv++];

		e = read_kv(r, kv);
		if (e < 0)
			return e;
		if (!nsv_strmap_add(&g->kv_index, kv->key, (uint32_t)(g->n_kv - 1)))
			return nsv_fail(
				r->err, -EINVAL, "the key %s is there twice", show(kv->key).text);
	}
	return 0;
}

/* ---- Tensors */

static int read_dims(struct reader *r, struct nsv_tensor *t)
{
	int e = take_u32(r, "a tensor's dimensions", &t->n_dim);

	if (e < 0)
		return e;
	if (t->n_dim < 1 || t->n_dim > 4)
		return nsv_fail(r->err, -EINVAL, "tensor %s has %u dimensions, expected 1 to 4",
			show(t->name).text, t->n_dim);
	for (uint32_t i = 0; i < 4; i++)
		t->dim[i] = 1;
	for (uint32_t i = 0; i < t->n_dim; i++) {
		e = take_u64(r, "a tensor's dimensions", &t->dim[i]);
		if (e < 0)
			return e;
		if (t->dim[i] == 0)
			return nsv_fail(r->err, -EINVAL, "dimension %u of tensor %s is zero", i,
				show(t->name).text);
	}
	return 0;
}

/* The tensor's bytes from its type and dimensions. */
static int measure(const struct reader *r, struct nsv_tensor *t)
{
	const struct nsv_dtype_info *info = nsv_dtype_info(t->dtype);
	size_t len;

	if (!info)
		return nsv_fail(r->err, -ENOTSUP,
			"tensor %s has type %s (%u), which is not supported", show(t->name).text,
			nsv_dtype_name(t->dtype), t->dtype);
	if (t->dim[0] % info->n_elem)
		return nsv_fail(r->err, -EINVAL,
			"tensor %s has rows of %llu elements, expected whole blocks of %u (%s)",
			show(t->name).text, (unsigned long long)t->dim[0], info->n_elem,
			info->name);
	int e = nsv_dtype_row_len(t->dtype, t->dim[0], &len);
	if (e < 0 || !nsv_mul(len, t->dim[1], &len) || !nsv_mul(len, t->dim[2], &len) ||
		!nsv_mul(len, t->dim[3], &len))
		return nsv_fail(
			r->err, -EOVERFLOW, "the size of tensor %s overflows", show(t->name).text);
	t->len = len;
	return 0;
}

/* Leaves the offset inside the data section in ret_off: where that begins is not known yet. */
static int read_tensor(struct reader *r, struct nsv_tensor *t, uint64_t *ret_off)
{
	int e = take_str(r, "a tensor's name", &t->name);

	if (e < 0)
		return e;
	if (t->name.len == 0 || t->name.len > MAX_NAME_LEN)
		return nsv_fail(r->err, -EINVAL, "a tensor's name has %zu bytes, expected 1 to %d",
			t->name.len, MAX_NAME_LEN);
	e = read_dims(r, t);
	if (e == 0)
		e = take_u32(r, "a tensor's type", &t->dtype);
	if (e == 0)
		e = measure(r, t);
	return e < 0 ? e : take_u64(r, "a tensor's offset", ret_off);
}

static int read_tensors(struct nsv_gguf *g, struct reader *r, uint64_t n, uint64_t *offs)
{
	for (; g->n_tensor < n; g->n_tensor++) {
		struct nsv_tensor *t = &g->tensor[g->n_tensor];
		int e = read_tensor(r, t, &offs[g->n_tensor]);

		if (e < 0)
			return e;
		if (!nsv_strmap_add(&g->tensor_index, t->name, (uint32_t)g->n_tensor))
			return nsv_fail(r->err, -EINVAL, "the tensor %s is there twice",
				show(t->name).text);
	}
	return 0;
}

static int read_alignment(const struct nsv_gguf *g, struct nsv_err *err, uint32_t *ret)
{
	uint32_t align = DEFAULT_ALIGNMENT;
	int e = nsv_gguf_u32(g, "general.alignment", &align);

	if (e == -EPROTOTYPE)
		return nsv_fail(err, -EINVAL, "general.alignment is not a 32-bit number");
	if (align < MIN_ALIGNMENT || !nsv_is_pow2(align))
		return nsv_fail(err, -EINVAL,
			"general.alignment is %u, expected a power of two of at least %d", align,
			MIN_ALIGNMENT);
	*ret = align;
	return 0;
}

static int tensor_end(const struct reader *r, const struct nsv_tensor *t, size_t begin,
	uint64_t off, uint32_t align, size_t *ret_end)
{
	size_t end;

	if (off % align)
		return nsv_fail(r->err, -EINVAL,
			"tensor %s lies at offset %llu, expected a multiple of %u",
			show(t->name).text, (unsigned long long)off, align);
	if (!nsv_add(begin, off, &end) || !nsv_add(end, t->len, &end))
		return nsv_fail(r->err, -EOVERFLOW, "the offset of tensor %s, %llu, overflows",
			show(t->name).text, (unsigned long long)off);
	*ret_end = end;
	return 0;
}

/* The data section begins at the next multiple of the alignment after the descriptions. All ends
 * are known before one is used, so that a short file is told how long it should be. */
static int place_tensors(struct nsv_gguf *g, const struct reader *r, const uint64_t *offs)
{
	uint32_t align = DEFAULT_ALIGNMENT;
	size_t begin, end = 0, len = 0;
	int e = read_alignment(g, r->err, &align);

	if (e < 0)
		return e;
	if (!nsv_align_up(r->pos, align, &begin))
		return nsv_fail(r->err, -EOVERFLOW, "the start of the data overflows");
	for (size_t i = 0; i < g->n_tensor; i++) {
		e = tensor_end(r, &g->tensor[i], begin, offs[i], align, &end);
		if (e < 0)
			return e;
		len = nsv_max(len, end);
	}
	if (len > g->len)
		return nsv_fail(r->err, -EINVAL,
			"the file is cut short: it has %zu bytes, expected %zu", g->len, len);
	for (size_t i = 0; i < g->n_tensor; i++)
		g->tensor[i].data = g->data + begin + offs[i];
	return 0;
}

static int read_and_place_tensors(struct nsv_gguf *g, struct reader *r, uint64_t n)
{
	nsv_autofree uint64_t *offs = NULL;
	int e = check_count(r, n, MIN_TENSOR_LEN, "tensors");

	if (e < 0)
		return e;
	offs = calloc(n ? n : 1, sizeof(*offs));
	g->tensor = calloc(n ? n : 1, sizeof(*g->tensor));
	if (!offs || !g->tensor || nsv_strmap_init(&g->tensor_index, n) < 0)
		return nsv_fail(r->err, -ENOMEM, "no memory for %zu tensors", (size_t)n);
	e = read_tensors(g, r, n, offs);
	return e < 0 ? e : place_tensors(g, r, offs);
}

/* ---- The file */

static int read_version(struct reader *r)
{
	const uint8_t *magic;
	uint32_t version = 0;

	if (r->len < 4 || memcmp(r->p, "GGUF", 4) != 0)
		return nsv_fail(
			r->err, -EINVAL, "not a GGUF file: it does not begin with \"GGUF\"");
	int e = take(r, 4, "the magic", &magic);
	if (e == 0)
		e = take_u32(r, "the version", &version);
	if (e < 0)
		return e;
	if (version && (version & 0xffff) == 0)
		return nsv_fail(r->err, -ENOTSUP,
			"the file was written for big-endian machines (GGUF version %u), expected "
			"little-endian",
			__builtin_bswap32(version));
	if (version != VERSION)
		return nsv_fail(r->err, -ENOTSUP, "the file is GGUF version %u, expected %d",
			version, VERSION);
	return 0;
}

static int read_file(struct nsv_gguf *g, struct nsv_err *err)
{
	struct reader r = {.p = g->data, .len = g->len, .err = err};
	uint64_t n_tensor = 0, n_kv = 0;
	int e = read_version(&r);

	if (e == 0)
		e = take_u64(&r, "the count of tensors", &n_tensor);
	if (e == 0)
		e = take_u64(&r, "the count of key/values", &n_kv);
	if (e == 0)
		e = read_kvs(g, &r, n_kv);
	return e < 0 ? e : read_and_place_tensors(g, &r, n_tensor);
}

int nsv_gguf_parse(const void *data, size_t len, struct nsv_gguf **ret_g, struct nsv_err *err)
{
	struct nsv_gguf *g = calloc(1, sizeof(*g));

	if (!g)
		return nsv_fail(err, -ENOMEM, "no memory for the index of a file");
	g->data = data;
	g->len = len;
	int e = read_file(g, err);
	if (e < 0)
		nsv_gguf_close(g);
	else
		*ret_g = g;
	return e;
}

static void unmap_file(void *map, size_t len)
{
	nsv_sigbus_set_file(NULL, 0, "");
	munmap(map, len);
}

void nsv_gguf_close(struct nsv_gguf *g)
{
	if (!g)
		return;
	for (size_t i = 0; i < g->n_kv; i++)
		free(g->kv[i].strs);
	free(g->kv);
	free(g->tensor);
	nsv_strmap_deinit(&g->kv_index);
	nsv_strmap_deinit(&g->tensor_index);
	if (g->map)
		unmap_file(g->map, g->len);
	free(g);
}

/* ---- Opening */

/* The end of a long path says more than its beginning. */
static const char *path_tail(const char *path)
{
	size_t len = strlen(path), max = 120;

	return len > max ? path + len - max : path;
}

static int check_stat(const char *path, const struct stat *st, struct nsv_err *err)
{
	if (S_ISDIR(st->st_mode))
		return nsv_fail(
			err, -EISDIR, "%s is a directory, expected a GGUF file", path_tail(path));
	if (!S_ISREG(st->st_mode))
		return nsv_fail(err, -EINVAL, "%s is not a regular file, expected a GGUF file",
			path_tail(path));
	if (st->st_size == 0)
		return nsv_fail(err, -EINVAL, "%s is empty, expected a GGUF file", path_tail(path));
	return 0;
}

static int map_file(const char *path, void **ret_map, size_t *ret_len, struct nsv_err *err)
{
	/* Non-blocking: a FIFO of that name must not hold us up. */
	nsv_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return nsv_fail(err, -errno, "cannot open %s: %m", path_tail(path));
	int e = check_stat(path, &st, err);
	if (e < 0)
		return e;
	void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		return nsv_fail(err, -errno, "cannot map %s: %m", path_tail(path));
	nsv_sigbus_set_file(map, (size_t)st.st_size, path_tail(path));
	*ret_map = map;
	*ret_len = (size_t)st.st_size;
	return 0;
}

int nsv_gguf_open(const char *path, struct nsv_gguf **ret_g, struct nsv_err *err)
{
	struct nsv_err why = {0};
	struct nsv_gguf *g = NULL;
	void *map = NULL;
	size_t len = 0;
	int e = map_file(path, &map, &len, err);

	if (e < 0)
		return e;
	e = nsv_gguf_parse(map, len, &g, &why);
	if (e < 0) {
		unmap_file(map, len);
		return nsv_fail(err, e, "%s: %s", path_tail(path), why.text);
	}
	g->map = map;
	*ret_g = g;
	return 0;
}

/* ---- Metadata by key */

static const struct kv *find_kv(const struct nsv_gguf *g, const char *key)
{
	uint32_t i;

	return nsv_strmap_get(&g->kv_index, (struct nsv_str){key, strlen(key)}, &i) ? &g->kv[i]
										    : NULL;
}

/* Of any width and sign, where the value is not negative. */
static bool to_u64(const struct kv *kv, uint64_t *ret)
{
	uint64_t x = 0;
	bool is_signed = kv->type == TYPE_I8 || kv->type == TYPE_I16 || kv->type == TYPE_I32 ||
			 kv->type == TYPE_I64;

	switch (kv->type) {
	case TYPE_F32:
	case TYPE_F64:
	case TYPE_BOOL:
	case TYPE_STR:
	case TYPE_ARR:
		return false;
	default:
		memcpy(&x, kv->data, type_len[kv->type]); /* little-endian */
	}
	if (is_signed && x >> (8 * type_len[kv->type] - 1))
		return false;
	*ret = x;
	return true;
}

int nsv_gguf_u32(const struct nsv_gguf *g, const char *key, uint32_t *ret)
{
	const struct kv *kv = find_kv(g, key);
	uint64_t x;

	if (!kv)
		return -ENOENT;
	if (!to_u64(kv, &x) || x > UINT32_MAX)
		return -EPROTOTYPE;
	*ret = (uint32_t)x;
	return 0;
}

int nsv_gguf_f32(const struct nsv_gguf *g, const char *key, float *ret)
{
	const struct kv *kv = find_kv(g, key);
	double wide;

	if (!kv)
		return -ENOENT;
	if (kv->type == TYPE_F32) {
		memcpy(ret, kv->data, sizeof(*ret));
		return 0;
	}
	if (kv->type != TYPE_F64)
		return -EPROTOTYPE;
	memcpy(&wide, kv->data, sizeof(wide));
	*ret = (float)wide;
	return 0;
}

int nsv_gguf_bool(const struct nsv_gguf *g, const char *key, bool *ret)
{
	const struct kv *kv = find_kv(g, key);

	if (!kv)
		return -ENOENT;
	if (kv->type != TYPE_BOOL)
		return -EPROTOTYPE;
	*ret = kv->data[0];
	return 0;
}

int nsv_gguf_str(const struct nsv_gguf *g, const char *key, struct nsv_str *ret)
{
	const struct kv *kv = find_kv(g, key);

	if (!kv)
		return -ENOENT;
	if (kv->type != TYPE_STR)
		return -EPROTOTYPE;
	*ret = (struct nsv_str){(const char *)kv->data, kv->n};
	return 0;
}

int nsv_gguf_arr_str(
	const struct nsv_gguf *g, const char *key, const struct nsv_str **ret, size_t *ret_n)
{
	const struct kv *kv = find_kv(g, key);

	if (!kv)
		return -ENOENT;
	if (kv->type != TYPE_ARR || kv->elem_type != TYPE_STR)
		return -EPROTOTYPE;
	*ret = kv->strs;
	*ret_n = kv->n;
	return 0;
}

static int get_array(const struct nsv_gguf *g, const char *key, uint32_t type_a, uint32_t type_b,
	const void **ret, size_t *ret_n)
{
	const struct kv *kv = find_kv(g, key);

	if (!kv)
		return -ENOENT;
	if (kv->type != TYPE_ARR || (kv->elem_type != type_a && kv->elem_type != type_b))
		return -EPROTOTYPE;
	*ret = kv->data;
	*ret_n = kv->n;
	return 0;
}

int nsv_gguf_arr_i32(const struct nsv_gguf *g, const char *key, const void **ret, size_t *ret_n)
{
	return get_array(g, key, TYPE_I32, TYPE_U32, ret, ret_n);
}

int nsv_gguf_arr_f32(const struct nsv_gguf *g, const char *key, const void **ret, size_t *ret_n)
{
	return get_array(g, key, TYPE_F32, TYPE_F32, ret, ret_n);
}

/* ---- Tensors by place and name */

size_t nsv_gguf_n_tensor(const struct nsv_gguf *g)
{
	return g->n_tensor;
}

const struct nsv_tensor *nsv_gguf_tensor_at(const struct nsv_gguf *g, size_t i)
{
	return i < g->n_tensor ? &g->tensor[i] : NULL;
}

const struct nsv_tensor *nsv_gguf_tensor(const struct nsv_gguf *g, const char *name)
{
	uint32_t i;

	return nsv_strmap_get(&g->tensor_index, (struct nsv_str){name, strlen(name)}, &i)
		       ? &g->tensor[i]
		       : NULL;
}

size_t nsv_gguf_file_len(const struct nsv_gguf *g)
{
	return g->len;
}
