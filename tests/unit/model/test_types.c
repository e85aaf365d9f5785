/* Models of the tensor types, from the file to the logits: `cpu` within what activations of 8 bits
 * allow of `reference`, in steps of many rows and of one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "tests/tools/model-run.h"
#include "tests/tools/rnd.h"
#include "tests/tools/tiny.h"

#define N_PROMPT 24
#define N_STEP 4

static void write_model(uint32_t dtype, char path[64])
{
	const struct nsv_tiny_llama shape = {.n_layer = 2,
		.width = 256,
		.n_ffn = 512,
		.n_head = 4,
		.n_kv_head = 2,
		.head_dim = 64,
		.n_context = 64,
		.dtype = dtype};

	nsv_tiny_model_shaped(path, 64, &shape, t_rand());
}

/* Logits after the prompt and after each further token, (1 + N_STEP, n_vocab), of malloc. */
static float *run(const char *path, const char *name, const int32_t *tokens, size_t *ret_n)
{
	const struct nsv_backend *backend = NULL;
	struct model_run r;
	struct model_seq seq;
	struct nsv_err err = {""};

	if (nsv_backend_choose(name, &backend, &err) < 0)
		fail_msg("%s", err.text);
	model_run_open(&r, path, backend, 2, N_PROMPT, N_PROMPT + N_STEP);
	float *logits = malloc((1 + N_STEP) * r.n_vocab * sizeof(*logits));
	assert_non_null(logits);
	model_seq_init(&seq, N_PROMPT + N_STEP);
	model_run_prefill(&r, &seq, tokens, N_PROMPT, N_PROMPT, logits);
	for (size_t i = 0; i < N_STEP; i++)
		model_run_prefill(
			&r, &seq, tokens + N_PROMPT + i, 1, 1, logits + (1 + i) * r.n_vocab);
	*ret_n = (1 + N_STEP) * r.n_vocab;
	model_seq_deinit(&seq, &r);
	model_run_close(&r);
	return logits;
}

static double difference(const float *a, const float *b, size_t n)
{
	double err = 0, all = 0;

	for (size_t i = 0; i < n; i++) {
		err += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
		all += (double)b[i] * (double)b[i];
	}
	return sqrt(err / all);
}

static void check_type(uint32_t dtype)
{
	int32_t tokens[N_PROMPT + N_STEP];
	char path[64];
	size_t n, n_cpu;

	for (size_t i = 0; i < NSV_ARRAY_LEN(tokens); i++)
		tokens[i] = (int32_t)(NSV_TINY_FIRST_BYTE + t_below(256));
	write_model(dtype, path);
	float *reference = run(path, "reference", tokens, &n);
	float *cpu = run(path, "cpu", tokens, &n_cpu);
	unlink(path);
	assert_int_equal(n, n_cpu);
	double diff = difference(cpu, reference, n);
	print_message("%s: %.4f off\n", nsv_dtype_name(dtype), diff);
	assert_true(diff < 0.15); /* NaN is not */
	free(reference);
	free(cpu);
}

/* But Q8_0, of which the tiny model of other tests is: its random weights are too large for a
 * comparison, as attention then turns on hairs. */
static void test_types(void **state)
{
	static const uint32_t types[] = {NSV_F32, NSV_F16, NSV_BF16, NSV_Q4_0, NSV_Q4_1, NSV_Q5_0,
		NSV_Q5_1, NSV_Q2_K, NSV_Q3_K, NSV_Q4_K, NSV_Q5_K, NSV_Q6_K, NSV_IQ4_NL, NSV_IQ4_XS};
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(types); i++)
		check_type(types[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_types),
	};
	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
