/* The daemon's consumer of a session's memory, while a second thread writes the input all over that
 * memory. Whatever it finds there: an entry, nothing, or -EPROTO; every access inside the regions
 * (the sanitizers' find), copies only from the arena, and what only the daemon writes as it wrote
 * it. */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>

#include "daemon/channel.h"
#include "daemon/sigbus.h"
#include "shm/clock.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define N_LOOK 32

static const struct nsv_geom geom = {.n_sqe = 4,
	.n_cqe = 16,
	.n_slot = 2,
	.arena_len = 4096,
	.text_len = 256,
	.n_token = 64,
	.n_lp = 128};

/* ---- The client: a thread that scribbles while `input` is there */

struct scribbler {
	struct nsv_channel *ch;
	const uint8_t *data; /* atomic; NULL: rest */
	size_t len;
	int resting; /* atomic */
};

/* Four bytes a stroke: where, and what. One in 64 punches a hole. */
static void stroke(struct nsv_channel *ch, const uint8_t *p)
{
	size_t at = ((size_t)p[0] << 8 | p[1]) * 4 % ch->up_region.len;
	uint32_t v = (uint32_t)p[2] << 24 | p[3];

	if (p[0] >= 0xfc)
		fallocate(ch->up_region.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			(off_t)(at & ~(size_t)(NSV_PAGE - 1)), NSV_PAGE);
	else if (p[0] & 1)
		__atomic_fetch_add((uint32_t *)ch->up_region.map + at / 4, p[3], __ATOMIC_RELAXED);
	else
		__atomic_store_n((uint32_t *)ch->up_region.map + at / 4, v, __ATOMIC_RELAXED);
}

static void *scribble(void *arg)
{
	struct scribbler *s = arg;

	for (;;) {
		const uint8_t *data = __atomic_load_n(&s->data, __ATOMIC_ACQUIRE);
		if (!data) {
			__atomic_store_n(&s->resting, 1, __ATOMIC_RELEASE);
			usleep(0);
			continue;
		}
		for (size_t i = 0; i + 4 <= s->len; i += 4)
			stroke(s->ch, data + i);
	}
	return NULL;
}

static void begin_scribbling(struct scribbler *s, const uint8_t *data, size_t len)
{
	s->len = len;
	__atomic_store_n(&s->resting, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&s->data, data, __ATOMIC_RELEASE);
}

static void end_scribbling(struct scribbler *s)
{
	__atomic_store_n(&s->data, NULL, __ATOMIC_RELEASE);
	/* It may have taken up the input before: only what it says after counts. */
	__atomic_store_n(&s->resting, 0, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&s->resting, __ATOMIC_ACQUIRE))
		nsv_pause();
}

/* ---- The daemon */

static void must(bool good)
{
	if (!good)
		abort();
}

static void copy_arena(struct nsv_channel *ch, uint32_t off, uint32_t n)
{
	static unsigned char copy[4096];
	int ret = nsv_channel_copy(ch, off, n, copy);

	must(ret == -ERANGE || (ret == 0 && off % 8 == 0 && (uint64_t)off + n <= geom.arena_len));
}

/* Writes a slot's logs as far as the cursors let it. */
static void answer(struct nsv_channel *ch, uint32_t slot, uint64_t id)
{
	static const int32_t ids[64];
	static const struct nsv_lp lps[128];
	static const char text[256];
	struct nsv_sink s;

	nsv_sink_begin(&s, ch, slot, id, NULL);
	for (int i = 0; i < 4; i++) {
		uint32_t n_text = nsv_sink_text_room(&s), n_token = nsv_sink_token_room(&s);
		uint32_t n_lp = nsv_sink_lp_room(&s);
		must(n_text <= geom.text_len && n_token <= geom.n_token && n_lp <= geom.n_lp);
		nsv_sink_text(&s, text, n_text);
		nsv_sink_tokens(&s, ids, n_token);
		nsv_sink_lps(&s, lps, n_lp);
		nsv_sink_publish(&s);
		nsv_sink_stalled(&s, true);
	}
	nsv_sink_finish(&s, &(struct nsv_result){.finish = NSV_FINISH_STOP, .text = "done"});
	must(nsv_load_acq_u64(&ch->down.slots[slot].request_id) == id);
}

/* false: the session is over. */
static bool look(struct nsv_channel *ch)
{
	uint32_t head = ch->io.sq.head;
	struct nsv_sqe sqe;
	int ret = nsv_channel_next(ch, &sqe);

	must(ret == 0 || ret == 1 || ret == -EPROTO);
	must(ch->io.sq.head - head == (ret == 0));
	if (ret != 0)
		return ret == 1;
	copy_arena(ch, sqe.prompt_off, sqe.prompt_len);
	copy_arena(ch, sqe.params_off, sqe.params_len);
	struct nsv_cqe cqe = {.request_id = sqe.request_id, .kind = NSV_CQE_DONE};
	nsv_channel_reply(ch, &cqe);
	ret = nsv_cq_post(&ch->engine.event, &cqe);
	must(ret == 0 || ret == 1 || ret == -EPROTO);
	ret = nsv_cq_taken(&ch->engine.event, ch->engine.event.tail - 1);
	must(ret == 0 || ret == 1 || ret == -EPROTO);
	answer(ch, sqe.slot % geom.n_slot, sqe.request_id | 1);
	nsv_channel_ring(ch, &ch->io.rung);
	nsv_channel_taken(ch, ch->io.sq.head);
	return !nsv_channel_broken(ch);
}

static void check_down(const struct nsv_channel *ch)
{
	struct nsv_err err;

	must(nsv_down_check(ch->down_region.map, &geom, 1, &err) == 0);
	must(nsv_load_rlx_u32(&ch->down.head->sq_head) == ch->io.sq.head);
	must(nsv_load_rlx_u32(&ch->down.head->reply_tail) == (uint32_t)ch->io.reply.tail);
	must(nsv_load_rlx_u32(&ch->down.head->event_tail) == (uint32_t)ch->engine.event.tail);
}

static void open_session(struct nsv_channel *ch)
{
	nsv_channel_prepare(ch, &geom);
	must(nsv_channel_allocate(ch, NULL) == 0 && nsv_channel_init(ch, 1, -1) == 0);
}

static void start(struct nsv_channel *ch, struct scribbler *s)
{
	pthread_t thread;

	must(nsv_sigbus_setup() == 0);
	open_session(ch);
	s->ch = ch;
	must(pthread_create(&thread, NULL, scribble, s) == 0 && pthread_detach(thread) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static struct nsv_channel ch;
	static struct scribbler scribbler;

	if (!scribbler.ch)
		start(&ch, &scribbler);
	begin_scribbling(&scribbler, data, len);
	bool open = true;
	for (int i = 0; i < N_LOOK && open; i++)
		open = look(&ch);
	end_scribbling(&scribbler);
	check_down(&ch);
	if (!open) { /* the next session, in the same memory's place */
		nsv_channel_deinit(&ch);
		open_session(&ch);
	}
	return 0;
}
