/* The command line against a real daemon with a tiny model: each flag, exit code and JSON field,
 * what cannot be read or written, and chat at a terminal. */
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/proc.h"
#include "tests/tools/tiny.h"
#include "tests/tools/wait.h"

static struct nsv_test_daemon daemon_;
static char model[64];
static char out[1 << 20], err[65536];

static int start(void **state)
{
	(void)state;
	nsv_tiny_model(model, sizeof(model));
	return nsv_test_daemon_start(&daemon_, model, NULL);
}

static int tidy(void **state)
{
	(void)state;
	return nsv_test_daemon_tidy(&daemon_, model, NULL);
}

static int stop(void **state)
{
	(void)state;
	unlink(model);
	return nsv_test_daemon_stop(&daemon_, SIGTERM);
}

static int cli(const char *const *args, const char *input)
{
	const char *argv[64] = {nsv_test_program("nanoserve"), "--socket", daemon_.socket};

	for (int n = 3; *args && n < 63; n++)
		argv[n] = *args++;
	return nsv_test_run(argv, input, out, sizeof(out), err, sizeof(err));
}

#define CLI(input, ...) cli((const char *const[]){__VA_ARGS__, NULL}, input)

/* It ends with this code, and its complaint has this text. */
#define REFUSED(code, text, ...)                                                                   \
	do {                                                                                       \
		assert_int_equal(CLI(NULL, __VA_ARGS__), code);                                    \
		if (!strstr(err, text))                                                            \
			fail_msg("\"%s\" lacks \"%s\"", err, text);                                \
	} while (0)

/* What was printed, as JSON: the caller's to free. */
static json_t *printed(void)
{
	json_error_t error;
	json_t *o = json_loads(out, JSON_DECODE_ANY, &error);

	if (!o)
		fail_msg("%s: %s", error.text, out);
	return o;
}

/* A file with this text; the name is the caller's, at least 32 bytes. */
static void write_file(char *path, const char *text)
{
	strcpy(path, "/tmp/nanoserve-cli-XXXXXX");
	int fd = mkstemp(path);

	assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

/* ---- generate */

static void test_every_field_of_json(void **state)
{
	const char *text, *finish, *seed;
	json_t *prompt, *tokens, *logprobs;
	json_int_t n_prompt, n_cached, n_output;
	double queue, prefill, decode, first, speed;
	(void)state;

	assert_int_equal(CLI(NULL, "generate", "--raw", "-n", "3", "--json", "--logprobs", "5",
				 "--seed", "18446744073709551615", "--temperature", "0.5", "abc"),
		0);
	json_t *o = printed();
	assert_int_equal(
		json_unpack(o,
			"{s:o, s:o, s:s, s:s, s:s, s:{s:I, s:I, s:I !}, s:{s:F, s:F, s:F, s:F, s:F "
			"!}, s:o !}",
			"prompt_tokens", &prompt, "tokens", &tokens, "text", &text, "finish_reason",
			&finish, "seed", &seed, "usage", "prompt_tokens", &n_prompt,
			"cached_tokens", &n_cached, "completion_tokens", &n_output, "timing",
			"queue_ms", &queue, "prefill_ms", &prefill, "decode_ms", &decode,
			"first_token_ms", &first, "tokens_per_s", &speed, "logprobs", &logprobs),
		0);
	assert_string_equal(seed, "18446744073709551615");
	assert_true(n_prompt == (json_int_t)json_array_size(prompt) && n_prompt > 0);
	assert_true(n_output == (json_int_t)json_array_size(tokens) && n_cached < n_prompt);
	assert_int_equal(json_array_size(logprobs), n_output);
	for (size_t i = 0; i < json_array_size(logprobs); i++) {
		const json_t *step = json_array_get(logprobs, i);
		assert_int_equal(json_array_size(step), 6);
		assert_true(json_equal(
			json_array_get(json_array_get(step, 0), 0), json_array_get(tokens, i)));
		assert_true(json_real_value(json_array_get(json_array_get(step, 0), 1)) <= 0);
	}
	json_decref(o);
}

/* A list of answers, each with its number; one of them again alone. */
static void test_several_answers(void **state)
{
	(void)state;

#define SAMPLED                                                                                    \
	"generate", "--raw", "-n", "6", "--temperature", "1.5", "--seed", "7", "--priority", "5"
	assert_int_equal(CLI(NULL, SAMPLED, "--json", "--n", "3", "--prompt-logprobs", "abc"), 0);
	json_t *three = printed(), *list = json_object_get(three, "choices");
	assert_int_equal(json_array_size(list), 3);
	assert_int_equal(json_array_size(json_object_get(three, "prompt_logprobs")),
		json_array_size(json_object_get(three, "prompt_tokens")) - 1);
	assert_int_equal(
		CLI(NULL, SAMPLED, "--json", "--n", "1", "--branch", "2", "abc"), 0);
	json_t *one = printed();
	const json_t *third = json_array_get(list, 2);
	const json_t *again = json_array_get(json_object_get(one, "choices"), 0);
	assert_int_equal(json_integer_value(json_object_get(third, "index")), 2);
	assert_true(
		json_equal(json_object_get(third, "tokens"), json_object_get(again, "tokens")));
	assert_false(json_equal(json_object_get(third, "tokens"),
		json_object_get(json_array_get(list, 0), "tokens")));
	json_decref(three);
	json_decref(one);
	assert_int_equal(CLI(NULL, SAMPLED, "--n", "2", "abc"), 0);
	assert_true(strncmp(out, "[0]\n", 4) == 0 && strstr(out, "\n\n[1]\n"));
#undef SAMPLED
	REFUSED(2, "--n", "generate", "--n", "17", "x");
	REFUSED(2, "--n", "generate", "--n", "0", "x");
	REFUSED(2, "--json", "generate", "--prompt-logprobs", "x");
	REFUSED(1, "priority", "generate", "--priority", "101", "x");
}

static void test_sampling_flags(void **state)
{
	(void)state;

	assert_int_equal(
		CLI(NULL, "generate", "--raw", "--json", "-n", "4", "--temperature", "1.5",
			"--top-k", "40", "--top-p", "0.9", "--min-p", "0.01", "--seed", "010", "x"),
		0);
	json_t *a = printed();
	assert_string_equal(json_string_value(json_object_get(a, "seed")), "10"); /* not octal */
	assert_int_equal(CLI(NULL, "generate", "--raw", "--json", "--max-tokens", "4",
				 "--temperature", "1.5", "--top-k", "40", "--top-p", "0.9",
				 "--min-p", "0.01", "--seed", "10", "x"),
		0);
	json_t *b = printed();
	assert_true(json_equal(json_object_get(a, "tokens"), json_object_get(b, "tokens")));
	json_decref(a);
	json_decref(b);
	REFUSED(2, "out of range", "generate", "-n", "-1", "x");
	REFUSED(2, "--seed", "generate", "--seed", "-1", "x");
	REFUSED(2, "--seed", "generate", "--seed", "18446744073709551616", "x");
	REFUSED(2, "--seed", "generate", "--seed", "0x10", "x");
	REFUSED(2, "--temperature", "generate", "--temperature", "1,5", "x");
	REFUSED(2, "ID=X is wanted, not 5", "generate", "--logit-bias", "1=2,5", "x");
	REFUSED(1, ": --temperature is -1:", "generate", "--temperature", "-1", "x");
	REFUSED(1, ": --top-k is -1: it must be 0 or more", "generate", "--top-k", "-1", "x");
	REFUSED(1, "--top-p is 2: it must lie in (0, 1]", "generate", "--top-p", "2", "x");
	REFUSED(1, "--min-p", "generate", "--min-p", "-1", "x");
	REFUSED(1, "--min-tokens is 5, above --max-tokens, 4", "generate", "--min-tokens", "5",
		"-n", "4", "x");
	REFUSED(1, "--logprobs is 65: at most 64", "generate", "--json", "--logprobs", "65", "x");
	REFUSED(2, "--json", "generate", "--logprobs", "5", "x");
}

/* The text of a run ends before whichever stop string it has first. */
static void test_stop_strings(void **state)
{
	char stop[2] = "";
	(void)state;

	assert_int_equal(CLI(NULL, "generate", "--raw", "--json", "-n", "40", "stop here"), 0);
	json_t *o = printed();
	const char *text = json_string_value(json_object_get(o, "text"));
	for (size_t i = 1; text[i] && !*stop; i++)
		if ((unsigned char)text[i] > ' ' && (unsigned char)text[i] < 0x7f)
			stop[0] = text[i];
	if (!*stop) {
		json_decref(o);
		fail_msg("no ASCII in \"%s\"", out);
	}
	size_t before = (size_t)(strchr(text, *stop) - text);
	assert_int_equal(CLI(NULL, "generate", "--raw", "--json", "-n", "40", "--stop",
				 "never to be seen", "--stop", stop, "stop here"),
		0);
	json_t *cut = printed();
	assert_string_equal(json_string_value(json_object_get(cut, "finish_reason")), "stop");
	assert_string_equal(json_string_value(json_object_get(cut, "stop")), stop);
	assert_int_equal(json_string_length(json_object_get(cut, "text")), before);
	assert_memory_equal(json_string_value(json_object_get(cut, "text")), text, before);
	json_decref(cut);
	json_decref(o);
	REFUSED(1, "stop string", "generate", "--stop", "", "x");
}

static void test_prompts_of_every_kind(void **state)
{
	static const char chat[] = "[{\"role\": \"system\", \"content\": \"s\"},"
				   "{\"role\": \"user\", \"content\": \"\\u00fc \\ud83d\\ude42\"}]";
	char path[32];
	(void)state;

	write_file(path, chat);
	assert_int_equal(CLI(NULL, "generate", "-n", "2", "--json", "--messages", path), 0);
	json_t *from_file = printed();
	assert_int_equal(
		CLI("\u00fc \U0001f642", "generate", "-n", "2", "--json", "--system", "s", "-"), 0);
	json_t *from_flags = printed();
	assert_true(json_equal(json_object_get(from_file, "prompt_tokens"),
		json_object_get(from_flags, "prompt_tokens")));
	char *ids = json_dumps(json_object_get(from_file, "prompt_tokens"), JSON_COMPACT);
	assert_int_equal(CLI(ids, "generate", "-n", "2", "--json", "--ids", "-"), 0);
	json_t *from_ids = printed();
	assert_true(json_equal(
		json_object_get(from_file, "tokens"), json_object_get(from_ids, "tokens")));
	free(ids);
	json_decref(from_file);
	json_decref(from_flags);
	json_decref(from_ids);
	unlink(path);
	assert_int_equal(CLI(NULL, "generate", "-n", "1", ""), 0); /* the template is not empty */
	assert_int_equal(CLI(NULL, "generate", "-n", "1", "--stats", "x"), 0);
	assert_non_null(strstr(err, "tokens/s"));
	/* Where both go to one place they do not share a line. */
	char command[1024];
	snprintf(command, sizeof(command),
		"%s --socket %s generate -n 9 --ignore-end --stats x 2>&1",
		nsv_test_program("nanoserve"), daemon_.socket);
	const char *shell[] = {"/bin/sh", "-c", command, NULL};
	assert_int_equal(nsv_test_run(shell, NULL, out, sizeof(out), err, sizeof(err)), 0);
	assert_true(strstr(out, "\n9 tokens at") || strncmp(out, "9 tokens at", 11) == 0);
	REFUSED(1, "empty", "generate", "--raw", "");
	REFUSED(1, "empty", "generate", "--ids", "[]");
	REFUSED(1, "vocabulary", "generate", "--ids", "[1, 99999999]");
	REFUSED(2, "item 0", "generate", "--ids", "[\"a\"]");
	REFUSED(2, "not a JSON list", "generate", "--ids", "{\"a\": 1}");
	REFUSED(2, "exclude", "generate", "--raw", "--ids", "[1]");
	REFUSED(2, "template", "generate", "--raw", "--system", "s", "x");
	REFUSED(2, "--special", "generate", "--ids", "--special", "[1]");
	REFUSED(2, "missing", "generate");
	REFUSED(2, "quote", "generate", "two", "words");
}

static void test_messages_that_are_wrong(void **state)
{
	static const struct {
		const char *text, *complaint;
		int code;
	} wrong[] = {
		{"[{\"role\": \"user\", \"content\": \"x\"", ":1:", 2},
		{"{\"role\": \"user\"}", "not a JSON list", 2},
		{"[{\"role\": \"robot\", \"content\": \"x\"}]", "message 0: \"role\"", 2},
		{"[{\"role\": \"user\", \"content\": 5}]", "message 0: \"content\"", 2},
		{"[{\"role\": \"user\", \"content\": \"x\", \"name\": \"y\"}]", "only", 2},
		{"[]", "no messages", 1},
	};
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(wrong); i++) {
		char path[32];
		write_file(path, wrong[i].text);
		REFUSED(wrong[i].code, wrong[i].complaint, "generate", "--messages", path);
		unlink(path);
	}
	REFUSED(2, "/nonexistent: No such file", "generate", "--messages", "/nonexistent");
	REFUSED(2, "/tmp: Is a directory", "generate", "--messages", "/tmp");
}

/* ---- The other commands */

static void test_tokenize(void **state)
{
	(void)state;

	assert_int_equal(CLI(NULL, "tokenize", "--json", "--special", "<|im_end|>"), 0);
	assert_string_equal(out, "[2]\n");
	assert_int_equal(CLI(NULL, "tokenize", "--no-bos", "<|im_end|>"), 0);
	assert_non_null(strchr(out, ' ')); /* text, not the control token */
	assert_int_equal(CLI("", "tokenize", "--json", "-"), 0);
	assert_string_equal(out, "[]\n");
	REFUSED(1, "UTF-8 at byte 1", "tokenize", "a\xff");
	REFUSED(2, "missing", "tokenize");
}

/* 0: the line of this name ends like that. */
static int line_of(const char *name, const char *end)
{
	const char *at = strstr(out, name), *newline = at ? strchr(at, '\n') : NULL;

	return newline ? strncmp(newline + 1 - strlen(end), end, strlen(end)) : -1;
}

static int count(const char *text, const char *what)
{
	int n = 0;

	for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
		n++;
	return n;
}

static void test_status(void **state)
{
	(void)state;

	assert_int_equal(CLI(NULL, "status", "--json"), 0);
	json_t *o = printed();
	assert_string_equal(
		json_string_value(json_object_get(json_object_get(o, "model"), "name")), "tiny");
	json_decref(o);
	assert_int_equal(CLI(NULL, "status"), 0);
	assert_non_null(strstr(out, "model.name"));
	assert_int_equal(line_of("model.chat", " chatml\n"), 0);
	assert_int_equal(line_of("model.context", " 512\n"), 0);
	assert_int_equal(line_of("memory.weights", "iB\n"), 0);
	assert_int_equal(line_of("uptime ", " s\n"), 0);
	assert_non_null(strstr(out, "\n  id "));
	REFUSED(2, "no argument", "status", "now");
}

/* Three looks, the later ones with rates; what was computed in between shows. */
static void test_top(void **state)
{
	(void)state;

	assert_int_equal(CLI(NULL, "top", "--delay", "0", "-n", "3"), 0);
	assert_int_equal(count(out, "model.name"), 3);
	assert_int_equal(count(out, "counters.output_tokens"), 3);
	assert_true(count(out, "/s\n") >= 2 && count(out, "\033") == 0);
	REFUSED(2, "--rounds", "top", "-n", "x");
	REFUSED(2, "no argument", "top", "now");
}

static void test_models(void **state)
{
	char folder[] = "/tmp/nanoserve-models-XXXXXX", path[64];
	(void)state;

	assert_non_null(mkdtemp(folder));
	assert_int_equal(CLI(NULL, "models", folder), 0);
	assert_string_equal(out, "");
	assert_non_null(strstr(err, "no model files"));
	snprintf(path, sizeof(path), "%s/b.gguf", folder);
	assert_int_equal(symlink(model, path), 0);
	snprintf(path, sizeof(path), "%s/other.txt", folder);
	assert_int_equal(symlink(model, path), 0);
	assert_int_equal(CLI(NULL, "models", folder), 0);
	assert_int_equal(count(out, "\n"), 1);
	assert_non_null(strstr(out, "/b.gguf\n"));
	assert_int_equal(CLI(NULL, "models", "--json", folder), 0);
	json_t *o = printed();
	struct stat st;
	assert_int_equal(stat(model, &st), 0);
	assert_int_equal(json_array_size(o), 1);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(o, 0), "bytes")),
		st.st_size);
	json_decref(o);
	unlink(path);
	/* one that is gone hides no other */
	snprintf(path, sizeof(path), "%s/a.gguf", folder);
	assert_int_equal(symlink("nothing", path), 0);
	REFUSED(1, "/a.gguf: No such file", "models", folder);
	assert_non_null(strstr(out, "/b.gguf\n"));
	unlink(path);
	snprintf(path, sizeof(path), "%s/b.gguf", folder);
	unlink(path);
	rmdir(folder);
	REFUSED(1, "No such file", "models", folder);
	REFUSED(1, "Not a directory", "models", model);
	REFUSED(2, "one folder", "models", "a", "b");
}

static void test_help_and_usage(void **state)
{
	static const char *const commands[] = {
		"generate", "chat", "tokenize", "status", "top", "models"};
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(commands); i++) {
		assert_int_equal(CLI(NULL, commands[i], "--help"), 0);
		assert_non_null(strstr(out, commands[i]));
		assert_int_equal(CLI(NULL, commands[i], "--no-such-option"), 2);
	}
	assert_int_equal(CLI(NULL, "--help"), 0);
	assert_non_null(strstr(out, "Exit codes"));
	assert_int_equal(CLI(NULL, "--version"), 0);
	assert_non_null(strstr(out, "nanoserve "));
	REFUSED(2, "no such command: bottom", "bottom");
	REFUSED(2, "missing", "--");
	REFUSED(2, "empty", "--socket", "", "status");
	REFUSED(3, "/nonexistent", "--socket", "/nonexistent", "status");
}

static void test_the_environment_names_the_socket(void **state)
{
	const char *argv[] = {nsv_test_program("nanoserve"), "status", NULL};
	(void)state;

	setenv("NANOSERVE_SOCKET", daemon_.socket, 1);
	assert_int_equal(nsv_test_run(argv, NULL, out, sizeof(out), err, sizeof(err)), 0);
	setenv("NANOSERVE_SOCKET", "/nonexistent", 1);
	assert_int_equal(nsv_test_run(argv, NULL, out, sizeof(out), err, sizeof(err)), 3);
	assert_int_equal(CLI(NULL, "status"), 0); /* the flag wins */
	unsetenv("NANOSERVE_SOCKET");
}

/* ---- Descriptors that fail */

static int shell(const char *command)
{
	const char *argv[] = {"/bin/sh", "-c", command, nsv_test_program("nanoserve"), NULL};

	setenv("NANOSERVE_SOCKET", daemon_.socket, 1);
	int code = nsv_test_run(argv, NULL, out, sizeof(out), err, sizeof(err));
	unsetenv("NANOSERVE_SOCKET");
	return code;
}

static void test_lost_output_is_a_failure(void **state)
{
	static const char *const commands[] = {"\"$0\" generate -n 3 x",
		"\"$0\" generate --json -n 3 x", "\"$0\" tokenize x", "\"$0\" status",
		"\"$0\" status --json", "\"$0\" --help"};
	char line[128];
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(commands); i++) {
		snprintf(line, sizeof(line), "%s >/dev/full", commands[i]);
		assert_int_equal(shell(line), 1);
		assert_non_null(strstr(err, "standard output"));
		snprintf(line, sizeof(line), "%s >&-", commands[i]);
		assert_int_equal(shell(line), 1);
		assert_non_null(strstr(err, "standard output"));
	}
	assert_int_equal(shell("\"$0\" generate -n 300 x >/dev/full"), 1);
	assert_non_null(strstr(err, "generate: standard output: No space left on device"));
	assert_int_equal(shell("\"$0\" generate - <&-"), 1);
	assert_non_null(strstr(err, "standard input: Bad file descriptor"));
	assert_int_equal(shell("\"$0\" generate -n 3 x 2>&-"), 0);
}

/* ---- chat */

static void test_chat_from_a_pipe(void **state)
{
	(void)state;

	assert_int_equal(CLI("one\n\n/help\n/reset\ntwo", "chat", "-n", "3", "--system", "s"), 0);
	assert_non_null(strstr(out, "/reset forgets"));
	assert_string_equal(err, "");
	REFUSED(2, "no argument", "chat", "hello");
}

struct terminal {
	pid_t pid;
	int fd;
	size_t len; /* of `out` */
};

/* chat at a terminal of its own, in the C locale, which names no encoding. */
static void open_terminal(struct terminal *t, const char *n_token)
{
	const char *program = nsv_test_program("nanoserve");

	fflush(stdout);
	t->len = 0;
	t->pid = forkpty(&t->fd, NULL, NULL, NULL);
	assert_true(t->pid >= 0);
	if (t->pid == 0) {
		setenv("LC_ALL", "C", 1);
		setenv("TERM", "dumb", 1);
		execl(program, program, "--socket", daemon_.socket, "chat", "-n", n_token,
			(char *)NULL);
		_exit(127);
	}
}

/* Reads on, for `what` to come; false: the terminal's other side is gone. */
static bool read_terminal(struct terminal *t, const char *what)
{
	if (!nsv_wait_readable(t->fd))
		fail_msg("\"%s\" does not come; \"%s\" did", what, out);
	ssize_t n = read(t->fd, out + t->len, sizeof(out) - 1 - t->len);
	if (n <= 0)
		return false;
	t->len += (size_t)n;
	out[t->len] = '\0';
	return true;
}

/* Until this text has come; what came before it is forgotten. */
static void expect(struct terminal *t, const char *text)
{
	char *found;

	out[t->len] = '\0';
	while (!(found = strstr(out, text)))
		if (!read_terminal(t, text))
			fail_msg("\"%s\" ends without \"%s\"", out, text);
	found += strlen(text);
	t->len -= (size_t)(found - out);
	memmove(out, found, t->len + 1);
}

static void type(struct terminal *t, const char *keys)
{
	assert_int_equal(write(t->fd, keys, strlen(keys)), (ssize_t)strlen(keys));
}

/* Until the terminal has taken it, which throws away what is on its way: nothing may be. */
static void press_ctrl_c(struct terminal *t)
{
	char packet[64] = {0};

	assert_int_equal(ioctl(t->fd, TIOCPKT, &(int){1}), 0);
	type(t, "\x03");
	while (!(packet[0] & TIOCPKT_FLUSHREAD)) {
		assert_true(nsv_wait_readable(t->fd));
		assert_true(read(t->fd, packet, sizeof(packet)) > 0);
	}
	assert_int_equal(ioctl(t->fd, TIOCPKT, &(int){0}), 0);
}

/* Reads to the end: the exit code. */
static int close_terminal(struct terminal *t)
{
	int status;

	while (read_terminal(t, "the end"))
		;
	close(t->fd);
	waitpid(t->pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void test_chat_at_a_terminal(void **state)
{
	struct terminal t;
	(void)state;

	open_terminal(&t, "5");
	expect(&t, "> ");
	type(&t, "h\u00e9 \U0001f642\r"); /* is echoed whole, in any locale */
	expect(&t, "h\u00e9 \U0001f642");
	expect(&t, "> ");
	type(&t, "/help\r");
	expect(&t, "Ctrl-D leaves");
	expect(&t, "> ");
	assert_true(nsv_proc_waits_in(t.pid, SYS_read));
	type(&t, "\x03"); /* at the prompt: a new one */
	expect(&t, "> ");
	assert_true(nsv_proc_waits_in(t.pid, SYS_read));
	type(&t, "\x1a"); /* Ctrl-Z stops nobody here: no shell could have it go on */
	expect(&t, "> ");
	type(&t, "\x04");
	assert_int_equal(close_terminal(&t), 0);
}

/* The io thread has taken what others had put before: what it is told of in one turn it visits in
 * any order, but before the next. */
static void wait_for_io(void)
{
	struct nsv_client *client = nsv_ask_open(daemon_.socket);

	assert_non_null(client);
	for (int i = 0; i < 2; i++)
		assert_int_equal(nsv_ask_ping(client), 0);
	nsv_client_close(client);
}

/* Ctrl-C, however often, ends the answer and nothing else: one Ctrl-D then leaves. */
static void test_an_answer_is_interrupted(void **state)
{
	struct terminal t;
	(void)state;

	open_terminal(&t, "400");
	expect(&t, "> ");
	/* The answer does not begin before the daemon knows that it is not wanted. */
	pid_t engine = nsv_proc_hold_thread(daemon_.pid, "nsv-engine");
	assert_true(engine > 0);
	type(&t, "go on\r");
	expect(&t, "go on");
	expect(&t, "\n");
	assert_true(nsv_proc_waits_in(t.pid, SYS_ppoll)); /* for the answer */
	press_ctrl_c(&t);
	/* The others come without the terminal. One that comes as a wait begins is seen by the
	 * next: after two of them the chat has asked for the end. */
	for (int i = 0; i < 10; i++)
		assert_true(nsv_proc_takes(t.pid, SIGINT, SYS_ppoll));
	wait_for_io();
	nsv_proc_let_go(engine);
	expect(&t, "[stopped]");
	expect(&t, "> ");
	type(&t, "\x04");
	assert_int_equal(close_terminal(&t), 0);
}

static void kill_daemon(void)
{
	kill(daemon_.pid, SIGKILL);
	waitpid(daemon_.pid, NULL, 0);
}

/* How many tokens the daemon has taken in prompts. */
static json_int_t n_prompt_token(void)
{
	assert_int_equal(CLI(NULL, "status", "--json"), 0);
	json_t *o = printed();
	json_int_t n = json_integer_value(
		json_object_get(json_object_get(o, "counters"), "prompt_tokens"));
	json_decref(o);
	return n;
}

/* The daemon is killed in the middle of an answer, and again between two: the chat waits for the
 * next one, which is told the whole conversation. */
static void test_a_chat_outlives_the_daemon(void **state)
{
	static const char question[] = "a question that has quite a number of words in it";
	struct terminal t;
	(void)state;

	assert_int_equal(CLI(NULL, "tokenize", "--json", question), 0);
	json_t *ids = printed();
	json_int_t n_question = (json_int_t)json_array_size(ids);
	json_decref(ids);
	open_terminal(&t, "100"); /* the context takes them in again, whatever they are */
	expect(&t, "> ");
	kill(daemon_.pid, SIGSTOP);
	type(&t, question);
	type(&t, "\r");
	expect(&t, "words in it");
	expect(&t, "\n");
	assert_true(nsv_proc_waits_in(t.pid, SYS_ppoll));
	kill_daemon();
	expect(&t, "[the daemon went away");
	assert_int_equal(nsv_test_daemon_restart(&daemon_, model, NULL), 0);
	expect(&t, "> ");
	kill_daemon();
	type(&t, "x\r");
	expect(&t, "[the daemon went away");
	assert_int_equal(nsv_test_daemon_restart(&daemon_, model, NULL), 0);
	expect(&t, "> ");
	type(&t, "\x04");
	assert_int_equal(close_terminal(&t), 0);
	assert_true(n_prompt_token() > n_question);
}

#define TEST(f) cmocka_unit_test_setup(f, tidy)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_every_field_of_json),
		TEST(test_several_answers),
		TEST(test_sampling_flags),
		TEST(test_stop_strings),
		TEST(test_prompts_of_every_kind),
		TEST(test_messages_that_are_wrong),
		TEST(test_tokenize),
		TEST(test_status),
		TEST(test_top),
		TEST(test_models),
		TEST(test_help_and_usage),
		TEST(test_the_environment_names_the_socket),
		TEST(test_lost_output_is_a_failure),
		TEST(test_chat_from_a_pipe),
		TEST(test_chat_at_a_terminal),
		TEST(test_an_answer_is_interrupted),
		TEST(test_a_chat_outlives_the_daemon),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
