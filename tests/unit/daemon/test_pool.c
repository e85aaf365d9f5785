/* The KV pool's size: what was asked for or an error, and never more than there is. */
#include "daemon/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "cache/block_table.h"
#include "tests/tools/rnd.h"

static const struct nsv_kv_geom geom = {.n_layer = 3,
	.n_kv_head = 2,
	.head_dim = 64,
	.block_size = 16,
	.elem_len = 4};

static size_t block_len(void)
{
	struct nsv_kv_geom one = geom;
	struct nsv_kv_size size;

	one.n_block = 1;
	assert_int_equal(nsv_kv_sizes(&one, &size), 0);
	return size.block;
}

static int choose(const struct nsv_pool_wish *wish, size_t free_len, uint32_t *ret_n)
{
	struct nsv_err err;

	return nsv_pool_choose(&geom, wish, free_len, ret_n, &err);
}

static void test_left_to_us(void **state)
{
	struct nsv_pool_wish wish = {.n_ctx = 1000};
	uint32_t n;
	(void)state;

	assert_int_equal(choose(&wish, 1000 * block_len(), &n), 0);
	assert_int_equal(n, nsv_blocks_for(2000, 16)); /* two contexts */
	assert_int_equal(choose(&wish, 101 * block_len(), &n), 0);
	assert_int_equal(n, 25); /* a quarter; the head page takes the rest */
	assert_int_equal(choose(&wish, block_len(), &n), -ENOMEM);
	assert_int_equal(choose(&wish, 0, &n), -ENOMEM);
}

static void test_what_was_asked_for_or_an_error(void **state)
{
	struct nsv_err err;
	uint32_t n = 7;
	(void)state;

	assert_int_equal(choose(&(struct nsv_pool_wish){.n_block = 50}, 60 * block_len(), &n), 0);
	assert_int_equal(n, 50);
	/* a sixteenth of free memory is others' */
	assert_int_equal(
		choose(&(struct nsv_pool_wish){.n_block = 58}, 60 * block_len(), &n), -ENOMEM);
	assert_int_equal(choose(&(struct nsv_pool_wish){.n_block = 50, .n_host = 10},
				 60 * block_len(), &n),
		-ENOMEM);
	assert_int_equal(
		choose(&(struct nsv_pool_wish){.memory = 20 * block_len()}, 60 * block_len(), &n),
		0);
	assert_int_equal(n, 19);
	assert_int_equal(
		choose(&(struct nsv_pool_wish){.memory = 80 * block_len()}, 60 * block_len(), &n),
		-ENOMEM);
	assert_int_equal(
		nsv_pool_choose(&geom, &(struct nsv_pool_wish){.n_block = 50, .n_host = 10},
			60 * block_len(), &n, &err),
		-ENOMEM);
	assert_non_null(strstr(err.text, "50 KV blocks and 10 to swap"));
	assert_int_equal(n, 19);
	struct nsv_kv_geom bad = geom;
	bad.block_size = 0;
	assert_int_equal(nsv_pool_choose(&bad, &(struct nsv_pool_wish){.n_block = 5},
				 60 * block_len(), &n, &err),
		-EINVAL);
}

/* Whatever is asked for: what is given fits what may be taken, with the host tier. */
static void test_never_overcommitted(void **state)
{
	uint32_t n_given = 0;
	(void)state;

	t_seed();
	for (int i = 0; i < 20000; i++) {
		size_t free_len = t_below(400) * block_len() + t_below(5000);
		struct nsv_pool_wish wish = {.n_block = t_below(2) ? t_below(500) : 0,
			.memory = t_below(2) ? t_rand() % (500 * block_len()) : 0,
			.n_host = t_below(2) ? t_below(200) : 0,
			.n_ctx = 1 + t_below(5000)};
		struct nsv_kv_geom g = geom;
		struct nsv_kv_size size;
		uint32_t n;
		if (choose(&wish, free_len, &n) < 0)
			continue;
		g.n_block = n;
		assert_int_equal(nsv_kv_sizes(&g, &size), 0);
		assert_true(size.region + wish.n_host * size.block <=
			    free_len - free_len / NSV_POOL_MARGIN);
		assert_true(!wish.n_block || n == wish.n_block);
		assert_true(wish.n_block || !wish.memory || size.region <= wish.memory);
		n_given++;
	}
	assert_true(n_given > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_left_to_us),
		cmocka_unit_test(test_what_was_asked_for_or_an_error),
		cmocka_unit_test(test_never_overcommitted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
