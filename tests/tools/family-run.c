/* Team, pool and steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "tests/tools/family-run.h"
#include "tests/tools/rnd.h"

const struct nsv_backend *family_backend(const char *name)
{
	const struct nsv_backend *backend = NULL;

	assert_int_equal(nsv_backend_choose(name, &backend, NULL), 0);
	return backend;
}

/* Scale and window are the model's to set: what is here must not matter. */
static struct nsv_attn_shape make_shape(int64_t block, int64_t head, uint32_t n_block)
{
	const struct nsv_kv_layout layout = {block, FAMILY_HEAD_DIM, head, 1};

	return (struct nsv_attn_shape){.n_head = FAMILY_N_HEAD,
		.n_kv_head = FAMILY_N_KV_HEAD,
		.head_dim = FAMILY_HEAD_DIM,
		.block_size = FAMILY_BLOCK,
		.n_block = n_block,
		.kv_dtype = NSV_F32,
		.window = 1,
		.scale = 77,
		.k = layout,
		.v = layout};
}

void family_run_open(struct family_run *r, const struct family_file *f,
	const struct nsv_backend *backend, uint32_t n_member, uint32_t n_block)
{
	const struct nsv_model_config config = {
		.max_row = FAMILY_MAX_ROW, .max_out = FAMILY_MAX_ROW};
	const int64_t head = FAMILY_HEAD_DIM * FAMILY_BLOCK, plane = FAMILY_N_KV_HEAD * head;
	struct nsv_err err = {""};

	*r = (struct family_run){.dispatch = {.backend = backend}};
	assert_int_equal(nsv_team_new(n_member, &r->team), 0);
	if (nsv_model_new(f->g, backend, r->team, &config, &r->m, &err) < 0)
		fail_msg("%s", err.text);
	const int64_t block = 2 * nsv_model_get_desc(r->m)->n_layer * plane;
	r->pool = calloc((size_t)block * n_block, sizeof(float));
	assert_non_null(r->pool);
	r->kv = (struct nsv_model_kv){.base = r->pool,
		.layer_stride = 2 * (size_t)plane * sizeof(float),
		.v_off = (size_t)plane * sizeof(float),
		.shape = make_shape(block, head, n_block)};
}

void family_run_close(struct family_run *r)
{
	free(r->pool);
	nsv_model_free(r->m);
	nsv_team_free(r->team);
}

void family_step_init(struct family_step *s, const int32_t *tokens, uint32_t past, uint32_t n)
{
	*s = (struct family_step){.table = {3, 1, 4}};
	for (uint32_t i = 0; i < n; i++) {
		s->pos[i] = (int32_t)(past + i);
		s->slots[i] = s->table[(past + i) / FAMILY_BLOCK] * FAMILY_BLOCK +
			      (past + i) % FAMILY_BLOCK;
		s->out_rows[i] = i;
	}
	s->seq = (struct nsv_attn_seq){
		.n_query = n, .n_past = past, .n_table = 3, .block_table = s->table};
	s->batch = (struct nsv_batch){.n_row = n,
		.n_seq = 1,
		.n_out = n,
		.tokens = tokens + past,
		.pos = s->pos,
		.slots = s->slots,
		.seqs = &s->seq,
		.out_rows = s->out_rows};
}

void family_run_all(
	struct family_run *r, const int32_t *tokens, uint32_t n, uint32_t chunk, float *logits)
{
	for (uint32_t past = 0; past < n; past += chunk) {
		struct nsv_err err = {""};
		struct family_step s;

		family_step_init(&s, tokens, past, (uint32_t)nsv_min(chunk, n - past));
		if (nsv_model_forward(r->m, &r->dispatch, &r->kv, &s.batch,
			    logits + (size_t)past * FAMILY_N_VOCAB, &err) < 0)
			fail_msg("%s", err.text);
	}
}

void family_draw_tokens(int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = (int32_t)t_below(FAMILY_N_VOCAB);
}
