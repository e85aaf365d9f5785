/* The prefix tree, one thing at a time: keys, domains, order of eviction, partial matches, costs,
 * places, errors, and an audit that sees every corruption. */
#include "tests/unit/cache/prefix_pool.h"

/* Takes blocks for tokens (n_block full ones) and makes them known. */
static void fill(struct bench *b, uint64_t domain, const int32_t *tokens, uint32_t n_block,
	int32_t *ret_blocks)
{
	for (uint32_t i = 0; i < n_block; i++)
		assert_int_equal(nsv_block_get(&b->alloc, &ret_blocks[i]), 0);
	assert_int_equal(
		nsv_prefix_tree_insert(&b->tree, domain, tokens, ret_blocks, n_block, NULL, NULL),
		0);
}

static void give_back(struct bench *b, const int32_t *blocks, uint32_t n)
{
	while (n-- > 0)
		assert_true(nsv_block_unref(&b->alloc, blocks[n]) >= 0);
}

static void test_init(void **state)
{
	struct nsv_block_alloc a;
	struct nsv_prefix_tree t = {0};
	int32_t tokens[64] = {0}, block;
	struct nsv_prefix_hit hit;

	(void)state;
	nsv_prefix_tree_deinit(&t);
	assert_int_equal(nsv_block_alloc_init(&a, 1), 0);
	assert_int_equal(nsv_prefix_tree_init(&t, &a, 0, 1, &secret), -EINVAL);
	assert_int_equal(nsv_prefix_tree_init(&t, &a, 65, 1, &secret), -EINVAL);
	nsv_prefix_tree_deinit(&t);
	assert_int_equal(nsv_prefix_tree_init(&t, &a, 64, 1, &secret), 0);
	nsv_prefix_tree_match(&t, 5, tokens, 64, &block, 1, &hit);
	assert_int_equal(hit.n_block + hit.n_partial, 0);
	assert_int_equal(nsv_block_get(&a, &block), 0);
	assert_int_equal(nsv_prefix_tree_insert(&t, 5, tokens, &block, 1, NULL, NULL), 0);
	assert_int_equal(nsv_block_unref(&a, block), 0);
	assert_int_equal(nsv_block_unref(&a, block), -EALREADY); /* the tree's, not ours */
	assert_int_equal(nsv_prefix_tree_audit(&t, NULL), 0);
	nsv_prefix_tree_deinit(&t);
	assert_int_equal(a.n_free, 1);
	nsv_prefix_tree_deinit(&t);
	nsv_block_alloc_deinit(&a);
}

/* Each input of a key changes it, every token too; tokens do not run into the parent. */
static void test_key(void **state)
{
	struct nsv_prefix_tree t, u;
	struct nsv_prefix_key key, other, parent = {"parent"};
	struct bench b;
	int32_t tokens[64];

	(void)state;
	bench_init(&b, 4, 64);
	t = b.tree;
	for (int i = 0; i < 64; i++)
		tokens[i] = (int32_t)(t_rand() >> 33);
	t.hash(&t, 7, &parent, tokens, 64, &key);
	t.hash(&t, 7, &parent, tokens, 64, &other);
	assert_memory_equal(&key, &other, sizeof(key));
	for (int i = 0; i < 64; i++) {
		tokens[i] ^= 1 << t_below(31);
		t.hash(&t, 7, &parent, tokens, 64, &other);
		assert_memory_not_equal(&key, &other, sizeof(key));
		key = other;
	}
	t.hash(&t, 7, &parent, tokens, 63, &other);
	assert_memory_not_equal(&key, &other, sizeof(key));
	t.hash(&t, 7, NULL, NULL, 0, &other);
	assert_memory_not_equal(&key, &other, sizeof(key));
	u = t;
	u.secret.v[t_below(NSV_PREFIX_KEY_LEN)] ^= 1;
	u.hash(&u, 7, &parent, tokens, 64, &other);
	assert_memory_not_equal(&key, &other, sizeof(key));
	for (int bit = 0; bit < 64; bit++) {
		t.hash(&t, 7 ^ 1ull << bit, &parent, tokens, 64, &other);
		assert_memory_not_equal(&key, &other, sizeof(key));
		u = t;
		u.model_id ^= 1ull << bit;
		u.hash(&u, 7, &parent, tokens, 64, &other);
		assert_memory_not_equal(&key, &other, sizeof(key));
	}
	parent.v[t_below(NSV_PREFIX_KEY_LEN)] ^= 1;
	t.hash(&t, 7, &parent, tokens, 64, &other);
	assert_memory_not_equal(&key, &other, sizeof(key));
	bench_deinit(&b);
}

/* What one domain has is nothing to another, down to a single token, with any keys. */
static void test_domains(void **state)
{
	nsv_prefix_hash_fn *const hashes[] = {NULL, hash_weak, hash_all_same};

	(void)state;
	for (int round = 0; round < 300; round++) {
		struct bench b;
		int32_t tokens[16], blocks[4], got[4];
		uint64_t domain = t_rand() >> 33 << t_below(33),
			 other = domain ^ 1ull << t_below(64);
		struct nsv_prefix_hit hit;

		bench_init(&b, 8, 4);
		if (hashes[round % 3])
			b.tree.hash = hashes[round % 3];
		for (int i = 0; i < 16; i++)
			tokens[i] = (int32_t)t_below(50000);
		fill(&b, domain, tokens, 4, blocks);
		nsv_prefix_tree_match(&b.tree, other, tokens, 16, got, 4, &hit);
		assert_int_equal(hit.n_block + hit.n_partial, 0);
		assert_int_equal(hit.partial_block, -1);
		nsv_prefix_tree_match(&b.tree, domain, tokens, 16, got, 4, &hit);
		assert_int_equal(hit.n_block, 4);
		assert_memory_equal(got, blocks, sizeof(blocks));
		give_back(&b, got, 4);
		fill(&b, other, tokens, 4, got);
		assert_int_equal(b.tree.n_node, 8);
		assert_int_equal(b.tree.n_root, 2);
		check(&b);
		give_back(&b, got, 4);
		give_back(&b, blocks, 4);
		nsv_prefix_tree_match(&b.tree, domain, tokens, 16, got, 4, &hit);
		assert_int_equal(hit.n_block, 4);
		give_back(&b, got, 4);
		bench_deinit(&b);
	}
}

static void expect_evicted(struct bench *b, int32_t block)
{
	assert_true(nsv_block_is_cached(&b->alloc, block));
	assert_int_equal(nsv_prefix_tree_evict(&b->tree, 1), 1);
	if (nsv_block_n_ref(&b->alloc, block) > 0)
		fail_msg("block %d should have gone", block);
	check(b);
}

/* Three chats on a stem of two blocks: the one let go of first goes first, whole and from its end;
 * a new use makes one the newest; the stem goes last; what is in use stays. */
static void test_order(void **state)
{
	enum { STEM = 2, OWN = 3, ALL = STEM + OWN };
	int32_t tokens[3][ALL], blocks[3][ALL], again[ALL];
	struct nsv_prefix_hit hit;
	struct bench b;

	(void)state;
	bench_init(&b, 32, 1);
	for (int c = 0; c < 3; c++) {
		for (int i = 0; i < ALL; i++)
			tokens[c][i] = i < STEM ? i : 100 * c + i;
		nsv_prefix_tree_match(&b.tree, 1, tokens[c], ALL, blocks[c], ALL, &hit);
		assert_int_equal(hit.n_block, c ? STEM : 0);
		for (uint32_t i = hit.n_block; i < ALL; i++)
			assert_int_equal(nsv_block_get(&b.alloc, &blocks[c][i]), 0);
		assert_int_equal(nsv_prefix_tree_insert(
					 &b.tree, 1, tokens[c], blocks[c], ALL, &hit.place, NULL),
			0);
	}
	assert_int_equal(nsv_prefix_tree_evict(&b.tree, 99), 0);
	for (int c = 0; c < 3; c++)
		give_back(&b, blocks[c], ALL);
	assert_int_equal(nsv_block_n_idle(&b.alloc), STEM + 3 * OWN);
	nsv_prefix_tree_match(&b.tree, 1, tokens[0], ALL, again, ALL, &hit);
	assert_int_equal(hit.n_block, ALL);
	assert_int_equal(nsv_block_n_idle(&b.alloc), 2 * OWN);
	expect_evicted(&b, blocks[1][4]);
	give_back(&b, again, ALL);
	expect_evicted(&b, blocks[1][3]);
	expect_evicted(&b, blocks[1][2]);
	for (int i = ALL; i-- > STEM;)
		expect_evicted(&b, blocks[2][i]);
	for (int i = ALL; i-- > 0;)
		expect_evicted(&b, blocks[0][i]);
	assert_int_equal(nsv_prefix_tree_evict(&b.tree, 1), 0);
	assert_int_equal(b.tree.n_root, 0);
	bench_deinit(&b);
}

/* A stem that was used alone after what hung on it is the newest, not the next to go. */
static void test_stem_used_again(void **state)
{
	int32_t chat[4] = {1, 2, 3, 4}, other[2] = {8, 9}, blocks[4], others[2], got[4];
	struct nsv_prefix_hit hit;
	struct bench b;

	(void)state;
	bench_init(&b, 8, 1);
	fill(&b, 1, chat, 4, blocks);
	fill(&b, 1, other, 2, others);
	give_back(&b, blocks, 4);
	give_back(&b, others, 2);
	nsv_prefix_tree_match(&b.tree, 1, chat, 2, got, 4, &hit);
	assert_int_equal(hit.n_block, 2);
	give_back(&b, got, 2);
	expect_evicted(&b, blocks[3]);
	expect_evicted(&b, blocks[2]);
	expect_evicted(&b, others[1]);
	expect_evicted(&b, others[0]);
	expect_evicted(&b, blocks[1]);
	expect_evicted(&b, blocks[0]);
	bench_deinit(&b);
}

/* Two compute the same at once. The first one's blocks are known; it ends while the second goes on
 * below them: its blocks can still be had, and the second's stay its own, only forgotten. */
static void test_twins(void **state)
{
	int32_t tokens[6] = {1, 2, 3, 4, 5, 6}, first[4], second[6];
	uint32_t n_new;
	struct bench b;

	(void)state;
	bench_init(&b, 12, 1);
	fill(&b, 1, tokens, 4, first);
	for (int i = 0; i < 6; i++)
		assert_int_equal(nsv_block_get(&b.alloc, &second[i]), 0);
	assert_int_equal(nsv_prefix_tree_insert(&b.tree, 1, tokens, second, 6, NULL, &n_new), 0);
	assert_int_equal(n_new, 2);
	give_back(&b, first, 4);
	assert_int_equal(nsv_block_n_idle(&b.alloc), 4);
	check(&b);
	assert_int_equal(nsv_prefix_tree_evict(&b.tree, 1), 1);
	assert_int_equal(nsv_block_n_ref(&b.alloc, first[3]), 0);
	assert_int_equal(b.tree.n_node, 3);
	assert_int_equal(nsv_prefix_tree_evict(&b.tree, 99), 3);
	assert_int_equal(b.tree.n_node, 0);
	for (int i = 0; i < 6; i++)
		assert_int_equal(nsv_block_n_ref(&b.alloc, second[i]), 1);
	check(&b);
	assert_int_equal(nsv_prefix_tree_insert(&b.tree, 1, tokens, second, 6, NULL, &n_new), 0);
	assert_int_equal(n_new, 6);
	give_back(&b, second, 6);
	bench_deinit(&b);
}

/* Siblings that share 0..7 tokens with what is asked: the longest wins, held until it is copied. */
static void test_partial(void **state)
{
	int32_t tokens[8][8], block[8], got[2];
	uint32_t order[8] = {0, 1, 2, 3, 4, 5, 6, 7};
	struct nsv_prefix_hit hit;
	struct bench b;

	(void)state;
	bench_init(&b, 8, 8);
	for (uint32_t i = 8; i-- > 1;) {
		uint32_t j = t_below(i + 1), swap = order[i];
		order[i] = order[j];
		order[j] = swap;
	}
	for (int k = 0; k < 8; k++) {
		uint32_t c = order[k];
		for (uint32_t i = 0; i < 8; i++)
			tokens[c][i] = i < c ? (int32_t)i : (int32_t)(1000 + 10 * c + i);
		fill(&b, 1, tokens[c], 1, &block[c]);
		give_back(&b, &block[c], 1);
	}
	const int32_t asked[8] = {0, 1, 2, 3, 4, 5, 6, 7};
	for (uint32_t n = 0; n <= 8; n++) {
		nsv_prefix_tree_match(&b.tree, 1, asked, n, got, 2, &hit);
		assert_int_equal(hit.n_block, 0);
		assert_int_equal(hit.n_partial, nsv_min(n, 7));
		if (n == 0)
			continue;
		assert_int_equal(nsv_block_n_ref(&b.alloc, hit.partial_block), 2);
		assert_true(tokens[7][0] == 0 && n < 7 ? hit.partial_block != block[0]
						       : hit.partial_block == block[7]);
		assert_int_equal(nsv_prefix_tree_evict(&b.tree, 8), 7);
		assert_int_equal(nsv_block_n_idle(&b.alloc), 0);
		assert_int_equal(nsv_block_unref(&b.alloc, hit.partial_block), 0);
		nsv_prefix_tree_drop_all(&b.tree);
		for (int c = 0; c < 8; c++) {
			fill(&b, 1, tokens[c], 1, &block[c]);
			give_back(&b, &block[c], 1);
		}
	}
	nsv_prefix_tree_match(&b.tree, 1, asked, 8, got, 0, &hit);
	assert_int_equal(hit.n_partial, 0); /* no room for a block: none is offered */
	bench_deinit(&b);
}

/* Of two that share as much, the one used last: by a match, in full or in part, or new. */
static void test_partial_tie(void **state)
{
	const int32_t tokens[3][3] = {{1, 2, 3}, {1, 4, 5}, {1, 2, 6}}, asked[3] = {1, 9, 9};
	int32_t block[3], got;
	struct nsv_prefix_hit hit;
	struct bench b;

	(void)state;
	bench_init(&b, 4, 3);
	for (int c = 0; c < 3; c++)
		fill(&b, 1, tokens[c], 1, &block[c]);
	nsv_prefix_tree_match(&b.tree, 1, asked, 3, &got, 1, &hit);
	assert_int_equal(hit.partial_block, block[2]);
	give_back(&b, &hit.partial_block, 1);
	nsv_prefix_tree_match(&b.tree, 1, tokens[0], 3, &got, 1, &hit);
	assert_int_equal(got, block[0]);
	give_back(&b, &got, 1);
	nsv_prefix_tree_match(&b.tree, 1, asked, 3, &got, 1, &hit);
	assert_int_equal(hit.partial_block, block[0]);
	give_back(&b, &hit.partial_block, 1);
	nsv_prefix_tree_match(&b.tree, 1, tokens[1], 2, &got, 1, &hit);
	assert_int_equal(hit.n_partial, 2);
	give_back(&b, &hit.partial_block, 1);
	nsv_prefix_tree_match(&b.tree, 1, asked, 3, &got, 1, &hit);
	assert_int_equal(hit.n_partial, 1);
	assert_int_equal(hit.partial_block, block[1]);
	give_back(&b, &hit.partial_block, 1);
	give_back(&b, block, 3);
	bench_deinit(&b);
}

/* Of many children those used last are looked at, a bounded number. */
static void test_partial_is_bounded(void **state)
{
	enum { N = NSV_PREFIX_MAX_LOOK + 8 };
	int32_t block[N], got;
	struct nsv_prefix_hit hit;
	struct bench b;

	(void)state;
	bench_init(&b, N, 2);
	for (int32_t c = 0; c < N; c++)
		fill(&b, 1, (int32_t[]){c, c}, 1, &block[c]);
	nsv_prefix_tree_match(&b.tree, 1, (int32_t[]){7, 99}, 2, &got, 1, &hit);
	assert_int_equal(hit.n_partial, 0);
	nsv_prefix_tree_match(&b.tree, 1, (int32_t[]){8, 99}, 2, &got, 1, &hit);
	assert_int_equal(hit.n_partial, 1);
	assert_int_equal(hit.partial_block, block[8]);
	assert_int_equal(nsv_block_unref(&b.alloc, block[8]), 0);
	nsv_prefix_tree_match(&b.tree, 1, (int32_t[]){3, 3}, 2, &got, 1, &hit);
	assert_int_equal(hit.n_block, 1); /* a full match finds it all the same, and is a use */
	assert_int_equal(nsv_block_unref(&b.alloc, got), 0);
	nsv_prefix_tree_match(&b.tree, 1, (int32_t[]){3, 99}, 2, &got, 1, &hit);
	assert_int_equal(hit.partial_block, block[3]);
	assert_int_equal(nsv_block_unref(&b.alloc, block[3]), 0);
	give_back(&b, block, N);
	bench_deinit(&b);
}

/* Keys computed: one a block and one a call; none for what lies before the place. */
static void test_cost(void **state)
{
	enum { N = 500, SIZE = 16 };
	static int32_t tokens[N * SIZE], blocks[N], got[N];
	struct nsv_prefix_place place = {0};
	struct nsv_prefix_hit hit;
	struct bench b;

	(void)state;
	bench_init(&b, N, SIZE);
	for (int i = 0; i < N * SIZE; i++)
		tokens[i] = (int32_t)(t_rand() >> 33);
	for (uint32_t i = 0; i < N; i++) {
		assert_int_equal(nsv_block_get(&b.alloc, &blocks[i]), 0);
		assert_int_equal(
			nsv_prefix_tree_insert(&b.tree, 1, tokens, blocks, i + 1, &place, NULL), 0);
	}
	assert_int_equal(b.tree.n_hash, N + 1);
	for (int i = 0; i < 100; i++) {
		uint32_t n_known = t_below(N + 1), n = n_known * SIZE;
		uint64_t before = b.tree.n_hash;

		if (n_known < N)
			tokens[n] ^= 1;
		nsv_prefix_tree_match(&b.tree, 1, tokens, N * SIZE, got, N, &hit);
		if (n_known < N)
			tokens[n] ^= 1;
		assert_int_equal(hit.n_block, n_known);
		assert_int_equal(b.tree.n_hash - before, 1 + n_known + (n_known < N));
		give_back(&b, got, n_known);
	}
	uint64_t before = b.tree.n_hash;
	assert_int_equal(nsv_prefix_tree_insert(&b.tree, 1, tokens, blocks, N, NULL, NULL), 0);
	assert_int_equal(b.tree.n_hash - before, N + 1);
	give_back(&b, blocks, N);
	check(&b);
	bench_deinit(&b);
}

/* A place whose node has gone, or of another domain, is not followed. */
static void test_place(void **state)
{
	int32_t tokens[4] = {1, 2, 3, 4}, blocks[4], got[4];
	struct nsv_prefix_place place = {0}, old;
	struct nsv_prefix_hit hit;
	uint32_t n_new;
	struct bench b;

	(void)state;
	bench_init(&b, 8, 1);
	for (int i = 0; i < 4; i++)
		assert_int_equal(nsv_block_get(&b.alloc, &blocks[i]), 0);
	assert_int_equal(nsv_prefix_tree_insert(&b.tree, 1, tokens, blocks, 2, &place, NULL), 0);
	assert_int_equal(place.n_block, 2);
	old = place;
	nsv_prefix_tree_drop_all(&b.tree);
	assert_int_equal(nsv_prefix_tree_insert(&b.tree, 1, tokens, blocks, 4, &place, &n_new), 0);
	assert_int_equal(n_new, 4);
	assert_int_equal(place.n_block, 4);
	/* The same block is a node again, but not the one that was meant. */
	assert_int_equal(nsv_prefix_tree_insert(&b.tree, 1, tokens, blocks, 4, &old, &n_new), 0);
	assert_int_equal(n_new, 0);
	assert_memory_equal(&old, &place, sizeof(old));
	old = place;
	nsv_prefix_tree_drop_all(&b.tree);
	const int32_t others[4] = {5, 2, 3, 4};
	assert_int_equal(nsv_prefix_tree_insert(&b.tree, 1, others, blocks, 4, NULL, NULL), 0);
	assert_int_equal(
		nsv_prefix_tree_insert(&b.tree, 1, tokens, blocks, 4, &old, &n_new), -EALREADY);
	nsv_prefix_tree_drop_all(&b.tree);
	assert_int_equal(nsv_prefix_tree_insert(&b.tree, 1, tokens, blocks, 4, &place, &n_new), 0);
	assert_int_equal(n_new, 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(nsv_block_get(&b.alloc, &got[i]), 0);
	assert_int_equal(nsv_prefix_tree_insert(&b.tree, 2, tokens, got, 4, &place, &n_new), 0);
	assert_int_equal(n_new, 4);
	give_back(&b, got, 4);
	give_back(&b, blocks, 4);
	nsv_prefix_tree_match(&b.tree, 1, tokens, 3, got, 4, &hit);
	assert_int_equal(hit.n_block, 3);
	assert_int_equal(hit.place.n_block, 3);
	assert_int_equal(hit.place.node, got[2]);
	give_back(&b, got, 3);
	bench_deinit(&b);
}

static void test_errors(void **state)
{
	int32_t tokens[4] = {1, 2, 3, 4}, blocks[2], bad[2], freed;
	uint32_t n_new = 99;
	struct bench b;

	(void)state;
	bench_init(&b, 4, 2);
	assert_int_equal(nsv_block_get(&b.alloc, &freed), 0);
	fill(&b, 1, tokens, 1, blocks);
	assert_int_equal(nsv_block_unref(&b.alloc, freed), 1);
	const struct {
		int32_t block;
		int ret;
	} cases[] = {{-1, -ERANGE}, {4, -ERANGE}, {INT32_MIN, -ERANGE}, {freed, -EINVAL},
		{blocks[0], -EALREADY}};
	for (size_t i = 0; i < NSV_ARRAY_LEN(cases); i++) {
		bad[0] = blocks[0];
		bad[1] = cases[i].block;
		assert_int_equal(nsv_prefix_tree_insert(&b.tree, 1, tokens, bad, 2, NULL, &n_new),
			cases[i].ret);
		/* as the first block of a domain that is not there yet */
		assert_int_equal(
			nsv_prefix_tree_insert(&b.tree, 9, tokens, bad + 1, 1, NULL, &n_new),
			cases[i].ret);
		check(&b);
	}
	assert_int_equal(n_new, 99);
	assert_int_equal(b.tree.n_node, 1);
	assert_int_equal(nsv_block_cache(&b.alloc, blocks[0]), -EALREADY);
	assert_int_equal(nsv_block_uncache(&b.alloc, freed), -EALREADY);
	assert_int_equal(nsv_block_uncache(&b.alloc, 4), -ERANGE);
	/* A block with as many holders as can be counted is not matched, and not offered in part.
	 */
	struct nsv_prefix_hit hit;
	b.alloc.ref[blocks[0]] = UINT32_MAX;
	nsv_prefix_tree_match(&b.tree, 1, tokens, 4, bad, 2, &hit);
	assert_int_equal(hit.n_block + hit.n_partial, 0);
	assert_int_equal(hit.partial_block, -1);
	b.alloc.ref[blocks[0]] = 2;
	give_back(&b, blocks, 1);
	bench_deinit(&b);
}

/* ---- The audit */

enum corruption {
	TOKEN,
	KEY,
	PARENT,
	PARENT_ABSENT,
	DOMAIN,
	N_CHILD,
	SIBLING,
	CHILD_LOST,
	CHAIN_LOST,
	BIRTH,
	NODE_LOST,
	MARK,
	N_NODE,
	N_ROOT,
	FREE_ROOT,
	IDLE_LOST,
	IDLE_COUNT,
	HOLDER_LOST,
	N_CORRUPTION,
};

/* `stem` has two children, `leaf` is one of them and idle, `absent` is no node. */
static void corrupt(
	struct bench *b, enum corruption kind, int32_t stem, int32_t leaf, int32_t absent)
{
	struct nsv_prefix_tree *t = &b->tree;
	struct nsv_prefix_node *n = &t->nodes[leaf];

	switch (kind) {
	case TOKEN:
		t->tokens[leaf * (int)t->block_size + 1]++;
		break;
	case KEY:
		n->key.v[t_below(NSV_PREFIX_KEY_LEN)] ^= 1;
		break;
	case PARENT:
		n->parent = t->nodes[stem].parent;
		break;
	case PARENT_ABSENT:
		n->parent = absent;
		break;
	case DOMAIN:
		n->domain++;
		break;
	case N_CHILD:
		t->nodes[stem].n_child++;
		break;
	case SIBLING:
		n->sibling_prev = n->sibling_next = leaf;
		break;
	case CHILD_LOST:
		t->nodes[stem].child = -1;
		break;
	case CHAIN_LOST:
		memset(t->bucket, 0xff, t->n_bucket * sizeof(*t->bucket));
		break;
	case BIRTH:
		n->birth = 1;
		break;
	case NODE_LOST:
		n->birth = 0;
		break;
	case MARK:
		b->alloc.cached[stem] = NSV_BLOCK_LEAF;
		break;
	case N_NODE:
		t->n_node--;
		break;
	case N_ROOT:
		t->n_root++;
		break;
	case FREE_ROOT:
		t->free_root = leaf;
		break;
	case IDLE_LOST:
		b->alloc.idle.leaf.oldest = b->alloc.idle.next[b->alloc.idle.leaf.oldest];
		break;
	case IDLE_COUNT:
		b->alloc.idle.leaf.n++;
		break;
	default:
		b->alloc.ref[leaf]++;
	}
}

static void test_audit_sees(void **state)
{
	(void)state;
	for (int kind = 0; kind < N_CORRUPTION; kind++) {
		int32_t tokens[2][6] = {{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 7, 8}}, blocks[2][3];
		struct nsv_err err = {""};
		struct bench b;

		bench_init(&b, 16, 2);
		fill(&b, 1, tokens[0], 3, blocks[0]);
		fill(&b, 1, tokens[1], 3, blocks[1]);
		give_back(&b, blocks[0], 3);
		give_back(&b, blocks[1], 3);
		check(&b);
		corrupt(&b, kind, blocks[0][1], blocks[t_below(2)][2], b.alloc.head);
		if (nsv_prefix_tree_audit(&b.tree, &err) != -EUCLEAN)
			fail_msg("corruption %d went unseen", kind);
		assert_true(strlen(err.text) > 0);
		free(b.tree.bucket); /* not to be torn down by its own ways any more */
		free(b.tree.nodes);
		free(b.tree.tokens);
		nsv_block_alloc_deinit(&b.alloc);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_init),
		cmocka_unit_test(test_key),
		cmocka_unit_test(test_domains),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_stem_used_again),
		cmocka_unit_test(test_twins),
		cmocka_unit_test(test_partial),
		cmocka_unit_test(test_partial_tie),
		cmocka_unit_test(test_partial_is_bounded),
		cmocka_unit_test(test_cost),
		cmocka_unit_test(test_place),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_audit_sees),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
