/* Merges against a naive rule: look at all pairs, merge the leftmost of the lowest rank, repeat.
 * Words on both sides of where the list and the heap take over. */
#include "daemon/tok/bpe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/tools/rnd.h"

#define N_BYTE 4
#define MAX_MERGE 60
#define MAX_WORD 300

/* Of a pair that is there twice the first counts. NULL: there is none. */
static const struct nsv_bpe_merge *find_merge(
	const struct nsv_bpe_merge *merges, uint32_t n_merge, const int32_t pair[2])
{
	for (uint32_t m = 0; m < n_merge; m++)
		if (merges[m].left == pair[0] && merges[m].right == pair[1])
			return &merges[m];
	return NULL;
}

static size_t naive(const struct nsv_bpe_merge *merges, uint32_t n_merge, int32_t *id, size_t n)
{
	for (;; n--) {
		const struct nsv_bpe_merge *best = NULL;
		size_t at = 0;

		for (size_t i = 0; i + 1 < n; i++) {
			const struct nsv_bpe_merge *m = find_merge(merges, n_merge, &id[i]);
			if (m && (!best || m->rank < best->rank)) {
				best = m;
				at = i;
			}
		}
		if (!best)
			return n;
		id[at] = best->id;
		memmove(id + at + 1, id + at + 2, (n - at - 2) * sizeof(*id));
	}
}

static uint32_t random_merges(struct nsv_bpe *bpe, struct nsv_bpe_merge *merges)
{
	uint32_t n = t_below(MAX_MERGE);

	assert_int_equal(nsv_bpe_init(bpe, n), 0);
	for (int i = 0; i < N_BYTE; i++)
		bpe->byte_id['a' + i] = i;
	for (uint32_t m = 0; m < n; m++) {
		int32_t n_id = (int32_t)(N_BYTE + m);

		merges[m] = (struct nsv_bpe_merge){.left = (int32_t)t_below((uint32_t)n_id),
			.right = (int32_t)t_below((uint32_t)n_id),
			.rank = m,
			.id = n_id};
		nsv_bpe_add(bpe, &merges[m]);
	}
	return n;
}

static void test_against_naive_merging(void **state)
{
	(void)state;
	for (int round = 0; round < 2000; round++) {
		struct nsv_bpe_merge merges[MAX_MERGE];
		struct nsv_bpe bpe;
		struct nsv_ids ids = {0};
		char word[MAX_WORD];
		int32_t want[MAX_WORD];
		uint32_t n_merge = random_merges(&bpe, merges);
		size_t len = 1 + t_below(round % 2 ? 60 : MAX_WORD);

		for (size_t i = 0; i < len; i++) {
			want[i] = (int32_t)t_below(1 + t_below(N_BYTE));
			word[i] = (char)('a' + want[i]);
		}
		assert_int_equal(nsv_bpe_word(&bpe, word, len, &ids), 0);
		assert_int_equal(ids.n, naive(merges, n_merge, want, len));
		assert_memory_equal(ids.v, want, ids.n * sizeof(*want));
		nsv_ids_deinit(&ids);
		nsv_bpe_deinit(&bpe);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_naive_merging),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
