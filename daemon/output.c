/* What a token means to its request: its text, and whether it is the last one. Pure but for the
 * request's own detokenizer and stop strings, so the same tokens always give the same text at the
 * same positions: whoever takes a request over runs it over all of them again. */
#include "daemon/engine_state.h"

static bool is_end(const struct nsv_engine *e, const struct nsv_job *job, int32_t token)
{
	return (nsv_tok_is_end(e->tok, token) &&
		       !(job->wish.params.flags & NSV_PARAM_IGNORE_END)) ||
	       nsv_id_list_has(&job->wish.lists.stop, token);
}

/* Decided text to e->text. true: a stop string is complete, *ret_stop is it. */
static bool decide_text(struct nsv_engine *e, struct nsv_job *job, int32_t token, size_t *ret_len,
	const char **ret_stop)
{
	const char *p;
	size_t len;
	uint32_t which;
	char *raw = e->text + e->info.text_need;

	if (nsv_tok_piece(e->tok, token, false, &p, &len) < 0)
		len = 0;
	size_t n_raw = nsv_detok_feed(&job->gen.detok, p, len, raw);
	int stop = nsv_stop_feed(&job->wish.stop, raw, n_raw, e->text, ret_len, &which);
	if (stop)
		*ret_stop = job->wish.stop.s[which].text;
	return stop;
}

enum nsv_finish nsv_engine_read_token(struct nsv_engine *e, struct nsv_job *job, int32_t token,
	size_t *ret_len, const char **ret_stop)
{
	*ret_len = 0;
	*ret_stop = NULL;
	if (is_end(e, job, token) || decide_text(e, job, token, ret_len, ret_stop))
		return NSV_FINISH_STOP;
	return job->gen.n_prompt + job->gen.n_output >= job->gen.max_token ? NSV_FINISH_LENGTH
									   : NSV_FINISH_NONE;
}

size_t nsv_engine_flush_text(struct nsv_engine *e, struct nsv_job *job)
{
	char tail[16];
	size_t n = nsv_detok_end(&job->gen.detok, tail), len;
	uint32_t which;

	if (nsv_stop_feed(&job->wish.stop, tail, n, e->text, &len, &which) == 0)
		len += nsv_stop_end(&job->wish.stop, e->text + len);
	return len;
}
