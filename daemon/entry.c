/* Submission entries of a session: checked, copied, and begun. */
#include <string.h>

#include "daemon/entry.h"
#include "daemon/log.h"
#include "daemon/status.h"
#include "shm/clock.h"

#define INLINE_LEN 2048 /* longer prompts go to the worker */

/* ---- What an entry says */

static enum nsv_code check_entry(const struct nsv_session *se, const struct nsv_sqe *sqe)
{
	for (size_t i = 0; i < NSV_ARRAY_LEN(sqe->reserved1); i++)
		if (sqe->reserved1[i])
			return NSV_E_ENTRY;
	if (sqe->reserved0 || (sqe->flags & ~NSV_SQE_FLAGS) ||
		(sqe->flags & NSV_SQE_KIND) == NSV_SQE_KIND || sqe->op > NSV_OP_DRAIN)
		return NSV_E_ENTRY;
	if (sqe->op == NSV_OP_DRAIN && sqe->target_id != NSV_DRAIN_ON &&
		sqe->target_id != NSV_DRAIN_OFF)
		return NSV_E_ENTRY;
	if (sqe->branch && sqe->op != NSV_OP_SUBMIT && sqe->op != NSV_OP_FORK)
		return NSV_E_ENTRY;
	if (sqe->op == NSV_OP_NOP || sqe->op == NSV_OP_CANCEL)
		return NSV_E_OK;
	if (sqe->slot >= se->ch.geom.n_slot)
		return NSV_E_ENTRY;
	return sqe->request_id > se->last_id ? NSV_E_OK : NSV_E_ID;
}

uint32_t nsv_session_count_slots(
	const struct nsv_session *se, const struct nsv_sqe *sqe, struct nsv_params *ret_head)
{
	*ret_head = nsv_params_default();
	if (sqe->op != NSV_OP_SUBMIT || sqe->params_len < sizeof(*ret_head) ||
		nsv_channel_copy(&se->ch, sqe->params_off, sizeof(*ret_head), ret_head) < 0)
		return 1;
	uint32_t n = ret_head->n_branch;
	return n > 0 && n <= NSV_MAX_BRANCH && n <= se->ch.geom.n_slot - sqe->slot &&
			       n - 1 <= UINT64_MAX - sqe->request_id
		       ? n
		       : 1;
}

/* Copies prompt and parameters: what the client does to its arena from now on does not matter. */
static enum nsv_code copy_input(struct nsv_session *se, struct nsv_job *job,
	const struct nsv_sqe *sqe, const struct nsv_params *head)
{
	const struct nsv_limits *limits = &se->server->config->limits;

	if (sqe->op == NSV_OP_FORK && (sqe->prompt_len || sqe->params_len))
		return nsv_fail(&job->err, NSV_E_PARAM,
			"a fork has the prompt and the parameters of its target");
	if (sqe->prompt_len > limits->prompt_bytes)
		return nsv_fail(&job->err, NSV_E_LIMIT,
			"the prompt has %u bytes: limits.prompt_bytes is %u", sqe->prompt_len,
			limits->prompt_bytes);
	if (sqe->params_len > NSV_SEQS_PARAMS_LEN)
		return nsv_fail(&job->err, NSV_E_LIMIT,
			"the parameters have %u bytes, %u are allowed", sqe->params_len,
			NSV_SEQS_PARAMS_LEN);
	enum nsv_code code = nsv_entry_hold(se, job, (uint64_t)sqe->prompt_len + sqe->params_len);
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
	if (sqe->op == NSV_OP_SUBMIT && sqe->params_len >= sizeof(*head))
		memcpy(job->params_data, head, sizeof(*head));
	return NSV_E_OK;
}

/* Answer number b of an entry. */
static struct nsv_job *new_request(
	struct nsv_session *se, const struct nsv_sqe *sqe, uint32_t index, uint32_t b)
{
	struct nsv_job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	nsv_job_init_msgs(job);
	job->session = se;
	job->ch = &se->ch;
	job->id = sqe->request_id + b;
	job->slot = sqe->slot + b;
	job->branch = sqe->branch + b;
	job->n_branch = 1;
	job->target_id = sqe->target_id;
	job->uid = se->uid;
	job->sq_index = index;
	job->op = sqe->op;
	job->flags = sqe->flags;
	job->start_ns = nsv_now_ns();
	return job;
}

static void prepare_status(struct nsv_session *se, struct nsv_job *job)
{
	if (nsv_status_begin(se, &job->text, &job->text_len, &job->status) < 0)
		job->code = nsv_fail(&job->err, NSV_E_NOMEM, "no memory for the status");
}

static void drain(struct nsv_session *se, struct nsv_job *job)
{
	struct nsv_server *s = se->server;

	if (!nsv_policy_is_operator(se->fd)) {
		job->code = nsv_fail(&job->err, NSV_E_DENIED,
			"only root, the daemon's own user and members of its group may drain it");
		return;
	}
	if (!s->draining)
		s->drain_ns = nsv_now_ns();
	s->draining = job->target_id == NSV_DRAIN_ON;
	nsv_info("user %u, process %d: %s", se->uid, se->pid,
		s->draining ? "drain" : "stop draining");
}

/* Is it answered by the server itself, without the tokenizer? */
static bool is_of_server(uint8_t op)
{
	return op == NSV_OP_STATUS || op == NSV_OP_DRAIN;
}

/* ---- Entries that begin a request */

static void begin(struct nsv_session *se, struct nsv_session_slot *slot, const struct nsv_sqe *sqe,
	const struct nsv_params *head)
{
	struct nsv_job *job = slot->job;

	job->code = copy_input(se, job, sqe, head);
	if (job->code == NSV_E_OK && is_of_server(sqe->op)) {
		if (sqe->op == NSV_OP_STATUS)
			prepare_status(se, job);
		else
			drain(se, job);
	} else if (job->code == NSV_E_OK && job->input_len > INLINE_LEN) {
		for (uint32_t b = 0; b < job->n_branch; b++)
			nsv_session_set_phase(se, &slot[b], NSV_PHASE_PREPARING);
		se->n_preparing++;
		nsv_entry_queue_prompt(se, job);
		return;
	} else if (job->code == NSV_E_OK && sqe->op != NSV_OP_FORK) {
		nsv_job_prepare(job, se->server->tok);
	}
	nsv_entry_go_on(se, slot);
}

/* All are free, or ended: then using one again acknowledges the end. */
static bool take_slots(struct nsv_session *se, struct nsv_session_slot *slot, uint32_t n)
{
	for (uint32_t b = 0; b < n; b++)
		if (slot[b].phase != NSV_PHASE_FREE && !nsv_session_slot_ended(se, &slot[b]))
			return false;
	for (uint32_t b = 0; b < n; b++)
		if (slot[b].phase != NSV_PHASE_FREE)
			nsv_session_release_slot(se, &slot[b]);
	return true;
}

static enum nsv_code charge_requests(struct nsv_session *se, uint32_t n, struct nsv_err *err)
{
	struct nsv_users *users = &se->server->users;

	if (nsv_user_charge_requests(users, se->user, n, err) == 0)
		return NSV_E_OK;
	nsv_session_collect_ends(se->server);
	return (enum nsv_code)nsv_user_charge_requests(users, se->user, n, err);
}

/* The requests of an entry, charged for. */
static enum nsv_code make_requests(struct nsv_session *se, const struct nsv_sqe *sqe,
	uint32_t index, uint32_t n, struct nsv_err *err)
{
	struct nsv_session_slot *slot = &se->slots[sqe->slot];

	if (se->server->draining && (sqe->op == NSV_OP_SUBMIT || sqe->op == NSV_OP_FORK))
		return nsv_fail(err, NSV_E_STOPPING,
			"the daemon is draining: it takes no new requests and exits after the "
			"last one");
	enum nsv_code code = charge_requests(se, n, err);
	if (code != NSV_E_OK)
		return code;
	for (uint32_t b = 0; b < n; b++) {
		slot[b].job = new_request(se, sqe, index, b);
		if (slot[b].job)
			continue;
		nsv_user_release_requests(se->user, n - b);
		while (b-- > 0)
			nsv_entry_free_job(se, &slot[b]);
		return nsv_fail(err, NSV_E_NOMEM, "no memory for a request");
	}
	slot->job->n_branch = n;
	return NSV_E_OK;
}

/* Each answer that the entry asks for is refused for itself. */
static void reply_refusals(
	struct nsv_session *se, const struct nsv_sqe *sqe, uint32_t n, enum nsv_code code)
{
	struct nsv_sqe one = *sqe;

	for (uint32_t b = 0; b < n; b++, one.request_id++, one.slot++)
		nsv_entry_reply(se, &one, NSV_CQE_ERROR, code);
}

static void take_new(struct nsv_session *se, const struct nsv_sqe *sqe, uint32_t index, uint32_t n,
	const struct nsv_params *head)
{
	struct nsv_session_slot *slot = &se->slots[sqe->slot];
	struct nsv_err err;

	if (!take_slots(se, slot, n)) {
		reply_refusals(se, sqe, n, NSV_E_BUSY);
		return;
	}
	se->last_id = sqe->request_id + n - 1;
	for (uint32_t b = 0; b < n; b++)
		slot[b] = (struct nsv_session_slot){.id = sqe->request_id + b};
	enum nsv_code code = make_requests(se, sqe, index, n, &err);
	if (code == NSV_E_OK) {
		begin(se, slot, sqe, head);
		return;
	}
	for (uint32_t b = 0; b < n; b++)
		nsv_entry_end_slot(se, &slot[b], NSV_FINISH_ERROR, code, err.text);
	reply_refusals(se, sqe, n, code);
}

/* again: another daemon may have taken it. Of its answers the first ones may then be known, for
 * they begin in their order; the others are all that is left of the entry. */
static void take_request(
	struct nsv_session *se, const struct nsv_sqe *sqe, uint32_t index, bool again)
{
	struct nsv_sqe rest = *sqe;
	struct nsv_params head;
	uint32_t n = nsv_session_count_slots(se, sqe, &head);
	uint32_t n_known = again ? nsv_session_replay(se, sqe, index, n) : 0;

	if (n_known == n) {
		se->last_id = sqe->request_id + n - 1;
		return;
	}
	if (n_known > 0) {
		rest.slot = (uint16_t)(rest.slot + n_known);
		rest.request_id += n_known;
		rest.branch += n_known;
		head.n_branch -= n_known;
	}
	take_new(se, &rest, index, n - n_known, &head);
}

/* ---- Cancel */

static void take_cancel(struct nsv_session *se, const struct nsv_sqe *sqe)
{
	struct nsv_session_slot *slot = nsv_entry_find(se, sqe->target_id);

	if (sqe->target_id == 0 || sqe->target_id > se->last_id) {
		nsv_entry_reply(se, sqe, NSV_CQE_ERROR, NSV_E_ID);
		return;
	}
	if (slot && !slot->cancel_sent) {
		if (slot->phase == NSV_PHASE_OUTPUT)
			nsv_entry_end_output(se, slot, NSV_FINISH_CANCEL);
		else if (slot->phase == NSV_PHASE_COMMITTING || slot->phase == NSV_PHASE_LIVE)
			nsv_engine_post(se->server->engine, &slot->job->cancel.msg);
		slot->cancel_sent = true;
	}
	struct nsv_sqe answer = *sqe;
	answer.request_id = sqe->target_id;
	nsv_entry_reply(se, &answer, NSV_CQE_CANCELLED, NSV_E_OK);
}

void nsv_session_entry(struct nsv_session *se, const struct nsv_sqe *sqe, uint32_t index)
{
	enum nsv_code code = check_entry(se, sqe);
	bool again = se->n_replay > 0;

	se->n_replay -= again;
	if (code != NSV_E_OK)
		nsv_entry_reply(se, sqe, NSV_CQE_ERROR, code);
	else if (sqe->op == NSV_OP_NOP)
		nsv_entry_reply(se, sqe, NSV_CQE_PONG, NSV_E_OK);
	else if (sqe->op == NSV_OP_CANCEL)
		take_cancel(se, sqe);
	else
		take_request(se, sqe, index, again);
}
