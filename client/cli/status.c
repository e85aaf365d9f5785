/* nanoserve status: what the daemon does, once; nanoserve top: again and again, with rates. */
#include "client/cli/cli.h"

#include <stdio.h>
#include <unistd.h>

#define CLEAR_SCREEN "\033[H\033[J"

/* The daemon's JSON text into chunk, which is the request's: free that afterwards. */
static int ask(const struct cli *cli, struct nsv_client *client, struct nsv_request **ret_request,
	struct nsv_client_chunk *ret_chunk)
{
	struct nsv_client_result result;

	*ret_request = NULL;
	if (nsv_client_status(client, ret_request) < 0)
		return cli_failed(cli, "%s", nsv_client_error(client));
	return cli_finish(cli, client, *ret_request,
		nsv_request_collect(*ret_request, -1, ret_chunk), &result);
}

/* The daemon's state: the caller's to free. */
static int get_status(const struct cli *cli, struct nsv_client *client, json_t **ret_status)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r;
	json_error_t error;
	int ret = ask(cli, client, &r, &chunk);

	if (ret == EXIT_DONE) {
		*ret_status = json_loadb(chunk.text, chunk.text_len, 0, &error);
		if (!*ret_status)
			ret = cli_failed(
				cli, "the daemon's status is not JSON: %s", error.text);
	}
	nsv_request_free(r);
	return ret;
}

static int print_json(const struct cli *cli, struct nsv_client *client)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r;
	int ret = ask(cli, client, &r, &chunk);

	if (ret == EXIT_DONE) {
		fwrite(chunk.text, 1, chunk.text_len, stdout);
		putchar('\n');
	}
	nsv_request_free(r);
	return ret;
}

static int print_once(const struct cli *cli, struct nsv_client *client)
{
	json_t *status;
	int ret = get_status(cli, client, &status);

	if (ret != EXIT_DONE)
		return ret;
	output_init();
	print_table(status, NULL, 0);
	json_decref(status);
	return EXIT_DONE;
}

int cmd_status(const struct cli *cli, int argc, char **argv)
{
	struct nsv_client *client = NULL;
	bool json;
	int code;

	if (!cli_only_json(cli, argc, argv, &json, &code))
		return code;
	if (optind < argc)
		return cli_usage(cli, "takes no argument: %s", argv[optind]);
	int ret = cli_open(cli, 0, 1, &client);
	if (ret == 0)
		ret = json ? print_json(cli, client) : print_once(cli, client);
	nsv_client_close(client);
	return ret;
}

/* ---- top */

/* `rounds` times (0: without end), `pause_s` seconds apart; on a terminal over the last one. */
static int watch(
	const struct cli *cli, struct nsv_client *client, uint32_t rounds, uint32_t pause_s)
{
	json_t *before = NULL, *status;
	double before_s = 0;
	int ret = EXIT_DONE;

	output_init();
	for (uint32_t i = 0; rounds == 0 || i < rounds; i++) {
		if (i > 0)
			sleep(pause_s);
		ret = get_status(cli, client, &status);
		if (ret != EXIT_DONE)
			break;
		double at = cli_now_s();
		if (isatty(STDOUT_FILENO))
			fputs(CLEAR_SCREEN, stdout);
		else if (i > 0)
			putchar('\n');
		print_table(status, before, at - before_s);
		json_decref(before);
		before = status;
		before_s = at;
	}
	json_decref(before);
	return ret;
}

int cmd_top(const struct cli *cli, int argc, char **argv)
{
	static const struct option options[] = {
		{"delay", required_argument, NULL, 'd'},
		{"rounds", required_argument, NULL, 'n'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct nsv_client *client = NULL;
	uint32_t rounds = 0, pause_s = 1;
	int option, ret = 0;

	while (ret == 0 && (option = getopt_long(argc, argv, "d:n:h", options, NULL)) != -1) {
		if (option == 'h')
			return cli_help(cli);
		if (option == '?')
			return EXIT_USAGE;
		if (option == 'd')
			ret = cli_parse_u32(cli, "--delay", optarg, &pause_s);
		else
			ret = cli_parse_u32(cli, "--rounds", optarg, &rounds);
	}
	if (ret == 0 && optind < argc)
		ret = cli_usage(cli, "takes no argument: %s", argv[optind]);
	if (ret == 0)
		ret = cli_open(cli, 0, 1, &client);
	if (ret == 0)
		ret = watch(cli, client, rounds, pause_s);
	nsv_client_close(client);
	return ret;
}
