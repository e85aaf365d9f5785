/* What the tests of operations share: random numbers, stored matrices of every type, the backends
 * and rows of the instruction-set table to drive, one-thread and team runs, tolerances. */
#ifndef NSV_TESTS_OPS_SUPPORT_H
#define NSV_TESTS_OPS_SUPPORT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/flush.h"
#include "kernels/half.h"
#include "kernels/ref/ref.h"
#include "tests/tools/guard.h"
#include "tests/tools/rnd.h"

float t_uniform(float low, float high);
float t_normal(void);
void t_fill_normal(float *x, size_t n, float scale);

/* Every element type, floats first. */
#define T_N_DTYPE 15
extern const uint32_t t_dtypes[T_N_DTYPE];

/* A random stored matrix; `data` is of t_new. scale: of the weights, about. */
struct nsv_matrix t_matrix(uint32_t dtype, uint32_t n_out, uint32_t n_in, float scale);
/* The same of a quantised type, of whose blocks every byte but the scales in f16 is `byte`. */
struct nsv_matrix t_matrix_equal(
	uint32_t dtype, uint32_t n_out, uint32_t n_in, uint8_t byte, float scale);
void t_matrix_free(struct nsv_matrix *m);

/* Every backend, and the cpu backend once a row of the table that this machine has: a backend whose
 * functions are that row's. Names like "cpu/avx2". */
const struct nsv_backend *t_backends(size_t *ret_n);

/* fn by every member of a fresh team of n; for a row of the table, in the mode in which the cpu
 * backend runs it (kernels/cpu/flush.h). */
void t_run(const struct nsv_backend *b, uint32_t n,
	void (*fn)(const struct nsv_part *part, void *arg), void *arg);
extern const struct nsv_part t_alone;
/* Is that mode on? Is there such a mode? Under valgrind there is none. */
bool t_is_flushing(void);
bool t_can_flush(void);

/* Fails with the place, unless |a - b| <= abs + rel |b| everywhere. NaN never passes. */
void t_close(const char *what, const float *a, const float *b, size_t n, float abs, float rel);
void t_same(const char *what, const float *a, const float *b, size_t n);

/* Of nsv_guard_new, at one side or the other: as likely the last byte lies right before a forbidden
 * page as the first right after one. */
void *t_new(size_t len, size_t align);
float *t_floats(size_t n);

/* Does valgrind or QEMU run this ($NANOSERVE_EMULATED)? Then fewer cases, of every kind. */
bool t_emulated(void);

#endif
