#include "daemon/params.h"

#include <string.h>

#include "daemon/sample.h"

struct cursor {
	const unsigned char *p;
	size_t left;
};

/* The next padded piece of `len` bytes, or NULL: not that many left, or padding that is not zero. */
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

static int parse_record(struct cursor *c, struct nsv_stop *stop, struct nsv_err *err)
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
	if (rec.type != NSV_REC_STOP)
		return nsv_fail(err, NSV_E_UNSUPPORTED,
			"parameter record type %u is not supported", rec.type);
	if (nsv_utf8_bad((const char *)body, rec.len))
		return nsv_fail(err, NSV_E_UTF8, "a stop string is not UTF-8");
	int ret = nsv_stop_add(stop, (const char *)body, rec.len);
	if (ret == -ENOSPC)
		return nsv_fail(err, NSV_E_PARAM, "more than %u stop strings", NSV_MAX_STOP);
	if (ret < 0)
		return nsv_fail(err, NSV_E_PARAM, "a stop string of %u bytes: 1 to %u are allowed",
			rec.len, NSV_MAX_STOP_LEN - 1);
	return 0;
}

int nsv_params_parse(const void *data, size_t len, struct nsv_params *ret_params,
	struct nsv_stop *ret_stop, struct nsv_err *err)
{
	struct cursor c = {data, len};
	struct nsv_params p = nsv_params_default();

	nsv_stop_init(ret_stop);
	if (len > 0) {
		const unsigned char *head = take(&c, sizeof(p));
		if (!head)
			return nsv_fail(err, NSV_E_PARAM, "parameters of %zu bytes: %zu is the least",
				len, sizeof(p));
		memcpy(&p, head, sizeof(p));
		if (p.len != len)
			return nsv_fail(err, NSV_E_PARAM,
				"parameters say %u bytes, the entry says %zu", p.len, len);
	}
	int ret = nsv_params_check(&p, err);
	while (ret == 0 && c.left > 0)
		ret = parse_record(&c, ret_stop, err);
	if (ret == 0)
		*ret_params = p;
	return ret;
}

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
