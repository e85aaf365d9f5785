/* sd-daemon, in one place. */
#include "daemon/notify.h"

#include <sys/socket.h>
#include <systemd/sd-daemon.h>

bool nsv_notify_managed(void)
{
	return getenv("JOURNAL_STREAM") != NULL;
}

void nsv_notify_ready(const char *status)
{
	sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

void nsv_notify_stopping(void)
{
	sd_notify(0, "STOPPING=1\nSTATUS=stopping");
}

uint64_t nsv_notify_watchdog_ns(void)
{
	uint64_t usec;

	if (sd_watchdog_enabled(0, &usec) <= 0)
		return 0;
	return usec * 1000 / 2;
}

void nsv_notify_watchdog(void)
{
	sd_notify(0, "WATCHDOG=1");
}

int nsv_notify_listen_fd(int *ret_fd, struct nsv_err *err)
{
	int n = sd_listen_fds(1);

	if (n == 0)
		return nsv_fail(err, -ENOENT, "no socket was passed by the service manager");
	if (n != 1 || sd_is_socket_unix(SD_LISTEN_FDS_START, SOCK_SEQPACKET, 1, NULL, 0) <= 0)
		return nsv_fail(err, -EINVAL,
			"the service manager passed %d descriptors; one listening "
			"SOCK_SEQPACKET socket is expected",
			n);
	*ret_fd = SD_LISTEN_FDS_START;
	return 0;
}
