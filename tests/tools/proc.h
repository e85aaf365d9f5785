/* What the kernel says of another process. */
#ifndef NSV_TESTS_TOOLS_PROC_H
#define NSV_TESTS_TOOLS_PROC_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

/* fork() that ends the test where no process can be made: -1 would be everybody's for kill(). */
pid_t nsv_proc_fork(void);

/* This process, and those it begins, may have as many descriptors as it can ask for: a shell's
 * usual 1,024 are few for hundreds of sessions. */
void nsv_proc_raise_fds(void);

/* As many connections can wait for a process that does not accept. */
long nsv_proc_longest_backlog(void);

/* The calling thread stays on n of the processors that it may run on, which *ret_before has for
 * sched_setaffinity. 0, or -1: there are fewer. */
int nsv_proc_stay_on(int n, cpu_set_t *ret_before);
long nsv_proc_fds(pid_t pid); /* open descriptors */
/* Bytes of a line of its smaps_rollup ("Pss:"); -1: no such. */
long nsv_proc_rollup(pid_t pid, const char *name);
/* Context switches of all threads: one that wakes is counted. */
long nsv_proc_switches(pid_t pid);

/* Waits until its first thread waits in the system call of that number; false: it hangs. */
bool nsv_proc_waits_in(pid_t pid, long syscall);
/* Sends a signal that it catches, and waits until it has caught it and waits in the system call. */
bool nsv_proc_takes(pid_t pid, int signal_number, long syscall);
/* Waits for one thread of a child, which has that name and no other has, and stops it; the others go
 * on. Its id, or -1. The caller's thread is the one to let it go again. */
pid_t nsv_proc_hold_thread(pid_t pid, const char *name);
void nsv_proc_let_go(pid_t thread);

/* Waits until it has so many; false: it hangs. What a session had is closed once nobody in the
 * daemon refers to it. */
bool nsv_proc_fds_become(pid_t pid, long n);
/* Waits for two seconds in which none of its threads wakes, timers of a second having run out;
 * false: there are none in a minute. */
bool nsv_proc_falls_asleep(pid_t pid);

#endif
