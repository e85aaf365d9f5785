/* What the commands of `nanoserve` share. A command parses its own flags with getopt_long, opens a
 * session, and returns the program's exit code. */
#ifndef NSV_CLI_H
#define NSV_CLI_H

#include <nanoserve/client.h>

#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>

enum exit_code {
	EXIT_DONE = 0,
	EXIT_FAILED = 1, /* the request failed */
	EXIT_USAGE = 2,
	EXIT_NO_DAEMON = 3,
};

struct cli {
	const char *socket; /* NULL: the library's choice */
	const char *command;
	const char *help;
	int connect_timeout_ms; /* 0: the library's choice */
};

/* cli.c */

/* "nanoserve generate: ..." on stderr; returns EXIT_USAGE. */
__attribute__((format(printf, 2, 3))) int cli_usage(const struct cli *cli, const char *fmt, ...);
/* Likewise for what is no mistake of the user's; returns EXIT_FAILED. */
__attribute__((format(printf, 2, 3))) int cli_failed(const struct cli *cli, const char *fmt, ...);
int cli_help(const struct cli *cli);
/* The options of a command that has --json alone. true: go on at optind; false: that was all, and
 * *ret_code is the exit code. */
bool cli_only_json(
	const struct cli *cli, int argc, char **argv, bool *ret_json, int *ret_code);
/* A session, or EXIT_NO_DAEMON / EXIT_FAILED with the reason on stderr. `need` bytes of prompt will
 * be sent, n_slot requests be under way at once. */
int cli_open(
	const struct cli *cli, size_t need, uint32_t n_slot, struct nsv_client **ret_client);
/* Likewise; the reason goes to text. */
int cli_try_open(const struct cli *cli, size_t need, uint32_t n_slot, char *text, size_t text_len,
	struct nsv_client **ret_client);
/* The outcome of a request whose output ended with `ret`: EXIT_DONE, or EXIT_FAILED with the reason
 * on stderr. */
int cli_finish(const struct cli *cli, const struct nsv_client *client,
	const struct nsv_request *request, int ret, struct nsv_client_result *ret_result);

/* Of CLOCK_MONOTONIC. */
double cli_now_s(void);

/* input.c */

/* The one positional argument, or standard input where it is "-". The text is the caller's to free.
 * 0, or an exit code with the reason on stderr. */
int cli_read_text(const struct cli *cli, int argc, char **argv, char **ret_text, size_t *ret_len);
/* A JSON list of ids. Free the result. 0 or an exit code. */
int cli_parse_ids(
	const struct cli *cli, const char *text, size_t len, int32_t **ret_ids, size_t *ret_n);

struct messages {
	struct nsv_client_message *list;
	size_t n;
};

/* Copies the text. 0 or -ENOMEM. */
int messages_add(struct messages *m, uint32_t role, const char *text, size_t len);
void messages_drop_last(struct messages *m);
void messages_deinit(struct messages *m);
size_t messages_size(const struct messages *m);
/* Adds a file's JSON list of {"role", "content"}. 0 or an exit code. */
int cli_load_messages(const struct cli *cli, const char *path, struct messages *m);

/* sampling.c */

/* Values of the long options below. */
enum {
	SAMPLING_TEMPERATURE = 0x1000,
	SAMPLING_TOP_K,
	SAMPLING_TOP_P,
	SAMPLING_MIN_P,
	SAMPLING_SEED,
	SAMPLING_STOP,
	SAMPLING_TYPICAL_P,
	SAMPLING_REPETITION_PENALTY,
	SAMPLING_PRESENCE_PENALTY,
	SAMPLING_FREQUENCY_PENALTY,
	SAMPLING_PENALTY_WINDOW,
	SAMPLING_MIN_TOKENS,
	SAMPLING_IGNORE_END,
	SAMPLING_LOGIT_BIAS,
	SAMPLING_ALLOW,
	SAMPLING_BAN,
	SAMPLING_STOP_ID,
	SAMPLING_PRIORITY,
};

#define SAMPLING_OPTIONS                                                                           \
	{"max-tokens", required_argument, NULL, 'n'},                                              \
		{"temperature", required_argument, NULL, SAMPLING_TEMPERATURE},                    \
		{"top-k", required_argument, NULL, SAMPLING_TOP_K},                                \
		{"top-p", required_argument, NULL, SAMPLING_TOP_P},                                \
		{"min-p", required_argument, NULL, SAMPLING_MIN_P},                                \
		{"seed", required_argument, NULL, SAMPLING_SEED},                                  \
		{"stop", required_argument, NULL, SAMPLING_STOP},                                  \
		{"typical-p", required_argument, NULL, SAMPLING_TYPICAL_P},                        \
		{"repetition-penalty", required_argument, NULL, SAMPLING_REPETITION_PENALTY},      \
		{"presence-penalty", required_argument, NULL, SAMPLING_PRESENCE_PENALTY},          \
		{"frequency-penalty", required_argument, NULL, SAMPLING_FREQUENCY_PENALTY},        \
		{"penalty-window", required_argument, NULL, SAMPLING_PENALTY_WINDOW},              \
		{"min-tokens", required_argument, NULL, SAMPLING_MIN_TOKENS},                      \
		{"ignore-end", no_argument, NULL, SAMPLING_IGNORE_END},                            \
		{"logit-bias", required_argument, NULL, SAMPLING_LOGIT_BIAS},                      \
		{"allow", required_argument, NULL, SAMPLING_ALLOW},                                \
		{"ban", required_argument, NULL, SAMPLING_BAN},                                    \
		{"priority", required_argument, NULL, SAMPLING_PRIORITY},                          \
	{                                                                                          \
		"stop-id", required_argument, NULL, SAMPLING_STOP_ID                               \
	}

#define SAMPLING_HELP                                                                              \
	"  -n, --max-tokens N    stop after N tokens [the context's end]\n"                        \
	"      --temperature T   0: always the likeliest token [0]\n"                              \
	"      --top-k K         sample from the K likeliest tokens only [0: all]\n"               \
	"      --top-p P         from the fewest likeliest ones that add up to P [1]\n"            \
	"      --min-p P         from those at least P times as likely as the likeliest [0]\n"     \
	"      --typical-p P     from those nearest to the entropy that add up to P [1]\n"         \
	"      --seed S          seed of the random numbers [drawn by the daemon]\n"               \
	"      --stop S          end before this text; may be repeated\n"                          \
	"      --repetition-penalty R  divide logits of ids in prompt and answer by R [1]\n"       \
	"      --presence-penalty X    subtract X from logits of ids in the answer [0]\n"          \
	"      --frequency-penalty X   the same, once for each time an id occurs [0]\n"            \
	"      --penalty-window N      the three look at the last N tokens [0: all]\n"             \
	"      --min-tokens N    no end before N tokens [0]\n"                                     \
	"      --ignore-end      end tokens are tokens like any other\n"                           \
	"      --logit-bias ID=X[,ID=X]...  add X to the logit of ID\n"                            \
	"      --allow ID[,ID]...      generate these ids only\n"                                  \
	"      --ban ID[,ID]...        never generate these ids\n"                                 \
	"      --stop-id ID[,ID]...    end at any of these ids\n"                                  \
	"      --priority P      -100 to 100: higher goes first, among your own requests [0]\n"

#define SAMPLING_MAX_LIST 1024 /* as many as the daemon takes */

struct sampling {
	struct nsv_client_params params;
	const char *stops[64];
	int32_t stop_ids[SAMPLING_MAX_LIST], allow[SAMPLING_MAX_LIST], ban[SAMPLING_MAX_LIST];
	struct nsv_client_bias biases[SAMPLING_MAX_LIST];
};

void sampling_init(struct sampling *s);
/* One option of SAMPLING_OPTIONS; s stays where sampling_init saw it. 0 or EXIT_USAGE: not a
 * number. Ranges are the daemon's matter. */
int sampling_option(const struct cli *cli, struct sampling *s, int option, const char *value);
/* The daemon's sentence on stderr, with parameters spelled as the options that set them ("--top-k"
 * of "top_k"); returns EXIT_FAILED. */
int sampling_refused(const struct cli *cli, const char *sentence);
/* A whole number for a 32-bit field. 0 or EXIT_USAGE. */
int cli_parse_u32(const struct cli *cli, const char *name, const char *text, uint32_t *ret);

/* output.c */

/* Model text to stdout: as it is, or with control characters escaped where a person looks. 0, or
 * -errno: it does not get there. */
void output_init(void);
int output_text(const char *text, size_t len);
json_t *json_ids(const int32_t *ids, size_t n);
/* Text that may not be UTF-8 as a JSON string. */
json_t *json_text(const char *text, size_t len);
/* Prints and frees an object. 0 or EXIT_FAILED. */
int output_json(const struct cli *cli, json_t *object);

/* table.c */

/* A status of the daemon's, a line a field. before: an earlier one, so many seconds ago, to show
 * how fast counters grow; or NULL. */
void print_table(json_t *status, const json_t *before, double seconds);

/* Commands */
int cmd_generate(const struct cli *cli, int argc, char **argv);
int cmd_chat(const struct cli *cli, int argc, char **argv);
int cmd_tokenize(const struct cli *cli, int argc, char **argv);
int cmd_status(const struct cli *cli, int argc, char **argv);
int cmd_drain(const struct cli *cli, int argc, char **argv);
int cmd_top(const struct cli *cli, int argc, char **argv);
int cmd_models(const struct cli *cli, int argc, char **argv);

#endif
