/* The engine's invariants, walked between two steps: scheduler, pool and prefix cache among
 * themselves, then `seqs` against them.
 *
 *     job        record                     scheduler
 *     none       FREE                       absent
 *     released   FREE                       absent
 *     done       DONE                       absent
 *     live       WAITING                    waiting, or admitted since and not committed yet
 *                RUNNING, PAUSED            running, with what the record counts computed and held
 *
 * A record never says more than is so: that is what makes it the truth after a crash. Where no step
 * under way has rows of a sequence it does not say less either. */
#include "daemon/engine_state.h"
#include "daemon/log.h"

static bool holds_blocks(const struct nsv_seq_commit *c)
{
	return c->state == NSV_SEQ_RUNNING || c->state == NSV_SEQ_PAUSED;
}

static int audit_counts(const struct nsv_engine *e, uint32_t seq, const struct nsv_seq_commit *c,
	struct nsv_err *err)
{
	const struct nsv_sched_seq *q = &e->sched.seqs[seq];
	const struct nsv_job *job = e->jobs[seq];
	uint32_t n_token = job->gen.n_prompt + job->gen.n_output;
	bool is_whole = c->n_past == q->n_done && c->n_block == q->table.n;
	bool is_part = c->n_past <= q->n_done && c->n_block <= q->table.n;

	if (c->n_token != n_token || q->n_token - q->n_pending != n_token)
		return nsv_fail(err, -EUCLEAN,
			"record %u counts %u tokens, the request %u, the scheduler %u", seq,
			c->n_token, n_token, q->n_token - q->n_pending);
	if (!holds_blocks(c))
		return 0;
	if (q->where != NSV_SCHED_RUNNING)
		return nsv_fail(err, -EUCLEAN, "record %u says that it runs: it waits", seq);
	if (!(job->gen.n_flight > 0 ? is_part : is_whole))
		return nsv_fail(err, -EUCLEAN,
			"record %u: %u tokens computed in %u blocks, the scheduler has %u in %u",
			seq, c->n_past, c->n_block, q->n_done, q->table.n);
	return 0;
}

static int audit_live(const struct nsv_engine *e, uint32_t seq, const struct nsv_seq_commit *c,
	struct nsv_err *err)
{
	const struct nsv_seq_ident *id = nsv_seqs_ident(&e->seqs, seq);
	const struct nsv_job *job = e->jobs[seq];

	if (e->sched.seqs[seq].where == NSV_SCHED_ABSENT ||
		(c->state != NSV_SEQ_WAITING && !holds_blocks(c)))
		return nsv_fail(err, -EUCLEAN,
			"request %llu is live, its record %u in state %u, its sequence %u",
			(unsigned long long)job->id, seq, c->state, e->sched.seqs[seq].where);
	if (id->request_id != job->id || id->slot != job->slot || id->uid != job->uid ||
		id->n_prompt != job->gen.n_prompt || id->seed != job->gen.seed)
		return nsv_fail(err, -EUCLEAN, "record %u is not of its request %llu", seq,
			(unsigned long long)job->id);
	int ret = nsv_seqs_check(&e->seqs, seq, e->info.desc->n_vocab, err);
	return ret < 0 ? ret : audit_counts(e, seq, c, err);
}

static int audit_record(const struct nsv_engine *e, uint32_t seq, struct nsv_err *err)
{
	struct nsv_seq_commit c = nsv_seqs_get(&e->seqs, seq);
	const struct nsv_job *job = e->jobs[seq];
	uint32_t want = job && !job->gen.released ? NSV_SEQ_DONE : NSV_SEQ_FREE;

	if (job && !job->gen.done)
		return audit_live(e, seq, &c, err);
	if (c.state != want || e->sched.seqs[seq].where != NSV_SCHED_ABSENT)
		return nsv_fail(err, -EUCLEAN,
			"record %u is in state %u, expected %u; its sequence %u", seq, c.state,
			want, e->sched.seqs[seq].where);
	return 0;
}

static int audit_free(const struct nsv_engine *e, struct nsv_err *err)
{
	uint32_t n_job = 0;

	for (uint32_t i = 0; i < e->max_requests; i++)
		n_job += e->jobs[i] != NULL;
	if (n_job + e->n_free_seqs != e->max_requests)
		return nsv_fail(err, -EUCLEAN, "%u records in use and %u free, of %u", n_job,
			e->n_free_seqs, e->max_requests);
	for (uint32_t i = 0; i < e->n_free_seqs; i++)
		if (e->free_seqs[i] >= e->max_requests || e->jobs[e->free_seqs[i]])
			return nsv_fail(err, -EUCLEAN, "record %u is on the free list, and in use",
				e->free_seqs[i]);
	return 0;
}

/* Those under way are the last ones that began. */
static int audit_steps(const struct nsv_engine *e, struct nsv_err *err)
{
	const struct nsv_seqs_head *h = nsv_seqs_head(&e->seqs);
	uint64_t oldest = e->steps[e->first_step].number;

	if (e->n_step > 0 ? h->n_begun != oldest + e->n_step - 1 || h->n_ended >= oldest
			  : h->n_begun < h->n_ended)
		return nsv_fail(err, -EUCLEAN,
			"of %u steps under way %llu is the oldest; `seqs` says %llu to %llu",
			e->n_step, (unsigned long long)oldest, (unsigned long long)h->n_ended,
			(unsigned long long)h->n_begun);
	return 0;
}

int nsv_engine_check(const struct nsv_engine *e, bool whole, struct nsv_err *err)
{
	int ret = nsv_sched_audit(&e->sched, err);

	if (ret == 0 && whole && e->sched.tree)
		ret = nsv_prefix_tree_audit(e->sched.tree, err);
	if (ret == 0)
		ret = audit_free(e, err);
	for (uint32_t seq = 0; ret == 0 && seq < e->max_requests; seq++)
		ret = audit_record(e, seq, err);
	return ret < 0 ? ret : audit_steps(e, err);
}

/* What is safe: counts that do not match their holders. The service goes on in any case. */
static void repair(struct nsv_engine *e)
{
	struct nsv_err err;
	uint32_t n = 0;

	if (nsv_sched_repair(&e->sched, &n, &err) == 0)
		nsv_warning("audit: %u blocks were counted wrong, and are counted again", n);
}

void nsv_engine_audit_now(struct nsv_engine *e, bool loud)
{
	struct nsv_err err;
	int ret = nsv_engine_check(e, loud, &err);

	nsv_stat_add(&e->stats.n_audit, 1);
	if (ret < 0) {
		nsv_stat_add(&e->stats.n_audit_bad, 1);
		nsv_error("audit: %s", err.text);
		if (loud)
			repair(e);
	} else if (loud) {
		nsv_info("audit: of %u blocks %u free and %u idle in the prefix cache, %u running, "
			 "%u waiting: all accounted for",
			e->alloc.n_block, e->alloc.n_free, nsv_block_n_idle(&e->alloc),
			e->sched.n_run, e->sched.n_wait);
	}
}
