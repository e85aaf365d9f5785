/* A nanoserved under the stand-in for the service manager (fdstore): it comes back when it dies,
 * and its sessions with it. */
#ifndef NSV_TESTS_TOOLS_SERVICE_H
#define NSV_TESTS_TOOLS_SERVICE_H

#include "tests/tools/daemon.h"

struct nsv_test_service {
	pid_t manager;
	char dir[64];
	char socket[96];
	char log[96]; /* standard error of the stand-in and of all daemons */
	char pid_file[96];
};

/* Starts it and waits until the daemon serves. 0 or -ECHILD. */
int nsv_test_service_start(
	struct nsv_test_service *s, const char *model, const char *const *extra);
/* The daemon that runs. */
pid_t nsv_test_service_pid(const struct nsv_test_service *s);
/* Kills the daemon with the signal and waits until the stand-in has started another. */
void nsv_test_service_kill(const struct nsv_test_service *s, int sig);
/* Between two tests of one service, as nsv_test_daemon_tidy. */
int nsv_test_service_tidy(
	struct nsv_test_service *s, const char *model, const char *const *extra);
/* Stops all of it: the stand-in's exit status. The folder goes too. */
int nsv_test_service_stop(struct nsv_test_service *s);
/* How many lines of the log have this text? */
unsigned int nsv_test_service_logged(const struct nsv_test_service *s, const char *text);

#endif
