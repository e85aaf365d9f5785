/* Element types: the table, row lengths, 16-bit floats over all their values, and each stored
 * format read back from blocks that are written here, field by field, as the format says. */
#include "tests/ops/support.h"

static void test_table(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < NSV_ARRAY_LEN(t_dtypes); i++) {
		const struct nsv_dtype_info *info = nsv_dtype_info(t_dtypes[i]);
		assert_non_null(info);
		assert_int_equal(info->dtype, t_dtypes[i]);
		assert_string_equal(info->name, nsv_dtype_name(t_dtypes[i]));
	}
	assert_null(nsv_dtype_info(16));
	assert_string_equal(nsv_dtype_name(16), "IQ2_XXS");
	assert_string_equal(nsv_dtype_name(30), "BF16");
	assert_string_equal(nsv_dtype_name(4), "unknown");
	assert_string_equal(nsv_dtype_name(UINT32_MAX), "unknown");
}

static void test_row_len(void **unused)
{
	size_t len = 5;
	(void)unused;
	assert_int_equal(nsv_dtype_row_len(NSV_Q4_1, 576, &len), 0);
	assert_int_equal(len, 360);
	assert_int_equal(nsv_dtype_row_len(NSV_Q6_K, 512, &len), 0);
	assert_int_equal(len, 420);
	assert_int_equal(nsv_dtype_row_len(NSV_Q2_K, 768, &len), 0);
	assert_int_equal(len, 252);
	assert_int_equal(nsv_dtype_row_len(NSV_Q3_K, 256, &len), 0);
	assert_int_equal(len, 110);
	assert_int_equal(nsv_dtype_row_len(NSV_IQ4_NL, 96, &len), 0);
	assert_int_equal(len, 54);
	assert_int_equal(nsv_dtype_row_len(NSV_IQ4_XS, 512, &len), 0);
	assert_int_equal(len, 272);
	assert_int_equal(nsv_dtype_row_len(NSV_F32, 3, &len), 0);
	assert_int_equal(len, 12);
	assert_int_equal(nsv_dtype_row_len(NSV_Q4_1, 33, &len), -EINVAL);
	assert_int_equal(nsv_dtype_row_len(NSV_Q4_K, 128, &len), -EINVAL);
	assert_int_equal(nsv_dtype_row_len(NSV_IQ4_XS, 96, &len), -EINVAL);
	assert_int_equal(nsv_dtype_row_len(16, 256, &len), -EINVAL);
	assert_int_equal(nsv_dtype_row_len(NSV_F32, SIZE_MAX / 2, &len), -EOVERFLOW);
	assert_int_equal(len, 12);
}

/* Every 16-bit pattern to float and back; and to nearest even between neighbours. */
static void test_f16(void **unused)
{
	(void)unused;
	for (uint32_t h = 0; h < 0x10000; h++) {
		float f = nsv_f16_f32((uint16_t)h);
		if ((h & 0x7fff) > 0x7c00) {
			assert_true(isnan(f) && isnan(nsv_f16_f32(nsv_f32_f16(f))));
			continue;
		}
		assert_int_equal(nsv_f32_f16(f), h);
		if ((h & 0x7fff) >= 0x7bff)
			continue;
		float next = nsv_f16_f32((uint16_t)(h + 1)), middle = (f + next) / 2;
		assert_int_equal(nsv_f32_f16(middle), h & 1 ? h + 1 : h);
		assert_int_equal(nsv_f32_f16(nextafterf(middle, f)), h);
		assert_int_equal(nsv_f32_f16(nextafterf(middle, next)), h + 1);
	}
	assert_int_equal(nsv_f32_f16(65519.0f), 0x7bff);
	assert_int_equal(nsv_f32_f16(65520.0f), 0x7c00);
	assert_int_equal(nsv_f32_f16(-1e30f), 0xfc00);
	assert_int_equal(nsv_f32_f16(0x1p-26f), 0);
}

static void test_bf16(void **unused)
{
	(void)unused;
	for (uint32_t h = 0; h < 0x10000; h++) {
		float f = nsv_bf16_f32((uint16_t)h);
		if (isnan(f))
			assert_true(isnan(nsv_bf16_f32(nsv_f32_bf16(f))));
		else
			assert_int_equal(nsv_f32_bf16(f), h);
	}
	assert_int_equal(nsv_f32_bf16(nsv_bits_f32(0x3f808000)), 0x3f80);
	assert_int_equal(nsv_f32_bf16(nsv_bits_f32(0x3f818000)), 0x3f82);
	assert_int_equal(nsv_f32_bf16(nsv_bits_f32(0x3f808001)), 0x3f81);
}

/* ---- Formats: values are chosen, a block is written, both readers must give the values --- */

static void put16(uint8_t *p, float f)
{
	uint16_t h = nsv_f32_f16(f);
	memcpy(p, &h, 2);
}

static void check_block(uint32_t dtype, const uint8_t *block, const float *want)
{
	const struct nsv_dtype_info *info = nsv_dtype_info(dtype);
	struct nsv_matrix m = {dtype, 1, info->n_elem, block};
	float got[256];
	int32_t id = 0;
	nsv_ref_dequant(dtype, block, got, info->n_elem);
	t_close(info->name, got, want, info->n_elem, 1e-6f, 1e-6f);
	nsv_cpu_backend.embed(&t_alone, got, &m, &id, 1, 1.0f);
	t_close(info->name, got, want, info->n_elem, 1e-6f, 1e-6f);
}

static void check_q4_q5(uint32_t dtype)
{
	uint8_t block[24] = {0};
	bool has_m = dtype == NSV_Q4_1 || dtype == NSV_Q5_1;
	bool five = dtype == NSV_Q5_0 || dtype == NSV_Q5_1;
	uint8_t *bits = block + (has_m ? 4 : 2), *nibbles = five ? bits + 4 : bits;
	float d = 0.25f, m = has_m ? -1.5f : five ? -16 * d : -8 * d, want[32];
	put16(block, d);
	if (has_m)
		put16(block + 2, m);
	for (uint32_t i = 0; i < 32; i++) {
		uint32_t q = t_below(five ? 32 : 16);
		want[i] = d * (float)q + m;
		nibbles[i % 16] |= (uint8_t)((q & 15) << (i / 16 * 4));
		if (five)
			bits[i / 8] |= (uint8_t)(q >> 4 << i % 8);
	}
	check_block(dtype, block, want);
}

static void check_q8_0(void)
{
	uint8_t block[34];
	float want[32];
	put16(block, 0.5f);
	for (int i = 0; i < 32; i++) {
		int q = i == 0 ? -128 : (int)t_below(256) - 128;
		block[2 + i] = (uint8_t)q;
		want[i] = 0.5f * (float)q;
	}
	check_block(NSV_Q8_0, block, want);
}

/* Scales and minima of 6 bits: of the first four the low bytes, of the last four nibbles apart and
 * two bits above the first four's. */
static void put_scales(uint8_t *s, const uint32_t *scale, const uint32_t *min)
{
	for (int j = 0; j < 4; j++) {
		s[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
		s[j + 4] = (uint8_t)(min[j] | min[j + 4] >> 4 << 6);
		s[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
	}
}

static void check_q4_q5_k(uint32_t dtype)
{
	uint8_t block[176] = {0}, *high = block + 16, *low = block + (dtype == NSV_Q5_K ? 48 : 16);
	uint32_t scale[8], min[8];
	float want[256];
	put16(block, 0.125f);
	put16(block + 2, 0.5f);
	for (int j = 0; j < 8; j++) {
		scale[j] = t_below(64);
		min[j] = t_below(64);
	}
	put_scales(block + 4, scale, min);
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t j = i / 32, q = t_below(dtype == NSV_Q5_K ? 32 : 16);
		want[i] = 0.125f * (float)scale[j] * (float)q - 0.5f * (float)min[j];
		low[i / 64 * 32 + i % 32] |= (uint8_t)((q & 15) << (j % 2 * 4));
		if (dtype == NSV_Q5_K)
			high[i % 32] |= (uint8_t)(q >> 4 << j);
	}
	check_block(dtype, block, want);
}

static void check_q6_k(void)
{
	uint8_t block[210] = {0};
	float want[256];
	put16(block + 208, 0.0625f);
	for (int i = 0; i < 16; i++)
		block[192 + i] = (uint8_t)t_rand();
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t q = t_below(64), half = i / 128, in = i % 128;
		want[i] = 0.0625f * (float)(int8_t)block[192 + i / 16] * ((float)q - 32);
		block[half * 64 + in % 64] |= (uint8_t)((q & 15) << (in / 64 * 4));
		block[128 + half * 32 + in % 32] |= (uint8_t)(q >> 4 << (in / 32 * 2));
	}
	check_block(NSV_Q6_K, block, want);
}

static void check_q2_k(void)
{
	uint8_t block[84] = {0};
	float want[256];
	put16(block + 80, 0.25f);
	put16(block + 82, 0.5f);
	for (int i = 0; i < 16; i++)
		block[i] = (uint8_t)t_rand();
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t q = t_below(4), scale = block[i / 16] & 15, min = block[i / 16] >> 4;
		want[i] = 0.25f * (float)(scale * q) - 0.5f * (float)min;
		block[16 + i / 128 * 32 + i % 32] |= (uint8_t)(q << (i % 128 / 32 * 2));
	}
	check_block(NSV_Q2_K, block, want);
}

/* Scales of 6 bits: the low four of the first 8 and the last 8 share bytes, the high two of every
 * fourth share one. */
static void check_q3_k(void)
{
	uint8_t block[110] = {0}, *low = block + 96, *high = block + 104;
	int scale[16];
	float want[256];
	put16(block + 108, 0.125f);
	for (int i = 0; i < 16; i++) {
		uint32_t s = i == 0 ? 0 : t_below(64); /* 0 stands for -32 */
		scale[i] = (int)s - 32;
		low[i % 8] |= (uint8_t)((s & 15) << (i / 8 * 4));
		high[i % 4] |= (uint8_t)(s >> 4 << (i / 4 * 2));
	}
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t q = i == 0 ? 0 : t_below(8);
		want[i] = 0.125f * (float)(scale[i / 16] * ((int)q - 4));
		block[i % 32] |= (uint8_t)(q >> 2 << i / 32);
		block[32 + i / 128 * 32 + i % 32] |= (uint8_t)((q & 3) << (i % 128 / 32 * 2));
	}
	check_block(NSV_Q3_K, block, want);
}

static const int iq4[16] = {
	-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void check_iq4_nl(void)
{
	uint8_t block[18] = {0};
	float want[32];
	put16(block, 0.5f);
	for (uint32_t i = 0; i < 32; i++) {
		uint32_t q = t_below(16);
		want[i] = 0.5f * (float)iq4[q];
		block[2 + i % 16] |= (uint8_t)(q << (i / 16 * 4));
	}
	check_block(NSV_IQ4_NL, block, want);
}

static void check_iq4_xs(void)
{
	uint8_t block[136] = {0};
	float want[256];
	put16(block, 0.25f);
	for (uint32_t j = 0; j < 8; j++) {
		uint32_t s = t_below(64);
		block[2 + j / 4] |= (uint8_t)(s >> 4 << (j % 4 * 2));
		block[4 + j / 2] |= (uint8_t)((s & 15) << (j % 2 * 4));
		for (uint32_t i = 0; i < 32; i++) {
			uint32_t q = t_below(16);
			want[32 * j + i] = 0.25f * (float)(((int)s - 32) * iq4[q]);
			block[8 + 16 * j + i % 16] |= (uint8_t)(q << (i / 16 * 4));
		}
	}
	check_block(NSV_IQ4_XS, block, want);
}

static void test_formats(void **unused)
{
	(void)unused;
	for (int i = 0; i < 20; i++) {
		check_q4_q5(NSV_Q4_0);
		check_q4_q5(NSV_Q4_1);
		check_q4_q5(NSV_Q5_0);
		check_q4_q5(NSV_Q5_1);
		check_q8_0();
		check_q4_q5_k(NSV_Q4_K);
		check_q4_q5_k(NSV_Q5_K);
		check_q6_k();
		check_q2_k();
		check_q3_k();
		check_iq4_nl();
		check_iq4_xs();
	}
}

/* ---- Blocks from elsewhere --------------------------------------------------------------- */

/* tests/data/blocks-TYPE.bin: 512 elements of a type, first some that were quantised, then random
 * bits with sane scales; then the floats that the Python package gguf reads from them. */
static void check_foreign(uint32_t dtype, const char *path)
{
	const struct nsv_dtype_info *info = nsv_dtype_info(dtype);
	uint8_t blocks[16 * 18];
	size_t n_block = 512 / info->n_elem;
	int32_t id = 0;
	float want[512], got[512];
	FILE *f = fopen(path, "rb");
	assert_non_null(f);
	assert_int_equal(fread(blocks, info->n_byte, n_block, f), n_block);
	assert_int_equal(fread(want, sizeof(float), 512, f), 512);
	fclose(f);
	nsv_ref_dequant(dtype, blocks, got, 512);
	t_same(info->name, got, want, 512);
	nsv_cpu_backend.embed(
		&t_alone, got, &(struct nsv_matrix){dtype, 1, 512, blocks}, &id, 1, 1.0f);
	t_close(info->name, got, want, 512, 0, 1e-6f);
}

static void test_foreign_blocks(void **unused)
{
	(void)unused;
	check_foreign(NSV_Q2_K, "tests/data/blocks-q2_k.bin");
	check_foreign(NSV_Q3_K, "tests/data/blocks-q3_k.bin");
	check_foreign(NSV_IQ4_NL, "tests/data/blocks-iq4_nl.bin");
	check_foreign(NSV_IQ4_XS, "tests/data/blocks-iq4_xs.bin");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_row_len),
		cmocka_unit_test(test_f16),
		cmocka_unit_test(test_bf16),
		cmocka_unit_test(test_formats),
		cmocka_unit_test(test_foreign_blocks),
	};
	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
