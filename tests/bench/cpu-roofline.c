/* Kernels against the machine's limits: a table's rows and a roofline picture. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/bench/cpu.h"
#include "tests/tools/svg.h"

static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 512};
#define N_ROWS NSV_ARRAY_LEN(rows)

/* kv_dtype: of K and V. */
static const struct {
	const char *work;
	uint32_t kv_dtype, n_past, n_query;
} attentions[] = {
	{"attention alone, 1 after 8,191", NSV_F16, 8191, 1},
	{"the same over fp32 K and V, 1", NSV_F32, 8191, 1},
	{"attention alone, 512 after 1,536", NSV_F16, 1536, 512},
	{"the same over fp32 K and V, 512", NSV_F32, 1536, 512},
};
#define N_ATTENTION NSV_ARRAY_LEN(attentions)

static double allowed(const struct limits *l, double top, double ops_byte)
{
	double by_memory = l->read * ops_byte;

	return top > 0 && top < by_memory ? top : by_memory;
}

static void add(struct nsv_report *r, const char *work, double value, double limit, double target)
{
	nsv_report_add(r, &(struct nsv_figure){.work = work,
				  .unit = "Gop/s",
				  .value = value * 1e-9,
				  .limit = limit * 1e-9,
				  .target = target * 1e-9});
}

static void add_limits(struct nsv_report *r, const struct limits *l)
{
	char work[64];

	nsv_report_add(r, &(struct nsv_figure){
				  .work = "memory read", .unit = "GB/s", .value = l->read * 1e-9});
	snprintf(work, sizeof(work), "u8 x s8 products, %s", l->dot_unit);
	add(r, work, l->dot, 0, 0);
	add(r, "bf16 products, AMX", l->bf16, 0, 0);
	add(r, "fp32 multiply-adds", l->fma, 0, 0);
}

static void add_products(struct nsv_report *r, const struct limits *l, const struct point *p)
{
	for (size_t i = 0; i < N_ROWS; i++) {
		char work[64];

		snprintf(work, sizeof(work), "products alone, rows: %u", rows[i]);
		add(r, work, p[i].ops_s, allowed(l, l->dot, p[i].ops_byte),
			rows[i] == 512 ? 0.45 * l->dot : 0);
	}
}

static void add_bf16_products(struct nsv_report *r, struct nsv_team *team,
	const struct nsv_backend *b, const struct limits *l)
{
	static const uint32_t few[] = {1, 8, 32, 512};
	struct point p[NSV_ARRAY_LEN(few)];

	measure_products(team, b, NSV_BF16, few, NSV_ARRAY_LEN(few), p);
	for (size_t i = 0; i < NSV_ARRAY_LEN(few); i++) {
		char work[64];

		snprintf(work, sizeof(work), "the same over BF16 weights, rows: %u", few[i]);
		add(r, work, p[i].ops_s, allowed(l, l->bf16, p[i].ops_byte), 0);
	}
}

/* Few rows: in plain C many would take long. */
static void add_isas(struct nsv_report *r, struct nsv_team *team, const struct nsv_backend *b,
	const struct limits *l)
{
	static const uint32_t few[] = {1, 8};
	struct point p[NSV_ARRAY_LEN(few)];
	char *before = getenv("NANOSERVE_CPU_ISA");
	nsv_autofree char *kept = before ? strdup(before) : NULL;
	struct nsv_err err;
	size_t n_isa;
	const struct nsv_cpu_row *isas = nsv_cpu_rows(&n_isa);

	for (size_t i = 0; i < n_isa; i++) {
		setenv("NANOSERVE_CPU_ISA", isas[i].name, 1);
		if (b->probe(&err) < 0)
			continue;
		measure_products(team, b, NSV_Q4_1, few, NSV_ARRAY_LEN(few), p);
		for (size_t k = 0; k < NSV_ARRAY_LEN(few); k++) {
			char work[64];

			snprintf(work, sizeof(work), "products by %s, rows: %u", isas[i].name,
				few[k]);
			add(r, work, p[k].ops_s, allowed(l, l->dot, p[k].ops_byte), 0);
		}
	}
	if (kept)
		setenv("NANOSERVE_CPU_ISA", kept, 1);
	else
		unsetenv("NANOSERVE_CPU_ISA");
	if (b->probe(&err) < 0)
		die(err.text);
}

/* ---- The picture: operations for each byte to the right, Gop/s upwards */

#define N_ROOF 64

static void draw_roof(const struct limits *l, double top, double *x, double *y)
{
	for (size_t i = 0; i < N_ROOF; i++) {
		x[i] = i ? x[i - 1] * 1.17 : 1;
		y[i] = allowed(l, top, x[i]) * 1e-9;
	}
}

static void split(const struct point *p, size_t n, double *x, double *y)
{
	for (size_t i = 0; i < n; i++) {
		x[i] = p[i].ops_byte;
		y[i] = p[i].ops_s * 1e-9;
	}
}

static void draw(
	const struct limits *l, const struct point *products, const struct point *attention)
{
	static const double ticks[] = {1, 10, 100, 1000, 10000};
	static const char *const names[] = {"1", "10", "100", "1,000", "10,000"};
	double x[4][N_ROOF], y[4][N_ROOF];

	draw_roof(l, l->dot, x[0], y[0]);
	draw_roof(l, l->fma, x[1], y[1]);
	split(products, N_ROWS, x[2], y[2]);
	split(attention, N_ATTENTION, x[3], y[3]);
	const struct nsv_series series[] = {{"memory, then products", x[0], y[0], N_ROOF},
		{"memory, then fp32", x[1], y[1], N_ROOF},
		{"products, 1 to 512 rows", x[2], y[2], N_ROWS},
		{"attention, decode and prefill", x[3], y[3], N_ATTENTION}};
	const struct nsv_panel panel = {
		.title = "Kernels of the cpu backend and the machine's limits",
		.x_name = "operations a byte read",
		.y_name = "Gop/s",
		.log_x = true,
		.log_y = true,
		.tick = ticks,
		.tick_name = names,
		.n_tick = NSV_ARRAY_LEN(ticks),
		.series = series,
		.n_series = NSV_ARRAY_LEN(series)};

	if (nsv_svg_write("build/bench/cpu.svg", &panel, 1) < 0)
		die("build/bench/cpu.svg cannot be written");
}

void report_kernels(struct nsv_report *r, uint32_t n_thread, struct limits *ret)
{
	const struct nsv_backend *b = NULL;
	struct point products[N_ROWS], attention[N_ATTENTION];
	struct nsv_team *team = NULL;
	struct nsv_err err = {""};

	if (nsv_backend_choose("cpu", &b, &err) < 0)
		die(err.text);
	if (nsv_team_new(n_thread, &team) < 0)
		die("no team of threads");
	printf("%s, %u threads\n", b->isa(), n_thread);
	measure_limits(team, ret);
	measure_products(team, b, NSV_Q4_1, rows, N_ROWS, products);
	add_limits(r, ret);
	add_products(r, ret, products);
	add_bf16_products(r, team, b, ret);
	add_isas(r, team, b, ret);
	for (size_t i = 0; i < N_ATTENTION; i++) {
		attention[i] = measure_attention(team, b, attentions[i].kv_dtype,
			attentions[i].n_past, attentions[i].n_query);
		add(r, attentions[i].work, attention[i].ops_s,
			allowed(ret, ret->fma, attention[i].ops_byte), 0);
	}
	nsv_team_free(team);
	draw(ret, products, attention);
}
