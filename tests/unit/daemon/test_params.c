/* Every parameter's range; what an arena holds, parsed: whole, cut off at every byte, badly padded,
 * of unknown kinds. */
#include "daemon/params.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/tools/rnd.h"

static size_t put_record(unsigned char *p, uint32_t type, const char *text)
{
	struct nsv_record rec = {type, (uint32_t)strlen(text)};
	size_t padded = (rec.len + 7u) & ~7u;

	memcpy(p, &rec, sizeof(rec));
	memset(p + sizeof(rec), 0, padded);
	memcpy(p + sizeof(rec), text, rec.len);
	return sizeof(rec) + padded;
}

static size_t put_params(unsigned char *p, struct nsv_params *params, const char *const *stops)
{
	size_t len = sizeof(*params);

	for (; *stops; stops++)
		len += put_record(p + len, NSV_REC_STOP, *stops);
	params->len = (uint32_t)len;
	memcpy(p, params, sizeof(*params));
	return len;
}

static int parse(const void *data, size_t len, struct nsv_params *ret_params,
	struct nsv_stop *ret_stop, struct nsv_err *err)
{
	static struct nsv_wish w;
	int ret = nsv_wish_parse(data, len, 100, &w, err);

	if (ret == 0) {
		*ret_params = w.params;
		*ret_stop = w.stop;
	}
	return ret;
}

static void test_no_bytes_are_the_defaults(void **state)
{
	struct nsv_params p;
	struct nsv_stop stop;
	struct nsv_err err;
	(void)state;

	assert_int_equal(parse(NULL, 0, &p, &stop, &err), 0);
	assert_true(p.temperature == 0.0f && p.top_p == 1.0f);
	assert_int_equal(stop.n, 0);
}

static void test_stops(void **state)
{
	static const char *const stops[] = {"a", "12345678", "\n\nUser:", NULL};
	struct nsv_params p = nsv_params_default(), got;
	unsigned char buf[512];
	struct nsv_stop stop;
	struct nsv_err err;
	(void)state;

	p.temperature = 0.5f;
	size_t len = put_params(buf, &p, stops);
	assert_int_equal(parse(buf, len, &got, &stop, &err), 0);
	assert_true(got.temperature == 0.5f);
	assert_int_equal(stop.n, 3);
	for (size_t cut = 1; cut < len; cut++) {
		unsigned char *copy = malloc(cut); /* exactly as long: a read past it is seen */
		memcpy(copy, buf, cut);
		assert_int_not_equal(parse(copy, cut, &got, &stop, &err), 0);
		free(copy);
	}
	buf[sizeof(p) + sizeof(struct nsv_record) + 3] = 1; /* in the padding */
	assert_int_equal(parse(buf, len, &got, &stop, &err), NSV_E_PARAM);
}

static void test_what_is_refused(void **state)
{
	static const char *const none[] = {NULL}, *const bad_utf8[] = {"a\xff", NULL},
				 *const empty[] = {"", NULL};
	struct nsv_params p = nsv_params_default(), got;
	unsigned char buf[8192];
	struct nsv_stop stop;
	struct nsv_err err;
	(void)state;

	size_t len = put_params(buf, &p, bad_utf8);
	assert_int_equal(parse(buf, len, &got, &stop, &err), NSV_E_UTF8);
	len = put_params(buf, &p, empty);
	assert_int_equal(parse(buf, len, &got, &stop, &err), NSV_E_PARAM);
	len = put_params(buf, &p, none);
	len += put_record(buf + len, 77, "x");
	p.len = (uint32_t)len;
	memcpy(buf, &p, sizeof(p));
	assert_int_equal(parse(buf, len, &got, &stop, &err), NSV_E_UNSUPPORTED);
	assert_non_null(strstr(err.text, "77"));
	const char *many[NSV_MAX_STOP + 2] = {NULL};
	for (size_t i = 0; i <= NSV_MAX_STOP; i++)
		many[i] = "stop";
	len = put_params(buf, &p, many);
	assert_int_equal(parse(buf, len, &got, &stop, &err), NSV_E_PARAM);
	p.reserved[3] = 1;
	len = put_params(buf, &p, none);
	assert_int_not_equal(parse(buf, len, &got, &stop, &err), 0);
}

static size_t put_message(unsigned char *p, uint32_t role, const char *text)
{
	put_record(p, role, text); /* the same shape: a word, a length, padded bytes */
	return sizeof(struct nsv_message) + ((strlen(text) + 7) & ~(size_t)7);
}

static void test_messages(void **state)
{
	struct nsv_chat_msg *msgs;
	unsigned char buf[256];
	struct nsv_err err;
	size_t n, len = put_message(buf, NSV_ROLE_SYSTEM, "Be brief.");
	(void)state;

	len += put_message(buf + len, NSV_ROLE_USER, "");
	len += put_message(buf + len, NSV_ROLE_ASSISTANT, "12345678");
	assert_int_equal(nsv_messages_parse(buf, len, &msgs, &n, &err), 0);
	assert_int_equal(n, 3);
	assert_int_equal(msgs[0].len, 9);
	assert_memory_equal(msgs[0].text, "Be brief.", 9);
	assert_int_equal(msgs[1].len, 0);
	assert_int_equal(msgs[2].role, NSV_ROLE_ASSISTANT);
	free(msgs);
	for (size_t cut = 0; cut < len; cut++)
		if (cut != 24 && cut != 32) /* there a message ends */
			assert_int_equal(
				nsv_messages_parse(buf, cut, &msgs, &n, &err), NSV_E_PARAM);
	put_message(buf, NSV_N_ROLE, "Be brief.");
	assert_int_equal(nsv_messages_parse(buf, len, &msgs, &n, &err), NSV_E_PARAM);
}

/* ---- Ranges */

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
		{F(typical_p), 0.5f, 0},
		{F(typical_p), 0, NSV_E_PARAM},
		{F(repetition_penalty), 1, 0},
		{F(repetition_penalty), 1.1f, 0},
		{F(repetition_penalty), -1, NSV_E_PARAM},
		{F(repetition_penalty), 0, NSV_E_PARAM},
		{F(presence_penalty), 0, 0},
		{F(presence_penalty), -1, 0},
		{F(frequency_penalty), 0.5f, 0},
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
	expect(WITH(flags, NSV_PARAM_PROMPT_LOGPROBS), 0, "");
	for (int bit = 4; bit < 32; bit++)
		expect(WITH(flags, 1u << bit), NSV_E_PARAM, "flags");
	expect(WITH(max_tokens, UINT32_MAX), 0, "");
	expect(WITH(n_branch, 0), 0, "");
	expect(WITH(n_branch, NSV_MAX_BRANCH), 0, "");
	expect(WITH(n_branch, NSV_MAX_BRANCH + 1), NSV_E_PARAM, "n_branch");
	expect(WITH(min_tokens, 1), 0, "");
	expect(WITH(penalty_window, 64), 0, "");
	expect(WITH(priority, -100), 0, "");
	expect(WITH(priority, 100), 0, "");
	expect(WITH(priority, -101), NSV_E_PARAM, "priority");
	expect(WITH(priority, 101), NSV_E_PARAM, "priority");
	expect(WITH(n_logprob, 3), NSV_E_PARAM, "n_logprob");
	q = p;
	q.flags = NSV_PARAM_LOGPROBS;
	q.n_logprob = NSV_MAX_LOGPROB;
	expect(q, 0, "");
	q.n_logprob++;
	expect(q, NSV_E_PARAM, "n_logprob");
	for (size_t i = 0; i < NSV_ARRAY_LEN(p.reserved); i++)
		expect(WITH(reserved[i], 1u << t_below(32)), NSV_E_PARAM, "reserved");
	q = p;
	q.min_tokens = q.max_tokens = 7;
	expect(q, 0, "");
	q.min_tokens++;
	expect(q, NSV_E_PARAM, "min_tokens");
	assert_int_equal(p.len, sizeof(p));
#undef WITH
}

/* Whoever shares its prompt with another one has no log-probabilities of it; those of the output
 * stay as they are. */
static void test_a_shared_prompt(void **state)
{
	const uint32_t both = NSV_PARAM_LOGPROBS | NSV_PARAM_PROMPT_LOGPROBS;
	struct nsv_params p = nsv_params_default();
	struct nsv_err err;
	(void)state;

	p.n_logprob = 3;
	p.flags = both | NSV_PARAM_IGNORE_END;
	nsv_params_drop_prompt_logprobs(&p);
	assert_int_equal(p.flags, NSV_PARAM_LOGPROBS | NSV_PARAM_IGNORE_END);
	assert_int_equal(p.n_logprob, 3);
	p.flags = NSV_PARAM_PROMPT_LOGPROBS;
	nsv_params_drop_prompt_logprobs(&p);
	assert_int_equal(p.flags, 0);
	assert_int_equal(nsv_params_check(&p, &err), 0);
}

/* ---- Lists */

static size_t put_bytes(unsigned char *p, uint32_t type, const void *body, uint32_t len)
{
	struct nsv_record rec = {type, len};
	size_t padded = (len + 7u) & ~7u;

	memcpy(p, &rec, sizeof(rec));
	memset(p + sizeof(rec), 0, padded);
	memcpy(p + sizeof(rec), body, len);
	return sizeof(rec) + padded;
}

static int parse_lists(unsigned char *buf, size_t len, struct nsv_wish *w, struct nsv_err *err)
{
	struct nsv_params p = nsv_params_default();

	p.len = (uint32_t)len;
	memcpy(buf, &p, sizeof(p));
	return nsv_wish_parse(buf, len, 100, w, err);
}

/* One list alone: the parameters and a record. */
static int parse_one(
	uint32_t type, const void *body, uint32_t len, struct nsv_wish *w, struct nsv_err *err)
{
	static unsigned char buf[65536];

	return parse_lists(buf,
		sizeof(struct nsv_params) +
			put_bytes(buf + sizeof(struct nsv_params), type, body, len),
		w, err);
}

static void test_lists(void **state)
{
	const int32_t stop[] = {7, 3, 7}, more[] = {99, 0, 3}, allow[] = {5, 2}, ban[] = {2};
	const struct nsv_bias bias[] = {{50, 1}, {4, -2}};
	unsigned char buf[1024];
	size_t len = sizeof(struct nsv_params);
	static struct nsv_wish w;
	struct nsv_err err;
	(void)state;

	len += put_bytes(buf + len, NSV_REC_STOP_IDS, stop, sizeof(stop));
	len += put_bytes(buf + len, NSV_REC_BIAS, bias, sizeof(bias));
	len += put_bytes(buf + len, NSV_REC_STOP_IDS, more, sizeof(more));
	len += put_bytes(buf + len, NSV_REC_ALLOW, allow, sizeof(allow));
	len += put_bytes(buf + len, NSV_REC_BAN, ban, sizeof(ban));
	assert_int_equal(parse_lists(buf, len, &w, &err), 0);
	const int32_t stop_want[] = {0, 3, 7, 99}, allow_want[] = {2, 5};
	assert_int_equal(w.lists.stop.n, 4);
	assert_memory_equal(w.lists.stop.id, stop_want, sizeof(stop_want));
	assert_int_equal(w.lists.allow.n, 2);
	assert_memory_equal(w.lists.allow.id, allow_want, sizeof(allow_want));
	assert_int_equal(w.lists.ban.n, 1);
	assert_int_equal(w.lists.n_bias, 2);
	assert_true(w.lists.bias[0].id == 4 && w.lists.bias[0].bias == -2);
	for (int32_t id = -1; id <= 100; id++)
		assert_int_equal(nsv_id_list_has(&w.lists.stop, id),
			id == 0 || id == 3 || id == 7 || id == 99);
}

static void expect_list(uint32_t type, const void *body, uint32_t len, int want, const char *word)
{
	static struct nsv_wish w;
	struct nsv_err err = {""};
	int ret = parse_one(type, body, len, &w, &err);

	if (ret != want || !strstr(err.text, word))
		fail_msg("%d \"%s\", expected %d and \"%s\"", ret, err.text, want, word);
}

static void test_lists_refused(void **state)
{
	static const uint32_t types[] = {NSV_REC_STOP_IDS, NSV_REC_ALLOW, NSV_REC_BAN};
	static const char *const names[] = {"stop ids", "allowed ids", "banned ids"};
	static int32_t many[NSV_MAX_LIST + 1];
	static struct nsv_bias biases[NSV_MAX_LIST + 1];
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(types); i++) {
		const int32_t high[] = {1, 100}, low[] = {-1};
		expect_list(types[i], high, sizeof(high), NSV_E_TOKEN, names[i]);
		expect_list(types[i], low, sizeof(low), NSV_E_TOKEN, names[i]);
		expect_list(types[i], high, 0, NSV_E_PARAM, names[i]);
		expect_list(types[i], high, 3, NSV_E_PARAM, names[i]);
		expect_list(types[i], many, sizeof(many), NSV_E_PARAM, names[i]);
		expect_list(types[i], many, sizeof(many) - sizeof(*many), 0, "");
	}
	const struct nsv_bias twice[] = {{1, 1}, {2, 1}, {1, 2}}, nan[] = {{1, NAN}};
	const struct nsv_bias endless[] = {{1, INFINITY}}, unknown[] = {{100, 1}};
	expect_list(NSV_REC_BIAS, twice, sizeof(twice), NSV_E_PARAM, "two biases for id 1");
	expect_list(NSV_REC_BIAS, nan, sizeof(nan), NSV_E_PARAM, "finite");
	expect_list(NSV_REC_BIAS, endless, sizeof(endless), NSV_E_PARAM, "finite");
	expect_list(NSV_REC_BIAS, unknown, sizeof(unknown), NSV_E_TOKEN, "biases");
	expect_list(NSV_REC_BIAS, twice, 12, NSV_E_PARAM, "biases");
	expect_list(NSV_REC_BIAS, biases, sizeof(biases), NSV_E_PARAM, "biases");
}

static void test_all_allowed_are_banned(void **state)
{
	const int32_t allow[] = {5, 2}, ban[] = {2, 5, 9};
	size_t len = sizeof(struct nsv_params);
	static struct nsv_wish w;
	unsigned char buf[512];
	struct nsv_err err;
	(void)state;

	len += put_bytes(buf + len, NSV_REC_ALLOW, allow, sizeof(allow));
	len += put_bytes(buf + len, NSV_REC_BAN, ban, sizeof(ban));
	w.lists.n_bias = 77;
	assert_int_equal(parse_lists(buf, len, &w, &err), NSV_E_PARAM);
	assert_non_null(strstr(err.text, "banned"));
	assert_int_equal(w.lists.n_bias, 77); /* untouched */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_bytes_are_the_defaults),
		cmocka_unit_test(test_stops),
		cmocka_unit_test(test_what_is_refused),
		cmocka_unit_test(test_messages),
		cmocka_unit_test(test_float_params),
		cmocka_unit_test(test_int_params),
		cmocka_unit_test(test_a_shared_prompt),
		cmocka_unit_test(test_lists),
		cmocka_unit_test(test_lists_refused),
		cmocka_unit_test(test_all_allowed_are_banned),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
