/* Which backend is chosen, and what is refused: names, environment, forced instruction sets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

static int reset_env(void **unused)
{
	(void)unused;
	unsetenv("NANOSERVE_BACKEND");
	unsetenv("NANOSERVE_CPU_ISA");
	return 0;
}

static void check_name(const char *ask, const char *want)
{
	const struct nsv_backend *b = NULL;
	struct nsv_err err = {""};
	if (nsv_backend_choose(ask, &b, &err) < 0)
		fail_msg("%s: %s", ask ? ask : "NULL", err.text);
	assert_string_equal(b->name, want);
}

static void test_auto(void **unused)
{
	const char *best = NULL;
	(void)unused;
	for (size_t i = 0; nsv_backends()[i] && !best; i++)
		if (nsv_backends()[i]->probe(NULL) == 0)
			best = nsv_backends()[i]->name;
	assert_non_null(best);
	check_name(NULL, best);
	check_name("", best);
	check_name("auto", best);
	setenv("NANOSERVE_BACKEND", "", 1);
	check_name(NULL, best);
	setenv("NANOSERVE_BACKEND", "auto", 1);
	check_name(NULL, best);
}

static void test_named(void **unused)
{
	(void)unused;
	check_name("cpu", "cpu");
	check_name("model", "model");
	check_name("reference", "reference");
	setenv("NANOSERVE_BACKEND", "model", 1);
	check_name(NULL, "model");
	check_name("auto", "model");
	check_name("reference", "reference");
}

static void check_refused(const char *ask, int want, const char *part)
{
	const struct nsv_backend *b = NULL;
	struct nsv_err err = {""};
	assert_int_equal(nsv_backend_choose(ask, &b, &err), want);
	assert_null(b);
	if (!strstr(err.text, part))
		fail_msg("\"%s\" does not say \"%s\"", err.text, part);
	assert_int_equal(nsv_backend_choose(ask, &b, NULL), want);
}

static void test_refused(void **unused)
{
	(void)unused;
	check_refused("gpu", -EINVAL, "auto cpu model reference");
	check_refused("CPU", -EINVAL, "\"CPU\"");
	setenv("NANOSERVE_BACKEND", "nothing", 1);
	check_refused(NULL, -EINVAL, "nothing");
	check_refused("auto", -EINVAL, "nothing");
}

/* How K and V are stored: by name, else as the backend would. */
static void test_kv_dtype(void **unused)
{
	static const struct {
		const char *name;
		uint32_t dtype;
	} named[] = {{"f16", NSV_F16}, {"f32", NSV_F32}};
	static const char *const own[] = {NULL, "", "auto"};
	static const char *const none[] = {"F16", "bf16", "f16 "};
	(void)unused;
	for (size_t b = 0; nsv_backends()[b]; b++) {
		const struct nsv_backend *backend = nsv_backends()[b];
		uint32_t dtype = 77;
		struct nsv_err err = {""};
		for (size_t i = 0; i < NSV_ARRAY_LEN(none); i++) {
			assert_int_equal(
				nsv_kv_dtype_choose(none[i], backend, &dtype, &err), -EINVAL);
			assert_int_equal(dtype, 77);
			assert_non_null(strstr(err.text, none[i]));
		}
		for (size_t i = 0; i < NSV_ARRAY_LEN(named); i++) {
			assert_int_equal(
				nsv_kv_dtype_choose(named[i].name, backend, &dtype, &err), 0);
			assert_int_equal(dtype, named[i].dtype);
			assert_string_equal(nsv_kv_dtype_name(dtype), named[i].name);
		}
		for (size_t i = 0; i < NSV_ARRAY_LEN(own); i++) {
			dtype = 77;
			assert_int_equal(nsv_kv_dtype_choose(own[i], backend, &dtype, &err), 0);
			assert_int_equal(dtype, backend->kv_dtype);
		}
	}
	assert_int_equal(nsv_cpu_backend.kv_dtype, NSV_F16);
	assert_int_equal(nsv_reference_backend.kv_dtype, NSV_F32);
}

/* A forced instruction set that is unknown or absent is an error, never another backend. */
static void test_forced_isa(void **unused)
{
	size_t n;
	const struct nsv_cpu_row *rows = nsv_cpu_rows(&n);
	struct nsv_cpuid id;
	(void)unused;
	nsv_cpuid_read(&id);
	for (size_t i = 0; i < n; i++) {
		setenv("NANOSERVE_CPU_ISA", rows[i].name, 1);
		if (rows[i].supported(&id)) {
			check_name("cpu", "cpu");
			assert_string_equal(nsv_cpu_backend.isa(), rows[i].name);
		} else {
			check_refused("cpu", -ENOTSUP, rows[i].name);
			check_refused("auto", -EINVAL, rows[i].name);
		}
	}
	setenv("NANOSERVE_CPU_ISA", "sse9", 1);
	check_refused("cpu", -ENOTSUP, "sse9");
	check_refused("auto", -EINVAL, "sse9");
	setenv("NANOSERVE_CPU_ISA", "", 1);
	check_name("auto", "cpu");
}

static void test_table(void **unused)
{
	size_t n;
	const struct nsv_cpu_row *rows = nsv_cpu_rows(&n);
	struct nsv_cpuid none = {0};
	(void)unused;
	assert_string_equal(rows[n - 1].name, "plain");
	assert_true(rows[n - 1].supported(&none));
	for (size_t i = 0; i + 1 < n; i++)
		assert_false(rows[i].supported(&none));
	for (size_t i = 0; nsv_backends()[i]; i++)
		for (size_t j = 0; j < i; j++) {
			assert_string_not_equal(nsv_backends()[i]->name, nsv_backends()[j]->name);
			assert_true(nsv_backends()[i]->numerics != nsv_backends()[j]->numerics);
		}
}

/* Each set needs the one below it. */
static void test_cpuid(void **unused)
{
	struct nsv_cpuid id;
	(void)unused;
	nsv_cpuid_read(&id);
	assert_true(id.avx2 || !id.avx512);
	assert_true(id.avx512 || !id.avx512_vnni);
	assert_true(id.avx512 || !id.avx512_bf16);
#if defined(__x86_64__)
	__builtin_cpu_init();
	assert_int_equal(id.avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
	assert_int_equal(id.avx512_vnni,
		__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
			__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_auto, reset_env),
		cmocka_unit_test_setup(test_named, reset_env),
		cmocka_unit_test_setup(test_refused, reset_env),
		cmocka_unit_test(test_kv_dtype),
		cmocka_unit_test_setup(test_forced_isa, reset_env),
		cmocka_unit_test_setup(test_table, reset_env),
		cmocka_unit_test_setup(test_cpuid, reset_env),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
