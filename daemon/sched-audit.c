/* The scheduler's invariants, walked. */
#include "daemon/sched-impl.h"

static int audit_seq(const struct nsv_sched *s, uint32_t seq, uint32_t *held, struct nsv_err *err)
{
	const struct nsv_sched_seq *q = &s->seqs[seq];

	if (q->where != NSV_SCHED_RUNNING && q->table.n > 0)
		return nsv_fail(err, -EUCLEAN, "sequence %u holds %u blocks and does not run", seq,
			q->table.n);
	if (q->n_past > q->n_token || q->n_done > q->n_past || q->n_pending > q->n_token ||
		q->table.n < nsv_blocks_for(q->n_past, s->block_size) || q->table.n > q->table.cap)
		return nsv_fail(err, -EUCLEAN, "sequence %u: %u of %u tokens in %u blocks", seq,
			q->n_past, q->n_token, q->table.n);
	if (q->lp_from < q->lp_to && q->n_past > q->lp_from)
		return nsv_fail(err, -EUCLEAN,
			"sequence %u: log-probabilities from row %u on, %u computed", seq,
			q->lp_from, q->n_past);
	for (uint32_t i = 0; i < q->table.n; i++) {
		int32_t b = q->table.block[i];
		if (b < 0 || (uint32_t)b >= s->alloc->n_block)
			return nsv_fail(err, -EUCLEAN, "sequence %u holds block %d of %u", seq, b,
				s->alloc->n_block);
		held[b]++;
	}
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

int nsv_sched_audit(const struct nsv_sched *s, struct nsv_err *err)
{
	nsv_autofree uint32_t *held = calloc(s->alloc->n_block, sizeof(*held));
	uint32_t n_listed = 0;
	int ret = held ? nsv_block_audit(s->alloc, err)
		       : nsv_fail(err, -ENOMEM, "no memory for the audit");

	if (ret == 0)
		ret = audit_list(s, s->run, s->n_run, NSV_SCHED_RUNNING, err);
	if (ret == 0)
		ret = audit_list(s, s->wait, s->n_wait, NSV_SCHED_WAITING, err);
	for (uint32_t i = 0; ret == 0 && i < s->n_cap; i++) {
		n_listed += s->seqs[i].where != NSV_SCHED_ABSENT;
		ret = audit_seq(s, i, held, err);
	}
	if (ret == 0 && n_listed != s->n_run + s->n_wait)
		ret = nsv_fail(err, -EUCLEAN, "%u sequences, %u in the lists", n_listed,
			s->n_run + s->n_wait);
	for (uint32_t b = 0; ret == 0 && b < s->alloc->n_block; b++) {
		held[b] += nsv_block_is_cached(s->alloc, (int32_t)b);
		if (held[b] != nsv_block_n_ref(s->alloc, (int32_t)b))
			ret = nsv_fail(err, -EUCLEAN, "block %u: %u holders, %u references", b,
				held[b], nsv_block_n_ref(s->alloc, (int32_t)b));
	}
	return ret;
}
