/* A session from hello to its end, and the visits that look at its memory. */
#include "daemon/session.h"

#include <string.h>
#include <sys/socket.h>

#include "daemon/log.h"
#include "shm/clock.h"
#include "shm/wire.h"

/* Then it is another session's turn. */
#define ENTRIES_A_VISIT 64
#define VISIT_NS 200000u

#define RECLAIM_NS 1000000u

/* ---- Life */

static void on_event(struct nsv_source *src, enum nsv_event event, int res, const void *data);
static void ask_for_session(struct nsv_session *se, bool may_wait);

static void refuse_hello(struct nsv_session *se, enum nsv_code code, const char *text)
{
	struct nsv_welcome w = nsv_refusal_make(code, text);

	nsv_welcome_send(se->fd, &w, -1, -1);
	se->server->n_refused++;
	nsv_session_drop(se, code, text);
}

/* Who it is, and may it connect? 0, an nsv_code and a sentence, or -errno. */
static int check_peer(struct nsv_session *se, struct nsv_err *err)
{
	struct nsv_server *s = se->server;
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(se->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -errno;
	se->uid = cred.uid;
	se->pid = cred.pid;
	int ret = nsv_user_get(&s->users, se->uid, &se->user);
	if (ret == 0)
		ret = nsv_user_add_hello(&s->users, se->user, err);
	if (ret == 0)
		ret = nsv_policy_check(&s->config->policy, se->fd, &cred, err);
	return ret;
}

static void link_session(struct nsv_session *se)
{
	struct nsv_server *s = se->server;

	se->next = s->sessions;
	se->prev = &s->sessions;
	if (se->next)
		se->next->prev = &se->next;
	s->sessions = se;
	s->n_session++;
}

static void link_hello(struct nsv_session *se)
{
	struct nsv_server *s = se->server;

	se->prev_hello = s->hellos_end;
	*s->hellos_end = se;
	s->hellos_end = &se->next_hello;
	s->n_hello++;
}

static void unlink_hello(struct nsv_session *se)
{
	struct nsv_server *s = se->server;

	*se->prev_hello = se->next_hello;
	if (se->next_hello)
		se->next_hello->prev_hello = se->prev_hello;
	else
		s->hellos_end = se->prev_hello;
	s->n_hello--;
}

struct nsv_session *nsv_session_alloc(struct nsv_server *server, int fd)
{
	struct nsv_session *se = calloc(1, sizeof(*se));
	const struct nsv_geom none = {0};

	if (!se)
		return NULL;
	*se = (struct nsv_session){
		.server = server, .src = {.fn = on_event}, .fd = fd, .epoch = 1};
	nsv_channel_prepare(&se->ch, &none);
	return se;
}

static void set_deadline(struct nsv_session *se)
{
	se->deadline_ns = nsv_now_ns() + (uint64_t)se->server->config->limits.hello_ms * 1000000u;
}

void nsv_session_check_deadline(struct nsv_session *se, uint64_t now_ns)
{
	if (se->state != NSV_SESSION_HELLO || se->is_building || se->waits_for_turn ||
		now_ns < se->deadline_ns)
		return;
	if (se->waits_for_vault)
		refuse_hello(se, NSV_E_LIMIT, "the service manager takes no descriptors");
	else if (se->waits_for_memory)
		ask_for_session(se, false);
	else
		nsv_session_drop(se, NSV_E_HELLO, "no hello came");
}

void nsv_session_new(struct nsv_server *server, int fd)
{
	struct nsv_session *se = nsv_session_alloc(server, fd);
	struct nsv_err err;

	if (!se) {
		close(fd);
		return;
	}
	(void)nsv_wire_refuse_fds(fd); /* it may have been there before the daemon was */
	(void)nsv_wire_keep_few(fd);
	set_deadline(se);
	link_session(se);
	link_hello(se);
	nsv_source_recv(server->loop, &se->src, fd);
	int ret = check_peer(se, &err);
	if (ret < 0)
		nsv_session_drop(se, NSV_E_DENIED, "its credentials cannot be read");
	else if (ret > 0)
		refuse_hello(se, (enum nsv_code)ret, err.text);
}

static void free_requests(struct nsv_session *se)
{
	for (uint32_t i = 0; se->slots && i < se->ch.geom.n_slot; i++)
		nsv_session_release_slot(se, &se->slots[i]);
	free(se->slots);
	se->slots = NULL;
	free(se->last_entries);
}

void nsv_session_free(struct nsv_session *se)
{
	struct nsv_server *s = se->server;

	*se->prev = se->next;
	if (se->next)
		se->next->prev = se->prev;
	s->n_session--;
	free_requests(se);
	if (s->vaults.on && se->place.vault) {
		nsv_vaults_remove(&s->vaults, &se->place);
		nsv_server_tend_vaults(s);
	}
	close(se->fd);
	nsv_session_tear_down(se);
}

/* Its user may have as much again now: not before, or sessions that come and go would take more
 * than the limit. */
void nsv_session_torn_down(struct nsv_session *se)
{
	if (se->memory)
		nsv_user_release_session(se->user, se->memory);
	if (se->is_ending)
		nsv_user_session_ended(&se->server->users, se->user);
	se->server->some_ended = true;
	nsv_memory_look_again(&se->server->memory);
	nsv_user_put(&se->server->users, se->user);
	free(se);
}

static void unlist(struct nsv_session **list, struct nsv_session *se, bool hot)
{
	while (*list && *list != se)
		list = hot ? &(*list)->next_hot : &(*list)->next_ready;
	if (*list)
		*list = hot ? se->next_hot : se->next_ready;
}

/* One without memory ends at once, or those that come and go would fill the table of descriptors:
 * until their turn no limit would count them. */
static void end_soon(struct nsv_session *se)
{
	if (se->memory || se->is_put_off)
		nsv_session_put_off(se);
	else
		nsv_session_do_chore(se);
}

static void free_if_unused(struct nsv_session *se)
{
	se->is_over = se->state == NSV_SESSION_CLOSING && se->source_gone && se->engine_gone &&
		      se->n_preparing == 0 && !se->is_building;
	if (se->is_over)
		end_soon(se);
}

static void commit_record(struct nsv_session *se, uint32_t state)
{
	const struct nsv_seqs *seqs = nsv_engine_get_seqs(se->server->engine);
	struct nsv_session_commit c = {.state = state,
		.uid = se->uid,
		.session_id = se->id,
		.last_id = se->safe_id,
		.geom = se->ch.geom,
		.sq_head = se->safe_head,
		.epoch = se->epoch};

	nsv_seqs_commit_session(seqs, se->rec, &c);
}

/* Its user is the record's, as it was checked at the hello; the process is only for the log. */
void nsv_session_resume(struct nsv_session *se)
{
	struct ucred cred = {0};
	socklen_t len = sizeof(cred);

	(void)getsockopt(se->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len);
	(void)nsv_wire_refuse_fds(se->fd); /* another daemon's listener may have let them through */
	(void)nsv_wire_keep_few(se->fd);
	se->pid = cred.pid;
	se->state = NSV_SESSION_OPEN;
	link_session(se);
	commit_record(se, 1);
	nsv_source_recv(se->server->loop, &se->src, se->fd);
}

/* A free record of the session table; the search goes on where the last one ended. */
static bool find_record(struct nsv_session *se)
{
	const struct nsv_seqs *seqs = nsv_engine_get_seqs(se->server->engine);
	uint32_t n = seqs->geom.n_session;

	for (uint32_t i = 0; i < n; i++) {
		se->rec = (uint32_t)((se->server->last_session_id + i) % n);
		if (nsv_seqs_get_session(seqs, se->rec).state == 0)
			return true;
	}
	return false;
}

static void end_hello(struct nsv_session *se)
{
	unlink_hello(se);
	if (se->user)
		nsv_user_remove_hello(se->user);
}

/* A user that has itself dropped again and again fills no journal, nor keeps others' lines out. */
static void say_drop(const struct nsv_session *se, const char *why)
{
	struct nsv_server *s = se->server;
	uint32_t n_unsaid;

	if (!nsv_log_may(&s->drops_said[se->uid % NSV_SERVER_DROP_LIMITS], nsv_now_ns(),
		    &n_unsaid)) {
		nsv_server_tell_drops(s);
		return;
	}
	if (n_unsaid)
		nsv_info("%u more sessions were dropped before, too many to name", n_unsaid);
	nsv_info("session %llu of user %u, process %d, is dropped: %s",
		(unsigned long long)se->id, se->uid, se->pid, why);
}

static void set_waits_for_memory(struct nsv_session *se, bool waits)
{
	se->server->n_waiting += (uint32_t)waits - (uint32_t)se->waits_for_memory;
	se->waits_for_memory = waits;
}

void nsv_session_drop(struct nsv_session *se, enum nsv_code code, const char *why)
{
	struct nsv_server *s = se->server;

	if (se->state == NSV_SESSION_CLOSING)
		return;
	if (why) {
		say_drop(se, why);
		s->n_dropped++;
	}
	if (se->state == NSV_SESSION_HELLO) {
		if (se->id)
			commit_record(se, 0);
		end_hello(se);
		se->engine_gone = true;
		se->waits_for_vault = false;
		set_waits_for_memory(se, false);
	} else {
		nsv_session_drop_prompts(se);
		nsv_channel_say_end(&se->ch, code);
		commit_record(se, 0);
		se->close =
			(struct nsv_session_close){.msg = {.kind = NSV_MSG_CLOSE}, .ch = &se->ch};
		nsv_engine_post(s->engine, &se->close.msg);
	}
	se->state = NSV_SESSION_CLOSING;
	if (se->memory) {
		se->is_ending = true;
		nsv_user_session_ends(&s->users, se->user);
	}
	shutdown(se->fd, SHUT_RDWR);
	if (se->is_ready)
		unlist(&s->ready, se, false);
	if (se->is_hot)
		unlist(&s->hot, se, true);
	se->is_ready = se->is_hot = false;
	nsv_source_cancel(s->loop, &se->src);
}

void nsv_session_closed(struct nsv_session_close *close)
{
	struct nsv_session *se = NSV_CONTAINER_OF(close, struct nsv_session, close);

	se->engine_gone = true;
	free_if_unused(se);
}

/* ---- Hello */

/* Both are of the daemon's process, the second one of all its user's: descriptors that lie in
 * vaults. */
static bool is_out_of_fds(int code)
{
	return code == -EMFILE || code == -ETOOMANYREFS;
}

static const char *name_failure(int code)
{
	if (is_out_of_fds(code))
		return "the daemon has too many descriptors: RLIMIT_NOFILE (LimitNOFILE=)";
	if (code == -EFBIG)
		return "too large for a file of the daemon's: RLIMIT_FSIZE (LimitFSIZE=)";
	return strerror(-code);
}

/* What it is charged for, its id and its record: 0, or an nsv_code and a sentence. */
static int make_session(struct nsv_session *se, struct nsv_err *err)
{
	struct nsv_server *s = se->server;
	const struct nsv_geom *geom = &se->ch.geom;
	struct nsv_up_layout up;
	struct nsv_down_layout down;

	if (nsv_layout_up(geom, &up) < 0 || nsv_layout_down(geom, &down) < 0)
		return nsv_fail(err, NSV_E_HELLO, "the session's geometry is impossible");
	if (geom->n_slot > s->config->limits.session_slots)
		return nsv_fail(err, NSV_E_LIMIT, "%u slots: limits.session_slots is %u",
			geom->n_slot, s->config->limits.session_slots);
	if (!find_record(se))
		return nsv_fail(err, NSV_E_LIMIT,
			"the daemon has %u sessions, and no place for more",
			s->n_session - s->n_hello);
	int ret = nsv_user_charge_session(&s->users, se->user, up.len + down.len, err);
	if (ret != 0)
		return ret;
	se->memory = up.len + down.len;
	se->id = ++s->last_session_id;
	commit_record(se, 1);
	return 0;
}

/* What it needs may be about to come back: of its user's limits, or of all memory. */
static void ask_for_session(struct nsv_session *se, bool may_wait)
{
	struct nsv_err err;
	int ret = make_session(se, &err);
	uint32_t n_ending = ret == NSV_E_LIMIT	 ? se->user->ending
			    : ret == NSV_E_NOMEM ? se->server->users.n_ending
						 : 0;

	set_waits_for_memory(se, may_wait && n_ending > 0);
	if (se->waits_for_memory)
		return;
	if (ret != 0)
		refuse_hello(se, (enum nsv_code)ret, err.text);
	else
		nsv_session_build(se);
}

void nsv_session_ask_again(struct nsv_server *s)
{
	s->some_ended = false;
	for (struct nsv_session *se = s->hellos, *next; se; se = next) {
		if (s->stopping || s->n_waiting == 0)
			return;
		next = se->next_hello;
		if (se->waits_for_memory)
			ask_for_session(se, true);
	}
}

static int send_welcome(const struct nsv_session *se, int down_fd)
{
	const struct nsv_channel *ch = &se->ch;
	struct nsv_welcome w =
		nsv_welcome_make(se->id, &ch->geom, ch->up_region.len, ch->down_region.len);

	return nsv_welcome_send(se->fd, &w, ch->up_region.fd, down_fd);
}

static void take_hello(struct nsv_session *se, const void *data, size_t len)
{
	struct nsv_err err = {""};
	struct nsv_hello hello;
	struct nsv_geom geom;
	int ret = nsv_hello_check(data, len, &hello, &err);

	if (ret == 0) {
		nsv_geom_complete(&hello.want, &geom);
		ret = nsv_geom_check(&geom, &err);
	}
	if (ret != 0) {
		refuse_hello(se, (enum nsv_code)ret, err.text);
		return;
	}
	nsv_channel_prepare(&se->ch, &geom);
	se->waits_for_turn = true;
	nsv_session_put_off(se);
}

static void drop_early(struct nsv_session *se)
{
	nsv_session_drop(se, NSV_E_HELLO, "it spoke before it was welcomed");
}

static void go_on_with_hello(struct nsv_session *se)
{
	struct nsv_server *s = se->server;

	se->waits_for_turn = false;
	if (se->is_early) {
		drop_early(se);
		return;
	}
	/* What came back in this turn is for those who have waited for it. */
	if (s->some_ended && s->n_waiting > 0)
		set_waits_for_memory(se, true);
	else
		ask_for_session(se, true);
}

static void refuse_memory(struct nsv_session *se, int code)
{
	struct nsv_err err;

	nsv_fail(&err, 0, "no session of %llu bytes: %s", (unsigned long long)se->memory,
		name_failure(code));
	refuse_hello(se, is_out_of_fds(code) ? NSV_E_LIMIT : NSV_E_NOMEM, err.text);
}

void nsv_session_built(struct nsv_session *se)
{
	int ret = se->built;

	se->is_building = false;
	if (se->state == NSV_SESSION_CLOSING) {
		free_if_unused(se);
		return;
	}
	if (ret == 0) {
		se->slots = calloc(se->ch.geom.n_slot, sizeof(*se->slots));
		ret = se->slots ? nsv_channel_init(&se->ch, se->id, se->fd) : -ENOMEM;
	}
	if (ret < 0) {
		refuse_memory(se, ret);
		return;
	}
	nsv_channel_set_epoch(&se->ch, se->epoch);
	set_deadline(se); /* the time that its regions took was not the client's */
	se->place = (struct nsv_vault_place){.session_id = se->id,
		.rec = se->rec,
		.fds = {se->fd, se->ch.up_region.fd, se->ch.down_region.fd}};
	se->waits_for_vault = true;
	nsv_session_welcome(se);
}

/* State in `seqs`, then the vault, then the welcome: what a client was welcomed to is never
 * lost. */
void nsv_session_welcome(struct nsv_session *se)
{
	nsv_autoclose int down_fd = -1;
	struct nsv_err err;
	int ret = nsv_region_reopen_ro(&se->ch.down_region, &down_fd);

	if (ret == 0)
		ret = nsv_vaults_put(&se->server->vaults, &se->place);
	if (ret == 1)
		return;
	if (ret == 0) {
		se->waits_for_vault = false;
		end_hello(se);
		se->state = NSV_SESSION_OPEN;
		ret = send_welcome(se, down_fd);
	}
	if (ret < 0) {
		nsv_fail(&err, 0, "the session's descriptors cannot be %s: %s",
			se->waits_for_vault ? "kept safe" : "sent", name_failure(ret));
		refuse_hello(se, NSV_E_LIMIT, err.text);
		return;
	}
	nsv_debug("session %llu of user %u, process %d", (unsigned long long)se->id, se->uid,
		se->pid);
}

static void on_event(struct nsv_source *src, enum nsv_event event, int res, const void *data)
{
	struct nsv_session *se = (struct nsv_session *)src;

	switch (event) {
	case NSV_EV_DATA:
		if (se->waits_for_turn)
			se->is_early = true; /* it is counted as a hello until its turn */
		else if (se->waits_for_vault || se->waits_for_memory || se->is_building)
			drop_early(se);
		else if (se->state == NSV_SESSION_HELLO)
			take_hello(se, data, (size_t)res);
		else
			nsv_session_make_ready(se); /* a doorbell, whatever it says */
		break;
	case NSV_EV_EOF:
		se->has_hung_up = true;
		end_soon(se);
		break;
	case NSV_EV_GONE:
		se->source_gone = true;
		free_if_unused(se);
		break;
	default:
		break;
	}
}

void nsv_session_do_chore(struct nsv_session *se)
{
	if (se->is_over)
		nsv_session_free(se);
	else if (se->has_hung_up)
		nsv_session_drop(se, NSV_E_OK, NULL);
	else if (se->waits_for_turn && se->state == NSV_SESSION_HELLO)
		go_on_with_hello(se);
}

/* ---- Visits */

void nsv_session_make_ready(struct nsv_session *se)
{
	if (se->is_ready || se->state != NSV_SESSION_OPEN)
		return;
	se->is_ready = true;
	se->next_ready = se->server->ready;
	se->server->ready = se;
}

static void make_hot(struct nsv_session *se)
{
	struct nsv_server *s = se->server;

	if (se->is_hot)
		return;
	nsv_channel_set_waiting(&se->ch, false);
	se->is_hot = true;
	se->next_hot = s->hot;
	s->hot = se;
}

static bool is_acknowledged(const struct nsv_session *se, uint32_t i)
{
	const struct nsv_session_slot *slot = &se->slots[i];

	return nsv_session_slot_ended(se, slot) &&
	       nsv_load_acq_u64(&se->ch.up.slots[i].ack_id) == slot->id;
}

/* What moved besides the submission ring: acknowledged ends, cursors that somebody waits for. */
static void look_at_slots(struct nsv_session *se, uint64_t until_ns)
{
	bool engine_waits = false;

	for (uint32_t i = 0; i < se->ch.geom.n_slot; i++) {
		struct nsv_session_slot *slot = &se->slots[i];
		if (is_acknowledged(se, i))
			nsv_session_release_slot(se, slot);
		else if (slot->phase == NSV_PHASE_OUTPUT && nsv_now_ns() < until_ns)
			nsv_session_output(se, slot);
		else if (slot->phase == NSV_PHASE_OUTPUT)
			nsv_session_make_ready(se);
		else if (slot->phase == NSV_PHASE_COMMITTING || slot->phase == NSV_PHASE_LIVE)
			engine_waits |= nsv_load_rlx_u32(&se->ch.down.slots[i].stalled);
	}
	if (engine_waits)
		nsv_engine_look(se->server->engine);
}

/* 1: it is another session's turn; 0: no entry is left; -EPROTO. */
static int take_entries(struct nsv_session *se, uint64_t until_ns)
{
	struct nsv_sqe sqe;

	for (int n = 0; n < ENTRIES_A_VISIT; n++) {
		int ret = nsv_channel_next(&se->ch, &sqe);
		if (ret != 0)
			return ret < 0 ? ret : 0;
		nsv_session_entry(se, &sqe, se->ch.io.sq.head - 1);
		if (nsv_now_ns() >= until_ns)
			return 1;
	}
	return 1;
}

bool nsv_session_visit(struct nsv_session *se)
{
	uint32_t head = se->ch.io.sq.head;
	uint64_t until_ns = nsv_now_ns() + VISIT_NS;

	make_hot(se);
	look_at_slots(se, until_ns);
	int ret = take_entries(se, until_ns);
	if (nsv_channel_broken(&se->ch)) {
		nsv_session_drop(se, NSV_E_ENTRY, "its memory went away while it was read");
	} else if (ret < 0) {
		nsv_session_drop(se, NSV_E_ENTRY, "a ring index is impossible");
	} else if (se->ch.io.sq.head != head) {
		nsv_session_taken(se);
		/* Entries are worth waiting for more of them; bells alone are not. */
		se->server->hot_until_ns =
			nsv_now_ns() + (uint64_t)se->server->config->spin_us * 1000u;
	}
	return se->state == NSV_SESSION_OPEN && ret == 1;
}

void nsv_session_taken(struct nsv_session *se)
{
	uint32_t head = se->ch.io.sq.head, back = 0;

	se->safe_id = se->last_id;
	for (uint32_t i = 0; i < se->ch.geom.n_slot; i++) {
		const struct nsv_session_slot *slot = &se->slots[i];
		if (slot->phase != NSV_PHASE_PREPARING && slot->phase != NSV_PHASE_COMMITTING)
			continue;
		back = (uint32_t)nsv_max(back, head - slot->job->sq_index);
		se->safe_id = nsv_min_u64(se->safe_id, slot->id - 1);
	}
	se->safe_head = head - back;
	commit_record(se, 1); /* before the client can use the entries' places again */
	nsv_channel_taken(&se->ch, se->safe_head);
	nsv_channel_ring(&se->ch, &se->ch.io.rung);
}

bool nsv_session_is_busy(const struct nsv_session *se, uint64_t before_ns)
{
	for (uint32_t i = 0; se->n_live > 0 && i < se->ch.geom.n_slot; i++) {
		const struct nsv_session_slot *slot = &se->slots[i];
		if (slot->phase != NSV_PHASE_FREE && !nsv_session_slot_ended(se, slot) &&
			slot->job->start_ns <= before_ns)
			return true;
	}
	return false;
}

static void release_acknowledged(struct nsv_session *se)
{
	for (uint32_t i = 0; se->n_used > 0 && i < se->ch.geom.n_slot; i++)
		if (is_acknowledged(se, i))
			nsv_session_release_slot(se, &se->slots[i]);
}

void nsv_session_collect_ends(struct nsv_server *s)
{
	uint64_t now = nsv_now_ns();

	if (now - s->reclaimed_ns < RECLAIM_NS)
		return;
	for (struct nsv_session *se = s->sessions; se; se = se->next)
		if (se->state == NSV_SESSION_OPEN)
			release_acknowledged(se);
	s->reclaimed_ns = nsv_now_ns();
}
