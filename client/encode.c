/* Parameters and chats in the wire's form: first how long, then written. */
#include "client/encode.h"

#include <string.h>

#define KNOWN_FLAGS                                                                                \
	((uint32_t)(NSV_CLIENT_SPECIAL | NSV_CLIENT_NO_BOS | NSV_CLIENT_SEED |                     \
		    NSV_CLIENT_IGNORE_END | NSV_CLIENT_LOGPROBS | NSV_CLIENT_PROMPT_LOGPROBS))

/* The structure before it had lists of ids, and before it had several answers. */
#define FIRST_SIZE offsetof(struct nsv_client_params, stop_id)
#define SECOND_SIZE offsetof(struct nsv_client_params, n_branch)

void nsv_client_params_init(struct nsv_client_params *params)
{
	*params = (struct nsv_client_params){
		.size = sizeof(*params),
		.top_p = 1,
		.typical_p = 1,
		.repetition_penalty = 1,
		.n_branch = 1,
	};
}

int nsv_params_import(
	const struct nsv_client_params *params, struct nsv_client_params *ret, struct nsv_err *err)
{
	struct nsv_client_params p;

	nsv_client_params_init(&p);
	/* A longer one may hold wishes that this library cannot honour, and nothing is ignored
	 * silently. */
	if (params && params->size != sizeof(p) && params->size != FIRST_SIZE &&
		params->size != SECOND_SIZE)
		return nsv_fail(err, -EINVAL,
			"parameters of %u bytes: nsv_client_params_init sets %zu", params->size,
			sizeof(p));
	if (params && (params->flags & ~KNOWN_FLAGS))
		return nsv_fail(err, -EINVAL, "unknown flags %#x", params->flags & ~KNOWN_FLAGS);
	if (params)
		memcpy(&p, params, params->size);
	p.size = sizeof(p);
	*ret = p;
	return 0;
}

static size_t padded(size_t len)
{
	return (len + 7) & ~(size_t)7;
}

/* One list as a record. */
struct list {
	uint32_t type;
	const void *data;
	size_t len;
};

#define N_LIST 4

static void get_lists(const struct nsv_client_params *p, struct list ret[N_LIST])
{
	const size_t id = sizeof(int32_t);

	_Static_assert(sizeof(struct nsv_client_bias) == 8, "as on the wire");
	ret[0] = (struct list){NSV_REC_STOP_IDS, p->stop_id, p->n_stop_id * id};
	ret[1] = (struct list){NSV_REC_ALLOW, p->allow, p->n_allow * id};
	ret[2] = (struct list){NSV_REC_BAN, p->ban, p->n_ban * id};
	ret[3] = (struct list){NSV_REC_BIAS, p->bias, p->n_bias * sizeof(*p->bias)};
}

/* How many are too many for a request, the daemon says; here they must only fit an arena. */
static int lists_len(const struct nsv_client_params *params, size_t *ret_len, struct nsv_err *err)
{
	struct list lists[N_LIST];
	size_t len = 0;

	get_lists(params, lists);
	for (size_t i = 0; i < N_LIST; i++) {
		if (lists[i].len > NSV_MAX_ARENA)
			return nsv_fail(err, -EINVAL, "a list of ids of %zu bytes: at most %u",
				lists[i].len, NSV_MAX_ARENA);
		if (lists[i].len > 0)
			len += sizeof(struct nsv_record) + padded(lists[i].len);
	}
	*ret_len = len;
	return 0;
}

int nsv_params_len(const struct nsv_client_params *params, size_t *ret_len, struct nsv_err *err)
{
	size_t len = sizeof(struct nsv_params), of_lists = 0;
	int ret = lists_len(params, &of_lists, err);

	if (ret < 0)
		return ret;
	if (params->n_stop > NSV_MAX_STOP)
		return nsv_fail(
			err, -EINVAL, "%u stop strings: at most %u", params->n_stop, NSV_MAX_STOP);
	for (uint32_t i = 0; i < params->n_stop; i++) {
		size_t stop_len = strlen(params->stop[i]);
		if (stop_len == 0 || stop_len >= NSV_MAX_STOP_LEN)
			return nsv_fail(err, -EINVAL, "a stop string of %zu bytes: 1 to %u",
				stop_len, NSV_MAX_STOP_LEN - 1);
		len += sizeof(struct nsv_record) + padded(stop_len);
	}
	*ret_len = len + of_lists;
	return 0;
}

static uint32_t wire_flags(uint32_t flags)
{
	uint32_t r = 0;

	if (flags & NSV_CLIENT_SEED)
		r |= NSV_PARAM_SEED;
	if (flags & NSV_CLIENT_IGNORE_END)
		r |= NSV_PARAM_IGNORE_END;
	if (flags & NSV_CLIENT_LOGPROBS)
		r |= NSV_PARAM_LOGPROBS;
	if (flags & NSV_CLIENT_PROMPT_LOGPROBS)
		r |= NSV_PARAM_PROMPT_LOGPROBS;
	return r;
}

/* A head of eight bytes (two words), the text or ids, zeros up to a multiple of 8: where the next
 * goes. */
static unsigned char *write_piece(
	unsigned char *out, uint32_t word, const void *text, size_t text_len)
{
	const uint32_t head[2] = {word, (uint32_t)text_len};

	memcpy(out, head, sizeof(head));
	out += sizeof(head);
	if (text_len > 0)
		memcpy(out, text, text_len);
	memset(out + text_len, 0, padded(text_len) - text_len);
	return out + padded(text_len);
}

void nsv_params_write(const struct nsv_client_params *params, size_t len, unsigned char *out)
{
	const struct nsv_params p = {
		.len = (uint32_t)len,
		.flags = wire_flags(params->flags),
		.seed = params->seed,
		.temperature = params->temperature,
		.top_p = params->top_p,
		.min_p = params->min_p,
		.typical_p = params->typical_p,
		.top_k = params->top_k,
		.repetition_penalty = params->repetition_penalty,
		.presence_penalty = params->presence_penalty,
		.frequency_penalty = params->frequency_penalty,
		.penalty_window = params->penalty_window,
		.max_tokens = params->max_tokens,
		.min_tokens = params->min_tokens,
		.n_logprob = params->n_logprob,
		.n_branch = params->n_branch,
		.priority = params->priority,
	};
	struct list lists[N_LIST];

	memcpy(out, &p, sizeof(p));
	out += sizeof(p);
	for (uint32_t i = 0; i < params->n_stop; i++)
		out = write_piece(out, NSV_REC_STOP, params->stop[i], strlen(params->stop[i]));
	get_lists(params, lists);
	for (size_t i = 0; i < N_LIST; i++)
		if (lists[i].len > 0)
			out = write_piece(out, lists[i].type, lists[i].data, lists[i].len);
}

int nsv_messages_len(
	const struct nsv_client_message *messages, size_t n, size_t *ret_len, struct nsv_err *err)
{
	size_t len = 0;

	if (n == 0)
		return nsv_fail(err, -EINVAL, "no messages");
	for (size_t i = 0; i < n; i++) {
		if (messages[i].role > NSV_CLIENT_ASSISTANT)
			return nsv_fail(err, -EINVAL, "message %zu has the unknown role %u", i,
				messages[i].role);
		if (messages[i].len > NSV_MAX_ARENA)
			return nsv_fail(err, -E2BIG, "message %zu has %zu bytes: at most %u", i,
				messages[i].len, NSV_MAX_ARENA);
		len += sizeof(struct nsv_message) + padded(messages[i].len);
	}
	*ret_len = len;
	return 0;
}

void nsv_messages_write(const struct nsv_client_message *messages, size_t n, unsigned char *out)
{
	for (size_t i = 0; i < n; i++)
		out = write_piece(out, messages[i].role, messages[i].text, messages[i].len);
}
