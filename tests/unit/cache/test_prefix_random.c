/* The prefix tree against a naive model that keeps every prefix whole: random sequences that match,
 * insert, go apart and end in any order, with keys as they are, keys that collide often and keys
 * that all collide. */
#include "cache/block_table.h"
#include "tests/unit/cache/prefix_pool.h"

#define N_BLOCK 48
#define N_DOMAIN 3
#define N_SEQ 6
#define MAX_TABLE 12
#define MAX_SIZE 4
#define MAX_TOKEN (MAX_TABLE * MAX_SIZE)

/* ---- The naive model */

struct prefix {
	bool known;
	uint64_t domain;
	uint32_t n;
	int32_t tokens[MAX_TOKEN];
};

struct seq {
	bool live;
	uint64_t domain;
	uint32_t n_token, n_block;
	int32_t tokens[MAX_TOKEN], blocks[MAX_TABLE];
	struct nsv_prefix_place place;
};

struct world {
	struct bench b;
	uint32_t size;			 /* of a block */
	struct prefix prefixes[N_BLOCK]; /* what block b is known for */
	uint32_t held[N_BLOCK];		 /* by sequences */
	struct seq seqs[N_SEQ];
};

static bool begins(const struct prefix *p, uint64_t domain, const int32_t *tokens, uint32_t n)
{
	return p->known && p->domain == domain && p->n >= n &&
	       memcmp(p->tokens, tokens, n * sizeof(*tokens)) == 0;
}

/* The block known for exactly these tokens, -1: none. */
static int32_t naive_find(const struct world *w, uint64_t domain, const int32_t *tokens, uint32_t n)
{
	for (int32_t b = 0; b < N_BLOCK; b++)
		if (w->prefixes[b].n == n && begins(&w->prefixes[b], domain, tokens, n))
			return b;
	return -1;
}

/* Tokens after the first n_full blocks' that block b begins with, where it is a child of those. */
static uint32_t naive_part(
	const struct world *w, int32_t b, const struct seq *q, uint32_t n_full, uint32_t n_token)
{
	const struct prefix *p = &w->prefixes[b];
	uint32_t n = n_full * w->size;

	if (p->n != n + w->size || !begins(p, q->domain, q->tokens, n))
		return 0;
	while (n < n_token && n < p->n && p->tokens[n] == q->tokens[n])
		n++;
	return n - n_full * w->size;
}

static bool is_idle(const struct world *w, int32_t b)
{
	return w->prefixes[b].known && w->held[b] == 0;
}

static bool is_under(const struct world *w, int32_t b, int32_t above)
{
	const struct prefix *p = &w->prefixes[above];

	return b != above && begins(&w->prefixes[b], p->domain, p->tokens, p->n);
}

static uint32_t count_idle(const struct world *w)
{
	uint32_t n = 0;

	for (int32_t b = 0; b < N_BLOCK; b++)
		n += is_idle(w, b);
	return n;
}

/* Idle blocks on which nothing hangs that is in use. */
static uint32_t count_loose(const struct world *w)
{
	uint32_t n = 0;

	for (int32_t b = 0; b < N_BLOCK; b++) {
		bool loose = is_idle(w, b);
		for (int32_t c = 0; loose && c < N_BLOCK; c++)
			loose = !is_under(w, c, b) || is_idle(w, c);
		n += loose;
	}
	return n;
}

static void check_world(const struct world *w)
{
	uint32_t n_known = 0;

	check(&w->b);
	for (int32_t b = 0; b < N_BLOCK; b++) {
		n_known += w->prefixes[b].known;
		assert_int_equal(
			nsv_block_n_ref(&w->b.alloc, b), w->held[b] + w->prefixes[b].known);
		assert_int_equal(nsv_block_is_cached(&w->b.alloc, b), w->prefixes[b].known);
	}
	assert_int_equal(w->b.tree.n_node, n_known);
	assert_int_equal(nsv_block_n_idle(&w->b.alloc), count_idle(w));
}

/* What the tree forgot since: only what hangs on a block that went, or went itself idle. */
static uint32_t take_over_losses(struct world *w, bool may_forget_held)
{
	bool gone[N_BLOCK];
	uint32_t n_freed = 0;

	for (int32_t b = 0; b < N_BLOCK; b++)
		gone[b] = w->prefixes[b].known && !nsv_block_is_cached(&w->b.alloc, b);
	for (int32_t b = 0; b < N_BLOCK; b++) {
		bool hangs = is_idle(w, b);
		for (int32_t a = 0; gone[b] && !hangs && a < N_BLOCK; a++)
			hangs = gone[a] && is_idle(w, a) && is_under(w, b, a);
		assert_true(!gone[b] || hangs || may_forget_held);
		n_freed += gone[b] && is_idle(w, b);
	}
	for (int32_t b = 0; b < N_BLOCK; b++)
		w->prefixes[b].known &= !gone[b];
	return n_freed;
}

static void evict(struct world *w, uint32_t n)
{
	uint32_t n_idle = count_idle(w), n_loose = count_loose(w), n_free = w->b.alloc.n_free;
	uint32_t n_node = w->b.tree.n_node;
	uint32_t n_freed = nsv_prefix_tree_evict(&w->b.tree, n);

	assert_int_equal(w->b.alloc.n_free, n_free + n_freed);
	assert_int_equal(take_over_losses(w, false), n_freed);
	assert_true(n_freed >= nsv_min(n, n_idle) && n_freed <= n_idle);
	if (n <= n_loose) { /* nothing in use is forgotten while that can be helped */
		assert_int_equal(n_freed, n);
		assert_int_equal(w->b.tree.n_node, n_node - n);
	}
}

/* ---- Random sequences */

static void draw_tokens(struct world *w, struct seq *q)
{
	const struct seq *other = &w->seqs[t_below(N_SEQ)];
	uint32_t n_same = t_below(2) ? t_below(MAX_TOKEN + 1) : 0;

	q->domain = 1000 + t_below(N_DOMAIN);
	q->n_token = t_below(MAX_TABLE * w->size + 1);
	for (uint32_t i = 0; i < q->n_token; i++)
		q->tokens[i] = i < n_same ? other->tokens[i] : (int32_t)t_below(3);
}

static void check_match(const struct world *w, const struct seq *q, uint32_t n_token, uint32_t cap,
	const struct nsv_prefix_hit *hit)
{
	uint32_t n = 0, best = 0;

	while (n < cap && (n + 1) * w->size <= n_token) {
		int32_t b = naive_find(w, q->domain, q->tokens, (n + 1) * w->size);
		if (b < 0)
			break;
		assert_int_equal(q->blocks[n], b);
		n++;
	}
	assert_int_equal(hit->n_block, n);
	assert_int_equal(hit->place.n_block, n);
	for (int32_t b = 0; n < cap && b < N_BLOCK; b++)
		best = (uint32_t)nsv_max(best, naive_part(w, b, q, n, n_token));
	assert_int_equal(hit->n_partial, best);
	if (best == 0)
		assert_int_equal(hit->partial_block, -1);
	else
		assert_int_equal(naive_part(w, hit->partial_block, q, n, n_token), best);
}

static void release(struct world *w, struct seq *q)
{
	bool forward = t_below(8) == 0; /* not what a table does, but nothing may break */

	for (uint32_t i = 0; i < q->n_block; i++) {
		int32_t b = q->blocks[forward ? i : q->n_block - 1 - i];
		assert_int_equal(
			nsv_block_unref(&w->b.alloc, b), w->held[b] == 1 && !w->prefixes[b].known);
		w->held[b]--;
	}
	q->live = false;
}

static void start(struct world *w, struct seq *q)
{
	uint32_t cap = t_below(4) ? MAX_TABLE : t_below(MAX_TABLE), need, n_look;
	struct nsv_prefix_hit hit;

	draw_tokens(w, q);
	n_look = q->n_token > 0 && t_below(2) ? q->n_token - 1 : q->n_token;
	nsv_prefix_tree_match(&w->b.tree, q->domain, q->tokens, n_look, q->blocks, cap, &hit);
	check_match(w, q, n_look, cap, &hit);
	q->live = true;
	q->place = hit.place;
	for (q->n_block = 0; q->n_block < hit.n_block; q->n_block++)
		w->held[q->blocks[q->n_block]]++;
	if (hit.n_partial > 0)
		assert_int_equal(nsv_block_unref(&w->b.alloc, hit.partial_block), 0);
	need = nsv_blocks_for(q->n_token, w->size) - q->n_block;
	if (need > w->b.alloc.n_free)
		evict(w, need - w->b.alloc.n_free);
	if (need > w->b.alloc.n_free) {
		release(w, q);
		return;
	}
	for (; need > 0; need--) {
		assert_int_equal(nsv_block_get(&w->b.alloc, &q->blocks[q->n_block]), 0);
		w->held[q->blocks[q->n_block++]]++;
	}
}

static void insert(struct world *w, struct seq *q)
{
	uint32_t n_block = t_below(q->n_token / w->size + 1), n_new = 0, ret_n_new = 99;
	bool with_place = t_below(2);

	for (uint32_t i = 0; i < n_block; i++) {
		uint32_t n = (i + 1) * w->size;
		if (naive_find(w, q->domain, q->tokens, n) >= 0)
			continue;
		struct prefix *p = &w->prefixes[q->blocks[i]];
		assert_false(p->known);
		*p = (struct prefix){.known = true, .domain = q->domain, .n = n};
		memcpy(p->tokens, q->tokens, n * sizeof(*q->tokens));
		n_new++;
	}
	assert_int_equal(nsv_prefix_tree_insert(&w->b.tree, q->domain, q->tokens, q->blocks,
				 n_block, with_place ? &q->place : NULL, &ret_n_new),
		0);
	assert_int_equal(ret_n_new, n_new);
}

static void drop_all(struct world *w)
{
	uint32_t n_free = w->b.alloc.n_free, n = 0;

	for (int32_t b = 0; b < N_BLOCK; b++)
		n += is_idle(w, b);
	assert_int_equal(nsv_prefix_tree_drop_all(&w->b.tree), n);
	assert_int_equal(w->b.alloc.n_free, n_free + n);
	take_over_losses(w, true);
	for (int32_t b = 0; b < N_BLOCK; b++)
		assert_false(w->prefixes[b].known);
}

static void random_step(struct world *w)
{
	struct seq *q = &w->seqs[t_below(N_SEQ)];
	uint32_t what = t_below(100);

	if (t_below(400) == 0)
		drop_all(w);
	else if (what < 10)
		evict(w, t_below(6));
	else if (!q->live)
		start(w, q);
	else if (what < 70)
		insert(w, q);
	else
		release(w, q);
}

static void run_world(nsv_prefix_hash_fn *hash, int n_step)
{
	for (uint32_t size = 1; size <= MAX_SIZE; size++) {
		struct world w = {.size = size};

		bench_init(&w.b, N_BLOCK, size);
		if (hash)
			w.b.tree.hash = hash;
		for (int step = 0; step < n_step; step++) {
			random_step(&w);
			check_world(&w);
		}
		for (int i = 0; i < N_SEQ; i++)
			if (w.seqs[i].live)
				release(&w, &w.seqs[i]);
		check_world(&w);
		bench_deinit(&w.b);
	}
}

static void test_random(void **state)
{
	(void)state;
	run_world(NULL, 3000);
}

/* The tokens decide: with colliding keys there is no hit more and none less. */
static void test_collisions(void **state)
{
	(void)state;
	run_world(hash_weak, 1500);
	run_world(hash_all_same, 1500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_collisions),
	};

	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
