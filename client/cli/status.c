/* nanoserve status: the daemon's JSON text, as it is or as a table. The table shows every field
 * that the daemon sends, so that it needs no change when one is added. */
#include "client/cli/cli.h"

#include <stdio.h>
#include <string.h>

#define NAME_WIDTH 28

static void print_value(const char *name, const json_t *value)
{
	printf("%-*s ", NAME_WIDTH, name);
	if (json_is_string(value))
		output_text(json_string_value(value), json_string_length(value));
	else if (json_is_integer(value))
		printf("%lld", (long long)json_integer_value(value));
	else if (json_is_real(value))
		printf("%.3f", json_real_value(value));
	else if (json_is_boolean(value))
		fputs(json_is_true(value) ? "yes" : "no", stdout);
	else
		putchar('-');
	putchar('\n');
}

static void print_any(const char *name, json_t *value);

/* "outer.inner"; a name that does not fit is cut. */
static void print_member(const char *outer, const char *inner, json_t *value)
{
	char name[128];

	snprintf(name, sizeof(name), "%s%s%s", outer, *outer ? "." : "", inner);
	print_any(name, value);
}

/* Nested no deeper than the parser allows. */
static void print_any(const char *name, json_t *value)
{
	if (json_is_object(value)) {
		for (void *i = json_object_iter(value); i; i = json_object_iter_next(value, i))
			print_member(name, json_object_iter_key(i), json_object_iter_value(i));
	} else if (json_is_array(value)) {
		for (size_t i = 0; i < json_array_size(value); i++) {
			char index[24];
			snprintf(index, sizeof(index), "%zu", i);
			print_member(name, index, json_array_get(value, i));
		}
	} else {
		print_value(name, value);
	}
}

static int print_table(const struct cli *cli, const struct nsv_client_chunk *c)
{
	json_error_t error;
	json_t *status = json_loadb(c->text, c->text_len, 0, &error);

	if (!status)
		return cli_failed(cli, "the daemon's status is no JSON: %s", error.text);
	output_init();
	print_any("", status);
	json_decref(status);
	return EXIT_DONE;
}

static int run(const struct cli *cli, struct nsv_client *client, bool json)
{
	struct nsv_client_result result;
	struct nsv_client_chunk chunk;
	struct nsv_request *r;

	if (nsv_client_status(client, &r) < 0)
		return cli_failed(cli, "%s", nsv_client_error(client));
	int ret = cli_finish(cli, client, r, nsv_request_collect(r, -1, &chunk), &result);
	if (ret != EXIT_DONE)
		return ret;
	if (!json)
		return print_table(cli, &chunk);
	fwrite(chunk.text, 1, chunk.text_len, stdout);
	putchar('\n');
	return EXIT_DONE;
}

int cmd_status(const struct cli *cli, int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct nsv_client *client = NULL;
	bool json = false;
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'h')
			return cli_help(cli);
		if (option == '?')
			return EXIT_USAGE;
		json = true;
	}
	if (optind < argc)
		return cli_usage(cli, "takes no argument: %s", argv[optind]);
	int ret = cli_open(cli, 0, 1, &client);
	if (ret == 0)
		ret = run(cli, client, json);
	nsv_client_close(client);
	return ret;
}
