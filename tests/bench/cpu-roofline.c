/* Kernels against the machine's limits: a table's rows, and the points of the
 * roofline picture. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/bench/cpu.h"

static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 512};
#define N_ROWS NSV_ARRAY_LEN(rows)

/* kv_dtype: of K and V. */
static const struct {
	const char *work, *label;
	uint32_t kv_dtype, n_past, n_query;
} attentions[] = {
	{"attention alone, 1 after 8,191", "f16, 1", NSV_F16, 8191, 1},
	{"the same over fp32 K and V, 1", "f32, 1", NSV_F32, 8191, 1},
	{"attention alone, 512 after 1,536", "f16, 512", NSV_F16, 1536, 512},
	{"the same over fp32 K and V, 512", "f32, 512", NSV_F32, 1536, 512},
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
	if (l->bf16 > 0)
		add(r, "bf16 products, AMX", l->bf16, 0, 0);
	add(r, "fp32 multiply-adds", l->fma, 0, 0);
}

static bool is_float(uint32_t dtype)
{
	return nsv_dtype_info(dtype)->n_elem == 1;
}

/* Quantised weights are multiplied as bytes, bf16 on tiles where there are some, others in fp32. */
static double top_of(const struct limits *l, uint32_t dtype)
{
	if (!is_float(dtype))
		return l->dot;
	return dtype == NSV_BF16 && l->bf16 > 0 ? l->bf16 : l->fma;
}

static void add_products(struct nsv_report *r, struct picture *pic, struct nsv_team *team,
	const struct nsv_backend *b, const struct limits *l)
{
	struct point p[N_ROWS];

	measure_products(team, b, NSV_Q4_1, rows, N_ROWS, p);
	for (size_t i = 0; i < N_ROWS; i++) {
		char work[64], label[16] = "Q4_1";

		snprintf(work, sizeof(work), "products alone, rows: %u", rows[i]);
		if (rows[i] > 1)
			snprintf(label, sizeof(label), "%u", rows[i]);
		picture_add(pic, QUANTISED, label, p[i]);
		add(r, work, p[i].ops_s, allowed(l, l->dot, p[i].ops_byte),
			rows[i] == 512 ? 0.45 * l->dot : 0);
	}
}

static void add_bf16_products(struct nsv_report *r, struct picture *pic, struct nsv_team *team,
	const struct nsv_backend *b, const struct limits *l)
{
	static const uint32_t few[] = {1, 8, 32, 512};
	struct point p[NSV_ARRAY_LEN(few)];

	measure_products(team, b, NSV_BF16, few, NSV_ARRAY_LEN(few), p);
	for (size_t i = 0; i < NSV_ARRAY_LEN(few); i++) {
		char work[64], label[16] = "BF16";

		snprintf(work, sizeof(work), "the same over BF16 weights, rows: %u", few[i]);
		if (few[i] > 1)
			snprintf(label, sizeof(label), "%u", few[i]);
		picture_add(pic, FLOATS, label, p[i]);
		add(r, work, p[i].ops_s, allowed(l, top_of(l, NSV_BF16), p[i].ops_byte), 0);
	}
}

/* One row of every other type. */
static void add_types(struct nsv_report *r, struct picture *pic, struct nsv_team *team,
	const struct nsv_backend *b, const struct limits *l)
{
	static const uint32_t types[] = {NSV_F32, NSV_F16, NSV_Q4_0, NSV_Q5_0, NSV_Q5_1, NSV_Q8_0,
		NSV_IQ4_NL, NSV_IQ4_XS, NSV_Q2_K, NSV_Q3_K, NSV_Q4_K, NSV_Q5_K, NSV_Q6_K};
	static const uint32_t one = 1;

	for (size_t i = 0; i < NSV_ARRAY_LEN(types); i++) {
		const char *name = nsv_dtype_name(types[i]);
		struct point p;
		char work[64];

		measure_products(team, b, types[i], &one, 1, &p);
		snprintf(work, sizeof(work), "products over %s weights, rows: 1", name);
		picture_add(pic, is_float(types[i]) ? FLOATS : QUANTISED, name, p);
		add(r, work, p.ops_s, allowed(l, top_of(l, types[i]), p.ops_byte), 0);
	}
}

static void add_attention(struct nsv_report *r, struct picture *pic, struct nsv_team *team,
	const struct nsv_backend *b, const struct limits *l)
{
	for (size_t i = 0; i < N_ATTENTION; i++) {
		struct point p = measure_attention(team, b, attentions[i].kv_dtype,
			attentions[i].n_past, attentions[i].n_query);

		picture_add(pic, ATTENTION, attentions[i].label, p);
		add(r, attentions[i].work, p.ops_s, allowed(l, l->fma, p.ops_byte), 0);
	}
}

static void add_rows(struct nsv_report *r, struct picture *pic, struct nsv_team *team,
	const struct nsv_backend *b, const struct limits *l)
{
	struct rows_kernel k[N_ROWS_KERNEL];

	measure_rows(team, b, k);
	for (size_t i = 0; i < N_ROWS_KERNEL; i++) {
		picture_add(pic, k[i].samples ? SAMPLING : ROWS, k[i].label, k[i].point);
		add(r, k[i].name, k[i].point.ops_s, allowed(l, l->fma, k[i].point.ops_byte), 0);
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

void report_kernels(struct nsv_report *r, uint32_t n_thread)
{
	const struct nsv_backend *b = NULL;
	struct picture *pic = picture_new();
	struct limits l = {0};
	struct nsv_team *team = NULL;
	struct nsv_err err = {""};

	if (nsv_backend_choose("cpu", &b, &err) < 0)
		die(err.text);
	if (nsv_team_new(n_thread, &team) < 0)
		die("no team of threads");
	printf("%s, %u threads\n", b->isa(), n_thread);
	measure_limits(team, &l);
	add_limits(r, &l);
	/* What a shared machine allows changes: the most that was seen counts. */
	add_products(r, pic, team, b, &l);
	add_bf16_products(r, pic, team, b, &l);
	measure_read(team, &l);
	add_types(r, pic, team, b, &l);
	add_isas(r, team, b, &l);
	measure_read(team, &l);
	add_attention(r, pic, team, b, &l);
	measure_read(team, &l);
	add_rows(r, pic, team, b, &l);
	measure_limits(team, &l);
	nsv_team_free(team);
	picture_draw(pic, &l, b->isa(), n_thread);
}
