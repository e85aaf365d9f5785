/* The state as JSON: who may see what is decided here. nanoserve(1) says what each member means. */
#include "daemon/status.h"

#include <jansson.h>
#include <string.h>

#include "shm/clock.h"
#include "shm/version.h"

#define ROW_LEN 192 /* bytes of text, at most */

struct row {
	uint64_t id, bytes;
	uint32_t uid, n_slot, n_live;
	int32_t pid;
};

struct nsv_status {
	uint32_t n, n_done; /* rows; n_done > n: the end is written too */
	struct row rows[];
};

/* ---- Sessions, in pieces: a user may have thousands */

static bool is_told(const struct nsv_session *se, const struct nsv_session *asker, bool all)
{
	return se->state == NSV_SESSION_OPEN && (all || se->uid == asker->uid);
}

static struct nsv_status *note_sessions(const struct nsv_session *asker, bool all)
{
	const struct nsv_server *s = asker->server;
	uint32_t n = all ? s->n_session : asker->user->sessions;
	struct nsv_status *st = malloc(sizeof(*st) + n * sizeof(struct row));

	if (!st)
		return NULL;
	*st = (struct nsv_status){0};
	for (const struct nsv_session *se = s->sessions; se && st->n < n; se = se->next)
		if (is_told(se, asker, all))
			st->rows[st->n++] = (struct row){.id = se->id,
				.bytes = se->memory,
				.uid = se->uid,
				.n_slot = se->ch.geom.n_slot,
				.n_live = se->n_live,
				.pid = se->pid};
	return st;
}

static size_t write_row(const struct row *r, const char *between, char *text)
{
	int n = snprintf(text, ROW_LEN,
		"%s{\"id\":%llu,\"uid\":%u,\"pid\":%d,\"slots\":%u,\"requests\":%u,"
		"\"bytes\":%llu}",
		between, (unsigned long long)r->id, r->uid, r->pid, r->n_slot, r->n_live,
		(unsigned long long)r->bytes);

	return nsv_min((size_t)n, ROW_LEN - 1);
}

size_t nsv_status_next(struct nsv_status *st, char *text)
{
	size_t len = 0;

	for (; st->n_done < st->n && len <= NSV_STATUS_PIECE - ROW_LEN; st->n_done++)
		len += write_row(&st->rows[st->n_done], st->n_done ? "," : "", text + len);
	if (st->n_done == st->n && len <= NSV_STATUS_PIECE - ROW_LEN) {
		memcpy(text + len, "]}", 2);
		len += 2;
		st->n_done++;
	}
	return len;
}

size_t nsv_status_size(const struct nsv_status *st)
{
	return sizeof(*st) + st->n * sizeof(struct row);
}

/* ---- All else */

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

static json_t *server_json(const struct nsv_session *asker)
{
	const struct nsv_server *s = asker->server;
	const struct nsv_engine_info *info = nsv_engine_get_info(s->engine);

	return json_pack("{s:s, s:o, s:s, s:s, s:i, s:i, s:f, s:b, s:o, s:o}", "version",
		NSV_VERSION, "model", model_json(info, s->tok), "backend", info->backend->name,
		"isa", info->backend->isa(), "threads", (int)info->threads, "nodes",
		(int)info->n_node, "uptime_s", (double)(nsv_now_ns() - s->start_ns) / 1e9,
		"draining", (int)s->draining, "memory", memory_json(info), "kv", kv_json(info));
}

/* All but the list of sessions, which is open at its end. */
static int write_head(const struct nsv_session *asker, bool all, char **ret_text, size_t *ret_len)
{
	static const char list[] = ",\"sessions\":[";
	json_t *root = server_json(asker);

	if (root && all)
		add_load(root, asker->server);
	nsv_autofree char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	if (!text)
		return -ENOMEM;
	size_t len = strlen(text) - 1; /* without the brace */
	char *more = realloc(text, nsv_max(len + sizeof(list), NSV_STATUS_PIECE));
	if (!more)
		return -ENOMEM;
	text = NULL;
	memcpy(more + len, list, sizeof(list));
	*ret_text = more;
	*ret_len = len + sizeof(list) - 1;
	return 0;
}

int nsv_status_begin(const struct nsv_session *asker, char **ret_text, size_t *ret_len,
	struct nsv_status **ret_rest)
{
	bool all = nsv_policy_is_operator(asker->fd);
	struct nsv_status *rest = note_sessions(asker, all);
	int ret = rest ? write_head(asker, all, ret_text, ret_len) : -ENOMEM;

	if (ret == 0)
		*ret_rest = rest;
	else
		free(rest);
	return ret;
}
