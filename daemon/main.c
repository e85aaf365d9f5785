/* nanoserved: loads a model and serves it. */
#include <malloc.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/errand.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/numa.h"
#include "daemon/server.h"
#include "shm/clock.h"

static void describe(const struct nsv_engine *engine, uint64_t start_ns)
{
	const struct nsv_engine_info *i = nsv_engine_get_info(engine);
	char status[512], nodes[32] = "";

	if (i->n_node > 1)
		snprintf(nodes, sizeof(nodes), " on %u nodes", i->n_node);
	snprintf(status, sizeof(status),
		"%s on %s%s%s, %u threads%s; KV pool of %u blocks (%u tokens in %s, %zu MiB), "
		"weights %zu MiB; ready after %.2f s",
		i->desc->name, i->backend->name, *i->backend->isa() ? "/" : "", i->backend->isa(),
		i->threads, nodes, i->n_block, i->n_block * i->block_size,
		nsv_kv_dtype_name(i->kv_dtype), i->kv_len >> 20, i->weights_len >> 20,
		(double)(nsv_now_ns() - start_ns) / 1e9);
	nsv_info("%s", status);
	nsv_notify_ready(status);
}

/* Everything that the service stands on, in the order of its making. */
struct service {
	struct nsv_passed passed; /* by the service manager */
	struct nsv_numa numa;
	struct nsv_gguf *gguf;
	struct nsv_tok *tok;
	struct nsv_server server;
	struct nsv_engine *engine;
};

/* Names in the service manager's store. */
#define KV_NAME "kv"
#define SEQS_NAME "seqs"
#define WEIGHTS_NAME "weights"

/* What was made afresh goes to the store in place of what had its name there. */
static void store_region(const char *name, int fd, bool adopted)
{
	if (fd < 0 || adopted || !nsv_notify_can_store())
		return;
	int ret = nsv_notify_forget(name);
	if (ret == 0)
		ret = nsv_notify_store(name, &fd, 1);
	if (ret < 0)
		nsv_warning("%s will not outlive the daemon: %s", name, strerror(-ret));
}

static void store_regions(const struct nsv_engine *e)
{
	const struct nsv_engine_info *info = nsv_engine_get_info(e);
	struct nsv_engine_keep keep = nsv_engine_get_keep(e);

	store_region(KV_NAME, keep.kv_fd, info->adopted_kv);
	store_region(SEQS_NAME, keep.seqs_fd, info->adopted_seqs);
	store_region(WEIGHTS_NAME, keep.weights_fd, info->adopted_weights);
}

/* What was kept is given up where it brings one daemon after another down. */
static int make_engine(struct service *sv, struct nsv_engine_config *ec, struct nsv_err *err)
{
	struct nsv_mailbox *inbox = &sv->server.inbox;
	int ret = nsv_engine_new(&sv->engine, ec, sv->gguf, inbox, err);

	if (ret < 0 || nsv_engine_get_info(sv->engine)->suspect != NSV_SUSPECT_EVERYTHING)
		return ret;
	nsv_error("repeated crashes without progress: the sessions and KV of earlier daemons are "
		  "given up");
	nsv_engine_free(sv->engine);
	sv->engine = NULL;
	ec->keep = NULL;
	return nsv_engine_new(&sv->engine, ec, sv->gguf, inbox, err);
}

/* The making of the tokenizer, beside that of the engine. */
struct tok_errand {
	struct service *sv;
	struct nsv_err err;
};

static int make_tok(void *arg)
{
	struct tok_errand *t = arg;

	return nsv_tok_new(t->sv->gguf, &t->sv->tok, &t->err);
}

/* Of two that fail the tokenizer's reason is the one to see: it is about the file. */
static int make_both(struct service *sv, struct nsv_engine_config *ec, struct nsv_err *err)
{
	struct tok_errand tok = {.sv = sv};
	struct nsv_errand errand;

	nsv_errand_start(&errand, make_tok, &tok);
	int ret = make_engine(sv, ec, err);
	int tok_ret = nsv_errand_wait(&errand);
	if (tok_ret < 0) {
		*err = tok.err;
		return tok_ret;
	}
	return ret < 0 ? ret : nsv_engine_set_tok(sv->engine, sv->tok, err);
}

static int load(struct service *sv, const struct nsv_config *c, struct nsv_err *err)
{
	const struct nsv_engine_keep keep = {nsv_passed_take(&sv->passed, KV_NAME),
		nsv_passed_take(&sv->passed, SEQS_NAME),
		nsv_passed_take(&sv->passed, WEIGHTS_NAME)};
	struct nsv_engine_config ec = {.backend = c->backend,
		.threads = c->threads,
		.kv_dtype = c->kv_dtype,
		.kv_blocks = c->kv_blocks,
		.kv_memory = c->kv_memory,
		.swap_blocks = c->swap_blocks,
		.batch_tokens = c->batch_tokens,
		.mixed_tokens = c->mixed_tokens,
		.max_requests = c->max_requests,
		.run_ahead = c->run_ahead,
		.no_prefix_cache = c->no_prefix_cache,
		.share_prefixes = c->share_prefixes,
		.numa = &sv->numa,
		.keep = &keep};
	int ret = nsv_gguf_open(c->model, &sv->gguf, err);

	if (ret == 0)
		ret = make_both(sv, &ec, err);
	if (ret == 0)
		store_regions(sv->engine);
	return ret;
}

static int serve(struct service *sv, const struct nsv_config *c, struct nsv_err *err)
{
	uint64_t start_ns = nsv_now_ns();
	int ret = nsv_passed_init(&sv->passed);

	if (ret < 0)
		return nsv_fail(err, ret, "what the service manager passes cannot be taken: %s",
			strerror(-ret));
	if (!c->no_numa) /* before there are threads and regions */
		nsv_numa_begin(&sv->numa, c->threads ? c->threads : nsv_team_cpus());
	ret = nsv_server_init(&sv->server, c, &sv->passed, err);
	if (ret == 0)
		ret = load(sv, c, err);
	if (ret == 0)
		ret = nsv_server_attach(&sv->server, sv->engine, sv->tok);
	if (ret == 0)
		ret = nsv_server_adopt(&sv->server, &sv->passed, err);
	if (ret == 0)
		ret = nsv_engine_start(sv->engine);
	if (ret < 0)
		return ret;
	nsv_passed_forget(&sv->passed);
	nsv_passed_deinit(&sv->passed);
	describe(sv->engine, start_ns);
	ret = nsv_server_run(&sv->server);
	nsv_notify_stopping();
	return ret;
}

static void unload(struct service *sv)
{
	nsv_engine_stop(sv->engine);
	nsv_server_deinit(&sv->server);
	nsv_engine_free(sv->engine);
	nsv_tok_free(sv->tok);
	nsv_gguf_close(sv->gguf);
	nsv_numa_deinit(&sv->numa);
	nsv_passed_deinit(&sv->passed);
}

/* Large pieces are mappings of their own for good, and gone when freed: glibc keeps more to itself
 * the larger those are that it sees freed, up to 64 MiB, and long prompts take tens for a moment. */
static void give_back_what_is_freed(void)
{
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
}

int main(int argc, char **argv)
{
	struct nsv_config config;
	struct nsv_err err = {""};
	struct service sv = {.numa = NSV_NUMA_NONE};

	give_back_what_is_freed();
	int ret = nsv_config_init(&config, argc, argv, &err);

	if (ret == NSV_CONFIG_EXIT)
		return EXIT_SUCCESS;
	if (ret < 0) {
		fprintf(stderr, "nanoserved: %s\n", err.text[0] ? err.text : strerror(-ret));
		return 2;
	}
	nsv_log_setup(config.verbose ? NSV_LOG_DEBUG : NSV_LOG_INFO, nsv_notify_managed());
	ret = nsv_server_block_signals();
	if (ret == 0)
		ret = serve(&sv, &config, &err);
	if (ret < 0)
		nsv_error("%s", err.text[0] ? err.text : strerror(-ret));
	unload(&sv);
	nsv_config_deinit(&config);
	return ret < 0 ? EXIT_FAILURE : ret;
}
