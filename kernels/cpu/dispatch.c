/* The table of instruction sets, the choice of a row, and the backend that calls through it. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/flush.h"
#include "kernels/cpu/ops-any.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/tiles.h"

#include <stdatomic.h>
#include <string.h>

#define ROW(row_name, has, isa, isa_matmul, isa_attention) \
	{ \
		.name = row_name, .supported = has, .acts_set = nsv_cpu_acts_set_##isa, \
		.matmul = nsv_cpu_matmul_##isa_matmul, .rmsnorm = nsv_cpu_rmsnorm_##isa, \
		.add = nsv_cpu_add_##isa, .add_bias = nsv_cpu_add_bias_##isa, \
		.rope = nsv_cpu_rope_##isa, .gate = nsv_cpu_gate_##isa, \
		.softmax = nsv_cpu_softmax_##isa, .kv_append = nsv_cpu_kv_append_##isa, \
		.attention = nsv_cpu_attention_##isa_attention, .scan = &nsv_cpu_scan_##isa, \
	}

#if defined(__x86_64__)

/* The processor's tiles are of use only if the kernel lets us have them. */
static bool has_amx(const struct nsv_cpuid *id)
{
	return id->avx512_vnni && id->avx512_bf16 && id->amx_int8 && id->amx_bf16 &&
		nsv_cpu_ask_tiles() == 0;
}

static bool has_avx512_vnni(const struct nsv_cpuid *id)
{
	return id->avx512_vnni;
}

static bool has_avx2(const struct nsv_cpuid *id)
{
	return id->avx2;
}

#elif defined(__aarch64__)

static bool has_neon_dotprod(const struct nsv_cpuid *id)
{
	return id->neon_dotprod;
}

static bool has_neon(const struct nsv_cpuid *id)
{
	return id->neon;
}

#endif

static bool has_all(const struct nsv_cpuid *id)
{
	(void)id;
	return true;
}

static const struct nsv_cpu_row rows[] = {
#if defined(__x86_64__)
	ROW("amx", has_amx, avx512, amx, amx),
	ROW("avx512-vnni", has_avx512_vnni, avx512, avx512, avx512),
	ROW("avx2", has_avx2, avx2, avx2, avx2),
#elif defined(__aarch64__)
	ROW("neon-dotprod", has_neon_dotprod, neon, dotprod, neon),
	ROW("neon", has_neon, neon, neon, neon),
#endif
	ROW("plain", has_all, plain, plain, plain),
};

/* The row that runs: chosen by probe, the same each time, so that who comes first does not
 * matter. */
static _Atomic(const struct nsv_cpu_row *) chosen;

const struct nsv_cpu_row *nsv_cpu_rows(size_t *ret_n)
{
	*ret_n = NSV_ARRAY_LEN(rows);
	return rows;
}

static bool tiles_refused(const struct nsv_cpuid *id)
{
	return id->amx_int8 && nsv_cpu_ask_tiles() < 0;
}

static int choose_row(
	const char *forced, const struct nsv_cpu_row **ret_row, struct nsv_err *err)
{
	struct nsv_cpuid id;
	char names[128] = "";
	nsv_cpuid_read(&id);
	for (size_t i = 0; i < NSV_ARRAY_LEN(rows); i++) {
		size_t at = strlen(names);
		snprintf(names + at, sizeof(names) - at, " %s", rows[i].name);
		if (forced && strcmp(forced, rows[i].name))
			continue;
		if (rows[i].supported(&id)) {
			*ret_row = &rows[i];
			return 0;
		}
		if (forced)
			return nsv_fail(err, -EINVAL, "NANOSERVE_CPU_ISA=%s: %s", forced,
				tiles_refused(&id) && !strcmp(forced, "amx") ?
					"the kernel refuses its tiles" :
					"this processor lacks it");
	}
	return nsv_fail(err, -EINVAL, "no NANOSERVE_CPU_ISA=%.60s; there are:%s", forced, names);
}

static int choose_here(const struct nsv_cpu_row **ret_row, struct nsv_err *err)
{
	const char *forced = getenv("NANOSERVE_CPU_ISA");
	return choose_row(forced && *forced ? forced : NULL, ret_row, err);
}

static int cpu_probe(struct nsv_err *err)
{
	const struct nsv_cpu_row *row = NULL;
	int r = choose_here(&row, err);
	if (r == 0)
		atomic_store(&chosen, row);
	return r;
}

/* For all backends, so it is chosen without a probe; what the variable says wrongly is for probe to
 * refuse. Asking the processor is dear on a virtual machine: once. */
const struct nsv_scan *nsv_scan_here(void)
{
	static _Atomic(const struct nsv_scan *) here;
	const struct nsv_scan *scan = atomic_load_explicit(&here, memory_order_relaxed);
	const struct nsv_cpu_row *row = &rows[NSV_ARRAY_LEN(rows) - 1];
	struct nsv_err err;

	if (scan)
		return scan;
	choose_here(&row, &err);
	atomic_store(&here, row->scan);
	return row->scan;
}

/* Without a probe, the last row: plain C, which runs anywhere. */
static const struct nsv_cpu_row *row_now(void)
{
	const struct nsv_cpu_row *row = atomic_load_explicit(&chosen, memory_order_relaxed);
	return row ? row : &rows[NSV_ARRAY_LEN(rows) - 1];
}

/* What stood above the row and could not be had is said with it. */
static const char *cpu_isa(void)
{
	const char *name = row_now()->name;
	struct nsv_cpuid id;
	if (strcmp(name, "avx512-vnni"))
		return name;
	nsv_cpuid_read(&id);
	return tiles_refused(&id) ? "avx512-vnni, as the kernel refuses AMX tiles" : name;
}

/* ---- Operations: every row takes numbers below the normal ones for zeros ------------------ */

static void cpu_acts_set(const struct nsv_part *part, void *acts, const float *x, size_t ld,
	uint32_t n_row, uint32_t n_in)
{
	uint64_t mode = nsv_cpu_flush_begin();

	row_now()->acts_set(part, acts, x, ld, n_row, n_in);
	nsv_cpu_flush_end(mode);
}

static void cpu_matmul(const struct nsv_part *part, float *out, size_t ld_out, const void *weight,
	const void *acts, uint32_t n_row, const struct nsv_scan_slices *slices)
{
	uint64_t mode = nsv_cpu_flush_begin();

	row_now()->matmul(part, out, ld_out, weight, acts, n_row, slices);
	nsv_cpu_flush_end(mode);
}

static void cpu_rmsnorm(const struct nsv_part *part, float *out, const float *x, const float *w,
	size_t ld, uint32_t n_row, uint32_t n, float eps)
{
	uint64_t mode = nsv_cpu_flush_begin();

	row_now()->rmsnorm(part, out, x, w, ld, n_row, n, eps);
	nsv_cpu_flush_end(mode);
}

static void cpu_add(const struct nsv_part *part, float *x, const float *y, size_t n)
{
	uint64_t mode = nsv_cpu_flush_begin();

	row_now()->add(part, x, y, n);
	nsv_cpu_flush_end(mode);
}

static void cpu_add_bias(const struct nsv_part *part, float *x, size_t ld, const float *bias,
	uint32_t n_row, uint32_t n)
{
	uint64_t mode = nsv_cpu_flush_begin();

	row_now()->add_bias(part, x, ld, bias, n_row, n);
	nsv_cpu_flush_end(mode);
}

static void cpu_rope(const struct nsv_part *part, float *x, size_t ld, const float *cs,
	uint32_t n_row, uint32_t n_head, uint32_t head_dim, uint32_t n_rot, enum nsv_rope_kind kind)
{
	uint64_t mode = nsv_cpu_flush_begin();

	row_now()->rope(part, x, ld, cs, n_row, n_head, head_dim, n_rot, kind);
	nsv_cpu_flush_end(mode);
}

static void cpu_gate(const struct nsv_part *part, float *out, const float *gate, const float *up,
	size_t ld, uint32_t n_row, uint32_t n, enum nsv_act act)
{
	uint64_t mode = nsv_cpu_flush_begin();

	row_now()->gate(part, out, gate, up, ld, n_row, n, act);
	nsv_cpu_flush_end(mode);
}

static void cpu_softmax(
	const struct nsv_part *part, float *p, const float *x, uint32_t n_row, uint32_t n)
{
	uint64_t mode = nsv_cpu_flush_begin();

	row_now()->softmax(part, p, x, n_row, n);
	nsv_cpu_flush_end(mode);
}

static void cpu_kv_append(const struct nsv_part *part, const struct nsv_attn_shape *shape,
	void *k_pool, void *v_pool, const float *k, const float *v, size_t ld, const int64_t *slots,
	uint32_t n_row)
{
	uint64_t mode = nsv_cpu_flush_begin();

	row_now()->kv_append(part, shape, k_pool, v_pool, k, v, ld, slots, n_row);
	nsv_cpu_flush_end(mode);
}

static void cpu_attention(const struct nsv_part *part, const struct nsv_attn_call *call)
{
	uint64_t mode = nsv_cpu_flush_begin();

	row_now()->attention(part, call);
	nsv_cpu_flush_end(mode);
}

const struct nsv_backend nsv_cpu_backend = {
	.name = "cpu",
	/* "cpu", 3: the orders of matmul-impl.h and matmul-bf16-impl.h, attention-impl.h,
	 * ops-impl.h, and flush.h. */
	.numerics = 0x63707503,
	.k_dim_major = true,
	.kv_dtype = NSV_F16,
	.probe = cpu_probe,
	.isa = cpu_isa,
	.weight_len = nsv_cpu_weight_len,
	.weight_pack = nsv_cpu_weight_pack,
	.weight_own = nsv_cpu_weight_own,
	.acts_len = nsv_cpu_acts_len,
	.acts_set = cpu_acts_set,
	.matmul = cpu_matmul,
	.embed = nsv_cpu_embed,
	.rmsnorm = cpu_rmsnorm,
	.add = cpu_add,
	.add_bias = cpu_add_bias,
	.rope = cpu_rope,
	.gate = cpu_gate,
	.softmax = cpu_softmax,
	.kv_append = cpu_kv_append,
	.attention = cpu_attention,
};
