/* nanoserve: the command line. A table of commands. */
#include "client/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct command {
	const char *name;
	int (*run)(const struct cli *cli, int argc, char **argv);
	const char *summary;
	const char *help;
};

static const struct command commands[] = {
	{"generate", cmd_generate, "answer one prompt",
		"usage: nanoserve [--socket PATH] generate [OPTION]... PROMPT|-\n\n"
		"Answers PROMPT (- reads it from standard input). The model's chat template is "
		"applied.\n\n"
		"      --raw             continue the text as it stands, without a template\n"
		"      --special         control tokens may be written in the text\n"
		"      --ids             the prompt is a JSON list of token ids\n"
		"      --messages FILE   a JSON list of {\"role\", \"content\"} goes before "
		"PROMPT,\n"
		"                        which may then be left out\n"
		"      --system TEXT     a system message goes first\n" SAMPLING_HELP
		"      --n N             N answers, each with its own random numbers [1]\n"
		"      --branch B        number of the first answer [0]: --branch 3 alone "
		"gives the\n"
		"                        fourth answer of --n 4 with the same seed\n"
		"      --logprobs K      log-probabilities of each token and K others (with "
		"--json)\n"
		"      --prompt-logprobs the same for the prompt's tokens (with --json)\n"
		"      --json            print one JSON object at the end\n"
		"      --stats           tokens/s and time to the first token on standard error\n"},
	{"chat", cmd_chat, "talk with the model",
		"usage: nanoserve [--socket PATH] chat [OPTION]...\n\n"
		"Ctrl-C stops an answer, Ctrl-D quits; /reset forgets all turns, /help lists "
		"commands.\n\n"
		"      --system TEXT     a system message goes first\n" SAMPLING_HELP},
	{"tokenize", cmd_tokenize, "show a text's token ids",
		"usage: nanoserve [--socket PATH] tokenize [OPTION]... TEXT|-\n\n"
		"      --special         control tokens may be written in the text\n"
		"      --no-bos          no begin token\n"
		"      --json            print a JSON list\n"},
	{"status", cmd_status, "show what the daemon serves and does",
		"usage: nanoserve [--socket PATH] status [--json]\n\n"
		"      --json            the daemon's own JSON text\n"},
	{"top", cmd_top, "show the status, refreshed",
		"usage: nanoserve [--socket PATH] top [OPTION]...\n\n"
		"The status, refreshed, and how fast the counters grow. Ctrl-C quits.\n\n"
		"  -d, --delay SECONDS   between two rounds [1]\n"
		"  -n, --rounds N        end after N rounds [0: never]\n"},
	{"drain", cmd_drain, "end the daemon after its last request",
		"usage: nanoserve [--socket PATH] drain [OPTION]...\n\n"
		"The daemon takes no new requests, and exits when the running ones have ended.\n"
		"Root, the daemon's own user and members of its group may ask for it.\n\n"
		"  -w, --wait             return when it has exited\n"
		"  -t, --timeout SECONDS  the same, but fail after that long; it goes on draining\n"
		"      --cancel           stop draining, serve again\n"},
	{"models", cmd_models, "list model files",
		"usage: nanoserve models [--json] [FOLDER]\n\n"
		"The model files (*.gguf) of FOLDER [the cache: ~/.cache/nanoserve/models].\n\n"
		"      --json            a list of {\"path\", \"bytes\"}\n"},
};

#define N_COMMAND (sizeof(commands) / sizeof(commands[0]))

static void print_help(FILE *out)
{
	fprintf(out, "usage: nanoserve [--socket PATH] COMMAND [OPTION]... [ARGUMENT]\n\n");
	for (size_t i = 0; i < N_COMMAND; i++)
		fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
	fprintf(out, "\n  --socket PATH  the daemon's socket [$NANOSERVE_SOCKET, "
		     "else " NSV_CLIENT_DEFAULT_SOCKET "]\n"
		     "  --version      print the version\n"
		     "  --help         this; after a command: its options\n\n"
		     "Exit codes: 0 done, 1 the request failed, 2 wrong usage, 3 no daemon.\n");
}

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < N_COMMAND; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static int wrong_usage(const char *what, const char *which)
{
	fprintf(stderr, "nanoserve: %s%s\n", what, which);
	print_help(stderr);
	return EXIT_USAGE;
}

/* Runs the command at argv[0]. */
static int run_command(const char *socket, int argc, char **argv)
{
	const struct command *command = find_command(argv[0]);

	if (!command)
		return wrong_usage("no such command: ", argv[0]);
	const struct cli cli = {
		.socket = socket, .command = command->name, .help = command->help};
	char name[32]; /* what getopt_long's messages begin with */

	snprintf(name, sizeof(name), "nanoserve %s", command->name);
	argv[0] = name;
	return command->run(&cli, argc, argv);
}

/* Line editing and the terminal speak UTF-8, whatever the environment forgot to say; numbers stay
 * in C's spelling. */
static void set_encoding(void)
{
	setlocale(LC_CTYPE, "");
	if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
		setlocale(LC_CTYPE, "C.UTF-8");
}

/* A standard descriptor that came closed would be given to the session's socket, and text would go
 * there. /dev/null takes its place, opened the wrong way round so that using it still fails. */
static int keep_standard_descriptors(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 &&
			open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
			return -EBADF;
	return 0;
}

/* Output that did not arrive is a failure, also where nobody looked at each write. */
static int close_output(int code)
{
	bool lost = ferror(stdout) != 0;

	errno = 0;
	lost |= fclose(stdout) == EOF;
	if (!lost || code != EXIT_DONE)
		return code;
	fprintf(stderr, "nanoserve: standard output: %s\n",
		errno ? strerror(errno) : "write error");
	return EXIT_FAILED;
}

/* The program's own options, then the command. */
static int run(int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'},
		{"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	const char *socket = NULL;
	int option;

	/* "+": stop at the command, whose options are its own */
	while ((option = getopt_long(argc, argv, "+h", options, NULL)) != -1) {
		switch (option) {
		case 's':
			if (!*optarg)
				return wrong_usage("--socket: the path is empty", "");
			socket = optarg;
			break;
		case 'V':
			printf("nanoserve %s\n", nsv_client_version());
			return EXIT_DONE;
		case 'h':
			print_help(stdout);
			return EXIT_DONE;
		default:
			return EXIT_USAGE;
		}
	}
	if (optind == argc)
		return wrong_usage("a command is missing", "");
	int first = optind;
	optind = 0; /* glibc: begin anew with the command's vector */
	return run_command(socket, argc - first, argv + first);
}

int main(int argc, char **argv)
{
	if (keep_standard_descriptors() < 0)
		return EXIT_FAILED;
	set_encoding();
	return close_output(run(argc, argv));
}
