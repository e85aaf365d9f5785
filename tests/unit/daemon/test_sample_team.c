/* Rows that the members of a team sample together: the same tokens and log-probabilities as one
 * thread's, whatever the team's size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>

#include "tests/tools/rnd.h"
#include "tests/tools/sample-ref.h"

/* A row that members of a team compute together. */
struct shared_row {
	struct nsv_sampler *s;
	struct nsv_sample_in in;
	int32_t token;
	struct nsv_lp lp[4];
	int ret[8]; /* by member */
};

static void sample_member(const struct nsv_part *part, void *arg)
{
	struct shared_row *row = arg;

	row->ret[part->index] =
		nsv_sample_next(row->s, part, &row->in, &row->token, row->lp, 4);
}

static void check_shared(struct nsv_team *team, struct nsv_sampler *s, float *logits, uint32_t n)
{
	static const struct nsv_sample_lists lists = {.ban = {.n = 1, .id = {3}}};
	static struct nsv_scan_range ranges[128];
	struct nsv_params params = sample_draw_params(n);
	struct shared_row row = {.s = s, .in = {.logits = logits, .params = &params}};
	struct nsv_lp lp[4];
	int32_t token;

	sample_draw_logits(logits, n);
	if (t_below(20) == 0)
		logits[t_below(n)] = NAN;
	row.in.seed = t_rand();
	row.in.lists = t_below(2) ? &lists : NULL;
	int ret = nsv_sample_next(s, &nsv_team_alone, &row.in, &token, lp, 4);
	/* Its slices are known or not, which makes no difference. */
	assert_true(nsv_scan_n_slice(n) <= NSV_ARRAY_LEN(ranges));
	if (t_below(3))
		sample_look(&row.in, n, ranges);
	nsv_team_run(team, sample_member, &row);
	for (uint32_t i = 0; i < nsv_team_size(team); i++)
		assert_int_equal(row.ret[i], ret);
	if (ret == 0) {
		assert_int_equal(row.token, token);
		assert_memory_equal(row.lp, lp, sizeof(lp));
	}
}

static void test_teams(void **state)
{
	(void)state;
	for (uint32_t n_member = 1; n_member <= 8; n_member += 1 + t_below(3)) {
		uint32_t n = 4096 + t_below(20000);
		float *logits = calloc(n, sizeof(*logits));
		struct nsv_team *team;
		struct nsv_sampler s;

		assert_int_equal(nsv_sampler_init(&s, n, n_member), 0);
		assert_int_equal(nsv_team_new(n_member, &team), 0);
		for (int round = 0; round < 60; round++)
			check_shared(team, &s, logits, n);
		nsv_team_free(team);
		nsv_sampler_deinit(&s);
		free(logits);
	}
}

/* A prompt's: of a token that is given. */
static void log_probs_member(const struct nsv_part *part, void *arg)
{
	struct shared_row *row = arg;

	row->ret[part->index] =
		nsv_log_probs(row->s, part, row->in.logits, row->token, row->lp, 4);
}

static void test_log_probs(void **state)
{
	uint32_t n = 5000 + t_below(5000);
	float *logits = calloc(n, sizeof(*logits));
	struct shared_row row = {.in = {.logits = logits}};
	struct nsv_lp lp[4];
	struct nsv_team *team;
	struct nsv_sampler s;

	(void)state;
	row.s = &s;
	assert_int_equal(nsv_sampler_init(&s, n, 3), 0);
	assert_int_equal(nsv_team_new(3, &team), 0);
	for (int round = 0; round < 60; round++) {
		sample_draw_logits(logits, n);
		row.token = (int32_t)t_below(n);
		assert_int_equal(nsv_log_probs(&s, &nsv_team_alone, logits, row.token, lp, 4), 0);
		nsv_team_run(team, log_probs_member, &row);
		assert_int_equal(row.ret[0] | row.ret[1] | row.ret[2], 0);
		assert_memory_equal(row.lp, lp, sizeof(lp));
	}
	nsv_team_free(team);
	nsv_sampler_deinit(&s);
	free(logits);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_teams),
		cmocka_unit_test(test_log_probs),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
