/* Rows against keys, and against values, for AVX2: in place of attention-tiles-impl.h.
 *
 * A tile is twelve sums of eight lanes, of sixteen registers: up to 3 rows by two vectors, else up
 * to 6 rows by one. What is fewer, rows or halves of vectors, is held in registers; the other goes
 * through a single one. Left to itself the compiler holds both, and spills a sum. */

#define TILE_ROWS 3u /* that two vectors go with */
#define HALVES 4u    /* of these */
#define HALF_N 8u

ALWAYS_INLINE __m256 load_half(bool half, const char *p)
{
	const __m128i *h = (const void *)p;
	return half ? _mm256_cvtph_ps(_mm_loadu_si128(h)) : _mm256_loadu_ps((const void *)p);
}

/* acc[r] += x[r * ld] * the vectors at y: rows, vecs and half are constants where expanded. */
ALWAYS_INLINE void add_products(uint32_t rows, uint32_t vecs, bool half, const float *x, size_t ld,
	const char *const *y, __m256 (*acc)[HALVES])
{
	const size_t step = HALF_N * elem_len(half);
	const uint32_t halves = 2 * vecs;
	__m256 held[SCORE_ROWS];
	UNROLL
	for (uint32_t i = 0; i < min_u32(rows, halves); i++)
		held[i] = rows < halves ? _mm256_broadcast_ss(x + i * ld)
					: load_half(half, y[i / 2] + i % 2 * step);
	UNROLL
	for (uint32_t h = 0; h < halves && rows < halves; h++) {
		__m256 one = load_half(half, y[h / 2] + h % 2 * step);
		UNROLL
		for (uint32_t r = 0; r < rows; r++)
			acc[r][h] = _mm256_fmadd_ps(held[r], one, acc[r][h]);
	}
	UNROLL
	for (uint32_t r = 0; r < rows && rows >= halves; r++) {
		__m256 one = _mm256_broadcast_ss(x + r * ld);
		UNROLL
		for (uint32_t h = 0; h < halves; h++)
			acc[r][h] = _mm256_fmadd_ps(one, held[h], acc[r][h]);
	}
}

/* Groups of keys from j0 on. What is to be asked for, if nothing, is what is there. */
ALWAYS_INLINE void score_tile(uint32_t rows, uint32_t vecs, bool half, const struct keys *keys,
	bool ask, uint32_t j0, const float *q, size_t ld, uint32_t n, float *s)
{
	const char *k[SCORE_VECS], *next[SCORE_VECS];
	__m256 acc[SCORE_ROWS][HALVES];
	UNROLL
	for (uint32_t j = 0; j < vecs; j++) {
		k[j] = keys->k[j0 + j];
		next[j] = ask ? keys->next[j0 + j] : k[j];
	}
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		UNROLL
	for (uint32_t h = 0; h < 2 * vecs; h++)
		acc[r][h] = _mm256_setzero_ps();
	for (uint32_t d = 0; d < n; d++) {
		add_products(rows, vecs, half, q + d * ld, 1, k, acc);
		UNROLL
		for (uint32_t j = 0; j < vecs; j++) {
			if (!half || d % 2 == 0) /* two dimensions a line */
				ask_ahead(next[j]);
			next[j] += keys->stride;
			k[j] += keys->stride;
		}
	}
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		UNROLL
	for (uint32_t h = 0; h < 2 * vecs; h++)
		_mm256_storeu_ps(s + r * STRIP + h * HALF_N, acc[r][h]);
}

ALWAYS_INLINE void score_group(uint32_t vecs, bool half, const struct keys *keys, const float *q,
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
		if (c <= TILE_ROWS) {                                                              \
			score_tile(c, vecs, half, keys, ask, 0, at, ld, n, to);                    \
			break;                                                                     \
		}                                                                                  \
		for (uint32_t j = 0; j < vecs; j++)                                                \
			score_tile(c, 1, half, keys, ask, j, at, ld, n, to + j * VF_N);            \
		break;
			CASE(1)
			CASE(2)
			CASE(3)
			CASE(4)
			CASE(5)
			CASE(6)
#undef CASE
		}
	}
}

/* n_row rows of q, in which a dimension has ld. `vecs` is SCORE_VECS or 1. Not expanded where it is
 * called: it is large. */
__attribute__((noinline)) static void score_some(uint32_t vecs, const struct keys *keys,
	const float *q, uint32_t n_row, size_t ld, uint32_t n, float *s)
{
	if (vecs == 1 && keys->half)
		score_group(1, true, keys, q, n_row, ld, n, s);
	else if (vecs == 1)
		score_group(1, false, keys, q, n_row, ld, n, s);
	else if (keys->half)
		score_group(SCORE_VECS, true, keys, q, n_row, ld, n, s);
	else
		score_group(SCORE_VECS, false, keys, q, n_row, ld, n, s);
}

/* acc += p * v over the strip's keys [from, to); rows, vecs and half are constants where
 * expanded. */
ALWAYS_INLINE void value_tile(uint32_t rows, uint32_t vecs, bool half, const struct values *values,
	float *const *part, uint32_t dim0, const float *p, uint32_t from, uint32_t to)
{
	const size_t len = elem_len(half), at = values->at + dim0 * len, step = VF_N * len;
	const char *const *row = values->row, *const *next = values->next;
	__m256 acc[VALUE_ROWS][HALVES];
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		UNROLL
	for (uint32_t h = 0; h < 2 * vecs; h++)
		acc[r][h] = _mm256_loadu_ps(part[r] + PART_HEAD + dim0 + h * HALF_N);
	for (uint32_t t = from; t < to; t++) {
		const char *v[2] = {row[t] + at, row[t] + at + step};
		add_products(rows, vecs, half, p + t, STRIP, v, acc);
		UNROLL
		for (uint32_t j = 0; j < vecs; j += half ? 2 : 1)
			ask_ahead(next[t] + at + j * step);
	}
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		UNROLL
	for (uint32_t h = 0; h < 2 * vecs; h++)
		_mm256_storeu_ps(part[r] + PART_HEAD + dim0 + h * HALF_N, acc[r][h]);
}

/* All dimensions, for a constant number of rows. */
ALWAYS_INLINE void value_dims(uint32_t rows, bool half, const struct values *v, float *const *part,
	uint32_t dim, const float *p, uint32_t from, uint32_t to)
{
	uint32_t d = 0;
	for (; rows <= TILE_ROWS && d + 2 * VF_N <= dim; d += 2 * VF_N)
		value_tile(rows, 2, half, v, part, d, p, from, to);
	for (; d < dim; d += VF_N)
		value_tile(rows, 1, half, v, part, d, p, from, to);
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
			value_dims(c, true, v, part, dim, p, from, to);                            \
		else                                                                               \
			value_dims(c, false, v, part, dim, p, from, to);                           \
		break;
		CASE(1)
		CASE(2)
		CASE(3)
		CASE(4)
		CASE(5)
		CASE(6)
#undef CASE
	}
}
