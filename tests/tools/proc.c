/* /proc, read for one process. */
#include "tests/tools/proc.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/tools/wait.h"

pid_t nsv_proc_fork(void)
{
	pid_t pid = fork();

	if (pid < 0) {
		perror("fork");
		abort();
	}
	return pid;
}

void nsv_proc_raise_fds(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

int nsv_proc_stay_on(int n, cpu_set_t *ret_before)
{
	cpu_set_t some;

	CPU_ZERO(&some);
	if (sched_getaffinity(0, sizeof(*ret_before), ret_before) < 0 ||
		CPU_COUNT(ret_before) < n)
		return -1;
	for (int cpu = 0; CPU_COUNT(&some) < n; cpu++)
		if (CPU_ISSET(cpu, ret_before))
			CPU_SET(cpu, &some);
	return sched_setaffinity(0, sizeof(some), &some);
}

/* The number after the name that a line of the file begins with, or -1. */
static long number_of(const char *path, const char *name, int base)
{
	char line[256];
	long n = -1;
	FILE *f = fopen(path, "re");

	while (f && n < 0 && fgets(line, sizeof(line), f))
		if (strncmp(line, name, strlen(name)) == 0)
			n = strtol(line + strlen(name), NULL, base);
	if (f)
		fclose(f);
	return n;
}

static long number_in(const char *path, const char *name)
{
	return number_of(path, name, 10);
}

long nsv_proc_longest_backlog(void)
{
	return number_in("/proc/sys/net/core/somaxconn", "");
}

long nsv_proc_rollup(pid_t pid, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
	long kib = number_in(path, name);
	return kib < 0 ? -1 : kib * 1024;
}

long nsv_proc_fds(pid_t pid)
{
	char path[64];
	struct dirent *entry;
	long n = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	DIR *dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		n += entry->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return n;
}

long nsv_proc_switches(pid_t pid)
{
	char path[320];
	struct dirent *entry;
	long n = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	DIR *tasks = opendir(path);
	while (tasks && (entry = readdir(tasks))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/status", (int)pid, entry->d_name);
		n += number_in(path, "voluntary_ctxt_switches:");
		n += number_in(path, "nonvoluntary_ctxt_switches:");
	}
	if (tasks)
		closedir(tasks);
	return n;
}

bool nsv_proc_fds_become(pid_t pid, long n)
{
	return NSV_WAIT_FOR(nsv_proc_fds(pid) == n);
}

static bool sleeps_for_2_s(pid_t pid)
{
	long before = nsv_proc_switches(pid);

	sleep(2);
	return nsv_proc_switches(pid) == before;
}

bool nsv_proc_falls_asleep(pid_t pid)
{
	return NSV_WAIT_FOR(sleeps_for_2_s(pid));
}

/* The file has "running", or a number and more. */
static bool is_in(pid_t pid, long syscall)
{
	char path[64];
	long n = -1;

	snprintf(path, sizeof(path), "/proc/%d/syscall", (int)pid);
	FILE *f = fopen(path, "re");
	bool waits = f && fscanf(f, "%ld", &n) == 1 && n == syscall;
	if (f)
		fclose(f);
	return waits;
}

bool nsv_proc_waits_in(pid_t pid, long syscall)
{
	return NSV_WAIT_FOR(is_in(pid, syscall));
}

static bool is_pending(pid_t pid, int signal_number)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	return number_of(path, "ShdPnd:", 16) >> (signal_number - 1) & 1;
}

/* kill() makes it runnable: asleep again with the signal gone, it has been through the handler. */
bool nsv_proc_takes(pid_t pid, int signal_number, long syscall)
{
	return kill(pid, signal_number) == 0 &&
	       NSV_WAIT_FOR(!is_pending(pid, signal_number) && is_in(pid, syscall));
}

/* ---- A thread */

static bool has_name(pid_t pid, const char *thread, const char *name)
{
	char path[320], text[32] = "";

	snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", (int)pid, thread);
	FILE *f = fopen(path, "re");
	bool has = f && fgets(text, sizeof(text), f) && strncmp(text, name, strlen(name)) == 0 &&
		   text[strlen(name)] == '\n';

	if (f)
		fclose(f);
	return has;
}

/* A thread names itself, some time after it began; and what reads the folder may find its end where
 * another thread ends. */
static pid_t find_thread(pid_t pid, const char *name)
{
	char path[64];
	struct dirent *entry;
	pid_t thread = -1;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	DIR *dir = opendir(path);
	while (dir && thread < 0 && (entry = readdir(dir)))
		if (entry->d_name[0] != '.' && has_name(pid, entry->d_name, name))
			thread = atoi(entry->d_name);
	if (dir)
		closedir(dir);
	return thread;
}

pid_t nsv_proc_hold_thread(pid_t pid, const char *name)
{
	pid_t thread;

	if (!NSV_WAIT_FOR((thread = find_thread(pid, name)) >= 0) ||
		ptrace(PTRACE_SEIZE, thread, NULL, NULL) < 0)
		return -1;
	if (ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) < 0 ||
		waitpid(thread, NULL, __WALL) != thread) {
		nsv_proc_let_go(thread);
		return -1;
	}
	return thread;
}

void nsv_proc_let_go(pid_t thread)
{
	ptrace(PTRACE_DETACH, thread, NULL, NULL);
}
