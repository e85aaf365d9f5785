/* nanoserve tokenize: the ids of a text. */
#include "client/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>

static int print_ids(const struct cli *cli, const struct nsv_client_chunk *c, bool json)
{
	if (json)
		return output_json(cli, json_ids(c->tokens, c->n_token));
	for (size_t i = 0; i < c->n_token; i++)
		printf(i ? " %d" : "%d", c->tokens[i]);
	putchar('\n');
	return EXIT_DONE;
}

static int run(const struct cli *cli, struct nsv_client *client, const char *text, size_t len,
	unsigned int flags, bool json)
{
	struct nsv_client_result result;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r;

	if (nsv_client_tokenize(client, text, len, flags, &r) < 0)
		return cli_failed(cli, "%s", nsv_client_error(client));
	int ret = cli_finish(cli, client, r, nsv_request_collect(r, -1, &chunk), &result);
	return ret == EXIT_DONE ? print_ids(cli, &chunk, json) : ret;
}

int cmd_tokenize(const struct cli *cli, int argc, char **argv)
{
	enum { OPT_SPECIAL = 1, OPT_NO_BOS, OPT_JSON };
	static const struct option options[] = {
		{"special", no_argument, NULL, OPT_SPECIAL},
		{"no-bos", no_argument, NULL, OPT_NO_BOS},
		{"json", no_argument, NULL, OPT_JSON},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct nsv_client *client = NULL;
	unsigned int flags = 0;
	bool json = false;
	char *text = NULL;
	size_t len = 0;
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'h')
			return cli_help(cli);
		if (option == '?')
			return EXIT_USAGE;
		if (option == OPT_SPECIAL)
			flags |= NSV_CLIENT_SPECIAL;
		if (option == OPT_NO_BOS)
			flags |= NSV_CLIENT_NO_BOS;
		if (option == OPT_JSON)
			json = true;
	}
	int ret = cli_read_text(cli, argc - optind, argv + optind, &text, &len);
	if (ret == 0)
		ret = cli_open(cli, len, 1, &client);
	if (ret == 0)
		ret = run(cli, client, text, len, flags, json);
	nsv_client_close(client);
	free(text);
	return ret;
}
