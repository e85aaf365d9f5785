/* Paged attention on every backend, against doubles: scattered block tables, ragged lengths, block,
 * strip and chunk edges, every layout and type of the pools, odd head sizes, group ratios; and bit
 * for bit among rows of the table, cuts of a prefill, neighbours in a batch, and sizes of team. */
#include "tests/ops/support.h"

#if defined(NSV_DEBUG)
#define N_RANDOM 8 /* with sanitizers */
#define N_CUT 300u
#define N_CUT_TYPE 1u /* fp16 alone: cutting takes long there */
#else
#define N_RANDOM 40
#define N_CUT 600u
#define N_CUT_TYPE 2u
#endif
#define N_CUT_EMULATED 120u

#define N_STREAM 21u

struct batch {
	struct nsv_attn_shape shape;
	struct nsv_attn_seq seqs[N_STREAM];
	uint32_t n_seq, n_row;
	void *k, *v;
	float *q;
	int32_t *tables[N_STREAM];
};

struct dims {
	uint32_t n_head, n_kv_head, head_dim, block_size;
};

/* ---- Making pools ----------------------------------------------------------------------- */

enum order { TOKEN_MAJOR, DIM_MAJOR, SLOT_MAJOR };

static struct nsv_kv_layout layout(const struct dims *d, enum order order, int64_t gap)
{
	int64_t bs = d->block_size, hd = d->head_dim, h = d->n_kv_head, block = bs * hd * h + gap;
	if (order == DIM_MAJOR)
		return (struct nsv_kv_layout){block, 1, bs * hd, bs};
	if (order == TOKEN_MAJOR)
		return (struct nsv_kv_layout){block, hd, bs * hd, 1};
	return (struct nsv_kv_layout){block, h * hd, hd, 1};
}

static size_t elem_len(uint32_t dtype)
{
	return dtype == NSV_F32 ? 4 : 2;
}

/* Every place is NaN until a token is written there: what a row must not see would show. */
static void *make_pool(const struct nsv_attn_shape *s, const struct nsv_kv_layout *l, int64_t gap)
{
	size_t n = (size_t)(l->block_stride * s->n_block - gap);
	char *pool = t_new(n * elem_len(s->kv_dtype), elem_len(s->kv_dtype));
	for (size_t i = 0; i < n; i++)
		nsv_store_elem(s->kv_dtype, pool, (int64_t)i, NAN);
	return pool;
}

static void write_token(const struct batch *b, const int32_t *table, uint32_t pos)
{
	const struct nsv_attn_shape *s = &b->shape;
	uint64_t slot = (uint64_t)table[pos / s->block_size] * s->block_size + pos % s->block_size;
	for (uint32_t h = 0; h < s->n_kv_head; h++)
		for (uint32_t d = 0; d < s->head_dim; d++) {
			int64_t ko, vo;
			assert_int_equal(nsv_attn_offset(s, &s->k, slot, h, d, &ko), NSV_ATTN_OK);
			assert_int_equal(nsv_attn_offset(s, &s->v, slot, h, d, &vo), NSV_ATTN_OK);
			nsv_store_elem(s->kv_dtype, b->k, ko, t_normal());
			nsv_store_elem(s->kv_dtype, b->v, vo, t_normal());
		}
}

/* A random permutation of the pool's blocks, dealt out to the sequences. */
static void deal_blocks(struct batch *b)
{
	uint32_t n = b->shape.n_block, next = 0;
	nsv_autofree int32_t *perm = malloc(n * sizeof(*perm));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t j = t_below(i + 1);
		perm[i] = perm[j];
		perm[j] = (int32_t)i;
	}
	for (uint32_t i = 0; i < b->n_seq; i++) {
		struct nsv_attn_seq *seq = &b->seqs[i];
		uint32_t n_kv = seq->n_past + seq->n_query;
		seq->n_table = (n_kv + b->shape.block_size - 1) / b->shape.block_size;
		b->tables[i] = t_new(seq->n_table * 4, 4);
		memcpy(b->tables[i], perm + next, seq->n_table * 4);
		seq->block_table = b->tables[i];
		next += seq->n_table;
		for (uint32_t p = 0; p < n_kv; p++)
			write_token(b, seq->block_table, p);
	}
}

/* lens: pairs (n_past, n_query), n_seq of them. */
static struct batch make_batch(const struct dims *d, uint32_t dtype, enum order k_order,
	const uint32_t (*lens)[2], uint32_t n_seq)
{
	int64_t gap = t_below(2) * 48;
	struct batch b = {.n_seq = n_seq};
	uint32_t n_block = 2;
	for (uint32_t i = 0; i < n_seq; i++) {
		b.seqs[i] = (struct nsv_attn_seq){
			.row0 = b.n_row, .n_past = lens[i][0], .n_query = lens[i][1]};
		b.n_row += lens[i][1];
		n_block += (lens[i][0] + lens[i][1]) / d->block_size + 1;
	}
	b.shape = (struct nsv_attn_shape){.n_head = d->n_head, .n_kv_head = d->n_kv_head,
		.head_dim = d->head_dim, .block_size = d->block_size, .n_block = n_block,
		.kv_dtype = dtype, .scale = 1.0f / sqrtf((float)d->head_dim),
		.k = layout(d, k_order, gap),
		.v = layout(d, k_order == SLOT_MAJOR ? SLOT_MAJOR : TOKEN_MAJOR, gap)};
	b.k = make_pool(&b.shape, &b.shape.k, gap);
	b.v = make_pool(&b.shape, &b.shape.v, gap);
	b.q = t_floats((size_t)b.n_row * d->n_head * d->head_dim);
	t_fill_normal(b.q, (size_t)b.n_row * d->n_head * d->head_dim, 2.0f);
	deal_blocks(&b);
	return b;
}

static void free_batch(struct batch *b)
{
	nsv_guard_free(b->k);
	nsv_guard_free(b->v);
	nsv_guard_free(b->q);
	for (uint32_t i = 0; i < b->n_seq; i++)
		nsv_guard_free(b->tables[i]);
}

/* ---- Running ---------------------------------------------------------------------------- */

struct run {
	const struct nsv_backend *backend;
	struct nsv_attn_call call;
};

static void run_part(const struct nsv_part *part, void *arg)
{
	struct run *r = arg;
	r->backend->attention(part, &r->call);
}

/* Attention of the given sequences of the batch, q and out being all of its rows. */
static void attend(const struct nsv_backend *backend, const struct batch *b,
	const struct nsv_attn_seq *seqs, uint32_t n_seq, uint32_t n_row, uint32_t n_thread,
	float *out)
{
	struct nsv_attn_plan plan;
	struct run r = {backend, {&b->shape, seqs, &plan, b->q, b->k, b->v, out, NULL}};
	int status = nsv_attn_make_plan(&b->shape, seqs, n_seq, n_row, &plan);
	if (status)
		fail_msg("plan: %s", nsv_attn_status_name(status));
	r.call.scratch = t_new(plan.scratch_len, 64);
	t_run(backend, n_thread, run_part, &r);
	nsv_guard_free(r.call.scratch);
}

static size_t out_n(const struct batch *b)
{
	return (size_t)b->n_row * b->shape.n_head * b->shape.head_dim;
}

static float *attend_all(
	const struct nsv_backend *backend, const struct batch *b, uint32_t n_thread)
{
	float *out = t_floats(out_n(b));
	attend(backend, b, b->seqs, b->n_seq, b->n_row, n_thread, out);
	return out;
}

/* ---- The truth, in doubles, gathered by nsv_attn_offset --------------------------------- */

static double load(const struct batch *b, const struct nsv_kv_layout *l, const void *pool,
	const struct nsv_attn_seq *seq, uint32_t pos, uint32_t kv, uint32_t d)
{
	uint64_t slot =
		(uint64_t)seq->block_table[pos / b->shape.block_size] * b->shape.block_size +
		pos % b->shape.block_size;
	int64_t off = 0;
	if (nsv_attn_offset(&b->shape, l, slot, kv, d, &off) != NSV_ATTN_OK)
		fail_msg("no such place: slot %llu", (unsigned long long)slot);
	return (double)nsv_load_elem(b->shape.kv_dtype, pool, off);
}

static void truth_head(const struct batch *b, const struct nsv_attn_seq *seq, uint32_t query,
	uint32_t head, float *out)
{
	const struct nsv_attn_shape *s = &b->shape;
	uint32_t kv = head / (s->n_head / s->n_kv_head), end = seq->n_past + query + 1;
	uint32_t begin = s->window && end > s->window ? end - s->window : 0;
	const float *q =
		b->q + ((size_t)(seq->row0 + query) * s->n_head + head) * s->head_dim;
	nsv_autofree double *score = malloc(end * sizeof(double));
	double max = -INFINITY, sum = 0;
	for (uint32_t p = begin; p < end; p++) {
		score[p] = 0;
		for (uint32_t d = 0; d < s->head_dim; d++)
			score[p] += (double)q[d] * load(b, &s->k, b->k, seq, p, kv, d);
		score[p] *= (double)s->scale;
		if (s->softcap > 0)
			score[p] = (double)s->softcap * tanh(score[p] / (double)s->softcap);
		max = fmax(max, score[p]);
	}
	for (uint32_t p = begin; p < end; p++)
		sum += score[p] = exp(score[p] - max);
	for (uint32_t d = 0; d < s->head_dim; d++) {
		double o = 0;
		for (uint32_t p = begin; p < end; p++)
			o += score[p] * load(b, &s->v, b->v, seq, p, kv, d);
		out[d] = (float)(o / sum);
	}
}

static float *truth(const struct batch *b)
{
	float *out = t_floats(out_n(b));
	for (uint32_t i = 0; i < b->n_seq; i++)
		for (uint32_t q = 0; q < b->seqs[i].n_query; q++)
			for (uint32_t h = 0; h < b->shape.n_head; h++)
				truth_head(b, &b->seqs[i], q, h,
					out + ((size_t)(b->seqs[i].row0 + q) *
						      b->shape.n_head + h) * b->shape.head_dim);
	return out;
}

/* Every backend within the tolerance, every row of the table with the same bits. */
static void check_batch(const struct batch *b)
{
	size_t n;
	const struct nsv_backend *list = t_backends(&n);
	float *want = truth(b), *cpu = NULL;
	for (size_t i = 0; i < n; i++) {
		float *out = attend_all(&list[i], b, 1 + t_below(5));
		t_close(list[i].name, out, want, out_n(b), 1e-5f, 1e-4f);
		if (i == 2)
			cpu = out;
		else if (i > 2)
			t_same(list[i].name, out, cpu, out_n(b));
		if (i != 2)
			nsv_guard_free(out);
	}
	nsv_guard_free(cpu);
	nsv_guard_free(want);
}

static void check(const struct dims *d, uint32_t dtype, enum order order, const uint32_t (*lens)[2],
	uint32_t n_seq)
{
	struct batch b = make_batch(d, dtype, order, lens, n_seq);
	check_batch(&b);
	free_batch(&b);
}

/* ---- Tests ------------------------------------------------------------------------------ */

/* What pools are made of, one after the other, so that tests over many shapes see both. */
static uint32_t next_dtype(void)
{
	static uint32_t n;
	return n++ % 2 ? NSV_F32 : NSV_F16;
}

static const uint32_t both[] = {NSV_F16, NSV_F32};

/* Is the i-th case with the k-th of n variants left to those who have the time? The others take
 * turns. */
static bool is_spared(size_t i, size_t k, size_t n)
{
	return t_emulated() && (i + k) % n != 1;
}

static void test_head_sizes(void **unused)
{
	static const uint32_t sizes[] = {64, 80, 96, 128, 256, 1, 7, 33, 100, 1024};
	(void)unused;
	for (size_t i = 0; i < NSV_ARRAY_LEN(sizes); i++)
		for (uint32_t order = 0; order < 3; order++) {
			if (is_spared(i, order, 3))
				continue;
			struct dims d = {4, 2, sizes[i], 16};
			uint32_t lens[3][2] = {
				{t_below(60), 1}, {0, 1 + t_below(20)}, {t_below(40), 5}};
			check(&d, next_dtype(), (enum order)order, lens, 3);
		}
}

static void test_groups(void **unused)
{
	(void)unused;
	for (uint32_t group = 1; group <= 9; group++) {
		uint32_t n_kv = 1 + t_below(3);
		struct dims d = {group * n_kv, n_kv, 32, 16};
		uint32_t lens[2][2] = {{t_below(300), 1}, {t_below(50), 1 + t_below(30)}};
		check(&d, next_dtype(), DIM_MAJOR, lens, 2);
	}
	check(&(struct dims){30, 1, 16, 32}, next_dtype(), DIM_MAJOR,
		(const uint32_t[][2]){{20, 3}}, 1);
	check(&(struct dims){9, 3, 64, 16}, NSV_F16, DIM_MAJOR, (const uint32_t[][2]){{250, 30}},
		1);
}

static void test_block_sizes(void **unused)
{
	(void)unused;
	for (uint32_t i = 0, bs = 1; bs <= 1024; i++, bs *= 2)
		for (uint32_t order = 0; order < 3; order++) {
			if (is_spared(i, order, 3))
				continue;
			struct dims d = {3, 1, 48, bs};
			uint32_t lens[3][2] = {
				{bs - 1, 1}, {bs < 300 ? bs : 0, 2}, {t_below(100), 3}};
			check(&d, next_dtype(), (enum order)order, lens, 3);
		}
}

static void test_types(void **unused)
{
	static const uint32_t dtypes[] = {NSV_F16, NSV_BF16};
	(void)unused;
	for (size_t i = 0; i < NSV_ARRAY_LEN(dtypes); i++)
		for (int order = 0; order < 3; order++) {
			struct dims d = {6, 2, 64, 16};
			uint32_t lens[2][2] = {{t_below(300), 1}, {t_below(20), 1 + t_below(20)}};
			check(&d, dtypes[i], (enum order)order, lens, 2);
		}
}

/* Lengths around a group of 16, a strip, a chunk, and where chunks begin to grow. */
static void test_edges(void **unused)
{
	static const uint32_t edges[] = {1, 15, 16, 17, 31, 32, 255, 256, 257, 511, 512, 513, 1024};
	struct dims d = {2, 1, 16, 16};
	(void)unused;
	for (size_t i = 0; i < 2 * NSV_ARRAY_LEN(edges); i++) {
		if (is_spared(i / 2, i % 2, 2))
			continue;
		uint32_t n = edges[i / 2] - 1, lens[2][2] = {{n, 1}, {n, 1 + t_below(9)}};
		check(&d, both[i % 2], DIM_MAJOR, lens, 2);
	}
	check(&d, next_dtype(), DIM_MAJOR, (const uint32_t[][2]){{4095, 2}, {4607, 1}, {4600, 10}},
		3);
}

static void test_window_and_cap(void **unused)
{
	(void)unused;
	for (uint32_t window = 1; window < 700; window = window * 3 + t_below(5)) {
		struct dims d = {4, 2, 32, 16};
		uint32_t lens[3][2] = {{600 + t_below(100), 1}, {250, 20}, {0, 40}};
		struct batch b = make_batch(&d, next_dtype(), DIM_MAJOR, lens, 3);
		b.shape.window = window;
		b.shape.softcap = t_below(2) ? 5.0f : 0.0f;
		check_batch(&b);
		free_batch(&b);
	}
}

/* Scores far apart: one key takes all, wherever it stands. */
static void test_peaked(void **unused)
{
	(void)unused;
	for (int i = 0; i < 6; i++) {
		struct dims d = {3, 3, 64, 16};
		uint32_t lens[1][2] = {{t_below(800), 1 + t_below(4)}};
		struct batch b = make_batch(&d, next_dtype(), DIM_MAJOR, lens, 1);
		size_t n;
		const struct nsv_backend *list = t_backends(&n);
		float *want;
		b.shape.scale = 30.0f;
		want = truth(&b);
		for (size_t j = 0; j < n; j++) {
			float *out = attend_all(&list[j], &b, 2);
			/* exp of a difference of thousands: its argument's rounding shows */
			t_close(list[j].name, out, want, out_n(&b), 5e-2f, 5e-2f);
			nsv_guard_free(out);
		}
		nsv_guard_free(want);
		free_batch(&b);
	}
}

static void check_cuts(uint32_t dtype)
{
	static const uint32_t cuts[] = {1, 16, 100, 7};
	struct dims d = {9, 3, 64, 16};
	size_t n, row = 9 * 64;
	uint32_t n_row = t_emulated() ? N_CUT_EMULATED : N_CUT;
	const struct nsv_backend *list = t_backends(&n);
	struct batch b = make_batch(&d, dtype, DIM_MAJOR, (const uint32_t[][2]){{0, n_row}}, 1);
	for (size_t i = dtype == NSV_F32 ? 2 : 1; i < n; i++) {
		float *whole = attend_all(&list[i], &b, 2), *out;
		size_t first = i == 1 ? 2 : 0; /* `model` is slow */
		for (size_t c = first; c < NSV_ARRAY_LEN(cuts); c++) {
			out = t_floats(out_n(&b));
			for (uint32_t at = 0; at < n_row; at += cuts[c]) {
				struct nsv_attn_seq seq = b.seqs[0];
				seq.n_past = seq.row0 = at;
				seq.n_query = at + cuts[c] > n_row ? n_row - at : cuts[c];
				attend(&list[i], &b, &seq, 1, n_row, 1, out);
			}
			t_same(list[i].name, out, whole, n_row * row);
			nsv_guard_free(out);
		}
		nsv_guard_free(whole);
	}
	free_batch(&b);
}

/* A prefill cut into pieces, each with its own plan: the bits of the whole. */
static void test_cuts(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < N_CUT_TYPE; i++)
		check_cuts(both[i]);
}

static void check_split(uint32_t dtype)
{
	struct dims d = {6, 2, 80, 16};
	size_t n;
	const struct nsv_backend *list = t_backends(&n);
	struct batch b = make_batch(&d, dtype, DIM_MAJOR,
		(const uint32_t[][2]){{1000, 1}, {0, 1}, {254, 4}, {4700, 1}}, 4);
	for (size_t i = 2; i < n; i++) {
		float *one = attend_all(&list[i], &b, 1);
		for (uint32_t threads = 2; threads <= 5; threads++) {
			float *out = attend_all(&list[i], &b, threads);
			t_same(list[i].name, out, one, out_n(&b));
			nsv_guard_free(out);
		}
		nsv_guard_free(one);
	}
	free_batch(&b);
}

/* Decode rows that are few enough for their chunks to be shared out: the bits of one thread. */
static void test_split(void **unused)
{
	(void)unused;
	for (size_t i = t_emulated(); i < NSV_ARRAY_LEN(both); i++)
		check_split(both[i]);
}

static void check_neighbours(uint32_t dtype)
{
	struct dims d = {9, 3, 64, 16};
	size_t n, row = 9 * 64;
	const struct nsv_backend *list = t_backends(&n);
	struct batch b = make_batch(&d, dtype, DIM_MAJOR,
		(const uint32_t[][2]){{700, 1}, {30, 20}, {0, 70}, {299, 1}, {3, 0}}, 5);
	for (size_t i = 1; i < n; i++) {
		float *all = attend_all(&list[i], &b, 3);
		for (uint32_t s = 0; s < 4; s++) {
			float *out = t_floats(out_n(&b));
			size_t at = b.seqs[s].row0 * row;
			attend(&list[i], &b, &b.seqs[s], 1, b.n_row, 1 + t_below(5), out);
			t_same(list[i].name, out + at, all + at, b.seqs[s].n_query * row);
			nsv_guard_free(out);
		}
		nsv_guard_free(all);
	}
	free_batch(&b);
}

/* A sequence alone, and among others. */
static void test_neighbours(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < NSV_ARRAY_LEN(both); i++)
		check_neighbours(both[i]);
}

/* More streams than are split, some with a window: KV heads that are worked on together, by fours,
 * with one left, and by twos. */
static void test_streams(void **unused)
{
	static const struct dims shapes[] = {{10, 5, 64, 16}, {14, 2, 64, 16}, {8, 4, 128, 16}};
	uint32_t lens[N_STREAM][2];
	(void)unused;
	for (size_t i = 0; i < 2 * NSV_ARRAY_LEN(shapes); i++) {
		if (is_spared(i / 2, i % 2, 2))
			continue;
		for (uint32_t k = 0; k < N_STREAM; k++) {
			lens[k][0] = t_below(k % 4 ? 60 : 600);
			lens[k][1] = 1;
		}
		struct batch b =
			make_batch(&shapes[i / 2], both[i % 2], DIM_MAJOR, lens, N_STREAM);
		b.shape.window = i == 1 ? 300 : 0;
		check_batch(&b);
		free_batch(&b);
	}
}

/* One element of the pool that fp16 cannot hold: appended, it ends every row that sees it, whatever
 * its sign and the query's, and no other one. */
static void check_beyond(const struct nsv_backend *backend, bool in_k, uint32_t window)
{
	struct dims d = {6, 2, 64, 16};
	struct batch b = make_batch(
		&d, NSV_F16, DIM_MAJOR, (const uint32_t[][2]){{0, 80}, {79, 1}, {300, 1}}, 3);
	uint32_t at = t_below(80), kv = t_below(2), group = d.n_head / d.n_kv_head;
	float rows[2][2 * 64], *out;
	int64_t slot = b.tables[0][at / 16] * 16 + at % 16;
	b.shape.window = window;
	t_fill_normal(rows[0], 128, 1);
	t_fill_normal(rows[1], 128, 1);
	rows[!in_k][kv * 64 + t_below(64)] = t_below(2) ? 65520 : -1e30f;
	backend->kv_append(&t_alone, &b.shape, b.k, b.v, rows[0], rows[1], 128, &slot, 1);
	out = attend_all(backend, &b, 2);
	for (uint32_t i = 0; i < b.n_row * d.n_head; i++) {
		uint32_t row = i / d.n_head, head = i % d.n_head;
		bool sees = row < 80 && row >= at && (!window || row - at < window) &&
			head / group == kv;
		bool any = false;
		for (uint32_t j = 0; j < 64; j++)
			any |= !isfinite(out[(size_t)i * 64 + j]);
		if (any != sees)
			fail_msg("%s: row %u, head %u; the element is in %u, head %u",
				backend->name, row, head, at, kv);
	}
	nsv_guard_free(out);
	free_batch(&b);
}

static void test_beyond_f16(void **unused)
{
	size_t n;
	const struct nsv_backend *list = t_backends(&n);
	(void)unused;
	for (size_t i = 0; i < n; i++)
		for (uint32_t in_k = 0; in_k < 2; in_k++) {
			check_beyond(&list[i], in_k, 0);
			check_beyond(&list[i], in_k, 1 + t_below(20));
		}
}

/* Elements of a whole pool; those between blocks with it. */
static int64_t pool_n(const struct nsv_attn_shape *s, const struct nsv_kv_layout *l)
{
	int64_t last = (int64_t)s->block_size * s->n_kv_head * s->head_dim;

	return l->block_stride * (s->n_block - 1) + last;
}

/* Every token's. */
static void set_pool(
	const struct nsv_attn_shape *s, const struct nsv_kv_layout *l, void *pool, float to)
{
	for (int64_t i = 0; i < pool_n(s, l); i++)
		if (!isnan(nsv_load_elem(s->kv_dtype, pool, i)))
			nsv_store_elem(s->kv_dtype, pool, i, to);
}

/* Keys that are all equal, as large as they get, zeros or below the normal numbers of fp16: each
 * row is its values' mean. Then values that are so too. */
static void test_extremes(void **unused)
{
	static const float some[] = {0, 65504, -65504, 0x1p-24f, -1};
	static const uint32_t lens[3][2] = {{0, 20}, {300, 1}, {0, 1}};
	const struct dims d = {6, 2, 64, 16};
	(void)unused;
	for (size_t i = 0; i < 2 * NSV_ARRAY_LEN(some); i++) {
		if (is_spared(i / 2, i % 2, 2))
			continue;
		struct batch b = make_batch(&d, both[i % 2], DIM_MAJOR, lens, 3);
		set_pool(&b.shape, &b.shape.k, b.k, some[i / 2]);
		check_batch(&b);
		set_pool(&b.shape, &b.shape.v, b.v, some[t_below(NSV_ARRAY_LEN(some))]);
		check_batch(&b);
		memset(b.q, 0, out_n(&b) * sizeof(float));
		check_batch(&b);
		free_batch(&b);
	}
}

static void test_random(void **unused)
{
	(void)unused;
	for (int i = 0; i < (t_emulated() ? 4 : N_RANDOM); i++) {
		uint32_t n_kv = 1 + t_below(4), lens[6][2], n_seq = 1 + t_below(6);
		struct dims d = {n_kv * (1 + t_below(5)), n_kv, 1 + t_below(150), 1u << t_below(7)};
		for (uint32_t s = 0; s < n_seq; s++) {
			lens[s][0] = t_below(t_below(5) ? 100 : 700);
			lens[s][1] = t_below(t_below(3) ? 2 : 40) + (s == 0);
		}
		check(&d, next_dtype(), (enum order)t_below(3), (const uint32_t(*)[2])lens, n_seq);
	}
}

/* Values around the smallest normal number, at their places of a pool of whole fp32 blocks. */
static void shrink_values(struct batch *b)
{
	float *v = b->v;
	for (int64_t i = 0; i < pool_n(&b->shape, &b->shape.v); i++)
		v[i] *= 0x1p-124f;
}

/* Numbers below the normal ones are zeros in every row, alone and in many rows; the backend sees to
 * that itself, and leaves the thread as it was. */
static void check_flushed(const uint32_t lens[2])
{
	const struct dims d = {6, 2, 64, 16};
	size_t n;
	const struct nsv_backend *list = t_backends(&n);
	struct batch b = make_batch(&d, NSV_F32, DIM_MAJOR, (const uint32_t(*)[2])lens, 1);
	uint32_t n_zero = 0;
	shrink_values(&b);
	float *want = attend_all(&nsv_cpu_backend, &b, 2);
	assert_false(t_is_flushing());
	for (size_t i = 0; i < out_n(&b); i++) {
		assert_true(want[i] == 0 || fabsf(want[i]) >= 0x1p-126f);
		n_zero += want[i] == 0;
	}
	assert_true(n_zero > 0 && n_zero < out_n(&b));
	for (size_t i = 2; i < n; i++) {
		float *out = attend_all(&list[i], &b, 1 + t_below(3));
		t_same(list[i].name, out, want, out_n(&b));
		nsv_guard_free(out);
	}
	nsv_guard_free(want);
	free_batch(&b);
}

static void test_flushed(void **unused)
{
	static const uint32_t lens[][2] = {{3, 1}, {0, 20}, {300, 1}};
	(void)unused;
	if (!t_can_flush()) {
		print_message("skipped: no mode that takes subnormal numbers for zeros\n");
		skip();
	}
	for (size_t i = 0; i < NSV_ARRAY_LEN(lens); i++)
		check_flushed(lens[i]);
}

/* The dispatcher calls the backend that it was given, and counts. */
static uint32_t n_called;

static void counting_attention(const struct nsv_part *part, const struct nsv_attn_call *call)
{
	(void)part;
	(void)call;
	n_called++;
}

static void test_dispatch(void **unused)
{
	struct nsv_backend stub = nsv_reference_backend;
	struct nsv_dispatch dispatch = {&stub, 0};
	struct nsv_attn_call call = {0};
	(void)unused;
	stub.attention = counting_attention;
	for (uint32_t i = 1; i <= 3; i++) {
		nsv_dispatch_attention(&dispatch, &t_alone, &call);
		assert_int_equal(n_called, i);
		assert_int_equal(dispatch.n_attention, i);
	}
	nsv_dispatch_attention(&dispatch, &(struct nsv_part){1, 2, NULL}, &call);
	assert_int_equal(n_called, 4);
	assert_int_equal(dispatch.n_attention, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_head_sizes),
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_block_sizes),
		cmocka_unit_test(test_types),
		cmocka_unit_test(test_edges),
		cmocka_unit_test(test_window_and_cap),
		cmocka_unit_test(test_peaked),
		cmocka_unit_test(test_cuts),
		cmocka_unit_test(test_split),
		cmocka_unit_test(test_neighbours),
		cmocka_unit_test(test_streams),
		cmocka_unit_test(test_beyond_f16),
		cmocka_unit_test(test_extremes),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_flushed),
		cmocka_unit_test(test_dispatch),
	};
	t_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
