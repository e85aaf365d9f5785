/* A table of ranges, read by the signal handler: places are reused, never moved. */
#include "daemon/sigbus.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/log.h"

struct watched {
	uintptr_t begin, end; /* begin is 0 when the place is free; it is stored last */
	int hit;
};

static struct watched ranges[NSV_SIGBUS_MAX];
static int n_range; /* places ever used */

static struct {
	uintptr_t begin, end;
	char name[128];
} file;

static struct watched *find(uintptr_t at)
{
	int n = __atomic_load_n(&n_range, __ATOMIC_ACQUIRE);

	for (int i = 0; i < n; i++) {
		uintptr_t begin = __atomic_load_n(&ranges[i].begin, __ATOMIC_ACQUIRE);
		if (begin && at >= begin && at < ranges[i].end)
			return &ranges[i];
	}
	return NULL;
}

#define TOLD_S 10 /* time enough to write a line */

/* The first thread says it, and ends the process then; the others give it time for that. */
static void tell_of_file(uintptr_t at)
{
	static bool told;

	if (at < file.begin || at >= file.end)
		return;
	if (__atomic_exchange_n(&told, true, __ATOMIC_RELAXED)) {
		sleep(TOLD_S);
		return;
	}
	nsv_error("%s can no longer be read at byte %zu: it was cut short while in use, or its "
		  "disk fails",
		file.name, (size_t)(at - file.begin));
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr;
	struct watched *w = find(at);
	int saved = errno;
	(void)context;

	if (!w || mmap((void *)(at & ~(uintptr_t)(NSV_PAGE - 1)), NSV_PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
		tell_of_file(at);
		signal(sig, SIG_DFL); /* the access is tried again and ends the process */
		return;
	}
	__atomic_store_n(&w->hit, 1, __ATOMIC_RELEASE);
	errno = saved;
}

int nsv_sigbus_setup(void)
{
	struct sigaction sa = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};

	return sigaction(SIGBUS, &sa, NULL) < 0 ? -errno : 0;
}

int nsv_sigbus_add(const void *p, size_t len)
{
	int i = 0;

	while (i < n_range && ranges[i].begin)
		i++;
	if (i == NSV_SIGBUS_MAX)
		return -ENOSPC;
	ranges[i].end = (uintptr_t)p + len;
	__atomic_store_n(&ranges[i].hit, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&ranges[i].begin, (uintptr_t)p, __ATOMIC_RELEASE);
	if (i == n_range)
		__atomic_store_n(&n_range, n_range + 1, __ATOMIC_RELEASE);
	return i;
}

void nsv_sigbus_remove(int index)
{
	if (index >= 0)
		__atomic_store_n(&ranges[index].begin, 0, __ATOMIC_RELEASE);
}

bool nsv_sigbus_hit(int index)
{
	return index >= 0 && __atomic_load_n(&ranges[index].hit, __ATOMIC_ACQUIRE);
}

void nsv_sigbus_set_file(const void *p, size_t len, const char *name)
{
	file.begin = (uintptr_t)p;
	file.end = (uintptr_t)p + len;
	snprintf(file.name, sizeof(file.name), "%s", name);
}
