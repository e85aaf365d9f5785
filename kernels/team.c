/* A team of threads. Two gates, each a word that only grows and the count of those asleep on it:
 * `start` opens once a run, `meet` once a barrier.
 *
 * No wake-up is lost: a sleeper counts itself (seq_cst), then the kernel compares the word; an
 * opener changes the word (seq_cst), then reads the count. One of the two sees the other. */
#include "kernels/team.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* In pauses, each of 12 ns (Zen 4) to 48 ns (Sapphire Rapids). */
#define SPIN 4000u	 /* before a member sleeps between runs */
#define SPIN_MEET 10000u /* within a run, where one that sleeps keeps all others waiting */
#define SPIN_CROWDED 20u /* where members outnumber processors, spinning delays who is waited for */
/* Between two yields: a client, or a member that woke where no processor was free, would else wait
 * behind one that spins for a whole slice of the scheduler, some 3 ms. */
#define YIELD_EVERY 32u

const struct nsv_part nsv_team_alone = {.index = 0, .count = 1};

struct gate {
	_Atomic uint32_t word, n_asleep;
	char pad[NSV_CACHE_LINE - 8];
};

struct member {
	struct nsv_part part;
	pthread_t thread;
	_Atomic pid_t tid; /* 0: not known yet */
};

struct nsv_team {
	struct gate start, meet;
	_Atomic uint32_t n_here; /* members at the barrier */
	char pad[NSV_CACHE_LINE - 4];
	_Atomic uint32_t n_taken; /* items of this phase */
	char pad_taken[NSV_CACHE_LINE - 4];
	uint32_t spin, spin_meet;
	uint32_t n_cpu;	   /* that its maker could run on: later threads may keep to some of them */
	uint32_t n_member; /* with the caller; n_room at most */
	uint32_t n_room;
	void (*fn)(const struct nsv_part *part, void *arg); /* NULL: leave */
	void *arg;
	struct member members[];
};

static void gate_open(struct gate *gate)
{
	atomic_fetch_add(&gate->word, 1);
	if (atomic_load(&gate->n_asleep))
		syscall(SYS_futex, &gate->word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Returns once the word is no longer `seen`. */
static void gate_wait(struct gate *gate, uint32_t seen, uint32_t spin)
{
	for (uint32_t i = 1; i <= spin; i++) {
		if (atomic_load_explicit(&gate->word, memory_order_acquire) != seen)
			return;
		nsv_pause();
		if (i % YIELD_EVERY == 0)
			sched_yield();
	}
	atomic_fetch_add(&gate->n_asleep, 1);
	while (atomic_load(&gate->word) == seen)
		syscall(SYS_futex, &gate->word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
	atomic_fetch_sub(&gate->n_asleep, 1);
}

void nsv_team_barrier(const struct nsv_part *part)
{
	struct nsv_team *team = part->team;
	uint32_t seen;
	if (part->count == 1)
		return;
	seen = atomic_load_explicit(&team->meet.word, memory_order_relaxed);
	if (atomic_fetch_add(&team->n_here, 1) + 1 < part->count) {
		gate_wait(&team->meet, seen, team->spin_meet);
		return;
	}
	atomic_store_explicit(&team->n_here, 0, memory_order_relaxed);
	atomic_store_explicit(&team->n_taken, 0, memory_order_relaxed);
	gate_open(&team->meet);
}

uint32_t nsv_team_take(const struct nsv_part *part, uint32_t *alone)
{
	if (part->count == 1)
		return (*alone)++;
	return atomic_fetch_add_explicit(&part->team->n_taken, 1, memory_order_relaxed);
}

static void *member_main(void *arg)
{
	struct member *self = arg;
	struct nsv_team *team = self->part.team;
	char name[16];
	atomic_store_explicit(&self->tid, gettid(), memory_order_relaxed);
	snprintf(name, sizeof(name), "nsv-work/%u", self->part.index % 100000u);
	pthread_setname_np(pthread_self(), name);
	for (uint32_t seen = 0;; seen++) {
		gate_wait(&team->start, seen, team->spin);
		if (!team->fn)
			return NULL;
		team->fn(&self->part, team->arg);
		nsv_team_barrier(&self->part);
	}
}

void nsv_team_run(
	struct nsv_team *team, void (*fn)(const struct nsv_part *part, void *arg), void *arg)
{
	const struct nsv_part *self = &team->members[0].part;
	if (self->count > 1) {
		team->fn = fn;
		team->arg = arg;
		gate_open(&team->start);
	}
	fn(self, arg);
	nsv_team_barrier(self);
}

uint32_t nsv_team_cpus(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		return (uint32_t)CPU_COUNT(&set);
	long n = sysconf(_SC_NPROCESSORS_ONLN); /* more than the set has room for */
	return n > 0 ? (uint32_t)n : 1;
}

/* ---- Threads */

static void set_spin(struct nsv_team *team, uint32_t n)
{
	bool is_crowded = team->n_cpu < n;
	team->spin = is_crowded ? SPIN_CROWDED : SPIN;
	team->spin_meet = is_crowded ? SPIN_CROWDED : SPIN_MEET;
}

static int start_member(struct nsv_team *team)
{
	struct member *m = &team->members[team->n_member];
	atomic_store_explicit(&m->tid, 0, memory_order_relaxed);
	int r = pthread_create(&m->thread, NULL, member_main, m);
	if (r == 0)
		team->n_member++;
	return -r;
}

/* Signals are for the owner's threads: members take none but what they cause themselves, which a
 * thread that blocks it dies of without its handler. */
static sigset_t signals_of_others(void)
{
	static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
	sigset_t set;
	sigfillset(&set);
	for (size_t i = 0; i < NSV_ARRAY_LEN(own); i++)
		sigdelset(&set, own[i]);
	return set;
}

/* As many of n as can be had, where there is none but the caller. How many they are they read in
 * their first run. */
static int start_members(struct nsv_team *team, uint32_t n)
{
	sigset_t others = signals_of_others(), old;
	int r = 0;
	set_spin(team, n);
	atomic_store_explicit(&team->start.word, 0, memory_order_relaxed);
	pthread_sigmask(SIG_BLOCK, &others, &old);
	while (team->n_member < n && r == 0)
		r = start_member(team);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	for (uint32_t i = 0; i < team->n_member; i++)
		team->members[i].part.count = team->n_member;
	team->members[0].part.team = team->n_member > 1 ? team : NULL;
	return r;
}

static void end_members(struct nsv_team *team)
{
	team->fn = NULL;
	gate_open(&team->start);
	while (team->n_member > 1)
		pthread_join(team->members[--team->n_member].thread, NULL);
}

int nsv_team_new(uint32_t n_thread, struct nsv_team **ret_team)
{
	struct nsv_team *team;
	size_t len;
	int r;
	if (n_thread == 0)
		return -EINVAL;
	if (!nsv_mul(n_thread, sizeof(struct member), &len) || !nsv_add(len, sizeof(*team), &len))
		return -EOVERFLOW;
	team = calloc(1, len);
	if (!team)
		return -ENOMEM;
	team->n_room = n_thread;
	team->n_cpu = nsv_team_cpus();
	team->n_member = 1;
	for (uint32_t i = 0; i < n_thread; i++)
		team->members[i].part = (struct nsv_part){.index = i, .team = team};
	r = start_members(team, n_thread);
	if (r < 0) {
		nsv_team_free(team);
		return r;
	}
	*ret_team = team;
	return 0;
}

void nsv_team_free(struct nsv_team *team)
{
	if (!team)
		return;
	end_members(team);
	free(team);
}

void nsv_team_resize(struct nsv_team *team, uint32_t n)
{
	n = (uint32_t)nsv_max(1, nsv_min(n, team->n_room));
	if (n == team->n_member)
		return;
	end_members(team);
	(void)start_members(team, n);
}

uint32_t nsv_team_size(const struct nsv_team *team)
{
	return team->n_member;
}

/* ---- Waiting for processors */

/* A thread's schedstat: the time it ran, the time it waited for that, how often. */
static int read_delay(pid_t tid, uint64_t *ret_ns)
{
	char path[48], text[96];
	unsigned long long ran, waited;

	snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", (int)tid);
	nsv_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t n = read(fd, text, sizeof(text) - 1);
	if (n < 0)
		return -errno;
	text[n] = '\0';
	if (sscanf(text, "%llu %llu", &ran, &waited) != 2)
		return -EPROTO;
	*ret_ns = waited;
	return 0;
}

int nsv_team_delay_ns(const struct nsv_team *team, uint64_t *ret_ns)
{
	uint64_t sum, ns;
	int r = read_delay(gettid(), &sum);

	for (uint32_t i = 1; r == 0 && i < team->n_member; i++) {
		pid_t tid = atomic_load_explicit(&team->members[i].tid, memory_order_relaxed);

		if (tid == 0)
			continue;
		r = read_delay(tid, &ns);
		sum += r == 0 ? ns : 0;
	}
	if (r == 0)
		*ret_ns = sum;
	return r;
}
