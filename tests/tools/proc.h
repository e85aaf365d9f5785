/* What the kernel says of another process. */
#ifndef NSV_TESTS_TOOLS_PROC_H
#define NSV_TESTS_TOOLS_PROC_H

#include <sys/types.h>

long nsv_proc_fds(pid_t pid); /* open descriptors */
/* Bytes of a line of its status in KiB ("RssShmem:"), or of smaps_rollup ("Pss:"); -1: no such. */
long nsv_proc_status(pid_t pid, const char *name);
long nsv_proc_rollup(pid_t pid, const char *name);
/* Context switches of all threads: one that wakes is counted. */
long nsv_proc_switches(pid_t pid);

#endif
