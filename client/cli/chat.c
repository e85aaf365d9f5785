/* nanoserve chat: turns with the model. Every turn sends all messages again; the daemon's prefix
 * cache makes that cheap. Ctrl-C stops an answer: SIGINT sets a flag, and interrupts the wait. */
#include "client/cli/cli.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <editline/readline.h>

#define LOOK_MS 200 /* a SIGINT just before the wait began is seen after this */
#define AWAY_MS 60000 /* how long to wait for a daemon that went away */

struct chat {
	const struct cli *cli;
	struct nsv_client *client;
	struct sampling sampling;
	struct messages messages;
	const char *system;
	char *answer; /* of this turn */
	size_t answer_len;
};

static volatile sig_atomic_t interrupted;

static void on_sigint(int signal_number)
{
	(void)signal_number;
	interrupted = 1;
}

static int catch_sigint(void)
{
	const struct sigaction action = {.sa_handler = on_sigint}; /* no SA_RESTART: waits end */

	return sigaction(SIGINT, &action, NULL);
}

static int keep_answer(struct chat *c, const char *text, size_t len)
{
	char *more = realloc(c->answer, c->answer_len + len + 1);

	if (!more)
		return -ENOMEM;
	if (len > 0)
		memcpy(more + c->answer_len, text, len);
	c->answer = more;
	c->answer_len += len;
	return 0;
}

/* Prints and keeps the answer until its end. 0, or -errno. */
static int stream_answer(struct chat *c, struct nsv_request *r)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};

	for (;;) {
		if (interrupted) {
			interrupted = 0;
			int ret = nsv_request_cancel(r);
			if (ret < 0)
				return ret;
		}
		int ret = nsv_request_next(r, LOOK_MS, &chunk);
		if (ret == -EINTR || ret == -ETIMEDOUT)
			continue;
		if (ret <= 0)
			return ret;
		output_text(chunk.text, chunk.text_len);
		if (keep_answer(c, chunk.text, chunk.text_len) < 0)
			return -ENOMEM;
	}
}

/* What was answered becomes a turn; a question that failed is taken back. */
static int keep_turn(struct chat *c, bool answered)
{
	if (!answered) {
		messages_drop_last(&c->messages);
		return 0;
	}
	if (messages_add(&c->messages, NSV_CLIENT_ASSISTANT, c->answer ? c->answer : "",
		    c->answer_len) < 0)
		return cli_failed(c->cli, "out of memory");
	return 0;
}

/* After the daemon went away: waits for one at the socket. The conversation is here, so it goes on.
 * 0, or the exit code. */
static int reconnect(struct chat *c)
{
	char text[256] = "";
	int code = EXIT_NO_DAEMON;

	nsv_client_close(c->client);
	c->client = NULL;
	interrupted = 0;
	fputs("[the daemon went away; waiting for it, Ctrl-C gives up]\n", stderr);
	for (int ms = 0; code == EXIT_NO_DAEMON && ms < AWAY_MS && !interrupted; ms += LOOK_MS) {
		poll(NULL, 0, LOOK_MS);
		code = cli_try_open(c->cli, 0, 1, text, sizeof(text), &c->client);
	}
	if (code != EXIT_DONE)
		cli_failed(c->cli, "%s", text);
	return code;
}

/* Asks, and streams the answer. 0: *ret_code says how it ended; or -errno. */
static int ask(struct chat *c, int *ret_code)
{
	struct nsv_client_result result;
	struct nsv_request *r;
	int ret = nsv_client_submit_chat(
		c->client, c->messages.list, c->messages.n, &c->sampling.params, &r);

	if (ret < 0)
		return ret;
	c->answer_len = 0;
	ret = stream_answer(c, r);
	putchar('\n');
	if (ret == 0)
		*ret_code = cli_finish(c->cli, c->client, r, ret, &result);
	if (ret == 0 && *ret_code == EXIT_DONE && result.finish == NSV_CLIENT_FINISH_CANCEL)
		puts("[stopped]");
	nsv_request_free(r);
	return ret;
}

/* The daemon's refusals (a full context, say) leave the chat where it was: 0. Else it is over. */
static int answer(struct chat *c)
{
	int code = EXIT_FAILED, ret = ask(c, &code);

	while (ret == -ECONNRESET) {
		code = reconnect(c);
		if (code != EXIT_DONE)
			return code;
		ret = ask(c, &code);
	}
	if (ret < 0)
		cli_failed(c->cli, "%s", nsv_client_error(c->client));
	return ret < 0 && ret != -E2BIG ? EXIT_FAILED : keep_turn(c, ret == 0 && code == EXIT_DONE);
}

static int reset(struct chat *c)
{
	messages_deinit(&c->messages);
	if (c->system &&
		messages_add(&c->messages, NSV_CLIENT_SYSTEM, c->system, strlen(c->system)) < 0)
		return cli_failed(c->cli, "out of memory");
	return 0;
}

/* A line that is a command of the chat itself, or a question. */
static int take_line(struct chat *c, const char *line)
{
	if (strcmp(line, "/reset") == 0)
		return reset(c);
	if (line[0] == '/') {
		puts("/reset forgets all turns, /help shows this; Ctrl-C stops an answer, "
		     "Ctrl-D leaves");
		return 0;
	}
	if (line[strspn(line, " \t\r\n")] == 0)
		return 0;
	if (messages_add(&c->messages, NSV_CLIENT_USER, line, strlen(line)) < 0)
		return cli_failed(c->cli, "out of memory");
	return answer(c);
}

/* A line from a person (edited) or from a pipe; NULL: the end. */
static char *read_line(void)
{
	char *line = NULL;
	size_t cap = 0;

	if (isatty(STDIN_FILENO)) {
		/* libedit shows the prompt before it takes the keys one by one: a Ctrl-D typed
		 * between the two would be lost. */
		rl_prep_terminal(1);
		line = readline("> ");
		if (line && *line)
			add_history(line);
		return line;
	}
	ssize_t len = getline(&line, &cap, stdin);
	if (len < 0) {
		free(line);
		return NULL;
	}
	line[strcspn(line, "\n")] = 0;
	return line;
}

static int run(struct chat *c)
{
	int ret = reset(c);

	if (ret == 0 && catch_sigint() < 0)
		ret = cli_failed(c->cli, "SIGINT: %s", strerror(errno));
	output_init();
	if (isatty(STDIN_FILENO))
		rl_initialize();
	while (ret == 0) {
		interrupted = 0; /* what was meant for an answer is no word on the prompt */
		errno = 0;
		char *line = read_line();
		/* Ctrl-C at the prompt, or Ctrl-Z where no shell takes it: a new line, not the end */
		if (!line && (interrupted || errno == EINTR)) {
			clearerr(stdin);
			putchar('\n');
			continue;
		}
		if (!line)
			break;
		ret = take_line(c, line);
		free(line);
	}
	if (ret == 0 && isatty(STDIN_FILENO)) /* Ctrl-D left the cursor behind the prompt */
		putchar('\n');
	return ret;
}

int cmd_chat(const struct cli *cli, int argc, char **argv)
{
	enum { OPT_SYSTEM = 1 };
	static const struct option options[] = {
		{"system", required_argument, NULL, OPT_SYSTEM},
		{"help", no_argument, NULL, 'h'},
		SAMPLING_OPTIONS,
		{0},
	};
	struct chat c = {.cli = cli};
	int option, ret = 0;

	sampling_init(&c.sampling);
	while (ret == 0 && (option = getopt_long(argc, argv, "n:h", options, NULL)) != -1) {
		if (option == 'h')
			return cli_help(cli);
		if (option == OPT_SYSTEM)
			c.system = optarg;
		else
			ret = sampling_option(cli, &c.sampling, option, optarg);
	}
	if (ret == 0 && optind < argc)
		ret = cli_usage(cli, "takes no argument: %s", argv[optind]);
	if (ret == 0)
		ret = cli_open(cli, 0, 1, &c.client);
	if (ret == 0)
		ret = run(&c);
	nsv_client_close(c.client);
	messages_deinit(&c.messages);
	free(c.answer);
	return ret;
}
