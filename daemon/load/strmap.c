/* The map of strings: a table of small slots over a list of entries. */
#include "daemon/load/strmap.h"

#include <string.h>
#include <sys/random.h>

/* ---- SipHash with one round a word and three at the end */

static uint64_t rotl(uint64_t x, unsigned int n)
{
	return x << n | x >> (64 - n);
}

static void sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = rotl(v[1], 13) ^ v[0];
	v[0] = rotl(v[0], 32);
	v[2] += v[3];
	v[3] = rotl(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = rotl(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = rotl(v[1], 17) ^ v[2];
	v[2] = rotl(v[2], 32);
}

static void sip_word(uint64_t v[4], uint64_t word)
{
	v[3] ^= word;
	sip_round(v);
	v[0] ^= word;
}

static uint64_t hash(const struct nsv_strmap *map, struct nsv_str s)
{
	uint64_t v[4] = {map->secret[0] ^ 0x736f6d6570736575, map->secret[1] ^ 0x646f72616e646f6d,
		map->secret[0] ^ 0x6c7967656e657261, map->secret[1] ^ 0x7465646279746573};
	uint64_t word;
	size_t i;

	for (i = 0; i + 8 <= s.len; i += 8) {
		memcpy(&word, s.p + i, 8);
		sip_word(v, word);
	}
	word = (uint64_t)s.len << 56;
	for (size_t j = i; j < s.len; j++)
		word |= (uint64_t)(uint8_t)s.p[j] << (8 * (j - i));
	sip_word(v, word);
	v[2] ^= 0xff;
	for (int j = 0; j < 3; j++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* ---- The table */

static bool is_key(const struct nsv_strmap *map, uint32_t entry, struct nsv_str key)
{
	const struct nsv_str *other = &map->entry[entry].key;

	return other->len == key.len && memcmp(other->p, key.p, key.len) == 0;
}

/* The slot of the string, or the free one where it belongs. */
static struct nsv_strmap_slot *find(
	const struct nsv_strmap *map, struct nsv_str key, uint32_t *ret_tag)
{
	uint64_t h = hash(map, key);
	uint32_t tag = (uint32_t)(h >> 32);
	size_t i = h & map->mask;

	while (map->slot[i].entry &&
		!(map->slot[i].tag == tag && is_key(map, map->slot[i].entry - 1, key)))
		i = (i + 1) & map->mask;
	*ret_tag = tag;
	return &map->slot[i];
}

int nsv_strmap_init(struct nsv_strmap *map, size_t n)
{
	struct nsv_strmap m = {.mask = 1};

	if (n >= UINT32_MAX)
		return -ENOMEM;
	while (m.mask < 2 * n + 1)
		m.mask *= 2;
	if (getrandom(m.secret, sizeof(m.secret), 0) != sizeof(m.secret))
		return -errno;
	m.slot = calloc(m.mask, sizeof(*m.slot));
	m.entry = malloc((n ? n : 1) * sizeof(*m.entry));
	if (!m.slot || !m.entry) {
		nsv_strmap_deinit(&m);
		return -ENOMEM;
	}
	m.mask--;
	*map = m;
	return 0;
}

void nsv_strmap_deinit(struct nsv_strmap *map)
{
	free(map->slot);
	free(map->entry);
	map->slot = NULL;
	map->entry = NULL;
}

bool nsv_strmap_add(struct nsv_strmap *map, struct nsv_str key, uint32_t value)
{
	uint32_t tag;
	struct nsv_strmap_slot *slot = find(map, key, &tag);

	if (slot->entry)
		return false;
	map->entry[map->n++] = (struct nsv_strmap_entry){.key = key, .value = value};
	*slot = (struct nsv_strmap_slot){.entry = map->n, .tag = tag};
	return true;
}

bool nsv_strmap_get(const struct nsv_strmap *map, struct nsv_str key, uint32_t *ret_value)
{
	uint32_t tag;
	const struct nsv_strmap_slot *slot = find(map, key, &tag);

	if (!slot->entry)
		return false;
	*ret_value = map->entry[slot->entry - 1].value;
	return true;
}

bool nsv_str_eq(struct nsv_str a, const char *b)
{
	return strlen(b) == a.len && memcmp(a.p, b, a.len) == 0;
}
