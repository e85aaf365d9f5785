/* A control group with a limit on memory, for a process of a test. */
#ifndef NSV_TESTS_TOOLS_GROUP_H
#define NSV_TESTS_TOOLS_GROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct nsv_test_group {
	char path[128], home[256]; /* home: of who made it */
	bool v2;
};

/* A group of whichever version has memory here; the test is skipped, which says why, where none can
 * be made. */
void nsv_test_group_begin(struct nsv_test_group *g);
/* What the process takes from now on counts there. */
void nsv_test_group_add(const struct nsv_test_group *g, pid_t pid);
/* And from now on where this process was as the group was made. */
void nsv_test_group_drop(const struct nsv_test_group *g, pid_t pid);
/* So many bytes more than are in use there now. */
void nsv_test_group_leave(const struct nsv_test_group *g, uint64_t bytes);
/* How often the limit has had somebody killed. */
long nsv_test_group_kills(const struct nsv_test_group *g);
/* Its processes have ended. */
void nsv_test_group_end(const struct nsv_test_group *g);

#endif
