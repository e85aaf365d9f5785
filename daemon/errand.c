/* A thread, or the call itself. */
#include "daemon/errand.h"

#include <sys/prctl.h>

static void *run(void *arg)
{
	struct nsv_errand *e = arg;

	prctl(PR_SET_NAME, "nsv-start");
	e->ret = e->fn(e->arg);
	return NULL;
}

void nsv_errand_start(struct nsv_errand *e, int (*fn)(void *arg), void *arg)
{
	*e = (struct nsv_errand){.fn = fn, .arg = arg};
	e->apart = pthread_create(&e->thread, NULL, run, e) == 0;
	if (!e->apart)
		e->ret = fn(arg);
}

int nsv_errand_wait(struct nsv_errand *e)
{
	if (e->apart)
		pthread_join(e->thread, NULL);
	e->apart = false;
	return e->ret;
}
