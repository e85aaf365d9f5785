/* The sampler against a scalar reference that sorts everything and works step by step in double
 * precision; its distribution by chi-square; the generator against published vectors; every
 * parameter's range. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "daemon/sample.h"

static uint32_t draw(uint32_t n)
{
	return (uint32_t)random() % n;
}

static float draw_float(float least, float most)
{
	return least + (most - least) * (float)random() / (float)RAND_MAX;
}

static uint64_t draw_u64(void)
{
	return (uint64_t)random() << 42 ^ (uint64_t)random() << 21 ^ (uint64_t)random();
}

/* Logits with ties: some are rounded to a quarter. */
static void draw_logits(float *logits, uint32_t n)
{
	float spread = draw_float(0.1f, 20), grid = draw(2) ? 4 : 4096;

	for (uint32_t i = 0; i < n; i++)
		logits[i] = roundf(draw_float(-spread, spread) * grid) / grid;
}

/* ---- The reference */

static int by_rank(const void *pa, const void *pb)
{
	const struct nsv_lp *a = pa, *b = pb;

	if (a->logprob != b->logprob)
		return a->logprob > b->logprob ? -1 : 1;
	return (a->id > b->id) - (a->id < b->id);
}

static void sort_logits(struct nsv_lp *sorted, const float *logits, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		sorted[i] = (struct nsv_lp){(int32_t)i, logits[i]};
	qsort(sorted, n, sizeof(*sorted), by_rank);
}

static void normalise(double *p, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += p[i];
	for (uint32_t i = 0; i < n; i++)
		p[i] /= sum;
}

/* The distribution by rank: returns how many candidates are left. */
static uint32_t ref_distribution(
	const struct nsv_lp *sorted, double *p, uint32_t n, const struct nsv_params *params)
{
	double sum = 0;
	uint32_t kept = 0;

	if (params->top_k > 0)
		n = (uint32_t)nsv_min(n, (size_t)params->top_k);
	for (uint32_t i = 0; i < n; i++)
		p[i] = exp(((double)sorted[i].logprob - sorted[0].logprob) / params->temperature);
	while (kept < n && p[kept] >= params->min_p * p[0])
		kept++;
	normalise(p, kept);
	for (n = 0; n < kept && (n == 0 || sum < params->top_p); n++)
		sum += p[n];
	if (params->top_p >= 1)
		n = kept;
	normalise(p, n);
	return n;
}

static int32_t ref_sample(
	const float *logits, uint32_t n_vocab, const struct nsv_params *params, float u)
{
	struct nsv_lp *sorted = calloc(n_vocab, sizeof(*sorted));
	double *p = calloc(n_vocab, sizeof(*p)), sum = 0;
	uint32_t n, i = 0;

	sort_logits(sorted, logits, n_vocab);
	if (params->temperature >= 1e-3f) {
		n = ref_distribution(sorted, p, n_vocab, params);
		for (; i + 1 < n; i++) {
			sum += p[i];
			if (sum > u)
				break;
		}
	}
	int32_t id = sorted[i].id;
	free(sorted);
	free(p);
	return id;
}

/* ---- Sampling */

static struct nsv_params draw_params(uint32_t n_vocab)
{
	struct nsv_params p = nsv_params_default();

	p.temperature = draw(8) == 0 ? draw_float(0, 2e-3f) : draw_float(0.05f, 3);
	if (draw(2))
		p.top_k = (int32_t)draw(2 * n_vocab);
	if (draw(2))
		p.top_p = draw_float(0.01f, 1);
	if (draw(3) == 0)
		p.min_p = draw_float(0, 1);
	return p;
}

static void test_against_reference(void **state)
{
	(void)state;
	for (int round = 0; round < 3000; round++) {
		uint32_t n = round % 100 == 0 ? 49152 : 1 + draw(300);
		float *logits = calloc(n, sizeof(*logits));
		uint64_t seed = draw_u64(), pos = draw_u64();
		uint32_t branch = draw(5);
		struct nsv_params params = draw_params(n);
		struct nsv_sampler s;
		int32_t token = -1;

		draw_logits(logits, n);
		assert_int_equal(nsv_sampler_init(&s, n), 0);
		assert_int_equal(
			nsv_sample(&s, logits, &params, seed, branch, pos, &token, NULL, 0), 0);
		int32_t want = ref_sample(logits, n, &params, nsv_uniform(seed, branch, pos));
		if (token != want)
			fail_msg("round %d: %d, reference %d (n %u T %g k %d p %g min %g)", round,
				token, want, n, (double)params.temperature, params.top_k,
				(double)params.top_p, (double)params.min_p);
		/* A function of its arguments alone. */
		int32_t again = -1;
		assert_int_equal(
			nsv_sample(&s, logits, &params, seed, branch, pos, &again, NULL, 0), 0);
		assert_int_equal(again, token);
		nsv_sampler_deinit(&s);
		free(logits);
	}
}

/* Each pair of steps on logits where the other order would keep another set. Probabilities
 * 0.4 0.3 0.2 0.1 by rank. */
static void test_order(void **state)
{
	static const struct {
		int32_t top_k;
		float min_p, top_p, temperature;
		uint32_t n_kept;
	} cases[] = {
		/* top-k, then top-p: of 0.57 and 0.43 the first reaches 0.55, which 0.4 of the
		 * whole does not. */
		{2, 0, 0.55f, 1, 1},
		{0, 0, 0.55f, 1, 2},
		/* min-p, then top-p: 0.3 and more of 0.4 leaves three, 0.44 0.33 0.22. */
		{0, 0.45f, 0.75f, 1, 2},
		{0, 0, 0.75f, 1, 3},
		/* Temperature comes first: at 1/2 the squares count, 0.53 0.30 0.13 0.03. */
		{0, 0, 0.52f, 0.5f, 1},
		{0, 0, 0.52f, 1, 2},
		{0, 0.3f, 1, 0.5f, 2},
		{0, 0.3f, 1, 1, 3},
	};
	const float logits[] = {logf(0.2f), logf(0.4f), logf(0.1f), logf(0.3f)};
	struct nsv_sampler s;

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, 4), 0);
	for (size_t c = 0; c < NSV_ARRAY_LEN(cases); c++) {
		struct nsv_params p = nsv_params_default();
		bool seen[4] = {false};
		int32_t token;

		p.top_k = cases[c].top_k;
		p.min_p = cases[c].min_p;
		p.top_p = cases[c].top_p;
		p.temperature = cases[c].temperature;
		for (uint64_t pos = 0; pos < 2000; pos++) {
			assert_int_equal(nsv_sample(&s, logits, &p, 1, 0, pos, &token, NULL, 0), 0);
			seen[token] = true;
		}
		uint32_t n = (uint32_t)seen[0] + seen[1] + seen[2] + seen[3];
		if (n != cases[c].n_kept)
			fail_msg("case %zu keeps %u, expected %u", c, n, cases[c].n_kept);
	}
	nsv_sampler_deinit(&s);
}

/* Wilson-Hilferty: how many standard deviations chi-square lies above its mean. */
static double chi_square_z(double chi2, double df)
{
	return (cbrt(chi2 / df) - (1 - 2 / (9 * df))) / sqrt(2 / (9 * df));
}

static void check_distribution(const struct nsv_params *params, const float *logits, uint32_t n)
{
	enum { N_DRAW = 40000 };
	struct nsv_lp sorted[64];
	double p[64], chi2 = 0, rest_p = 1, rest_n = N_DRAW;
	uint32_t count[64] = {0}, n_bin = 0;
	uint64_t seed = draw_u64();
	struct nsv_sampler s;
	int32_t token;

	assert_int_equal(nsv_sampler_init(&s, n), 0);
	for (uint64_t pos = 0; pos < N_DRAW; pos++) {
		assert_int_equal(nsv_sample(&s, logits, params, seed, 0, pos, &token, NULL, 0), 0);
		count[token]++;
	}
	sort_logits(sorted, logits, n);
	uint32_t n_kept = ref_distribution(sorted, p, n, params);
	for (uint32_t i = 0; i < n_kept && p[i] * N_DRAW >= 10; i++, n_bin++) {
		double want = p[i] * N_DRAW, have = count[sorted[i].id];
		chi2 += (have - want) * (have - want) / want;
		rest_p -= p[i];
		rest_n -= have;
	}
	/* The unlikely ones together; those that were cut never come. */
	if (rest_p * N_DRAW >= 10)
		chi2 += pow(rest_n - rest_p * N_DRAW, 2) / (rest_p * N_DRAW);
	for (uint32_t i = n_kept; i < n; i++)
		assert_int_equal(count[sorted[i].id], 0);
	if (n_bin >= 2)
		assert_true(chi_square_z(chi2, n_bin - (rest_p * N_DRAW < 10)) < 6);
	nsv_sampler_deinit(&s);
}

static void test_distribution(void **state)
{
	(void)state;
	for (int round = 0; round < 12; round++) {
		struct nsv_params params = draw_params(64);
		float logits[64];

		params.temperature = draw_float(0.3f, 2);
		for (int i = 0; i < 64; i++)
			logits[i] = draw_float(-3, 3);
		check_distribution(&params, logits, 64);
	}
}

static void test_greedy(void **state)
{
	const float logits[] = {-1, 3, 2, 3, -FLT_MAX};
	struct nsv_params p = nsv_params_default();
	struct nsv_sampler s;
	int32_t token;

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, 5), 0);
	const float cold[] = {0, FLT_MIN, 1e-30f, 9.9e-4f};
	for (size_t i = 0; i < NSV_ARRAY_LEN(cold); i++)
		for (uint64_t pos = 0; pos < 50; pos++) {
			p.temperature = cold[i];
			token = -1;
			assert_int_equal(nsv_sample(&s, logits, &p, 9, 0, pos, &token, NULL, 0), 0);
			assert_int_equal(token, 1);
		}
	/* One step above the edge the two equal ones share the draws. */
	uint32_t n[5] = {0};
	p.temperature = 1e-3f;
	for (uint64_t pos = 0; pos < 200; pos++) {
		assert_int_equal(nsv_sample(&s, logits, &p, 9, 0, pos, &token, NULL, 0), 0);
		n[token]++;
	}
	assert_true(n[1] > 0 && n[3] > 0 && n[1] + n[3] == 200);
	nsv_sampler_deinit(&s);
}

static void test_not_finite(void **state)
{
	const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
	float logits[300];
	struct nsv_params p = nsv_params_default();
	struct nsv_sampler s;
	struct nsv_lp lp[3] = {{5, 5}, {5, 5}, {5, 5}};

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, 300), 0);
	for (int round = 0; round < 200; round++) {
		int32_t token = -9;
		draw_logits(logits, 300);
		logits[round == 0 ? 0 : round == 1 ? 299 : draw(300)] = bad[draw(4)];
		p.temperature = draw(2) ? 0 : 1;
		assert_int_equal(nsv_sample(&s, logits, &p, 1, 0, 2, &token, lp, 3), -EDOM);
		assert_int_equal(token, -9);
		assert_int_equal(lp[0].id, 5);
	}
	nsv_sampler_deinit(&s);
	assert_int_equal(nsv_sampler_init(&s, 0), -EINVAL);
	nsv_sampler_deinit(&s);
}

static void test_log_probs(void **state)
{
	(void)state;
	for (int round = 0; round < 300; round++) {
		uint32_t n = 1 + draw(200), n_lp = 1 + draw(65);
		struct nsv_lp sorted[200], lp[65];
		struct nsv_params params = draw_params(n);
		struct nsv_sampler s;
		float logits[200];
		double sum = 0;
		int32_t token;

		draw_logits(logits, n);
		assert_int_equal(nsv_sampler_init(&s, n), 0);
		assert_int_equal(
			nsv_sample(&s, logits, &params, 3, 0, draw_u64(), &token, lp, n_lp), 0);
		sort_logits(sorted, logits, n);
		for (uint32_t i = 0; i < n; i++)
			sum += exp((double)logits[i] - sorted[0].logprob);
		double lse = sorted[0].logprob + log(sum);
		assert_int_equal(lp[0].id, token);
		assert_true(fabs(lp[0].logprob - (logits[token] - lse)) < 1e-5);
		for (uint32_t i = 0; i + 1 < n_lp; i++) {
			assert_int_equal(lp[i + 1].id, i < n ? sorted[i].id : -1);
			if (i < n)
				assert_true(
					fabs(lp[i + 1].logprob - (sorted[i].logprob - lse)) < 1e-5);
		}
		nsv_sampler_deinit(&s);
	}
}

/* ---- The generator */

static void philox_round(uint32_t c[4], const uint32_t k[2])
{
	uint64_t a = 0xd2511f53ull * c[0], b = 0xcd9e8d57ull * c[2];
	uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
		(uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};

	memcpy(c, next, sizeof(next));
}

static void philox(uint32_t c[4], const uint32_t key[2])
{
	uint32_t k[2] = {key[0], key[1]};

	for (int i = 0; i < 10; i++) {
		philox_round(c, k);
		k[0] += 0x9e3779b9u;
		k[1] += 0xbb67ae85u;
	}
}

/* The published vectors of Philox 4x32-10 pin the test's own, which pins the sampler's. */
static void test_uniform(void **state)
{
	uint32_t zero[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
	uint32_t pi[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
	const uint32_t want_zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
	const uint32_t want_ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
	const uint32_t want_pi[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};

	(void)state;
	philox(zero, (const uint32_t[2]){0, 0});
	philox(ones, (const uint32_t[2]){~0u, ~0u});
	philox(pi, (const uint32_t[2]){0xa4093822, 0x299f31d0});
	assert_memory_equal(zero, want_zero, sizeof(zero));
	assert_memory_equal(ones, want_ones, sizeof(ones));
	assert_memory_equal(pi, want_pi, sizeof(pi));
	for (int i = 0; i < 10000; i++) {
		uint64_t seed = draw_u64(), pos = draw_u64();
		uint32_t branch = draw(1000);
		uint32_t c[4] = {(uint32_t)pos, (uint32_t)(pos >> 32), branch, 0};

		philox(c, (const uint32_t[2]){(uint32_t)seed, (uint32_t)(seed >> 32)});
		float u = nsv_uniform(seed, branch, pos);
		assert_true(u >= 0 && u < 1);
		assert_true((double)u == (c[0] >> 8) / 16777216.0);
	}
}

/* ---- Parameters */

static int check_float_at(size_t off, float x, struct nsv_err *err)
{
	struct nsv_params p = nsv_params_default();

	memcpy((char *)&p + off, &x, sizeof(x));
	err->text[0] = '\0';
	return nsv_params_check(&p, err);
}

static void test_float_params(void **state)
{
#define F(f) #f, offsetof(struct nsv_params, f)
	static const struct {
		const char *name;
		size_t off;
		float x;
		int want;
	} cases[] = {
		{F(temperature), 0, 0},
		{F(temperature), 2, 0},
		{F(temperature), 1e-30f, 0},
		{F(temperature), -1e-30f, NSV_E_PARAM},
		{F(top_p), 1, 0},
		{F(top_p), 1e-6f, 0},
		{F(top_p), 0, NSV_E_PARAM},
		{F(top_p), 1.0001f, NSV_E_PARAM},
		{F(top_p), -0.5f, NSV_E_PARAM},
		{F(min_p), 0, 0},
		{F(min_p), 1, 0},
		{F(min_p), 1.5f, NSV_E_PARAM},
		{F(min_p), -0.1f, NSV_E_PARAM},
		{F(typical_p), 1, 0},
		{F(typical_p), 0.5f, NSV_E_UNSUPPORTED},
		{F(typical_p), 0, NSV_E_PARAM},
		{F(repetition_penalty), 1, 0},
		{F(repetition_penalty), 1.1f, NSV_E_UNSUPPORTED},
		{F(repetition_penalty), 0, NSV_E_PARAM},
		{F(presence_penalty), 0, 0},
		{F(presence_penalty), -1, NSV_E_UNSUPPORTED},
		{F(frequency_penalty), 0.5f, NSV_E_UNSUPPORTED},
	};
	struct nsv_err err;

	(void)state;
	for (size_t i = 0; i < NSV_ARRAY_LEN(cases); i++) {
		const float bad[] = {NAN, INFINITY, -INFINITY};
		int ret = check_float_at(cases[i].off, cases[i].x, &err);

		if (ret != cases[i].want)
			fail_msg("%s = %g gives %d, expected %d", cases[i].name, (double)cases[i].x,
				ret, cases[i].want);
		if (ret)
			assert_non_null(strstr(err.text, cases[i].name));
		for (size_t b = 0; b < NSV_ARRAY_LEN(bad); b++) {
			assert_int_equal(check_float_at(cases[i].off, bad[b], &err), NSV_E_PARAM);
			assert_non_null(strstr(err.text, cases[i].name));
		}
	}
#undef F
}

static void expect(struct nsv_params p, int want, const char *word)
{
	struct nsv_err err = {""};
	int ret = nsv_params_check(&p, &err);

	if (ret != want || !strstr(err.text, word))
		fail_msg("%d \"%s\", expected %d and \"%s\"", ret, err.text, want, word);
}

static void test_int_params(void **state)
{
	const struct nsv_params p = nsv_params_default();
	struct nsv_params q;

	(void)state;
#define WITH(f, x) (q = p, q.f = (x), q)
	expect(p, 0, "");
	expect(WITH(top_k, 0x7fffffff), 0, "");
	expect(WITH(top_k, -1), NSV_E_PARAM, "top_k");
	expect(WITH(flags, NSV_PARAM_SEED | NSV_PARAM_IGNORE_END | NSV_PARAM_LOGPROBS), 0, "");
	expect(WITH(flags, NSV_PARAM_PROMPT_LOGPROBS), NSV_E_UNSUPPORTED, "prompt");
	for (int bit = 4; bit < 32; bit++)
		expect(WITH(flags, 1u << bit), NSV_E_PARAM, "flags");
	expect(WITH(max_tokens, UINT32_MAX), 0, "");
	expect(WITH(n_branch, 0), 0, "");
	expect(WITH(n_branch, 2), NSV_E_UNSUPPORTED, "n_branch");
	expect(WITH(min_tokens, 1), NSV_E_UNSUPPORTED, "min_tokens");
	expect(WITH(penalty_window, 64), NSV_E_UNSUPPORTED, "penalty_window");
	expect(WITH(priority, -1), NSV_E_UNSUPPORTED, "priority");
	expect(WITH(n_logprob, 3), NSV_E_PARAM, "n_logprob");
	q = p;
	q.flags = NSV_PARAM_LOGPROBS;
	q.n_logprob = NSV_MAX_LOGPROB;
	expect(q, 0, "");
	q.n_logprob++;
	expect(q, NSV_E_PARAM, "n_logprob");
	for (size_t i = 0; i < NSV_ARRAY_LEN(p.reserved); i++)
		expect(WITH(reserved[i], 1u << draw(32)), NSV_E_PARAM, "reserved");
	assert_int_equal(p.len, sizeof(p));
#undef WITH
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_reference),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_distribution),
		cmocka_unit_test(test_greedy),
		cmocka_unit_test(test_not_finite),
		cmocka_unit_test(test_log_probs),
		cmocka_unit_test(test_uniform),
		cmocka_unit_test(test_float_params),
		cmocka_unit_test(test_int_params),
	};
	unsigned int seed = (unsigned int)time(NULL);

	printf("seed %u\n", seed);
	srandom(seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
