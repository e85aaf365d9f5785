/* A real daemon with the real model and real client processes. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/proc.h"

#define N_CLIENT 8

static struct nsv_test_daemon served;

static int start(void **state)
{
	(void)state;
	if (!nsv_test_model()) {
		print_message("SKIP: the model is not there: make model\n");
		return 0;
	}
	return nsv_test_daemon_start(&served, nsv_test_model(), NULL);
}

static int tidy(void **state)
{
	(void)state;
	return served.pid ? nsv_test_daemon_tidy(&served, nsv_test_model(), NULL) : 0;
}

static int stop(void **state)
{
	(void)state;
	if (served.pid <= 0)
		return 0;
	return nsv_test_daemon_stop(&served, SIGTERM) == 0 ? 0 : -1;
}

static struct nsv_client *open_client(void)
{
	if (!served.pid)
		skip();
	struct nsv_client *client = nsv_ask_open(served.socket);
	assert_non_null(client);
	return client;
}

/* ---- Tokens against the references, margin by margin: tests/data */

static json_t *load_cases(void)
{
	json_t *cases = json_load_file("tests/data/smollm2-135m-q4_1.json", 0, NULL);

	assert_non_null(cases);
	return cases;
}

static size_t read_ids(json_t *list, int32_t *ids, size_t cap)
{
	size_t n = 0, i;
	json_t *v;

	json_array_foreach(list, i, v)
	{
		assert_true(n < cap);
		ids[n++] = (int32_t)json_integer_value(v);
	}
	return n;
}

/* Where the tokens part, the reference's two best logits lie close together. */
static void check_tokens(json_t *c, const int32_t *tokens, size_t n)
{
	static const double margin = 0.3; /* activations are quantised to 8 bits a block */
	json_t *want = json_object_get(c, "greedy_ids"), *top5 = json_object_get(c, "top5");

	for (size_t i = 0; i < n; i++) {
		if (json_integer_value(json_array_get(want, i)) == tokens[i])
			continue;
		json_t *top = json_array_get(top5, i);
		double a = json_number_value(json_array_get(json_array_get(top, 0), 1));
		double b = json_number_value(json_array_get(json_array_get(top, 1), 1));
		print_message("  %s parts at token %zu, margin %.3f\n",
			json_string_value(json_object_get(c, "name")), i, a - b);
		assert_true(a - b < margin);
		return;
	}
}

static void test_tokens_match_the_references(void **state)
{
	struct nsv_client *client = open_client();
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	nsv_autofree int32_t *ids = malloc(8192 * sizeof(*ids));
	json_t *cases = load_cases(), *c;
	size_t i;
	(void)state;

	json_array_foreach(cases, i, c)
	{
		struct nsv_client_params p;
		json_t *prompt = json_object_get(c, "prompt_ids");
		if (getenv("NANOSERVE_QUICK") && json_array_size(prompt) > 200)
			continue; /* minutes under a sanitizer */
		nsv_client_params_init(&p);
		p.flags = NSV_CLIENT_IGNORE_END;
		p.max_tokens = (uint32_t)json_array_size(json_object_get(c, "greedy_ids"));
		nsv_ask_ids(client, ids, read_ids(prompt, ids, 8192), &p, a);
		assert_string_equal(a->reason, "");
		assert_int_equal(a->ret, 0);
		assert_int_equal(a->n_token, p.max_tokens);
		assert_int_equal(a->result.finish, NSV_CLIENT_FINISH_LENGTH);
		check_tokens(c, a->tokens, a->n_token);
	}
	json_decref(cases);
	nsv_client_close(client);
}

/* ---- Many at once */

static const char *const prompts[N_CLIENT] = {"The capital of France is", "Once upon a time",
	"1, 1, 2, 3, 5, 8,", "#include <stdio.h>", "Dear Sir or Madam,", "The",
	"In the beginning there was", "Shopping list:\n1. Bread\n2."};

static void ask_one(const char *socket, int i, struct nsv_answer *ret)
{
	struct nsv_client *client = nsv_ask_open(socket);
	struct nsv_client_params p;

	nsv_client_params_init(&p);
	p.max_tokens = 48;
	p.flags = NSV_CLIENT_IGNORE_END | NSV_CLIENT_SEED;
	p.seed = 7;
	p.temperature = i % 2 ? 0.8f : 0;
	if (client)
		nsv_ask_text(client, prompts[i], &p, ret);
	else
		ret->ret = -1;
	nsv_client_close(client);
}

static void test_eight_processes_get_what_they_get_alone(void **state)
{
	size_t len = 2 * N_CLIENT * sizeof(struct nsv_answer);
	(void)state;

	nsv_client_close(open_client());
	struct nsv_answer *alone =
		mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct nsv_answer *together = alone + N_CLIENT;
	pid_t pids[N_CLIENT];

	for (int i = 0; i < N_CLIENT; i++)
		ask_one(served.socket, i, &alone[i]);
	for (int i = 0; i < N_CLIENT; i++) {
		pids[i] = nsv_proc_fork();
		if (pids[i] == 0) {
			ask_one(served.socket, i, &together[i]);
			_exit(0);
		}
	}
	for (int i = 0; i < N_CLIENT; i++)
		waitpid(pids[i], NULL, 0);
	for (int i = 0; i < N_CLIENT; i++) {
		assert_int_equal(alone[i].ret, 0);
		assert_int_equal(together[i].ret, 0);
		assert_int_equal(alone[i].n_token, 48);
		assert_int_equal(together[i].n_token, 48);
		assert_memory_equal(alone[i].tokens, together[i].tokens, 48 * sizeof(int32_t));
		assert_string_equal(alone[i].text, together[i].text);
	}
	munmap(alone, len);
}

/* ---- The prefix cache: what is known is not computed again, and the tokens are the same */

static void test_a_known_prefix_gives_the_same_bits(void **state)
{
	static const char prompt[] =
		"A page table is a data structure that maps virtual addresses to "
		"physical ones. The kernel keeps one for each process, and";
	nsv_autofree struct nsv_answer *miss = malloc(sizeof(*miss)), *hit = malloc(sizeof(*hit));
	struct nsv_client *client = open_client();
	struct nsv_client_params p;
	(void)state;

	nsv_client_params_init(&p);
	p.max_tokens = 64;
	p.flags = NSV_CLIENT_IGNORE_END | NSV_CLIENT_LOGPROBS;
	nsv_ask_text(client, prompt, &p, miss);
	assert_int_equal(miss->ret, 0);
	assert_int_equal(miss->result.n_cached, 0);
	nsv_ask_text(client, prompt, &p, hit);
	/* all of the prompt but its last token, whatever the block's edge */
	assert_int_equal(hit->result.n_cached, hit->result.n_prompt - 1);
	assert_int_equal(hit->n_token, miss->n_token);
	assert_memory_equal(hit->tokens, miss->tokens, miss->n_token * sizeof(int32_t));
	assert_memory_equal(hit->lps, miss->lps, miss->n_lp * sizeof(miss->lps[0]));
	/* a next turn: prompt, answer and more; only what is new is computed */
	int32_t turn[256];
	size_t n = 0;
	for (; n < hit->n_token; n++)
		turn[n] = hit->tokens[n];
	nsv_ask_ids(client, turn, n, &p, miss);
	nsv_ask_ids(client, turn, n, &p, hit);
	assert_true(hit->result.n_cached >= n - 1 - 16);
	assert_memory_equal(hit->tokens, miss->tokens, miss->n_token * sizeof(int32_t));
	nsv_client_close(client);
}

/* ---- Ends */

static void test_a_killed_client_frees_what_it_held(void **state)
{
	struct nsv_client *watcher = open_client();
	int ready[2];
	char byte;
	(void)state;

	long long total = nsv_ask_status(watcher, "blocks.total");
	assert_true(nsv_ask_status_until(watcher, "blocks.free", total));
	assert_int_equal(pipe(ready), 0);
	pid_t pid = nsv_proc_fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nobody behind */
		struct nsv_client *client = nsv_ask_open(served.socket);
		struct nsv_client_params p;
		struct nsv_request *r;
		struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
		nsv_client_params_init(&p);
		p.flags = NSV_CLIENT_IGNORE_END;
		p.max_tokens = 4000;
		nsv_client_submit_text(client, "A", 1, &p, &r);
		nsv_request_next(r, -1, &chunk);
		if (write(ready[1], "x", 1) == 1)
			pause();
		_exit(1);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	/* The step's counters follow its tokens. */
	assert_true(nsv_ask_status_until(watcher, "requests.running", 1));
	assert_true(nsv_ask_status(watcher, "blocks.free") < total);
	assert_true(nsv_ask_status_until(watcher, "sessions", 2));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_true(nsv_ask_status_until(watcher, "sessions", 1));
	assert_true(nsv_ask_status_until(watcher, "blocks.free", total));
	assert_true(nsv_ask_status_until(watcher, "requests.running", 0));
	close(ready[0]);
	close(ready[1]);
	nsv_client_close(watcher);
}

static void test_cancel_ends_one_request(void **state)
{
	struct nsv_client *client = open_client();
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_client_params p;
	struct nsv_request *r;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	(void)state;

	nsv_client_params_init(&p);
	p.flags = NSV_CLIENT_IGNORE_END;
	p.max_tokens = 4000;
	assert_int_equal(nsv_client_submit_text(client, "A", 1, &p, &r), 0);
	assert_int_equal(nsv_request_next(r, -1, &chunk), 1);
	assert_int_equal(nsv_request_cancel(r), 0);
	nsv_ask_finish(client, 0, r, a);
	assert_int_equal(a->ret, 0);
	assert_int_equal(a->result.finish, NSV_CLIENT_FINISH_CANCEL);
	assert_true(a->result.n_output < 4000);
	nsv_client_close(client);
}

static void test_stop_strings_and_limits(void **state)
{
	struct nsv_client *client = open_client();
	nsv_autofree struct nsv_answer *whole = malloc(sizeof(*whole)), *cut = malloc(sizeof(*cut));
	struct nsv_client_params p;
	(void)state;

	nsv_client_params_init(&p);
	p.max_tokens = 40;
	nsv_ask_text(client, "The capital of France is", &p, whole);
	assert_int_equal(whole->ret, 0);
	assert_true(whole->text_len > 20);
	/* any piece of the answer, also one that tokens split, ends it before that piece */
	for (size_t at = 1; at + 7 < whole->text_len; at += 5) {
		char stop[8];
		snprintf(stop, sizeof(stop), "%.7s", whole->text + at);
		const char *stops[] = {stop};
		p.n_stop = 1;
		p.stop = stops;
		nsv_ask_text(client, "The capital of France is", &p, cut);
		size_t first = (size_t)(strstr(whole->text, stop) - whole->text);
		assert_int_equal(cut->ret, 0);
		assert_int_equal(cut->result.finish, NSV_CLIENT_FINISH_STOP);
		assert_int_equal(cut->text_len, first);
		assert_memory_equal(cut->text, whole->text, first);
	}
	nsv_client_close(client);
}

static void test_the_cache_is_read_through_the_dispatcher(void **state)
{
	struct nsv_client *client = open_client();
	nsv_autofree struct nsv_answer *a = malloc(sizeof(*a));
	struct nsv_client_params p;
	(void)state;

	nsv_client_params_init(&p);
	p.max_tokens = 5;
	p.flags = NSV_CLIENT_IGNORE_END;
	long long layers = nsv_ask_status(client, "model.layers");
	/* A step's counters follow its tokens; the number of those that run comes last. */
	assert_true(nsv_ask_status_until(client, "requests.running", 0));
	long long before = nsv_ask_status(client, "counters.attention_reads");
	long long steps = nsv_ask_status(client, "counters.steps");
	nsv_ask_text(client, "Hello", &p, a);
	assert_int_equal(a->n_token, 5);
	assert_true(nsv_ask_status_until(client, "requests.running", 0));
	steps = nsv_ask_status(client, "counters.steps") - steps;
	assert_int_equal(
		nsv_ask_status(client, "counters.attention_reads") - before, steps * layers);
	nsv_client_close(client);
}

#define TEST(f) cmocka_unit_test_setup(f, tidy)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_tokens_match_the_references),
		TEST(test_eight_processes_get_what_they_get_alone),
		TEST(test_a_known_prefix_gives_the_same_bits),
		TEST(test_a_killed_client_frees_what_it_held),
		TEST(test_cancel_ends_one_request),
		TEST(test_stop_strings_and_limits),
		TEST(test_the_cache_is_read_through_the_dispatcher),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
