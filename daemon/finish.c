/* Requests in and out of the engine: accept, tell, finish, release. */
#include <string.h>

#include "daemon/clock.h"
#include "daemon/engine_state.h"

void nsv_engine_commit(struct nsv_engine *e, const struct nsv_request *req, enum nsv_seq_state state)
{
	const struct nsv_sched_seq *q = &e->sched.seqs[req->gen.seq];
	struct nsv_seq_commit next = {.state = state,
		.n_token = req->gen.n_prompt + req->gen.n_output,
		.n_past = q->where == NSV_SCHED_RUNNING ? q->n_past : 0,
		.n_block = q->table.n};

	nsv_seqs_commit(&e->seqs, req->gen.seq, &next);
}

static void post_event(struct nsv_request *req, enum nsv_cqe_kind kind, enum nsv_code code)
{
	struct nsv_cqe cqe = {.request_id = req->id,
		.kind = (uint16_t)kind,
		.slot = (uint16_t)req->slot,
		.code = code,
		.text_end = req->sink.text_end,
		.token_end = (uint32_t)req->sink.token_end};
	struct nsv_cq_producer *ring = &req->ch->engine.event;

	req->gen.last_event = ring->tail;
	req->gen.event_sent = nsv_cq_post(ring, &cqe) == 0;
}

void nsv_engine_tell(struct nsv_engine *e, struct nsv_request *req, enum nsv_cqe_kind kind)
{
	(void)e;
	nsv_sink_publish(&req->sink);
	/* An event that the client has not taken yet will make it look at the slot: no second one. */
	if (kind != NSV_CQE_TOKENS || !req->gen.event_sent ||
		nsv_cq_taken(&req->ch->engine.event, req->gen.last_event) != 0)
		post_event(req, kind, NSV_E_OK);
	nsv_channel_ring(req->ch, &req->ch->engine.rung);
}

static void write_record(struct nsv_engine *e, struct nsv_request *req)
{
	uint32_t seq = req->gen.seq;

	*nsv_seqs_ident(&e->seqs, seq) = (struct nsv_seq_ident){
		.session_id = req->ch->down.head->head.session_id,
		.request_id = req->id,
		.seed = req->gen.seed,
		.arrival = e->arrivals,
		.uid = req->uid,
		.slot = req->slot,
		.n_prompt = req->gen.n_prompt,
		.params_len = req->params_len,
	};
	if (req->params_len)
		memcpy(nsv_seqs_params(&e->seqs, seq), req->params_data, req->params_len);
	memcpy(nsv_seqs_tokens(&e->seqs, seq), req->ids.v, req->ids.n * sizeof(*req->ids.v));
}

/* Where it ends at the latest: its own limit, the context's end, the pool's size. */
static uint32_t most_tokens(const struct nsv_engine *e, const struct nsv_request *req)
{
	uint64_t most = e->info.desc->n_ctx;

	if (req->params.max_tokens)
		most = nsv_min_u64(most, (uint64_t)req->ids.n + req->params.max_tokens);
	/* the last token is not computed, so it needs no slot */
	return (uint32_t)nsv_min_u64(most, (uint64_t)e->info.n_block * e->info.block_size + 1);
}

void nsv_engine_accept(struct nsv_engine *e, struct nsv_request *req)
{
	uint32_t seq = e->free_seqs[--e->n_free_seqs]; /* the io thread admits max_requests at most */

	req->gen.seq = seq;
	req->gen.n_prompt = (uint32_t)req->ids.n;
	req->gen.max_token = most_tokens(e, req);
	e->arrivals++;
	e->reqs[seq] = req;
	write_record(e, req);
	nsv_sched_add(&e->sched, seq, req->gen.n_prompt, e->arrivals, nsv_seqs_blocks(&e->seqs, seq),
		e->seqs.geom.n_block);
	nsv_engine_commit(e, req, NSV_SEQ_WAITING);

	nsv_sink_begin(&req->sink, req->ch, req->slot, req->id);
	nsv_sink_state(&req->sink, NSV_SLOT_QUEUED);
	nsv_engine_tell(e, req, NSV_CQE_ACCEPTED);
	nsv_stat_add(&e->stats.n_accepted, 1);
	nsv_mailbox_put(e->outbox, &req->answer.msg);
}

static void flush_text(struct nsv_engine *e, struct nsv_request *req)
{
	char tail[16];
	size_t n = nsv_detok_end(&req->gen.detok, tail), len;
	uint32_t which;

	if (nsv_stop_feed(&req->stop, tail, n, e->batch.text, &len, &which) == 0)
		len += nsv_stop_end(&req->stop, e->batch.text + len);
	nsv_sink_text(&req->sink, e->batch.text, len);
}

void nsv_engine_finish(struct nsv_engine *e, struct nsv_request *req, enum nsv_finish finish,
	enum nsv_code code, const char *text)
{
	uint64_t now = nsv_now_ns();
	uint64_t run = req->gen.run_ns ? req->gen.run_ns : now;
	uint64_t first = req->gen.first_ns ? req->gen.first_ns : now;
	bool stopped = finish == NSV_FINISH_STOP && text;
	struct nsv_result result = {.finish = finish,
		.code = code,
		.n_prompt = req->gen.n_prompt,
		.n_output = req->gen.n_output,
		.n_preempt = e->sched.seqs[req->gen.seq].n_preempt,
		.seed = req->gen.seed,
		.queue_ns = run - req->start_ns,
		.prefill_ns = first - run,
		.decode_ns = now - first,
		.stop = stopped ? text : NULL,
		.text = stopped ? NULL : text};

	if (!stopped && (finish == NSV_FINISH_STOP || finish == NSV_FINISH_LENGTH))
		flush_text(e, req);
	nsv_sched_remove(&e->sched, req->gen.seq);
	nsv_seqs_commit(&e->seqs, req->gen.seq,
		&(struct nsv_seq_commit){.state = NSV_SEQ_DONE,
			.n_token = req->gen.n_prompt + req->gen.n_output,
			.finish = finish,
			.code = code});
	req->gen.done = true;
	nsv_sink_finish(&req->sink, &result);
	nsv_engine_tell(e, req, NSV_CQE_FINISHED);
	nsv_stat_add(&e->stats.n_ended, 1);
	nsv_mailbox_put(e->outbox, &req->end.msg);
}

void nsv_engine_release(struct nsv_engine *e, struct nsv_request *req)
{
	uint32_t seq = req->gen.seq;

	if (!req->gen.done)
		nsv_sched_remove(&e->sched, seq);
	nsv_seqs_commit(&e->seqs, seq, &(struct nsv_seq_commit){.state = NSV_SEQ_FREE});
	e->reqs[seq] = NULL;
	e->free_seqs[e->n_free_seqs++] = seq;
}
