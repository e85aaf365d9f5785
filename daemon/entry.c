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

	nsv_sink_begin(&sink, &se->ch, (uint32_t)(slot - se->slots), slot->id, NULL);
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
	nsv_user_release_requests(se->user, 1);
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

static bool has_place(struct nsv_server *s, uint32_t n)
{
	if (s->n_request + n > s->config->max_requests)
		nsv_session_collect_ends(s);
	return s->n_request + n <= s->config->max_requests;
}

static enum nsv_code no_place(struct nsv_session *se, struct nsv_job *job, uint32_t n)
{
	return nsv_fail(&job->err, NSV_E_LIMIT,
		"the daemon has %u requests, and %u more are wanted: max_requests is %u",
		se->server->n_request, n, se->server->config->max_requests);
}

/* May the n answers of an entry begin, whose first request is `job`? */
static bool fits(struct nsv_session *se, struct nsv_job *job, uint32_t n_answer)
{
	const struct nsv_engine_info *info = nsv_engine_get_info(se->server->engine);
	uint64_t n = job->ids.n, pool = (uint64_t)info->n_block * info->block_size;
	uint64_t wanted = n + (job->wish.params.max_tokens ? job->wish.params.max_tokens - 1 : 0);

	if (job->wish.params.n_branch > job->n_branch)
		job->code = nsv_fail(&job->err, NSV_E_PARAM,
			"n_branch is %u: the session has %u slots, and the answers begin in slot "
			"%u",
			job->wish.params.n_branch, se->ch.geom.n_slot, job->slot);
	else if (job->branch > UINT32_MAX - (job->n_branch - 1))
		job->code = nsv_fail(&job->err, NSV_E_PARAM,
			"branch %u is the first of %u: numbers end before", job->branch,
			job->n_branch);
	else if (n == 0)
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
	else if ((job->wish.params.flags & (NSV_PARAM_LOGPROBS | NSV_PARAM_PROMPT_LOGPROBS)) &&
		 se->ch.geom.n_lp < info->run_ahead * (1 + job->wish.params.n_logprob))
		job->code = nsv_fail(&job->err, NSV_E_LIMIT,
			"the session's log-probability log has %u entries; a step needs %u",
			se->ch.geom.n_lp, info->run_ahead * (1 + job->wish.params.n_logprob));
	else if (!has_place(se->server, n_answer))
		job->code = no_place(se, job, n_answer);
	return job->code == NSV_E_OK;
}

static uint64_t choose_seed(const struct nsv_params *p)
{
	uint64_t seed = p->seed;

	if (!(p->flags & NSV_PARAM_SEED) && getrandom(&seed, sizeof(seed), 0) < 0)
		seed = nsv_now_ns();
	return seed;
}

/* What it holds once it is parsed. */
static uint64_t held_bytes(const struct nsv_job *job)
{
	return job->ids.cap * sizeof(*job->ids.v) + job->text_len + job->params_len;
}

/* The entry's other answers get what the first one's preparation left; its code says how that went.
 */
static void copy_to_branches(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *first = slot->job;

	for (uint32_t b = 1; b < first->n_branch && first->code == NSV_E_OK; b++) {
		struct nsv_job *job = slot[b].job;
		if (nsv_job_copy(job, first) < 0)
			first->code =
				nsv_fail(&first->err, NSV_E_NOMEM, "no memory for the prompt");
		else
			first->code = hold(se, job, held_bytes(job));
		if (first->code != NSV_E_OK && job->err.text[0])
			first->err = job->err;
	}
}

static uint32_t count_live(const struct nsv_session_slot *slot, uint32_t n)
{
	uint32_t n_live = 0;

	for (uint32_t b = 0; b < n; b++)
		n_live += !slot[b].cancel_sent;
	return n_live;
}

static void refuse_branches(struct nsv_session *se, struct nsv_session_slot *slot)
{
	const struct nsv_job *first = slot->job;
	uint32_t n = first->n_branch;

	for (uint32_t b = 1; b < n; b++) {
		slot[b].job->code = first->code;
		slot[b].job->err = first->err;
	}
	for (uint32_t b = 0; b < n; b++)
		refuse(se, &slot[b]);
}

/* It was cancelled before the engine had it. */
static void end_cancelled(struct nsv_session *se, struct nsv_session_slot *slot)
{
	end_slot(se, slot, NSV_FINISH_CANCEL, NSV_E_OK, NULL);
	reply_for(se, slot->job, NSV_CQE_DONE);
	free_job(se, slot);
}

static void to_engine(struct nsv_session *se, struct nsv_session_slot *slot)
{
	slot->phase = NSV_PHASE_COMMITTING;
	se->server->n_request++;
}

/* The answers of one entry, from its first slot on: all of them begin, in one message, or none
 * does. Those that were cancelled meanwhile end. */
static void submit(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *first = slot->job, *head = NULL, **link = &head;
	uint32_t n = first->n_branch;

	first->gen.seed = choose_seed(&first->wish.params);
	copy_to_branches(se, slot);
	if (first->code != NSV_E_OK || !fits(se, first, count_live(slot, n))) {
		refuse_branches(se, slot);
		return;
	}
	for (uint32_t b = 0; b < n; b++) {
		if (slot[b].cancel_sent) {
			end_cancelled(se, &slot[b]);
			continue;
		}
		to_engine(se, &slot[b]);
		*link = slot[b].job;
		link = &slot[b].job->next_branch;
	}
	if (head)
		nsv_engine_post(se->server->engine, &head->submit.msg);
}

/* ---- Forks */

static struct nsv_session_slot *find_request(struct nsv_session *se, uint64_t id)
{
	for (uint32_t i = 0; i < se->ch.geom.n_slot; i++)
		if (se->slots[i].id == id && se->slots[i].phase != NSV_PHASE_FREE)
			return &se->slots[i];
	return NULL;
}

static bool generates(const struct nsv_job *job)
{
	return job->op == NSV_OP_SUBMIT || job->op == NSV_OP_FORK;
}

/* What it copies, unless that has ended or a parameter is wrong. */
static struct nsv_session_slot *find_target(struct nsv_session *se, struct nsv_job *job)
{
	struct nsv_session_slot *t = find_request(se, job->target_id);

	if (job->target_id == 0 || job->target_id >= job->id)
		job->code = nsv_fail(&job->err, NSV_E_ID, "no request %llu came before this one",
			(unsigned long long)job->target_id);
	else if (!t || !t->job || nsv_session_slot_ended(se, t))
		job->code = nsv_fail(&job->err, NSV_E_ID, "request %llu has ended",
			(unsigned long long)job->target_id);
	else if (!generates(t->job))
		job->code = nsv_fail(&job->err, NSV_E_ID, "request %llu generates nothing",
			(unsigned long long)job->target_id);
	else if (t->job->branch == job->branch)
		job->code = nsv_fail(&job->err, NSV_E_PARAM,
			"branch %u is the target's own: the copy would say the same", job->branch);
	return job->code == NSV_E_OK ? t : NULL;
}

/* One whose target is not prepared yet waits for that. */
static void fork_target(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *job = slot->job;
	struct nsv_session_slot *t = find_target(se, job);

	if (t && t->phase == NSV_PHASE_PREPARING) {
		slot->phase = NSV_PHASE_PREPARING;
		return;
	}
	if (t && !has_place(se->server, 1))
		job->code = no_place(se, job, 1);
	if (job->code != NSV_E_OK) {
		refuse(se, slot);
		return;
	}
	job->target = t->job;
	to_engine(se, slot);
	nsv_engine_post(se->server->engine, &job->submit.msg);
}

/* In the order of their ids, for one may be another's target. */
static struct nsv_session_slot *next_waiting_fork(struct nsv_session *se, uint64_t after)
{
	struct nsv_session_slot *next = NULL;

	for (uint32_t i = 0; i < se->ch.geom.n_slot; i++) {
		struct nsv_session_slot *s = &se->slots[i];
		if (s->phase == NSV_PHASE_PREPARING && s->job->op == NSV_OP_FORK && s->id > after &&
			(!next || s->id < next->id))
			next = s;
	}
	return next;
}

/* Targets were prepared: their forks go on, or wait on. */
static void wake_forks(struct nsv_session *se)
{
	struct nsv_session_slot *slot = next_waiting_fork(se, 0);

	for (; slot; slot = next_waiting_fork(se, slot->id)) {
		if (slot->cancel_sent)
			end_cancelled(se, slot);
		else
			fork_target(se, slot);
	}
}

/* ---- Outputs */

static void start_output(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *job = slot->job;

	slot->phase = NSV_PHASE_OUTPUT;
	nsv_sink_begin(&job->sink, &se->ch, job->slot, job->id, NULL);
	nsv_sink_state(&job->sink, NSV_SLOT_RUNNING);
	reply_for(se, job, NSV_CQE_DONE);
	nsv_session_output(se, slot);
}

/* The entry is parsed: to the engine, or its answer out. */
static void go_on(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *job = slot->job;

	if (job->code == NSV_E_OK)
		job->code = hold(se, job, held_bytes(job));
	if (job->op == NSV_OP_SUBMIT)
		submit(se, slot);
	else if (job->code != NSV_E_OK)
		refuse(se, slot);
	else if (slot->cancel_sent)
		end_cancelled(se, slot);
	else if (job->op == NSV_OP_FORK)
		fork_target(se, slot);
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

static void begin(struct nsv_session *se, struct nsv_session_slot *slot, const struct nsv_sqe *sqe,
	const struct nsv_params *head)
{
	struct nsv_job *job = slot->job;

	job->code = copy_input(se, job, sqe, head);
	if (job->code == NSV_E_OK && sqe->op == NSV_OP_STATUS) {
		prepare_status(se, job);
	} else if (job->code == NSV_E_OK && job->input_len > INLINE_LEN) {
		for (uint32_t b = 0; b < job->n_branch; b++)
			slot[b].phase = NSV_PHASE_PREPARING;
		se->n_preparing++;
		queue_prompt(se, job);
		return;
	} else if (job->code == NSV_E_OK && sqe->op != NSV_OP_FORK) {
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
	enum nsv_code code = charge_requests(se, n, err);

	if (code != NSV_E_OK)
		return code;
	for (uint32_t b = 0; b < n; b++) {
		slot[b].job = new_request(se, sqe, index, b);
		if (slot[b].job)
			continue;
		nsv_user_release_requests(se->user, n - b);
		while (b-- > 0)
			free_job(se, &slot[b]);
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
		reply(se, &one, NSV_CQE_ERROR, code);
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
		end_slot(se, &slot[b], NSV_FINISH_ERROR, code, err.text);
	reply_refusals(se, sqe, n, code);
}

/* again: another daemon may have taken it. Of its answers the first ones may then be known, for they
 * begin in their order; the others are all that is left of the entry. */
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
	bool again = se->n_replay > 0;

	se->n_replay -= again;
	if (code != NSV_E_OK)
		reply(se, sqe, NSV_CQE_ERROR, code);
	else if (sqe->op == NSV_OP_NOP)
		reply(se, sqe, NSV_CQE_PONG, NSV_E_OK);
	else if (sqe->op == NSV_OP_CANCEL)
		take_cancel(se, sqe);
	else
		take_request(se, sqe, index, again);
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
		wake_forks(se);
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
