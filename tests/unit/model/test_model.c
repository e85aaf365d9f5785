/* A model's forward over a batch: every integer of it, which rows' logits it leaves and where, and
 * that neither members of the team nor other streams change a bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "tests/tools/family-run.h"
#include "tests/tools/rnd.h"

enum { N_VOCAB = FAMILY_N_VOCAB, MAX_ROW = FAMILY_MAX_ROW };

static struct family_file llama;

static void open_run(struct family_run *r, const struct nsv_backend *backend, uint32_t n_member)
{
	family_run_open(r, &llama, backend, n_member, FAMILY_N_BLOCK);
}

/* Members may become fewer and more between two steps: the logits are the same bits. */
static void test_other_members(void **state)
{
	static const uint32_t n_members[] = {4, 1, 3, 2, 4};
	struct family_run r;
	int32_t tokens[MAX_ROW];
	float want[MAX_ROW * N_VOCAB], logits[MAX_ROW * N_VOCAB];

	(void)state;
	open_run(&r, family_backend("cpu"), 4);
	family_draw_tokens(tokens, MAX_ROW);
	family_run_all(&r, tokens, MAX_ROW, 2, want);
	for (size_t i = 0; i < NSV_ARRAY_LEN(n_members); i++) {
		nsv_team_resize(r.team, n_members[i]);
		assert_int_equal(nsv_team_size(r.team), n_members[i]);
		memset(logits, 0xff, sizeof(logits));
		family_run_all(&r, tokens, MAX_ROW, 2, logits);
		assert_memory_equal(logits, want, sizeof(want));
	}
	family_run_close(&r);
}

/* Fewer streams than members, each stream in a block of its own: some members have nothing to
 * attend to, and attention still counts as read once a layer. */
static void test_few_streams(void **state)
{
	enum { N_STREAM = 5 };
	struct family_run r;
	struct family_step s;
	struct nsv_attn_seq seqs[N_STREAM];
	int32_t tokens[N_STREAM], blocks[N_STREAM];
	float want[N_STREAM * N_VOCAB], logits[N_STREAM * N_VOCAB];

	(void)state;
	open_run(&r, family_backend("cpu"), N_STREAM + 3);
	family_draw_tokens(tokens, N_STREAM);
	for (int i = 0; i < N_STREAM; i++)
		family_run_all(&r, tokens + i, 1, 1, want + i * N_VOCAB);
	family_step_init(&s, tokens, 0, N_STREAM);
	for (uint32_t i = 0; i < N_STREAM; i++) {
		blocks[i] = (int32_t)i;
		s.pos[i] = 0;
		s.slots[i] = i * FAMILY_BLOCK;
		seqs[i] = (struct nsv_attn_seq){
			.row0 = i, .n_query = 1, .n_table = 1, .block_table = &blocks[i]};
	}
	s.batch.seqs = seqs;
	s.batch.n_seq = N_STREAM;
	r.dispatch.n_attention = 0;
	assert_int_equal(nsv_model_forward(r.m, &r.dispatch, &r.kv, &s.batch, logits, NULL), 0);
	assert_memory_equal(logits, want, sizeof(want));
	assert_int_equal(r.dispatch.n_attention, family_llama.n_layer);
	family_run_close(&r);
}

/* Rows that nobody wants cost no logits, and change none. */
static void test_wanted_rows(void **state)
{
	struct family_run r;
	int32_t tokens[MAX_ROW];
	float all[MAX_ROW * N_VOCAB], some[3 * N_VOCAB];
	struct family_step s;

	(void)state;
	open_run(&r, family_backend("reference"), 2);
	family_draw_tokens(tokens, MAX_ROW);
	family_run_all(&r, tokens, MAX_ROW, MAX_ROW, all);
	family_step_init(&s, tokens, 0, MAX_ROW);
	s.batch.n_out = 3;
	s.out_rows[1] = 7;
	s.out_rows[2] = MAX_ROW - 1;
	assert_int_equal(nsv_model_forward(r.m, &r.dispatch, &r.kv, &s.batch, some, NULL), 0);
	for (int i = 0; i < 3; i++)
		assert_memory_equal(
			some + i * N_VOCAB, all + s.out_rows[i] * N_VOCAB, N_VOCAB * sizeof(float));
	s.batch.n_out = 0;
	assert_int_equal(nsv_model_forward(r.m, &r.dispatch, &r.kv, &s.batch, NULL, NULL), 0);
	family_run_close(&r);
}

/* Logits go where the batch says, with the ranges of their slices. */
static void test_outputs(void **state)
{
	enum { LD = N_VOCAB + 7, N_SLICE = (N_VOCAB - 1) / NSV_SCAN_SLICE + 1 };
	struct nsv_scan_range ranges[MAX_ROW * N_SLICE], want[MAX_ROW * N_SLICE];
	float all[MAX_ROW * N_VOCAB], apart[MAX_ROW * LD];
	int32_t tokens[MAX_ROW];
	struct family_run r;
	struct family_step s;

	(void)state;
	open_run(&r, family_backend("cpu"), 2);
	family_draw_tokens(tokens, MAX_ROW);
	family_run_all(&r, tokens, MAX_ROW, MAX_ROW, all);
	family_step_init(&s, tokens, 0, MAX_ROW);
	s.batch.ld_out = LD;
	s.batch.slices.ranges = ranges;
	assert_int_equal(nsv_model_forward(r.m, &r.dispatch, &r.kv, &s.batch, apart, NULL), 0);
	for (int i = 0; i < MAX_ROW; i++)
		assert_memory_equal(apart + i * LD, all + i * N_VOCAB, N_VOCAB * sizeof(float));
	nsv_scan_look(all, N_VOCAB, MAX_ROW, N_VOCAB, 0, N_SLICE,
		&(struct nsv_scan_slices){.ranges = want});
	for (int i = 0; i < MAX_ROW * N_SLICE; i++) {
		assert_true(ranges[i].min == want[i].min && ranges[i].max == want[i].max);
		assert_int_equal(ranges[i].finite, want[i].finite);
	}
	family_run_close(&r);
}

enum bad_batch {
	TOKEN_LOW,
	TOKEN_HIGH,
	POS_LOW,
	POS_HIGH,
	POS_OTHER,
	SLOT_LOW,
	SLOT_HIGH,
	SLOT_OTHER,
	OUT_HIGH,
	OUT_TWICE,
	OUT_MANY,
	OUT_NEAR,
	NO_ROWS,
	MANY_ROWS,
	NO_SEQ,
	SHORT_QUERY,
	TABLE_SHORT,
	BLOCK_HIGH,
	POOL_HEADS,
	OTHER_BACKEND,
	N_BAD,
};

/* Something of one row. */
static void spoil_row(struct family_step *s, int32_t *tokens, enum bad_batch bad)
{
	switch (bad) {
	case TOKEN_LOW:
		tokens[2] = -1;
		break;
	case TOKEN_HIGH:
		tokens[2] = N_VOCAB;
		break;
	case POS_LOW:
		s->pos[0] = -1;
		break;
	case POS_HIGH:
		s->pos[5] = FAMILY_N_CTX;
		break;
	case POS_OTHER:
		s->pos[5]++;
		break;
	case SLOT_LOW:
		s->slots[3] = -1;
		break;
	case SLOT_HIGH:
		s->slots[3] = FAMILY_N_BLOCK * FAMILY_BLOCK;
		break;
	case SLOT_OTHER:
		s->slots[3]--;
		break;
	case OUT_HIGH:
		s->out_rows[5] = 6;
		break;
	case OUT_TWICE:
		s->out_rows[1] = 0;
		break;
	default:
		fail_msg("bad batch %d is none of a row", (int)bad);
	}
}

static void spoil(struct family_run *r, struct family_step *s, int32_t *tokens, enum bad_batch bad)
{
	switch (bad) {
	case OUT_MANY:
		s->batch.n_out = MAX_ROW + 1;
		break;
	case OUT_NEAR:
		s->batch.ld_out = N_VOCAB - 1;
		break;
	case NO_ROWS:
		s->batch.n_row = 0;
		break;
	case MANY_ROWS:
		s->batch.n_row = MAX_ROW + 1;
		break;
	case NO_SEQ:
		s->batch.n_seq = 0;
		break;
	case SHORT_QUERY:
		s->seq.n_query--;
		break;
	case TABLE_SHORT:
		s->seq.n_table = 0;
		break;
	case BLOCK_HIGH:
		s->table[0] = FAMILY_N_BLOCK;
		break;
	case POOL_HEADS:
		r->kv.shape.n_head = FAMILY_N_KV_HEAD;
		break;
	case OTHER_BACKEND:
		r->dispatch.backend = family_backend("model");
		break;
	default:
		spoil_row(s, tokens, bad);
	}
}

static void test_bad_batches(void **state)
{
	(void)state;
	for (int bad = 0; bad < N_BAD; bad++) {
		struct family_run r;
		struct family_step s;
		int32_t tokens[MAX_ROW + 1];
		float logits[6 * N_VOCAB] = {0};
		struct nsv_err err = {""};
		const float *end;

		open_run(&r, family_backend("reference"), 1);
		family_draw_tokens(tokens, MAX_ROW + 1);
		family_step_init(&s, tokens, 0, 6);
		spoil(&r, &s, tokens, bad);
		int ret = nsv_model_forward(r.m, &r.dispatch, &r.kv, &s.batch, logits, &err);
		if (ret != -EINVAL || !err.text[0])
			fail_msg("bad batch %d gives %d \"%s\"", bad, ret, err.text);
		/* Nothing was written. */
		end = r.pool + (size_t)r.kv.shape.k.block_stride * FAMILY_N_BLOCK;
		for (const float *p = r.pool; p < end; p++)
			assert_true(*p == 0);
		assert_true(logits[0] == 0);
		assert_int_equal(r.dispatch.n_attention, 0);
		family_run_close(&r);
	}
}

/* The same bytes are the same model, whoever runs it; other weights are another. */
static void test_id(void **state)
{
	struct family_file copy = {.p = malloc(llama.len), .len = llama.len},
			   other = family_file_make(&family_llama, &(struct family_extra){0});
	struct family_run r, same, changed;

	(void)state;
	assert_non_null(copy.p);
	memcpy(copy.p, llama.p, llama.len);
	assert_int_equal(nsv_gguf_parse(copy.p, copy.len, &copy.g, NULL), 0);
	open_run(&r, family_backend("reference"), 1);
	family_run_open(&same, &copy, family_backend("reference"), 2, FAMILY_N_BLOCK);
	family_run_open(&changed, &other, family_backend("reference"), 1, FAMILY_N_BLOCK);
	assert_true(nsv_model_id(r.m) == nsv_model_id(same.m));
	assert_true(nsv_model_id(r.m) != nsv_model_id(changed.m));
	family_run_close(&changed);
	family_run_close(&same);
	family_run_close(&r);
	family_file_free(&other);
	family_file_free(&copy);
}

static int make_llama(void **state)
{
	(void)state;
	t_seed();
	llama = family_file_make(&family_llama, &(struct family_extra){0});
	return 0;
}

static int free_llama(void **state)
{
	(void)state;
	family_file_free(&llama);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_other_members),
		cmocka_unit_test(test_few_streams),
		cmocka_unit_test(test_wanted_rows),
		cmocka_unit_test(test_outputs),
		cmocka_unit_test(test_bad_batches),
		cmocka_unit_test(test_id),
	};

	return cmocka_run_group_tests(tests, make_llama, free_llama);
}
