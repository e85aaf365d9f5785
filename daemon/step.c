/* One step of the engine. */
#include <string.h>

#include "daemon/engine_state.h"
#include "shm/clock.h"

/* ---- Rooms: a request whose reader is behind is paused before its token would find no place */

/* Groups of log-probabilities that the log must have room for, where n tokens may come: of prompt
 * rows under way and, when there are no more to plan, of the tokens. */
static uint64_t lp_groups(const struct nsv_engine *e, const struct nsv_job *job, uint64_t n)
{
	const struct nsv_sched_seq *q = &e->sched.seqs[job->gen.seq];

	if (q->lp_from < q->lp_to)
		return nsv_max(q->n_lp_pending, 1);
	return q->n_lp_pending + (job->wish.params.flags & NSV_PARAM_LOGPROBS ? n : 0);
}

static bool has_room(const struct nsv_engine *e, const struct nsv_job *job)
{
	uint64_t n = 1 + e->sched.seqs[job->gen.seq].n_pending; /* tokens to come, at most */
	uint64_t n_lp = lp_groups(e, job, n) * (1 + job->wish.params.n_logprob);

	return nsv_sink_text_room(&job->sink) >= n * e->info.text_need &&
	       nsv_sink_token_room(&job->sink) >= n &&
	       (n_lp == 0 || nsv_sink_lp_room(&job->sink) >= n_lp);
}

static void pause_or_resume(struct nsv_engine *e, struct nsv_job *job, uint64_t now_ns)
{
	bool room = has_room(e, job);

	if (e->sched.seqs[job->gen.seq].lp_from < e->sched.seqs[job->gen.seq].lp_to)
		nsv_sched_set_lp_room(&e->sched, job->gen.seq,
			nsv_sink_lp_room(&job->sink) / (1 + job->wish.params.n_logprob));
	if (room == !job->gen.stalled)
		return;
	if (!room) { /* say so, then look again: the reader may have moved before it could see it */
		nsv_sink_stalled(&job->sink, true);
		if (has_room(e, job)) {
			nsv_sink_stalled(&job->sink, false);
			return;
		}
		nsv_sink_state(&job->sink, NSV_SLOT_PAUSED);
		nsv_engine_tell(job, NSV_CQE_TOKENS);
	} else {
		nsv_sink_stalled(&job->sink, false);
		nsv_sink_state(&job->sink, NSV_SLOT_RUNNING);
	}
	job->gen.stalled = !room;
	job->gen.stalled_ns = now_ns;
	nsv_sched_pause(&e->sched, job->gen.seq, !room);
}

static void check_rooms(struct nsv_engine *e, uint64_t now_ns)
{
	uint32_t n_paused = 0;

	for (uint32_t i = 0; i < e->sched.n_run; i++)
		pause_or_resume(e, e->jobs[e->sched.run[i]], now_ns);
	for (uint32_t i = 0; i < e->sched.n_wait; i++)
		pause_or_resume(e, e->jobs[e->sched.wait[i]], now_ns);
	for (uint32_t i = 0; i < e->sched.n_run; i++) {
		uint32_t seq = e->sched.run[i];
		if (!e->sched.seqs[seq].paused)
			continue;
		n_paused++;
		if (now_ns - e->jobs[seq]->gen.stalled_ns >= NSV_PAUSE_KEEPS_NS)
			nsv_sched_give_back(&e->sched, seq);
	}
	nsv_stat_set(&e->stats.n_paused, n_paused);
}

/* ---- Batch: host integers only */

static void want_token(struct nsv_engine *e, struct nsv_engine_step *st,
	const struct nsv_plan_item *item, struct nsv_batch *b)
{
	const struct nsv_job *job = e->jobs[item->seq];
	const struct nsv_params *p = &job->wish.params;
	uint32_t i = b->n_out++, n_token = item->n_past + item->n_row;

	st->out_rows[i] = b->n_row - 1;
	st->out_seqs[i] = b->n_seq - 1;
	st->n_lps[i] = p->flags & NSV_PARAM_LOGPROBS ? 1 + p->n_logprob : 0;
	st->given[i] = NSV_TOKEN_SAMPLE;
	st->ins[i] = (struct nsv_sample_in){.params = p,
		.lists = &job->wish.lists,
		.tokens = nsv_seqs_tokens(&e->seqs, item->seq),
		.n_prompt = job->gen.n_prompt,
		.n_output = n_token - job->gen.n_prompt,
		.seed = job->gen.seed,
		.branch = job->branch,
		.position = n_token};
}

/* The last n_lp rows of an item that was just added: each says how likely the token after it
 * was. */
static void want_prompt_lps(struct nsv_engine *e, struct nsv_engine_step *st,
	const struct nsv_plan_item *item, struct nsv_batch *b)
{
	const int32_t *tokens = nsv_seqs_tokens(&e->seqs, item->seq) + item->n_past;
	uint32_t row0 = b->n_row - item->n_row;

	for (uint32_t k = item->n_row - item->n_lp; k < item->n_row; k++) {
		uint32_t i = b->n_out++;

		st->out_rows[i] = row0 + k;
		st->out_seqs[i] = b->n_seq - 1;
		st->n_lps[i] = 1 + e->jobs[item->seq]->wish.params.n_logprob;
		st->given[i] = tokens[k + 1];
		st->ins[i] = (struct nsv_sample_in){0};
	}
}

static void add_item(struct nsv_engine *e, struct nsv_engine_step *st,
	const struct nsv_plan_item *item, struct nsv_batch *b)
{
	const int32_t *tokens = nsv_seqs_tokens(&e->seqs, item->seq);
	const struct nsv_block_table *table = &e->sched.seqs[item->seq].table;
	uint32_t row0 = b->n_row;

	for (uint32_t i = 0; i < item->n_row; i++) {
		st->tokens[row0 + i] = item->pending ? NSV_TOKEN_LAST : tokens[item->n_past + i];
		st->pos[row0 + i] = (int32_t)(item->n_past + i);
	}
	nsv_block_table_slots(
		table, e->info.block_size, item->n_past, item->n_row, st->slots + row0);
	st->places[b->n_seq] = item->seq;
	st->seqs[b->n_seq++] = (struct nsv_attn_seq){.row0 = row0,
		.n_query = item->n_row,
		.n_past = item->n_past,
		.n_table = table->n,
		.block_table = table->block};
	b->n_row += item->n_row;
	if (item->sample)
		want_token(e, st, item, b);
	else
		want_prompt_lps(e, st, item, b);
}

static struct nsv_exec_step make_step(struct nsv_engine *e, struct nsv_engine_step *st)
{
	struct nsv_exec_step x = {.swaps_out = st->plan.swaps_out,
		.n_swap_out = st->plan.n_swap_out,
		.swaps_in = st->plan.swaps_in,
		.n_swap_in = st->plan.n_swap_in,
		.copies = st->plan.copies,
		.n_copy = st->plan.n_copy,
		.batch = {.tokens = st->tokens,
			.pos = st->pos,
			.slots = st->slots,
			.seqs = st->seqs,
			.out_rows = st->out_rows},
		.places = st->places,
		.out_seqs = st->out_seqs,
		.given = st->given,
		.ins = st->ins,
		.n_lps = st->n_lps,
		.results = st->results};

	for (uint32_t i = 0; i < st->plan.n_item; i++)
		add_item(e, st, &st->plan.items[i], &x.batch);
	return x;
}

/* A preempted sequence's blocks may be written by another in this step: it is committed first. */
static void commit_preempted(struct nsv_engine *e, const struct nsv_step_plan *plan)
{
	for (uint32_t i = 0; i < plan->n_preempted; i++) {
		struct nsv_job *job = e->jobs[plan->preempted[i]];
		nsv_engine_commit(e, job);
		nsv_sink_state(&job->sink, job->gen.stalled ? NSV_SLOT_PAUSED : NSV_SLOT_QUEUED);
	}
}

static void mark_started(struct nsv_engine *e, const struct nsv_engine_step *st)
{
	for (uint32_t i = 0; i < st->plan.n_item; i++) {
		struct nsv_job *job = e->jobs[st->plan.items[i].seq];
		nsv_seqs_in_step(&e->seqs, st->plan.items[i].seq, st->number);
		job->gen.n_flight++;
		if (!job->gen.run_ns)
			job->gen.run_ns = st->start_ns;
		if (job->sink.rec->state != NSV_SLOT_RUNNING)
			nsv_sink_state(&job->sink, NSV_SLOT_RUNNING);
	}
}

/* ---- Tokens out */

static void end_or_go_on(struct nsv_engine *e, struct nsv_job *job, int32_t token)
{
	const char *stop;
	size_t len;
	enum nsv_finish finish = nsv_engine_read_token(e, job, token, &len, &stop);

	nsv_sink_text(&job->sink, e->text, len);
	if (finish != NSV_FINISH_NONE)
		nsv_engine_finish(e, job, finish, NSV_E_OK, stop);
	else
		nsv_engine_tell(job, NSV_CQE_TOKENS);
}

/* Commit, then logs, then the client: a crash between any two loses nothing. */
static void take_token(struct nsv_engine *e, struct nsv_job *job, const struct nsv_exec_result *r)
{
	const struct nsv_params *p = &job->wish.params;

	nsv_seqs_tokens(&e->seqs, job->gen.seq)[job->gen.n_prompt + job->gen.n_output] = r->token;
	job->gen.n_output++;
	nsv_sched_known(&e->sched, job->gen.seq);
	nsv_engine_commit(e, job);
	nsv_seqs_progress(&e->seqs);
	nsv_stat_add(&e->stats.n_output_token, 1);
	if (!job->gen.first_ns)
		job->gen.first_ns = nsv_now_ns();
	nsv_sink_tokens(&job->sink, &r->token, 1);
	if (p->flags & NSV_PARAM_LOGPROBS)
		nsv_sink_lps(&job->sink, r->lps, 1 + p->n_logprob);
	end_or_go_on(e, job, r->token);
}

static void take_result(struct nsv_engine *e, struct nsv_job *job, const struct nsv_exec_result *r)
{
	if (r->ret == 0)
		take_token(e, job, r);
	else
		nsv_engine_fail(e, job, r->ret == -ENODATA ? NSV_E_PARAM : NSV_E_NUMERIC);
}

/* Log-probabilities of the prompt: once for each of its tokens, for the scheduler plans a row
 * once. */
static void take_prompt_lps(
	struct nsv_engine *e, struct nsv_job *job, const struct nsv_exec_result *r, uint32_t n)
{
	nsv_engine_commit(e, job);
	for (uint32_t i = 0; i < n; i++) {
		if (r[i].ret != 0) {
			nsv_engine_fail(e, job, NSV_E_NUMERIC);
			return;
		}
		nsv_sink_lps(&job->sink, r[i].lps, 1 + job->wish.params.n_logprob);
	}
	nsv_stat_add(&e->stats.n_prompt_lp, n);
	if (n > 0)
		nsv_engine_tell(job, NSV_CQE_TOKENS);
}

static void take_item(struct nsv_engine *e, const struct nsv_plan_item *item,
	const struct nsv_exec_result *r)
{
	struct nsv_job *job = e->jobs[item->seq];

	if (!job->gen.done) { /* else it ran over: the rows were computed for nobody */
		if (nsv_sched_computed(&e->sched, item) < 0)
			nsv_stat_add(&e->stats.n_audit_bad, 1);
		if (item->sample)
			take_result(e, job, r);
		else
			take_prompt_lps(e, job, r, item->n_lp);
	}
	nsv_engine_returned(e, job);
}

static void take_results(struct nsv_engine *e, const struct nsv_engine_step *st)
{
	uint32_t n_out = 0;

	for (uint32_t i = 0; i < st->plan.n_item; i++) {
		const struct nsv_plan_item *item = &st->plan.items[i];
		if (item->n_past + item->n_row <= e->jobs[item->seq]->gen.n_prompt)
			nsv_stat_add(&e->stats.n_prompt_token, item->n_row);
		take_item(e, item, &st->results[n_out]);
		n_out += item->sample ? 1 : item->n_lp;
	}
	nsv_stat_add(&e->stats.n_step, 1);
	nsv_stat_add(&e->stats.step_ns, nsv_now_ns() - st->start_ns);
}

/* 0: a step was submitted; 1: there was nothing to plan. */
static int plan_and_submit(struct nsv_engine *e, struct nsv_err *err)
{
	struct nsv_engine_step *st = &e->steps[(e->first_step + e->n_step) % e->exec->depth];

	st->start_ns = nsv_now_ns();
	check_rooms(e, st->start_ns);
	nsv_sched_plan(&e->sched, &st->plan);
	commit_preempted(e, &st->plan);
	if (st->plan.n_item + st->plan.n_copy + st->plan.n_swap_out + st->plan.n_swap_in == 0)
		return st->plan.n_preempted == 0;
	st->number = nsv_seqs_next_step(&e->seqs);
	mark_started(e, st);
	nsv_seqs_step_begins(&e->seqs, st->number);
	struct nsv_exec_step x = make_step(e, st);
	int ret = e->exec->submit(e->exec, &x, err);
	if (ret < 0)
		return ret;
	nsv_sched_copied(&e->sched, &st->plan);
	e->n_step++;
	return 0;
}

static int collect(struct nsv_engine *e, struct nsv_err *err)
{
	int ret = e->exec->collect(e->exec, err);

	if (ret < 0)
		return ret;
	take_results(e, &e->steps[e->first_step]);
	nsv_seqs_step_ends(&e->seqs, e->steps[e->first_step].number);
	e->first_step = (e->first_step + 1) % e->exec->depth;
	e->n_step--;
	return 0;
}

int nsv_engine_drain(struct nsv_engine *e, struct nsv_err *err)
{
	int ret = 0;

	while (ret == 0 && e->n_step > 0)
		ret = collect(e, err);
	return ret;
}

int nsv_engine_step(struct nsv_engine *e, struct nsv_err *err)
{
	int ret = plan_and_submit(e, err);

	if (ret < 0)
		return ret;
	if (e->n_step == e->exec->depth || (ret == 1 && e->n_step > 0))
		return collect(e, err);
	return ret;
}
