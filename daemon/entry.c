/* Submission entries of a session: checked, copied, and sent on their way. */
#include <string.h>
#include <sys/random.h>

#include "daemon/clock.h"
#include "daemon/log.h"
#include "daemon/session.h"
#include "daemon/status.h"

#define INLINE_LEN 2048 /* longer prompts go to the worker */

/* ---- Answers of the io thread */

static void reply(struct nsv_session *se, const struct nsv_sqe *sqe, enum nsv_cqe_kind kind,
	enum nsv_code code)
{
	struct nsv_cqe cqe = {.request_id = sqe->request_id,
		.kind = (uint16_t)kind,
		.slot = sqe->slot,
		.code = code,
		.text_end = sqe->op == NSV_OP_NOP ? sqe->target_id : 0};

	nsv_channel_reply(&se->ch, &cqe);
}

static void reply_for(struct nsv_session *se, const struct nsv_job *job, enum nsv_cqe_kind kind)
{
	struct nsv_sqe sqe = {.op = job->op, .request_id = job->id, .slot = (uint16_t)job->slot};

	reply(se, &sqe, kind, job->code);
}

/* The slot shows an end that the engine never saw. */
static void end_slot(struct nsv_session *se, struct nsv_session_slot *slot, enum nsv_finish finish,
	enum nsv_code code, const char *text)
{
	struct nsv_sink sink;
	struct nsv_result result = {.finish = finish, .code = code, .text = text};

	nsv_sink_begin(&sink, &se->ch, (uint32_t)(slot - se->slots), slot->id);
	nsv_sink_finish(&sink, &result);
	slot->phase = NSV_PHASE_ENDED;
}

/* Charges what a request makes the daemon hold, instead of what it was charged before. */
static enum nsv_code hold(struct nsv_session *se, struct nsv_job *job, uint64_t bytes)
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
	nsv_user_release_request(se->user);
	nsv_user_release_bytes(se->user, job->bytes);
}

static void free_job(struct nsv_session *se, struct nsv_session_slot *slot)
{
	let_go(se, slot->job);
	nsv_job_free(slot->job);
	slot->job = NULL;
}

/* Refuses what was taken into a slot: its text is in the request. */
static void refuse(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *job = slot->job;

	nsv_debug("request %llu of session %llu is refused: %s", (unsigned long long)job->id,
		(unsigned long long)se->id, job->err.text);
	end_slot(se, slot, NSV_FINISH_ERROR, job->code, job->err.text);
	reply_for(se, job, NSV_CQE_ERROR);
	free_job(se, slot);
}

/* ---- On its way */

static bool has_place(struct nsv_server *s)
{
	if (s->n_request >= s->config->max_requests)
		nsv_session_collect_ends(s);
	return s->n_request < s->config->max_requests;
}

static bool fits(const struct nsv_session *se, struct nsv_job *job)
{
	const struct nsv_engine_info *info = nsv_engine_get_info(se->server->engine);
	uint64_t n = job->ids.n, pool = (uint64_t)info->n_block * info->block_size;
	uint64_t wanted = n + (job->wish.params.max_tokens ? job->wish.params.max_tokens - 1 : 0);

	if (n == 0)
		job->code = nsv_fail(
			&job->err, NSV_E_PARAM, "the prompt is empty: no token to go on from");
	else if (n >= info->desc->n_ctx)
		job->code = nsv_fail(&job->err, NSV_E_CONTEXT,
			"the prompt has %llu tokens; the context is %u, answer included",
			(unsigned long long)n, info->desc->n_ctx);
	else if (nsv_min_u64(wanted, info->desc->n_ctx) > pool)
		job->code = nsv_fail(&job->err, NSV_E_NOMEM,
			"%llu tokens can never fit the KV pool: it has %u blocks of %u",
			(unsigned long long)wanted, info->n_block, info->block_size);
	else if (se->ch.geom.text_len < info->run_ahead * info->text_need)
		job->code = nsv_fail(&job->err, NSV_E_LIMIT,
			"the session's text log has %u bytes; this model's tokens need %u",
			se->ch.geom.text_len, info->run_ahead * info->text_need);
	else if ((job->wish.params.flags & NSV_PARAM_LOGPROBS) &&
		 se->ch.geom.n_lp < info->run_ahead * (1 + job->wish.params.n_logprob))
		job->code = nsv_fail(&job->err, NSV_E_LIMIT,
			"the session's log-probability log has %u entries; a step needs %u",
			se->ch.geom.n_lp, info->run_ahead * (1 + job->wish.params.n_logprob));
	else if (!has_place(se->server))
		job->code = nsv_fail(&job->err, NSV_E_LIMIT,
			"the daemon has %u requests: max_requests", se->server->n_request);
	return job->code == NSV_E_OK;
}

static void submit(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *job = slot->job;

	if (!fits(se, job)) {
		refuse(se, slot);
		return;
	}
	job->gen.seed = job->wish.params.seed;
	if (!(job->wish.params.flags & NSV_PARAM_SEED) &&
		getrandom(&job->gen.seed, sizeof(job->gen.seed), 0) < 0)
		job->gen.seed = nsv_now_ns();
	slot->phase = NSV_PHASE_COMMITTING;
	se->server->n_request++;
	nsv_engine_post(se->server->engine, &job->submit.msg);
}

static void start_output(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *job = slot->job;

	slot->phase = NSV_PHASE_OUTPUT;
	nsv_sink_begin(&job->sink, &se->ch, job->slot, job->id);
	nsv_sink_state(&job->sink, NSV_SLOT_RUNNING);
	reply_for(se, job, NSV_CQE_DONE);
	nsv_session_output(se, slot);
}

/* What it holds once it is parsed. */
static uint64_t held_bytes(const struct nsv_job *job)
{
	return job->ids.cap * sizeof(*job->ids.v) + job->text_len + job->params_len;
}

/* The request is parsed: to the engine, or its answer out. */
static void go_on(struct nsv_session *se, struct nsv_session_slot *slot)
{
	if (slot->job->code == NSV_E_OK)
		slot->job->code = hold(se, slot->job, held_bytes(slot->job));
	if (slot->job->code != NSV_E_OK)
		refuse(se, slot);
	else if (slot->cancel_sent) {
		end_slot(se, slot, NSV_FINISH_CANCEL, NSV_E_OK, NULL);
		reply_for(se, slot->job, NSV_CQE_DONE);
		free_job(se, slot);
	} else if (slot->job->op == NSV_OP_SUBMIT)
		submit(se, slot);
	else
		start_output(se, slot);
}

static void end_output(
	struct nsv_session *se, struct nsv_session_slot *slot, enum nsv_finish finish)
{
	struct nsv_job *job = slot->job;
	struct nsv_result result = {.finish = finish, .n_output = (uint32_t)job->ids_done};

	nsv_sink_finish(&job->sink, &result);
	slot->phase = NSV_PHASE_ENDED;
	free_job(se, slot);
	nsv_channel_ring(&se->ch, &se->ch.io.rung);
}

static void pour(struct nsv_job *job)
{
	size_t n_text = nsv_min(job->text_len - job->text_done, nsv_sink_text_room(&job->sink));
	size_t n_ids = nsv_min(job->ids.n - job->ids_done, nsv_sink_token_room(&job->sink));

	if (n_text)
		nsv_sink_text(&job->sink, job->text + job->text_done, n_text);
	if (n_ids)
		nsv_sink_tokens(&job->sink, job->ids.v + job->ids_done, n_ids);
	job->text_done += n_text;
	job->ids_done += n_ids;
	nsv_sink_publish(&job->sink);
}

static bool is_poured(const struct nsv_job *job)
{
	return job->text_done == job->text_len && job->ids_done == job->ids.n;
}

void nsv_session_output(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *job = slot->job;

	nsv_sink_stalled(&job->sink, false);
	pour(job);
	if (!is_poured(job)) { /* raise the flag, then look once more */
		nsv_sink_stalled(&job->sink, true);
		pour(job);
	}
	if (is_poured(job))
		end_output(se, slot, NSV_FINISH_STOP);
	else
		nsv_channel_ring(&se->ch, &se->ch.io.rung);
}

/* ---- Entries that take a slot */

static enum nsv_code check_entry(const struct nsv_session *se, const struct nsv_sqe *sqe)
{
	for (size_t i = 0; i < NSV_ARRAY_LEN(sqe->reserved1); i++)
		if (sqe->reserved1[i])
			return NSV_E_ENTRY;
	if (sqe->reserved0 || (sqe->flags & ~NSV_SQE_FLAGS) ||
		(sqe->flags & NSV_SQE_KIND) == NSV_SQE_KIND || sqe->op > NSV_OP_STATUS)
		return NSV_E_ENTRY;
	if (sqe->op == NSV_OP_NOP || sqe->op == NSV_OP_CANCEL)
		return NSV_E_OK;
	if (sqe->slot >= se->ch.geom.n_slot)
		return NSV_E_ENTRY;
	return sqe->request_id > se->last_id ? NSV_E_OK : NSV_E_ID;
}

/* Copies prompt and parameters: what the client does to its arena from now on does not matter. */
static enum nsv_code copy_input(
	struct nsv_session *se, struct nsv_job *job, const struct nsv_sqe *sqe)
{
	const struct nsv_limits *limits = &se->server->config->limits;

	if (sqe->prompt_len > limits->prompt_bytes)
		return nsv_fail(&job->err, NSV_E_LIMIT,
			"the prompt has %u bytes: limits.prompt_bytes is %u", sqe->prompt_len,
			limits->prompt_bytes);
	if (sqe->params_len > NSV_SEQS_PARAMS_LEN)
		return nsv_fail(&job->err, NSV_E_LIMIT,
			"the parameters have %u bytes, %u are allowed", sqe->params_len,
			NSV_SEQS_PARAMS_LEN);
	enum nsv_code code = hold(se, job, (uint64_t)sqe->prompt_len + sqe->params_len);
	if (code != NSV_E_OK)
		return code;
	job->input = malloc(sqe->prompt_len + 1u);
	job->params_data = malloc(sqe->params_len + 1u);
	if (!job->input || !job->params_data)
		return nsv_fail(&job->err, NSV_E_NOMEM, "no memory for the prompt");
	job->input_len = sqe->prompt_len;
	job->params_len = sqe->params_len;
	if (nsv_channel_copy(&se->ch, sqe->prompt_off, sqe->prompt_len, job->input) < 0 ||
		nsv_channel_copy(&se->ch, sqe->params_off, sqe->params_len, job->params_data) < 0)
		return nsv_fail(
			&job->err, NSV_E_PARAM, "prompt or parameters lie outside the arena");
	return NSV_E_OK;
}

static struct nsv_job *new_request(
	struct nsv_session *se, const struct nsv_sqe *sqe, uint32_t index)
{
	struct nsv_job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	nsv_job_init_msgs(job);
	job->session = se;
	job->ch = &se->ch;
	job->id = sqe->request_id;
	job->slot = sqe->slot;
	job->uid = se->uid;
	job->sq_index = index;
	job->op = sqe->op;
	job->flags = sqe->flags;
	job->start_ns = nsv_now_ns();
	return job;
}

static void prepare_status(struct nsv_session *se, struct nsv_job *job)
{
	if (nsv_status_text(se, &job->text, &job->text_len) < 0)
		job->code = nsv_fail(&job->err, NSV_E_NOMEM, "no memory for the status");
}

/* ---- Prompts on their way to the worker */

/* The next one of a user, the worker being done with the one it had. */
static void next_prompt(struct nsv_server *s, struct nsv_user *user)
{
	struct nsv_msg *msg = user->prompts;

	user->worker_has_one = msg != NULL;
	if (!msg)
		return;
	user->prompts = msg->next;
	if (!user->prompts)
		user->prompts_end = &user->prompts;
	nsv_mailbox_put(&s->worker.inbox, msg);
}

static void queue_prompt(struct nsv_session *se, struct nsv_job *job)
{
	struct nsv_user *user = se->user;

	job->prepare.msg.next = NULL;
	*user->prompts_end = &job->prepare.msg;
	user->prompts_end = &job->prepare.msg.next;
	if (!user->worker_has_one)
		next_prompt(se->server, user);
}

void nsv_session_drop_prompts(struct nsv_session *se)
{
	struct nsv_msg **p = &se->user->prompts;

	while (*p) {
		if (nsv_job_of(*p)->session == se) {
			*p = (*p)->next;
			se->n_preparing--;
		} else {
			p = &(*p)->next;
		}
	}
	se->user->prompts_end = p;
}

/* ---- Entries that begin a request */

static void begin(struct nsv_session *se, struct nsv_session_slot *slot, const struct nsv_sqe *sqe)
{
	struct nsv_job *job = slot->job;

	job->code = copy_input(se, job, sqe);
	if (job->code == NSV_E_OK && sqe->op == NSV_OP_FORK)
		job->code = nsv_fail(&job->err, NSV_E_UNSUPPORTED, "fork is not supported");
	if (job->code == NSV_E_OK && sqe->op == NSV_OP_STATUS) {
		prepare_status(se, job);
	} else if (job->code == NSV_E_OK && job->input_len > INLINE_LEN) {
		slot->phase = NSV_PHASE_PREPARING;
		se->n_preparing++;
		queue_prompt(se, job);
		return;
	} else if (job->code == NSV_E_OK) {
		nsv_job_prepare(job, se->server->tok);
	}
	go_on(se, slot);
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

/* Free, or ended: then using it again acknowledges the end. */
static bool take_slot(struct nsv_session *se, struct nsv_session_slot *slot)
{
	if (nsv_session_slot_ended(se, slot))
		nsv_session_release_slot(se, slot);
	return slot->phase == NSV_PHASE_FREE;
}

static enum nsv_code charge_request(struct nsv_session *se, struct nsv_err *err)
{
	struct nsv_users *users = &se->server->users;

	if (nsv_user_charge_request(users, se->user, err) == 0)
		return NSV_E_OK;
	nsv_session_collect_ends(se->server);
	return (enum nsv_code)nsv_user_charge_request(users, se->user, err);
}

static void take_request(struct nsv_session *se, const struct nsv_sqe *sqe, uint32_t index)
{
	struct nsv_session_slot *slot = &se->slots[sqe->slot];
	struct nsv_err err;

	if (!take_slot(se, slot)) {
		reply(se, sqe, NSV_CQE_ERROR, NSV_E_BUSY);
		return;
	}
	se->last_id = sqe->request_id;
	*slot = (struct nsv_session_slot){.id = sqe->request_id};
	enum nsv_code code = charge_request(se, &err);
	if (code == NSV_E_OK) {
		slot->job = new_request(se, sqe, index);
		if (slot->job) {
			begin(se, slot, sqe);
			return;
		}
		nsv_user_release_request(se->user);
		code = nsv_fail(&err, NSV_E_NOMEM, "no memory for a request");
	}
	end_slot(se, slot, NSV_FINISH_ERROR, code, err.text);
	reply(se, sqe, NSV_CQE_ERROR, code);
}

/* ---- Cancel */

static struct nsv_session_slot *find_request(struct nsv_session *se, uint64_t id)
{
	for (uint32_t i = 0; i < se->ch.geom.n_slot; i++)
		if (se->slots[i].id == id && se->slots[i].phase != NSV_PHASE_FREE)
			return &se->slots[i];
	return NULL;
}

static void take_cancel(struct nsv_session *se, const struct nsv_sqe *sqe)
{
	struct nsv_session_slot *slot = find_request(se, sqe->target_id);

	if (sqe->target_id == 0 || sqe->target_id > se->last_id) {
		reply(se, sqe, NSV_CQE_ERROR, NSV_E_ID);
		return;
	}
	if (slot && !slot->cancel_sent) {
		if (slot->phase == NSV_PHASE_OUTPUT)
			end_output(se, slot, NSV_FINISH_CANCEL);
		else if (slot->phase == NSV_PHASE_COMMITTING || slot->phase == NSV_PHASE_LIVE)
			nsv_engine_post(se->server->engine, &slot->job->cancel.msg);
		slot->cancel_sent = true;
	}
	struct nsv_sqe answer = *sqe;
	answer.request_id = sqe->target_id;
	reply(se, &answer, NSV_CQE_CANCELLED, NSV_E_OK);
}

void nsv_session_entry(struct nsv_session *se, const struct nsv_sqe *sqe, uint32_t index)
{
	enum nsv_code code = check_entry(se, sqe);

	if (code != NSV_E_OK)
		reply(se, sqe, NSV_CQE_ERROR, code);
	else if (sqe->op == NSV_OP_NOP)
		reply(se, sqe, NSV_CQE_PONG, NSV_E_OK);
	else if (sqe->op == NSV_OP_CANCEL)
		take_cancel(se, sqe);
	else
		take_request(se, sqe, index);
}

/* ---- What the engine and the worker say */

static struct nsv_session_slot *slot_of(const struct nsv_job *job)
{
	return &job->session->slots[job->slot];
}

void nsv_session_prepared(struct nsv_job *job)
{
	struct nsv_session *se = job->session;

	next_prompt(se->server, se->user);
	se->n_preparing--;
	if (se->state == NSV_SESSION_OPEN) {
		go_on(se, slot_of(job));
		nsv_session_taken(se);
	} else {
		struct nsv_session_close *close = &se->close;
		if (se->engine_gone) /* nobody else will free the session */
			nsv_session_closed(close);
	}
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
	slot_of(job)->phase = NSV_PHASE_LIVE;
	nsv_session_taken(job->session);
}

void nsv_session_ended(struct nsv_job *job)
{
	if (still_has(job))
		slot_of(job)->phase = NSV_PHASE_ENDED;
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
		free_job(se, slot);
	}
	*slot = (struct nsv_session_slot){.phase = NSV_PHASE_FREE};
}
