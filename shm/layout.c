/* The layout of the two regions. Sums are 64-bit and cannot overflow once nsv_geom_check has
 * passed: the largest `down` is NSV_MAX_SLOT * (16 + 16 + 32) MiB = 64 GiB. */
#include "shm/layout.h"

#include <string.h>

#define HEAD_LEN 4096u /* the head page of each region */

static uint32_t pow2_ceil(uint32_t x)
{
	uint32_t r = 1;

	while (r < x && r < (1u << 31))
		r <<= 1;
	return r;
}

static uint32_t or_default(uint32_t wanted, uint32_t otherwise)
{
	return wanted ? wanted : otherwise;
}

void nsv_geom_complete(const struct nsv_geom *want, struct nsv_geom *ret)
{
	struct nsv_geom g = {
		.n_sqe = or_default(want->n_sqe, 32),
		.n_slot = or_default(want->n_slot, 8),
		.arena_len = or_default(want->arena_len, 256u << 10),
		.text_len = or_default(want->text_len, 16u << 10),
		.n_token = or_default(want->n_token, 4096),
		.n_lp = want->n_lp,
	};
	uint32_t events = g.n_slot <= NSV_MAX_SLOT ? 4 * g.n_slot : NSV_MAX_CQE;

	g.n_cqe = pow2_ceil(events > g.n_sqe ? events : g.n_sqe);
	*ret = g;
}

/* One count of the geometry against its range. */
static int check_count(
	const char *name, uint32_t n, uint32_t least, uint32_t most, struct nsv_err *err)
{
	if (n > most)
		return nsv_fail(err, NSV_E_LIMIT, "%s is %u: at most %u", name, n, most);
	if (n < least)
		return nsv_fail(err, NSV_E_HELLO, "%s is %u: at least %u", name, n, least);
	return 0;
}

static int check_pow2(
	const char *name, uint32_t n, uint32_t least, uint32_t most, struct nsv_err *err)
{
	int ret = check_count(name, n, least, most, err);

	if (ret == 0 && !nsv_is_pow2(n))
		return nsv_fail(err, NSV_E_HELLO, "%s is %u: not a power of two", name, n);
	return ret;
}

int nsv_geom_check(const struct nsv_geom *geom, struct nsv_err *err)
{
	int ret = check_pow2("n_sqe", geom->n_sqe, 1, NSV_MAX_SQE, err);

	if (ret == 0)
		ret = check_count("n_slot", geom->n_slot, 1, NSV_MAX_SLOT, err);
	if (ret == 0)
		ret = check_pow2("n_cqe", geom->n_cqe, 4 * geom->n_slot, NSV_MAX_CQE, err);
	if (ret == 0)
		ret = check_pow2("arena_len", geom->arena_len, NSV_MIN_ARENA, NSV_MAX_ARENA, err);
	if (ret == 0)
		ret = check_pow2(
			"text_len", geom->text_len, NSV_MIN_TEXT_LOG, NSV_MAX_TEXT_LOG, err);
	if (ret == 0)
		ret = check_pow2(
			"n_token", geom->n_token, NSV_MIN_TOKEN_LOG, NSV_MAX_TOKEN_LOG, err);
	if (ret == 0 && geom->n_lp > 0)
		ret = check_pow2("n_lp", geom->n_lp, NSV_MIN_LP_LOG, NSV_MAX_LP_LOG, err);
	return ret;
}

/* Takes `n` elements at the next cache line: where they begin. */
static uint64_t place(uint64_t *at, uint64_t n, uint64_t size)
{
	uint64_t start = (*at + NSV_CACHE_LINE - 1) & ~(uint64_t)(NSV_CACHE_LINE - 1);

	*at = start + n * size;
	return start;
}

static size_t whole_pages(uint64_t len)
{
	return (size_t)((len + NSV_PAGE - 1) & ~(uint64_t)(NSV_PAGE - 1));
}

int nsv_layout_up(const struct nsv_geom *geom, struct nsv_up_layout *ret)
{
	struct nsv_up_layout l;
	uint64_t at = HEAD_LEN;

	if (nsv_geom_check(geom, NULL) != 0)
		return -EINVAL;
	l.slot_off = (uint32_t)place(&at, geom->n_slot, sizeof(struct nsv_up_slot));
	l.sqe_off = (uint32_t)place(&at, geom->n_sqe, sizeof(struct nsv_sqe));
	l.arena_off = (uint32_t)place(&at, geom->arena_len, 1);
	l.len = whole_pages(at);
	*ret = l;
	return 0;
}

int nsv_layout_down(const struct nsv_geom *geom, struct nsv_down_layout *ret)
{
	struct nsv_down_layout l;
	uint64_t at = HEAD_LEN;

	if (nsv_geom_check(geom, NULL) != 0)
		return -EINVAL;
	l.slot_off = (uint32_t)place(&at, geom->n_slot, sizeof(struct nsv_down_slot));
	l.reply_off = (uint32_t)place(&at, geom->n_cqe, sizeof(struct nsv_cqe));
	l.event_off = (uint32_t)place(&at, geom->n_cqe, sizeof(struct nsv_cqe));
	l.text_off = (uint32_t)place(&at, (uint64_t)geom->n_slot * geom->text_len, 1);
	l.token_off = place(&at, (uint64_t)geom->n_slot * geom->n_token, sizeof(int32_t));
	l.lp_off = place(&at, (uint64_t)geom->n_slot * geom->n_lp, sizeof(struct nsv_lp));
	l.len = whole_pages(at);
	*ret = l;
	return 0;
}

struct nsv_up nsv_up_at(void *map, const struct nsv_up_layout *layout)
{
	unsigned char *base = map;

	return (struct nsv_up){
		.head = map,
		.slots = (void *)(base + layout->slot_off),
		.sqes = (void *)(base + layout->sqe_off),
		.arena = base + layout->arena_off,
	};
}

struct nsv_down nsv_down_at(void *map, const struct nsv_down_layout *layout)
{
	unsigned char *base = map;

	return (struct nsv_down){
		.head = map,
		.slots = (void *)(base + layout->slot_off),
		.reply = (void *)(base + layout->reply_off),
		.event = (void *)(base + layout->event_off),
		.text = (void *)(base + layout->text_off),
		.tokens = (void *)(base + layout->token_off),
		.lps = (void *)(base + layout->lp_off),
	};
}

static struct nsv_region_head make_head(uint64_t magic, uint32_t head_len, size_t len, uint64_t id)
{
	return (struct nsv_region_head){
		.magic = magic,
		.major = NSV_ABI_MAJOR,
		.minor = NSV_ABI_MINOR,
		.head_len = head_len,
		.feat_compat = NSV_FEAT_COMPAT_KNOWN,
		.feat_incompat = NSV_FEAT_INCOMPAT_KNOWN,
		.region_len = len,
		.session_id = id,
	};
}

void nsv_up_format(void *map, const struct nsv_geom *geom, uint64_t session_id)
{
	struct nsv_up_head *h = map;
	struct nsv_up_layout l;

	if (nsv_layout_up(geom, &l) < 0)
		return;
	h->geom = *geom;
	h->slot_off = l.slot_off;
	h->sqe_off = l.sqe_off;
	h->arena_off = l.arena_off;
	h->head = make_head(NSV_MAGIC_UP, sizeof(*h), l.len, session_id);
}

void nsv_down_format(void *map, const struct nsv_geom *geom, uint64_t session_id)
{
	struct nsv_down_head *h = map;
	struct nsv_down_layout l;

	if (nsv_layout_down(geom, &l) < 0)
		return;
	h->geom = *geom;
	h->slot_off = l.slot_off;
	h->reply_off = l.reply_off;
	h->event_off = l.event_off;
	h->text_off = l.text_off;
	h->token_off = l.token_off;
	h->lp_off = l.lp_off;
	h->head = make_head(NSV_MAGIC_DOWN, sizeof(*h), l.len, session_id);
}

/* `seen` and `geom` are a peer's, copied; `made` is what this side computes. */
static int check_head(const struct nsv_region_head *seen, const struct nsv_region_head *made,
	const struct nsv_geom *geom, const struct nsv_geom *said, struct nsv_err *err)
{
	if (seen->magic != made->magic)
		return nsv_fail(err, -EPROTO, "a region has the magic %#llx: %#llx was expected",
			(unsigned long long)seen->magic, (unsigned long long)made->magic);
	if (seen->major != made->major || (seen->feat_incompat & ~NSV_FEAT_INCOMPAT_KNOWN))
		return nsv_fail(err, -EPROTO, "a region has version %u.%u and features %#llx",
			seen->major, seen->minor, (unsigned long long)seen->feat_incompat);
	if (seen->head_len < made->head_len || seen->region_len != made->region_len)
		return nsv_fail(err, -EPROTO, "a region says %u + %llu bytes: %u + %llu expected",
			seen->head_len, (unsigned long long)seen->region_len, made->head_len,
			(unsigned long long)made->region_len);
	if (seen->session_id != made->session_id || memcmp(geom, said, sizeof(*geom)) != 0)
		return nsv_fail(err, -EPROTO, "a region is of another session than the welcome");
	return 0;
}

int nsv_up_check(
	const void *map, const struct nsv_geom *geom, uint64_t session_id, struct nsv_err *err)
{
	struct nsv_up_head h;
	struct nsv_up_layout l;

	if (nsv_layout_up(geom, &l) < 0)
		return nsv_fail(err, -EPROTO, "the geometry is out of range");
	memcpy(&h, map, sizeof(h));
	struct nsv_region_head made = make_head(NSV_MAGIC_UP, sizeof(h), l.len, session_id);
	int ret = check_head(&h.head, &made, &h.geom, geom, err);
	if (ret == 0 &&
		(h.slot_off != l.slot_off || h.sqe_off != l.sqe_off || h.arena_off != l.arena_off))
		return nsv_fail(err, -EPROTO, "the offsets in `up` are not those of its geometry");
	return ret;
}

int nsv_down_check(
	const void *map, const struct nsv_geom *geom, uint64_t session_id, struct nsv_err *err)
{
	struct nsv_down_head h;
	struct nsv_down_layout l;

	if (nsv_layout_down(geom, &l) < 0)
		return nsv_fail(err, -EPROTO, "the geometry is out of range");
	memcpy(&h, map, sizeof(h));
	struct nsv_region_head made = make_head(NSV_MAGIC_DOWN, sizeof(h), l.len, session_id);
	int ret = check_head(&h.head, &made, &h.geom, geom, err);
	if (ret == 0 && (h.slot_off != l.slot_off || h.reply_off != l.reply_off ||
				h.event_off != l.event_off || h.text_off != l.text_off ||
				h.token_off != l.token_off || h.lp_off != l.lp_off))
		return nsv_fail(
			err, -EPROTO, "the offsets in `down` are not those of its geometry");
	return ret;
}
