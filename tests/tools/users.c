/* Children that become other users. */
#include "tests/tools/users.h"
#include "tests/tools/proc.h"

#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

void nsv_user_need_root(void)
{
	if (getuid() != 0) {
		print_message("skipped: only root can be two users\n");
		skip();
	}
}

static int become(uid_t uid, gid_t group)
{
	if (setgroups(group == NSV_NO_GROUP ? 0 : 1, &group) < 0 || setresgid(uid, uid, uid) < 0)
		return -1;
	return setresuid(uid, uid, uid);
}

pid_t nsv_user_begin_in(uid_t uid, gid_t group, int (*fn)(void *), void *arg)
{
	pid_t pid = nsv_proc_fork();

	if (pid == 0)
		_exit(become(uid, group) < 0 ? 255 : fn(arg));
	return pid;
}

pid_t nsv_user_begin(uid_t uid, int (*fn)(void *), void *arg)
{
	return nsv_user_begin_in(uid, NSV_NO_GROUP, fn, arg);
}

int nsv_user_end(pid_t pid)
{
	int status = -1;

	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
