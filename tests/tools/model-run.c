/* Steps over a real model, for the tests that grade it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "cache/kv.h"
#include "tests/tools/model-run.h"
#include "tests/tools/rnd.h"

#define HUGE_PAGE ((size_t)2 << 20)

static const char *in_cache(const char *file, char path[512], const char **why)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	bool has_cache = cache && *cache;

	snprintf(path, 512, "%s%s/nanoserve/models/%s",
		has_cache ? cache
		: home	  ? home
			  : "",
		has_cache ? "" : "/.cache", file);
	if (access(path, R_OK) == 0)
		return path;
	*why = "the model is not in the cache folder";
	return NULL;
}

const char *model_run_path(char path[512], const char **why)
{
	const char *given = getenv("NANOSERVE_TEST_MODEL");

	if (!given || !*given)
		return in_cache(MODEL_RUN_DEFAULT, path, why);
	snprintf(path, 512, "%s", given);
	if (access(path, R_OK) == 0)
		return path;
	*why = "NANOSERVE_TEST_MODEL names no readable file";
	return NULL;
}

const char *model_run_find(const char *file, char path[512], const char **why)
{
	return strcmp(file, MODEL_RUN_DEFAULT) == 0 ? model_run_path(path, why)
						    : in_cache(file, path, why);
}

bool model_run_is_long(void)
{
	const char *set = getenv("NANOSERVE_LONG");

	return set && *set && strcmp(set, "0") != 0;
}

/* ---- The pool */

static struct nsv_attn_shape make_shape(
	const struct nsv_model_desc *d, const struct nsv_kv_geom *g, size_t block_len)
{
	int64_t block = (int64_t)(block_len / g->elem_len), head = d->head_dim * MODEL_RUN_BLOCK;
	struct nsv_kv_layout token_major = {block, d->head_dim, head, 1};
	struct nsv_kv_layout dim_major = {block, 1, head, MODEL_RUN_BLOCK};

	return (struct nsv_attn_shape){.n_head = d->n_head,
		.n_kv_head = d->n_kv_head,
		.head_dim = d->head_dim,
		.block_size = MODEL_RUN_BLOCK,
		.n_block = g->n_block,
		.kv_dtype = g->dtype,
		.scale = 1 / sqrtf((float)d->head_dim),
		.k = g->k_dim_major ? dim_major : token_major,
		.v = token_major};
}

static void make_pool(struct model_run *r, uint32_t n_token)
{
	const struct nsv_model_desc *d = nsv_model_get_desc(r->model);
	const struct nsv_kv_geom g = {.n_layer = d->n_layer,
		.n_kv_head = d->n_kv_head,
		.head_dim = d->head_dim,
		.block_size = MODEL_RUN_BLOCK,
		.n_block = nsv_blocks_for(n_token, MODEL_RUN_BLOCK),
		.elem_len = nsv_dtype_info(r->kv_dtype)->n_byte,
		.dtype = r->kv_dtype,
		.k_dim_major = r->dispatch.backend->k_dim_major};
	struct nsv_kv_size size;
	size_t k0 = nsv_kv_plane_off(&g, 0, false);

	assert_int_equal(nsv_kv_sizes(&g, &size), 0);
	r->pool = aligned_alloc(HUGE_PAGE, nsv_max(size.region, HUGE_PAGE));
	assert_non_null(r->pool);
	(void)madvise(r->pool, size.region, MADV_HUGEPAGE); /* as the daemon's own */
	/* Memory that was never written must not matter: NaN spreads. */
	memset(r->pool, 0xff, size.region);
	assert_int_equal(nsv_block_alloc_init(&r->alloc, g.n_block), 0);
	r->kv = (struct nsv_model_kv){.base = (char *)r->pool + k0,
		.layer_stride = nsv_kv_plane_off(&g, 1, false) - k0,
		.v_off = nsv_kv_plane_off(&g, 0, true) - k0,
		.shape = make_shape(d, &g, size.block)};
}

void model_run_open(struct model_run *r, const char *path, const struct nsv_backend *backend,
	uint32_t n_thread, uint32_t max_row, uint32_t n_token)
{
	struct nsv_err err = {""};

	memset(r, 0, sizeof(*r));
	if (nsv_gguf_open(path, &r->g, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(nsv_team_new(n_thread, &r->team), 0);
	const struct nsv_model_config config = {.max_row = max_row, .max_out = max_row};
	if (nsv_model_new(r->g, backend, r->team, &config, &r->model, &err) < 0)
		fail_msg("%s", err.text);
	if (nsv_kv_dtype_choose(
		    getenv("NANOSERVE_TEST_KV_DTYPE"), backend, &r->kv_dtype, &err) < 0)
		fail_msg("%s", err.text);
	r->dispatch.backend = backend;
	r->max_row = max_row;
	r->n_vocab = nsv_model_get_desc(r->model)->n_vocab;
	make_pool(r, n_token);
}

void model_run_close(struct model_run *r)
{
	assert_int_equal(nsv_block_audit(&r->alloc, NULL), 0);
	assert_int_equal(r->alloc.n_free, r->alloc.n_block);
	nsv_block_alloc_deinit(&r->alloc);
	free(r->pool);
	nsv_model_free(r->model);
	nsv_team_free(r->team);
	nsv_gguf_close(r->g);
}

void model_run_shuffle(struct model_run *r)
{
	uint32_t n = r->alloc.n_free;
	int32_t *block = calloc(n, sizeof(*block));

	assert_non_null(block);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(nsv_block_get(&r->alloc, &block[i]), 0);
	for (uint32_t i = n; i > 0; i--) {
		uint32_t j = t_below(i);
		int32_t b = block[j];

		block[j] = block[i - 1];
		assert_int_equal(nsv_block_unref(&r->alloc, b), 1);
	}
	free(block);
}

/* ---- Sequences and steps */

void model_seq_init(struct model_seq *seq, uint32_t n_token)
{
	uint32_t cap = nsv_blocks_for(n_token, MODEL_RUN_BLOCK);

	*seq = (struct model_seq){.table = {.block = calloc(cap, sizeof(int32_t)), .cap = cap}};
	assert_non_null(seq->table.block);
}

void model_seq_deinit(struct model_seq *seq, struct model_run *r)
{
	assert_int_equal(nsv_block_table_release(&seq->table, &r->alloc), 0);
	free(seq->table.block);
}

struct rows {
	uint32_t n_row, n_out;
	int32_t *tokens, *pos;
	int64_t *slots;
	uint32_t *out_rows;
};

static struct rows rows_new(const struct model_run *r)
{
	struct rows b = {.tokens = calloc(r->max_row, sizeof(*b.tokens)),
		.pos = calloc(r->max_row, sizeof(*b.pos)),
		.slots = calloc(r->max_row, sizeof(*b.slots)),
		.out_rows = calloc(r->max_row, sizeof(*b.out_rows))};

	assert_true(b.tokens && b.pos && b.slots && b.out_rows);
	return b;
}

static void rows_free(struct rows *b)
{
	free(b->tokens);
	free(b->pos);
	free(b->slots);
	free(b->out_rows);
}

static struct nsv_attn_seq add_feed(struct model_run *r, struct rows *b, const struct model_feed *f)
{
	struct model_seq *seq = f->seq;
	uint32_t end = seq->n_past + f->n;

	assert_true(b->n_row + f->n <= r->max_row);
	assert_int_equal(nsv_block_table_reserve(&seq->table, &r->alloc, end, MODEL_RUN_BLOCK), 0);
	assert_int_equal(nsv_block_table_slots(&seq->table, MODEL_RUN_BLOCK, seq->n_past, f->n,
				 b->slots + b->n_row),
		0);
	struct nsv_attn_seq s = {.row0 = b->n_row,
		.n_query = f->n,
		.n_past = seq->n_past,
		.n_table = seq->table.n,
		.block_table = seq->table.block};
	for (uint32_t i = 0; i < f->n; i++, b->n_row++) {
		b->tokens[b->n_row] = f->tokens[i];
		b->pos[b->n_row] = (int32_t)(seq->n_past + i);
		if (f->all || i + 1 == f->n)
			b->out_rows[b->n_out++] = b->n_row;
	}
	seq->n_past = end;
	return s;
}

void model_run_step(
	struct model_run *r, const struct model_feed *feeds, uint32_t n_feed, float *logits)
{
	struct rows b = rows_new(r);
	struct nsv_attn_seq *seqs = calloc(n_feed, sizeof(*seqs));
	struct nsv_err err = {""};

	assert_non_null(seqs);
	for (uint32_t i = 0; i < n_feed; i++)
		seqs[i] = add_feed(r, &b, &feeds[i]);
	const struct nsv_batch batch = {.n_row = b.n_row,
		.n_seq = n_feed,
		.n_out = b.n_out,
		.tokens = b.tokens,
		.pos = b.pos,
		.slots = b.slots,
		.seqs = seqs,
		.out_rows = b.out_rows,
		.ld_out = r->ld_out,
		.slices = r->slices};
	if (nsv_model_forward(r->model, &r->dispatch, &r->kv, &batch, logits, &err) < 0)
		fail_msg("%s", err.text);
	free(seqs);
	rows_free(&b);
}

void model_run_prefill(struct model_run *r, struct model_seq *seq, const int32_t *tokens,
	uint32_t n, uint32_t chunk, float *logits)
{
	for (uint32_t i = 0; i < n; i += chunk) {
		struct model_feed f = {
			.seq = seq, .tokens = tokens + i, .n = (uint32_t)nsv_min(chunk, n - i)};
		model_run_step(r, &f, 1, logits);
	}
}

/* ---- Logits */

int32_t logits_best(const float *logits, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}

static double log_sum_exp(const float *logits, uint32_t n)
{
	double max = logits[logits_best(logits, n)], sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += exp(logits[i] - max);
	return max + log(sum);
}

double logits_nll(const float *logits, uint32_t n, int32_t token)
{
	return log_sum_exp(logits, n) - logits[token];
}

double logits_kl(const float *p, const float *q, uint32_t n)
{
	double zp = log_sum_exp(p, n), zq = log_sum_exp(q, n), kl = 0;

	for (uint32_t i = 0; i < n; i++)
		kl += exp(p[i] - zp) * ((p[i] - zp) - (q[i] - zq));
	return kl;
}
