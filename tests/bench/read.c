/* Three ways to read a paged history of 256 to 131,072 tokens for one query row: gathered into one
 * piece and then attended to, read in place by the fused operation, and that through the
 * dispatcher. Prints the cost of the dispatch itself, and of each way the exponent e of
 * time ~ tokens^e with its standard error, over the medians of interleaved rounds.
 *
 *     make bench NAME=read        READ_CUDA=FILE: the lines of read.cu, run where there is a device
 *
 * Writes build/bench/read.json and build/bench/read.svg. 9 query heads on 3 of 64 dims, fp32. */
#include <string.h>
#include <time.h>

#include "kernels/backend.h"
#include "tests/tools/report.h"
#include "tests/tools/rnd.h"
#include "tests/tools/svg.h"

#define BLOCK 16u
#define N_HEAD 9u
#define N_KV_HEAD 3u
#define HEAD_DIM 64u
#define SLOT (N_KV_HEAD * HEAD_DIM)
#define MIN_TOKEN 256u
#define N_LEN 10
#define MAX_TOKEN (MIN_TOKEN << (N_LEN - 1))
#define N_ROUND 9
#define N_DISPATCH 1000000
#define MAX_SERIES 8
#define SVG "build/bench/read.svg"

enum way { GATHER, FUSED, DISPATCHED, N_WAY };

static const char *const way_names[N_WAY] = {"gather then attend", "fused", "dispatched"};

/* One history, where the engine has it and in one piece. */
struct read {
	struct nsv_dispatch dispatch;
	enum way way;
	struct nsv_attn_shape shape;
	struct nsv_attn_seq seq, piece;
	struct nsv_attn_plan plan;
	struct nsv_attn_call call;
	float *k, *v; /* in one piece: as many blocks, in order */
};

/* A curve of the drawing and of the table. */
struct curve {
	char name[48];
	double x[N_LEN], us[N_LEN];
	size_t n;
};

static void die(const char *what)
{
	fprintf(stderr, "read: %s\n", what);
	exit(1);
}

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

static float *draw_floats(size_t n)
{
	float *x = aligned_alloc(64, (n * sizeof(*x) + 63) / 64 * 64);

	if (!x)
		die("no memory");
	for (size_t i = 0; i < n; i++)
		x[i] = (float)t_below(2001) * 0.001f - 1.0f;
	return x;
}

/* 0 .. n-1, in order or scattered. */
static int32_t *make_table(uint32_t n, bool scattered)
{
	int32_t *table = malloc(n * sizeof(*table));

	if (!table)
		die("no memory");
	for (uint32_t i = 0; i < n; i++)
		table[i] = (int32_t)i;
	for (uint32_t i = n; scattered && i-- > 1;) {
		uint32_t j = t_below(i + 1);
		int32_t t = table[i];

		table[i] = table[j];
		table[j] = t;
	}
	return table;
}

/* Both pools keep a block's elements together, so a block of a piece is a block of the pool. */
static struct nsv_attn_shape make_shape(bool k_dim_major)
{
	struct nsv_kv_layout tok = {BLOCK * SLOT, HEAD_DIM, BLOCK * HEAD_DIM, 1};
	struct nsv_kv_layout dim = {BLOCK * SLOT, 1, BLOCK * HEAD_DIM, BLOCK};
	struct nsv_attn_shape shape = {.n_head = N_HEAD,
		.n_kv_head = N_KV_HEAD,
		.head_dim = HEAD_DIM,
		.block_size = BLOCK,
		.n_block = MAX_TOKEN / BLOCK,
		.kv_dtype = NSV_F32,
		.scale = 0.125f,
		.k = k_dim_major ? dim : tok,
		.v = tok};

	return shape;
}

static void open_read(struct read *r, const struct nsv_backend *b)
{
	size_t len = (size_t)MAX_TOKEN * SLOT, scratch;

	r->dispatch.backend = b;
	r->shape = make_shape(b->k_dim_major);
	r->k = draw_floats(len);
	r->v = draw_floats(len);
	r->seq.block_table = make_table(MAX_TOKEN / BLOCK, true);
	r->piece.block_table = make_table(MAX_TOKEN / BLOCK, false);
	if (nsv_attn_scratch_len(&r->shape, 1, MAX_TOKEN, &scratch) != NSV_ATTN_OK)
		die("the shape is refused");
	r->call = (struct nsv_attn_call){&r->shape, NULL, &r->plan, draw_floats(N_HEAD * HEAD_DIM),
		draw_floats(len), draw_floats(len), draw_floats(N_HEAD * HEAD_DIM),
		draw_floats(scratch / sizeof(float) + 1)};
}

static void set_len(struct read *r, uint32_t n_kv)
{
	r->seq.n_query = r->piece.n_query = 1;
	r->seq.n_past = r->piece.n_past = n_kv - 1;
	r->seq.n_table = r->piece.n_table = n_kv / BLOCK;
	if (nsv_attn_make_plan(&r->shape, &r->seq, 1, 1, &r->plan) != NSV_ATTN_OK)
		die("the history is refused");
}

static void gather(const struct nsv_part *part, struct read *r)
{
	size_t begin, end, len = BLOCK * SLOT;

	nsv_part_range(part, r->seq.n_table, 1, &begin, &end);
	for (size_t i = begin; i < end; i++) {
		size_t from = (size_t)r->seq.block_table[i] * len;

		memcpy(r->k + i * len, (const float *)r->call.k + from, len * sizeof(float));
		memcpy(r->v + i * len, (const float *)r->call.v + from, len * sizeof(float));
	}
	nsv_team_barrier(part);
}

static void read_part(const struct nsv_part *part, void *arg)
{
	struct read *r = arg;
	struct nsv_attn_call call = r->call;

	call.seqs = r->way == GATHER ? &r->piece : &r->seq;
	if (r->way == GATHER) {
		gather(part, r);
		call.k = r->k;
		call.v = r->v;
	}
	if (r->way == DISPATCHED)
		nsv_dispatch_attention(&r->dispatch, part, &call);
	else
		r->dispatch.backend->attention(part, &call);
	nsv_team_barrier(part);
}

static double time_read(struct nsv_team *team, struct read *r, enum way way)
{
	double start = now_us();

	r->way = way;
	nsv_team_run(team, read_part, r);
	return now_us() - start;
}

/* All ways give the same numbers. */
static void check_same(struct nsv_team *team, struct read *r)
{
	float fused[N_HEAD * HEAD_DIM];

	time_read(team, r, FUSED);
	memcpy(fused, r->call.out, sizeof(fused));
	for (int way = 0; way < N_WAY; way++) {
		time_read(team, r, (enum way)way);
		if (memcmp(fused, r->call.out, sizeof(fused)) != 0)
			die("two ways of reading differ");
	}
}

static void measure(struct nsv_team *team, struct read *r, struct curve curves[N_WAY])
{
	static double us[N_WAY][N_ROUND];

	for (int l = 0; l < N_LEN; l++) {
		set_len(r, MIN_TOKEN << l);
		check_same(team, r);
		for (int round = 0; round < N_ROUND; round++)
			for (int way = 0; way < N_WAY; way++)
				us[way][round] = time_read(team, r, (enum way)way);
		for (int way = 0; way < N_WAY; way++) {
			curves[way].x[l] = MIN_TOKEN << l;
			curves[way].us[l] = nsv_median(us[way], N_ROUND);
			curves[way].n = N_LEN;
		}
	}
	for (int way = 0; way < N_WAY; way++)
		snprintf(curves[way].name, sizeof(curves[way].name), "cpu %s", way_names[way]);
}

/* ---- The dispatch itself ---------------------------------------------------------------- */

static void read_nothing(const struct nsv_part *part, const struct nsv_attn_call *call)
{
	__asm__ volatile("" : : "r"(part), "r"(call) : "memory");
}

static double time_calls(struct nsv_dispatch *dispatch, bool direct)
{
	const struct nsv_part alone = {0, 1, NULL};
	const struct nsv_attn_call call = {0};
	double start = now_us();

	for (int i = 0; i < N_DISPATCH; i++) {
		__asm__ volatile("" : "+r"(dispatch) : : "memory");
		if (direct)
			dispatch->backend->attention(&alone, &call);
		else
			nsv_dispatch_attention(dispatch, &alone, &call);
	}
	return (now_us() - start) * 1e3 / N_DISPATCH;
}

/* Nanoseconds that a call through the dispatcher takes longer than one of the operation. */
static double dispatch_ns(void)
{
	const struct nsv_backend nothing = {.name = "nothing", .attention = read_nothing};
	struct nsv_dispatch dispatch = {.backend = &nothing};
	double ns[N_ROUND];

	for (int i = 0; i < N_ROUND; i++)
		ns[i] = time_calls(&dispatch, false) - time_calls(&dispatch, true);
	return nsv_median(ns, N_ROUND);
}

/* ---- A device's curves ------------------------------------------------------------------ */

/* Lines of read.cu: way, tokens, microseconds; the name may have spaces. */
static size_t load_curves(const char *path, struct curve *curves, size_t max)
{
	FILE *f = fopen(path, "r");
	char name[48];
	double x, us;
	size_t n = 0;

	if (!f)
		die("READ_CUDA cannot be read");
	while (fscanf(f, " %47[^:]: %lf %lf", name, &x, &us) == 3) {
		if (n == 0 || strcmp(curves[n - 1].name, name) != 0) {
			if (n == max)
				die("READ_CUDA has too many curves");
			curves[n] = (struct curve){.n = 0};
			snprintf(curves[n++].name, sizeof(name), "%s", name);
		}
		if (curves[n - 1].n == N_LEN)
			die("READ_CUDA has too many lengths");
		curves[n - 1].x[curves[n - 1].n] = x;
		curves[n - 1].us[curves[n - 1].n++] = us;
	}
	fclose(f);
	return n;
}

/* ---- What comes out --------------------------------------------------------------------- */

static void report_curve(struct nsv_report *report, const struct curve *c)
{
	char work[96];

	for (size_t i = 0; i < c->n; i++) {
		snprintf(work, sizeof(work), "%.47s, %.0f tokens", c->name, c->x[i]);
		nsv_report_time(report, work, "us", c->us[i], NULL, 0, 0);
	}
}

static void report_exponent(const struct curve *c)
{
	double error, e;

	if (c->n < 3)
		die("a curve of fewer than three lengths");
	e = nsv_fit_exponent(c->x, c->us, c->n, &error);
	printf("%s: time ~ tokens^%.3f +- %.3f\n", c->name, e, error);
}

static void report_dispatch(struct nsv_report *report, double ns, double shortest_us)
{
	nsv_report_time(report, "the dispatch itself", "ns", ns, NULL, 0, 200);
	nsv_report_time(report, "of the shortest read", "%", ns / shortest_us / 10, NULL, 0, 1);
}

static void draw(const struct curve *curves, size_t n)
{
	static const double ticks[] = {256, 1024, 4096, 16384, 65536};
	static const char *const names[] = {"256", "1,024", "4,096", "16,384", "65,536"};
	struct nsv_series series[MAX_SERIES];
	struct nsv_panel panel = {.title = "Reading a paged history",
		.x_name = "tokens",
		.y_name = "microseconds",
		.log_x = true,
		.log_y = true,
		.tick = ticks,
		.tick_name = names,
		.n_tick = 5,
		.series = series,
		.n_series = n};

	for (size_t i = 0; i < n; i++)
		series[i] = (struct nsv_series){
			curves[i].name, curves[i].x, curves[i].us, curves[i].n};
	if (nsv_svg_write(SVG, &panel, 1) < 0)
		die(SVG " cannot be written");
}

int main(void)
{
	static struct read r;
	static struct curve curves[MAX_SERIES];
	const struct nsv_backend *b;
	const char *cuda = getenv("READ_CUDA");
	struct nsv_team *team;
	struct nsv_report report;
	struct nsv_err err;
	size_t n = N_WAY;

	if (nsv_backend_choose("cpu", &b, &err) < 0)
		die(err.text);
	if (nsv_team_new(2, &team) < 0)
		die("no team");
	t_seed();
	open_read(&r, b);
	measure(team, &r, curves);
	if (cuda)
		n += load_curves(cuda, curves + n, MAX_SERIES - n);
	nsv_report_begin(&report, "read");
	for (size_t i = 0; i < n; i++)
		report_curve(&report, &curves[i]);
	report_dispatch(&report, dispatch_ns(), curves[FUSED].us[0]);
	nsv_report_end(&report);
	for (size_t i = 0; i < n; i++)
		report_exponent(&curves[i]);
	draw(curves, n);
	nsv_team_free(team);
	return 0;
}
