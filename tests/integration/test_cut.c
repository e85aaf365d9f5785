/* The process is cut off after the k-th store to the sequence table, for every k: the engine that
 * is rebuilt from what is there then passes its audit and goes on to the end with the same tokens,
 * log-probabilities and text, each delivered once, and no block is lost.
 *
 * How every store is seen: `seqs` is mapped read-only while the engine works. A store faults; the
 * handler opens the region and sets the trap flag, so that this one instruction runs; the trap that
 * follows it closes the region, and there, in the handler, the world of the next daemon is made
 * from copies of the regions and run to its end. The fault came from the engine's own code, never
 * from the allocator or another library's inside, so the handler may do what it likes. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cmocka.h>

#include "tests/tools/gguf_write.h"
#include "tests/tools/rnd.h"
#include "tests/tools/tiny.h"
#include "tests/tools/world.h"

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)

#define TRAP_FLAG 0x100
#define MAX_TURNS 400
#define NEVER UINT32_MAX
#define ANSWERS 8u /* the first of three answers to one entry */
#define FORK 11u   /* of the second of them */

enum act { SUBMIT, CANCEL, RELEASE, READ, READ_NOT };

struct event {
	uint32_t turn; /* no earlier; a release waits for the end too */
	enum act act;
	uint32_t request;
};

struct story {
	const char *name;
	struct nsv_engine_config config;
	bool preempts;
	uint32_t n_event;
	struct event events[24];
};

static struct nsv_gguf *gguf;
static struct nsv_tok *tok;
static struct nsv_world_ask asks[NSV_WORLD_MAX];
static struct nsv_world_got alone[NSV_WORLD_MAX];

/* ---- The requests */

static void make_asks(void)
{
	static const uint32_t n_prompt[] = {5, 33, 16, 47, 20, 1, 31, 12, 21, 21, 21, 21};

	for (uint32_t i = 0; i < NSV_WORLD_MAX; i++) {
		struct nsv_world_ask *a = &asks[i];
		*a = (struct nsv_world_ask){.n_prompt = n_prompt[i],
			.slot = i % 6,
			.uid = i % 3,
			.params = nsv_params_default()};
		for (uint32_t t = 0; t < a->n_prompt; t++) /* some begin alike */
			a->prompt[t] = NSV_TINY_FIRST_BYTE +
				       (int32_t)('a' + (t < 18 ? t % 7 : t_below(26)));
		a->params.max_tokens = 12 + 3 * i;
		a->params.seed = t_rand();
		a->params.flags = NSV_PARAM_SEED | NSV_PARAM_IGNORE_END;
		if (i % 2)
			a->params.temperature = 0.9f;
		if (i % 3 == 1)
			a->params.repetition_penalty = 1.3f;
		if (i % 4 >= 2) {
			a->params.flags |= NSV_PARAM_LOGPROBS;
			a->params.n_logprob = i % 3;
		}
	}
	asks[6].stop = "a";
	asks[3].params.flags |= NSV_PARAM_PROMPT_LOGPROBS;
	asks[4].params.flags |= NSV_PARAM_PROMPT_LOGPROBS;
	asks[4].params.n_logprob = 1;
	asks[ANSWERS].slot = 0;
	asks[ANSWERS].params.temperature = 1;
	for (uint32_t i = ANSWERS + 1; i <= FORK; i++) {
		asks[i] = asks[ANSWERS];
		asks[i].slot = asks[i].branch = i - ANSWERS;
	}
	asks[FORK].target = ANSWERS + 2;
	/* its log of log-probabilities is full before its end, and its token log goes round */
	asks[7].params.max_tokens = 75;
	asks[7].params.n_logprob = 2;
}

/* ---- Running a world to its end */

static void check_got(const struct nsv_world *w, uint32_t i)
{
	const struct nsv_world_got *got = &w->got[i], *want = &alone[i];

	assert_true(got->done);
	assert_true(got->n_token <= want->n_token && got->n_text <= want->n_text);
	assert_memory_equal(got->tokens, want->tokens, got->n_token * sizeof(got->tokens[0]));
	assert_memory_equal(got->text, want->text, got->n_text);
	assert_true(got->n_lp <= want->n_lp);
	assert_memory_equal(got->lps, want->lps, got->n_lp * sizeof(got->lps[0]));
	if (got->finish == NSV_FINISH_CANCEL)
		return;
	assert_int_equal(got->finish, want->finish);
	assert_int_equal(got->n_token, want->n_token);
	assert_int_equal(got->n_text, want->n_text);
	assert_int_equal(got->n_lp, want->n_lp);
}

static void check_audit(const struct nsv_world *w)
{
	struct nsv_err err = {""};
	const struct nsv_engine *e = w->engine;

	if (nsv_engine_check(e, true, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(e->stats.n_audit_bad, 0);
}

static void check_empty(struct nsv_world *w)
{
	const struct nsv_engine *e = w->engine;

	check_audit(w);
	assert_int_equal(e->alloc.n_free + nsv_block_n_idle(&e->alloc), e->alloc.n_block);
	assert_int_equal(e->n_free_seqs, e->max_requests);
	for (uint32_t i = 0; i < NSV_WORLD_MAX; i++)
		assert_false(nsv_world_has(w, i));
}

/* Everybody who is there is answered and lets go. */
static void run_out(struct nsv_world *w)
{
	for (uint32_t turn = 0; turn < MAX_TURNS; turn++) {
		nsv_world_turn(w);
		check_audit(w);
		if (!nsv_world_let_go(w)) {
			nsv_world_turn(w);
			return;
		}
	}
	fail_msg("no end after %d turns", MAX_TURNS);
}

/* ---- After the crash */

static struct {
	const struct story *story;
	struct nsv_world *world;
	bool posted[NSV_WORLD_MAX];
	uint32_t n_store, n_rebuilt, stride;
} cut;

static void rebuild(bool without_kv)
{
	struct nsv_world w;

	nsv_world_reopen(&w, cut.world, &cut.story->config, without_kv);
	assert_true(w.engine->info.adopted_seqs);
	assert_int_equal(w.engine->info.adopted_kv, !without_kv);
	assert_true(w.engine->info.adopted_weights);
	assert_int_equal(nsv_engine_resume(w.engine), 0);
	check_audit(&w);
	/* A client submits again what was not taken; what it has let go of it does not miss.
	 * Answers of one entry are all there or none is; a fork made now would be another one. */
	for (uint32_t i = 0; i < NSV_WORLD_MAX; i++)
		if (cut.posted[i] && !w.jobs[i] && !cut.world->released[i] && i != FORK) {
			assert_false(i > ANSWERS);
			nsv_world_submit(&w, i);
		}
	bool forked = w.jobs[FORK] || cut.world->released[FORK];
	run_out(&w);
	for (uint32_t i = 0; i < NSV_WORLD_MAX; i++)
		if (cut.posted[i] && (i != FORK || forked))
			check_got(&w, i);
	check_empty(&w);
	nsv_world_close(&w);
	cut.n_rebuilt++;
}

static void protect(bool on)
{
	const struct nsv_region *r = &cut.world->engine->seqs_region;

	if (mprotect(r->map, r->len, on ? PROT_READ : PROT_READ | PROT_WRITE) < 0)
		abort();
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
	const struct nsv_region *r = &cut.world->engine->seqs_region;
	ucontext_t *uc = context;

	if ((char *)info->si_addr < (char *)r->map ||
		(char *)info->si_addr >= (char *)r->map + r->len) {
		signal(sig, SIG_DFL); /* a fault of another kind: it comes again, and ends us */
		return;
	}
	protect(false);
	uc->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_trap(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;
	(void)sig, (void)info;

	uc->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
	protect(true);
	if (cut.n_store++ % cut.stride == 0 && cut.stride != NEVER)
		rebuild(cut.n_store % 5 == 0);
}

static void catch_stores(bool on)
{
	struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
	struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_NODEFER};

	if (!on)
		fault.sa_handler = trap.sa_handler = SIG_DFL;
	sigaction(SIGSEGV, &fault, NULL);
	sigaction(SIGTRAP, &trap, NULL);
}

/* ---- Stories */

static bool is_due(const struct nsv_world *w, const struct event *ev, uint32_t turn)
{
	return turn >= ev->turn && (ev->act != RELEASE || w->got[ev->request].done);
}

static void play(struct nsv_world *w, const struct event *ev)
{
	switch (ev->act) {
	case SUBMIT:
		for (uint32_t b = 0; b < nsv_max(asks[ev->request].n_branch, 1); b++)
			cut.posted[ev->request + b] = true;
		nsv_world_submit(w, ev->request);
		break;
	case CANCEL:
		nsv_world_cancel(w, ev->request);
		break;
	case RELEASE:
		nsv_world_release(w, ev->request);
		break;
	case READ:
	case READ_NOT:
		w->deaf[ev->request] = ev->act == READ_NOT;
		break;
	}
}

static void play_story(const struct story *st, uint32_t stride)
{
	struct nsv_world w;
	uint32_t next = 0;

	memset(&cut, 0, sizeof(cut));
	cut.story = st;
	cut.world = &w;
	cut.stride = stride;
	nsv_world_open(&w, &st->config, gguf, tok, asks);
	catch_stores(true);
	for (uint32_t turn = 0; turn < MAX_TURNS && next < st->n_event; turn++) {
		while (next < st->n_event && is_due(&w, &st->events[next], turn))
			play(&w, &st->events[next++]);
		protect(true);
		nsv_world_turn(&w);
		protect(false);
	}
	catch_stores(false);
	assert_int_equal(next, st->n_event);
	run_out(&w);
	if (stride == NEVER)
		alone[FORK] = w.got[FORK];
	for (uint32_t i = 0; i < NSV_WORLD_MAX; i++)
		if (cut.posted[i])
			check_got(&w, i);
	if (stride != NEVER)
		printf("%s: %u stores, %u worlds rebuilt, %llu preemptions\n", st->name,
			cut.n_store, cut.n_rebuilt, (unsigned long long)w.engine->sched.n_preempt);
	assert_int_equal(w.engine->sched.n_preempt > 0, st->preempts);
	check_empty(&w);
	nsv_world_close(&w);
	assert_true(cut.n_store > 100);
}

/* Once to know what a fork says, whose beginning depends on when it is made; once with cuts. */
static void run_story(const struct story *st)
{
	play_story(st, NEVER);
	play_story(st, getenv("NANOSERVE_QUICK") ? 17 : 1);
	assert_int_equal(cut.n_rebuilt, (cut.n_store + cut.stride - 1) / cut.stride);
}

static const struct story plain = {.name = "prefill in chunks, decode, slots used again",
	.config = {.threads = 1, .kv_blocks = 40, .batch_tokens = 16, .max_requests = 6},
	.n_event = 9,
	.events = {{0, SUBMIT, 0}, {0, SUBMIT, 1}, {1, SUBMIT, 2}, {3, SUBMIT, 4}, {4, RELEASE, 0},
		{4, RELEASE, 2}, {5, SUBMIT, 6}, {6, RELEASE, 1}, {6, RELEASE, 6}}};

static const struct story tight = {.name = "a tiny pool",
	.config = {.threads = 1, .kv_blocks = 5, .batch_tokens = 24, .max_requests = 6},
	.preempts = true,
	.n_event = 8,
	.events = {{0, SUBMIT, 2}, {0, SUBMIT, 4}, {0, SUBMIT, 5}, {2, SUBMIT, 3}, {6, RELEASE, 2},
		{6, RELEASE, 4}, {6, RELEASE, 5}, {6, RELEASE, 3}}};

static const struct story ahead = {.name = "a tiny pool, two steps under way",
	.config = {.threads = 1,
		.kv_blocks = 5,
		.batch_tokens = 24,
		.max_requests = 6,
		.run_ahead = 2},
	.preempts = true,
	.n_event = 8,
	.events = {{0, SUBMIT, 2}, {0, SUBMIT, 4}, {0, SUBMIT, 5}, {1, SUBMIT, 1}, {3, RELEASE, 2},
		{3, RELEASE, 5}, {3, RELEASE, 4}, {3, RELEASE, 1}}};

static const struct story cancels = {.name = "cancels",
	.config = {.threads = 1,
		.kv_blocks = 12,
		.batch_tokens = 32,
		.max_requests = 6,
		.run_ahead = 2},
	.n_event = 8,
	.events = {{0, SUBMIT, 3}, {1, SUBMIT, 1}, {1, SUBMIT, 4}, {3, CANCEL, 3}, {4, RELEASE, 3},
		{5, CANCEL, 4}, {6, RELEASE, 4}, {6, RELEASE, 1}}};

static const struct story slow = {.name = "a reader that is behind",
	.config = {.threads = 1, .kv_blocks = 12, .batch_tokens = 32, .max_requests = 6},
	.n_event = 5,
	.events = {
		{0, SUBMIT, 7}, {2, READ_NOT, 7}, {2, SUBMIT, 2}, {60, READ, 7}, {60, RELEASE, 7}}};

static const struct story answers = {.name = "answers to one prompt, and a fork of one",
	.config = {.threads = 1, .kv_blocks = 40, .batch_tokens = 16, .max_requests = 6},
	.n_event = 6,
	.events = {{0, SUBMIT, ANSWERS}, {0, SUBMIT, 5}, {8, SUBMIT, FORK}, {10, CANCEL, ANSWERS},
		{11, RELEASE, ANSWERS}, {12, RELEASE, FORK}}};

static const struct story swaps = {.name = "a tiny pool and a host tier",
	.config = {.threads = 1,
		.kv_blocks = 5,
		.swap_blocks = 8,
		.batch_tokens = 24,
		.max_requests = 6,
		.run_ahead = 2},
	.preempts = true,
	.n_event = 8,
	.events = {{0, SUBMIT, 2}, {0, SUBMIT, 4}, {0, SUBMIT, 5}, {1, SUBMIT, 1}, {3, RELEASE, 2},
		{3, RELEASE, 5}, {3, RELEASE, 4}, {3, RELEASE, 1}}};

static void test_plain(void **state)
{
	(void)state;
	run_story(&plain);
}

static void test_tight(void **state)
{
	(void)state;
	run_story(&tight);
}

static void test_ahead(void **state)
{
	(void)state;
	run_story(&ahead);
}

static void test_cancels(void **state)
{
	(void)state;
	run_story(&cancels);
}

static void test_answers(void **state)
{
	(void)state;
	run_story(&answers);
}

static void test_swaps(void **state)
{
	(void)state;
	run_story(&swaps);
}

static void test_slow(void **state)
{
	(void)state;
	run_story(&slow);
}

static int setup(void **state)
{
	static const struct nsv_engine_config c = {.threads = 1,
		.kv_blocks = 40,
		.batch_tokens = 64,
		.max_requests = 1,
		.no_prefix_cache = true};
	char path[64];
	struct nsv_err err;
	(void)state;

	t_seed();
	make_asks();
	nsv_tiny_model(path, sizeof(path));
	if (nsv_gguf_open(path, &gguf, &err) < 0 || nsv_tok_new(gguf, &tok, &err) < 0)
		return -1;
	unlink(path);
	for (uint32_t i = 0; i < FORK; i++) {
		struct nsv_world w;
		nsv_world_open(&w, &c, gguf, tok, asks);
		nsv_world_submit(&w, i);
		run_out(&w);
		alone[i] = w.got[i];
		nsv_world_close(&w);
	}
	asks[ANSWERS].n_branch = FORK - ANSWERS;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	nsv_tok_free(tok);
	nsv_gguf_close(gguf);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_tight),
		cmocka_unit_test(test_ahead),
		cmocka_unit_test(test_cancels),
		cmocka_unit_test(test_slow),
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_swaps),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}

#else

int main(void)
{
	printf("skipped: single-stepping needs x86-64, and ThreadSanitizer holds signals back\n");
	return 0;
}

#endif
