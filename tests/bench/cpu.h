/* The parts of the cpu benchmark: kernels alone and their limits; whole models through the client
 * library, beside llama.cpp; a picture. */
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

void measure_limits(struct nsv_team *team, struct limits *ret);
/* All products of a step over weights of a type, for each count of rows, which grow to 512. */
void measure_products(struct nsv_team *team, const struct nsv_backend *b, uint32_t dtype,
	const uint32_t *rows, size_t n, struct point *ret);
struct point measure_attention(
	struct nsv_team *team, const struct nsv_backend *b, uint32_t kv_dtype, uint32_t n_past,
	uint32_t n_query);

/* Measures the kernels, reports them and draws build/bench/cpu.svg. */
void report_kernels(struct nsv_report *r, uint32_t n_thread, struct limits *ret);

/* ---- cpu-models.c */

/* The default model in full, then the others that are there. `threads` of both sides. */
void report_models(struct nsv_report *r, const char *threads, const struct limits *limits);
/* Counts of threads beside a client that waits, and one that polls. */
void report_polling(struct nsv_report *r, const char *threads);

#endif
