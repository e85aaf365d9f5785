/* Stories drawn, played together, and compared with their solitary runs. */
#include "tests/tools/story.h"

#include <string.h>

#include "tests/tools/rnd.h"

#define NSV_STORY_LAG 250 /* turns that a reader stays away for, at most */

/* ---- Drawing */

/* Some prompts begin alike, so that the prefix cache has something to find. */
static void draw_prompt(struct nsv_story *s, const struct nsv_story_range *r)
{
	uint32_t theme = t_below(4), n_alike = t_below(r->max_prompt);
	int32_t n_id = r->n_vocab - r->first_id;

	s->n_prompt = 1 + t_below(r->max_prompt);
	for (uint32_t i = 0; i < s->n_prompt; i++)
		s->prompt[i] = r->first_id +
			       (i < n_alike && theme < 3
					       ? (int32_t)((i * 37 + theme * 101) % (uint32_t)n_id)
					       : (int32_t)t_below((uint32_t)n_id));
}

static void draw_sampling(struct nsv_client_params *p)
{
	p->seed = t_rand();
	p->flags = NSV_CLIENT_SEED;
	if (t_below(4))
		p->flags |= NSV_CLIENT_IGNORE_END;
	if (t_below(5) == 0)
		return; /* greedy */
	p->temperature = 0.5f + (float)t_below(100) / 100;
	p->top_k = t_below(2) ? (int32_t)t_below(100) : 0;
	p->top_p = t_below(2) ? 0.5f + (float)t_below(50) / 100 : 1;
	p->min_p = t_below(4) ? 0 : (float)t_below(10) / 100;
	p->typical_p = t_below(4) ? 1 : 0.9f;
}

static void draw_penalties(struct nsv_story *s)
{
	struct nsv_client_params *p = &s->params;

	if (t_below(3) == 0)
		p->repetition_penalty = 1 + (float)t_below(80) / 100;
	if (t_below(3) == 0)
		p->penalty_window = 1 + t_below(64);
	if (s->may_fork)
		return;
	p->presence_penalty = t_below(2) ? (float)t_below(200) / 100 - 1 : 0;
	p->frequency_penalty = t_below(2) ? (float)t_below(200) / 100 - 1 : 0;
}

static void draw_lists(struct nsv_story *s, const struct nsv_story_range *r)
{
	struct nsv_client_params *p = &s->params;
	uint32_t n_id = (uint32_t)r->n_vocab;

	for (uint32_t i = 0; i < NSV_STORY_LIST; i++) {
		s->ban[i] = (int32_t)t_below(n_id);
		s->stop_id[i] = (int32_t)t_below(n_id);
		s->bias[i] =
			(struct nsv_client_bias){(int32_t)((uint32_t)s->ban[0] + i) % r->n_vocab,
				(float)t_below(80) / 10 - 4};
	}
	p->n_ban = t_below(4) ? 0 : 1 + t_below(NSV_STORY_LIST);
	p->n_bias = t_below(4) ? 0 : 1 + t_below(NSV_STORY_LIST);
	p->n_stop_id = t_below(6) ? 0 : 1 + t_below(NSV_STORY_LIST);
	p->n_stop = s->may_fork || t_below(2) ? 0 : 1 + t_below(2);
	for (uint32_t i = 0; i < 2; i++)
		snprintf(s->stop_text[i], sizeof(s->stop_text[i]), "%.*s",
			(int)(r->stop_len ? r->stop_len : 1 + t_below(2)),
			&"e a to 1, \n in"[t_below(12)]);
}

void nsv_story_draw(struct nsv_story *s, const struct nsv_story_range *r)
{
	struct nsv_client_params *p = &s->params;
	uint32_t least = (uint32_t)nsv_max(r->min_output, 1);

	*s = (struct nsv_story){.may_fork = t_below(3) > 0};
	nsv_client_params_init(p);
	draw_prompt(s, r);
	draw_sampling(p);
	draw_penalties(s);
	draw_lists(s, r);
	p->max_tokens = least + t_below(r->max_output - least + 1);
	p->min_tokens = t_below(4) ? r->min_output / 2 : t_below(p->max_tokens);
	p->n_branch = t_below(2) ? 1 : 1 + t_below(r->max_branch);
	p->branch = t_below(4) ? 0 : t_below(1000);
	p->priority = t_below(3) ? 0 : (int32_t)t_below(201) - 100;
	p->flags |= t_below(2) ? NSV_CLIENT_LOGPROBS : 0;
	p->flags |= t_below(3) ? 0 : NSV_CLIENT_PROMPT_LOGPROBS;
	if (p->flags & (NSV_CLIENT_LOGPROBS | NSV_CLIENT_PROMPT_LOGPROBS))
		p->n_logprob = t_below(4);
}

void nsv_story_copy(struct nsv_story *to, const struct nsv_story *from)
{
	*to = *from;
	to->stop[0] = to->stop_text[0];
	to->stop[1] = to->stop_text[1];
	to->params.stop = to->stop;
	to->params.stop_id = to->stop_id;
	to->params.ban = to->ban;
	to->params.bias = to->bias;
}

/* ---- Together */

static struct nsv_stream *new_stream(
	struct nsv_stage *g, const struct nsv_story *story, struct nsv_request *r, uint32_t branch)
{
	struct nsv_stream *s = calloc(1, sizeof(*s));

	if (!s || g->n == NSV_MAX_STREAM)
		abort();
	*s = (struct nsv_stream){.story = story, .branch = branch, .request = r};
	nsv_request_set_data(r, s);
	g->streams[g->n++] = s;
	g->n_live++;
	return s;
}

bool nsv_stage_add(struct nsv_stage *g, const struct nsv_story *story)
{
	struct nsv_request *r;
	uint32_t n = story->params.n_branch;

	if (g->n + n > NSV_MAX_STREAM || g->n_live + n > g->n_slot ||
		nsv_client_submit_ids(
			g->client, story->prompt, story->n_prompt, &story->params, &r) < 0)
		return false;
	for (uint32_t i = 0; i < n; i++)
		new_stream(g, story, nsv_request_answer(r, i), story->params.branch + i)->number =
			i;
	g->n_answer += n;
	return true;
}

/* Some stream that has not ended, or NULL. */
static struct nsv_stream *some_live(struct nsv_stage *g)
{
	uint32_t at = g->n ? t_below(g->n) : 0;

	for (uint32_t i = 0; i < g->n; i++) {
		struct nsv_stream *s = g->streams[(at + i) % g->n];
		if (!s->ended)
			return s;
	}
	return NULL;
}

static void fork_some(struct nsv_stage *g)
{
	struct nsv_stream *s = some_live(g);
	uint32_t branch = 5000 + t_below(1000);
	struct nsv_request *r;

	if (!s || !s->story->may_fork || s->branch == branch || g->n == NSV_MAX_STREAM ||
		nsv_request_fork(s->request, branch, &r) < 0)
		return;
	new_stream(g, s->story, r, branch)->target = s;
	g->n_fork++;
}

static void cancel_some(struct nsv_stage *g)
{
	struct nsv_stream *s = some_live(g);

	if (!s || s->cancelled || nsv_request_cancel(s->request) < 0)
		return;
	s->cancelled = true;
	g->n_cancel++;
}

static void take_chunk(struct nsv_stream *s, const struct nsv_client_chunk *c)
{
	struct nsv_answer *a = &s->answer;

	if (a->n_token + c->n_token > NSV_ANSWER_TOKENS || a->n_lp + c->n_lp > NSV_ANSWER_TOKENS ||
		a->text_len + c->text_len >= NSV_ANSWER_TEXT)
		abort();
	for (size_t i = 0; i < c->n_token; i++)
		a->tokens[a->n_token++] = c->tokens[i];
	for (size_t i = 0; i < c->n_lp; i++)
		a->lps[a->n_lp++] = c->lps[i];
	if (c->text_len)
		memcpy(a->text + a->text_len, c->text, c->text_len);
	a->text_len += c->text_len;
}

static void end_stream(struct nsv_stage *g, struct nsv_stream *s, int ret)
{
	struct nsv_answer *a = &s->answer;

	a->ret = ret;
	a->result.size = sizeof(a->result);
	if (ret == 0)
		a->ret = nsv_request_result(s->request, &a->result);
	snprintf(a->reason, sizeof(a->reason), "%s",
		a->ret < 0 ? nsv_client_error(g->client) : a->result.text);
	(void)nsv_request_fork_point(s->request, &s->fork_text, &s->fork_token);
	nsv_request_free(s->request);
	s->request = NULL;
	s->ended = true;
	g->n_live--;
	g->n_token += a->n_token;
	g->n_lp += a->n_lp;
	g->n_preempt += a->result.n_preempt;
	g->n_cached += a->result.n_cached;
}

/* The reader stays away from now on, or still does. */
static bool lags(struct nsv_stage *g, struct nsv_stream *s)
{
	if (s->n_lag == 0 && g->lag_one_in && t_below(g->lag_one_in) == 0) {
		s->n_lag = 1 + t_below(NSV_STORY_LAG);
		g->n_lagging++;
	}
	return s->n_lag > 0;
}

static void read_stream(struct nsv_stage *g, struct nsv_stream *s)
{
	struct nsv_client_chunk c = {.size = sizeof(c)};
	int ret;

	while ((ret = nsv_request_next(s->request, 0, &c)) > 0)
		take_chunk(s, &c);
	if (ret != -EAGAIN)
		end_stream(g, s, ret);
	if (g->fork_one_in && t_below(g->fork_one_in) == 0)
		fork_some(g);
	if (g->cancel_one_in && t_below(g->cancel_one_in) == 0)
		cancel_some(g);
}

/* Readers come back in their time; all at once where nobody is left to wait for. */
static void end_lags(struct nsv_stage *g)
{
	bool all = g->n_lagging == g->n_live;

	for (uint32_t i = 0; i < g->n && g->n_lagging > 0; i++) {
		struct nsv_stream *s = g->streams[i];
		if (s->n_lag == 0 || (--s->n_lag > 0 && !all))
			continue;
		s->n_lag = 0;
		g->n_lagging--;
		read_stream(g, s);
	}
}

bool nsv_stage_turn(struct nsv_stage *g, int ms)
{
	struct nsv_request *r;

	if (g->n_live == 0)
		return false;
	(void)nsv_client_wait(g->client, ms); /* a session that broke: reading says so */
	while ((r = nsv_client_ready(g->client))) {
		struct nsv_stream *s = nsv_request_data(r);
		if (!lags(g, s))
			read_stream(g, s);
	}
	end_lags(g);
	return g->n_live > 0;
}

void nsv_stage_clear(struct nsv_stage *g)
{
	for (uint32_t i = 0; i < g->n; i++)
		free(g->streams[i]);
	g->n = 0;
}

/* ---- Alone */

static void wrong(struct nsv_stage *g, const struct nsv_stream *s, const char *what)
{
	const struct nsv_answer *a = &s->answer;

	g->n_wrong++;
	printf("WRONG: %s: %s branch %u of a prompt of %u: %zu tokens, %zu log-probabilities, %zu "
	       "bytes, finish %u, \"%s\"\n",
		what, s->target ? "a fork," : "", s->branch, s->story->n_prompt, a->n_token,
		a->n_lp, a->text_len, a->result.finish, a->reason);
}

/* All tokens of a stream's answer, the target's first where it is a fork. */
static uint32_t whole_tokens(const struct nsv_stream *s, int32_t *out)
{
	uint32_t n = s->target ? whole_tokens(s->target, out) : 0;

	if (n < s->fork_token)
		return 0; /* the target has told less than the fork began with */
	n = (uint32_t)s->fork_token;
	memcpy(out + n, s->answer.tokens, s->answer.n_token * sizeof(*out));
	return n + (uint32_t)s->answer.n_token;
}

static size_t whole_text(const struct nsv_stream *s, char *out)
{
	size_t n = s->target ? whole_text(s->target, out) : 0;

	if (n < s->fork_text)
		return 0;
	n = (size_t)s->fork_text;
	memcpy(out + n, s->answer.text, s->answer.text_len);
	return n + s->answer.text_len;
}

/* Asks for a stream alone; its prompt is as long as what a fork began with. */
static void ask_alone(struct nsv_client *alone, const struct nsv_stream *s, const int32_t *whole,
	struct nsv_answer *ret)
{
	uint32_t n_fork = (uint32_t)s->fork_token;
	int32_t *ids = calloc(s->story->n_prompt + n_fork, sizeof(*ids));
	struct nsv_story one;
	struct nsv_client_params *p = &one.params;

	if (!ids)
		abort();
	nsv_story_copy(&one, s->story);
	memcpy(ids, one.prompt, one.n_prompt * sizeof(*ids));
	memcpy(ids + one.n_prompt, whole, n_fork * sizeof(*ids));
	p->n_branch = 1;
	p->branch = s->branch;
	p->priority = 0;
	p->max_tokens -= n_fork;
	p->min_tokens = p->min_tokens > n_fork ? p->min_tokens - n_fork : 0;
	if (s->target || s->number > 0) { /* its prompt's log-probabilities are another's */
		p->flags &= ~(uint32_t)NSV_CLIENT_PROMPT_LOGPROBS;
		p->n_logprob = p->flags & NSV_CLIENT_LOGPROBS ? p->n_logprob : 0;
	}
	nsv_ask_ids(alone, ids, one.n_prompt + n_fork, p, ret);
	free(ids);
}

/* What was cancelled is a beginning. */
static const char *difference(const struct nsv_stream *s, const struct nsv_answer *b)
{
	const struct nsv_answer *a = &s->answer;
	bool cut = a->result.finish == NSV_CLIENT_FINISH_CANCEL;

	if (b->ret != 0 || b->reason[0])
		return "its solitary run failed";
	if (a->ret != 0 || (cut ? !s->cancelled : a->result.finish != b->result.finish))
		return "another end";
	if (a->n_token > b->n_token || (!cut && a->n_token != b->n_token) ||
		memcmp(a->tokens, b->tokens, a->n_token * sizeof(a->tokens[0])) != 0)
		return "other tokens";
	if (a->n_lp > b->n_lp || (!cut && a->n_lp != b->n_lp) ||
		memcmp(a->lps, b->lps, a->n_lp * sizeof(a->lps[0])) != 0)
		return "other log-probabilities";
	if (s->target)
		return NULL; /* its text goes on in the middle of the target's */
	if (a->text_len > b->text_len || (!cut && a->text_len != b->text_len) ||
		memcmp(a->text, b->text, a->text_len) != 0)
		return "another text";
	return NULL;
}

/* Is a fork's whole text that of its whole tokens? It has no stop string; an end token has no
 * text. */
static const char *text_difference(struct nsv_client *alone, const struct nsv_stream *s,
	const int32_t *whole, uint32_t n, struct nsv_answer *b)
{
	static char text[2 * NSV_ANSWER_TEXT];
	size_t len = whole_text(s, text);
	struct nsv_request *r = NULL;

	if (s->answer.result.finish == NSV_CLIENT_FINISH_CANCEL)
		return NULL; /* the last bytes of a character may be missing */
	if (s->answer.result.finish == NSV_CLIENT_FINISH_STOP)
		n--;
	int ret = nsv_client_detokenize(alone, whole, n, &r);
	nsv_ask_finish(alone, ret, r, b);
	return b->text_len == len && memcmp(b->text, text, len) == 0 ? NULL : "another text";
}

static void compare(struct nsv_stage *g, struct nsv_client *alone, const struct nsv_stream *s)
{
	static int32_t whole[2 * NSV_ANSWER_TOKENS];
	static struct nsv_answer b;
	uint32_t n = whole_tokens(s, whole);

	if (s->target && s->answer.result.code == 7 && s->target->ended) { /* NSV_E_ID */
		g->n_late_fork++;
		return;
	}
	if (n != s->fork_token + s->answer.n_token) {
		wrong(g, s, "it began behind its target's end");
		return;
	}
	ask_alone(alone, s, whole, &b);
	const char *what = difference(s, &b);
	if (!what && s->target)
		what = text_difference(alone, s, whole, n, &b);
	if (!what && !s->answer.reason[0] &&
		s->answer.result.n_output != s->fork_token + s->answer.n_token)
		what = "another count of tokens";
	if (what)
		wrong(g, s, what);
	g->n_compared++;
	g->n_ran += s->answer.n_token > 0;
	g->n_pushed_out += s->answer.n_token > 0 && s->answer.result.n_preempt > 0;
}

void nsv_stage_compare(struct nsv_stage *g, struct nsv_client *alone)
{
	for (uint32_t i = 0; i < g->n; i++)
		compare(g, alone, g->streams[i]);
}

void nsv_stage_print(const struct nsv_stage *g, FILE *out)
{
	fprintf(out,
		"%llu answers, %llu forks (%llu too late), %llu cancels, %llu tokens (%llu from "
		"the "
		"prefix cache or a leader), %llu log-probabilities, %llu preemptions; %llu streams "
		"compared, %llu had output, %llu of these were preempted, %llu wrong\n",
		(unsigned long long)g->n_answer, (unsigned long long)g->n_fork,
		(unsigned long long)g->n_late_fork, (unsigned long long)g->n_cancel,
		(unsigned long long)g->n_token, (unsigned long long)g->n_cached,
		(unsigned long long)g->n_lp, (unsigned long long)g->n_preempt,
		(unsigned long long)g->n_compared, (unsigned long long)g->n_ran,
		(unsigned long long)g->n_pushed_out, (unsigned long long)g->n_wrong);
	fflush(out);
}
