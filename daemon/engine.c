/* The engine's life: sizes, memory, the thread and its messages. */
#include "daemon/engine.h"

#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>

#include "daemon/engine_state.h"
#include "daemon/errand.h"
#include "daemon/log.h"
#include "daemon/memory.h"
#include "daemon/notify.h"
#include "shm/clock.h"

#define MAX_PIECE_LEN 4096 /* bytes of a token; a vocabulary with a longer one is refused */

/* ---- Sizes */

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

/* The secret is new with each daemon: whoever reads one from memory knows nothing of the next. */
static int make_tree(struct nsv_engine *e, struct nsv_err *err)
{
	struct nsv_prefix_key secret;

	if (getrandom(&secret, sizeof(secret), 0) != sizeof(secret))
		return nsv_fail(err, -EIO, "no random numbers for the prefix cache's secret");
	return nsv_prefix_tree_init(
		&e->tree, &e->alloc, e->info.block_size, nsv_model_id(e->model), &secret);
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
	free(st->given);
	free(st->ins);
	free(st->results);
}

static int make_step(struct nsv_engine *e, struct nsv_engine_step *st, uint32_t batch_tokens)
{
	uint32_t n = e->max_requests, n_out = nsv_exec_max_out(n);

	st->tokens = calloc(batch_tokens, sizeof(*st->tokens));
	st->pos = calloc(batch_tokens, sizeof(*st->pos));
	st->slots = calloc(batch_tokens, sizeof(*st->slots));
	st->seqs = calloc(n, sizeof(*st->seqs));
	st->places = calloc(n, sizeof(*st->places));
	st->out_rows = calloc(n_out, sizeof(*st->out_rows));
	st->out_seqs = calloc(n_out, sizeof(*st->out_seqs));
	st->n_lps = calloc(n_out, sizeof(*st->n_lps));
	st->given = calloc(n_out, sizeof(*st->given));
	st->ins = calloc(n_out, sizeof(*st->ins));
	st->results = calloc(n_out, sizeof(*st->results));
	if (!st->tokens || !st->pos || !st->slots || !st->seqs || !st->places || !st->out_rows ||
		!st->out_seqs || !st->n_lps || !st->given || !st->ins || !st->results)
		return -ENOMEM;
	return nsv_step_plan_init(&st->plan, &e->sched);
}

static int make_space(struct nsv_engine *e, uint32_t batch_tokens)
{
	uint32_t n = e->max_requests;
	int ret = 0;

	for (uint32_t i = 0; ret == 0 && i < e->info.run_ahead; i++)
		ret = make_step(e, &e->steps[i], batch_tokens);
	e->jobs = calloc(n, sizeof(struct nsv_job *));
	e->free_seqs = calloc(n, sizeof(uint32_t));
	if (ret < 0 || !e->jobs || !e->free_seqs)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		e->free_seqs[i] = n - 1 - i;
	e->n_free_seqs = n;
	return 0;
}

/* Its weights are still to be packed, and have no memory unless they were kept. */
static int make_model(struct nsv_engine *e, const struct nsv_engine_config *c,
	const struct nsv_gguf *g, uint32_t n_kept, int *keep_fd, struct nsv_err *err)
{
	struct nsv_model_keep keep = {.fd = *keep_fd};
	size_t most = nsv_max(c->max_requests, n_kept);
	struct nsv_model_config mc = {.max_row = c->batch_tokens,
		.max_out = nsv_exec_max_out((uint32_t)most),
		.keep = &keep,
		.pack_later = true,
		.numa = &e->numa};
	int ret = nsv_model_new(g, e->info.backend, e->team, &mc, &e->model, err);

	if (ret == 0 && *keep_fd >= 0 && !keep.taken)
		nsv_warning("the weights of the previous daemon are not taken over: %s",
			keep.why.text);
	*keep_fd = keep.fd;
	e->info.adopted_weights = keep.taken;
	if (ret == 0)
		e->info.desc = nsv_model_get_desc(e->model);
	return ret;
}

/* The making of the KV regions, while weights are packed. */
struct kv_errand {
	struct nsv_engine *e;
	const struct nsv_engine_config *c;
	size_t free_len;
	int *keep_fd;
	struct nsv_err err;
};

static int make_kv(void *arg)
{
	struct kv_errand *k = arg;

	return nsv_engine_make_kv(k->e, k->c, k->free_len, k->keep_fd, &k->err);
}

/* What memory is left to others by the model, whose weights may still have none. */
static size_t free_beside_model(const struct nsv_engine *e)
{
	size_t free_len = nsv_memory_available(), weights_len;
	uint64_t ns;

	nsv_model_weights(e->model, &weights_len, &ns);
	return e->info.adopted_weights ? free_len : free_len - nsv_min(free_len, weights_len);
}

/* Giving a region its pages takes the kernel as long as packing the weights of a small model. */
static int pack_and_make_kv(struct nsv_engine *e, const struct nsv_engine_config *c,
	struct nsv_engine_keep *keep, struct nsv_err *err)
{
	struct kv_errand kv = {.e = e,
		.c = c,
		.free_len = free_beside_model(e),
		.keep_fd = &keep->kv_fd,
		.err = *err};
	struct nsv_errand errand;

	nsv_errand_start(&errand, make_kv, &kv);
	int ret = nsv_model_pack(e->model, err);
	int kv_ret = nsv_errand_wait(&errand);
	nsv_model_weights(e->model, &e->info.weights_len, &e->info.weights_ns);
	if (ret < 0 || kv_ret == 0)
		return ret;
	*err = kv.err;
	return kv_ret;
}

/* The first one is for rows that all threads share, too. */
static int make_samplers(struct nsv_engine *e)
{
	uint32_t n = e->info.threads;
	int ret = 0;

	e->samplers = calloc(n, sizeof(*e->samplers));
	if (!e->samplers)
		return -ENOMEM;
	for (uint32_t i = 0; ret == 0 && i < n; i++)
		ret = nsv_sampler_init(&e->samplers[i], e->info.desc->n_vocab, i == 0 ? n : 1);
	return ret;
}

static void free_samplers(struct nsv_engine *e)
{
	for (uint32_t i = 0; e->samplers && i < e->info.threads; i++)
		nsv_sampler_deinit(&e->samplers[i]);
	free(e->samplers);
}

static int make_exec(struct nsv_engine *e, const struct nsv_engine_config *c)
{
	const struct nsv_exec_cpu_parts parts = {.model = e->model,
		.dispatch = &e->dispatch,
		.kv = &e->kv,
		.host = e->host_region.map,
		.team = e->team,
		.samplers = e->samplers};

	return nsv_exec_cpu_new(
		&parts, e->max_requests, c->batch_tokens, e->info.run_ahead, &e->exec);
}

static int build(struct nsv_engine *e, const struct nsv_engine_config *c,
	struct nsv_engine_keep *keep, const struct nsv_gguf *g, struct nsv_err *err)
{
	int ret = nsv_backend_choose(c->backend, &e->info.backend, err);

	if (ret == 0)
		ret = nsv_kv_dtype_choose(c->kv_dtype, e->info.backend, &e->info.kv_dtype, err);
	if (ret < 0)
		return ret;
	e->info.threads = c->threads ? c->threads : nsv_team_cpus();
	e->adapts = c->threads == 0 && e->info.threads > 1;
	nsv_crowd_init(&e->crowd, e->info.threads);
	e->share_prefixes = c->share_prefixes;
	e->info.run_ahead = c->run_ahead ? (uint32_t)nsv_min(c->run_ahead, NSV_MAX_AHEAD) : 1;
	e->dispatch.backend = e->info.backend;
	ret = nsv_team_new(e->info.threads, &e->team);
	if (ret < 0)
		return nsv_fail(err, ret, "%u threads: %s", e->info.threads, strerror(-ret));
	uint32_t n_kept = nsv_engine_kept_records(keep->seqs_fd);
	ret = make_model(e, c, g, n_kept, &keep->weights_fd, err);
	if (ret == 0)
		ret = pack_and_make_kv(e, c, keep, err);
	if (ret == 0)
		ret = nsv_engine_make_seqs(e, c, n_kept, &keep->seqs_fd, err);
	if (ret == 0)
		ret = nsv_block_alloc_init(&e->alloc, e->info.n_block);
	if (ret == 0 && c->swap_blocks)
		ret = nsv_block_alloc_init(&e->host_alloc, c->swap_blocks);
	if (ret == 0 && !c->no_prefix_cache)
		ret = make_tree(e, err);
	if (ret == 0)
		ret = nsv_sched_init(&e->sched, &e->alloc, c->swap_blocks ? &e->host_alloc : NULL,
			c->no_prefix_cache ? NULL : &e->tree, e->max_requests, e->info.block_size,
			c->batch_tokens);
	if (ret == 0 && c->mixed_tokens)
		e->sched.mixed_tokens = (uint32_t)nsv_min(c->mixed_tokens, c->batch_tokens);
	if (ret == 0)
		ret = make_samplers(e);
	if (ret == 0)
		ret = make_space(e, c->batch_tokens);
	if (ret == 0 && e->info.adopted_seqs)
		ret = nsv_engine_find_kept(e, err);
	if (ret == 0)
		ret = make_exec(e, c);
	return ret;
}

#define NOTHING_KEPT ((struct nsv_engine_keep){-1, -1, -1})

/* What was not taken over. */
static void close_keep(struct nsv_engine_keep *keep)
{
	int *fds[] = {&keep->kv_fd, &keep->seqs_fd, &keep->weights_fd};

	for (size_t i = 0; i < NSV_ARRAY_LEN(fds); i++)
		nsv_cleanup_close(fds[i]);
}

int nsv_engine_new(struct nsv_engine **ret_engine, const struct nsv_engine_config *config,
	const struct nsv_gguf *g, struct nsv_mailbox *outbox, struct nsv_err *err)
{
	struct nsv_engine *e = calloc(1, sizeof(*e));
	struct nsv_engine_keep keep = config->keep ? *config->keep : NOTHING_KEPT;
	int ret;

	if (!e) {
		close_keep(&keep);
		return -ENOMEM;
	}
	e->kv_region = e->host_region = e->seqs_region = NSV_REGION_NONE;
	e->numa = config->numa ? *config->numa : NSV_NUMA_NONE;
	e->info.n_node = e->numa.n_node;
	e->outbox = outbox;
	e->stop_msg.kind = NSV_MSG_STOP;
	e->failed_msg.kind = NSV_MSG_FAILED;
	e->nudge_msg.kind = NSV_MSG_NUDGE;
	nsv_fail(err, 0, "out of memory"); /* whatever fails without a sentence of its own */
	ret = nsv_mailbox_init(&e->inbox, false);
	if (ret == 0)
		ret = build(e, config, &keep, g, err);
	close_keep(&keep);
	if (ret < 0) {
		nsv_engine_free(e);
		return ret;
	}
	nsv_stat_set(&e->stats.blocks_free, e->alloc.n_free);
	nsv_stat_set(&e->stats.host_free, e->host_alloc.n_free);
	nsv_stat_set(&e->stats.n_thread, nsv_team_size(e->team));
	*ret_engine = e;
	return 0;
}

/* Samplers know the vocabulary's end tokens, which min_tokens holds back. */
static int name_ends(struct nsv_engine *e, const struct nsv_tok *tok)
{
	int ret = 0;

	for (int32_t id = 0; ret == 0 && id < nsv_tok_n_vocab(tok); id++)
		for (uint32_t i = 0; ret == 0 && nsv_tok_is_end(tok, id) && i < e->info.threads;
			i++)
			ret = nsv_sampler_add_end(&e->samplers[i], id);
	return ret;
}

int nsv_engine_set_tok(struct nsv_engine *e, const struct nsv_tok *tok, struct nsv_err *err)
{
	uint32_t longest = 0;

	if (e->info.desc->n_vocab != (uint32_t)nsv_tok_n_vocab(tok))
		return nsv_fail(err, -EINVAL, "the model has %u tokens, its tokenizer %d",
			e->info.desc->n_vocab, nsv_tok_n_vocab(tok));
	int ret = longest_piece(tok, &longest, err);
	if (ret < 0)
		return ret;
	ret = name_ends(e, tok);
	if (ret < 0)
		return nsv_fail(
			err, ret, "the vocabulary has more than %u end tokens", NSV_MAX_END);
	e->tok = tok;
	e->info.text_need = 3 * (longest + 4) + NSV_MAX_STOP_LEN + 16;
	e->text = calloc(2, e->info.text_need);
	return e->text ? 0 : nsv_fail(err, -ENOMEM, "no memory for a token's text");
}

void nsv_engine_free(struct nsv_engine *e)
{
	if (!e)
		return;
	if (e->seqs.base && nsv_seqs_head(&e->seqs)->stage == NSV_SEQS_STARTS)
		nsv_seqs_give_up(&e->seqs);
	if (e->exec)
		e->exec->free(e->exec);
	for (uint32_t i = 0; i < NSV_MAX_AHEAD; i++)
		free_step(&e->steps[i]);
	free(e->text);
	free(e->jobs);
	free(e->free_seqs);
	free(e->kept);
	free_samplers(e);
	nsv_sched_deinit(&e->sched);
	nsv_prefix_tree_deinit(&e->tree);
	nsv_block_alloc_deinit(&e->alloc);
	nsv_block_alloc_deinit(&e->host_alloc);
	nsv_region_deinit(&e->seqs_region);
	nsv_region_deinit(&e->kv_region);
	nsv_region_deinit(&e->host_region);
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
		/* An exchange, not a store: cursors are read after it, or who moved one saw 1. */
		__atomic_exchange_n(&e->nudged, 0, __ATOMIC_SEQ_CST);
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

/* What others see of the scheduler and the blocks, told after every turn: one without a step
 * preempts too. */
static void tell_stats(struct nsv_engine *e)
{
	nsv_stat_set(&e->stats.n_preempt, e->sched.n_preempt);
	nsv_stat_set(&e->stats.n_cached_token, e->sched.n_hit_token);
	nsv_stat_set(&e->stats.n_fork_token, e->sched.n_fork_token);
	nsv_stat_set(&e->stats.n_swap_out, e->sched.n_swap_out);
	nsv_stat_set(&e->stats.n_swap_in, e->sched.n_swap_in);
	nsv_stat_set(&e->stats.n_attention, e->dispatch.n_attention);
	nsv_stat_set(&e->stats.n_running, e->sched.n_run);
	nsv_stat_set(&e->stats.n_waiting, e->sched.n_wait);
	nsv_stat_set(&e->stats.n_done,
		e->max_requests - e->n_free_seqs - e->sched.n_run - e->sched.n_wait);
	nsv_stat_set(&e->stats.blocks_free, e->alloc.n_free);
	nsv_stat_set(&e->stats.blocks_idle, nsv_block_n_idle(&e->alloc));
	nsv_stat_set(&e->stats.host_free, e->host_alloc.n_free);
	nsv_stat_set(&e->stats.waste, (uint32_t)nsv_sched_waste(&e->sched));
	nsv_stat_set(&e->stats.n_thread, nsv_team_size(e->team));
}

static void settle_member(const struct nsv_part *part, void *arg)
{
	nsv_numa_settle(arg, part->index, part->count);
}

/* By the engine's thread, which is a member: whenever the team is another. */
static void settle(struct nsv_engine *e)
{
	if (e->numa.n_node > 1)
		nsv_team_run(e->team, settle_member, &e->numa);
}

static void resize(struct nsv_engine *e, uint32_t n)
{
	if (n == nsv_team_size(e->team))
		return;
	nsv_team_resize(e->team, n); /* all but this thread are others then */
	settle(e);
}

static int begin_window(struct nsv_engine *e)
{
	e->window_busy_ns = e->stats.step_ns;
	return nsv_team_delay_ns(e->team, &e->window_delay_ns);
}

static int end_window(struct nsv_engine *e, uint64_t busy_ns)
{
	uint64_t delay_ns;
	int ret = nsv_team_delay_ns(e->team, &delay_ns);

	if (ret < 0)
		return ret;
	resize(e, nsv_crowd_next(
			  &e->crowd, nsv_now_ns(), busy_ns, delay_ns - e->window_delay_ns));
	e->crowd.n = nsv_team_size(e->team); /* threads may be wanting */
	return 0;
}

/* Between two steps the team may change: any number of members computes the same bits. Where the
 * kernel does not tell (-ENOENT), or cannot for a while, all members compute. */
static void adapt(struct nsv_engine *e)
{
	uint64_t busy_ns = e->stats.step_ns - e->window_busy_ns;
	int ret = 0;

	if (!e->adapts || busy_ns < NSV_CROWD_WINDOW_NS)
		return;
	if (e->has_window)
		ret = end_window(e, busy_ns);
	if (ret == 0)
		ret = begin_window(e);
	e->has_window = ret == 0;
	if (ret == 0)
		return;
	resize(e, e->crowd.most);
	nsv_crowd_init(&e->crowd, e->crowd.most);
	e->adapts = ret != -ENOENT;
}

/* An io thread that stands still has no watchdog of its own. */
static void feed_watchdog(struct nsv_engine *e, uint64_t now)
{
	if (!__atomic_load_n(&e->io_is_alive, __ATOMIC_ACQUIRE))
		return;
	e->watchdog_last_ns = now;
	nsv_notify_watchdog();
	__atomic_store_n(&e->io_is_alive, 0, __ATOMIC_RELAXED);
	e->alive_msg.kind = NSV_MSG_ALIVE;
	nsv_mailbox_put(e->outbox, &e->alive_msg);
}

void nsv_engine_heard(struct nsv_engine *e)
{
	__atomic_store_n(&e->io_is_alive, 1, __ATOMIC_RELEASE);
}

static void after_step(struct nsv_engine *e)
{
	uint64_t now;

#ifdef NSV_DEBUG
	nsv_engine_audit_now(e, false);
#endif
	if (__atomic_exchange_n(&e->audit, 0, __ATOMIC_RELAXED))
		nsv_engine_audit_now(e, true);
	adapt(e);
	tell_stats(e);
	if (e->watchdog_ns && (now = nsv_now_ns()) - e->watchdog_last_ns >= e->watchdog_ns)
		feed_watchdog(e, now);
}

int nsv_engine_turn(struct nsv_engine *e, struct nsv_err *err)
{
	int ret;

	if (nsv_mailbox_any(&e->inbox))
		handle_all(e);
	ret = e->stopping ? nsv_engine_drain(e, err) : nsv_engine_step(e, err);
	after_step(e);
	return ret;
}

/* How long nothing has to be done: 0: for ever. Paused requests give their blocks back in time. */
static uint64_t longest_sleep(const struct nsv_engine *e)
{
	if (e->stats.n_paused > 0 && (e->watchdog_ns == 0 || e->watchdog_ns > NSV_PAUSE_KEEPS_NS))
		return NSV_PAUSE_KEEPS_NS;
	return e->watchdog_ns;
}

static void *run(void *arg)
{
	struct nsv_engine *e = arg;
	struct nsv_err err;
	int ret = 0;

	prctl(PR_SET_NAME, "nsv-engine");
	settle(e);
	e->has_window = e->adapts && begin_window(e) == 0;
	e->watchdog_ns = nsv_notify_watchdog_ns();
	e->io_is_alive = 1;
	while (ret >= 0 && !e->stopping) {
		ret = nsv_engine_turn(e, &err);
		if (ret == 1 && !e->stopping)
			nsv_mailbox_wait(&e->inbox, longest_sleep(e));
	}
	if (ret >= 0)
		return NULL;
	e->failed = true;
	nsv_error("a step cannot be computed: %s", err.text);
	nsv_mailbox_put(e->outbox, &e->failed_msg);
	return NULL;
}

int nsv_engine_start(struct nsv_engine *e)
{
	int ret = nsv_engine_resume(e);

	if (ret < 0)
		return ret;
	nsv_seqs_serve(&e->seqs); /* before the first step can begin */
	ret = -pthread_create(&e->thread, NULL, run, e);
	e->started = ret == 0;
	if (ret == 0)
		nsv_engine_join_start(e);
	return ret;
}

void nsv_engine_stop(struct nsv_engine *e)
{
	if (!e || !e->started)
		return;
	nsv_mailbox_put(&e->inbox, &e->stop_msg);
	nsv_engine_join_stop(e);
	pthread_join(e->thread, NULL);
	e->started = false;
	if (!e->failed)
		nsv_seqs_end(&e->seqs);
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

struct nsv_engine_keep nsv_engine_get_keep(const struct nsv_engine *e)
{
	return (struct nsv_engine_keep){.kv_fd = e->kv_region.fd,
		.seqs_fd = e->seqs_region.fd,
		.weights_fd = nsv_model_weights_fd(e->model)};
}

void nsv_engine_post(struct nsv_engine *e, struct nsv_msg *msg)
{
	nsv_mailbox_put(&e->inbox, msg);
}

void nsv_engine_look(struct nsv_engine *e)
{
	if (!__atomic_exchange_n(&e->nudged, 1, __ATOMIC_SEQ_CST))
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
	COPY(host_free);
	COPY(waste);
	COPY(n_thread);
	COPY(n_swap_out);
	COPY(n_swap_in);
	COPY(n_fork_token);
	COPY(n_branch);
	COPY(n_fork);
	COPY(n_prompt_lp);
#undef COPY
	return s;
}
