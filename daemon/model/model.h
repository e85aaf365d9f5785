/* A model: hyper-parameters and weights of a GGUF file, packed for one backend, and its forward
 * pass over a batch of rows of many sequences.
 *
 * Built by one thread; then the engine thread alone runs forwards. A family of models is a table
 * row (model/family.h): model/<family>.c reads the description, everything after it is one code
 * over it. */
#ifndef NSV_DAEMON_MODEL_MODEL_H
#define NSV_DAEMON_MODEL_MODEL_H

#include "daemon/load/gguf.h"
#include "kernels/backend.h"

struct nsv_numa;

struct nsv_model_desc {
	char arch[32], name[64];
	uint32_t n_layer, n_embd, n_ff, n_head, n_kv_head, head_dim, n_rot;
	uint32_t n_ctx, n_vocab;
	float norm_eps;
	float rope_base, rope_factor; /* positions are divided by the factor */
	float embd_scale;	      /* of the embedding's rows */
	float attn_scale;	      /* of q.k */
	enum nsv_rope_kind rope;
	enum nsv_act act;
	bool qkv_bias;	/* Q, K and V have biases */
	bool qk_norm;	/* RMSNorm over each head of Q and K, before RoPE */
	bool post_norm; /* RMSNorm of what each half of a layer adds */
	/* Local layers see the last `window` keys and turn by a base of their own, unscaled; of
	 * each `window_period` layers the last is global. 0: all layers are global. */
	uint32_t window, window_period;
	float local_rope_base;
};

struct nsv_model;

/* The KV pool of all layers, as the forward addresses it. The shape's scale and window are the
 * model's to set: what the caller puts there is not read. */
struct nsv_model_kv {
	void *base;	     /* K of layer 0, block 0 */
	size_t layer_stride; /* bytes from a layer's K plane to the next layer's */
	size_t v_off;	     /* bytes from a K plane to its V plane */
	struct nsv_attn_shape shape;
};

/* One step: n_row rows, each a token at a position of a sequence. */
struct nsv_batch {
	uint32_t n_row, n_seq, n_out;
	const int32_t *tokens;		 /* (n_row) */
	const int32_t *pos;		 /* (n_row) n_past + i in row i of its sequence */
	const int64_t *slots;		 /* (n_row) where its K and V go: as its block table says */
	const struct nsv_attn_seq *seqs; /* (n_seq) */
	const uint32_t *out_rows;	 /* (n_out) rows whose logits are wanted, growing */
	size_t ld_out;			 /* from a row of logits to the next; 0: n_vocab */
	struct nsv_scan_slices slices;	 /* of the logits (n_out); without ranges: unwanted */
};

/* Packed weights that another process left. */
struct nsv_model_keep {
	int fd; /* -1: none, or taken */
	bool taken;
	struct nsv_err why; /* not taken: what does not fit */
};

struct nsv_model_config {
	uint32_t max_row, max_out;   /* bounds of a batch's n_row and n_out */
	struct nsv_model_keep *keep; /* NULL: none */
	bool pack_later;	     /* nsv_model_pack comes before the first forward */
	const struct nsv_numa *numa; /* NULL: one node; borrowed until the weights are packed */
};

/* Reads and checks everything, and packs the weights unless those that were kept are the same:
 * of this file, in this layout. All scratch is allocated here, for histories up to desc.n_ctx.
 * `g` must outlive the model (embeddings are read from it). The team is borrowed. */
int nsv_model_new(const struct nsv_gguf *g, const struct nsv_backend *backend,
	struct nsv_team *team, const struct nsv_model_config *config, struct nsv_model **ret_model,
	struct nsv_err *err);
/* Takes the weights' memory and packs them, if they are not there yet. */
int nsv_model_pack(struct nsv_model *m, struct nsv_err *err);
void nsv_model_free(struct nsv_model *m);
const struct nsv_model_desc *nsv_model_get_desc(const struct nsv_model *m);
/* Bytes of packed weights and nanoseconds it took to have them. */
void nsv_model_weights(const struct nsv_model *m, size_t *ret_len, uint64_t *ret_ns);
/* The region's descriptor, borrowed. */
int nsv_model_weights_fd(const struct nsv_model *m);
/* A number that identifies file and tensors, for fingerprints. */
uint64_t nsv_model_id(const struct nsv_model *m);

/* Runs one step and leaves logits (n_out, n_vocab), and what is wanted of their slices. Every
 * integer is checked before anything is written: -EINVAL and the reason. Does not allocate.
 * Attention goes through `dispatch`, whose backend is the model's. */
int nsv_model_forward(struct nsv_model *m, struct nsv_dispatch *dispatch,
	const struct nsv_model_kv *kv, const struct nsv_batch *batch, float *logits,
	struct nsv_err *err);

#endif
