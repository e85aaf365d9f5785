/* What the parts of `make bench NAME=ipc` share: where the two sides of a path run, and one
 * function a path that takes samples of it. Each starts its other side, takes n samples in
 * microseconds and ends it, so that nothing but the path measured is awake. */
#ifndef NSV_TESTS_BENCH_IPC_H
#define NSV_TESTS_BENCH_IPC_H

#include <sys/types.h>

#include "tests/tools/daemon.h"

#include <nanoserve/client.h>

enum mode {
	AWAKE,	/* on two CPUs, one sample right after the other; who can spin does */
	ASLEEP, /* on two CPUs, the other side having gone to sleep */
	ONE_CPU,
	N_MODE
};

#define ASLEEP_PAUSE_NS 150000u /* longer than anybody here spins */

_Noreturn void die(const char *what);

/* ---- Placing (ipc-peers.c) */

int find_cpus(void);		 /* how many there are for us: 1, or 2 for more */
void pin(pid_t pid, int place);	 /* all threads of a process to our first or second CPU */
void unpin(void);		 /* this process: anywhere, as it began */
int other_place(enum mode mode); /* of the side that is not this process */
/* A session from this process, which spins for as long as it takes or not at all. The library does
 * not spin for who has one CPU only, so it is opened before this process is tied to its place. */
struct nsv_client *open_client(const char *socket, bool spins);
void spin_ns(uint64_t ns);
/* Runs the other side in a child at its place, with the socket and the argument; it ends by
 * itself, by end_other at the latest. */
pid_t begin_other(enum mode mode, void (*fn)(int fd, void *arg), int fd, void *arg);
void end_other(pid_t pid);

/* Shared by the two sides of a one-way path: the other side stamps, this one takes. */
struct stamps {
	uint32_t sent __attribute__((aligned(64)));  /* release */
	uint32_t taken __attribute__((aligned(64))); /* release */
	uint32_t n;
	enum mode mode;
	bool lockstep; /* each one after the last was taken, and a pause */
	uint64_t ns[];
};
struct stamps *new_stamps(uint32_t n, enum mode mode);
void free_stamps(struct stamps *s);
void wait_taken(const struct stamps *s, uint32_t i); /* the first i were taken; then the pause */

/* ---- Paths */

typedef void take_fn(enum mode mode, double *us, size_t n);

/* Round trips */
take_fn take_memory_pingpong, take_seqpacket, take_tcp; /* ipc-peers.c */
take_fn take_nop;					/* ipc-daemon.c */
/* From one side to the other */
take_fn take_memory_store, take_socket_wake; /* ipc-peers.c */
take_fn take_token;			     /* ipc-tokens.c: the engine's side to the client's */

/* ---- Rates and costs */

double ring_rate(void);	  /* entries a second through one submission ring, nothing else */
double daemon_rate(void); /* the same, each answered by the daemon */
double seconds_of_tokens(uint32_t n);	   /* a burst, from its first byte to its end */
double seconds_of_prompt(uint32_t n_byte); /* tokenized by the daemon */

void start_daemons(void); /* a tiny model's; for take_nop and what follows it */
void stop_daemons(void);

struct session_costs { /* ipc-sessions.c */
	uint32_t n;
	double open_us[4096]; /* (n) connect, hello, welcome, mapped; in the order they came */
	double region_bytes, pss_bytes, heap_bytes; /* of one session, in the daemon */
	double takeover_s;  /* from a SIGKILL until the next daemon has them all */
	double idle_cpu;    /* seconds of CPU a second, all of them idle */
	double ping_us[13]; /* with 1, 2, 4 ... 4,096 sessions open */
	uint32_t n_ping;
};
void measure_sessions(struct session_costs *ret);

#endif
