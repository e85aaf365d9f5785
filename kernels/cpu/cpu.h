/* The `cpu` backend: what CPU users run. One table of kernels a row of instruction sets, best
 * first, the last plain C; all rows give the same bits (kernels/cpu/vec.h says how), so the
 * numerics id is one. $NANOSERVE_CPU_ISA names the row to run. Attention keeps its tiles on the
 * stack: a MiB. */
#ifndef NSV_KERNELS_CPU_CPU_H
#define NSV_KERNELS_CPU_CPU_H

#include "kernels/backend.h"
#include "kernels/cpuid.h"
#include "kernels/scan.h"

/* The kernels that differ by instruction set; struct nsv_backend says what each does. */
struct nsv_cpu_row {
	const char *name;
	bool (*supported)(const struct nsv_cpuid *id);
	void (*acts_set)(const struct nsv_part *part, void *acts, const float *x, size_t ld,
		uint32_t n_row, uint32_t n_in);
	void (*matmul)(const struct nsv_part *part, float *out, size_t ld_out, const void *weight,
		const void *acts, uint32_t n_row, const struct nsv_scan_slices *slices);
	void (*rmsnorm)(const struct nsv_part *part, float *out, const float *x, const float *w,
		size_t ld, uint32_t n_row, uint32_t n, float eps);
	void (*add)(const struct nsv_part *part, float *x, const float *y, size_t n);
	void (*add_bias)(const struct nsv_part *part, float *x, size_t ld, const float *bias,
		uint32_t n_row, uint32_t n);
	void (*rope)(const struct nsv_part *part, float *x, size_t ld, const float *cs,
		uint32_t n_row, uint32_t n_head, uint32_t head_dim, uint32_t n_rot,
		enum nsv_rope_kind kind);
	void (*gate)(const struct nsv_part *part, float *out, const float *gate, const float *up,
		size_t ld, uint32_t n_row, uint32_t n, enum nsv_act act);
	void (*softmax)(
		const struct nsv_part *part, float *p, const float *x, uint32_t n_row, uint32_t n);
	void (*kv_append)(const struct nsv_part *part, const struct nsv_attn_shape *shape,
		void *k_pool, void *v_pool, const float *k, const float *v, size_t ld,
		const int64_t *slots, uint32_t n_row);
	void (*attention)(const struct nsv_part *part, const struct nsv_attn_call *call);
	const struct nsv_scan *scan;
};

extern const struct nsv_backend nsv_cpu_backend;

/* The rows that are built in, best first; a test drives each that is supported. */
const struct nsv_cpu_row *nsv_cpu_rows(size_t *ret_n);

/* The kernels of one instruction set: the functions that <op>-<isa>.c define. */
struct nsv_cpu_weight;
struct nsv_cpu_acts;
struct nsv_cpu_mat_run;

#define NSV_CPU_DECLARE_MATMUL(isa) \
	void nsv_cpu_acts_set_##isa(const struct nsv_part *part, void *acts, const float *x, \
		size_t ld, uint32_t n_row, uint32_t n_in); \
	void nsv_cpu_matmul_##isa(const struct nsv_part *part, float *out, size_t ld_out, \
		const void *weight, const void *acts, uint32_t n_row, \
		const struct nsv_scan_slices *slices); \
	/* Panels begin .. end - 1 of all against rows row0 .. row_end - 1, tiles of n_row. */ \
	void nsv_cpu_panels_##isa(const struct nsv_cpu_weight *w, const struct nsv_cpu_acts *acts, \
		float *out, size_t ld_out, size_t begin, size_t end, size_t row0, size_t row_end, \
		size_t n_row);

#define NSV_CPU_DECLARE(isa) \
	NSV_CPU_DECLARE_MATMUL(isa) \
	void nsv_cpu_rmsnorm_##isa(const struct nsv_part *part, float *out, const float *x, \
		const float *w, size_t ld, uint32_t n_row, uint32_t n, float eps); \
	void nsv_cpu_add_##isa(const struct nsv_part *part, float *x, const float *y, size_t n); \
	void nsv_cpu_add_bias_##isa(const struct nsv_part *part, float *x, size_t ld, \
		const float *bias, uint32_t n_row, uint32_t n); \
	void nsv_cpu_rope_##isa(const struct nsv_part *part, float *x, size_t ld, const float *cs, \
		uint32_t n_row, uint32_t n_head, uint32_t head_dim, uint32_t n_rot, \
		enum nsv_rope_kind kind); \
	void nsv_cpu_gate_##isa(const struct nsv_part *part, float *out, const float *gate, \
		const float *up, size_t ld, uint32_t n_row, uint32_t n, enum nsv_act act); \
	void nsv_cpu_softmax_##isa(const struct nsv_part *part, float *p, const float *x, \
		uint32_t n_row, uint32_t n); \
	void nsv_cpu_kv_append_##isa(const struct nsv_part *part, \
		const struct nsv_attn_shape *shape, void *k_pool, void *v_pool, const float *k, \
		const float *v, size_t ld, const int64_t *slots, uint32_t n_row); \
	void nsv_cpu_attention_##isa( \
		const struct nsv_part *part, const struct nsv_attn_call *call); \
	extern const struct nsv_scan nsv_cpu_scan_##isa;

NSV_CPU_DECLARE(plain)
NSV_CPU_DECLARE(avx2)
NSV_CPU_DECLARE(avx512)
NSV_CPU_DECLARE(neon)
NSV_CPU_DECLARE_MATMUL(dotprod)

/* What AMX does better than AVX-512, and attention as its processors do it best. */
void nsv_cpu_attention_amx(const struct nsv_part *part, const struct nsv_attn_call *call);
void nsv_cpu_matmul_amx(const struct nsv_part *part, float *out, size_t ld_out, const void *weight,
	const void *acts, uint32_t n_row, const struct nsv_scan_slices *slices);
/* A matrix of bf16; rows in whole tiles of h. */
void nsv_cpu_bf16_amx(const struct nsv_cpu_mat_run *run, uint32_t h);

#endif
