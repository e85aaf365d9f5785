/* The pieces of work that a run of decode consists of: the plan works out the first of each, the
 * producer of decode walks on from there. */
#ifndef NSV_KERNELS_CUDA_PIECES_CUH
#define NSV_KERNELS_CUDA_PIECES_CUH

#include "kernels/cuda/work.cuh"

namespace nsv
{

/* What a run does to one item. An item below 0 ends the work. */
struct alignas(16) piece {
	nsv_cuda_seq seq;
	int32_t seq_index, item, split, cut;
	tile_range run;		    /* its share of the item's stretch of the line */
	int32_t row0, n_row, head0; /* rows of the item among the sequence's (token, head) pairs */
	tile_range line;	    /* the item's stretch */
	tile_range tiles;	    /* those of the run that any row sees */
	tile_range keys;	    /* that any row sees */
	tile_range inner;	    /* tiles of which every row sees every key */
	tile_range partials;	    /* of a split item: the chunks whose partials are folded */
	int32_t index, n_run;	    /* of a split item: which of its runs this is, of how many */
};

#ifdef __CUDACC__

/* Fills in what follows from the sequence, the item and the run. */
__host__ __device__ __forceinline__ void complete(const work_shape &shape, piece &p)
{
	tile_range rows = item_rows(shape, p.seq, p.item), seen = item_tiles(shape, p.seq, p.item);
	int32_t first = p.seq.n_past + rows.begin, last = p.seq.n_past + rows.end - 1;
	p.row0 = p.item / shape.n_kv_head * shape.row_tile;
	p.n_row = min(shape.row_tile, p.seq.n_query * shape.group - p.row0);
	p.head0 = p.item % shape.n_kv_head * shape.group;
	p.partials = {max(tile_chunk(p.cut - 1), tile_chunk(seen.begin)),
		max(tile_chunk(p.cut - 1), tile_chunk(seen.end - 1)) + 1};
	p.line = seq_tiles(shape, p.seq);
	p.tiles = {max(p.run.begin, seen.begin), min(p.run.end, seen.end)};
	p.keys = {first_key(shape, p.seq, first), last + 1};
	p.inner = {(window_begin(shape, last) + TILE - 1) / TILE, (first + 1) / TILE};
	if (shape.part == SHARED_KEYS) {
		p.keys = {0, p.seq.n_past};
		p.inner = p.line;
	}
}

/* Sets where the run's share of an item ends, and what it is split into. `split`, `cut`: of an item
 * that began in an earlier run. */
__host__ __device__ __forceinline__ void set_end(
	const work_shape &shape, const run_start &begin, const run_start &end, piece &p)
{
	bool last = p.seq_index == end.seq && p.item == end.item;
	p.run.end = last ? end.tile : seq_tiles(shape, p.seq).end;
	p.split = last ? end.split : begin.split;
	p.cut = last ? end.cut : begin.cut;
	complete(shape, p);
	p.index = p.run.begin == p.line.begin ? 0 : begin.index;
	p.n_run = last ? end.n_run : begin.n_run;
}

/* The first piece of the run from `begin` to `end`. */
__host__ __device__ __forceinline__ piece first_piece(
	const work_shape &shape, const run_start &begin, const run_start &end)
{
	piece p;
	p.seq_index = begin.seq;
	p.seq = begin.geom;
	p.item = begin.item;
	p.run.begin = begin.tile;
	set_end(shape, begin, end, p);
	return p;
}

/* What a block of threads is given: its first piece, and where the next run begins. */
struct run {
	piece first;
	run_start end;
};

/* Walks the pieces of a run; the same in every lane. */
struct run_walk {
	piece at;
	run_start end;

	__host__ __device__ explicit run_walk(const run &r) : at(r.first), end(r.end)
	{
	}

	__host__ __device__ bool done() const
	{
		if (at.seq_index != end.seq)
			return at.seq_index > end.seq;
		return at.item != end.item ? at.item > end.item : at.run.begin >= end.tile;
	}

	__host__ __device__ void next(const work_shape &shape, const nsv_cuda_seq *seqs)
	{
		if (++at.item == n_item(shape, at.seq)) {
			at.item = 0;
			do
				at.seq_index++;
			while (at.seq_index < end.seq && n_item(shape, seqs[at.seq_index]) == 0);
			at.seq = at.seq_index < end.seq ? seqs[at.seq_index] : end.geom;
		}
		at.run.begin = seq_tiles(shape, at.seq).begin;
		set_end(shape, end, end, at);
	}
};

#endif

} // namespace nsv

#endif
