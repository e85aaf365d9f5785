/* Products of packed weights and quantised activations; the part that is the same on every row of
 * the instruction-set table. matmul-<isa>.c defines, then includes this:
 *
 *     FN(name)             the function's name on this row
 *     MAX_ROWS             rows of activations that share what is read of a panel (a power of two)
 *     WHOLE_TILES          1: quantised panels take any number of rows up to a tile's at once
 *     add_block(acc, block, head, x, scale, rows, form)   what a block adds to the sums of `rows`
 *                          rows, of which x and scale are the first's (matmul-dot-impl.h)
 *
 * The order, and so the numerics id: for each block of 32 inputs, growing,
 *     acc = fma(d * dx, isum, acc), where isum = sum of (q - zero) * x, exact; for types that
 *         have a d for each half of the block, once a half;
 *     acc = fma(m, dx * xsum, acc), for types that have m; of Q2_K, which has one for each half,
 *         with the second half's, then fma(first - second, dx * xsum of the first half, acc). */
#include "kernels/backend.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul-bf16-impl.h"
#include "kernels/cpu/share.h"

#define ACTS_CACHED (512u * 1024u) /* bytes of activations that stay in cache while panels pass */

/* ---- Activations ------------------------------------------------------------------------ */

static void quant_block(const float *x, uint32_t n, int8_t *q, struct nsv_cpu_scale *scale)
{
	vf a = vf_load_n(x, n < VF_N ? n : VF_N);
	vf b = n > VF_N ? vf_load_n(x + VF_N, n - VF_N) : vf_set1(0);
	uint32_t bits = vf_hmax_bits(vf_max_abs(vf_max_abs(vf_set1(0), a), b));
	float amax, d, by;
	memcpy(&amax, &bits, sizeof(amax));
	d = amax / 127.0f;
	if (bits < 0x7f800000u && d >= 0x1p-126f) {
		by = 127.0f / amax;
		scale->sum[0] = (int16_t)vf_store_s8(q, vf_mul(a, vf_set1(by)));
		scale->sum[1] = (int16_t)vf_store_s8(q + VF_N, vf_mul(b, vf_set1(by)));
	} else {
		d = bits < 0x7f800000u ? 0.0f : NAN;
		memset(q, 0, NSV_CPU_BLOCK);
		scale->sum[0] = scale->sum[1] = 0;
	}
	scale->d = d;
	scale->d_sum = d * (float)(scale->sum[0] + scale->sum[1]);
	scale->d_first = d * (float)scale->sum[0];
}

/* Row r of the tile of h rows. */
static void quant_row(uint8_t *tile, uint32_t r, uint32_t h, const float *x, uint32_t n_in,
	size_t from, size_t to)
{
	size_t n_block = nsv_cpu_n_block(n_in);
	int8_t *q = (int8_t *)tile + r * NSV_CPU_BLOCK;
	struct nsv_cpu_scale *scale =
		(struct nsv_cpu_scale *)(tile + n_block * h * NSV_CPU_BLOCK) + r;
	for (size_t b = from; b < to; b++)
		quant_block(x + b * NSV_CPU_BLOCK,
			(uint32_t)nsv_min(n_in - b * NSV_CPU_BLOCK, NSV_CPU_BLOCK),
			q + b * h * NSV_CPU_BLOCK, scale + b * h);
}

/* Members share rows; of a single row, blocks. */
void FN(acts_set)(const struct nsv_part *part, void *acts, const float *x, size_t ld,
	uint32_t n_row, uint32_t n_in)
{
	struct nsv_cpu_acts *a = acts;
	size_t n_block = nsv_cpu_n_block(n_in), begin, end, from = 0, to = n_block;
	nsv_part_range(part, n_row, 1, &begin, &end);
	if (n_row == 1) {
		begin = 0, end = 1;
		nsv_part_range(part, n_block, 4, &from, &to);
	}
	for (size_t r = begin; r < end; r++) {
		size_t row0 = r / NSV_CPU_TILE * NSV_CPU_TILE;
		uint32_t h = (uint32_t)nsv_min(n_row - row0, NSV_CPU_TILE);
		quant_row(a->tiles + row0 * nsv_cpu_acts_row_len(n_in), (uint32_t)(r - row0), h,
			x + r * ld, n_in, from, to);
	}
	if (part->index == 0) {
		a->x = x;
		a->ld = ld;
	}
}

/* ---- Quantised panels ------------------------------------------------------------------- */

/* One panel against some rows of a tile. */
struct job {
	const uint8_t *panel;
	const uint8_t *q;                  /* of the first row */
	const struct nsv_cpu_scale *scale; /* likewise */
	const float *x;                    /* the floats of the first row, rows ld apart */
	size_t ld;
	uint32_t h, n_in;       /* rows of the tile */
	bool fresh;             /* the panel comes from memory */
	float *out;
	size_t ld_out;
	uint32_t n_lane; /* rows of the panel that exist */
};

/* Asks for the lines that outputs go to: rows lie far apart, and a store that misses holds up those
 * after it. */
ALWAYS_INLINE void ask_outputs(const struct job *job, uint32_t rows)
{
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		__builtin_prefetch(job->out + r * job->ld_out, 1);
}

/* `form` is a constant wherever this is expanded, and so is `rows`, if it is at most MAX_ROWS. */
ALWAYS_INLINE void quant_rows(const struct job *job, uint32_t rows, uint32_t form)
{
	const size_t block_len = nsv_cpu_block_len(form), n_block = nsv_cpu_n_block(job->n_in);
	const uint8_t *block = job->panel, *head = block;
	const int8_t *x = (const int8_t *)job->q;
	const struct nsv_cpu_scale *scale = job->scale;
	vf acc[WHOLE_TILES ? NSV_CPU_TILE : MAX_ROWS];
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		acc[r] = vf_set1(0);
	ask_outputs(job, rows);
	for (size_t b = 0; b < n_block; b++) {
		if (nsv_cpu_head_len(form) && b % NSV_CPU_SUPER == 0) {
			head = block;
			block += nsv_cpu_head_len(form);
		}
		if (rows == 1 || job->fresh)
			prefetch_block(block + AHEAD, block_len);
		add_block(acc, block, head, x, scale, rows, form);
		block += block_len;
		x += job->h * NSV_CPU_BLOCK;
		scale += job->h;
	}
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		vf_store_n(job->out + r * job->ld_out, acc[r], job->n_lane);
}

/* ---- Float panels ----------------------------------------------------------------------- */

ALWAYS_INLINE vf load_float(const uint8_t *p, size_t i, uint32_t form)
{
	if (form == NSV_CPU_F32)
		return vf_load((const float *)(const void *)p + i * VF_N);
	return vf_load_f16(p + i * VF_N * 2);
}

ALWAYS_INLINE void float_rows(const struct job *job, uint32_t rows, uint32_t form)
{
	vf acc[MAX_ROWS];
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		acc[r] = vf_set1(0);
	for (size_t i = 0; i < job->n_in; i++) {
		vf w = load_float(job->panel, i, form);
		UNROLL
		for (uint32_t r = 0; r < rows; r++)
			acc[r] = vf_fma(w, vf_set1(job->x[r * job->ld + i]), acc[r]);
	}
	UNROLL
	for (uint32_t r = 0; r < rows; r++)
		vf_store_n(job->out + r * job->ld_out, acc[r], job->n_lane);
}

/* ---- Loops ------------------------------------------------------------------------------ */

/* Expands the kernels for one form; `rows` is a power of two up to MAX_ROWS, or of whole tiles
 * whatever there is. */
ALWAYS_INLINE void form_rows(const struct job *job, uint32_t rows, uint32_t form)
{
#define ROWS(n) \
	if (n <= MAX_ROWS && rows == n) { \
		if (form >= NSV_CPU_F32) \
			float_rows(job, n <= MAX_ROWS ? n : 1, form); \
		else \
			quant_rows(job, n <= MAX_ROWS ? n : 1, form); \
		return; \
	}
	ROWS(16)
	ROWS(8)
	ROWS(4)
	ROWS(2)
	ROWS(1)
#undef ROWS
	if (WHOLE_TILES && form < NSV_CPU_F32) {
		if (rows > MAX_ROWS)
			quant_rows(job, rows, form);
		else if (MAX_ROWS > 3)
			quant_rows(job, 3, form);
	}
}

#define FORM(form) \
	static void rows_##form(const struct job *job, uint32_t rows) \
	{ \
		form_rows(job, rows, form); \
	}
FORM(NSV_CPU_Q4_D)
FORM(NSV_CPU_Q4_DM)
FORM(NSV_CPU_Q4_K)
FORM(NSV_CPU_Q5_D)
FORM(NSV_CPU_Q5_DM)
FORM(NSV_CPU_Q5_K)
FORM(NSV_CPU_Q8_D)
FORM(NSV_CPU_IQ4_NL)
FORM(NSV_CPU_IQ4_XS)
FORM(NSV_CPU_Q2_K)
FORM(NSV_CPU_Q3_K)
FORM(NSV_CPU_Q6_K)
FORM(NSV_CPU_F32)
FORM(NSV_CPU_F16)
#undef FORM

typedef void rows_fn(const struct job *job, uint32_t rows);

static rows_fn *const rows_fns[] = {
	[NSV_CPU_Q4_D] = rows_NSV_CPU_Q4_D,
	[NSV_CPU_Q4_DM] = rows_NSV_CPU_Q4_DM,
	[NSV_CPU_Q4_K] = rows_NSV_CPU_Q4_K,
	[NSV_CPU_Q5_D] = rows_NSV_CPU_Q5_D,
	[NSV_CPU_Q5_DM] = rows_NSV_CPU_Q5_DM,
	[NSV_CPU_Q5_K] = rows_NSV_CPU_Q5_K,
	[NSV_CPU_Q8_D] = rows_NSV_CPU_Q8_D,
	[NSV_CPU_IQ4_NL] = rows_NSV_CPU_IQ4_NL,
	[NSV_CPU_IQ4_XS] = rows_NSV_CPU_IQ4_XS,
	[NSV_CPU_Q2_K] = rows_NSV_CPU_Q2_K,
	[NSV_CPU_Q3_K] = rows_NSV_CPU_Q3_K,
	[NSV_CPU_Q6_K] = rows_NSV_CPU_Q6_K,
	[NSV_CPU_F32] = rows_NSV_CPU_F32,
	[NSV_CPU_F16] = rows_NSV_CPU_F16,
};

/* One panel against the h rows of a tile, in runs of powers of two. */
static void run_tile(const struct job *tile, rows_fn *fn)
{
	struct job job = *tile;
	uint32_t left = job.h, rows = MAX_ROWS;
	while (left) {
		while (rows > left)
			rows /= 2;
		fn(&job, rows);
		left -= rows;
		job.fresh = false;
		job.q += rows * NSV_CPU_BLOCK;
		job.scale += rows;
		job.x += rows * job.ld;
		job.out += rows * job.ld_out;
	}
}

/* One panel against rows row0 .. end - 1; row0 begins a tile. */
static void run_panel(const struct job *panel, uint32_t form, const struct nsv_cpu_acts *acts,
	size_t row0, size_t end, size_t n_row)
{
	rows_fn *fn = rows_fns[form];
	size_t row_len = nsv_cpu_acts_row_len(panel->n_in);
	struct job job = *panel;
	for (size_t r = row0; r < end; r += NSV_CPU_TILE) {
		job.h = (uint32_t)nsv_min(n_row - r, NSV_CPU_TILE);
		job.q = acts->tiles + r * row_len;
		job.scale = (const struct nsv_cpu_scale *)(const void *)(job.q +
			nsv_cpu_n_block(job.n_in) * job.h * NSV_CPU_BLOCK);
		job.x = acts->x + r * acts->ld;
		job.out = panel->out + r * job.ld_out;
		job.fresh = r == row0;
		if (WHOLE_TILES && form < NSV_CPU_F32)
			fn(&job, job.h);
		else
			run_tile(&job, fn);
	}
}

static void run_mat(const struct nsv_cpu_mat_run *run, size_t n_row)
{
	struct job job = {.ld = run->acts->ld, .n_in = run->n_in, .ld_out = run->ld_out};
	for (size_t p = run->begin; p < run->end; p++) {
		job.panel = run->panels + p * run->mat->panel_len;
		job.n_lane =
			(uint32_t)nsv_min(run->mat->n_out - p * NSV_CPU_PANEL, NSV_CPU_PANEL);
		job.out = run->out + p * NSV_CPU_PANEL;
		run_panel(&job, run->mat->form, run->acts, run->row0, run->row_end, n_row);
	}
}

void FN(panels)(const struct nsv_cpu_weight *w, const struct nsv_cpu_acts *acts, float *out,
	size_t ld_out, size_t begin, size_t end, size_t row0, size_t row_end, size_t n_row)
{
	struct nsv_cpu_mat_run run = {.acts = acts, .out = out, .ld_out = ld_out, .row0 = row0,
		.row_end = row_end, .n_in = w->n_in};
	for (uint32_t i = 0; i < w->n_mat; run.out += w->mats[i++].n_out) {
		size_t first = w->mats[i].panel0;
		size_t next = i + 1 < w->n_mat ? w->mats[i + 1].panel0 : w->n_panel;
		if (begin >= next || end <= first)
			continue;
		run.mat = &w->mats[i];
		run.panels = (const uint8_t *)w + run.mat->off;
		run.begin = nsv_max(begin, first) - first;
		run.end = nsv_min(end, next) - first;
		if (run.mat->form == NSV_CPU_BF16)
			run_bf16(&run);
		else
			run_mat(&run, n_row);
	}
}

/* Rows as many at a time as stay in cache. */
static void run_rows(const struct nsv_cpu_product *p, size_t begin, size_t end)
{
	size_t step = ACTS_CACHED / nsv_cpu_acts_row_len(p->w->n_in);
	step = nsv_max(step / NSV_CPU_TILE, 1) * NSV_CPU_TILE;
	for (size_t r = 0; r < p->n_row; r += step)
		FN(panels)(p->w, p->acts, p->out, p->ld_out, begin, end, r,
			nsv_min(r + step, p->n_row), p->n_row);
}

void FN(matmul)(const struct nsv_part *part, float *out, size_t ld_out, const void *weight,
	const void *acts, uint32_t n_row, const struct nsv_scan_slices *slices)
{
	const struct nsv_cpu_product p = {.w = weight, .acts = acts, .out = out, .ld_out = ld_out,
		.n_row = n_row, .slices = slices};
	nsv_cpu_share_product(part, &p, run_rows);
}
