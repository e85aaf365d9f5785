/* The library's pure parts: arena, encoding, spinning. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "client/arena.h"
#include "client/encode.h"
#include "client/spin.h"
#include "tests/tools/rnd.h"

/* Pieces in use never overlap, are contiguous, and all of the arena comes back. */
static void test_arena(void **state)
{
	enum { LEN = 1024, MOST = 64 };
	struct {
		uint32_t off, len;
		uint64_t tail;
	} used[MOST];
	unsigned char owner[LEN] = {0};
	struct nsv_arena a = {.len = LEN};
	size_t first = 0, n = 0;

	(void)state;
	for (int i = 0; i < 100000; i++) {
		uint32_t off = 0, len = t_below(t_below(8) ? 100 : LEN + 1);
		uint64_t tail = 0;
		int ret = n < MOST ? nsv_arena_find(&a, len, &off, &tail) : -EAGAIN;
		if (ret == -EAGAIN) {
			assert_true(n > 0); /* an idle arena has room for everything */
			memset(owner + used[first].off, 0, used[first].len);
			nsv_arena_release(&a, used[first].tail);
			first = (first + 1) % MOST;
			n--;
			continue;
		}
		assert_int_equal(ret, 0);
		assert_int_equal(off % 8, 0);
		assert_true(off + len <= LEN);
		for (uint32_t k = 0; k < len; k++) {
			assert_int_equal(owner[off + k], 0);
			owner[off + k] = 1;
		}
		nsv_arena_commit(&a, tail);
		used[(first + n) % MOST].off = off;
		used[(first + n) % MOST].len = len;
		used[(first + n) % MOST].tail = tail;
		n++;
	}
	uint32_t off;
	uint64_t tail;
	assert_int_equal(nsv_arena_find(&a, LEN + 1, &off, &tail), -E2BIG);
	assert_int_equal(nsv_arena_find(&a, SIZE_MAX, &off, &tail), -E2BIG);
}

static void test_params(void **state)
{
	static const char *const stops[] = {"abc", "12345678"};
	struct nsv_client_params p, own;
	struct nsv_params wire;
	struct nsv_record rec;
	unsigned char out[512];
	struct nsv_err err;
	size_t len = 0;

	(void)state;
	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_SEED | NSV_CLIENT_SPECIAL;
	p.seed = 99;
	p.top_k = -3;
	p.stop = stops;
	p.n_stop = 2;
	assert_int_equal(nsv_params_import(&p, &own, &err), 0);
	assert_int_equal(nsv_params_len(&own, &len, &err), 0);
	assert_int_equal(len, 128 + 16 + 16);
	memset(out, 0xee, sizeof(out));
	nsv_params_write(&own, len, out);
	assert_int_equal(out[len], 0xee);
	memcpy(&wire, out, sizeof(wire));
	assert_int_equal(wire.len, len);
	assert_int_equal(wire.flags, NSV_PARAM_SEED);
	assert_int_equal(wire.seed, 99);
	assert_int_equal(wire.top_k, -3);
	assert_true(wire.top_p == 1 && wire.typical_p == 1 && wire.repetition_penalty == 1);
	memcpy(&rec, out + 128, sizeof(rec));
	assert_int_equal(rec.type, NSV_REC_STOP);
	assert_int_equal(rec.len, 3);
	assert_memory_equal(out + 136, "abc\0\0\0\0\0", 8);
	assert_memory_equal(out + 152, "12345678", 8);
	assert_int_equal(wire.n_branch, 1);
	p.n_branch = 5;
	p.priority = -7;
	assert_int_equal(nsv_params_import(&p, &own, &err), 0);
	nsv_params_write(&own, len, out);
	memcpy(&wire, out, sizeof(wire));
	assert_int_equal(wire.n_branch, 5);
	assert_int_equal(wire.priority, -7);
	p.size = offsetof(struct nsv_client_params, n_branch); /* before it had several answers */
	assert_int_equal(nsv_params_import(&p, &own, &err), 0);
	assert_int_equal(own.n_branch, 1);
	p.size = sizeof(p) + 8;
	assert_int_equal(nsv_params_import(&p, &own, &err), -EINVAL);
	p.size = sizeof(p);
	p.n_stop = NSV_MAX_STOP + 1;
	assert_int_equal(nsv_params_len(&p, &len, &err), -EINVAL);
}

/* Four records after the parameters, in the order of their numbers on the wire's page. */
static void test_lists(void **state)
{
	const int32_t stop[] = {7, 8, 9}, allow[] = {1}, ban[] = {2, 3};
	const struct nsv_client_bias bias[] = {{5, 1.5f}};
	const uint32_t want[] = {
		NSV_REC_STOP_IDS, 12, NSV_REC_ALLOW, 4, NSV_REC_BAN, 8, NSV_REC_BIAS, 8};
	struct nsv_client_params p, own;
	unsigned char out[256];
	struct nsv_err err;
	size_t len = 0, at = sizeof(struct nsv_params);

	(void)state;
	nsv_client_params_init(&p);
	p.stop_id = stop, p.n_stop_id = 3;
	p.allow = allow, p.n_allow = 1;
	p.ban = ban, p.n_ban = 2;
	p.bias = bias, p.n_bias = 1;
	assert_int_equal(nsv_params_len(&p, &len, &err), 0);
	assert_int_equal(len, 128 + 24 + 16 + 16 + 16);
	memset(out, 0xee, sizeof(out));
	nsv_params_write(&p, len, out);
	assert_int_equal(out[len], 0xee);
	for (int i = 0; i < 4; i++) {
		assert_memory_equal(out + at, want + 2 * i, 8);
		at += 8 + (want[2 * i + 1] + 7u) / 8 * 8;
	}
	assert_memory_equal(out + 136, stop, sizeof(stop));
	assert_memory_equal(out + len - 8, bias, sizeof(bias));
	p.n_bias = UINT32_MAX;
	assert_int_equal(nsv_params_len(&p, &len, &err), -EINVAL);
	/* The structure of before: what lies behind it is not read. */
	p.size = offsetof(struct nsv_client_params, stop_id);
	assert_int_equal(nsv_params_import(&p, &own, &err), 0);
	assert_int_equal(own.n_stop_id + own.n_allow + own.n_ban + own.n_bias, 0);
	assert_int_equal(own.size, sizeof(own));
	p.size++;
	assert_int_equal(nsv_params_import(&p, &own, &err), -EINVAL);
}

static void test_spin(void **state)
{
	struct nsv_spin s;

	(void)state;
	nsv_spin_init(&s, 0);
	assert_int_equal(nsv_spin_bound_ns(&s), 0);
	s = (struct nsv_spin){.adaptive = true, .average_ns = NSV_SPIN_MAX_NS};
	for (int i = 0; i < 20; i++)
		nsv_spin_learn(&s, 1000);
	assert_true(nsv_spin_bound_ns(&s) >= 1000 && nsv_spin_bound_ns(&s) < 10000);
	for (int i = 0; i < 20; i++)
		nsv_spin_learn(&s, 8000000); /* a token each 8 ms: do not spin */
	assert_int_equal(nsv_spin_bound_ns(&s), 0);
	for (int i = 0; i < 20; i++)
		nsv_spin_learn(&s, 1000); /* and it comes back */
	assert_true(nsv_spin_bound_ns(&s) > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_arena),
		cmocka_unit_test(test_params),
		cmocka_unit_test(test_lists),
		cmocka_unit_test(test_spin),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
