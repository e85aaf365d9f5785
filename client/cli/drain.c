/* nanoserve drain: has the daemon end when its last request has, and waits for that. */
#include "client/cli/cli.h"

#include <errno.h>
#include <stdio.h>

#define LOOK_MS 1000 /* how often the daemon is asked whether it still drains */
#define CONNECT_MS 5000

/* How long all of it may take. */
struct patience {
	uint32_t timeout_s; /* 0: without end */
	double end_s;
};

/* At most `most` (below 0: without end). */
static int left_ms(const struct patience *p, int most)
{
	double left = (p->end_s - cli_now_s()) * 1e3;

	if (!p->timeout_s || (most >= 0 && left > most))
		return most;
	return left > INT32_MAX ? INT32_MAX : left > 1 ? (int)left : 1;
}

static bool is_over(const struct patience *p)
{
	return p->timeout_s && cli_now_s() >= p->end_s;
}

static int no_answer(const struct cli *cli, const struct patience *p)
{
	return cli_failed(cli, "the daemon does not answer after %u s", p->timeout_s);
}

static int ask(const struct cli *cli, struct nsv_client *client, bool begin,
	const struct patience *p)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_client_result result;
	struct nsv_request *r;

	if (nsv_client_drain(client, begin, &r) < 0)
		return cli_failed(cli, "%s", nsv_client_error(client));
	int ret = nsv_request_collect(r, left_ms(p, -1), &chunk);
	ret = ret == -ETIMEDOUT ? no_answer(cli, p) : cli_finish(cli, client, r, ret, &result);
	nsv_request_free(r);
	return ret;
}

/* 1, 0, or -errno: nobody answers, or not in time. */
static int is_draining(struct nsv_client *client, const struct patience *p)
{
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	struct nsv_request *r;
	int ret = nsv_client_status(client, &r);

	if (ret < 0)
		return ret;
	ret = nsv_request_collect(r, left_ms(p, -1), &chunk);
	if (ret == 0) {
		json_t *status = json_loadb(chunk.text, chunk.text_len, 0, NULL);
		ret = json_is_true(json_object_get(status, "draining"));
		json_decref(status);
	}
	nsv_request_free(r);
	return ret;
}

/* Until the daemon ends. */
static int wait_for_end(
	const struct cli *cli, struct nsv_client *client, const struct patience *p)
{
	int ret;

	do {
		if (is_over(p))
			return cli_failed(cli,
				"requests still run after %u s; it goes on draining", p->timeout_s);
		ret = nsv_client_wait(client, left_ms(p, LOOK_MS));
		if (ret == -ETIMEDOUT && !is_over(p)) {
			ret = is_draining(client, p);
			if (ret == -ETIMEDOUT)
				return no_answer(cli, p);
		}
	} while (ret == 1 || ret == -ETIMEDOUT);
	if (ret == 0)
		return cli_failed(cli, "the daemon is no longer draining");
	if (nsv_client_end_code(client) == NSV_CLIENT_END_STOPPED)
		return EXIT_DONE;
	return cli_failed(cli, "%s", nsv_client_error(client));
}

static int open_in_time(
	const struct cli *cli, const struct patience *p, struct nsv_client **ret_client)
{
	struct cli hasty = *cli;

	hasty.connect_timeout_ms = left_ms(p, CONNECT_MS);
	return cli_open(&hasty, 0, 1, ret_client);
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
	struct patience patience = {.end_s = cli_now_s()};
	struct nsv_client *client = NULL;
	bool cancel = false, waits = false;
	int option, ret = 0;

	while (ret == 0 && (option = getopt_long(argc, argv, "wt:h", options, NULL)) != -1) {
		if (option == 'h')
			return cli_help(cli);
		if (option == '?')
			return EXIT_USAGE;
		cancel |= option == 'c';
		waits |= option == 'w' || option == 't';
		if (option == 't')
			ret = cli_parse_u32(cli, "--timeout", optarg, &patience.timeout_s);
	}
	patience.end_s += patience.timeout_s;
	if (ret == 0 && optind < argc)
		ret = cli_usage(cli, "takes no argument: %s", argv[optind]);
	if (ret == 0 && cancel && waits)
		ret = cli_usage(cli, "--cancel has nothing to wait for");
	if (ret == 0)
		ret = open_in_time(cli, &patience, &client);
	if (ret == 0)
		ret = ask(cli, client, !cancel, &patience);
	if (ret == 0 && waits)
		ret = wait_for_end(cli, client, &patience);
	nsv_client_close(client);
	return ret;
}
