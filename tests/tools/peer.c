/* llama.cpp's programs run, and its server spoken to over HTTP. */
#include "tests/tools/peer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "shm/clock.h"
#include "tests/tools/proc.h"

#define MAX_STREAM 64
#define EVENT "data: {"

bool nsv_peer_is_there(void)
{
	return getenv("LLAMA_CPP") != NULL;
}

/* ---- Its programs */

json_t *nsv_peer_run(const char *program, const char *arguments)
{
	const size_t flags = JSON_DISABLE_EOF_CHECK;
	char command[1024];
	json_t *list = json_array(), *v;

	if (!nsv_peer_is_there())
		return NULL;
	snprintf(command, sizeof(command), "%s/bin/%s %s 2>/dev/null", getenv("LLAMA_CPP"), program,
		arguments);
	FILE *f = popen(command, "re");
	while (f && (v = json_loadf(f, flags, NULL)))
		json_array_append_new(list, v);
	if (f && pclose(f) == 0 && json_array_size(list) > 0)
		return list;
	json_decref(list);
	return NULL;
}

double nsv_peer_rate(const char *model, const char *threads, int n_prompt, int n_gen, int depth)
{
	char arguments[768];

	snprintf(arguments, sizeof(arguments), "-m '%s' -t %s -p %d -n %d -d %d -r %d -o json",
		model, threads, n_prompt, n_gen, depth, depth ? 1 : 3);
	json_t *list = nsv_peer_run("llama-bench", arguments);
	json_t *row = json_array_get(json_array_get(list, 0), 0);
	double rate = json_number_value(json_object_get(row, "avg_ts"));
	json_decref(list);
	return rate;
}

/* ---- Its server */

static int connect_to(int port)
{
	struct sockaddr_in addr = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0)
		return -errno;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		int code = -errno;
		close(fd);
		return code;
	}
	return fd;
}

/* One that is free now; the server takes it a moment later. */
static int free_port(void)
{
	struct sockaddr_in addr = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(addr);
	nsv_autoclose int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, len) < 0 ||
		getsockname(fd, (struct sockaddr *)&addr, &len) < 0)
		return -errno;
	return ntohs(addr.sin_port);
}

static void exec_server(const struct nsv_peer_server *s, const char *model, const char *threads,
	uint32_t n_slot, uint32_t n_ctx)
{
	char program[512], port[16], slots[16], ctx[16];
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(program, sizeof(program), "%s/bin/llama-server", getenv("LLAMA_CPP"));
	snprintf(port, sizeof(port), "%d", s->port);
	snprintf(slots, sizeof(slots), "%u", n_slot);
	snprintf(ctx, sizeof(ctx), "%u", n_ctx);
	dup2(null, STDIN_FILENO);
	dup2(null, STDOUT_FILENO);
	dup2(null, STDERR_FILENO);
	execl(program, program, "-m", model, "-t", threads, "-np", slots, "-c", ctx, "--host",
		"127.0.0.1", "--port", port, "--no-ui", "-cram", "0", (char *)NULL);
	_exit(127);
}

static bool is_healthy(const struct nsv_peer_server *s)
{
	static const char ask[] =
		"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
	char answer[64] = "";
	nsv_autoclose int fd = connect_to(s->port);

	if (fd < 0 || send(fd, ask, sizeof(ask) - 1, MSG_NOSIGNAL) < 0)
		return false;
	ssize_t n = recv(fd, answer, sizeof(answer) - 1, 0);
	return n > 0 && strstr(answer, " 200 ");
}

int nsv_peer_server_start(struct nsv_peer_server *s, const char *model, const char *threads,
	uint32_t n_slot, uint32_t n_ctx)
{
	struct timespec nap = {.tv_nsec = 50000000};

	if (!nsv_peer_is_there())
		return -ENOENT;
	*s = (struct nsv_peer_server){.port = free_port()};
	if (s->port < 0)
		return s->port;
	s->pid = nsv_proc_fork();
	if (s->pid == 0)
		exec_server(s, model, threads, n_slot, n_ctx);
	while (!is_healthy(s)) {
		if (waitpid(s->pid, NULL, WNOHANG) == s->pid)
			return -ECHILD;
		nanosleep(&nap, NULL);
	}
	return 0;
}

void nsv_peer_server_stop(struct nsv_peer_server *s)
{
	kill(s->pid, SIGKILL);
	waitpid(s->pid, NULL, 0);
}

/* ---- Streams */

static char *make_body(const int32_t *ids, uint32_t n_id, uint32_t n_output)
{
	json_t *prompt = json_array();

	for (uint32_t i = 0; i < n_id; i++)
		json_array_append_new(prompt, json_integer(ids[i]));
	json_t *root = json_pack("{s:o, s:i, s:b, s:b, s:b, s:i}", "prompt", prompt, "n_predict",
		(int)n_output, "stream", 1, "ignore_eos", 1, "cache_prompt", 0, "temperature", 0);
	char *body = json_dumps(root, JSON_COMPACT);
	json_decref(root);
	return body;
}

static int send_all(int fd, const char *p, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
		if (n < 0)
			return -errno;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int nsv_peer_stream_open(struct nsv_peer_stream *st, const struct nsv_peer_server *s,
	const int32_t *ids, uint32_t n_id, uint32_t n_output)
{
	nsv_autofree char *body = make_body(ids, n_id, n_output);
	char head[256];

	*st = (struct nsv_peer_stream){.fd = connect_to(s->port)};
	if (st->fd < 0)
		return st->fd;
	int n = snprintf(head, sizeof(head),
		"POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
		"Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
		strlen(body));
	st->start_ns = nsv_now_ns();
	int ret = send_all(st->fd, head, (size_t)n);
	return ret < 0 ? ret : send_all(st->fd, body, strlen(body));
}

/* An event begins with EVENT, which two reads may have cut; the last one says "stop":true and has
 * no token. */
static void take_text(struct nsv_peer_stream *st, char *text, size_t len)
{
	uint64_t now = nsv_now_ns();
	const char *p = text;

	text[len] = '\0';
	while ((p = strstr(p, EVENT))) {
		if (st->n_event < NSV_PEER_EVENTS)
			st->event_ns[st->n_event++] = now;
		p += sizeof(EVENT) - 1;
	}
	st->n_tail = nsv_min(len, sizeof(EVENT) - 2);
	memcpy(st->tail, text + len - st->n_tail, st->n_tail);
}

/* 1: more will come, 0: it has ended, -errno. */
static int read_some(struct nsv_peer_stream *st)
{
	char text[sizeof(st->tail) + 16384 + 1];

	memcpy(text, st->tail, st->n_tail);
	ssize_t n = recv(st->fd, text + st->n_tail, 16384, 0);
	if (n < 0)
		return -errno;
	if (n == 0)
		return 0;
	take_text(st, text, st->n_tail + (size_t)n);
	return 1;
}

int nsv_peer_streams_read(struct nsv_peer_stream *st, size_t n)
{
	struct pollfd p[MAX_STREAM];
	size_t n_open = n;

	if (n > MAX_STREAM)
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		p[i] = (struct pollfd){.fd = st[i].fd, .events = POLLIN};
	while (n_open > 0) {
		if (poll(p, n, 120000) <= 0)
			return -ETIMEDOUT;
		for (size_t i = 0; i < n; i++) {
			int ret = p[i].revents ? read_some(&st[i]) : 1;
			if (ret < 0)
				return ret;
			if (ret > 0)
				continue;
			close(st[i].fd);
			p[i].fd = -1;
			n_open--;
		}
	}
	return 0;
}

int nsv_peer_stream_read_until(struct nsv_peer_stream *st, uint32_t n_event)
{
	while (st->n_event < n_event) {
		int ret = read_some(st);
		if (ret <= 0)
			return ret < 0 ? ret : -ENODATA;
	}
	return 0;
}
