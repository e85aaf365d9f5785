/* Sessions that another daemon served, taken over before the engine starts.
 *
 *     vaults -> each session checked against its record, its user against the policy of today
 *            -> requests back into the engine
 *            -> outputs that were cut off ended -> next epoch, a bell -> entries taken again
 *
 * Indices come from the session's record. Entries from its sq_head on may have been taken before:
 * an entry is known when its slot holds its request, when the slot's ack_id names it, or when a
 * later entry uses its slot, for a client does so only after the end of the first. Nothing else
 * remembers what became of it, so nothing else is needed: the record of a request is given back for
 * one of the last two reasons, and both are in `up`, where only the client itself can spoil
 * them. */
#include <string.h>
#include <sys/socket.h>

#include "daemon/log.h"
#include "daemon/session.h"
#include "shm/clock.h"
#include "shm/wire.h"

struct adoption {
	struct nsv_server *server;
	struct nsv_session **by_rec; /* (n_session) */
	uint32_t n_session, n_request, n_refused;
	uint64_t start_ns;
};

/* ---- Sessions */

static int check_record(const struct adoption *a, const struct nsv_vault_place *found,
	struct nsv_session_commit *ret, struct nsv_err *err)
{
	const struct nsv_seqs *seqs = nsv_engine_get_seqs(a->server->engine);

	if (found->rec >= seqs->geom.n_session)
		return nsv_fail(err, -EPROTO, "its record %u does not exist", found->rec);
	*ret = nsv_seqs_get_session(seqs, found->rec);
	if (ret->state != 1 || ret->session_id != found->session_id)
		return 1; /* it ended: its message is dead */
	if (nsv_geom_check(&ret->geom, err) != 0)
		return -EPROTO;
	return 0;
}

static int build(struct nsv_session *se, const struct nsv_session_commit *c, struct nsv_err *err)
{
	const int *fds = se->place.fds;
	int ret = nsv_user_get(&se->server->users, c->uid, &se->user);

	if (ret == 0)
		ret = nsv_channel_adopt(&se->ch, &c->geom, c->session_id, fds[NSV_VAULT_SOCKET],
			fds[NSV_VAULT_UP], fds[NSV_VAULT_DOWN], c->sq_head, err);
	if (ret < 0)
		return ret;
	se->memory = se->ch.up_region.len + se->ch.down_region.len;
	nsv_user_keep_session(se->user, se->memory);
	se->slots = calloc(c->geom.n_slot, sizeof(*se->slots));
	return se->slots ? 0 : -ENOMEM;
}

static void unbuild(struct nsv_session *se)
{
	if (se->memory)
		nsv_user_release_session(se->user, se->memory);
	nsv_user_put(&se->server->users, se->user);
	se->ch.up_region.fd = se->ch.down_region.fd = -1; /* the vault closes what nobody wants */
	nsv_channel_deinit(&se->ch);
	free(se);
}

static struct nsv_vault_place *found_session(void *user, const struct nsv_vault_place *found)
{
	struct adoption *a = user;
	struct nsv_session_commit c;
	struct nsv_err err = {"out of memory"};
	int ret = check_record(a, found, &c, &err);

	if (ret == 1) {
		nsv_channel_say_lost(found->fds[NSV_VAULT_DOWN]);
		return NULL;
	}
	if (ret == 0 && a->by_rec[found->rec]) /* a vault was being emptied: it is in two */
		return &a->by_rec[found->rec]->place;
	struct nsv_session *se =
		ret == 0 ? nsv_session_alloc(a->server, found->fds[NSV_VAULT_SOCKET]) : NULL;
	if (se) {
		se->place = *found;
		se->rec = found->rec;
		se->uid = c.uid;
		se->id = c.session_id;
		se->last_id = se->safe_id = c.last_id;
		se->safe_head = c.sq_head;
		se->epoch = c.epoch + 1;
		ret = build(se, &c, &err);
	}
	if (!se || ret < 0) {
		nsv_warning("session %llu cannot be taken over: %s",
			(unsigned long long)found->session_id, err.text);
		a->n_refused++;
		nsv_channel_say_lost(found->fds[NSV_VAULT_DOWN]);
		if (se)
			unbuild(se);
		return NULL;
	}
	nsv_session_resume(se);
	a->by_rec[found->rec] = se;
	a->n_session++;
	return &se->place;
}

/* Records of sessions that are in no vault: they had no welcome yet, or were refused here. */
static void close_records(const struct adoption *a)
{
	const struct nsv_seqs *seqs = nsv_engine_get_seqs(a->server->engine);

	for (uint32_t i = 0; i < seqs->geom.n_session; i++) {
		struct nsv_session_commit c = nsv_seqs_get_session(seqs, i);
		if (c.session_id > a->server->last_session_id)
			a->server->last_session_id = c.session_id;
		if (c.state == 0 || a->by_rec[i])
			continue;
		c.state = 0;
		nsv_seqs_commit_session(seqs, i, &c);
	}
}

/* ---- Their entries */

static bool takes_slot(const struct nsv_session *se, const struct nsv_sqe *sqe)
{
	return sqe->op != NSV_OP_NOP && sqe->op != NSV_OP_CANCEL && sqe->op <= NSV_OP_DRAIN &&
	       sqe->slot < se->ch.geom.n_slot;
}

/* Which entry uses each slot last. A ring whose tail is impossible ends the session at its
 * visit. */
static int look_ahead(struct nsv_session *se)
{
	struct nsv_sq_consumer sq = se->ch.io.sq;
	struct nsv_params head;
	struct nsv_sqe sqe;
	uint32_t n;

	if (nsv_sq_ready(&sq, &n) < 0 || n == 0)
		return 0;
	se->last_entries = calloc(se->ch.geom.n_slot, sizeof(*se->last_entries));
	if (!se->last_entries)
		return -ENOMEM;
	se->n_replay = n;
	for (; n > 0; n--, sq.head++) {
		nsv_sq_peek(&sq, &sqe);
		if (!takes_slot(se, &sqe))
			continue;
		uint32_t n_slot = nsv_session_count_slots(se, &sqe, &head);
		for (uint32_t b = 0; b < n_slot; b++)
			se->last_entries[sqe.slot + b] = sq.head;
	}
	return 0;
}

/* What the client was told of an output or a refusal, once more; of requests the engine has said
 * it. */
static void answer_again(struct nsv_session *se, uint32_t i)
{
	const struct nsv_down_slot *rec = &se->ch.down.slots[i];
	bool refused = rec->finish == NSV_FINISH_ERROR && rec->code != NSV_E_CRASHED;
	struct nsv_cqe cqe = {.request_id = se->slots[i].id,
		.kind = refused ? NSV_CQE_ERROR : NSV_CQE_DONE,
		.slot = (uint16_t)i,
		.code = refused ? rec->code : NSV_E_OK};

	if (!se->slots[i].job)
		nsv_channel_reply(&se->ch, &cqe);
}

uint32_t nsv_session_replay(
	struct nsv_session *se, const struct nsv_sqe *sqe, uint32_t index, uint32_t n)
{
	uint32_t n_known = 0;

	for (uint32_t b = 0; b < n; b++) {
		uint32_t i = sqe->slot + b;
		const struct nsv_session_slot *slot = &se->slots[i];
		uint64_t id = sqe->request_id + b;
		bool has_it = slot->phase != NSV_PHASE_FREE && slot->id == id;
		if (has_it)
			answer_again(se, i);
		if (has_it || se->last_entries[i] != index ||
			nsv_load_acq_u64(&se->ch.up.slots[i].ack_id) == id)
			n_known = b + 1;
	}
	return n_known;
}

/* An output of the io thread that was flowing: what was written of it stays readable, the rest has
 * to be asked for again. One that was whole waits for its acknowledgement. */
static void end_cut_output(struct nsv_session *se, uint32_t i)
{
	struct nsv_session_slot *slot = &se->slots[i];
	struct nsv_down_slot *rec = &se->ch.down.slots[i];
	uint64_t id = nsv_load_rlx_u64(&rec->request_id);

	if (slot->phase != NSV_PHASE_FREE || id == 0 ||
		nsv_load_acq_u64(&se->ch.up.slots[i].ack_id) == id)
		return;
	slot->id = id;
	nsv_session_set_phase(se, slot, NSV_PHASE_ENDED);
	if (nsv_load_rlx_u32(&rec->state) == NSV_SLOT_DONE)
		return;
	struct nsv_sink sink;
	nsv_sink_resume(&sink, &se->ch, i);
	sink.text_end = nsv_load_rlx_u64(&rec->text_end);
	sink.token_end = nsv_load_rlx_u64(&rec->token_end);
	sink.lp_end = nsv_load_rlx_u64(&rec->lp_end);
	nsv_sink_finish(&sink,
		&(struct nsv_result){.finish = NSV_FINISH_ERROR,
			.code = NSV_E_CRASHED,
			.text = "the daemon went away while it answered: ask again"});
}

/* From here on the client sees a daemon again. */
static void serve_again(struct nsv_session *se)
{
	for (uint32_t i = 0; i < se->ch.geom.n_slot; i++)
		end_cut_output(se, i);
	if (look_ahead(se) < 0) {
		nsv_session_drop(se, NSV_E_NOMEM, "out of memory");
		return;
	}
	nsv_channel_set_epoch(&se->ch, se->epoch);
	nsv_bell_send(se->fd);
	nsv_session_make_ready(se);
}

/* ---- Their requests */

static int compare_ids(const void *a, const void *b)
{
	const struct nsv_session *x = *(struct nsv_session *const *)a;
	const struct nsv_session *y = *(struct nsv_session *const *)b;

	return x->id < y->id ? -1 : x->id > y->id;
}

/* All adopted ones by id; the caller frees it. NULL: no memory. */
static struct nsv_session **sort_sessions(const struct adoption *a)
{
	struct nsv_session **list = calloc(nsv_max(a->n_session, 1), sizeof(struct nsv_session *));
	uint32_t n = 0;

	if (!list)
		return NULL;
	for (struct nsv_session *se = a->server->sessions; se; se = se->next)
		list[n++] = se;
	qsort(list, n, sizeof(struct nsv_session *), compare_ids);
	return list;
}

/* The slot that a kept sequence belongs to, if its session is here and wants it. */
static struct nsv_session_slot *find_slot(const struct adoption *a, struct nsv_session **sorted,
	const struct nsv_engine_kept *kept, struct nsv_session **ret_session)
{
	const struct nsv_session key = {.id = kept->session_id}, *p = &key;
	struct nsv_session **at =
		bsearch(&p, sorted, a->n_session, sizeof(struct nsv_session *), compare_ids);

	if (!at || kept->uid != (*at)->uid || kept->slot >= (*at)->ch.geom.n_slot)
		return NULL;
	*ret_session = *at;
	if (kept->state == NSV_SEQ_DONE &&
		nsv_load_acq_u64(&(*at)->ch.up.slots[kept->slot].ack_id) == kept->request_id)
		return NULL;
	return &(*at)->slots[kept->slot];
}

/* What is not to run again after these crashes; NULL: go on. */
static const char *why_quarantined(
	const struct nsv_engine_info *info, const struct nsv_engine_kept *kept)
{
	if (kept->state == NSV_SEQ_DONE)
		return NULL;
	if (info->suspect >= NSV_SUSPECT_REQUESTS)
		return "the daemon crashed again without progress, so all requests end";
	if (info->suspect == NSV_SUSPECT_BATCH && kept->in_step)
		return "it was running in two crashes of the daemon";
	return NULL;
}

/* code and why: it ends with these; NSV_E_OK: it goes on. */
static int adopt_request(struct adoption *a, struct nsv_session *se, uint32_t seq,
	const struct nsv_engine_kept *kept, enum nsv_code code, const char *why)
{
	struct nsv_engine *e = a->server->engine;
	struct nsv_session_slot *slot = &se->slots[kept->slot];
	struct nsv_job *job = calloc(1, sizeof(*job));

	if (!job)
		return -ENOMEM;
	nsv_user_keep_request(se->user);
	nsv_job_init_msgs(job);
	job->session = se;
	job->ch = &se->ch;
	job->id = kept->request_id;
	job->slot = kept->slot;
	job->uid = se->uid;
	job->gen.seq = seq;
	slot->job = job;
	nsv_session_set_phase(se, slot, NSV_PHASE_LIVE);
	a->server->n_request++;
	a->n_request++;
	if (code == NSV_E_OK)
		return nsv_engine_adopt(e, job);
	nsv_warning("request %llu of session %llu is ended: %s", (unsigned long long)job->id,
		(unsigned long long)se->id, why);
	return nsv_engine_adopt_end(e, job, code, code == NSV_E_CRASHED ? NULL : why);
}

/* May its user have a session still? 0, an nsv_code and a sentence, or -errno. */
static int check_user(const struct nsv_session *se, struct nsv_err *err)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(se->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		return nsv_fail(err, -errno, "its credentials cannot be read");
	return nsv_policy_check(&se->server->config->policy, se->fd, &peer, err);
}

/* Of several in one slot the last counts: the client used the slot again. */
static void find_last_of_slots(const struct adoption *a, struct nsv_session **sorted)
{
	const struct nsv_engine *e = a->server->engine;
	struct nsv_engine_kept kept;
	struct nsv_session *se;
	struct nsv_session_slot *slot;

	for (uint32_t i = 0; i < nsv_engine_get_seqs(e)->geom.n_seq; i++)
		if (nsv_engine_get_kept(e, i, &kept) && (slot = find_slot(a, sorted, &kept, &se)))
			slot->id = nsv_max_u64(slot->id, kept.request_id);
}

/* The requests of all sessions (only NULL), or of one, whose code and sentence they then end
 * with. */
static void adopt_requests(struct adoption *a, struct nsv_session **sorted,
	const struct nsv_session *only, enum nsv_code code, const char *text)
{
	struct nsv_engine *e = a->server->engine;
	struct nsv_engine_kept kept;
	struct nsv_session *se;
	struct nsv_session_slot *slot;

	for (uint32_t i = 0; i < nsv_engine_get_seqs(e)->geom.n_seq; i++) {
		if (!nsv_engine_get_kept(e, i, &kept) ||
			!(slot = find_slot(a, sorted, &kept, &se)) || (only && se != only) ||
			slot->id != kept.request_id || se->state != NSV_SESSION_OPEN)
			continue;
		const char *why = only ? text : why_quarantined(nsv_engine_get_info(e), &kept);
		enum nsv_code end = only ? code : why ? NSV_E_CRASHED : NSV_E_OK;
		if (adopt_request(a, se, i, &kept, end, why) < 0)
			nsv_session_drop(se, NSV_E_NOMEM, "its requests cannot be taken over");
	}
}

/* Who is not allowed any more is told so by its requests, and goes. */
static void drop_unwelcome(struct adoption *a, struct nsv_session **sorted)
{
	struct nsv_err err;

	for (uint32_t i = 0; i < a->n_session; i++) {
		struct nsv_session *se = sorted[i];
		int ret = check_user(se, &err);
		if (ret == 0)
			continue;
		adopt_requests(a, sorted, se, NSV_E_DENIED, err.text);
		nsv_bell_send(se->fd);
		nsv_session_drop(se, NSV_E_DENIED, err.text);
	}
}

static int adopt_all(struct adoption *a, struct nsv_passed *passed, struct nsv_err *err)
{
	int ret = nsv_vaults_adopt(&a->server->vaults, passed, found_session, a, err);
	struct nsv_session **sorted = ret == 0 ? sort_sessions(a) : NULL;

	if (!sorted)
		return ret < 0 ? ret : -ENOMEM;
	find_last_of_slots(a, sorted);
	drop_unwelcome(a, sorted);
	adopt_requests(a, sorted, NULL, NSV_E_OK, NULL);
	free(sorted);
	close_records(a);
	for (struct nsv_session *se = a->server->sessions; se; se = se->next)
		if (se->state == NSV_SESSION_OPEN)
			serve_again(se);
	return 0;
}

int nsv_server_adopt(struct nsv_server *s, struct nsv_passed *passed, struct nsv_err *err)
{
	struct adoption a = {.server = s, .start_ns = nsv_now_ns()};
	uint32_t n = nsv_engine_get_seqs(s->engine)->geom.n_session;

	if (!s->vaults.on)
		return 0;
	a.by_rec = calloc(n, sizeof(struct nsv_session *));
	int ret = a.by_rec ? adopt_all(&a, passed, err) : -ENOMEM;
	free(a.by_rec);
	if (ret == 0)
		ret = nsv_vaults_prepare(&s->vaults);
	if (ret == 0)
		nsv_server_tend_vaults(s);
	if (a.n_session + a.n_refused > 0)
		nsv_info("took over %u sessions with %u requests in %.1f ms; %u not", a.n_session,
			a.n_request, (double)(nsv_now_ns() - a.start_ns) / 1e6, a.n_refused);
	return ret;
}
