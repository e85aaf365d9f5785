/* Slots of a session: what they show the client, what they hold, and how they are free again. */
#include "daemon/entry.h"
#include "daemon/log.h"
#include "daemon/status.h"

#define POUR_LEN (256u << 10) /* bytes of text at once, and a quarter as many ids */

static bool is_live(enum nsv_slot_phase phase)
{
	return phase != NSV_PHASE_FREE && phase != NSV_PHASE_ENDED;
}

void nsv_session_set_phase(
	struct nsv_session *se, struct nsv_session_slot *slot, enum nsv_slot_phase phase)
{
	se->n_used += (uint32_t)(phase != NSV_PHASE_FREE) -
		      (uint32_t)(slot->phase != NSV_PHASE_FREE);
	se->n_live += (uint32_t)is_live(phase) - (uint32_t)is_live(slot->phase);
	slot->phase = phase;
}

/* ---- Answers */

void nsv_entry_reply(struct nsv_session *se, const struct nsv_sqe *sqe, enum nsv_cqe_kind kind,
	enum nsv_code code)
{
	struct nsv_cqe cqe = {.request_id = sqe->request_id,
		.kind = (uint16_t)kind,
		.slot = sqe->slot,
		.code = code,
		.text_end = sqe->op == NSV_OP_NOP ? sqe->target_id : 0};

	nsv_channel_reply(&se->ch, &cqe);
}

/* To the entry of a request, with its code. */
static void reply_for(struct nsv_session *se, const struct nsv_job *job, enum nsv_cqe_kind kind)
{
	struct nsv_sqe sqe = {.op = job->op, .request_id = job->id, .slot = (uint16_t)job->slot};

	nsv_entry_reply(se, &sqe, kind, job->code);
}

void nsv_entry_end_slot(struct nsv_session *se, struct nsv_session_slot *slot,
	enum nsv_finish finish, enum nsv_code code, const char *text)
{
	struct nsv_sink sink;
	struct nsv_result result = {.finish = finish, .code = code, .text = text};

	nsv_sink_begin(&sink, &se->ch, (uint32_t)(slot - se->slots), slot->id, NULL);
	nsv_sink_finish(&sink, &result);
	nsv_session_set_phase(se, slot, NSV_PHASE_ENDED);
}

/* ---- What a request holds */

enum nsv_code nsv_entry_hold(struct nsv_session *se, struct nsv_job *job, uint64_t bytes)
{
	nsv_user_release_bytes(se->user, job->bytes);
	job->bytes = 0;
	enum nsv_code code = (enum nsv_code)nsv_user_charge_bytes(
		&se->server->users, se->user, bytes, &job->err);
	if (code == NSV_E_OK)
		job->bytes = bytes;
	return code;
}

static void let_go(struct nsv_session *se, const struct nsv_job *job)
{
	nsv_user_release_requests(se->user, 1);
	nsv_user_release_bytes(se->user, job->bytes);
}

void nsv_entry_free_job(struct nsv_session *se, struct nsv_session_slot *slot)
{
	let_go(se, slot->job);
	nsv_job_free(slot->job);
	slot->job = NULL;
}

/* ---- Ends that the engine never saw */

void nsv_entry_refuse(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *job = slot->job;

	nsv_debug("request %llu of session %llu is refused: %s", (unsigned long long)job->id,
		(unsigned long long)se->id, job->err.text);
	nsv_entry_end_slot(se, slot, NSV_FINISH_ERROR, job->code, job->err.text);
	reply_for(se, job, NSV_CQE_ERROR);
	nsv_entry_free_job(se, slot);
}

void nsv_entry_end_cancelled(struct nsv_session *se, struct nsv_session_slot *slot)
{
	nsv_entry_end_slot(se, slot, NSV_FINISH_CANCEL, NSV_E_OK, NULL);
	reply_for(se, slot->job, NSV_CQE_DONE);
	nsv_entry_free_job(se, slot);
}

/* ---- Outputs */

void nsv_entry_end_output(
	struct nsv_session *se, struct nsv_session_slot *slot, enum nsv_finish finish)
{
	struct nsv_job *job = slot->job;
	struct nsv_result result = {.finish = finish, .n_output = (uint32_t)job->ids_done};

	nsv_sink_finish(&job->sink, &result);
	nsv_session_set_phase(se, slot, NSV_PHASE_ENDED);
	nsv_entry_free_job(se, slot);
	nsv_channel_ring(&se->ch, &se->ch.io.rung);
}

static bool is_poured(const struct nsv_job *job)
{
	return job->text_done == job->text_len && job->ids_done == job->ids.n;
}

/* Of a status: what was written before has all been poured. */
static void next_piece(struct nsv_job *job)
{
	job->text_done = 0;
	job->text_len = nsv_status_next(job->status, job->text);
}

/* As much as there is room for; no more than others can wait for. */
static void pour(struct nsv_job *job)
{
	size_t n_text = nsv_min(job->text_len - job->text_done, nsv_sink_text_room(&job->sink));
	size_t n_ids = nsv_min(job->ids.n - job->ids_done, nsv_sink_token_room(&job->sink));

	n_text = nsv_min(n_text, POUR_LEN);
	n_ids = nsv_min(n_ids, POUR_LEN / sizeof(*job->ids.v));

	if (n_text)
		nsv_sink_text(&job->sink, job->text + job->text_done, n_text);
	if (n_ids)
		nsv_sink_tokens(&job->sink, job->ids.v + job->ids_done, n_ids);
	job->text_done += n_text;
	job->ids_done += n_ids;
	nsv_sink_publish(&job->sink);
}

static bool can_pour(const struct nsv_job *job)
{
	return (job->text_done < job->text_len && nsv_sink_text_room(&job->sink) > 0) ||
	       (job->ids_done < job->ids.n && nsv_sink_token_room(&job->sink) > 0);
}

void nsv_session_output(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *job = slot->job;

	nsv_sink_stalled(&job->sink, false);
	pour(job);
	if (is_poured(job) && job->status)
		next_piece(job);
	if (is_poured(job)) {
		nsv_entry_end_output(se, slot, NSV_FINISH_STOP);
		return;
	}
	if (!can_pour(job)) /* raise the flag, then look once more */
		nsv_sink_stalled(&job->sink, true);
	if (can_pour(job))
		nsv_session_make_ready(se);
	nsv_channel_ring(&se->ch, &se->ch.io.rung);
}

void nsv_entry_start_output(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *job = slot->job;

	nsv_session_set_phase(se, slot, NSV_PHASE_OUTPUT);
	nsv_sink_begin(&job->sink, &se->ch, job->slot, job->id, NULL);
	nsv_sink_state(&job->sink, NSV_SLOT_RUNNING);
	reply_for(se, job, NSV_CQE_DONE);
	nsv_session_output(se, slot);
}

/* ---- Ends that it saw */

struct nsv_session_slot *nsv_entry_find(struct nsv_session *se, uint64_t id)
{
	for (uint32_t i = 0; i < se->ch.geom.n_slot; i++)
		if (se->slots[i].id == id && se->slots[i].phase != NSV_PHASE_FREE)
			return &se->slots[i];
	return NULL;
}

bool nsv_session_slot_ended(const struct nsv_session *se, const struct nsv_session_slot *slot)
{
	const struct nsv_down_slot *rec = &se->ch.down.slots[slot - se->slots];

	if (slot->phase == NSV_PHASE_ENDED)
		return true;
	/* The engine tells the client first and us after: a quick client is here before the
	 * message. */
	return (slot->phase == NSV_PHASE_COMMITTING || slot->phase == NSV_PHASE_LIVE) &&
	       nsv_load_acq_u64(&rec->request_id) == slot->id &&
	       nsv_load_acq_u32(&rec->state) == NSV_SLOT_DONE;
}

static struct nsv_session_slot *slot_of(const struct nsv_job *job)
{
	return &job->session->slots[job->slot];
}

/* The slot may be another request's by now. */
static bool still_has(const struct nsv_job *job)
{
	return job->session->state == NSV_SESSION_OPEN && slot_of(job)->job == job;
}

void nsv_session_accepted(struct nsv_job *job)
{
	if (!still_has(job))
		return;
	nsv_session_set_phase(job->session, slot_of(job), NSV_PHASE_LIVE);
	nsv_session_taken(job->session);
}

void nsv_session_ended(struct nsv_job *job)
{
	if (still_has(job))
		nsv_session_set_phase(job->session, slot_of(job), NSV_PHASE_ENDED);
}

void nsv_session_released(struct nsv_job *job)
{
	nsv_job_free(job);
}

/* In an open session the engine lets go of the request first; in a closing one it has. */
void nsv_session_release_slot(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *job = slot->job;
	bool in_engine = slot->phase == NSV_PHASE_COMMITTING || slot->phase == NSV_PHASE_LIVE ||
			 slot->phase == NSV_PHASE_ENDED;

	if (job && in_engine)
		se->server->n_request--;
	if (job && in_engine && se->state == NSV_SESSION_OPEN) {
		let_go(se, job);
		nsv_engine_post(se->server->engine, &job->release.msg);
		slot->job = NULL;
	} else if (job) {
		nsv_entry_free_job(se, slot);
	}
	nsv_session_set_phase(se, slot, NSV_PHASE_FREE);
	*slot = (struct nsv_session_slot){.phase = NSV_PHASE_FREE};
}
