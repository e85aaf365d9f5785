/* A small model of tests/tools/family.h with a team and a pool of a few F32 blocks, and steps of one
 * sequence. One thread uses it; failures are cmocka's. */
#ifndef NSV_TESTS_TOOLS_FAMILY_RUN_H
#define NSV_TESTS_TOOLS_FAMILY_RUN_H

#include "daemon/model/model.h"
#include "tests/tools/family.h"

enum { FAMILY_MAX_ROW = 24, FAMILY_BLOCK = 8, FAMILY_N_BLOCK = 12 };

struct family_run {
	struct nsv_team *team;
	struct nsv_model *m;
	struct nsv_dispatch dispatch;
	struct nsv_model_kv kv;
	float *pool; /* of kv.shape.n_block blocks of k.block_stride, zeros at first */
};

/* What a step of one sequence consists of: all of it may be changed before it is run. */
struct family_step {
	int32_t table[3], pos[FAMILY_MAX_ROW];
	int64_t slots[FAMILY_MAX_ROW];
	uint32_t out_rows[FAMILY_MAX_ROW];
	struct nsv_attn_seq seq;
	struct nsv_batch batch; /* points into this struct: it must not be moved */
};

const struct nsv_backend *family_backend(const char *name);

/* Borrows the file. */
void family_run_open(struct family_run *r, const struct family_file *f,
	const struct nsv_backend *backend, uint32_t n_member, uint32_t n_block);
void family_run_close(struct family_run *r);

/* Rows past .. past + n of one sequence, whose blocks are scattered; all logits wanted. */
void family_step_init(struct family_step *s, const int32_t *tokens, uint32_t past, uint32_t n);
/* n tokens of a sequence from its beginning in steps of `chunk`; logits (n, FAMILY_N_VOCAB). */
void family_run_all(
	struct family_run *r, const int32_t *tokens, uint32_t n, uint32_t chunk, float *logits);

/* Random tokens (n). */
void family_draw_tokens(int32_t *tokens, uint32_t n);

#endif
