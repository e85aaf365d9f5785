/* GGUF files, whole and broken: what is right is read as written, what is not is refused with a
 * sentence, and no prefix or mutation is read past its end. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "daemon/load/gguf.h"
#include "tests/tools/daemon.h"
#include "tests/tools/gguf_write.h"
#include "tests/tools/rnd.h"

static uint64_t seed;

struct file {
	uint8_t *p;
	size_t len;
};

static struct file tiny_model(uint32_t dtype)
{
	const struct nsv_tiny_llama shape = {.n_layer = 1,
		.width = 32,
		.n_ffn = 32,
		.n_head = 2,
		.n_kv_head = 1,
		.head_dim = 16,
		.n_context = 64,
		.dtype = dtype};
	struct file f;

	f.p = nsv_gguf_tiny_llama(&shape, seed, &f.len);
	return f;
}

/* Parses the writer's file, which must be refused with a sentence that has all of the words. */
static void assert_refused(struct nsv_gguf_writer *w, const char *words)
{
	struct nsv_err err = {0};
	struct nsv_gguf *g = NULL;
	struct file f;

	f.p = nsv_gguf_finish(w, &f.len);
	if (nsv_gguf_parse(f.p, f.len, &g, &err) >= 0)
		fail_msg("accepted, expected \"%s\"", words);
	assert_null(g);
	if (!strstr(err.text, words))
		fail_msg("\"%s\" lacks \"%s\"", err.text, words);
	free(f.p);
}

static struct nsv_gguf *parse(struct nsv_gguf_writer *w, struct file *ret)
{
	struct nsv_err err = {0};
	struct nsv_gguf *g = NULL;

	ret->p = nsv_gguf_finish(w, &ret->len);
	if (nsv_gguf_parse(ret->p, ret->len, &g, &err) < 0)
		fail_msg("%s", err.text);
	return g;
}

/* ---- Key/values */

static void test_every_type(void **state)
{
	static const struct {
		uint32_t type;
		const char *bytes;
		size_t len;
		int ret;
		uint32_t value;
	} rows[] = {
		{0, "\xff", 1, 0, 255},
		{1, "\x7f", 1, 0, 127},
		{1, "\xff", 1, -EPROTOTYPE, 0},
		{2, "\xff\xff", 2, 0, 65535},
		{3, "\x01\x80", 2, -EPROTOTYPE, 0},
		{3, "\x01\x70", 2, 0, 0x7001},
		{4, "\xff\xff\xff\xff", 4, 0, UINT32_MAX},
		{5, "\xff\xff\xff\xff", 4, -EPROTOTYPE, 0},
		{5, "\x04\x03\x02\x01", 4, 0, 0x01020304},
		{6, "\0\0\x80\x3f", 4, -EPROTOTYPE, 0},
		{7, "\x01", 1, -EPROTOTYPE, 0},
		{10, "\xff\xff\xff\xff\0\0\0\0", 8, 0, UINT32_MAX},
		{10, "\0\0\0\0\x01\0\0\0", 8, -EPROTOTYPE, 0},
		{11, "\x09\0\0\0\0\0\0\0", 8, 0, 9},
		{11, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, -EPROTOTYPE, 0},
		{12, "\0\0\0\0\0\0\xf0\x3f", 8, -EPROTOTYPE, 0},
		{8, "\x01\0\0\0\0\0\0\0a", 9, -EPROTOTYPE, 0},
		{9, "\0\0\0\0\x02\0\0\0\0\0\0\0ab", 14, -EPROTOTYPE, 0},
	};
	struct nsv_gguf_writer w;
	struct file f;
	char key[16];
	(void)state;

	nsv_gguf_writer_init(&w, seed);
	for (size_t i = 0; i < NSV_ARRAY_LEN(rows); i++) {
		snprintf(key, sizeof(key), "key%zu", i);
		nsv_gguf_put_raw(&w, key, rows[i].type, rows[i].bytes, rows[i].len);
	}
	struct nsv_gguf *g = parse(&w, &f);
	for (size_t i = 0; i < NSV_ARRAY_LEN(rows); i++) {
		uint32_t x = 77;

		snprintf(key, sizeof(key), "key%zu", i);
		assert_int_equal(nsv_gguf_u32(g, key, &x), rows[i].ret);
		assert_int_equal(x, rows[i].ret == 0 ? rows[i].value : 77);
	}
	nsv_gguf_close(g);
	free(f.p);
}

static void test_other_values(void **state)
{
	static const int32_t numbers[] = {-1, 2, INT32_MAX};
	static const char *const names[] = {"", "a", "long name"};
	struct nsv_gguf_writer w;
	struct file f;
	const struct nsv_str *strs;
	struct nsv_str s;
	const void *p;
	size_t n;
	float x;
	bool b = false;
	(void)state;

	nsv_gguf_writer_init(&w, seed);
	nsv_gguf_put_str(&w, "odd", "x"); /* what follows lies at odd addresses */
	nsv_gguf_put_f32(&w, "float", 0.25f);
	nsv_gguf_put_raw(&w, "double", 12, "\0\0\0\0\0\0\xf8\x3f", 8);
	nsv_gguf_put_bool(&w, "bool", true);
	nsv_gguf_put_strs(&w, "strs", names, 3);
	nsv_gguf_put_strs(&w, "none", names, 0);
	nsv_gguf_put_i32s(&w, "numbers", numbers, 3);
	struct nsv_gguf *g = parse(&w, &f);
	assert_int_equal(nsv_gguf_str(g, "odd", &s), 0);
	assert_true(nsv_str_eq(s, "x"));
	assert_int_equal(nsv_gguf_f32(g, "float", &x), 0);
	assert_true(x == 0.25f);
	assert_int_equal(nsv_gguf_f32(g, "double", &x), 0);
	assert_true(x == 1.5f);
	assert_int_equal(nsv_gguf_bool(g, "bool", &b), 0);
	assert_true(b);
	assert_int_equal(nsv_gguf_arr_str(g, "strs", &strs, &n), 0);
	assert_int_equal(n, 3);
	assert_true(nsv_str_eq(strs[0], "") && nsv_str_eq(strs[2], "long name"));
	assert_int_equal(nsv_gguf_arr_str(g, "none", &strs, &n), 0);
	assert_int_equal(n, 0);
	assert_int_equal(nsv_gguf_arr_i32(g, "numbers", &p, &n), 0);
	assert_int_equal(n, 3);
	assert_memory_equal(p, numbers, sizeof(numbers));
	assert_int_equal(nsv_gguf_arr_f32(g, "numbers", &p, &n), -EPROTOTYPE);
	assert_int_equal(nsv_gguf_arr_str(g, "numbers", &strs, &n), -EPROTOTYPE);
	assert_int_equal(nsv_gguf_bool(g, "float", &b), -EPROTOTYPE);
	assert_int_equal(nsv_gguf_str(g, "Odd", &s), -ENOENT);
	assert_int_equal(nsv_gguf_f32(g, "flo", &x), -ENOENT);
	nsv_gguf_close(g);
	free(f.p);
}

static void test_wrong_values(void **state)
{
	static const struct {
		uint32_t type;
		const char *bytes;
		size_t len;
		const char *words;
	} rows[] = {
		{13, "", 0, "value type 13"},
		{7, "\x02", 1, "boolean"},
		{8, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, "cut short"},
		{8, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8, "cut short"},
		{9, "\x09\0\0\0\0\0\0\0\0\0\0\0", 12, "array of type 9"},
		{9, "\x0d\0\0\0\0\0\0\0\0\0\0\0", 12, "array of type 13"},
		{9, "\x08\0\0\0\xff\xff\xff\xff\0\0\0\0", 12, "cut short"},
		{9, "\x0c\0\0\0\0\0\0\0\0\0\0\x20", 12, "cut short"}, /* 2^61 doubles: 2^64 bytes */
		{9, "\x07\0\0\0\x02\0\0\0\0\0\0\0\x01\x03", 14, "boolean"},
	};
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(rows); i++) {
		struct nsv_gguf_writer w;

		nsv_gguf_writer_init(&w, seed);
		nsv_gguf_put_raw(&w, "key", rows[i].type, rows[i].bytes, rows[i].len);
		assert_refused(&w, rows[i].words);
	}
}

static void test_wrong_keys(void **state)
{
	struct nsv_gguf_writer w;
	(void)state;

	nsv_gguf_writer_init(&w, seed);
	nsv_gguf_put_u32(&w, "twice", 1);
	nsv_gguf_put_u32(&w, "twice", 1);
	assert_refused(&w, "twice is there twice");
	nsv_gguf_put_u32(&w, "", 1);
	assert_refused(&w, "0 bytes");
	w.n_kv = UINT64_MAX;
	assert_refused(&w, "cut short");
	nsv_gguf_put_u32(&w, "a\x1b[2Jz", 1);
	nsv_gguf_put_u32(&w, "a\x1b[2Jz", 1);
	assert_refused(&w, "a?[2Jz"); /* nothing for the terminal to obey */
}

/* ---- Tensors */

static void test_tensors(void **state)
{
	static const uint64_t dim[] = {64, 3, 2};
	struct nsv_gguf_writer w;
	struct file f;
	(void)state;

	for (uint32_t align = 8; align <= 4096; align *= 2) {
		nsv_gguf_writer_init(&w, seed);
		w.alignment = align;
		nsv_gguf_put_u32(&w, "general.alignment", align);
		nsv_gguf_put_tensor(&w, "first", NSV_Q4_1, 3, dim);
		nsv_gguf_put_tensor(&w, "second", NSV_F32, 1, dim);
		struct nsv_gguf *g = parse(&w, &f);
		assert_int_equal(nsv_gguf_n_tensor(g), 2);
		const struct nsv_tensor *t = nsv_gguf_tensor(g, "first");
		assert_ptr_equal(t, nsv_gguf_tensor_at(g, 0));
		assert_int_equal(t->len, 2 * 20 * 3 * 2);
		assert_int_equal(t->n_dim, 3);
		assert_int_equal(t->dim[2], 2);
		assert_int_equal(t->dim[3], 1);
		t = nsv_gguf_tensor(g, "second");
		assert_int_equal(((const uint8_t *)t->data - f.p) % align, 0);
		assert_ptr_equal((const uint8_t *)t->data + t->len, f.p + f.len);
		assert_null(nsv_gguf_tensor(g, "third"));
		assert_null(nsv_gguf_tensor_at(g, 2));
		nsv_gguf_close(g);
		free(f.p);
	}
}

static void test_wrong_tensors(void **state)
{
	static const struct {
		uint32_t dtype, n_dim;
		uint64_t dim[5], off;
		const char *words;
	} rows[] = {
		{NSV_F32, 0, {0}, 0, "0 dimensions"},
		{NSV_F32, 5, {1, 1, 1, 1, 1}, 0, "5 dimensions"},
		{NSV_F32, 2, {4, 0}, 0, "dimension 1 of tensor t is zero"},
		{NSV_F32, 1, {1ull << 62}, 0, "overflows"},
		{NSV_F32, 2, {(1ull << 42) + 1, 1ull << 22}, 0, "overflows"},
		{NSV_F32, 4, {1ull << 31, 1ull << 31, 1ull << 31, 1}, 0, "overflows"},
		{NSV_F32, 1, {1ull << 40}, 0, "cut short"},
		{NSV_F32, 1, {1}, 32, "cut short"},
		{NSV_F32, 1, {1}, UINT64_MAX - 31, "overflows"},
		{NSV_F32, 1, {1}, 1ull << 63, "cut short"},
		{NSV_F32, 1, {1}, 4, "multiple of 32"},
		{NSV_Q4_1, 1, {33}, 0, "whole blocks of 32 (Q4_1)"},
		{NSV_Q6_K, 1, {128}, 0, "whole blocks of 256 (Q6_K)"},
		{NSV_Q2_K, 1, {576}, 0, "whole blocks of 256 (Q2_K)"},
		{NSV_Q3_K, 1, {32}, 0, "whole blocks of 256 (Q3_K)"},
		{NSV_IQ4_NL, 2, {48, 2}, 0, "whole blocks of 32 (IQ4_NL)"},
		{NSV_IQ4_XS, 1, {128}, 0, "whole blocks of 256 (IQ4_XS)"},
		{NSV_Q2_K, 2, {1ull << 33, 1ull << 33}, 0, "overflows"},
		{NSV_IQ4_XS, 2, {1ull << 40, 1ull << 20}, 0, "cut short"},
		{NSV_Q3_K, 1, {256}, 0, "cut short"},
		{16, 1, {256}, 0, "tensor t has type IQ2_XXS"},
		{39, 1, {32}, 0, "tensor t has type MXFP4"},
		{4, 1, {32}, 0, "type unknown (4)"},
		{UINT32_MAX, 1, {32}, 0, "4294967295"},
	};
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(rows); i++) {
		struct nsv_gguf_writer w;

		nsv_gguf_writer_init(&w, seed);
		nsv_gguf_put_info(&w, "t", rows[i].dtype, rows[i].n_dim, rows[i].dim, rows[i].off);
		assert_refused(&w, rows[i].words);
	}
}

static void test_wrong_tensor_tables(void **state)
{
	static const uint64_t dim[] = {1};
	struct nsv_gguf_writer w;
	char name[66] = {0};
	(void)state;

	nsv_gguf_writer_init(&w, seed);
	nsv_gguf_put_tensor(&w, "twice", NSV_F32, 1, dim);
	nsv_gguf_put_tensor(&w, "twice", NSV_F32, 1, dim);
	assert_refused(&w, "twice is there twice");
	nsv_gguf_put_tensor(&w, "", NSV_F32, 1, dim);
	assert_refused(&w, "0 bytes");
	memset(name, 'n', 65);
	nsv_gguf_put_tensor(&w, name, NSV_F32, 1, dim);
	assert_refused(&w, "65 bytes");
	w.n_tensor = 1ull << 40;
	assert_refused(&w, "cut short");
	nsv_gguf_put_u32(&w, "general.alignment", 48);
	assert_refused(&w, "general.alignment is 48");
	nsv_gguf_put_u32(&w, "general.alignment", 0);
	assert_refused(&w, "general.alignment is 0");
	nsv_gguf_put_str(&w, "general.alignment", "32");
	assert_refused(&w, "general.alignment");
}

static void test_versions(void **state)
{
	struct nsv_gguf_writer w;
	(void)state;

	nsv_gguf_writer_init(&w, seed);
	for (uint32_t version = 0; version < 6; version++) {
		char words[64];

		if (version == 3)
			continue;
		w.version = version;
		snprintf(words, sizeof(words), "version %u, expected 3", version);
		assert_refused(&w, words);
	}
	w.version = 3u << 24;
	assert_refused(&w, "big-endian");
}

/* Names whose hashes an attacker would want to collide cost no more than others. */
static void test_many_names(void **state)
{
	struct nsv_gguf_writer w;
	struct file f;
	char key[32];
	uint32_t x;
	(void)state;

	nsv_gguf_writer_init(&w, seed);
	for (uint32_t i = 0; i < 100000; i++) {
		snprintf(key, sizeof(key), "k%u", i);
		nsv_gguf_put_u32(&w, key, i);
	}
	struct nsv_gguf *g = parse(&w, &f);
	for (uint32_t i = 0; i < 100000; i++) {
		snprintf(key, sizeof(key), "k%u", i);
		assert_int_equal(nsv_gguf_u32(g, key, &x), 0);
		assert_int_equal(x, i);
	}
	nsv_gguf_close(g);
	free(f.p);
}

/* ---- Broken files */

/* Each in memory of its own length, so that a sanitizer sees one byte too far. */
static int parse_copy(const uint8_t *p, size_t len, struct nsv_err *err)
{
	uint8_t *copy = malloc(len ? len : 1);
	struct nsv_gguf *g = NULL;
	volatile uint8_t sum = 0;

	memcpy(copy, p, len);
	int e = nsv_gguf_parse(copy, len, &g, err);
	for (size_t i = 0; e == 0 && i < nsv_gguf_n_tensor(g); i++) {
		const struct nsv_tensor *t = nsv_gguf_tensor_at(g, i);

		for (size_t j = 0; j < t->len; j++)
			sum = (uint8_t)(sum + ((const uint8_t *)t->data)[j]);
	}
	nsv_gguf_close(g);
	free(copy);
	return e;
}

static void test_every_prefix(void **state)
{
	struct file f = tiny_model(NSV_Q8_0);
	(void)state;

	for (size_t len = 0; len < f.len; len++) {
		struct nsv_err err = {0};
		char size[32];

		if (parse_copy(f.p, len, &err) == 0)
			fail_msg("a prefix of %zu bytes of %zu is accepted", len, f.len);
		snprintf(size, sizeof(size), " %zu bytes", len);
		if (len >= 8)
			assert_non_null(strstr(err.text, size));
	}
	assert_int_equal(parse_copy(f.p, f.len, NULL), 0);
	free(f.p);
}

static void mutate(struct file *f)
{
	static const uint64_t edges[] = {
		0, 1, 0x7fffffff, 0xffffffff, 1ull << 32, 1ull << 61, 1ull << 63, UINT64_MAX};
	size_t at = t_rand() % (f->len - 8);
	uint64_t x = edges[t_below(NSV_ARRAY_LEN(edges))];

	if (t_below(2))
		f->p[at] = (uint8_t)t_rand();
	else
		memcpy(f->p + at, &x, sizeof(x));
}

static void test_mutations(void **state)
{
	struct file whole = tiny_model(NSV_Q4_0);
	uint8_t *p = malloc(whole.len);
	size_t n_refused = 0;
	(void)state;

	for (int round = 0; round < 3000; round++) {
		struct file f = {p, whole.len};

		memcpy(p, whole.p, whole.len);
		for (uint32_t i = t_below(4); i < 4; i++)
			mutate(&f);
		n_refused += parse_copy(f.p, f.len, NULL) < 0;
	}
	assert_true(n_refused > 100);
	free(p);
	free(whole.p);
}

/* ---- Opening by path */

static void assert_open_fails(const char *path, int code, const char *words)
{
	struct nsv_err err = {0};
	struct nsv_gguf *g = NULL;

	assert_int_equal(nsv_gguf_open(path, &g, &err), code);
	assert_null(g);
	if (!strstr(err.text, words) || !strstr(err.text, path))
		fail_msg("\"%s\" lacks \"%s\" or the path", err.text, words);
}

static void write_file(const char *path, const void *p, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, p, len), len);
	close(fd);
}

static void test_open(void **state)
{
	char dir[] = "/tmp/nsv-gguf-XXXXXX", path[64], link[64];
	struct file f = tiny_model(NSV_F16);
	struct nsv_gguf *g = NULL;
	(void)state;

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/model", dir);
	snprintf(link, sizeof(link), "%s/fifo", dir);
	assert_open_fails(dir, -EISDIR, "directory");
	assert_open_fails(path, -ENOENT, "No such file");
	assert_int_equal(mkfifo(link, 0600), 0);
	assert_open_fails(link, -EINVAL, "not a regular file");
	write_file(path, "", 0);
	assert_open_fails(path, -EINVAL, "empty");
	write_file(path, "#!/bin/sh\n", 10);
	assert_open_fails(path, -EINVAL, "not a GGUF file");
	write_file(path, f.p, f.len - 1);
	char words[64];
	snprintf(words, sizeof(words), "it has %zu bytes, expected %zu", f.len - 1, f.len);
	assert_open_fails(path, -EINVAL, words);
	write_file(path, f.p, f.len);
	assert_int_equal(nsv_gguf_open(path, &g, NULL), 0);
	assert_int_equal(nsv_gguf_file_len(g), f.len);
	assert_non_null(nsv_gguf_tensor(g, "blk.0.ffn_down.weight"));
	nsv_gguf_close(g);
	if (geteuid() != 0) { /* root reads what it likes */
		assert_int_equal(chmod(path, 0), 0);
		assert_open_fails(path, -EACCES, "Permission denied");
	}
	unlink(path);
	unlink(link);
	rmdir(dir);
	free(f.p);
}

static void test_real_model(void **state)
{
	const char *path = nsv_test_model();
	struct nsv_err err = {0};
	struct nsv_gguf *g = NULL;
	struct nsv_str arch;
	uint32_t x;
	float base;
	(void)state;

	if (!path) {
		printf("skipped: the model is not there (NANOSERVE_TEST_MODEL, or make model)\n");
		skip();
	}
	if (nsv_gguf_open(path, &g, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(nsv_gguf_str(g, "general.architecture", &arch), 0);
	assert_true(nsv_str_eq(arch, "llama"));
	assert_int_equal(nsv_gguf_u32(g, "llama.block_count", &x), 0);
	assert_int_equal(x, 30);
	assert_int_equal(nsv_gguf_f32(g, "llama.rope.freq_base", &base), 0);
	assert_true(base == 100000);
	assert_int_equal(nsv_gguf_n_tensor(g), 272);
	const struct nsv_tensor *t = nsv_gguf_tensor(g, "token_embd.weight");
	assert_non_null(t);
	assert_int_equal(t->n_dim, 2);
	assert_int_equal(t->dim[0], 576);
	assert_int_equal(t->dim[1], 49152);
	assert_true(t->len % t->dim[1] == 0);
	nsv_gguf_close(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_type),
		cmocka_unit_test(test_other_values),
		cmocka_unit_test(test_wrong_values),
		cmocka_unit_test(test_wrong_keys),
		cmocka_unit_test(test_tensors),
		cmocka_unit_test(test_wrong_tensors),
		cmocka_unit_test(test_wrong_tensor_tables),
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_many_names),
		cmocka_unit_test(test_every_prefix),
		cmocka_unit_test(test_mutations),
		cmocka_unit_test(test_open),
		cmocka_unit_test(test_real_model),
	};

	t_seed();
	seed = t_rand();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
