/* What the commands share: complaints, opening a session, an answer's end. */
#include "client/cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

static void complain(const struct cli *cli, const char *fmt, va_list ap)
{
	fflush(stdout);
	fprintf(stderr, "nanoserve %s: ", cli->command);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
}

int cli_usage(const struct cli *cli, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	complain(cli, fmt, ap);
	va_end(ap);
	fprintf(stderr, "`nanoserve %s --help` lists the options\n", cli->command);
	return EXIT_USAGE;
}

int cli_failed(const struct cli *cli, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	complain(cli, fmt, ap);
	va_end(ap);
	return EXIT_FAILED;
}

int cli_help(const struct cli *cli)
{
	fputs(cli->help, stdout);
	return EXIT_DONE;
}

bool cli_only_json(
	const struct cli *cli, int argc, char **argv, bool *ret_json, int *ret_code)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	int option;

	*ret_json = false;
	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'j') {
			*ret_json = true;
			continue;
		}
		*ret_code = option == 'h' ? cli_help(cli) : EXIT_USAGE;
		return false;
	}
	return true;
}

/* Refused by a daemon is a failed request; no answer from one is no daemon. */
static bool is_refusal(int code)
{
	return code == -EACCES || code == -EDQUOT || code == -EPROTONOSUPPORT || code == -EPROTO ||
	       code == -ENOMEM;
}

int cli_try_open(const struct cli *cli, size_t need, uint32_t n_slot, char *text, size_t text_len,
	struct nsv_client **ret_client)
{
	struct nsv_client_options options;

	nsv_client_options_init(&options);
	options.n_slot = n_slot;
	if (cli->connect_timeout_ms)
		options.connect_timeout_ms = cli->connect_timeout_ms;
	/* Twice: parameters and padding come on top. */
	if (need > options.arena_len / 2)
		options.arena_len = need > (32u << 20) ? 64u << 20 : 2 * (uint32_t)need;
	int ret = nsv_client_open(cli->socket, &options, text, text_len, ret_client);
	if (ret == 0)
		return EXIT_DONE;
	return is_refusal(ret) ? EXIT_FAILED : EXIT_NO_DAEMON;
}

int cli_open(const struct cli *cli, size_t need, uint32_t n_slot, struct nsv_client **ret_client)
{
	char text[256];
	int code = cli_try_open(cli, need, n_slot, text, sizeof(text), ret_client);

	if (code != EXIT_DONE)
		cli_failed(cli, "%s", text);
	if (code == EXIT_NO_DAEMON)
		fprintf(stderr,
			"`nanoserved --model FILE --socket PATH` starts one; --socket PATH, "
			"before the command, or $NANOSERVE_SOCKET says where it is\n");
	return code;
}

int cli_finish(const struct cli *cli, const struct nsv_client *client,
	const struct nsv_request *request, int ret, struct nsv_client_result *ret_result)
{
	ret_result->size = sizeof(*ret_result);
	if (ret == 0)
		ret = nsv_request_result(request, ret_result);
	if (ret < 0)
		return cli_failed(cli, "%s", nsv_client_error(client));
	if (ret_result->finish == NSV_CLIENT_FINISH_ERROR)
		return sampling_refused(cli, ret_result->text);
	return EXIT_DONE;
}

double cli_now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}
