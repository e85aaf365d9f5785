/* Block tables: growth is all or nothing, release survives bad blocks, slots follow the table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "cache/block_table.h"
#include "tests/tools/rnd.h"

#define N_BLOCK 24
#define N_TABLE 4
#define CAP 12
#define BLOCK_SIZE 16

static void test_reserve(void **state)
{
	struct nsv_block_alloc a;
	int32_t block[CAP];
	struct nsv_block_table t = {.block = block, .cap = CAP};

	(void)state;
	assert_int_equal(nsv_block_alloc_init(&a, 8), 0);
	assert_int_equal(nsv_block_table_reserve(&t, &a, 0, BLOCK_SIZE), 0);
	assert_int_equal(t.n, 0);
	assert_int_equal(nsv_block_table_reserve(&t, &a, 1, BLOCK_SIZE), 0);
	assert_int_equal(t.n, 1);
	assert_int_equal(nsv_block_table_reserve(&t, &a, 16, BLOCK_SIZE), 0);
	assert_int_equal(t.n, 1);
	assert_int_equal(nsv_block_table_reserve(&t, &a, 17, BLOCK_SIZE), 0);
	assert_int_equal(t.n, 2);
	/* Nothing moves when there is too little, in the pool or in the table. */
	assert_int_equal(nsv_block_table_reserve(&t, &a, 9 * BLOCK_SIZE, BLOCK_SIZE), 1);
	assert_int_equal(
		nsv_block_table_reserve(&t, &a, CAP * BLOCK_SIZE + 1, BLOCK_SIZE), -ENOSPC);
	assert_int_equal(nsv_block_table_reserve(&t, &a, UINT64_MAX, BLOCK_SIZE), -ENOSPC);
	assert_int_equal(t.n, 2);
	assert_int_equal(a.n_free, 6);
	assert_int_equal(nsv_block_table_release(&t, &a), 0);
	assert_int_equal(a.n_free, 8);
	assert_int_equal(nsv_block_audit(&a, NULL), 0);
	nsv_block_alloc_deinit(&a);
}

static void test_release_goes_on(void **state)
{
	struct nsv_block_alloc a;
	int32_t block[CAP];
	struct nsv_block_table t = {.block = block, .cap = CAP};

	(void)state;
	assert_int_equal(nsv_block_alloc_init(&a, N_BLOCK), 0);
	assert_int_equal(nsv_block_table_reserve(&t, &a, 5 * BLOCK_SIZE, BLOCK_SIZE), 0);
	int32_t lost = block[2];
	block[2] = N_BLOCK;
	assert_int_equal(nsv_block_table_release(&t, &a), -ERANGE);
	assert_int_equal(t.n, 0);
	assert_int_equal(a.n_free, N_BLOCK - 1);
	assert_int_equal(nsv_block_unref(&a, lost), 1);
	block[0] = lost;
	t.n = 1;
	assert_int_equal(nsv_block_table_release(&t, &a), -EALREADY);
	assert_int_equal(nsv_block_audit(&a, NULL), 0);
	nsv_block_alloc_deinit(&a);
}

static void check_slots(const struct nsv_block_table *t)
{
	uint64_t end = (uint64_t)t->n * BLOCK_SIZE;
	int64_t slots[CAP * BLOCK_SIZE];
	uint32_t pos = t_below((uint32_t)end + 1), n = t_below((uint32_t)(end - pos) + 1);

	assert_int_equal(nsv_block_table_slots(t, BLOCK_SIZE, pos, n, slots), 0);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(slots[i] / BLOCK_SIZE, t->block[(pos + i) / BLOCK_SIZE]);
		assert_int_equal(slots[i] % BLOCK_SIZE, (pos + i) % BLOCK_SIZE);
	}
	uint32_t over = (uint32_t)(end - pos) + 1 + t_below(100);
	assert_int_equal(nsv_block_table_slots(t, BLOCK_SIZE, pos, over, slots), -ERANGE);
	assert_int_equal(nsv_block_table_slots(t, BLOCK_SIZE, end + 1, 0, slots), -ERANGE);
	assert_int_equal(nsv_block_table_slots(t, BLOCK_SIZE, UINT64_MAX, 2, slots), -ERANGE);
}

/* Tables that grow and go at random never share a block, and the pool's count is theirs. */
static void test_random(void **state)
{
	struct nsv_block_alloc a;
	int32_t block[N_TABLE][CAP];
	struct nsv_block_table t[N_TABLE];

	(void)state;
	assert_int_equal(nsv_block_alloc_init(&a, N_BLOCK), 0);
	for (int i = 0; i < N_TABLE; i++)
		t[i] = (struct nsv_block_table){.block = block[i], .cap = CAP};
	for (int step = 0; step < 20000; step++) {
		struct nsv_block_table *one = &t[t_below(N_TABLE)];
		uint32_t n_token = t_below(CAP * BLOCK_SIZE + 40),
			 need = nsv_blocks_for(n_token, 16);
		uint32_t before = one->n, n_free = a.n_free, held = 0;

		if (t_below(3) == 0) {
			assert_int_equal(nsv_block_table_release(one, &a), 0);
			assert_int_equal(a.n_free, n_free + before);
		} else {
			int ret = nsv_block_table_reserve(one, &a, n_token, BLOCK_SIZE);
			int want = need > CAP ? -ENOSPC : need > before + n_free;
			assert_int_equal(ret, want);
			assert_int_equal(one->n, ret ? before : nsv_max(before, need));
		}
		for (int i = 0; i < N_TABLE; i++)
			held += t[i].n;
		assert_int_equal(held + a.n_free, N_BLOCK);
		assert_int_equal(nsv_block_audit(&a, NULL), 0);
		for (uint32_t i = 0; i < one->n; i++)
			assert_int_equal(nsv_block_n_ref(&a, one->block[i]), 1);
		check_slots(one);
	}
	nsv_block_alloc_deinit(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reserve),
		cmocka_unit_test(test_release_goes_on),
		cmocka_unit_test(test_random),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
