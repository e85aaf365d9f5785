/* The prefix cache: which full blocks of the pool hold the keys and values of which tokens.
 *
 *     domain 7 (root) -- [the cat sat on] -- [the mat and so]          a node is a block of the
 *                    \            block 5                  block 2     pool, its tokens and what
 *                     - [a dog ran off]                                came before: the path
 *     domain 9 (root) -- [the cat sat on]  block 8 (another user's: never shared)
 *
 * Node b is block b's: a block has one node at most, so the tree can never be full and allocates
 * nothing after init. The root of a domain is a node without a block, there while it has children.
 * A child is found in a hash table by a BLAKE2b keyed with the secret over model, domain, the
 * parent's key and the tokens. What decides is the parent (so the domain) and the tokens, compared
 * one by one: two prefixes that collide are two nodes in one chain of the table.
 *
 * Invariants: the tree holds each of its blocks once (nsv_block_cache), whoever else does; a node's
 * parent is older than the node; a block that others hold is never freed, only forgotten.
 *
 * A domain is a number that the daemon gives by the peer's credentials, never the client.
 * Bits of a cached block are those that a fresh computation would give (promise 1), so a block that
 * was computed twice is kept once, and either may be read.
 * No I/O, locks or clocks. One owner thread, that of the allocator. */
#ifndef NSV_CACHE_PREFIX_TREE_H
#define NSV_CACHE_PREFIX_TREE_H

#include "cache/block_alloc.h"

#define NSV_PREFIX_KEY_LEN 32
#define NSV_PREFIX_MAX_BLOCK_SIZE 64
/* Children of a node that are looked at for a partial match, those used last first. */
#define NSV_PREFIX_MAX_LOOK 32

struct nsv_prefix_key {
	unsigned char v[NSV_PREFIX_KEY_LEN];
};

struct nsv_prefix_tree;

/* The key of `tokens` (n_token) after `parent`; of the domain's root where both are NULL and 0. */
typedef void nsv_prefix_hash_fn(const struct nsv_prefix_tree *t, uint64_t domain,
	const struct nsv_prefix_key *parent, const int32_t *tokens, uint32_t n_token,
	struct nsv_prefix_key *ret_key);

struct nsv_prefix_node {
	struct nsv_prefix_key key;
	uint64_t birth; /* 0: no node; else a number that no other node has or had */
	uint64_t domain;
	int32_t parent; /* -1: a root */
	int32_t child;  /* the first, that was used last; -1: none */
	int32_t sibling_prev, sibling_next;
	int32_t chain_next; /* in the hash table */
	uint32_t n_child;
};

struct nsv_prefix_tree {
	struct nsv_block_alloc *alloc;
	uint32_t block_size;
	uint64_t model_id;
	struct nsv_prefix_key secret;
	nsv_prefix_hash_fn *hash;      /* tests make it collide */
	uint64_t births, n_hash;       /* n_hash: keys computed, the cost of all look-ups */
	uint32_t n_node, n_root;       /* nodes with a block; domains */
	uint32_t n_bucket;             /* a power of two */
	int32_t free_root;             /* free roots are linked by sibling_next */
	int32_t *bucket;               /* (n_bucket): first node, -1 none */
	struct nsv_prefix_node *nodes; /* (2 n_block): blocks' nodes, then roots */
	int32_t *tokens;               /* (n_block, block_size) */
};

/* A place in the tree, from which nsv_prefix_tree_insert goes on. {0} is the beginning. It may be
 * kept for as long as the caller likes: one whose node is gone is known as such. */
struct nsv_prefix_place {
	uint64_t domain, birth;
	int32_t node;
	uint32_t n_block; /* blocks on the way to it */
};

struct nsv_prefix_hit {
	uint32_t n_block;      /* full blocks that matched */
	uint32_t n_partial;    /* tokens of the next one that match, 0: none */
	int32_t partial_block; /* where they are; -1 where there are none */
	struct nsv_prefix_place place;
};

/* Borrows the allocator, for as long as the tree lives; copies the secret. -EINVAL: block_size is
 * not in 1..64 or the pool is above 2^30 blocks; -ENOMEM; -EIO: the hash library does not start. */
int nsv_prefix_tree_init(struct nsv_prefix_tree *t, struct nsv_block_alloc *alloc,
	uint32_t block_size, uint64_t model_id, const struct nsv_prefix_key *secret);
/* Gives all blocks back and wipes the secret. Accepts a tree of zeros. */
void nsv_prefix_tree_deinit(struct nsv_prefix_tree *t);

/* The longest known prefix of tokens (n_token), in full blocks: they go to ret_blocks (cap), each
 * with one holding, which is the caller's now. Beside them the block that begins with the longest
 * part of the tokens that follow, held for the caller too, who copies it and gives it back (or just
 * gives it back). No more than `cap` blocks are matched in full, and no part after the cap-th.
 * A caller who needs the last token computed passes one token less than there are. Blocks are to be
 * given back last first, like a table's. O(n_token). */
void nsv_prefix_tree_match(struct nsv_prefix_tree *t, uint64_t domain, const int32_t *tokens,
	uint32_t n_token, int32_t *ret_blocks, uint32_t cap, struct nsv_prefix_hit *ret_hit);

/* Makes known that blocks (n_block) hold tokens (n_block x block_size): computed in full, held by
 * the caller, never written again. What is not there yet becomes a node and is held by the tree
 * too; where a block with the same content is known already, that one stays. *place (may be NULL)
 * spares the way from the beginning: it was left there by an earlier call or match over the same
 * first tokens, and is moved on. *ret_n_new (may be NULL): new nodes.
 * -ERANGE: no block of this pool; -EINVAL: a block that nobody holds; -EALREADY: a block that
 * stands for other tokens; -EOVERFLOW: too many holders. Blocks before the bad one are known.
 * O(tokens from the place on). */
int nsv_prefix_tree_insert(struct nsv_prefix_tree *t, uint64_t domain, const int32_t *tokens,
	const int32_t *blocks, uint32_t n_block, struct nsv_prefix_place *place,
	uint32_t *ret_n_new);

/* Frees n blocks, or all idle ones where they are fewer; returns how many: those first that were
 * let go of longest ago and have no children. Only where every idle block has some (all of them
 * in use by sequences that computed the same prefix themselves) these are forgotten with it, and
 * idle ones among them are freed beside the n. O(1) amortised a block. */
uint32_t nsv_prefix_tree_evict(struct nsv_prefix_tree *t, uint32_t n);

/* Forgets all, in O(n_block). Idle blocks become free: returns how many. Blocks that others hold
 * stay theirs. */
uint32_t nsv_prefix_tree_drop_all(struct nsv_prefix_tree *t);

/* The invariants of tree and allocator, walked: 0, or -EUCLEAN and a sentence. Computes every key
 * again: O(n_block x block_size). */
int nsv_prefix_tree_audit(const struct nsv_prefix_tree *t, struct nsv_err *err);

#endif
