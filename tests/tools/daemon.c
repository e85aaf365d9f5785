/* Daemons and programs as child processes. */
#include "tests/tools/daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/tools/ask.h"
#include "tests/tools/proc.h"

const char *nsv_test_program(const char *name)
{
	static char paths[4][512];
	static int next;
	char *path = paths[next++ % 4];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(paths[0]) - 1);

	path[n > 0 ? n : 0] = '\0';
	/* build/VARIANT/tests/... and build/VARIANT/bench/... */
	char *at = strstr(path, "/tests/");
	if (!at)
		at = strstr(path, "/bench/");
	if (!at)
		return "/nonexistent"; /* never the program itself */
	snprintf(at, (size_t)(path + sizeof(paths[0]) - at), "/%s", name);
	return path;
}

const char *nsv_test_model(void)
{
	static char path[512];
	const char *set = getenv("NANOSERVE_TEST_MODEL"), *cache = getenv("XDG_CACHE_HOME");
	const char *home = getenv("HOME");

	if (set)
		snprintf(path, sizeof(path), "%s", set);
	else
		snprintf(path, sizeof(path),
			"%s%s/nanoserve/models/SmolLM2-135M-Instruct.Q4_1.gguf",
			cache ? cache : home ? home : "", cache ? "" : "/.cache");
	return access(path, R_OK) == 0 ? path : NULL;
}

_Noreturn void nsv_test_exec(
	const char **argv, int n, int cap, const char *const *extra, const char *log, int log_flags)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that dies leaves nobody behind */
	int fd = open(log, O_WRONLY | O_CREAT | log_flags, 0600);

	for (; extra && *extra && n < cap - 1; extra++)
		argv[n++] = *extra;
	argv[n] = NULL;
	dup2(fd, STDERR_FILENO);
	dup2(fd, STDOUT_FILENO);
	execv(argv[0], (char **)argv);
	_exit(127);
}

static void exec_daemon(
	const struct nsv_test_daemon *d, const char *model, const char *const *extra)
{
	const char *argv[32] = {
		nsv_test_program("nanoserved"), "--model", model, "--socket", d->socket};

	nsv_test_exec(argv, 5, NSV_ARRAY_LEN(argv), extra, d->log, O_TRUNC);
}

/* "ready" is in the log once requests are served; the socket alone accepts earlier. A connection
 * to see whether it serves would be counted for a while after it was closed. */
int nsv_test_daemon_restart(struct nsv_test_daemon *d, const char *model, const char *const *extra)
{
	struct timespec nap = {.tv_nsec = 5000000};
	int status;

	unlink(d->log); /* what the last one said counts no more */
	d->pid = nsv_proc_fork();
	if (d->pid == 0)
		exec_daemon(d, model, extra);
	while (!nsv_test_daemon_logged(d, "ready after")) {
		if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
			d->pid = -1;
			return -ECHILD;
		}
		nanosleep(&nap, NULL);
	}
	return 0;
}

int nsv_test_daemon_start(struct nsv_test_daemon *d, const char *model, const char *const *extra)
{
	snprintf(d->dir, sizeof(d->dir), "/tmp/nanoserve-test-XXXXXX");
	if (!mkdtemp(d->dir))
		return -errno;
	snprintf(d->socket, sizeof(d->socket), "%s/sock", d->dir);
	snprintf(d->log, sizeof(d->log), "%s/log", d->dir);
	return nsv_test_daemon_restart(d, model, extra);
}

int nsv_test_daemon_tidy(struct nsv_test_daemon *d, const char *model, const char *const *extra)
{
	if (d->pid > 0) {
		kill(d->pid, SIGCONT);
		if (nsv_ask_is_alone(d->socket))
			return 0;
		kill(d->pid, SIGKILL);
		waitpid(d->pid, NULL, 0);
	}
	return nsv_test_daemon_restart(d, model, extra);
}

int nsv_test_daemon_stop(struct nsv_test_daemon *d, int sig)
{
	int status = -1;

	if (d->pid > 0) {
		kill(d->pid, sig);
		waitpid(d->pid, &status, 0);
	}
	unlink(d->socket);
	unlink(d->log);
	rmdir(d->dir);
	return status;
}

int nsv_test_daemon_let_all(const struct nsv_test_daemon *d)
{
	return chmod(d->dir, 0755) < 0 || chmod(d->socket, 0666) < 0 ? -errno : 0;
}

int nsv_test_config(char *path, size_t len, const char *json)
{
	snprintf(path, len, "/tmp/nanoserve-config-XXXXXX");
	nsv_autoclose int fd = mkstemp(path);

	return fd < 0 || write(fd, json, strlen(json)) != (ssize_t)strlen(json) ? -errno : 0;
}

unsigned int nsv_test_logged(const char *log, const char *text)
{
	char line[1024];
	unsigned int n = 0;
	FILE *f = fopen(log, "re");

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, text) != NULL;
	if (f)
		fclose(f);
	return n;
}

bool nsv_test_daemon_logged(const struct nsv_test_daemon *d, const char *text)
{
	return nsv_test_logged(d->log, text) > 0;
}

/* ---- Programs */

static void read_back(FILE *f, char *buf, size_t len)
{
	if (!buf)
		return;
	rewind(f);
	buf[fread(buf, 1, len - 1, f)] = '\0';
}

int nsv_test_run(const char *const *argv, const char *input, char *out, size_t out_len, char *err,
	size_t err_len)
{
	FILE *in = tmpfile(), *o = tmpfile(), *e = tmpfile();
	int status = -1;

	fputs(input ? input : "", in);
	rewind(in);
	pid_t pid = nsv_proc_fork();
	if (pid == 0) {
		dup2(fileno(in), STDIN_FILENO);
		dup2(fileno(o), STDOUT_FILENO);
		dup2(fileno(e), STDERR_FILENO);
		execv(argv[0], (char **)argv);
		_exit(127);
	}
	waitpid(pid, &status, 0);
	read_back(o, out, out_len);
	read_back(e, err, err_len);
	fclose(in);
	fclose(o);
	fclose(e);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
