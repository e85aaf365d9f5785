/* A scheduler with a pool, a host tier and a prefix cache, and in the place of a model what one
 * would leave behind: a slot's content depends on all tokens up to it, so a row that sees another
 * history than its own is found, wherever its blocks came from. */
#ifndef NSV_TESTS_SCHED_RIG_H
#define NSV_TESTS_SCHED_RIG_H

#include "daemon/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Sizes of the rig; a test may have others. */
#ifndef N_SEQ
#define N_SEQ 32
#define CAP 64
#define BLOCK 4
#define MAX_BLOCK 128
#endif

struct rig_seq {
	uint32_t max_token; /* 0: as much as its table takes */
	uint32_t user;
	uint64_t domain;
	int32_t blocks[CAP];
	int32_t tokens[CAP * BLOCK];
};

struct rig {
	struct nsv_block_alloc alloc, host;
	struct nsv_prefix_tree tree;
	struct nsv_sched sched;
	struct nsv_step_plan plan;
	struct rig_seq seqs[N_SEQ];
	uint64_t arrivals;
	uint64_t content[MAX_BLOCK][BLOCK], host_content[MAX_BLOCK][BLOCK];
};

struct rig_size {
	uint32_t n_block, n_host, batch;
	bool with_tree;
};

static inline void rig_init(struct rig *r, struct rig_size size)
{
	static const struct nsv_prefix_key secret;

	memset(r, 0, sizeof(*r));
	assert_int_equal(nsv_block_alloc_init(&r->alloc, size.n_block), 0);
	if (size.n_host)
		assert_int_equal(nsv_block_alloc_init(&r->host, size.n_host), 0);
	if (size.with_tree)
		assert_int_equal(nsv_prefix_tree_init(&r->tree, &r->alloc, BLOCK, 1, &secret), 0);
	assert_int_equal(nsv_sched_init(&r->sched, &r->alloc, size.n_host ? &r->host : NULL,
				 size.with_tree ? &r->tree : NULL, N_SEQ, BLOCK, size.batch),
		0);
	assert_int_equal(nsv_step_plan_init(&r->plan, &r->sched), 0);
}

static inline void rig_deinit(struct rig *r)
{
	nsv_step_plan_deinit(&r->plan);
	nsv_sched_deinit(&r->sched);
	nsv_prefix_tree_deinit(&r->tree);
	nsv_block_alloc_deinit(&r->alloc);
	nsv_block_alloc_deinit(&r->host);
}

static inline struct nsv_sched_new rig_describe(struct rig *r, uint32_t seq, uint32_t n_token)
{
	struct rig_seq *q = &r->seqs[seq];

	return (struct nsv_sched_new){.n_token = n_token,
		.max_token = q->max_token ? q->max_token : CAP * BLOCK,
		.uid = q->user,
		.arrival = ++r->arrivals,
		.domain = q->domain,
		.tokens = q->tokens,
		.blocks = q->blocks,
		.cap = CAP,
		.leader = NSV_SCHED_NO_LEADER};
}

static inline void rig_add(struct rig *r, uint32_t seq, uint32_t n_token)
{
	struct nsv_sched_new n = rig_describe(r, seq, n_token);

	nsv_sched_add(&r->sched, seq, &n);
}

/* A follower has its leader's tokens but for the last. */
static inline void rig_fork(struct rig *r, uint32_t seq, uint32_t leader, uint32_t n_token)
{
	r->seqs[seq].user = r->seqs[leader].user;
	r->seqs[seq].domain = r->seqs[leader].domain;
	memcpy(r->seqs[seq].tokens, r->seqs[leader].tokens, (n_token - 1) * sizeof(int32_t));
	struct nsv_sched_new n = rig_describe(r, seq, n_token);
	n.leader = leader;
	nsv_sched_add(&r->sched, seq, &n);
}

static inline void rig_audit(const struct rig *r)
{
	struct nsv_err err = {""};

	if (nsv_sched_audit(&r->sched, &err) != 0)
		fail_msg("%s", err.text);
}

static inline uint64_t rig_mix(uint64_t hash, int32_t token)
{
	return (hash ^ (uint32_t)token) * 0x9e3779b97f4a7c15ull + 1;
}

static inline uint64_t *rig_slot(struct rig *r, uint32_t seq, uint32_t pos)
{
	return &r->content[r->seqs[seq].blocks[pos / BLOCK]][pos % BLOCK];
}

static inline void rig_move(struct rig *r)
{
	const struct nsv_step_plan *p = &r->plan;

	for (uint32_t i = 0; i < p->n_swap_out; i++)
		memcpy(r->host_content[p->swaps_out[i].host], r->content[p->swaps_out[i].pool],
			sizeof(r->content[0]));
	for (uint32_t i = 0; i < p->n_swap_in; i++)
		memcpy(r->content[p->swaps_in[i].pool], r->host_content[p->swaps_in[i].host],
			sizeof(r->content[0]));
	for (uint32_t i = 0; i < p->n_copy; i++)
		memcpy(r->content[p->copies[i].to], r->content[p->copies[i].from],
			sizeof(r->content[0]));
}

/* By their turns. */
static inline bool rig_before(const struct rig *r, uint32_t a, uint32_t b)
{
	const struct nsv_sched_seq *qa = &r->sched.seqs[a], *qb = &r->sched.seqs[b];

	return qa->tag < qb->tag || (qa->tag == qb->tag && qa->arrival < qb->arrival);
}

/* Does what the engine and a model do with a plan, and finds that every row sees the history of its
 * own tokens. */
static inline void rig_carry_out(struct rig *r)
{
	rig_move(r);
	nsv_sched_copied(&r->sched, &r->plan);
	for (uint32_t i = 0; i < r->plan.n_item; i++) {
		const struct nsv_plan_item *item = &r->plan.items[i];
		uint64_t hash = r->seqs[item->seq].domain;
		for (uint32_t pos = 0; pos < item->n_past + item->n_row; pos++) {
			hash = rig_mix(hash, r->seqs[item->seq].tokens[pos]);
			if (pos >= item->n_past)
				*rig_slot(r, item->seq, pos) = hash;
			else if (*rig_slot(r, item->seq, pos) != hash)
				fail_msg("sequence %u: position %u is not its own", item->seq, pos);
		}
	}
}

/* What nobody holds is overwritten, as another owner might. */
static inline void rig_spoil_free(struct rig *r)
{
	for (uint32_t b = 0; b < r->alloc.n_block; b++)
		if (nsv_block_n_ref(&r->alloc, (int32_t)b) == 0)
			memset(r->content[b], 0xa5, sizeof(r->content[b]));
	for (uint32_t b = 0; b < r->host.n_block; b++)
		if (nsv_block_n_ref(&r->host, (int32_t)b) == 0)
			memset(r->host_content[b], 0xa5, sizeof(r->host_content[b]));
}

/* One step from plan to results. */
static inline void rig_step(struct rig *r)
{
	nsv_sched_plan(&r->sched, &r->plan);
	rig_carry_out(r);
	rig_audit(r);
	for (uint32_t i = 0; i < r->plan.n_item; i++) {
		assert_int_equal(nsv_sched_computed(&r->sched, &r->plan.items[i]), 0);
		if (r->plan.items[i].sample)
			nsv_sched_known(&r->sched, r->plan.items[i].seq);
	}
	rig_audit(r);
	rig_spoil_free(r);
}

static inline void rig_until_preempted(struct rig *r)
{
	while (r->plan.n_preempted == 0)
		rig_step(r);
}

/* Each token of each sequence is another one. */
static inline void rig_number_tokens(struct rig *r)
{
	for (uint32_t seq = 0; seq < N_SEQ; seq++)
		for (int32_t i = 0; i < CAP * BLOCK; i++)
			r->seqs[seq].tokens[i] = (int32_t)seq * 1000 + i;
}

/* Who goes first of all that are there and not paused; N_SEQ: nobody. */
static inline uint32_t rig_oldest(const struct rig *r)
{
	uint32_t oldest = N_SEQ;

	for (uint32_t i = 0; i < N_SEQ; i++)
		if (r->sched.seqs[i].where && !r->sched.seqs[i].paused &&
			(oldest == N_SEQ || rig_before(r, i, oldest)))
			oldest = i;
	return oldest;
}

/* What the last plan says of a sequence; NULL: nothing. */
static inline const struct nsv_plan_item *rig_item(const struct rig *r, uint32_t seq)
{
	for (uint32_t i = 0; i < r->plan.n_item; i++)
		if (r->plan.items[i].seq == seq)
			return &r->plan.items[i];
	return NULL;
}

#endif
