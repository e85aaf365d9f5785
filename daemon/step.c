/* One step of the engine. */
#include <string.h>

#include "daemon/clock.h"
#include "daemon/engine_state.h"

/* ---- Rooms: a request whose reader is behind is paused before its token would find no place */

static bool has_room(const struct nsv_engine *e, const struct nsv_job *job)
{
	bool wants_lps = job->params.flags & NSV_PARAM_LOGPROBS;

	return nsv_sink_text_room(&job->sink) >= e->info.text_need &&
	       nsv_sink_token_room(&job->sink) >= 1 &&
	       (!wants_lps || nsv_sink_lp_room(&job->sink) >= 1 + job->params.n_logprob);
}

static void pause_or_resume(struct nsv_engine *e, struct nsv_job *job)
{
	bool room = has_room(e, job);

	if (room == !job->gen.stalled)
		return;
	if (!room) { /* say so, then look again: the reader may have moved before it could see it */
		nsv_sink_stalled(&job->sink, true);
		if (has_room(e, job)) {
			nsv_sink_stalled(&job->sink, false);
			return;
		}
		nsv_sink_state(&job->sink, NSV_SLOT_PAUSED);
		nsv_engine_tell(e, job, NSV_CQE_TOKENS);
	} else {
		nsv_sink_stalled(&job->sink, false);
		nsv_sink_state(&job->sink, NSV_SLOT_RUNNING);
	}
	job->gen.stalled = !room;
	nsv_sched_pause(&e->sched, job->gen.seq, !room);
}

static void check_rooms(struct nsv_engine *e)
{
	uint32_t n_paused = 0;

	for (uint32_t i = 0; i < e->sched.n_run; i++)
		pause_or_resume(e, e->jobs[e->sched.run[i]]);
	for (uint32_t i = 0; i < e->sched.n_wait; i++)
		pause_or_resume(e, e->jobs[e->sched.wait[i]]);
	for (uint32_t i = 0; i < e->sched.n_run; i++)
		n_paused += e->sched.seqs[e->sched.run[i]].paused;
	nsv_stat_set(&e->stats.n_paused, n_paused);
}

/* ---- Batch: host integers only */

static void add_item(struct nsv_engine *e, const struct nsv_plan_item *item, struct nsv_batch *b)
{
	const int32_t *tokens = nsv_seqs_tokens(&e->seqs, item->seq);
	const struct nsv_block_table *table = &e->sched.seqs[item->seq].table;
	uint32_t row0 = b->n_row;

	for (uint32_t i = 0; i < item->n_row; i++) {
		e->batch.tokens[row0 + i] = tokens[item->n_past + i];
		e->batch.pos[row0 + i] = (int32_t)(item->n_past + i);
	}
	nsv_block_table_slots(table, e->info.block_size, item->n_past, item->n_row,
		e->batch.slots + row0);
	e->batch.seqs[b->n_seq++] = (struct nsv_attn_seq){.row0 = row0,
		.n_query = item->n_row,
		.n_past = item->n_past,
		.n_table = table->n,
		.block_table = table->block};
	b->n_row += item->n_row;
	if (item->sample)
		e->batch.out_rows[b->n_out++] = b->n_row - 1;
}

static struct nsv_batch make_batch(struct nsv_engine *e)
{
	struct nsv_batch b = {.tokens = e->batch.tokens,
		.pos = e->batch.pos,
		.slots = e->batch.slots,
		.seqs = e->batch.seqs,
		.out_rows = e->batch.out_rows};

	for (uint32_t i = 0; i < e->plan.n_item; i++)
		add_item(e, &e->plan.items[i], &b);
	return b;
}

/* A preempted sequence's blocks may be written by another in this step: it is committed first. */
static void commit_preempted(struct nsv_engine *e)
{
	for (uint32_t i = 0; i < e->plan.n_preempted; i++) {
		struct nsv_job *job = e->jobs[e->plan.preempted[i]];
		nsv_engine_commit(e, job, NSV_SEQ_WAITING);
		nsv_sink_state(&job->sink, job->gen.stalled ? NSV_SLOT_PAUSED : NSV_SLOT_QUEUED);
	}
}

static void copy_blocks(struct nsv_engine *e)
{
	size_t len = (size_t)e->kv.shape.k.block_stride * sizeof(float);
	char *base = e->kv.base;

	for (uint32_t i = 0; i < e->plan.n_copy; i++)
		memcpy(base + (size_t)e->plan.copies[i].to * len,
			base + (size_t)e->plan.copies[i].from * len, len);
	nsv_sched_copied(&e->sched, &e->plan);
}

static void mark_started(struct nsv_engine *e, uint64_t now)
{
	for (uint32_t i = 0; i < e->plan.n_item; i++) {
		struct nsv_job *job = e->jobs[e->plan.items[i].seq];
		if (!job->gen.run_ns)
			job->gen.run_ns = now;
		if (job->sink.rec->state != NSV_SLOT_RUNNING)
			nsv_sink_state(&job->sink, NSV_SLOT_RUNNING);
	}
}

/* ---- Tokens out */

/* Text of a token to the client. 1: a stop string is complete, *ret_stop is it. */
static int write_text(
	struct nsv_engine *e, struct nsv_job *job, int32_t token, const char **ret_stop)
{
	const char *p;
	size_t len, n;
	uint32_t which;
	char *raw = e->batch.text + e->info.text_need;

	if (nsv_tok_piece(e->tok, token, false, &p, &len) < 0)
		len = 0;
	size_t n_raw = nsv_detok_feed(&job->gen.detok, p, len, raw);
	int stop = nsv_stop_feed(&job->stop, raw, n_raw, e->batch.text, &n, &which);
	nsv_sink_text(&job->sink, e->batch.text, n);
	if (stop)
		*ret_stop = job->stop.s[which].text;
	return stop;
}

static void end_or_go_on(struct nsv_engine *e, struct nsv_job *job, int32_t token)
{
	bool is_end = nsv_tok_is_end(e->tok, token) && !(job->params.flags & NSV_PARAM_IGNORE_END);
	const char *stop = NULL;

	if (is_end)
		nsv_engine_finish(e, job, NSV_FINISH_STOP, NSV_E_OK, NULL);
	else if (write_text(e, job, token, &stop))
		nsv_engine_finish(e, job, NSV_FINISH_STOP, NSV_E_OK, stop);
	else if (job->gen.n_prompt + job->gen.n_output >= job->gen.max_token)
		nsv_engine_finish(e, job, NSV_FINISH_LENGTH, NSV_E_OK, NULL);
	else
		nsv_engine_tell(e, job, NSV_CQE_TOKENS);
}

/* Commit, then logs, then the client: a crash between any two loses nothing. */
static void take_token(
	struct nsv_engine *e, struct nsv_job *job, int32_t token, const struct nsv_lp *lps, uint32_t n_lp)
{
	nsv_seqs_tokens(&e->seqs, job->gen.seq)[job->gen.n_prompt + job->gen.n_output] = token;
	job->gen.n_output++;
	nsv_sched_grow(&e->sched, job->gen.seq);
	nsv_engine_commit(e, job, NSV_SEQ_RUNNING);
	nsv_stat_add(&e->stats.n_output_token, 1);
	if (!job->gen.first_ns)
		job->gen.first_ns = nsv_now_ns();
	nsv_sink_tokens(&job->sink, &token, 1);
	if (n_lp)
		nsv_sink_lps(&job->sink, lps, n_lp);
	end_or_go_on(e, job, token);
}

static void sample(struct nsv_engine *e, struct nsv_job *job, const float *logits)
{
	struct nsv_lp lps[1 + NSV_MAX_LOGPROB];
	uint32_t n_lp = job->params.flags & NSV_PARAM_LOGPROBS ? 1 + job->params.n_logprob : 0;
	int32_t token;
	int ret = nsv_sample(&e->sampler, logits, &job->params, job->gen.seed, 0,
		job->gen.n_prompt + job->gen.n_output, &token, lps, n_lp);

	if (ret == 0)
		take_token(e, job, token, lps, n_lp);
	else
		nsv_engine_finish(e, job, NSV_FINISH_ERROR, NSV_E_NUMERIC,
			"the model gave a logit that is not finite");
}

static void take_results(struct nsv_engine *e)
{
	uint32_t n_out = 0;

	for (uint32_t i = 0; i < e->plan.n_item; i++) {
		const struct nsv_plan_item *item = &e->plan.items[i];
		struct nsv_job *job = e->jobs[item->seq];

		if (item->n_row > 1 || !job->gen.n_output)
			nsv_stat_add(&e->stats.n_prompt_token, item->n_row);
		if (nsv_sched_computed(&e->sched, item->seq) < 0)
			nsv_stat_add(&e->stats.n_audit_bad, 1);
		if (item->sample)
			sample(e, job, e->batch.logits + (size_t)n_out++ * e->info.desc->n_vocab);
		else
			nsv_engine_commit(e, job, NSV_SEQ_RUNNING);
	}
}

int nsv_engine_step(struct nsv_engine *e, struct nsv_err *err)
{
	uint64_t start = nsv_now_ns();

	check_rooms(e);
	nsv_sched_plan(&e->sched, &e->plan);
	commit_preempted(e);
	copy_blocks(e);
	if (e->plan.n_item == 0)
		return e->plan.n_preempted ? 0 : 1;
	mark_started(e, start);
	struct nsv_batch b = make_batch(e);
	int ret = nsv_model_forward(e->model, &e->dispatch, &e->kv, &b, e->batch.logits, err);
	if (ret < 0)
		return ret;
	take_results(e);
	nsv_stat_add(&e->stats.n_step, 1);
	nsv_stat_add(&e->stats.step_ns, nsv_now_ns() - start);
	nsv_stat_set(&e->stats.n_preempt, e->sched.n_preempt);
	nsv_stat_set(&e->stats.n_cached_token, e->sched.n_hit_token);
	nsv_stat_set(&e->stats.n_attention, e->dispatch.n_attention);
	return 0;
}
