/* Chat formats: a conversation is rendered as the model's template would, with a note of which
 * stretches are the format's own; only there are control tokens recognised. Rendering first and
 * encoding then, what stands next to a marker is cut into words as in one text. */
#include <string.h>

#include "daemon/tok/tok-impl.h"
#include "daemon/tok/utf8.h"
#include "shm/abi.h"

#define MAX_BEGINS 64 /* of a system text in a template */

struct render {
	char *text;
	size_t len, cap;
	struct nsv_span *spans;
	size_t n_span, cap_span;
	int ret; /* the first error: later additions do nothing; -EINVAL: roles out of order */
};

struct nsv_chat_format {
	const char *name;
	const char *marker; /* found in the template */
	void (*render)(const struct nsv_tok *tok, const struct nsv_chat_msg *msgs, size_t n_msg,
		bool control, struct render *r);
	/* The text of a default system message lies in the template between these; or NULL. */
	const char *system_begin, *system_end;
	const char *order; /* of roles, where it refuses others: for messages */
};

/* ---- Rendering */

static int grow_spans(struct render *r)
{
	if (r->n_span < r->cap_span)
		return 0;
	size_t cap = r->cap_span ? 2 * r->cap_span : 16;
	struct nsv_span *spans = reallocarray(r->spans, cap, sizeof(*spans));
	if (!spans)
		return -ENOMEM;
	r->spans = spans;
	r->cap_span = cap;
	return 0;
}

static int grow_text(struct render *r, size_t len)
{
	if (len > INT32_MAX - r->len)
		return -E2BIG;
	if (r->len + len <= r->cap)
		return 0;
	size_t cap = nsv_max(2 * r->cap, r->len + len);
	char *text = realloc(r->text, cap);
	if (!text)
		return -ENOMEM;
	r->text = text;
	r->cap = cap;
	return 0;
}

static void add(struct render *r, const char *text, size_t len, bool control)
{
	if (r->ret == 0)
		r->ret = grow_text(r, len);
	if (r->ret == 0)
		r->ret = grow_spans(r);
	if (r->ret < 0 || len == 0)
		return;
	memcpy(r->text + r->len, text, len);
	r->len += len;
	if (r->n_span > 0 && r->spans[r->n_span - 1].control == control)
		r->spans[r->n_span - 1].end = r->len;
	else
		r->spans[r->n_span++] = (struct nsv_span){.end = r->len, .control = control};
}

static void add_marker(struct render *r, const char *text)
{
	add(r, text, strlen(text), true);
}

/* ---- The formats */

static const char *const role_names[NSV_N_ROLE] = {
	[NSV_ROLE_SYSTEM] = "system", [NSV_ROLE_USER] = "user", [NSV_ROLE_ASSISTANT] = "assistant"};

static void add_chatml(
	struct render *r, const char *role, const char *text, size_t len, bool control)
{
	add_marker(r, "<|im_start|>");
	add_marker(r, role);
	add_marker(r, "\n");
	add(r, text, len, control);
	add_marker(r, "<|im_end|>\n");
}

static void render_chatml(const struct nsv_tok *tok, const struct nsv_chat_msg *msgs, size_t n_msg,
	bool control, struct render *r)
{
	if (tok->chat_system && n_msg > 0 && msgs[0].role != NSV_ROLE_SYSTEM)
		add_chatml(r, "system", tok->chat_system, tok->chat_system_len, false);
	for (size_t i = 0; i < n_msg; i++)
		add_chatml(r, role_names[msgs[i].role], msgs[i].text, msgs[i].len, control);
	add_marker(r, "<|im_start|>assistant\n");
}

/* White space, as the strings of Python strip it. */
static bool is_space(int32_t c)
{
	return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
	       c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
	       c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Without the white space around it, as the template strips it. */
static void add_stripped(struct render *r, const struct nsv_chat_msg *msg, bool control)
{
	const char *end = msg->text + msg->len, *begin = end, *stop = msg->text;
	size_t len;

	for (const char *p = msg->text; p < end; p += len)
		if (!is_space(nsv_utf8_decode(p, &len))) {
			begin = p < begin ? p : begin;
			stop = p + len;
		}
	if (begin < stop)
		add(r, begin, (size_t)(stop - begin), control);
}

/* There is no system turn: the text goes before the first user's. Turns alternate. */
static void render_gemma(const struct nsv_tok *tok, const struct nsv_chat_msg *msgs, size_t n_msg,
	bool control, struct render *r)
{
	size_t first = n_msg > 0 && msgs[0].role == NSV_ROLE_SYSTEM;

	(void)tok;
	if (first && n_msg == 1)
		r->ret = -EINVAL;
	for (size_t i = first; i < n_msg; i++) {
		bool is_user = (i - first) % 2 == 0;

		if (msgs[i].role != (is_user ? NSV_ROLE_USER : NSV_ROLE_ASSISTANT))
			r->ret = -EINVAL;
		add_marker(r, is_user ? "<start_of_turn>user\n" : "<start_of_turn>model\n");
		if (i == first && first > 0) {
			add(r, msgs[0].text, msgs[0].len, control);
			add_marker(r, "\n\n");
		}
		add_stripped(r, &msgs[i], control);
		add_marker(r, "<end_of_turn>\n");
	}
	add_marker(r, "<start_of_turn>model\n");
}

static const struct nsv_chat_format formats[] = {
	{"chatml", "<|im_start|>", render_chatml, "<|im_start|>system", "<|im_end|>", NULL},
	{"gemma", "<start_of_turn>", render_gemma, NULL, NULL,
		"at most one system message, then user and assistant in turn"},
};

/* ---- Recognising one */

static const char *find(struct nsv_str in, size_t from, const char *what)
{
	return from > in.len ? NULL : memmem(in.p + from, in.len - from, what, strlen(what));
}

/* Plain words: nothing that could be a quote, an escape or an expression of the template. */
static bool is_plain(const char *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (strchr("'\"{}%+\\", p[i]) || (unsigned char)p[i] < ' ')
			return false;
	return len > 0;
}

/* The system text that a template holds as it stands, after a newline that may be escaped. Few begins
 * are tried: each may be looked at to the end of a template that was made to have many. */
static struct nsv_str find_system(const struct nsv_chat_format *format, struct nsv_str template)
{
	const char *begin = find(template, 0, format->system_begin);

	for (int i = 0; begin && i < MAX_BEGINS;
		i++, begin = find(template, (size_t)(begin - template.p), format->system_begin)) {
		begin += strlen(format->system_begin);
		size_t left = template.len - (size_t)(begin - template.p);
		size_t newline = left > 0 && begin[0] == '\n' ? 1 : 2;

		if (left < 2 || (newline == 2 && memcmp(begin, "\\n", 2) != 0))
			continue;
		const char *end =
			find(template, (size_t)(begin - template.p) + newline, format->system_end);
		if (end && is_plain(begin + newline, (size_t)(end - begin) - newline))
			return (struct nsv_str){begin + newline, (size_t)(end - begin) - newline};
	}
	return (struct nsv_str){0};
}

static int keep_system(struct nsv_tok *tok, struct nsv_str system)
{
	if (system.len == 0 || nsv_utf8_bad(system.p, system.len))
		return 0;
	tok->chat_system = malloc(system.len);
	if (!tok->chat_system)
		return -ENOMEM;
	memcpy(tok->chat_system, system.p, system.len);
	tok->chat_system_len = system.len;
	return 0;
}

int nsv_tok_chat_init(struct nsv_tok *tok, struct nsv_str template)
{
	for (size_t i = 0; i < NSV_ARRAY_LEN(formats); i++) {
		if (!find(template, 0, formats[i].marker))
			continue;
		tok->chat = &formats[i];
		return formats[i].system_begin
			       ? keep_system(tok, find_system(&formats[i], template))
			       : 0;
	}
	return 0;
}

const char *nsv_tok_chat_name(const struct nsv_tok *tok)
{
	return tok->chat ? tok->chat->name : NULL;
}

/* ---- Encoding a conversation */

static int check_msgs(const struct nsv_chat_msg *msgs, size_t n_msg, struct nsv_err *err)
{
	for (size_t i = 0; i < n_msg; i++) {
		if (msgs[i].role >= NSV_N_ROLE)
			return nsv_fail(err, -EINVAL, "message %zu has role %u, expected 0 to %d",
				i, msgs[i].role, NSV_N_ROLE - 1);
		size_t bad = nsv_utf8_bad(msgs[i].text, msgs[i].len);
		if (bad)
			return nsv_fail(
				err, -EILSEQ, "message %zu is not UTF-8 at byte %zu", i, bad - 1);
	}
	return 0;
}

int nsv_tok_chat(const struct nsv_tok *tok, const struct nsv_chat_msg *msgs, size_t n_msg,
	unsigned int flags, struct nsv_ids *ids, struct nsv_err *err)
{
	struct render r = {0};

	if (!tok->chat)
		return nsv_fail(err, -ENOTSUP, "the model has no known chat format");
	int ret = check_msgs(msgs, n_msg, err);
	if (ret < 0)
		return ret;
	tok->chat->render(tok, msgs, n_msg, flags & NSV_TOK_SPECIAL, &r);
	if (r.ret == -EINVAL)
		ret = nsv_fail(err, r.ret, "the chat format %s wants %s", tok->chat->name,
			tok->chat->order);
	else if (r.ret == -E2BIG)
		ret = nsv_fail(err, r.ret, "the conversation has over %d bytes", INT32_MAX);
	else if (r.ret < 0)
		ret = nsv_fail(err, r.ret, "no memory to render the conversation");
	else
		ret = nsv_tok_encode_spans(
			tok, r.text, r.spans, r.n_span, flags & NSV_TOK_NO_BOS, ids, err);
	free(r.text);
	free(r.spans);
	return ret;
}
