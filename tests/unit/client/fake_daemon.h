/* A daemon in a thread, for tests of the client library: it speaks the wire's protocol as
 * PROTOCOL.md says and computes nothing. One connection after the other, one session at a time.
 *
 *   SUBMIT      each byte (or id, modulo 256) of the prompt comes back as text and as a token, in
 *               each answer, with a log-probability where asked; max_tokens cuts; the prompt
 *               "for ever" repeats; the prompt "bad" ends with an error
 *   FORK        likewise, what the target has not sent
 *   TOKENIZE    ids are the bytes;  DETOKENIZE  bytes are the ids;  STATUS  a JSON text
 *
 * `gone` makes it close the socket, `refuse` answers hellos with that code. */
#ifndef NSV_TESTS_FAKE_DAEMON_H
#define NSV_TESTS_FAKE_DAEMON_H

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "shm/region.h"
#include "shm/ring.h"
#include "shm/wire.h"

#define FAKE_STATUS "{\"version\": \"fake\", \"model\": \"none\"}"

struct fake_slot {
	uint64_t id, sent, last_event;
	unsigned char *bytes; /* what is to be sent, and how much; UINT64_MAX: for ever */
	uint64_t len, period;
	uint8_t op;
	bool active, lps, posted, fail, cancelled;
	uint32_t n_prompt, limit;
};

struct fake_daemon {
	char dir[32], path[64];
	int listen_fd;
	pthread_t thread;
	uint32_t stop, gone; /* atomic */
	uint32_t refuse;     /* atomic: an enum nsv_code for the next hellos */
	uint32_t unread;     /* atomic: 1: refuses at once, 2: once the hello lies there unread */
	uint32_t n_bell;     /* atomic: bells sent to clients */
	uint32_t burst;	     /* atomic: bytes a step; 0: as many as fit */
	uint32_t step_asleep; /* atomic: each step waits until the client sleeps */
	uint32_t hold;	     /* atomic: takes no entry until the client sleeps; then it is 0 */

	/* the session; its thread's */
	int fd;
	struct nsv_geom geom;
	struct nsv_region up_region, down_region;
	struct nsv_up up;
	struct nsv_down down;
	struct nsv_sq_consumer sq;
	struct nsv_cq_producer reply, event;
	uint32_t rung;
	uint64_t last_id;
	struct fake_slot slots[64];
};

static uint32_t fake_get(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

static void fake_set(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_SEQ_CST);
}

/* Does it wait for a bell that it has not got? */
static bool fake_client_sleeps(const struct fake_daemon *d)
{
	uint32_t wait = nsv_load_acq_u32(&d->up.head->wait);

	return (wait & 1) && wait != d->rung;
}

static void fake_wake(struct fake_daemon *d)
{
	if (!nsv_wait_must_ring(&d->up.head->wait, &d->rung))
		return;
	__atomic_add_fetch(&d->n_bell, 1, __ATOMIC_SEQ_CST);
	(void)nsv_bell_send(d->fd);
}

static void fake_post(struct nsv_cq_producer *cq, uint64_t id, uint16_t kind, uint16_t slot,
	uint32_t code, uint64_t text_end)
{
	const struct nsv_cqe cqe = {
		.request_id = id, .kind = kind, .slot = slot, .code = code, .text_end = text_end};

	if (nsv_cq_post(cq, &cqe) != 0)
		abort();
}

static void fake_done(struct fake_daemon *d, uint32_t i, uint32_t finish, uint32_t code)
{
	struct nsv_down_slot *s = &d->down.slots[i];
	struct fake_slot *f = &d->slots[i];

	s->finish = finish;
	s->code = code;
	s->n_output = (uint32_t)f->sent;
	s->seed = 42;
	if (finish == NSV_FINISH_ERROR)
		strcpy(s->text, "the fake says no");
	nsv_store_rel_u32(&s->state, NSV_SLOT_DONE);
	f->active = false;
	free(f->bytes);
	f->bytes = NULL;
}

static void fake_start(struct fake_daemon *d, const struct nsv_sqe *e)
{
	struct nsv_down_slot *s = &d->down.slots[e->slot];
	struct fake_slot *f = &d->slots[e->slot];

	*f = (struct fake_slot){.id = e->request_id, .op = e->op, .active = true};
	nsv_store_rlx_u64(&s->text_end, 0);
	nsv_store_rlx_u64(&s->token_end, 0);
	nsv_store_rlx_u64(&s->lp_end, 0);
	nsv_store_rlx_u32(&s->state, NSV_SLOT_QUEUED);
	nsv_store_rlx_u32(&s->stalled, 0);
	s->finish = s->code = 0;
	s->fork_text = s->fork_token = 0;
	memset(s->text, 0, sizeof(s->text));
}

/* The bytes that will be sent for an entry. */
static void fake_fill(struct fake_daemon *d, const struct nsv_sqe *e)
{
	struct fake_slot *f = &d->slots[e->slot];
	const unsigned char *prompt = d->up.arena + e->prompt_off;
	bool ids = (e->flags & NSV_SQE_KIND) == NSV_SQE_IDS;
	struct nsv_params p = {0};

	f->len = f->period = ids ? e->prompt_len / 4 : e->prompt_len;
	f->n_prompt = (uint32_t)f->len;
	f->bytes = malloc(f->len + sizeof(FAKE_STATUS));
	for (uint64_t i = 0; i < f->len; i++)
		f->bytes[i] = prompt[ids ? 4 * i : i];
	if (e->op == NSV_OP_STATUS) {
		strcpy((char *)f->bytes, FAKE_STATUS);
		f->len = f->period = strlen(FAKE_STATUS);
	}
	if (e->params_len >= sizeof(p))
		nsv_copy_in(&p, d->up.arena + e->params_off, sizeof(p));
	f->lps = p.flags & NSV_PARAM_LOGPROBS;
	f->limit = p.max_tokens;
	if (f->len == 8 && memcmp(f->bytes, "for ever", 8) == 0)
		f->len = UINT64_MAX;
	if (f->limit && f->limit < f->len)
		f->len = f->limit;
	f->fail = f->len == 3 && memcmp(f->bytes, "bad", 3) == 0;
}

/* What the target has not sent yet; a target that has: nothing. */
static void fake_copy(struct fake_daemon *d, const struct nsv_sqe *e)
{
	struct fake_slot *f = &d->slots[e->slot];
	const struct fake_slot *t = NULL;

	for (uint32_t i = 0; i < d->geom.n_slot && !t; i++)
		if (d->slots[i].active && d->slots[i].id == e->target_id)
			t = &d->slots[i];
	f->op = NSV_OP_SUBMIT;
	f->fail = !t;
	if (!t)
		return;
	f->len = t->len == UINT64_MAX ? t->len : t->len - t->sent;
	f->period = t->period;
	f->lps = t->lps;
	f->n_prompt = t->n_prompt;
	f->bytes = malloc(t->period + 1);
	for (uint64_t i = 0; i < t->period; i++)
		f->bytes[i] = t->bytes[(t->sent + i) % t->period];
	d->down.slots[e->slot].fork_text = d->down.slots[e->slot].fork_token = t->sent;
}

static uint32_t fake_n_branch(const struct fake_daemon *d, const struct nsv_sqe *e)
{
	struct nsv_params p = {0};

	if (e->op == NSV_OP_SUBMIT && e->params_len >= sizeof(p))
		nsv_copy_in(&p, d->up.arena + e->params_off, sizeof(p));
	return p.n_branch ? p.n_branch : 1;
}

/* One answer. */
static void fake_request(struct fake_daemon *d, const struct nsv_sqe *e)
{
	struct nsv_down_slot *s = &d->down.slots[e->slot];

	d->last_id = e->request_id;
	fake_start(d, e);
	if (e->op == NSV_OP_FORK)
		fake_copy(d, e);
	else
		fake_fill(d, e);
	s->n_prompt = d->slots[e->slot].n_prompt;
	nsv_store_rel_u64(&s->request_id, e->request_id);
	if (d->slots[e->slot].fail) {
		fake_done(d, e->slot, NSV_FINISH_ERROR, NSV_E_PARAM);
		fake_post(&d->reply, e->request_id, NSV_CQE_ERROR, e->slot, NSV_E_PARAM, 0);
	} else if (e->op == NSV_OP_SUBMIT || e->op == NSV_OP_FORK) {
		fake_post(&d->event, e->request_id, NSV_CQE_ACCEPTED, e->slot, 0, 0);
	}
}

static void fake_cancel(struct fake_daemon *d, const struct nsv_sqe *e)
{
	for (uint32_t i = 0; i < d->geom.n_slot; i++)
		if (d->slots[i].active && d->slots[i].id == e->target_id)
			d->slots[i].cancelled = true;
	fake_post(&d->reply, e->request_id, NSV_CQE_CANCELLED, e->slot, 0, 0);
}

static void fake_entry(struct fake_daemon *d, const struct nsv_sqe *e)
{
	if (e->op == NSV_OP_NOP) {
		fake_post(&d->reply, e->request_id, NSV_CQE_PONG, 0, 0, e->target_id);
	} else if (e->op == NSV_OP_CANCEL) {
		fake_cancel(d, e);
	} else if (e->request_id <= d->last_id || e->slot >= d->geom.n_slot) {
		fake_post(&d->reply, e->request_id, NSV_CQE_ERROR, e->slot, NSV_E_ID, 0);
	} else if (d->slots[e->slot].active ||
		   nsv_load_acq_u64(&d->up.slots[e->slot].ack_id) != d->slots[e->slot].id) {
		fake_post(&d->reply, e->request_id, NSV_CQE_ERROR, e->slot, NSV_E_BUSY, 0);
	} else {
		struct nsv_sqe one = *e;
		for (uint32_t n = fake_n_branch(d, e); n > 0; n--, one.slot++, one.request_id++)
			fake_request(d, &one);
	}
}

static bool fake_take(struct fake_daemon *d)
{
	struct nsv_sqe e;
	uint32_t n;

	if (fake_get(&d->hold) && !fake_client_sleeps(d))
		return false;
	fake_set(&d->hold, 0);
	if (nsv_sq_ready(&d->sq, &n) < 0)
		abort();
	for (uint32_t i = 0; i < n; i++) {
		nsv_sq_peek(&d->sq, &e);
		fake_entry(d, &e);
		nsv_sq_advance(&d->sq);
	}
	if (n > 0)
		fake_wake(d);
	return n > 0;
}

static uint32_t fake_log_room(uint32_t n, uint64_t end, const uint64_t *cursor, uint32_t room)
{
	uint32_t space;

	if (nsv_log_space(n, end, nsv_load_acq_u64(cursor), &space) < 0)
		abort();
	return space < room ? space : room;
}

/* How much of the output all logs that it goes to can take. */
static uint32_t fake_room(struct fake_daemon *d, uint32_t i)
{
	const struct fake_slot *f = &d->slots[i];
	const struct nsv_up_slot *up = &d->up.slots[i];
	uint32_t room = UINT32_MAX;

	if (f->op != NSV_OP_TOKENIZE)
		room = fake_log_room(d->geom.text_len, f->sent, &up->text_read, room);
	if (f->op == NSV_OP_SUBMIT || f->op == NSV_OP_TOKENIZE)
		room = fake_log_room(d->geom.n_token, f->sent, &up->token_read, room);
	if (f->lps)
		room = fake_log_room(d->geom.n_lp, f->sent, &up->lp_read, room);
	return room;
}

static void fake_write(struct fake_daemon *d, uint32_t i, uint32_t n)
{
	struct fake_slot *f = &d->slots[i];
	struct nsv_down_slot *s = &d->down.slots[i];
	bool text = f->op != NSV_OP_TOKENIZE;
	bool tokens = f->op == NSV_OP_SUBMIT || f->op == NSV_OP_TOKENIZE;

	for (uint32_t k = 0; k < n; k++) {
		const unsigned char byte = f->bytes[(f->sent + k) % f->period];
		const int32_t id = byte;
		const struct nsv_lp lp = {id, -0.5f};
		if (text)
			nsv_log_put(nsv_down_text(&d->down, &d->geom, i), d->geom.text_len, 1,
				f->sent + k, &byte, 1);
		if (tokens)
			nsv_log_put(nsv_down_tokens(&d->down, &d->geom, i), d->geom.n_token, 4,
				f->sent + k, &id, 1);
		if (f->lps)
			nsv_log_put(nsv_down_lps(&d->down, &d->geom, i), d->geom.n_lp, sizeof(lp),
				f->sent + k, &lp, 1);
	}
	f->sent += n;
	if (f->lps)
		nsv_store_rel_u64(&s->lp_end, f->sent);
	if (tokens)
		nsv_store_rel_u64(&s->token_end, f->sent);
	if (text)
		nsv_store_rel_u64(&s->text_end, f->sent);
}

/* One step of a slot: true if it moved. */
static bool fake_step(struct fake_daemon *d, uint32_t i)
{
	struct fake_slot *f = &d->slots[i];
	struct nsv_down_slot *s = &d->down.slots[i];
	struct nsv_cq_producer *cq = f->op == NSV_OP_SUBMIT ? &d->event : &d->reply;
	uint32_t n = fake_room(d, i);

	if (f->sent == f->len || f->cancelled) {
		bool cut = f->limit && f->sent == f->limit;
		fake_done(d, i,
			f->cancelled ? NSV_FINISH_CANCEL
			: cut	     ? NSV_FINISH_LENGTH
				     : NSV_FINISH_STOP,
			0);
		fake_post(cq, f->id, f->op == NSV_OP_SUBMIT ? NSV_CQE_FINISHED : NSV_CQE_DONE,
			(uint16_t)i, 0, f->sent);
		fake_wake(d);
		return true;
	}
	if (n == 0) {
		nsv_slot_stall(s);
		n = fake_room(d, i);
		if (n == 0)
			return false;
	}
	nsv_store_rlx_u32(&s->stalled, 0);
	nsv_store_rel_u32(&s->state, NSV_SLOT_RUNNING);
	n = (uint32_t)nsv_min_u64(n, f->len - f->sent);
	if (fake_get(&d->burst))
		n = (uint32_t)nsv_min(n, fake_get(&d->burst));
	fake_write(d, i, n);
	if (!f->posted || nsv_cq_taken(cq, f->last_event) > 0) {
		f->last_event = cq->tail;
		f->posted = true;
		fake_post(cq, f->id, NSV_CQE_TOKENS, (uint16_t)i, 0, f->sent);
	}
	fake_wake(d);
	return true;
}

static bool fake_over(struct fake_daemon *d)
{
	return fake_get(&d->stop) || fake_get(&d->gone);
}

static bool fake_turn(struct fake_daemon *d)
{
	bool moved = fake_take(d);

	for (uint32_t i = 0; i < d->geom.n_slot; i++) {
		if (!d->slots[i].active)
			continue;
		while (fake_get(&d->step_asleep) && !fake_client_sleeps(d) && !fake_over(d))
			sched_yield();
		moved |= fake_step(d, i);
	}
	return moved;
}

/* Serves until the client goes or the test says so. The sleeping is the protocol's. */
static void fake_serve(struct fake_daemon *d)
{
	int gone = 0;

	while (!fake_over(d) && gone == 0) {
		uint32_t n;
		if (fake_turn(d))
			continue;
		nsv_wait_begin(&d->down.head->wait);
		if (nsv_sq_ready(&d->sq, &n) == 0 && n == 0 && !fake_turn(d)) {
			struct pollfd p = {.fd = d->fd, .events = POLLIN};
			(void)poll(&p, 1, 100);
		}
		nsv_wait_end(&d->down.head->wait);
		gone = nsv_bell_drain(d->fd);
	}
}

static int fake_welcome(struct fake_daemon *d)
{
	struct nsv_up_layout up;
	struct nsv_down_layout down;
	nsv_autoclose int ro = -1;

	if (nsv_layout_up(&d->geom, &up) < 0 || nsv_layout_down(&d->geom, &down) < 0 ||
		nsv_region_create(&d->up_region, "up", up.len, 0, NULL) < 0 ||
		nsv_region_create(&d->down_region, "down", down.len, 0, NULL) < 0 ||
		nsv_region_reopen_ro(&d->down_region, &ro) < 0)
		return -1;
	nsv_up_format(d->up_region.map, &d->geom, 7);
	nsv_down_format(d->down_region.map, &d->geom, 7);
	d->up = nsv_up_at(d->up_region.map, &up);
	d->down = nsv_down_at(d->down_region.map, &down);
	d->sq = nsv_sq_consumer_at(&d->up, &d->down, &d->geom);
	d->reply = nsv_reply_producer_at(&d->up, &d->down, &d->geom);
	d->event = nsv_event_producer_at(&d->up, &d->down, &d->geom);
	d->rung = 0;
	d->last_id = 0;
	memset(d->slots, 0, sizeof(d->slots));
	const struct nsv_welcome w = nsv_welcome_make(7, &d->geom, up.len, down.len);
	return nsv_welcome_send(d->fd, &w, d->up_region.fd, ro);
}

static void fake_refuse(struct fake_daemon *d)
{
	const struct nsv_welcome w = nsv_refusal_make(fake_get(&d->refuse), "the fake refuses");

	(void)nsv_welcome_send(d->fd, &w, -1, -1);
}

static void fake_session(struct fake_daemon *d)
{
	unsigned char buf[256];
	struct nsv_hello hello;
	uint32_t unread = fake_get(&d->unread);
	struct pollfd p = {.fd = d->fd, .events = POLLIN};

	if (unread) {
		if (unread == 2)
			poll(&p, 1, 10000);
		fake_refuse(d);
		return;
	}
	ssize_t n = recv(d->fd, buf, sizeof(buf), 0);
	if (n <= 0 || nsv_hello_check(buf, (size_t)n, &hello, NULL) != 0)
		return;
	if (fake_get(&d->refuse)) {
		fake_refuse(d);
		return;
	}
	nsv_geom_complete(&hello.want, &d->geom);
	d->up_region = d->down_region = NSV_REGION_NONE;
	if (fake_welcome(d) == 0)
		fake_serve(d);
	for (uint32_t i = 0; i < NSV_ARRAY_LEN(d->slots); i++)
		free(d->slots[i].bytes);
	nsv_region_deinit(&d->up_region);
	nsv_region_deinit(&d->down_region);
}

static void *fake_main(void *data)
{
	struct fake_daemon *d = data;
	struct pollfd p = {.fd = d->listen_fd, .events = POLLIN};

	while (!fake_get(&d->stop)) {
		if (poll(&p, 1, 20) <= 0)
			continue;
		d->fd = accept4(d->listen_fd, NULL, NULL, SOCK_CLOEXEC);
		if (d->fd < 0)
			continue;
		fake_session(d);
		close(d->fd);
	}
	return NULL;
}

static int fake_begin(struct fake_daemon *d)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	memset(d, 0, sizeof(*d));
	strcpy(d->dir, "/tmp/nsv-fake-XXXXXX");
	if (!mkdtemp(d->dir))
		return -1;
	snprintf(d->path, sizeof(d->path), "%s/sock", d->dir);
	strcpy(addr.sun_path, d->path);
	d->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (bind(d->listen_fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
		listen(d->listen_fd, 16) < 0)
		return -1;
	return pthread_create(&d->thread, NULL, fake_main, d);
}

static void fake_end(struct fake_daemon *d)
{
	fake_set(&d->stop, 1);
	pthread_join(d->thread, NULL);
	close(d->listen_fd);
	unlink(d->path);
	rmdir(d->dir);
}

#endif
