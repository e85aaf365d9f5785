/* Reading a small file. */
#include "daemon/file.h"

#include <errno.h>
#include <stdio.h>

int nsv_file_read(const char *path, char *buf, size_t cap, size_t *ret_len)
{
	FILE *f = fopen(path, "re");

	if (!f)
		return -errno;
	errno = 0;
	size_t len = fread(buf, 1, cap, f);
	int ret = ferror(f) ? -(errno ? errno : EIO) : len == cap ? -EFBIG : 0;
	fclose(f);
	if (ret < 0)
		return ret;
	buf[len] = '\0';
	*ret_len = len;
	return 0;
}
