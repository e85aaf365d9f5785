/* How K and V are stored, through a whole engine over a tiny model: a value that fp16 cannot hold
 * ends its request alone, with the error of a logit that is not finite; a pool of another type is
 * not taken over, and its streams go on; sizes follow the type. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/tools/gguf_write.h"
#include "tests/tools/rnd.h"
#include "tests/tools/world.h"

#define N 4u /* requests */
#define N_OUTPUT 20u
#define WIDTH 64u
#define SPIKE (NSV_TINY_FIRST_BYTE + 'Z') /* the token whose K or V of layer 0 is out of range */

static struct nsv_gguf *gguf;
static struct nsv_tok *tok;
static uint8_t *file;
static struct nsv_world_ask asks[NSV_WORLD_MAX];

static struct nsv_engine_config config_of(const char *kv_dtype)
{
	return (struct nsv_engine_config){.threads = 1 + t_below(2),
		.kv_dtype = kv_dtype,
		.kv_blocks = strcmp(kv_dtype, "f16") == 0 ? 48 : 24, /* of one size in all */
		.batch_tokens = 32,
		.max_requests = N};
}

/* ---- Worlds */

static void run_out(struct nsv_world *w)
{
	bool any = true;

	for (int turn = 0; turn < 300 && any; turn++) {
		nsv_world_turn(w);
		any = nsv_world_let_go(w);
	}
	assert_false(any);
	nsv_world_turn(w);
}

/* Requests first .. end - 1 together, to their ends. */
static void run(const char *kv_dtype, uint32_t first, uint32_t end, struct nsv_world_got *ret)
{
	const struct nsv_engine_config config = config_of(kv_dtype);
	struct nsv_world w;

	nsv_world_open(&w, &config, gguf, tok, asks);
	for (uint32_t i = first; i < end; i++)
		nsv_world_submit(&w, i);
	run_out(&w);
	memcpy(ret + first, w.got + first, (end - first) * sizeof(*ret));
	nsv_world_close(&w);
}

static void check_same(const struct nsv_world_got *got, const struct nsv_world_got *want)
{
	assert_int_equal(got->code, want->code);
	assert_int_equal(got->n_token, want->n_token);
	assert_memory_equal(got->tokens, want->tokens, got->n_token * sizeof(got->tokens[0]));
	assert_int_equal(got->n_lp, want->n_lp);
	assert_memory_equal(got->lps, want->lps, got->n_lp * sizeof(got->lps[0]));
}

static void check_whole(const struct nsv_world_got *got)
{
	assert_int_equal(got->code, NSV_E_OK);
	assert_int_equal(got->n_token, N_OUTPUT);
}

/* ---- Values beyond fp16 */

/* A tensor's floats in the file. */
static float *tensor(const char *name, size_t *ret_n)
{
	const struct nsv_tensor *t = nsv_gguf_tensor(gguf, name);

	*ret_n = t->len / sizeof(float);
	return (float *)(uintptr_t)t->data;
}

/* SPIKE's embedding alone has dimension 0, of which the matrix makes `factor` times as much of
 * K or V. It is never an output: it has the logit 0, and is not among the first of hundreds. */
static void set_spike(const char *matrix, uint32_t row, float factor)
{
	size_t n;
	float *embd = tensor("token_embd.weight", &n);

	for (size_t i = 0; i < n; i += WIDTH)
		embd[i] = i == SPIKE * WIDTH;
	memset(tensor("output.weight", &n) + SPIKE * WIDTH, 0, WIDTH * sizeof(float));
	tensor(matrix, &n)[row * WIDTH] = factor;
}

/* Request 1 has the token in its prompt; request 2 has what comes before it. */
static void put_spike(void)
{
	uint32_t at = 16 + t_below(asks[1].n_prompt - 17);

	memcpy(asks[2].prompt, asks[1].prompt, at * sizeof(int32_t));
	asks[1].prompt[at] = SPIKE;
}

static void check_spike(const char *matrix)
{
	struct nsv_world_got alone[N], all[N], again[N];
	uint32_t row = t_below(32);

	set_spike(matrix, row, t_below(2) ? 1e6f : -1e6f);
	for (uint32_t i = 0; i < N; i++)
		run("f16", i, i + 1, alone);
	run("f16", 0, N, all);
	for (uint32_t i = 0; i < N; i++) {
		check_same(&all[i], &alone[i]);
		if (i != 1)
			check_whole(&all[i]);
	}
	assert_int_equal(all[1].code, NSV_E_NUMERIC);
	assert_int_equal(all[1].finish, NSV_FINISH_ERROR);
	assert_int_equal(all[1].n_token, 0);
	run("f32", 1, 2, again);
	check_whole(&again[1]);
	set_spike(matrix, row, 0);
	run("f16", 1, 2, again);
	check_whole(&again[1]);
}

static void test_beyond_f16_ends_alone(void **state)
{
	(void)state;
	put_spike();
	check_spike("blk.0.attn_k.weight");
	check_spike("blk.0.attn_v.weight");
}

/* ---- After a restart */

static void open_in_the_middle(struct nsv_world *w, const struct nsv_engine_config *config)
{
	nsv_world_open(w, config, gguf, tok, asks);
	for (uint32_t i = 0; i < N; i++)
		nsv_world_submit(w, i);
	for (int turn = 0; turn < 14; turn++)
		nsv_world_turn(w);
	for (uint32_t i = 0; i < N; i++)
		assert_true(w->got[i].n_token > 0 && !w->got[i].done);
}

/* `next` over what `w` leaves, when all is done there. */
static void reopen(struct nsv_world *next, const char *from, const char *to, bool adopts)
{
	const struct nsv_engine_config before = config_of(from), after = config_of(to);
	struct nsv_world w;

	open_in_the_middle(&w, &before);
	size_t len = w.engine->kv_region.len;
	nsv_world_reopen(next, &w, &after, false);
	assert_int_equal(next->engine->kv_region.len, len);
	assert_true(next->engine->info.adopted_seqs);
	assert_int_equal(next->engine->info.adopted_kv, adopts);
	assert_int_equal(nsv_engine_resume(next->engine), 0);
	run_out(next);
	for (uint32_t i = 0; i < N; i++) {
		check_whole(&next->got[i]);
		assert_memory_equal(next->got[i].tokens, w.got[i].tokens,
			w.got[i].n_token * sizeof(int32_t));
	}
	nsv_world_close(&w);
}

static void test_a_pool_of_its_own_type_is_taken_over(void **state)
{
	static const char *const types[] = {"f16", "f32"};
	(void)state;

	for (size_t k = 0; k < NSV_ARRAY_LEN(types); k++) {
		struct nsv_world_got alone[N];
		struct nsv_world w;

		for (uint32_t i = 0; i < N; i++)
			run(types[k], i, i + 1, alone);
		reopen(&w, types[k], types[k], true);
		for (uint32_t i = 0; i < N; i++)
			check_same(&w.got[i], &alone[i]);
		nsv_world_close(&w);
	}
}

static void test_a_pool_of_another_type_is_not(void **state)
{
	struct nsv_world w;
	(void)state;

	reopen(&w, "f16", "f32", false);
	nsv_world_close(&w);
	reopen(&w, "f32", "f16", false);
	nsv_world_close(&w);
}

/* ---- Sizes and names */

static struct nsv_engine_info info_of(const struct nsv_engine_config *config)
{
	struct nsv_world w;

	nsv_world_open(&w, config, gguf, tok, asks);
	struct nsv_engine_info info = *nsv_engine_get_info(w.engine);
	nsv_world_close(&w);
	return info;
}

static void test_sizes(void **state)
{
	struct nsv_engine_config c = config_of("f16");
	(void)state;

	c.kv_blocks = 0;
	c.kv_memory = 1u << 20;
	c.swap_blocks = 8;
	struct nsv_engine_info f16 = info_of(&c);
	c.kv_dtype = "f32";
	struct nsv_engine_info f32 = info_of(&c);
	assert_int_equal(f16.kv_token_len, 2 * 2 * 2 * 16 * 2); /* layers, K and V, heads, sizes */
	assert_int_equal(f32.kv_token_len, 2 * f16.kv_token_len);
	assert_int_equal(f16.n_block / 2, f32.n_block);
	assert_int_equal(f32.host_len, 2 * f16.host_len);
}

static void test_a_backend_s_own(void **state)
{
	struct nsv_engine_config c = config_of("auto");
	(void)state;

	c.backend = "cpu";
	assert_int_equal(info_of(&c).kv_dtype, NSV_F16);
	c.backend = "reference";
	assert_int_equal(info_of(&c).kv_dtype, NSV_F32);
	c.kv_dtype = "f16";
	assert_int_equal(info_of(&c).kv_dtype, NSV_F16);
}

static void test_an_unknown_name(void **state)
{
	struct nsv_engine_config c = config_of("q8_0");
	struct nsv_mailbox outbox;
	struct nsv_engine *engine;
	struct nsv_err err;
	(void)state;

	assert_int_equal(nsv_mailbox_init(&outbox, false), 0);
	assert_int_equal(nsv_engine_new(&engine, &c, gguf, &outbox, &err), -EINVAL);
	assert_non_null(strstr(err.text, "\"q8_0\""));
	nsv_mailbox_deinit(&outbox);
}

/* ---- */

static struct nsv_gguf *make_file(void)
{
	const struct nsv_tiny_llama shape = {.n_layer = 2,
		.width = WIDTH,
		.n_ffn = 96,
		.n_head = 4,
		.n_kv_head = 2,
		.head_dim = 16,
		.n_context = 256,
		.dtype = NSV_F32,
		.untied = true};
	struct nsv_gguf *g;
	struct nsv_err err;
	size_t len;

	file = nsv_gguf_tiny_llama(&shape, t_rand(), &len);
	if (nsv_gguf_parse(file, len, &g, &err) < 0)
		fail_msg("%s", err.text);
	return g;
}

static int setup(void **state)
{
	static const uint32_t n_prompt[N] = {9, 60, 50, 20};
	(void)state;

	t_seed();
	gguf = make_file();
	if (nsv_tok_new(gguf, &tok, NULL) < 0)
		return -1;
	for (uint32_t i = 0; i < N; i++) {
		asks[i] = (struct nsv_world_ask){.n_prompt = n_prompt[i],
			.slot = i,
			.uid = 7,
			.params = nsv_params_default()};
		for (uint32_t t = 0; t < n_prompt[i]; t++)
			asks[i].prompt[t] = NSV_TINY_FIRST_BYTE + (int32_t)('a' + t_below(26));
		asks[i].params.max_tokens = N_OUTPUT;
		asks[i].params.temperature = 0.8f;
		asks[i].params.top_k = 5;
		asks[i].params.seed = t_rand();
		asks[i].params.flags = NSV_PARAM_SEED | NSV_PARAM_IGNORE_END | NSV_PARAM_LOGPROBS;
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	nsv_tok_free(tok);
	nsv_gguf_close(gguf);
	free(file);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_pool_of_its_own_type_is_taken_over),
		cmocka_unit_test(test_a_pool_of_another_type_is_not),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_a_backend_s_own),
		cmocka_unit_test(test_an_unknown_name),
		cmocka_unit_test(test_beyond_f16_ends_alone),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
