/* What history and lists make of logits before anything is drawn from them, against the scalar
 * reference bit by bit, and by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "tests/tools/rnd.h"
#include "tests/tools/sample-ref.h"

static int by_int(const void *pa, const void *pb)
{
	int32_t a = *(const int32_t *)pa, b = *(const int32_t *)pb;

	return (a > b) - (a < b);
}

/* Up to most ids, in order, once each. */
static void draw_ids(struct nsv_id_list *list, uint32_t most, uint32_t n_vocab)
{
	uint32_t n = t_below(most + 1), n_kept = 0;

	for (uint32_t i = 0; i < n; i++)
		list->id[i] = (int32_t)t_below(n_vocab);
	qsort(list->id, n, sizeof(*list->id), by_int);
	for (uint32_t i = 0; i < n; i++)
		if (n_kept == 0 || list->id[n_kept - 1] != list->id[i])
			list->id[n_kept++] = list->id[i];
	list->n = n_kept;
}

static void draw_lists(struct nsv_sample_lists *l, uint32_t n_vocab)
{
	struct nsv_id_list ids = {0};

	*l = (struct nsv_sample_lists){0};
	if (t_below(2))
		draw_ids(&l->ban, 10, n_vocab);
	if (t_below(3) == 0)
		draw_ids(&l->allow, 20, n_vocab);
	draw_ids(&l->stop, 4, n_vocab);
	if (t_below(2))
		draw_ids(&ids, 20, n_vocab);
	l->n_bias = ids.n;
	for (uint32_t i = 0; i < ids.n; i++)
		l->bias[i] = (struct nsv_bias){ids.id[i], t_float(-10, 10)};
}

static void draw_adjustments(struct nsv_params *p)
{
	if (t_below(2))
		p->repetition_penalty = t_below(20) ? t_float(0.5f, 2) : FLT_MAX;
	if (t_below(2))
		p->presence_penalty = t_float(-2, 2);
	if (t_below(2))
		p->frequency_penalty = t_below(20) ? t_float(-2, 2) : -FLT_MAX;
	if (t_below(2))
		p->penalty_window = 1 + t_below(100);
	if (t_below(2))
		p->min_tokens = t_below(60);
	if (t_below(4) == 0)
		p->flags |= NSV_PARAM_IGNORE_END;
}

struct history {
	int32_t tokens[100];
	uint32_t n_prompt, n_output;
};

/* Some ids lie outside the vocabulary: they change nothing. */
static void draw_history(struct history *h, uint32_t n_vocab)
{
	h->n_prompt = t_below(50);
	h->n_output = t_below(50);
	for (size_t i = 0; i < NSV_ARRAY_LEN(h->tokens); i++)
		h->tokens[i] = t_below(50) ? (int32_t)t_below(n_vocab) : (int32_t)t_rand();
}

/* Every step bit by bit, then what is drawn; the same sampler serves all rounds of a vocabulary. */
static void check_adjusted(struct nsv_sampler *s, const struct nsv_sample_in *in)
{
	float *want = calloc(s->n_vocab, sizeof(*want));
	const float *x;
	int32_t token = -9;
	uint32_t n_want = sample_ref_adjust(s, in, want);

	assert_int_equal(nsv_sample_adjust(s, in, &x), n_want);
	assert_memory_equal(x, want, s->n_vocab * sizeof(*want));
	for (uint32_t i = 0; i < s->n_vocab; i++)
		assert_int_equal(s->count[i], 0);
	int ret = nsv_sample_next(s, &nsv_team_alone, in, &token, NULL, 0);
	if (n_want == 0) {
		assert_int_equal(ret, -ENODATA);
		assert_int_equal(token, -9);
	} else {
		float u = nsv_uniform(in->seed, in->branch, in->position);
		assert_int_equal(ret, 0);
		assert_true(want[token] != -INFINITY);
		assert_int_equal(token, sample_ref_choose(want, s->n_vocab, in->params, u));
	}
	free(want);
}

static void test_adjust(void **state)
{
	(void)state;
	for (int i = 0; i < 60; i++) {
		uint32_t n = 1 + t_below(200);
		float *logits = calloc(n, sizeof(*logits));
		struct nsv_sampler s;

		assert_int_equal(nsv_sampler_init(&s, n, 1), 0);
		assert_int_equal(nsv_sampler_add_end(&s, (int32_t)t_below(n)), 0);
		for (int round = 0; round < 30; round++) {
			struct nsv_params params = sample_draw_params(n);
			struct nsv_sample_lists lists;
			struct history h;

			sample_draw_logits(logits, n);
			draw_lists(&lists, n);
			draw_history(&h, n);
			draw_adjustments(&params);
			const struct nsv_sample_in in = {.logits = logits,
				.params = &params,
				.lists = &lists,
				.tokens = h.tokens,
				.n_prompt = h.n_prompt,
				.n_output = h.n_output,
				.seed = t_rand(),
				.position = t_rand()};
			check_adjusted(&s, &in);
		}
		nsv_sampler_deinit(&s);
		free(logits);
	}
}

/* Order of the steps on numbers where another order gives others: by hand. */
static void test_adjust_order(void **state)
{
	const float logits[] = {4, -4, 1, 0, 2};
	const int32_t tokens[] = {0, 1, 0, 0, 2, 77, -1};
	struct nsv_sample_lists lists = {.n_bias = 1, .bias = {{0, 0.5f}}};
	struct nsv_params p = nsv_params_default();
	const struct nsv_sample_in in = {.logits = logits,
		.params = &p,
		.lists = &lists,
		.tokens = tokens,
		.n_prompt = 2,
		.n_output = 5};
	struct nsv_sampler s;
	const float *x;

	(void)state;
	p.repetition_penalty = 2;
	p.presence_penalty = 1;
	p.frequency_penalty = 0.25f;
	assert_int_equal(nsv_sampler_init(&s, 5, 1), 0);
	assert_int_equal(nsv_sample_adjust(&s, &in, &x), 5);
	/* 4 / 2 - (1 + 2 * 0.25) + 0.5; -4 * 2, seen in the prompt only; 1 / 2 - 1.25 */
	const float all[] = {1, -8, -0.75f, 0, 2};
	assert_memory_equal(x, all, sizeof(all));
	p.penalty_window = 4; /* 0 2 77 -1 */
	nsv_sample_adjust(&s, &in, &x);
	const float some[] = {1.25f, -4, -0.75f, 0, 2};
	assert_memory_equal(x, some, sizeof(some));
	p.penalty_window = 2; /* none that the vocabulary has */
	lists.n_bias = 0;
	nsv_sample_adjust(&s, &in, &x);
	assert_memory_equal(x, logits, sizeof(logits));
	nsv_sampler_deinit(&s);
}

/* Neutral values: the logits themselves go on, and the same token comes with the same bits. */
static void test_neutral(void **state)
{
	static const struct nsv_sample_lists none;
	const int32_t tokens[] = {1, 2, 3, 1};
	float logits[300];
	struct nsv_sampler s;

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, 300, 1), 0);
	for (int round = 0; round < 300; round++) {
		struct nsv_params p = sample_draw_params(300);
		struct nsv_lp lp[2][5];
		int32_t plain, full;
		const float *x;

		sample_draw_logits(logits, 300);
		p.penalty_window = t_below(4);
		const struct nsv_sample_in in = {.logits = logits,
			.params = &p,
			.lists = &none,
			.tokens = tokens,
			.n_prompt = 2,
			.n_output = 2,
			.seed = 4,
			.position = (uint64_t)round};
		assert_int_equal(nsv_sample_adjust(&s, &in, &x), 300);
		assert_ptr_equal(x, logits);
		assert_int_equal(
			sample_pick(&s, logits, &p, 4, 0, in.position, &plain, lp[0], 5), 0);
		assert_int_equal(nsv_sample_next(&s, &nsv_team_alone, &in, &full, lp[1], 5), 0);
		assert_int_equal(plain, full);
		assert_memory_equal(lp[0], lp[1], sizeof(lp[0]));
	}
	nsv_sampler_deinit(&s);
}

static void test_min_tokens(void **state)
{
	const float logits[] = {9, 8, 7, 6};
	struct nsv_sample_lists lists = {.stop = {.n = 1, .id = {1}}};
	struct nsv_params p = nsv_params_default();
	struct nsv_sample_in in = {.logits = logits, .params = &p, .lists = &lists};
	const int32_t tokens[] = {2, 2, 2};
	struct nsv_sampler s;
	int32_t token;

	(void)state;
	in.tokens = tokens;
	p.min_tokens = 2;
	assert_int_equal(nsv_sampler_init(&s, 4, 1), 0);
	assert_int_equal(nsv_sampler_add_end(&s, 0), 0);
	assert_int_equal(nsv_sampler_add_end(&s, 4), -EINVAL);
	assert_int_equal(nsv_sampler_add_end(&s, -1), -EINVAL);
	for (in.n_output = 0; in.n_output < 4; in.n_output++) {
		assert_int_equal(nsv_sample_next(&s, &nsv_team_alone, &in, &token, NULL, 0), 0);
		assert_int_equal(token, in.n_output < 2 ? 2 : 0);
	}
	in.n_output = 1;
	p.flags = NSV_PARAM_IGNORE_END;
	assert_int_equal(nsv_sample_next(&s, &nsv_team_alone, &in, &token, NULL, 0), 0);
	assert_int_equal(token, 0);
	p.flags = 0;
	lists.allow = (struct nsv_id_list){.n = 2, .id = {0, 1}};
	assert_int_equal(nsv_sample_next(&s, &nsv_team_alone, &in, &token, NULL, 0), -ENODATA);
	while (s.n_end < NSV_MAX_END)
		assert_int_equal(nsv_sampler_add_end(&s, 0), 0);
	assert_int_equal(nsv_sampler_add_end(&s, 0), -ENOSPC);
	nsv_sampler_deinit(&s);
}

/* Penalties change the choice, not the log-probabilities, which are the model's. */
static void test_raw_log_probs(void **state)
{
	const float logits[] = {3, 2, 1};
	const struct nsv_sample_lists lists = {.ban = {.n = 1, .id = {0}}};
	const struct nsv_params p = nsv_params_default();
	const struct nsv_sample_in in = {.logits = logits, .params = &p, .lists = &lists};
	struct nsv_lp lp[3], alone[3];
	struct nsv_sampler s;
	int32_t token;

	(void)state;
	assert_int_equal(nsv_sampler_init(&s, 3, 1), 0);
	assert_int_equal(nsv_sample_next(&s, &nsv_team_alone, &in, &token, lp, 3), 0);
	assert_int_equal(token, 1);
	assert_int_equal(lp[1].id, 0);
	assert_true(fabsf(lp[1].logprob - lp[0].logprob - 1) < 1e-6f);
	assert_int_equal(nsv_log_probs(&s, &nsv_team_alone, logits, 1, alone, 3), 0);
	assert_memory_equal(lp, alone, sizeof(lp));
	assert_int_equal(nsv_log_probs(&s, &nsv_team_alone, logits, 3, alone, 3), -EINVAL);
	assert_int_equal(nsv_log_probs(&s, &nsv_team_alone, logits, -1, alone, 3), -EINVAL);
	const float bad[] = {1, NAN, 2};
	assert_int_equal(nsv_log_probs(&s, &nsv_team_alone, bad, 0, alone, 3), -EDOM);
	assert_memory_equal(lp, alone, sizeof(lp));
	nsv_sampler_deinit(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_adjust),
		cmocka_unit_test(test_adjust_order),
		cmocka_unit_test(test_neutral),
		cmocka_unit_test(test_min_tokens),
		cmocka_unit_test(test_raw_log_probs),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
