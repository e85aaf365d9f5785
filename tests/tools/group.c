/* Control groups of either version. */
#include "tests/tools/group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/tools/wait.h"

#define ROOT "/sys/fs/cgroup"

static FILE *open_file(const char *folder, const char *name, const char *mode)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return fopen(path, mode);
}

static bool put(const char *folder, const char *name, const char *text)
{
	FILE *f = open_file(folder, name, "we");

	return f && (fputs(text, f) >= 0) + (fclose(f) == 0) == 2;
}

/* The number that follows `key` in a file, or that begins it (NULL); -1: no such. */
static long long get(const char *folder, const char *name, const char *key)
{
	FILE *f = open_file(folder, name, "re");
	long long n = -1;
	char word[64];

	if (f && !key && fscanf(f, "%lld", &n) != 1)
		n = -1;
	while (f && key && fscanf(f, "%63s %lld", word, &n) == 2 && strcmp(word, key) != 0)
		n = -1;
	if (f)
		fclose(f);
	return n;
}

static bool make(struct nsv_test_group *g, bool v2)
{
	const char *limit = v2 ? "memory.max" : "memory.limit_in_bytes";
	static int n; /* one that a failed test leaves is in nobody's way */
	struct stat st;

	g->v2 = v2;
	snprintf(g->path, sizeof(g->path), ROOT "%s/nanoserve-test-%d-%d", v2 ? "" : "/memory",
		(int)getpid(), n++);
	if (v2)
		(void)put(ROOT, "cgroup.subtree_control", "+memory");
	if (mkdir(g->path, 0755) < 0)
		return false;
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", g->path, limit);
	if (stat(path, &st) == 0)
		return true;
	rmdir(g->path);
	return false;
}

/* Where this process is among the groups of that version: within a container that shows its path
 * from outside, at the top. */
static void find_home(struct nsv_test_group *g)
{
	char line[512], names[64], path[sizeof(g->home) - 64];
	FILE *f = fopen("/proc/self/cgroup", "re");
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f))
		found = g->v2 ? sscanf(line, "0::%191s", path) == 1
			      : sscanf(line, "%*u:%63[^:]:%191s", names, path) == 2 &&
					strcmp(names, "memory") == 0;
	if (f)
		fclose(f);
	assert_true(found);
	snprintf(g->home, sizeof(g->home), ROOT "%s%s", g->v2 ? "" : "/memory", path);
	if (access(g->home, F_OK) < 0)
		snprintf(g->home, sizeof(g->home), ROOT "%s", g->v2 ? "" : "/memory");
}

void nsv_test_group_begin(struct nsv_test_group *g)
{
	if (make(g, true) || make(g, false)) {
		find_home(g);
		return;
	}
	print_message("skipped: no control group with a limit on memory can be made here\n");
	skip();
}

static void move_to(const char *folder, pid_t pid)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", (int)pid);
	assert_true(put(folder, "cgroup.procs", text));
}

void nsv_test_group_add(const struct nsv_test_group *g, pid_t pid)
{
	move_to(g->path, pid);
}

void nsv_test_group_drop(const struct nsv_test_group *g, pid_t pid)
{
	move_to(g->home, pid);
}

void nsv_test_group_leave(const struct nsv_test_group *g, uint64_t bytes)
{
	long long used =
		get(g->path, g->v2 ? "memory.current" : "memory.usage_in_bytes", NULL);
	char text[32];

	assert_true(used >= 0);
	snprintf(text, sizeof(text), "%lld", used + (long long)bytes);
	assert_true(put(g->path, g->v2 ? "memory.max" : "memory.limit_in_bytes", text));
}

long nsv_test_group_kills(const struct nsv_test_group *g)
{
	return (long)get(g->path, g->v2 ? "memory.events" : "memory.oom_control", "oom_kill");
}

/* The kernel lets go of a process in its own time. */
void nsv_test_group_end(const struct nsv_test_group *g)
{
	assert_true(NSV_WAIT_FOR(rmdir(g->path) == 0));
}
