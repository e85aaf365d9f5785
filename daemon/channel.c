/* The daemon's side of a session's rings and logs; ring.h has the barriers. */
#include "daemon/channel.h"

#include <fcntl.h>
#include <string.h>

#include "daemon/sigbus.h"
#include "shm/wire.h"

void nsv_channel_prepare(struct nsv_channel *ch, const struct nsv_geom *geom)
{
	*ch = (struct nsv_channel){.up_region = NSV_REGION_NONE,
		.down_region = NSV_REGION_NONE,
		.geom = *geom,
		.fd = -1,
		.sigbus_index = -1};
}

static int guard(struct nsv_channel *ch)
{
	int ret = nsv_sigbus_add(ch->up_region.map, ch->up_region.len);

	if (ret < 0)
		return ret;
	ch->sigbus_index = ret;
	return 0;
}

/* Addresses and rings over the mapped regions. */
static void bind_rings(struct nsv_channel *ch, const struct nsv_up_layout *up,
	const struct nsv_down_layout *down)
{
	ch->up = nsv_up_at(ch->up_region.map, up);
	ch->down = nsv_down_at(ch->down_region.map, down);
	ch->io.sq = nsv_sq_consumer_at(&ch->up, &ch->down, &ch->geom);
	ch->io.reply = nsv_reply_producer_at(&ch->up, &ch->down, &ch->geom);
	ch->engine.event = nsv_event_producer_at(&ch->up, &ch->down, &ch->geom);
}

static int compute_layout(const struct nsv_geom *geom, struct nsv_up_layout *ret_up,
	struct nsv_down_layout *ret_down, struct nsv_err *err)
{
	if (nsv_layout_up(geom, ret_up) < 0 || nsv_layout_down(geom, ret_down) < 0)
		return nsv_fail(err, -EINVAL, "the session's geometry is impossible");
	return 0;
}

int nsv_channel_allocate(struct nsv_channel *ch, struct nsv_err *err)
{
	struct nsv_up_layout up;
	struct nsv_down_layout down;
	int ret = compute_layout(&ch->geom, &up, &down, err);

	if (ret == 0)
		ret = nsv_region_create(&ch->up_region, "nsv-up", up.len, 0, err);
	if (ret == 0)
		ret = nsv_region_create(&ch->down_region, "nsv-down", down.len, 0, err);
	if (ret < 0)
		nsv_channel_deinit(ch);
	return ret;
}

int nsv_channel_init(struct nsv_channel *ch, uint64_t session_id, int fd)
{
	struct nsv_up_layout up;
	struct nsv_down_layout down;
	struct nsv_err err;
	int ret = compute_layout(&ch->geom, &up, &down, &err);

	if (ret == 0)
		ret = guard(ch);
	if (ret < 0)
		return ret;
	ch->fd = fd;
	nsv_up_format(ch->up_region.map, &ch->geom, session_id);
	nsv_down_format(ch->down_region.map, &ch->geom, session_id);
	bind_rings(ch, &up, &down);
	nsv_channel_set_waiting(ch, true);
	return 0;
}

static int adopt_regions(struct nsv_channel *ch, size_t up_len, size_t down_len, int up_fd,
	int down_fd, struct nsv_err *err)
{
	int ret = nsv_region_adopt(&ch->up_region, up_fd, up_len, true, err);

	if (ret == 0)
		ret = nsv_region_adopt(&ch->down_region, down_fd, down_len, true, err);
	return ret;
}

/* The rings go on where the last daemon left them. A tail counts all entries ever, so a first lap
 * is assumed: what was posted before the restart then lies below it. */
static void resume_rings(struct nsv_channel *ch, uint32_t sq_head)
{
	struct nsv_down_head *head = ch->down.head;

	ch->io.sq.head = sq_head;
	ch->io.reply.tail = (1ull << 32) + nsv_load_rlx_u32(&head->reply_tail);
	ch->engine.event.tail = (1ull << 32) + nsv_load_rlx_u32(&head->event_tail);
	nsv_store_rel_u32(&head->sq_head, sq_head);
	nsv_store_rlx_u32(&head->end, NSV_E_OK); /* of a daemon that died as it ended the session */
	/* A new odd word: for this one the client may have rung a daemon that is no more. */
	if (nsv_load_rlx_u32(&head->wait) & 1)
		nsv_wait_end(&head->wait);
	nsv_wait_begin(&head->wait);
}

int nsv_channel_adopt(struct nsv_channel *ch, const struct nsv_geom *geom, uint64_t session_id,
	int fd, int up_fd, int down_fd, uint32_t sq_head, struct nsv_err *err)
{
	struct nsv_up_layout up;
	struct nsv_down_layout down;

	nsv_channel_prepare(ch, geom);
	ch->fd = fd;
	int ret = compute_layout(geom, &up, &down, err);
	if (ret == 0)
		ret = adopt_regions(ch, up.len, down.len, up_fd, down_fd, err);
	if (ret == 0)
		ret = nsv_down_check(ch->down_region.map, geom, session_id, err);
	if (ret == 0)
		ret = guard(ch);
	if (ret < 0) { /* the descriptors stay the caller's */
		ch->up_region.fd = ch->down_region.fd = -1;
		nsv_channel_deinit(ch);
		return ret;
	}
	bind_rings(ch, &up, &down);
	resume_rings(ch, sq_head);
	return 0;
}

void nsv_channel_set_epoch(struct nsv_channel *ch, uint32_t epoch)
{
	nsv_store_rel_u32(&ch->down.head->epoch, epoch);
}

void nsv_channel_say_end(struct nsv_channel *ch, enum nsv_code code)
{
	nsv_store_rel_u32(&ch->down.head->end, code);
}

/* No failure matters: the client then knows no more than that it has ended. */
void nsv_channel_say_lost(int down_fd)
{
	const off_t at = offsetof(struct nsv_down_head, end);
	uint32_t end;

	if (pread(down_fd, &end, sizeof(end), at) != sizeof(end) || end != NSV_E_OK)
		return;
	end = NSV_E_LOST;
	(void)!pwrite(down_fd, &end, sizeof(end), at);
}

/* No failure matters: the memory then goes with the last descriptor. */
static void punch(const struct nsv_region *r, size_t from)
{
	if (r->fd >= 0 && from < r->len)
		(void)fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
			(off_t)(r->len - from));
}

void nsv_channel_empty(struct nsv_channel *ch)
{
	uint32_t end = ch->down.head ? nsv_load_rlx_u32(&ch->down.head->end) : NSV_E_OK;

	punch(&ch->up_region, 0);
	if (end == NSV_E_OK || end == NSV_E_ENTRY) /* it hung up, or broke the rules */
		punch(&ch->down_region, NSV_PAGE);
}

void nsv_channel_unguard(struct nsv_channel *ch)
{
	nsv_sigbus_remove(ch->sigbus_index);
	ch->sigbus_index = -1;
}

void nsv_channel_deinit(struct nsv_channel *ch)
{
	nsv_channel_unguard(ch);
	nsv_region_deinit(&ch->up_region);
	nsv_region_deinit(&ch->down_region);
}

bool nsv_channel_broken(const struct nsv_channel *ch)
{
	return nsv_sigbus_hit(ch->sigbus_index);
}

int nsv_channel_ready(const struct nsv_channel *ch)
{
	uint32_t n, used;
	int ret = nsv_sq_ready(&ch->io.sq, &n);

	if (ret == 0)
		ret = nsv_cq_used(&ch->io.reply, &used);
	if (ret < 0)
		return ret;
	/* Every slot may still owe a reply, for an entry whose prompt the worker has; and this
	 * entry may get one for each slot that it names. */
	return n > 0 && used + 2 * ch->geom.n_slot <= ch->io.reply.mask;
}

int nsv_channel_next(struct nsv_channel *ch, struct nsv_sqe *ret)
{
	int ready = nsv_channel_ready(ch);

	if (ready <= 0)
		return ready < 0 ? ready : 1;
	nsv_sq_peek(&ch->io.sq, ret);
	ch->io.sq.head++;
	return 0;
}

void nsv_channel_taken(struct nsv_channel *ch, uint32_t index)
{
	nsv_store_rel_u32(ch->io.sq.shared_head, index);
}

int nsv_channel_copy(const struct nsv_channel *ch, uint32_t off, uint32_t len, void *dst)
{
	uint32_t arena_len = ch->geom.arena_len;

	if (off % 8 || off > arena_len || len > arena_len - off)
		return -ERANGE;
	nsv_copy_in(dst, ch->up.arena + off, len);
	return 0;
}

void nsv_channel_reply(struct nsv_channel *ch, const struct nsv_cqe *cqe)
{
	/* nsv_channel_next saw room for it; a client that moved its head back loses its own
	 * reply */
	nsv_cq_post(&ch->io.reply, cqe);
}

void nsv_channel_set_waiting(struct nsv_channel *ch, bool waiting)
{
	uint32_t *word = &ch->down.head->wait;

	if ((nsv_load_rlx_u32(word) & 1) == waiting)
		return;
	if (waiting)
		nsv_wait_begin(word);
	else
		nsv_wait_end(word);
}

void nsv_channel_ring(struct nsv_channel *ch, uint32_t *rung)
{
	if (nsv_wait_must_ring(&ch->up.head->wait, rung))
		nsv_bell_send(ch->fd);
}

/* ---- A slot's output */

void nsv_sink_resume(struct nsv_sink *s, struct nsv_channel *ch, uint32_t slot)
{
	*s = (struct nsv_sink){.ch = ch,
		.rec = &ch->down.slots[slot],
		.cursors = &ch->up.slots[slot],
		.slot = slot};
}

void nsv_sink_begin(struct nsv_sink *s, struct nsv_channel *ch, uint32_t slot, uint64_t request_id,
	const struct nsv_origin *origin)
{
	nsv_sink_resume(s, ch, slot);
	struct nsv_down_slot *rec = s->rec;

	/* (D) While request_id is 0 nobody takes the rest for an answer. */
	nsv_store_rel_u64(&rec->request_id, 0);
	nsv_store_rlx_u32(&rec->state, NSV_SLOT_FREE);
	nsv_store_rlx_u32(&rec->stalled, 0);
	nsv_store_rlx_u64(&rec->text_end, 0);
	nsv_store_rlx_u64(&rec->token_end, 0);
	nsv_store_rlx_u64(&rec->lp_end, 0);
	rec->finish = NSV_FINISH_NONE;
	rec->code = NSV_E_OK;
	rec->n_prompt = origin ? origin->n_prompt : 0;
	rec->fork_text = origin ? origin->fork_text : 0;
	rec->fork_token = origin ? origin->fork_token : 0;
	rec->n_cached = rec->n_output = rec->n_preempt = 0;
	rec->seed = rec->queue_ns = rec->prefill_ns = rec->decode_ns = 0;
	memset(rec->stop, 0, sizeof(rec->stop));
	memset(rec->text, 0, sizeof(rec->text));
	nsv_store_rel_u64(&rec->request_id, request_id);
}

/* A cursor that cannot be true leaves no room: such a reader waits for itself. */
static uint32_t room(uint32_t n, uint64_t end, const uint64_t *cursor)
{
	uint32_t space;

	return nsv_log_space(n, end, nsv_load_acq_u64(cursor), &space) < 0 ? 0 : space;
}

uint32_t nsv_sink_text_room(const struct nsv_sink *s)
{
	return room(s->ch->geom.text_len, s->text_end, &s->cursors->text_read);
}

uint32_t nsv_sink_token_room(const struct nsv_sink *s)
{
	return room(s->ch->geom.n_token, s->token_end, &s->cursors->token_read);
}

uint32_t nsv_sink_lp_room(const struct nsv_sink *s)
{
	return room(s->ch->geom.n_lp, s->lp_end, &s->cursors->lp_read);
}

void nsv_sink_text(struct nsv_sink *s, const char *p, size_t len)
{
	const struct nsv_geom *g = &s->ch->geom;

	nsv_log_put(nsv_down_text(&s->ch->down, g, s->slot), g->text_len, 1, s->text_end, p,
		(uint32_t)len);
	s->text_end += len;
}

void nsv_sink_tokens(struct nsv_sink *s, const int32_t *ids, size_t n)
{
	const struct nsv_geom *g = &s->ch->geom;

	nsv_log_put(nsv_down_tokens(&s->ch->down, g, s->slot), g->n_token, sizeof(*ids),
		s->token_end, ids, (uint32_t)n);
	s->token_end += n;
}

void nsv_sink_lps(struct nsv_sink *s, const struct nsv_lp *lps, size_t n)
{
	const struct nsv_geom *g = &s->ch->geom;

	nsv_log_put(nsv_down_lps(&s->ch->down, g, s->slot), g->n_lp, sizeof(*lps), s->lp_end, lps,
		(uint32_t)n);
	s->lp_end += n;
}

void nsv_sink_publish(struct nsv_sink *s)
{
	nsv_store_rel_u64(&s->rec->lp_end, s->lp_end);
	nsv_store_rel_u64(&s->rec->token_end, s->token_end);
	nsv_store_rel_u64(&s->rec->text_end, s->text_end);
}

void nsv_sink_state(struct nsv_sink *s, enum nsv_slot_state state)
{
	nsv_store_rel_u32(&s->rec->state, state);
}

void nsv_sink_stalled(struct nsv_sink *s, bool stalled)
{
	if (stalled)
		nsv_slot_stall(s->rec);
	else
		nsv_store_rlx_u32(&s->rec->stalled, 0);
}

void nsv_sink_finish(struct nsv_sink *s, const struct nsv_result *r)
{
	struct nsv_down_slot *rec = s->rec;

	nsv_sink_publish(s);
	rec->finish = r->finish;
	rec->code = r->code;
	rec->n_cached = r->n_cached;
	rec->n_output = r->n_output;
	rec->n_preempt = r->n_preempt;
	rec->seed = r->seed;
	rec->queue_ns = r->queue_ns;
	rec->prefill_ns = r->prefill_ns;
	rec->decode_ns = r->decode_ns;
	snprintf(rec->stop, sizeof(rec->stop), "%s", r->stop ? r->stop : "");
	snprintf(rec->text, sizeof(rec->text), "%s", r->text ? r->text : "");
	nsv_sink_stalled(s, false);
	nsv_sink_state(s, NSV_SLOT_DONE);
}
