/* The stand-in for the service manager as a child process. */
#include "tests/tools/service.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/tools/ask.h"
#include "tests/tools/proc.h"

static void nap(void)
{
	const struct timespec t = {.tv_nsec = 2000000};

	nanosleep(&t, NULL);
}

static void exec_manager(
	const struct nsv_test_service *s, const char *model, const char *const *extra)
{
	const char *argv[32] = {nsv_test_program("tests/tools/fdstore"), s->socket, s->pid_file,
		nsv_test_program("nanoserved"), "--model", model};

	nsv_test_exec(argv, 6, NSV_ARRAY_LEN(argv), extra, s->log, O_APPEND);
}

int nsv_test_service_start(struct nsv_test_service *s, const char *model, const char *const *extra)
{
	snprintf(s->dir, sizeof(s->dir), "/tmp/nanoserve-test-XXXXXX");
	if (!mkdtemp(s->dir))
		return -errno;
	snprintf(s->socket, sizeof(s->socket), "%s/sock", s->dir);
	snprintf(s->log, sizeof(s->log), "%s/log", s->dir);
	snprintf(s->pid_file, sizeof(s->pid_file), "%s/pid", s->dir);
	s->manager = nsv_proc_fork();
	if (s->manager == 0)
		exec_manager(s, model, extra);
	while (nsv_test_service_logged(s, "ready after") == 0) {
		if (waitpid(s->manager, NULL, WNOHANG) == s->manager) {
			s->manager = -1;
			return -ECHILD;
		}
		nap();
	}
	return 0;
}

/* -1: another one is being started. */
static pid_t read_pid(const struct nsv_test_service *s)
{
	char text[16] = "";
	nsv_autoclose int fd = open(s->pid_file, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		return -1;
	return atoi(text); /* written in one piece: all of it, or nothing */
}

/* Never -1, which would be everybody's for kill(). */
pid_t nsv_test_service_pid(const struct nsv_test_service *s)
{
	pid_t pid;

	while ((pid = read_pid(s)) <= 0)
		nap();
	return pid;
}

void nsv_test_service_kill(const struct nsv_test_service *s, int sig)
{
	pid_t pid = nsv_test_service_pid(s), next;

	kill(pid, sig);
	do {
		nap();
		next = nsv_test_service_pid(s);
	} while (next == pid);
}

int nsv_test_service_stop(struct nsv_test_service *s)
{
	char path[128];
	int status = -1;

	if (s->manager > 0) {
		kill(s->manager, SIGTERM);
		waitpid(s->manager, &status, 0);
	}
	snprintf(path, sizeof(path), "%s.notify", s->socket);
	unlink(path);
	unlink(s->socket);
	unlink(s->log);
	unlink(s->pid_file);
	rmdir(s->dir);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

int nsv_test_service_tidy(struct nsv_test_service *s, const char *model, const char *const *extra)
{
	if (s->manager > 0) {
		kill(nsv_test_service_pid(s), SIGCONT);
		if (nsv_ask_is_alone(s->socket))
			return 0;
		kill(s->manager, SIGKILL); /* the daemon dies with it */
	}
	nsv_test_service_stop(s);
	return nsv_test_service_start(s, model, extra);
}

unsigned int nsv_test_service_logged(const struct nsv_test_service *s, const char *text)
{
	return nsv_test_logged(s->log, text);
}
