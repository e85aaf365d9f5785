/* sd-daemon, in one place. */
#include "daemon/notify.h"

#include <fcntl.h>
#include <string.h>
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
	return usec * 1000 / 4;
}

void nsv_notify_watchdog(void)
{
	sd_notify(0, "WATCHDOG=1");
}

/* ---- Descriptors that were passed */

int nsv_passed_init(struct nsv_passed *p)
{
	char **names = NULL;
	int n = sd_listen_fds_with_names(1, &names);

	*p = (struct nsv_passed){0};
	if (n <= 0)
		return n;
	p->fds = calloc((size_t)n, sizeof(*p->fds));
	p->names = names;
	p->n = (uint32_t)n;
	for (int i = 0; p->fds && i < n; i++)
		p->fds[i] = SD_LISTEN_FDS_START + i;
	return p->fds ? 0 : -ENOMEM;
}

void nsv_passed_forget(struct nsv_passed *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->fds[i] >= 0)
			nsv_notify_forget(p->names[i]);
}

void nsv_passed_deinit(struct nsv_passed *p)
{
	for (uint32_t i = 0; i < p->n; i++) {
		if (p->fds && p->fds[i] >= 0)
			close(p->fds[i]);
		free(p->names[i]);
	}
	free(p->names);
	free(p->fds);
	*p = (struct nsv_passed){0};
}

static int take(struct nsv_passed *p, uint32_t i)
{
	int fd = p->fds[i];

	p->fds[i] = -1;
	return fd;
}

int nsv_passed_take(struct nsv_passed *p, const char *name)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->fds[i] >= 0 && strcmp(p->names[i], name) == 0)
			return take(p, i);
	return -1;
}

int nsv_passed_take_listener(struct nsv_passed *p, int *ret_fd, struct nsv_err *err)
{
	int fd = -1;

	for (uint32_t i = 0; i < p->n; i++) {
		if (p->fds[i] < 0 || sd_is_socket(p->fds[i], AF_UNSPEC, 0, 1) <= 0)
			continue;
		if (fd >= 0 || sd_is_socket_unix(p->fds[i], SOCK_SEQPACKET, 1, NULL, 0) <= 0)
			return nsv_fail(err, -EINVAL,
				"the service manager passed the listening socket %s: one "
				"SOCK_SEQPACKET socket is expected",
				p->names[i]);
		fd = take(p, i);
	}
	if (fd < 0)
		return nsv_fail(err, -ENOENT, "no socket was passed by the service manager");
	*ret_fd = fd;
	return 0;
}

/* ---- The store */

bool nsv_notify_can_store(void)
{
	return getenv("NOTIFY_SOCKET") != NULL;
}

static int send_fds(const char *message, const int *fds, uint32_t n)
{
	int ret = sd_pid_notify_with_fds(0, 0, message, fds, n);

	return ret < 0 ? ret : 0;
}

/* FDPOLL=0: what the manager keeps is never let go of because the other side hung up. */
int nsv_notify_store(const char *name, const int *fds, uint32_t n)
{
	char message[128];

	snprintf(message, sizeof(message), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
	return send_fds(message, fds, n);
}

int nsv_notify_forget(const char *name)
{
	char message[128];

	snprintf(message, sizeof(message), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	return send_fds(message, NULL, 0);
}

int nsv_notify_barrier(int *ret_fd)
{
	int pipe_fds[2];

	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return -errno;
	int ret = send_fds("BARRIER=1", &pipe_fds[1], 1);
	close(pipe_fds[1]);
	if (ret < 0)
		close(pipe_fds[0]);
	else
		*ret_fd = pipe_fds[0];
	return ret;
}
