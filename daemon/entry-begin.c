/* Requests on their way from their entry to the engine: prepared, by the worker if they are long,
 * and what is needed for them all to begin. */
#include <sys/random.h>

#include "daemon/entry.h"
#include "daemon/status.h"
#include "shm/clock.h"

/* ---- Answers to a prompt */

static bool has_place(struct nsv_server *s, uint32_t n)
{
	uint32_t most = nsv_engine_get_info(s->engine)->max_requests;

	if (s->n_request + n > most)
		nsv_session_collect_ends(s);
	return s->n_request + n <= most;
}

static enum nsv_code no_place(struct nsv_session *se, struct nsv_job *job, uint32_t n)
{
	return nsv_fail(&job->err, NSV_E_LIMIT,
		"the daemon has %u requests, and %u more are wanted: max_requests is %u",
		se->server->n_request, n,
		nsv_engine_get_info(se->server->engine)->max_requests);
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
	return job->ids.cap * sizeof(*job->ids.v) + job->text_len + job->params_len +
	       (job->status ? nsv_status_size(job->status) : 0);
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
			first->code = nsv_entry_hold(se, job, held_bytes(job));
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
		nsv_entry_refuse(se, &slot[b]);
}

static void to_engine(struct nsv_session *se, struct nsv_session_slot *slot)
{
	nsv_session_set_phase(se, slot, NSV_PHASE_COMMITTING);
	se->server->n_request++;
}

/* The answers of one entry, from its first slot on: all of them begin, in one message, or none
 * does. Those that were cancelled meanwhile end. */
static void submit(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *first = slot->job, *head = NULL, **link = &head;
	uint32_t n = first->n_branch;

	first->gen.seed = choose_seed(&first->wish.params);
	/* What fits the context is quick to copy; what does not may be 16 times 16 MiB. */
	if (first->code == NSV_E_OK && fits(se, first, count_live(slot, n)))
		copy_to_branches(se, slot);
	if (first->code != NSV_E_OK) {
		refuse_branches(se, slot);
		return;
	}
	for (uint32_t b = 0; b < n; b++) {
		if (slot[b].cancel_sent) {
			nsv_entry_end_cancelled(se, &slot[b]);
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

static bool generates(const struct nsv_job *job)
{
	return job->op == NSV_OP_SUBMIT || job->op == NSV_OP_FORK;
}

/* What it copies, unless that has ended or a parameter is wrong. */
static struct nsv_session_slot *find_target(struct nsv_session *se, struct nsv_job *job)
{
	struct nsv_session_slot *t = nsv_entry_find(se, job->target_id);

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
		nsv_session_set_phase(se, slot, NSV_PHASE_PREPARING);
		return;
	}
	if (t && !has_place(se->server, 1))
		job->code = no_place(se, job, 1);
	if (job->code != NSV_E_OK) {
		nsv_entry_refuse(se, slot);
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
			nsv_entry_end_cancelled(se, slot);
		else
			fork_target(se, slot);
	}
}

/* ---- Prepared */

void nsv_entry_go_on(struct nsv_session *se, struct nsv_session_slot *slot)
{
	struct nsv_job *job = slot->job;

	if (job->code == NSV_E_OK)
		job->code = nsv_entry_hold(se, job, held_bytes(job));
	if (job->op == NSV_OP_SUBMIT)
		submit(se, slot);
	else if (job->code != NSV_E_OK)
		nsv_entry_refuse(se, slot);
	else if (slot->cancel_sent)
		nsv_entry_end_cancelled(se, slot);
	else if (job->op == NSV_OP_FORK)
		fork_target(se, slot);
	else
		nsv_entry_start_output(se, slot);
}

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
	nsv_mailbox_put(&s->prompt_worker.inbox, msg);
}

void nsv_entry_queue_prompt(struct nsv_session *se, struct nsv_job *job)
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

void nsv_session_work_on_prompt(struct nsv_msg *msg, const void *tok)
{
	nsv_job_prepare(nsv_job_of(msg), tok);
	msg->kind = NSV_MSG_PREPARED;
}

void nsv_session_prepared(struct nsv_job *job)
{
	struct nsv_session *se = job->session;

	next_prompt(se->server, se->user);
	se->n_preparing--;
	if (se->state == NSV_SESSION_OPEN) {
		nsv_entry_go_on(se, &se->slots[job->slot]);
		wake_forks(se);
		nsv_session_taken(se);
	} else {
		struct nsv_session_close *close = &se->close;
		if (se->engine_gone) /* nobody else will free the session */
			nsv_session_closed(close);
	}
}
