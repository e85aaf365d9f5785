/* The integers of paged attention: every named status reached, overflow, the pool's last slots, and
 * random shapes against brute force over every place of the pool. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "tests/ops/support.h"

static struct nsv_attn_shape good_shape(void)
{
	return (struct nsv_attn_shape){.n_head = 9,
		.n_kv_head = 3,
		.head_dim = 64,
		.block_size = 16,
		.n_block = 10,
		.kv_dtype = NSV_F32,
		.scale = 0.125f,
		.k = {3072, 1, 1024, 16},
		.v = {3072, 64, 1024, 1}};
}

static void test_shape_status(void **unused)
{
	struct nsv_attn_shape s = good_shape();
	(void)unused;
	assert_int_equal(nsv_attn_check_shape(&s), NSV_ATTN_OK);
#define CHECK(field, value, status) \
	do { \
		s = good_shape(); \
		s.field = value; \
		assert_int_equal(nsv_attn_check_shape(&s), status); \
	} while (0)
	CHECK(n_head, 0, NSV_ATTN_ZERO);
	CHECK(n_kv_head, 0, NSV_ATTN_ZERO);
	CHECK(head_dim, 0, NSV_ATTN_ZERO);
	CHECK(block_size, 0, NSV_ATTN_ZERO);
	CHECK(n_block, 0, NSV_ATTN_ZERO);
	CHECK(n_head, 10, NSV_ATTN_HEADS);
	CHECK(n_head, 2, NSV_ATTN_HEADS);
	CHECK(head_dim, 1025, NSV_ATTN_HEAD_DIM);
	CHECK(block_size, 24, NSV_ATTN_BLOCK_SIZE);
	CHECK(block_size, 2048, NSV_ATTN_BLOCK_SIZE);
	CHECK(kv_dtype, NSV_Q8_0, NSV_ATTN_DTYPE);
	CHECK(kv_dtype, 99, NSV_ATTN_DTYPE);
	CHECK(k.block_stride, 3071, NSV_ATTN_STRIDE);
	CHECK(k.block_stride, 0, NSV_ATTN_STRIDE);
	CHECK(v.tok_stride, -64, NSV_ATTN_STRIDE);
	CHECK(v.tok_stride, 63, NSV_ATTN_STRIDE);
	CHECK(v.head_stride, 1, NSV_ATTN_STRIDE);
	CHECK(k.dim_stride, 15, NSV_ATTN_STRIDE);
	CHECK(scale, NAN, NSV_ATTN_SCALE);
	CHECK(scale, INFINITY, NSV_ATTN_SCALE);
	CHECK(softcap, -1.0f, NSV_ATTN_SCALE);
	CHECK(softcap, NAN, NSV_ATTN_SCALE);
	CHECK(k.block_stride, INT64_MAX / 4, NSV_ATTN_OVERFLOW);
	CHECK(v.block_stride, INT64_MAX / 9 - 10, NSV_ATTN_OVERFLOW);
	CHECK(k.block_stride, INT64_MAX / 40, NSV_ATTN_OK);
	CHECK(n_block, UINT32_MAX, NSV_ATTN_OK);
#undef CHECK
}

static void test_names(void **unused)
{
	(void)unused;
	for (int i = NSV_ATTN_OK; i <= NSV_ATTN_ROWS; i++)
		for (int j = NSV_ATTN_OK; j < i; j++)
			assert_string_not_equal(nsv_attn_status_name(i), nsv_attn_status_name(j));
	assert_string_equal(nsv_attn_status_name(NSV_ATTN_HEADS), "head count does not divide");
	assert_string_equal(nsv_attn_status_name(-1), "unknown status");
	assert_string_equal(nsv_attn_status_name(NSV_ATTN_ROWS + 1), "unknown status");
}

/* The status of one sequence; the plan must be untouched unless it is OK. */
static int plan_of(const struct nsv_attn_shape *s, const struct nsv_attn_seq *seqs, uint32_t n_seq,
	uint32_t n_row)
{
	struct nsv_attn_plan plan, before;
	int status;
	memset(&plan, 0x5a, sizeof(plan));
	before = plan;
	status = nsv_attn_make_plan(s, seqs, n_seq, n_row, &plan);
	if (status != NSV_ATTN_OK)
		assert_memory_equal(&plan, &before, sizeof(plan));
	return status;
}

static void test_plan_status(void **unused)
{
	struct nsv_attn_shape s = good_shape(), bad = good_shape();
	int32_t table[10] = {9, 0, 1, 2, 3, 4, 5, 6, 7, 8};
	struct nsv_attn_seq seq;
	(void)unused;
#define PLAN(row0, n_query, n_past, n_table, n_row) \
	(seq = (struct nsv_attn_seq){row0, n_query, n_past, n_table, table}, \
		plan_of(&s, &seq, 1, n_row))
	assert_int_equal(PLAN(0, 1, 159, 10, 1), NSV_ATTN_OK);
	assert_int_equal(PLAN(0, 1, 160, 10, 1), NSV_ATTN_TABLE_SHORT);
	assert_int_equal(PLAN(0, 1, 15, 1, 1), NSV_ATTN_OK);
	assert_int_equal(PLAN(0, 1, 16, 1, 1), NSV_ATTN_TABLE_SHORT);
	assert_int_equal(PLAN(0, 2, 0, 1, 1), NSV_ATTN_ROWS);
	assert_int_equal(PLAN(1, 1, 0, 1, 1), NSV_ATTN_ROWS);
	assert_int_equal(PLAN(UINT32_MAX, 1, 0, 1, 1), NSV_ATTN_ROWS);
	assert_int_equal(PLAN(0, 1, UINT32_MAX, 10, 1), NSV_ATTN_OVERFLOW);
	assert_int_equal(PLAN(0, 1, 0, 1, 0), NSV_ATTN_ZERO);
	assert_int_equal(PLAN(0, 0, 0, 0, 1), NSV_ATTN_OK);
	assert_int_equal(plan_of(&s, &seq, 0, 1), NSV_ATTN_ZERO);
	table[0] = 10;
	assert_int_equal(PLAN(0, 1, 0, 1, 1), NSV_ATTN_SLOT);
	table[0] = -1;
	assert_int_equal(PLAN(0, 1, 0, 1, 1), NSV_ATTN_SLOT);
	table[0] = 9;
	table[9] = 10; /* beyond what the history needs: not looked at */
	assert_int_equal(PLAN(0, 1, 143, 10, 1), NSV_ATTN_OK);
	assert_int_equal(PLAN(0, 1, 144, 10, 1), NSV_ATTN_SLOT);
#undef PLAN
	bad.n_head = 8;
	assert_int_equal(plan_of(&bad, &seq, 1, 1), NSV_ATTN_HEADS);
	seq.block_table = NULL;
	assert_int_equal(plan_of(&s, &seq, 1, 1), NSV_ATTN_TABLE_SHORT);
}

static void test_plan_overflow(void **unused)
{
	struct nsv_attn_shape s = {.n_head = 1u << 31,
		.n_kv_head = 1,
		.head_dim = 1024,
		.block_size = 1,
		.n_block = 1,
		.kv_dtype = NSV_F32,
		.scale = 1,
		.k = {1024, 1024, 1024, 1},
		.v = {1024, 1024, 1024, 1}};
	int32_t zero = 0;
	struct nsv_attn_seq seq = {0, 1, 0, 1, &zero};
	uint32_t past = 7;
	size_t len = 3;
	(void)unused;
	assert_int_equal(plan_of(&s, &seq, 1, 1u << 30), NSV_ATTN_OVERFLOW);
	assert_int_equal(nsv_attn_past(5, 6, &past), NSV_ATTN_QUERY);
	assert_int_equal(past, 7);
	assert_int_equal(nsv_attn_past(6, 6, &past), NSV_ATTN_OK);
	assert_int_equal(past, 0);
	s.n_head = UINT32_MAX;
	assert_int_equal(nsv_attn_scratch_len(&s, 16, UINT64_MAX, &len), NSV_ATTN_OK);
	assert_true(len > 0);
}

static void test_rows_overlap(void **unused)
{
	struct nsv_attn_shape s = good_shape();
	int32_t table[1] = {0};
	(void)unused;
	for (int i = 0; i < 2000; i++) {
		struct nsv_attn_seq seqs[4];
		uint8_t used[20] = {0};
		bool overlap = false;
		for (int j = 0; j < 4; j++) {
			uint32_t n = t_below(5);
			seqs[j] = (struct nsv_attn_seq){t_below(20 - n), n, 0, 1, table};
			for (uint32_t r = 0; r < n; r++)
				overlap |= used[seqs[j].row0 + r]++ > 0;
		}
		assert_int_equal(plan_of(&s, seqs, 4, 20), overlap ? NSV_ATTN_ROWS : NSV_ATTN_OK);
	}
}

static void test_plan_values(void **unused)
{
	struct nsv_attn_shape s = good_shape();
	int32_t table[300] = {0};
	struct nsv_attn_seq seqs[2] = {{0, 3, 300, 300, table}, {3, 1, 4500, 300, table}};
	struct nsv_attn_plan plan;
	size_t worst = 0;
	(void)unused;
	s.head_dim = 80;
	s.k = (struct nsv_kv_layout){3840, 1, 1280, 16};
	s.v = (struct nsv_kv_layout){3840, 80, 1280, 1};
	assert_int_equal(nsv_attn_make_plan(&s, seqs, 2, 4, &plan), NSV_ATTN_OK);
	assert_int_equal(plan.n_seq, 2);
	assert_int_equal(plan.n_row, 4);
	assert_int_equal(plan.group, 3);
	assert_int_equal(plan.head_dim_pad, 128);
	assert_int_equal(plan.max_kv, 4501);
	assert_int_equal(plan.n_chunk, 17);
	assert_int_equal(plan.grid[0], 3);
	assert_int_equal(plan.grid[1], 9);
	assert_int_equal(plan.grid[2], 2);
	assert_int_equal(plan.q_row_stride, 720);
	assert_int_equal(plan.scratch_len, 4 * 9 * 17 * (80 + NSV_ATTN_PART_HEAD) * 4);
	assert_int_equal(nsv_attn_scratch_len(&s, 500, 4501, &worst), NSV_ATTN_OK);
	assert_true(worst >= plan.scratch_len);
}

/* ---- Chunks ----------------------------------------------------------------------------- */

static void test_chunks(void **unused)
{
	uint32_t chunk = 0;
	uint64_t edge = 0, size = NSV_ATTN_CHUNK0;
	(void)unused;
	assert_int_equal(nsv_attn_n_chunk(0), 0);
	for (uint32_t i = 0; i < 200; i++) {
		assert_true(nsv_attn_chunk_edge(i) == edge);
		if (edge)
			assert_int_equal(nsv_attn_n_chunk(edge), i);
		assert_int_equal(nsv_attn_n_chunk(edge + 1), i + 1);
		edge += size;
		if (i % NSV_ATTN_CHUNKS_A_SIZE == NSV_ATTN_CHUNKS_A_SIZE - 1)
			size *= 2;
	}
	for (uint64_t n = 1; n < 40000; n++) {
		if (n > nsv_attn_chunk_edge(chunk))
			chunk++;
		assert_int_equal(nsv_attn_n_chunk(n), chunk);
	}
	assert_true(nsv_attn_chunk_edge(UINT32_MAX) == UINT64_MAX);
	assert_true(nsv_attn_chunk_edge(700) == UINT64_MAX);
	assert_true(nsv_attn_n_chunk(UINT64_MAX) <= 41 * NSV_ATTN_CHUNKS_A_SIZE);
	assert_true(nsv_attn_n_chunk(UINT32_MAX) < 21 * NSV_ATTN_CHUNKS_A_SIZE);
}

/* ---- Addresses -------------------------------------------------------------------------- */

/* Strides of a random order of axes with random gaps: never overlapping. */
static struct nsv_kv_layout random_layout(const struct nsv_attn_shape *s)
{
	const uint32_t n[4] = {s->n_block, s->block_size, s->n_kv_head, s->head_dim};
	uint32_t order[4] = {0, 1, 2, 3};
	int64_t stride[4], next = 1;
	for (uint32_t i = 3; i > 0; i--) {
		uint32_t j = t_below(i + 1), swap = order[i];
		order[i] = order[j];
		order[j] = swap;
	}
	for (int i = 0; i < 4; i++) {
		stride[order[i]] = next;
		next = next * n[order[i]] + t_below(4);
	}
	return (struct nsv_kv_layout){stride[0], stride[1], stride[2], stride[3]};
}

/* How often each element of the pool is used; true if some is twice. */
static bool mark_places(const struct nsv_attn_shape *s, uint8_t *used, size_t n)
{
	bool twice = false;
	for (uint64_t slot = 0; slot < (uint64_t)s->n_block * s->block_size; slot++)
		for (uint32_t h = 0; h < s->n_kv_head; h++)
			for (uint32_t d = 0; d < s->head_dim; d++) {
				int64_t off = -1;
				assert_int_equal(nsv_attn_offset(s, &s->k, slot, h, d, &off), 0);
				assert_true(off >= 0 && (size_t)off < n);
				twice |= used[off]++ > 0;
			}
	return twice;
}

static void test_offsets(void **unused)
{
	(void)unused;
	for (int i = 0; i < 500; i++) {
		struct nsv_attn_shape s = {.n_head = 1,
			.n_kv_head = 1 + t_below(4),
			.head_dim = 1 + t_below(9),
			.block_size = 1u << t_below(4),
			.n_block = 1 + t_below(5),
			.kv_dtype = NSV_F32,
			.scale = 1};
		static uint8_t used[1 << 20];
		memset(used, 0, sizeof(used));
		s.n_head = s.n_kv_head * (1 + t_below(4));
		s.k = s.v = random_layout(&s);
		assert_int_equal(nsv_attn_check_shape(&s), NSV_ATTN_OK);
		assert_false(mark_places(&s, used, sizeof(used)));
	}
}

/* Whatever strides: a shape that is accepted never puts two elements in one place. */
static void test_overlap_found(void **unused)
{
	uint32_t accepted = 0;
	(void)unused;
	for (int i = 0; i < 3000; i++) {
		struct nsv_attn_shape s = {.n_head = 12,
			.n_kv_head = 1 + t_below(3),
			.head_dim = 1 + t_below(4),
			.block_size = 1u << t_below(3),
			.n_block = 1 + t_below(3),
			.kv_dtype = NSV_F32,
			.scale = 1};
		uint8_t used[1024] = {0};
		s.k = s.v = (struct nsv_kv_layout){
			1 + t_below(64), 1 + t_below(20), 1 + t_below(30), 1 + t_below(12)};
		if (nsv_attn_check_shape(&s) != NSV_ATTN_OK)
			continue;
		accepted++;
		assert_false(mark_places(&s, used, sizeof(used)));
	}
	assert_true(accepted > 10);
}

static void test_offset_limits(void **unused)
{
	struct nsv_attn_shape s = good_shape();
	int64_t off = -5;
	(void)unused;
	assert_int_equal(nsv_attn_offset(&s, &s.k, 159, 2, 63, &off), NSV_ATTN_OK);
	assert_int_equal(off, 10 * 3072 - 1);
	off = -5;
	assert_int_equal(nsv_attn_offset(&s, &s.k, 160, 0, 0, &off), NSV_ATTN_SLOT);
	assert_int_equal(nsv_attn_offset(&s, &s.k, 0, 3, 0, &off), NSV_ATTN_SLOT);
	assert_int_equal(nsv_attn_offset(&s, &s.k, 0, 0, 64, &off), NSV_ATTN_SLOT);
	assert_int_equal(nsv_attn_offset(&s, &s.k, UINT64_MAX, 0, 0, &off), NSV_ATTN_SLOT);
	s.k.block_stride = INT64_MAX / 4;
	assert_int_equal(nsv_attn_offset(&s, &s.k, 159, 0, 0, &off), NSV_ATTN_OVERFLOW);
	assert_int_equal(off, -5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shape_status),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_plan_status),
		cmocka_unit_test(test_plan_overflow),
		cmocka_unit_test(test_rows_overlap),
		cmocka_unit_test(test_plan_values),
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_offsets),
		cmocka_unit_test(test_overlap_found),
		cmocka_unit_test(test_offset_limits),
	};
	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
