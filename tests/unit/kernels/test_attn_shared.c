/* Shared prefixes: what is found in tables of known groups, and what holds of any answer. */
#include "kernels/attn_shared.h"
#include "tests/tools/rnd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MAX_SEQ 40u
#define TABLE 64u
#define UNIT 64u

struct batch {
	struct nsv_attn_shape shape;
	struct nsv_attn_seq seqs[MAX_SEQ];
	int32_t tables[MAX_SEQ][TABLE];
	uint32_t n_seq, n_row;
};

static void add(struct batch *b, uint32_t n_past, uint32_t n_query)
{
	uint32_t i = b->n_seq++;
	for (uint32_t j = 0; j < TABLE; j++)
		b->tables[i][j] = (int32_t)(i * TABLE + j);
	b->seqs[i] = (struct nsv_attn_seq){b->n_row, n_query, n_past, TABLE, b->tables[i]};
	b->n_row += n_query;
}

/* The sequence last added begins with the first n blocks of sequence `of`. */
static void share(struct batch *b, uint32_t of, uint32_t n)
{
	memcpy(b->tables[b->n_seq - 1], b->tables[of], n * sizeof(int32_t));
}

static uint32_t find(const struct batch *b, struct nsv_attn_shared *ret, uint32_t max)
{
	const struct nsv_attn_sharing use = {.unit = UNIT};
	return nsv_attn_find_shared(&b->shape, b->seqs, b->n_seq, &use, ret, max);
}

static struct batch make_batch(uint32_t block_size)
{
	return (struct batch){.shape = {.block_size = block_size}};
}

/* Two groups and a stranger between them. */
static void finds_groups(void **state)
{
	struct batch b = make_batch(16);
	struct nsv_attn_shared got[MAX_SEQ];
	(void)state;
	add(&b, 200, 1);
	add(&b, 150, 2);
	share(&b, 0, 9);
	add(&b, 500, 1);
	add(&b, 300, 1);
	add(&b, 300, 1);
	share(&b, 3, 17);
	add(&b, 300, 4);
	share(&b, 3, 17);
	assert_int_equal(find(&b, got, MAX_SEQ), 2);
	assert_memory_equal(&got[0], (&(struct nsv_attn_shared){0, 2, 0, 3, 128}), sizeof(got[0]));
	assert_memory_equal(&got[1], (&(struct nsv_attn_shared){3, 3, 4, 6, 256}), sizeof(got[1]));
	assert_int_equal(find(&b, got, 1), 1);
	b.shape.window = 100;
	assert_int_equal(find(&b, got, MAX_SEQ), 0);
}

/* Blocks that are the same but not from the start, rows with a gap, rows that do not see all. */
static void refuses_what_is_not_shared(void **state)
{
	struct batch b = make_batch(16);
	struct nsv_attn_shared got[MAX_SEQ];
	(void)state;
	add(&b, 200, 1);
	add(&b, 200, 1);
	share(&b, 0, 12);
	b.tables[1][0] = 9999;
	assert_int_equal(find(&b, got, MAX_SEQ), 0);
	share(&b, 0, 12);
	assert_int_equal(find(&b, got, MAX_SEQ), 1);
	b.seqs[1].row0++;
	assert_int_equal(find(&b, got, MAX_SEQ), 0);
	b.seqs[1].row0--;
	b.seqs[1].n_past = UNIT - 1;
	assert_int_equal(find(&b, got, MAX_SEQ), 0);
}

/* One that shares little does not cut what many share. */
static void keeps_a_long_prefix(void **state)
{
	struct batch b = make_batch(16);
	struct nsv_attn_shared got[MAX_SEQ];
	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		add(&b, 600, 1);
		share(&b, 0, i < 3 ? 32 : 4);
	}
	assert_int_equal(find(&b, got, MAX_SEQ), 1);
	assert_memory_equal(&got[0], (&(struct nsv_attn_shared){0, 3, 0, 3, 512}), sizeof(got[0]));
}

/* Groups that save too little, or too little a sequence, are left out. */
static void leaves_out_what_does_not_pay(void **state)
{
	struct batch b = make_batch(16);
	struct nsv_attn_shared got[MAX_SEQ];
	struct nsv_attn_sharing use = {.unit = UNIT, .min_key = 512, .min_saved = 1024};
	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		add(&b, 600, 1);
		share(&b, 0, 32);
	}
	assert_int_equal(nsv_attn_find_shared(&b.shape, b.seqs, 3, &use, got, MAX_SEQ), 1);
	assert_int_equal(nsv_attn_find_shared(&b.shape, b.seqs, 2, &use, got, MAX_SEQ), 0);
	use.min_saved = 1025;
	assert_int_equal(nsv_attn_find_shared(&b.shape, b.seqs, 3, &use, got, MAX_SEQ), 0);
	use.min_saved = 0;
	assert_int_equal(nsv_attn_find_shared(&b.shape, b.seqs, 2, &use, got, MAX_SEQ), 1);
	use.min_key = 513;
	assert_int_equal(nsv_attn_find_shared(&b.shape, b.seqs, 3, &use, got, MAX_SEQ), 0);
}

static void check_group(const struct batch *b, const struct nsv_attn_shared *g)
{
	uint32_t row = g->row0;
	assert_true(g->n_seq >= 2 && g->first + g->n_seq <= b->n_seq);
	assert_true(g->n_key > 0 && g->n_key % UNIT == 0 && g->n_key % b->shape.block_size == 0);
	for (uint32_t i = g->first; i < g->first + g->n_seq; i++) {
		assert_int_equal(b->seqs[i].row0, row);
		row += b->seqs[i].n_query;
		assert_true(b->seqs[i].n_query > 0 && b->seqs[i].n_past >= g->n_key);
		assert_memory_equal(b->tables[i], b->tables[g->first],
			g->n_key / b->shape.block_size * sizeof(int32_t));
	}
	assert_int_equal(g->n_row, row - g->row0);
}

static void holds_on_random_batches(void **state)
{
	uint32_t n_found = 0;
	(void)state;
	for (int round = 0; round < 2000; round++) {
		struct batch b = make_batch(8u << t_below(5));
		struct nsv_attn_shared got[MAX_SEQ];
		uint32_t n = 1 + t_below(MAX_SEQ), end = 0;
		for (uint32_t i = 0; i < n; i++) {
			add(&b, t_below(TABLE * b.shape.block_size - 8), t_below(8));
			if (i && t_below(4))
				share(&b, i - 1, t_below(TABLE));
		}
		n = find(&b, got, MAX_SEQ);
		n_found += n;
		for (uint32_t i = 0; i < n; i++) {
			assert_true(got[i].first >= end);
			end = got[i].first + got[i].n_seq;
			check_group(&b, &got[i]);
		}
	}
	assert_true(n_found > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(finds_groups),
		cmocka_unit_test(refuses_what_is_not_shared),
		cmocka_unit_test(keeps_a_long_prefix),
		cmocka_unit_test(leaves_out_what_does_not_pay),
		cmocka_unit_test(holds_on_random_batches),
	};
	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
