/* A model file of any bytes, made a model: described, its tensors found, placed and packed, and a
 * step run over it. Whatever the numbers in it are, nothing is read or written outside its place,
 * and what is refused is refused with a sentence.
 *
 *     input:  the file | how (1 byte): backend, type of K and V, threads */
#include <stdlib.h>
#include <string.h>

#include "daemon/model/model.h"
#include "kernels/team.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define BLOCK 16
#define N_ROW 3

static volatile float sink; /* what was computed must have been computed */

static void must(bool good)
{
	if (!good)
		abort();
}

static const struct nsv_backend *backend_of(uint8_t how)
{
	static const char *const names[] = {"cpu", "reference", "model", "cpu"};
	const struct nsv_backend *backend = NULL;

	must(nsv_backend_choose(names[how & 3], &backend, NULL) == 0);
	return backend;
}

static struct nsv_team *team_of(uint8_t how)
{
	static struct nsv_team *teams[2]; /* as long as the process */
	uint32_t i = how >> 2 & 1;

	if (!teams[i])
		must(nsv_team_new(1 + i, &teams[i]) == 0);
	return teams[i];
}

/* One block of K and V a layer, in an allocation of just that size. */
static struct nsv_model_kv make_kv(const struct nsv_model_desc *d, uint32_t dtype)
{
	const int64_t head = (int64_t)d->head_dim * BLOCK, plane = d->n_kv_head * head;
	const struct nsv_kv_layout layout = {2 * d->n_layer * plane, d->head_dim, head, 1};
	const size_t elem_len = dtype == NSV_F16 ? 2 : 4;
	void *base = calloc((size_t)(2 * d->n_layer * plane), elem_len);

	must(base);
	return (struct nsv_model_kv){.base = base,
		.layer_stride = 2 * (size_t)plane * elem_len,
		.v_off = (size_t)plane * elem_len,
		.shape = {.n_head = d->n_head,
			.n_kv_head = d->n_kv_head,
			.head_dim = d->head_dim,
			.block_size = BLOCK,
			.n_block = 1,
			.kv_dtype = dtype,
			.k = layout,
			.v = layout}};
}

static void run_step(struct nsv_model *m, const struct nsv_backend *backend, uint32_t dtype)
{
	const struct nsv_model_desc *d = nsv_model_get_desc(m);
	const int32_t table[] = {0}, last = (int32_t)d->n_vocab - 1, pos[N_ROW] = {0, 1, 2};
	const struct nsv_attn_seq seq = {.n_query = N_ROW, .n_table = 1, .block_table = table};
	const struct nsv_batch batch = {.n_row = N_ROW,
		.n_seq = 1,
		.n_out = N_ROW,
		.tokens = (const int32_t[N_ROW]){0, last, last / 2},
		.pos = pos,
		.slots = (const int64_t[N_ROW]){0, 1, 2},
		.seqs = &seq,
		.out_rows = (const uint32_t[N_ROW]){0, 1, 2}};
	struct nsv_dispatch dispatch = {.backend = backend};
	struct nsv_model_kv kv = make_kv(d, dtype);
	float *logits = calloc((size_t)N_ROW * d->n_vocab, sizeof(*logits));
	struct nsv_err err = {""};

	must(logits);
	if (nsv_model_forward(m, &dispatch, &kv, &batch, logits, &err) < 0)
		must(err.text[0]);
	for (size_t i = 0; i < (size_t)N_ROW * d->n_vocab; i++)
		sink += logits[i];
	free(logits);
	free(kv.base);
}

static void run(const struct nsv_gguf *g, uint8_t how)
{
	const struct nsv_model_config config = {.max_row = N_ROW, .max_out = N_ROW};
	const struct nsv_backend *backend = backend_of(how);
	struct nsv_err err = {""};
	struct nsv_model *m;

	if (nsv_model_new(g, backend, team_of(how), &config, &m, &err) < 0) {
		must(err.text[0]);
		return;
	}
	run_step(m, backend, how & 8 ? NSV_F16 : NSV_F32);
	nsv_model_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct nsv_gguf *g;
	uint8_t *file;

	if (len == 0 || !(file = malloc(len))) /* aligned, as a mapped file is */
		return 0;
	memcpy(file, data, len - 1);
	if (nsv_gguf_parse(file, len - 1, &g, NULL) == 0) {
		run(g, data[len - 1]);
		nsv_gguf_close(g);
	}
	free(file);
	return 0;
}
