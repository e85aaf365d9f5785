/* 16-bit floats to and from binary32, in integer arithmetic: exact on every machine. */
#ifndef NSV_KERNELS_HALF_H
#define NSV_KERNELS_HALF_H

#include "kernels/ops.h"

#include <math.h>
#include <string.h>

static inline float nsv_bits_f32(uint32_t bits)
{
	float f;
	memcpy(&f, &bits, sizeof(f));
	return f;
}

static inline uint32_t nsv_f32_bits(float f)
{
	uint32_t bits;
	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static inline float nsv_bf16_f32(uint16_t h)
{
	return nsv_bits_f32((uint32_t)h << 16);
}

/* To nearest even; a NaN stays one. */
static inline uint16_t nsv_f32_bf16(float f)
{
	uint32_t bits = nsv_f32_bits(f);
	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(bits >> 16 | 0x40u);
	return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float nsv_f16_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
	uint32_t exp = h >> 10 & 0x1fu, frac = h & 0x3ffu;
	if (exp == 0) {
		float f = (float)frac * 0x1p-24f;
		return sign ? -f : f;
	}
	if (exp == 31)
		return nsv_bits_f32(sign | 0x7f800000u | frac << 13);
	return nsv_bits_f32(sign | (exp + 112u) << 23 | frac << 13);
}

/* To nearest even; beyond the largest: infinity. */
static inline uint16_t nsv_f32_f16(float f)
{
	uint32_t bits = nsv_f32_bits(f), sign = bits >> 16 & 0x8000u, abs = bits & 0x7fffffffu;
	if (abs > 0x7f800000u)
		return (uint16_t)(sign | 0x7e00u);
	if (abs >= 0x477ff000u) /* 65520: halfway to what would be 65536 */
		return (uint16_t)(sign | 0x7c00u);
	if (abs < 0x38800000u) /* below 2^-14: a multiple of 2^-24 */
		return (uint16_t)(sign | (uint32_t)lrintf(nsv_bits_f32(abs) * 0x1p24f));
	return (uint16_t)(sign | (abs - 0x38000000u + 0xfffu + (abs >> 13 & 1u)) >> 13);
}

/* For K and V: what binary16 cannot hold becomes NaN, not infinity. An infinite key may score
 * -infinity, have no weight, and go unseen; a NaN spreads to the logits of every row that sees it,
 * and the request ends with an error. */
#define NSV_F16_NAN 0x7e00u
#define NSV_F16_MAX 0x7bffu /* 65504, the largest */

static inline uint16_t nsv_f32_f16_kv(float f)
{
	uint16_t h = nsv_f32_f16(f);
	return (h & 0x7fffu) > NSV_F16_MAX ? NSV_F16_NAN : h;
}

/* A 16-bit float at any address. */
static inline float nsv_load_f16(const void *p)
{
	uint16_t h;
	memcpy(&h, p, sizeof(h));
	return nsv_f16_f32(h);
}

/* Element i of an array of NSV_F32, NSV_F16 or NSV_BF16, at any address. */
static inline float nsv_load_elem(uint32_t dtype, const void *p, int64_t i)
{
	uint16_t h;
	float f;
	if (dtype == NSV_F32) {
		memcpy(&f, (const char *)p + i * 4, sizeof(f));
		return f;
	}
	memcpy(&h, (const char *)p + i * 2, sizeof(h));
	return dtype == NSV_F16 ? nsv_f16_f32(h) : nsv_bf16_f32(h);
}

static inline void nsv_store_elem(uint32_t dtype, void *p, int64_t i, float f)
{
	uint16_t h = dtype == NSV_F16 ? nsv_f32_f16(f) : nsv_f32_bf16(f);
	if (dtype == NSV_F32)
		memcpy((char *)p + i * 4, &f, sizeof(f));
	else
		memcpy((char *)p + i * 2, &h, sizeof(h));
}

/* As nsv_store_elem, of K and V. */
static inline void nsv_store_kv(uint32_t dtype, void *pool, int64_t i, float f)
{
	uint16_t h = nsv_f32_f16_kv(f);
	if (dtype == NSV_F16)
		memcpy((char *)pool + i * 2, &h, sizeof(h));
	else
		nsv_store_elem(dtype, pool, i, f);
}

#endif
