/* A real nanoserved for tests: started from the build that the test belongs to, with a socket in a
 * fresh folder, and stopped. */
#ifndef NSV_TESTS_TOOLS_DAEMON_H
#define NSV_TESTS_TOOLS_DAEMON_H

#include <sys/types.h>

#include "shm/base.h"

struct nsv_test_daemon {
	pid_t pid;
	char dir[64];
	char socket[96];
	char log[96]; /* its standard error */
};

/* Path of a program of this build ("nanoserved"), in a static buffer a name. */
const char *nsv_test_program(const char *name);
/* The real model's path, or NULL: tests of it are skipped. */
const char *nsv_test_model(void);

/* Starts it with --model, --socket and the extra arguments (NULL-terminated; NULL: none) and waits
 * until it accepts. 0, or -ECHILD: it exited (its log says why). */
int nsv_test_daemon_start(struct nsv_test_daemon *d, const char *model, const char *const *extra);
/* Starts another one in its place, with the same socket: it was killed and waited for. */
int nsv_test_daemon_restart(struct nsv_test_daemon *d, const char *model, const char *const *extra);
/* Between two tests of one daemon: what a failed one left of sessions, or a daemon that it
 * stopped or killed, is not the next one's. Starts another in its place if need be. 0 or
 * -ECHILD. */
int nsv_test_daemon_tidy(struct nsv_test_daemon *d, const char *model, const char *const *extra);
/* Sends the signal and waits: its wait status. The folder goes too. */
int nsv_test_daemon_stop(struct nsv_test_daemon *d, int sig);
/* Lets all users of the machine connect. 0 or -errno. */
int nsv_test_daemon_let_all(const struct nsv_test_daemon *d);
/* How many lines of a log have this text? */
unsigned int nsv_test_logged(const char *log, const char *text);
/* Does the daemon's log have this text? */
bool nsv_test_daemon_logged(const struct nsv_test_daemon *d, const char *text);

/* A fresh file with this config, named in path. 0 or -errno. */
int nsv_test_config(char *path, size_t len, const char *json);
/* In a child: becomes a program that dies with the test, whose output goes to the log, opened
 * with these flags besides. argv has room for `cap`; the n first are there, extra
 * (NULL-terminated; NULL: none) come behind. */
_Noreturn void nsv_test_exec(const char **argv, int n, int cap, const char *const *extra,
	const char *log, int log_flags);

/* Runs a program to its end: its exit status (128 + n for a signal), and what it wrote to standard
 * output and standard error (each cut at len). input may be NULL. */
int nsv_test_run(const char *const *argv, const char *input, char *out, size_t out_len, char *err,
	size_t err_len);

#endif
