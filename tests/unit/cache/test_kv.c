/* The KV region's layout: planes tile a block, budgets are kept, a foreign header is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "cache/kv.h"
#include "tests/tools/rnd.h"

static struct nsv_kv_geom draw_geom(void)
{
	return (struct nsv_kv_geom){.n_layer = 1 + t_below(40),
		.n_kv_head = 1 + t_below(12),
		.head_dim = 1 + t_below(256),
		.block_size = 1u << t_below(7),
		.n_block = 1 + t_below(1000),
		.elem_len = t_below(2) ? 4 : 2,
		.dtype = t_below(31),
		.k_dim_major = t_below(2)};
}

static void test_sizes(void **state)
{
	(void)state;
	for (int i = 0; i < 2000; i++) {
		struct nsv_kv_geom g = draw_geom();
		struct nsv_kv_size s;

		assert_int_equal(nsv_kv_sizes(&g, &s), 0);
		size_t row = (size_t)g.n_kv_head * g.head_dim * g.elem_len;
		assert_int_equal(s.token, 2 * g.n_layer * row);
		assert_int_equal(s.plane, row * g.block_size);
		assert_int_equal(s.block % 64, 0);
		assert_in_range(s.block - 2 * g.n_layer * s.plane, 0, 63);
		assert_int_equal(s.region % NSV_PAGE, 0);
		assert_in_range(s.region - NSV_PAGE - s.block * g.n_block, 0, NSV_PAGE - 1);
		/* Planes follow each other without a gap, K before V, and stay in the block. */
		for (uint32_t l = 0; l < g.n_layer; l++) {
			assert_int_equal(
				nsv_kv_plane_off(&g, l, false), NSV_PAGE + 2 * l * s.plane);
			assert_int_equal(nsv_kv_plane_off(&g, l, true),
				nsv_kv_plane_off(&g, l, false) + s.plane);
		}
		assert_true(
			nsv_kv_plane_off(&g, g.n_layer - 1, true) + s.plane <= NSV_PAGE + s.block);
	}
}

static void test_bad_geometry(void **state)
{
	const struct nsv_kv_geom good = {30, 3, 64, 16, 10, 4, 0, 1};
	struct nsv_kv_size s = {.token = 77};
	uint32_t n = 77;

	(void)state;
	/* The first six words: zero is refused. */
	for (size_t word = 0; word < 6; word++) {
		struct nsv_kv_geom g = good;
		memset((uint32_t *)&g + word, 0, 4);
		assert_int_equal(nsv_kv_sizes(&g, &s), -EINVAL);
	}
	struct nsv_kv_geom g = good;
	g.block_size = 24;
	assert_int_equal(nsv_kv_sizes(&g, &s), -EINVAL);
	assert_int_equal(nsv_kv_blocks_in(&g, 1 << 20, &n), -EINVAL);
	g = good;
	g.elem_len = 3;
	assert_int_equal(nsv_kv_sizes(&g, &s), -EINVAL);
	g = good;
	g.k_dim_major = 2;
	assert_int_equal(nsv_kv_sizes(&g, &s), -EINVAL);
	g = good;
	g.n_kv_head = g.head_dim = UINT32_MAX;
	assert_int_equal(nsv_kv_sizes(&g, &s), -EOVERFLOW);
	g = good;
	g.n_kv_head = 1u << 31;
	g.head_dim = 1u << 20;
	g.n_block = UINT32_MAX;
	assert_int_equal(nsv_kv_sizes(&g, &s), -EOVERFLOW);
	assert_int_equal(s.token, 77);
	assert_int_equal(n, 77);
}

static void test_budget(void **state)
{
	(void)state;
	for (int i = 0; i < 2000; i++) {
		struct nsv_kv_geom g = draw_geom();
		struct nsv_kv_size s;
		size_t budget = t_below(64u << 20);
		uint32_t n;

		assert_int_equal(nsv_kv_blocks_in(&g, budget, &n), 0);
		if (n > 0) {
			g.n_block = n;
			assert_int_equal(nsv_kv_sizes(&g, &s), 0);
			assert_true(s.region <= budget);
		}
		g.n_block = n + 1;
		assert_int_equal(nsv_kv_sizes(&g, &s), 0);
		assert_true(s.region > budget);
	}
}

/* Any single word that differs is named; the head as written passes. */
static void test_head(void **state)
{
	static const size_t word[] = {offsetof(struct nsv_kv_head, magic),
		offsetof(struct nsv_kv_head, major), offsetof(struct nsv_kv_head, head_len),
		offsetof(struct nsv_kv_head, region_len), offsetof(struct nsv_kv_head, model_id),
		offsetof(struct nsv_kv_head, numerics), offsetof(struct nsv_kv_head, reserved[6])};

	(void)state;
	for (int i = 0; i < 100; i++) {
		struct nsv_kv_geom g = draw_geom();
		struct nsv_kv_size s;
		struct nsv_kv_head h, bad;
		struct nsv_err err = {""};

		assert_int_equal(nsv_kv_sizes(&g, &s), 0);
		nsv_kv_head_write(&h, &g, 0x1234567890abcdefull, 7);
		assert_int_equal(
			nsv_kv_head_check(&h, s.region, &g, 0x1234567890abcdefull, 7, &err), 0);
		for (size_t w = 0; w < NSV_ARRAY_LEN(word); w++) {
			bad = h;
			((unsigned char *)&bad)[word[w]] ^= (unsigned char)(1 + t_below(255));
			err.text[0] = '\0';
			assert_int_equal(nsv_kv_head_check(&bad, s.region, &g,
						 0x1234567890abcdefull, 7, &err),
				-EPROTO);
			assert_true(strlen(err.text) > 0);
		}
		for (size_t w = 0; w < sizeof(g); w++) {
			bad = h;
			((unsigned char *)&bad.geom)[w] ^= (unsigned char)(1 + t_below(255));
			assert_int_equal(nsv_kv_head_check(&bad, s.region, &g,
						 0x1234567890abcdefull, 7, &err),
				-EPROTO);
		}
		assert_int_equal(nsv_kv_head_check(&h, s.region - NSV_PAGE, &g,
					 0x1234567890abcdefull, 7, &err),
			-EPROTO);
		assert_int_equal(nsv_kv_head_check(&h, 0, &g, 0, 7, &err), -EPROTO);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_bad_geometry),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_head),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
