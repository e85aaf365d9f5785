/* A small file, whole: the config, what the kernel says. Any thread. */
#ifndef NSV_DAEMON_FILE_H
#define NSV_DAEMON_FILE_H

#include "shm/base.h"

/* All of it and a NUL to buf, which has room for `cap` bytes; *ret_len without the NUL. 0 or -errno;
 * -EFBIG: that is not enough. */
int nsv_file_read(const char *path, char *buf, size_t cap, size_t *ret_len);

#endif
