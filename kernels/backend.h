/* One table of operations a backend, and the dispatcher that all of the engine goes through.
 *
 * Every operation is called by all members of a team with the same arguments (kernels/team.h) and
 * does its member's share; none contains a barrier unless it says so: the caller puts one between
 * an operation and whoever reads its output. Operations do not allocate, lock, log or fail: what
 * can be wrong is checked before (nsv_attn_make_plan, weight_len, ...).
 *
 * Promise 1: each output element is a function of its own row alone, reduced in an order that
 * depends on neither n_row nor the team's size. A backend whose order changes changes
 * `numerics`. */
#ifndef NSV_KERNELS_BACKEND_H
#define NSV_KERNELS_BACKEND_H

#include "kernels/ops.h"
#include "kernels/scan.h"
#include "kernels/team.h"

enum nsv_rope_kind {
	NSV_ROPE_NORM, /* rotates pairs (2i, 2i+1) */
	NSV_ROPE_NEOX, /* rotates pairs (i, i + n_rot/2) */
};

enum nsv_act { NSV_ACT_SILU, NSV_ACT_GELU_TANH };

struct nsv_attn_call {
	const struct nsv_attn_shape *shape;
	const struct nsv_attn_seq *seqs;
	const struct nsv_attn_plan *plan;
	const float *q;      /* (n_row, n_head, head_dim) */
	const void *k, *v;   /* this layer's pools: element 0 of the layouts */
	float *out;          /* (n_row, n_head, head_dim) */
	void *scratch;       /* plan->scratch_len bytes, 64-aligned, shared by the team */
};

struct nsv_backend {
	const char *name;     /* "reference", "model", "cpu" */
	uint32_t numerics;    /* part of the fingerprint */
	/* Which of K's layouts it reads fastest: 1: dimension-major inside a block
	 * (dim_stride = block_size, tok_stride = 1), 0: token-major. V is token-major. */
	bool k_dim_major;
	/* Of K and V, where nobody asks for another type. It computes over any that
	 * nsv_kv_dtype_choose knows. */
	uint32_t kv_dtype;

	/* Can this machine run it? 0, or -errno and the reason. */
	int (*probe)(struct nsv_err *err);
	/* The row of the instruction-set table that runs ("avx512-vnni"), or "" */
	const char *(*isa)(void);

	/* Weights, packed once at load. `m` is n_m matrices with one n_in, stacked on their rows
	 * (a fused product). weight_len: bytes, 0 or -errno (-EINVAL: type or shape unsupported).
	 * weight_pack fills dst (64-aligned); `part` splits the work. */
	int (*weight_len)(const struct nsv_matrix *m, uint32_t n_m, size_t *ret_len);
	void (*weight_pack)(
		const struct nsv_part *part, const struct nsv_matrix *m, uint32_t n_m, void *dst);

	/* Of a packed weight, what this member reads of it in every product, [*begin, *end) in
	 * bytes, growing with the members' numbers: for whoever chooses where memory is. It may
	 * read all else too; of a product that leaves ranges, whose slices stay whole, it is
	 * nearly that. NULL: nothing is said. */
	void (*weight_own)(const struct nsv_part *part, const struct nsv_matrix *m, uint32_t n_m,
		size_t *ret_begin, size_t *ret_end);

	/* Activations in the form that `matmul` reads (float, or quantised a row at a time).
	 * acts_len: bytes for n_row rows. acts_set: from x (n_row, n_in), rows `ld` apart; acts
	 * (64-aligned) may refer to x, which stays as it is until the last matmul that reads
	 * them. Of several rows a member reads those that nsv_part_range gives it, in units of
	 * 1: whoever computed its rows by that share has nobody to meet before. */
	size_t (*acts_len)(uint32_t n_row, uint32_t n_in);
	void (*acts_set)(const struct nsv_part *part, void *acts, const float *x, size_t ld,
		uint32_t n_row, uint32_t n_in);
	/* out[r * ld_out + o] = sum_i x[r][i] W[o][i] for a packed weight of n_out rows in all;
	 * n_row is that of acts_set. It may use nsv_team_take: between two barriers there is one
	 * product. slices: NULL or, of a weight of one matrix, what is wanted of the slices of the
	 * n_row rows of outputs, looked at while they are in cache. */
	void (*matmul)(const struct nsv_part *part, float *out, size_t ld_out, const void *weight,
		const void *acts, uint32_t n_row, const struct nsv_scan_slices *slices);

	/* out (n_row, n_embd) = the rows `ids` of a stored matrix, times `scale`. Not packed. */
	void (*embed)(const struct nsv_part *part, float *out, const struct nsv_matrix *m,
		const int32_t *ids, uint32_t n_row, float scale);
	/* out = x / sqrt(mean(x^2) + eps) * w over rows of n; rows ld apart in both. out may be
	 * x. */
	void (*rmsnorm)(const struct nsv_part *part, float *out, const float *x, const float *w,
		size_t ld, uint32_t n_row, uint32_t n, float eps);
	/* x += y, (n_row, n) contiguous. */
	void (*add)(const struct nsv_part *part, float *x, const float *y, size_t n);
	/* x[r*ld + i] += bias[i] */
	void (*add_bias)(const struct nsv_part *part, float *x, size_t ld, const float *bias,
		uint32_t n_row, uint32_t n);
	/* In place on x: rows ld apart, each n_head heads of head_dim, the first n_rot of which
	 * turn. cs: (n_row, n_rot/2, 2) cosines and sines. */
	void (*rope)(const struct nsv_part *part, float *x, size_t ld, const float *cs,
		uint32_t n_row, uint32_t n_head, uint32_t head_dim, uint32_t n_rot,
		enum nsv_rope_kind kind);
	/* out[r*n + i] = act(gate[r*ld + i]) * up[r*ld + i] */
	void (*gate)(const struct nsv_part *part, float *out, const float *gate, const float *up,
		size_t ld, uint32_t n_row, uint32_t n, enum nsv_act act);
	/* p = softmax(x) over rows of n; p may be x. The largest is subtracted first. */
	void (*softmax)(
		const struct nsv_part *part, float *p, const float *x, uint32_t n_row, uint32_t n);
	/* K and V rows (n_row, n_kv_head, head_dim; rows ld apart) into their slots of the
	 * pools. */
	void (*kv_append)(const struct nsv_part *part, const struct nsv_attn_shape *shape,
		void *k_pool, void *v_pool, const float *k, const float *v, size_t ld,
		const int64_t *slots, uint32_t n_row);
	/* Reads K and V through the block table. May use nsv_team_barrier: all members call it. */
	void (*attention)(const struct nsv_part *part, const struct nsv_attn_call *call);
};

/* Best first. NULL-terminated. */
const struct nsv_backend *const *nsv_backends(void);

/* Chooses a backend: by name, or with NULL, "" or "auto" by $NANOSERVE_BACKEND, else the best that
 * probe() allows. A named one that cannot run is an error (-ENOTSUP, its reason), never another;
 * an unknown name is -EINVAL and the names there are. */
int nsv_backend_choose(
	const char *name, const struct nsv_backend **ret_backend, struct nsv_err *err);

/* How K and V are stored, by name: "f16" or "f32"; NULL, "" or "auto": as the backend would. 0, or
 * -EINVAL and the names there are. */
int nsv_kv_dtype_choose(const char *name, const struct nsv_backend *backend, uint32_t *ret_dtype,
	struct nsv_err *err);
/* The name of one of these, for people. */
const char *nsv_kv_dtype_name(uint32_t dtype);

/* The cache's attention read, whatever the backend: counts, then calls. All members call it. */
struct nsv_dispatch {
	const struct nsv_backend *backend;
	uint64_t n_attention; /* written by member 0: reads through the dispatcher */
};
void nsv_dispatch_attention(struct nsv_dispatch *dispatch, const struct nsv_part *part,
	const struct nsv_attn_call *call);
/* Of sequences, or none, that no other member has in its call. */
void nsv_dispatch_attention_alone(struct nsv_dispatch *dispatch, const struct nsv_part *part,
	const struct nsv_attn_call *call);

#endif
