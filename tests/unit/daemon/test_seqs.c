/* The sequence table: sizes, what a reader finds after each commit, foreign regions. */
#include "daemon/seqs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct nsv_seqs_geom geom = {.n_session = 5, .n_seq = 3, .n_token = 33, .n_block = 3};

static void *make(struct nsv_seqs *s, size_t *ret_len)
{
	assert_int_equal(nsv_seqs_len(&geom, ret_len), 0);
	void *base = aligned_alloc(NSV_PAGE, *ret_len);
	memset(base, 0, *ret_len);
	assert_int_equal(nsv_seqs_format(s, base, &geom, 77), 0);
	return base;
}

static void test_records_do_not_overlap(void **state)
{
	struct nsv_seqs s;
	size_t len;
	unsigned char *base = make(&s, &len);
	(void)state;

	for (uint32_t i = 0; i < geom.n_seq; i++) {
		memset(nsv_seqs_params(&s, i), 0x10 + (int)i, NSV_SEQS_PARAMS_LEN);
		for (uint32_t t = 0; t < geom.n_token; t++)
			nsv_seqs_tokens(&s, i)[t] = (int32_t)(1000 * i + t);
		for (uint32_t b = 0; b < geom.n_block; b++)
			nsv_seqs_blocks(&s, i)[b] = (int32_t)(7000 * i + b);
		nsv_seqs_commit(
			&s, i, &(struct nsv_seq_commit){.state = NSV_SEQ_RUNNING, .n_token = i});
		nsv_seqs_ident(&s, i)->request_id = i + 1;
	}
	for (uint32_t i = 0; i < geom.n_session; i++)
		nsv_seqs_commit_session(
			&s, i, &(struct nsv_session_commit){.state = 1, .session_id = i});
	for (uint32_t i = 0; i < geom.n_seq; i++) {
		assert_int_equal(nsv_seqs_params(&s, i)[0], 0x10 + i);
		assert_int_equal(nsv_seqs_params(&s, i)[NSV_SEQS_PARAMS_LEN - 1], 0x10 + i);
		assert_int_equal(
			nsv_seqs_tokens(&s, i)[geom.n_token - 1], 1000 * i + geom.n_token - 1);
		assert_int_equal(
			nsv_seqs_blocks(&s, i)[geom.n_block - 1], 7000 * i + geom.n_block - 1);
		assert_int_equal(nsv_seqs_get(&s, i).n_token, i);
		assert_int_equal(nsv_seqs_ident(&s, i)->request_id, i + 1);
		assert_true((unsigned char *)(nsv_seqs_blocks(&s, i) + geom.n_block) <= base + len);
	}
	for (uint32_t i = 0; i < geom.n_session; i++)
		assert_int_equal(nsv_seqs_get_session(&s, i).session_id, i);
	free(base);
}

/* Cut off before the last store of a commit, the old state still counts; after it, the new one. */
static void test_a_commit_is_one_store(void **state)
{
	struct nsv_seqs s;
	size_t len;
	unsigned char *base = make(&s, &len), *before = malloc(len);
	(void)state;

	nsv_seqs_commit(&s, 1, &(struct nsv_seq_commit){.state = NSV_SEQ_WAITING, .n_token = 9});
	memcpy(before, base, len);
	nsv_seqs_commit(
		&s, 1, &(struct nsv_seq_commit){.state = NSV_SEQ_DONE, .n_token = 10, .finish = 2});
	/* every byte that changed, applied in any order but for the selector, leaves the old
	 * state */
	uint32_t *selector = NULL;
	for (size_t i = 0; i < len; i += 4)
		if (memcmp(before + i, base + i, 4) != 0) {
			if (!selector)
				selector = (uint32_t *)(void *)(base + i);
			else
				memcpy(before + i, base + i, 4);
			struct nsv_seqs old = s;
			old.base = before;
			assert_int_equal(nsv_seqs_get(&old, 1).state, NSV_SEQ_WAITING);
			assert_int_equal(nsv_seqs_get(&old, 1).n_token, 9);
			assert_int_equal(nsv_seqs_get(&old, 1).finish, 0);
		}
	assert_int_equal(nsv_seqs_get(&s, 1).state, NSV_SEQ_DONE);
	assert_int_equal(nsv_seqs_get(&s, 1).n_token, 10);
	free(before);
	free(base);
}

static void test_foreign_regions_are_refused(void **state)
{
	struct nsv_seqs s, again;
	struct nsv_seqs_geom other = geom;
	struct nsv_err err;
	size_t len;
	void *base = make(&s, &len);
	(void)state;

	assert_int_equal(nsv_seqs_open(&again, base, len, &geom, 77, &err), 0);
	assert_int_equal(nsv_seqs_open(&again, base, len, &geom, 78, &err), -EPROTO);
	assert_int_equal(nsv_seqs_open(&again, base, len - NSV_PAGE, &geom, 77, &err), -EPROTO);
	other.n_token++;
	assert_int_equal(nsv_seqs_open(&again, base, len, &other, 77, &err), -EPROTO);
	nsv_seqs_head(&s)->major++;
	assert_int_equal(nsv_seqs_open(&again, base, len, &geom, 77, &err), -EPROTO);
	nsv_seqs_head(&s)->magic = 0;
	assert_int_equal(nsv_seqs_open(&again, base, len, &geom, 77, &err), -EPROTO);
	free(base);
}

static void test_impossible_sizes(void **state)
{
	struct nsv_seqs_geom g = {
		.n_session = 1, .n_seq = UINT32_MAX, .n_token = UINT32_MAX, .n_block = UINT32_MAX};
	size_t len;
	(void)state;

	assert_int_equal(nsv_seqs_len(&g, &len), -EOVERFLOW);
	g.n_token = 0;
	assert_int_equal(nsv_seqs_len(&g, &len), -EINVAL);
}

/* A daemon's life over the region: does it serve, has it a step under way at its end, a token
 * before? */
struct life {
	bool serves, step, token;
};

/* What its successor, which has begun, is to suspect. */
static enum nsv_suspect after(const struct nsv_seqs *s, struct life life)
{
	if (life.serves)
		nsv_seqs_serve(s);
	if (life.token) {
		uint64_t step = nsv_seqs_next_step(s);
		nsv_seqs_step_begins(s, step);
		nsv_seqs_progress(s);
		nsv_seqs_step_ends(s, step);
	}
	if (life.step)
		nsv_seqs_step_begins(s, nsv_seqs_next_step(s));
	nsv_seqs_begin(s);
	return nsv_seqs_suspect(s);
}

static void test_what_crashes_cast_suspicion_on(void **state)
{
	const struct life idle = {.serves = true}, stillborn = {0};
	const struct life stuck = {.serves = true, .step = true};
	const struct life worked = {.serves = true, .step = true, .token = true};
	struct nsv_seqs s;
	size_t len;
	void *base = make(&s, &len);
	(void)state;

	nsv_seqs_begin(&s);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(after(&s, idle), NSV_SUSPECT_NOTHING);
		assert_int_equal(after(&s, worked), NSV_SUSPECT_NOTHING);
	}
	assert_int_equal(after(&s, stillborn), NSV_SUSPECT_NOTHING);
	assert_int_equal(after(&s, stuck), NSV_SUSPECT_BATCH); /* the second under a step */
	assert_int_equal(after(&s, idle), NSV_SUSPECT_BATCH);
	assert_int_equal(after(&s, stuck), NSV_SUSPECT_REQUESTS);
	assert_int_equal(after(&s, stuck), NSV_SUSPECT_EVERYTHING);
	assert_int_equal(after(&s, worked), NSV_SUSPECT_NOTHING);
	assert_int_equal(after(&s, stillborn), NSV_SUSPECT_NOTHING);
	assert_int_equal(after(&s, stillborn), NSV_SUSPECT_REQUESTS);
	assert_int_equal(after(&s, stillborn), NSV_SUSPECT_EVERYTHING);
	nsv_seqs_give_up(&s); /* that is no crash, and it clears nobody */
	nsv_seqs_begin(&s);
	assert_int_equal(nsv_seqs_suspect(&s), NSV_SUSPECT_EVERYTHING);
	nsv_seqs_serve(&s);
	nsv_seqs_end(&s);
	nsv_seqs_begin(&s);
	assert_int_equal(nsv_seqs_suspect(&s), NSV_SUSPECT_NOTHING);
	free(base);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_records_do_not_overlap),
		cmocka_unit_test(test_a_commit_is_one_store),
		cmocka_unit_test(test_foreign_regions_are_refused),
		cmocka_unit_test(test_impossible_sizes),
		cmocka_unit_test(test_what_crashes_cast_suspicion_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
