/* A map from strings to numbers, of a size fixed at the start: names in a model file.
 *
 * Keyed hashing (SipHash-1-3, the key is random a map): hostile names cannot make it slow. Open
 * addressing, at most half full. The strings are borrowed. Reading is safe from any thread. */
#ifndef NSV_DAEMON_LOAD_STRMAP_H
#define NSV_DAEMON_LOAD_STRMAP_H

#include "shm/base.h"

struct nsv_str { /* not NUL-terminated, borrowed from the file */
	const char *p;
	size_t len;
};

struct nsv_strmap_slot { /* small, so that looking for a free or foreign one stays in the cache */
	uint32_t entry; /* its number + 1; 0: free */
	uint32_t tag;   /* bits of the hash: most unequal strings are never compared */
};

struct nsv_strmap_entry {
	struct nsv_str key;
	uint32_t value;
};

struct nsv_strmap {
	struct nsv_strmap_slot *slot;
	struct nsv_strmap_entry *entry;
	uint32_t n;
	size_t mask;
	uint64_t secret[2];
};

/* Room for n strings, at most UINT32_MAX - 1. -ENOMEM, or what getrandom says. */
int nsv_strmap_init(struct nsv_strmap *map, size_t n);
void nsv_strmap_deinit(struct nsv_strmap *map); /* of a zeroed one too */
/* false: the string is there already, and keeps its value. At most n adds may return true. */
bool nsv_strmap_add(struct nsv_strmap *map, struct nsv_str key, uint32_t value);
/* false: not there; *ret_value is then untouched. */
bool nsv_strmap_get(const struct nsv_strmap *map, struct nsv_str key, uint32_t *ret_value);

bool nsv_str_eq(struct nsv_str a, const char *b);

#endif
