/* Products of many rows on AMX tiles. A tile product is 16 rows of activations by 16 of weights
 * over one block of 32 inputs: exact integers, the same as vpdpbusd's, which then meet the scales
 * in the order of matmul-impl.h. So the bits are those of the other rows of the table, and what
 * has few rows, or weights in fp32 or fp16, goes to the AVX-512 row; bf16 to
 * matmul-avx512-amx-bf16.c.
 *
 * The q of a panel are unpacked once for all rows, as q - zero, a span of blocks at a time; sums
 * wait between spans in the output. While the vectors work on the sums of one block, the tiles
 * multiply the next. */
#include <stdalign.h>

#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/share.h"
#include "kernels/cpu/tiles.h"

#define MIN_ROWS 12u /* fewer are quicker without tiles */
#define SPAN 64u     /* blocks, whole super-blocks: 32 KiB unpacked */
#define Q_LEN 512u   /* bytes of an unpacked block */
#define AHEAD 2u     /* blocks whose sums are under way */
#define ACTS_CACHED (512u * 1024u)

/* Tile registers. A block is one product; of two scales, one each half. */
#define T_SUM0 0
#define T_SUM1 1
#define T_X0 2
#define T_X1 3
#define T_Q0 4
#define T_Q1 5

/* For h rows of activations, `inputs` inputs a product. */
static void configure(uint32_t h, uint32_t inputs)
{
	alignas(64) struct nsv_cpu_tile_config c = {.palette = 1};
	nsv_cpu_tile_set(&c, T_SUM0, h, 64);
	nsv_cpu_tile_set(&c, T_SUM1, h, 64);
	nsv_cpu_tile_set(&c, T_X0, h, inputs);
	nsv_cpu_tile_set(&c, T_X1, h, inputs);
	nsv_cpu_tile_set(&c, T_Q0, inputs / 4, 64);
	nsv_cpu_tile_set(&c, T_Q1, inputs / 4, 64);
	nsv_cpu_tile_load(&c);
}

/* A panel's span of blocks against one tile of activations. */
struct job {
	const int8_t *q;       /* (n_block, 512) unpacked */
	const uint8_t *panel;  /* from the head of the first block */
	const int8_t *x;       /* (n_block, h, 32) */
	const struct nsv_cpu_scale *x_scale; /* (n_block, h) */
	size_t n_block;
	uint32_t h;
	const uint8_t *ahead; /* the blocks to be read next, to ask for them; or NULL */
	bool first; /* sums begin at zero, else at what is in out */
	float *out;
	size_t ld_out;
	uint32_t n_lane;
};

/* Integer sums of one block: [half][row][lane]. */
typedef int32_t sums[2][NSV_CPU_TILE][NSV_CPU_PANEL];

ALWAYS_INLINE void multiply(const struct job *job, size_t b, uint32_t form, sums s)
{
	const int8_t *q = job->q + b * Q_LEN, *x = job->x + b * job->h * NSV_CPU_BLOCK;
	_tile_zero(T_SUM0);
	_tile_loadd(T_X0, x, NSV_CPU_BLOCK);
	_tile_loadd(T_Q0, q, 64);
	_tile_dpbssd(T_SUM0, T_X0, T_Q0);
	_tile_stored(T_SUM0, s[0], 64);
	if (form != NSV_CPU_Q6_K)
		return;
	_tile_zero(T_SUM1);
	_tile_loadd(T_X1, x + NSV_CPU_BLOCK / 2, NSV_CPU_BLOCK);
	_tile_loadd(T_Q1, q + Q_LEN / 2, 64);
	_tile_dpbssd(T_SUM1, T_X1, T_Q1);
	_tile_stored(T_SUM1, s[1], 64);
}

ALWAYS_INLINE vf load_sum(const int32_t *s)
{
	return _mm512_cvtepi32_ps(_mm512_loadu_si512(s));
}

/* The order of matmul-impl.h's add_block, for all rows of the tile. */
ALWAYS_INLINE void add_block(vf *acc, sums s, const struct factors *f,
	const struct nsv_cpu_scale *x, uint32_t h, uint32_t form)
{
	UNROLL
	for (uint32_t r = 0; r < NSV_CPU_TILE; r++) {
		vf dx;
		if (r >= h)
			continue;
		dx = vf_set1(x[r].d);
		acc[r] = vf_fma(vf_mul(f->d[0], dx), load_sum(s[0][r]), acc[r]);
		if (form == NSV_CPU_Q6_K)
			acc[r] = vf_fma(vf_mul(f->d[1], dx), load_sum(s[1][r]), acc[r]);
		else if (nsv_cpu_has_m(form))
			acc[r] = add_m(acc[r], f, &x[r], form);
	}
}

ALWAYS_INLINE void load_acc(const struct job *job, vf *acc)
{
	UNROLL
	for (uint32_t r = 0; r < NSV_CPU_TILE; r++)
		acc[r] = job->first || r >= job->h ? vf_set1(0)
						   : vf_load_n(job->out + r * job->ld_out, job->n_lane);
}

/* `form` is a constant wherever this is expanded. */
ALWAYS_INLINE void run_span(const struct job *job, uint32_t form)
{
	alignas(64) sums ring[AHEAD + 1];
	const size_t block_len = nsv_cpu_block_len(form), q_len = nsv_cpu_q_len(form);
	const size_t n = job->n_block;
	const uint32_t h = job->h;
	vf acc[NSV_CPU_TILE];
	load_acc(job, acc);
	for (size_t b = 0; b < n + AHEAD; b++) {
		size_t done = b - AHEAD;
		struct factors f;
		if (b < n)
			multiply(job, b, form, ring[b % (AHEAD + 1)]);
		if (job->ahead)
			prefetch_block(job->ahead + b * block_len, block_len);
		if (b < AHEAD)
			continue;
		load_factors(&f, job->panel + nsv_cpu_block_at(form, done) + q_len,
			job->panel + nsv_cpu_head_at(form, done), form);
		add_block(
			acc, ring[done % (AHEAD + 1)], &f, job->x_scale + done * h, h, form);
	}
	UNROLL
	for (uint32_t r = 0; r < NSV_CPU_TILE; r++)
		if (r < h)
			vf_store_n(job->out + r * job->ld_out, acc[r], job->n_lane);
}

ALWAYS_INLINE void unpack_span(const uint8_t *panel, size_t n_block, uint32_t form, int8_t *q)
{
	const __m512i zero = _mm512_set1_epi8((char)nsv_cpu_zero(form));
	for (size_t b = 0; b < n_block; b++, q += Q_LEN) {
		const uint8_t *block = panel + nsv_cpu_block_at(form, b);
		UNROLL
		for (uint32_t j = 0; j < 8; j++)
			_mm512_storeu_si512(
				q + j * 64, _mm512_sub_epi8(load_quants(block, j, form), zero));
	}
}

/* ---- A kernel for each form ------------------------------------------------------------- */

struct form_fns {
	void (*run)(const struct job *job);
	void (*unpack)(const uint8_t *panel, size_t n_block, int8_t *q);
};

#define FORM(form) \
	static void run_##form(const struct job *job) \
	{ \
		run_span(job, form); \
	} \
	static void unpack_##form(const uint8_t *panel, size_t n_block, int8_t *q) \
	{ \
		unpack_span(panel, n_block, form, q); \
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
#undef FORM

#define FNS(form) [form] = {run_##form, unpack_##form}
static const struct form_fns form_fns[] = {
	FNS(NSV_CPU_Q4_D),
	FNS(NSV_CPU_Q4_DM),
	FNS(NSV_CPU_Q4_K),
	FNS(NSV_CPU_Q5_D),
	FNS(NSV_CPU_Q5_DM),
	FNS(NSV_CPU_Q5_K),
	FNS(NSV_CPU_Q8_D),
	FNS(NSV_CPU_IQ4_NL),
	FNS(NSV_CPU_IQ4_XS),
	FNS(NSV_CPU_Q2_K),
	FNS(NSV_CPU_Q3_K),
	FNS(NSV_CPU_Q6_K),
};
#undef FNS

/* ---- Loops ------------------------------------------------------------------------------ */

/* A product in hand. Rows row0 .. row_end - 1 are tiles of one height. */
struct run {
	const struct nsv_cpu_weight *w;
	const struct nsv_cpu_acts *acts;
	float *out;
	size_t ld_out, row0, row_end;
	uint32_t h;
};

/* One panel of a matrix; out: its first column. */
static void run_panel(const struct run *run, const struct nsv_cpu_mat *mat, const uint8_t *panel,
	float *out, uint32_t n_lane)
{
	alignas(64) int8_t q[SPAN * Q_LEN];
	const struct form_fns *fns = &form_fns[mat->form];
	size_t n_block = nsv_cpu_n_block(run->w->n_in), len = nsv_cpu_head_at(mat->form, SPAN);
	size_t row_len = nsv_cpu_acts_row_len(run->w->n_in), h = run->h;
	struct job job = {.q = q, .h = run->h, .ld_out = run->ld_out, .n_lane = n_lane};
	for (size_t b = 0; b < n_block; b += SPAN) {
		job.n_block = nsv_min(n_block - b, SPAN);
		job.first = b == 0;
		job.panel = panel + b / SPAN * len;
		job.ahead = job.panel + (n_block > SPAN ? len : mat->panel_len);
		fns->unpack(job.panel, job.n_block, q);
		for (size_t r = run->row0; r < run->row_end; r += h) {
			const uint8_t *tile = run->acts->tiles + r * row_len;
			job.x = (const int8_t *)tile + b * h * NSV_CPU_BLOCK;
			job.x_scale = (const struct nsv_cpu_scale *)(const void *)(
				tile + n_block * h * NSV_CPU_BLOCK) + b * h;
			job.out = out + r * run->ld_out;
			fns->run(&job);
			job.ahead = NULL;
		}
	}
}

static size_t columns_before(const struct nsv_cpu_weight *w, uint32_t i)
{
	size_t n = 0;
	for (uint32_t j = 0; j < i; j++)
		n += w->mats[j].n_out;
	return n;
}

/* Panels begin .. end - 1 of matrix i, numbered within it. */
static void run_mat(const struct run *run, uint32_t i, size_t begin, size_t end)
{
	const struct nsv_cpu_mat *mat = &run->w->mats[i];
	float *out = run->out + columns_before(run->w, i);
	configure(run->h, mat->form == NSV_CPU_Q6_K ? NSV_CPU_BLOCK / 2 : NSV_CPU_BLOCK);
	for (size_t p = begin; p < end; p++)
		run_panel(run, mat, (const uint8_t *)run->w + mat->off + p * mat->panel_len,
			out + p * NSV_CPU_PANEL,
			(uint32_t)nsv_min(mat->n_out - p * NSV_CPU_PANEL, NSV_CPU_PANEL));
}

static void run_bf16(const struct run *run, uint32_t i, size_t begin, size_t end)
{
	const struct nsv_cpu_mat *mat = &run->w->mats[i];
	const struct nsv_cpu_mat_run bf16 = {.mat = mat, .panels = (const uint8_t *)run->w + mat->off,
		.acts = run->acts, .out = run->out + columns_before(run->w, i),
		.ld_out = run->ld_out, .begin = begin, .end = end, .row0 = run->row0,
		.row_end = run->row_end, .n_in = run->w->n_in};
	nsv_cpu_bf16_amx(&bf16, run->h);
}

/* Rows row0 .. row_end - 1 of n_row against panels begin .. end - 1 of all. */
static void run_rows(const struct run *run, size_t begin, size_t end, size_t n_row)
{
	const struct nsv_cpu_weight *w = run->w;
	for (uint32_t i = 0; i < w->n_mat; i++) {
		size_t next = i + 1 < w->n_mat ? w->mats[i + 1].panel0 : w->n_panel;
		size_t from = nsv_max(begin, w->mats[i].panel0), to = nsv_min(end, next);
		if (from >= to)
			continue;
		if (w->mats[i].form < NSV_CPU_F32 && run->h >= MIN_ROWS)
			run_mat(run, i, from - w->mats[i].panel0, to - w->mats[i].panel0);
		else if (w->mats[i].form == NSV_CPU_BF16 && run->h >= MIN_ROWS)
			run_bf16(run, i, from - w->mats[i].panel0, to - w->mats[i].panel0);
		else
			nsv_cpu_panels_avx512(w, run->acts, run->out, run->ld_out, from, to,
				run->row0, run->row_end, n_row);
	}
}

/* Whole tiles, as many at a time as stay in cache while the panels pass; then what is left. */
static void run_panels(const struct nsv_cpu_product *p, size_t begin, size_t end)
{
	struct run run = {.w = p->w, .acts = p->acts, .out = p->out, .ld_out = p->ld_out,
		.h = NSV_CPU_TILE};
	size_t step = ACTS_CACHED / nsv_cpu_acts_row_len(run.w->n_in);
	size_t whole = p->n_row / NSV_CPU_TILE * NSV_CPU_TILE;
	step = nsv_max(step / NSV_CPU_TILE, 1) * NSV_CPU_TILE;
	for (; run.row0 < whole; run.row0 = run.row_end) {
		run.row_end = nsv_min(run.row0 + step, whole);
		run_rows(&run, begin, end, p->n_row);
	}
	run.h = p->n_row % NSV_CPU_TILE;
	run.row_end = p->n_row;
	if (run.h)
		run_rows(&run, begin, end, p->n_row);
}

void nsv_cpu_matmul_amx(const struct nsv_part *part, float *out, size_t ld_out, const void *weight,
	const void *acts, uint32_t n_row, const struct nsv_scan_slices *slices)
{
	const struct nsv_cpu_product p = {.w = weight, .acts = acts, .out = out, .ld_out = ld_out,
		.n_row = n_row, .slices = slices};
	nsv_cpu_share_product(part, &p, run_panels);
	_tile_release();
}
