/* What an entry asks for: parameters parsed, text to ids, ids to text. */
#include "daemon/job.h"

#include <string.h>

#define MAX_OUTPUT (64u << 20) /* bytes of a detokenized text */

void nsv_job_init_msgs(struct nsv_job *job)
{
	job->submit = (struct nsv_job_msg){{.kind = NSV_MSG_SUBMIT}, job};
	job->cancel = (struct nsv_job_msg){{.kind = NSV_MSG_CANCEL}, job};
	job->release = (struct nsv_job_msg){{.kind = NSV_MSG_RELEASE}, job};
	job->prepare = (struct nsv_job_msg){{.kind = NSV_MSG_PREPARE}, job};
	job->answer = (struct nsv_job_msg){{.kind = NSV_MSG_ACCEPTED}, job};
	job->end = (struct nsv_job_msg){{.kind = NSV_MSG_ENDED}, job};
}

void nsv_job_free(struct nsv_job *job)
{
	if (!job)
		return;
	free(job->input);
	free(job->params_data);
	free(job->text);
	free(job->status);
	nsv_ids_deinit(&job->ids);
	free(job);
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
	case -E2BIG:
		return NSV_E_LIMIT;
	case -EINVAL:
		return NSV_E_PARAM;
	default:
		return NSV_E_INTERNAL;
	}
}

static unsigned int tok_flags(const struct nsv_job *job)
{
	return (job->flags & NSV_SQE_SPECIAL ? NSV_TOK_SPECIAL : 0u) |
	       (job->flags & NSV_SQE_NO_BOS ? NSV_TOK_NO_BOS : 0u);
}

static enum nsv_code read_ids(struct nsv_job *job, const struct nsv_tok *tok)
{
	int32_t n_vocab = nsv_tok_n_vocab(tok);

	if (job->input_len % sizeof(int32_t))
		return nsv_fail(&job->err, NSV_E_ENTRY, "%zu bytes are not a whole number of ids",
			job->input_len);
	for (size_t i = 0; i < job->input_len / sizeof(int32_t); i++) {
		int32_t id;
		memcpy(&id, job->input + i * sizeof(id), sizeof(id));
		if (id < 0 || id >= n_vocab)
			return nsv_fail(&job->err, NSV_E_TOKEN,
				"id %d at place %zu: the vocabulary has %d", id, i, n_vocab);
		if (nsv_ids_push(&job->ids, id) < 0)
			return nsv_fail(&job->err, NSV_E_NOMEM, "no memory for the ids");
	}
	return NSV_E_OK;
}

static enum nsv_code read_chat(struct nsv_job *job, const struct nsv_tok *tok)
{
	struct nsv_chat_msg *msgs;
	size_t n;
	int ret = nsv_messages_parse(job->input, job->input_len, &msgs, &n, &job->err);

	if (ret != 0)
		return (enum nsv_code)ret;
	ret = nsv_tok_chat(tok, msgs, n, tok_flags(job), &job->ids, &job->err);
	free(msgs);
	return code_of(ret);
}

static enum nsv_code read_prompt(struct nsv_job *job, const struct nsv_tok *tok)
{
	switch (job->flags & NSV_SQE_KIND) {
	case NSV_SQE_TEXT:
		return code_of(nsv_tok_encode(
			tok, job->input, job->input_len, tok_flags(job), &job->ids, &job->err));
	case NSV_SQE_IDS:
		return read_ids(job, tok);
	case NSV_SQE_CHAT:
		return read_chat(job, tok);
	default:
		return nsv_fail(&job->err, NSV_E_ENTRY, "unknown kind of prompt");
	}
}

/* Ids to text: whole characters, control tokens where the flag asks for them. */
static enum nsv_code write_text(struct nsv_job *job, const struct nsv_tok *tok)
{
	struct nsv_detok detok = {0};
	size_t cap = 16;
	const char *p;
	size_t len;

	for (size_t i = 0; i < job->ids.n; i++)
		if (nsv_tok_piece(tok, job->ids.v[i], job->flags & NSV_SQE_SPECIAL, &p, &len) == 0)
			cap += 3 * (len + 4);
	if (cap > MAX_OUTPUT)
		return nsv_fail(&job->err, NSV_E_LIMIT,
			"the text of %zu ids may have %zu bytes: %u are allowed", job->ids.n, cap,
			MAX_OUTPUT);
	job->text = malloc(cap);
	if (!job->text)
		return nsv_fail(&job->err, NSV_E_NOMEM, "no memory for the text");
	for (size_t i = 0; i < job->ids.n; i++)
		if (nsv_tok_piece(tok, job->ids.v[i], job->flags & NSV_SQE_SPECIAL, &p, &len) == 0)
			job->text_len += nsv_detok_feed(&detok, p, len, job->text + job->text_len);
	job->text_len += nsv_detok_end(&detok, job->text + job->text_len);
	char *exact = realloc(job->text, nsv_max(job->text_len, 1));
	job->text = exact ? exact : job->text;
	nsv_ids_deinit(&job->ids); /* they were the input, not the output */
	return NSV_E_OK;
}

void nsv_job_prepare(struct nsv_job *job, const struct nsv_tok *tok)
{
	enum nsv_code code = NSV_E_OK;

	if (job->op == NSV_OP_SUBMIT)
		code = (enum nsv_code)nsv_wish_parse(job->params_data, job->params_len,
			nsv_tok_n_vocab(tok), &job->wish, &job->err);
	if (code == NSV_E_OK)
		code = job->op == NSV_OP_DETOKENIZE ? read_ids(job, tok) : read_prompt(job, tok);
	if (code == NSV_E_OK && job->op == NSV_OP_DETOKENIZE)
		code = write_text(job, tok);
	free(job->input);
	job->input = NULL;
	job->code = code;
}

int nsv_job_copy(struct nsv_job *job, const struct nsv_job *first)
{
	job->params_data = malloc(first->params_len + 1u);
	if (!job->params_data)
		return -ENOMEM;
	if (first->params_len)
		memcpy(job->params_data, first->params_data, first->params_len);
	job->params_len = first->params_len;
	job->wish = first->wish;
	nsv_params_drop_prompt_logprobs(&job->wish.params);
	job->gen.seed = first->gen.seed;
	for (size_t i = 0; i < first->ids.n; i++)
		if (nsv_ids_push(&job->ids, first->ids.v[i]) < 0)
			return -ENOMEM;
	return 0;
}
