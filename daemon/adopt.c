/* Requests of the daemon before, put back: text and logs from their tokens, then the scheduler from
 * their records. All of it before the engine's thread runs.
 *
 *     nsv_engine_adopt, or _adopt_end (a request: its logs and slot), for each of them
 *     -> nsv_engine_resume (the scheduler, all at once, in the order they came)
 *
 * Nothing here is undone by a crash in the middle: `seqs` changes only by commits that are as true
 * as what they replace. */
#include <string.h>

#include "daemon/engine_state.h"
#include "daemon/log.h"
#include "shm/clock.h"

/* ---- The text so far */

struct text {
	char *p;
	size_t len, cap;
};

static int append(struct text *t, const char *p, size_t len)
{
	if (len > t->cap - t->len) {
		size_t cap = nsv_max(2 * t->cap, t->len + len);
		char *bigger = realloc(t->p, cap);
		if (!bigger)
			return -ENOMEM;
		t->p = bigger;
		t->cap = cap;
	}
	if (len > 0)
		memcpy(t->p + t->len, p, len);
	t->len += len;
	return 0;
}

/* Reads all of the output again. The last token's verdict: it may have ended the request without
 * anybody having been told. -EUCLEAN: an earlier one has. */
static int read_output(struct nsv_engine *e, struct nsv_job *job, struct text *t,
	enum nsv_finish *ret_finish, const char **ret_stop)
{
	const int32_t *tokens = nsv_seqs_tokens(&e->seqs, job->gen.seq) + job->gen.n_prompt;
	uint32_t n = job->gen.n_output;
	size_t len;

	*ret_finish = NSV_FINISH_NONE;
	*ret_stop = NULL;
	for (uint32_t i = 0; i < n; i++) {
		if (*ret_finish == NSV_FINISH_STOP) {
			nsv_error("request %llu cannot go on: its output goes on after its end",
				(unsigned long long)job->id);
			return -EUCLEAN;
		}
		job->gen.n_output = i + 1;
		*ret_finish = nsv_engine_read_token(e, job, tokens[i], &len, ret_stop);
		int ret = append(t, e->text, len);
		if (ret < 0)
			return ret;
		if (i + 1 == job->gen.n_forked) { /* what came so far is in another one's log */
			job->gen.fork_text = t->len;
			t->len = 0;
		}
	}
	return 0;
}

/* ---- Logs */

/* Of n elements those that the log still holds. */
static uint32_t in_window(uint64_t n, uint32_t log_len)
{
	return (uint32_t)nsv_min_u64(n, log_len);
}

static void write_tokens(struct nsv_engine *e, struct nsv_job *job)
{
	const int32_t *output = nsv_seqs_tokens(&e->seqs, job->gen.seq) + job->gen.n_prompt;
	uint32_t n = job->gen.n_output - job->gen.n_forked;
	uint32_t last = in_window(n, job->ch->geom.n_token);

	job->sink.token_end = n - last;
	nsv_sink_tokens(&job->sink, output + job->gen.n_output - last, last);
}

static void write_text(struct nsv_job *job, const struct text *t)
{
	uint32_t last = in_window(t->len, job->ch->geom.text_len);

	job->sink.text_end = t->len - last;
	if (last > 0)
		nsv_sink_text(&job->sink, t->p + t->len - last, last);
}

/* Does the slot show this request already? Then its logs are known to the client, and its ends are
 * not taken back. */
static bool is_shown(const struct nsv_job *job)
{
	return nsv_load_acq_u64(&job->ch->down.slots[job->slot].request_id) == job->id;
}

static void open_sink(struct nsv_job *job)
{
	if (is_shown(job))
		nsv_sink_resume(&job->sink, job->ch, job->slot);
	else
		nsv_sink_begin(&job->sink, job->ch, job->slot, job->id,
			&(struct nsv_origin){.n_prompt = job->gen.n_prompt,
				.fork_text = job->gen.fork_text,
				.fork_token = job->gen.n_forked});
}

/* ---- Log-probabilities: the only part of the output that `seqs` has not got. A token is
 * committed, then its group is written, then both are told, the group first. So what was told of
 * is whole, and a token without a told group was not told of either: it is sampled again. */

static uint32_t group_len(const struct nsv_job *job)
{
	const struct nsv_params *p = &job->wish.params;
	bool any = p->flags & (NSV_PARAM_LOGPROBS | NSV_PARAM_PROMPT_LOGPROBS);

	return any ? 1 + p->n_logprob : 0;
}

/* Those of the prompt come first, and all of them before the first token is sampled. What was
 * written before an end is whole. */
static void rewind_to_groups(struct nsv_job *job, const struct nsv_seq_commit *c)
{
	uint32_t len = group_len(job), n_prompt = nsv_engine_n_prompt_lp(job);
	uint64_t told = is_shown(job) && len > 0 ? job->ch->down.slots[job->slot].lp_end / len : 0;

	job->gen.n_told_lp = (uint32_t)nsv_min_u64(told, n_prompt);
	if (c->state == NSV_SEQ_DONE && job->gen.n_output > job->gen.n_forked)
		job->gen.n_told_lp = n_prompt;
	else if (job->gen.n_told_lp < n_prompt)
		job->gen.n_output = job->gen.n_forked;
	else if (c->state != NSV_SEQ_DONE && (job->wish.params.flags & NSV_PARAM_LOGPROBS))
		job->gen.n_output = (uint32_t)nsv_min_u64(
			job->gen.n_output, job->gen.n_forked + told - n_prompt);
}

static uint64_t groups_end(const struct nsv_job *job)
{
	uint64_t n = job->gen.n_told_lp;

	if (job->wish.params.flags & NSV_PARAM_LOGPROBS)
		n += job->gen.n_output - job->gen.n_forked;
	return n * group_len(job);
}

/* ---- Putting back */

static void restore_identity(struct nsv_engine *e, struct nsv_job *job)
{
	const struct nsv_seq_ident *id = nsv_seqs_ident(&e->seqs, job->gen.seq);

	job->op = NSV_OP_SUBMIT;
	job->start_ns = nsv_now_ns();
	job->gen.seed = id->seed;
	job->gen.detok = (struct nsv_detok){0};
	job->branch = id->branch;
	job->n_branch = 1;
	job->gen.n_prompt = id->n_prompt;
	job->gen.n_forked = id->n_forked;
	job->gen.n_output = e->kept[job->gen.seq].commit.n_token - id->n_prompt;
}

/* What it asked for, from the record. */
static bool restore_wish(struct nsv_engine *e, struct nsv_job *job)
{
	uint32_t seq = job->gen.seq;
	int code = nsv_wish_parse(nsv_seqs_params(&e->seqs, seq),
		nsv_seqs_ident(&e->seqs, seq)->params_len, (int32_t)e->info.desc->n_vocab,
		&job->wish, &job->err);

	if (code != NSV_E_OK) {
		nsv_error("request %llu of session %llu cannot go on: its parameters are wrong: %s",
			(unsigned long long)job->id,
			(unsigned long long)e->kept[seq].said.session_id, job->err.text);
		return false;
	}
	job->gen.max_token = nsv_engine_most_tokens(e, job);
	return true;
}

static struct nsv_seq_commit make_end(const struct nsv_engine *e, const struct nsv_job *job,
	enum nsv_finish finish, enum nsv_code code)
{
	const struct nsv_seq_commit *c = &e->kept[job->gen.seq].commit;

	return (struct nsv_seq_commit){.state = NSV_SEQ_DONE,
		.n_token = job->gen.n_prompt + job->gen.n_output,
		.finish = finish,
		.code = code,
		.n_cached = c->n_cached,
		.n_preempt = c->n_preempt};
}

/* Nothing of its record is used. Its output is what the client has read: whatever its cursors say,
 * nothing more will come. */
static void end_wrong(struct nsv_engine *e, struct nsv_job *job)
{
	struct nsv_seq_commit end = {
		.state = NSV_SEQ_DONE, .finish = NSV_FINISH_ERROR, .code = NSV_E_CRASHED};

	job->gen.n_prompt = job->gen.n_forked = 0;
	open_sink(job);
	if (is_shown(job)) {
		job->sink.text_end = nsv_load_acq_u64(&job->sink.cursors->text_read);
		job->sink.token_end = nsv_load_acq_u64(&job->sink.cursors->token_read);
		job->sink.lp_end = nsv_load_acq_u64(&job->sink.cursors->lp_read);
	}
	job->gen.n_output = (uint32_t)job->sink.token_end;
	nsv_engine_end(e, job, &end, nsv_engine_sentence(NSV_E_CRASHED));
}

/* The end is committed, perhaps again, and shown, with the code's own sentence unless another is
 * given. */
static int end_now(struct nsv_engine *e, struct nsv_job *job, struct text *t,
	const struct nsv_seq_commit *end, const char *stop, const char *why)
{
	bool stopped = end->finish == NSV_FINISH_STOP && stop;
	bool whole = end->finish == NSV_FINISH_STOP || end->finish == NSV_FINISH_LENGTH;

	if (whole && !stopped) {
		size_t len = nsv_engine_flush_text(e, job);
		int ret = append(t, e->text, len);
		if (ret < 0)
			return ret;
	}
	write_text(job, t);
	nsv_engine_end(e, job, end,
		stopped ? stop
		: why	? why
			: nsv_engine_sentence(end->code));
	return 1;
}

static int go_on(struct nsv_job *job, const struct text *t)
{
	write_text(job, t);
	nsv_sink_state(&job->sink, NSV_SLOT_QUEUED);
	nsv_sink_stalled(&job->sink, false);
	nsv_engine_tell(job, NSV_CQE_ACCEPTED);
	return 0;
}

static bool fits_pool(const struct nsv_engine *e, const struct nsv_job *job)
{
	return job->gen.n_prompt + job->gen.n_output - 1 <=
	       (uint64_t)e->info.n_block * e->info.block_size;
}

/* Why one that would go on does not; NSV_E_OK: it does. */
struct forced {
	enum nsv_code code;
	const char *text; /* NULL: the code's own */
};

/* Its logs are written, and it goes on or ends. */
static int show(struct nsv_engine *e, struct nsv_job *job, struct forced forced, struct text *t)
{
	const struct nsv_seq_commit *c = &e->kept[job->gen.seq].commit;
	enum nsv_finish finish;
	const char *stop;
	int ret;

	rewind_to_groups(job, c);
	ret = read_output(e, job, t, &finish, &stop);
	if (ret < 0)
		return ret;
	open_sink(job);
	job->sink.lp_end = groups_end(job);
	write_tokens(e, job);
	if (c->state == NSV_SEQ_DONE)
		return end_now(e, job, t, c, stop, NULL);
	if (forced.code == NSV_E_OK && finish == NSV_FINISH_NONE && !fits_pool(e, job))
		forced.code = NSV_E_NOMEM;
	if (forced.code != NSV_E_OK)
		finish = NSV_FINISH_ERROR;
	if (finish == NSV_FINISH_NONE)
		return go_on(job, t);
	struct nsv_seq_commit end = make_end(e, job, finish, forced.code);
	return end_now(e, job, t, &end, stop, forced.text);
}

static int put_back(struct nsv_engine *e, struct nsv_job *job, struct forced forced)
{
	struct nsv_kept *k = &e->kept[job->gen.seq];
	struct text t = {0};
	int ret = -EUCLEAN;

	restore_identity(e, job);
	if (!k->wrong && restore_wish(e, job))
		ret = show(e, job, forced, &t);
	free(t.p);
	if (ret == -ENOMEM)
		return ret;
	if (ret == -EUCLEAN) {
		end_wrong(e, job);
		ret = 1;
	}
	e->jobs[job->gen.seq] = job;
	nsv_stat_add(&e->stats.n_accepted, 1);
	return ret;
}

int nsv_engine_adopt(struct nsv_engine *e, struct nsv_job *job)
{
	return put_back(e, job, (struct forced){NSV_E_OK, NULL});
}

int nsv_engine_adopt_end(
	struct nsv_engine *e, struct nsv_job *job, enum nsv_code code, const char *text)
{
	return put_back(e, job, (struct forced){code, text});
}

/* ---- The scheduler */

struct turn {
	uint64_t arrival;
	uint32_t seq, n_token, n_past;
};

static int by_arrival(const void *pa, const void *pb)
{
	const struct turn *a = pa, *b = pb;

	if (a->arrival != b->arrival)
		return a->arrival < b->arrival ? -1 : 1;
	return (a->seq > b->seq) - (a->seq < b->seq);
}

/* Those that go on, in the order they came. */
static uint32_t find_turns(const struct nsv_engine *e, struct turn *turns)
{
	uint32_t n = 0;

	for (uint32_t seq = 0; seq < e->max_requests; seq++) {
		const struct nsv_job *job = e->jobs[seq];
		const struct nsv_kept *k = &e->kept[seq];
		if (!job || job->gen.done)
			continue;
		uint32_t n_token = job->gen.n_prompt + job->gen.n_output, known = n_token - 1;
		if (job->gen.n_told_lp < nsv_engine_n_prompt_lp(job))
			known = job->gen.n_told_lp; /* the next row's logits are wanted */
		turns[n++] = (struct turn){.arrival = k->arrival,
			.seq = seq,
			.n_token = n_token,
			.n_past = k->computed ? (uint32_t)nsv_min(k->commit.n_past, known) : 0};
	}
	qsort(turns, n, sizeof(*turns), by_arrival);
	return n;
}

static int hold_blocks(struct nsv_engine *e, const struct turn *turns, uint32_t n)
{
	nsv_autofree uint32_t *n_ref = calloc(e->info.n_block, sizeof(*n_ref));

	if (!n_ref)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		const int32_t *blocks = nsv_seqs_blocks(&e->seqs, turns[i].seq);
		for (uint32_t b = 0; b < nsv_blocks_for(turns[i].n_past, e->info.block_size); b++)
			n_ref[blocks[b]]++;
	}
	nsv_block_hold(&e->alloc, n_ref);
	return 0;
}

static void schedule(struct nsv_engine *e, const struct turn *t)
{
	struct nsv_job *job = e->jobs[t->seq];

	/* Numbers grow strictly, whatever the records say. */
	e->arrivals = nsv_max_u64(e->arrivals + 1, t->arrival);
	nsv_engine_schedule(e, job, t->n_token, e->arrivals, NSV_SCHED_NO_LEADER);
	if (t->n_past > 0 && nsv_sched_resume(&e->sched, t->seq,
				     nsv_blocks_for(t->n_past, e->info.block_size), t->n_past) < 0)
		nsv_stat_add(&e->stats.n_audit_bad, 1);
	e->sched.seqs[t->seq].n_cached = e->kept[t->seq].commit.n_cached;
	e->sched.seqs[t->seq].n_preempt = e->kept[t->seq].commit.n_preempt;
	nsv_engine_commit(e, job);
}

static void free_others(struct nsv_engine *e)
{
	e->n_free_seqs = 0;
	for (uint32_t i = e->max_requests; i-- > 0;) {
		if (e->jobs[i])
			continue;
		if (e->kept[i].commit.state != NSV_SEQ_FREE)
			nsv_seqs_commit(
				&e->seqs, i, &(struct nsv_seq_commit){.state = NSV_SEQ_FREE});
		e->free_seqs[e->n_free_seqs++] = i;
	}
}

int nsv_engine_resume(struct nsv_engine *e)
{
	if (!e->kept)
		return 0;
	nsv_autofree struct turn *turns = calloc(e->max_requests, sizeof(*turns));
	uint32_t n = turns ? find_turns(e, turns) : 0;
	if (!turns || hold_blocks(e, turns, n) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		schedule(e, &turns[i]);
	free_others(e);
	free(e->kept);
	e->kept = NULL;
	return 0;
}
