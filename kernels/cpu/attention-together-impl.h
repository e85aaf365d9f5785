/* One query of a sequence: reading its keys and values is what takes long. So KV heads that lie
 * beside each other are worked on together, a few keys at a time, in the order in which they lie in
 * memory, and what comes next is asked for while they are:
 *
 *     keys     KEYS of every head, then the next; at the end the first values are asked for
 *     values   the same; at the end the next strip's first keys
 *
 * Such an item is one of all their query heads; row r is query head head0 + r. */

#define KEYS (SCORE_VECS * VF_N) /* worked on, and asked for, at a time */
#define KV_DIMS 256u /* of the heads together: what is asked for fits the cache it is asked into */

_Static_assert(AHEAD == KEYS, "values are asked for as many keys ahead as are worked on");

static bool is_together(const struct item *it)
{
	const struct nsv_attn_shape *s = it->call->shape;
	return it->n_query == 1 && it->n_head % it->call->plan->group == 0 && k_in_place(s) &&
	       v_in_place(s);
}

/* What is asked for: groups of keys from pos on or, where they end, of the first values. */
static void find_next_keys(
	const struct item *it, uint32_t pos, uint32_t begin, uint32_t end, struct keys *keys)
{
	const struct nsv_attn_shape *s = it->call->shape;
	const char *k = it->call->k, *v = it->call->v;
	for (uint32_t j = 0; j < SCORE_VECS; j++)
		keys->next[j] =
			pos + j * VF_N < end
				? k + (size_t)place(it, &s->k, pos + j * VF_N) *
						  elem_len(keys->half)
				: v + (size_t)place(it, &s->v, min_u32(begin + j * VF_N, end - 1)) *
						  elem_len(keys->half);
}

static bool score_together(
	const struct item *it, struct work *w, uint32_t strip, uint32_t begin, uint32_t end)
{
	const struct nsv_attn_shape *s = it->call->shape;
	uint32_t group = it->call->plan->group, vecs;
	size_t head_len = (size_t)s->k.head_stride * elem_len(is_half(s));
	if (!is_together(it))
		return false;
	for (uint32_t pos = begin / VF_N * VF_N; pos < end; pos += vecs * VF_N) {
		struct keys keys = {.half = is_half(s),
			.stride = (size_t)s->k.dim_stride * elem_len(is_half(s))};
		vecs = group_vecs(it, false, end - pos);
		find_keys(it, pos, vecs, keys.k);
		find_next_keys(it, pos + vecs * VF_N, begin, end, &keys);
		for (uint32_t r = 0; r < it->n_row; r += group) {
			score_some(vecs, &keys, w->q + r, group, it->n_row, s->head_dim,
				w->s + r * STRIP + (pos - strip));
			for (uint32_t j = 0; j < vecs; j++) {
				keys.k[j] += head_len;
				keys.next[j] += head_len;
			}
		}
	}
	return true;
}

/* What is asked for after the strip's values: the first keys of the next, if it is this item's. */
static void find_next_strip(const struct item *it, uint32_t pos, const char **row)
{
	const struct nsv_attn_shape *s = it->call->shape;
	size_t len = elem_len(is_half(s));
	for (uint32_t i = 0; i < KEYS && pos + i < it->end[0]; i += VF_N)
		for (uint32_t j = 0; j < VF_N; j++)
			row[i + j] = (const char *)it->call->k +
				     ((size_t)place(it, &s->k, pos + i) + j * s->head_dim) * len;
}

/* Rows r0 .. of one KV head; the first of them ask ahead. */
static void value_head(
	const struct item *it, struct work *w, uint32_t r0, uint32_t from, uint32_t to)
{
	const struct nsv_attn_shape *s = it->call->shape;
	uint32_t group = it->call->plan->group, rows = even_rows(group, VALUE_ROWS);
	struct values v = {.half = is_half(s), .row = w->v_row, .next = w->v_row + AHEAD};
	v.at = r0 / group * (size_t)s->v.head_stride * elem_len(v.half);
	for (uint32_t r = r0; r < r0 + group; r += rows) {
		value_some(min_u32(rows, r0 + group - r), &v, it->part + r, s->head_dim,
			w->s + r * STRIP, from, to);
		v.next = v.row;
	}
}

static bool value_together(
	const struct item *it, struct work *w, uint32_t strip, uint32_t begin, uint32_t end)
{
	if (!is_together(it))
		return false;
	find_values(it, strip, begin - strip, end - strip, w->v_row);
	find_next_strip(it, end, w->v_row + (end - strip));
	for (uint32_t t = begin - strip; t < end - strip; t += KEYS)
		for (uint32_t r = 0; r < it->n_row; r += it->call->plan->group)
			value_head(it, w, r, t, min_u32(t + KEYS, end - strip));
	return true;
}

/* ---- Who does what ---------------------------------------------------------------------- */

/* KV heads from kv on, n of them. */
static void set_kv_heads(struct item *it, uint32_t kv, uint32_t n)
{
	uint32_t group = it->call->plan->group;
	set_heads(it, kv, 0);
	it->n_head = it->n_row = n * group;
	for (uint32_t r = 1; r < it->n_row; r++) {
		it->begin[r] = it->begin[0];
		it->end[r] = it->end[0];
	}
}

/* How many KV heads an item has: one, where there are few items. */
static uint32_t most_together(const struct deal *deal, const struct item *it)
{
	const struct nsv_attn_shape *s = it->call->shape;
	uint32_t n = min_u32(KV_DIMS / s->head_dim, ROWS / it->call->plan->group);
	uint32_t n_member = deal->part->count;
	if (!deal->split && n_member > 1 && it->call->plan->n_seq < 4 * n_member)
		return 1;
	return max_u32(1, min_u32(n, s->n_kv_head));
}

/* Of each chunk, the heads that are this member's. */
static void deal_chunks_together(struct deal *deal, struct item *it, uint32_t most)
{
	uint32_t n_kv = it->call->shape->n_kv_head, group = it->call->plan->group;
	set_kv_heads(it, 0, 1);
	for (uint32_t c = first_chunk(it); c < end_chunk(it); c++)
		for (uint32_t kv = 0, n = 0; kv < n_kv; kv++) {
			uint64_t cost = (uint64_t)(chunk_to(it, c) - chunk_from(it, c)) * group + 1;
			bool mine = is_mine(deal, cost);
			n += mine;
			if (n > 0 && (!mine || n == most || kv + 1 == n_kv)) {
				set_kv_heads(it, kv + mine - n, n);
				run_part(it, c);
				n = 0;
			}
		}
}

static void deal_whole_together(struct deal *deal, struct item *it, uint32_t most)
{
	uint32_t n_kv = it->call->shape->n_kv_head;
	for (uint32_t kv = 0; kv < n_kv; kv += most) {
		if (deal->at++ != deal->mine)
			continue;
		set_kv_heads(it, kv, min_u32(most, n_kv - kv));
		run_whole(it);
		deal->mine = nsv_team_take(deal->part, &deal->alone);
	}
}

static bool deal_together(struct deal *deal, struct item *it)
{
	const struct nsv_attn_shape *s = it->call->shape;
	if (it->n_query != 1 || it->call->plan->group > ROWS || !k_in_place(s) || !v_in_place(s))
		return false;
	if (deal->split)
		deal_chunks_together(deal, it, most_together(deal, it));
	else
		deal_whole_together(deal, it, most_together(deal, it));
	return true;
}
