/* A stand-in for the service manager, for tests: runs a daemon, keeps what the daemon stores, and
 * runs it again when it dies, with what is stored.
 *
 *     fdstore SOCKET PIDFILE PROGRAM [ARGUMENT]...
 *
 * Makes the listening SOCK_SEQPACKET socket and speaks sd_notify(3) over a socket beside it:
 * FDSTORE with FDNAME, FDSTOREREMOVE, BARRIER, and WATCHDOG, which has to come as $WATCHDOG_USEC
 * says, or the daemon gets SIGABRT. PIDFILE has the pid of the daemon that runs. SIGHUP is a
 * restart: SIGTERM for the daemon, and the next one. SIGTERM is a stop: SIGTERM for the daemon, and
 * all is given up. Standard error is the daemon's. Exits with 1 when a daemon ends by itself with a
 * status other than 0: such a one would only fail again. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base.h"
#include "shm/clock.h"
#include "tests/tools/store.h"

#define FIRST_FD 3
#define TURN_MS 100u

static struct nsv_store store;
static int listen_fd, signal_fd;
static pid_t pid = -1;
static bool stopping;

static void die(const char *what)
{
	fprintf(stderr, "fdstore: %s: %s\n", what, strerror(errno));
	exit(2);
}

static int listen_at(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	unlink(path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
		listen(fd, SOMAXCONN) < 0)
		die(path);
	return fd;
}

/* ---- The daemon */

static void set_environment(void)
{
	static char names[sizeof(store.stored) + 16];
	char number[16];
	size_t at = (size_t)sprintf(names, "listen");

	for (int i = 0; i < store.n_stored; i++)
		at += (size_t)sprintf(names + at, ":%s", store.stored[i].name);
	setenv("LISTEN_FDNAMES", names, 1);
	snprintf(number, sizeof(number), "%d", 1 + store.n_stored);
	setenv("LISTEN_FDS", number, 1);
	snprintf(number, sizeof(number), "%d", getpid());
	setenv("LISTEN_PID", number, 1);
}

/* First out of the way of their places, then into them; a copy is not close-on-exec. */
static void place_descriptors(void)
{
	int fds[1 + NSV_STORE_MAX];

	for (int i = 0; i <= store.n_stored; i++)
		fds[i] = fcntl(
			i ? store.stored[i - 1].fd : listen_fd, F_DUPFD_CLOEXEC, 2 * NSV_STORE_MAX);
	for (int i = 0; i <= store.n_stored; i++)
		if (fds[i] < 0 || dup2(fds[i], FIRST_FD + i) < 0)
			die("descriptors for the daemon");
}

/* By the daemon's process itself: the file has its pid before it says anything. */
static void write_pid(const char *pid_file)
{
	int fd = open(pid_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0 || dprintf(fd, "%d\n", getpid()) < 0)
		die(pid_file);
	close(fd);
}

static void start(char **argv, const char *pid_file)
{
	sigset_t none;

	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid > 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	set_environment();
	place_descriptors();
	write_pid(pid_file);
	execv(argv[0], argv);
	die(argv[0]);
}

static void take_signals(void)
{
	struct signalfd_siginfo info;

	while (read(signal_fd, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGCHLD)
			continue;
		stopping |= info.ssi_signo == SIGTERM;
		kill(pid, SIGTERM);
	}
}

/* Of the daemon that runs; it begins to count when the first sign of life has come. Of a turn that
 * took long little counts: the whole machine may have stood still, the daemon with it. */
static void mind_watchdog(void)
{
	static unsigned int n_seen;
	static uint64_t last_us, silent_us;
	static pid_t alive;
	const char *usec = getenv("WATCHDOG_USEC");
	uint64_t now = nsv_now_ns() / 1000, turn = nsv_min_u64(now - last_us, 2000 * TURN_MS);

	last_us = now;
	silent_us = store.n_watchdog == n_seen ? silent_us + turn : 0;
	if (store.n_watchdog != n_seen)
		alive = pid;
	n_seen = store.n_watchdog;
	if (usec && alive == pid && silent_us > strtoull(usec, NULL, 10)) {
		fprintf(stderr, "fdstore: the watchdog was not fed\n");
		kill(pid, SIGABRT);
		alive = -1;
	}
}

/* true: it has died, having said all that it had to say. */
static bool is_dead(void)
{
	siginfo_t info = {0};

	if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
		return false;
	while (nsv_store_turn(&store))
		;
	waitpid(pid, NULL, 0);
	if (info.si_code == CLD_EXITED && info.si_status != 0) {
		fprintf(stderr, "fdstore: the daemon exited with %d\n", info.si_status);
		exit(1);
	}
	return true;
}

static void prepare(const char *path)
{
	struct rlimit limit;
	char notify_path[108];
	sigset_t set;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	snprintf(notify_path, sizeof(notify_path), "%.100s.notify", path);
	listen_fd = listen_at(path);
	if (nsv_store_begin(&store, notify_path) < 0)
		die(notify_path);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: fdstore SOCKET PIDFILE PROGRAM [ARGUMENT]...\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that dies leaves nothing behind */
	prepare(argv[1]);
	start(argv + 3, argv[2]);
	for (;;) {
		struct pollfd p[] = {{store.fd, POLLIN, 0}, {signal_fd, POLLIN, 0}};
		poll(p, 2, getenv("WATCHDOG_USEC") ? (int)TURN_MS : -1);
		take_signals();
		while (nsv_store_turn(&store))
			;
		mind_watchdog();
		if (!is_dead())
			continue;
		if (stopping)
			return 0;
		start(argv + 3, argv[2]);
	}
}
