/* nanoserve models: the model files of a folder, the cache's where none is named. */
#include "client/cli/cli.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FOLDER_LEN 4096

/* Where tests/tools/fetch-model.sh puts them. */
static void default_folder(char *out, size_t len)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

	if (cache && *cache)
		snprintf(out, len, "%s/nanoserve/models", cache);
	else
		snprintf(out, len, "%s/.cache/nanoserve/models", home ? home : "");
}

static int is_model(const struct dirent *entry)
{
	return fnmatch("*.gguf", entry->d_name, 0) == 0;
}

/* One file's line, or its object in `list`. */
static int show(const struct cli *cli, const char *path, json_t *list)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return cli_failed(cli, "%s: %s", path, strerror(errno));
	if (list) {
		json_array_append_new(list, json_pack("{s:o, s:I}", "path",
						    json_text(path, strlen(path)), "bytes",
						    (json_int_t)st.st_size));
		return 0;
	}
	printf("%8.1f MiB  ", (double)st.st_size / (1 << 20));
	output_text(path, strlen(path));
	putchar('\n');
	return 0;
}

static int list_folder(const struct cli *cli, const char *folder, bool is_cache, bool json)
{
	struct dirent **entries;
	int n = scandir(folder, &entries, is_model, alphasort), ret = 0;
	char path[FOLDER_LEN + sizeof(entries[0]->d_name) + 1];

	/* A cache that was never filled is an empty one. */
	if (n < 0 && !(is_cache && errno == ENOENT))
		return cli_failed(cli, "%s: %s", folder, strerror(errno));
	json_t *list = json ? json_array() : NULL;
	output_init();
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
		if (show(cli, path, list) != 0)
			ret = EXIT_FAILED;
		free(entries[i]);
	}
	if (n >= 0)
		free(entries);
	if (n <= 0)
		fprintf(stderr, "no model files in %s\n", folder);
	int printed = json ? output_json(cli, list) : EXIT_DONE;
	return ret ? ret : printed;
}

int cmd_models(const struct cli *cli, int argc, char **argv)
{
	char folder[FOLDER_LEN];
	bool json;
	int code;

	if (!cli_only_json(cli, argc, argv, &json, &code))
		return code;
	if (argc - optind > 1)
		return cli_usage(cli, "takes one folder at most: %s", argv[optind + 1]);
	default_folder(folder, sizeof(folder));
	bool is_named = optind < argc;
	return list_folder(cli, is_named ? argv[optind] : folder, !is_named, json);
}
