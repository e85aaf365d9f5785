/* By insertion what is short or in order; else by counting, eleven bits of the key a pass. */
#include "daemon/sample-sort.h"

#include <string.h>

#define SHORT 48
#define DIGIT_BITS 11
#define N_DIGIT (1u << DIGIT_BITS)
#define N_PASS 3 /* odd: the last one ends in the other array */

/* Grows as the logit falls; of equals, zeros of both signs too, the same. */
static uint32_t key_of(float logit)
{
	float x = logit + 0.0f;
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

static uint32_t digit_of(struct nsv_lp x, int pass)
{
	return key_of(x.logprob) >> (pass * DIGIT_BITS) & (N_DIGIT - 1);
}

static void insert_all(const struct nsv_lp *x, struct nsv_lp *out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		size_t j = i;

		for (; j > 0 && out[j - 1].logprob < x[i].logprob; j--)
			out[j] = out[j - 1];
		out[j] = x[i];
	}
}

/* Insertion moves nothing then, whatever n is: many equal logits are no rare thing. */
static bool falls(const struct nsv_lp *x, size_t n)
{
	size_t i = 1;

	while (i < n && x[i - 1].logprob >= x[i].logprob)
		i++;
	return i >= n;
}

static void count_digits(const struct nsv_lp *x, size_t n, uint32_t count[N_PASS][N_DIGIT])
{
	memset(count, 0, N_PASS * sizeof(count[0]));
	for (size_t i = 0; i < n; i++)
		for (int pass = 0; pass < N_PASS; pass++)
			count[pass][digit_of(x[i], pass)]++;
}

static void move_by_digit(const struct nsv_lp *from, struct nsv_lp *to, size_t n, int pass,
	uint32_t count[N_DIGIT])
{
	uint32_t at = 0;

	for (uint32_t d = 0; d < N_DIGIT; d++) {
		uint32_t here = count[d];

		count[d] = at;
		at += here;
	}
	for (size_t i = 0; i < n; i++)
		to[count[digit_of(from[i], pass)]++] = from[i];
}

void nsv_sample_sort(struct nsv_lp *x, struct nsv_lp *out, size_t n)
{
	uint32_t count[N_PASS][N_DIGIT];

	if (n <= SHORT || falls(x, n)) {
		insert_all(x, out, n);
		return;
	}
	count_digits(x, n, count);
	for (int pass = 0; pass < N_PASS; pass++)
		move_by_digit(pass % 2 ? out : x, pass % 2 ? x : out, n, pass, count[pass]);
}
