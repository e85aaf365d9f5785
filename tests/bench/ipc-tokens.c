/* Tokens from an engine that computes nothing to the client library: the daemon's own channel,
 * event rule and bell on one side, nsv_request_next on the other. Token number i is the id i, so
 * that the reader knows whose stamp to look at. */
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "daemon/engine_state.h"
#include "shm/clock.h"
#include "shm/wire.h"
#include "tests/bench/ipc.h"

/* ---- The engine's side */

static struct nsv_sqe next_entry(struct nsv_channel *ch)
{
	struct nsv_sqe sqe;

	while (nsv_channel_next(ch, &sqe) != 0)
		nsv_pause();
	nsv_channel_taken(ch, ch->io.sq.head);
	return sqe;
}

static void greet(int fd, struct nsv_channel *ch)
{
	char packet[sizeof(struct nsv_hello)];
	struct nsv_hello hello;
	struct nsv_geom geom;
	struct nsv_err err = {""};
	int down_fd = -1;
	ssize_t n = recv(fd, packet, sizeof(packet), 0);

	if (n < 0 || nsv_hello_check(packet, (size_t)n, &hello, &err) != 0)
		die("no hello");
	nsv_geom_complete(&hello.want, &geom);
	nsv_channel_prepare(ch, &geom);
	if (nsv_channel_allocate(ch, &err) < 0 || nsv_channel_init(ch, 1, fd) < 0 ||
		nsv_region_reopen_ro(&ch->down_region, &down_fd) < 0)
		die(err.text);
	nsv_channel_set_waiting(ch, false); /* it looks by itself */
	struct nsv_welcome w = nsv_welcome_make(1, &geom, ch->up_region.len, ch->down_region.len);
	if (nsv_welcome_send(fd, &w, ch->up_region.fd, down_fd) < 0)
		die("no welcome");
}

static void wait_room(const struct nsv_sink *sink)
{
	while (nsv_sink_token_room(sink) == 0 || nsv_sink_text_room(sink) < 8)
		nsv_pause();
}

static void send_tokens(struct nsv_job *job, struct stamps *s)
{
	struct nsv_result result = {.finish = NSV_FINISH_LENGTH, .n_output = s->n};

	for (uint32_t i = 0; i < s->n; i++) {
		int32_t id = (int32_t)i;
		if (s->lockstep)
			wait_taken(s, i);
		else
			wait_room(&job->sink);
		s->ns[i] = nsv_now_ns();
		nsv_sink_tokens(&job->sink, &id, 1);
		nsv_sink_text(&job->sink, " four", 5);
		nsv_engine_tell(job, NSV_CQE_TOKENS);
	}
	nsv_sink_finish(&job->sink, &result);
	nsv_engine_tell(job, NSV_CQE_FINISHED);
}

static void serve_tokens(int listener, void *arg)
{
	struct nsv_channel ch;
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	greet(fd, &ch);
	struct nsv_sqe sqe = next_entry(&ch);
	struct nsv_job job = {.ch = &ch, .id = sqe.request_id, .slot = sqe.slot};
	nsv_sink_begin(&job.sink, &ch, job.slot, job.id, NULL);
	nsv_sink_state(&job.sink, NSV_SLOT_RUNNING);
	nsv_engine_tell(&job, NSV_CQE_ACCEPTED);
	send_tokens(&job, arg);
	pause(); /* until the client has read it all */
}

/* ---- The client's side */

static int listen_at(char path[64])
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(path, 64, "/tmp/nanoserve-bench-%d.sock", (int)getpid());
	strcpy(addr.sun_path, path);
	unlink(path);
	if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || listen(fd, 1) < 0)
		die("no socket");
	return fd;
}

/* A stream from an engine that has just begun; `us` NULL: nobody asks for the times. */
static void read_stream(const char *path, struct stamps *s, double *us)
{
	struct nsv_client *client = open_client(path, s->mode == AWAKE);
	struct nsv_request *request;
	struct nsv_client_chunk chunk = {.size = sizeof(chunk)};
	uint32_t n = 0;

	if (nsv_client_submit_text(client, "x", 1, NULL, &request) < 0)
		die("the engine takes no request");
	while (nsv_request_next(request, 10000, &chunk) > 0) {
		uint64_t now = nsv_now_ns();
		for (size_t i = 0; us && i < chunk.n_token; i++)
			us[n + i] = (double)(now - s->ns[chunk.tokens[i]]) / 1e3;
		n += (uint32_t)chunk.n_token;
		nsv_store_rel_u32(&s->taken, n);
	}
	if (n != s->n)
		die("tokens were lost");
	nsv_client_close(client);
}

static void stream(struct stamps *s, double *us)
{
	char path[64];
	nsv_autoclose int listener = listen_at(path);
	pid_t pid = begin_other(s->mode, serve_tokens, listener, s);

	read_stream(path, s, us);
	end_other(pid);
	unlink(path);
}

void take_token(enum mode mode, double *us, size_t n)
{
	struct stamps *s = new_stamps((uint32_t)n, mode);

	stream(s, us);
	free_stamps(s);
}

double seconds_of_tokens(uint32_t n)
{
	struct stamps *s = new_stamps(n, AWAKE);

	s->lockstep = false;
	stream(s, NULL);
	double seconds = (double)(nsv_now_ns() - s->ns[0]) / 1e9;
	free_stamps(s);
	return seconds;
}
