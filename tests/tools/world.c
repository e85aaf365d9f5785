/* See world.h. */
#include "tests/tools/world.h"

#include <string.h>

#include "daemon/sigbus.h"

static const struct nsv_geom geom = {.n_sqe = 16,
	.n_cqe = 64,
	.n_slot = NSV_WORLD_SLOTS,
	.arena_len = NSV_PAGE,
	.text_len = 2048,
	.n_token = 64,
	.n_lp = 128};

static void must(bool ok, const char *what, const struct nsv_err *err)
{
	if (ok)
		return;
	fprintf(stderr, "%s: %s\n", what, err ? err->text : "");
	abort();
}

/* ---- Life */

static void open_engine(struct nsv_world *w, const struct nsv_engine_config *config)
{
	struct nsv_err err = {""};

	must(nsv_sigbus_setup() == 0 && nsv_mailbox_init(&w->outbox, false) == 0, "world", NULL);
	must(nsv_engine_new(&w->engine, config, w->gguf, &w->outbox, &err) == 0, "engine", &err);
	must(nsv_engine_set_tok(w->engine, w->tok, &err) == 0, "tokenizer", &err);
}

void nsv_world_open(struct nsv_world *w, const struct nsv_engine_config *config,
	const struct nsv_gguf *g, const struct nsv_tok *tok, const struct nsv_world_ask *asks)
{
	struct nsv_err err;

	*w = (struct nsv_world){.gguf = g, .tok = tok, .asks = asks};
	open_engine(w, config);
	must(nsv_engine_resume(w->engine) == 0, "resume", NULL);
	nsv_channel_prepare(&w->ch, &geom);
	must(nsv_channel_allocate(&w->ch, &err) == 0, "regions", &err);
	must(nsv_channel_init(&w->ch, 1, -1) == 0, "channel", NULL);
}

static void take_messages(struct nsv_world *w)
{
	struct nsv_msg *msg = nsv_mailbox_take(&w->outbox);

	while (msg) {
		struct nsv_msg *next = msg->next;
		if (msg->kind == NSV_MSG_RELEASED)
			nsv_job_free(nsv_job_of(msg));
		msg = next;
	}
}

void nsv_world_close(struct nsv_world *w)
{
	take_messages(w);
	nsv_engine_free(w->engine);
	for (uint32_t i = 0; i < NSV_WORLD_MAX; i++)
		nsv_job_free(w->jobs[i]);
	nsv_channel_deinit(&w->ch);
	nsv_mailbox_deinit(&w->outbox);
}

/* ---- What clients do */

static struct nsv_job *new_job(struct nsv_world *w, uint32_t i)
{
	struct nsv_job *job = calloc(1, sizeof(*job));

	must(job != NULL, "memory", NULL);
	nsv_job_init_msgs(job);
	job->ch = &w->ch;
	job->id = i + 1;
	job->slot = w->asks[i].slot;
	job->uid = w->asks[i].uid;
	return job;
}

/* As they lie in the arena: the parameters, and a record for the stop string. */
static void put_params(struct nsv_job *job, const struct nsv_world_ask *ask)
{
	struct nsv_params p = ask->params;
	struct nsv_record rec = {.type = NSV_REC_STOP, .len = ask->stop ? strlen(ask->stop) : 0};
	size_t padded = 0;

	if (ask->stop)
		nsv_align_up(sizeof(rec) + rec.len, 8, &padded);
	p.len = (uint32_t)(sizeof(p) + padded);
	job->params_len = p.len;
	job->params_data = calloc(1, p.len);
	memcpy(job->params_data, &p, sizeof(p));
	if (ask->stop) {
		memcpy(job->params_data + sizeof(p), &rec, sizeof(rec));
		memcpy(job->params_data + sizeof(p) + sizeof(rec), ask->stop, rec.len);
	}
}

/* Its cursors are at the beginning, and its job is there. */
static struct nsv_job *begin(struct nsv_world *w, uint32_t i)
{
	struct nsv_job *job = new_job(w, i);

	job->branch = w->asks[i].branch;
	job->n_branch = 1;
	job->op = NSV_OP_SUBMIT;
	w->ch.up.slots[job->slot] = (struct nsv_up_slot){0};
	w->got[i] = (struct nsv_world_got){0};
	w->jobs[i] = job;
	return job;
}

static struct nsv_job *begin_prompt(struct nsv_world *w, uint32_t i)
{
	const struct nsv_world_ask *ask = &w->asks[i];
	struct nsv_job *job = begin(w, i);

	job->flags = NSV_SQE_IDS;
	job->input_len = ask->n_prompt * sizeof(ask->prompt[0]);
	job->input = malloc(job->input_len);
	memcpy(job->input, ask->prompt, job->input_len);
	put_params(job, ask);
	nsv_job_prepare(job, w->tok);
	must(job->code == NSV_E_OK, "request", &job->err);
	job->gen.seed = ask->params.seed;
	return job;
}

void nsv_world_submit(struct nsv_world *w, uint32_t i)
{
	const struct nsv_world_ask *ask = &w->asks[i];
	struct nsv_job *first, *last;

	if (ask->target) {
		first = begin(w, i);
		first->op = NSV_OP_FORK;
		first->target = w->jobs[ask->target - 1];
		first->target_id = first->target->id;
	} else {
		first = last = begin_prompt(w, i);
		for (uint32_t b = 1; b < ask->n_branch; b++) {
			struct nsv_job *job = begin(w, i + b);
			must(nsv_job_copy(job, first) == 0, "copy", NULL);
			last->next_branch = job;
			last = job;
		}
	}
	nsv_engine_post(w->engine, &first->submit.msg);
}

void nsv_world_cancel(struct nsv_world *w, uint32_t i)
{
	nsv_engine_post(w->engine, &w->jobs[i]->cancel.msg);
}

void nsv_world_release(struct nsv_world *w, uint32_t i)
{
	nsv_engine_post(w->engine, &w->jobs[i]->release.msg);
	w->jobs[i] = NULL;
	w->released[i] = true;
}

bool nsv_world_let_go(struct nsv_world *w)
{
	bool any = false;

	for (uint32_t i = 0; i < NSV_WORLD_MAX; i++) {
		if (w->jobs[i] && w->got[i].done)
			nsv_world_release(w, i);
		any |= w->jobs[i] != NULL;
	}
	return any;
}

static void read_text(
	const struct nsv_world *w, uint32_t slot, struct nsv_world_got *got, uint64_t end)
{
	uint64_t n = end - got->n_text;

	must(end >= got->n_text && n <= geom.text_len && end <= sizeof(got->text), "text", NULL);
	nsv_log_get(nsv_down_text(&w->ch.down, &geom, slot), geom.text_len, 1, got->n_text,
		got->text + got->n_text, (uint32_t)n);
	got->n_text = end;
}

static void read_tokens(
	const struct nsv_world *w, uint32_t slot, struct nsv_world_got *got, uint64_t end)
{
	uint64_t n = end - got->n_token;

	must(end >= got->n_token && n <= geom.n_token && end <= NSV_WORLD_TOKENS, "tokens", NULL);
	nsv_log_get(nsv_down_tokens(&w->ch.down, &geom, slot), geom.n_token, sizeof(int32_t),
		got->n_token, got->tokens + got->n_token, (uint32_t)n);
	got->n_token = end;
}

static void read_lps(
	const struct nsv_world *w, uint32_t slot, struct nsv_world_got *got, uint64_t end)
{
	uint64_t n = end - got->n_lp;

	must(end >= got->n_lp && n <= geom.n_lp && end <= NSV_ARRAY_LEN(got->lps), "lps", NULL);
	nsv_log_get(nsv_down_lps(&w->ch.down, &geom, slot), geom.n_lp, sizeof(struct nsv_lp),
		got->n_lp, got->lps + got->n_lp, (uint32_t)n);
	got->n_lp = end;
}

static void read_slot(struct nsv_world *w, uint32_t i)
{
	struct nsv_world_got *got = &w->got[i];
	uint32_t slot = w->asks[i].slot;
	const struct nsv_down_slot *rec = &w->ch.down.slots[slot];
	struct nsv_up_slot *cursors = &w->ch.up.slots[slot];

	if (got->done || nsv_load_acq_u64(&rec->request_id) != i + 1)
		return;
	bool done = nsv_load_acq_u32(&rec->state) == NSV_SLOT_DONE;
	read_text(w, slot, got, nsv_load_acq_u64(&rec->text_end));
	read_tokens(w, slot, got, nsv_load_acq_u64(&rec->token_end));
	read_lps(w, slot, got, nsv_load_acq_u64(&rec->lp_end));
	nsv_store_rel_u64(&cursors->text_read, got->n_text);
	nsv_store_rel_u64(&cursors->token_read, got->n_token);
	nsv_store_rel_u64(&cursors->lp_read, got->n_lp);
	if (done) {
		got->finish = rec->finish;
		got->code = rec->code;
		got->done = true;
	}
}

bool nsv_world_turn(struct nsv_world *w)
{
	struct nsv_err err = {""};
	int ret = nsv_engine_turn(w->engine, &err);

	must(ret >= 0, "turn", &err);
	take_messages(w);
	for (uint32_t i = 0; i < NSV_WORLD_MAX; i++)
		if (w->jobs[i] && !w->deaf[i])
			read_slot(w, i);
	return ret == 0;
}

/* ---- After a crash */

static int copy_region(const struct nsv_region *from)
{
	struct nsv_region copy;
	struct nsv_err err;

	must(nsv_region_create(&copy, "nsv-copy", from->len, 0, &err) == 0, "copy", &err);
	memcpy(copy.map, from->map, from->len);
	int fd = dup(copy.fd);
	nsv_region_deinit(&copy);
	return fd;
}

static void reopen_channel(struct nsv_world *w, const struct nsv_world *old)
{
	struct nsv_err err;

	must(nsv_channel_adopt(&w->ch, &geom, 1, -1, copy_region(&old->ch.up_region),
		     copy_region(&old->ch.down_region), 0, &err) == 0,
		"channel", &err);
}

static void adopt(struct nsv_world *w, uint32_t seq, const struct nsv_engine_kept *kept)
{
	uint32_t i = (uint32_t)kept->request_id - 1;
	struct nsv_job *job = new_job(w, i);

	must(!w->jobs[i] && kept->slot == job->slot && kept->uid == job->uid, "record", NULL);
	job->gen.seq = seq;
	must(nsv_engine_adopt(w->engine, job) >= 0, "adopt", NULL);
	w->jobs[i] = job;
}

void nsv_world_reopen(struct nsv_world *w, const struct nsv_world *old,
	const struct nsv_engine_config *config, bool without_kv)
{
	struct nsv_engine_keep keep = {
		.kv_fd = without_kv ? -1 : copy_region(&old->engine->kv_region),
		.seqs_fd = copy_region(&old->engine->seqs_region),
		.weights_fd = dup(nsv_engine_get_keep(old->engine).weights_fd)};
	struct nsv_engine_config c = *config;
	struct nsv_engine_kept kept;

	*w = (struct nsv_world){.gguf = old->gguf, .tok = old->tok, .asks = old->asks};
	memcpy(w->got, old->got, sizeof(w->got));
	c.keep = &keep;
	open_engine(w, &c);
	reopen_channel(w, old);
	for (uint32_t seq = 0; seq < config->max_requests; seq++)
		if (nsv_engine_get_kept(w->engine, seq, &kept))
			adopt(w, seq, &kept);
}

bool nsv_world_has(const struct nsv_world *w, uint32_t i)
{
	const struct nsv_seqs *s = &w->engine->seqs;

	for (uint32_t seq = 0; seq < s->geom.n_seq; seq++)
		if (nsv_seqs_get(s, seq).state != NSV_SEQ_FREE &&
			nsv_seqs_ident(s, seq)->request_id == i + 1)
			return true;
	return false;
}
