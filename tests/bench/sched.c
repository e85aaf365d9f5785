/* The scheduler's own cost, without a model: a step's plan and results at 1 to 1,024 running
 * requests, steady (nobody comes or goes) and with one in 32 replaced each step; the look-up of a
 * known prompt of 64 to 65,536 tokens in the prefix cache; and what of the blocks holds no token.
 * Exponents are fitted to the medians of rounds in which all sizes take turns, with their standard
 * errors.
 *
 *     make bench NAME=sched        build/bench/sched.json, build/bench/sched.svg */
#include <string.h>

#include "daemon/sched.h"
#include "shm/clock.h"
#include "tests/tools/report.h"
#include "tests/tools/rnd.h"
#include "tests/tools/svg.h"

#define BLOCK_SIZE 16u
#define PROMPT 64u
#define N_ROUND 15
#define N_STEP 24 /* a round */
#define CAP (nsv_blocks_for(PROMPT + (N_ROUND + 1) * N_STEP + 1, BLOCK_SIZE) + 1)
#define N_SIZE 11 /* 1 .. 1024 running */
#define FIT_FROM 5 /* sizes below 32 are mostly the fixed cost */
#define REPLACED 32u
#define N_LEN 11 /* 64 .. 65,536 tokens */
#define MAX_TOKEN (64u << (N_LEN - 1))

enum load { STEADY, CHURN, N_LOAD };

static const char *const load_names[N_LOAD] = {"steady", "1 in 32 is new"};

struct bed {
	struct nsv_block_alloc alloc;
	struct nsv_prefix_tree tree;
	struct nsv_sched sched;
	struct nsv_step_plan plan;
	uint32_t n;
	int32_t *blocks, *tokens; /* (n, CAP), (n, CAP x BLOCK_SIZE) */
	uint64_t arrivals;
};

static struct bed beds[N_LOAD][N_SIZE];
static double step_ns[N_LOAD][N_SIZE][N_ROUND], lookup_ns[N_LEN][N_ROUND];

static void die(const char *what)
{
	fprintf(stderr, "sched: %s\n", what);
	exit(1);
}

/* ---- Steps */

static void come(struct bed *b, uint32_t seq)
{
	int32_t *tokens = b->tokens + (size_t)seq * CAP * BLOCK_SIZE;

	for (uint32_t i = 0; i < CAP * BLOCK_SIZE; i++)
		tokens[i] = (int32_t)t_below(49152);
	nsv_sched_add(&b->sched, seq,
		&(struct nsv_sched_new){.n_token = PROMPT,
			.max_token = CAP * BLOCK_SIZE,
			.uid = seq % 16,
			.arrival = ++b->arrivals,
			.domain = seq % 16,
			.tokens = tokens,
			.blocks = b->blocks + (size_t)seq * CAP,
			.cap = CAP,
			.leader = NSV_SCHED_NO_LEADER});
}

static void step(struct bed *b)
{
	nsv_sched_plan(&b->sched, &b->plan);
	nsv_sched_copied(&b->sched, &b->plan);
	for (uint32_t i = 0; i < b->plan.n_item; i++) {
		const struct nsv_plan_item *item = &b->plan.items[i];
		if (nsv_sched_computed(&b->sched, item) < 0)
			die("a block is wrong");
		if (item->sample)
			nsv_sched_known(&b->sched, item->seq);
	}
}

/* Everybody runs and decodes. */
static void make_bed(struct bed *b, uint32_t n)
{
	static const struct nsv_prefix_key secret;
	uint32_t n_block = n * CAP + n * CAP / 50 + 16;

	b->n = n;
	b->blocks = calloc((size_t)n * CAP, sizeof(*b->blocks));
	b->tokens = calloc((size_t)n * CAP * BLOCK_SIZE, sizeof(*b->tokens));
	if (!b->blocks || !b->tokens || nsv_block_alloc_init(&b->alloc, n_block) < 0 ||
		nsv_prefix_tree_init(&b->tree, &b->alloc, BLOCK_SIZE, 1, &secret) < 0 ||
		nsv_sched_init(&b->sched, &b->alloc, NULL, &b->tree, n, BLOCK_SIZE,
			n + PROMPT * (n / REPLACED + 1)) < 0 ||
		nsv_step_plan_init(&b->plan, &b->sched) < 0)
		die("no memory");
	b->sched.mixed_tokens = b->sched.batch_tokens;
	for (uint32_t i = 0; i < n; i++)
		come(b, i);
	while (b->plan.n_item < n || b->plan.n_row > n)
		step(b);
}

static void free_bed(struct bed *b)
{
	nsv_step_plan_deinit(&b->plan);
	nsv_sched_deinit(&b->sched);
	nsv_prefix_tree_deinit(&b->tree);
	nsv_block_alloc_deinit(&b->alloc);
	free(b->blocks);
	free(b->tokens);
}

/* One in REPLACED ends, and another comes in its place; what they say is drawn beside the clock. */
static void replace_some(struct bed *b, int i)
{
	for (uint32_t seq = (uint32_t)i % REPLACED; seq < b->n; seq += REPLACED)
		nsv_sched_remove(&b->sched, seq);
	for (uint32_t seq = (uint32_t)i % REPLACED; seq < b->n; seq += REPLACED)
		come(b, seq);
}

static double run_steps(struct bed *b, enum load load)
{
	uint64_t sum = 0;

	for (int i = 0; i < N_STEP; i++) {
		if (load == CHURN)
			replace_some(b, i);
		uint64_t start = nsv_now_ns();
		step(b);
		sum += nsv_now_ns() - start;
	}
	if (load == STEADY && (b->plan.n_item != b->n || b->plan.n_row != b->n))
		die("not everybody decodes");
	return (double)sum / N_STEP;
}

static void measure_steps(void)
{
	for (int load = 0; load < N_LOAD; load++)
		for (int i = 0; i < N_SIZE; i++)
			make_bed(&beds[load][i], 1u << i);
	for (int round = 0; round < N_ROUND; round++)
		for (int load = 0; load < N_LOAD; load++)
			for (int i = 0; i < N_SIZE; i++)
				step_ns[load][i][round] =
					run_steps(&beds[load][i], (enum load)load);
	for (int load = 0; load < N_LOAD; load++)
		for (int i = 0; i < N_SIZE; i++)
			free_bed(&beds[load][i]);
}

/* ---- Look-ups */

static void measure_lookups(void)
{
	static const struct nsv_prefix_key secret;
	static int32_t tokens[MAX_TOKEN], blocks[MAX_TOKEN / BLOCK_SIZE],
		got[MAX_TOKEN / BLOCK_SIZE];
	struct nsv_block_alloc alloc;
	struct nsv_prefix_tree tree;
	struct nsv_prefix_hit hit;

	if (nsv_block_alloc_init(&alloc, MAX_TOKEN / BLOCK_SIZE) < 0 ||
		nsv_prefix_tree_init(&tree, &alloc, BLOCK_SIZE, 1, &secret) < 0)
		die("no memory");
	for (uint32_t i = 0; i < MAX_TOKEN; i++)
		tokens[i] = (int32_t)t_below(49152);
	for (uint32_t i = 0; i < MAX_TOKEN / BLOCK_SIZE; i++)
		nsv_block_get(&alloc, &blocks[i]);
	if (nsv_prefix_tree_insert(
		    &tree, 1, tokens, blocks, MAX_TOKEN / BLOCK_SIZE, NULL, NULL) < 0)
		die("a prompt cannot be made known");
	for (int round = 0; round < N_ROUND; round++)
		for (int i = 0; i < N_LEN; i++) {
			uint32_t n_token = 64u << i, n_rep = 1u << (N_LEN - 1 - i) / 2;
			uint64_t sum = 0;
			for (uint32_t k = 0; k < n_rep; k++) {
				uint64_t start = nsv_now_ns();
				nsv_prefix_tree_match(&tree, 1, tokens, n_token, got,
					n_token / BLOCK_SIZE, &hit);
				sum += nsv_now_ns() - start;
				if (hit.n_block != n_token / BLOCK_SIZE)
					die("a known prompt is not found");
				for (uint32_t b = hit.n_block; b-- > 0;)
					nsv_block_unref(&alloc, got[b]);
			}
			lookup_ns[i][round] = (double)sum / n_rep;
		}
	nsv_prefix_tree_deinit(&tree);
	nsv_block_alloc_deinit(&alloc);
}

/* ---- Memory */

/* 64 sequences whose prompts have 512 tokens, give or take half a block: share of the slots of held
 * blocks without a token, and the most that one wastes. */
static double measure_waste(uint32_t *ret_most)
{
	static int32_t blocks[64][40];
	struct nsv_block_alloc alloc;
	struct nsv_sched s;
	struct nsv_step_plan plan;
	uint32_t most = 0;

	if (nsv_block_alloc_init(&alloc, 64 * 40) < 0 ||
		nsv_sched_init(&s, &alloc, NULL, NULL, 64, BLOCK_SIZE, 64 * 520) < 0 ||
		nsv_step_plan_init(&plan, &s) < 0)
		die("no memory");
	for (uint32_t i = 0; i < 64; i++)
		nsv_sched_add(&s, i,
			&(struct nsv_sched_new){.n_token = 505 + t_below(16),
				.max_token = 600,
				.arrival = i,
				.blocks = blocks[i],
				.cap = 40,
				.leader = NSV_SCHED_NO_LEADER});
	nsv_sched_plan(&s, &plan);
	for (uint32_t i = 0; i < s.n_run; i++) {
		const struct nsv_sched_seq *q = &s.seqs[s.run[i]];
		most = (uint32_t)nsv_max(most, q->table.n * BLOCK_SIZE - q->n_past);
	}
	double share = (double)nsv_sched_waste(&s) /
		       ((double)(alloc.n_block - alloc.n_free) * BLOCK_SIZE);
	if (s.n_run != 64)
		die("not all 64 run");
	nsv_step_plan_deinit(&plan);
	nsv_sched_deinit(&s);
	nsv_block_alloc_deinit(&alloc);
	*ret_most = most;
	return share;
}

/* ---- Report */

static double sizes[N_SIZE], step_us[N_LOAD][N_SIZE], lens[N_LEN], lookup_us[N_LEN];

static void take_medians(void)
{
	for (int i = 0; i < N_SIZE; i++) {
		sizes[i] = 1u << i;
		for (int load = 0; load < N_LOAD; load++)
			step_us[load][i] = nsv_median(step_ns[load][i], N_ROUND) / 1e3;
	}
	for (int i = 0; i < N_LEN; i++) {
		lens[i] = 64u << i;
		lookup_us[i] = nsv_median(lookup_ns[i], N_ROUND) / 1e3;
	}
}

static void report_exponent(struct nsv_report *r, const char *what, const double *x,
	const double *y, size_t n)
{
	char work[96];
	double error, e = nsv_fit_exponent(x, y, n, &error);

	snprintf(work, sizeof(work), "%s: exponent", what);
	nsv_report_add(r, &(struct nsv_figure){.work = work, .value = e, .unit = "1", .target = 1});
	snprintf(work, sizeof(work), "%s: its standard error", what);
	nsv_report_add(r, &(struct nsv_figure){.work = work, .value = error, .unit = "1"});
}

static void report_steps(struct nsv_report *r, enum load load)
{
	char work[96];

	for (int i = 0; i < N_SIZE; i++) {
		snprintf(work, sizeof(work), "%s: step at %u running", load_names[load], 1u << i);
		nsv_report_add(r,
			&(struct nsv_figure){.work = work,
				.value = step_us[load][i],
				.unit = "us",
				.target = 1u << i == 256 && load == STEADY ? 20 : 0});
	}
	snprintf(work, sizeof(work), "%s: 32..1024", load_names[load]);
	report_exponent(r, work, sizes + FIT_FROM, step_us[load] + FIT_FROM, N_SIZE - FIT_FROM);
}

static void report(void)
{
	struct nsv_report r;
	char work[96];
	uint32_t most;

	nsv_report_begin(&r, "sched");
	for (int load = 0; load < N_LOAD; load++)
		report_steps(&r, (enum load)load);
	for (int i = 0; i < N_LEN; i++) {
		snprintf(work, sizeof(work), "look-up of %u tokens", 64u << i);
		nsv_report_add(&r, &(struct nsv_figure){
					   .work = work, .value = lookup_us[i], .unit = "us"});
	}
	report_exponent(&r, "look-up", lens, lookup_us, N_LEN);
	double share = measure_waste(&most);
	nsv_report_add(&r, &(struct nsv_figure){.work = "waste at 64 sequences of 512 tokens",
				   .value = 100 * share,
				   .unit = "%",
				   .target = 4});
	nsv_report_add(&r, &(struct nsv_figure){.work = "the most that one of them wastes",
				   .value = most,
				   .unit = "slots",
				   .limit = BLOCK_SIZE - 1});
	nsv_report_end(&r);
}

static void draw(void)
{
	static const double size_ticks[] = {1, 4, 16, 64, 256, 1024},
			    len_ticks[] = {64, 256, 1024, 4096, 16384, 65536};
	static const char *const size_names[] = {"1", "4", "16", "64", "256", "1024"},
				 *const len_names[] = {"64", "256", "1k", "4k", "16k", "64k"};
	const struct nsv_series steps[] = {{load_names[STEADY], sizes, step_us[STEADY], N_SIZE},
		{load_names[CHURN], sizes, step_us[CHURN], N_SIZE}};
	const struct nsv_series lookups[] = {{"known prompt", lens, lookup_us, N_LEN}};
	const struct nsv_panel panels[] = {
		{"The scheduler's cost a step", "running requests", "us", true, true, size_ticks,
			size_names, NSV_ARRAY_LEN(size_ticks), steps, NSV_ARRAY_LEN(steps)},
		{"Look-up in the prefix cache", "tokens", "us", true, true, len_ticks, len_names,
			NSV_ARRAY_LEN(len_ticks), lookups, 1},
	};

	if (nsv_svg_write("build/bench/sched.svg", panels, NSV_ARRAY_LEN(panels)) < 0)
		die("build/bench/sched.svg cannot be written");
}

int main(void)
{
	t_seed();
	measure_steps();
	measure_lookups();
	take_medians();
	report();
	draw();
	return 0;
}
