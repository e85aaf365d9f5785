/* Requests in and out of the engine: accept, tell, finish, release. */
#include <string.h>

#include "daemon/engine_state.h"
#include "shm/clock.h"

static enum nsv_seq_state state_of(const struct nsv_sched_seq *q)
{
	if (q->where != NSV_SCHED_RUNNING)
		return NSV_SEQ_WAITING;
	return q->paused ? NSV_SEQ_PAUSED : NSV_SEQ_RUNNING;
}

void nsv_engine_commit(struct nsv_engine *e, const struct nsv_job *job)
{
	const struct nsv_sched_seq *q = &e->sched.seqs[job->gen.seq];
	struct nsv_seq_commit next = {.state = state_of(q),
		.n_token = job->gen.n_prompt + job->gen.n_output,
		.n_past = q->n_done,
		.n_block = q->table.n,
		.n_cached = q->n_cached,
		.n_preempt = q->n_preempt};

	nsv_seqs_commit(&e->seqs, job->gen.seq, &next);
}

static void post_event(struct nsv_job *job, enum nsv_cqe_kind kind, enum nsv_code code)
{
	struct nsv_cqe cqe = {.request_id = job->id,
		.kind = (uint16_t)kind,
		.slot = (uint16_t)job->slot,
		.code = code,
		.text_end = job->sink.text_end,
		.token_end = (uint32_t)job->sink.token_end};
	struct nsv_cq_producer *ring = &job->ch->engine.event;

	job->gen.last_event = ring->tail;
	job->gen.event_sent = nsv_cq_post(ring, &cqe) == 0;
}

void nsv_engine_tell(struct nsv_job *job, enum nsv_cqe_kind kind)
{
	nsv_sink_publish(&job->sink);
	/* An event that the client has not taken yet will make it look at the slot: no second
	 * one. */
	if (kind != NSV_CQE_TOKENS || !job->gen.event_sent ||
		nsv_cq_taken(&job->ch->engine.event, job->gen.last_event) != 0)
		post_event(job, kind, NSV_E_OK);
	nsv_channel_ring(job->ch, &job->ch->engine.rung);
}

/* The identity, parameters and first tokens of a record that is still free. */
static void write_record(struct nsv_engine *e, const struct nsv_job *job, uint64_t first_id)
{
	uint32_t seq = job->gen.seq;
	const struct nsv_job *t = job->target;
	const void *params = t ? nsv_seqs_params(&e->seqs, t->gen.seq) : job->params_data;
	const int32_t *tokens = t ? nsv_seqs_tokens(&e->seqs, t->gen.seq) : job->ids.v;
	size_t n_token = (size_t)job->gen.n_prompt + job->gen.n_output;

	*nsv_seqs_ident(&e->seqs, seq) = (struct nsv_seq_ident){
		.session_id = job->ch->down.head->head.session_id,
		.request_id = job->id,
		.seed = job->gen.seed,
		.arrival = e->arrivals,
		.uid = job->uid,
		.slot = job->slot,
		.branch = job->branch,
		.n_prompt = job->gen.n_prompt,
		.params_len = job->params_len,
		.n_forked = job->gen.n_forked,
		.first_id = first_id,
	};
	if (job->params_len) { /* the head as this request has it */
		memcpy(nsv_seqs_params(&e->seqs, seq), params, job->params_len);
		memcpy(nsv_seqs_params(&e->seqs, seq), &job->wish.params, sizeof(job->wish.params));
	}
	memcpy(nsv_seqs_tokens(&e->seqs, seq), tokens, n_token * sizeof(*tokens));
}

uint32_t nsv_engine_most_tokens(const struct nsv_engine *e, const struct nsv_job *job)
{
	uint64_t most = e->info.desc->n_ctx;

	if (job->wish.params.max_tokens)
		most = nsv_min_u64(most, (uint64_t)job->gen.n_prompt + job->wish.params.max_tokens);
	/* the last token is not computed, so it needs no slot */
	return (uint32_t)nsv_min_u64(most, (uint64_t)e->info.n_block * e->info.block_size + 1);
}

/* Does sampling look at the request's own output? Then the host must know it before it goes on. */
static bool looks_back(const struct nsv_params *p)
{
	return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
	       p->frequency_penalty != 0.0f;
}

void nsv_engine_schedule(struct nsv_engine *e, struct nsv_job *job, uint32_t n_token,
	uint64_t arrival, uint32_t leader)
{
	uint32_t seq = job->gen.seq, n_lp = nsv_engine_n_prompt_lp(job);
	bool wants_lps = job->gen.n_told_lp < n_lp;

	nsv_sched_add(&e->sched, seq,
		&(struct nsv_sched_new){.n_token = n_token,
			.max_token = job->gen.max_token,
			.wait_for_tokens = looks_back(&job->wish.params),
			.uid = job->uid,
			.arrival = arrival,
			.domain = e->share_prefixes ? 0 : 1 + (uint64_t)job->uid,
			.tokens = nsv_seqs_tokens(&e->seqs, seq),
			.blocks = nsv_seqs_blocks(&e->seqs, seq),
			.cap = e->seqs.geom.n_block,
			.priority = job->wish.params.priority,
			.leader = leader,
			.lp_from = wants_lps ? job->gen.n_told_lp : 0,
			.lp_to = wants_lps ? n_lp : 0});
}

uint32_t nsv_engine_n_prompt_lp(const struct nsv_job *job)
{
	return job->wish.params.flags & NSV_PARAM_PROMPT_LOGPROBS ? job->gen.n_prompt - 1 : 0;
}

static void begin_prompt(const struct nsv_engine *e, struct nsv_job *job)
{
	job->wish.params.n_branch = 1; /* a request of its own from here on */
	job->gen.n_prompt = (uint32_t)job->ids.n;
	job->gen.max_token = nsv_engine_most_tokens(e, job);
}

/* All that the target has: what a step under way samples for it is not the fork's. */
static void begin_fork(struct nsv_job *job)
{
	const struct nsv_job *t = job->target;

	job->wish = t->wish;
	nsv_params_drop_prompt_logprobs(&job->wish.params);
	job->params_len = t->params_len;
	job->gen.seed = t->gen.seed;
	job->gen.n_prompt = t->gen.n_prompt;
	job->gen.n_output = job->gen.n_forked = t->gen.n_output;
	job->gen.max_token = t->gen.max_token;
	job->gen.fork_text = t->gen.fork_text + t->sink.text_end;
	job->gen.detok = t->gen.detok;
}

static void take_record(struct nsv_engine *e, struct nsv_job *job, uint64_t first_id)
{
	if (job->target)
		begin_fork(job);
	else
		begin_prompt(e, job);
	/* There is one: the io thread admits max_requests at most. */
	job->gen.seq = e->free_seqs[--e->n_free_seqs];
	e->arrivals++;
	e->jobs[job->gen.seq] = job;
	write_record(e, job, first_id);
	job->target = NULL; /* it may go from here on */
}

/* The records of all but the first, which count for nothing until the first one's does. */
static void join_branches(struct nsv_engine *e, struct nsv_job *first)
{
	for (struct nsv_job *job = first->next_branch; job; job = job->next_branch) {
		take_record(e, job, first->id);
		nsv_seqs_commit(&e->seqs, job->gen.seq,
			&(struct nsv_seq_commit){
				.state = NSV_SEQ_JOINING, .n_token = job->gen.n_prompt});
	}
}

static void accept_one(struct nsv_engine *e, struct nsv_job *job, uint32_t leader)
{
	const struct nsv_origin origin = {.n_prompt = job->gen.n_prompt,
		.fork_text = job->gen.fork_text,
		.fork_token = job->gen.n_forked};

	nsv_engine_schedule(e, job, job->gen.n_prompt + job->gen.n_output,
		nsv_seqs_ident(&e->seqs, job->gen.seq)->arrival, leader);
	nsv_engine_commit(e, job);
	nsv_sink_begin(&job->sink, job->ch, job->slot, job->id, &origin);
	nsv_sink_state(&job->sink, NSV_SLOT_QUEUED);
	nsv_engine_tell(job, NSV_CQE_ACCEPTED);
	nsv_stat_add(&e->stats.n_accepted, 1);
	nsv_mailbox_put(e->outbox, &job->answer.msg);
}

static void show_end(struct nsv_job *job, const struct nsv_seq_commit *end, const char *text)
{
	uint64_t now = nsv_now_ns();
	uint64_t run = job->gen.run_ns ? job->gen.run_ns : now;
	uint64_t first = job->gen.first_ns ? job->gen.first_ns : now;
	bool stopped = end->finish == NSV_FINISH_STOP;
	struct nsv_result result = {.finish = end->finish,
		.code = end->code,
		.n_cached = end->n_cached,
		.n_output = job->gen.n_output,
		.n_preempt = end->n_preempt,
		.seed = job->gen.seed,
		.queue_ns = run - job->start_ns,
		.prefill_ns = first - run,
		.decode_ns = now - first,
		.stop = stopped ? text : NULL,
		.text = stopped ? NULL : text};

	nsv_sink_finish(&job->sink, &result); /* from here on the slot is not ours to write */
	post_event(job, NSV_CQE_FINISHED, end->code);
	nsv_channel_ring(job->ch, &job->ch->engine.rung);
}

/* Its target ended before the engine came to it: it is no sequence, and ends at once. */
static void end_late_fork(struct nsv_engine *e, struct nsv_job *job)
{
	const struct nsv_seq_commit end = {.finish = NSV_FINISH_ERROR, .code = NSV_E_ID};
	struct nsv_err why;

	nsv_fail(&why, 0, "request %llu has ended", (unsigned long long)job->target_id);
	job->gen.seq = NSV_NO_SEQ;
	job->gen.done = true;
	nsv_sink_begin(&job->sink, job->ch, job->slot, job->id, NULL);
	show_end(job, &end, why.text);
	nsv_mailbox_put(e->outbox, &job->answer.msg);
	nsv_mailbox_put(e->outbox, &job->end.msg);
}

void nsv_engine_accept(struct nsv_engine *e, struct nsv_job *job)
{
	if (job->target && job->target->gen.done) {
		end_late_fork(e, job);
		return;
	}
	uint32_t leader = job->target ? job->target->gen.seq : NSV_SCHED_NO_LEADER;

	nsv_stat_add(&e->stats.n_fork, job->target != NULL);
	take_record(e, job, job->id);
	join_branches(e, job);
	accept_one(e, job, leader);
	for (struct nsv_job *b = job->next_branch; b; b = b->next_branch) {
		accept_one(e, b, job->gen.seq);
		nsv_stat_add(&e->stats.n_branch, 1);
	}
}

/* ---- Ends */

void nsv_engine_end(struct nsv_engine *e, struct nsv_job *job, const struct nsv_seq_commit *end,
	const char *text)
{
	nsv_seqs_commit(&e->seqs, job->gen.seq, end);
	job->gen.done = true;
	show_end(job, end, text);
	nsv_stat_add(&e->stats.n_ended, 1);
	nsv_mailbox_put(e->outbox, &job->end.msg);
}

void nsv_engine_finish(struct nsv_engine *e, struct nsv_job *job, enum nsv_finish finish,
	enum nsv_code code, const char *text)
{
	const struct nsv_sched_seq *q = &e->sched.seqs[job->gen.seq];
	struct nsv_seq_commit end = {.state = NSV_SEQ_DONE,
		.n_token = job->gen.n_prompt + job->gen.n_output,
		.finish = finish,
		.code = code,
		.n_cached = q->n_cached,
		.n_preempt = q->n_preempt};
	bool stopped = finish == NSV_FINISH_STOP && text;

	if (!stopped && (finish == NSV_FINISH_STOP || finish == NSV_FINISH_LENGTH))
		nsv_sink_text(&job->sink, e->text, nsv_engine_flush_text(e, job));
	nsv_sched_remove(&e->sched, job->gen.seq);
	nsv_engine_end(e, job, &end, text);
}

const char *nsv_engine_sentence(enum nsv_code code)
{
	switch (code) {
	case NSV_E_OK:
		return NULL;
	case NSV_E_PARAM:
		return "the lists of allowed and banned ids leave no token";
	case NSV_E_NUMERIC:
		return "the model gave a logit that is not finite";
	case NSV_E_NOMEM:
		return "the KV pool has become smaller than the request";
	case NSV_E_CRASHED:
		return "the daemon crashed, and the request cannot go on";
	default:
		return "the daemon failed";
	}
}

void nsv_engine_fail(struct nsv_engine *e, struct nsv_job *job, enum nsv_code code)
{
	nsv_engine_finish(e, job, NSV_FINISH_ERROR, code, nsv_engine_sentence(code));
}

void nsv_engine_left(struct nsv_engine *e, struct nsv_session_close *close)
{
	if (--close->n_left > 0)
		return;
	close->msg.kind = NSV_MSG_CLOSED;
	nsv_mailbox_put(e->outbox, &close->msg);
}

static void forget(struct nsv_engine *e, struct nsv_job *job)
{
	struct nsv_session_close *close = job->gen.close;
	uint32_t seq = job->gen.seq;

	if (seq != NSV_NO_SEQ) {
		e->jobs[seq] = NULL;
		e->free_seqs[e->n_free_seqs++] = seq;
	}
	if (!close) {
		job->release.msg.kind = NSV_MSG_RELEASED;
		nsv_mailbox_put(e->outbox, &job->release.msg);
	} else {
		nsv_engine_left(e, close);
	}
}

void nsv_engine_release(struct nsv_engine *e, struct nsv_job *job, struct nsv_session_close *close)
{
	if (!job->gen.done)
		nsv_sched_remove(&e->sched, job->gen.seq);
	if (job->gen.seq != NSV_NO_SEQ)
		nsv_seqs_commit(
			&e->seqs, job->gen.seq, &(struct nsv_seq_commit){.state = NSV_SEQ_FREE});
	job->gen.done = true;
	job->gen.released = true;
	job->gen.close = close;
	if (job->gen.n_flight == 0)
		forget(e, job);
}

void nsv_engine_returned(struct nsv_engine *e, struct nsv_job *job)
{
	if (--job->gen.n_flight == 0 && job->gen.released)
		forget(e, job);
}
