/* One step: a batch of rows through all layers, run by every member of the team together. How the
 * work is shared depends on the rows; the bits do not.
 *
 *     many rows   a member takes some of the rows, from one attention to the next, in a lane of its
 *                 own, then others that nobody has taken: it meets the others twice a layer, before
 *                 attention and after it
 *     some rows   products share out their outputs, what works row by row (norms, RoPE, gating,
 *                 the residual stream) shares out rows, in the shared lane: 10 meetings a layer
 *                 Where each is a sequence's only one, and the members' histories are about as long,
 *                 a member's rows attend apart from the others': 8 meetings
 *     few rows    as above, but each member works row by row on all rows, in a lane of its own,
 *                 for less than a meeting costs: 6 meetings a layer
 *
 * A layer is global or local: each kind has its own shape of attention and its own angles. */
#include <math.h>
#include <string.h>

#include "daemon/model/model-impl.h"

struct step {
	struct nsv_model *m;
	struct nsv_dispatch *dispatch;
	const struct nsv_model_kv *kv;
	const struct nsv_batch *batch;
	struct nsv_attn_shape shapes[NSV_N_LAYER_KIND];
	struct nsv_attn_plan plan; /* of both: no integer of it depends on the window */
	bool attends_apart[NSV_N_LAYER_KIND];
	float *logits;
};

/* A member's view of a step, or of some of its rows. */
struct walk {
	const struct step *step;
	const struct nsv_model *m;
	const struct nsv_part *part;
	const struct nsv_part *mul_part; /* who shares products: the team, or nobody */
	const struct nsv_part *row_part; /* who shares acts_set: the team, or nobody */
	uint32_t n_take;		 /* many rows: so many are taken at a time; else 0 */
	struct nsv_lane lane;
	uint32_t first, n_lane;	  /* the lane's rows, of the batch's */
	uint32_t row0, n_row;	  /* rows of the lane that this member computes */
	uint32_t share0, n_share; /* rows of the batch whose Q, K and V it turns and stores */
};

#define ROW_UNIT 16u  /* rows are taken in whole tiles of products */
#define APART_ROWS 32u /* a member: from so many on rows are taken, not weights parted */
#define TAKE_EACH 4u  /* times that a member takes rows at least, where there are enough */
#define APART_KEYS 128u /* more than its share that a member reads in the time of two meetings */

/* ---- Checks: nothing is written before they pass */

static int check_counts(const struct nsv_model *m, const struct nsv_dispatch *dispatch,
	const struct nsv_batch *b, struct nsv_err *err)
{
	if (dispatch->backend != m->backend)
		return nsv_fail(err, -EINVAL, "the weights are packed for backend %s, not %s",
			m->backend->name, dispatch->backend->name);
	if (b->n_row == 0 || b->n_row > m->max_row)
		return nsv_fail(
			err, -EINVAL, "a step of %u rows, expected 1 to %u", b->n_row, m->max_row);
	if (b->n_out > m->max_out)
		return nsv_fail(err, -EINVAL, "a step of %u outputs, expected up to %u", b->n_out,
			m->max_out);
	if (b->ld_out && b->ld_out < m->desc.n_vocab)
		return nsv_fail(err, -EINVAL, "outputs %zu apart, expected %u at least", b->ld_out,
			m->desc.n_vocab);
	return 0;
}

static int check_pool(
	const struct nsv_model *m, const struct nsv_attn_shape *shape, struct nsv_err *err)
{
	const struct nsv_model_desc *d = &m->desc;

	if (shape->n_head != d->n_head || shape->n_kv_head != d->n_kv_head ||
		shape->head_dim != d->head_dim)
		return nsv_fail(err, -EINVAL, "a pool for %u/%u heads of %u, expected %u/%u of %u",
			shape->n_head, shape->n_kv_head, shape->head_dim, d->n_head, d->n_kv_head,
			d->head_dim);
	return 0;
}

static int check_rows(
	const struct nsv_model *m, const struct nsv_batch *b, uint64_t n_slot, struct nsv_err *err)
{
	for (uint32_t i = 0; i < b->n_row; i++) {
		if (b->tokens[i] < 0 || (uint32_t)b->tokens[i] >= m->desc.n_vocab)
			return nsv_fail(err, -EINVAL, "token %d in row %u, expected 0 to %u",
				b->tokens[i], i, m->desc.n_vocab - 1);
		if (b->pos[i] < 0 || (uint32_t)b->pos[i] >= m->desc.n_ctx)
			return nsv_fail(err, -EINVAL, "position %d in row %u, expected 0 to %u",
				b->pos[i], i, m->desc.n_ctx - 1);
		if (b->slots[i] < 0 || (uint64_t)b->slots[i] >= n_slot)
			return nsv_fail(err, -EINVAL, "slot %lld in row %u, expected 0 to %llu",
				(long long)b->slots[i], i, (unsigned long long)n_slot - 1);
	}
	for (uint32_t i = 0; i < b->n_out; i++)
		if (b->out_rows[i] >= b->n_row || (i > 0 && b->out_rows[i] <= b->out_rows[i - 1]))
			return nsv_fail(err, -EINVAL,
				"output %u is row %u of %u, expected growing rows", i,
				b->out_rows[i], b->n_row);
	return 0;
}

/* The plan has checked the rows' bounds and the block table. */
static int check_seq(const struct nsv_batch *b, const struct nsv_attn_seq *seq, uint32_t block_size,
	struct nsv_err *err)
{
	for (uint32_t i = 0; i < seq->n_query; i++) {
		uint32_t row = seq->row0 + i, pos = seq->n_past + i;
		int64_t slot =
			(int64_t)seq->block_table[pos / block_size] * block_size + pos % block_size;

		if ((uint32_t)b->pos[row] != pos || b->slots[row] != slot)
			return nsv_fail(err, -EINVAL,
				"row %u has position %d and slot %lld, its sequence %u and %lld",
				row, b->pos[row], (long long)b->slots[row], pos, (long long)slot);
	}
	return 0;
}

static int check_seqs(const struct nsv_batch *b, uint32_t block_size, struct nsv_err *err)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < b->n_seq; i++) {
		int ret = check_seq(b, &b->seqs[i], block_size, err);

		if (ret < 0)
			return ret;
		n += b->seqs[i].n_query;
	}
	if (n != b->n_row)
		return nsv_fail(err, -EINVAL, "%u rows, of which sequences own %llu", b->n_row,
			(unsigned long long)n);
	return 0;
}

static void set_shapes(struct step *s)
{
	for (uint32_t kind = 0; kind < NSV_N_LAYER_KIND; kind++) {
		s->shapes[kind] = s->kv->shape;
		s->shapes[kind].scale = s->m->desc.attn_scale;
		s->shapes[kind].window = kind == NSV_LAYER_LOCAL ? s->m->desc.window : 0;
	}
}

static int check(struct step *s, struct nsv_err *err)
{
	const struct nsv_batch *b = s->batch;
	const struct nsv_attn_shape *shape = &s->shapes[NSV_LAYER_GLOBAL];
	int ret = check_counts(s->m, s->dispatch, b, err);

	if (ret == 0)
		ret = check_pool(s->m, shape, err);
	if (ret < 0)
		return ret;
	int status = nsv_attn_make_plan(shape, b->seqs, b->n_seq, b->n_row, &s->plan);
	if (status != NSV_ATTN_OK)
		return nsv_fail(err, -EINVAL, "attention: %s", nsv_attn_status_name(status));
	ret = check_rows(s->m, b, (uint64_t)shape->n_block * shape->block_size, err);
	if (ret == 0)
		ret = check_seqs(b, shape->block_size, err);
	if (ret == 0 && s->plan.scratch_len > s->m->scratch.attention_len)
		ret = nsv_fail(err, -EINVAL, "attention needs %zu bytes of scratch, there are %zu",
			s->plan.scratch_len, s->m->scratch.attention_len);
	return ret;
}

/* ---- A member's part */

static void meet(const struct walk *w)
{
	nsv_team_barrier(w->part);
}

/* After a product, whose outputs come from all who share it. */
static void meet_product(const struct walk *w)
{
	nsv_team_barrier(w->mul_part);
}

static bool attends_apart(const struct walk *w, uint32_t layer)
{
	return w->step->attends_apart[nsv_layer_kind(&w->m->desc, layer)];
}

/* Before attention and after it. */
static void meet_attention(const struct walk *w, uint32_t layer)
{
	if (!attends_apart(w, layer))
		meet(w);
}

/* After acts_set: nobody to meet in a lane of one's own. */
static void meet_rows(const struct walk *w)
{
	nsv_team_barrier(w->row_part);
}

/* Few rows: the row-wise buffers are the member's own, what products write is everybody's. */
static void own_rows(struct walk *w)
{
	const struct nsv_lane *own = &w->m->scratch.own[w->part->index];

	w->row0 = 0;
	w->n_row = w->n_lane;
	w->row_part = &nsv_team_alone;
	w->lane.x = own->x;
	w->lane.norm = own->norm;
	w->lane.act = own->act;
	w->lane.acts = own->acts;
}

/* Few at a time, that nobody waits long for the last; but a panel of weights is unpacked anew for
 * those of each take. */
static uint32_t choose_take(uint32_t n_row, uint32_t n_member)
{
	uint32_t n = n_row / (TAKE_EACH * n_member) / ROW_UNIT * ROW_UNIT;

	if (n_row < APART_ROWS * n_member)
		return 0;
	return n < ROW_UNIT ? ROW_UNIT : n < NSV_LANE_ROWS ? n : NSV_LANE_ROWS;
}

static uint32_t count_keys(const struct nsv_attn_shape *shape, uint32_t n_past)
{
	return shape->window && shape->window < n_past ? shape->window : n_past;
}

/* May each member's rows attend apart, in layers of this shape? */
static bool can_part_attention(
	const struct nsv_batch *b, const struct nsv_attn_shape *shape, uint32_t n_member)
{
	uint64_t total = 0, most = 0;

	if (n_member == 1 || b->n_seq != b->n_row || b->n_row <= NSV_OWN_ROWS ||
		choose_take(b->n_row, n_member))
		return false;
	for (uint32_t m = 0; m < n_member; m++) {
		const struct nsv_part part = {.index = m, .count = n_member};
		uint64_t n_key = 0;
		size_t i, end;

		for (nsv_part_range(&part, b->n_row, 1, &i, &end); i < end; i++) {
			if (b->seqs[i].row0 != i || b->seqs[i].n_query != 1)
				return false;
			n_key += count_keys(shape, b->seqs[i].n_past);
		}
		most = nsv_max_u64(most, n_key);
		total += n_key;
	}
	return most <= total / n_member + APART_KEYS;
}

static struct walk begin_walk(const struct step *s, const struct nsv_part *part)
{
	uint32_t n_row = s->batch->n_row;
	struct walk w = {.step = s,
		.m = s->m,
		.part = part,
		.mul_part = part,
		.row_part = part,
		.n_take = choose_take(n_row, part->count),
		.lane = s->m->scratch.shared,
		.n_lane = n_row};
	size_t begin, end;

	nsv_part_range(part, n_row, 1, &begin, &end);
	w.row0 = w.share0 = (uint32_t)begin;
	w.n_row = w.n_share = (uint32_t)(end - begin);
	if (part->count > 1 && n_row <= NSV_OWN_ROWS)
		own_rows(&w);
	return w;
}

/* Rows first .. first + n - 1 of the batch, by this member alone. */
static struct walk some_rows(const struct walk *w, uint32_t first, uint32_t n)
{
	struct walk some = *w;

	some.lane = w->m->scratch.own[w->part->index];
	some.lane.x = w->lane.x + (size_t)first * w->m->desc.n_embd;
	some.mul_part = some.row_part = &nsv_team_alone;
	some.first = some.share0 = first;
	some.n_lane = some.n_row = some.n_share = n;
	some.row0 = 0;
	return some;
}

/* out (n_row, ld) = the product's matrices times what acts_set left. All who share it have met.
 * slices: NULL, or of a product of one matrix (kernels/backend.h). */
static void multiply(const struct walk *w, const struct nsv_product *p, float *out, size_t ld,
	uint32_t n_row, const struct nsv_scan_slices *slices)
{
	for (uint32_t i = 0; i < p->n; i++) {
		if (i > 0)
			meet_product(w); /* one product a phase */
		w->m->backend->matmul(w->mul_part, out + p->part[i].col, ld,
			nsv_weight_at(w->m, p->part[i].off), w->lane.acts, n_row, slices);
	}
}

/* x (n_row, n_in), every row of it, becomes what matmul reads. Members have met over x, or computed
 * the rows that are theirs. */
static void set_acts(const struct walk *w, const float *x, uint32_t n_row, uint32_t n_in)
{
	w->m->backend->acts_set(w->row_part, w->lane.acts, x, n_in, n_row, n_in);
	meet_rows(w);
}

static void norm_rows(const struct walk *w, size_t weight)
{
	uint32_t n = w->m->desc.n_embd;
	size_t at = (size_t)w->row0 * n;

	w->m->backend->rmsnorm(&nsv_team_alone, w->lane.norm + at, w->lane.x + at,
		nsv_weight_at(w->m, weight), n, w->n_row, n, w->m->desc.norm_eps);
	set_acts(w, w->lane.norm, w->n_lane, n);
}

/* The residual stream takes what the last product left in y; with a norm after each half of a
 * layer, normed in the lane: y is everybody's. */
static void add_rows(const struct walk *w, size_t post_norm)
{
	uint32_t n = w->m->desc.n_embd;
	size_t at = (size_t)w->row0 * n;
	const float *y = w->lane.y + at;

	if (w->m->desc.post_norm) {
		float *normed = w->lane.norm + at;

		w->m->backend->rmsnorm(&nsv_team_alone, normed, y, nsv_weight_at(w->m, post_norm),
			n, w->n_row, n, w->m->desc.norm_eps);
		y = normed;
	}
	w->m->backend->add(&nsv_team_alone, w->lane.x + at, y, (size_t)w->n_row * n);
}

static void embed_rows(const struct walk *w)
{
	w->m->backend->embed(&nsv_team_alone, w->lane.x + (size_t)w->row0 * w->m->desc.n_embd,
		&w->m->embd, w->step->batch->tokens + w->first + w->row0, w->n_row,
		w->m->desc.embd_scale);
}

/* Cosines and sines of this member's share, once a step: the same in every layer of a kind. */
static void set_angles(const struct walk *w, enum nsv_layer_kind kind)
{
	uint32_t half = w->m->desc.n_rot / 2;
	const double *freq = w->m->rope_freq[kind];

	for (uint32_t r = w->share0; r < w->share0 + w->n_share; r++) {
		float *cs = w->m->scratch.cs[kind] + (size_t)r * half * 2;

		for (uint32_t i = 0; i < half; i++) {
			double angle = w->step->batch->pos[r] * freq[i];

			cs[2 * i] = (float)cos(angle);
			cs[2 * i + 1] = (float)sin(angle);
		}
	}
}

static void turn(
	const struct walk *w, enum nsv_layer_kind kind, float *x, size_t ld, uint32_t n_head)
{
	const struct nsv_model_desc *d = &w->m->desc;

	w->m->backend->rope(&nsv_team_alone, x, ld,
		w->m->scratch.cs[kind] + (size_t)w->share0 * d->n_rot, w->n_share, n_head,
		d->head_dim, d->n_rot, d->rope);
}

/* Each of n_head heads in the rows of this member's share. */
static void norm_heads(const struct walk *w, float *x, size_t ld, uint32_t n_head, size_t weight)
{
	const struct nsv_model_desc *d = &w->m->desc;

	for (uint32_t h = 0; h < n_head; h++) {
		float *head = x + (size_t)h * d->head_dim;

		w->m->backend->rmsnorm(&nsv_team_alone, head, head, nsv_weight_at(w->m, weight), ld,
			w->n_share, d->head_dim, d->norm_eps);
	}
}

static void *layer_pool(const struct walk *w, uint32_t layer, bool is_v)
{
	const struct nsv_model_kv *kv = w->step->kv;

	return (char *)kv->base + layer * kv->layer_stride + (is_v ? kv->v_off : 0);
}

/* This member's share of rows: biases, Q out of the fused rows, Q and K normed and turned, K and V
 * into the pool. */
static void store_kv(const struct walk *w, uint32_t layer)
{
	const struct nsv_model_desc *d = &w->m->desc;
	const struct nsv_layer *l = &w->m->layers[layer];
	enum nsv_layer_kind kind = nsv_layer_kind(d, layer);
	size_t ld = nsv_n_qkv(d), n_q = nsv_n_q(d);
	float *row = w->lane.qkv + (w->share0 - w->first) * ld, *k = row + n_q;
	float *v = k + nsv_n_kv(d);
	float *q = w->m->scratch.q + w->share0 * n_q;

	if (d->qkv_bias)
		w->m->backend->add_bias(&nsv_team_alone, row, ld, nsv_weight_at(w->m, l->qkv_bias),
			w->n_share, nsv_n_qkv(d));
	for (uint32_t r = 0; r < w->n_share; r++)
		memcpy(q + r * n_q, row + r * ld, n_q * sizeof(float));
	if (d->qk_norm) {
		norm_heads(w, q, n_q, d->n_head, l->q_norm);
		norm_heads(w, k, ld, d->n_kv_head, l->k_norm);
	}
	turn(w, kind, q, n_q, d->n_head);
	turn(w, kind, k, ld, d->n_kv_head);
	w->m->backend->kv_append(&nsv_team_alone, &w->step->shapes[kind],
		layer_pool(w, layer, false), layer_pool(w, layer, true), k, v, ld,
		w->step->batch->slots + w->share0, w->n_share);
}

/* This member's share of rows, each a sequence's only one. */
static void attend_apart(const struct walk *w, struct nsv_attn_call *call)
{
	struct nsv_attn_plan plan = *call->plan;

	plan.n_seq = plan.grid[2] = w->n_share;
	call->plan = &plan;
	call->seqs += w->share0;
	nsv_dispatch_attention_alone(w->step->dispatch, w->part, call);
}

static void attend(const struct walk *w, uint32_t layer)
{
	const struct nsv_scratch *s = &w->m->scratch;
	struct nsv_attn_call call = {
		.shape = &w->step->shapes[nsv_layer_kind(&w->m->desc, layer)],
		.seqs = w->step->batch->seqs,
		.plan = &w->step->plan,
		.q = s->q,
		.k = layer_pool(w, layer, false),
		.v = layer_pool(w, layer, true),
		.out = s->attn,
		.scratch = s->attention};

	if (attends_apart(w, layer))
		attend_apart(w, &call);
	else
		nsv_dispatch_attention(w->step->dispatch, w->part, &call);
}

static void gate_rows(const struct walk *w)
{
	const struct nsv_model_desc *d = &w->m->desc;
	size_t ld = 2 * (size_t)d->n_ff;
	const float *gate = w->lane.ff + w->row0 * ld;

	w->m->backend->gate(&nsv_team_alone, w->lane.act + (size_t)w->row0 * d->n_ff, gate,
		gate + d->n_ff, ld, w->n_row, d->n_ff, d->act);
	set_acts(w, w->lane.act, w->n_lane, d->n_ff);
}

static void run_qkv(const struct walk *w, uint32_t layer)
{
	const struct nsv_layer *l = &w->m->layers[layer];

	norm_rows(w, l->attn_norm);
	multiply(w, &l->qkv, w->lane.qkv, nsv_n_qkv(&w->m->desc), w->n_lane, NULL);
	meet_product(w);
	store_kv(w, layer);
}

static void run_out(const struct walk *w, const struct nsv_layer *l)
{
	size_t n_q = nsv_n_q(&w->m->desc);

	set_acts(w, w->m->scratch.attn + w->first * n_q, w->n_lane, (uint32_t)n_q);
	multiply(w, &l->out, w->lane.y, w->m->desc.n_embd, w->n_lane, NULL);
	meet_product(w);
	add_rows(w, l->post_attn_norm);
}

static void run_ff(const struct walk *w, const struct nsv_layer *l)
{
	norm_rows(w, l->ffn_norm);
	multiply(w, &l->gate_up, w->lane.ff, 2 * (size_t)w->m->desc.n_ff, w->n_lane, NULL);
	meet_product(w);
	gate_rows(w);
	multiply(w, &l->down, w->lane.y, w->m->desc.n_embd, w->n_lane, NULL);
	meet_product(w);
	add_rows(w, l->post_ffn_norm);
}

static void run_after(const struct walk *w, uint32_t layer)
{
	run_out(w, &w->m->layers[layer]);
	run_ff(w, &w->m->layers[layer]);
}

/* What lies between the attention of the layer before and that of `layer`; at the ends one of them
 * is not there. */
static void run_between(const struct walk *w, uint32_t layer)
{
	if (layer == 0) {
		embed_rows(w);
		for (uint32_t kind = 0; kind < nsv_n_layer_kind(&w->m->desc); kind++)
			set_angles(w, kind);
	} else {
		run_after(w, layer - 1);
	}
	if (layer < w->m->desc.n_layer)
		run_qkv(w, layer);
}

/* Every row, by whoever takes it: rows do not meet here. */
static void run_rows(const struct walk *w, uint32_t layer)
{
	uint32_t n_row = w->step->batch->n_row, alone_taken = 0, first;

	if (w->n_take == 0) {
		run_between(w, layer);
		return;
	}
	while ((first = nsv_team_take(w->part, &alone_taken) * w->n_take) < n_row) {
		struct walk some = some_rows(w, first, (uint32_t)nsv_min(w->n_take, n_row - first));

		run_between(&some, layer);
	}
}

/* The last norm, on this member's share of the rows that are wanted; in a lane of its own, on all.
 */
static void norm_outputs(const struct walk *w)
{
	uint32_t n = w->m->desc.n_embd;
	size_t begin, end;

	nsv_part_range(w->row_part, w->step->batch->n_out, 1, &begin, &end);
	for (size_t i = begin; i < end; i++)
		w->m->backend->rmsnorm(&nsv_team_alone, w->lane.norm + i * n,
			w->lane.x + (size_t)w->step->batch->out_rows[i] * n,
			nsv_weight_at(w->m, w->m->out_norm), n, 1, n, w->m->desc.norm_eps);
}

static void run_head(const struct walk *w)
{
	const struct nsv_batch *b = w->step->batch;

	if (b->n_out == 0)
		return;
	meet_rows(w); /* a wanted row may be another member's */
	norm_outputs(w);
	meet_rows(w); /* a single row's blocks are shared out */
	set_acts(w, w->lane.norm, b->n_out, w->m->desc.n_embd);
	multiply(w, &w->m->head, w->step->logits, b->ld_out ? b->ld_out : w->m->desc.n_vocab,
		b->n_out, b->slices.ranges ? &b->slices : NULL);
}

static void run_member(const struct nsv_part *part, void *arg)
{
	struct walk w = begin_walk(arg, part);

	for (uint32_t i = 0; i < w.m->desc.n_layer; i++) {
		run_rows(&w, i);
		meet_attention(&w, i); /* it reads the K and V of every row */
		attend(&w, i);
		meet_attention(&w, i); /* a row's heads come from all members */
	}
	run_rows(&w, w.m->desc.n_layer);
	run_head(&w);
}

int nsv_model_forward(struct nsv_model *m, struct nsv_dispatch *dispatch,
	const struct nsv_model_kv *kv, const struct nsv_batch *batch, float *logits,
	struct nsv_err *err)
{
	struct step s = {.m = m, .dispatch = dispatch, .kv = kv, .batch = batch, .logits = logits};
	int ret;

	set_shapes(&s);
	ret = check(&s, err);
	if (ret < 0)
		return ret;
	for (uint32_t kind = 0; kind < nsv_n_layer_kind(&m->desc); kind++)
		s.attends_apart[kind] =
			can_part_attention(batch, &s.shapes[kind], nsv_team_size(m->team));
	nsv_team_run(m->team, run_member, &s);
	return 0;
}
