/* A session between calls: entries out, completions in, silence, and waiting. */
#include "client/session.h"

#include <poll.h>

int nsv_session_break(struct nsv_client *c, int code, const char *text)
{
	if (c->broken == 0) {
		c->broken = code;
		for (uint32_t i = 0; i < c->geom.n_slot; i++)
			if (c->slots[i])
				nsv_request_mark_ready(c->slots[i]);
	}
	return nsv_fail(&c->err, c->broken, "%s", text);
}

static int break_protocol(struct nsv_client *c)
{
	return nsv_session_break(c, -EPROTO, "the daemon broke the protocol");
}

NSV_ABI_ASSERT((int)NSV_CLIENT_END_DENIED == (int)NSV_E_DENIED);
NSV_ABI_ASSERT((int)NSV_CLIENT_END_STOPPED == (int)NSV_E_STOPPING);
NSV_ABI_ASSERT((int)NSV_CLIENT_END_LOST == (int)NSV_E_LOST);

static const char *why_ended(uint32_t code)
{
	switch (code) {
	case NSV_CLIENT_END_UNSAID:
		return "the daemon went away";
	case NSV_CLIENT_END_STOPPED:
		return "the daemon was stopped, or drained";
	case NSV_CLIENT_END_DENIED:
		return "the daemon no longer serves this user";
	case NSV_CLIENT_END_LOST:
		return "another daemon came, and could not go on with the session: it serves "
		       "another model, or the session's records are lost";
	default:
		return "the daemon ended the session";
	}
}

uint32_t nsv_client_end_code(const struct nsv_client *c)
{
	return nsv_load_acq_u32(&c->down.head->end);
}

/* The daemon's end of the socket is closed: what it wrote before is taken, and then the session
 * breaks with the reason that it gave. Returns -ECONNRESET, or what broke it before. */
static int lose(struct nsv_client *c)
{
	if (c->losing)
		return -ECONNRESET;
	c->losing = true;
	(void)nsv_session_take(c); /* should it fail, the session is broken already, or goes now */
	c->losing = false;
	if (c->broken)
		return c->broken;
	return nsv_session_break(c, -ECONNRESET, why_ended(nsv_client_end_code(c)));
}

int nsv_session_ring(struct nsv_client *c)
{
	return nsv_bell_send(c->fd) < 0 ? lose(c) : 0;
}

/* Gives back the arena of entries that the daemon has taken. */
static int reclaim(struct nsv_client *c)
{
	uint32_t space;

	if (nsv_sq_space(&c->sq, &space) < 0)
		return break_protocol(c);
	uint32_t taken = c->sq.tail - (c->geom.n_sqe - space);
	if (taken != c->n_taken) {
		nsv_arena_release(&c->arena, c->arena_tails[(taken - 1) & c->sq.mask]);
		c->heard = true;
	}
	c->n_taken = taken;
	return 0;
}

int nsv_session_room(struct nsv_client *c)
{
	int ret = reclaim(c);

	if (ret < 0)
		return ret;
	if (c->sq.tail - c->n_taken >= c->geom.n_sqe)
		return nsv_fail(&c->err, -EAGAIN, "%u entries wait for the daemon", c->geom.n_sqe);
	return 0;
}

int nsv_session_put(struct nsv_client *c, const struct nsv_sqe *entry, uint64_t arena_tail)
{
	uint32_t at = c->sq.tail & c->sq.mask;
	int ret = nsv_session_room(c); /* so arena_tails[at] is no longer needed */

	if (ret < 0)
		return ret;
	if (nsv_sq_put(&c->sq, entry) != 0)
		return break_protocol(c);
	c->arena_tails[at] = arena_tail;
	nsv_arena_commit(&c->arena, arena_tail);
	nsv_sq_publish(&c->sq);
	if (nsv_wait_must_ring(&c->down.head->wait, &c->last_rung))
		return nsv_session_ring(c);
	return 0;
}

/* Whose completion is it? NULL: of a request that is over, or of none. */
static struct nsv_request *find_request(struct nsv_client *c, const struct nsv_cqe *cqe)
{
	if (cqe->slot >= c->geom.n_slot)
		return NULL;
	struct nsv_request *r = c->slots[cqe->slot];
	return r && r->id == cqe->request_id ? r : NULL;
}

static void take_completion(struct nsv_client *c, const struct nsv_cqe *cqe)
{
	struct nsv_request *r;

	if (cqe->kind == NSV_CQE_PONG) {
		if (cqe->text_end > c->pong) /* a new daemon may repeat older ones */
			c->pong = cqe->text_end;
		return;
	}
	r = find_request(c, cqe);
	if (!r)
		return;
	if (cqe->kind == NSV_CQE_ERROR)
		r->refusal = cqe->code ? cqe->code : NSV_E_INTERNAL;
	if (cqe->kind == NSV_CQE_ERROR || cqe->kind == NSV_CQE_DONE ||
		cqe->kind == NSV_CQE_FINISHED) {
		r->ended = true;
		nsv_request_mark_ready(r);
	}
}

static int take_ring(struct nsv_client *c, struct nsv_cq_consumer *cq)
{
	struct nsv_cqe cqe;
	uint32_t n;

	if (nsv_cq_ready(cq, &n) < 0)
		return break_protocol(c);
	for (uint32_t i = 0; i < n; i++) {
		nsv_cq_peek(cq, i, &cqe);
		take_completion(c, &cqe);
	}
	if (n > 0) {
		nsv_cq_advance(cq, n);
		c->heard = true;
	}
	return 0;
}

static int look_at_slots(struct nsv_client *c)
{
	for (uint32_t i = 0; i < c->geom.n_slot; i++) {
		struct nsv_request *r = c->slots[i];
		if (!r)
			continue;
		int ret = nsv_request_look(r);
		if (ret < 0)
			return break_protocol(c);
		if (ret > 0) {
			nsv_request_mark_ready(r);
			c->heard = true;
		}
		ret = nsv_request_flush_cancel(r);
		if (ret == 0 && r->orphan)
			ret = nsv_request_sweep(r);
		if (ret < 0)
			return ret;
	}
	return 0;
}

/* Another daemon serves the session since the last look. */
static void meet_daemon(struct nsv_client *c)
{
	uint32_t epoch = nsv_load_acq_u32(&c->down.head->epoch);

	if (epoch == c->epoch)
		return;
	c->epoch = epoch;
	c->heard = true;
	for (uint32_t i = 0; i < c->geom.n_slot; i++)
		if (c->slots[i])
			nsv_request_survive(c->slots[i]);
}

int nsv_session_take(struct nsv_client *c)
{
	if (c->broken)
		return c->broken;
	meet_daemon(c);
	int ret = take_ring(c, &c->reply);
	if (ret == 0)
		ret = take_ring(c, &c->event);
	if (ret == 0)
		ret = reclaim(c);
	if (ret == 0)
		ret = look_at_slots(c);
	return ret;
}

/* The question after a silence: any sign answers it, even that the entry is taken. Without room for
 * it the daemon has entries to take, which asks the same. */
static int put_question(struct nsv_client *c)
{
	const struct nsv_sqe entry = {
		.op = NSV_OP_NOP, .request_id = c->n_ping + 1, .target_id = c->n_ping + 1};
	int ret = nsv_session_put(c, &entry, c->arena.tail);

	if (ret == 0)
		c->n_ping++;
	return ret == -EAGAIN ? 0 : ret;
}

/* A daemon that has gone is not seen as such while others hold its end of the socket for the next
 * one: it is asked after a quarter of the time that it may be away. 0, or what ended the
 * session. */
static int mind_silence(struct nsv_client *c)
{
	int64_t now = nsv_clock_ns();

	if (c->heard) {
		c->heard = c->asked = false;
		c->quiet_ns = now;
	}
	if (c->away_ns < 0)
		return 0;
	if (c->asked && now - c->quiet_ns >= c->away_ns)
		return nsv_session_break(
			c, -ECONNRESET, "the daemon went away and has not come back in time");
	if (c->asked || now - c->quiet_ns < c->away_ns / 4)
		return 0;
	c->asked = true;
	c->quiet_ns = now;
	return put_question(c);
}

/* When mind_silence has to be called next; below 0: never. */
static int64_t silence_ends_ns(const struct nsv_client *c)
{
	if (c->away_ns < 0)
		return -1;
	return c->quiet_ns + (c->asked ? c->away_ns : c->away_ns / 4);
}

int nsv_client_dispatch(struct nsv_client *c)
{
	if (c->broken)
		return c->broken;
	if (c->armed) {
		nsv_wait_end(&c->up.head->wait);
		c->armed = false;
		if (nsv_bell_drain(c->fd) < 0)
			return lose(c);
		int ret = nsv_session_take(c);
		return ret < 0 ? ret : mind_silence(c);
	}
	return nsv_session_take(c);
}

/* Is there anything that nsv_session_take has not seen? */
static bool anything(struct nsv_client *c)
{
	uint32_t n_reply, n_event;

	/* An index that breaks the protocol is news too: taking it says so. */
	if (nsv_cq_ready(&c->reply, &n_reply) < 0 || nsv_cq_ready(&c->event, &n_event) < 0)
		return true;
	if (n_reply > 0 || n_event > 0 || nsv_load_acq_u32(&c->down.head->epoch) != c->epoch)
		return true;
	for (uint32_t i = 0; i < c->geom.n_slot; i++) {
		const struct nsv_request *r = c->slots[i];
		const struct nsv_down_slot *s = &c->down.slots[i];
		if (r && nsv_load_acq_u64(&s->request_id) == r->id &&
			(nsv_load_acq_u32(&s->state) != r->state ||
				nsv_load_acq_u64(&s->text_end) != r->streams[0].end ||
				nsv_load_acq_u64(&s->token_end) != r->streams[1].end ||
				nsv_load_acq_u64(&s->lp_end) != r->streams[2].end))
			return true;
	}
	return false;
}

/* Asks for a bell. true: sleep; false: something has come already. */
static bool arm(struct nsv_client *c)
{
	if (!c->armed) {
		nsv_wait_begin(&c->up.head->wait);
		c->armed = true;
	}
	return !anything(c);
}

int nsv_client_arm(struct nsv_client *c)
{
	if (c->broken)
		return c->broken;
	return c->ready_first || !arm(c) ? 1 : 0;
}

int64_t nsv_deadline_ns(int timeout_ms)
{
	return timeout_ms < 0 ? -1 : nsv_clock_ns() + (int64_t)timeout_ms * 1000000;
}

/* true: something came while spinning. */
static bool spin(struct nsv_client *c, int64_t start_ns, int64_t deadline_ns)
{
	int64_t until = start_ns + nsv_spin_bound_ns(&c->spin);

	if (deadline_ns >= 0 && deadline_ns < until)
		until = deadline_ns;
	do {
		for (int i = 0; i < 32; i++) {
			if (anything(c))
				return true;
			nsv_pause();
		}
	} while (nsv_clock_ns() < until);
	return false;
}

/* Sleeps on the socket. 0: awake, -ETIMEDOUT, -EINTR, -errno. */
static int sleep_until(struct nsv_client *c, int64_t deadline_ns)
{
	struct pollfd p = {.fd = c->fd, .events = POLLIN};
	struct timespec left = {0}, *timeout = NULL;

	if (deadline_ns >= 0) {
		int64_t left_ns = deadline_ns - nsv_clock_ns();
		if (left_ns <= 0)
			return -ETIMEDOUT;
		left.tv_sec = left_ns / 1000000000;
		left.tv_nsec = left_ns % 1000000000;
		timeout = &left;
	}
	int n = ppoll(&p, 1, timeout, NULL);
	if (n < 0)
		return -errno;
	return n == 0 ? -ETIMEDOUT : 0;
}

/* Sleeps no longer than silence may last: then it is awake, for its caller to come again. */
static int sleep_watchfully(struct nsv_client *c, int64_t deadline_ns)
{
	int64_t until = silence_ends_ns(c);

	if (until < 0 || (deadline_ns >= 0 && deadline_ns <= until))
		return sleep_until(c, deadline_ns);
	int ret = sleep_until(c, until);
	return ret == -ETIMEDOUT ? 0 : ret;
}

int nsv_session_wait(struct nsv_client *c, int64_t deadline_ns)
{
	int64_t start = nsv_clock_ns();
	int slept = 0;

	if (c->broken)
		return c->broken;
	/* News of other requests that their owner has not read is no reason to stay awake. */
	if (!spin(c, start, deadline_ns) && arm(c))
		slept = sleep_watchfully(c, deadline_ns);
	nsv_spin_learn(&c->spin, nsv_clock_ns() - start);
	int ret = nsv_client_dispatch(c);
	return ret < 0 ? ret : slept;
}
