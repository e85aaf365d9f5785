/* Options and configuration file, both by one table of keys. */
#include "daemon/config.h"

#include <getopt.h>
#include <jansson.h>
#include <stddef.h>
#include <string.h>

#include "daemon/file.h"
#include "daemon/sched.h"
#include "kernels/team.h"
#include "shm/version.h"

#define MAX_FILE_LEN (1u << 20)

#define OPTION_LEN 32 /* "--" and the longest key */
#define NO_KV_BLOCKS UINT32_MAX /* nothing is said of them: more than may be asked for */

/* KEY_USERS and KEY_GROUPS: names or numbers; a list in the file, commas on the command line.
 * KEY_SIZE: as "4GiB" */
enum key_type { KEY_STR, KEY_U32, KEY_BOOL, KEY_USERS, KEY_GROUPS, KEY_SIZE };

struct key {
	const char *name; /* in the file; the option is the same with '-' for '_' */
	enum key_type type;
	size_t off;
	uint32_t min, max;
};

#define KEY(member, type, min, max) {#member, type, offsetof(struct nsv_config, member), min, max}
#define IDS(member, type) {#member, type, offsetof(struct nsv_config, policy.member), 0, 0}
#define LIMIT(member, min, max) \
	{#member, KEY_U32, offsetof(struct nsv_config, limits.member), min, max}

static const struct key keys[] = {
	KEY(model, KEY_STR, 0, 0),
	KEY(socket, KEY_STR, 0, 0),
	KEY(backend, KEY_STR, 0, 0),
	KEY(kv_dtype, KEY_STR, 0, 0),
	KEY(kv_blocks, KEY_U32, 0, 1u << 30),
	KEY(kv_memory, KEY_SIZE, 0, 0),
	KEY(swap_blocks, KEY_U32, 0, 1u << 30),
	KEY(threads, KEY_U32, 0, 1024),
	KEY(batch_tokens, KEY_U32, 1, 65536),
	KEY(mixed_tokens, KEY_U32, 1, 65536),
	KEY(max_requests, KEY_U32, 1, NSV_CONFIG_MAX_REQUESTS),
	KEY(run_ahead, KEY_U32, 1, 4),
	KEY(spin_us, KEY_U32, 0, 10000),
	KEY(verbose, KEY_BOOL, 0, 0),
	KEY(no_prefix_cache, KEY_BOOL, 0, 0),
	KEY(share_prefixes, KEY_BOOL, 0, 0),
	KEY(no_numa, KEY_BOOL, 0, 0),
	IDS(users, KEY_USERS),
	IDS(groups, KEY_GROUPS),
};

static const struct key limit_keys[] = {
	LIMIT(sessions, 1, 1u << 20),
	LIMIT(requests, 1, 1u << 20),
	LIMIT(descriptors, 3, 1u << 20),
	LIMIT(memory_mib, 1, 1u << 24),
	LIMIT(prompt_bytes, 1, 64u << 20),
	LIMIT(session_slots, 1, 1024),
	LIMIT(hello_ms, 1, 600000),
};

static const char usage[] =
	"Usage: nanoserved --model FILE [--socket PATH] [options]\n"
	"Serves a language model to local processes through shared memory.\n"
	"\n"
	"  --model FILE        the model, GGUF\n"
	"  --socket PATH       listen here; without it the service manager's socket is taken\n"
	"  --backend NAME      auto, cpu, model or reference [auto, or $NANOSERVE_BACKEND]\n"
	"  --kv-dtype NAME     how K and V are stored: f16, f32 or auto [auto: f16 with cpu, f32\n"
	"                      with model and reference]\n"
	"  --kv-blocks N       blocks of the KV pool, 16 tokens each [from free memory]\n"
	"  --kv-memory SIZE    the size of the KV pool instead, such as 512MiB or 4GiB\n"
	"  --swap-blocks N     blocks beside the pool for requests that give way when it is full;\n"
	"                      without room there they are computed again [0]\n"
	"  --threads N         threads that compute [one for each CPU, fewer while other programs\n"
	"                      keep those CPUs busy]\n"
	"  --batch-tokens N    at most N tokens in a step [512]\n"
	"  --mixed-tokens N    at most N of them for prompts while streams run [32]: fewer make\n"
	"                      pauses in streams shorter and answers to long prompts later\n"
	"  --max-requests N    requests at once, all users together [256]\n"
	"  --run-ahead N       plan up to N steps ahead of the tokens that are known [1]\n"
	"  --spin-us N         how long to look for work before sleeping [20, on one CPU 0]\n"
	"  --no-prefix-cache   compute every prompt from its first token\n"
	"  --share-prefixes    one prefix cache for all users: anyone who measures the time to\n"
	"                      a first token can learn what others have asked\n"
	"  --no-numa           ignore which memory is near which CPU on a machine of several\n"
	"                      nodes\n"
	"  --users NAME[,NAME]...   only these users (names or ids) and the members\n"
	"  --groups NAME[,NAME]...  of these groups may connect, besides root and the daemon's\n"
	"                      own user [everybody who can open the socket]\n"
	"  --config FILE       JSON: {\"model\": ..., \"limits\": {\"sessions\": ...}, ...}\n"
	"  --verbose           log every session and every refused request\n"
	"  --help, --version\n";

static int set_str(struct nsv_config *c, const struct key *k, const char *value)
{
	char **p = (char **)((char *)c + k->off);
	char *copy = strdup(value);

	if (!copy)
		return -ENOMEM;
	free(*p);
	*p = copy;
	return 0;
}

/* `name` is how the user spelled the key. */
static int set_u32(struct nsv_config *c, const struct key *k, const char *name, long long value,
	struct nsv_err *err)
{
	if (value < (long long)k->min || value > (long long)k->max)
		return nsv_fail(err, -EINVAL, "%s is %lld: %u to %u is allowed", name, value,
			k->min, k->max);
	*(uint32_t *)((char *)c + k->off) = (uint32_t)value;
	return 0;
}

static int add_id(
	struct nsv_members *ids, const struct key *k, const char *text, struct nsv_err *err)
{
	return k->type == KEY_USERS ? nsv_members_add_user(ids, text, err)
				    : nsv_members_add_group(ids, text, err);
}

/* The list that a key names, emptied for what is to come. */
static struct nsv_members *begin_ids(struct nsv_config *c, const struct key *k)
{
	struct nsv_members *ids = (struct nsv_members *)((char *)c + k->off);

	nsv_members_deinit(ids);
	ids->given = true;
	return ids;
}

static int set_ids_json(
	struct nsv_config *c, const struct key *k, const json_t *list, struct nsv_err *err)
{
	struct nsv_members *ids = begin_ids(c, k);
	int ret = 0;

	for (size_t i = 0; ret == 0 && i < json_array_size(list); i++) {
		const json_t *item = json_array_get(list, i);
		char number[24];
		snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(item));
		if (json_is_string(item) || json_is_integer(item))
			ret = add_id(ids, k,
				json_is_string(item) ? json_string_value(item) : number, err);
		else
			ret = nsv_fail(err, -EINVAL, "%s: item %zu is neither a name nor a number",
				k->name, i);
	}
	return ret;
}

static int set_ids_text(
	struct nsv_config *c, const struct key *k, const char *text, struct nsv_err *err)
{
	struct nsv_members *ids = begin_ids(c, k);
	nsv_autofree char *copy = strdup(text);
	char *rest = copy, *name;
	int ret = copy ? 0 : -ENOMEM;

	while (ret == 0 && (name = strsep(&rest, ",")))
		ret = add_id(ids, k, name, err);
	return ret;
}

/* "512MiB", "4GiB": to bytes. Plain digits would leave the unit to be guessed. */
static int set_size(struct nsv_config *c, const struct key *k, const char *name, const char *text,
	struct nsv_err *err)
{
	char *end;

	errno = 0;
	unsigned long long n = strtoull(text, &end, 10);
	int shift = strcmp(end, "MiB") == 0 ? 20 : strcmp(end, "GiB") == 0 ? 30 : 0;
	if (errno || !shift || text[0] < '0' || text[0] > '9' || n == 0 || n >> (63 - shift))
		return nsv_fail(err, -EINVAL,
			"%s is \"%.64s\": a size such as 512MiB or 4GiB is expected", name, text);
	*(uint64_t *)((char *)c + k->off) = (uint64_t)n << shift;
	return 0;
}

static int set_json(
	struct nsv_config *c, const struct key *k, const json_t *value, struct nsv_err *err)
{
	static const char *const wants[] = {"a string", "an integer", "true or false",
		"a list of names or numbers", "a list of names or numbers", "a size as \"4GiB\""};

	if (k->type == KEY_STR && json_is_string(value))
		return set_str(c, k, json_string_value(value));
	if (k->type == KEY_SIZE && json_is_string(value))
		return set_size(c, k, k->name, json_string_value(value), err);
	if (k->type == KEY_U32 && json_is_integer(value))
		return set_u32(c, k, k->name, json_integer_value(value), err);
	if (k->type == KEY_BOOL && json_is_boolean(value)) {
		*(bool *)((char *)c + k->off) = json_is_true(value);
		return 0;
	}
	if ((k->type == KEY_USERS || k->type == KEY_GROUPS) && json_is_array(value))
		return set_ids_json(c, k, value, err);
	return nsv_fail(err, -EINVAL, "%s must be %s", k->name, wants[k->type]);
}

static const struct key *find_key(const struct key *table, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(table[i].name, name) == 0)
			return &table[i];
	return NULL;
}

static int set_object(struct nsv_config *c, json_t *object, const struct key *table, size_t n,
	struct nsv_err *err)
{
	const char *name;
	json_t *value;

	json_object_foreach(object, name, value)
	{
		const struct key *k = find_key(table, n, name);
		int ret;

		if (k)
			ret = set_json(c, k, value, err);
		else if (table == keys && strcmp(name, "limits") == 0)
			ret = json_is_object(value)
				      ? set_object(c, value, limit_keys,
						NSV_ARRAY_LEN(limit_keys), err)
				      : nsv_fail(err, -EINVAL, "limits must be an object");
		else
			ret = nsv_fail(err, -EINVAL, "unknown key \"%.64s\"", name);
		if (ret < 0)
			return ret;
	}
	return 0;
}

int nsv_config_parse(struct nsv_config *c, const char *text, size_t len, struct nsv_err *err)
{
	json_error_t e;
	json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);

	if (!root)
		return nsv_fail(err, -EINVAL, "line %d: %.160s", e.line, e.text);
	int ret = json_is_object(root)
			  ? set_object(c, root, keys, NSV_ARRAY_LEN(keys), err)
			  : nsv_fail(err, -EINVAL, "an object { ... } is expected");
	json_decref(root);
	return ret;
}

static int parse_file(struct nsv_config *c, const char *path, struct nsv_err *err)
{
	char *text = malloc(MAX_FILE_LEN);
	struct nsv_err why = {"out of memory"};
	size_t len = 0;
	int ret = text ? nsv_file_read(path, text, MAX_FILE_LEN, &len) : -ENOMEM;

	if (ret < 0)
		nsv_fail(err, ret, "config %s: %s", path, strerror(-ret));
	else if ((ret = nsv_config_parse(c, text, len, &why)) < 0)
		nsv_fail(err, ret, "config %s: %s", path, why.text);
	free(text);
	return ret;
}

/* "--kv-blocks" of kv_blocks. */
static void spell_option(const struct key *k, char name[OPTION_LEN])
{
	snprintf(name, OPTION_LEN, "--%s", k->name);
	for (char *p = name; *p; p++)
		if (*p == '_')
			*p = '-';
}

static int set_option(struct nsv_config *c, const struct key *k, const char *text,
	struct nsv_err *err)
{
	char name[OPTION_LEN], *end;

	if (k->type == KEY_STR)
		return set_str(c, k, text);
	if (k->type == KEY_BOOL) {
		*(bool *)((char *)c + k->off) = true;
		return 0;
	}
	if (k->type == KEY_USERS || k->type == KEY_GROUPS)
		return set_ids_text(c, k, text, err);
	spell_option(k, name);
	if (k->type == KEY_SIZE)
		return set_size(c, k, name, text, err);
	errno = 0;
	long long value = strtoll(text, &end, 10);
	if (errno || end == text || *end)
		return nsv_fail(err, -EINVAL, "%s is \"%s\": a number is expected", name, text);
	return set_u32(c, k, name, value, err);
}

enum { OPT_HELP = 1000, OPT_VERSION, OPT_CONFIG };

static void make_options(struct option *options, char names[][OPTION_LEN])
{
	size_t n = 0;

	for (; n < NSV_ARRAY_LEN(keys); n++) {
		spell_option(&keys[n], names[n]);
		int has_arg = keys[n].type == KEY_BOOL ? no_argument : required_argument;
		options[n] = (struct option){names[n] + 2, has_arg, NULL, (int)n};
	}
	options[n++] = (struct option){"help", no_argument, NULL, OPT_HELP};
	options[n++] = (struct option){"version", no_argument, NULL, OPT_VERSION};
	options[n++] = (struct option){"config", required_argument, NULL, OPT_CONFIG};
	options[n] = (struct option){0};
}

/* One pass over the command line: first for --config alone, then for the rest, which wins. */
static int parse_options(
	struct nsv_config *c, int argc, char **argv, bool want_config, struct nsv_err *err)
{
	struct option options[NSV_ARRAY_LEN(keys) + 4];
	char names[NSV_ARRAY_LEN(keys)][OPTION_LEN];
	int opt, ret = 0;

	make_options(options, names);
	optind = 0;
	opterr = 0;
	while (ret == 0 && (opt = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (opt == '?')
			return nsv_fail(err, -EINVAL,
				"unknown option or missing value: %s (see --help)",
				argv[optind - 1]);
		if (opt == OPT_HELP || opt == OPT_VERSION) {
			fputs(opt == OPT_HELP ? usage : "nanoserved " NSV_VERSION "\n", stdout);
			return NSV_CONFIG_EXIT;
		}
		if (opt == OPT_CONFIG)
			ret = want_config ? parse_file(c, optarg, err) : 0;
		else if (!want_config)
			ret = set_option(c, &keys[opt], optarg, err);
	}
	if (ret == 0 && optind < argc)
		return nsv_fail(err, -EINVAL, "unexpected argument: %s", argv[optind]);
	return ret;
}

static int check_pool(const struct nsv_config *c, struct nsv_err *err)
{
	if (!c->kv_blocks || !c->kv_memory)
		return 0;
	return nsv_fail(err, -EINVAL, "kv_blocks and kv_memory both say how large the KV pool is: "
				      "one of them is enough");
}

/* The command line over what the file said: of how large the pool is, one word there, be it that the
 * daemon shall choose, is over either here. */
static int apply_options(struct nsv_config *c, int argc, char **argv, struct nsv_err *err)
{
	const uint32_t kv_blocks = c->kv_blocks;
	const uint64_t kv_memory = c->kv_memory;
	int ret = check_pool(c, err);

	c->kv_blocks = NO_KV_BLOCKS;
	c->kv_memory = 0;
	if (ret == 0)
		ret = parse_options(c, argc, argv, false, err);
	bool is_said = c->kv_blocks != NO_KV_BLOCKS || c->kv_memory;
	if (c->kv_blocks == NO_KV_BLOCKS)
		c->kv_blocks = is_said ? 0 : kv_blocks;
	if (!is_said)
		c->kv_memory = kv_memory;
	return ret == 0 ? check_pool(c, err) : ret;
}

int nsv_config_init(struct nsv_config *c, int argc, char **argv, struct nsv_err *err)
{
	*c = (struct nsv_config){
		.batch_tokens = 512,
		.mixed_tokens = NSV_SCHED_MIXED_TOKENS,
		.max_requests = 256,
		.run_ahead = 1,
		.spin_us = nsv_team_cpus() > 1 ? 20 : 0,
		.limits = {.sessions = 4096,
			.descriptors = 16384,
			.memory_mib = 2048,
			.prompt_bytes = 4u << 20,
			.session_slots = 256,
			.hello_ms = 5000},
	};
	int ret = parse_options(c, argc, argv, true, err);

	if (ret == 0)
		ret = apply_options(c, argc, argv, err);
	if (ret == 0 && !c->model)
		ret = nsv_fail(err, -EINVAL, "no model is named: --model FILE (see --help)");
	if (c->limits.requests == 0)
		c->limits.requests = c->max_requests;
	if (ret != 0)
		nsv_config_deinit(c);
	return ret;
}

void nsv_config_deinit(struct nsv_config *c)
{
	free(c->model);
	free(c->socket);
	free(c->backend);
	free(c->kv_dtype);
	nsv_members_deinit(&c->policy.users);
	nsv_members_deinit(&c->policy.groups);
	*c = (struct nsv_config){0};
}
