/* What is drawn from logits, against a scalar reference that sorts everything; its distribution by
 * chi-square; the generator against published vectors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "tests/tools/rnd.h"
#include "tests/tools/sample-ref.h"

static void check_token(
	const float *logits, uint32_t n, const struct nsv_params *p, float u, int32_t token)
{
	int32_t want = sample_ref_choose(logits, n, p, u);

	if (token != want)
		fail_msg("%d, not %d (n %u T %g k %d p %g min %g typical %g)", token, want, n,
			(double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p,
			(double)p->typical_p);
}

static void test_against_reference(void **state)
{
	(void)state;
	for (int round = 0; round < 3000; round++) {
		uint32_t n = round % 200 == 0 ? 20000 + t_below(30000) : 1 + t_below(300);
		float *logits = calloc(n, sizeof(*logits));
		uint64_t seed = t_rand(), pos = t_rand();
		uint32_t branch = t_below(5);
		struct nsv_params params = sample_draw_params(n);
		struct nsv_sampler s;
		int32_t token = -1;

		sample_draw_logits(logits, n);
		assert_int_equal(nsv_sampler_init(&s, n, 1), 0);
		assert_int_equal(
			sample_pick(&s, logits, &params, seed, branch, pos, &token, NULL, 0), 0);
		check_token(logits, n, &params, nsv_uniform(seed, branch, pos), token);
		/* A function of its arguments alone. */
		int32_t again = -1;
		assert_int_equal(
			sample_pick(&s, logits, &params, seed, branch, pos, &again, NULL, 0), 0);
		assert_int_equal(again, token);
		nsv_sampler_deinit(&s);
		free(logits);
	}
}

/* The top-p that the i-th rank just reaches, or nearly so. */
static float top_p_at(const float *x, uint32_t n, const struct nsv_params *params, uint32_t i)
{
	struct nsv_lp *sorted = calloc(n, sizeof(*sorted));
	struct nsv_params all = *params;
	float *w = calloc(n, sizeof(*w));
	double sum = 0, total = 0;

	all.top_p = all.typical_p = 1;
	sample_ref_keep(x, n, &all, w);
	sample_ref_sort(sorted, x, n);
	for (uint32_t k = 0; k < n; k++) {
		total += (double)w[sorted[k].id];
		sum += k <= i ? (double)w[sorted[k].id] : 0;
	}
	free(sorted);
	free(w);
	return fminf((float)(sum / total), 1);
}

/* What samples see is unlike the rest: every sixteenth vector. */
static void mislead(float *logits, uint32_t n)
{
	float below = t_float(-8, 8);

	for (uint32_t i = 0; i < n; i++)
		logits[i] = t_float(0, 4) + (i / 16 % 16 ? 0 : below);
}

/* Rows as long as vocabularies, of which heads and samples are taken; some that may not come; of some
 * the slices are known. Cuts fall anywhere, and where one candidate more or less would do. */
static void test_long_rows(void **state)
{
	enum { LEAST = 4096, FEW = 8000, MANY = 60000 };
	static struct nsv_scan_range ranges[(LEAST + MANY) / NSV_SCAN_SLICE + 1];
	static struct nsv_sample_lists lists;

	(void)state;
	for (int round = 0; round < 600; round++) {
		uint32_t n = LEAST + t_below(round % 10 ? FEW : MANY);
		float *logits = calloc(n, sizeof(*logits)), *x = calloc(n, sizeof(*x));
		struct nsv_params params = sample_draw_params(n);
		struct nsv_sample_in in = {
			.logits = logits, .params = &params, .lists = &lists, .seed = t_rand()};
		struct nsv_sampler s;
		int32_t token;

		sample_draw_logits(logits, n);
		if (t_below(4) == 0)
			mislead(logits, n);
		if (t_below(2))
			params.top_k = 0;
		lists.ban.n = t_below(2) ? 0 : t_below(200);
		for (uint32_t i = 0; i < lists.ban.n; i++)
			lists.ban.id[i] = (int32_t)(i * (n / 200) + t_below(n / 200));
		assert_int_equal(nsv_sampler_init(&s, n, 1), 0);
		uint32_t n_cand = sample_ref_adjust(&s, &in, x);
		params.temperature = t_float(0.2f, 2);
		if (t_below(2))
			params.top_p = top_p_at(x, n, &params, t_below(t_below(2) ? 50 : n_cand));
		if (t_below(3))
			sample_look(&in, n, ranges);
		assert_int_equal(nsv_sample_next(&s, &nsv_team_alone, &in, &token, NULL, 0), 0);
		check_token(x, n, &params, nsv_uniform(in.seed, 0, 0), token);
		nsv_sampler_deinit(&s);
		free(logits);
		free(x);
	}
}

/* A few ids of which each matters, and a tail that cannot be reached: at top-p's edges between them,
 * and one float beside, another of them more or less is another token. Slices are known or not. */
static void test_edges(void **state)
{
	enum { N = 8192, N_LIKELY = 5 };
	static struct nsv_scan_range ranges[N / NSV_SCAN_SLICE];
	static float logits[N];
	struct nsv_params params = nsv_params_default();
	struct nsv_sampler s;
	int32_t token;

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, N, 1), 0);
	params.temperature = 1;
	for (uint64_t round = 0; round < 150; round++) {
		for (uint32_t i = 0; i < N; i++)
			logits[i] = t_float(-12, -9);
		for (uint32_t i = 0; i < N_LIKELY; i++)
			logits[t_below(N)] = t_float(0, 1);
		float edge = top_p_at(logits, N, &params, t_below(N_LIKELY - 1));
		for (uint64_t k = 0; k < 6; k++) {
			struct nsv_sample_in in = {
				.logits = logits, .params = &params, .seed = round, .position = k};

			params.top_p = k % 3 == 0 ? edge : nextafterf(edge, k % 3 == 1 ? 0 : 1);
			if (k > 2)
				sample_look(&in, N, ranges);
			assert_int_equal(
				nsv_sample_next(&s, &nsv_team_alone, &in, &token, NULL, 0), 0);
			check_token(logits, N, &params, nsv_uniform(round, 0, k), token);
		}
		params.top_p = 1;
	}
	nsv_sampler_deinit(&s);
}

/* A position at which u is next to where the weights before and with a place meet. */
static uint64_t find_edge(const float *w, uint32_t n, uint32_t at, uint64_t seed)
{
	double sum = 0, total = 0;
	uint64_t position = 0;

	for (uint32_t i = 0; i < n; i++) {
		total += (double)w[i];
		sum += i < at ? (double)w[i] : 0;
	}
	while (fabs((double)nsv_uniform(seed, 0, position) - sum / total) > 4e-6)
		position++;
	return position;
}

/* Where nothing is cut: every other slice is light, in the others it is the last one that weighs.
 * Draws next to their edges, by sums that are off in what is promised, or are none. */
static void test_draws(void **state)
{
	enum { N = 8192, LAST = NSV_SCAN_SLICE - 1 };
	static struct nsv_scan_range ranges[N / NSV_SCAN_SLICE];
	static float logits[N], w[N];
	struct nsv_params params = nsv_params_default();
	struct nsv_sampler s;
	int32_t token;

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, N, 1), 0);
	params.temperature = 1;
	for (uint64_t round = 0; round < 100; round++) {
		struct nsv_sample_in in = {.logits = logits, .params = &params, .seed = round};
		uint32_t slice = t_below(N / NSV_SCAN_SLICE) / 2 * 2,
			 last = slice * NSV_SCAN_SLICE + LAST;
		float factor = 1 + (t_below(2) ? 0x1p-17f : -0x1p-17f);

		for (uint32_t i = 0; i < N; i++)
			logits[i] = i / NSV_SCAN_SLICE % 2	? t_float(-9, -7)
				    : i % NSV_SCAN_SLICE < LAST ? t_float(-12, -11)
								: t_float(-1, 0);
		sample_ref_keep(logits, N, &params, w);
		sample_look(&in, N, ranges);
		for (size_t i = 0; i < NSV_ARRAY_LEN(ranges); i++)
			ranges[i].sum *= factor;
		if (round % 8 == 0)
			ranges[slice + 1].sum = round % 16 ? NAN : 0;
		in.position = find_edge(w, N, last + t_below(2), round);
		assert_int_equal(nsv_sample_next(&s, &nsv_team_alone, &in, &token, NULL, 0), 0);
		check_token(logits, N, &params, nsv_uniform(round, 0, in.position), token);
	}
	nsv_sampler_deinit(&s);
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
	assert_int_equal(nsv_sampler_init(&s, 4, 1), 0);
	for (size_t c = 0; c < NSV_ARRAY_LEN(cases); c++) {
		struct nsv_params p = nsv_params_default();
		bool seen[4] = {false};
		int32_t token;

		p.top_k = cases[c].top_k;
		p.min_p = cases[c].min_p;
		p.top_p = cases[c].top_p;
		p.temperature = cases[c].temperature;
		for (uint64_t pos = 0; pos < 2000; pos++) {
			assert_int_equal(
				sample_pick(&s, logits, &p, 1, 0, pos, &token, NULL, 0), 0);
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
	double chi2 = 0, total = 0, rest = N_DRAW, rest_want = N_DRAW;
	uint32_t count[64] = {0}, n_bin = 0;
	uint64_t seed = t_rand();
	struct nsv_sampler s;
	float w[64];
	int32_t token;

	assert_int_equal(nsv_sampler_init(&s, n, 1), 0);
	for (uint64_t pos = 0; pos < N_DRAW; pos++) {
		assert_int_equal(sample_pick(&s, logits, params, seed, 0, pos, &token, NULL, 0), 0);
		count[token]++;
	}
	sample_ref_keep(logits, n, params, w);
	for (uint32_t i = 0; i < n; i++)
		total += (double)w[i];
	for (uint32_t i = 0; i < n; i++) {
		double want = w[i] / total * N_DRAW;
		/* What was cut never comes. */
		if (w[i] == 0)
			assert_int_equal(count[i], 0);
		if (want < 10)
			continue;
		chi2 += (count[i] - want) * (count[i] - want) / want;
		rest -= count[i];
		rest_want -= want;
		n_bin++;
	}
	/* The unlikely ones together. */
	if (rest_want >= 10)
		chi2 += pow(rest - rest_want, 2) / rest_want;
	if (n_bin >= 2)
		assert_true(chi_square_z(chi2, n_bin - (rest_want < 10)) < 6);
	nsv_sampler_deinit(&s);
}

static void test_distribution(void **state)
{
	(void)state;
	for (int round = 0; round < 12; round++) {
		struct nsv_params params = sample_draw_params(64);
		float logits[64];

		params.temperature = t_float(0.3f, 2);
		for (int i = 0; i < 64; i++)
			logits[i] = t_float(-3, 3);
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
	assert_int_equal(nsv_sampler_init(&s, 5, 1), 0);
	const float cold[] = {0, FLT_MIN, 1e-30f, 9.9e-4f};
	for (size_t i = 0; i < NSV_ARRAY_LEN(cold); i++)
		for (uint64_t pos = 0; pos < 50; pos++) {
			p.temperature = cold[i];
			token = -1;
			assert_int_equal(
				sample_pick(&s, logits, &p, 9, 0, pos, &token, NULL, 0), 0);
			assert_int_equal(token, 1);
		}
	/* One step above the edge the two equal ones share the draws. */
	uint32_t n[5] = {0};
	p.temperature = 1e-3f;
	for (uint64_t pos = 0; pos < 200; pos++) {
		assert_int_equal(sample_pick(&s, logits, &p, 9, 0, pos, &token, NULL, 0), 0);
		n[token]++;
	}
	assert_true(n[1] > 0 && n[3] > 0 && n[1] + n[3] == 200);
	nsv_sampler_deinit(&s);
}

/* Slices of which it is said that they hold none of the likeliest, or weigh nothing to speak of, are
 * not looked at: these lie. */
static void test_ranges(void **state)
{
	enum { N = 20 * NSV_SCAN_SLICE + 17, AT = 3 * NSV_SCAN_SLICE + 5 };
	struct nsv_scan_range ranges[21];
	struct nsv_params p = nsv_params_default();
	struct nsv_sample_in in = {.logits = calloc(N, sizeof(float)), .params = &p};
	float *logits = (float *)(uintptr_t)in.logits;
	struct nsv_sampler s;
	struct nsv_lp lp[2];
	int32_t token;

	(void)state;
	assert_non_null(logits);
	assert_int_equal(nsv_sampler_init(&s, N, 1), 0);
	for (uint32_t k = 0; k < 5; k++) {
		memset(logits, 0, N * sizeof(*logits));
		logits[AT] = 5;
		p.temperature = k > 0 ? 1e-2f : 0;
		p.top_k = k == 1 ? 40 : 0;
		p.min_p = k == 2 ? 0.5f : 0;
		p.top_p = k == 3 ? 0.9f : 1;
		sample_look(&in, N, ranges);
		for (uint32_t i = 1; i < NSV_ARRAY_LEN(ranges); i += i == 2 ? 2 : 1)
			logits[i * NSV_SCAN_SLICE + 3] = 9;
		assert_int_equal(nsv_sample_next(&s, &nsv_team_alone, &in, &token, lp, 2), 0);
		assert_int_equal(token, AT);
		assert_int_equal(lp[1].id, AT);
	}
	ranges[5].finite = false;
	assert_int_equal(nsv_sample_next(&s, &nsv_team_alone, &in, &token, lp, 2), -EDOM);
	nsv_sampler_deinit(&s);
	free(logits);
}

static void test_not_finite(void **state)
{
	const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
	float logits[300];
	struct nsv_params p = nsv_params_default();
	struct nsv_sampler s;
	struct nsv_lp lp[3] = {{5, 5}, {5, 5}, {5, 5}};

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, 300, 1), 0);
	for (int round = 0; round < 200; round++) {
		int32_t token = -9;
		sample_draw_logits(logits, 300);
		logits[round == 0 ? 0 : round == 1 ? 299 : t_below(300)] = bad[t_below(4)];
		p.temperature = t_below(2) ? 0 : 1;
		assert_int_equal(sample_pick(&s, logits, &p, 1, 0, 2, &token, lp, 3), -EDOM);
		assert_int_equal(token, -9);
		assert_int_equal(lp[0].id, 5);
	}
	nsv_sampler_deinit(&s);
	assert_int_equal(nsv_sampler_init(&s, 0, 1), -EINVAL);
	nsv_sampler_deinit(&s);
}

static bool same_lp(float have, double want)
{
	return fabs((double)have - want) <= 1e-5 + 1e-6 * fabs(want) || have == (float)want;
}

static void test_log_probs(void **state)
{
	(void)state;
	for (int round = 0; round < 300; round++) {
		uint32_t n = 1 + t_below(200), n_lp = 1 + t_below(65);
		struct nsv_lp sorted[200], lp[65];
		struct nsv_params params = sample_draw_params(n);
		struct nsv_sampler s;
		float logits[200];
		double sum = 0;
		int32_t token;

		sample_draw_logits(logits, n);
		assert_int_equal(nsv_sampler_init(&s, n, 1), 0);
		assert_int_equal(
			sample_pick(&s, logits, &params, 3, 0, t_rand(), &token, lp, n_lp), 0);
		sample_ref_sort(sorted, logits, n);
		for (uint32_t i = 0; i < n; i++)
			sum += exp((double)logits[i] - sorted[0].logprob);
		double lse = sorted[0].logprob + log(sum);
		assert_int_equal(lp[0].id, token);
		assert_true(same_lp(lp[0].logprob, logits[token] - lse));
		for (uint32_t i = 0; i + 1 < n_lp; i++) {
			assert_int_equal(lp[i + 1].id, i < n ? sorted[i].id : -1);
			if (i < n)
				assert_true(same_lp(lp[i + 1].logprob, sorted[i].logprob - lse));
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
		uint64_t seed = t_rand(), pos = t_rand();
		uint32_t branch = t_below(1000);
		uint32_t c[4] = {(uint32_t)pos, (uint32_t)(pos >> 32), branch, 0};

		philox(c, (const uint32_t[2]){(uint32_t)seed, (uint32_t)(seed >> 32)});
		float u = nsv_uniform(seed, branch, pos);
		assert_true(u >= 0 && u < 1);
		assert_true((double)u == (c[0] >> 8) / 16777216.0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_reference),
		cmocka_unit_test(test_long_rows),
		cmocka_unit_test(test_edges),
		cmocka_unit_test(test_draws),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_distribution),
		cmocka_unit_test(test_greedy),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_not_finite),
		cmocka_unit_test(test_log_probs),
		cmocka_unit_test(test_uniform),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
