/* An array, kept in the order of its coming. */
#include "tests/tools/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/tools/fds.h"

int nsv_store_begin(struct nsv_store *s, const char *path)
{
	*s = (struct nsv_store){.addr.sun_family = AF_UNIX};
	snprintf(s->addr.sun_path, sizeof(s->addr.sun_path), "%s", path);
	s->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	unlink(s->addr.sun_path);
	if (s->fd < 0 || bind(s->fd, (struct sockaddr *)&s->addr, sizeof(s->addr)) < 0)
		return -errno;
	return setenv("NOTIFY_SOCKET", s->addr.sun_path, 1) < 0 ? -errno : 0;
}

void nsv_store_end(struct nsv_store *s)
{
	while (s->n_stored > 0)
		close(s->stored[--s->n_stored].fd);
	close(s->fd);
	unlink(s->addr.sun_path);
	unsetenv("NOTIFY_SOCKET");
}

void nsv_store_forget(struct nsv_store *s, const char *name)
{
	int n = 0;

	for (int i = 0; i < s->n_stored; i++) {
		if (strcmp(s->stored[i].name, name) == 0)
			close(s->stored[i].fd);
		else
			s->stored[n++] = s->stored[i];
	}
	s->n_stored = n;
}

void nsv_store_add(struct nsv_store *s, const char *name, int fd)
{
	if (s->n_stored == NSV_STORE_MAX) {
		close(fd);
		return;
	}
	s->stored[s->n_stored].fd = fd;
	snprintf(s->stored[s->n_stored++].name, sizeof(s->stored[0].name), "%s", name);
}

/* The value of KEY= in a message of lines, or "". */
static const char *value(const char *message, const char *key, char *buf, size_t len)
{
	const char *at = strstr(message, key);

	buf[0] = '\0';
	if (at && (at == message || at[-1] == '\n'))
		snprintf(buf, len, "%.*s", (int)strcspn(at + strlen(key), "\n"), at + strlen(key));
	return buf;
}

bool nsv_store_turn(struct nsv_store *s)
{
	char message[4096], name[sizeof(s->stored[0].name)], flag[8];
	int fds[NSV_FDS_MAX];
	size_t n;
	ssize_t len = nsv_fds_recv(s->fd, message, sizeof(message) - 1, fds, &n);

	if (len < 0)
		return false;
	message[len] = '\0';
	value(message, "FDNAME=", name, sizeof(name));
	if (*value(message, "FDSTOREREMOVE=", flag, sizeof(flag)) == '1')
		nsv_store_forget(s, name);
	s->n_watchdog += *value(message, "WATCHDOG=", flag, sizeof(flag)) == '1';
	bool keep = *value(message, "FDSTORE=", flag, sizeof(flag)) == '1';
	for (size_t i = 0; i < n; i++) {
		if (keep)
			nsv_store_add(s, name, fds[i]);
		else
			close(fds[i]); /* a barrier's too: that is its answer */
	}
	return true;
}
