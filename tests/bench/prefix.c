/* The prefix cache's own cost: nanoseconds a block to match a prompt that is known whole, to insert
 * one that is new and to evict one, over prompts of 256 to 131,072 tokens in a tree that is half
 * full of others; and the exponent e of time ~ tokens^e, fitted to the medians of interleaved
 * rounds, with its standard error. The limit is the keyed hash alone, one key a block.
 *
 *     make bench NAME=prefix */
#include <string.h>

#include "cache/prefix_tree.h"
#include "shm/clock.h"
#include "tests/tools/stats.h"

#define BLOCK_SIZE 16u
#define MIN_TOKEN 256u
#define N_LEN 10
#define MAX_TOKEN (MIN_TOKEN << (N_LEN - 1))
#define MAX_BLOCK (MAX_TOKEN / BLOCK_SIZE)
#define N_ROUND 9
#define DOMAIN 1
#define OTHERS 2
#define JSON "build/bench/prefix.json"

enum work { MATCH, INSERT, EVICT, HASH, N_WORK };

static const char *const work_names[N_WORK] = {"match", "insert", "evict", "hash alone"};

static struct nsv_block_alloc pool;
static struct nsv_prefix_tree tree;
static int32_t tokens[MAX_TOKEN], blocks[MAX_BLOCK], got[MAX_BLOCK];
static double ns[N_WORK][N_LEN][N_ROUND]; /* a prompt */

static void die(const char *what)
{
	fprintf(stderr, "prefix: %s\n", what);
	exit(1);
}

static void draw_tokens(void)
{
	for (uint32_t i = 0; i < MAX_TOKEN; i++)
		tokens[i] = (int32_t)(random() % 49152);
}

static void give_back(const int32_t *from, uint32_t n)
{
	while (n-- > 0)
		nsv_block_unref(&pool, from[n]);
}

/* Prompts of 4,096 tokens in another domain, held so that they stay: half of the pool. */
static void fill_half(void)
{
	int32_t *held = malloc(MAX_BLOCK * sizeof(*held));

	if (!held)
		die("no memory");
	draw_tokens();
	for (uint32_t i = 0; i < MAX_BLOCK; i++)
		nsv_block_get(&pool, &held[i]);
	for (uint32_t i = 0; i < MAX_BLOCK; i += 256)
		nsv_prefix_tree_insert(
			&tree, OTHERS, tokens + (size_t)i * BLOCK_SIZE, held + i, 256, NULL, NULL);
	free(held);
}

static void hash_all(uint32_t n_block)
{
	struct nsv_prefix_key key = {{0}}, next;

	for (uint32_t i = 0; i < n_block; i++) {
		tree.hash(&tree, DOMAIN, &key, tokens + (size_t)i * BLOCK_SIZE, BLOCK_SIZE, &next);
		key = next;
	}
}

/* One prompt of n_block blocks: in, found, out. Adds what each took. */
static void run_once(uint32_t n_block, double *sum)
{
	struct nsv_prefix_hit hit;
	uint32_t n_new = 0;

	for (uint32_t i = 0; i < n_block; i++)
		nsv_block_get(&pool, &blocks[i]);
	uint64_t t0 = nsv_now_ns();
	nsv_prefix_tree_insert(&tree, DOMAIN, tokens, blocks, n_block, NULL, &n_new);
	uint64_t t1 = nsv_now_ns();
	nsv_prefix_tree_match(&tree, DOMAIN, tokens, n_block * BLOCK_SIZE, got, n_block, &hit);
	uint64_t t2 = nsv_now_ns();
	hash_all(n_block);
	uint64_t t3 = nsv_now_ns();
	give_back(got, hit.n_block);
	give_back(blocks, n_block);
	uint64_t t4 = nsv_now_ns();
	uint32_t n_freed = nsv_prefix_tree_evict(&tree, n_block);
	uint64_t t5 = nsv_now_ns();
	if (n_new != n_block || hit.n_block != n_block || n_freed != n_block)
		die("the tree lost blocks");
	sum[INSERT] += (double)(t1 - t0);
	sum[MATCH] += (double)(t2 - t1);
	sum[HASH] += (double)(t3 - t2);
	sum[EVICT] += (double)(t5 - t4);
}

/* Short prompts are repeated, so that every length moves as many blocks. */
static void run_round(int round)
{
	draw_tokens();
	for (int l = 0; l < N_LEN; l++) {
		uint32_t n_rep = 1u << (N_LEN - 1 - l);
		double sum[N_WORK] = {0};

		for (uint32_t i = 0; i < n_rep; i++)
			run_once(MIN_TOKEN / BLOCK_SIZE << l, sum);
		for (int w = 0; w < N_WORK; w++)
			ns[w][l][round] = sum[w] / n_rep;
	}
}

static double median(const double *v)
{
	double s[N_ROUND];

	memcpy(s, v, sizeof(s));
	return nsv_median(s, N_ROUND);
}

static double per_block(enum work w, int l)
{
	return median(ns[w][l]) / (MIN_TOKEN / BLOCK_SIZE << l);
}

static double fit_exponent(enum work w, double *ret_error)
{
	double x[N_LEN], y[N_LEN];

	for (int l = 0; l < N_LEN; l++) {
		x[l] = (double)(MIN_TOKEN << l);
		y[l] = median(ns[w][l]);
	}
	return nsv_fit_exponent(x, y, N_LEN, ret_error);
}

static void print_table(void)
{
	printf("%8s", "tokens");
	for (int w = 0; w < N_WORK; w++)
		printf(" %12s", work_names[w]);
	printf("   ns a block of %u tokens\n", BLOCK_SIZE);
	for (int l = 0; l < N_LEN; l++) {
		printf("%8u", MIN_TOKEN << l);
		for (int w = 0; w < N_WORK; w++)
			printf(" %12.1f", per_block(w, l));
		printf("\n");
	}
	for (int w = 0; w < N_WORK; w++) {
		double error, e = fit_exponent(w, &error);
		printf("%s: time ~ tokens^%.3f +- %.3f\n", work_names[w], e, error);
	}
}

static void write_json(void)
{
	FILE *f = fopen(JSON, "w");

	if (!f)
		die("build/bench/prefix.json cannot be written");
	for (int w = 0; w < HASH; w++) {
		double error, e = fit_exponent(w, &error);

		for (int l = 0; l < N_LEN; l++) {
			fprintf(f, "%s{\"work\": \"%s %u tokens\", \"value\": %.1f, ",
				w + l ? ",\n " : "[", work_names[w], MIN_TOKEN << l,
				per_block(w, l));
			fprintf(f, "\"unit\": \"ns/block\", \"limit\": ");
			fprintf(f, w == EVICT ? "null" : "%.1f", per_block(HASH, l));
			fprintf(f, ", \"peer\": null, \"peer_value\": null, \"target\": null}");
		}
		fprintf(f, ",\n {\"work\": \"%s exponent\", \"value\": %.4f, ", work_names[w], e);
		fprintf(f, "\"unit\": \"of tokens, +- %.4f\", \"limit\": 1, ", error);
		fprintf(f, "\"peer\": null, \"peer_value\": null, \"target\": 1.1}");
	}
	fprintf(f, "]\n");
	if (fclose(f))
		die("build/bench/prefix.json cannot be written");
}

int main(void)
{
	const struct nsv_prefix_key secret = {"a bench has no secrets"};

	if (nsv_block_alloc_init(&pool, 2 * MAX_BLOCK) < 0 ||
		nsv_prefix_tree_init(&tree, &pool, BLOCK_SIZE, 1, &secret) < 0)
		die("no memory");
	srandom(1);
	fill_half();
	run_round(0); /* warm: measured again below */
	for (int round = 0; round < N_ROUND; round++)
		run_round(round);
	print_table();
	write_json();
	nsv_prefix_tree_deinit(&tree);
	nsv_block_alloc_deinit(&pool);
	return 0;
}
