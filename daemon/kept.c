/* What the daemon before left in `seqs`, looked at before anybody uses it: each record by itself,
 * then what records say of the KV pool against one another.
 *
 * A record that no daemon writes is wrong: its request cannot go on. One that is right may still
 * name blocks that cannot be its own: then it is computed again from its tokens, with the same bits
 * (promise 1), and so is whoever names the same block. Blocks beyond those of its n_past tokens are
 * not looked at: they were taken for a step whose results never came. */
#include <string.h>

#include "daemon/engine_state.h"
#include "daemon/log.h"

/* Who named a block first, and where in its table. */
struct claim {
	uint32_t seq, place;
	bool taken, disputed;
};

static uint32_t n_held(const struct nsv_engine *e, const struct nsv_kept *k)
{
	return nsv_blocks_for(k->commit.n_past, e->info.block_size);
}

/* ---- One record */

static void look_at(struct nsv_engine *e, uint32_t seq)
{
	const struct nsv_seq_ident *id = nsv_seqs_ident(&e->seqs, seq);
	struct nsv_kept *k = &e->kept[seq];
	struct nsv_err err;

	*k = (struct nsv_kept){.commit = nsv_seqs_get(&e->seqs, seq), .arrival = id->arrival};
	k->said = (struct nsv_engine_kept){.session_id = id->session_id,
		.request_id = id->request_id,
		.uid = id->uid,
		.slot = id->slot,
		.state = k->commit.state,
		.in_step = nsv_seqs_is_in_step(&e->seqs, seq)};
	if (k->commit.state == NSV_SEQ_FREE)
		return;
	k->wrong = nsv_seqs_check(&e->seqs, seq, e->info.desc->n_vocab, &err) < 0;
	if (k->wrong)
		nsv_error("request %llu of session %llu cannot go on: its record %u is wrong: %s",
			(unsigned long long)id->request_id, (unsigned long long)id->session_id, seq,
			err.text);
	k->computed = !k->wrong && e->info.adopted_kv && k->commit.n_past > 0;
}

/* ---- Records against one another */

static bool is_taken(const struct nsv_engine *e, uint64_t session_id, uint64_t request_id)
{
	for (uint32_t i = 0; i < e->max_requests; i++) {
		const struct nsv_engine_kept *k = &e->kept[i].said;
		if (k->state != NSV_SEQ_FREE && k->state != NSV_SEQ_JOINING &&
			k->session_id == session_id && k->request_id == request_id)
			return true;
	}
	return false;
}

/* Its entry was taken, or it was not, and its client will say it again. */
static void decide_joining(struct nsv_engine *e, uint32_t seq)
{
	struct nsv_kept *k = &e->kept[seq];
	bool taken = is_taken(e, k->said.session_id, nsv_seqs_ident(&e->seqs, seq)->first_id);

	k->commit.state = taken ? NSV_SEQ_WAITING : NSV_SEQ_FREE;
	nsv_seqs_commit(&e->seqs, seq, &k->commit);
	k->said.state = k->commit.state;
}

static bool same_domain(const struct nsv_engine *e, uint32_t a, uint32_t b)
{
	return e->share_prefixes || e->kept[a].said.uid == e->kept[b].said.uid;
}

/* Have both the same tokens in block `place` and before it? Where both have the same block before
 * it, that one has been compared. */
static bool same_tokens(const struct nsv_engine *e, uint32_t a, uint32_t b, uint32_t place)
{
	const int32_t *blocks_a = nsv_seqs_blocks(&e->seqs, a);
	const int32_t *blocks_b = nsv_seqs_blocks(&e->seqs, b);
	size_t n = e->info.block_size, from = 0;

	if (place > 0 && blocks_a[place - 1] == blocks_b[place - 1])
		from = place * n;
	return memcmp(nsv_seqs_tokens(&e->seqs, a) + from, nsv_seqs_tokens(&e->seqs, b) + from,
		       ((place + 1) * n - from) * sizeof(int32_t)) == 0;
}

static bool may_share(const struct nsv_engine *e, uint32_t a, uint32_t b, uint32_t place)
{
	uint64_t end = (place + 1ull) * e->info.block_size;

	return e->kept[a].commit.n_past >= end && e->kept[b].commit.n_past >= end &&
	       same_domain(e, a, b) && same_tokens(e, a, b, place);
}

/* false: a block outside the pool, or fewer than its tokens need. */
static bool claim_blocks(const struct nsv_engine *e, uint32_t seq, struct claim *claims)
{
	const int32_t *blocks = nsv_seqs_blocks(&e->seqs, seq);
	uint32_t n = n_held(e, &e->kept[seq]);

	if (e->kept[seq].commit.n_block < n)
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (blocks[i] < 0 || (uint32_t)blocks[i] >= e->info.n_block)
			return false;
	for (uint32_t i = 0; i < n; i++) {
		struct claim *c = &claims[blocks[i]];
		if (!c->taken)
			*c = (struct claim){.seq = seq, .place = i, .taken = true};
		else if (c->place != i || c->seq == seq || !may_share(e, c->seq, seq, i))
			c->disputed = true;
	}
	return true;
}

static bool has_disputed(const struct nsv_engine *e, uint32_t seq, const struct claim *claims)
{
	const int32_t *blocks = nsv_seqs_blocks(&e->seqs, seq);

	for (uint32_t i = 0; i < n_held(e, &e->kept[seq]); i++)
		if (claims[blocks[i]].disputed)
			return true;
	return false;
}

static void disbelieve(struct nsv_engine *e, uint32_t seq, const char *why)
{
	nsv_warning("request %llu of session %llu is computed again: %s",
		(unsigned long long)e->kept[seq].said.request_id,
		(unsigned long long)e->kept[seq].said.session_id, why);
	e->kept[seq].computed = false;
}

static void check_blocks(struct nsv_engine *e, struct claim *claims)
{
	for (uint32_t seq = 0; seq < e->max_requests; seq++)
		if (e->kept[seq].computed && !claim_blocks(e, seq, claims))
			disbelieve(e, seq, "its block table is wrong");
	for (uint32_t seq = 0; seq < e->max_requests; seq++)
		if (e->kept[seq].computed && has_disputed(e, seq, claims))
			disbelieve(e, seq, "another one has a block of it");
}

int nsv_engine_find_kept(struct nsv_engine *e, struct nsv_err *err)
{
	nsv_autofree struct claim *claims = calloc(e->info.n_block, sizeof(*claims));

	e->kept = calloc(e->max_requests, sizeof(*e->kept));
	if (!claims || !e->kept)
		return nsv_fail(err, -ENOMEM, "no memory to look at the sequence table");
	for (uint32_t seq = 0; seq < e->max_requests; seq++)
		look_at(e, seq);
	for (uint32_t seq = 0; seq < e->max_requests; seq++)
		if (e->kept[seq].commit.state == NSV_SEQ_JOINING)
			decide_joining(e, seq);
	check_blocks(e, claims);
	return 0;
}

bool nsv_engine_get_kept(const struct nsv_engine *e, uint32_t seq, struct nsv_engine_kept *ret_kept)
{
	if (!e->kept || seq >= e->max_requests || e->kept[seq].commit.state == NSV_SEQ_FREE)
		return false;
	*ret_kept = e->kept[seq].said;
	return true;
}
