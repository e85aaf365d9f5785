/* The plan's integers on the host, over the same functions that the device runs: every tile of
 * every item in exactly one run, partials in places of their own, everything there that a fold
 * reads.
 *
 *     plan [lines] [seed]      prints "N passed, M failed"; exits 1 on any failure; needs no device */
#include "kernels/cuda/runs.cuh"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <vector>

using namespace nsv;
using std::vector;

static std::mt19937_64 rng;
static int n_failed;

static int32_t below(uint32_t n)
{
	return (int32_t)(rng() % n);
}

/* A wrong integer: the first of them are told. */
static void require(bool ok, const char *what)
{
	if (!ok && n_failed++ < 20)
		printf("FAILED %s\n", what);
}

struct line {
	work_shape shape;
	vector<nsv_cuda_seq> seqs;
	vector<int64_t> ends;
	vector<run_start> starts;
	int32_t n_block, max_kv;
	int64_t total;
	int32_t n_chunk; /* where each is a run */
};

static nsv_cuda_seq random_seq(const work_shape &shape, int32_t row0, int32_t index)
{
	int32_t n_query = below(5) ? 1 + below(below(2) ? 8 : 90) : 0, n_past = below(6000);
	int32_t whole = n_past / (int32_t)NSV_CUDA_SHARED_KEYS * (int32_t)NSV_CUDA_SHARED_KEYS;
	bool shares =
		shape.part == ALL_KEYS || (shape.part == OWN_KEYS && !shape.window && below(2));
	if (shape.part == SHARED_KEYS)
		n_past = whole;
	return {row0, n_query, n_past, index, shares ? whole : 0};
}

/* The line's ends, counted by `weight`; returns its length. */
static int64_t lay_line(line &l, int64_t (*weight)(const work_shape &, const nsv_cuda_seq &))
{
	l.total = 0;
	for (size_t i = 0; i < l.seqs.size(); i++)
		l.ends[i] = l.total += weight(l.shape, l.seqs[i]);
	return l.total;
}

/* How many runs a split item has: one more than begin inside it. */
static void count_runs(line &l)
{
	int32_t n = 0, split = -1;
	for (size_t r = l.starts.size(); r-- > 0;) {
		run_start &a = l.starts[r];
		if (a.split >= 0 && a.split != split)
			n = a.index + 1;
		split = a.split;
		a.n_run = n;
	}
}

/* The cuts of a line, numbered as the plan kernel numbers them. */
static void cut_line(line &l)
{
	plan_args args = {};
	args.shape = l.shape;
	args.seqs = l.seqs.data();
	args.n_seq = (int32_t)l.seqs.size();
	args.n_block = l.n_block;
	args.ends = l.ends.data();
	bool by_chunk = lay_line(l, seq_chunks) <= l.n_block;
	l.n_chunk = by_chunk ? (int32_t)l.total : 0;
	if (!by_chunk)
		lay_line(l, seq_weight);
	bool is_whole = below(2);
	int32_t number = -1, cut = 0, index = 0;
	for (int32_t r = 0; r <= l.n_block; r++) {
		run_start a = by_chunk ? start_of_chunk(args, r)
				       : start_at(args, part_begin(args, l.total, r, is_whole));
		const run_start *b = r ? &l.starts[r - 1] : nullptr;
		bool goes_on = b && is_inside(args, *b) && b->seq == a.seq && b->item == a.item;
		if (is_inside(args, a)) {
			number += !goes_on;
			cut = goes_on ? cut : a.tile;
			index = goes_on ? index + (b->tile != a.tile) : 1;
			a.split = number;
			a.cut = cut;
			a.index = index;
		}
		l.starts.push_back(a);
	}
	require(number < l.n_block, "more split items than runs");
	count_runs(l);
}

static line random_line()
{
	line l = {};
	l.shape = {1 + below(4), 1 + below(8), 0, 8 << below(4), 1, INT32_MAX, ALL_KEYS};
	l.shape.part = (keys_part)below(3);
	if (l.shape.part != SHARED_KEYS && below(3) == 0)
		l.shape.window = 1 + below(900);
	l.n_block = below(2) ? 132 : 1 + below(400);
	int32_t row = 0, n = 1 + below(6);
	for (int32_t i = 0; i < n; i++) {
		l.seqs.push_back(random_seq(l.shape, row, i));
		row += l.seqs[i].n_query;
		l.max_kv = std::max(l.max_kv, l.seqs[i].n_past + l.seqs[i].n_query);
	}
	l.ends.resize(l.seqs.size());
	cut_line(l);
	return l;
}

/* What runs have left of an item. */
struct item_state {
	vector<int32_t> tiles;	  /* that some run went over */
	std::set<int32_t> chunks; /* with a partial */
	int32_t split = -1, cut = -1, n_done = 0, n_run = 0;
	bool has_begun = false, is_written = false;
};

/* A chunk that is left as a partial: in a place of its own, inside the memory. */
static void leave(item_state &item, const piece &p, int32_t chunk, int32_t max_kv)
{
	int32_t slot = chunk - tile_chunk(p.line.begin);
	require(slot >= 0 && slot < tile_chunk(max_kv / TILE) + 1, "a partial outside its memory");
	require(item.chunks.insert(chunk).second, "two partials in one place");
}

/* Folding starts at a partial that is there, and finds one for each chunk that rows see. */
static void fold_item(const line &l, item_state &item, const piece &p)
{
	tile_range seen = item_tiles(l.shape, p.seq, p.item);
	int32_t folded = tile_chunk(p.cut - 1);
	require(p.partials.begin == std::max(folded, tile_chunk(seen.begin)) &&
			p.partials.end > tile_chunk(seen.end - 1),
		"partials that are not folded");
	for (int32_t chunk = p.partials.begin; chunk < p.partials.end; chunk++)
		require(item.chunks.count(chunk) == 1, "a partial that nobody wrote");
	if (l.shape.part == OWN_KEYS && p.seq.n_shared > 0)
		require(p.partials.begin == folded, "a prefix that is not folded");
	item.is_written = true;
}

/* As decode's run_piece(). */
static void do_piece(const line &l, item_state &item, const piece &p)
{
	bool begins = p.run.begin == p.line.begin, ends = p.run.end == p.line.end;
	require(p.run.begin >= p.line.begin && p.run.begin < p.run.end && p.run.end <= p.line.end,
		"a piece outside its item");
	for (int32_t t = p.tiles.begin; t < p.tiles.end;) {
		int32_t stop = std::min(chunk_end(t), p.tiles.end);
		require(chunk_begin(t) == t || t == p.tiles.begin, "a chunk from its middle");
		if (!begins)
			leave(item, p, tile_chunk(t), l.max_kv);
		require(chunk_end(t) % STEP_TILES == 0, "a chunk that ends within a step");
		for (; t < stop; t++)
			item.tiles.push_back(t);
	}
	item.has_begun = item.has_begun || begins;
	if (begins && ends) {
		item.is_written = true;
		return;
	}
	if (begins)
		leave(item, p, tile_chunk(p.run.end - 1), l.max_kv);
	require(p.split >= 0 && p.split < l.n_block, "a split item without a number");
	require(item.split < 0 || (item.split == p.split && item.cut == p.cut), "other numbers");
	require(p.index == item.n_run++ && p.index < p.n_run,
		"a run of an item with another's number");
	item.split = p.split;
	item.cut = p.cut;
	item.n_done += p.run.end - p.run.begin;
	if (item.n_done == p.line.end - p.line.begin) {
		require(item.n_run == p.n_run, "another number of runs");
		fold_item(l, item, p);
	}
}

/* Tiles that are said to need no mask need none. */
static void check_masks(const line &l, const piece &p)
{
	int32_t last_row = p.row0 + p.n_row - 1;
	int32_t first_pos = p.seq.n_past + p.row0 / l.shape.group;
	int32_t last_pos = p.seq.n_past + last_row / l.shape.group;
	for (int32_t t = p.tiles.begin; t < p.tiles.end; t++) {
		if (t < p.inner.begin || t >= p.inner.end)
			continue;
		int32_t end = l.shape.part == SHARED_KEYS ? p.seq.n_past : first_pos + 1;
		require(t * TILE >= window_begin(l.shape, last_pos) && (t + 1) * TILE <= end,
			"a mask is missing");
	}
}

/* The keys that a launch is for, and no others. */
static tile_range wanted(const line &l, const nsv_cuda_seq &seq, int32_t item)
{
	int32_t row = item / l.shape.n_kv_head * l.shape.row_tile;
	int32_t last = std::min(row + l.shape.row_tile, seq.n_query * l.shape.group) - 1;
	int32_t begin = window_begin(l.shape, seq.n_past + row / l.shape.group) / TILE;
	if (l.shape.part == SHARED_KEYS)
		return {0, seq.n_past / TILE};
	if (l.shape.part == OWN_KEYS)
		begin = std::max(begin, seq.n_shared / TILE);
	return {begin, (seq.n_past + last / l.shape.group) / TILE + 1};
}

static void check_item(const line &l, int32_t seq, int32_t item, item_state &state)
{
	tile_range want = wanted(l, l.seqs[seq], item);
	std::sort(state.tiles.begin(), state.tiles.end());
	bool same = (int32_t)state.tiles.size() == want.end - want.begin;
	for (size_t i = 0; same && i < state.tiles.size(); i++)
		same = state.tiles[i] == want.begin + (int32_t)i;
	require(same, "tiles missed or done twice");
	require(state.has_begun && state.is_written, "an item that nobody begins or writes");
}

static void check_line(const line &l)
{
	std::map<std::pair<int32_t, int32_t>, item_state> items;
	std::set<int32_t> blocks;
	for (int32_t r = 0; r < l.n_block; r++) {
		int32_t block = block_of_run(r, l.n_chunk);
		bool has_waited = false;
		require(block >= 0 && block < l.n_block && blocks.insert(block).second,
			"a run that no block of threads of its own takes");
		run own = {first_piece(l.shape, l.starts[r], l.starts[r + 1]), l.starts[r + 1]};
		for (run_walk walk(own); !walk.done(); walk.next(l.shape, l.seqs.data())) {
			bool waits = walk.at.run.end < walk.at.line.end &&
				     walk.at.index < walk.at.n_run - 1;
			require(!has_waited, "a run that waits before its end");
			has_waited = waits;
			do_piece(l, items[{walk.at.seq_index, walk.at.item}], walk.at);
			check_masks(l, walk.at);
		}
	}
	size_t n = 0;
	for (int32_t s = 0; s < (int32_t)l.seqs.size(); s++)
		for (int32_t i = 0; i < n_item(l.shape, l.seqs[s]); i++, n++)
			check_item(l, s, i, items[{s, i}]);
	require(n == items.size(), "items that there are not");
}

/* Prefill's items are small where large ones would leave most multiprocessors without any. */
static void check_prefill()
{
	plan_args args = {};
	args.prefill.row_tile = 189;
	args.prefill_least = 63;
	args.prefill_few = 66;
	require(prefill_rows(args, 0) == 63 && prefill_rows(args, 66) == 63, "few large items");
	require(prefill_rows(args, 67) == 189, "many small items");
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 2000, n_bad = 0;
	uint64_t seed = argc > 2 ? strtoull(argv[2], nullptr, 0) : (uint64_t)time(nullptr);
	printf("seed %llu\n", (unsigned long long)seed);
	rng.seed(seed);
	check_prefill();
	n_bad += n_failed > 0;
	for (int i = 0; i < n; i++) {
		int before = n_failed;
		check_line(random_line());
		n_bad += n_failed > before;
	}
	printf("%d passed, %d failed\n", n + 1 - n_bad, n_bad);
	return n_bad != 0;
}
