/* The block allocator against a naive model, its errors, and an audit that sees every
 * corruption. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "cache/block_alloc.h"
#include "tests/tools/rnd.h"

#define N_BLOCK 61

static void test_init(void **state)
{
	struct nsv_block_alloc a;

	(void)state;
	assert_int_equal(nsv_block_alloc_init(&a, 0), -EINVAL);
	nsv_block_alloc_deinit(&a);
	assert_int_equal(nsv_block_alloc_init(&a, (uint32_t)INT32_MAX + 1), -EINVAL);
	nsv_block_alloc_deinit(&a);
	assert_int_equal(nsv_block_alloc_init(&a, 1), 0);
	int32_t b = -7;
	assert_int_equal(nsv_block_get(&a, &b), 0);
	assert_int_equal(b, 0);
	b = -7;
	assert_int_equal(nsv_block_get(&a, &b), 1);
	assert_int_equal(b, -7);
	nsv_block_alloc_deinit(&a);
	nsv_block_alloc_deinit(&a);
}

static void test_errors(void **state)
{
	struct nsv_block_alloc a;
	int32_t b;

	(void)state;
	assert_int_equal(nsv_block_alloc_init(&a, N_BLOCK), 0);
	assert_int_equal(nsv_block_get(&a, &b), 0);
	const int32_t foreign[] = {-1, -2, N_BLOCK, INT32_MIN, INT32_MAX};
	for (size_t i = 0; i < NSV_ARRAY_LEN(foreign); i++) {
		assert_int_equal(nsv_block_ref(&a, foreign[i]), -ERANGE);
		assert_int_equal(nsv_block_unref(&a, foreign[i]), -ERANGE);
		assert_int_equal(nsv_block_n_ref(&a, foreign[i]), 0);
	}
	assert_int_equal(nsv_block_unref(&a, b), 1);
	assert_int_equal(nsv_block_unref(&a, b), -EALREADY);
	assert_int_equal(nsv_block_ref(&a, b), 0);
	a.ref[b] = UINT32_MAX;
	assert_int_equal(nsv_block_ref(&a, b), -EOVERFLOW);
	a.ref[b] = 1;
	assert_int_equal(nsv_block_audit(&a, NULL), 0);
	nsv_block_alloc_deinit(&a);
}

/* The block freed last goes out first. */
static void test_stack_order(void **state)
{
	struct nsv_block_alloc a;
	int32_t b[3], again;

	(void)state;
	assert_int_equal(nsv_block_alloc_init(&a, N_BLOCK), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(nsv_block_get(&a, &b[i]), 0);
	assert_int_equal(nsv_block_unref(&a, b[0]), 1);
	assert_int_equal(nsv_block_unref(&a, b[2]), 1);
	assert_int_equal(nsv_block_get(&a, &again), 0);
	assert_int_equal(again, b[2]);
	assert_int_equal(nsv_block_get(&a, &again), 0);
	assert_int_equal(again, b[0]);
	nsv_block_alloc_deinit(&a);
}

static uint32_t count_free(const uint32_t *ref)
{
	uint32_t n = 0;

	for (int i = 0; i < N_BLOCK; i++)
		n += ref[i] == 0;
	return n;
}

static void random_step(struct nsv_block_alloc *a, uint32_t *ref, bool *cached)
{
	int32_t b = (int32_t)t_below(N_BLOCK);
	uint32_t n_free = count_free(ref);

	switch (t_below(6)) {
	case 0:
		assert_int_equal(nsv_block_get(a, &b), n_free == 0);
		if (n_free > 0) {
			assert_int_equal(ref[b], 0);
			ref[b] = 1;
		}
		break;
	case 1:
		assert_int_equal(nsv_block_ref(a, b), 0);
		ref[b]++;
		break;
	case 2:
		assert_int_equal(nsv_block_cache(a, b), ref[b] == 0 ? -EINVAL
							: cached[b] ? -EALREADY
								    : 0);
		ref[b] += ref[b] > 0 && !cached[b];
		cached[b] = ref[b] > 0;
		break;
	case 3:
		assert_int_equal(nsv_block_uncache(a, b), cached[b] ? ref[b] == 1 : -EALREADY);
		ref[b] -= cached[b];
		cached[b] = false;
		break;
	case 4:
		if (cached[b])
			nsv_block_set_inner(a, b, t_below(2));
		break;
	default:
		assert_int_equal(
			nsv_block_unref(a, b), ref[b] == cached[b] ? -EALREADY : ref[b] == 1);
		ref[b] -= ref[b] > cached[b];
	}
}

static uint32_t count_idle(const uint32_t *ref, const bool *cached)
{
	uint32_t n = 0;

	for (int i = 0; i < N_BLOCK; i++)
		n += cached[i] && ref[i] == 1;
	return n;
}

static void test_random(void **state)
{
	struct nsv_block_alloc a;
	uint32_t ref[N_BLOCK] = {0};
	bool cached[N_BLOCK] = {false};
	struct nsv_err err = {""};

	(void)state;
	assert_int_equal(nsv_block_alloc_init(&a, N_BLOCK), 0);
	for (int step = 0; step < 50000; step++) {
		random_step(&a, ref, cached);
		assert_int_equal(a.n_free, count_free(ref));
		assert_int_equal(nsv_block_n_idle(&a), count_idle(ref, cached));
		if (step % 16 == 0 && nsv_block_audit(&a, &err) < 0)
			fail_msg("step %d: %s", step, err.text);
		for (int i = 0; step % 64 == 0 && i < N_BLOCK; i++) {
			assert_int_equal(nsv_block_n_ref(&a, i), ref[i]);
			assert_int_equal(nsv_block_is_cached(&a, i), cached[i]);
		}
	}
	nsv_block_alloc_deinit(&a);
}

/* Those that became idle first are the oldest; one that is used again is the newest. */
static void test_idle_order(void **state)
{
	struct nsv_block_alloc a;
	int32_t b[4];

	(void)state;
	assert_int_equal(nsv_block_alloc_init(&a, 4), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(nsv_block_get(&a, &b[i]), 0);
		assert_int_equal(nsv_block_cache(&a, b[i]), 0);
	}
	for (int i = 4; i-- > 0;)
		assert_int_equal(nsv_block_unref(&a, b[i]), 0);
	assert_int_equal(nsv_block_ref(&a, b[3]), 0);
	assert_int_equal(a.idle.leaf.oldest, b[2]);
	assert_int_equal(nsv_block_unref(&a, b[3]), 0);
	assert_int_equal(a.idle.leaf.newest, b[3]);
	nsv_block_set_inner(&a, b[1], true);
	nsv_block_set_inner(&a, b[3], true);
	assert_int_equal(nsv_block_uncache(&a, b[2]), 1);
	assert_int_equal(a.idle.leaf.oldest, b[0]);
	nsv_block_set_inner(&a, b[1], false); /* idle for longer than b[0] */
	nsv_block_set_inner(&a, b[3], false); /* not so long */
	assert_int_equal(a.idle.leaf.oldest, b[1]);
	assert_int_equal(a.idle.leaf.newest, b[3]);
	assert_int_equal(nsv_block_audit(&a, NULL), 0);
	nsv_block_alloc_deinit(&a);
}

enum corruption {
	FREE_WITH_HOLDERS,
	HELD_WITHOUT_HOLDERS,
	LOST_BLOCK,
	RING,
	FOREIGN_LINK,
	FOREIGN_HEAD,
	COUNT_HIGH,
	COUNT_LOW,
	HELD_ON_LIST,
	N_CORRUPTION,
};

/* `free` and `held` are a free block that is not the head, and a held one. */
static void corrupt(struct nsv_block_alloc *a, enum corruption kind, int32_t free, int32_t held)
{
	switch (kind) {
	case FREE_WITH_HOLDERS:
		a->ref[free] = 1;
		break;
	case HELD_WITHOUT_HOLDERS:
		a->ref[held] = 0;
		break;
	case LOST_BLOCK:
		a->head = a->next[a->head];
		break;
	case RING:
		a->next[free] = a->head;
		break;
	case FOREIGN_LINK:
		a->next[free] = N_BLOCK;
		break;
	case FOREIGN_HEAD:
		a->head = -3;
		break;
	case COUNT_HIGH:
		a->n_free++;
		break;
	case COUNT_LOW:
		a->n_free--;
		break;
	default:
		a->next[held] = a->head;
		a->head = held;
	}
}

static void test_audit_sees(void **state)
{
	(void)state;
	for (int kind = 0; kind < N_CORRUPTION; kind++) {
		struct nsv_block_alloc a;
		struct nsv_err err = {""};
		int32_t b[8];

		assert_int_equal(nsv_block_alloc_init(&a, N_BLOCK), 0);
		for (int i = 0; i < 8; i++)
			assert_int_equal(nsv_block_get(&a, &b[i]), 0);
		assert_int_equal(nsv_block_audit(&a, &err), 0);
		corrupt(&a, kind, a.next[a.head], b[t_below(8)]);
		if (nsv_block_audit(&a, &err) != -EUCLEAN)
			fail_msg("corruption %d went unseen", kind);
		assert_true(strlen(err.text) > 0);
		nsv_block_alloc_deinit(&a);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_init),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_stack_order),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_idle_order),
		cmocka_unit_test(test_audit_sees),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
