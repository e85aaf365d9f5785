/* Asking: the entry, and its prompt and parameters in the arena. */
#include "client/session.h"

#include <string.h>

#include "client/encode.h"

/* How long a submission waits for what is about to come: the slot of a request that was freed, or
 * room for an entry while the daemon takes earlier ones (it does so between two steps at most). */
#define PATIENCE_MS 1000

/* A prompt in one of its three forms; kind is the wire's flag of the form. */
struct prompt {
	uint8_t kind;
	const void *data; /* text or ids: (len) bytes */
	size_t len;	  /* on the wire */
	const struct nsv_client_message *messages;
	size_t n_message;
};

static void write_prompt(const struct prompt *p, unsigned char *out)
{
	if (p->kind == NSV_SQE_CHAT)
		nsv_messages_write(p->messages, p->n_message, out);
	else if (p->len > 0)
		memcpy(out, p->data, p->len);
}

static uint8_t wire_flags(uint32_t flags)
{
	uint8_t r = 0;

	if (flags & NSV_CLIENT_SPECIAL)
		r |= NSV_SQE_SPECIAL;
	if (flags & NSV_CLIENT_NO_BOS)
		r |= NSV_SQE_NO_BOS;
	return r;
}

static bool any_orphan(const struct nsv_client *c)
{
	for (uint32_t i = 0; i < c->geom.n_slot; i++)
		if (c->slots[i] && c->slots[i]->orphan)
			return true;
	return false;
}

/* n new requests; waits a moment where all that is missing may be the end of a freed one. */
static int new_requests(struct nsv_client *c, uint32_t n, struct nsv_request **ret_first)
{
	int64_t deadline = nsv_deadline_ns(PATIENCE_MS);
	int ret = nsv_client_dispatch(c);

	if (ret == 0)
		ret = nsv_requests_new(c, n, ret_first);
	while (ret == -EBUSY && any_orphan(c)) {
		if (nsv_session_wait(c, deadline) < 0)
			break;
		ret = nsv_requests_new(c, n, ret_first);
	}
	return ret;
}

/* Room for the prompt and the parameters, written there. entry gets the offsets. */
static int fill_arena(struct nsv_client *c, const struct prompt *p,
	const struct nsv_client_params *params, size_t params_len, struct nsv_sqe *entry,
	uint64_t *ret_tail)
{
	size_t prompt_room = (p->len + 7) & ~(size_t)7;
	uint32_t off;
	int ret = p->len > NSV_MAX_ARENA ? -E2BIG : 0;

	if (ret == 0)
		ret = nsv_arena_find(&c->arena, prompt_room + params_len, &off, ret_tail);
	if (ret == -E2BIG)
		return nsv_fail(&c->err, ret,
			"a prompt of %zu bytes: this session was opened with an arena of %u "
			"(arena_len)",
			p->len, c->geom.arena_len);
	if (ret < 0)
		return nsv_fail(&c->err, ret, "the arena is full of entries not yet taken");
	entry->prompt_off = p->len ? off : 0;
	entry->prompt_len = (uint32_t)p->len;
	write_prompt(p, c->up.arena + off);
	if (params) {
		entry->params_off = off + (uint32_t)prompt_room;
		entry->params_len = (uint32_t)params_len;
		nsv_params_write(params, params_len, c->up.arena + entry->params_off);
	}
	return 0;
}

/* The entry with its prompt and parameters, if there is room for all of it. */
static int try_send(struct nsv_client *c, struct nsv_sqe *entry, const struct prompt *p,
	const struct nsv_client_params *params, size_t params_len)
{
	uint64_t tail;
	int ret = fill_arena(c, p, params, params_len, entry, &tail);

	return ret < 0 ? ret : nsv_session_put(c, entry, tail);
}

/* Sends `entry` for new requests, r the first of them, which are deleted on failure. */
static int send_entry(struct nsv_client *c, struct nsv_sqe *entry, const struct prompt *p,
	const struct nsv_client_params *params, size_t params_len, struct nsv_request *r)
{
	int64_t deadline = nsv_deadline_ns(PATIENCE_MS), now = nsv_clock_ns();

	entry->slot = (uint16_t)r->slot;
	entry->request_id = c->last_id + 1;
	for (struct nsv_request *i = r; i; i = i->next)
		i->start_ns = now;
	int ret = try_send(c, entry, p, params, params_len);
	while (ret == -EAGAIN && nsv_session_wait(c, deadline) == 0)
		ret = try_send(c, entry, p, params, params_len);
	if (ret < 0) {
		nsv_requests_delete(r);
		return c->broken ? c->broken : ret;
	}
	c->last_id += r->n_branch;
	nsv_requests_start(r, entry->request_id);
	return 0;
}

static int count_answers(
	struct nsv_client *c, const struct nsv_client_params *params, uint32_t *ret_n)
{
	if (params->n_branch > NSV_MAX_BRANCH || params->n_branch > c->geom.n_slot)
		return nsv_fail(&c->err, -EINVAL,
			"%u answers: at most %u, and this session has %u slots (n_slot)",
			params->n_branch, NSV_MAX_BRANCH, c->geom.n_slot);
	*ret_n = params->n_branch ? params->n_branch : 1;
	return 0;
}

/* Keeps what an output is asked with. */
static int keep_question(struct nsv_client *c, const struct nsv_sqe *entry, const struct prompt *p,
	struct nsv_request *r)
{
	r->question = malloc(sizeof(*r->question) + p->len);
	if (!r->question) {
		nsv_requests_delete(r);
		return nsv_fail(&c->err, -ENOMEM, "out of memory");
	}
	r->question->op = entry->op;
	r->question->flags = entry->flags;
	r->question->len = p->len;
	write_prompt(p, r->question->prompt);
	return 0;
}

/* Is this the end that a daemon's end puts to an output, and would the rest of a new one go with
 * what the caller has of it? A status is another one each time. */
static bool is_cut(const struct nsv_request *r)
{
	const struct nsv_down_slot *slot = &r->client->down.slots[r->slot];

	return r->question && r->state == NSV_SLOT_DONE && slot->finish == NSV_FINISH_ERROR &&
	       slot->code == NSV_E_CRASHED &&
	       (r->question->op != NSV_OP_STATUS || r->streams[NSV_STREAM_TEXT].read == 0);
}

int nsv_request_ask_again(struct nsv_request *r)
{
	struct nsv_client *c = r->client;
	const struct nsv_question *q = r->question;

	if (!is_cut(r) || r->cancelled)
		return 0;
	const struct prompt p = {.kind = NSV_SQE_TEXT, .data = q->prompt, .len = q->len};
	struct nsv_sqe entry = {.op = q->op,
		.flags = q->flags,
		.slot = (uint16_t)r->slot,
		.request_id = c->last_id + 1};
	uint64_t tail;
	int ret = fill_arena(c, &p, NULL, 0, &entry, &tail);
	if (ret == 0)
		ret = nsv_session_room(c);
	if (ret < 0)
		return ret == -EAGAIN ? 1 : ret; /* with more room, later */
	nsv_request_reset(r);
	ret = nsv_session_put(c, &entry, tail);
	if (ret < 0)
		return ret;
	r->id = ++c->last_id;
	free(r->question);
	r->question = NULL;
	return 1;
}

static int ask(struct nsv_client *c, uint8_t op, uint32_t flags, const struct prompt *p,
	const struct nsv_client_params *params, struct nsv_request **ret_request)
{
	struct nsv_sqe entry = {.op = op, .flags = (uint8_t)(p->kind | wire_flags(flags))};
	size_t params_len = 0;
	struct nsv_request *r;
	uint32_t n = 1;
	int ret = 0;

	if (!params && (flags & ~(uint32_t)(NSV_CLIENT_SPECIAL | NSV_CLIENT_NO_BOS)))
		ret = nsv_fail(&c->err, -EINVAL, "unknown flags %#x", flags);
	if (ret == 0 && params)
		ret = nsv_params_len(params, &params_len, &c->err);
	if (ret == 0 && params)
		ret = count_answers(c, params, &n);
	if (ret == 0)
		ret = new_requests(c, n, &r);
	if (ret == 0 && params) {
		entry.branch = params->branch;
		r->n_lp_group = flags & NSV_CLIENT_PROMPT_LOGPROBS ? 1 + params->n_logprob : 0;
	}
	if (ret == 0 && op >= NSV_OP_TOKENIZE)
		ret = keep_question(c, &entry, p, r);
	if (ret == 0)
		ret = send_entry(c, &entry, p, params, params_len, r);
	if (ret == 0)
		*ret_request = r;
	return ret;
}

static int submit(struct nsv_client *c, const struct prompt *p,
	const struct nsv_client_params *params, struct nsv_request **ret_request)
{
	struct nsv_client_params own;
	int ret = nsv_params_import(params, &own, &c->err);

	if (ret < 0)
		return ret;
	return ask(c, NSV_OP_SUBMIT, own.flags, p, &own, ret_request);
}

/* The prompt of a chat; its length is checked. */
static int chat_prompt(struct nsv_client *c, const struct nsv_client_message *messages, size_t n,
	struct prompt *ret)
{
	size_t len;
	int code = nsv_messages_len(messages, n, &len, &c->err);

	if (code == 0)
		*ret = (struct prompt){
			.kind = NSV_SQE_CHAT, .len = len, .messages = messages, .n_message = n};
	return code;
}

static struct prompt text_prompt(const char *text, size_t len)
{
	return (struct prompt){.kind = NSV_SQE_TEXT, .data = text, .len = len};
}

static int ids_prompt(struct nsv_client *c, const int32_t *ids, size_t n, struct prompt *ret)
{
	size_t len;

	if (!nsv_mul(n, sizeof(*ids), &len) || len > NSV_MAX_ARENA)
		return nsv_fail(&c->err, -E2BIG, "a prompt of %zu ids: at most %zu", n,
			NSV_MAX_ARENA / sizeof(*ids));
	*ret = (struct prompt){.kind = NSV_SQE_IDS, .data = ids, .len = len};
	return 0;
}

int nsv_client_submit_text(struct nsv_client *c, const char *text, size_t len,
	const struct nsv_client_params *params, struct nsv_request **ret_request)
{
	const struct prompt p = text_prompt(text, len);

	return submit(c, &p, params, ret_request);
}

int nsv_client_submit_ids(struct nsv_client *c, const int32_t *ids, size_t n,
	const struct nsv_client_params *params, struct nsv_request **ret_request)
{
	struct prompt p;
	int ret = ids_prompt(c, ids, n, &p);

	return ret < 0 ? ret : submit(c, &p, params, ret_request);
}

int nsv_client_submit_chat(struct nsv_client *c, const struct nsv_client_message *messages,
	size_t n, const struct nsv_client_params *params, struct nsv_request **ret_request)
{
	struct prompt p;
	int ret = chat_prompt(c, messages, n, &p);

	return ret < 0 ? ret : submit(c, &p, params, ret_request);
}

int nsv_client_tokenize(struct nsv_client *c, const char *text, size_t len, unsigned int flags,
	struct nsv_request **ret_request)
{
	const struct prompt p = text_prompt(text, len);

	return ask(c, NSV_OP_TOKENIZE, flags, &p, NULL, ret_request);
}

int nsv_client_tokenize_chat(struct nsv_client *c, const struct nsv_client_message *messages,
	size_t n, unsigned int flags, struct nsv_request **ret_request)
{
	struct prompt p;
	int ret = chat_prompt(c, messages, n, &p);

	return ret < 0 ? ret : ask(c, NSV_OP_TOKENIZE, flags, &p, NULL, ret_request);
}

int nsv_client_detokenize(
	struct nsv_client *c, const int32_t *ids, size_t n, struct nsv_request **ret_request)
{
	struct prompt p;
	int ret = ids_prompt(c, ids, n, &p);

	return ret < 0 ? ret : ask(c, NSV_OP_DETOKENIZE, 0, &p, NULL, ret_request);
}

int nsv_client_status(struct nsv_client *c, struct nsv_request **ret_request)
{
	const struct prompt p = text_prompt(NULL, 0);

	return ask(c, NSV_OP_STATUS, 0, &p, NULL, ret_request);
}

/* A request that has neither prompt nor parameters. */
static int ask_bare(
	struct nsv_client *c, struct nsv_sqe *entry, struct nsv_request **ret_request)
{
	const struct prompt none = {0};
	struct nsv_request *r;
	int ret = new_requests(c, 1, &r);

	if (ret == 0)
		ret = send_entry(c, entry, &none, NULL, 0, r);
	if (ret == 0)
		*ret_request = r;
	return ret;
}

int nsv_client_drain(struct nsv_client *c, int begin, struct nsv_request **ret_request)
{
	struct nsv_sqe entry = {.op = NSV_OP_DRAIN,
		.target_id = begin ? NSV_DRAIN_ON : NSV_DRAIN_OFF};

	return ask_bare(c, &entry, ret_request);
}

int nsv_request_fork(struct nsv_request *target, uint32_t branch, struct nsv_request **ret_request)
{
	struct nsv_sqe entry = {.op = NSV_OP_FORK, .target_id = target->id, .branch = branch};

	return ask_bare(target->client, &entry, ret_request);
}
