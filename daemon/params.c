/* Parameters and chats, parsed from the daemon's own copy: nothing in it is believed. */
#include "daemon/params.h"

#include <math.h>
#include <string.h>

struct cursor {
	const unsigned char *p;
	size_t left;
};

/* The next padded piece of `len` bytes, or NULL: not that many left, or padding that is not zero.
 */
static const unsigned char *take(struct cursor *c, size_t len)
{
	const unsigned char *p = c->p;
	size_t padded;

	if (!nsv_align_up(len, 8, &padded) || padded > c->left)
		return NULL;
	for (size_t i = len; i < padded; i++)
		if (p[i])
			return NULL;
	c->p += padded;
	c->left -= padded;
	return p;
}

/* A record's body as its type reads it. */
struct record {
	const unsigned char *body;
	uint32_t len;
};

static int parse_stop(struct record rec, struct nsv_stop *stop, struct nsv_err *err)
{
	if (nsv_utf8_bad((const char *)rec.body, rec.len))
		return nsv_fail(err, NSV_E_UTF8, "a stop string is not UTF-8");
	int ret = nsv_stop_add(stop, (const char *)rec.body, rec.len);
	if (ret == -ENOSPC)
		return nsv_fail(err, NSV_E_PARAM, "more than %u stop strings", NSV_MAX_STOP);
	if (ret < 0)
		return nsv_fail(err, NSV_E_PARAM, "a stop string of %u bytes: 1 to %u are allowed",
			rec.len, NSV_MAX_STOP_LEN - 1);
	return 0;
}

/* How many entries of `size` bytes the record has; n_old are there already. */
static int count_entries(struct record rec, size_t size, uint32_t n_old, const char *name,
	uint32_t *ret_n, struct nsv_err *err)
{
	size_t n = rec.len / size;

	if (n == 0 || rec.len % size)
		return nsv_fail(
			err, NSV_E_PARAM, "%s of %u bytes: each takes %zu", name, rec.len, size);
	if (n > NSV_MAX_LIST - n_old)
		return nsv_fail(err, NSV_E_PARAM, "more than %u %s", NSV_MAX_LIST, name);
	*ret_n = (uint32_t)n;
	return 0;
}

static int check_id(int32_t id, int32_t n_vocab, const char *name, struct nsv_err *err)
{
	if (id < 0 || id >= n_vocab)
		return nsv_fail(err, NSV_E_TOKEN, "id %d among the %s: the vocabulary has %d", id,
			name, n_vocab);
	return 0;
}

static int parse_ids(struct record rec, int32_t n_vocab, const char *name, struct nsv_id_list *list,
	struct nsv_err *err)
{
	uint32_t n;
	int ret = count_entries(rec, sizeof(int32_t), list->n, name, &n, err);

	for (uint32_t i = 0; ret == 0 && i < n; i++) {
		int32_t id;

		memcpy(&id, rec.body + i * sizeof(id), sizeof(id));
		ret = check_id(id, n_vocab, name, err);
		list->id[list->n++] = id;
	}
	return ret;
}

static int parse_biases(
	struct record rec, int32_t n_vocab, struct nsv_sample_lists *lists, struct nsv_err *err)
{
	uint32_t n;
	int ret = count_entries(rec, sizeof(struct nsv_bias), lists->n_bias, "biases", &n, err);

	for (uint32_t i = 0; ret == 0 && i < n; i++) {
		struct nsv_bias b;

		memcpy(&b, rec.body + i * sizeof(b), sizeof(b));
		ret = check_id(b.id, n_vocab, "biases", err);
		if (ret == 0 && !isfinite(b.bias))
			ret = nsv_fail(err, NSV_E_PARAM,
				"the bias of id %d is %g: it must be finite", b.id, (double)b.bias);
		lists->bias[lists->n_bias++] = b;
	}
	return ret;
}

static int parse_body(
	uint32_t type, struct record rec, int32_t n_vocab, struct nsv_wish *w, struct nsv_err *err)
{
	if (type == NSV_REC_STOP)
		return parse_stop(rec, &w->stop, err);
	if (type > NSV_REC_BAN || type == 0)
		return nsv_fail(
			err, NSV_E_UNSUPPORTED, "parameter record type %u is not supported", type);
	if (type == NSV_REC_BIAS)
		return parse_biases(rec, n_vocab, &w->lists, err);
	if (type == NSV_REC_ALLOW)
		return parse_ids(rec, n_vocab, "allowed ids", &w->lists.allow, err);
	if (type == NSV_REC_BAN)
		return parse_ids(rec, n_vocab, "banned ids", &w->lists.ban, err);
	return parse_ids(rec, n_vocab, "stop ids", &w->lists.stop, err);
}

static int parse_record(struct cursor *c, int32_t n_vocab, struct nsv_wish *w, struct nsv_err *err)
{
	const unsigned char *head = take(c, sizeof(struct nsv_record));
	struct nsv_record rec;

	if (!head)
		return nsv_fail(err, NSV_E_PARAM, "a parameter record is cut off");
	memcpy(&rec, head, sizeof(rec));
	const unsigned char *body = take(c, rec.len);
	if (!body)
		return nsv_fail(err, NSV_E_PARAM,
			"a parameter record of %u bytes is cut off or badly padded", rec.len);
	return parse_body(rec.type, (struct record){body, rec.len}, n_vocab, w, err);
}

/* ---- Lists in order */

static int by_id(const void *pa, const void *pb)
{
	int32_t a, b; /* both an id and a bias begin with the id */

	memcpy(&a, pa, sizeof(a));
	memcpy(&b, pb, sizeof(b));
	return (a > b) - (a < b);
}

static void sort_ids(struct nsv_id_list *list)
{
	uint32_t n = 0;

	qsort(list->id, list->n, sizeof(*list->id), by_id);
	for (uint32_t i = 0; i < list->n; i++)
		if (n == 0 || list->id[n - 1] != list->id[i])
			list->id[n++] = list->id[i];
	list->n = n;
}

static int sort_biases(struct nsv_sample_lists *lists, struct nsv_err *err)
{
	qsort(lists->bias, lists->n_bias, sizeof(*lists->bias), by_id);
	for (uint32_t i = 1; i < lists->n_bias; i++)
		if (lists->bias[i].id == lists->bias[i - 1].id)
			return nsv_fail(
				err, NSV_E_PARAM, "two biases for id %d", lists->bias[i].id);
	return 0;
}

/* Allowed ids that are all banned leave nothing to choose from. */
static int check_allowed(const struct nsv_sample_lists *lists, struct nsv_err *err)
{
	for (uint32_t i = 0; i < lists->allow.n; i++)
		if (!nsv_id_list_has(&lists->ban, lists->allow.id[i]))
			return 0;
	return lists->allow.n ? nsv_fail(err, NSV_E_PARAM, "all of the allowed ids are banned") : 0;
}

static int finish_lists(struct nsv_sample_lists *lists, struct nsv_err *err)
{
	sort_ids(&lists->stop);
	sort_ids(&lists->allow);
	sort_ids(&lists->ban);
	int ret = sort_biases(lists, err);
	return ret ? ret : check_allowed(lists, err);
}

/* ---- Parameters */

static int parse_head(struct cursor *c, struct nsv_params *ret, struct nsv_err *err)
{
	size_t len = c->left;
	const unsigned char *head = take(c, sizeof(*ret));

	if (!head)
		return nsv_fail(err, NSV_E_PARAM, "parameters of %zu bytes: %zu is the least", len,
			sizeof(*ret));
	memcpy(ret, head, sizeof(*ret));
	if (ret->len != len)
		return nsv_fail(err, NSV_E_PARAM, "parameters say %u bytes, the entry says %zu",
			ret->len, len);
	return 0;
}

int nsv_wish_parse(const void *data, size_t len, int32_t n_vocab, struct nsv_wish *ret_wish,
	struct nsv_err *err)
{
	struct cursor c = {data, len};
	struct nsv_wish w = {.params = nsv_params_default()};
	int ret = 0;

	nsv_stop_init(&w.stop);
	if (len > 0)
		ret = parse_head(&c, &w.params, err);
	if (ret == 0)
		ret = nsv_params_check(&w.params, err);
	while (ret == 0 && c.left > 0)
		ret = parse_record(&c, n_vocab, &w, err);
	if (ret == 0)
		ret = finish_lists(&w.lists, err);
	if (ret == 0)
		*ret_wish = w;
	return ret;
}

/* ---- Messages */

static size_t count_messages(const void *data, size_t len)
{
	struct cursor c = {data, len};
	size_t n = 0;

	while (c.left > 0) {
		const unsigned char *head = take(&c, sizeof(struct nsv_message));
		struct nsv_message m;

		if (!head)
			return 0;
		memcpy(&m, head, sizeof(m));
		if (m.role >= NSV_N_ROLE || !take(&c, m.len))
			return 0;
		n++;
	}
	return n;
}

int nsv_messages_parse(const void *data, size_t len, struct nsv_chat_msg **ret_msgs, size_t *ret_n,
	struct nsv_err *err)
{
	struct cursor c = {data, len};
	size_t n = count_messages(data, len);
	struct nsv_chat_msg *msgs;

	if (n == 0)
		return nsv_fail(err, NSV_E_PARAM,
			"the chat messages are empty, cut off, badly padded or of an unknown role");
	msgs = calloc(n, sizeof(*msgs));
	if (!msgs)
		return nsv_fail(err, NSV_E_NOMEM, "no memory for %zu messages", n);
	for (size_t i = 0; i < n; i++) {
		struct nsv_message m;
		memcpy(&m, take(&c, sizeof(m)), sizeof(m));
		msgs[i] = (struct nsv_chat_msg){
			.role = m.role, .text = (const char *)take(&c, m.len), .len = m.len};
	}
	*ret_msgs = msgs;
	*ret_n = n;
	return 0;
}
