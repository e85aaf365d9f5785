/* Several users in one test: a child of root's becomes one of them and says what it found by its
 * exit status, 0 or a line of its source. */
#ifndef NSV_TESTS_TOOLS_USERS_H
#define NSV_TESTS_TOOLS_USERS_H

#include <sys/types.h>

#define NSV_USER_A 64001 /* of no account */
#define NSV_USER_B 64002
#define NSV_NO_GROUP ((gid_t)-1)

/* In a function that a child runs. */
#define NSV_EXPECT(c)                                                                              \
	do {                                                                                       \
		if (!(c))                                                                          \
			return __LINE__ & 0xff ? __LINE__ & 0xff : 1;                              \
	} while (0)

/* Skips the test, and says why, unless root runs it. */
void nsv_user_need_root(void);
/* A child in which the user runs fn, in no group but its own. */
pid_t nsv_user_begin(uid_t uid, int (*fn)(void *), void *arg);
/* ... and in this group besides. */
pid_t nsv_user_begin_in(uid_t uid, gid_t group, int (*fn)(void *), void *arg);
/* Waits for it: its exit status, or -1: it did not get so far. */
int nsv_user_end(pid_t pid);

#endif
