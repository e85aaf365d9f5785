/* The prefix tree: nodes and hash table, the walk down, and what leaves the tree. */
#include "cache/prefix_tree.h"

#include <sodium.h>
#include <string.h>

#define NONE (-1)
#define MAX_BLOCKS (1u << 30)

_Static_assert(NSV_PREFIX_KEY_LEN == crypto_generichash_blake2b_KEYBYTES, "the secret is a key");

/* ---- Keys */

/* Salt and personalisation are BLAKE2b's own: domain and model cannot run into the tokens. */
static void hash_blake2b(const struct nsv_prefix_tree *t, uint64_t domain,
	const struct nsv_prefix_key *parent, const int32_t *tokens, uint32_t n_token,
	struct nsv_prefix_key *ret_key)
{
	unsigned char salt[crypto_generichash_blake2b_SALTBYTES] = {0};
	unsigned char personal[crypto_generichash_blake2b_PERSONALBYTES] = "nsv-kv";
	unsigned char in[NSV_PREFIX_KEY_LEN + NSV_PREFIX_MAX_BLOCK_SIZE * sizeof(*tokens)];
	size_t len = 0;

	memcpy(salt, &domain, sizeof(domain));
	memcpy(personal + 8, &t->model_id, sizeof(t->model_id));
	if (parent) {
		memcpy(in, parent->v, sizeof(parent->v));
		memcpy(in + sizeof(parent->v), tokens, n_token * sizeof(*tokens));
		len = sizeof(parent->v) + n_token * sizeof(*tokens);
	}
	crypto_generichash_blake2b_salt_personal(ret_key->v, sizeof(ret_key->v), in, len,
		t->secret.v, sizeof(t->secret.v), salt, personal);
}

static void make_key(struct nsv_prefix_tree *t, uint64_t domain,
	const struct nsv_prefix_key *parent, const int32_t *tokens, struct nsv_prefix_key *ret_key)
{
	t->n_hash++;
	t->hash(t, domain, parent, tokens, tokens ? t->block_size : 0, ret_key);
}

static int32_t *bucket_of(const struct nsv_prefix_tree *t, const struct nsv_prefix_key *key)
{
	uint32_t word;

	memcpy(&word, key->v, sizeof(word));
	return &t->bucket[word & (t->n_bucket - 1)];
}

/* ---- Nodes */

static bool is_root(const struct nsv_prefix_tree *t, int32_t node)
{
	return (uint32_t)node >= t->alloc->n_block;
}

static int32_t *tokens_of(const struct nsv_prefix_tree *t, int32_t node)
{
	return t->tokens + (size_t)node * t->block_size;
}

static bool same_tokens(const struct nsv_prefix_tree *t, int32_t node, const int32_t *tokens)
{
	return memcmp(tokens_of(t, node), tokens, t->block_size * sizeof(*tokens)) == 0;
}

static int32_t find_root(
	const struct nsv_prefix_tree *t, uint64_t domain, const struct nsv_prefix_key *key)
{
	int32_t node = *bucket_of(t, key);

	while (node != NONE && !(is_root(t, node) && t->nodes[node].domain == domain))
		node = t->nodes[node].chain_next;
	return node;
}

/* The parent is compared by its place, which is one domain's and one prefix's alone. */
static int32_t find_child(const struct nsv_prefix_tree *t, int32_t parent, const int32_t *tokens,
	const struct nsv_prefix_key *key)
{
	int32_t node = *bucket_of(t, key);

	while (node != NONE && !(t->nodes[node].parent == parent && same_tokens(t, node, tokens)))
		node = t->nodes[node].chain_next;
	return node;
}

static void link_sibling(struct nsv_prefix_tree *t, int32_t node)
{
	struct nsv_prefix_node *n = &t->nodes[node], *parent = &t->nodes[n->parent];

	n->sibling_prev = NONE;
	n->sibling_next = parent->child;
	if (parent->child != NONE)
		t->nodes[parent->child].sibling_prev = node;
	parent->child = node;
}

static void unlink_sibling(struct nsv_prefix_tree *t, int32_t node)
{
	struct nsv_prefix_node *n = &t->nodes[node];

	if (n->sibling_prev == NONE)
		t->nodes[n->parent].child = n->sibling_next;
	else
		t->nodes[n->sibling_prev].sibling_next = n->sibling_next;
	if (n->sibling_next != NONE)
		t->nodes[n->sibling_next].sibling_prev = n->sibling_prev;
}

static void enter(struct nsv_prefix_tree *t, int32_t node, uint64_t domain, int32_t parent,
	const struct nsv_prefix_key *key)
{
	int32_t *bucket = bucket_of(t, key);

	t->nodes[node] = (struct nsv_prefix_node){.key = *key,
		.birth = ++t->births,
		.domain = domain,
		.parent = parent,
		.child = NONE,
		.sibling_prev = NONE,
		.sibling_next = NONE,
		.chain_next = *bucket};
	*bucket = node;
}

static void leave(struct nsv_prefix_tree *t, int32_t node)
{
	int32_t *link = bucket_of(t, &t->nodes[node].key);

	while (*link != node)
		link = &t->nodes[*link].chain_next;
	*link = t->nodes[node].chain_next;
	t->nodes[node].birth = 0;
}

/* There is always a free one: every root has a child, and a new root's first block has no node. */
static int32_t add_root(
	struct nsv_prefix_tree *t, uint64_t domain, const struct nsv_prefix_key *key)
{
	int32_t root = t->free_root;

	t->free_root = t->nodes[root].sibling_next;
	enter(t, root, domain, NONE, key);
	t->n_root++;
	return root;
}

static void remove_root(struct nsv_prefix_tree *t, int32_t root)
{
	leave(t, root);
	t->nodes[root].sibling_next = t->free_root;
	t->free_root = root;
	t->n_root--;
}

/* The tree's holding of the block was taken by the caller. */
static void add_node(struct nsv_prefix_tree *t, int32_t block, int32_t parent,
	const int32_t *tokens, const struct nsv_prefix_key *key)
{
	enter(t, block, t->nodes[parent].domain, parent, key);
	memcpy(tokens_of(t, block), tokens, t->block_size * sizeof(*tokens));
	link_sibling(t, block);
	t->nodes[parent].n_child++;
	if (!is_root(t, parent))
		nsv_block_set_inner(t->alloc, parent, true);
	t->n_node++;
}

/* A node without children goes, and its root with the last one. Returns blocks that became free. */
static uint32_t remove_node(struct nsv_prefix_tree *t, int32_t node)
{
	int32_t parent = t->nodes[node].parent;
	bool is_free = nsv_block_uncache(t->alloc, node) == 1; /* before its parent is a leaf */

	unlink_sibling(t, node);
	leave(t, node);
	t->n_node--;
	if (--t->nodes[parent].n_child == 0) {
		if (is_root(t, parent))
			remove_root(t, parent);
		else
			nsv_block_set_inner(t->alloc, parent, false);
	}
	return is_free;
}

/* A node and all that build on it, children first. */
static uint32_t remove_subtree(struct nsv_prefix_tree *t, int32_t top)
{
	uint32_t n_freed = 0;

	for (int32_t node = top, parent;; node = parent) {
		while (t->nodes[node].child != NONE)
			node = t->nodes[node].child;
		parent = t->nodes[node].parent;
		n_freed += remove_node(t, node);
		if (node == top)
			return n_freed;
	}
}

/* ---- Life */

static int allocate(struct nsv_prefix_tree *t, uint32_t n_block)
{
	size_t n_token;

	if (!nsv_mul(n_block, t->block_size, &n_token))
		return -ENOMEM;
	t->n_bucket = 1;
	while (t->n_bucket < 2 * n_block)
		t->n_bucket *= 2;
	t->bucket = calloc(t->n_bucket, sizeof(*t->bucket));
	t->nodes = calloc(2 * (size_t)n_block, sizeof(*t->nodes));
	t->tokens = calloc(n_token, sizeof(*t->tokens));
	return t->bucket && t->nodes && t->tokens ? 0 : -ENOMEM;
}

static void free_memory(struct nsv_prefix_tree *t)
{
	free(t->bucket);
	free(t->nodes);
	free(t->tokens);
	sodium_memzero(t, sizeof(*t));
}

int nsv_prefix_tree_init(struct nsv_prefix_tree *t, struct nsv_block_alloc *alloc,
	uint32_t block_size, uint64_t model_id, const struct nsv_prefix_key *secret)
{
	uint32_t n_block = alloc->n_block;

	*t = (struct nsv_prefix_tree){0};
	if (block_size < 1 || block_size > NSV_PREFIX_MAX_BLOCK_SIZE || n_block > MAX_BLOCKS)
		return -EINVAL;
	if (sodium_init() < 0)
		return -EIO;
	*t = (struct nsv_prefix_tree){.alloc = alloc,
		.block_size = block_size,
		.model_id = model_id,
		.secret = *secret,
		.hash = hash_blake2b,
		.free_root = NONE};
	int ret = allocate(t, n_block);
	if (ret < 0) {
		free_memory(t);
		return ret;
	}
	memset(t->bucket, 0xff, t->n_bucket * sizeof(*t->bucket)); /* NONE */
	for (uint32_t i = 2 * n_block; i-- > n_block;) {
		t->nodes[i].sibling_next = t->free_root;
		t->free_root = (int32_t)i;
	}
	return 0;
}

void nsv_prefix_tree_deinit(struct nsv_prefix_tree *t)
{
	if (t->nodes)
		nsv_prefix_tree_drop_all(t);
	free_memory(t);
}

/* ---- Match */

static void touch(struct nsv_prefix_tree *t, int32_t node)
{
	unlink_sibling(t, node);
	link_sibling(t, node);
}

static uint32_t common(const int32_t *a, const int32_t *b, uint32_t n)
{
	uint32_t i = 0;

	while (i < n && a[i] == b[i])
		i++;
	return i;
}

/* The child that begins with the most of tokens (n); the one used last where two do. */
static void match_part(struct nsv_prefix_tree *t, int32_t parent, const int32_t *tokens, uint32_t n,
	struct nsv_prefix_hit *hit)
{
	int32_t node = t->nodes[parent].child;

	for (int i = 0; i < NSV_PREFIX_MAX_LOOK && node != NONE; i++) {
		uint32_t len = common(tokens_of(t, node), tokens, n);
		if (len > hit->n_partial) {
			hit->n_partial = len;
			hit->partial_block = node;
		}
		node = t->nodes[node].sibling_next;
	}
	if (hit->n_partial == 0)
		return;
	if (nsv_block_ref(t->alloc, hit->partial_block) == 0) {
		touch(t, hit->partial_block);
	} else {
		hit->n_partial = 0;
		hit->partial_block = NONE;
	}
}

static struct nsv_prefix_place place_at(
	const struct nsv_prefix_tree *t, int32_t node, uint32_t n_block)
{
	return (struct nsv_prefix_place){.domain = t->nodes[node].domain,
		.birth = t->nodes[node].birth,
		.node = node,
		.n_block = n_block};
}

void nsv_prefix_tree_match(struct nsv_prefix_tree *t, uint64_t domain, const int32_t *tokens,
	uint32_t n_token, int32_t *ret_blocks, uint32_t cap, struct nsv_prefix_hit *ret_hit)
{
	struct nsv_prefix_hit hit = {.partial_block = NONE};
	struct nsv_prefix_key key;

	make_key(t, domain, NULL, NULL, &key);
	int32_t node = find_root(t, domain, &key);
	while (node != NONE && hit.n_block < cap && n_token >= t->block_size) {
		make_key(t, domain, &t->nodes[node].key, tokens, &key);
		int32_t child = find_child(t, node, tokens, &key);
		if (child == NONE || nsv_block_ref(t->alloc, child) < 0)
			break;
		touch(t, child);
		ret_blocks[hit.n_block++] = node = child;
		tokens += t->block_size;
		n_token -= t->block_size;
	}
	if (node != NONE && hit.n_block < cap)
		match_part(t, node, tokens, (uint32_t)nsv_min(n_token, t->block_size), &hit);
	if (hit.n_block > 0)
		hit.place = place_at(t, node, hit.n_block);
	*ret_hit = hit;
}

/* ---- Insert */

static bool is_there(
	const struct nsv_prefix_tree *t, uint64_t domain, const struct nsv_prefix_place *place)
{
	return place && place->birth > 0 && place->domain == domain &&
	       t->nodes[place->node].birth == place->birth;
}

/* The node for these tokens below *node (NONE: below a root that is not there yet), which it
 * replaces. 1: it is new. */
static int step_down(struct nsv_prefix_tree *t, uint64_t domain,
	const struct nsv_prefix_key *root_key, const int32_t *tokens, int32_t block, int32_t *node)
{
	const struct nsv_prefix_key *parent = *node == NONE ? root_key : &t->nodes[*node].key;
	int32_t child = NONE;
	struct nsv_prefix_key key;

	make_key(t, domain, parent, tokens, &key);
	if (*node != NONE)
		child = find_child(t, *node, tokens, &key);
	if (child != NONE) {
		*node = child;
		return 0;
	}
	int ret = nsv_block_cache(t->alloc, block);
	if (ret < 0)
		return ret;
	if (*node == NONE)
		*node = add_root(t, domain, root_key);
	add_node(t, block, *node, tokens, &key);
	*node = block;
	return 1;
}

int nsv_prefix_tree_insert(struct nsv_prefix_tree *t, uint64_t domain, const int32_t *tokens,
	const int32_t *blocks, uint32_t n_block, struct nsv_prefix_place *place,
	uint32_t *ret_n_new)
{
	struct nsv_prefix_key root_key;
	uint32_t i = 0, n_new = 0;
	int32_t node;

	if (is_there(t, domain, place)) {
		node = place->node;
		i = place->n_block;
	} else {
		make_key(t, domain, NULL, NULL, &root_key);
		node = find_root(t, domain, &root_key);
	}
	for (; i < n_block; i++) {
		int ret = step_down(
			t, domain, &root_key, tokens + (size_t)i * t->block_size, blocks[i], &node);
		if (ret < 0)
			return ret;
		n_new += (uint32_t)ret;
		if (place)
			*place = place_at(t, node, i + 1);
	}
	if (ret_n_new)
		*ret_n_new = n_new;
	return 0;
}

/* ---- Out */

uint32_t nsv_prefix_tree_evict(struct nsv_prefix_tree *t, uint32_t n)
{
	const struct nsv_evict *idle = &t->alloc->idle;
	uint32_t n_freed = 0;

	while (n_freed < n && nsv_block_n_idle(t->alloc) > 0)
		n_freed += remove_subtree(
			t, idle->leaf.n > 0 ? idle->leaf.oldest : idle->inner.oldest);
	return n_freed;
}

/* The root goes with its last child. */
static uint32_t drop_root(struct nsv_prefix_tree *t, int32_t root)
{
	uint32_t n_freed = 0;

	while (t->nodes[root].birth > 0)
		n_freed += remove_subtree(t, t->nodes[root].child);
	return n_freed;
}

uint32_t nsv_prefix_tree_drop_all(struct nsv_prefix_tree *t)
{
	uint32_t n_freed = 0;

	for (uint32_t i = t->alloc->n_block; i < 2 * t->alloc->n_block; i++)
		n_freed += drop_root(t, (int32_t)i);
	return n_freed;
}

/* ---- Audit */

static bool is_node(const struct nsv_prefix_tree *t, int32_t node)
{
	return node >= 0 && (uint32_t)node < 2 * t->alloc->n_block && t->nodes[node].birth > 0;
}

/* Its children: linked both ways, theirs is this parent, counted right. */
static int audit_children(const struct nsv_prefix_tree *t, int32_t node, struct nsv_err *err)
{
	const struct nsv_prefix_node *n = &t->nodes[node];
	uint32_t n_child = 0;

	for (int32_t c = n->child, prev = NONE; c != NONE; prev = c, c = t->nodes[c].sibling_next) {
		if (!is_node(t, c) || is_root(t, c))
			return nsv_fail(
				err, -EUCLEAN, "node %d has child %d, which is none", node, c);
		if (t->nodes[c].parent != node || t->nodes[c].sibling_prev != prev ||
			++n_child > n->n_child)
			return nsv_fail(
				err, -EUCLEAN, "the children of node %d are torn at %d", node, c);
	}
	if (n_child != n->n_child)
		return nsv_fail(err, -EUCLEAN, "node %d has %u children, its count is %u", node,
			n_child, n->n_child);
	return 0;
}

static int audit_root(const struct nsv_prefix_tree *t, int32_t root, struct nsv_err *err)
{
	const struct nsv_prefix_node *n = &t->nodes[root];
	struct nsv_prefix_key key;

	if (n->parent != NONE || n->n_child == 0)
		return nsv_fail(err, -EUCLEAN, "root %d has parent %d and %u children", root,
			n->parent, n->n_child);
	t->hash(t, n->domain, NULL, NULL, 0, &key);
	if (find_root(t, n->domain, &key) != root)
		return nsv_fail(err, -EUCLEAN, "the hash table does not find root %d", root);
	return 0;
}

static int audit_parent(const struct nsv_prefix_tree *t, int32_t node, struct nsv_err *err)
{
	const struct nsv_prefix_node *n = &t->nodes[node];

	if (!is_node(t, n->parent))
		return nsv_fail(
			err, -EUCLEAN, "node %d has parent %d, which is none", node, n->parent);
	if (t->nodes[n->parent].birth >= n->birth || t->nodes[n->parent].domain != n->domain)
		return nsv_fail(err, -EUCLEAN, "node %d is older than or foreign to its parent %d",
			node, n->parent);
	return 0;
}

/* Of a node that has a block. */
static int audit_node(const struct nsv_prefix_tree *t, int32_t node, struct nsv_err *err)
{
	const struct nsv_prefix_node *n = &t->nodes[node];
	enum nsv_block_cached want = n->n_child ? NSV_BLOCK_INNER : NSV_BLOCK_LEAF;
	struct nsv_prefix_key key;
	int ret = audit_parent(t, node, err);

	if (ret < 0)
		return ret;
	if (t->alloc->cached[node] != want)
		return nsv_fail(err, -EUCLEAN, "node %d has %u children and is cached as %u", node,
			n->n_child, t->alloc->cached[node]);
	t->hash(t, n->domain, &t->nodes[n->parent].key, tokens_of(t, node), t->block_size, &key);
	if (memcmp(&key, &n->key, sizeof(key)) ||
		find_child(t, n->parent, tokens_of(t, node), &key) != node)
		return nsv_fail(err, -EUCLEAN, "the hash table does not find node %d", node);
	return 0;
}

/* Chains lead to nodes only, each in one chain: a ring shows as too many. */
static int audit_chains(const struct nsv_prefix_tree *t, struct nsv_err *err)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < t->n_bucket; i++)
		for (int32_t node = t->bucket[i]; node != NONE; node = t->nodes[node].chain_next)
			if (!is_node(t, node) || ++n > (uint64_t)t->n_node + t->n_root)
				return nsv_fail(err, -EUCLEAN,
					"chain %u of the hash table is torn at node %d", i, node);
	if (n != (uint64_t)t->n_node + t->n_root)
		return nsv_fail(err, -EUCLEAN, "the hash table has %llu of %u nodes and %u roots",
			(unsigned long long)n, t->n_node, t->n_root);
	return 0;
}

/* What is no node has no block, and no root is lost. */
static int audit_absent(const struct nsv_prefix_tree *t, struct nsv_err *err)
{
	uint32_t n_free = 0;

	for (uint32_t i = 0; i < t->alloc->n_block; i++)
		if (t->alloc->cached[i] && !is_node(t, (int32_t)i))
			return nsv_fail(err, -EUCLEAN, "block %u is cached and has no node", i);
	for (int32_t r = t->free_root; r != NONE; r = t->nodes[r].sibling_next)
		if (r < 0 || (uint32_t)r >= 2 * t->alloc->n_block || !is_root(t, r) ||
			is_node(t, r) || ++n_free > t->alloc->n_block)
			return nsv_fail(err, -EUCLEAN, "the free roots are torn at %d", r);
	if (n_free + t->n_root != t->alloc->n_block)
		return nsv_fail(err, -EUCLEAN, "%u roots are used and %u free, of %u", t->n_root,
			n_free, t->alloc->n_block);
	return 0;
}

static int audit_one(const struct nsv_prefix_tree *t, int32_t node, struct nsv_err *err)
{
	int ret = is_root(t, node) ? audit_root(t, node, err) : audit_node(t, node, err);

	return ret < 0 ? ret : audit_children(t, node, err);
}

int nsv_prefix_tree_audit(const struct nsv_prefix_tree *t, struct nsv_err *err)
{
	uint64_t n_child = 0;
	int ret = nsv_block_audit(t->alloc, err);

	if (ret == 0)
		ret = audit_chains(t, err);
	if (ret == 0)
		ret = audit_absent(t, err);
	for (uint32_t i = 0; ret == 0 && i < 2 * t->alloc->n_block; i++) {
		if (!is_node(t, (int32_t)i))
			continue;
		n_child += t->nodes[i].n_child;
		ret = audit_one(t, (int32_t)i, err);
	}
	if (ret == 0 && n_child != t->n_node)
		ret = nsv_fail(err, -EUCLEAN, "%llu children, of %u nodes",
			(unsigned long long)n_child, t->n_node);
	return ret;
}
