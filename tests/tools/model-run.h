/* A model in the test's own process: the file, a team, a pool of scattered blocks, and steps over
 * sequences of tokens. One thread uses it. Failures are cmocka's. */
#ifndef NSV_TESTS_TOOLS_MODEL_RUN_H
#define NSV_TESTS_TOOLS_MODEL_RUN_H

#include "cache/block_table.h"
#include "daemon/model/model.h"

#define MODEL_RUN_BLOCK 16

struct model_run {
	struct nsv_gguf *g;
	struct nsv_team *team;
	struct nsv_model *model;
	struct nsv_dispatch dispatch;
	struct nsv_model_kv kv;
	struct nsv_block_alloc alloc;
	void *pool;
	uint32_t kv_dtype; /* the backend's, or $NANOSERVE_TEST_KV_DTYPE */
	uint32_t n_vocab, max_row;
	/* Where steps leave logits, set by whoever wants more than rows side by side: as in
	 * struct nsv_batch. */
	size_t ld_out;
	struct nsv_scan_slices slices;
};

/* A sequence: how much of it is in the pool, and where. */
struct model_seq {
	struct nsv_block_table table;
	uint32_t n_past;
};

/* What one sequence puts into a step. */
struct model_feed {
	struct model_seq *seq;
	const int32_t *tokens;
	uint32_t n;
	bool all; /* logits of every row, else of the last alone */
};

/* The test model's path, or NULL and why in `why`. */
const char *model_run_path(char path[512], const char **why);
/* The path of a model in the cache folder, or NULL: tests/tools/fetch-model.sh was not asked for
 * it. The default model is the test model. */
#define MODEL_RUN_DEFAULT "SmolLM2-135M-Instruct.Q4_1.gguf"
const char *model_run_find(const char *file, char path[512], const char **why);
/* Does $NANOSERVE_LONG ask for what takes minutes too? */
bool model_run_is_long(void);
void model_run_open(struct model_run *r, const char *path, const struct nsv_backend *backend,
	uint32_t n_thread, uint32_t max_row, uint32_t n_token);
void model_run_close(struct model_run *r);
/* Frees blocks in random order, so that tables made from now on are scattered. */
void model_run_shuffle(struct model_run *r);

void model_seq_init(struct model_seq *seq, uint32_t n_token);
void model_seq_deinit(struct model_seq *seq, struct model_run *r);

/* One step over all feeds; logits (rows asked for, n_vocab) in the feeds' order. */
void model_run_step(
	struct model_run *r, const struct model_feed *feeds, uint32_t n_feed, float *logits);
/* Many tokens of one sequence in steps of `chunk`; logits of the last one. */
void model_run_prefill(struct model_run *r, struct model_seq *seq, const int32_t *tokens,
	uint32_t n, uint32_t chunk, float *logits);

/* KL(p || q) of the softmaxes of two logit vectors, in double. */
double logits_kl(const float *p, const float *q, uint32_t n);
double logits_nll(const float *logits, uint32_t n, int32_t token);
int32_t logits_best(const float *logits, uint32_t n);

#endif
