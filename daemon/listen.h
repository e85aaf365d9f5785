/* The listening socket at a path of the file system. Of daemons that start at once, or one that
 * starts as another ends, one has the path, and none takes away what is another's: looking at what
 * is there and putting something else there is one step, under a lock of the folder. */
#ifndef NSV_DAEMON_LISTEN_H
#define NSV_DAEMON_LISTEN_H

#include "shm/base.h"

#include <sys/stat.h>

struct nsv_listen_file {
	dev_t dev;
	ino_t ino; /* 0: no file is ours */
};

/* Listens at the path in place of a daemon that is no more; -EADDRINUSE: one is. Owner and group
 * may connect. */
int nsv_listen_at(
	const char *path, int *ret_fd, struct nsv_listen_file *ret_file, struct nsv_err *err);
/* Removes the file, if it is still this one. Before the socket is closed: until then no other file
 * can have its number. */
void nsv_listen_remove(const char *path, const struct nsv_listen_file *file);

#endif
