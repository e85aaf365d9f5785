/* Places at the file system for sockets. */
#include "daemon/listen.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "daemon/log.h"

#define BACKLOG 1024
#define LOCK_TRIES 3000 /* a millisecond apart */

static int make_address(const char *path, struct sockaddr_un *ret, struct nsv_err *err)
{
	*ret = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (!*path) /* the kernel would choose a name that everybody may connect to */
		return nsv_fail(err, -EINVAL, "the socket's path is empty");
	if (strlen(path) >= sizeof(ret->sun_path))
		return nsv_fail(err, -ENAMETOOLONG, "socket path %s: %zu bytes are allowed", path,
			sizeof(ret->sun_path) - 1);
	strcpy(ret->sun_path, path);
	return 0;
}

static int open_folder(const char *path)
{
	struct sockaddr_un addr;
	char folder[sizeof(addr.sun_path)];
	const char *slash = strrchr(path, '/');
	size_t len = slash == path ? 1 : slash ? (size_t)(slash - path) : 0;

	snprintf(folder, sizeof(folder), "%.*s", (int)len, path);
	return open(len > 0 ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Who holds it does so for an instant, unless it means harm: whoever may read a folder may lock it.
 * A descriptor to close, or -EWOULDBLOCK: it is held for longer; other errors: it cannot be locked. */
static int lock_folder(const char *path)
{
	const struct timespec nap = {.tv_nsec = 1000000};
	int fd = open_folder(path), ret = fd < 0 ? -errno : -EWOULDBLOCK;

	for (int i = 0; ret == -EWOULDBLOCK && i < LOCK_TRIES; i++) {
		if (i > 0)
			nanosleep(&nap, NULL);
		ret = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : fd;
	}
	if (fd >= 0 && ret < 0)
		close(fd);
	return ret;
}

/* Is the process that listens at the other end of a connected socket alive? The kernel lets go of a
 * killed daemon's ring, and of its listening socket, some time after the process itself. */
static bool is_served(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0 || cred.pid <= 0 ||
	       kill(cred.pid, 0) == 0 || errno != ESRCH;
}

/* A socket file that nobody listens on is left over from a crash: away with it. */
static int remove_stale(const struct sockaddr_un *addr, struct nsv_err *err)
{
	struct stat st;

	if (lstat(addr->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return nsv_fail(err, -EEXIST, "%s exists and is not a socket", addr->sun_path);
	nsv_autoclose int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	bool connected = connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0;
	if (connected ? is_served(fd) : errno == EAGAIN)
		return nsv_fail(err, -EADDRINUSE, "another daemon serves %s", addr->sun_path);
	return unlink(addr->sun_path) < 0 ? -errno : 0;
}

/* Owner and group: others' access is the administrator's to give. */
static int bind_and_listen(int fd, const struct sockaddr_un *addr, struct nsv_listen_file *ret_file,
	struct nsv_err *err)
{
	struct stat st;
	mode_t old = umask(0117);
	int ret = bind(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 ? -errno : 0;

	umask(old);
	if (ret < 0)
		return nsv_fail(err, ret, "socket %s: %s", addr->sun_path, strerror(-ret));
	if (lstat(addr->sun_path, &st) == 0)
		*ret_file = (struct nsv_listen_file){st.st_dev, st.st_ino};
	return listen(fd, BACKLOG) < 0 ? -errno : 0;
}

int nsv_listen_at(
	const char *path, int *ret_fd, struct nsv_listen_file *ret_file, struct nsv_err *err)
{
	struct sockaddr_un addr;
	int ret = make_address(path, &addr, err);

	if (ret < 0)
		return ret;
	nsv_autoclose int lock = lock_folder(path);
	if (lock == -EWOULDBLOCK) /* nobody's lock keeps a daemon from its place */
		nsv_warning("socket %s: another process holds a lock of its folder", path);
	ret = remove_stale(&addr, err);
	if (ret < 0)
		return ret;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	ret = bind_and_listen(fd, &addr, ret_file, err);
	if (ret < 0)
		close(fd);
	else
		*ret_fd = fd;
	return ret;
}

void nsv_listen_remove(const char *path, const struct nsv_listen_file *file)
{
	struct stat st;

	nsv_autoclose int lock = lock_folder(path);
	/* A file that stays the next daemon takes for what it is. */
	if (lock == -EWOULDBLOCK)
		return;
	if (lstat(path, &st) == 0 && st.st_dev == file->dev && st.st_ino == file->ino)
		unlink(path);
}
