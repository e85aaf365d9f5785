/* For the tests of the prefix tree: a pool with a tree over it, and hashes that collide. */
#ifndef NSV_TESTS_UNIT_CACHE_PREFIX_POOL_H
#define NSV_TESTS_UNIT_CACHE_PREFIX_POOL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "cache/prefix_tree.h"
#include "tests/tools/rnd.h"

static const struct nsv_prefix_key secret = {"a secret that the test knows"};

/* A pool and a tree over it. */
struct bench {
	struct nsv_block_alloc alloc;
	struct nsv_prefix_tree tree;
};

static inline void bench_init(struct bench *b, uint32_t n_block, uint32_t block_size)
{
	assert_int_equal(nsv_block_alloc_init(&b->alloc, n_block), 0);
	assert_int_equal(nsv_prefix_tree_init(&b->tree, &b->alloc, block_size, 77, &secret), 0);
}

static inline void bench_deinit(struct bench *b)
{
	nsv_prefix_tree_deinit(&b->tree);
	assert_int_equal(b->alloc.n_free, b->alloc.n_block);
	nsv_block_alloc_deinit(&b->alloc);
}

static inline void check(const struct bench *b)
{
	struct nsv_err err = {""};

	if (nsv_prefix_tree_audit(&b->tree, &err) < 0)
		fail_msg("%s", err.text);
}

/* ---- Keys that collide */

static inline void hash_all_same(const struct nsv_prefix_tree *t, uint64_t domain,
	const struct nsv_prefix_key *parent, const int32_t *tokens, uint32_t n_token,
	struct nsv_prefix_key *ret_key)
{
	(void)t;
	(void)domain;
	(void)parent;
	(void)tokens;
	(void)n_token;
	memset(ret_key, 0x5a, sizeof(*ret_key));
}

/* Four keys, of the last token alone. */
static inline void hash_weak(const struct nsv_prefix_tree *t, uint64_t domain,
	const struct nsv_prefix_key *parent, const int32_t *tokens, uint32_t n_token,
	struct nsv_prefix_key *ret_key)
{
	(void)t;
	(void)domain;
	(void)parent;
	memset(ret_key, n_token > 0 ? tokens[n_token - 1] & 3 : 0, sizeof(*ret_key));
}

#endif
