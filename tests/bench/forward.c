/* Tokens a second of the forward pass in this process, with no daemon: prompts of 5, 512 and 2048
 * tokens, 128 tokens one by one, at a prompt's end and after 7,000, and streams side by side; and
 * where member 0's time goes. Medians of interleaved rounds.
 *
 *     make bench NAME=forward
 *
 * $NANOSERVE_TEST_BACKEND, $NANOSERVE_BENCH_THREADS [2], $NANOSERVE_BENCH_ROWS: rows a step
 * [512], $NANOSERVE_BENCH_WORK: what alone is measured, by the beginning of its name */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "daemon/model/logits.h"
#include "shm/clock.h"
#include "tests/tools/model-run.h"

#define N_ROUND 3
#define N_DECODE 128
#define N_STREAM 32 /* at most */
#define N_STREAM_PROMPT 16
#define N_STREAM_DECODE 64
#define MAX_ROW 2048
#define N_LONG 7000
#define N_TOKEN 8192
#define JSON "build/bench/forward.json"

enum phase { ACTS, PRODUCT, EMBED, NORM, ADD, ROPE, GATE, APPEND, ATTENTION, N_PHASE };

static const char *const phase_names[N_PHASE] = {
	"acts", "product", "embed", "norm", "add", "rope", "gate", "append", "attention"};

/* ---- A backend that times the owner's calls and forwards them */

static const struct nsv_backend *inner;
static uint64_t phase_ns[N_PHASE];
static _Thread_local bool is_owner;

static uint64_t begin(void)
{
	return is_owner ? nsv_now_ns() : 0;
}

static void end(enum phase phase, uint64_t start)
{
	if (is_owner)
		phase_ns[phase] += nsv_now_ns() - start;
}

static void timed_acts(const struct nsv_part *part, void *acts, const float *x, size_t ld,
	uint32_t n_row, uint32_t n_in)
{
	uint64_t t = begin();
	inner->acts_set(part, acts, x, ld, n_row, n_in);
	end(ACTS, t);
}

static void timed_matmul(const struct nsv_part *part, float *out, size_t ld, const void *weight,
	const void *acts, uint32_t n_row, const struct nsv_scan_slices *slices)
{
	uint64_t t = begin();
	inner->matmul(part, out, ld, weight, acts, n_row, slices);
	end(PRODUCT, t);
}

static void timed_embed(const struct nsv_part *part, float *out, const struct nsv_matrix *m,
	const int32_t *ids, uint32_t n_row, float scale)
{
	uint64_t t = begin();
	inner->embed(part, out, m, ids, n_row, scale);
	end(EMBED, t);
}

static void timed_norm(const struct nsv_part *part, float *out, const float *x, const float *w,
	size_t ld, uint32_t n_row, uint32_t n, float eps)
{
	uint64_t t = begin();
	inner->rmsnorm(part, out, x, w, ld, n_row, n, eps);
	end(NORM, t);
}

static void timed_add(const struct nsv_part *part, float *x, const float *y, size_t n)
{
	uint64_t t = begin();
	inner->add(part, x, y, n);
	end(ADD, t);
}

static void timed_rope(const struct nsv_part *part, float *x, size_t ld, const float *cs,
	uint32_t n_row, uint32_t n_head, uint32_t head_dim, uint32_t n_rot, enum nsv_rope_kind kind)
{
	uint64_t t = begin();
	inner->rope(part, x, ld, cs, n_row, n_head, head_dim, n_rot, kind);
	end(ROPE, t);
}

static void timed_gate(const struct nsv_part *part, float *out, const float *gate, const float *up,
	size_t ld, uint32_t n_row, uint32_t n, enum nsv_act act)
{
	uint64_t t = begin();
	inner->gate(part, out, gate, up, ld, n_row, n, act);
	end(GATE, t);
}

static void timed_append(const struct nsv_part *part, const struct nsv_attn_shape *shape,
	void *k_pool, void *v_pool, const float *k, const float *v, size_t ld, const int64_t *slots,
	uint32_t n_row)
{
	uint64_t t = begin();
	inner->kv_append(part, shape, k_pool, v_pool, k, v, ld, slots, n_row);
	end(APPEND, t);
}

static void timed_attention(const struct nsv_part *part, const struct nsv_attn_call *call)
{
	uint64_t t = begin();
	inner->attention(part, call);
	end(ATTENTION, t);
}

static struct nsv_backend make_timed(void)
{
	struct nsv_backend b = *inner;

	b.acts_set = timed_acts;
	b.matmul = timed_matmul;
	b.embed = timed_embed;
	b.rmsnorm = timed_norm;
	b.add = timed_add;
	b.rope = timed_rope;
	b.gate = timed_gate;
	b.kv_append = timed_append;
	b.attention = timed_attention;
	return b;
}

/* ---- The work */

struct work {
	const char *name;
	uint32_t n_prompt, n_decode; /* one of them is timed: decode where there is any */
	uint32_t n_stream;	     /* 0: one, alone */
	double target;		     /* tokens a second, 0: none */
	uint64_t ns[N_ROUND], total_ns, phase_ns[N_PHASE];
};

static uint64_t begin_clock(void)
{
	memset(phase_ns, 0, sizeof(phase_ns));
	return nsv_now_ns();
}

static void end_clock(struct work *w, int round, uint64_t start)
{
	w->ns[round] = nsv_now_ns() - start;
	w->total_ns += w->ns[round];
	for (int i = 0; i < N_PHASE; i++)
		w->phase_ns[i] += phase_ns[i];
}

static void draw_tokens(const struct model_run *r, int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = (int32_t)((uint32_t)random() % r->n_vocab);
}

static void run_one(struct model_run *r, struct work *w, int round, float *logits)
{
	static int32_t tokens[N_LONG + N_DECODE];
	uint32_t n = w->n_prompt + w->n_decode;
	struct model_seq seq;

	draw_tokens(r, tokens, n);
	model_seq_init(&seq, n);
	uint64_t start = begin_clock();
	model_run_prefill(r, &seq, tokens, w->n_prompt, r->max_row, logits);
	if (w->n_decode > 0) {
		start = begin_clock();
		model_run_prefill(r, &seq, tokens + w->n_prompt, w->n_decode, 1, logits);
	}
	end_clock(w, round, start);
	model_seq_deinit(&seq, r);
}

static void run_streams(struct model_run *r, struct work *w, int round, float *logits)
{
	struct model_seq seqs[N_STREAM];
	struct model_feed feeds[N_STREAM];
	int32_t tokens[N_STREAM], prompt[N_STREAM_PROMPT];

	for (uint32_t i = 0; i < w->n_stream; i++) {
		draw_tokens(r, prompt, w->n_prompt);
		model_seq_init(&seqs[i], w->n_prompt + w->n_decode);
		model_run_prefill(r, &seqs[i], prompt, w->n_prompt, r->max_row, logits);
		feeds[i] = (struct model_feed){.seq = &seqs[i], .tokens = &tokens[i], .n = 1};
	}
	uint64_t start = begin_clock();
	for (uint32_t step = 0; step < w->n_decode; step++) {
		draw_tokens(r, tokens, w->n_stream);
		model_run_step(r, feeds, w->n_stream, logits);
	}
	end_clock(w, round, start);
	for (uint32_t i = 0; i < w->n_stream; i++)
		model_seq_deinit(&seqs[i], r);
}

static void run_work(struct model_run *r, struct work *w, int round, float *logits)
{
	if (w->n_stream > 0)
		run_streams(r, w, round, logits);
	else
		run_one(r, w, round, logits);
}

static bool is_wanted(const struct work *w)
{
	const char *only = getenv("NANOSERVE_BENCH_WORK");

	return !only || strncmp(w->name, only, strlen(only)) == 0;
}

static int by_ns(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static double tokens_a_second(struct work *w)
{
	uint32_t n = w->n_decode ? w->n_decode * (w->n_stream ? w->n_stream : 1) : w->n_prompt;

	qsort(w->ns, N_ROUND, sizeof(w->ns[0]), by_ns);
	return n * 1e9 / (double)w->ns[N_ROUND / 2];
}

static void print_work(const struct work *w, double value)
{
	double rest = 1;

	printf("%-14s %9.1f tok/s ", w->name, value);
	for (int i = 0; i < N_PHASE; i++) {
		double share = (double)w->phase_ns[i] / (double)w->total_ns;

		printf(" %s %.1f", phase_names[i], 100 * share);
		rest -= share;
	}
	printf(" rest %.1f %%\n", 100 * rest);
}

static void report(struct work *works, size_t n)
{
	FILE *f = fopen(JSON, "w");

	for (size_t i = 0; i < n; i++) {
		double value = tokens_a_second(&works[i]);

		print_work(&works[i], value);
		if (!f)
			continue;
		fprintf(f, "%s{\"work\": \"%s\", \"value\": %.1f, \"unit\": \"tok/s\", ",
			i ? ",\n " : "[", works[i].name, value);
		fprintf(f, "\"limit\": null, \"peer\": null, \"peer_value\": null, \"target\": ");
		fprintf(f, works[i].target > 0 ? "%.0f}" : "null}", works[i].target);
	}
	if (f) {
		fputs("]\n", f);
		fclose(f);
	}
}

int main(void)
{
	struct work works[] = {
		{.name = "prompt 5", .n_prompt = 5},
		{.name = "prompt 512", .n_prompt = 512},
		{.name = "prompt 2048", .n_prompt = 2048},
		{.name = "decode 128", .n_prompt = 5, .n_decode = N_DECODE, .target = 60},
		{.name = "after 7,000", .n_prompt = N_LONG, .n_decode = N_DECODE},
		{.name = "8 streams", N_STREAM_PROMPT, N_STREAM_DECODE, 8},
		{.name = "32 streams", N_STREAM_PROMPT, N_STREAM_DECODE, N_STREAM},
	};
	size_t n_work = 0;
	const char *name = getenv("NANOSERVE_TEST_BACKEND"), *why = "";
	const char *threads = getenv("NANOSERVE_BENCH_THREADS");
	const char *rows = getenv("NANOSERVE_BENCH_ROWS");
	int n_thread = threads ? atoi(threads) : 2, n_row = rows ? atoi(rows) : 512;
	struct nsv_err err = {""};
	char path[512];
	struct model_run r;

	if (!model_run_path(path, &why) || n_thread < 1 || n_row < 1 || n_row > MAX_ROW ||
		nsv_backend_choose(name && *name ? name : "cpu", &inner, &err) < 0) {
		fprintf(stderr, "forward: %s\n",
			*why ? why : *err.text ? err.text : "threads, rows?");
		return 1;
	}
	struct nsv_backend timed = make_timed();
	is_owner = true;
	model_run_open(&r, path, &timed, (uint32_t)n_thread, (uint32_t)n_row, N_TOKEN);
	struct nsv_logits logits;
	if (nsv_logits_init(&logits, N_STREAM, r.n_vocab) < 0)
		return 1;
	r.ld_out = logits.ld; /* as the daemon has them */
	r.slices.ranges = logits.ranges;
	printf("%s %s, %d threads\n", inner->name, inner->isa(), n_thread);
	for (size_t i = 0; i < NSV_ARRAY_LEN(works); i++)
		if (is_wanted(&works[i]))
			works[n_work++] = works[i];
	for (int round = 0; round < N_ROUND; round++)
		for (size_t i = 0; i < n_work; i++)
			run_work(&r, &works[i], round, logits.x);
	report(works, n_work);
	nsv_logits_deinit(&logits);
	model_run_close(&r);
	return 0;
}
