/* SentencePiece by score: neighbours joined through a list and a heap. */
#include "daemon/tok/spm.h"

#include <math.h>
#include <string.h>

#include "daemon/tok/heap.h"
#include "daemon/tok/utf8.h"

#define SPACE "\xe2\x96\x81" /* U+2581 */
#define SPACE_LEN 3
#define NO_RANK UINT32_MAX
#define NONE UINT32_MAX

/* ---- Loading */

/* Keeps the order of floats, turned round: the highest score is the lowest number. */
static uint32_t rank_of_score(float score)
{
	uint32_t bits;

	score += 0.0f; /* one zero, not two */
	memcpy(&bits, &score, sizeof(bits));
	return bits >> 31 ? bits : 0x7fffffff - bits;
}

int nsv_spm_init(struct nsv_spm *spm, const void *scores, size_t n)
{
	struct nsv_spm s = {.rank = calloc(n, sizeof(*s.rank))};

	if (!s.rank)
		return -ENOMEM;
	memset(s.byte_id, 0xff, sizeof(s.byte_id));
	for (size_t i = 0; i < n; i++) {
		float score;

		memcpy(&score, (const char *)scores + i * sizeof(score), sizeof(score));
		if (!isfinite(score)) {
			free(s.rank);
			return -EINVAL;
		}
		s.rank[i] = rank_of_score(score);
	}
	*spm = s;
	return 0;
}

void nsv_spm_deinit(struct nsv_spm *spm)
{
	free(spm->rank);
	spm->rank = NULL;
}

size_t nsv_spm_unescape(struct nsv_str s, char *out)
{
	size_t n = 0;

	for (size_t i = 0; i < s.len;) {
		bool space = s.len - i >= SPACE_LEN && memcmp(s.p + i, SPACE, SPACE_LEN) == 0;

		out[n++] = space ? ' ' : s.p[i];
		i += space ? SPACE_LEN : 1;
	}
	return n;
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int nsv_spm_byte(struct nsv_str s)
{
	if (s.len != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>')
		return -1;
	int high = hex_digit(s.p[3]), low = hex_digit(s.p[4]);
	return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* ---- Joining */

/* A stretch of the text, at the index of its first byte. */
struct node {
	uint32_t len; /* 0: joined to the one before */
	uint32_t prev, next;
};

struct work {
	const struct nsv_spm *spm;
	const struct nsv_strmap *vocab;
	const char *text;
	struct node *node;
	struct nsv_heap heap;
};

/* The rank of what the stretch and its next would be together. */
static uint32_t pair_rank(const struct work *w, uint32_t at)
{
	const struct node *node = &w->node[at];
	uint32_t id;

	if (node->len == 0 || node->next == NONE)
		return NO_RANK;
	struct nsv_str both = {w->text + at, (size_t)node->len + w->node[node->next].len};
	if (both.len > w->spm->max_len || !nsv_strmap_get(w->vocab, both, &id))
		return NO_RANK;
	return w->spm->rank[id];
}

static void propose(struct work *w, uint32_t at)
{
	uint32_t rank = pair_rank(w, at);

	if (rank != NO_RANK)
		nsv_heap_push(&w->heap, rank, at);
}

static void join_at(struct work *w, uint32_t at)
{
	struct node *node = &w->node[at], *gone = &w->node[node->next];

	node->len += gone->len;
	node->next = gone->next;
	gone->len = 0;
	if (node->next != NONE)
		w->node[node->next].prev = at;
	propose(w, at);
	if (node->prev != NONE)
		propose(w, node->prev);
}

static void cut_chars(struct work *w, size_t len)
{
	uint32_t prev = NONE;
	size_t n;

	for (size_t i = 0; i < len; i += n) {
		nsv_utf8_decode(w->text + i, &n);
		w->node[i] =
			(struct node){(uint32_t)n, prev, i + n < len ? (uint32_t)(i + n) : NONE};
		prev = (uint32_t)i;
	}
	for (uint32_t i = 0; i != NONE; i = w->node[i].next)
		propose(w, i);
}

static int push_bytes(
	const struct work *w, struct nsv_str s, struct nsv_ids *ids, struct nsv_err *err)
{
	int ret = 0;

	for (size_t i = 0; i < s.len && ret == 0; i++) {
		int32_t id = w->spm->byte_id[(unsigned char)s.p[i]];

		if (id < 0)
			return nsv_fail(err, -ENOTSUP,
				"the model has no token for the byte 0x%02x of the text",
				(unsigned char)s.p[i]);
		ret = nsv_ids_push(ids, id);
	}
	return ret;
}

static int push_all(const struct work *w, struct nsv_ids *ids, struct nsv_err *err)
{
	int ret = 0;

	for (uint32_t i = 0; i != NONE && ret == 0; i = w->node[i].next) {
		struct nsv_str s = {w->text + i, w->node[i].len};
		uint32_t id;

		if (nsv_strmap_get(w->vocab, s, &id))
			ret = nsv_ids_push(ids, (int32_t)id);
		else
			ret = push_bytes(w, s, ids, err);
	}
	return ret;
}

static int join_all(struct work *w, size_t len)
{
	uint32_t rank, at;

	/* Every join takes at least one entry out and puts at most two in. */
	w->node = malloc(len * sizeof(*w->node));
	w->heap.v = malloc(2 * len * sizeof(*w->heap.v));
	if (!w->node || !w->heap.v)
		return -ENOMEM;
	cut_chars(w, len);
	while (w->heap.n > 0) {
		nsv_heap_pop(&w->heap, &rank, &at);
		if (pair_rank(w, at) == rank)
			join_at(w, at);
	}
	return 0;
}

int nsv_spm_text(const struct nsv_spm *spm, const struct nsv_strmap *vocab, const char *text,
	size_t len, struct nsv_ids *ids, struct nsv_err *err)
{
	nsv_autofree char *copy = malloc(len + 1);
	struct work w = {.spm = spm, .vocab = vocab, .text = copy};

	if (len == 0)
		return 0;
	if (!copy)
		return -ENOMEM;
	copy[0] = ' ';
	size_t n = nsv_spm_unescape((struct nsv_str){text, len}, copy + spm->space_prefix);
	int ret = join_all(&w, n + spm->space_prefix);
	if (ret == 0)
		ret = push_all(&w, ids, err);
	free(w.node);
	free(w.heap.v);
	return ret;
}
