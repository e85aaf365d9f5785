/* Stored blocks to floats, a function a type, straight from the format's definition. */
#include "kernels/half.h"
#include "kernels/ref/ref.h"

static void dequant_f32(const uint8_t *b, float *out)
{
	*out = nsv_load_elem(NSV_F32, b, 0);
}

static void dequant_f16(const uint8_t *b, float *out)
{
	*out = nsv_load_elem(NSV_F16, b, 0);
}

static void dequant_bf16(const uint8_t *b, float *out)
{
	*out = nsv_load_elem(NSV_BF16, b, 0);
}

/* d, 16 bytes: element i in the low half of byte i, element i + 16 in the high half. */
static void dequant_q4_0(const uint8_t *b, float *out)
{
	float d = nsv_load_f16(b);
	for (int i = 0; i < 16; i++) {
		out[i] = d * (float)((b[2 + i] & 15) - 8);
		out[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
	}
}

static void dequant_q4_1(const uint8_t *b, float *out)
{
	float d = nsv_load_f16(b), m = nsv_load_f16(b + 2);
	for (int i = 0; i < 16; i++) {
		out[i] = d * (float)(b[4 + i] & 15) + m;
		out[i + 16] = d * (float)(b[4 + i] >> 4) + m;
	}
}

/* The fifth bits of 32 elements, bit i of element i, come before the nibbles. */
static int fifth(const uint8_t *bits, int i)
{
	return (bits[i / 8] >> (i % 8) & 1) << 4;
}

static void dequant_q5_0(const uint8_t *b, float *out)
{
	float d = nsv_load_f16(b);
	for (int i = 0; i < 16; i++) {
		out[i] = d * (float)((b[6 + i] & 15) + fifth(b + 2, i) - 16);
		out[i + 16] = d * (float)((b[6 + i] >> 4) + fifth(b + 2, i + 16) - 16);
	}
}

static void dequant_q5_1(const uint8_t *b, float *out)
{
	float d = nsv_load_f16(b), m = nsv_load_f16(b + 2);
	for (int i = 0; i < 16; i++) {
		out[i] = d * (float)((b[8 + i] & 15) + fifth(b + 4, i)) + m;
		out[i + 16] = d * (float)((b[8 + i] >> 4) + fifth(b + 4, i + 16)) + m;
	}
}

static void dequant_q8_0(const uint8_t *b, float *out)
{
	float d = nsv_load_f16(b);
	for (int i = 0; i < 32; i++)
		out[i] = d * (float)(int8_t)b[2 + i];
}

/* Eight 6-bit scales and eight 6-bit minima in 12 bytes. */
static void scale_min(const uint8_t *s, int j, float *scale, float *min)
{
	if (j < 4) {
		*scale = (float)(s[j] & 63);
		*min = (float)(s[j + 4] & 63);
	} else {
		*scale = (float)((s[j + 4] & 15) | s[j - 4] >> 6 << 4);
		*min = (float)((s[j + 4] >> 4) | s[j] >> 6 << 4);
	}
}

/* d, dmin, 12 bytes of scales; each 32 bytes hold 32 elements low and the next 32 high. */
static void dequant_q4_k(const uint8_t *b, float *out)
{
	float d = nsv_load_f16(b), dmin = nsv_load_f16(b + 2), scale, min;
	for (int j = 0; j < 8; j++) {
		const uint8_t *q = b + 16 + j / 2 * 32;
		scale_min(b + 4, j, &scale, &min);
		for (int i = 0; i < 32; i++)
			out[32 * j + i] =
				d * scale * (float)(q[i] >> (j % 2 * 4) & 15) - dmin * min;
	}
}

/* As Q4_K, with 32 bytes before the nibbles: bit j of byte i is the fifth of element i of 32j. */
static void dequant_q5_k(const uint8_t *b, float *out)
{
	float d = nsv_load_f16(b), dmin = nsv_load_f16(b + 2), scale, min;
	for (int j = 0; j < 8; j++) {
		const uint8_t *high = b + 16, *q = b + 48 + j / 2 * 32;
		scale_min(b + 4, j, &scale, &min);
		for (int i = 0; i < 32; i++) {
			int v = (q[i] >> (j % 2 * 4) & 15) | (high[i] >> j & 1) << 4;
			out[32 * j + i] = d * scale * (float)v - dmin * min;
		}
	}
}

/* 128 bytes of low nibbles, 64 of high pairs, 16 signed scales, d; in two halves of 128
 * elements. */
static void dequant_q6_k(const uint8_t *b, float *out)
{
	float d = nsv_load_f16(b + 208);
	for (int i = 0; i < 256; i++) {
		int half = i / 128, quarter = i % 128 / 32, l = i % 32;
		int low = b[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
		int high = b[128 + half * 32 + l] >> (quarter * 2) & 3;
		out[i] = d * (float)(int8_t)b[192 + i / 16] * (float)((low | high << 4) - 32);
	}
}

static void (*dequant_of(uint32_t dtype))(const uint8_t *, float *)
{
	switch (dtype) {
	case NSV_F16:
		return dequant_f16;
	case NSV_BF16:
		return dequant_bf16;
	case NSV_Q4_0:
		return dequant_q4_0;
	case NSV_Q4_1:
		return dequant_q4_1;
	case NSV_Q5_0:
		return dequant_q5_0;
	case NSV_Q5_1:
		return dequant_q5_1;
	case NSV_Q8_0:
		return dequant_q8_0;
	case NSV_Q4_K:
		return dequant_q4_k;
	case NSV_Q5_K:
		return dequant_q5_k;
	case NSV_Q6_K:
		return dequant_q6_k;
	default:
		return dequant_f32;
	}
}

void nsv_ref_dequant(uint32_t dtype, const void *row, float *out, size_t n)
{
	const struct nsv_dtype_info *info = nsv_dtype_info(dtype);
	void (*dequant)(const uint8_t *, float *) = dequant_of(dtype);
	const uint8_t *b = row;
	for (size_t i = 0; i < n; i += info->n_elem, b += info->n_byte)
		dequant(b, out + i);
}
