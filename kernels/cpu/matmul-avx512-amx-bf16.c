/* Products of many rows with weights in bf16 on AMX tiles: tdpbf16ps multiplies 16 rows of
 * activations by 16 of weights over a block of 32 inputs and adds to the sums, in the order that
 * matmul-bf16-impl.h gives for one row, whatever the number of rows.
 *
 * Activations are rounded to bf16 for all panels, a span of inputs at a time; sums wait between
 * spans in the output. Four tiles of them share a tile of weights: that many products are under
 * way. */
#include <stdalign.h>

#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/tiles.h"

#define ROWS 128u
#define SPAN 32u /* blocks */
#define TILES 4u /* that share one of weights: registers 0 .. 3 are their sums */
#define T_X0 4
#define T_X1 5
#define T_W 6

/* A panel's span of blocks against some tiles of activations. */
struct job {
	const uint8_t *w;
	const uint16_t *x; /* (tiles, SPAN, h, 32) */
	size_t n_block;
	uint32_t h;
	bool first; /* sums begin at zero, else at what is in out */
	float *out;
	size_t ld_out;
	uint32_t n_lane;
};

static void configure(uint32_t h)
{
	alignas(64) struct nsv_cpu_tile_config c = {.palette = 1};
	for (uint32_t t = 0; t < TILES; t++)
		nsv_cpu_tile_set(&c, t, h, 4 * NSV_CPU_PANEL);
	nsv_cpu_tile_set(&c, T_X0, h, 2 * NSV_CPU_BLOCK);
	nsv_cpu_tile_set(&c, T_X1, h, 2 * NSV_CPU_BLOCK);
	nsv_cpu_tile_set(&c, T_W, NSV_CPU_BLOCK / 2, 4 * NSV_CPU_PANEL);
	nsv_cpu_tile_load(&c);
}

/* s (n, 16, 16) += the products; n is a constant wherever this is expanded. */
ALWAYS_INLINE void multiply(const struct job *job, uint32_t n, float (*s)[NSV_CPU_TILE][VF_N])
{
	const size_t block = job->h * NSV_CPU_BLOCK, tile = SPAN * block;
#define LOAD(t) \
	if (n > t) \
		_tile_loadd(t, s[t], 4 * VF_N);
	LOAD(0) LOAD(1) LOAD(2) LOAD(3)
#undef LOAD
	for (size_t b = 0; b < job->n_block; b++) {
		const uint16_t *x = job->x + b * block;
		_tile_loadd(T_W, job->w + b * NSV_CPU_BF16_LEN, 4 * NSV_CPU_PANEL);
#define PRODUCT(t, reg) \
	if (n > t) { \
		_tile_loadd(reg, x + t * tile, 2 * NSV_CPU_BLOCK); \
		_tile_dpbf16ps(t, reg, T_W); \
	}
		PRODUCT(0, T_X0) PRODUCT(1, T_X1) PRODUCT(2, T_X0) PRODUCT(3, T_X1)
#undef PRODUCT
	}
#define STORE(t) \
	if (n > t) \
		_tile_stored(t, s[t], 4 * VF_N);
	STORE(0) STORE(1) STORE(2) STORE(3)
#undef STORE
}

/* Sums of n tiles from the output, and back. */
static void load_sums(const struct job *job, uint32_t n, float (*s)[NSV_CPU_TILE][VF_N])
{
	const float *out = job->out;
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t r = 0; r < job->h; r++, out += job->ld_out)
			vf_store(s[t][r], job->first ? vf_set1(0) : vf_load_n(out, job->n_lane));
}

static void store_sums(const struct job *job, uint32_t n, float (*s)[NSV_CPU_TILE][VF_N])
{
	float *out = job->out;
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t r = 0; r < job->h; r++, out += job->ld_out)
			vf_store_n(out, vf_load(s[t][r]), job->n_lane);
}

static void run_tiles(const struct job *job, uint32_t n)
{
	alignas(64) float s[TILES][NSV_CPU_TILE][VF_N];
	load_sums(job, n, s);
	switch (n) {
	case 1:
		multiply(job, 1, s);
		break;
	case 2:
		multiply(job, 2, s);
		break;
	case 3:
		multiply(job, 3, s);
		break;
	default:
		multiply(job, TILES, s);
		break;
	}
	store_sums(job, n, s);
}

/* A block of a row, of which n inputs are there. */
static void round_block(uint16_t *to, const float *x, size_t n)
{
	vf lo = vf_load_n(x, (uint32_t)nsv_min(n, VF_N));
	vf hi = n > VF_N ? vf_load_n(x + VF_N, (uint32_t)nsv_min(n - VF_N, VF_N)) : vf_set1(0);
	_mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
}

/* Blocks b0 .. b0 + n_block - 1 of some rows, in tiles. */
static void round_rows(uint16_t *to, const struct nsv_cpu_mat_run *run, uint32_t h, size_t row,
	size_t n_row, size_t b0, size_t n_block)
{
	for (size_t r = 0; r < n_row; r++) {
		const float *x = run->acts->x + (row + r) * run->acts->ld;
		uint16_t *first = to + (r / h * SPAN * h + r % h) * NSV_CPU_BLOCK;
		for (size_t b = 0; b < n_block; b++) {
			size_t at = (b0 + b) * NSV_CPU_BLOCK;
			round_block(first + b * h * NSV_CPU_BLOCK, x + at,
				nsv_min(run->n_in - at, NSV_CPU_BLOCK));
		}
	}
}

/* All panels against rows that are rounded. */
static void run_panels(
	const struct nsv_cpu_mat_run *run, const struct job *span, size_t b0, size_t n_tile)
{
	struct job job = *span;
	const size_t tile = SPAN * job.h * NSV_CPU_BLOCK;
	for (size_t p = run->begin; p < run->end; p++) {
		size_t out0 = p * NSV_CPU_PANEL;
		job.w = run->panels + p * run->mat->panel_len + b0 * NSV_CPU_BF16_LEN;
		job.n_lane = (uint32_t)nsv_min(run->mat->n_out - out0, NSV_CPU_PANEL);
		for (size_t t = 0; t < n_tile; t += TILES) {
			job.x = span->x + t * tile;
			job.out = span->out + t * job.h * job.ld_out + out0;
			run_tiles(&job, (uint32_t)nsv_min(n_tile - t, TILES));
		}
	}
}

void nsv_cpu_bf16_amx(const struct nsv_cpu_mat_run *run, uint32_t h)
{
	alignas(64) uint16_t x[ROWS * SPAN * NSV_CPU_BLOCK];
	const size_t n_block = nsv_cpu_n_block(run->n_in);
	struct job job = {.x = x, .h = h, .ld_out = run->ld_out};
	configure(h);
	for (size_t r = run->row0; r < run->row_end; r += ROWS) {
		size_t n_row = nsv_min(run->row_end - r, ROWS);
		job.out = run->out + r * run->ld_out;
		for (size_t b = 0; b < n_block; b += SPAN) {
			job.n_block = nsv_min(n_block - b, SPAN);
			job.first = b == 0;
			round_rows(x, run, h, r, n_row, b, job.n_block);
			run_panels(run, &job, b, n_row / h);
		}
	}
}
