/* Products with vpmaddubsw, two ymm for 16 rows. Its pairs of 16 bits saturate, so: up to 6 bits
 * of q times 7 of x fit, and as many of such pairs are added up as 16 bits hold (run_len) before
 * they are widened; 8 bits are taken as |q - 128| times x with the sign of q - 128, which fits as
 * well, since x is never -128.
 *
 * There are 16 registers. Up to MAX_ROWS rows of activations meet the q of a vector as it is
 * unpacked; more rows share a block that was unpacked to memory, in groups of MAX_ROWS, whose sums
 * and one vector's q are what registers hold. */
#include "kernels/cpu/block.h"

#if defined(__clang__) /* says that it does not unroll loops over as many rows as there are */
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

#define FN(name) nsv_cpu_##name##_avx2
#define MAX_ROWS 4
#define WHOLE_TILES 1

typedef struct {
	__m256i lo, hi;
} vi;

struct quants {
	__m256i v[8][2];
};

#define vi_float(a) ((vf){_mm256_cvtepi32_ps((a).lo), _mm256_cvtepi32_ps((a).hi)})

/* `value` in each byte whose bit is set. */
ALWAYS_INLINE __m256i spread_bits(uint32_t bits, uint32_t value)
{
	const __m256i byte = _mm256_setr_epi8(
		0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, /* lower half */
		2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
	const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
	__m256i b = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), byte);
	b = _mm256_cmpeq_epi8(_mm256_and_si256(b, bit), bit);
	return _mm256_and_si256(b, _mm256_set1_epi8((char)value));
}

/* Four inputs in every lane. */
ALWAYS_INLINE __m256i load_four(const int8_t *x)
{
	int32_t four;
	memcpy(&four, x, sizeof(four));
	return _mm256_set1_epi32(four);
}

/* Bits from .. from + n - 1 of each byte, moved to bit `to`. */
ALWAYS_INLINE __m256i take_bits(const uint8_t *p, uint32_t from, uint32_t n, uint32_t to)
{
	__m256i v = _mm256_loadu_si256((const __m256i *)(const void *)p);
	if (from > to)
		v = _mm256_srli_epi16(v, (int)(from - to));
	else if (to > from)
		v = _mm256_slli_epi16(v, (int)(to - from));
	return _mm256_and_si256(v, _mm256_set1_epi8((char)(((1u << n) - 1u) << to)));
}

/* q of 8 rows times the scales that are given, as block.h's scale_quants does; of Q3_K the 128 is
 * taken off again. */
ALWAYS_INLINE __m256i scale_half(__m256i q, const uint8_t *scales, uint32_t form)
{
	__m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)scales);
	__m256i s, add;
	if (form == NSV_CPU_Q2_K)
		s = _mm256_cvtepu8_epi32(_mm_and_si128(bytes, _mm_set1_epi8(15)));
	else
		s = _mm256_cvtepi8_epi32(bytes);
	s = _mm256_blend_epi16(s, _mm256_slli_epi32(s, 16), 0xaa);
	q = _mm256_mullo_epi16(q, s);
	if (form == NSV_CPU_Q2_K)
		return q;
	add = _mm256_sub_epi16(_mm256_set1_epi16(128), _mm256_slli_epi16(s, 2));
	q = _mm256_add_epi16(q, _mm256_add_epi16(add, _mm256_slli_epi16(add, 8)));
	return _mm256_xor_si256(q, _mm256_set1_epi8((char)0x80));
}

/* The values that q numbers. */
ALWAYS_INLINE __m256i decode_half(__m256i q)
{
	const __m256i plus_128 = _mm256_broadcastsi128_si256(
		_mm_loadu_si128((const __m128i *)(const void *)nsv_cpu_iq4));
	return _mm256_shuffle_epi8(_mm256_xor_si256(plus_128, _mm256_set1_epi8((char)0x80)), q);
}

/* Half a vector of stored q of fewer than 8 bits, put together from its parts. */
ALWAYS_INLINE __m256i load_half(const uint8_t *block, uint32_t j, uint32_t half, uint32_t form)
{
	const uint32_t bits = nsv_cpu_bits(form), fours = bits & 4;
	const uint8_t *p = block + half * 32;
	uint32_t ones;
	__m256i q = _mm256_setzero_si256();
	if (fours)
		q = take_bits(p + j / 2 * 64, j % 2 * 4, 4, 0);
	if (bits & 2)
		q = _mm256_or_si256(
			q, take_bits(p + fours * 64 + j / 4 * 64, j % 4 * 2, 2, fours));
	if (bits & 1) {
		memcpy(&ones, block + nsv_cpu_ones_at(bits) + j * 8 + half * 4, sizeof(ones));
		q = _mm256_or_si256(q, spread_bits(ones, 1u << (bits - 1)));
	}
	return q;
}

/* Half a vector of unpacked q; of all 8 bits: q - 128. */
ALWAYS_INLINE __m256i unpack_half(const uint8_t *block, uint32_t j, uint32_t half, uint32_t form)
{
	const uint8_t *scales = block + nsv_cpu_q_len(form) + j / 4 * NSV_CPU_PANEL + half * 8;
	if (form == NSV_CPU_Q8_D)
		return _mm256_xor_si256(take_bits(block + j * 64 + half * 32, 0, 8, 0),
			_mm256_set1_epi8((char)0x80));
	__m256i q = load_half(block, j, half, form);
	if (nsv_cpu_is_coded(form))
		return decode_half(q);
	return nsv_cpu_is_scaled(form) ? scale_half(q, scales, form) : q;
}

ALWAYS_INLINE void unpack(struct quants *q, const uint8_t *block, uint32_t form)
{
	UNROLL
	for (uint32_t j = 0; j < 8; j++) {
		q->v[j][0] = unpack_half(block, j, 0, form);
		q->v[j][1] = unpack_half(block, j, 1, form);
	}
}

/* ---- Sums ------------------------------------------------------------------------------- */

/* How many vectors' products add up in 16 bits. A pair is at most 2 * 127 times the largest q,
 * which is 15, 31, 63, or of Q2_K 3 * 15: 8 * 254 * 15, 4 * 254 * 31 and 2 * 254 * 63 are below
 * 2^15. */
ALWAYS_INLINE uint32_t run_len(uint32_t form)
{
	if (nsv_cpu_is_wide(form))
		return 1;
	return nsv_cpu_bits(form) == 4 ? 8 : nsv_cpu_bits(form) == 5 ? 4 : 2;
}

/* Sums that are made where they stand: compilers would have all products of a block first, and
 * many more values than registers. */
ALWAYS_INLINE __m256i add16(__m256i sum, __m256i v)
{
	__asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(v));
	return sum;
}

ALWAYS_INLINE __m256i add32(__m256i sum, __m256i v)
{
	__asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(v));
	return sum;
}

/* Where the q of a block are: to be unpacked as they are used or, block being NULL, unpacked. */
struct source {
	const uint8_t *block;
	const struct quants *q;
};

/* Inputs 4j .. 4j + 3 of 8 rows; abs: their magnitudes, of wide forms. */
struct half {
	__m256i q, abs;
};

ALWAYS_INLINE struct half load_q(const struct source *s, uint32_t j, uint32_t half, uint32_t form)
{
	__m256i q = s->block ? unpack_half(s->block, j, half, form) : s->q->v[j][half];
	return (struct half){q, _mm256_abs_epi8(q)};
}

ALWAYS_INLINE __m256i multiply(const struct half *h, __m256i x, uint32_t form)
{
	if (nsv_cpu_is_wide(form))
		return _mm256_maddubs_epi16(h->abs, _mm256_sign_epi8(x, h->q));
	return _mm256_maddubs_epi16(h->q, x);
}

/* Adds the products of vectors j .. j + run - 1. */
ALWAYS_INLINE void add_run(vi *sum, const struct source *s, const int8_t *x, uint32_t rows,
	uint32_t j, uint32_t run, uint32_t form)
{
	const __m256i one = _mm256_set1_epi16(1);
	vi acc[MAX_ROWS];
	UNROLL
	for (uint32_t i = 0; i < run; i++) {
		struct half lo = load_q(s, j + i, 0, form), hi = load_q(s, j + i, 1, form);
		UNROLL
		for (uint32_t r = 0; r < rows; r++) {
			__m256i four = load_four(x + r * NSV_CPU_BLOCK + (j + i) * 4);
			__m256i l = multiply(&lo, four, form), h = multiply(&hi, four, form);
			acc[r].lo = i ? add16(acc[r].lo, l) : l;
			acc[r].hi = i ? add16(acc[r].hi, h) : h;
			if (run > 1)
				continue;
			sum[r].lo = add32(sum[r].lo, _mm256_madd_epi16(l, one));
			sum[r].hi = add32(sum[r].hi, _mm256_madd_epi16(h, one));
		}
	}
	if (run == 1)
		return;
	UNROLL
	for (uint32_t r = 0; r < rows; r++) {
		sum[r].lo = _mm256_add_epi32(sum[r].lo, _mm256_madd_epi16(acc[r].lo, one));
		sum[r].hi = _mm256_add_epi32(sum[r].hi, _mm256_madd_epi16(acc[r].hi, one));
	}
}

/* -zero times the sum of the x of the first half, of the second, or of both. */
ALWAYS_INLINE __m256i load_bias(
	const struct nsv_cpu_scale *s, uint32_t first, uint32_t end, uint32_t form)
{
	const uint32_t by = -nsv_cpu_zero(form) & 0xffff;
	int32_t sums;
	if (nsv_cpu_is_wide(form) || by == 0)
		return _mm256_setzero_si256();
	memcpy(&sums, s->sum, sizeof(sums));
	return _mm256_madd_epi16(_mm256_set1_epi32(sums),
		_mm256_set1_epi32((int32_t)((first < 4 ? by : 0) | (end > 4 ? by << 16 : 0))));
}

/* Sums of (q - zero) * x over vectors first .. end - 1. */
ALWAYS_INLINE void sum_vectors(vi *sum, const struct source *s, const int8_t *x,
	const struct nsv_cpu_scale *scale, uint32_t rows, uint32_t first, uint32_t end,
	uint32_t form)
{
	const uint32_t run = run_len(form);
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		sum[r].lo = sum[r].hi = load_bias(&scale[r], first, end, form);
	UNROLL
	for (uint32_t j = first; j < end; j += run)
		add_run(sum, s, x, rows, j, run, form);
}

/* Compilers are not to look for what calls of this have in common, to keep in registers what would
 * leave none for the sums: each has addresses of its own. */
#define APART(a, b) __asm__ volatile("" : "+r"(a), "+r"(b) : : "memory")

/* What a block adds to the sums of at most MAX_ROWS rows, a constant. */
ALWAYS_INLINE void add_group(vf *acc, const struct source *s, const struct factors *f,
	const int8_t *x, const struct nsv_cpu_scale *scale, uint32_t rows, uint32_t form)
{
	const uint32_t step = form == NSV_CPU_Q6_K ? 4 : 8;
	vi sum[MAX_ROWS];
	UNROLL
	for (uint32_t first = 0; first < 8; first += step) {
		sum_vectors(sum, s, x, scale, rows, first, first + step, form);
		UNROLL
		for (uint32_t r = 0; r < rows; r++)
			acc[r] = vf_fma(vf_mul(f->d[first / 4], vf_set1(scale[r].d)),
				vi_float(sum[r]), acc[r]);
	}
	if (!nsv_cpu_has_m(form))
		return;
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		acc[r] = add_m(acc[r], f, &scale[r], form);
}

/* With q unpacked. */
ALWAYS_INLINE void add_unpacked(vf *acc, const struct quants *q, const struct factors *f,
	const int8_t *x, const struct nsv_cpu_scale *scale, uint32_t rows, uint32_t form)
{
	struct source s = {NULL, q};
	APART(s.q, x);
	add_group(acc, &s, f, x, scale, rows, form);
}

/* Of so many rows, those of the next group: none has one row where others could share. */
ALWAYS_INLINE uint32_t next_group(uint32_t left)
{
	if (left <= MAX_ROWS)
		return left;
	return MAX_ROWS > 2 && left % MAX_ROWS == 1 ? MAX_ROWS - 1 : MAX_ROWS;
}

/* Of more rows, which share the block once it is unpacked. */
ALWAYS_INLINE void add_groups(vf *acc, const struct quants *q, const struct factors *f,
	const int8_t *x, const struct nsv_cpu_scale *scale, uint32_t rows, uint32_t form)
{
	for (uint32_t n; rows; rows -= n, acc += n, x += n * NSV_CPU_BLOCK, scale += n) {
		n = next_group(rows);
		switch (n) {
#define CASE(c) \
	case c: \
		add_unpacked(acc, q, f, x, scale, c <= MAX_ROWS ? c : 1, form); \
		break;
			CASE(4)
			CASE(3)
			CASE(2)
#if MAX_ROWS < 3
			CASE(1)
#endif
#undef CASE
		}
	}
}

ALWAYS_INLINE void add_block(vf *acc, const uint8_t *block, const uint8_t *head, const int8_t *x,
	const struct nsv_cpu_scale *scale, uint32_t rows, uint32_t form)
{
	struct source s = {block, NULL};
	struct factors f;
	struct quants q;
	load_factors(&f, block + nsv_cpu_q_len(form), head, form);
	if (rows <= MAX_ROWS) {
		if (rows > 2)
			APART(acc, x); /* the sums of floats in memory */
		add_group(acc, &s, &f, x, scale, rows, form);
		return;
	}
	unpack(&q, block, form);
	add_groups(acc, &q, &f, x, scale, rows, form);
}

#include "kernels/cpu/matmul-impl.h"
