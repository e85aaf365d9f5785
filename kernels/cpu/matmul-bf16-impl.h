/* Products of weights in bf16; the part of matmul-impl.h that is theirs. Activations are rounded to
 * bf16, to nearest even, as the units for it take them.
 *
 * The order is that of tdpbf16ps, so that the AMX row (matmul-avx512-amx-bf16.c) gives the same
 * bits (vdpbf16ps has another): for each block of 32 inputs, growing, from zero
 *     even = fma(w, x, even) over inputs 0, 2, 4 ..., odd = fma(w, x, odd) over inputs 1, 3, 5 ...,
 *     acc = acc + (even + odd),
 * numbers below the normal ones being zeros (flush.h). */
#ifndef NSV_KERNELS_CPU_MATMUL_BF16_IMPL_H
#define NSV_KERNELS_CPU_MATMUL_BF16_IMPL_H

#include <stdalign.h>

#include "kernels/cpu/block.h"

#define AHEAD 4096u /* bytes that the first pass over a panel asks for in advance */
#define PAIR_ROWS (MAX_ROWS > 1 ? MAX_ROWS / 2 : 1) /* each has three sums */
#define BF16_ROWS 32u
#define BF16_SPAN 1024u /* inputs; whole blocks */

/* A panel's span of inputs against some rows. */
struct bf16_job {
	const uint8_t *panel;
	const float *x; /* (rows, BF16_SPAN), rounded */
	size_t n_block;
	bool first; /* sums begin at zero, else at what is in out */
	float *out;
	size_t ld_out;
	uint32_t n_lane;
};

/* What a block of 32 inputs adds; x are those of the first row. */
ALWAYS_INLINE void bf16_block(vf *acc, uint32_t rows, const uint8_t *w, const float *x)
{
	vf even[PAIR_ROWS], odd[PAIR_ROWS];
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		even[r] = odd[r] = vf_set1(0);
	for (uint32_t i = 0; i < NSV_CPU_BLOCK; i += 2, w += 4 * VF_N) {
		vf w0 = vf_load_first(w), w1 = vf_load_second(w);
		UNROLL
		for (uint32_t r = 0; r < rows; r++) {
			const float *pair = x + r * BF16_SPAN + i;
			even[r] = vf_fma(w0, vf_set1(pair[0]), even[r]);
			odd[r] = vf_fma(w1, vf_set1(pair[1]), odd[r]);
		}
	}
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		acc[r] = vf_add(acc[r], vf_add(even[r], odd[r]));
}

/* `rows` is a constant wherever this is expanded. */
ALWAYS_INLINE void bf16_rows(const struct bf16_job *job, uint32_t rows)
{
	const uint8_t *w = job->panel;
	vf acc[PAIR_ROWS];
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		acc[r] = job->first ? vf_set1(0)
				    : vf_load_n(job->out + r * job->ld_out, job->n_lane);
	for (size_t b = 0; b < job->n_block; b++, w += NSV_CPU_BF16_LEN) {
		if (rows == 1)
			prefetch_block(w + AHEAD, NSV_CPU_BF16_LEN);
		bf16_block(acc, rows, w, job->x + b * NSV_CPU_BLOCK);
	}
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		vf_store_n(job->out + r * job->ld_out, acc[r], job->n_lane);
}

static void bf16_panel(const struct bf16_job *panel, size_t n_row)
{
	struct bf16_job job = *panel;
	for (size_t rows = PAIR_ROWS; n_row; n_row -= rows) {
		while (rows > n_row)
			rows /= 2;
		switch (rows) {
#define CASE(c) \
	case c: \
		bf16_rows(&job, c <= PAIR_ROWS ? c : 1); \
		break;
			CASE(8)
			CASE(4)
			CASE(2)
			CASE(1)
#undef CASE
		}
		job.x += rows * BF16_SPAN;
		job.out += rows * job.ld_out;
	}
}

/* n inputs of some rows to (n_row, BF16_SPAN), and zeros to a whole block. */
static void bf16_round(float *to, const float *x, size_t ld, size_t n_row, size_t n)
{
	size_t whole = nsv_cpu_n_block((uint32_t)n) * NSV_CPU_BLOCK;
	for (size_t r = 0; r < n_row; r++)
		for (size_t i = 0; i < whole; i += VF_N) {
			vf v = vf_load_n(
				x + r * ld + i, (uint32_t)nsv_min(n - nsv_min(i, n), VF_N));
			vf_store(to + r * BF16_SPAN + i, vf_round_bf16(v));
		}
}

static void bf16_some_rows(const struct nsv_cpu_mat_run *run, size_t row, size_t n_row)
{
	alignas(64) float x[BF16_ROWS * BF16_SPAN];
	struct bf16_job job = {.x = x, .ld_out = run->ld_out};
	for (size_t i = 0; i < run->n_in; i += BF16_SPAN) {
		size_t n = nsv_min(run->n_in - i, BF16_SPAN);
		bf16_round(x, run->acts->x + row * run->acts->ld + i, run->acts->ld, n_row, n);
		job.n_block = nsv_cpu_n_block((uint32_t)n);
		job.first = i == 0;
		for (size_t p = run->begin; p < run->end; p++) {
			size_t out0 = p * NSV_CPU_PANEL;
			job.panel = run->panels + p * run->mat->panel_len +
				i / NSV_CPU_BLOCK * NSV_CPU_BF16_LEN;
			job.out = run->out + row * run->ld_out + out0;
			job.n_lane = (uint32_t)nsv_min(run->mat->n_out - out0, NSV_CPU_PANEL);
			bf16_panel(&job, n_row);
		}
	}
}

static void run_bf16(const struct nsv_cpu_mat_run *run)
{
	for (size_t r = run->row0; r < run->row_end; r += BF16_ROWS)
		bf16_some_rows(run, r, nsv_min(run->row_end - r, BF16_ROWS));
}

#endif
