/* Paged attention over sixteen lanes. attention-<isa>.c defines FN(name), SCORE_ROWS, SCORE_VECS,
 * VALUE_ROWS (what fits its registers), VALUE_KEYS (whose values are passed over by all rows before
 * the next), WIDEN_ROWS (from so many on fp16 is made fp32 beforehand), AHEAD (keys whose values
 * are asked for in advance) and NEARNESS (the cache that they are asked into: 3 the nearest, 2 the
 * next), on none of which the bits depend, and includes attention-place-impl.h, the tiles
 * (attention-tiles-impl.h or its own), this and attention-together-impl.h.
 *
 * An item is a KV head of a sequence with a tile of its query positions and the query heads that
 * share it: up to ROWS rows (query, head) that read the same keys. A history is taken in chunks
 * (nsv_attn_chunk_edge), a chunk in strips of 256 keys: scores of all rows, sixteen keys a vector,
 * one fma a dimension in order; then maximum, exp and sum, key i in lane i % 16; then values,
 * sixteen dimensions a vector, one fma a key in order. Each row's arithmetic is its own: it depends
 * on neither the other rows of the item nor who computes it.
 *
 * A chunk's result is a partial: (maximum, sum, padding; values (head_dim rounded up to 16)),
 * folded into the row's total first to last. For few rows, partials go to scratch, so that members
 * can share the chunks of one history; else an item folds its own.
 *
 * K with 16 keys adjacent and V with dimensions adjacent, fp32 or fp16, are read where they lie;
 * any other layout, type or head size is gathered, sixteen keys at a time. fp16 is made fp32 as it
 * is read; for many rows, once for all of them. */

/* In attention-together-impl.h. */
static bool score_together(
	const struct item *it, struct work *w, uint32_t strip, uint32_t begin, uint32_t end);
static bool value_together(
	const struct item *it, struct work *w, uint32_t strip, uint32_t begin, uint32_t end);
struct deal;
static bool deal_together(struct deal *deal, struct item *it);

/* ---- Scores ----------------------------------------------------------------------------- */

static void find_keys(const struct item *it, uint32_t pos, uint32_t n, const char **k)
{
	const struct nsv_attn_shape *s = it->call->shape;
	for (uint32_t j = 0; j < n; j++)
		k[j] = (const char *)it->call->k +
		       (size_t)place(it, &s->k, pos + j * VF_N) * elem_len(is_half(s));
}

/* The keys as fp32 in w->k, and *keys refers to them there; those after them are asked for. */
static void widen_keys(struct work *w, uint32_t vecs, uint32_t dim, struct keys *keys)
{
	float *to = w->k;
	for (uint32_t d = 0; d < dim; d++)
		for (uint32_t j = 0; j < vecs; j++, to += VF_N) {
			vf_store(to, vf_load_f16(keys->k[j] + d * keys->stride));
			if (keys->next[0])
				ask_ahead(keys->next[j] + d * keys->stride);
		}
	keys->half = false;
	keys->stride = vecs * VF_N * sizeof(float);
	keys->next[0] = NULL;
	for (uint32_t j = 0; j < vecs; j++)
		keys->k[j] = (const char *)(w->k + j * VF_N);
}

/* Groups of keys that are scored together: as many as there are, fit the registers and, widened,
 * w->k. */
static uint32_t group_vecs(const struct item *it, bool widen, uint32_t n_key)
{
	bool fits = !widen || SCORE_VECS * it->call->shape->head_dim <= DIM_MAX;
	return fits && n_key >= SCORE_VECS * VF_N ? SCORE_VECS : 1;
}

/* The keys pos .. < end, where they lie. Returns how many groups were scored. */
static uint32_t score_in_place(
	const struct item *it, struct work *w, uint32_t strip, uint32_t pos, uint32_t end)
{
	const struct nsv_attn_shape *s = it->call->shape;
	bool half = is_half(s), widen = half && it->n_row >= WIDEN_ROWS;
	uint32_t vecs = group_vecs(it, widen, end - pos), after = pos + vecs * VF_N;
	struct keys keys = {.half = half, .stride = (size_t)s->k.dim_stride * elem_len(half)};
	find_keys(it, pos, vecs, keys.k);
	if (vecs == SCORE_VECS && it->end[it->n_row - 1] >= after + vecs * VF_N)
		find_keys(it, after, vecs, keys.next);
	if (widen)
		widen_keys(w, vecs, s->head_dim, &keys);
	score_some(vecs, &keys, w->q, it->n_row, it->n_row, s->head_dim, w->s + (pos - strip));
	return vecs;
}

/* Scores of the strip's keys [begin, end), from whole groups of 16. */
static void score_strip(
	const struct item *it, struct work *w, uint32_t strip, uint32_t begin, uint32_t end)
{
	const struct nsv_attn_shape *s = it->call->shape;
	uint32_t pos = begin / VF_N * VF_N;
	if (score_together(it, w, strip, begin, end))
		return;
	const struct keys keys = {.k = {(const char *)w->k}, .stride = VF_N * sizeof(float)};
	if (k_in_place(s)) {
		while (pos < end)
			pos += VF_N * score_in_place(it, w, strip, pos, end);
		return;
	}
	for (; pos < end; pos += VF_N) {
		gather_k(it, pos, begin, end, w->k);
		score_some(1, &keys, w->q, it->n_row, it->n_row, s->head_dim, w->s + (pos - strip));
	}
}

/* ---- Weights ---------------------------------------------------------------------------- */

/* cap * tanh(x / cap), tanh(y) = 1 - 2 / (e^2y + 1) */
ALWAYS_INLINE vf cap_score(vf x, float cap)
{
	vf one = vf_set1(1.0f), two = vf_set1(2.0f), c = vf_set1(cap);
	vf e = vf_exp(vf_mul(two, vf_div(x, c)));
	return vf_mul(c, vf_sub(one, vf_div(two, vf_add(e, one))));
}

static void scale_values(float *part, uint32_t dim, vf by)
{
	for (uint32_t d = 0; d < dim; d += VF_N)
		vf_store(part + PART_HEAD + d, vf_mul(vf_load(part + PART_HEAD + d), by));
}

/* Scales, caps and masks a row's scores in [from, to) of the strip; returns their largest. */
static float finish_scores(const struct nsv_attn_shape *shape, float *s, uint32_t from, uint32_t to)
{
	const vf none = vf_set1(-INFINITY), scale = vf_set1(shape->scale);
	vf max = none;
	for (uint32_t i = from / VF_N * VF_N; i < to; i += VF_N) {
		vf x = vf_mul(vf_load(s + i), scale);
		if (shape->softcap > 0)
			x = cap_score(x, shape->softcap);
		if (i < from || i + VF_N > to)
			x = vf_between(clamp_to(from, i, VF_N), clamp_to(to, i, VF_N), x, none);
		max = vf_max(max, x);
		vf_store(s + i, x);
	}
	return vf_hmax(max);
}

/* A row's weights of the strip, and its maximum, sums (16 lanes, kept in `sum`) and values so far
 * brought to the new maximum. */
static void weigh_row(const struct nsv_attn_shape *shape, float *s, uint32_t from, uint32_t to,
	float *part, float *sum)
{
	float old = part[0], max = finish_scores(shape, s, from, to);
	vf lanes = vf_load(sum), top;
	max = old > max ? old : max;
	top = vf_set1(max);
	if (old != max && old != -INFINITY) {
		vf by = vf_exp(vf_sub(vf_set1(old), top));
		lanes = vf_mul(lanes, by);
		scale_values(part, padded_dim(shape), by);
	}
	for (uint32_t i = from / VF_N * VF_N; i < to; i += VF_N) {
		vf p = vf_exp(vf_sub(vf_load(s + i), top));
		lanes = vf_add(lanes, p);
		vf_store(s + i, p);
	}
	vf_store(sum, lanes);
	part[0] = max;
}

/* ---- Values ----------------------------------------------------------------------------- */

/* Rows r0 .. r0 + rows - 1 over the strip's keys [from, to): together where all see a key; before
 * and after, each alone, so that a key that a row does not see is not even multiplied by zero. */
static void value_span(const struct item *it, struct work *w, uint32_t r0, uint32_t rows,
	const struct values *v, uint32_t strip, uint32_t from, uint32_t to)
{
	uint32_t dim = padded_dim(it->call->shape), lo = from, hi = to;
	const float *p = w->s + r0 * STRIP;
	float *const *part = it->part + r0;
	for (uint32_t r = r0; r < r0 + rows; r++) {
		lo = max_u32(lo, clamp_to(it->begin[r], strip, STRIP));
		hi = min_u32(hi, clamp_to(it->end[r], strip, STRIP));
	}
	if (lo >= hi)
		lo = hi = to;
	for (uint32_t r = 0; r < rows; r++) {
		uint32_t b = max_u32(from, clamp_to(it->begin[r0 + r], strip, STRIP));
		uint32_t e = min_u32(to, clamp_to(it->end[r0 + r], strip, STRIP));
		value_some(1, v, part + r, dim, p + r * STRIP, b, min_u32(e, lo));
	}
	value_some(rows, v, part, dim, p, lo, hi);
	for (uint32_t r = 0; r < rows && hi < to; r++) {
		uint32_t e = min_u32(to, clamp_to(it->end[r0 + r], strip, STRIP));
		value_some(1, v, part + r, dim, p + r * STRIP, hi, e);
	}
}

/* The strip's keys [from, to), whose addresses are in v_row. The first rows ask ahead, if any. */
static void value_all(const struct item *it, struct work *w, bool half, bool ask, uint32_t strip,
	uint32_t from, uint32_t to)
{
	struct values v = {.half = half, .row = w->v_row, .next = w->v_row + (ask ? AHEAD : 0)};
	uint32_t rows = even_rows(it->n_row, VALUE_ROWS);
	for (uint32_t r = 0; r < it->n_row; r += rows) {
		value_span(it, w, r, min_u32(it->n_row - r, rows), &v, strip, from, to);
		v.next = v.row;
	}
}

/* Where the values of the strip's keys [from, to) lie; after them, for who asks ahead, any. */
static void find_values(
	const struct item *it, uint32_t strip, uint32_t from, uint32_t to, const char **row)
{
	const struct nsv_attn_shape *s = it->call->shape;
	const char *last = NULL;
	for (uint32_t t = from; t < to; t++)
		row[t] = last = (const char *)it->call->v +
				(size_t)place(it, &s->v, strip + t) * elem_len(is_half(s));
	for (uint32_t i = 0; i < AHEAD; i++)
		row[to + i] = last;
}

/* The strip's keys [from, to), their values in w->v, `stride` floats each. */
static void value_copied(const struct item *it, struct work *w, uint32_t strip, uint32_t from,
	uint32_t to, uint32_t stride)
{
	for (uint32_t i = 0; i < to - from; i++)
		w->v_row[from + i] = (const char *)(w->v + i * stride);
	value_all(it, w, false, false, strip, from, to);
}

/* Values of one key as fp32; those of the key AHEAD of it are asked for. */
static void widen_value(const char *v, const char *ahead, uint32_t dim, float *dst)
{
	for (uint32_t d = 0; d < dim; d += VF_N) {
		vf_store(dst + d, vf_load_f16(v + d * sizeof(uint16_t)));
		ask_ahead(ahead + d * sizeof(uint16_t));
	}
}

/* As many keys at a time as fit w->v. */
static void value_widened(
	const struct item *it, struct work *w, uint32_t strip, uint32_t from, uint32_t to)
{
	uint32_t dim = padded_dim(it->call->shape);
	uint32_t n = min_u32(VALUE_KEYS, VF_N * DIM_MAX / dim);
	const char *row[STRIP + AHEAD];
	find_values(it, strip, from, to, row);
	for (uint32_t t = from; t < to; t += n) {
		uint32_t end = min_u32(t + n, to);
		for (uint32_t i = t; i < end; i++)
			widen_value(row[i], row[i + AHEAD], dim, w->v + (i - t) * dim);
		value_copied(it, w, strip, t, end, dim);
	}
}

static void value_in_place(
	const struct item *it, struct work *w, uint32_t strip, uint32_t from, uint32_t to)
{
	bool half = is_half(it->call->shape);
	find_values(it, strip, from, to, w->v_row);
	for (uint32_t t = from; t < to; t += VALUE_KEYS)
		value_all(it, w, half, true, strip, t, min_u32(t + VALUE_KEYS, to));
}

static void value_gathered(
	const struct item *it, struct work *w, uint32_t strip, uint32_t from, uint32_t to)
{
	for (uint32_t t = from; t < to; t += VF_N) {
		uint32_t end = min_u32(t + VF_N, to);
		for (uint32_t i = t; i < end; i++)
			gather_v(it, strip + i, w->v + (i - t) * DIM_MAX);
		value_copied(it, w, strip, t, end, DIM_MAX);
	}
}

static void value_strip(
	const struct item *it, struct work *w, uint32_t strip, uint32_t begin, uint32_t end)
{
	const struct nsv_attn_shape *s = it->call->shape;
	if (value_together(it, w, strip, begin, end))
		return;
	if (!v_in_place(s))
		value_gathered(it, w, strip, begin - strip, end - strip);
	else if (is_half(s) && it->n_row >= WIDEN_ROWS)
		value_widened(it, w, strip, begin - strip, end - strip);
	else
		value_in_place(it, w, strip, begin - strip, end - strip);
}

/* ---- Chunks ----------------------------------------------------------------------------- */

static void clear_part(float *part, uint32_t dim)
{
	memset(part, 0, (PART_HEAD + dim) * sizeof(float));
	part[0] = -INFINITY;
}

/* The partials of keys [from, to), a chunk or what the rows see of it, into it->part. */
static void run_chunk(const struct item *it, struct work *w, uint32_t from, uint32_t to)
{
	const struct nsv_attn_shape *shape = it->call->shape;
	float sum[ROWS * VF_N] = {0};
	for (uint32_t r = 0; r < it->n_row; r++)
		clear_part(it->part[r], padded_dim(shape));
	for (uint32_t strip = from / STRIP * STRIP; strip < to; strip += STRIP) {
		uint32_t begin = max_u32(from, strip), end = min_u32(to, strip + STRIP);
		score_strip(it, w, strip, begin, end);
		for (uint32_t r = 0; r < it->n_row; r++) {
			uint32_t b = clamp_to(it->begin[r], strip, STRIP);
			uint32_t e = clamp_to(it->end[r], strip, STRIP);
			if (b < e)
				weigh_row(
					shape, w->s + r * STRIP, b, e, it->part[r], sum + r * VF_N);
		}
		value_strip(it, w, strip, begin, end);
	}
	for (uint32_t r = 0; r < it->n_row; r++)
		it->part[r][1] = vf_sum(vf_load(sum + r * VF_N));
}

/* total = total + part, both brought to the larger maximum. An empty part changes nothing. */
static void fold(float *total, const float *part, uint32_t dim)
{
	float max = total[0] > part[0] ? total[0] : part[0], lane[VF_N];
	vf top = vf_set1(max);
	vf a = vf_exp(vf_sub(vf_set1(total[0]), top)), b = vf_exp(vf_sub(vf_set1(part[0]), top));
	if (part[0] == -INFINITY)
		return;
	vf_store(lane, vf_fma(vf_set1(part[1]), b, vf_mul(vf_set1(total[1]), a)));
	total[0] = max;
	total[1] = lane[0];
	for (uint32_t d = PART_HEAD; d < PART_HEAD + dim; d += VF_N)
		vf_store(total + d, vf_fma(vf_load(part + d), b, vf_mul(vf_load(total + d), a)));
}

static void write_out(const float *total, uint32_t n, float *out)
{
	vf sum = vf_set1(total[1]);
	for (uint32_t d = 0; d < n; d += VF_N)
		vf_store_n(
			out + d, vf_div(vf_load(total + PART_HEAD + d), sum), min_u32(n - d, VF_N));
}

/* ---- Items ------------------------------------------------------------------------------ */

static size_t out_at(const struct item *it, uint32_t r)
{
	size_t row = (size_t)it->seq->row0 + it->query0 + r / it->n_head;
	return row * it->call->plan->q_row_stride +
	       (size_t)(it->head0 + r % it->n_head) * it->call->shape->head_dim;
}

static void load_q(const struct item *it, struct work *w)
{
	for (uint32_t r = 0; r < it->n_row; r++) {
		const float *q = it->call->q + out_at(it, r);
		for (uint32_t d = 0; d < it->call->shape->head_dim; d++)
			w->q[d * it->n_row + r] = q[d];
	}
}

/* The keys that any row sees. */
static uint32_t item_begin(const struct item *it)
{
	return it->begin[0];
}

static uint32_t item_end(const struct item *it)
{
	return it->end[it->n_row - 1];
}

/* The chunks that hold keys which the item's rows see: first .. end - 1. */
static uint32_t first_chunk(const struct item *it)
{
	return nsv_attn_n_chunk(item_begin(it) + 1ull) - 1;
}

static uint32_t end_chunk(const struct item *it)
{
	return nsv_attn_n_chunk(item_end(it));
}

static uint32_t chunk_from(const struct item *it, uint32_t c)
{
	return (uint32_t)nsv_max(nsv_attn_chunk_edge(c), item_begin(it));
}

static uint32_t chunk_to(const struct item *it, uint32_t c)
{
	return (uint32_t)nsv_min_u64(nsv_attn_chunk_edge(c + 1), item_end(it));
}

/* Every chunk, folded as it comes. */
static void run_whole(struct item *it)
{
	struct work w;
	uint32_t dim = padded_dim(it->call->shape), stride = dim + PART_HEAD;
	load_q(it, &w);
	for (uint32_t r = 0; r < it->n_row; r++) {
		it->part[r] = w.chunk + r * stride;
		clear_part(w.total + r * stride, dim);
	}
	for (uint32_t c = first_chunk(it); c < end_chunk(it); c++) {
		run_chunk(it, &w, chunk_from(it, c), chunk_to(it, c));
		for (uint32_t r = 0; r < it->n_row; r++)
			fold(w.total + r * stride, it->part[r], dim);
	}
	for (uint32_t r = 0; r < it->n_row; r++)
		write_out(w.total + r * stride, it->call->shape->head_dim,
			it->call->out + out_at(it, r));
}

/* A partial in scratch: (n_row, n_head, n_chunk). */
static float *part_at(const struct nsv_attn_call *call, size_t row, size_t head, size_t c)
{
	size_t stride = padded_dim(call->shape) + PART_HEAD;
	return (float *)call->scratch +
	       ((row * call->shape->n_head + head) * call->plan->n_chunk + c) * stride;
}

/* One chunk, its partials to scratch. */
static void run_part(struct item *it, uint32_t c)
{
	struct work w;
	load_q(it, &w);
	for (uint32_t r = 0; r < it->n_row; r++)
		it->part[r] = part_at(it->call, (size_t)it->seq->row0 + it->query0 + r / it->n_head,
			it->head0 + r % it->n_head, c);
	run_chunk(it, &w, chunk_from(it, c), chunk_to(it, c));
}

/* ---- Who does what ---------------------------------------------------------------------- */

/* Each member walks all items in one order. Whole ones are taken as members come to them: their
 * number makes up for what they and the processors differ by. Chunks, of which there are few, are
 * dealt out by their cost. */
struct deal {
	const struct nsv_part *part;
	uint64_t total, so_far; /* total 0: counting */
	uint32_t at, mine;	/* whole: the walk's place; the item that this member has taken */
	uint32_t alone;
	bool split;
};

static bool is_mine(struct deal *deal, uint64_t cost)
{
	uint64_t middle = deal->so_far + cost / 2;
	deal->so_far += cost;
	if (!deal->total)
		return false;
	return (unsigned __int128)middle * deal->part->count / deal->total == deal->part->index;
}

/* The keys that row `query` of a sequence sees. */
static void row_keys(const struct nsv_attn_call *call, const struct nsv_attn_seq *seq,
	uint32_t query, uint32_t *begin, uint32_t *end)
{
	uint32_t window = call->shape->window;
	*end = seq->n_past + query + 1;
	*begin = window && *end > window ? *end - window : 0;
}

/* Query heads h .. of a KV head, up to ROWS of them. */
static void set_heads(struct item *it, uint32_t kv, uint32_t h)
{
	uint32_t group = it->call->plan->group;
	it->kv_head = kv;
	it->head0 = kv * group + h;
	it->n_head = min_u32(group - h, ROWS);
	it->n_row = it->n_query * it->n_head;
	for (uint32_t r = 0; r < it->n_row; r++)
		row_keys(
			it->call, it->seq, it->query0 + r / it->n_head, &it->begin[r], &it->end[r]);
}

/* The items of one tile of queries, those that this member takes. */
static void deal_whole(struct deal *deal, struct item *it)
{
	for (uint32_t kv = 0; kv < it->call->shape->n_kv_head; kv++)
		for (uint32_t h = 0; h < it->call->plan->group; h += ROWS) {
			if (deal->at++ != deal->mine)
				continue;
			set_heads(it, kv, h);
			run_whole(it);
			deal->mine = nsv_team_take(deal->part, &deal->alone);
		}
}

/* Their chunks, those dealt to this member: all heads of a chunk after each other, as their keys
 * lie beside each other. */
static void deal_chunks(struct deal *deal, struct item *it)
{
	set_heads(it, 0, 0);
	for (uint32_t c = first_chunk(it); c < end_chunk(it); c++)
		for (uint32_t kv = 0; kv < it->call->shape->n_kv_head; kv++)
			for (uint32_t h = 0; h < it->call->plan->group; h += ROWS) {
				set_heads(it, kv, h);
				if (is_mine(deal, (uint64_t)(chunk_to(it, c) - chunk_from(it, c)) *
								  it->n_row +
							  1))
					run_part(it, c);
			}
}

static void deal_all(struct deal *deal, const struct nsv_attn_call *call)
{
	uint32_t step = max_u32(1, ROWS / min_u32(call->plan->group, ROWS));
	struct item it = {.call = call};
	for (uint32_t i = 0; i < call->plan->n_seq; i++) {
		it.seq = &call->seqs[i];
		/* The longest histories first: what is left for the end is short. */
		for (uint32_t t = (it.seq->n_query + step - 1) / step; t-- > 0;) {
			it.query0 = t * step;
			it.n_query = min_u32(step, it.seq->n_query - it.query0);
			if (deal_together(deal, &it))
				continue;
			if (deal->split)
				deal_chunks(deal, &it);
			else
				deal_whole(deal, &it);
		}
	}
}

/* The partials of a row's heads begin .. end - 1, folded. */
static void fold_row(const struct nsv_attn_call *call, const struct nsv_attn_seq *seq,
	uint32_t query, size_t begin, size_t end)
{
	uint32_t dim = padded_dim(call->shape), first, last;
	size_t row = (size_t)seq->row0 + query;
	float total[DIM_MAX + PART_HEAD];
	row_keys(call, seq, query, &first, &last);
	for (size_t h = begin; h < end; h++) {
		clear_part(total, dim);
		for (uint32_t c = nsv_attn_n_chunk(first + 1ull) - 1; c < nsv_attn_n_chunk(last);
			c++)
			fold(total, part_at(call, row, h, c), dim);
		write_out(total, call->shape->head_dim,
			call->out + row * call->plan->q_row_stride + h * call->shape->head_dim);
	}
}

static void fold_all(const struct nsv_part *part, const struct nsv_attn_call *call)
{
	size_t begin, end;
	nsv_part_range(part, call->shape->n_head, 1, &begin, &end);
	for (uint32_t i = 0; i < call->plan->n_seq; i++)
		for (uint32_t q = 0; q < call->seqs[i].n_query; q++)
			fold_row(call, &call->seqs[i], q, begin, end);
}

void FN(attention)(const struct nsv_part *part, const struct nsv_attn_call *call)
{
	struct deal deal = {.part = part};
	deal.split = part->count > 1 && call->plan->n_chunk > 1 &&
		     call->plan->n_row <= NSV_ATTN_SPLIT_ROWS;
	if (!deal.split)
		deal.mine = nsv_team_take(part, &deal.alone);
	deal_all(&deal, call);
	if (!deal.split)
		return;
	deal.total = deal.so_far;
	deal.so_far = 0;
	deal_all(&deal, call);
	nsv_team_barrier(part);
	fold_all(part, call);
}
