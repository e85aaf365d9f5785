/* The parts of the cpu benchmark: kernels alone and their limits, in a picture; whole models
 * through the client library, beside llama.cpp. */
#ifndef NSV_TESTS_BENCH_CPU_H
#define NSV_TESTS_BENCH_CPU_H

#include "kernels/backend.h"
#include "tests/tools/report.h"

_Noreturn void die(const char *what);

/* ---- cpu-kernels.c. Memory is mapped once and stays. */

/* Bytes a second that the team reads; operations a second, 0 where they are not to be had. */
struct limits {
	double read, dot, bf16, fma;
	const char *dot_unit; /* which instructions multiply 8 bits */
};

/* A kernel's speed, and the operations for each byte that it must read from memory. */
struct point {
	double ops_s, ops_byte;
};

void *map(size_t len);
/* The median of some timed runs, seconds. */
double time_of(
	struct nsv_team *team, void (*fn)(const struct nsv_part *part, void *arg), void *arg);
/* Both leave what is more. */
void measure_limits(struct nsv_team *team, struct limits *ret);
void measure_read(struct nsv_team *team, struct limits *ret);
/* All products of a step over weights of a type, for each count of rows, which grow to 512. */
void measure_products(struct nsv_team *team, const struct nsv_backend *b, uint32_t dtype,
	const uint32_t *rows, size_t n, struct point *ret);
struct point measure_attention(
	struct nsv_team *team, const struct nsv_backend *b, uint32_t kv_dtype, uint32_t n_past,
	uint32_t n_query);

/* ---- cpu-rows.c: operations on rows and passes of sampling, in fp32 */

#define N_ROWS_KERNEL 7

struct rows_kernel {
	const char *name, *label;
	bool samples;
	struct point point;
};

void measure_rows(
	struct nsv_team *team, const struct nsv_backend *b, struct rows_kernel ret[N_ROWS_KERNEL]);

/* ---- cpu-picture.c */

/* What points are of. */
enum family { QUANTISED, FLOATS, ATTENTION, ROWS, SAMPLING, N_FAMILY };

struct picture;

struct picture *picture_new(void);
void picture_add(struct picture *p, enum family family, const char *label, struct point point);
/* Draws build/bench/cpu.svg and frees p. */
void picture_draw(struct picture *p, const struct limits *l, const char *isa, uint32_t n_thread);

/* ---- cpu-roofline.c */

/* Measures the kernels, reports them and draws the picture. */
void report_kernels(struct nsv_report *r, uint32_t n_thread);

/* ---- cpu-models.c */

/* The default model in full, then the others that are there. `threads` of both sides. */
void report_models(struct nsv_report *r, const char *threads);
/* Counts of threads beside a client that waits, and one that polls. */
void report_polling(struct nsv_report *r, const char *threads);

#endif
