/* mmap of whole pages with PROT_NONE at both ends; a small table remembers what to unmap. */
#include "tests/tools/guard.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

struct guard {
	void *p, *map;
	size_t map_len;
	struct guard *next;
};

static struct guard *guards;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void give_up(const char *what)
{
	perror(what);
	abort();
}

void *nsv_guard_new(size_t len, size_t align, enum nsv_guard_side side)
{
	size_t body = (len + NSV_PAGE - 1) / NSV_PAGE * NSV_PAGE;
	struct guard *g = malloc(sizeof(*g));
	char *map = mmap(NULL, body + 2 * NSV_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!g || map == MAP_FAILED)
		give_up("guard");
	if (body && mprotect(map + NSV_PAGE, body, PROT_READ | PROT_WRITE))
		give_up("mprotect");
	*g = (struct guard){map + NSV_PAGE, map, body + 2 * NSV_PAGE, NULL};
	if (side == NSV_GUARD_AFTER)
		g->p = map + NSV_PAGE + (body - len) / align * align;
	memset(map + NSV_PAGE, 0xa5, body);
	pthread_mutex_lock(&lock);
	g->next = guards;
	guards = g;
	pthread_mutex_unlock(&lock);
	return g->p;
}

void nsv_guard_free(void *p)
{
	pthread_mutex_lock(&lock);
	for (struct guard **at = &guards; p && *at; at = &(*at)->next)
		if ((*at)->p == p) {
			struct guard *g = *at;
			*at = g->next;
			munmap(g->map, g->map_len);
			free(g);
			break;
		}
	pthread_mutex_unlock(&lock);
}
