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

/* 16 bytes of scales (low half) and minima (high), 64 of pairs, d, dmin; in two halves of 128
 * elements. */
static void dequant_q2_k(const uint8_t *b, float *out)
{
	float d = nsv_load_f16(b + 80), dmin = nsv_load_f16(b + 82);
	for (int i = 0; i < 256; i++) {
		int half = i / 128, quarter = i % 128 / 32, l = i % 32;
		int q = b[16 + half * 32 + l] >> (quarter * 2) & 3;
		out[i] = d * (float)(b[i / 16] & 15) * (float)q - dmin * (float)(b[i / 16] >> 4);
	}
}

/* The i-th of 16 scales of 6 bits: the low four of 8 and 8 in halves of 8 bytes, then the high two
 * of every fourth in a byte. */
static int q3_k_scale(const uint8_t *s, int i)
{
	int low = s[i % 8] >> (i / 8 * 4) & 15, high = s[8 + i % 4] >> (i / 4 * 2) & 3;
	return (low | high << 4) - 32;
}

/* 32 bytes of third bits (bit j of byte i: element i of 32j), 64 of low pairs, 12 of scales, d. */
static void dequant_q3_k(const uint8_t *b, float *out)
{
	float d = nsv_load_f16(b + 108);
	for (int i = 0; i < 256; i++) {
		int half = i / 128, quarter = i % 128 / 32, l = i % 32;
		int low = b[32 + half * 32 + l] >> (quarter * 2) & 3, high = b[l] >> (i / 32) & 1;
		out[i] = d * (float)q3_k_scale(b + 96, i / 16) * (float)((low | high << 2) - 4);
	}
}

/* What the sixteen codes of the IQ4 types stand for. */
static const int8_t iq4_values[16] = {
	-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* As Q4_0, but for the values. */
static void dequant_iq4_nl(const uint8_t *b, float *out)
{
	float d = nsv_load_f16(b);
	for (int i = 0; i < 16; i++) {
		out[i] = d * (float)iq4_values[b[2 + i] & 15];
		out[i + 16] = d * (float)iq4_values[b[2 + i] >> 4];
	}
}

/* d, eight scales of 6 bits (high pairs in 2 bytes, then low halves in 4), and 16 bytes for each 32
 * elements, as in IQ4_NL. */
static void dequant_iq4_xs(const uint8_t *b, float *out)
{
	float d = nsv_load_f16(b);
	for (int j = 0; j < 8; j++) {
		int low = b[4 + j / 2] >> (j % 2 * 4) & 15, high = b[2 + j / 4] >> (j % 4 * 2) & 3;
		float scale = d * (float)((low | high << 4) - 32);
		const uint8_t *q = b + 8 + 16 * j;
		for (int i = 0; i < 16; i++) {
			out[32 * j + i] = scale * (float)iq4_values[q[i] & 15];
			out[32 * j + i + 16] = scale * (float)iq4_values[q[i] >> 4];
		}
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
	case NSV_Q2_K:
		return dequant_q2_k;
	case NSV_Q3_K:
		return dequant_q3_k;
	case NSV_Q4_K:
		return dequant_q4_k;
	case NSV_Q5_K:
		return dequant_q5_k;
	case NSV_Q6_K:
		return dequant_q6_k;
	case NSV_IQ4_NL:
		return dequant_iq4_nl;
	case NSV_IQ4_XS:
		return dequant_iq4_xs;
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
