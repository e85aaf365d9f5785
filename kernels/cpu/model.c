/* Paged attention as a GPU kernel runs it, in plain C: a grid of programs, one a (query position,
 * query head, sequence); each walks tiles of keys through the block table with masks, its head_dim
 * padded to a power of two and masked, an online softmax in fp32. Correct and readable, runs
 * everywhere; where a GPU's disagreement is reproduced. Never a shortcut, never on the users' path.
 *
 * Chunk by chunk (nsv_attn_chunk_edge), each from fresh accumulators, folded first to last. */
#include "kernels/half.h"
#include "kernels/ref/ref.h"

#define PAD_MAX 1024
#define TILE_MAX 64

/* What a program keeps of the keys so far: their largest score, sum of weights, weighted values. */
struct state {
	float max, sum;
	float acc[PAD_MAX]; /* (head_dim_pad) */
};

struct program {
	const struct nsv_attn_call *call;
	const struct nsv_attn_seq *seq;
	float q[PAD_MAX]; /* (head_dim_pad), zero beyond head_dim */
	uint32_t kv_head;
	uint32_t begin, end; /* keys it sees */
};

static bool visible(const struct program *pg, uint32_t pos)
{
	return pos >= pg->begin && pos < pg->end;
}

/* Element offset of (pos, kv_head, 0); of a visible position only. */
static int64_t place(const struct program *pg, const struct nsv_kv_layout *l, uint32_t pos)
{
	const struct nsv_attn_shape *s = pg->call->shape;
	return pg->seq->block_table[pos / s->block_size] * l->block_stride +
		pos % s->block_size * l->tok_stride + pg->kv_head * l->head_stride;
}

/* A load under a mask: what is masked off is not touched. */
static float load(
	const struct program *pg, const void *pool, int64_t at, int64_t stride, uint32_t d)
{
	const struct nsv_attn_shape *s = pg->call->shape;
	return d < s->head_dim ? nsv_load_elem(s->kv_dtype, pool, at + d * stride) : 0.0f;
}

static float score(const struct program *pg, uint32_t pos)
{
	const struct nsv_attn_shape *s = pg->call->shape;
	int64_t at;
	float dot = 0;
	if (!visible(pg, pos))
		return -INFINITY;
	at = place(pg, &s->k, pos);
	for (uint32_t d = 0; d < pg->call->plan->head_dim_pad; d++)
		dot = fmaf(pg->q[d], load(pg, pg->call->k, at, s->k.dim_stride, d), dot);
	dot *= s->scale;
	return s->softcap > 0 ? s->softcap * tanhf(dot / s->softcap) : dot;
}

static void add_value(const struct program *pg, struct state *st, uint32_t pos, float p)
{
	const struct nsv_attn_shape *s = pg->call->shape;
	int64_t at;
	if (!visible(pg, pos))
		return;
	at = place(pg, &s->v, pos);
	for (uint32_t d = 0; d < pg->call->plan->head_dim_pad; d++)
		st->acc[d] = fmaf(p, load(pg, pg->call->v, at, s->v.dim_stride, d), st->acc[d]);
}

static void scale_state(const struct program *pg, struct state *st, float by)
{
	st->sum *= by;
	for (uint32_t d = 0; d < pg->call->plan->head_dim_pad; d++)
		st->acc[d] *= by;
}

/* One step of the inner loop: the keys pos .. pos + tile - 1, at least one of them visible. */
static void step(const struct program *pg, struct state *st, uint32_t pos)
{
	uint32_t tile = pg->call->plan->tile;
	float s[TILE_MAX], max = st->max;
	for (uint32_t i = 0; i < tile; i++) {
		s[i] = score(pg, pos + i);
		max = fmaxf(max, s[i]);
	}
	scale_state(pg, st, expf(st->max - max));
	st->max = max;
	for (uint32_t i = 0; i < tile; i++) {
		float p = expf(s[i] - max);
		st->sum += p;
		add_value(pg, st, pos + i, p);
	}
}

static void clear(const struct program *pg, struct state *st)
{
	st->max = -INFINITY;
	st->sum = 0;
	for (uint32_t d = 0; d < pg->call->plan->head_dim_pad; d++)
		st->acc[d] = 0;
}

static void fold(const struct program *pg, struct state *all, const struct state *chunk)
{
	float max = fmaxf(all->max, chunk->max), by = expf(chunk->max - max);
	scale_state(pg, all, expf(all->max - max));
	all->max = max;
	all->sum = fmaf(chunk->sum, by, all->sum);
	for (uint32_t d = 0; d < pg->call->plan->head_dim_pad; d++)
		all->acc[d] = fmaf(chunk->acc[d], by, all->acc[d]);
}

static void run_program(const struct program *pg, float *out)
{
	uint32_t tile = pg->call->plan->tile;
	struct state all, chunk;
	clear(pg, &all);
	for (uint32_t c = nsv_attn_n_chunk(pg->begin + 1ull) - 1; c < nsv_attn_n_chunk(pg->end);
		c++) {
		uint32_t from = (uint32_t)nsv_attn_chunk_edge(c);
		uint32_t to = (uint32_t)nsv_min_u64(nsv_attn_chunk_edge(c + 1), pg->end);
		clear(pg, &chunk);
		for (uint32_t pos = from; pos < to; pos += tile)
			if (pos + tile > pg->begin)
				step(pg, &chunk, pos);
		fold(pg, &all, &chunk);
	}
	for (uint32_t d = 0; d < pg->call->shape->head_dim; d++)
		out[d] = all.acc[d] / all.sum;
}

/* Sets up the program of a grid point, as a kernel does from its block index, and runs it. */
static void run_point(const struct nsv_attn_call *call, const struct nsv_attn_seq *seq,
	uint32_t row, uint32_t head)
{
	const struct nsv_attn_shape *s = call->shape;
	size_t at =
		(seq->row0 + (size_t)row) * call->plan->q_row_stride + (size_t)head * s->head_dim;
	struct program pg = {.call = call, .seq = seq, .kv_head = head / call->plan->group};
	pg.end = seq->n_past + row + 1;
	pg.begin = s->window && pg.end > s->window ? pg.end - s->window : 0;
	for (uint32_t d = 0; d < s->head_dim; d++)
		pg.q[d] = call->q[at + d];
	run_program(&pg, call->out + at);
}

static void model_attention(const struct nsv_part *part, const struct nsv_attn_call *call)
{
	const uint32_t *grid = call->plan->grid;
	size_t n = 0;
	for (uint32_t z = 0; z < grid[2]; z++)
		for (uint32_t x = 0; x < grid[0] && x < call->seqs[z].n_query; x++)
			for (uint32_t y = 0; y < grid[1]; y++, n++)
				if (n % part->count == part->index)
					run_point(call, &call->seqs[z], x, y);
}

const struct nsv_backend nsv_model_backend = {
	.name = "model",
	.numerics = 0x6d6f6401, /* "mod", 1 */
	.kv_dtype = NSV_F32,
	NSV_REF_OPERATIONS,
	.attention = model_attention,
};
