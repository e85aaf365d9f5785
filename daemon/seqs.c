/* Sizes, addresses and commits of the sequence table. */
#include "daemon/seqs.h"

#include <string.h>

_Static_assert(sizeof(struct nsv_seqs_head) <= NSV_PAGE, "one page");
_Static_assert(sizeof(struct nsv_session_commit) == 88, "layout");
_Static_assert(sizeof(struct nsv_session_rec) == 192, "layout");
_Static_assert(sizeof(struct nsv_seq_ident) == 64, "layout");
_Static_assert(sizeof(struct nsv_seq_commit) == 32, "layout");
_Static_assert(sizeof(struct nsv_seq_rec) == 192, "layout");

struct layout {
	size_t seq_off, seq_len, total;
};

static bool compute(const struct nsv_seqs_geom *g, struct layout *ret)
{
	size_t sessions, tokens, blocks, record, all, total;

	if (!nsv_mul(g->n_session, sizeof(struct nsv_session_rec), &sessions) ||
		!nsv_mul(g->n_token, sizeof(int32_t), &tokens) ||
		!nsv_mul(g->n_block, sizeof(int32_t), &blocks) ||
		!nsv_add(tokens, blocks, &record) ||
		!nsv_add(record, sizeof(struct nsv_seq_rec) + NSV_SEQS_PARAMS_LEN, &record) ||
		!nsv_align_up(record, NSV_CACHE_LINE, &record) ||
		!nsv_mul(record, g->n_seq, &all) || !nsv_add(all, NSV_PAGE, &total) ||
		!nsv_add(total, sessions, &total) || !nsv_align_up(total, NSV_PAGE, &total))
		return false;
	*ret = (struct layout){NSV_PAGE + sessions, record, total};
	return true;
}

static int checked_layout(const struct nsv_seqs_geom *geom, struct layout *ret)
{
	if (!geom->n_session || !geom->n_seq || !geom->n_token || !geom->n_block)
		return -EINVAL;
	return compute(geom, ret) ? 0 : -EOVERFLOW;
}

int nsv_seqs_len(const struct nsv_seqs_geom *geom, size_t *ret_len)
{
	struct layout l;
	int ret = checked_layout(geom, &l);

	if (ret == 0)
		*ret_len = l.total;
	return ret;
}

static int make_view(struct nsv_seqs *s, void *base, const struct nsv_seqs_geom *geom)
{
	struct layout l;
	int ret = checked_layout(geom, &l);

	if (ret == 0)
		*s = (struct nsv_seqs){base, *geom, l.seq_off, l.seq_len};
	return ret;
}

int nsv_seqs_format(
	struct nsv_seqs *s, void *base, const struct nsv_seqs_geom *geom, uint64_t model_id)
{
	int ret = make_view(s, base, geom);

	if (ret < 0)
		return ret;
	struct nsv_seqs_head *h = nsv_seqs_head(s);
	*h = (struct nsv_seqs_head){.major = NSV_SEQS_MAJOR,
		.head_len = sizeof(*h),
		.geom = *geom,
		.model_id = model_id,
		.clean = 1};
	nsv_seqs_len(geom, (size_t *)&h->region_len);
	/* Last: a region without its magic was never whole. */
	__atomic_store_n(&h->magic, NSV_SEQS_MAGIC, __ATOMIC_RELEASE);
	return 0;
}

int nsv_seqs_open(struct nsv_seqs *s, void *base, size_t len, const struct nsv_seqs_geom *geom,
	uint64_t model_id, struct nsv_err *err)
{
	const struct nsv_seqs_head *h = base;
	size_t want = 0;

	if (len < NSV_PAGE || __atomic_load_n(&h->magic, __ATOMIC_ACQUIRE) != NSV_SEQS_MAGIC)
		return nsv_fail(err, -EPROTO, "the region is not a sequence table");
	if (h->major != NSV_SEQS_MAJOR)
		return nsv_fail(err, -EPROTO, "sequence table version %u, expected %u", h->major,
			NSV_SEQS_MAJOR);
	if (memcmp(&h->geom, geom, sizeof(*geom)) != 0 || nsv_seqs_len(geom, &want) < 0 ||
		want != len || h->region_len != len)
		return nsv_fail(err, -EPROTO, "the sequence table has another size");
	if (h->model_id != model_id)
		return nsv_fail(err, -EPROTO, "the sequence table belongs to another model");
	return make_view(s, base, geom);
}

struct nsv_seqs_head *nsv_seqs_head(const struct nsv_seqs *s)
{
	return (struct nsv_seqs_head *)s->base;
}

static struct nsv_session_rec *session_rec(const struct nsv_seqs *s, uint32_t i)
{
	return (struct nsv_session_rec *)(s->base + NSV_PAGE) + i;
}

static struct nsv_seq_rec *seq_rec(const struct nsv_seqs *s, uint32_t i)
{
	return (struct nsv_seq_rec *)(s->base + s->seq_off + i * s->seq_len);
}

struct nsv_seq_ident *nsv_seqs_ident(const struct nsv_seqs *s, uint32_t i)
{
	return &seq_rec(s, i)->ident;
}

unsigned char *nsv_seqs_params(const struct nsv_seqs *s, uint32_t i)
{
	return (unsigned char *)(seq_rec(s, i) + 1);
}

int32_t *nsv_seqs_tokens(const struct nsv_seqs *s, uint32_t i)
{
	return (int32_t *)(nsv_seqs_params(s, i) + NSV_SEQS_PARAMS_LEN);
}

int32_t *nsv_seqs_blocks(const struct nsv_seqs *s, uint32_t i)
{
	return nsv_seqs_tokens(s, i) + s->geom.n_token;
}

struct nsv_seq_commit nsv_seqs_get(const struct nsv_seqs *s, uint32_t i)
{
	const struct nsv_seq_rec *r = seq_rec(s, i);

	return r->commit[__atomic_load_n(&r->active, __ATOMIC_ACQUIRE) & 1];
}

void nsv_seqs_commit(const struct nsv_seqs *s, uint32_t i, const struct nsv_seq_commit *next)
{
	struct nsv_seq_rec *r = seq_rec(s, i);
	uint32_t other = !(r->active & 1);

	r->commit[other] = *next;
	__atomic_store_n(&r->active, other, __ATOMIC_RELEASE);
}

struct nsv_session_commit nsv_seqs_get_session(const struct nsv_seqs *s, uint32_t i)
{
	const struct nsv_session_rec *r = session_rec(s, i);

	return r->commit[__atomic_load_n(&r->active, __ATOMIC_ACQUIRE) & 1];
}

void nsv_seqs_commit_session(
	const struct nsv_seqs *s, uint32_t i, const struct nsv_session_commit *next)
{
	struct nsv_session_rec *r = session_rec(s, i);
	uint32_t other = !(r->active & 1);

	r->commit[other] = *next;
	__atomic_store_n(&r->active, other, __ATOMIC_RELEASE);
}

/* ---- Records that another daemon left */

static int check_tokens(
	const struct nsv_seqs *s, uint32_t i, uint32_t n, uint32_t n_vocab, struct nsv_err *err)
{
	const int32_t *tokens = nsv_seqs_tokens(s, i);

	for (uint32_t t = 0; t < n; t++)
		if (tokens[t] < 0 || (uint32_t)tokens[t] >= n_vocab)
			return nsv_fail(err, -EUCLEAN, "its token %u is %d; the vocabulary has %u",
				t, tokens[t], n_vocab);
	return 0;
}

/* An end that a daemon may have committed. */
static bool is_end(const struct nsv_seq_commit *c)
{
	if (c->n_past || c->n_block || c->finish < NSV_FINISH_STOP || c->finish > NSV_FINISH_ERROR)
		return false;
	return (c->finish == NSV_FINISH_ERROR) == (c->code != NSV_E_OK);
}

static bool is_going_on(const struct nsv_seq_commit *c)
{
	if (c->finish || c->code || c->n_past >= c->n_token)
		return false;
	bool holds = c->state == NSV_SEQ_RUNNING || c->state == NSV_SEQ_PAUSED;
	return holds || (c->n_past == 0 && c->n_block == 0);
}

int nsv_seqs_check(const struct nsv_seqs *s, uint32_t i, uint32_t n_vocab, struct nsv_err *err)
{
	const struct nsv_seq_rec *r = seq_rec(s, i);
	const struct nsv_seq_ident *id = &r->ident;
	struct nsv_seq_commit c = nsv_seqs_get(s, i);

	if (c.state < NSV_SEQ_WAITING || c.state > NSV_SEQ_JOINING)
		return nsv_fail(err, -EUCLEAN, "its state is %u", c.state);
	if (id->request_id == 0 || id->first_id == 0 || id->first_id > id->request_id ||
		id->arrival == 0 || id->arrival > INT64_MAX || id->params_len > NSV_SEQS_PARAMS_LEN)
		return nsv_fail(err, -EUCLEAN, "its identity is torn");
	if (id->n_prompt == 0 || id->n_prompt > c.n_token ||
		id->n_forked > c.n_token - id->n_prompt || c.n_token > s->geom.n_token ||
		c.n_block > s->geom.n_block)
		return nsv_fail(err, -EUCLEAN,
			"it counts %u tokens, %u of the prompt, in %u blocks", c.n_token,
			id->n_prompt, c.n_block);
	if (!(c.state == NSV_SEQ_DONE ? is_end(&c) : is_going_on(&c)))
		return nsv_fail(err, -EUCLEAN,
			"in state %u it says %u tokens computed, %u blocks, finish %u, code %u",
			c.state, c.n_past, c.n_block, c.finish, c.code);
	return check_tokens(s, i, c.n_token, n_vocab, err);
}

/* ---- What the next daemon must know */

static void count_crash(struct nsv_seqs_head *h)
{
	if (h->stage == NSV_SEQS_STARTS) {
		h->n_stillborn++;
		return;
	}
	if (h->stage == NSV_SEQS_GAVE_UP)
		return;
	h->n_stillborn = 0;
	if (h->n_progress > 0)
		h->n_crash = 0;
	h->n_crash += h->n_begun != h->n_ended && h->n_begun != h->first_step;
}

void nsv_seqs_begin(const struct nsv_seqs *s)
{
	struct nsv_seqs_head *h = nsv_seqs_head(s);

	h->epoch++;
	if (h->clean)
		h->n_crash = h->n_stillborn = 0;
	else
		count_crash(h);
	h->first_step = h->n_begun;
	__atomic_store_n(&h->stage, NSV_SEQS_STARTS, __ATOMIC_RELEASE);
	__atomic_store_n(&h->n_progress, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&h->clean, 0, __ATOMIC_RELEASE);
}

enum nsv_suspect nsv_seqs_suspect(const struct nsv_seqs *s)
{
	const struct nsv_seqs_head *h = nsv_seqs_head(s);

	if (h->n_crash >= 4 || h->n_stillborn >= 3)
		return NSV_SUSPECT_EVERYTHING;
	if (h->n_crash == 3 || h->n_stillborn == 2)
		return NSV_SUSPECT_REQUESTS;
	return h->n_crash == 2 ? NSV_SUSPECT_BATCH : NSV_SUSPECT_NOTHING;
}

void nsv_seqs_serve(const struct nsv_seqs *s)
{
	__atomic_store_n(&nsv_seqs_head(s)->stage, NSV_SEQS_SERVES, __ATOMIC_RELEASE);
}

void nsv_seqs_give_up(const struct nsv_seqs *s)
{
	__atomic_store_n(&nsv_seqs_head(s)->stage, NSV_SEQS_GAVE_UP, __ATOMIC_RELEASE);
}

void nsv_seqs_end(const struct nsv_seqs *s)
{
	__atomic_store_n(&nsv_seqs_head(s)->clean, 1, __ATOMIC_RELEASE);
}

uint64_t nsv_seqs_next_step(const struct nsv_seqs *s)
{
	return nsv_seqs_head(s)->n_begun + 1;
}

void nsv_seqs_in_step(const struct nsv_seqs *s, uint32_t i, uint64_t step)
{
	__atomic_store_n(&seq_rec(s, i)->last_step, step, __ATOMIC_RELAXED);
}

void nsv_seqs_step_begins(const struct nsv_seqs *s, uint64_t step)
{
	__atomic_store_n(&nsv_seqs_head(s)->n_begun, step, __ATOMIC_RELEASE);
}

void nsv_seqs_step_ends(const struct nsv_seqs *s, uint64_t step)
{
	__atomic_store_n(&nsv_seqs_head(s)->n_ended, step, __ATOMIC_RELEASE);
}

bool nsv_seqs_is_in_step(const struct nsv_seqs *s, uint32_t i)
{
	const struct nsv_seqs_head *h = nsv_seqs_head(s);
	uint64_t step = seq_rec(s, i)->last_step;

	return step > h->n_ended && step <= h->n_begun;
}

void nsv_seqs_progress(const struct nsv_seqs *s)
{
	uint64_t *n = &nsv_seqs_head(s)->n_progress;

	__atomic_store_n(n, *n + 1, __ATOMIC_RELAXED);
}
