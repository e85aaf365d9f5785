#include "daemon/request.h"

#include <string.h>

void nsv_request_init_msgs(struct nsv_request *req)
{
	req->submit = (struct nsv_request_msg){{.kind = NSV_MSG_SUBMIT}, req};
	req->cancel = (struct nsv_request_msg){{.kind = NSV_MSG_CANCEL}, req};
	req->release = (struct nsv_request_msg){{.kind = NSV_MSG_RELEASE}, req};
	req->prepare = (struct nsv_request_msg){{.kind = NSV_MSG_PREPARE}, req};
	req->answer = (struct nsv_request_msg){{.kind = NSV_MSG_ACCEPTED}, req};
	req->end = (struct nsv_request_msg){{.kind = NSV_MSG_ENDED}, req};
}

void nsv_request_free(struct nsv_request *req)
{
	if (!req)
		return;
	free(req->input);
	free(req->params_data);
	free(req->text);
	nsv_ids_deinit(&req->ids);
	free(req);
}

/* What a tokenizer's error means to a client. */
static enum nsv_code code_of(int ret)
{
	switch (ret) {
	case 0:
		return NSV_E_OK;
	case -EILSEQ:
		return NSV_E_UTF8;
	case -ENOMEM:
		return NSV_E_NOMEM;
	case -ENOTSUP:
		return NSV_E_UNSUPPORTED;
	default:
		return NSV_E_INTERNAL;
	}
}

static unsigned int tok_flags(const struct nsv_request *req)
{
	return (req->flags & NSV_SQE_SPECIAL ? NSV_TOK_SPECIAL : 0u) |
	       (req->flags & NSV_SQE_NO_BOS ? NSV_TOK_NO_BOS : 0u);
}

static enum nsv_code read_ids(struct nsv_request *req, const struct nsv_tok *tok)
{
	int32_t n_vocab = nsv_tok_n_vocab(tok);

	if (req->input_len % sizeof(int32_t))
		return nsv_fail(&req->err, NSV_E_ENTRY, "%zu bytes are no whole number of ids",
			req->input_len);
	for (size_t i = 0; i < req->input_len / sizeof(int32_t); i++) {
		int32_t id;
		memcpy(&id, req->input + i * sizeof(id), sizeof(id));
		if (id < 0 || id >= n_vocab)
			return nsv_fail(&req->err, NSV_E_TOKEN,
				"id %d at place %zu: the vocabulary has %d", id, i, n_vocab);
		if (nsv_ids_push(&req->ids, id) < 0)
			return nsv_fail(&req->err, NSV_E_NOMEM, "no memory for the ids");
	}
	return NSV_E_OK;
}

static enum nsv_code read_chat(struct nsv_request *req, const struct nsv_tok *tok)
{
	struct nsv_chat_msg *msgs;
	size_t n;
	int ret = nsv_messages_parse(req->input, req->input_len, &msgs, &n, &req->err);

	if (ret != 0)
		return (enum nsv_code)ret;
	ret = nsv_tok_chat(tok, msgs, n, tok_flags(req), &req->ids, &req->err);
	free(msgs);
	return code_of(ret);
}

static enum nsv_code read_prompt(struct nsv_request *req, const struct nsv_tok *tok)
{
	switch (req->flags & NSV_SQE_KIND) {
	case NSV_SQE_TEXT:
		return code_of(nsv_tok_encode(
			tok, req->input, req->input_len, tok_flags(req), &req->ids, &req->err));
	case NSV_SQE_IDS:
		return read_ids(req, tok);
	case NSV_SQE_CHAT:
		return read_chat(req, tok);
	default:
		return nsv_fail(&req->err, NSV_E_ENTRY, "unknown kind of prompt");
	}
}

/* Ids to text: whole characters, control tokens where the flag asks for them. */
static enum nsv_code write_text(struct nsv_request *req, const struct nsv_tok *tok)
{
	struct nsv_detok detok = {0};
	size_t cap = 16;
	const char *p;
	size_t len;

	for (size_t i = 0; i < req->ids.n; i++)
		if (nsv_tok_piece(tok, req->ids.v[i], req->flags & NSV_SQE_SPECIAL, &p, &len) == 0)
			cap += 3 * (len + 4);
	req->text = malloc(cap);
	if (!req->text)
		return nsv_fail(&req->err, NSV_E_NOMEM, "no memory for the text");
	for (size_t i = 0; i < req->ids.n; i++)
		if (nsv_tok_piece(tok, req->ids.v[i], req->flags & NSV_SQE_SPECIAL, &p, &len) == 0)
			req->text_len += nsv_detok_feed(&detok, p, len, req->text + req->text_len);
	req->text_len += nsv_detok_end(&detok, req->text + req->text_len);
	req->ids.n = 0; /* they were the input, not the output */
	return NSV_E_OK;
}

void nsv_request_prepare(struct nsv_request *req, const struct nsv_tok *tok)
{
	enum nsv_code code = NSV_E_OK;

	if (req->op == NSV_OP_SUBMIT)
		code = (enum nsv_code)nsv_params_parse(
			req->params_data, req->params_len, &req->params, &req->stop, &req->err);
	if (code == NSV_E_OK)
		code = req->op == NSV_OP_DETOKENIZE ? read_ids(req, tok) : read_prompt(req, tok);
	if (code == NSV_E_OK && req->op == NSV_OP_DETOKENIZE)
		code = write_text(req, tok);
	free(req->input);
	req->input = NULL;
	req->code = code;
}
