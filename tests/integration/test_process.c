/* The daemon as a process: starts that fail, signals, the service manager's protocol, idleness; and
 * the command line as people use it. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/tools/ask.h"
#include "tests/tools/daemon.h"
#include "tests/tools/proc.h"
#include "tests/tools/tiny.h"
#include "tests/tools/wait.h"

static char out[65536], err[65536];

/* ---- Starts that fail */

static void expect_start_failure(const char *path, int status, const char *sentence)
{
	const char *argv[] = {nsv_test_program("nanoserved"), "--model", path, "--socket",
		"/tmp/nanoserve-none.sock", NULL};

	assert_int_equal(nsv_test_run(argv, NULL, out, sizeof(out), err, sizeof(err)), status);
	if (!strstr(err, sentence) || !strstr(err, path))
		fail_msg("%s: \"%s\" lacks \"%s\"", path, err, sentence);
	assert_int_equal(access("/tmp/nanoserve-none.sock", F_OK), -1);
}

static void test_models_that_cannot_be_loaded(void **state)
{
	char cut[] = "/tmp/nanoserve-cut-XXXXXX", noise[] = "/tmp/nanoserve-noise-XXXXXX";
	int fd = mkstemp(cut), from = open(nsv_tiny_path, O_RDONLY | O_CLOEXEC);
	(void)state;

	ssize_t n = read(from, out, sizeof(out));
	assert_true(n > 0 && write(fd, out, (size_t)n / 2) == n / 2);
	close(fd);
	close(from);
	fd = mkstemp(noise);
	assert_true(write(fd, err, sizeof(err)) == sizeof(err));
	close(fd);
	expect_start_failure("/nonexistent.gguf", 1, "No such file");
	expect_start_failure("/tmp", 1, "directory");
	expect_start_failure(cut, 1, "");
	expect_start_failure(noise, 1, "GGUF");
	unlink(cut);
	unlink(noise);
}

static void test_an_unreadable_model(void **state)
{
	int status;
	(void)state;

	if (geteuid() != 0)
		skip();
	/* as another user, who may not read it; the program must be reachable for that user */
	chmod(nsv_tiny_path, 0600);
	int log[2];
	assert_int_equal(pipe(log), 0);
	int exe = open(nsv_test_program("nanoserved"), O_RDONLY);
	pid_t pid = nsv_proc_fork();
	if (pid == 0) {
		char *argv[] = {"nanoserved", "--model", nsv_tiny_path, "--socket",
			"/tmp/nanoserve-none.sock", NULL};
		dup2(log[1], STDERR_FILENO);
		if (setgid(65534) == 0 && setuid(65534) == 0)
			fexecve(exe, argv, (char *[]){NULL});
		_exit(127);
	}
	waitpid(pid, &status, 0);
	ssize_t n = read(log[0], err, sizeof(err) - 1);
	err[n > 0 ? n : 0] = '\0';
	assert_int_equal(WEXITSTATUS(status), 1);
	assert_non_null(strstr(err, "Permission denied"));
	close(log[0]);
	close(log[1]);
	close(exe);
}

static void test_wrong_usage(void **state)
{
	const char *no_model[] = {nsv_test_program("nanoserved"), NULL};
	const char *no_socket[] = {nsv_test_program("nanoserved"), "--model", nsv_tiny_path, NULL};
	const char *backend[] = {nsv_test_program("nanoserved"), "--model", nsv_tiny_path,
		"--socket", "/tmp/nanoserve-none.sock", "--backend", "abacus", NULL};
	const char *dtype[] = {nsv_test_program("nanoserved"), "--model", nsv_tiny_path, "--socket",
		"/tmp/nanoserve-none.sock", "--kv-dtype", "f8", NULL};
	const char *blocks[] = {nsv_test_program("nanoserved"), "--model", nsv_tiny_path,
		"--socket", "/tmp/nanoserve-none.sock", "--kv-blocks", "1000000000", NULL};
	(void)state;

	assert_int_equal(nsv_test_run(no_model, NULL, out, sizeof(out), err, sizeof(err)), 2);
	assert_non_null(strstr(err, "--model"));
	assert_int_equal(nsv_test_run(no_socket, NULL, out, sizeof(out), err, sizeof(err)), 1);
	assert_non_null(strstr(err, "--socket"));
	assert_int_equal(nsv_test_run(backend, NULL, out, sizeof(out), err, sizeof(err)), 1);
	assert_non_null(strstr(err, "abacus"));
	assert_non_null(strstr(err, "reference"));
	assert_int_equal(nsv_test_run(dtype, NULL, out, sizeof(out), err, sizeof(err)), 1);
	assert_non_null(strstr(err, "\"f8\" (see --kv-dtype); there are: auto f16 f32"));
	assert_int_equal(nsv_test_run(blocks, NULL, out, sizeof(out), err, sizeof(err)), 1);
	assert_non_null(strstr(err, "1000000000 KV blocks"));
}

/* Before there is a server: what is to be undone is nothing. */
static void test_wrong_descriptors_passed(void **state)
{
	const char *argv[] = {"/bin/sh", "-c",
		"LISTEN_PID=$$ LISTEN_FDS=-1 exec \"$0\" --model x", nsv_test_program("nanoserved"),
		NULL};
	(void)state;

	assert_int_equal(nsv_test_run(argv, NULL, out, sizeof(out), err, sizeof(err)), 1);
	assert_string_equal(
		err, "what the service manager passes cannot be taken: Invalid argument\n");
}

static void test_a_socket_is_served_once(void **state)
{
	struct nsv_test_daemon d;
	(void)state;

	assert_int_equal(nsv_test_daemon_start(&d, nsv_tiny_path, NULL), 0);
	const char *second[] = {nsv_test_program("nanoserved"), "--model", nsv_tiny_path,
		"--socket", d.socket, NULL};
	assert_int_equal(nsv_test_run(second, NULL, out, sizeof(out), err, sizeof(err)), 1);
	assert_non_null(strstr(err, "another daemon"));
	/* one that was killed leaves its file; the next one takes the place */
	kill(d.pid, SIGKILL);
	waitpid(d.pid, NULL, 0);
	assert_int_equal(access(d.socket, F_OK), 0);
	struct nsv_test_daemon next = d;
	next.pid = nsv_proc_fork();
	if (next.pid == 0) {
		execl(second[0], second[0], "--model", nsv_tiny_path, "--socket", d.socket,
			(char *)NULL);
		_exit(127);
	}
	struct nsv_client *client = NULL;
	assert_true(NSV_WAIT_FOR(nsv_client_open(d.socket, NULL, NULL, 0, &client) == 0));
	nsv_client_close(client);
	assert_int_equal(nsv_test_daemon_stop(&next, SIGTERM), 0);
}

/* ---- A model file that loses its bytes */

static void copy_model(char *path)
{
	int from = open(nsv_tiny_path, O_RDONLY | O_CLOEXEC), to = mkstemp(path);

	assert_true(from >= 0 && to >= 0);
	assert_true(copy_file_range(from, NULL, to, NULL, 64u << 20, 0) > 0);
	close(from);
	close(to);
}

/* Embeddings are read from the file: a daemon cannot go on without it, but says what was lost. */
static void test_a_model_cut_in_use(void **state)
{
	char path[] = "/tmp/nanoserve-short-XXXXXX";
	struct nsv_test_daemon d;
	struct nsv_request *r;
	int status;
	(void)state;

	copy_model(path);
	assert_int_equal(nsv_test_daemon_start(&d, path, NULL), 0);
	struct nsv_client *client = nsv_ask_open(d.socket);
	assert_int_equal(truncate(path, NSV_PAGE), 0);
	assert_int_equal(nsv_client_submit_text(client, "go", 2, NULL, &r), 0);
	assert_int_equal(waitpid(d.pid, &status, 0), d.pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	assert_int_equal(nsv_test_logged(d.log, path), 1);
	assert_true(nsv_test_daemon_logged(&d, "was cut short while in use"));
	nsv_client_close(client);
	assert_int_equal(nsv_test_daemon_restart(&d, path, NULL), -ECHILD);
	assert_int_equal(nsv_test_daemon_restart(&d, nsv_tiny_path, NULL), 0);
	assert_int_equal(nsv_test_daemon_stop(&d, SIGTERM), 0);
	unlink(path);
}

/* ---- Signals, the service manager, idleness */

static void test_a_stop_in_mid_stream(void **state)
{
	static const int signals[] = {SIGTERM, SIGINT};
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(signals); i++) {
		struct nsv_test_daemon d;
		struct nsv_client_params p;
		struct nsv_request *r;
		struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
		int ret;
		assert_int_equal(nsv_test_daemon_start(&d, nsv_tiny_path, NULL), 0);
		struct nsv_client *client = nsv_ask_open(d.socket);
		nsv_client_params_init(&p);
		p.flags = NSV_CLIENT_IGNORE_END;
		assert_int_equal(nsv_client_submit_text(client, "go", 2, &p, &r), 0);
		assert_int_equal(nsv_request_next(r, -1, &chunk), 1);
		assert_int_equal(nsv_test_daemon_stop(&d, signals[i]), 0);
		while ((ret = nsv_ask_next(r, &chunk)) > 0)
			;
		assert_true(ret == -ECONNRESET || ret == 0);
		assert_int_equal(nsv_ask_ping(client), -ECONNRESET);
		assert_int_equal(nsv_client_end_code(client), NSV_CLIENT_END_STOPPED);
		assert_string_equal(nsv_client_error(client), "the daemon was stopped, or drained");
		nsv_client_close(client);
	}
}

static void test_the_service_manager_is_told(void **state)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct nsv_test_daemon d;
	char text[2048], all[8192] = "";
	ssize_t n;
	(void)state;

	snprintf(addr.sun_path, sizeof(addr.sun_path), "/tmp/nanoserve-notify-%d", getpid());
	unlink(addr.sun_path); /* of a process of that number that failed */
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	setenv("NOTIFY_SOCKET", addr.sun_path, 1);
	assert_int_equal(nsv_test_daemon_start(&d, nsv_tiny_path, NULL), 0);
	unsetenv("NOTIFY_SOCKET");
	assert_int_equal(nsv_test_daemon_stop(&d, SIGTERM), 0);
	while ((n = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT)) > 0) {
		text[n] = '\0';
		strncat(all, text, sizeof(all) - strlen(all) - 2);
		strcat(all, "\n");
	}
	assert_non_null(strstr(all, "READY=1"));
	assert_non_null(strstr(all, "STATUS="));
	assert_non_null(strstr(all, "KV pool of"));
	assert_non_null(strstr(all, "STOPPING=1"));
	close(fd);
	unlink(addr.sun_path);
}

static void test_an_idle_daemon_sleeps(void **state)
{
	struct nsv_test_daemon d;
	struct nsv_client_params p;
	struct nsv_answer *a = malloc(sizeof(*a));
	(void)state;

	assert_int_equal(nsv_test_daemon_start(&d, nsv_tiny_path, NULL), 0);
	struct nsv_client *client = nsv_ask_open(d.socket);
	nsv_client_params_init(&p);
	p.max_tokens = 20;
	nsv_ask_text(client, "then sleep", &p, a);
	assert_int_equal(a->ret, 0);
	assert_true(nsv_proc_falls_asleep(d.pid));
	nsv_client_close(client);
	free(a);
	assert_int_equal(nsv_test_daemon_stop(&d, SIGTERM), 0);
}

/* ---- The command line */

static int cli(const struct nsv_test_daemon *d, const char *const *args, const char *input)
{
	const char *argv[32] = {nsv_test_program("nanoserve"), "--socket", d->socket};
	int n = 3;

	for (; *args; args++)
		argv[n++] = *args;
	return nsv_test_run(argv, input, out, sizeof(out), err, sizeof(err));
}

#define CLI(d, input, ...) cli(d, (const char *const[]){__VA_ARGS__, NULL}, input)

static void check_json(void)
{
	json_t *o = json_loads(out, 0, NULL);

	assert_non_null(o);
	assert_int_equal(json_array_size(json_object_get(o, "tokens")), 5);
	assert_true(json_array_size(json_object_get(o, "prompt_tokens")) > 0);
	assert_string_equal(json_string_value(json_object_get(o, "finish_reason")), "length");
	assert_int_equal(json_array_size(json_object_get(o, "logprobs")), 5);
	assert_int_equal(json_array_size(json_array_get(json_object_get(o, "logprobs"), 0)), 3);
	assert_true(json_is_object(json_object_get(o, "usage")));
	assert_true(json_is_object(json_object_get(o, "timing")));
	assert_true(json_is_string(json_object_get(o, "text")));
	json_decref(o);
}

static void test_the_command_line(void **state)
{
	struct nsv_test_daemon d;
	(void)state;

	assert_int_equal(nsv_test_daemon_start(&d, nsv_tiny_path, NULL), 0);
	assert_int_equal(CLI(&d, NULL, "generate", "--raw", "-n", "5", "--json", "--logprobs", "2",
				 "--seed", "3", "--temperature", "0.9", "--ignore-end", "abc"),
		0);
	check_json();
	assert_int_equal(CLI(&d, "from standard input", "generate", "--raw", "-n", "3", "-"), 0);
	assert_int_equal(CLI(&d, NULL, "generate", "--ids", "-n", "2", "[5, 6, 7]"), 0);
	assert_int_equal(CLI(&d, NULL, "tokenize", "--json", "abc"), 0);
	json_t *o = json_loads(out, JSON_DECODE_ANY, NULL);
	assert_non_null(o);
	json_decref(o);
	assert_int_equal(CLI(&d, NULL, "status", "--json"), 0);
	assert_non_null(strstr(out, "\"backend\""));
	assert_int_equal(CLI(&d, NULL, "status"), 0);
	/* wrong requests, wrong usage */
	assert_int_equal(CLI(&d, NULL, "generate", "--raw", "--temperature", "nan", "x"), 1);
	assert_non_null(strstr(err, "temperature"));
	assert_int_equal(CLI(&d, NULL, "generate", "--raw", "a\xff\xfe"), 1);
	assert_non_null(strstr(err, "UTF-8"));
	assert_int_equal(CLI(&d, NULL, "generate", "--temprature", "1", "x"), 2);
	assert_int_equal(CLI(&d, NULL, "generate", "--temperature", "warm", "x"), 2);
	assert_int_equal(CLI(&d, NULL, "generat", "x"), 2);
	assert_int_equal(nsv_test_daemon_stop(&d, SIGTERM), 0);
	assert_int_equal(CLI(&d, NULL, "generate", "x"), 3);
	assert_non_null(strstr(err, d.socket));
}

static void test_backends_are_forced(void **state)
{
	static const char *const names[] = {"reference", "model", "cpu"};
	static const char *const dtypes[] = {"f32", "f32", "f16"};
	char tokens[3][512];
	(void)state;

	for (size_t i = 0; i < NSV_ARRAY_LEN(names); i++) {
		struct nsv_test_daemon d;
		const char *extra[] = {"--backend", names[i], NULL};
		if (i == 1) { /* once by the environment */
			setenv("NANOSERVE_BACKEND", names[i], 1);
			extra[0] = NULL;
		}
		assert_int_equal(nsv_test_daemon_start(&d, nsv_tiny_path, extra), 0);
		unsetenv("NANOSERVE_BACKEND");
		assert_int_equal(CLI(&d, NULL, "status", "--json"), 0);
		json_t *o = json_loads(out, 0, NULL);
		assert_string_equal(json_string_value(json_object_get(o, "backend")), names[i]);
		json_t *kv = json_object_get(o, "kv");
		assert_string_equal(json_string_value(json_object_get(kv, "dtype")), dtypes[i]);
		assert_true(json_integer_value(json_object_get(kv, "token_bytes")) > 0);
		json_decref(o);
		assert_int_equal(CLI(&d, NULL, "generate", "--raw", "--json", "-n", "6", "abc"), 0);
		o = json_loads(out, 0, NULL);
		char *text = json_dumps(json_object_get(o, "tokens"), JSON_COMPACT);
		snprintf(tokens[i], sizeof(tokens[i]), "%s", text);
		free(text);
		json_decref(o);
		assert_int_equal(nsv_test_daemon_stop(&d, SIGTERM), 0);
	}
	assert_string_equal(tokens[0], tokens[1]); /* both in fp32 */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_models_that_cannot_be_loaded),
		cmocka_unit_test(test_an_unreadable_model),
		cmocka_unit_test(test_wrong_usage),
		cmocka_unit_test(test_wrong_descriptors_passed),
		cmocka_unit_test(test_a_socket_is_served_once),
		cmocka_unit_test(test_a_model_cut_in_use),
		cmocka_unit_test(test_a_stop_in_mid_stream),
		cmocka_unit_test(test_the_service_manager_is_told),
		cmocka_unit_test(test_an_idle_daemon_sleeps),
		cmocka_unit_test(test_the_command_line),
		cmocka_unit_test(test_backends_are_forced),
	};

	return cmocka_run_group_tests(tests, nsv_tiny_setup, nsv_tiny_teardown);
}
