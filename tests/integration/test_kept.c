/* What another daemon left is looked at before it is used: a record that no daemon writes ends its
 * request alone, blocks that cannot be a request's are computed again, regions of another shape or
 * model are refused with the reason; and the audit sees every way in which the sequence table can
 * be at odds with the engine. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "daemon/model/model-impl.h"
#include "tests/tools/gguf_write.h"
#include "tests/tools/rnd.h"
#include "tests/tools/world.h"

#define N 3u /* requests */
#define VICTIM 1u
#define TURNS 9 /* until all of them have some output */

static const struct nsv_engine_config config = {
	.threads = 1, .kv_blocks = 24, .batch_tokens = 32, .max_requests = 4};

static struct nsv_gguf *gguf;
static struct nsv_tok *tok;
static uint8_t *file;
static struct nsv_world_ask asks[NSV_WORLD_MAX];
static struct nsv_world_got alone[N];

/* ---- Worlds */

static void run_out(struct nsv_world *w)
{
	struct nsv_err err = {""};
	bool any = true;

	for (int turn = 0; turn < 300 && any; turn++) {
		nsv_world_turn(w);
		if (nsv_engine_check(w->engine, true, &err) < 0)
			fail_msg("%s", err.text);
		any = nsv_world_let_go(w);
	}
	assert_false(any);
	nsv_world_turn(w);
	assert_int_equal(w->engine->alloc.n_free + nsv_block_n_idle(&w->engine->alloc),
		w->engine->alloc.n_block);
}

static void check_same(const struct nsv_world *w, uint32_t i)
{
	const struct nsv_world_got *got = &w->got[i], *want = &alone[i];

	assert_int_equal(got->finish, want->finish);
	assert_int_equal(got->n_token, want->n_token);
	assert_memory_equal(got->tokens, want->tokens, got->n_token * sizeof(got->tokens[0]));
	assert_int_equal(got->n_text, want->n_text);
	assert_memory_equal(got->text, want->text, got->n_text);
}

static void open_in_the_middle(struct nsv_world *w)
{
	nsv_world_open(w, &config, gguf, tok, asks);
	for (uint32_t i = 0; i < N; i++)
		nsv_world_submit(w, i);
	for (int turn = 0; turn < TURNS; turn++)
		nsv_world_turn(w);
	for (uint32_t i = 0; i < N; i++)
		assert_true(w->got[i].n_token > 0 && !w->got[i].done);
}

static uint32_t seq_of(const struct nsv_world *w, uint32_t i)
{
	return w->jobs[i]->gen.seq;
}

/* ---- Records: what is done to one, before the next daemon looks */

static struct nsv_seqs *seqs_of(struct nsv_world *w)
{
	return &w->engine->seqs;
}

#define WITH_COMMIT(change)                                                                        \
	struct nsv_seqs *s = seqs_of(w);                                                           \
	uint32_t seq = seq_of(w, VICTIM);                                                          \
	struct nsv_seq_commit c = nsv_seqs_get(s, seq);                                            \
	change;                                                                                    \
	nsv_seqs_commit(s, seq, &c)

static void bad_state(struct nsv_world *w)
{
	WITH_COMMIT(c.state = 77);
}

static void bad_n_token(struct nsv_world *w)
{
	WITH_COMMIT(c.n_token = s->geom.n_token + 1);
}

static void bad_n_token_below_prompt(struct nsv_world *w)
{
	WITH_COMMIT(c.n_token = asks[VICTIM].n_prompt - 1);
}

static void bad_n_past(struct nsv_world *w)
{
	WITH_COMMIT(c.n_past = c.n_token);
}

static void bad_n_block(struct nsv_world *w)
{
	WITH_COMMIT(c.n_block = s->geom.n_block + 1);
}

static void bad_end(struct nsv_world *w)
{
	WITH_COMMIT((c.state = NSV_SEQ_DONE, c.n_past = c.n_block = 0, c.finish = 9));
}

static void bad_waiting(struct nsv_world *w)
{
	WITH_COMMIT(c.state = NSV_SEQ_WAITING);
}

static void bad_prompt_token(struct nsv_world *w)
{
	nsv_seqs_tokens(seqs_of(w), seq_of(w, VICTIM))[3] = w->engine->info.desc->n_vocab;
}

static void bad_output_token(struct nsv_world *w)
{
	nsv_seqs_tokens(seqs_of(w), seq_of(w, VICTIM))[asks[VICTIM].n_prompt] = -1;
}

static void bad_params_len(struct nsv_world *w)
{
	nsv_seqs_ident(seqs_of(w), seq_of(w, VICTIM))->params_len = NSV_SEQS_PARAMS_LEN + 1;
}

static void bad_params(struct nsv_world *w)
{
	memset(nsv_seqs_params(seqs_of(w), seq_of(w, VICTIM)), 0xff, sizeof(struct nsv_params));
}

static void bad_arrival(struct nsv_world *w)
{
	nsv_seqs_ident(seqs_of(w), seq_of(w, VICTIM))->arrival = 0;
}

static int32_t *victims_blocks(struct nsv_world *w)
{
	return nsv_seqs_blocks(seqs_of(w), seq_of(w, VICTIM));
}

static void block_negative(struct nsv_world *w)
{
	victims_blocks(w)[0] = -1;
}

static void block_outside(struct nsv_world *w)
{
	victims_blocks(w)[1] = (int32_t)w->engine->info.n_block;
}

static void block_of_another(struct nsv_world *w)
{
	victims_blocks(w)[0] = nsv_seqs_blocks(seqs_of(w), seq_of(w, 0))[0];
}

static void block_twice(struct nsv_world *w)
{
	victims_blocks(w)[0] = victims_blocks(w)[1];
}

static void blocks_too_few(struct nsv_world *w)
{
	WITH_COMMIT(c.n_block = 1);
}

struct damage {
	const char *name;
	void (*make)(struct nsv_world *w);
};

static const struct damage wrong[] = {
	{"state", bad_state},
	{"tokens beyond the record", bad_n_token},
	{"fewer tokens than the prompt", bad_n_token_below_prompt},
	{"all computed", bad_n_past},
	{"blocks beyond the record", bad_n_block},
	{"an end that is none", bad_end},
	{"waits with blocks", bad_waiting},
	{"token of the prompt", bad_prompt_token},
	{"token of the output", bad_output_token},
	{"length of the parameters", bad_params_len},
	{"parameters", bad_params},
	{"arrival", bad_arrival},
};

static const struct damage again[] = {
	{"negative block", block_negative},
	{"block outside the pool", block_outside},
	{"block of another", block_of_another},
	{"block twice", block_twice},
	{"too few blocks", blocks_too_few},
};

/* The next daemon's world, over what is left of a damaged one. */
static void reopen_damaged(const struct damage *d, struct nsv_world *next)
{
	struct nsv_world w;

	open_in_the_middle(&w);
	d->make(&w);
	nsv_world_reopen(next, &w, &config, false);
	nsv_world_close(&w);
	assert_int_equal(nsv_engine_resume(next->engine), 0);
}

static void test_a_wrong_record_ends_alone(void **state)
{
	(void)state;
	for (size_t k = 0; k < NSV_ARRAY_LEN(wrong); k++) {
		struct nsv_world w;
		reopen_damaged(&wrong[k], &w);
		run_out(&w);
		for (uint32_t i = 0; i < N; i++)
			if (i != VICTIM)
				check_same(&w, i);
		if (w.got[VICTIM].code != NSV_E_CRASHED)
			fail_msg("%s: code %u", wrong[k].name, w.got[VICTIM].code);
		assert_int_equal(w.got[VICTIM].finish, NSV_FINISH_ERROR);
		assert_memory_equal(w.got[VICTIM].tokens, alone[VICTIM].tokens,
			w.got[VICTIM].n_token * sizeof(int32_t));
		nsv_world_close(&w);
	}
}

static void test_wrong_blocks_are_computed_again(void **state)
{
	(void)state;
	for (size_t k = 0; k < NSV_ARRAY_LEN(again); k++) {
		struct nsv_world w;
		reopen_damaged(&again[k], &w);
		uint64_t seq = seq_of(&w, VICTIM);
		if (w.engine->sched.seqs[seq].n_done != 0)
			fail_msg("%s: its blocks are believed", again[k].name);
		assert_true(w.engine->sched.seqs[seq_of(&w, 2)].n_done > 0);
		run_out(&w);
		for (uint32_t i = 0; i < N; i++)
			check_same(&w, i);
		nsv_world_close(&w);
	}
}

/* ---- Regions of another kind */

static void test_another_table_is_refused(void **state)
{
	struct nsv_engine_config larger = config;
	struct nsv_world w, next;
	(void)state;

	larger.max_requests++;
	open_in_the_middle(&w);
	nsv_world_reopen(&next, &w, &larger, false);
	assert_false(next.engine->info.adopted_seqs);
	assert_true(next.engine->info.adopted_kv);
	assert_int_equal(nsv_engine_resume(next.engine), 0);
	for (uint32_t i = 0; i < N; i++) {
		assert_null(next.jobs[i]);
		nsv_world_submit(&next, i);
	}
	run_out(&next);
	for (uint32_t i = 0; i < N; i++)
		check_same(&next, i);
	nsv_world_close(&next);
	nsv_world_close(&w);
}

static void test_another_pool_is_computed_again(void **state)
{
	struct nsv_world w, next;
	(void)state;

	open_in_the_middle(&w);
	((struct nsv_kv_head *)w.engine->kv_region.map)->numerics ^= 1;
	nsv_world_reopen(&next, &w, &config, false);
	assert_true(next.engine->info.adopted_seqs);
	assert_false(next.engine->info.adopted_kv);
	assert_int_equal(nsv_engine_resume(next.engine), 0);
	run_out(&next);
	for (uint32_t i = 0; i < N; i++)
		check_same(&next, i);
	nsv_world_close(&next);
	nsv_world_close(&w);
}

/* ---- Weights */

static struct nsv_gguf *make_file(uint64_t seed, uint8_t **ret_file)
{
	const struct nsv_tiny_llama shape = {.n_layer = 2,
		.width = 64,
		.n_ffn = 96,
		.n_head = 4,
		.n_kv_head = 2,
		.head_dim = 16,
		.n_context = 256,
		.dtype = NSV_Q8_0};
	struct nsv_gguf *g;
	struct nsv_err err;
	size_t len;

	*ret_file = nsv_gguf_tiny_llama(&shape, seed, &len);
	if (nsv_gguf_parse(*ret_file, len, &g, &err) < 0)
		fail_msg("%s", err.text);
	return g;
}

static int copy_weights(const struct nsv_model *m, size_t cut, size_t damage_at)
{
	struct nsv_region r, from;
	struct nsv_err err;
	size_t len;
	uint64_t ns;

	nsv_model_weights(m, &len, &ns);
	nsv_align_up(len, NSV_PAGE, &len);
	assert_int_equal(
		nsv_region_adopt(&from, dup(nsv_model_weights_fd(m)), len, false, &err), 0);
	assert_int_equal(nsv_region_create(&r, "copy", len - cut, 0, &err), 0);
	memcpy(r.map, from.map, len - cut);
	if (damage_at < len)
		((unsigned char *)r.map)[damage_at] ^= 1;
	int fd = dup(r.fd);
	nsv_region_deinit(&r);
	nsv_region_deinit(&from);
	return fd;
}

static int unsealed_fd(void)
{
	int fd = memfd_create("unsealed", MFD_CLOEXEC);

	assert_int_equal(ftruncate(fd, 1 << 20), 0);
	return fd;
}

/* A model over what was kept; `word`: the reason why it was not taken, NULL: it was. */
static void check_weights(
	const struct nsv_gguf *g, const char *backend, int keep_fd, const char *word)
{
	struct nsv_model_keep keep = {.fd = keep_fd};
	const struct nsv_model_config mc = {.max_row = 4, .max_out = 4, .keep = &keep};
	const struct nsv_backend *b;
	struct nsv_team *team;
	struct nsv_model *m;
	struct nsv_err err = {""};

	assert_int_equal(nsv_backend_choose(backend, &b, &err), 0);
	assert_int_equal(nsv_team_new(1, &team), 0);
	if (nsv_model_new(g, b, team, &mc, &m, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(keep.taken, word == NULL);
	if (word && !strstr(keep.why.text, word))
		fail_msg("\"%s\", expected the word \"%s\"", keep.why.text, word);
	if (keep.fd >= 0)
		close(keep.fd);
	nsv_model_free(m);
	nsv_team_free(team);
}

static void test_weights(void **state)
{
	const struct nsv_model_config mc = {.max_row = 4, .max_out = 4};
	const struct nsv_backend *b;
	struct nsv_team *team;
	struct nsv_model *m;
	uint8_t *other_file;
	struct nsv_err err;
	size_t len;
	uint64_t ns;
	(void)state;

	assert_int_equal(nsv_backend_choose("cpu", &b, &err), 0);
	assert_int_equal(nsv_team_new(1, &team), 0);
	assert_int_equal(nsv_model_new(gguf, b, team, &mc, &m, &err), 0);
	nsv_model_weights(m, &len, &ns);
	struct nsv_gguf *other = make_file(2, &other_file);

	check_weights(gguf, "cpu", copy_weights(m, 0, SIZE_MAX), NULL);
	check_weights(other, "cpu", copy_weights(m, 0, SIZE_MAX), "of model");
	check_weights(gguf, "reference", copy_weights(m, 0, SIZE_MAX), "bytes");
	check_weights(gguf, "cpu", copy_weights(m, NSV_PAGE, SIZE_MAX), "bytes");
	check_weights(gguf, "cpu", copy_weights(m, 0, 0), "never packed");
	check_weights(gguf, "cpu", copy_weights(m, 0, offsetof(struct nsv_weights_head, major)),
		"format");
	check_weights(gguf, "cpu", copy_weights(m, 0, offsetof(struct nsv_weights_head, layout_id)),
		"another backend");
	check_weights(gguf, "cpu", copy_weights(m, 0, m->out_norm), "vectors");
	/* the smallest weight of its type is packed again for comparison */
	check_weights(gguf, "cpu", copy_weights(m, 0, m->layers[0].out.part[0].off + 4096),
		"not what this build packs");
	check_weights(gguf, "cpu", unsealed_fd(), "seals");
	nsv_gguf_close(other);
	free(other_file);
	nsv_model_free(m);
	nsv_team_free(team);
}

/* ---- Suspicion */

static struct {
	int (*submit)(struct nsv_exec *x, const struct nsv_exec_step *step, struct nsv_err *err);
	struct nsv_world *world;
	uint32_t n_seen;
} spy;

/* Between its beginning and its end a step's sequences are marked, and no others. */
static int spying_submit(struct nsv_exec *x, const struct nsv_exec_step *step, struct nsv_err *err)
{
	const struct nsv_engine *e = spy.world->engine;
	uint32_t n_marked = 0;

	for (uint32_t seq = 0; seq < e->max_requests; seq++)
		n_marked += nsv_seqs_is_in_step(&e->seqs, seq);
	assert_int_equal(n_marked, step->batch.n_seq);
	for (uint32_t i = 0; i < step->batch.n_seq; i++)
		assert_true(nsv_seqs_is_in_step(&e->seqs, step->places[i]));
	spy.n_seen++;
	return spy.submit(x, step, err);
}

static void test_who_was_in_the_step(void **state)
{
	struct nsv_world w;
	(void)state;

	nsv_world_open(&w, &config, gguf, tok, asks);
	spy.submit = w.engine->exec->submit;
	spy.world = &w;
	w.engine->exec->submit = spying_submit;
	for (uint32_t i = 0; i < N; i++) {
		nsv_world_submit(&w, i);
		nsv_world_turn(&w);
		for (uint32_t seq = 0; seq < config.max_requests; seq++)
			assert_false(nsv_seqs_is_in_step(&w.engine->seqs, seq));
	}
	run_out(&w);
	assert_true(spy.n_seen > 5);
	nsv_world_close(&w);
}

/* ---- The audit */

static void audit_state(struct nsv_world *w)
{
	WITH_COMMIT((c.state = NSV_SEQ_FREE));
}

static void audit_n_token(struct nsv_world *w)
{
	WITH_COMMIT(c.n_token--);
}

static void audit_n_past(struct nsv_world *w)
{
	WITH_COMMIT(c.n_past--);
}

static void audit_n_block(struct nsv_world *w)
{
	WITH_COMMIT(c.n_block--);
}

static void audit_identity(struct nsv_world *w)
{
	nsv_seqs_ident(seqs_of(w), seq_of(w, VICTIM))->slot++;
}

static void audit_no_job(struct nsv_world *w)
{
	uint32_t seq = w->engine->free_seqs[0];

	nsv_seqs_commit(
		seqs_of(w), seq, &(struct nsv_seq_commit){.state = NSV_SEQ_WAITING, .n_token = 1});
}

static void audit_done(struct nsv_world *w)
{
	w->jobs[VICTIM]->gen.done = true;
}

static void audit_free_list(struct nsv_world *w)
{
	w->engine->n_free_seqs--;
}

static void audit_free_twice(struct nsv_world *w)
{
	w->engine->free_seqs[0] = seq_of(w, VICTIM);
}

static void audit_steps(struct nsv_world *w)
{
	nsv_seqs_head(seqs_of(w))->n_ended++;
}

static const struct damage at_odds[] = {
	{"state", audit_state},
	{"tokens", audit_n_token},
	{"tokens computed", audit_n_past},
	{"blocks", audit_n_block},
	{"identity", audit_identity},
	{"a token outside the vocabulary", bad_output_token},
	{"a record without a request", audit_no_job},
	{"an end without a record of it", audit_done},
	{"count of free records", audit_free_list},
	{"a free record that is used", audit_free_twice},
	{"steps", audit_steps},
};

static void test_the_audit_sees(void **state)
{
	(void)state;
	for (size_t k = 0; k < NSV_ARRAY_LEN(at_odds); k++) {
		struct nsv_world w;
		struct nsv_err err = {""};
		open_in_the_middle(&w);
		assert_int_equal(nsv_engine_check(w.engine, true, &err), 0);
		at_odds[k].make(&w);
		if (nsv_engine_check(w.engine, true, &err) != -EUCLEAN || !err.text[0])
			fail_msg("%s is not seen", at_odds[k].name);
		nsv_world_close(&w);
	}
}

/* ---- */

static int setup(void **state)
{
	static const uint32_t n_prompt[N] = {9, 35, 20};
	(void)state;

	t_seed();
	gguf = make_file(1, &file);
	if (nsv_tok_new(gguf, &tok, NULL) < 0)
		return -1;
	for (uint32_t i = 0; i < N; i++) {
		asks[i] = (struct nsv_world_ask){.n_prompt = n_prompt[i],
			.slot = i,
			.uid = 7,
			.params = nsv_params_default()};
		for (uint32_t t = 0; t < n_prompt[i]; t++)
			asks[i].prompt[t] = NSV_TINY_FIRST_BYTE + (int32_t)('a' + t_below(26));
		asks[i].params.max_tokens = 20;
		asks[i].params.temperature = 0.8f;
		asks[i].params.seed = t_rand();
		asks[i].params.flags = NSV_PARAM_SEED | NSV_PARAM_IGNORE_END;
	}
	struct nsv_world w;
	nsv_world_open(&w, &config, gguf, tok, asks);
	for (uint32_t i = 0; i < N; i++)
		nsv_world_submit(&w, i);
	run_out(&w);
	memcpy(alone, w.got, sizeof(alone));
	nsv_world_close(&w);
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
		cmocka_unit_test(test_a_wrong_record_ends_alone),
		cmocka_unit_test(test_wrong_blocks_are_computed_again),
		cmocka_unit_test(test_another_table_is_refused),
		cmocka_unit_test(test_another_pool_is_computed_again),
		cmocka_unit_test(test_weights),
		cmocka_unit_test(test_who_was_in_the_step),
		cmocka_unit_test(test_the_audit_sees),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
