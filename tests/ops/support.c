/* See support.h. Random blocks are random bytes with scales that are put in afterwards, so that
 * every bit pattern of the quantised values occurs, -128 and all-equal blocks included. */
#include "tests/ops/support.h"

float t_uniform(float low, float high)
{
	return low + (high - low) * (float)(t_rand() >> 40) * 0x1p-24f;
}

void *t_new(size_t len, size_t align)
{
	return nsv_guard_new(len, align, t_below(2) ? NSV_GUARD_AFTER : NSV_GUARD_BEFORE);
}

float *t_floats(size_t n)
{
	return t_new(n * sizeof(float), sizeof(float));
}

bool t_emulated(void)
{
	return getenv("NANOSERVE_EMULATED") != NULL;
}

float t_normal(void)
{
	float sum = 0;
	for (int i = 0; i < 12; i++)
		sum += t_uniform(0, 1);
	return sum - 6.0f;
}

void t_fill_normal(float *x, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		x[i] = scale * t_normal();
}

const uint32_t t_dtypes[T_N_DTYPE] = {NSV_F32, NSV_F16, NSV_BF16, NSV_Q4_0, NSV_Q4_1, NSV_Q5_0,
	NSV_Q5_1, NSV_Q8_0, NSV_IQ4_NL, NSV_IQ4_XS, NSV_Q2_K, NSV_Q3_K, NSV_Q4_K, NSV_Q5_K,
	NSV_Q6_K};

static void put_f16(uint8_t *p, float f)
{
	uint16_t h = nsv_f32_f16(f);
	memcpy(p, &h, sizeof(h));
}

/* Where the d and the m of a block lie, and what a scale of 1 is divided by for each. */
struct scales {
	uint32_t dtype, d_at, m_at; /* m_at 0: the type has none */
	float by_d, by_m;
};

static const struct scales all_scales[] = {
	{NSV_Q4_0, 0, 0, 8, 0},
	{NSV_Q4_1, 0, 2, 8, -1},
	{NSV_Q5_0, 0, 0, 16, 0},
	{NSV_Q5_1, 0, 2, 16, -1},
	{NSV_Q8_0, 0, 0, 128, 0},
	{NSV_Q2_K, 80, 82, 45, 15},
	{NSV_Q3_K, 108, 0, 128, 0},
	{NSV_Q4_K, 0, 2, 240, 30},
	{NSV_Q5_K, 0, 2, 480, 30},
	{NSV_Q6_K, 208, 0, 2000, 0},
	{NSV_IQ4_NL, 0, 0, 127, 0},
	{NSV_IQ4_XS, 0, 0, 4000, 0},
};

/* Makes a block of random bytes a sane one: its scales come from `scale`. */
static void set_scales(uint32_t dtype, uint8_t *b, float scale)
{
	const struct scales *s = all_scales;
	while (s->dtype != dtype)
		s++;
	put_f16(b + s->d_at, scale * t_uniform(0.5f, 1.5f) / s->by_d);
	if (s->m_at)
		put_f16(b + s->m_at, scale * t_uniform(0.5f, 1.5f) / s->by_m);
}

/* Of the value and scale bits all that are to be equal; the scales in f16 are sane ones. */
static void fill_equal(uint32_t dtype, uint8_t *b, size_t len, uint8_t byte, float scale)
{
	memset(b, byte, len);
	set_scales(dtype, b, scale);
}

/* One block in four: all values and their scales equal, as large or small as they get (of 8 bits:
 * -128), or scales that are no normal f16, or none at all. */
static void fill_block(uint32_t dtype, uint8_t *b, size_t len, float scale)
{
	static const uint8_t fills[] = {0x80, 0xff, 0x00};
	uint32_t kind = t_below(20);
	if (kind < NSV_ARRAY_LEN(fills)) {
		fill_equal(dtype, b, len, fills[kind], scale);
		return;
	}
	for (size_t i = 0; i < len; i++)
		b[i] = (uint8_t)t_rand();
	set_scales(dtype, b, kind == 3 ? 0.0f : kind == 4 ? scale * 0x1p-14f : scale);
}

static struct nsv_matrix new_matrix(
	uint32_t dtype, uint32_t n_out, uint32_t n_in, uint8_t **ret_data, size_t *ret_n)
{
	const struct nsv_dtype_info *info = nsv_dtype_info(dtype);
	size_t row_len = 0;
	assert_int_equal(nsv_dtype_row_len(dtype, n_in, &row_len), 0);
	*ret_data = t_new(n_out * row_len, info->n_elem == 1 ? info->n_byte : 2);
	*ret_n = n_out * row_len / info->n_byte;
	return (struct nsv_matrix){dtype, n_out, n_in, *ret_data};
}

struct nsv_matrix t_matrix(uint32_t dtype, uint32_t n_out, uint32_t n_in, float scale)
{
	const struct nsv_dtype_info *info = nsv_dtype_info(dtype);
	uint8_t *data;
	size_t n;
	struct nsv_matrix m = new_matrix(dtype, n_out, n_in, &data, &n);
	for (size_t i = 0; i < n; i++)
		if (info->n_elem > 1)
			fill_block(dtype, data + i * info->n_byte, info->n_byte, scale);
		else
			nsv_store_elem(dtype, data, (int64_t)i, scale * t_normal());
	return m;
}

struct nsv_matrix t_matrix_equal(
	uint32_t dtype, uint32_t n_out, uint32_t n_in, uint8_t byte, float scale)
{
	const struct nsv_dtype_info *info = nsv_dtype_info(dtype);
	uint8_t *data;
	size_t n;
	struct nsv_matrix m = new_matrix(dtype, n_out, n_in, &data, &n);
	for (size_t i = 0; i < n; i++)
		fill_equal(dtype, data + i * info->n_byte, info->n_byte, byte, scale);
	return m;
}

void t_matrix_free(struct nsv_matrix *m)
{
	nsv_guard_free((void *)(uintptr_t)m->data);
}

static struct nsv_backend row_backend(const struct nsv_cpu_row *row, char *name)
{
	struct nsv_backend b = nsv_cpu_backend;
	sprintf(name, "cpu/%.24s", row->name);
	b.name = name;
	b.acts_set = row->acts_set;
	b.matmul = row->matmul;
	b.rmsnorm = row->rmsnorm;
	b.add = row->add;
	b.add_bias = row->add_bias;
	b.rope = row->rope;
	b.gate = row->gate;
	b.softmax = row->softmax;
	b.kv_append = row->kv_append;
	b.attention = row->attention;
	return b;
}

const struct nsv_backend *t_backends(size_t *ret_n)
{
	static struct nsv_backend list[8];
	static char names[8][32];
	static size_t n;
	size_t n_row;
	const struct nsv_cpu_row *rows = nsv_cpu_rows(&n_row);
	struct nsv_cpuid id;
	nsv_cpuid_read(&id);
	if (n == 0) {
		list[n++] = nsv_reference_backend;
		list[n++] = nsv_model_backend;
		for (size_t i = 0; i < n_row; i++, n++) {
			if (!rows[i].supported(&id)) {
				print_message("%s: not on this machine\n", rows[i].name);
				n--;
				continue;
			}
			list[n] = row_backend(&rows[i], names[n]);
		}
	}
	*ret_n = n;
	return list;
}

const struct nsv_part t_alone = {0, 1, NULL};

struct flushed {
	void (*fn)(const struct nsv_part *part, void *arg);
	void *arg;
};

static void flushed_part(const struct nsv_part *part, void *arg)
{
	const struct flushed *f = arg;
	uint64_t mode = nsv_cpu_flush_begin();
	f->fn(part, f->arg);
	nsv_cpu_flush_end(mode);
}

void t_run(const struct nsv_backend *b, uint32_t n,
	void (*fn)(const struct nsv_part *part, void *arg), void *arg)
{
	struct nsv_team *team = NULL;
	assert_int_equal(nsv_team_new(n, &team), 0);
	if (strncmp(b->name, "cpu/", 4) == 0)
		nsv_team_run(team, flushed_part, &(struct flushed){fn, arg});
	else
		nsv_team_run(team, fn, arg);
	nsv_team_free(team);
}

bool t_is_flushing(void)
{
	volatile float small = 0x1p-100f, product = small * 0x1p-40f;
	return product == 0;
}

bool t_can_flush(void)
{
	uint64_t mode = nsv_cpu_flush_begin();
	bool can = t_is_flushing();
	nsv_cpu_flush_end(mode);
	return can;
}

void t_close(const char *what, const float *a, const float *b, size_t n, float abs, float rel)
{
	for (size_t i = 0; i < n; i++)
		if (!(fabsf(a[i] - b[i]) <= abs + rel * fabsf(b[i])))
			fail_msg(
				"%s: [%zu] is %.9g, not %.9g", what, i, (double)a[i], (double)b[i]);
}

void t_same(const char *what, const float *a, const float *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (memcmp(&a[i], &b[i], sizeof(float)))
			fail_msg("%s: [%zu] is %.9g, not the bits of %.9g", what, i, (double)a[i],
				(double)b[i]);
}
