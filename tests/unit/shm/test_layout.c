/* Geometries and layouts, drawn at random: areas in order and apart; what is impossible is
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "shm/layout.h"
#include "tests/tools/rnd.h"

static struct nsv_geom random_geom(void)
{
	struct nsv_geom g = {
		.n_sqe = 1u << t_below(13),
		.n_slot = 1 + t_below(NSV_MAX_SLOT),
		.arena_len = 4096u << t_below(15),
		.text_len = 256u << t_below(17),
		.n_token = 64u << t_below(17),
		.n_lp = t_below(2) ? 0 : 128u << t_below(16),
	};
	nsv_geom_complete(&g, &g);
	return g;
}

/* Areas come in order, do not overlap, begin on a cache line and end inside whole pages. */
static void test_areas(void **state)
{
	(void)state;
	for (int i = 0; i < 2000; i++) {
		struct nsv_geom g = random_geom();
		struct nsv_up_layout u;
		struct nsv_down_layout d;

		assert_int_equal(nsv_geom_check(&g, NULL), 0);
		assert_int_equal(nsv_layout_up(&g, &u), 0);
		assert_int_equal(nsv_layout_down(&g, &d), 0);
		const uint64_t at[][2] = {
			{sizeof(struct nsv_up_head), u.slot_off},
			{u.slot_off + 64ull * g.n_slot, u.sqe_off},
			{u.sqe_off + 64ull * g.n_sqe, u.arena_off},
			{(uint64_t)u.arena_off + g.arena_len, u.len},
			{sizeof(struct nsv_down_head), d.slot_off},
			{d.slot_off + 512ull * g.n_slot, d.reply_off},
			{d.reply_off + 32ull * g.n_cqe, d.event_off},
			{d.event_off + 32ull * g.n_cqe, d.text_off},
			{d.text_off + (uint64_t)g.n_slot * g.text_len, d.token_off},
			{d.token_off + 4ull * g.n_slot * g.n_token, d.lp_off},
			{d.lp_off + 8ull * g.n_slot * g.n_lp, d.len},
		};
		for (size_t k = 0; k < NSV_ARRAY_LEN(at); k++) {
			assert_true(at[k][0] <= at[k][1]);
			assert_int_equal(at[k][1] % 64, 0);
		}
		assert_int_equal(u.len % 4096, 0);
		assert_int_equal(d.len % 4096, 0);
		assert_true(g.n_cqe >= 4 * g.n_slot);
	}
}

static void test_refusals(void **state)
{
	(void)state;
	const struct nsv_geom good = {32, 32, 8, 65536, 4096, 1024, 0};
	static const struct {
		size_t field;
		uint32_t value;
		int code;
	} cases[] = {
		{offsetof(struct nsv_geom, n_sqe), 0, NSV_E_HELLO},
		{offsetof(struct nsv_geom, n_sqe), 3, NSV_E_HELLO},
		{offsetof(struct nsv_geom, n_sqe), 8192, NSV_E_LIMIT},
		{offsetof(struct nsv_geom, n_cqe), 16, NSV_E_HELLO},
		{offsetof(struct nsv_geom, n_cqe), 33, NSV_E_HELLO},
		{offsetof(struct nsv_geom, n_cqe), UINT32_MAX, NSV_E_LIMIT},
		{offsetof(struct nsv_geom, n_slot), 0, NSV_E_HELLO},
		{offsetof(struct nsv_geom, n_slot), NSV_MAX_SLOT + 1, NSV_E_LIMIT},
		{offsetof(struct nsv_geom, n_slot), 0x40000001, NSV_E_LIMIT},
		{offsetof(struct nsv_geom, arena_len), 2048, NSV_E_HELLO},
		{offsetof(struct nsv_geom, arena_len), 12288, NSV_E_HELLO},
		{offsetof(struct nsv_geom, arena_len), 128u << 20, NSV_E_LIMIT},
		{offsetof(struct nsv_geom, text_len), 128, NSV_E_HELLO},
		{offsetof(struct nsv_geom, text_len), UINT32_MAX, NSV_E_LIMIT},
		{offsetof(struct nsv_geom, n_token), 32, NSV_E_HELLO},
		{offsetof(struct nsv_geom, n_token), 8u << 20, NSV_E_LIMIT},
		{offsetof(struct nsv_geom, n_lp), 64, NSV_E_HELLO},
		{offsetof(struct nsv_geom, n_lp), 8u << 20, NSV_E_LIMIT},
	};
	struct nsv_up_layout u;
	struct nsv_err err;

	assert_int_equal(nsv_geom_check(&good, &err), 0);
	for (size_t i = 0; i < NSV_ARRAY_LEN(cases); i++) {
		struct nsv_geom g = good;
		memcpy((char *)&g + cases[i].field, &cases[i].value, sizeof(uint32_t));
		assert_int_equal(nsv_geom_check(&g, &err), cases[i].code);
		assert_int_equal(nsv_layout_up(&g, &u), -EINVAL);
	}
}

static void test_complete(void **state)
{
	const struct nsv_geom none = {0}, huge = {.n_slot = UINT32_MAX, .n_sqe = UINT32_MAX};
	struct nsv_geom g;

	(void)state;
	nsv_geom_complete(&none, &g);
	assert_int_equal(nsv_geom_check(&g, NULL), 0);
	nsv_geom_complete(&huge, &g);
	assert_int_not_equal(nsv_geom_check(&g, NULL), 0);
}

/* What one side formats the other accepts, until a byte of the head differs. */
static void test_heads(void **state)
{
	(void)state;
	const struct nsv_geom want = {.n_slot = 2};
	struct nsv_geom g;
	struct nsv_up_layout u;
	struct nsv_down_layout d;
	struct nsv_err err;

	nsv_geom_complete(&want, &g);
	nsv_layout_up(&g, &u);
	nsv_layout_down(&g, &d);
	unsigned char *up = calloc(1, u.len), *down = calloc(1, d.len);
	nsv_up_format(up, &g, 77);
	nsv_down_format(down, &g, 77);
	assert_int_equal(nsv_up_check(up, &g, 77, &err), 0);
	assert_int_equal(nsv_down_check(down, &g, 77, &err), 0);
	assert_int_equal(nsv_up_check(up, &g, 78, &err), -EPROTO);
	assert_int_equal(nsv_up_check(down, &g, 77, &err), -EPROTO);
	static const size_t fields[] = {0, 8, 16, 24, 32, 40, 64, 80, 96, 104};
	for (size_t i = 0; i < NSV_ARRAY_LEN(fields); i++) {
		up[fields[i]] ^= 1;
		down[fields[i]] ^= 1;
		assert_int_equal(nsv_up_check(up, &g, 77, &err), i == 2 ? 0 : -EPROTO);
		assert_int_equal(nsv_down_check(down, &g, 77, &err), i == 2 ? 0 : -EPROTO);
		up[fields[i]] ^= 1;
		down[fields[i]] ^= 1;
	}
	free(up);
	free(down);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_areas),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_complete),
		cmocka_unit_test(test_heads),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
