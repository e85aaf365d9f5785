/* Repacks stored weights once, at load; the layout is drawn in pack.h. The bits of q, d and m are
 * those of the file: nothing is rounded. */
#include "kernels/cpu/pack.h"
#include "kernels/cpu/share.h"
#include "kernels/half.h"

const uint8_t nsv_cpu_iq4[16] = {
	1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

/* ---- Reading stored blocks -------------------------------------------------------------- */

static void read_nibbles(const uint8_t *restrict p, uint8_t *restrict q)
{
	for (int i = 0; i < 16; i++) {
		q[i] = p[i] & 15;
		q[i + 16] = p[i] >> 4;
	}
}

static void add_fifth(const uint8_t *bits, uint8_t *q)
{
	for (int i = 0; i < 32; i++)
		q[i] |= (uint8_t)((bits[i / 8] >> (i % 8) & 1) << 4);
}

/* Of types whose blocks are not part of a larger one. */
static void set_scales(struct nsv_cpu_block *ret, float d, float m)
{
	*ret = (struct nsv_cpu_block){.scale = {1, 1}, .min = {1, 1}, .d = d, .m = m};
}

static void read_q4_q5(uint32_t dtype, const uint8_t *p, struct nsv_cpu_block *ret)
{
	bool has_m = dtype == NSV_Q4_1 || dtype == NSV_Q5_1;
	bool five = dtype == NSV_Q5_0 || dtype == NSV_Q5_1;
	const uint8_t *bits = p + (has_m ? 4 : 2);
	set_scales(ret, nsv_load_f16(p), has_m ? nsv_load_f16(p + 2) : 0);
	read_nibbles(five ? bits + 4 : bits, ret->q);
	if (five)
		add_fifth(bits, ret->q);
}

/* Signed bytes to unsigned ones, 128 more. */
static void flip_signs(const uint8_t *restrict p, uint8_t *restrict q)
{
	for (int i = 0; i < 32; i++)
		q[i] = p[i] ^ 0x80;
}

static void read_q8(const uint8_t *p, struct nsv_cpu_block *ret)
{
	set_scales(ret, nsv_load_f16(p), 0);
	flip_signs(p + 2, ret->q);
}

/* The j-th of 8 blocks of a Q2_K super-block: a half has four, which share bytes. */
static void read_k2(const uint8_t *p, size_t j, struct nsv_cpu_block *ret)
{
	const uint8_t *s = p + 2 * j, *q = p + 16 + j / 4 * 32;
	set_scales(ret, nsv_load_f16(p + 80), -nsv_load_f16(p + 82));
	for (int i = 0; i < 2; i++) {
		ret->scale[i] = (int8_t)(s[i] & 15);
		ret->min[i] = (int8_t)(s[i] >> 4);
	}
	for (int i = 0; i < 32; i++)
		ret->q[i] = q[i] >> (j % 4 * 2) & 3u;
}

/* Of Q3_K likewise, and a third bit; scales of 6 bits, the low four and the high two apart. The
 * signs of d and scale are turned. */
static void read_k3(const uint8_t *p, size_t j, struct nsv_cpu_block *ret)
{
	const uint8_t *s = p + 96, *q = p + 32 + j / 4 * 32;
	set_scales(ret, -nsv_load_f16(p + 108), 0);
	for (size_t i = 0; i < 2; i++) {
		size_t k = 2 * j + i;
		int low = s[k % 8] >> (k / 8 * 4) & 15, high = s[8 + k % 4] >> (k / 4 * 2) & 3;
		ret->scale[i] = (int8_t)(32 - (low | high << 4));
	}
	for (int i = 0; i < 32; i++)
		ret->q[i] = (uint8_t)((q[i] >> (j % 4 * 2) & 3) | (p[i] >> j & 1) << 2);
}

/* The j-th of 8 blocks of a Q4_K or Q5_K super-block: scales of 6 bits, the last 4 in two parts. */
static void read_k45(uint32_t dtype, const uint8_t *p, size_t j, struct nsv_cpu_block *ret)
{
	const uint8_t *s = p + 4, *nibbles = p + (dtype == NSV_Q5_K ? 48 : 16) + j / 2 * 32;
	uint32_t scale = s[j % 4], min = s[j % 4 + 4];
	if (j < 4) {
		scale &= 63;
		min &= 63;
	} else {
		uint32_t high_scale = scale >> 6 << 4, high_min = min >> 6 << 4;
		scale = (s[j + 4] & 15u) | high_scale;
		min = s[j + 4] >> 4 | high_min;
	}
	ret->scale[0] = ret->scale[1] = (int8_t)scale;
	ret->min[0] = ret->min[1] = (int8_t)min;
	ret->d = nsv_load_f16(p);
	ret->m = -nsv_load_f16(p + 2);
	for (int i = 0; i < 32; i++) {
		ret->q[i] = j % 2 ? nibbles[i] >> 4 : nibbles[i] & 15;
		if (dtype == NSV_Q5_K)
			ret->q[i] |= (uint8_t)((p[16 + i] >> j & 1) << 4);
	}
}

/* The j-th of 8 blocks of a Q6_K super-block: a half has four, which share bytes of both parts. */
static void read_k6(const uint8_t *p, size_t j, struct nsv_cpu_block *ret)
{
	const uint8_t *low = p + j / 4 * 64 + j % 2 * 32, *high = p + 128 + j / 4 * 32;
	set_scales(ret, nsv_load_f16(p + 208), 0);
	memcpy(ret->scale, p + 192 + 2 * j, sizeof(ret->scale));
	for (int i = 0; i < 32; i++) {
		uint32_t nibble = j % 4 < 2 ? low[i] & 15u : low[i] >> 4;
		ret->q[i] = (uint8_t)(nibble | (high[i] >> (j % 4 * 2) & 3u) << 4);
	}
}

/* The j-th of 8 blocks of an IQ4_XS super-block: scales of 6 bits, the high two first. */
static void read_iq4_xs(const uint8_t *p, size_t j, struct nsv_cpu_block *ret)
{
	int low = p[4 + j / 2] >> (j % 2 * 4) & 15, high = p[2 + j / 4] >> (j % 4 * 2) & 3;
	set_scales(ret, nsv_load_f16(p), 0);
	ret->scale[0] = ret->scale[1] = (int8_t)((low | high << 4) - 32);
	read_nibbles(p + 8 + 16 * j, ret->q);
}

/* The j-th block of what the type stores as one, at p. */
static void read_at(uint32_t dtype, const uint8_t *p, size_t j, struct nsv_cpu_block *ret)
{
	switch (dtype) {
	case NSV_Q8_0:
		read_q8(p, ret);
		break;
	case NSV_Q2_K:
		read_k2(p, j, ret);
		break;
	case NSV_Q3_K:
		read_k3(p, j, ret);
		break;
	case NSV_Q4_K:
	case NSV_Q5_K:
		read_k45(dtype, p, j, ret);
		break;
	case NSV_Q6_K:
		read_k6(p, j, ret);
		break;
	case NSV_IQ4_XS:
		read_iq4_xs(p, j, ret);
		break;
	default: /* IQ4_NL too: a block of it looks like one of Q4_0 */
		read_q4_q5(dtype, p, ret);
	}
}

void nsv_cpu_read_block(uint32_t dtype, const void *row, size_t b, struct nsv_cpu_block *ret)
{
	const struct nsv_dtype_info *info = nsv_dtype_info(dtype);
	size_t per = info->n_elem / NSV_CPU_BLOCK;

	read_at(dtype, (const uint8_t *)row + b / per * info->n_byte, b % per, ret);
}

/* ---- Sizes ------------------------------------------------------------------------------ */

static uint32_t form_of(uint32_t dtype)
{
	switch (dtype) {
	case NSV_Q4_0:
		return NSV_CPU_Q4_D;
	case NSV_Q4_1:
		return NSV_CPU_Q4_DM;
	case NSV_Q2_K:
		return NSV_CPU_Q2_K;
	case NSV_Q3_K:
		return NSV_CPU_Q3_K;
	case NSV_Q4_K:
		return NSV_CPU_Q4_K;
	case NSV_Q5_0:
		return NSV_CPU_Q5_D;
	case NSV_Q5_1:
		return NSV_CPU_Q5_DM;
	case NSV_Q5_K:
		return NSV_CPU_Q5_K;
	case NSV_Q8_0:
		return NSV_CPU_Q8_D;
	case NSV_Q6_K:
		return NSV_CPU_Q6_K;
	case NSV_IQ4_NL:
		return NSV_CPU_IQ4_NL;
	case NSV_IQ4_XS:
		return NSV_CPU_IQ4_XS;
	case NSV_F16:
		return NSV_CPU_F16;
	case NSV_BF16:
		return NSV_CPU_BF16;
	default:
		return NSV_CPU_F32;
	}
}

int32_t nsv_cpu_value(uint32_t dtype, uint8_t q)
{
	uint32_t form = form_of(dtype);
	return nsv_cpu_is_coded(form) ? nsv_cpu_iq4[q] - 128 : q - nsv_cpu_forms[form].zero;
}

static size_t panel_len(uint32_t form, uint32_t n_in)
{
	if (form < NSV_CPU_F32)
		return nsv_cpu_block_at(form, n_in / NSV_CPU_BLOCK) - nsv_cpu_head_len(form);
	if (form == NSV_CPU_BF16)
		return nsv_cpu_n_block(n_in) * NSV_CPU_BF16_LEN;
	return (size_t)n_in * NSV_CPU_PANEL * (form == NSV_CPU_F32 ? 4 : 2);
}

/* Fills the header; *ret_len: bytes of header and panels. */
static int lay_out(
	const struct nsv_matrix *m, uint32_t n_m, struct nsv_cpu_weight *w, size_t *ret_len)
{
	size_t off = sizeof(*w), len, n_out = 0;
	*w = (struct nsv_cpu_weight){.n_in = m[0].n_in, .n_mat = n_m};
	for (uint32_t i = 0; i < n_m; i++) {
		uint32_t n_panel = m[i].n_out / NSV_CPU_PANEL + (m[i].n_out % NSV_CPU_PANEL != 0);
		struct nsv_cpu_mat *mat = &w->mats[i];
		mat->form = form_of(m[i].dtype);
		mat->n_out = m[i].n_out;
		mat->panel0 = w->n_panel;
		mat->panel_len = panel_len(mat->form, w->n_in);
		if (!nsv_align_up(off, NSV_CACHE_LINE, &off))
			return -EOVERFLOW;
		mat->off = off;
		if (!nsv_mul(n_panel, mat->panel_len, &len) || !nsv_add(off, len, &off))
			return -EOVERFLOW;
		n_out += m[i].n_out;
		w->n_panel += n_panel;
	}
	if (n_out > UINT32_MAX - NSV_CPU_PANEL * NSV_CPU_MAT_MAX)
		return -EOVERFLOW;
	w->n_out = (uint32_t)n_out;
	*ret_len = off;
	return 0;
}

int nsv_cpu_weight_len(const struct nsv_matrix *m, uint32_t n_m, size_t *ret_len)
{
	struct nsv_cpu_weight w;
	size_t row_len;
	if (n_m == 0 || n_m > NSV_CPU_MAT_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < n_m; i++) {
		int r = nsv_dtype_row_len(m[i].dtype, m[i].n_in, &row_len);
		if (r < 0)
			return r;
		if (!m[i].n_in || !m[i].n_out || m[i].n_in != m[0].n_in)
			return -EINVAL;
	}
	return lay_out(m, n_m, &w, ret_len);
}

/* ---- Packing ---------------------------------------------------------------------------- */

/* The lowest bits of four bytes, side by side: the product brings bit 8k to 24 + k. */
static uint8_t low_bits(uint32_t four)
{
	return (uint8_t)((four & 0x01010101u) * 0x01020408u >> 24 & 15);
}

static uint32_t four_at(const uint8_t *q, uint32_t vec)
{
	uint32_t four;
	memcpy(&four, q + 4 * vec, sizeof(four));
	return four;
}

static void put_bytes(uint8_t *p, const uint8_t *q)
{
	for (uint32_t vec = 0; vec < 8; vec++)
		memcpy(p + vec * 64, q + vec * 4, 4);
}

static void put_fours(uint8_t *p, const uint8_t *q)
{
	for (uint32_t v = 0; v < 4; v++) {
		uint32_t low = four_at(q, 2 * v), high = four_at(q, 2 * v + 1);
		uint32_t both = (low & 0x0f0f0f0fu) | (high & 0x0f0f0f0fu) << 4;
		memcpy(p + v * 64, &both, sizeof(both));
	}
}

/* Those two bits of each q that begin at bit `shift`. */
static void put_twos(uint8_t *p, const uint8_t *q, uint32_t shift)
{
	for (uint32_t v = 0; v < 2; v++) {
		uint32_t all = 0;
		for (uint32_t i = 0; i < 4; i++)
			all |= (four_at(q, 4 * v + i) >> shift & 0x03030303u) << 2 * i;
		memcpy(p + v * 64, &all, sizeof(all));
	}
}

/* A row has half of a byte: the other half is another's. */
static void put_ones(uint8_t *p, uint32_t row, const uint8_t *q, uint32_t shift)
{
	for (uint32_t vec = 0; vec < 8; vec++)
		p[vec * 8 + row / 2] |=
			(uint8_t)(low_bits(four_at(q, vec) >> shift) << (row % 2 * 4));
}

/* A row's q: four lie side by side in a vector. */
static void put_q(uint32_t bits, uint8_t *block, uint32_t row, const uint8_t *q)
{
	if (bits == 8) {
		put_bytes(block + row * 4, q);
		return;
	}
	if (bits & 4)
		put_fours(block + row * 4, q);
	if (bits & 2)
		put_twos(block + (bits & 4) * 64 + row * 4, q, bits & 4);
	if (bits & 1)
		put_ones(block + nsv_cpu_ones_at(bits), row, q, bits - 1);
}

/* The bytes of a block's scales, of one row. */
static void put_small_scales(
	uint32_t form, uint8_t *p, uint32_t row, const struct nsv_cpu_block *b)
{
	uint8_t first = (uint8_t)b->scale[0], second = (uint8_t)b->scale[1];
	if (form == NSV_CPU_Q2_K) {
		first |= (uint8_t)(b->min[0] << 4);
		second |= (uint8_t)(b->min[1] << 4);
	} else if (nsv_cpu_has_m(form)) {
		second = (uint8_t)b->min[0];
	}
	p[row] = first;
	if (form != NSV_CPU_IQ4_XS)
		p[NSV_CPU_PANEL + row] = second;
}

/* Into the block's scales at p, and the head of the block. */
static void put_scales(uint32_t form, uint8_t *p, uint8_t *head, uint32_t row,
	const struct nsv_cpu_block *b)
{
	uint8_t *wide = nsv_cpu_head_len(form) ? head : p;
	nsv_store_elem(NSV_F16, wide, row, b->d);
	if (nsv_cpu_has_m(form))
		nsv_store_elem(NSV_F16, wide + 2 * NSV_CPU_PANEL, row, b->m);
	if (nsv_cpu_head_len(form))
		put_small_scales(form, p, row, b);
}

static void pack_quant_row(const struct nsv_matrix *m, const struct nsv_cpu_mat *mat,
	const void *row, uint32_t lane, uint8_t *panel)
{
	const uint32_t form = mat->form, bits = nsv_cpu_bits(form);
	const struct nsv_dtype_info *info = nsv_dtype_info(m->dtype);
	const uint32_t per = info->n_elem / NSV_CPU_BLOCK;
	struct nsv_cpu_block block;
	for (uint32_t b = 0; b < m->n_in / NSV_CPU_BLOCK; b++) {
		uint8_t *at = panel + nsv_cpu_block_at(form, b);
		read_at(m->dtype, (const uint8_t *)row + b / per * info->n_byte, b % per, &block);
		put_q(bits, at, lane, block.q);
		put_scales(form, at + nsv_cpu_q_len(form), panel + nsv_cpu_head_at(form, b), lane,
			&block);
	}
}

static void pack_float_row(
	const struct nsv_matrix *m, const void *row, uint32_t lane, uint8_t *panel)
{
	size_t elem = m->dtype == NSV_F32 ? 4 : 2, side = m->dtype == NSV_BF16 ? 2 : 1;
	for (size_t i = 0; i < m->n_in; i++)
		memcpy(panel + ((i / side * NSV_CPU_PANEL + lane) * side + i % side) * elem,
			(const char *)row + i * elem, elem);
}

static void pack_panel(const struct nsv_matrix *m, const struct nsv_cpu_mat *mat, size_t panel,
	uint8_t *dst)
{
	size_t row_len = 0, row0 = panel * NSV_CPU_PANEL;
	nsv_dtype_row_len(m->dtype, m->n_in, &row_len);
	memset(dst, 0, mat->panel_len);
	for (uint32_t lane = 0; lane < NSV_CPU_PANEL && row0 + lane < m->n_out; lane++) {
		const char *row = (const char *)m->data + (row0 + lane) * row_len;
		if (mat->form < NSV_CPU_F32)
			pack_quant_row(m, mat, row, lane, dst);
		else
			pack_float_row(m, row, lane, dst);
	}
}

void nsv_cpu_weight_pack(
	const struct nsv_part *part, const struct nsv_matrix *m, uint32_t n_m, void *dst)
{
	struct nsv_cpu_weight w;
	size_t len = 0, begin, end;
	lay_out(m, n_m, &w, &len);
	if (part->index == 0)
		memcpy(dst, &w, sizeof(w));
	nsv_part_range(part, w.n_panel, 1, &begin, &end);
	for (uint32_t i = 0; i < n_m; i++) {
		const struct nsv_cpu_mat *mat = &w.mats[i];
		size_t next = i + 1 < n_m ? w.mats[i + 1].panel0 : w.n_panel;
		for (size_t p = nsv_max(begin, mat->panel0); p < nsv_min(end, next); p++)
			pack_panel(&m[i], mat, p - mat->panel0,
				(uint8_t *)dst + mat->off + (p - mat->panel0) * mat->panel_len);
	}
}

/* Where a panel of the stacked matrices begins; of n_panel, where the last one ends. */
static size_t panel_at(const struct nsv_cpu_weight *w, size_t panel)
{
	const struct nsv_cpu_mat *mat = &w->mats[w->n_mat - 1];
	while (mat->panel0 > panel)
		mat--;
	return mat->off + (panel - mat->panel0) * mat->panel_len;
}

void nsv_cpu_weight_own(const struct nsv_part *part, const struct nsv_matrix *m, uint32_t n_m,
	size_t *ret_begin, size_t *ret_end)
{
	struct nsv_cpu_weight w;
	size_t len = 0, begin, end;
	lay_out(m, n_m, &w, &len);
	nsv_cpu_share_dealt(part, w.n_panel, w.n_panel, &begin, &end);
	*ret_begin = panel_at(&w, begin);
	*ret_end = panel_at(&w, end);
}

size_t nsv_cpu_acts_len(uint32_t n_row, uint32_t n_in)
{
	return sizeof(struct nsv_cpu_acts) + n_row * nsv_cpu_acts_row_len(n_in);
}
