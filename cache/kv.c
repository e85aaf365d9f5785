/* Sizes, places and fingerprint of the KV region: checked products, no memory of its own. */
#include "cache/kv.h"

#include <string.h>

_Static_assert(sizeof(struct nsv_kv_head) <= NSV_PAGE, "the header fits its page");

static bool is_supported(const struct nsv_kv_geom *g)
{
	return g->n_layer > 0 && g->n_kv_head > 0 && g->head_dim > 0 &&
		nsv_is_pow2(g->block_size) && (g->elem_len == 2 || g->elem_len == 4) &&
		g->k_dim_major <= 1;
}

/* All but the region. */
static int block_sizes(const struct nsv_kv_geom *g, struct nsv_kv_size *ret)
{
	struct nsv_kv_size s = {0};
	size_t layers;

	if (!is_supported(g))
		return -EINVAL;
	if (!nsv_mul(g->n_kv_head, g->head_dim, &s.token) ||
		!nsv_mul(s.token, g->elem_len, &s.token) ||
		!nsv_mul(s.token, g->block_size, &s.plane) || !nsv_mul(g->n_layer, 2, &layers) ||
		!nsv_mul(s.token, layers, &s.token) || !nsv_mul(s.plane, layers, &s.block) ||
		!nsv_align_up(s.block, NSV_CACHE_LINE, &s.block))
		return -EOVERFLOW;
	*ret = s;
	return 0;
}

int nsv_kv_sizes(const struct nsv_kv_geom *geom, struct nsv_kv_size *ret_size)
{
	struct nsv_kv_size s;
	int ret = block_sizes(geom, &s);

	if (ret < 0)
		return ret;
	if (geom->n_block == 0)
		return -EINVAL;
	if (!nsv_mul(s.block, geom->n_block, &s.region) ||
		!nsv_add(s.region, NSV_PAGE, &s.region) ||
		!nsv_align_up(s.region, NSV_PAGE, &s.region))
		return -EOVERFLOW;
	*ret_size = s;
	return 0;
}

int nsv_kv_blocks_in(const struct nsv_kv_geom *geom, size_t budget, uint32_t *ret_n_block)
{
	struct nsv_kv_size s;
	int ret = block_sizes(geom, &s);

	if (ret < 0)
		return ret;
	size_t pages = budget / NSV_PAGE * NSV_PAGE;
	*ret_n_block = pages < NSV_PAGE
		? 0
		: (uint32_t)nsv_min((pages - NSV_PAGE) / s.block, UINT32_MAX);
	return 0;
}

void nsv_kv_head_write(struct nsv_kv_head *head, const struct nsv_kv_geom *geom, uint64_t model_id,
	uint32_t numerics)
{
	struct nsv_kv_size s = {0};

	nsv_kv_sizes(geom, &s);
	memset(head, 0, sizeof(*head));
	head->magic = NSV_KV_MAGIC;
	head->major = NSV_KV_MAJOR;
	head->head_len = sizeof(*head);
	head->region_len = s.region;
	head->geom = *geom;
	head->model_id = model_id;
	head->numerics = numerics;
}

static int check_format(const struct nsv_kv_head *h, struct nsv_err *err)
{
	static const uint32_t zero[NSV_ARRAY_LEN(h->reserved)];

	if (h->magic != NSV_KV_MAGIC)
		return nsv_fail(err, -EPROTO, "not a KV region: its magic is %#llx",
			(unsigned long long)h->magic);
	if (h->major != NSV_KV_MAJOR || h->head_len != sizeof(*h))
		return nsv_fail(err, -EPROTO,
			"the KV region has format %u with a head of %u bytes, this is %u with %zu",
			h->major, h->head_len, NSV_KV_MAJOR, sizeof(*h));
	if (memcmp(h->reserved, zero, sizeof(zero)))
		return nsv_fail(err, -EPROTO, "the KV region's reserved words are not zero");
	return 0;
}

static int check_geom(
	const struct nsv_kv_geom *have, const struct nsv_kv_geom *want, struct nsv_err *err)
{
	const struct {
		const char *name;
		uint32_t have, want;
	} f[] = {
		{"layers", have->n_layer, want->n_layer},
		{"KV heads", have->n_kv_head, want->n_kv_head},
		{"head size", have->head_dim, want->head_dim},
		{"tokens a block", have->block_size, want->block_size},
		{"blocks", have->n_block, want->n_block},
		{"bytes an element", have->elem_len, want->elem_len},
		{"element type", have->dtype, want->dtype},
		{"order of K", have->k_dim_major, want->k_dim_major},
	};

	for (size_t i = 0; i < NSV_ARRAY_LEN(f); i++)
		if (f[i].have != f[i].want)
			return nsv_fail(err, -EPROTO,
				"the KV region differs in %s: %u, expected %u", f[i].name,
				f[i].have, f[i].want);
	return 0;
}

int nsv_kv_head_check(const struct nsv_kv_head *head, size_t region_len,
	const struct nsv_kv_geom *geom, uint64_t model_id, uint32_t numerics, struct nsv_err *err)
{
	struct nsv_kv_head h;
	struct nsv_kv_size s;
	int ret = nsv_kv_sizes(geom, &s);

	if (ret < 0)
		return nsv_fail(err, ret, "the wanted KV geometry is not possible");
	if (region_len < NSV_PAGE)
		return nsv_fail(err, -EPROTO, "a KV region of %zu bytes has no head page",
			region_len);
	memcpy(&h, head, sizeof(h));
	ret = check_format(&h, err);
	if (ret == 0)
		ret = check_geom(&h.geom, geom, err);
	if (ret < 0)
		return ret;
	if (h.region_len != s.region || region_len != s.region)
		return nsv_fail(err, -EPROTO,
			"the KV region says %llu bytes and has %zu, expected %zu",
			(unsigned long long)h.region_len, region_len, s.region);
	if (h.model_id != model_id)
		return nsv_fail(err, -EPROTO,
			"the KV region belongs to model %016llx, this is %016llx",
			(unsigned long long)h.model_id, (unsigned long long)model_id);
	if (h.numerics != numerics)
		return nsv_fail(err, -EPROTO, "the KV region has numerics %#x, this backend %#x",
			h.numerics, numerics);
	return 0;
}

size_t nsv_kv_plane_off(const struct nsv_kv_geom *geom, uint32_t layer, bool is_v)
{
	size_t plane = (size_t)geom->n_kv_head * geom->head_dim * geom->block_size * geom->elem_len;

	return NSV_PAGE + (2 * (size_t)layer + is_v) * plane;
}
