/* vec.h for AArch64: sixteen floats are four registers, lane i in register i / 4. Included by
 * vec.h where VEC_NEON is defined. */
#ifndef NSV_KERNELS_CPU_VEC_NEON_H
#define NSV_KERNELS_CPU_VEC_NEON_H

#include <arm_neon.h>

typedef struct {
	float32x4_t v[4];
} vf;

/* f of each register, and of the registers of one, two or three operands. */
#define VF_4(f) ((vf){{f(0), f(1), f(2), f(3)}})
#define VF_MAP2(f, a, b) \
	((vf){{f((a).v[0], (b).v[0]), f((a).v[1], (b).v[1]), f((a).v[2], (b).v[2]), \
		f((a).v[3], (b).v[3])}})
#define VF_MAP3(f, a, b, c) \
	((vf){{f((a).v[0], (b).v[0], (c).v[0]), f((a).v[1], (b).v[1], (c).v[1]), \
		f((a).v[2], (b).v[2], (c).v[2]), f((a).v[3], (b).v[3], (c).v[3])}})

ALWAYS_INLINE vf vf_set1(float x)
{
	float32x4_t v = vdupq_n_f32(x);
	return (vf){{v, v, v, v}};
}

ALWAYS_INLINE vf vf_load(const float *p)
{
#define AT(i) vld1q_f32(p + (i) * 4)
	return VF_4(AT);
#undef AT
}

ALWAYS_INLINE void vf_store(float *p, vf a)
{
	vst1q_f32(p, a.v[0]);
	vst1q_f32(p + 4, a.v[1]);
	vst1q_f32(p + 8, a.v[2]);
	vst1q_f32(p + 12, a.v[3]);
}

ALWAYS_INLINE vf vf_load_f16(const void *p)
{
	const uint16_t *h = p;
#define AT(i) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h + (i) * 4)))
	return VF_4(AT);
#undef AT
}

ALWAYS_INLINE void store_f16_kv4(uint16_t *p, float32x4_t a)
{
	uint16x4_t h = vreinterpret_u16_f16(vcvt_f16_f32(a));
	uint16x4_t beyond =
		vcgt_u16(vand_u16(h, vdup_n_u16(0x7fff)), vdup_n_u16(NSV_F16_MAX));
	vst1_u16(p, vbsl_u16(beyond, vdup_n_u16(NSV_F16_NAN), h));
}

ALWAYS_INLINE void vf_store_f16_kv(void *p, vf a)
{
	uint16_t *h = p;
	store_f16_kv4(h, a.v[0]);
	store_f16_kv4(h + 4, a.v[1]);
	store_f16_kv4(h + 8, a.v[2]);
	store_f16_kv4(h + 12, a.v[3]);
}

ALWAYS_INLINE vf vf_load_bf16(const void *p)
{
	const uint16_t *h = p;
#define AT(i) vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(h + (i) * 4), 16))
	return VF_4(AT);
#undef AT
}

ALWAYS_INLINE vf vf_load_first(const void *p)
{
	const uint8_t *b = p;
#define AT(i) vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u8(vld1q_u8(b + (i) * 16)), 16))
	return VF_4(AT);
#undef AT
}

ALWAYS_INLINE vf vf_load_second(const void *p)
{
	const uint8_t *b = p;
	const uint32x4_t high = vdupq_n_u32(0xffff0000u);
#define AT(i) vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u8(vld1q_u8(b + (i) * 16)), high))
	return VF_4(AT);
#undef AT
}

ALWAYS_INLINE float32x4_t round_bf16_4(float32x4_t a)
{
	uint32x4_t b = vreinterpretq_u32_f32(a);
	uint32x4_t odd = vandq_u32(vshrq_n_u32(b, 16), vdupq_n_u32(1));
	uint32x4_t r = vaddq_u32(b, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
	r = vandq_u32(r, vdupq_n_u32(0xffff0000u));
	return vbslq_f32(vceqq_f32(a, a), vreinterpretq_f32_u32(r), a);
}

ALWAYS_INLINE vf vf_round_bf16(vf a)
{
	return (vf){{round_bf16_4(a.v[0]), round_bf16_4(a.v[1]), round_bf16_4(a.v[2]),
		round_bf16_4(a.v[3])}};
}

ALWAYS_INLINE vf vf_load_s8(const void *p)
{
	int8x16_t b = vld1q_s8(p);
	int16x8_t lo = vmovl_s8(vget_low_s8(b)), hi = vmovl_high_s8(b);
	return (vf){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_high_s16(lo)),
		vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_high_s16(hi))}};
}

ALWAYS_INLINE vf vf_load_high4(const void *p)
{
	uint8_t b[VF_N];
	vst1q_u8(b, vshrq_n_u8(vld1q_u8(p), 4));
	return vf_load_s8(b);
}

ALWAYS_INLINE vf vf_add(vf a, vf b)
{
	return VF_MAP2(vaddq_f32, a, b);
}

ALWAYS_INLINE vf vf_sub(vf a, vf b)
{
	return VF_MAP2(vsubq_f32, a, b);
}

ALWAYS_INLINE vf vf_mul(vf a, vf b)
{
	return VF_MAP2(vmulq_f32, a, b);
}

ALWAYS_INLINE vf vf_div(vf a, vf b)
{
	return VF_MAP2(vdivq_f32, a, b);
}

ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c)
{
	return VF_MAP3(vfmaq_f32, c, a, b);
}

/* FMAX would let a NaN of either side through, and tell -0 from 0: not what the others do. */
ALWAYS_INLINE float32x4_t max4(float32x4_t a, float32x4_t b)
{
	return vbslq_f32(vcgtq_f32(a, b), a, b);
}

ALWAYS_INLINE vf vf_max(vf a, vf b)
{
	return VF_MAP2(max4, a, b);
}

ALWAYS_INLINE float32x4_t min4(float32x4_t a, float32x4_t b)
{
	return vbslq_f32(vcltq_f32(a, b), a, b);
}

ALWAYS_INLINE vf vf_min(vf a, vf b)
{
	return VF_MAP2(min4, a, b);
}

/* All bits of the lanes whose number, from `first` on, is in begin .. end - 1. */
ALWAYS_INLINE uint32x4_t lanes_in(uint32_t first, uint32_t begin, uint32_t end)
{
	static const uint32_t number[4] = {0, 1, 2, 3};
	uint32x4_t i = vaddq_u32(vld1q_u32(number), vdupq_n_u32(first));
	return vandq_u32(vcgeq_u32(i, vdupq_n_u32(begin)), vcltq_u32(i, vdupq_n_u32(end)));
}

ALWAYS_INLINE vf vf_between(uint32_t begin, uint32_t end, vf a, vf b)
{
#define AT(i) vbslq_f32(lanes_in((i) * 4, begin, end), a.v[i], b.v[i])
	return VF_4(AT);
#undef AT
}

ALWAYS_INLINE float32x4_t zero_below4(float32x4_t x, float32x4_t low, float32x4_t y)
{
	return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, low)));
}

ALWAYS_INLINE vf vf_zero_below(vf x, vf low, vf y)
{
	return VF_MAP3(zero_below4, x, low, y);
}

ALWAYS_INLINE float32x4_t ldexp4(float32x4_t a, float32x4_t t)
{
	return vreinterpretq_f32_u32(vaddq_u32(
		vshlq_n_u32(vreinterpretq_u32_f32(t), 23), vreinterpretq_u32_f32(a)));
}

ALWAYS_INLINE vf vf_ldexp(vf a, vf t)
{
	return VF_MAP2(ldexp4, a, t);
}

ALWAYS_INLINE float32x4_t max_abs4(float32x4_t a, float32x4_t b)
{
	uint32x4_t abs = vreinterpretq_u32_f32(vabsq_f32(b));
	return vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(a), abs));
}

ALWAYS_INLINE vf vf_max_abs(vf a, vf b)
{
	return VF_MAP2(max_abs4, a, b);
}

ALWAYS_INLINE int32_t vf_store_s8(int8_t *p, vf a)
{
	int32x4_t i0 = vcvtnq_s32_f32(a.v[0]), i1 = vcvtnq_s32_f32(a.v[1]);
	int32x4_t i2 = vcvtnq_s32_f32(a.v[2]), i3 = vcvtnq_s32_f32(a.v[3]);
	int16x8_t lo = vcombine_s16(vmovn_s32(i0), vmovn_s32(i1));
	int16x8_t hi = vcombine_s16(vmovn_s32(i2), vmovn_s32(i3));
	vst1q_s8(p, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
	return vaddlvq_s16(vaddq_s16(lo, hi));
}

ALWAYS_INLINE float vf_hmax(vf a)
{
	return vmaxvq_f32(max4(max4(a.v[0], a.v[1]), max4(a.v[2], a.v[3])));
}

ALWAYS_INLINE float vf_sum(vf a)
{
	float32x4_t s = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
	float32x2_t h = vadd_f32(vget_low_f32(s), vget_high_f32(s));
	return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}

ALWAYS_INLINE uint32_t at_least4(float32x4_t x, float32x4_t low, uint32_t first)
{
	static const uint32_t bit[4] = {1, 2, 4, 8};
	return vaddvq_u32(vandq_u32(vcgeq_f32(x, low), vld1q_u32(bit))) << first;
}

ALWAYS_INLINE uint32_t vf_at_least(vf x, vf low)
{
	return at_least4(x.v[0], low.v[0], 0) | at_least4(x.v[1], low.v[1], 4) |
		at_least4(x.v[2], low.v[2], 8) | at_least4(x.v[3], low.v[3], 12);
}

typedef struct {
	float64x2_t p[8];
} vd;

ALWAYS_INLINE vd vd_zero(void)
{
	float64x2_t z = vdupq_n_f64(0);
	return (vd){{z, z, z, z, z, z, z, z}};
}

ALWAYS_INLINE vd vd_add(vd a, vf b)
{
	for (uint32_t i = 0; i < 4; i++) {
		a.p[2 * i] = vaddq_f64(a.p[2 * i], vcvt_f64_f32(vget_low_f32(b.v[i])));
		a.p[2 * i + 1] = vaddq_f64(a.p[2 * i + 1], vcvt_high_f64_f32(b.v[i]));
	}
	return a;
}

ALWAYS_INLINE void vd_store(double *p, vd a)
{
	for (uint32_t i = 0; i < 8; i++)
		vst1q_f64(p + 2 * i, a.p[i]);
}

#endif
