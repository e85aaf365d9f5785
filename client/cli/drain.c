/* nanoserve drain: has the daemon end when its last request has, and waits for that. */
#include "client/cli/cli.h"

#include <errno.h>
#include <stdio.h>

#define LOOK_MS 1000 /* how often the daemon is asked whether it still drains */

static int ask(const struct cli *cli, struct nsv_client *client, bool begin)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_client_result result;
	struct nsv_request *r;

	if (nsv_client_drain(client, begin, &r) < 0)
		return cli_failed(cli, "%s", nsv_client_error(client));
	int ret = cli_finish(cli, client, r, nsv_request_collect(r, -1, &chunk), &result);
	nsv_request_free(r);
	return ret;
}

/* 1, 0, or -errno: nobody answers. */
static int is_draining(struct nsv_client *client)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r;
	int ret = nsv_client_status(client, &r);

	if (ret < 0)
		return ret;
	ret = nsv_request_collect(r, -1, &chunk);
	if (ret == 0) {
		json_t *status = json_loadb(chunk.text, chunk.text_len, 0, NULL);
		ret = json_is_true(json_object_get(status, "draining"));
		json_decref(status);
	}
	nsv_request_free(r);
	return ret;
}

/* Until the daemon ends, for timeout_s at most (0: without end). */
static int wait_for_end(const struct cli *cli, struct nsv_client *client, uint32_t timeout_s)
{
	const double end_s = cli_now_s() + timeout_s;
	int ret;

	do {
		double left_ms = (end_s - cli_now_s()) * 1e3;
		if (timeout_s && left_ms < 1)
			return cli_failed(cli, "requests still run after %u s; it goes on draining",
				timeout_s);
		ret = nsv_client_wait(
			client, timeout_s && left_ms < LOOK_MS ? (int)left_ms : LOOK_MS);
		if (ret == -ETIMEDOUT)
			ret = is_draining(client);
	} while (ret == 1);
	if (ret == 0)
		return cli_failed(cli, "the daemon drains no longer");
	if (nsv_client_end_code(client) == NSV_CLIENT_END_STOPPED)
		return EXIT_DONE;
	return cli_failed(cli, "%s", nsv_client_error(client));
}

int cmd_drain(const struct cli *cli, int argc, char **argv)
{
	static const struct option options[] = {
		{"cancel", no_argument, NULL, 'c'},
		{"wait", no_argument, NULL, 'w'},
		{"timeout", required_argument, NULL, 't'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct nsv_client *client = NULL;
	bool cancel = false, waits = false;
	uint32_t timeout_s = 0;
	int option, ret = 0;

	while (ret == 0 && (option = getopt_long(argc, argv, "wt:h", options, NULL)) != -1) {
		if (option == 'h')
			return cli_help(cli);
		if (option == '?')
			return EXIT_USAGE;
		cancel |= option == 'c';
		waits |= option == 'w' || option == 't';
		if (option == 't')
			ret = cli_parse_u32(cli, "--timeout", optarg, &timeout_s);
	}
	if (ret == 0 && optind < argc)
		ret = cli_usage(cli, "takes no argument: %s", argv[optind]);
	if (ret == 0 && cancel && waits)
		ret = cli_usage(cli, "--cancel has nothing to wait for");
	if (ret == 0)
		ret = cli_open(cli, 0, 1, &client);
	if (ret == 0)
		ret = ask(cli, client, !cancel);
	if (ret == 0 && waits)
		ret = wait_for_end(cli, client, timeout_s);
	nsv_client_close(client);
	return ret;
}
