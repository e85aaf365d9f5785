/* Prompts from the command line, standard input and files. */
#include "client/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_all(FILE *in, char **ret_text, size_t *ret_len)
{
	size_t len = 0, cap = 0;
	char *text = NULL;

	errno = 0;
	do {
		if (len + 1 >= cap) {
			cap = cap ? cap * 2 : 65536;
			char *more = realloc(text, cap);
			if (!more) {
				free(text);
				return -ENOMEM;
			}
			text = more;
		}
		len += fread(text + len, 1, cap - 1 - len, in);
	} while (!feof(in) && !ferror(in));
	if (ferror(in)) {
		int ret = errno ? -errno : -EIO;
		free(text);
		return ret;
	}
	text[len] = 0;
	*ret_text = text;
	*ret_len = len;
	return 0;
}

static int read_file(const char *path, char **ret_text, size_t *ret_len)
{
	FILE *f = fopen(path, "re");

	if (!f)
		return -errno;
	int ret = read_all(f, ret_text, ret_len);
	fclose(f);
	return ret;
}

int cli_read_text(const struct cli *cli, int argc, char **argv, char **ret_text, size_t *ret_len)
{
	if (argc != 1)
		return cli_usage(cli, argc == 0 ? "the text is missing (- reads standard input)"
						: "more than one text: quote it");
	if (strcmp(argv[0], "-") != 0) {
		char *text = strdup(argv[0]);
		if (!text)
			return cli_failed(cli, "out of memory");
		*ret_text = text;
		*ret_len = strlen(text);
		return 0;
	}
	int ret = read_all(stdin, ret_text, ret_len);
	return ret < 0 ? cli_failed(cli, "standard input: %s", strerror(-ret)) : 0;
}

/* The ids of a list, or EXIT_USAGE. */
static int copy_ids(const struct cli *cli, const json_t *list, int32_t *ids)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *item = json_array_get(list, i);
		json_int_t id = json_integer_value(item);
		if (!json_is_integer(item) || id < INT32_MIN || id > INT32_MAX)
			return cli_usage(cli, "--ids: item %zu of the list is not a token id", i);
		ids[i] = (int32_t)id;
	}
	return 0;
}

int cli_parse_ids(
	const struct cli *cli, const char *text, size_t len, int32_t **ret_ids, size_t *ret_n)
{
	json_error_t error;
	json_t *list = json_loadb(text, len, 0, &error);

	if (!json_is_array(list)) {
		json_decref(list);
		return cli_usage(cli, "--ids: not a JSON list%s%s", list ? "" : ": ",
			list ? "" : error.text);
	}
	size_t n = json_array_size(list);
	int32_t *ids = calloc(n ? n : 1, sizeof(*ids));
	int ret = ids ? copy_ids(cli, list, ids) : cli_failed(cli, "out of memory");
	json_decref(list);
	if (ret != 0) {
		free(ids);
		return ret;
	}
	*ret_ids = ids;
	*ret_n = n;
	return 0;
}

int messages_add(struct messages *m, uint32_t role, const char *text, size_t len)
{
	struct nsv_client_message *list = realloc(m->list, (m->n + 1) * sizeof(*list));
	char *copy = malloc(len + 1);

	if (list)
		m->list = list;
	if (!list || !copy) {
		free(copy);
		return -ENOMEM;
	}
	memcpy(copy, text, len);
	copy[len] = 0;
	struct nsv_client_message *message = &m->list[m->n++];
	message->role = role;
	message->text = copy;
	message->len = len;
	return 0;
}

void messages_drop_last(struct messages *m)
{
	m->n--;
	free((char *)m->list[m->n].text);
}

void messages_deinit(struct messages *m)
{
	while (m->n > 0)
		messages_drop_last(m);
	free(m->list);
	m->list = NULL;
}

size_t messages_size(const struct messages *m)
{
	size_t size = 0;

	for (size_t i = 0; i < m->n; i++)
		size += m->list[i].len + 16; /* head and padding */
	return size;
}

/* The role's number, or -1. */
static int parse_role(const char *name)
{
	static const char *const names[] = {"system", "user", "assistant"};

	for (int i = 0; i < 3; i++)
		if (name && strcmp(name, names[i]) == 0)
			return i;
	return -1;
}

static int add_json_message(
	const struct cli *cli, const char *path, size_t i, const json_t *item, struct messages *m)
{
	const json_t *content = json_object_get(item, "content");
	int role = parse_role(json_string_value(json_object_get(item, "role")));

	if (role < 0)
		return cli_usage(cli,
			"--messages %s: message %zu: \"role\" must be system, user or assistant",
			path, i);
	if (!json_is_string(content))
		return cli_usage(
			cli, "--messages %s: message %zu: \"content\" must be a string", path, i);
	if (json_object_size(item) != 2)
		return cli_usage(cli,
			"--messages %s: message %zu: only \"role\" and \"content\" are known", path,
			i);
	if (messages_add(
		    m, (uint32_t)role, json_string_value(content), json_string_length(content)) < 0)
		return cli_failed(cli, "out of memory");
	return 0;
}

int cli_load_messages(const struct cli *cli, const char *path, struct messages *m)
{
	json_error_t error;
	char *text = NULL;
	size_t len = 0;
	int ret = read_file(path, &text, &len);

	if (ret < 0)
		return cli_usage(cli, "--messages %s: %s", path, strerror(-ret));
	json_t *list = json_loadb(text, len, JSON_ALLOW_NUL, &error);
	free(text);
	if (!list)
		return cli_usage(cli, "--messages %s:%d: %s", path, error.line, error.text);
	if (!json_is_array(list))
		ret = cli_usage(cli, "--messages %s: not a JSON list", path);
	for (size_t i = 0; ret == 0 && i < json_array_size(list); i++)
		ret = add_json_message(cli, path, i, json_array_get(list, i), m);
	json_decref(list);
	return ret;
}
