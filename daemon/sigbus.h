/* Memory that a client can punch holes into may fault when it is read (SIGBUS on a full tmpfs). A
 * fault inside a watched range maps a private zero page there and raises the range's flag: the
 * reader reads zeros, and whoever owns the range drops the session when it sees the flag. Costs
 * nothing on the path. A fault anywhere else ends the process as ever; inside the mapped file it
 * first says which file has lost its bytes.
 *
 * add, remove: the io thread. hit: any thread. set_file: while one thread runs. */
#ifndef NSV_DAEMON_SIGBUS_H
#define NSV_DAEMON_SIGBUS_H

#include "shm/base.h"

#define NSV_SIGBUS_MAX 8192

int nsv_sigbus_setup(void);
/* Watches [p, p + len), both page-aligned: an index >= 0, or -ENOSPC. */
int nsv_sigbus_add(const void *p, size_t len);
void nsv_sigbus_remove(int index);
bool nsv_sigbus_hit(int index);
/* A file is mapped at [p, p + len), its name as messages show it. A len of 0: no file is. */
void nsv_sigbus_set_file(const void *p, size_t len, const char *name);

#endif
