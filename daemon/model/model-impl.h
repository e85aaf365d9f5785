/* The inside of a model, for the files of this folder. Weights are places in one region; scratch is
 * one allocation, made when the model is. */
#ifndef NSV_DAEMON_MODEL_MODEL_IMPL_H
#define NSV_DAEMON_MODEL_MODEL_IMPL_H

#include "daemon/model/model.h"
#include "shm/region.h"

#define NSV_MAX_FUSED 3

/* One or more stored matrices that read the same activations: fused into one packed weight where
 * the backend can, else side by side, each writing its columns of the output. */
struct nsv_product {
	uint32_t n;
	struct {
		size_t off;   /* of the packed weight, from the region's start */
		uint32_t col; /* first column of the output */
	} part[NSV_MAX_FUSED];
};

enum nsv_layer_kind { NSV_LAYER_GLOBAL, NSV_LAYER_LOCAL, NSV_N_LAYER_KIND };

/* Offsets are from the region's start; of what the family lacks they are not set. */
struct nsv_layer {
	size_t attn_norm, ffn_norm;	      /* (n_embd) floats */
	size_t post_attn_norm, post_ffn_norm; /* (n_embd) floats */
	size_t q_norm, k_norm;		      /* (head_dim) floats */
	size_t qkv_bias;		      /* ((n_head + 2 n_kv_head) * head_dim) floats */
	struct nsv_product qkv;		      /* (n_head + 2 n_kv_head) * head_dim rows */
	struct nsv_product out;		      /* n_embd rows */
	struct nsv_product gate_up;	      /* 2 n_ff rows */
	struct nsv_product down;	      /* n_embd rows */
};

/* Buffers of rows on their way through a layer: one lane for all of a step's rows, which the
 * members share, and one of NSV_LANE_ROWS a member (see forward.c for who uses which). */
struct nsv_lane {
	float *x;    /* (n_row, n_embd) the residual stream; of a member's: NSV_OWN_ROWS */
	float *norm; /* (n_row, n_embd) */
	float *act;  /* (n_row, n_ff) */
	void *acts;  /* what `matmul` reads, of the widest input */
	float *qkv;  /* (n_row, n_qkv) */
	float *ff;   /* (n_row, 2 n_ff): gate, then up */
	float *y;    /* (n_row, n_embd) what is added to the residual stream */
};

struct nsv_scratch {
	void *mem;
	struct nsv_lane shared;
	struct nsv_lane *own;	     /* (team size) */
	float *cs[NSV_N_LAYER_KIND]; /* (max_row, n_rot/2, 2) */
	float *q, *attn;	     /* (max_row, n_head * head_dim) */
	void *attention;
	size_t attention_len;
};

#define NSV_WEIGHTS_MAGIC 0x535447575f56534eull /* "NSV_WGTS" */
#define NSV_WEIGHTS_MAJOR 1u

/* What packing needs to know, from the placing of the weights on (model/weights.c). */
struct nsv_loader;

/* First page of the weights region. */
struct nsv_weights_head {
	uint64_t magic; /* written last: a region without it was never whole */
	uint32_t major, head_len;
	uint64_t region_len;
	uint64_t model_id;
	uint64_t layout_id; /* backend, instruction set, numerics, and every place */
};

struct nsv_model {
	struct nsv_model_desc desc;
	const struct nsv_backend *backend;
	struct nsv_team *team;
	uint32_t max_row, max_out;
	uint64_t id;

	struct nsv_region weights;
	size_t weights_len;
	const struct nsv_numa *numa; /* NULL: they may be anywhere */
	uint64_t pack_ns;
	struct nsv_loader *loader; /* NULL: all is packed */
	struct nsv_layer *layers; /* (n_layer) */
	size_t out_norm;
	struct nsv_product head; /* n_vocab rows */
	struct nsv_matrix embd;	 /* stored, in the file */

	double *rope_freq[NSV_N_LAYER_KIND]; /* (n_rot/2) radians a position; NULL: no such layer */
	struct nsv_scratch scratch;
};

/* Up to this many rows every member works row by row for itself: cheaper than to meet. */
#define NSV_OWN_ROWS 4u
/* Rows that a member takes through a layer at a time at most: what they leave stays in its
 * cache. */
#define NSV_LANE_ROWS 64u

/* Finds and checks every tensor, and makes the region for nsv_model_pack; or takes what was kept
 * (may be NULL). */
int nsv_model_place(struct nsv_model *m, const struct nsv_gguf *g, struct nsv_model_keep *keep,
	struct nsv_err *err);
void nsv_loader_free(struct nsv_loader *l); /* half-built is fine */
int nsv_scratch_init(struct nsv_model *m, struct nsv_err *err);
void nsv_scratch_deinit(struct nsv_scratch *s); /* half-built is fine */

#define NSV_HASH_START 0xcbf29ce484222325ull

/* FNV-1a, for fingerprints. */
static inline uint64_t nsv_hash(uint64_t h, const void *data, size_t len)
{
	const unsigned char *p = data;

	for (size_t i = 0; i < len; i++)
		h = (h ^ p[i]) * 0x100000001b3ull;
	return h;
}

static inline uint32_t nsv_n_q(const struct nsv_model_desc *d)
{
	return d->n_head * d->head_dim;
}

static inline uint32_t nsv_n_kv(const struct nsv_model_desc *d)
{
	return d->n_kv_head * d->head_dim;
}

static inline uint32_t nsv_n_qkv(const struct nsv_model_desc *d)
{
	return nsv_n_q(d) + 2 * nsv_n_kv(d);
}

static inline enum nsv_layer_kind nsv_layer_kind(const struct nsv_model_desc *d, uint32_t layer)
{
	return d->window && (layer + 1) % d->window_period ? NSV_LAYER_LOCAL : NSV_LAYER_GLOBAL;
}

static inline uint32_t nsv_n_layer_kind(const struct nsv_model_desc *d)
{
	return d->window ? NSV_N_LAYER_KIND : 1;
}

static inline const void *nsv_weight_at(const struct nsv_model *m, size_t off)
{
	return (const char *)m->weights.map + off;
}

#endif
