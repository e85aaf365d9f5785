/* Forwards of each family against a plain one in double precision, written from the families'
 * definitions; and who attends in layers with a window. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "tests/tools/family-ref.h"
#include "tests/tools/family-run.h"
#include "tests/tools/rnd.h"

enum { N_TOKEN = FAMILY_REF_MAX_TOKEN };
#define TOLERANCE 1e-4

/* In steps of one row up to all of them. */
static void compare(
	const struct family *family, const struct family_file *f, const struct nsv_backend *backend)
{
	static double want[N_TOKEN * FAMILY_N_VOCAB];
	static float have[N_TOKEN * FAMILY_N_VOCAB];
	int32_t tokens[N_TOKEN];
	struct family_run r;

	family_draw_tokens(tokens, N_TOKEN);
	family_ref_forward(f, family, tokens, N_TOKEN, want);
	family_run_open(&r, f, backend, 1 + t_below(3), FAMILY_N_BLOCK);
	for (uint32_t chunk = 1; chunk <= N_TOKEN; chunk += 1 + chunk / 3) {
		memset(have, 0xff, sizeof(have));
		family_run_all(&r, tokens, N_TOKEN, chunk, have);
		for (size_t i = 0; i < NSV_ARRAY_LEN(have); i++)
			if (!(fabs(have[i] - want[i]) <= TOLERANCE + TOLERANCE * fabs(want[i])))
				fail_msg(
					"%s, %s, chunk %u: logit %zu of row %zu is %g, expected %g",
					family->arch, backend->name, chunk, i % FAMILY_N_VOCAB,
					i / FAMILY_N_VOCAB, (double)have[i], want[i]);
	}
	family_run_close(&r);
}

/* Float weights: the same on every backend, but for rounding. $NANOSERVE_QUICK: on one. */
static void check_forward(struct family family, struct family_extra extra)
{
	static const char *const backends[] = {"reference", "model", "cpu"};

	for (size_t i = getenv("NANOSERVE_QUICK") ? NSV_ARRAY_LEN(backends) - 1 : 0;
		i < NSV_ARRAY_LEN(backends); i++) {
		struct family_file f = family_file_make(&family, &extra);

		compare(&family, &f, family_backend(backends[i]));
		family_file_free(&f);
	}
}

static void test_llama(void **state)
{
	struct family f = family_llama;

	(void)state;
	check_forward(f, (struct family_extra){0});
	f.own_head = false;
	check_forward(f, (struct family_extra){0});
	f.factor = 4;
	check_forward(f, (struct family_extra){.set_f32 = "rope.scaling.factor", .f32 = 4});
}

static void test_qwen2(void **state)
{
	struct family f = family_qwen2;

	(void)state;
	check_forward(f, (struct family_extra){0});
	f.own_head = true;
	check_forward(f, (struct family_extra){0});
}

static void test_gemma3(void **state)
{
	struct family f = family_gemma3;

	(void)state;
	check_forward(f, (struct family_extra){0});
	f.period = 2;
	f.local_base = 77;
	check_forward(f, (struct family_extra){.set_u32 = "attention.sliding_window_pattern",
				 .u32 = 2,
				 .set_f32 = "rope.freq_base_swa",
				 .f32 = 77});
	f = family_gemma3;
	f.factor = 8;
	check_forward(f, (struct family_extra){.set_f32 = "rope.scaling.factor", .f32 = 8});
	f = family_gemma3;
	f.attn_scale = 0.1;
	check_forward(f, (struct family_extra){.set_f32 = "attention.scale", .f32 = 0.1f});
	f = family_gemma3;
	f.period = 1; /* every layer sees all */
	check_forward(
		f, (struct family_extra){.set_u32 = "attention.sliding_window_pattern", .u32 = 1});
}

static int weight_len_of_one(const struct nsv_matrix *m, uint32_t n_m, size_t *ret_len)
{
	return n_m > 1 ? -EINVAL : family_backend("reference")->weight_len(m, n_m, ret_len);
}

/* On a backend that cannot pack matrices together. */
static void test_unfused(void **state)
{
	struct nsv_backend apart = *family_backend("reference");
	struct family_file f = family_file_make(&family_llama, &(struct family_extra){0});

	(void)state;
	apart.weight_len = weight_len_of_one;
	compare(&family_llama, &f, &apart);
	family_file_free(&f);
}

/* ---- Who attends */

static struct {
	void (*attention)(const struct nsv_part *part, const struct nsv_attn_call *call);
	uint32_t n_call[2], n_alone[2]; /* of local layers, of global ones */
} spy;

static void spy_on_attention(const struct nsv_part *part, const struct nsv_attn_call *call)
{
	bool is_global = call->shape->window == 0;

	__atomic_fetch_add(&spy.n_call[is_global], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&spy.n_alone[is_global], part->count == 1, __ATOMIC_RELAXED);
	spy.attention(part, call);
}

/* A step of six sequences over the same blocks, but for a last one each. */
static void run_streams(struct family_run *r, const uint32_t n_past[6], float *logits)
{
	enum { N = 6, N_TABLE = 40 };
	int32_t tables[N][N_TABLE], pos[N];
	struct nsv_attn_seq seqs[N];
	int64_t slots[N];
	uint32_t rows[N];
	struct nsv_err err = {""};

	for (uint32_t i = 0; i < N; i++) {
		uint32_t last = n_past[i] / FAMILY_BLOCK;
		for (uint32_t b = 0; b < N_TABLE; b++)
			tables[i][b] = (int32_t)(b < last ? b : N_TABLE + i);
		slots[i] = (N_TABLE + i) * FAMILY_BLOCK + n_past[i] % FAMILY_BLOCK;
		pos[i] = (int32_t)n_past[i];
		rows[i] = i;
		seqs[i] = (struct nsv_attn_seq){.row0 = i,
			.n_query = 1,
			.n_past = n_past[i],
			.n_table = last + 1,
			.block_table = tables[i]};
	}
	const struct nsv_batch batch = {.n_row = N,
		.n_seq = N,
		.n_out = N,
		.tokens = (const int32_t[N]){1, 2, 3, 4, 5, 6},
		.pos = pos,
		.slots = slots,
		.seqs = seqs,
		.out_rows = rows};
	if (nsv_model_forward(r->m, &r->dispatch, &r->kv, &batch, logits, &err) < 0)
		fail_msg("%s", err.text);
}

/* Long histories beside short ones: in layers with a window all members have as much to read, and
 * each attends for its own rows; in the others they share what there is. */
static void test_windows_count_what_is_attended(void **state)
{
	static const uint32_t n_past[6] = {300, 301, 302, 8, 9, 10};
	static float want[6 * FAMILY_N_VOCAB], have[6 * FAMILY_N_VOCAB];
	const struct nsv_backend *cpu = family_backend("cpu");
	struct nsv_backend spied = *cpu;
	struct family_file f = family_file_make(&family_gemma3, &(struct family_extra){0});
	struct family_run r;
	(void)state;

	spy.attention = cpu->attention;
	spied.attention = spy_on_attention;
	family_run_open(&r, &f, &spied, 2, 46);
	nsv_team_resize(r.team, 1);
	run_streams(&r, n_past, want);
	nsv_team_resize(r.team, 2);
	memset(spy.n_call, 0, sizeof(spy.n_call));
	memset(spy.n_alone, 0, sizeof(spy.n_alone));
	run_streams(&r, n_past, have);
	assert_memory_equal(have, want, sizeof(want));
	assert_int_equal(spy.n_call[0], 2 * (family_gemma3.n_layer - 1));
	assert_int_equal(spy.n_alone[0], 2 * (family_gemma3.n_layer - 1));
	assert_int_equal(spy.n_call[1], 2);
	assert_int_equal(spy.n_alone[1], 0);
	family_run_close(&r);
	family_file_free(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_llama),
		cmocka_unit_test(test_qwen2),
		cmocka_unit_test(test_gemma3),
		cmocka_unit_test(test_unfused),
		cmocka_unit_test(test_windows_count_what_is_attended),
	};
	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
