/* The engine's life: sizes, memory, the thread and its messages. */
#include "daemon/engine.h"

#include <math.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>

#include "daemon/clock.h"
#include "daemon/engine_state.h"
#include "daemon/log.h"
#include "daemon/notify.h"

#define BLOCK_SIZE 16
#define MAX_SESSIONS 4096  /* records of the session table */
#define MAX_PIECE_LEN 4096 /* bytes of a token; a vocabulary with a longer one is refused */

/* ---- Sizes */

static uint32_t cpu_count(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n > 0 ? (uint32_t)n : 1;
}

static size_t available_memory(void)
{
	char line[128];
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return (size_t)kib << 10;
}

static struct nsv_kv_geom kv_geom(const struct nsv_model_desc *d, const struct nsv_backend *backend)
{
	return (struct nsv_kv_geom){.n_layer = d->n_layer,
		.n_kv_head = d->n_kv_head,
		.head_dim = d->head_dim,
		.block_size = BLOCK_SIZE,
		.elem_len = sizeof(float),
		.dtype = NSV_F32,
		.k_dim_major = backend->k_dim_major};
}

/* Two full contexts, unless a quarter of what is free is less. */
static int choose_blocks(
	struct nsv_kv_geom *geom, uint32_t wanted, uint32_t n_ctx, struct nsv_err *err)
{
	size_t free_len = available_memory();
	uint32_t most;
	int ret = nsv_kv_blocks_in(geom, wanted ? free_len : free_len / 4, &most);

	if (ret < 0)
		return nsv_fail(err, ret, "the KV pool's geometry is impossible");
	geom->n_block =
		wanted ? wanted
		       : (uint32_t)nsv_min(most, nsv_blocks_for(2 * (uint64_t)n_ctx, BLOCK_SIZE));
	if (geom->n_block > most || geom->n_block == 0)
		return nsv_fail(err, -ENOMEM,
			"%u KV blocks are wanted, memory for %u is free (see --kv-blocks)",
			geom->n_block, most);
	return 0;
}

static int longest_piece(const struct nsv_tok *tok, uint32_t *ret_len, struct nsv_err *err)
{
	size_t longest = 0, len;
	const char *p;

	for (int32_t id = 0; id < nsv_tok_n_vocab(tok); id++)
		if (nsv_tok_piece(tok, id, true, &p, &len) == 0)
			longest = nsv_max(longest, len);
	if (longest > MAX_PIECE_LEN)
		return nsv_fail(err, -EINVAL,
			"a token of the vocabulary has %zu bytes, %d are allowed", longest,
			MAX_PIECE_LEN);
	*ret_len = (uint32_t)longest;
	return 0;
}

/* ---- Building */

static void set_kv(
	struct nsv_engine *e, const struct nsv_kv_geom *g, const struct nsv_kv_size *size)
{
	const struct nsv_model_desc *d = e->info.desc;
	int64_t head = (int64_t)d->head_dim * BLOCK_SIZE;
	int64_t block = (int64_t)(size->block / g->elem_len);
	size_t k0 = nsv_kv_plane_off(g, 0, false);

	e->kv = (struct nsv_model_kv){
		.base = (char *)e->kv_region.map + k0,
		.layer_stride = nsv_kv_plane_off(g, 1, false) - k0,
		.v_off = nsv_kv_plane_off(g, 0, true) - k0,
		.shape = {.n_head = d->n_head,
			.n_kv_head = d->n_kv_head,
			.head_dim = d->head_dim,
			.block_size = BLOCK_SIZE,
			.n_block = g->n_block,
			.kv_dtype = g->dtype,
			.scale = 1.0f / sqrtf((float)d->head_dim),
			.k = g->k_dim_major
				     ? (struct nsv_kv_layout){block, 1, head, BLOCK_SIZE}
				     : (struct nsv_kv_layout){block, d->head_dim, head, 1},
			.v = {block, d->head_dim, head, 1}},
	};
}

static int make_kv(struct nsv_engine *e, uint32_t wanted, struct nsv_err *err)
{
	struct nsv_kv_geom geom = kv_geom(e->info.desc, e->info.backend);
	struct nsv_kv_size size;
	int ret = choose_blocks(&geom, wanted, e->info.desc->n_ctx, err);

	if (ret == 0 && nsv_kv_sizes(&geom, &size) < 0)
		ret = nsv_fail(err, -EINVAL, "a KV pool of %u blocks is impossible", geom.n_block);
	if (ret == 0)
		ret = nsv_region_create(&e->kv_region, "nsv-kv", size.region, NSV_REGION_HUGE, err);
	if (ret < 0)
		return ret;
	nsv_kv_head_write(
		e->kv_region.map, &geom, nsv_model_id(e->model), e->info.backend->numerics);
	set_kv(e, &geom, &size);
	e->info.block_size = BLOCK_SIZE;
	e->info.n_block = geom.n_block;
	e->info.kv_len = size.region;
	int status = nsv_attn_check_shape(&e->kv.shape);
	if (status != NSV_ATTN_OK)
		return nsv_fail(err, -EINVAL, "attention over this model: %s",
			nsv_attn_status_name(status));
	return nsv_block_alloc_init(&e->alloc, geom.n_block);
}

/* The secret is new with each daemon: whoever reads one from memory knows nothing of the next. */
static int make_tree(struct nsv_engine *e, struct nsv_err *err)
{
	struct nsv_prefix_key secret;

	if (getrandom(&secret, sizeof(secret), 0) != sizeof(secret))
		return nsv_fail(err, -EIO, "no random numbers for the prefix cache's secret");
	return nsv_prefix_tree_init(
		&e->tree, &e->alloc, BLOCK_SIZE, nsv_model_id(e->model), &secret);
}

static int make_seqs(struct nsv_engine *e, struct nsv_err *err)
{
	uint32_t n_ctx = e->info.desc->n_ctx;
	struct nsv_seqs_geom geom = {.n_session = MAX_SESSIONS,
		.n_seq = e->max_requests,
		.n_token = n_ctx,
		.n_block = nsv_blocks_for(n_ctx, BLOCK_SIZE)};
	int ret = nsv_seqs_len(&geom, &e->info.seqs_len);

	if (ret == 0)
		ret = nsv_region_create(&e->seqs_region, "nsv-seqs", e->info.seqs_len, 0, err);
	if (ret == 0)
		ret = nsv_seqs_format(&e->seqs, e->seqs_region.map, &geom, nsv_model_id(e->model));
	return ret;
}

static void free_step(struct nsv_engine_step *st)
{
	nsv_step_plan_deinit(&st->plan);
	free(st->tokens);
	free(st->pos);
	free(st->slots);
	free(st->seqs);
	free(st->places);
	free(st->out_rows);
	free(st->out_seqs);
	free(st->n_lps);
	free(st->ins);
	free(st->results);
}

static int make_step(struct nsv_engine_step *st, uint32_t batch_tokens, uint32_t n)
{
	st->tokens = calloc(batch_tokens, sizeof(*st->tokens));
	st->pos = calloc(batch_tokens, sizeof(*st->pos));
	st->slots = calloc(batch_tokens, sizeof(*st->slots));
	st->seqs = calloc(n, sizeof(*st->seqs));
	st->places = calloc(n, sizeof(*st->places));
	st->out_rows = calloc(n, sizeof(*st->out_rows));
	st->out_seqs = calloc(n, sizeof(*st->out_seqs));
	st->n_lps = calloc(n, sizeof(*st->n_lps));
	st->ins = calloc(n, sizeof(*st->ins));
	st->results = calloc(n, sizeof(*st->results));
	if (!st->tokens || !st->pos || !st->slots || !st->seqs || !st->places || !st->out_rows ||
		!st->out_seqs || !st->n_lps || !st->ins || !st->results)
		return -ENOMEM;
	return nsv_step_plan_init(&st->plan, n);
}

static int make_space(struct nsv_engine *e, uint32_t batch_tokens)
{
	uint32_t n = e->max_requests;
	int ret = 0;

	for (uint32_t i = 0; ret == 0 && i < e->info.run_ahead; i++)
		ret = make_step(&e->steps[i], batch_tokens, n);
	e->text = calloc(2, e->info.text_need);
	e->jobs = calloc(n, sizeof(struct nsv_job *));
	e->free_seqs = calloc(n, sizeof(uint32_t));
	if (ret < 0 || !e->text || !e->jobs || !e->free_seqs)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		e->free_seqs[i] = n - 1 - i;
	e->n_free_seqs = n;
	return 0;
}

/* The sampler knows the vocabulary's end tokens, which min_tokens holds back. */
static int make_sampler(struct nsv_engine *e)
{
	int ret = nsv_sampler_init(&e->sampler, e->info.desc->n_vocab);

	for (int32_t id = 0; ret == 0 && id < nsv_tok_n_vocab(e->tok); id++)
		if (nsv_tok_is_end(e->tok, id))
			ret = nsv_sampler_add_end(&e->sampler, id);
	return ret;
}

static int build(struct nsv_engine *e, const struct nsv_engine_config *c, const struct nsv_gguf *g,
	struct nsv_err *err)
{
	uint32_t longest = 0;
	int ret = nsv_backend_choose(c->backend, &e->info.backend, err);

	if (ret == 0)
		ret = longest_piece(e->tok, &longest, err);
	if (ret < 0)
		return ret;
	e->info.text_need = 3 * (longest + 4) + NSV_MAX_STOP_LEN + 16;
	e->info.threads = c->threads ? c->threads : cpu_count();
	e->max_requests = c->max_requests;
	e->share_prefixes = c->share_prefixes;
	e->info.run_ahead = c->run_ahead ? (uint32_t)nsv_min(c->run_ahead, NSV_MAX_AHEAD) : 1;
	e->dispatch.backend = e->info.backend;
	ret = nsv_team_new(e->info.threads, &e->team);
	if (ret < 0)
		return nsv_fail(err, ret, "%u threads: %s", e->info.threads, strerror(-ret));
	ret = nsv_model_new(
		g, e->info.backend, e->team, c->batch_tokens, c->max_requests, &e->model, err);
	if (ret < 0)
		return ret;
	e->info.desc = nsv_model_get_desc(e->model);
	nsv_model_weights(e->model, &e->info.weights_len, &e->info.weights_ns);
	if (e->info.desc->n_vocab != (uint32_t)nsv_tok_n_vocab(e->tok))
		return nsv_fail(err, -EINVAL, "the model has %u tokens, its tokenizer %d",
			e->info.desc->n_vocab, nsv_tok_n_vocab(e->tok));
	ret = make_kv(e, c->kv_blocks, err);
	if (ret == 0)
		ret = make_seqs(e, err);
	if (ret == 0 && !c->no_prefix_cache)
		ret = make_tree(e, err);
	if (ret == 0)
		ret = nsv_sched_init(&e->sched, &e->alloc, c->no_prefix_cache ? NULL : &e->tree,
			e->max_requests, BLOCK_SIZE, c->batch_tokens);
	if (ret == 0)
		ret = make_sampler(e);
	if (ret == 0)
		ret = make_space(e, c->batch_tokens);
	if (ret == 0)
		ret = nsv_exec_cpu_new(e->model, &e->dispatch, &e->kv, &e->sampler, e->max_requests,
			c->batch_tokens, e->info.run_ahead, &e->exec);
	return ret;
}

int nsv_engine_new(struct nsv_engine **ret_engine, const struct nsv_engine_config *config,
	const struct nsv_gguf *g, const struct nsv_tok *tok, struct nsv_mailbox *outbox,
	struct nsv_err *err)
{
	struct nsv_engine *e = calloc(1, sizeof(*e));
	int ret;

	if (!e)
		return -ENOMEM;
	e->kv_region = e->seqs_region = NSV_REGION_NONE;
	e->tok = tok;
	e->outbox = outbox;
	e->stop_msg.kind = NSV_MSG_STOP;
	e->failed_msg.kind = NSV_MSG_FAILED;
	e->nudge_msg.kind = NSV_MSG_NUDGE;
	nsv_fail(err, 0, "out of memory"); /* whatever fails without a sentence of its own */
	ret = nsv_mailbox_init(&e->inbox, false);
	if (ret == 0)
		ret = build(e, config, g, err);
	if (ret < 0) {
		nsv_engine_free(e);
		return ret;
	}
	nsv_stat_set(&e->stats.blocks_free, e->alloc.n_free);
	*ret_engine = e;
	return 0;
}

void nsv_engine_free(struct nsv_engine *e)
{
	if (!e)
		return;
	if (e->exec)
		e->exec->free(e->exec);
	for (uint32_t i = 0; i < NSV_MAX_AHEAD; i++)
		free_step(&e->steps[i]);
	free(e->text);
	free(e->jobs);
	free(e->free_seqs);
	nsv_sampler_deinit(&e->sampler);
	nsv_sched_deinit(&e->sched);
	nsv_prefix_tree_deinit(&e->tree);
	nsv_block_alloc_deinit(&e->alloc);
	nsv_region_deinit(&e->seqs_region);
	nsv_region_deinit(&e->kv_region);
	nsv_model_free(e->model);
	nsv_team_free(e->team);
	nsv_mailbox_deinit(&e->inbox);
	free(e);
}

/* ---- The thread */

static void close_session(struct nsv_engine *e, struct nsv_session_close *close)
{
	close->n_left = 1;
	for (uint32_t i = 0; i < e->max_requests; i++) {
		struct nsv_job *job = e->jobs[i];
		if (job && job->ch == close->ch && !job->gen.released) {
			close->n_left++;
			nsv_engine_release(e, job, close);
		}
	}
	nsv_engine_left(e, close);
}

static void cancel(struct nsv_engine *e, struct nsv_job *job)
{
	if (!job->gen.done)
		nsv_engine_finish(e, job, NSV_FINISH_CANCEL, NSV_E_OK, NULL);
}

static void handle(struct nsv_engine *e, struct nsv_msg *msg)
{
	switch (msg->kind) {
	case NSV_MSG_SUBMIT:
		nsv_engine_accept(e, nsv_job_of(msg));
		break;
	case NSV_MSG_CANCEL:
		cancel(e, nsv_job_of(msg));
		break;
	case NSV_MSG_RELEASE:
		nsv_engine_release(e, nsv_job_of(msg), NULL);
		break;
	case NSV_MSG_CLOSE:
		close_session(e, NSV_CONTAINER_OF(msg, struct nsv_session_close, msg));
		break;
	case NSV_MSG_NUDGE:
		__atomic_store_n(&e->nudged, 0, __ATOMIC_RELEASE);
		break;
	case NSV_MSG_STOP:
		e->stopping = true;
		break;
	}
}

static void handle_all(struct nsv_engine *e)
{
	struct nsv_msg *msg = nsv_mailbox_take(&e->inbox);

	while (msg) {
		struct nsv_msg *next = msg->next;
		handle(e, msg);
		msg = next;
	}
}

static void audit(struct nsv_engine *e, bool loud)
{
	struct nsv_err err;
	int ret = nsv_sched_audit(&e->sched, &err);

	if (ret == 0 && loud && e->sched.tree)
		ret = nsv_prefix_tree_audit(e->sched.tree, &err);
	nsv_stat_add(&e->stats.n_audit, 1);
	if (ret < 0) {
		nsv_stat_add(&e->stats.n_audit_bad, 1);
		nsv_error("audit: %s", err.text);
	} else if (loud) {
		nsv_info("audit: of %u blocks %u free and %u idle in the prefix cache, %u running, "
			 "%u waiting: all accounted for",
			e->alloc.n_block, e->alloc.n_free, nsv_block_n_idle(&e->alloc),
			e->sched.n_run, e->sched.n_wait);
	}
}

static void after_step(struct nsv_engine *e)
{
	uint64_t now;

#ifdef NSV_DEBUG
	audit(e, false);
#endif
	if (__atomic_exchange_n(&e->audit, 0, __ATOMIC_RELAXED))
		audit(e, true);
	nsv_stat_set(&e->stats.n_running, e->sched.n_run);
	nsv_stat_set(&e->stats.n_waiting, e->sched.n_wait);
	nsv_stat_set(&e->stats.n_done,
		e->max_requests - e->n_free_seqs - e->sched.n_run - e->sched.n_wait);
	nsv_stat_set(&e->stats.blocks_free, e->alloc.n_free);
	nsv_stat_set(&e->stats.blocks_idle, nsv_block_n_idle(&e->alloc));
	if (e->watchdog_ns && (now = nsv_now_ns()) - e->watchdog_last_ns >= e->watchdog_ns) {
		e->watchdog_last_ns = now;
		nsv_notify_watchdog();
	}
}

static void *run(void *arg)
{
	struct nsv_engine *e = arg;
	struct nsv_err err;
	int ret = 0;

	prctl(PR_SET_NAME, "nsv-engine");
	e->watchdog_ns = nsv_notify_watchdog_ns();
	while (ret >= 0) {
		if (nsv_mailbox_any(&e->inbox))
			handle_all(e);
		if (e->stopping)
			return NULL;
		ret = nsv_engine_step(e, &err);
		after_step(e);
		if (ret == 1)
			nsv_mailbox_wait(&e->inbox, e->watchdog_ns);
	}
	nsv_error("a step cannot be computed: %s", err.text);
	nsv_mailbox_put(e->outbox, &e->failed_msg);
	return NULL;
}

int nsv_engine_start(struct nsv_engine *e)
{
	int ret = pthread_create(&e->thread, NULL, run, e);

	e->started = ret == 0;
	return -ret;
}

void nsv_engine_stop(struct nsv_engine *e)
{
	if (!e || !e->started)
		return;
	nsv_mailbox_put(&e->inbox, &e->stop_msg);
	pthread_join(e->thread, NULL);
	e->started = false;
}

/* ---- For other threads */

const struct nsv_engine_info *nsv_engine_get_info(const struct nsv_engine *e)
{
	return &e->info;
}

const struct nsv_seqs *nsv_engine_get_seqs(const struct nsv_engine *e)
{
	return &e->seqs;
}

void nsv_engine_post(struct nsv_engine *e, struct nsv_msg *msg)
{
	nsv_mailbox_put(&e->inbox, msg);
}

void nsv_engine_look(struct nsv_engine *e)
{
	if (!__atomic_exchange_n(&e->nudged, 1, __ATOMIC_ACQ_REL))
		nsv_mailbox_put(&e->inbox, &e->nudge_msg);
}

void nsv_engine_audit(struct nsv_engine *e)
{
	__atomic_store_n(&e->audit, 1, __ATOMIC_RELAXED);
	nsv_engine_look(e);
}

struct nsv_engine_stats nsv_engine_get_stats(const struct nsv_engine *e)
{
	struct nsv_engine_stats s;
	const struct nsv_engine_stats *from = &e->stats;

#define COPY(field) s.field = __atomic_load_n(&from->field, __ATOMIC_RELAXED)
	COPY(n_step);
	COPY(n_prompt_token);
	COPY(n_output_token);
	COPY(n_preempt);
	COPY(n_cached_token);
	COPY(n_attention);
	COPY(step_ns);
	COPY(n_accepted);
	COPY(n_ended);
	COPY(n_audit);
	COPY(n_audit_bad);
	COPY(n_running);
	COPY(n_waiting);
	COPY(n_paused);
	COPY(n_done);
	COPY(blocks_free);
	COPY(blocks_idle);
#undef COPY
	return s;
}
