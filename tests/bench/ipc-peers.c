/* Placing of the two sides, and what nanoserve is compared with: a word in shared memory, socket
 * pairs, a TCP connection over the loopback interface. */
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "shm/clock.h"
#include "shm/ring.h"
#include "tests/bench/ipc.h"
#include "tests/tools/proc.h"

/* ---- Placing */

static cpu_set_t all;
static int cpus[2]; /* the first two of them */

int find_cpus(void)
{
	int n = 0;

	if (sched_getaffinity(0, sizeof(all), &all) < 0)
		die("sched_getaffinity");
	for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
		if (CPU_ISSET(i, &all))
			cpus[n++] = i;
	return n;
}

static void set_cpus(pid_t pid, const cpu_set_t *set)
{
	char path[64];
	struct dirent *entry;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	DIR *tasks = opendir(path);
	while (tasks && (entry = readdir(tasks)))
		if (atoi(entry->d_name) > 0)
			sched_setaffinity(atoi(entry->d_name), sizeof(*set), set);
	if (tasks)
		closedir(tasks);
}

void pin(pid_t pid, int place)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpus[place], &set);
	set_cpus(pid, &set);
}

void unpin(void)
{
	set_cpus(getpid(), &all);
}

struct nsv_client *open_client(const char *socket, bool spins)
{
	struct nsv_client_options o;
	struct nsv_client *client;

	nsv_client_options_init(&o);
	o.spin_us = spins ? 1000000 : 0;
	unpin();
	int ret = nsv_client_open(socket, &o, NULL, 0, &client);
	pin(getpid(), 0);
	if (ret < 0)
		die("no session");
	return client;
}

int other_place(enum mode mode)
{
	return mode == ONE_CPU ? 0 : 1;
}

void spin_ns(uint64_t ns)
{
	uint64_t until = nsv_now_ns() + ns;

	while (nsv_now_ns() < until)
		nsv_pause();
}

pid_t begin_other(enum mode mode, void (*fn)(int fd, void *arg), int fd, void *arg)
{
	pid_t pid = nsv_proc_fork();

	if (pid < 0)
		die("fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(getpid(), other_place(mode));
		fn(fd, arg);
		_exit(0);
	}
	return pid;
}

void end_other(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

struct stamps *new_stamps(uint32_t n, enum mode mode)
{
	size_t len = sizeof(struct stamps) + n * sizeof(uint64_t);
	struct stamps *s = mmap(NULL, len, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (s == MAP_FAILED)
		die("no memory");
	s->n = n;
	s->mode = mode;
	s->lockstep = true;
	return s;
}

void free_stamps(struct stamps *s)
{
	munmap(s, sizeof(*s) + s->n * sizeof(uint64_t));
}

/* On one CPU nobody takes anything unless it is let in. */
void wait_taken(const struct stamps *s, uint32_t i)
{
	while (nsv_load_acq_u32(&s->taken) < i)
		if (s->mode == ONE_CPU)
			sched_yield();
		else
			nsv_pause();
	spin_ns(s->mode == AWAKE ? 3000 : ASLEEP_PAUSE_NS);
}

/* ---- Round trips */

static double us_since(uint64_t start)
{
	return (double)(nsv_now_ns() - start) / 1e3;
}

static void pause_before(enum mode mode)
{
	if (mode == ASLEEP)
		spin_ns(ASLEEP_PAUSE_NS);
}

static void answer_memory(int fd, void *arg)
{
	struct stamps *s = arg;
	(void)fd;

	for (uint32_t i = 1;; i++) {
		while (nsv_load_acq_u32(&s->sent) != i)
			nsv_pause();
		nsv_store_rel_u32(&s->taken, i);
	}
}

void take_memory_pingpong(enum mode mode, double *us, size_t n)
{
	struct stamps *s = new_stamps(0, mode);
	pid_t pid = begin_other(mode, answer_memory, -1, s);

	for (uint32_t i = 1; i <= n; i++) {
		uint64_t start = nsv_now_ns();
		nsv_store_rel_u32(&s->sent, i);
		while (nsv_load_acq_u32(&s->taken) != i)
			nsv_pause();
		us[i - 1] = us_since(start);
	}
	end_other(pid);
	free_stamps(s);
}

static void answer_packets(int fd, void *arg)
{
	char packet[64];
	ssize_t n;
	(void)arg;

	while ((n = recv(fd, packet, sizeof(packet), 0)) > 0)
		if (send(fd, packet, (size_t)n, MSG_NOSIGNAL) < 0)
			return;
}

/* A packet as large as a submission entry, there and back. */
static void take_packets(enum mode mode, const int fds[2], double *us, size_t n)
{
	pid_t pid = begin_other(mode, answer_packets, fds[1], NULL);
	char packet[64] = "";

	for (size_t i = 0; i < n; i++) {
		pause_before(mode);
		uint64_t start = nsv_now_ns();
		if (send(fds[0], packet, sizeof(packet), MSG_NOSIGNAL) < 0 ||
			recv(fds[0], packet, sizeof(packet), MSG_WAITALL) != sizeof(packet))
			die("an echo does not answer");
		us[i] = us_since(start);
	}
	end_other(pid);
	close(fds[0]);
	close(fds[1]);
}

void take_seqpacket(enum mode mode, double *us, size_t n)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		die("socketpair");
	take_packets(mode, fds, us, n);
}

static void connect_tcp(int fds[2])
{
	struct sockaddr_in addr = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(addr);
	nsv_autoclose int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int one = 1;

	fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(listener, (struct sockaddr *)&addr, len) < 0 || listen(listener, 1) < 0 ||
		getsockname(listener, (struct sockaddr *)&addr, &len) < 0 ||
		connect(fds[0], (struct sockaddr *)&addr, len) < 0)
		die("no TCP over the loopback interface");
	fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	for (int i = 0; i < 2; i++)
		setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

void take_tcp(enum mode mode, double *us, size_t n)
{
	int fds[2];

	connect_tcp(fds);
	take_packets(mode, fds, us, n);
}

/* ---- One way */

static void send_stores(int fd, void *arg)
{
	struct stamps *s = arg;
	(void)fd;

	for (uint32_t i = 0; i < s->n; i++) {
		wait_taken(s, i);
		s->ns[i] = nsv_now_ns();
		nsv_store_rel_u32(&s->sent, i + 1);
	}
}

void take_memory_store(enum mode mode, double *us, size_t n)
{
	struct stamps *s = new_stamps((uint32_t)n, mode);
	pid_t pid = begin_other(mode, send_stores, -1, s);

	for (uint32_t i = 0; i < n; i++) {
		while (nsv_load_acq_u32(&s->sent) != i + 1)
			nsv_pause();
		us[i] = us_since(s->ns[i]);
		nsv_store_rel_u32(&s->taken, i + 1);
	}
	end_other(pid);
	free_stamps(s);
}

static void send_wakes(int fd, void *arg)
{
	struct stamps *s = arg;

	for (uint32_t i = 0; i < s->n; i++) {
		wait_taken(s, i);
		s->ns[i] = nsv_now_ns();
		send(fd, &i, sizeof(i), MSG_DONTWAIT | MSG_NOSIGNAL);
	}
}

/* The least that a sleeper on a socket can do: be told by poll, take the packet. */
void take_socket_wake(enum mode mode, double *us, size_t n)
{
	struct stamps *s = new_stamps((uint32_t)n, mode);
	uint32_t word;
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		die("socketpair");
	pid_t pid = begin_other(mode, send_wakes, fds[1], s);
	for (uint32_t i = 0; i < n; i++) {
		struct pollfd p = {.fd = fds[0], .events = POLLIN};
		if (poll(&p, 1, 10000) != 1 || recv(fds[0], &word, sizeof(word), MSG_DONTWAIT) < 0)
			die("no wake came");
		us[i] = us_since(s->ns[i]);
		nsv_store_rel_u32(&s->taken, i + 1);
	}
	end_other(pid);
	close(fds[0]);
	close(fds[1]);
	free_stamps(s);
}
