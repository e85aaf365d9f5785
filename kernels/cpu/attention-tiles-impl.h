/* Rows against keys, and against values, over sixteen lanes: tiles of SCORE_ROWS by SCORE_VECS and
 * of VALUE_ROWS by VALUE_VECS, which attention-<isa>.c defines as they fit its registers. */

/* `vecs` groups of keys against `rows` rows: these and `half` are constants wherever this is
 * expanded. */
ALWAYS_INLINE void score_rows(uint32_t rows, uint32_t vecs, bool half, const struct keys *keys,
	bool ask, const float *q, size_t ld, uint32_t n, float *s)
{
	vf acc[SCORE_ROWS][SCORE_VECS];
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		UNROLL
	for (uint32_t j = 0; j < vecs; j++)
		acc[r][j] = vf_set1(0);
	for (uint32_t d = 0; d < n; d++) {
		vf key[SCORE_VECS];
		UNROLL
		for (uint32_t j = 0; j < vecs; j++)
			key[j] = load_vec(half, keys->k[j] + d * keys->stride);
		if (ask) {
			UNROLL
			for (uint32_t j = 0; j < vecs; j++)
				ask_ahead(keys->next[j] + d * keys->stride);
		}
		UNROLL
		for (uint32_t r = 0; r < rows; r++) {
			vf x = vf_set1(q[d * ld + r]);
			UNROLL
			for (uint32_t j = 0; j < vecs; j++)
				acc[r][j] = vf_fma(x, key[j], acc[r][j]);
		}
	}
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		UNROLL
	for (uint32_t j = 0; j < vecs; j++)
		vf_store(s + r * STRIP + j * VF_N, acc[r][j]);
}

ALWAYS_INLINE void score_group(uint32_t vecs, const struct keys *keys, const float *q,
	uint32_t n_row, size_t ld, uint32_t n, float *s)
{
	uint32_t rows = even_rows(n_row, SCORE_ROWS);
	for (uint32_t r = 0; r < n_row; r += rows) {
		const float *at = q + r;
		float *to = s + r * STRIP;
		bool ask = r == 0 && keys->next[0];
		switch (min_u32(n_row - r, rows)) {
#define CASE(c)                                                                                    \
	case c:                                                                                    \
		if (keys->half)                                                                    \
			score_rows(c <= SCORE_ROWS ? c : 1, vecs, true, keys, ask, at, ld, n, to); \
		else                                                                               \
			score_rows(                                                                \
				c <= SCORE_ROWS ? c : 1, vecs, false, keys, ask, at, ld, n, to);   \
		break;
			CASE(1)
			CASE(2)
			CASE(3)
			CASE(4)
			CASE(5)
			CASE(6)
			CASE(7)
#undef CASE
		}
	}
}

/* n_row rows of q, in which a dimension has ld. `vecs` is SCORE_VECS or 1. */
static void score_some(uint32_t vecs, const struct keys *keys, const float *q, uint32_t n_row,
	size_t ld, uint32_t n, float *s)
{
	if (vecs == 1)
		score_group(1, keys, q, n_row, ld, n, s);
	else
		score_group(SCORE_VECS, keys, q, n_row, ld, n, s);
}

/* acc += p * v over the strip's keys [from, to); rows, vecs and half are constants where
 * expanded. */
ALWAYS_INLINE void value_rows(uint32_t rows, uint32_t vecs, bool half, const struct values *v,
	float *const *part, uint32_t dim0, const float *p, uint32_t from, uint32_t to)
{
	const size_t len = elem_len(half), at = v->at + dim0 * len, step = VF_N * len;
	const char *const *row = v->row, *const *next = v->next;
	vf acc[VALUE_ROWS][VALUE_VECS];
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		UNROLL
	for (uint32_t j = 0; j < vecs; j++)
		acc[r][j] = vf_load(part[r] + PART_HEAD + dim0 + j * VF_N);
	for (uint32_t t = from; t < to; t++) {
		vf val[VALUE_VECS];
		UNROLL
		for (uint32_t j = 0; j < vecs; j++)
			val[j] = load_vec(half, row[t] + at + j * step);
		UNROLL
		for (uint32_t j = 0; j < vecs; j += half ? 2 : 1)
			ask_ahead(next[t] + at + j * step);
		UNROLL
		for (uint32_t r = 0; r < rows; r++) {
			vf w = vf_set1(p[r * STRIP + t]);
			UNROLL
			for (uint32_t j = 0; j < vecs; j++)
				acc[r][j] = vf_fma(w, val[j], acc[r][j]);
		}
	}
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		UNROLL
	for (uint32_t j = 0; j < vecs; j++)
		vf_store(part[r] + PART_HEAD + dim0 + j * VF_N, acc[r][j]);
}

/* All dimensions, for a constant number of rows. */
ALWAYS_INLINE void value_dims(uint32_t rows, bool half, const struct values *v, float *const *part,
	uint32_t dim, const float *p, uint32_t from, uint32_t to)
{
	uint32_t d = 0;
	for (; d + VALUE_VECS * VF_N <= dim; d += VALUE_VECS * VF_N)
		value_rows(rows, VALUE_VECS, half, v, part, d, p, from, to);
	for (; d < dim; d += VF_N)
		value_rows(rows, 1, half, v, part, d, p, from, to);
}

static void value_some(uint32_t rows, const struct values *v, float *const *part, uint32_t dim,
	const float *p, uint32_t from, uint32_t to)
{
	if (from >= to)
		return;
	switch (rows) {
#define CASE(c)                                                                                    \
	case c:                                                                                    \
		if (v->half)                                                                       \
			value_dims(c <= VALUE_ROWS ? c : 1, true, v, part, dim, p, from, to);      \
		else                                                                               \
			value_dims(c <= VALUE_ROWS ? c : 1, false, v, part, dim, p, from, to);     \
		break;
		CASE(1)
		CASE(2)
		CASE(3)
		CASE(4)
		CASE(5)
		CASE(6)
		CASE(7)
#undef CASE
	}
}
