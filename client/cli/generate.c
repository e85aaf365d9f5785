/* nanoserve generate: one prompt, one answer or several. */
#include "client/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct generate {
	const struct cli *cli;
	struct nsv_client *client;
	struct sampling sampling;
	bool raw, ids, json, stats, logprobs;
	bool list; /* --n: answers are printed as a list, though there be one */
	const char *messages_path, *system;
	char *text;
	size_t text_len;
	int32_t *prompt_ids; /* --ids */
	size_t n_prompt_id;
	struct messages messages; /* neither --raw nor --ids */
};

enum {
	OPT_RAW = 1,
	OPT_SPECIAL,
	OPT_IDS,
	OPT_MESSAGES,
	OPT_SYSTEM,
	OPT_N,
	OPT_BRANCH,
	OPT_LOGPROBS,
	OPT_PROMPT_LOGPROBS,
	OPT_JSON,
	OPT_STATS
};

static int set_option(struct generate *g, int option, const char *value)
{
	struct nsv_client_params *p = &g->sampling.params;

	switch (option) {
	case OPT_RAW:
		g->raw = true;
		return 0;
	case OPT_SPECIAL:
		p->flags |= NSV_CLIENT_SPECIAL;
		return 0;
	case OPT_IDS:
		g->ids = true;
		return 0;
	case OPT_MESSAGES:
		g->messages_path = value;
		return 0;
	case OPT_SYSTEM:
		g->system = value;
		return 0;
	case OPT_N:
		g->list = true;
		return cli_parse_u32(g->cli, "--n", value, &p->n_branch);
	case OPT_BRANCH:
		return cli_parse_u32(g->cli, "--branch", value, &p->branch);
	case OPT_PROMPT_LOGPROBS:
		p->flags |= NSV_CLIENT_PROMPT_LOGPROBS;
		return 0;
	case OPT_LOGPROBS:
		g->logprobs = true;
		p->flags |= NSV_CLIENT_LOGPROBS;
		return cli_parse_u32(g->cli, "--logprobs", value, &p->n_logprob);
	case OPT_JSON:
		g->json = true;
		return 0;
	case OPT_STATS:
		g->stats = true;
		return 0;
	default:
		return sampling_option(g->cli, &g->sampling, option, value);
	}
}

static int check_options(const struct generate *g)
{
	if ((g->raw || g->ids) && (g->messages_path || g->system))
		return cli_usage(g->cli, "--messages and --system belong to the chat template, "
					 "which --raw and --ids leave out");
	if (g->raw && g->ids)
		return cli_usage(g->cli, "--raw and --ids exclude each other");
	if (g->ids && (g->sampling.params.flags & NSV_CLIENT_SPECIAL))
		return cli_usage(g->cli, "--special is for text, --ids has none");
	if (g->logprobs && !g->json)
		return cli_usage(g->cli, "--logprobs needs --json");
	if ((g->sampling.params.flags & NSV_CLIENT_PROMPT_LOGPROBS) && !g->json)
		return cli_usage(g->cli, "--prompt-logprobs needs --json");
	if (g->sampling.params.n_branch < 1 || g->sampling.params.n_branch > 16)
		return cli_usage(g->cli, "--n: 1 to 16 answers");
	return 0;
}

static int add_message(struct generate *g, uint32_t role, const char *text, size_t len)
{
	return messages_add(&g->messages, role, text, len) < 0 ? cli_failed(g->cli, "out of memory")
							       : 0;
}

/* The prompt in the form that the options ask for. */
static int read_prompt(struct generate *g, int argc, char **argv)
{
	bool has_text = argc > 0 || !g->messages_path;
	int ret = has_text ? cli_read_text(g->cli, argc, argv, &g->text, &g->text_len) : 0;

	if (ret != 0 || g->raw)
		return ret;
	if (g->ids)
		return cli_parse_ids(g->cli, g->text, g->text_len, &g->prompt_ids, &g->n_prompt_id);
	if (g->system)
		ret = add_message(g, NSV_CLIENT_SYSTEM, g->system, strlen(g->system));
	if (ret == 0 && g->messages_path)
		ret = cli_load_messages(g->cli, g->messages_path, &g->messages);
	if (ret == 0 && has_text)
		ret = add_message(g, NSV_CLIENT_USER, g->text, g->text_len);
	return ret;
}

static size_t prompt_size(const struct generate *g)
{
	if (g->ids)
		return g->n_prompt_id * sizeof(int32_t);
	return g->raw ? g->text_len : messages_size(&g->messages);
}

static int submit(struct generate *g, struct nsv_request **ret_request)
{
	const struct nsv_client_params *p = &g->sampling.params;

	if (g->ids)
		return nsv_client_submit_ids(
			g->client, g->prompt_ids, g->n_prompt_id, p, ret_request);
	if (g->raw)
		return nsv_client_submit_text(g->client, g->text, g->text_len, p, ret_request);
	return nsv_client_submit_chat(g->client, g->messages.list, g->messages.n, p, ret_request);
}

/* The ids that the prompt becomes, as a JSON list. */
static int prompt_tokens(struct generate *g, json_t **ret_list)
{
	unsigned int flags = g->sampling.params.flags & NSV_CLIENT_SPECIAL;
	struct nsv_client_result result;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r;
	int ret;

	if (g->ids) {
		*ret_list = json_ids(g->prompt_ids, g->n_prompt_id);
		return 0;
	}
	if (g->raw)
		ret = nsv_client_tokenize(g->client, g->text, g->text_len, flags, &r);
	else
		ret = nsv_client_tokenize_chat(
			g->client, g->messages.list, g->messages.n, flags, &r);
	if (ret < 0)
		return cli_failed(g->cli, "%s", nsv_client_error(g->client));
	ret = nsv_request_collect(r, -1, &chunk);
	ret = cli_finish(g->cli, g->client, r, ret, &result);
	if (ret == EXIT_DONE)
		*ret_list = json_ids(chunk.tokens, chunk.n_token);
	nsv_request_free(r);
	return ret;
}

static double ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

/* The first token belongs to the prefill. */
static double tokens_per_s(const struct nsv_client_result *r)
{
	if (r->n_output < 2 || r->decode_ns == 0)
		return 0;
	return (double)(r->n_output - 1) * 1e9 / (double)r->decode_ns;
}

static void print_stats(const struct nsv_client_result *r)
{
	fprintf(stderr,
		"%u tokens at %.1f tokens/s, the first after %.1f ms; prompt %u tokens (%u "
		"cached)\n",
		r->n_output, tokens_per_s(r), ms(r->first_ns), r->n_prompt, r->n_cached);
}

static const char *finish_name(uint32_t finish)
{
	static const char *const names[] = {"none", "stop", "length", "cancel", "error"};

	return finish < sizeof(names) / sizeof(names[0]) ? names[finish] : "unknown";
}

/* A list a step of [id, log-probability], the step's own token first. */
static json_t *json_logprobs(const struct nsv_client_lp *lps, size_t n, size_t per_step)
{
	json_t *steps = json_array(), *step = NULL;

	for (size_t i = 0; i < n; i++) {
		if (i % per_step == 0) {
			step = json_array();
			json_array_append_new(steps, step);
		}
		json_array_append_new(
			step, json_pack("[i, f]", (int)lps[i].id, (double)lps[i].logprob));
	}
	return steps;
}

/* An answer by itself. */
static json_t *make_answer(const struct generate *g, const struct nsv_client_chunk *c,
	const struct nsv_client_result *r)
{
	json_t *o = json_pack("{s:o, s:o, s:s}", "tokens", json_ids(c->tokens, c->n_token), "text",
		json_text(c->text, c->text_len), "finish_reason", finish_name(r->finish));

	if (!o)
		return NULL;
	if (*r->stop)
		json_object_set_new(o, "stop", json_text(r->stop, strlen(r->stop)));
	/* A string: it has 64 bits, and a JSON number is safe up to 53. */
	json_object_set_new(o, "seed", json_sprintf("%llu", (unsigned long long)r->seed));
	json_object_set_new(o, "usage",
		json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)r->n_prompt,
			"cached_tokens", (json_int_t)r->n_cached, "completion_tokens",
			(json_int_t)r->n_output));
	json_object_set_new(o, "timing",
		json_pack("{s:f, s:f, s:f, s:f, s:f}", "queue_ms", ms(r->queue_ns), "prefill_ms",
			ms(r->prefill_ns), "decode_ms", ms(r->decode_ns), "first_token_ms",
			ms(r->first_ns), "tokens_per_s", tokens_per_s(r)));
	if (g->logprobs)
		json_object_set_new(o, "logprobs",
			json_logprobs(c->lps + c->n_prompt_lp, c->n_lp - c->n_prompt_lp,
				1 + g->sampling.params.n_logprob));
	return o;
}

/* Adds an answer to the object: to its list where there is one, else as its own fields. */
static void add_answer(const struct generate *g, json_t *object, uint32_t i,
	const struct nsv_client_chunk *c, const struct nsv_client_result *r)
{
	json_t *answer = make_answer(g, c, r);

	if (i == 0 && (g->sampling.params.flags & NSV_CLIENT_PROMPT_LOGPROBS))
		json_object_set_new(object, "prompt_logprobs",
			json_logprobs(c->lps, c->n_prompt_lp, 1 + g->sampling.params.n_logprob));
	if (g->list) {
		json_object_set_new(answer, "index", json_integer(i));
		json_array_append(json_object_get(object, "choices"), answer);
	} else {
		json_object_update(object, answer);
	}
	json_decref(answer);
}

static int answer_json(struct generate *g, struct nsv_request *first, json_t *prompt)
{
	json_t *o = json_pack("{s:O}", "prompt_tokens", prompt);
	int ret = EXIT_DONE;

	if (g->list)
		json_object_set_new(o, "choices", json_array());
	for (uint32_t i = 0; ret == EXIT_DONE && i < g->sampling.params.n_branch; i++) {
		struct nsv_request *r = nsv_request_answer(first, i);
		struct nsv_client_result result;
		struct nsv_client_chunk chunk = {.size = sizeof(chunk)};

		ret = nsv_request_collect(r, -1, &chunk);
		ret = cli_finish(g->cli, g->client, r, ret, &result);
		if (ret == EXIT_DONE)
			add_answer(g, o, i, &chunk, &result);
		if (ret == EXIT_DONE && g->stats)
			print_stats(&result);
	}
	if (ret == EXIT_DONE)
		return output_json(g->cli, o);
	json_decref(o);
	return ret;
}

/* Do text and statistics go to one terminal, pipe or file? */
static bool is_one_place(void)
{
	struct stat out, err;

	return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
	       out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

static int print_answer(struct generate *g, struct nsv_request *r)
{
	struct nsv_client_result result;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	bool newline = true;
	int ret;

	while ((ret = nsv_request_next(r, -1, &chunk)) > 0) {
		int lost = output_text(chunk.text, chunk.text_len);
		if (lost < 0) /* nobody reads on: the daemon sees it by the session's end */
			return cli_failed(g->cli, "standard output: %s", strerror(-lost));
		if (chunk.text_len > 0)
			newline = chunk.text[chunk.text_len - 1] == '\n';
	}
	if ((g->list || isatty(STDOUT_FILENO)) && !newline)
		putchar('\n');
	else if (g->stats && (isatty(STDERR_FILENO) || is_one_place()) && !newline)
		fputc('\n', stderr); /* the statistics begin a line, and the text stays as it is */
	fflush(stdout);
	ret = cli_finish(g->cli, g->client, r, ret, &result);
	if (ret == EXIT_DONE && (g->stats || isatty(STDOUT_FILENO)))
		print_stats(&result);
	return ret;
}

/* One after the other, the first as it comes; each of several below a line with its number. */
static int answer_text(struct generate *g, struct nsv_request *first)
{
	int ret = EXIT_DONE;

	output_init();
	for (uint32_t i = 0; ret == EXIT_DONE && i < g->sampling.params.n_branch; i++) {
		if (g->list)
			printf("%s[%u]\n", i > 0 ? "\n" : "", i);
		ret = print_answer(g, nsv_request_answer(first, i));
	}
	return ret;
}

static int run(struct generate *g)
{
	struct nsv_request *r;
	json_t *prompt = NULL;
	int ret = cli_open(g->cli, prompt_size(g), g->sampling.params.n_branch, &g->client);

	if (ret == 0 && g->json)
		ret = prompt_tokens(g, &prompt);
	if (ret != 0)
		return ret;
	if (submit(g, &r) < 0)
		ret = cli_failed(g->cli, "%s", nsv_client_error(g->client));
	else
		ret = g->json ? answer_json(g, r, prompt) : answer_text(g, r);
	json_decref(prompt);
	return ret;
}

static int parse(struct generate *g, int argc, char **argv, bool *ret_help)
{
	static const struct option options[] = {
		{"raw", no_argument, NULL, OPT_RAW},
		{"special", no_argument, NULL, OPT_SPECIAL},
		{"ids", no_argument, NULL, OPT_IDS},
		{"messages", required_argument, NULL, OPT_MESSAGES},
		{"system", required_argument, NULL, OPT_SYSTEM},
		{"n", required_argument, NULL, OPT_N},
		{"branch", required_argument, NULL, OPT_BRANCH},
		{"logprobs", required_argument, NULL, OPT_LOGPROBS},
		{"prompt-logprobs", no_argument, NULL, OPT_PROMPT_LOGPROBS},
		{"json", no_argument, NULL, OPT_JSON},
		{"stats", no_argument, NULL, OPT_STATS},
		{"help", no_argument, NULL, 'h'},
		SAMPLING_OPTIONS,
		{0},
	};
	int option, ret = 0;

	while (ret == 0 && (option = getopt_long(argc, argv, "n:h", options, NULL)) != -1) {
		if (option == 'h') {
			*ret_help = true;
			return 0;
		}
		ret = set_option(g, option, optarg);
	}
	return ret == 0 ? check_options(g) : ret;
}

int cmd_generate(const struct cli *cli, int argc, char **argv)
{
	struct generate g = {.cli = cli};
	bool help = false;

	sampling_init(&g.sampling);
	int ret = parse(&g, argc, argv, &help);
	if (help)
		return cli_help(cli);
	if (ret == 0)
		ret = read_prompt(&g, argc - optind, argv + optind);
	if (ret == 0)
		ret = run(&g);
	nsv_client_close(g.client);
	messages_deinit(&g.messages);
	free(g.prompt_ids);
	free(g.text);
	return ret;
}
