/* Reading a request: from the logs in `down` to buffers that the caller may look at. */
#include "client/session.h"

static int grow(struct nsv_stream *s, size_t n)
{
	size_t need = (s->len + n) * s->size;
	size_t cap = nsv_max(need, s->cap * 2);

	if (need <= s->cap)
		return 0;
	unsigned char *buf = realloc(s->buf, cap);
	if (!buf)
		return -ENOMEM;
	s->buf = buf;
	s->cap = cap;
	return 0;
}

/* Appends all that the logs hold to the buffers and moves the cursors. 0: nothing there, 1, -errno.
 */
static int pull(struct nsv_request *r)
{
	bool moved = false, stalled = false;

	for (int i = 0; i < NSV_N_STREAM; i++) {
		struct nsv_stream *s = &r->streams[i];
		uint32_t n = (uint32_t)(s->end - s->read);
		if (n == 0)
			continue;
		uint32_t had = (uint32_t)nsv_min_u64(n, s->skip);
		if (grow(s, n - had) < 0)
			return nsv_fail(&r->client->err, -ENOMEM, "out of memory");
		nsv_log_get(
			s->log, s->n, s->size, s->read + had, s->buf + s->len * s->size, n - had);
		s->len += n - had;
		s->skip -= had;
		s->read = s->end;
		stalled |= nsv_cursor_move(s->cursor, s->read, &r->client->down.slots[r->slot]);
		moved |= n > had;
	}
	if (moved && !r->first_ns)
		r->first_ns = nsv_clock_ns();
	/* A daemon that has gone is noticed by whoever reads next; what was pulled counts. */
	if (stalled && !r->client->broken)
		(void)nsv_session_ring(r->client);
	return moved;
}

/* 1: the buffers got something, 0: ended and finished, -EAGAIN: nothing yet, -errno. */
static int step(struct nsv_request *r)
{
	struct nsv_client *c = r->client;

	if (r->finished)
		return 0;
	if (nsv_request_look(r) < 0)
		return nsv_session_break(c, -EPROTO, "the daemon broke the protocol");
	int ret = pull(r);
	if (ret != 0)
		return ret;
	if (!nsv_request_at_end(r)) {
		ret = nsv_session_take(c);
		if (ret < 0)
			return ret;
		ret = pull(r);
		if (ret != 0)
			return ret;
	}
	if (!nsv_request_at_end(r))
		return -EAGAIN;
	ret = nsv_request_ask_again(r);
	if (ret != 0)
		return ret < 0 ? ret : -EAGAIN;
	nsv_request_finish(r);
	return 0;
}

static void forget_buffers(struct nsv_request *r)
{
	for (int i = 0; i < NSV_N_STREAM; i++)
		r->streams[i].len = 0;
}

static bool has_output(const struct nsv_request *r)
{
	const struct nsv_stream *s = r->streams;

	return s[NSV_STREAM_TEXT].len || s[NSV_STREAM_TOKENS].len || s[NSV_STREAM_LPS].len;
}

/* How many of the log-probabilities in the buffer are the prompt's: they come before all others. */
static size_t count_prompt_lps(const struct nsv_request *r)
{
	const struct nsv_stream *s = &r->streams[NSV_STREAM_LPS];
	uint64_t begin = s->read - s->len;
	uint64_t end = r->n_prompt ? (uint64_t)(r->n_prompt - 1) * r->n_lp_group : 0;

	return begin < end ? (size_t)nsv_min_u64(end - begin, s->len) : 0;
}

static struct nsv_client_chunk chunk_of(const struct nsv_request *r)
{
	const struct nsv_stream *s = r->streams;

	return (struct nsv_client_chunk){
		.size = sizeof(struct nsv_client_chunk),
		.text = (const char *)s[NSV_STREAM_TEXT].buf,
		.text_len = s[NSV_STREAM_TEXT].len,
		.tokens = (const int32_t *)s[NSV_STREAM_TOKENS].buf,
		.n_token = s[NSV_STREAM_TOKENS].len,
		.lps = (const struct nsv_client_lp *)s[NSV_STREAM_LPS].buf,
		.n_lp = s[NSV_STREAM_LPS].len,
		.n_prompt_lp = count_prompt_lps(r),
	};
}

/* `step`, again and again until the deadline. */
static int step_until(struct nsv_request *r, int timeout_ms, int64_t deadline_ns)
{
	int woken = 0;

	for (;;) {
		int ret = step(r);
		if (ret != -EAGAIN || timeout_ms == 0)
			return ret;
		if (woken < 0)
			return woken;
		woken = nsv_session_wait(r->client, deadline_ns);
	}
}

static int fail_timeout(struct nsv_request *r, int code)
{
	if (code == -ETIMEDOUT)
		return nsv_fail(&r->client->err, code, "no output within the time given");
	if (code == -EINTR)
		return nsv_fail(&r->client->err, code, "interrupted by a signal");
	return code;
}

static int check_size(struct nsv_request *r, const struct nsv_client_chunk *chunk)
{
	if (chunk->size != sizeof(*chunk))
		return nsv_fail(&r->client->err, -EINVAL, "a chunk of %u bytes: its size is %zu",
			chunk->size, sizeof(*chunk));
	return 0;
}

int nsv_request_next(struct nsv_request *r, int timeout_ms, struct nsv_client_chunk *ret_chunk)
{
	/* What an unfinished nsv_request_collect has gathered is the first chunk. */
	bool gathered = r->collecting && has_output(r);

	if (check_size(r, ret_chunk) < 0)
		return -EINVAL;
	if (!gathered)
		forget_buffers(r);
	r->collecting = false;
	int ret = gathered ? 1 : step_until(r, timeout_ms, nsv_deadline_ns(timeout_ms));
	if (ret > 0)
		*ret_chunk = chunk_of(r);
	return fail_timeout(r, ret);
}

int nsv_request_collect(struct nsv_request *r, int timeout_ms, struct nsv_client_chunk *ret_chunk)
{
	int64_t deadline = nsv_deadline_ns(timeout_ms);
	int ret = check_size(r, ret_chunk);

	if (ret < 0)
		return ret;
	if (!r->collecting)
		forget_buffers(r);
	r->collecting = true;
	do
		ret = step_until(r, timeout_ms, deadline);
	while (ret > 0 && (deadline < 0 || nsv_request_at_end(r) || nsv_clock_ns() < deadline));
	if (ret > 0) /* output without end is no reason to stay longer */
		ret = timeout_ms == 0 ? -EAGAIN : -ETIMEDOUT;
	if (ret == 0)
		*ret_chunk = chunk_of(r);
	return fail_timeout(r, ret);
}

int nsv_request_result(const struct nsv_request *r, struct nsv_client_result *ret_result)
{
	if (!r->finished)
		return -EAGAIN;
	if (ret_result->size != sizeof(*ret_result))
		return -EINVAL;
	*ret_result = r->result;
	ret_result->size = sizeof(*ret_result);
	ret_result->first_ns = r->first_ns ? (uint64_t)(r->first_ns - r->start_ns) : 0;
	ret_result->total_ns = (uint64_t)(r->end_ns - r->start_ns);
	ret_result->text = r->text;
	ret_result->stop = r->stop;
	return 0;
}
