/* The service manager's store of descriptors, played: what sd_notify(3) says of FDSTORE with
 * FDNAME, FDSTOREREMOVE and BARRIER. */
#ifndef NSV_TESTS_TOOLS_STORE_H
#define NSV_TESTS_TOOLS_STORE_H

#include <stdbool.h>
#include <sys/un.h>

#define NSV_STORE_MAX 1024

struct nsv_store {
	int fd; /* where notifications come in */
	struct sockaddr_un addr;
	struct {
		int fd;
		char name[64];
	} stored[NSV_STORE_MAX];
	int n_stored;
	unsigned int n_watchdog; /* signs of life */
};

/* Listens at that path, and says so in $NOTIFY_SOCKET. 0 or -errno. */
int nsv_store_begin(struct nsv_store *s, const char *path);
/* Closes all that is stored. */
void nsv_store_end(struct nsv_store *s);
/* Does what the next notification asks for; false: none has come. */
bool nsv_store_turn(struct nsv_store *s);
/* Stores a descriptor, which is the store's then. Without room it says nothing, as the manager. */
void nsv_store_add(struct nsv_store *s, const char *name, int fd);
/* Closes all of that name. */
void nsv_store_forget(struct nsv_store *s, const char *name);

#endif
