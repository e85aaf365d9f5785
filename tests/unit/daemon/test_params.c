/* What an arena holds, parsed: whole, cut off at every byte, badly padded, of unknown kinds. */
#include "daemon/params.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/sample.h"

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

static void test_no_bytes_are_the_defaults(void **state)
{
	struct nsv_params p;
	struct nsv_stop stop;
	struct nsv_err err;
	(void)state;

	assert_int_equal(nsv_params_parse(NULL, 0, &p, &stop, &err), 0);
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
	assert_int_equal(nsv_params_parse(buf, len, &got, &stop, &err), 0);
	assert_true(got.temperature == 0.5f);
	assert_int_equal(stop.n, 3);
	for (size_t cut = 1; cut < len; cut++) {
		unsigned char *copy = malloc(cut); /* exactly as long: a read past it is seen */
		memcpy(copy, buf, cut);
		assert_int_not_equal(nsv_params_parse(copy, cut, &got, &stop, &err), 0);
		free(copy);
	}
	buf[sizeof(p) + sizeof(struct nsv_record) + 3] = 1; /* in the padding */
	assert_int_equal(nsv_params_parse(buf, len, &got, &stop, &err), NSV_E_PARAM);
}

static void test_what_is_refused(void **state)
{
	static const char *const none[] = {NULL}, *const bad_utf8[] = {"a\xff", NULL}, *const empty[] = {"", NULL};
	struct nsv_params p = nsv_params_default(), got;
	unsigned char buf[8192];
	struct nsv_stop stop;
	struct nsv_err err;
	(void)state;

	size_t len = put_params(buf, &p, bad_utf8);
	assert_int_equal(nsv_params_parse(buf, len, &got, &stop, &err), NSV_E_UTF8);
	len = put_params(buf, &p, empty);
	assert_int_equal(nsv_params_parse(buf, len, &got, &stop, &err), NSV_E_PARAM);
	len = put_params(buf, &p, none);
	len += put_record(buf + len, 77, "x");
	p.len = (uint32_t)len;
	memcpy(buf, &p, sizeof(p));
	assert_int_equal(nsv_params_parse(buf, len, &got, &stop, &err), NSV_E_UNSUPPORTED);
	assert_non_null(strstr(err.text, "77"));
	const char *many[NSV_MAX_STOP + 2] = {NULL};
	for (size_t i = 0; i <= NSV_MAX_STOP; i++)
		many[i] = "stop";
	len = put_params(buf, &p, many);
	assert_int_equal(nsv_params_parse(buf, len, &got, &stop, &err), NSV_E_PARAM);
	p.reserved[3] = 1;
	len = put_params(buf, &p, none);
	assert_int_not_equal(nsv_params_parse(buf, len, &got, &stop, &err), 0);
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
			assert_int_equal(nsv_messages_parse(buf, cut, &msgs, &n, &err), NSV_E_PARAM);
	put_message(buf, NSV_N_ROLE, "Be brief.");
	assert_int_equal(nsv_messages_parse(buf, len, &msgs, &n, &err), NSV_E_PARAM);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_bytes_are_the_defaults),
		cmocka_unit_test(test_stops),
		cmocka_unit_test(test_what_is_refused),
		cmocka_unit_test(test_messages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
