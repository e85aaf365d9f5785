/* Everything that a forward pass writes, carved out of one allocation when the model is made. */
#include <string.h>
#include <sys/mman.h>

#include "daemon/model/model-impl.h"

#define ALIGN 64
#define HUGE_PAGE (2u << 20) /* what may have large pages is aligned to them */

/* Walked twice: without a base it only measures. */
struct carver {
	char *base;
	size_t at;
	bool overflow;
};

static void *carve(struct carver *c, size_t n, size_t elem_len)
{
	size_t len, begin = c->at;

	if (!nsv_mul(n, elem_len, &len) || !nsv_add(begin, len, &len) ||
		!nsv_align_up(len, ALIGN, &c->at))
		c->overflow = true;
	return c->base ? c->base + begin : NULL;
}

static void *carve_floats(struct carver *c, uint32_t n_row, uint32_t n)
{
	return carve(c, (size_t)n_row * n, sizeof(float));
}

static size_t widest_acts(const struct nsv_model *m, uint32_t n_row)
{
	const struct nsv_model_desc *d = &m->desc;
	const uint32_t n_in[] = {d->n_embd, nsv_n_q(d), d->n_ff};
	size_t len = 0;

	for (size_t i = 0; i < NSV_ARRAY_LEN(n_in); i++)
		len = nsv_max(len, m->backend->acts_len(n_row, n_in[i]));
	return len;
}

static void carve_lane(const struct nsv_model *m, struct carver *c, uint32_t n_row, uint32_t n_x,
	struct nsv_lane *lane)
{
	const struct nsv_model_desc *d = &m->desc;

	lane->x = carve_floats(c, n_x, d->n_embd);
	lane->norm = carve_floats(c, n_row, d->n_embd);
	lane->act = carve_floats(c, n_row, d->n_ff);
	lane->acts = carve(c, widest_acts(m, n_row), 1);
	lane->qkv = carve_floats(c, n_row, nsv_n_qkv(d));
	lane->ff = carve_floats(c, n_row, 2 * d->n_ff);
	lane->y = carve_floats(c, n_row, d->n_embd);
}

static void carve_all(const struct nsv_model *m, struct carver *c, struct nsv_scratch *s)
{
	const struct nsv_model_desc *d = &m->desc;

	carve_lane(m, c, m->max_row, m->max_row, &s->shared);
	for (uint32_t i = 0; i < nsv_team_size(m->team); i++)
		carve_lane(m, c, NSV_LANE_ROWS, NSV_OWN_ROWS, &s->own[i]);
	for (uint32_t kind = 0; kind < nsv_n_layer_kind(d); kind++)
		s->cs[kind] = carve_floats(c, m->max_row, d->n_rot);
	s->q = carve_floats(c, m->max_row, nsv_n_q(d));
	s->attn = carve_floats(c, m->max_row, nsv_n_q(d));
	s->attention = carve(c, s->attention_len, 1);
}

/* Huge pages where they can be had: a start clears thousands of small ones ten times slower. */
static void *alloc_cleared(size_t len)
{
	size_t whole;
	void *mem = nsv_align_up(len, HUGE_PAGE, &whole) ? aligned_alloc(HUGE_PAGE, whole) : NULL;

	if (mem) {
		(void)madvise(mem, whole, MADV_HUGEPAGE);
		memset(mem, 0, len);
	}
	return mem;
}

int nsv_scratch_init(struct nsv_model *m, struct nsv_err *err)
{
	const struct nsv_model_desc *d = &m->desc;
	struct nsv_attn_shape shape = {.n_head = d->n_head, .head_dim = d->head_dim};
	struct nsv_scratch *s = &m->scratch;
	struct carver c = {0};

	if (nsv_attn_scratch_len(&shape, m->max_row, d->n_ctx, &s->attention_len) != NSV_ATTN_OK)
		return nsv_fail(err, -EOVERFLOW, "the scratch of attention does not fit");
	s->own = calloc(nsv_team_size(m->team), sizeof(*s->own));
	if (!s->own)
		return nsv_fail(err, -ENOMEM, "no memory for the model");
	carve_all(m, &c, s);
	if (c.overflow)
		return nsv_fail(err, -EOVERFLOW, "the scratch of a step does not fit");
	s->mem = alloc_cleared(c.at);
	if (!s->mem)
		return nsv_fail(err, -ENOMEM, "no memory for %zu bytes of scratch", c.at);
	c = (struct carver){.base = s->mem};
	carve_all(m, &c, s);
	return 0;
}

void nsv_scratch_deinit(struct nsv_scratch *s)
{
	free(s->mem);
	free(s->own);
	memset(s, 0, sizeof(*s));
}
