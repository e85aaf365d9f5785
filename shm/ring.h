/* Reading and writing what two processes share: barriers, rings, logs, sleep. Header-only.
 *
 *   ring of n = 2^k entries, free-running 32-bit indices:
 *
 *        head ------------> tail            used = tail - head  (modulo 2^32, at most n)
 *     ...[taken][ whole  ...  ][free]...    an entry's place is index & (n - 1)
 *
 * The producer alone writes entries and `tail`, the consumer alone writes `head`. Each keeps its
 * own index in private memory and never reads it back. A peer's index is loaded once and checked: a
 * distance over n is -EPROTO, for the peer is broken or hostile.
 *
 *   log of n elements, free-running 64-bit positions: the writer's `end`, the reader's `read`;
 *   0 <= end - read <= n. Position p lies at p & (n - 1).
 *
 * Pairs of barriers are named where they stand: (A) an index or end, (B) its way back, (C) sleep,
 * (D) a slot's life, (E) a stalled log. PROTOCOL.md has the argument for each.
 *
 * Threads: an object here belongs to one thread on its side. */
#ifndef NSV_SHM_RING_H
#define NSV_SHM_RING_H

#include <string.h>

#include "shm/layout.h"

static inline uint32_t nsv_load_acq_u32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline uint64_t nsv_load_acq_u64(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline uint32_t nsv_load_rlx_u32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static inline uint64_t nsv_load_rlx_u64(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static inline void nsv_store_rel_u32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline void nsv_store_rel_u64(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline void nsv_store_rlx_u32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

static inline void nsv_store_rlx_u64(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

/* Orders earlier stores before later loads, which acquire and release do not. ThreadSanitizer knows
 * no fences, so there a read-modify-write, as strong on the machines it runs on, stands for it. */
static inline void nsv_fence(void)
{
#ifdef __SANITIZE_THREAD__
	uint32_t own = 0;
	__atomic_exchange_n(&own, 1u, __ATOMIC_SEQ_CST);
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* Copies out of memory that a hostile peer may be changing: the compiler may not go back to the
 * source for a byte that it has in dst. */
static inline void nsv_copy_in(void *dst, const void *src, size_t len)
{
	memcpy(dst, src, len);
	__asm__ volatile("" ::: "memory");
}

/* ---- Rings */

/* The client's side of the submission ring. */
struct nsv_sq_producer {
	struct nsv_sqe *ring;
	uint32_t *shared_tail;
	const uint32_t *shared_head;
	uint32_t mask, tail;
};

/* The daemon's side. `head` is the daemon's truth; it is stored in `down`. */
struct nsv_sq_consumer {
	const struct nsv_sqe *ring;
	const uint32_t *shared_tail;
	uint32_t *shared_head;
	uint32_t mask, head;
};

/* The daemon's side of a completion ring: one thread owns it (io: reply, engine: event). */
struct nsv_cq_producer {
	struct nsv_cqe *ring;
	uint32_t *shared_tail;
	const uint32_t *shared_head;
	uint32_t mask;
	uint64_t tail; /* counts all entries ever; its low half is the shared index */
};

/* The client's side of a completion ring. */
struct nsv_cq_consumer {
	const struct nsv_cqe *ring;
	const uint32_t *shared_tail;
	uint32_t *shared_head;
	uint32_t mask, head;
};

/* Free entries, or -EPROTO. */
static inline int nsv_sq_space(const struct nsv_sq_producer *sq, uint32_t *ret_space)
{
	/* (B) pairs with the release in nsv_sq_advance: the daemon's reads of an entry are over */
	uint32_t used = sq->tail - nsv_load_acq_u32(sq->shared_head);

	if (used > sq->mask + 1)
		return -EPROTO;
	*ret_space = sq->mask + 1 - used;
	return 0;
}

/* Puts an entry; 0, 1: the ring is full, -EPROTO. The daemon sees it after nsv_sq_publish, so that
 * a burst costs one store and one look at the daemon's wait word. */
static inline int nsv_sq_put(struct nsv_sq_producer *sq, const struct nsv_sqe *entry)
{
	uint32_t space;
	int ret = nsv_sq_space(sq, &space);

	if (ret < 0)
		return ret;
	if (space == 0)
		return 1;
	sq->ring[sq->tail & sq->mask] = *entry;
	sq->tail++;
	return 0;
}

static inline void nsv_sq_publish(struct nsv_sq_producer *sq)
{
	nsv_store_rel_u32(sq->shared_tail, sq->tail); /* (A) pairs with nsv_sq_ready */
}

/* Entries to be taken, or -EPROTO (a tail that no client of ours writes). */
static inline int nsv_sq_ready(const struct nsv_sq_consumer *sq, uint32_t *ret_n)
{
	/* (A) pairs with the release in nsv_sq_publish: entries and arena bytes are whole */
	uint32_t used = nsv_load_acq_u32(sq->shared_tail) - sq->head;

	if (used > sq->mask + 1)
		return -EPROTO;
	*ret_n = used;
	return 0;
}

/* Copies the next entry, which nsv_sq_ready has counted; it is taken by nsv_sq_advance. */
static inline void nsv_sq_peek(const struct nsv_sq_consumer *sq, struct nsv_sqe *ret)
{
	nsv_copy_in(ret, &sq->ring[sq->head & sq->mask], sizeof(*ret));
}

/* The entry and its arena bytes will not be read again: they are the client's. */
static inline void nsv_sq_advance(struct nsv_sq_consumer *sq)
{
	sq->head++;
	nsv_store_rel_u32(sq->shared_head, sq->head); /* (B) pairs with nsv_sq_space */
}

/* Entries that the client has not taken, or -EPROTO. */
static inline int nsv_cq_used(const struct nsv_cq_producer *cq, uint32_t *ret_used)
{
	/* (B) pairs with the release in nsv_cq_advance: the client's reads are over */
	uint32_t used = (uint32_t)cq->tail - nsv_load_acq_u32(cq->shared_head);

	if (used > cq->mask + 1)
		return -EPROTO;
	*ret_used = used;
	return 0;
}

/* Puts and publishes an entry; 0, 1: the ring is full, -EPROTO. Then look at the client's wait word
 * (nsv_wait_must_ring), once for a burst. */
static inline int nsv_cq_post(struct nsv_cq_producer *cq, const struct nsv_cqe *entry)
{
	uint32_t used;
	int ret = nsv_cq_used(cq, &used);

	if (ret < 0)
		return ret;
	if (used > cq->mask)
		return 1;
	cq->ring[cq->tail & cq->mask] = *entry;
	cq->tail++;
	nsv_store_rel_u32(cq->shared_tail, (uint32_t)cq->tail); /* (A) pairs with nsv_cq_ready */
	return 0;
}

/* Has the client taken entry number `index` (a value that cq->tail had when it was posted)?
 * -EPROTO, 0: not yet, 1: yes. For the rule of one TOKENS event a slot: store the slot's ends, call
 * this, and post a new event only on 1. The fence pairs with the one in nsv_cq_advance: either this
 * sees the moved head, or the client sees the ends stored before. */
static inline int nsv_cq_taken(const struct nsv_cq_producer *cq, uint64_t index)
{
	uint32_t used;

	nsv_fence(); /* (B) */
	int ret = nsv_cq_used(cq, &used);
	return ret < 0 ? ret : index < cq->tail - used;
}

/* Entries to be taken, or -EPROTO. */
static inline int nsv_cq_ready(const struct nsv_cq_consumer *cq, uint32_t *ret_n)
{
	/* (A) pairs with the release in nsv_cq_post */
	uint32_t used = nsv_load_acq_u32(cq->shared_tail) - cq->head;

	if (used > cq->mask + 1)
		return -EPROTO;
	*ret_n = used;
	return 0;
}

/* Copies entry number i (from 0) of those that nsv_cq_ready counted. */
static inline void nsv_cq_peek(const struct nsv_cq_consumer *cq, uint32_t i, struct nsv_cqe *ret)
{
	nsv_copy_in(ret, &cq->ring[(cq->head + i) & cq->mask], sizeof(*ret));
}

/* Takes n entries. Only what is read of slots after it counts (see nsv_cq_taken). */
static inline void nsv_cq_advance(struct nsv_cq_consumer *cq, uint32_t n)
{
	cq->head += n;
	nsv_store_rel_u32(cq->shared_head, cq->head); /* (B) pairs with nsv_cq_used */
	nsv_fence();				      /* (B) pairs with nsv_cq_taken */
}

/* ---- Sides: the objects above over a mapped session */

static inline struct nsv_sq_producer nsv_sq_producer_at(
	const struct nsv_up *up, const struct nsv_down *down, const struct nsv_geom *geom)
{
	return (struct nsv_sq_producer){.ring = up->sqes,
		.shared_tail = &up->head->sq_tail,
		.shared_head = &down->head->sq_head,
		.mask = geom->n_sqe - 1};
}

static inline struct nsv_sq_consumer nsv_sq_consumer_at(
	const struct nsv_up *up, const struct nsv_down *down, const struct nsv_geom *geom)
{
	return (struct nsv_sq_consumer){.ring = up->sqes,
		.shared_tail = &up->head->sq_tail,
		.shared_head = &down->head->sq_head,
		.mask = geom->n_sqe - 1};
}

static inline struct nsv_cq_producer nsv_reply_producer_at(
	const struct nsv_up *up, const struct nsv_down *down, const struct nsv_geom *geom)
{
	return (struct nsv_cq_producer){.ring = down->reply,
		.shared_tail = &down->head->reply_tail,
		.shared_head = &up->head->reply_head,
		.mask = geom->n_cqe - 1};
}

static inline struct nsv_cq_producer nsv_event_producer_at(
	const struct nsv_up *up, const struct nsv_down *down, const struct nsv_geom *geom)
{
	return (struct nsv_cq_producer){.ring = down->event,
		.shared_tail = &down->head->event_tail,
		.shared_head = &up->head->event_head,
		.mask = geom->n_cqe - 1};
}

static inline struct nsv_cq_consumer nsv_reply_consumer_at(
	const struct nsv_up *up, const struct nsv_down *down, const struct nsv_geom *geom)
{
	return (struct nsv_cq_consumer){.ring = down->reply,
		.shared_tail = &down->head->reply_tail,
		.shared_head = &up->head->reply_head,
		.mask = geom->n_cqe - 1};
}

static inline struct nsv_cq_consumer nsv_event_consumer_at(
	const struct nsv_up *up, const struct nsv_down *down, const struct nsv_geom *geom)
{
	return (struct nsv_cq_consumer){.ring = down->event,
		.shared_tail = &down->head->event_tail,
		.shared_head = &up->head->event_head,
		.mask = geom->n_cqe - 1};
}

static inline char *nsv_down_text(
	const struct nsv_down *down, const struct nsv_geom *geom, uint32_t slot)
{
	return down->text + (size_t)slot * geom->text_len;
}

static inline int32_t *nsv_down_tokens(
	const struct nsv_down *down, const struct nsv_geom *geom, uint32_t slot)
{
	return down->tokens + (size_t)slot * geom->n_token;
}

static inline struct nsv_lp *nsv_down_lps(
	const struct nsv_down *down, const struct nsv_geom *geom, uint32_t slot)
{
	return down->lps + (size_t)slot * geom->n_lp;
}

/* ---- Logs of n elements (a power of two) of `size` bytes */

/* Elements that may be written at `end` while the reader stands at `read`; -EPROTO: a cursor that
 * is past the end, or further behind than the log is long. */
static inline int nsv_log_space(uint32_t n, uint64_t end, uint64_t read, uint32_t *ret_space)
{
	if (read > end || end - read > n)
		return -EPROTO;
	*ret_space = n - (uint32_t)(end - read);
	return 0;
}

/* Copies `count` (at most n) elements to position `pos`; wraps. */
static inline void nsv_log_put(
	void *log, uint32_t n, size_t size, uint64_t pos, const void *src, uint32_t count)
{
	size_t at = (size_t)(pos & (n - 1));
	size_t first = nsv_min(count, n - at);

	memcpy((char *)log + at * size, src, first * size);
	memcpy(log, (const char *)src + first * size, (count - first) * size);
}

/* Copies `count` (at most n) elements out from position `pos`; wraps. */
static inline void nsv_log_get(
	const void *log, uint32_t n, size_t size, uint64_t pos, void *dst, uint32_t count)
{
	size_t at = (size_t)(pos & (n - 1));
	size_t first = nsv_min(count, n - at);

	nsv_copy_in(dst, (const char *)log + at * size, first * size);
	nsv_copy_in((char *)dst + first * size, log, (count - first) * size);
}

/* The reader's cursor (text_read, token_read or lp_read) moves. true: the daemon waits for it,
 * ring. (E) The release pairs with the daemon's acquire of the cursor, the fence with
 * nsv_slot_stall's. */
static inline bool nsv_cursor_move(uint64_t *cursor, uint64_t pos, const struct nsv_down_slot *slot)
{
	nsv_store_rel_u64(cursor, pos);
	nsv_fence();
	return nsv_load_rlx_u32(&slot->stalled) == 1;
}

/* The daemon says that it waits for a cursor; it then reads the cursors once more before it leaves
 * the slot alone. (E) The fence pairs with the one in nsv_cursor_move. */
static inline void nsv_slot_stall(struct nsv_down_slot *slot)
{
	nsv_store_rlx_u32(&slot->stalled, 1);
	nsv_fence();
}

/* ---- Sleep. A side's wait word is odd while that side sleeps.
 *
 *   waiter                                 publisher
 *   drain the socket                       publish (release stores)
 *   nsv_wait_begin: odd, fence (C)         nsv_wait_must_ring: fence (C), load the word
 *   look again: anything? -> nsv_wait_end  odd and not yet rung for: send a bell
 *   poll the socket
 *   nsv_wait_end: even */

static inline void nsv_wait_begin(uint32_t *wait)
{
	nsv_store_rlx_u32(wait, nsv_load_rlx_u32(wait) + 1);
	nsv_fence(); /* (C) pairs with nsv_wait_must_ring */
}

static inline void nsv_wait_end(uint32_t *wait)
{
	nsv_store_rlx_u32(wait, nsv_load_rlx_u32(wait) + 1);
}

/* Must the publisher send a bell? *last_rung is its private memory of the word that it last rang
 * for, at first 0. One sleep gets one bell from a publisher however much it publishes. */
static inline bool nsv_wait_must_ring(const uint32_t *wait, uint32_t *last_rung)
{
	nsv_fence(); /* (C) pairs with nsv_wait_begin */
	uint32_t word = nsv_load_rlx_u32(wait);

	if (!(word & 1) || word == *last_rung)
		return false;
	*last_rung = word;
	return true;
}

#endif
