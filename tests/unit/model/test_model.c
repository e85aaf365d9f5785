/* A small random model, written as a GGUF file in memory: what the loader refuses and with which
 * words, the forward pass against a plain one in double precision, and every integer of a batch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "daemon/model/model.h"

enum {
	N_LAYER = 2,
	N_EMBD = 64,
	N_FF = 96,
	N_HEAD = 4,
	N_KV = 2,
	HEAD_DIM = 16,
	N_Q = N_HEAD * HEAD_DIM,
	N_K = N_KV * HEAD_DIM,
	N_VOCAB = 40,
	N_CTX = 64,
	N_TENSOR = 9 * N_LAYER + 3,
	BLOCK = 8,
	N_BLOCK = 12,
	MAX_ROW = 24,
};
#define ROPE_BASE 5000.0f
#define EPS 1e-5f

/* ---- The file */

struct tensor {
	char name[64];
	uint64_t n_in, n_out; /* n_out 0: a vector */
	float *w;
};

/* What is wrong with it, if anything. */
struct flaw {
	const char *drop;    /* a tensor that is missing */
	const char *longer;  /* a tensor with a row too many */
	const char *add;     /* a tensor too many */
	const char *set_key; /* "<arch>.<key>", a u32: added, or changed */
	uint32_t value;
	const char *drop_key;
	const char *arch, *scaling;
	uint32_t n_token;
	bool tied;
};

struct file {
	unsigned char *p;
	size_t len;
	struct tensor t[N_TENSOR + 1];
	size_t n;
};

static float draw_float(void)
{
	return 2 * (float)random() / (float)RAND_MAX - 1;
}

static void add_tensor(struct file *f, const char *name, uint64_t n_in, uint64_t n_out)
{
	struct tensor *t = &f->t[f->n++];
	size_t n = n_in * (n_out ? n_out : 1);

	snprintf(t->name, sizeof(t->name), "%s", name);
	t->n_in = n_in;
	t->n_out = n_out;
	t->w = calloc(n, sizeof(*t->w));
	assert_non_null(t->w);
	for (size_t i = 0; i < n; i++)
		t->w[i] = n_out ? draw_float() / sqrtf((float)n_in) * 2 : 1 + draw_float() / 2;
}

static void add_layer_tensor(
	struct file *f, int layer, const char *suffix, uint64_t n_in, uint64_t n_out)
{
	char name[64];

	snprintf(name, sizeof(name), "blk.%d.%s.weight", layer, suffix);
	add_tensor(f, name, n_in, n_out);
}

static void add_tensors(struct file *f)
{
	add_tensor(f, "token_embd.weight", N_EMBD, N_VOCAB);
	add_tensor(f, "output_norm.weight", N_EMBD, 0);
	add_tensor(f, "output.weight", N_EMBD, N_VOCAB);
	for (int i = 0; i < N_LAYER; i++) {
		add_layer_tensor(f, i, "attn_norm", N_EMBD, 0);
		add_layer_tensor(f, i, "attn_q", N_EMBD, N_Q);
		add_layer_tensor(f, i, "attn_k", N_EMBD, N_K);
		add_layer_tensor(f, i, "attn_v", N_EMBD, N_K);
		add_layer_tensor(f, i, "attn_output", N_Q, N_EMBD);
		add_layer_tensor(f, i, "ffn_norm", N_EMBD, 0);
		add_layer_tensor(f, i, "ffn_gate", N_EMBD, N_FF);
		add_layer_tensor(f, i, "ffn_up", N_EMBD, N_FF);
		add_layer_tensor(f, i, "ffn_down", N_FF, N_EMBD);
	}
}

static void put(struct file *f, const void *p, size_t len)
{
	memcpy(f->p + f->len, p, len);
	f->len += len;
}

static void put_u32(struct file *f, uint32_t x)
{
	put(f, &x, sizeof(x));
}

static void put_u64(struct file *f, uint64_t x)
{
	put(f, &x, sizeof(x));
}

static void put_str(struct file *f, const char *s)
{
	put_u64(f, strlen(s));
	put(f, s, strlen(s));
}

enum { TYPE_U32 = 4, TYPE_F32 = 6, TYPE_STR = 8, TYPE_ARRAY = 9 };

static void put_key(struct file *f, const char *arch, const char *key, uint32_t type)
{
	char name[128];

	snprintf(name, sizeof(name), "%s.%s", arch, key);
	put_str(f, name);
	put_u32(f, type);
}

static uint64_t put_counts(struct file *f, const struct flaw *flaw)
{
	const struct {
		const char *key;
		uint32_t value;
	} keys[] = {
		{"block_count", N_LAYER},
		{"embedding_length", N_EMBD},
		{"feed_forward_length", N_FF},
		{"attention.head_count", N_HEAD},
		{"attention.head_count_kv", N_KV},
		{"context_length", N_CTX},
	};
	uint64_t n = 0;

	for (size_t i = 0; i < NSV_ARRAY_LEN(keys); i++) {
		if (flaw->drop_key && strcmp(flaw->drop_key, keys[i].key) == 0)
			continue;
		bool changed = flaw->set_key && strcmp(flaw->set_key, keys[i].key) == 0;
		put_key(f, flaw->arch, keys[i].key, TYPE_U32);
		put_u32(f, changed ? flaw->value : keys[i].value);
		n++;
	}
	return n;
}

static bool is_count(const char *key)
{
	return strcmp(key, "block_count") == 0 || strcmp(key, "embedding_length") == 0 ||
	       strcmp(key, "feed_forward_length") == 0 ||
	       strncmp(key, "attention.head_count", 20) == 0 || strcmp(key, "context_length") == 0;
}

static uint64_t put_metadata(struct file *f, const struct flaw *flaw)
{
	uint64_t n = 4 + put_counts(f, flaw);

	put_str(f, "general.architecture");
	put_u32(f, TYPE_STR);
	put_str(f, flaw->arch);
	put_key(f, flaw->arch, "attention.layer_norm_rms_epsilon", TYPE_F32);
	put(f, &(float){EPS}, sizeof(float));
	put_key(f, flaw->arch, "rope.freq_base", TYPE_F32);
	put(f, &(float){ROPE_BASE}, sizeof(float));
	put_str(f, "tokenizer.ggml.tokens");
	put_u32(f, TYPE_ARRAY);
	put_u32(f, TYPE_STR);
	put_u64(f, flaw->n_token);
	for (uint32_t i = 0; i < flaw->n_token; i++)
		put_str(f, "t");
	if (flaw->scaling) {
		put_key(f, flaw->arch, "rope.scaling.type", TYPE_STR);
		put_str(f, flaw->scaling);
		n++;
	}
	if (flaw->set_key && !is_count(flaw->set_key)) {
		put_key(f, flaw->arch, flaw->set_key, TYPE_U32);
		put_u32(f, flaw->value);
		n++;
	}
	return n;
}

static bool is_named(const char *want, const struct tensor *t)
{
	return want && strcmp(want, t->name) == 0;
}

/* A longer tensor says so; its bytes are there too. */
static void put_tensors(struct file *f, const struct flaw *flaw)
{
	uint64_t off = 0;

	for (size_t i = 0; i < f->n; i++) {
		const struct tensor *t = &f->t[i];
		uint64_t n_out = (t->n_out ? t->n_out : 1) + is_named(flaw->longer, t);

		put_str(f, t->name);
		put_u32(f, n_out > 1 ? 2 : 1);
		put_u64(f, t->n_in);
		if (n_out > 1)
			put_u64(f, n_out);
		put_u32(f, NSV_F32);
		put_u64(f, off);
		off += t->n_in * n_out * sizeof(float);
	}
	f->len = (f->len + 31) / 32 * 32;
	for (size_t i = 0; i < f->n; i++) {
		const struct tensor *t = &f->t[i];
		size_t row = t->n_in * sizeof(float);

		put(f, t->w, row * (t->n_out ? t->n_out : 1));
		f->len += row * is_named(flaw->longer, t);
	}
}

static void drop_tensor(struct file *f, const char *name)
{
	for (size_t i = 0; i < f->n; i++)
		if (is_named(name, &f->t[i])) {
			free(f->t[i].w);
			memmove(&f->t[i], &f->t[i + 1], (--f->n - i) * sizeof(f->t[0]));
			return;
		}
	fail_msg("no tensor %s", name);
}

static struct file make_file(struct flaw flaw)
{
	struct file f = {.p = calloc(1, 1 << 20)};

	assert_non_null(f.p);
	flaw.arch = flaw.arch ? flaw.arch : "llama";
	flaw.n_token = flaw.n_token ? flaw.n_token : N_VOCAB;
	add_tensors(&f);
	if (flaw.tied)
		drop_tensor(&f, "output.weight");
	if (flaw.drop)
		drop_tensor(&f, flaw.drop);
	if (flaw.add)
		add_tensor(&f, flaw.add, N_EMBD, 0);
	put(&f, "GGUF", 4);
	put_u32(&f, 3);
	put_u64(&f, f.n);
	put_u64(&f, 0);
	uint64_t n_key = put_metadata(&f, &flaw);
	memcpy(f.p + 16, &n_key, sizeof(n_key));
	put_tensors(&f, &flaw);
	assert_true(f.len < 1 << 20);
	return f;
}

static void free_file(struct file *f)
{
	for (size_t i = 0; i < f->n; i++)
		free(f->t[i].w);
	free(f->p);
}

static const float *weight(const struct file *f, int layer, const char *suffix)
{
	char name[64];

	if (layer < 0)
		snprintf(name, sizeof(name), "%s.weight", suffix);
	else
		snprintf(name, sizeof(name), "blk.%d.%s.weight", layer, suffix);
	for (size_t i = 0; i < f->n; i++)
		if (strcmp(f->t[i].name, name) == 0)
			return f->t[i].w;
	return NULL;
}

/* ---- A plain forward pass of one sequence in double precision */

static void ref_product(double *out, const float *w, const double *x, int n_out, int n_in)
{
	for (int o = 0; o < n_out; o++) {
		out[o] = 0;
		for (int i = 0; i < n_in; i++)
			out[o] += w[o * n_in + i] * x[i];
	}
}

static void ref_norm(double *out, const double *x, const float *w)
{
	double sum = 0;

	for (int i = 0; i < N_EMBD; i++)
		sum += x[i] * x[i];
	for (int i = 0; i < N_EMBD; i++)
		out[i] = x[i] / sqrt(sum / N_EMBD + EPS) * w[i];
}

static void ref_rope(double *x, int n_head, int pos)
{
	for (int i = 0; i < n_head * HEAD_DIM; i += 2) {
		double a = pos * pow(ROPE_BASE, -(double)(i % HEAD_DIM) / HEAD_DIM);
		double x0 = x[i], x1 = x[i + 1];

		x[i] = x0 * cos(a) - x1 * sin(a);
		x[i + 1] = x0 * sin(a) + x1 * cos(a);
	}
}

struct ref_state {
	double k[N_LAYER][N_CTX][N_K], v[N_LAYER][N_CTX][N_K];
};

static void ref_attend(double *out, const double *q, const struct ref_state *s, int layer, int pos)
{
	for (int h = 0; h < N_HEAD; h++) {
		int kv = h / (N_HEAD / N_KV) * HEAD_DIM;
		double p[N_CTX], sum = 0;

		for (int t = 0; t <= pos; t++) {
			p[t] = 0;
			for (int d = 0; d < HEAD_DIM; d++)
				p[t] += q[h * HEAD_DIM + d] * s->k[layer][t][kv + d];
			p[t] = exp(p[t] / sqrt(HEAD_DIM));
			sum += p[t];
		}
		for (int d = 0; d < HEAD_DIM; d++) {
			out[h * HEAD_DIM + d] = 0;
			for (int t = 0; t <= pos; t++)
				out[h * HEAD_DIM + d] += p[t] / sum * s->v[layer][t][kv + d];
		}
	}
}

static void ref_layer(const struct file *f, struct ref_state *s, double *x, int layer, int pos)
{
	double n[N_EMBD], q[N_Q], a[N_Q], y[N_EMBD], gate[N_FF], up[N_FF];
	double *k = s->k[layer][pos];

	ref_norm(n, x, weight(f, layer, "attn_norm"));
	ref_product(q, weight(f, layer, "attn_q"), n, N_Q, N_EMBD);
	ref_product(k, weight(f, layer, "attn_k"), n, N_K, N_EMBD);
	ref_product(s->v[layer][pos], weight(f, layer, "attn_v"), n, N_K, N_EMBD);
	ref_rope(q, N_HEAD, pos);
	ref_rope(k, N_KV, pos);
	ref_attend(a, q, s, layer, pos);
	ref_product(y, weight(f, layer, "attn_output"), a, N_EMBD, N_Q);
	for (int i = 0; i < N_EMBD; i++)
		x[i] += y[i];
	ref_norm(n, x, weight(f, layer, "ffn_norm"));
	ref_product(gate, weight(f, layer, "ffn_gate"), n, N_FF, N_EMBD);
	ref_product(up, weight(f, layer, "ffn_up"), n, N_FF, N_EMBD);
	for (int i = 0; i < N_FF; i++)
		gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
	ref_product(y, weight(f, layer, "ffn_down"), gate, N_EMBD, N_FF);
	for (int i = 0; i < N_EMBD; i++)
		x[i] += y[i];
}

/* logits (n, N_VOCAB) */
static void ref_forward(const struct file *f, const int32_t *tokens, int n, double *logits)
{
	const float *embd = weight(f, -1, "token_embd"), *head = weight(f, -1, "output");
	struct ref_state *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	for (int pos = 0; pos < n; pos++) {
		double x[N_EMBD], norm[N_EMBD];

		for (int i = 0; i < N_EMBD; i++)
			x[i] = embd[tokens[pos] * N_EMBD + i];
		for (int layer = 0; layer < N_LAYER; layer++)
			ref_layer(f, s, x, layer, pos);
		ref_norm(norm, x, weight(f, -1, "output_norm"));
		ref_product(logits + pos * N_VOCAB, head ? head : embd, norm, N_VOCAB, N_EMBD);
	}
	free(s);
}

/* ---- Loading */

static const struct nsv_backend *find_backend(const char *name)
{
	const struct nsv_backend *backend = NULL;

	assert_int_equal(nsv_backend_choose(name, &backend, NULL), 0);
	return backend;
}

static void expect_refused(struct flaw flaw, const char *word)
{
	struct file f = make_file(flaw);
	struct nsv_err err = {""};
	struct nsv_gguf *g;
	struct nsv_team *team;
	struct nsv_model *m = NULL;

	if (nsv_gguf_parse(f.p, f.len, &g, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(nsv_team_new(1, &team), 0);
	const struct nsv_model_config few = {.max_row = 4, .max_out = 4};
	int ret = nsv_model_new(g, find_backend("reference"), team, &few, &m, &err);
	if (ret >= 0 || !strstr(err.text, word))
		fail_msg("%d \"%s\", expected an error with \"%s\"", ret, err.text, word);
	assert_null(m);
	nsv_team_free(team);
	nsv_gguf_close(g);
	free_file(&f);
}

static void test_refuses_tensors(void **state)
{
	struct file f = make_file((struct flaw){0});

	(void)state;
	for (size_t i = 0; i < f.n; i++) {
		const char *name = f.t[i].name;

		/* Without a head of its own, the model is tied: fine. */
		if (strcmp(name, "output.weight"))
			expect_refused((struct flaw){.drop = name}, name);
		expect_refused((struct flaw){.longer = name}, name);
	}
	free_file(&f);
	expect_refused((struct flaw){.add = "blk.0.attn_q.bias"}, "blk.0.attn_q.bias");
	expect_refused((struct flaw){.add = "rope_freqs.weight"}, "rope_freqs.weight");
	expect_refused((struct flaw){.add = "blk.2.attn_norm.weight"}, "blk.2.attn_norm");
}

static void test_refuses_keys(void **state)
{
	static const struct {
		const char *key;
		uint32_t value;
		const char *word;
	} bad[] = {
		{"block_count", 0, "block_count"},
		{"block_count", 513, "block_count"},
		{"block_count", 1, "blk.1"},
		{"block_count", 3, "blk.2"},
		{"embedding_length", 0, "embedding_length"},
		{"embedding_length", UINT32_MAX, "embedding_length"},
		{"embedding_length", 128, "128"},
		{"feed_forward_length", 0, "feed_forward_length"},
		{"feed_forward_length", 128, "ffn_gate"},
		{"attention.head_count", 0, "head_count"},
		{"attention.head_count", 5, "heads"},
		{"attention.head_count_kv", 3, "KV heads"},
		{"attention.head_count_kv", 8, "head_count_kv"},
		{"attention.head_count_kv", 1, "attn_k"},
		{"context_length", 0, "context_length"},
		{"context_length", 1u << 30, "context_length"},
		{"attention.key_length", 2048, "key_length"},
		{"attention.key_length", 32, "attn_q"},
		{"attention.value_length", 8, "values of 8"},
		{"rope.dimension_count", 7, "even"},
		{"rope.dimension_count", 18, "dimension_count"},
		{"vocab_size", N_VOCAB + 1, "vocab_size"},
		{"expert_count", 8, "expert_count"},
		{"attention.sliding_window", 32, "sliding_window"},
	};
	static const char *const needed[] = {"block_count", "embedding_length",
		"feed_forward_length", "attention.head_count", "context_length"};

	(void)state;
	for (size_t i = 0; i < NSV_ARRAY_LEN(bad); i++)
		expect_refused(
			(struct flaw){.set_key = bad[i].key, .value = bad[i].value}, bad[i].word);
	for (size_t i = 0; i < NSV_ARRAY_LEN(needed); i++)
		expect_refused((struct flaw){.drop_key = needed[i]}, needed[i]);
	expect_refused((struct flaw){.arch = "mamba"}, "mamba");
	expect_refused((struct flaw){.scaling = "yarn"}, "yarn");
	expect_refused((struct flaw){.n_token = N_VOCAB - 1}, "token_embd");
}

/* ---- Forward */

struct rig {
	struct file f;
	struct nsv_gguf *g;
	struct nsv_team *team;
	struct nsv_model *m;
	struct nsv_dispatch dispatch;
	struct nsv_model_kv kv;
	float *pool;
};

static void open_rig(
	struct rig *r, struct flaw flaw, const struct nsv_backend *backend, uint32_t n_thread)
{
	const int64_t head = HEAD_DIM * BLOCK, plane = N_KV * head, block = 2 * N_LAYER * plane;
	struct nsv_err err = {""};

	*r = (struct rig){.f = make_file(flaw), .dispatch = {.backend = backend}};
	assert_int_equal(nsv_gguf_parse(r->f.p, r->f.len, &r->g, &err), 0);
	assert_int_equal(nsv_team_new(n_thread, &r->team), 0);
	const struct nsv_model_config config = {.max_row = MAX_ROW, .max_out = MAX_ROW};
	if (nsv_model_new(r->g, backend, r->team, &config, &r->m, &err) < 0)
		fail_msg("%s", err.text);
	r->pool = calloc((size_t)block * N_BLOCK, sizeof(float));
	assert_non_null(r->pool);
	r->kv = (struct nsv_model_kv){.base = r->pool,
		.layer_stride = 2 * plane * sizeof(float),
		.v_off = plane * sizeof(float),
		.shape = {.n_head = N_HEAD,
			.n_kv_head = N_KV,
			.head_dim = HEAD_DIM,
			.block_size = BLOCK,
			.n_block = N_BLOCK,
			.kv_dtype = NSV_F32,
			.scale = 1 / sqrtf(HEAD_DIM),
			.k = {block, HEAD_DIM, head, 1},
			.v = {block, HEAD_DIM, head, 1}}};
}

static void close_rig(struct rig *r)
{
	free(r->pool);
	nsv_model_free(r->m);
	nsv_team_free(r->team);
	nsv_gguf_close(r->g);
	free_file(&r->f);
}

/* One sequence on blocks 3, 1, 4: a step of `n` tokens from `past`, all rows wanted. */
struct one {
	int32_t table[3], pos[MAX_ROW];
	int64_t slots[MAX_ROW];
	uint32_t out_rows[MAX_ROW];
	struct nsv_attn_seq seq;
	struct nsv_batch batch;
};

static void make_one(struct one *o, const int32_t *tokens, uint32_t past, uint32_t n)
{
	*o = (struct one){.table = {3, 1, 4}};
	for (uint32_t i = 0; i < n; i++) {
		o->pos[i] = (int32_t)(past + i);
		o->slots[i] = o->table[(past + i) / BLOCK] * BLOCK + (past + i) % BLOCK;
		o->out_rows[i] = i;
	}
	o->seq = (struct nsv_attn_seq){
		.n_query = n, .n_past = past, .n_table = 3, .block_table = o->table};
	o->batch = (struct nsv_batch){.n_row = n,
		.n_seq = 1,
		.n_out = n,
		.tokens = tokens + past,
		.pos = o->pos,
		.slots = o->slots,
		.seqs = &o->seq,
		.out_rows = o->out_rows};
}

static void run_steps(
	struct rig *r, const int32_t *tokens, uint32_t n, uint32_t chunk, float *logits)
{
	for (uint32_t past = 0; past < n; past += chunk) {
		struct nsv_err err = {""};
		struct one o;

		make_one(&o, tokens, past, (uint32_t)nsv_min(chunk, n - past));
		if (nsv_model_forward(r->m, &r->dispatch, &r->kv, &o.batch,
			    logits + (size_t)past * N_VOCAB, &err) < 0)
			fail_msg("%s", err.text);
	}
}

static void draw_tokens(int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = (int32_t)(random() % N_VOCAB);
}

static void check_forward(const struct nsv_backend *backend, bool tied)
{
	struct rig r;
	int32_t tokens[MAX_ROW];
	float logits[MAX_ROW * N_VOCAB];
	double want[MAX_ROW * N_VOCAB];

	open_rig(&r, (struct flaw){.tied = tied}, backend, 1 + (uint32_t)random() % 3);
	draw_tokens(tokens, MAX_ROW);
	ref_forward(&r.f, tokens, MAX_ROW, want);
	for (uint32_t chunk = 1; chunk <= MAX_ROW; chunk += 1 + chunk / 3) {
		memset(logits, 0xff, sizeof(logits));
		run_steps(&r, tokens, MAX_ROW, chunk, logits);
		for (size_t i = 0; i < NSV_ARRAY_LEN(logits); i++)
			if (!(fabs(logits[i] - want[i]) <= 1e-4 + 1e-4 * fabs(want[i])))
				fail_msg("chunk %u: logit %zu is %g, expected %g", chunk, i,
					(double)logits[i], want[i]);
	}
	close_rig(&r);
}

/* A backend that fuses nothing. */
static int len_of_one(const struct nsv_matrix *m, uint32_t n_m, size_t *ret_len)
{
	return n_m > 1 ? -EINVAL : find_backend("reference")->weight_len(m, n_m, ret_len);
}

static void test_forward(void **state)
{
	struct nsv_backend apart = *find_backend("reference");

	(void)state;
	check_forward(find_backend("reference"), false);
	check_forward(find_backend("reference"), true);
	check_forward(find_backend("model"), false);
	apart.weight_len = len_of_one;
	check_forward(&apart, false);
}

/* Members may become fewer and more between two steps: the logits are the same bits. */
static void test_other_members(void **state)
{
	static const uint32_t n_members[] = {4, 1, 3, 2, 4};
	struct rig r;
	int32_t tokens[MAX_ROW];
	float want[MAX_ROW * N_VOCAB], logits[MAX_ROW * N_VOCAB];

	(void)state;
	open_rig(&r, (struct flaw){0}, find_backend("cpu"), 4);
	draw_tokens(tokens, MAX_ROW);
	run_steps(&r, tokens, MAX_ROW, 2, want);
	for (size_t i = 0; i < NSV_ARRAY_LEN(n_members); i++) {
		nsv_team_resize(r.team, n_members[i]);
		assert_int_equal(nsv_team_size(r.team), n_members[i]);
		memset(logits, 0xff, sizeof(logits));
		run_steps(&r, tokens, MAX_ROW, 2, logits);
		assert_memory_equal(logits, want, sizeof(want));
	}
	close_rig(&r);
}

/* Fewer streams than members, each stream in a block of its own: some members have nothing to
 * attend to, and attention still counts as read once a layer. */
static void test_few_streams(void **state)
{
	enum { N_STREAM = 5 };
	struct rig r;
	struct one o;
	struct nsv_attn_seq seqs[N_STREAM];
	int32_t tokens[N_STREAM], blocks[N_STREAM];
	float want[N_STREAM * N_VOCAB], logits[N_STREAM * N_VOCAB];

	(void)state;
	open_rig(&r, (struct flaw){0}, find_backend("cpu"), N_STREAM + 3);
	draw_tokens(tokens, N_STREAM);
	for (int i = 0; i < N_STREAM; i++)
		run_steps(&r, tokens + i, 1, 1, want + i * N_VOCAB);
	make_one(&o, tokens, 0, N_STREAM);
	for (uint32_t i = 0; i < N_STREAM; i++) {
		blocks[i] = (int32_t)i;
		o.pos[i] = 0;
		o.slots[i] = i * BLOCK;
		seqs[i] = (struct nsv_attn_seq){
			.row0 = i, .n_query = 1, .n_table = 1, .block_table = &blocks[i]};
	}
	o.batch.seqs = seqs;
	o.batch.n_seq = N_STREAM;
	r.dispatch.n_attention = 0;
	assert_int_equal(nsv_model_forward(r.m, &r.dispatch, &r.kv, &o.batch, logits, NULL), 0);
	assert_memory_equal(logits, want, sizeof(want));
	assert_int_equal(r.dispatch.n_attention, N_LAYER);
	close_rig(&r);
}

/* Rows that nobody wants cost no logits, and change none. */
static void test_wanted_rows(void **state)
{
	struct rig r;
	int32_t tokens[MAX_ROW];
	float all[MAX_ROW * N_VOCAB], some[3 * N_VOCAB];
	struct one o;

	(void)state;
	open_rig(&r, (struct flaw){0}, find_backend("reference"), 2);
	draw_tokens(tokens, MAX_ROW);
	run_steps(&r, tokens, MAX_ROW, MAX_ROW, all);
	make_one(&o, tokens, 0, MAX_ROW);
	o.batch.n_out = 3;
	o.out_rows[1] = 7;
	o.out_rows[2] = MAX_ROW - 1;
	assert_int_equal(nsv_model_forward(r.m, &r.dispatch, &r.kv, &o.batch, some, NULL), 0);
	for (int i = 0; i < 3; i++)
		assert_memory_equal(
			some + i * N_VOCAB, all + o.out_rows[i] * N_VOCAB, N_VOCAB * sizeof(float));
	o.batch.n_out = 0;
	assert_int_equal(nsv_model_forward(r.m, &r.dispatch, &r.kv, &o.batch, NULL, NULL), 0);
	close_rig(&r);
}

/* Logits go where the batch says, with the ranges of their slices. */
static void test_outputs(void **state)
{
	enum { LD = N_VOCAB + 7 };
	struct nsv_scan_range ranges[MAX_ROW], want;
	float all[MAX_ROW * N_VOCAB], apart[MAX_ROW * LD];
	int32_t tokens[MAX_ROW];
	struct rig r;
	struct one o;

	(void)state;
	open_rig(&r, (struct flaw){0}, find_backend("cpu"), 2);
	draw_tokens(tokens, MAX_ROW);
	run_steps(&r, tokens, MAX_ROW, MAX_ROW, all);
	make_one(&o, tokens, 0, MAX_ROW);
	o.batch.ld_out = LD;
	o.batch.ranges = ranges;
	assert_int_equal(nsv_model_forward(r.m, &r.dispatch, &r.kv, &o.batch, apart, NULL), 0);
	for (int i = 0; i < MAX_ROW; i++) {
		nsv_scan_here()->range(all + i * N_VOCAB, N_VOCAB, &want);
		assert_memory_equal(apart + i * LD, all + i * N_VOCAB, N_VOCAB * sizeof(float));
		assert_true(ranges[i].min == want.min && ranges[i].max == want.max);
		assert_int_equal(ranges[i].finite, want.finite);
	}
	close_rig(&r);
}

enum bad_batch {
	TOKEN_LOW,
	TOKEN_HIGH,
	POS_LOW,
	POS_HIGH,
	POS_OTHER,
	SLOT_LOW,
	SLOT_HIGH,
	SLOT_OTHER,
	OUT_HIGH,
	OUT_TWICE,
	OUT_MANY,
	OUT_NEAR,
	NO_ROWS,
	MANY_ROWS,
	NO_SEQ,
	SHORT_QUERY,
	TABLE_SHORT,
	BLOCK_HIGH,
	POOL_HEADS,
	OTHER_BACKEND,
	N_BAD,
};

static void spoil(struct rig *r, struct one *o, int32_t *tokens, enum bad_batch bad)
{
	switch (bad) {
	case TOKEN_LOW:
		tokens[2] = -1;
		break;
	case TOKEN_HIGH:
		tokens[2] = N_VOCAB;
		break;
	case POS_LOW:
		o->pos[0] = -1;
		break;
	case POS_HIGH:
		o->pos[5] = N_CTX;
		break;
	case POS_OTHER:
		o->pos[5]++;
		break;
	case SLOT_LOW:
		o->slots[3] = -1;
		break;
	case SLOT_HIGH:
		o->slots[3] = N_BLOCK * BLOCK;
		break;
	case SLOT_OTHER:
		o->slots[3]--;
		break;
	case OUT_HIGH:
		o->out_rows[5] = 6;
		break;
	case OUT_TWICE:
		o->out_rows[1] = 0;
		break;
	case OUT_MANY:
		o->batch.n_out = MAX_ROW + 1;
		break;
	case OUT_NEAR:
		o->batch.ld_out = N_VOCAB - 1;
		break;
	case NO_ROWS:
		o->batch.n_row = 0;
		break;
	case MANY_ROWS:
		o->batch.n_row = MAX_ROW + 1;
		break;
	case NO_SEQ:
		o->batch.n_seq = 0;
		break;
	case SHORT_QUERY:
		o->seq.n_query--;
		break;
	case TABLE_SHORT:
		o->seq.n_table = 0;
		break;
	case BLOCK_HIGH:
		o->table[0] = N_BLOCK;
		break;
	case POOL_HEADS:
		r->kv.shape.n_head = N_KV;
		break;
	default:
		r->dispatch.backend = find_backend("model");
	}
}

static void test_bad_batches(void **state)
{
	(void)state;
	for (int bad = 0; bad < N_BAD; bad++) {
		struct rig r;
		struct one o;
		int32_t tokens[MAX_ROW + 1];
		float logits[6 * N_VOCAB] = {0};
		struct nsv_err err = {""};
		const float *end;

		open_rig(&r, (struct flaw){0}, find_backend("reference"), 1);
		draw_tokens(tokens, MAX_ROW + 1);
		make_one(&o, tokens, 0, 6);
		spoil(&r, &o, tokens, bad);
		int ret = nsv_model_forward(r.m, &r.dispatch, &r.kv, &o.batch, logits, &err);
		if (ret != -EINVAL || !err.text[0])
			fail_msg("bad batch %d gives %d \"%s\"", bad, ret, err.text);
		/* Nothing was written. */
		end = r.pool + (size_t)r.kv.shape.k.block_stride * N_BLOCK;
		for (const float *p = r.pool; p < end; p++)
			assert_true(*p == 0);
		assert_true(logits[0] == 0);
		assert_int_equal(r.dispatch.n_attention, 0);
		close_rig(&r);
	}
}

static void test_id(void **state)
{
	struct rig a, b;

	(void)state;
	srandom(7);
	open_rig(&a, (struct flaw){0}, find_backend("reference"), 1);
	srandom(7);
	open_rig(&b, (struct flaw){0}, find_backend("reference"), 2);
	assert_true(nsv_model_id(a.m) == nsv_model_id(b.m));
	close_rig(&b);
	open_rig(&b, (struct flaw){0}, find_backend("reference"), 1);
	assert_true(nsv_model_id(a.m) != nsv_model_id(b.m));
	close_rig(&b);
	close_rig(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refuses_tensors),
		cmocka_unit_test(test_refuses_keys),
		cmocka_unit_test(test_forward),
		cmocka_unit_test(test_other_members),
		cmocka_unit_test(test_few_streams),
		cmocka_unit_test(test_wanted_rows),
		cmocka_unit_test(test_outputs),
		cmocka_unit_test(test_bad_batches),
		cmocka_unit_test(test_id),
	};
	unsigned int seed = (unsigned int)time(NULL);

	printf("seed %u\n", seed);
	srandom(seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
