/* The state as JSON: who may see what is decided here. nanoserve(1) says what each member means. */
#include "daemon/status.h"

#include <jansson.h>
#include <string.h>

#include "shm/clock.h"
#include "shm/version.h"

static json_t *session_json(const struct nsv_session *se)
{
	uint32_t n_live = 0;

	for (uint32_t i = 0; i < se->ch.geom.n_slot; i++)
		n_live += se->slots[i].phase != NSV_PHASE_FREE &&
			  se->slots[i].phase != NSV_PHASE_ENDED;
	return json_pack("{s:I, s:I, s:i, s:i, s:i, s:I}", "id", (json_int_t)se->id, "uid",
		(json_int_t)se->uid, "pid", (int)se->pid, "slots", (int)se->ch.geom.n_slot,
		"requests", (int)n_live, "bytes", (json_int_t)se->memory);
}

static json_t *sessions_json(const struct nsv_session *asker, bool all)
{
	json_t *list = json_array();

	for (const struct nsv_session *se = asker->server->sessions; se; se = se->next)
		if (se->state == NSV_SESSION_OPEN && (all || se->uid == asker->uid))
			json_array_append_new(list, session_json(se));
	return list;
}

static json_t *model_json(const struct nsv_engine_info *i, const struct nsv_tok *tok)
{
	const struct nsv_model_desc *d = i->desc;

	return json_pack("{s:s, s:s, s:s?, s:i, s:i, s:i, s:i}", "name", d->name, "arch", d->arch,
		"chat", nsv_tok_chat_name(tok), "layers", (int)d->n_layer, "context",
		(int)d->n_ctx, "vocabulary", (int)d->n_vocab, "embedding", (int)d->n_embd);
}

static json_t *memory_json(const struct nsv_engine_info *i)
{
	return json_pack("{s:I, s:I, s:I, s:I}", "weights", (json_int_t)i->weights_len, "kv",
		(json_int_t)i->kv_len, "swap", (json_int_t)i->host_len, "seqs",
		(json_int_t)i->seqs_len);
}

static json_t *kv_json(const struct nsv_engine_info *i)
{
	return json_pack("{s:s, s:I}", "dtype", nsv_kv_dtype_name(i->kv_dtype), "token_bytes",
		(json_int_t)i->kv_token_len);
}

/* What the whole machine does tells one user of others: only the privileged see it. */
static json_t *counters_json(const struct nsv_server *s, const struct nsv_engine_stats *t)
{
	return json_pack(
		"{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
		"s:I, s:I, s:I}",
		"steps", (json_int_t)t->n_step, "step_ns", (json_int_t)t->step_ns, "prompt_tokens",
		(json_int_t)t->n_prompt_token, "output_tokens", (json_int_t)t->n_output_token,
		"cached_tokens", (json_int_t)t->n_cached_token, "forked_tokens",
		(json_int_t)t->n_fork_token, "blocks_swapped_out", (json_int_t)t->n_swap_out,
		"blocks_swapped_in", (json_int_t)t->n_swap_in, "preemptions",
		(json_int_t)t->n_preempt, "attention_reads", (json_int_t)t->n_attention, "accepted",
		(json_int_t)t->n_accepted, "more_answers", (json_int_t)t->n_branch, "forks",
		(json_int_t)t->n_fork, "prompt_logprobs", (json_int_t)t->n_prompt_lp, "ended",
		(json_int_t)t->n_ended, "audits", (json_int_t)t->n_audit, "audits_failed",
		(json_int_t)t->n_audit_bad, "refused_hellos", (json_int_t)s->n_refused,
		"dropped_sessions", (json_int_t)s->n_dropped);
}

static void add_load(json_t *root, const struct nsv_server *s)
{
	const struct nsv_engine_info *info = nsv_engine_get_info(s->engine);
	struct nsv_engine_stats t = nsv_engine_get_stats(s->engine);

	json_object_set_new(root, "blocks",
		json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "total",
			(int)info->n_block, "free", (int)(t.blocks_free + t.blocks_idle), "unused",
			(int)t.blocks_free, "cached_idle", (int)t.blocks_idle, "used",
			(int)(info->n_block - t.blocks_free - t.blocks_idle), "tokens_each",
			(int)info->block_size, "wasted_slots", (int)t.waste, "swap_total",
			(int)info->n_host_block, "swap_free", (int)t.host_free));
	json_object_set_new(root, "requests",
		json_pack("{s:i, s:i, s:i, s:i}", "running", (int)(t.n_running - t.n_paused),
			"queued", (int)t.n_waiting, "paused", (int)t.n_paused, "ended",
			(int)t.n_done));
	json_object_set_new(root, "threads_now", json_integer(t.n_thread));
	json_object_set_new(root, "counters", counters_json(s, &t));
}

int nsv_status_text(const struct nsv_session *asker, char **ret_text, size_t *ret_len)
{
	const struct nsv_server *s = asker->server;
	const struct nsv_engine_info *info = nsv_engine_get_info(s->engine);
	bool all = nsv_policy_is_operator(asker->fd);
	json_t *root = json_pack("{s:s, s:o, s:s, s:s, s:i, s:i, s:f, s:b, s:o, s:o, s:o}",
		"version", NSV_VERSION, "model", model_json(info, s->tok), "backend",
		info->backend->name, "isa", info->backend->isa(), "threads", (int)info->threads,
		"nodes", (int)info->n_node, "uptime_s", (double)(nsv_now_ns() - s->start_ns) / 1e9,
		"draining", (int)s->draining, "memory", memory_json(info), "kv", kv_json(info),
		"sessions", sessions_json(asker, all));

	if (root && all)
		add_load(root, s);
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	if (!text)
		return -ENOMEM;
	*ret_text = text;
	*ret_len = strlen(text);
	return 0;
}
