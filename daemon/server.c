/* The io thread: what it waits for and what it does then. */
#include "daemon/server.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/session.h"
#include "daemon/sigbus.h"
#include "shm/clock.h"
#include "shm/wire.h"

#define USUAL_SESSION (1400u << 10) /* as the library makes it */
#define ACCEPT_RETRY_NS 100000000u
#define HELLO_CHECK_NS 1000000000u
#define TEND_NS 1000000000u
#define TELL_NS 1000000000u
#define USER_TURN_NS 1000000u /* of visits to its sessions; one that has begun ends */
#define FDS_ELSE 1024 /* beside those of sessions */

/* ---- Signals */

static sigset_t handled_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGUSR1);
	return set;
}

int nsv_server_block_signals(void)
{
	sigset_t set = handled_signals();

	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a region beyond RLIMIT_FSIZE: EFBIG, no end of all sessions */
	return sigprocmask(SIG_BLOCK, &set, NULL) < 0 ? -errno : 0;
}

static void on_signal(struct nsv_source *src, enum nsv_event event, int res, const void *data)
{
	struct nsv_server *s = NSV_CONTAINER_OF(src, struct nsv_server, signal_src);
	struct signalfd_siginfo info;
	(void)event, (void)res, (void)data;

	while (read(s->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGUSR1) {
			nsv_engine_audit(s->engine);
		} else {
			nsv_info("%s: stopping", info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
			s->stopping = true;
		}
	}
}

/* ---- Connections */

/* Unless it runs already: whoever it calls says that it no longer does. */
static void arm(struct nsv_server *s, struct nsv_source *timer, bool *is_armed, uint64_t ns)
{
	if (*is_armed)
		return;
	*is_armed = true;
	nsv_source_timer(s->loop, timer, ns);
}

static void on_accept(struct nsv_source *src, enum nsv_event event, int res, const void *data)
{
	struct nsv_server *s = NSV_CONTAINER_OF(src, struct nsv_server, listen_src);
	(void)data;

	if (event == NSV_EV_ENDED) { /* no descriptors or memory: try again soon, not at once */
		if (!s->accept_failed)
			nsv_warning("accept: %s", strerror(-res));
		s->accept_failed = true;
		nsv_source_timer(s->loop, &s->accept_timer, ACCEPT_RETRY_NS);
		return;
	}
	if (event != NSV_EV_FD)
		return;
	s->accept_failed = false;
	nsv_session_new(s, res);
	arm(s, &s->hello_timer, &s->hello_timer_armed, HELLO_CHECK_NS);
}

static void on_accept_timer(struct nsv_source *src, enum nsv_event event, int res, const void *data)
{
	struct nsv_server *s = NSV_CONTAINER_OF(src, struct nsv_server, accept_timer);
	(void)res, (void)data;

	if (event == NSV_EV_TIME)
		nsv_source_accept(s->loop, &s->listen_src, s->listen_fd);
}

/* Closes connections that were not welcomed in time; sleeps for good once none is left. */
static void on_hello_timer(struct nsv_source *src, enum nsv_event event, int res, const void *data)
{
	struct nsv_server *s = NSV_CONTAINER_OF(src, struct nsv_server, hello_timer);
	uint64_t now = nsv_now_ns();
	(void)res, (void)data;

	if (event != NSV_EV_TIME)
		return;
	for (struct nsv_session *se = s->hellos, *next; se; se = next) {
		next = se->next_hello;
		nsv_session_check_deadline(se, now);
	}
	s->hello_timer_armed = false;
	if (s->n_hello > 0)
		arm(s, &s->hello_timer, &s->hello_timer_armed, HELLO_CHECK_NS);
}

/* ---- Vaults */

static void on_vault_ready(struct nsv_vaults *v)
{
	struct nsv_server *s = NSV_CONTAINER_OF(v, struct nsv_server, vaults);

	for (struct nsv_session *se = s->hellos, *next; se; se = next) {
		next = se->next_hello;
		if (se->waits_for_vault)
			nsv_session_welcome(se);
	}
}

/* Some time after a session ended, its descriptors leave the vaults for good. */
static void on_tend_timer(struct nsv_source *src, enum nsv_event event, int res, const void *data)
{
	struct nsv_server *s = NSV_CONTAINER_OF(src, struct nsv_server, tend_timer);
	(void)res, (void)data;

	if (event != NSV_EV_TIME)
		return;
	s->tend_timer_armed = false;
	nsv_vaults_tend(&s->vaults, true);
	nsv_server_tend_vaults(s);
}

void nsv_server_tend_vaults(struct nsv_server *s)
{
	if (nsv_vaults_n_dead(&s->vaults) > 0)
		arm(s, &s->tend_timer, &s->tend_timer_armed, TEND_NS);
}

/* ---- Sessions dropped without a name */

/* Those that may be told then. */
static void tell_drops(struct nsv_server *s, uint64_t now_ns)
{
	for (int i = 0; i < NSV_SERVER_DROP_LIMITS; i++) {
		uint32_t n = nsv_log_unsaid(&s->drops_said[i], now_ns);
		if (n)
			nsv_info("%u more sessions were dropped, too many to name", n);
	}
}

static void on_drops_timer(struct nsv_source *src, enum nsv_event event, int res, const void *data)
{
	struct nsv_server *s = NSV_CONTAINER_OF(src, struct nsv_server, drops_timer);
	(void)res, (void)data;

	if (event != NSV_EV_TIME)
		return;
	s->drops_timer_armed = false;
	tell_drops(s, nsv_now_ns());
	for (int i = 0; i < NSV_SERVER_DROP_LIMITS; i++)
		if (s->drops_said[i].n_unsaid)
			nsv_server_tell_drops(s);
}

void nsv_server_tell_drops(struct nsv_server *s)
{
	arm(s, &s->drops_timer, &s->drops_timer_armed, TELL_NS);
}

/* ---- Messages from the engine and the workers */

static void on_memory_work(struct nsv_server *s, struct nsv_msg *msg)
{
	struct nsv_session *se = NSV_CONTAINER_OF(msg, struct nsv_session, memory_msg);

	nsv_memory_look_again(&s->memory);
	if (msg->kind == NSV_MSG_BUILT)
		nsv_session_built(se);
	else
		nsv_session_torn_down(se);
}

static void handle(struct nsv_server *s, struct nsv_msg *msg)
{
	switch (msg->kind) {
	case NSV_MSG_PREPARED:
		nsv_session_prepared(nsv_job_of(msg));
		break;
	case NSV_MSG_BUILT:
	case NSV_MSG_TORN_DOWN:
		on_memory_work(s, msg);
		break;
	case NSV_MSG_ACCEPTED:
		nsv_session_accepted(nsv_job_of(msg));
		break;
	case NSV_MSG_ENDED:
		nsv_session_ended(nsv_job_of(msg));
		break;
	case NSV_MSG_RELEASED:
		nsv_session_released(nsv_job_of(msg));
		break;
	case NSV_MSG_CLOSED:
		nsv_session_closed(NSV_CONTAINER_OF(msg, struct nsv_session_close, msg));
		break;
	case NSV_MSG_ALIVE:
		nsv_engine_heard(s->engine);
		break;
	case NSV_MSG_FAILED:
		s->stopping = true;
		s->exit_code = EXIT_FAILURE;
		break;
	}
}

static void handle_all(struct nsv_server *s)
{
	struct nsv_msg *msg = nsv_mailbox_take(&s->inbox);

	while (msg) {
		struct nsv_msg *next = msg->next;
		handle(s, msg);
		msg = next;
	}
}

static void on_inbox(struct nsv_source *src, enum nsv_event event, int res, const void *data)
{
	struct nsv_server *s = NSV_CONTAINER_OF(src, struct nsv_server, inbox_src);
	uint64_t n;
	(void)event, (void)res, (void)data;

	/* The count does not matter; the list does, and it is looked at after the count is
	 * taken. */
	if (read(s->inbox.event_fd, &n, sizeof(n)) == sizeof(n) || nsv_mailbox_any(&s->inbox))
		handle_all(s);
}

/* ---- Life */

/* The soft limit is a default for programs that use select(). */
static rlim_t raise_descriptor_limit(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) < 0)
		return 0;
	rlim_t soft = r.rlim_cur;
	r.rlim_cur = r.rlim_max;
	if (soft == r.rlim_max || setrlimit(RLIMIT_NOFILE, &r) == 0)
		return r.rlim_max;
	nsv_warning("RLIMIT_NOFILE stays as it is: %s", strerror(errno));
	return soft;
}

/* Has the kernel make its table of our descriptors large enough for every session now, while there
 * is one thread. Later each doubling would wait for all CPUs to pass a quiet point: 15 ms and more
 * in which the io thread serves nobody. No failure matters. */
static void reserve_descriptors(struct nsv_server *s, rlim_t limit)
{
	rlim_t want = NSV_SESSION_N_FD * NSV_MAX_SESSIONS + FDS_ELSE;
	int fd = fcntl(s->listen_fd, F_DUPFD_CLOEXEC, (int)nsv_min_u64(want, limit) - 1);

	if (fd >= 0)
		close(fd);
}

int nsv_server_init(struct nsv_server *s, const struct nsv_config *config,
	struct nsv_passed *passed, struct nsv_err *err)
{
	sigset_t set = handled_signals();
	int ret;

	*s = (struct nsv_server){.config = config,
		.listen_fd = -1,
		.signal_fd = -1,
		.users = {.limits = &config->limits, .memory = &s->memory},
		.memory = {.look = nsv_session_memory_left},
		.listen_src = {.fn = on_accept},
		.signal_src = {.fn = on_signal},
		.inbox_src = {.fn = on_inbox},
		.accept_timer = {.fn = on_accept_timer},
		.hello_timer = {.fn = on_hello_timer},
		.tend_timer = {.fn = on_tend_timer},
		.drops_timer = {.fn = on_drops_timer},
		.start_ns = nsv_now_ns()};
	s->hellos_end = &s->hellos;
	s->busy_end = &s->busy;
	rlim_t fd_limit = raise_descriptor_limit();
	ret = config->socket ? nsv_listen_at(config->socket, &s->listen_fd, &s->listen_file, err)
			     : nsv_passed_take_listener(passed, &s->listen_fd, err);
	reserve_descriptors(s, fd_limit);
	if (!config->socket && ret == -ENOENT)
		return nsv_fail(err, ret, "no socket: name one with --socket PATH");
	if (ret == 0 && nsv_wire_refuse_fds(s->listen_fd) < 0)
		nsv_warning("clients can pass descriptors, and one that takes long to close holds "
			    "up everybody: Linux 6.16 and later refuse them");
	if (ret == 0)
		ret = nsv_mailbox_init(&s->inbox, true);
	if (ret == 0) {
		s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
		ret = s->signal_fd < 0 ? -errno : 0;
	}
	if (ret == 0)
		ret = nsv_sigbus_setup();
	if (ret == 0)
		ret = nsv_loop_new(&s->loop, err);
	if (ret == 0)
		nsv_vaults_init(&s->vaults, s->loop, nsv_notify_can_store(), on_vault_ready);
	return ret;
}

/* The KV pool and what a prompt may need are kept before any session gets memory. */
static void warn_of_little_memory(const struct nsv_server *s)
{
	uint64_t left = nsv_session_memory_left(&s->memory);

	if (left < USUAL_SESSION)
		nsv_warning("%llu KiB of memory are left for sessions, which want %u each: a "
			    "smaller KV pool (kv_memory) or smaller prompts (limits.prompt_bytes) "
			    "leave more",
			(unsigned long long)left >> 10, USUAL_SESSION >> 10);
}

int nsv_server_attach(struct nsv_server *s, struct nsv_engine *engine, const struct nsv_tok *tok)
{
	s->engine = engine;
	s->tok = tok;
	int ret = nsv_worker_start(
		&s->prompt_worker, "nsv-tok", nsv_session_work_on_prompt, tok, &s->inbox);

	if (ret == 0)
		ret = nsv_worker_start(&s->memory_worker, "nsv-memory", nsv_session_work_on_memory,
			NULL, &s->inbox);
	if (ret < 0)
		return ret;
	warn_of_little_memory(s);
	nsv_source_accept(s->loop, &s->listen_src, s->listen_fd);
	nsv_source_poll(s->loop, &s->signal_src, s->signal_fd);
	nsv_source_poll(s->loop, &s->inbox_src, s->inbox.event_fd);
	return 0;
}

/* false: its user has had its share of this turn. */
static bool visit(struct nsv_server *s, struct nsv_session *se, uint64_t *now_ns)
{
	struct nsv_user *user = se->user;
	uint64_t start_ns = *now_ns;

	if (user->visited_turn != s->n_turn)
		user->visited_ns = 0;
	user->visited_turn = s->n_turn;
	if (user->visited_ns >= USER_TURN_NS)
		return false;
	se->is_ready = false;
	if (nsv_session_visit(se))
		nsv_session_make_ready(se);
	*now_ns = nsv_now_ns();
	user->visited_ns += *now_ns - start_ns;
	return true;
}

/* However many sessions a user has, others wait for no more than its share. Those that it leaves
 * over come first in the next turn, before the ones that have been visited. */
static void visit_ready(struct nsv_server *s)
{
	struct nsv_session *se = s->ready, *late = NULL, **late_end = &late;

	if (!se)
		return;
	uint64_t now_ns = nsv_now_ns();
	s->ready = NULL;
	s->n_turn++;
	while (se) {
		struct nsv_session *next = se->next_ready;
		if (!visit(s, se, &now_ns)) {
			*late_end = se;
			late_end = &se->next_ready;
		}
		se = next;
	}
	*late_end = s->ready;
	s->ready = late;
}

/* Hot sessions with something new become ready. */
static void look_at_hot(struct nsv_server *s)
{
	for (struct nsv_session *se = s->hot; se; se = se->next_hot)
		if (nsv_channel_ready(&se->ch) != 0)
			nsv_session_make_ready(se);
}

/* Every hot session is told that the daemon sleeps, and looked at once more. */
static void cool_down(struct nsv_server *s)
{
	while (s->hot) {
		struct nsv_session *se = s->hot;
		s->hot = se->next_hot;
		se->is_hot = false;
		nsv_channel_set_waiting(&se->ch, true);
		if (nsv_channel_ready(&se->ch) != 0)
			nsv_session_make_ready(se);
	}
}

/* Looks at hot sessions and at the inbox, in memory alone, until something comes or it has been
 * quiet for long enough. */
static void spin(struct nsv_server *s)
{
	while (!s->ready && !nsv_mailbox_any(&s->inbox) && nsv_now_ns() < s->hot_until_ns) {
		look_at_hot(s);
		nsv_pause();
	}
}

/* Has every request that began before the drain ended? Texts are tokenized and states told as
 * before; an answer to who asked later, and perhaps never reads it, is not waited for. */
static bool is_drained(const struct nsv_server *s)
{
	for (const struct nsv_session *se = s->sessions; se; se = se->next)
		if (se->state == NSV_SESSION_OPEN && nsv_session_is_busy(se, s->drain_ns))
			return false;
	return true;
}

/* Sessions end for good, and say so: a daemon that comes after this one begins with none. */
static void end_drained(struct nsv_server *s)
{
	nsv_info("drained: stopping");
	for (struct nsv_session *se = s->sessions; se; se = se->next)
		nsv_session_drop(se, NSV_E_STOPPING, NULL);
	s->stopping = true;
}

int nsv_server_run(struct nsv_server *s)
{
	while (!s->stopping) {
		if (s->hot && !s->ready && !s->busy)
			spin(s);
		bool quiet = !s->ready && !s->busy && nsv_now_ns() >= s->hot_until_ns;
		if (quiet)
			cool_down(s);
		int ret = nsv_loop_turn(s->loop, quiet && !s->ready);
		if (ret < 0) {
			nsv_error("io_uring: %s", strerror(-ret));
			return EXIT_FAILURE;
		}
		nsv_session_do_chores(s);
		look_at_hot(s);
		visit_ready(s);
		if (s->draining && is_drained(s))
			end_drained(s);
	}
	return s->exit_code;
}

/* Requests and sessions that others had let go of as the server stopped: nobody knows them any
 * more. */
static void free_released(struct nsv_server *s)
{
	struct nsv_msg *msg = s->inbox.last ? nsv_mailbox_take(&s->inbox) : NULL;

	while (msg) {
		struct nsv_msg *next = msg->next;
		if (msg->kind == NSV_MSG_RELEASED)
			handle(s, msg);
		else if (msg->kind == NSV_MSG_TORN_DOWN)
			nsv_session_torn_down(
				NSV_CONTAINER_OF(msg, struct nsv_session, memory_msg));
		msg = next;
	}
}

void nsv_server_deinit(struct nsv_server *s)
{
	s->stopping = true;
	nsv_worker_stop(&s->prompt_worker);
	nsv_worker_stop(&s->memory_worker);
	free_released(s);
	nsv_loop_free(s->loop); /* nothing is armed any more: sessions can go */
	bool go_on = s->vaults.on;
	/* First: what lies in a vault stays there for the next daemon, open as it is. */
	nsv_vaults_deinit(&s->vaults);
	while (s->sessions) {
		struct nsv_session *se = s->sessions;
		if (se->state == NSV_SESSION_OPEN && !go_on)
			nsv_channel_say_end(&se->ch, NSV_E_STOPPING);
		se->state = NSV_SESSION_CLOSING;
		se->is_left = !se->is_over;
		nsv_session_free(se);
	}
	tell_drops(s, UINT64_MAX / 2);
	nsv_mailbox_deinit(&s->inbox);
	if (s->listen_file.ino)
		nsv_listen_remove(s->config->socket, &s->listen_file);
	if (s->listen_fd >= 0)
		close(s->listen_fd);
	if (s->signal_fd >= 0)
		close(s->signal_fd);
}
