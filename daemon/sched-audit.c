/* The scheduler's invariants, walked. */
#include "daemon/sched-impl.h"

/* Holders of blocks, counted from the sequences. */
struct count {
	uint32_t *pool; /* (alloc->n_block) */
	uint32_t *host; /* (host->n_block), NULL where there is no host tier */
};

static int audit_table(const struct nsv_sched *s, uint32_t seq, uint32_t *held, struct nsv_err *err)
{
	const struct nsv_block_table *t = &s->seqs[seq].table;

	for (uint32_t i = 0; i < t->n; i++) {
		int32_t b = t->block[i];
		if (b < 0 || (uint32_t)b >= s->alloc->n_block)
			return nsv_fail(err, -EUCLEAN, "sequence %u holds block %d of %u", seq, b,
				s->alloc->n_block);
		held[b]++;
	}
	return 0;
}

/* Its blocks of the host tier are linked, as many as its tokens need. */
static int audit_host(const struct nsv_sched *s, uint32_t seq, uint32_t *held, struct nsv_err *err)
{
	const struct nsv_sched_seq *q = &s->seqs[seq];
	int32_t b = q->host_first;

	if (q->n_host != nsv_blocks_for(q->n_host_token, s->block_size) || (q->n_host && !held) ||
		q->n_host_token > q->n_token)
		return nsv_fail(err, -EUCLEAN,
			"sequence %u: %u of %u tokens in %u blocks of the host tier", seq,
			q->n_host_token, q->n_token, q->n_host);
	if (q->n_host > 0 && q->where == NSV_SCHED_RUNNING)
		return nsv_fail(err, -EUCLEAN, "sequence %u runs and is swapped out", seq);
	for (uint32_t i = 0; i < q->n_host; i++, b = s->host_next[b]) {
		if (b < 0 || (uint32_t)b >= s->host->n_block)
			return nsv_fail(err, -EUCLEAN,
				"sequence %u holds block %d of %u of the host tier", seq, b,
				s->host->n_block);
		held[b]++;
	}
	return 0;
}

static int audit_counts(
	const struct nsv_sched *s, uint32_t seq, const struct count *count, struct nsv_err *err)
{
	const struct nsv_sched_seq *q = &s->seqs[seq];

	if (q->where != NSV_SCHED_RUNNING && q->table.n > 0)
		return nsv_fail(err, -EUCLEAN, "sequence %u holds %u blocks and does not run", seq,
			q->table.n);
	if (q->n_past > q->n_token || q->n_done > q->n_past || q->n_pending > q->n_token ||
		q->table.n != nsv_blocks_for(q->n_past, s->block_size) || q->table.n > q->table.cap)
		return nsv_fail(err, -EUCLEAN, "sequence %u: %u of %u tokens in %u blocks", seq,
			q->n_past, q->n_token, q->table.n);
	if (q->lp_from < q->lp_to && (q->n_past > q->lp_from || q->lp_to >= q->n_token))
		return nsv_fail(err, -EUCLEAN,
			"sequence %u: log-probabilities of rows %u to %u, %u of %u computed", seq,
			q->lp_from, q->lp_to, q->n_past, q->n_token);
	int ret = audit_table(s, seq, count->pool, err);
	return ret < 0 ? ret : audit_host(s, seq, count->host, err);
}

/* A leader is a place in the table, of a sequence that does not come after. */
static int audit_leader(const struct nsv_sched *s, uint32_t seq, struct nsv_err *err)
{
	const struct nsv_sched_seq *q = &s->seqs[seq], *leader;

	if (q->where == NSV_SCHED_ABSENT || q->leader == NSV_SCHED_NO_LEADER)
		return 0;
	if (q->leader >= s->n_cap || q->where == NSV_SCHED_RUNNING || q->n_preempt > 0)
		return nsv_fail(err, -EUCLEAN, "sequence %u has leader %u still", seq, q->leader);
	leader = nsv_sched_leader(s, q);
	if (leader && (leader->user != q->user || !nsv_sched_before(leader, q)))
		return nsv_fail(err, -EUCLEAN,
			"sequence %u goes before its leader %u, or is another's", seq, q->leader);
	return 0;
}

static int audit_list(const struct nsv_sched *s, const uint32_t *list, uint32_t n, uint8_t where,
	struct nsv_err *err)
{
	for (uint32_t i = 0; i < n; i++) {
		if (s->seqs[list[i]].where != where)
			return nsv_fail(err, -EUCLEAN, "sequence %u is in the wrong list", list[i]);
		if (i > 0 && !nsv_sched_before(&s->seqs[list[i - 1]], &s->seqs[list[i]]))
			return nsv_fail(err, -EUCLEAN, "sequence %u is out of order", list[i]);
	}
	return 0;
}

static int audit_seqs(const struct nsv_sched *s, const struct count *count, struct nsv_err *err)
{
	uint32_t n_listed = 0;
	int ret = audit_list(s, s->run, s->n_run, NSV_SCHED_RUNNING, err);

	if (ret == 0)
		ret = audit_list(s, s->wait, s->n_wait, NSV_SCHED_WAITING, err);
	for (uint32_t i = 0; ret == 0 && i < s->n_cap; i++) {
		n_listed += s->seqs[i].where != NSV_SCHED_ABSENT;
		ret = audit_counts(s, i, count, err);
		if (ret == 0)
			ret = audit_leader(s, i, err);
	}
	if (ret == 0 && n_listed != s->n_run + s->n_wait)
		ret = nsv_fail(err, -EUCLEAN, "%u sequences, %u in the lists", n_listed,
			s->n_run + s->n_wait);
	return ret;
}

/* Every holder is a sequence or the prefix cache. */
static int audit_holders(const struct nsv_block_alloc *a, const uint32_t *held, const char *tier,
	struct nsv_err *err)
{
	for (uint32_t b = 0; b < a->n_block; b++) {
		uint32_t n = held[b] + nsv_block_is_cached(a, (int32_t)b);
		if (n != nsv_block_n_ref(a, (int32_t)b))
			return nsv_fail(err, -EUCLEAN,
				"block %u of the %s: %u holders, %u references", b, tier, n,
				nsv_block_n_ref(a, (int32_t)b));
	}
	return 0;
}

/* All but the reference counts, and the holders that these should be of: to be freed in any
 * case. */
static int count_holders(const struct nsv_sched *s, struct count *ret_count, struct nsv_err *err)
{
	ret_count->pool = calloc(s->alloc->n_block, sizeof(*ret_count->pool));
	ret_count->host = s->host ? calloc(s->host->n_block, sizeof(*ret_count->host)) : NULL;
	if (!ret_count->pool || (s->host && !ret_count->host))
		return nsv_fail(err, -ENOMEM, "no memory for the audit");
	int ret = nsv_block_audit(s->alloc, err);
	if (ret == 0 && s->host)
		ret = nsv_block_audit(s->host, err);
	return ret < 0 ? ret : audit_seqs(s, ret_count, err);
}

static void free_count(struct count *count)
{
	free(count->pool);
	free(count->host);
}

int nsv_sched_audit(const struct nsv_sched *s, struct nsv_err *err)
{
	struct count count;
	int ret = count_holders(s, &count, err);

	if (ret == 0)
		ret = audit_holders(s->alloc, count.pool, "pool", err);
	if (ret == 0 && s->host)
		ret = audit_holders(s->host, count.host, "host tier", err);
	free_count(&count);
	return ret;
}

/* Returns the blocks whose count was wrong. */
static uint32_t repair_holders(struct nsv_block_alloc *a, const uint32_t *held)
{
	uint32_t n = 0;

	for (int32_t b = 0; (uint32_t)b < a->n_block; b++) {
		uint32_t want = held[b] + nsv_block_is_cached(a, b), have = nsv_block_n_ref(a, b);
		n += have != want;
		for (; have < want; have++)
			nsv_block_ref(a, b);
		for (; have > want; have--)
			nsv_block_unref(a, b);
	}
	return n;
}

int nsv_sched_repair(struct nsv_sched *s, uint32_t *ret_n, struct nsv_err *err)
{
	struct count count;
	int ret = count_holders(s, &count, err);

	if (ret == 0) {
		*ret_n = repair_holders(s->alloc, count.pool);
		if (s->host)
			*ret_n += repair_holders(s->host, count.host);
		s->n_change++;
	}
	free_count(&count);
	return ret;
}
