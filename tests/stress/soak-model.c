/* The real model under random requests with a pool so small that everybody is pushed out.
 *
 *     soak-model MINUTES
 *
 * Rounds: stories of every kind (tests/tools/story.h) run together on one daemon, with forks and
 * cancels at random moments and a small pool; then each stream once more alone, on a second daemon
 * with room for it and without a prefix cache. All must be the same bit for bit. The first daemon
 * is of several kinds in turn: with a host tier to swap to, running ahead, with short chunks. In
 * the end it holds nothing any more.
 *
 * The pool holds little more than the longest stream, answers are long, and readers stay away at
 * times: so the young are pushed out by the old, and the old when nobody reads them.
 *
 * The counts come last; the exit status is 0 only when nothing was lost or differed, and nearly all
 * streams that ran were preempted. */
#include <signal.h>
#include <string.h>
#include <time.h>

#include "tests/tools/daemon.h"
#include "tests/tools/rnd.h"
#include "tests/tools/story.h"

#define N_SLOT 24
#define N_STORY 36
#define LEAST_PUSHED_OUT 0.9 /* of the streams that were not cancelled before they ran */

struct kind {
	const char *name;
	const char *const *extra;
};

/* The longest story is 128 tokens, 8 blocks; a daemon that runs ahead needs no more. */
static const struct kind kinds[] = {
	{"recompute", (const char *const[]){"--kv-blocks", "8", NULL}},
	{"swap", (const char *const[]){"--kv-blocks", "8", "--swap-blocks", "48", NULL}},
	{"ahead", (const char *const[]){"--kv-blocks", "9", "--run-ahead", "3", "--batch-tokens",
			  "64", NULL}},
	{"no cache, short chunks", (const char *const[]){"--kv-blocks", "8", "--no-prefix-cache",
					   "--batch-tokens", "24", NULL}},
};

static struct nsv_story_range range = {.first_id = 20,
	.max_prompt = 40,
	.min_output = 56,
	.max_output = 88,
	.stop_len = 3,
	.max_branch = 4};

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int fail(const char *what)
{
	printf("soak-model: %s\n", what);
	return 1;
}

static struct nsv_client *open_at(const struct nsv_test_daemon *d)
{
	struct nsv_client_options o;
	struct nsv_client *client = NULL;
	char text[256];

	nsv_client_options_init(&o);
	o.n_slot = N_SLOT;
	o.text_len = 2048; /* small logs, which are full soon */
	o.n_token = 64;
	o.n_lp = 32;
	if (nsv_client_open(d->socket, &o, text, sizeof(text), &client) < 0)
		printf("soak-model: %s\n", text);
	return client;
}

/* All of a round's stories, together. false: the session does not take them. */
static bool play(struct nsv_stage *g, struct nsv_story *stories)
{
	struct nsv_story s;

	for (int i = 0; i < N_STORY; i++) {
		nsv_story_draw(&s, &range);
		nsv_story_copy(&stories[i], &s);
		while (!nsv_stage_add(g, &stories[i])) {
			if (g->n_live == 0)
				return false;
			nsv_stage_turn(g, 1000);
		}
	}
	while (nsv_stage_turn(g, 1000))
		continue;
	return true;
}

/* The daemon gave everything back, and its audit never failed. */
static int check_left(struct nsv_client *client)
{
	long long total = nsv_ask_status(client, "blocks.total");

	if (total <= 0 || !nsv_ask_status_until(client, "blocks.free", total))
		return fail("blocks are lost");
	if (!nsv_ask_status_until(client, "requests.ended", 0))
		return fail("requests are lost");
	return nsv_ask_status(client, "counters.audits_failed") == 0 ? 0 : fail("an audit failed");
}

/* Rounds on one kind of daemon until `until_s`. */
static int soak(const struct kind *kind, struct nsv_client *alone, const char *model,
	double until_s, struct nsv_stage *total)
{
	static struct nsv_story stories[N_STORY];
	struct nsv_test_daemon d;
	int ret = 0;

	if (nsv_test_daemon_start(&d, model, kind->extra) < 0)
		return fail("the daemon does not start");
	struct nsv_client *client = open_at(&d);
	*total = (struct nsv_stage){.client = client,
		.n_slot = N_SLOT,
		.fork_one_in = 200,
		.cancel_one_in = 1000,
		.lag_one_in = 15};
	do {
		if (!client || !play(total, stories))
			ret = fail("the daemon takes no requests");
		nsv_stage_compare(total, alone);
		nsv_stage_clear(total);
	} while (ret == 0 && total->n_wrong == 0 && now_s() < until_s);
	if (ret == 0)
		ret = check_left(client);
	nsv_client_close(client);
	if (nsv_test_daemon_stop(&d, SIGTERM) != 0)
		ret = fail("the daemon did not stop well");
	printf("%-24s", kind->name);
	nsv_stage_print(total, stdout);
	if (total->n_wrong > 0)
		ret = fail("streams differ from their solitary runs");
	return ret;
}

int main(int argc, char **argv)
{
	static const char *const extra[] = {"--no-prefix-cache", "--kv-blocks", "32", NULL};
	static struct nsv_stage stage;
	double minutes = argc > 1 ? atof(argv[1]) : 10, begin = now_s();
	const char *model = nsv_test_model();
	struct nsv_test_daemon lonely;
	uint64_t n_compared = 0, n_ran = 0, n_pushed_out = 0;
	int ret = 0;

	if (!model)
		return fail("no model: make model");
	t_seed();
	if (nsv_test_daemon_start(&lonely, model, extra) < 0)
		return fail("the solitary daemon does not start");
	struct nsv_client *alone = nsv_ask_open(lonely.socket);
	range.n_vocab = (int32_t)nsv_ask_status(alone, "model.vocabulary");
	for (size_t i = 0; ret == 0 && i < NSV_ARRAY_LEN(kinds); i++) {
		double share = minutes * 60 * (double)(i + 1) / NSV_ARRAY_LEN(kinds);
		ret = soak(&kinds[i], alone, model, begin + share, &stage);
		n_compared += stage.n_compared;
		n_ran += stage.n_ran;
		n_pushed_out += stage.n_pushed_out;
	}
	if (ret == 0 && (double)n_pushed_out < LEAST_PUSHED_OUT * (double)n_ran)
		ret = fail("too few streams were preempted");
	nsv_client_close(alone);
	nsv_test_daemon_stop(&lonely, SIGTERM);
	printf("%llu streams of the real model in %.1f minutes, %llu of the %llu that ran "
	       "preempted: %s\n",
		(unsigned long long)n_compared, (now_s() - begin) / 60,
		(unsigned long long)n_pushed_out, (unsigned long long)n_ran,
		ret == 0 ? "each as if it were alone" : "FAILED");
	return ret;
}
