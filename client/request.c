/* A request's own state: its slot, its three streams, its end. */
#include "client/session.h"

#include <string.h>

static void init_stream(
	struct nsv_stream *s, const void *log, uint32_t n, uint32_t size, uint64_t *cursor)
{
	*s = (struct nsv_stream){.log = log, .n = n, .size = size, .cursor = cursor};
	nsv_store_rlx_u64(cursor, 0); /* the entry's publication orders it */
}

void nsv_request_reset(struct nsv_request *r)
{
	for (int i = 0; i < NSV_N_STREAM; i++) {
		struct nsv_stream *s = &r->streams[i];
		s->skip += s->read;
		s->read = s->end = 0;
		nsv_store_rlx_u64(s->cursor, 0); /* the entry's publication orders it */
	}
	r->state = NSV_SLOT_FREE;
	r->refusal = 0;
	r->ended = r->survived = false;
}

static void bind_slot(struct nsv_request *r, uint32_t slot)
{
	struct nsv_client *c = r->client;
	struct nsv_up_slot *up = &c->up.slots[slot];

	r->slot = slot;
	init_stream(&r->streams[NSV_STREAM_TEXT], nsv_down_text(&c->down, &c->geom, slot),
		c->geom.text_len, 1, &up->text_read);
	init_stream(&r->streams[NSV_STREAM_TOKENS], nsv_down_tokens(&c->down, &c->geom, slot),
		c->geom.n_token, sizeof(int32_t), &up->token_read);
	init_stream(&r->streams[NSV_STREAM_LPS], nsv_down_lps(&c->down, &c->geom, slot),
		c->geom.n_lp, sizeof(struct nsv_lp), &up->lp_read);
}

/* The first of n free slots side by side, or n_slot. */
static uint32_t find_slots(const struct nsv_client *c, uint32_t n)
{
	uint32_t n_free = 0;

	for (uint32_t i = 0; i < c->geom.n_slot; i++) {
		n_free = c->slots[i] ? 0 : n_free + 1;
		if (n_free == n)
			return i + 1 - n;
	}
	return c->geom.n_slot;
}

static void delete_request(struct nsv_request *r)
{
	for (int i = 0; i < NSV_N_STREAM; i++)
		free(r->streams[i].buf);
	free(r->question);
	free(r);
}

int nsv_requests_new(struct nsv_client *c, uint32_t n, struct nsv_request **ret_first)
{
	uint32_t slot = find_slots(c, n);
	struct nsv_request *first = NULL, *r;

	if (slot == c->geom.n_slot)
		return nsv_fail(&c->err, -EBUSY,
			"requests are under way: of %u slots no %u side by side are free", slot, n);
	for (uint32_t i = n; i-- > 0; first = r) {
		r = calloc(1, sizeof(*r));
		if (!r) {
			nsv_requests_delete(first);
			return nsv_fail(&c->err, -ENOMEM, "out of memory");
		}
		r->client = c;
		r->n_branch = i == 0 ? n : 1;
		r->next = first;
		bind_slot(r, slot + i);
	}
	*ret_first = first;
	return 0;
}

void nsv_requests_start(struct nsv_request *r, uint64_t id)
{
	struct nsv_client *c = r->client;

	while (r) {
		struct nsv_request *next = r->next;
		r->id = id++;
		r->next = c->all;
		c->all = r;
		c->slots[r->slot] = r;
		r = next;
	}
}

void nsv_requests_delete(struct nsv_request *r)
{
	while (r) {
		struct nsv_request *next = r->next;
		delete_request(r);
		r = next;
	}
}

struct nsv_request *nsv_request_answer(struct nsv_request *first, uint32_t i)
{
	struct nsv_request *r = i < first->n_branch ? first->client->all : NULL;

	while (r && (r->id != first->id + i || r->orphan))
		r = r->next;
	return r;
}

void nsv_request_mark_ready(struct nsv_request *r)
{
	struct nsv_client *c = r->client;

	if (r->is_ready || r->orphan)
		return;
	r->is_ready = true;
	r->next_ready = NULL;
	if (c->ready_last)
		c->ready_last->next_ready = r;
	else
		c->ready_first = r;
	c->ready_last = r;
}

struct nsv_request *nsv_client_ready(struct nsv_client *c)
{
	struct nsv_request *r = c->ready_first;

	if (!r)
		return NULL;
	c->ready_first = r->next_ready;
	if (!c->ready_first)
		c->ready_last = NULL;
	r->is_ready = false;
	return r;
}

static void unmark_ready(struct nsv_request *r)
{
	struct nsv_client *c = r->client;
	struct nsv_request *before = NULL;

	if (!r->is_ready)
		return;
	for (struct nsv_request *i = c->ready_first; i != r; i = i->next_ready)
		before = i;
	if (before)
		before->next_ready = r->next_ready;
	else
		c->ready_first = r->next_ready;
	if (c->ready_last == r)
		c->ready_last = before;
	r->is_ready = false;
}

/* A stream's new end, loaded once. 0, 1: it moved, -EPROTO: not to where a log can end. */
static int look_end(struct nsv_stream *s, const uint64_t *shared)
{
	uint64_t end = nsv_load_acq_u64(shared); /* (A) the log is whole up to it */
	uint32_t space;

	if (end == s->end)
		return 0;
	if (end < s->end || nsv_log_space(s->n, end, s->read, &space) < 0)
		return -EPROTO;
	s->end = end;
	return 1;
}

int nsv_request_look(struct nsv_request *r)
{
	const struct nsv_down_slot *slot = &r->client->down.slots[r->slot];

	/* (D) Until the daemon has taken the entry, the record is the last request's. */
	if (nsv_load_acq_u64(&slot->request_id) != r->id)
		return 0;
	if (!r->begun) {
		r->begun = true;
		r->n_prompt = slot->n_prompt;
		r->fork_text = slot->fork_text;
		r->fork_token = slot->fork_token;
	}
	/* (D) The state before the ends: after DONE the ends are final. */
	uint32_t state = nsv_load_acq_u32(&slot->state);
	int text = look_end(&r->streams[NSV_STREAM_TEXT], &slot->text_end);
	int tokens = look_end(&r->streams[NSV_STREAM_TOKENS], &slot->token_end);
	int lps = look_end(&r->streams[NSV_STREAM_LPS], &slot->lp_end);
	if (text < 0 || tokens < 0 || lps < 0)
		return -EPROTO;
	bool moved = text || tokens || lps || (state == NSV_SLOT_DONE && r->state != state);
	r->state = state;
	return moved;
}

#define SAME_CODE(name) NSV_ABI_ASSERT((int)NSV_CLIENT_CODE_##name == (int)NSV_E_##name)
SAME_CODE(DENIED);
SAME_CODE(LIMIT);
SAME_CODE(ENTRY);
SAME_CODE(ID);
SAME_CODE(UTF8);
SAME_CODE(PARAM);
SAME_CODE(UNSUPPORTED);
SAME_CODE(CONTEXT);
SAME_CODE(NOMEM);
SAME_CODE(NUMERIC);
SAME_CODE(TOKEN);
SAME_CODE(INTERNAL);
SAME_CODE(STOPPING);
SAME_CODE(CRASHED);

/* A refusal that the slot knows nothing of. */
static void set_refusal(struct nsv_request *r)
{
	r->result.finish = NSV_CLIENT_FINISH_ERROR;
	r->result.code = r->refusal;
	snprintf(r->text, sizeof(r->text), "the daemon refused the entry: code %u", r->refusal);
}

static void copy_result(struct nsv_request *r)
{
	const struct nsv_down_slot *slot = &r->client->down.slots[r->slot];

	r->result.finish = slot->finish;
	r->result.code = slot->code;
	r->result.n_prompt = r->n_prompt;
	r->result.n_cached = slot->n_cached;
	r->result.n_output = slot->n_output;
	r->result.n_preempt = slot->n_preempt;
	r->result.seed = slot->seed;
	r->result.queue_ns = slot->queue_ns;
	r->result.prefill_ns = slot->prefill_ns;
	r->result.decode_ns = slot->decode_ns;
	snprintf(r->text, sizeof(r->text), "%.*s", (int)sizeof(slot->text) - 1, slot->text);
	snprintf(r->stop, sizeof(r->stop), "%.*s", (int)sizeof(slot->stop) - 1, slot->stop);
}

void nsv_request_finish(struct nsv_request *r)
{
	struct nsv_client *c = r->client;

	if (r->state == NSV_SLOT_DONE)
		copy_result(r);
	else
		set_refusal(r);
	r->end_ns = nsv_clock_ns();
	r->finished = true;
	r->cancel = false;
	c->slots[r->slot] = NULL;
	nsv_store_rel_u64(&c->up.slots[r->slot].ack_id, r->id); /* (D) reads before it are over */
}

bool nsv_request_at_end(const struct nsv_request *r)
{
	return (r->ended || r->survived) && (r->state == NSV_SLOT_DONE || r->refusal);
}

void nsv_request_survive(struct nsv_request *r)
{
	r->survived = true;
	r->cancel = r->cancelled && !r->ended;
	nsv_request_mark_ready(r);
}

/* 0: sent or not due, -errno. No room: later. */
int nsv_request_flush_cancel(struct nsv_request *r)
{
	struct nsv_client *c = r->client;
	const struct nsv_sqe entry = {.op = NSV_OP_CANCEL,
		.slot = (uint16_t)r->slot,
		.request_id = r->id,
		.target_id = r->id};

	if (!r->cancel)
		return 0;
	if (r->ended) {
		r->cancel = false;
		return 0;
	}
	int ret = nsv_session_put(c, &entry, c->arena.tail);
	if (ret == 0)
		r->cancel = false;
	return ret == -EAGAIN ? 0 : ret;
}

int nsv_request_cancel(struct nsv_request *r)
{
	if (r->finished || r->ended)
		return 0;
	if (r->client->broken)
		return r->client->broken;
	r->cancel = r->cancelled = true;
	return nsv_request_flush_cancel(r);
}

static void unlink_all(struct nsv_request *r)
{
	struct nsv_request **p = &r->client->all;

	while (*p != r)
		p = &(*p)->next;
	*p = r->next;
}

int nsv_request_sweep(struct nsv_request *r)
{
	bool stalled = false;

	for (int i = 0; i < NSV_N_STREAM; i++) {
		struct nsv_stream *s = &r->streams[i];
		if (s->read == s->end)
			continue;
		s->read = s->end;
		stalled |= nsv_cursor_move(s->cursor, s->read, &r->client->down.slots[r->slot]);
	}
	int ret = stalled ? nsv_session_ring(r->client) : 0;
	if (ret < 0) /* what the session's end took in may have been the end of r */
		return ret;
	if (nsv_request_at_end(r)) {
		nsv_request_finish(r);
		unlink_all(r);
		delete_request(r);
	}
	return 0;
}

void nsv_request_free(struct nsv_request *r)
{
	if (!r)
		return;
	unmark_ready(r);
	if (!r->finished && !r->client->broken) {
		r->orphan = true;
		/* Should the session break here, the next call on the client says so. */
		(void)nsv_request_cancel(r);
		return;
	}
	if (!r->finished)
		r->client->slots[r->slot] = NULL;
	unlink_all(r);
	delete_request(r);
}

int nsv_request_fork_point(
	const struct nsv_request *r, uint64_t *ret_text_len, uint64_t *ret_n_token)
{
	if (!r->begun)
		return -EAGAIN;
	*ret_text_len = r->fork_text;
	*ret_n_token = r->fork_token;
	return 0;
}

uint64_t nsv_request_id(const struct nsv_request *r)
{
	return r->id;
}

void nsv_request_set_data(struct nsv_request *r, void *data)
{
	r->data = data;
}

void *nsv_request_data(const struct nsv_request *r)
{
	return r->data;
}
