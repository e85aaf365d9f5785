/* Requests in and out of the engine: accept, tell, finish, release. */
#include <string.h>

#include "daemon/clock.h"
#include "daemon/engine_state.h"

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
		.n_block = q->table.n};

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

static void write_record(struct nsv_engine *e, struct nsv_job *job)
{
	uint32_t seq = job->gen.seq;

	*nsv_seqs_ident(&e->seqs, seq) = (struct nsv_seq_ident){
		.session_id = job->ch->down.head->head.session_id,
		.request_id = job->id,
		.seed = job->gen.seed,
		.arrival = e->arrivals,
		.uid = job->uid,
		.slot = job->slot,
		.n_prompt = job->gen.n_prompt,
		.params_len = job->params_len,
	};
	if (job->params_len)
		memcpy(nsv_seqs_params(&e->seqs, seq), job->params_data, job->params_len);
	memcpy(nsv_seqs_tokens(&e->seqs, seq), job->ids.v, job->ids.n * sizeof(*job->ids.v));
}

/* Where it ends at the latest: its own limit, the context's end, the pool's size. */
static uint32_t most_tokens(const struct nsv_engine *e, const struct nsv_job *job)
{
	uint64_t most = e->info.desc->n_ctx;

	if (job->wish.params.max_tokens)
		most = nsv_min_u64(most, (uint64_t)job->ids.n + job->wish.params.max_tokens);
	/* the last token is not computed, so it needs no slot */
	return (uint32_t)nsv_min_u64(most, (uint64_t)e->info.n_block * e->info.block_size + 1);
}

/* Does sampling look at the request's own output? Then the host must know it before it goes on. */
static bool looks_back(const struct nsv_params *p)
{
	return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
	       p->frequency_penalty != 0.0f;
}

void nsv_engine_accept(struct nsv_engine *e, struct nsv_job *job)
{
	/* There is one: the io thread admits max_requests at most. */
	uint32_t seq = e->free_seqs[--e->n_free_seqs];

	job->gen.seq = seq;
	job->gen.n_prompt = (uint32_t)job->ids.n;
	job->gen.max_token = most_tokens(e, job);
	e->arrivals++;
	e->jobs[seq] = job;
	write_record(e, job);
	nsv_sched_add(&e->sched, seq,
		&(struct nsv_sched_new){.n_token = job->gen.n_prompt,
			.max_token = job->gen.max_token,
			.wait_for_tokens = looks_back(&job->wish.params),
			.uid = job->uid,
			.arrival = e->arrivals,
			.domain = e->share_prefixes ? 0 : 1 + (uint64_t)job->uid,
			.tokens = nsv_seqs_tokens(&e->seqs, seq),
			.blocks = nsv_seqs_blocks(&e->seqs, seq),
			.cap = e->seqs.geom.n_block,
			.leader = NSV_SCHED_NO_LEADER});
	nsv_engine_commit(e, job);

	nsv_sink_begin(&job->sink, job->ch, job->slot, job->id);
	nsv_sink_state(&job->sink, NSV_SLOT_QUEUED);
	nsv_engine_tell(job, NSV_CQE_ACCEPTED);
	nsv_stat_add(&e->stats.n_accepted, 1);
	nsv_mailbox_put(e->outbox, &job->answer.msg);
}

static void flush_text(struct nsv_engine *e, struct nsv_job *job)
{
	char tail[16];
	size_t n = nsv_detok_end(&job->gen.detok, tail), len;
	uint32_t which;

	if (nsv_stop_feed(&job->wish.stop, tail, n, e->text, &len, &which) == 0)
		len += nsv_stop_end(&job->wish.stop, e->text + len);
	nsv_sink_text(&job->sink, e->text, len);
}

void nsv_engine_finish(struct nsv_engine *e, struct nsv_job *job, enum nsv_finish finish,
	enum nsv_code code, const char *text)
{
	uint64_t now = nsv_now_ns();
	uint64_t run = job->gen.run_ns ? job->gen.run_ns : now;
	uint64_t first = job->gen.first_ns ? job->gen.first_ns : now;
	bool stopped = finish == NSV_FINISH_STOP && text;
	struct nsv_result result = {.finish = finish,
		.code = code,
		.n_prompt = job->gen.n_prompt,
		.n_cached = e->sched.seqs[job->gen.seq].n_cached,
		.n_output = job->gen.n_output,
		.n_preempt = e->sched.seqs[job->gen.seq].n_preempt,
		.seed = job->gen.seed,
		.queue_ns = run - job->start_ns,
		.prefill_ns = first - run,
		.decode_ns = now - first,
		.stop = stopped ? text : NULL,
		.text = stopped ? NULL : text};

	if (!stopped && (finish == NSV_FINISH_STOP || finish == NSV_FINISH_LENGTH))
		flush_text(e, job);
	nsv_sched_remove(&e->sched, job->gen.seq);
	nsv_seqs_commit(&e->seqs, job->gen.seq,
		&(struct nsv_seq_commit){.state = NSV_SEQ_DONE,
			.n_token = job->gen.n_prompt + job->gen.n_output,
			.finish = finish,
			.code = code});
	job->gen.done = true;
	nsv_sink_finish(&job->sink, &result); /* from here on the slot is not ours to write */
	post_event(job, NSV_CQE_FINISHED, code);
	nsv_channel_ring(job->ch, &job->ch->engine.rung);
	nsv_stat_add(&e->stats.n_ended, 1);
	nsv_mailbox_put(e->outbox, &job->end.msg);
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

	nsv_seqs_commit(&e->seqs, seq, &(struct nsv_seq_commit){.state = NSV_SEQ_FREE});
	e->jobs[seq] = NULL;
	e->free_seqs[e->n_free_seqs++] = seq;
	if (!close) {
		job->release.msg.kind = NSV_MSG_RELEASED;
		nsv_mailbox_put(e->outbox, &job->release.msg);
	} else {
		nsv_engine_left(e, close);
	}
}

void nsv_engine_release(
	struct nsv_engine *e, struct nsv_job *job, struct nsv_session_close *close)
{
	if (!job->gen.done)
		nsv_sched_remove(&e->sched, job->gen.seq);
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
