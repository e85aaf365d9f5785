/* Small random models of each family against a plain forward pass in double precision, written from
 * the families' definitions; and what a family refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "daemon/model/model.h"
#include "tests/tools/gguf_write.h"

enum {
	N_LAYER = 7,
	N_EMBD = 48,
	N_FF = 64,
	N_HEAD = 4,
	N_KV = 2,
	HEAD_DIM = 16,
	N_Q = N_HEAD * HEAD_DIM,
	N_K = N_KV * HEAD_DIM,
	N_VOCAB = 270, /* of the tiny vocabulary */
	N_CTX = 512,
	N_TOKEN = 24,
	BLOCK = 8,
	N_BLOCK = 5,
	WINDOW = 5,
};
#define EPS 1e-5f
#define BASE 3000.0f

/* What a family is, said once more than its file says it. */
struct family {
	const char *arch;
	bool bias, qk_norm, post_norm, own_head, neox, gelu;
	double embd_scale, attn_scale;
	uint32_t window, period; /* of so many layers the last sees all */
	double local_base, factor;
};

/* Keys beside the common ones, and a tensor that is left out. */
struct extra {
	const char *set_u32, *set_f32, *set_bool; /* without the architecture */
	uint32_t u32;
	float f32;
	const char *drop_key, *drop_tensor, *add_tensor;
};

static const struct family llama = {.arch = "llama"};
static const struct family qwen2 = {.arch = "qwen2", .bias = true, .neox = true};
static const struct family gemma3 = {.arch = "gemma3",
	.qk_norm = true,
	.post_norm = true,
	.neox = true,
	.gelu = true,
	.embd_scale = 6.9282032302755088, /* sqrt(N_EMBD) */
	.window = WINDOW,
	.period = 6,
	.local_base = 10000};

/* ---- The file */

struct writer {
	struct nsv_gguf_writer w;
	const struct family *family;
	const struct extra *extra;
};

static const char *key_of(const struct writer *w, const char *suffix, char key[128])
{
	snprintf(key, 128, "%s.%s", w->family->arch, suffix);
	return key;
}

static bool is_dropped(const struct writer *w, const char *suffix)
{
	return w->extra->drop_key && strcmp(w->extra->drop_key, suffix) == 0;
}

static void put_u32(struct writer *w, const char *suffix, uint32_t x)
{
	char key[128];

	if (!is_dropped(w, suffix))
		nsv_gguf_put_u32(&w->w, key_of(w, suffix, key), x);
}

static void put_f32(struct writer *w, const char *suffix, float x)
{
	char key[128];

	if (!is_dropped(w, suffix))
		nsv_gguf_put_f32(&w->w, key_of(w, suffix, key), x);
}

static void put_keys(struct writer *w)
{
	const struct extra *x = w->extra;
	char key[128];

	nsv_gguf_put_str(&w->w, "general.architecture", w->family->arch);
	put_u32(w, "block_count", N_LAYER);
	put_u32(w, "context_length", N_CTX);
	put_u32(w, "embedding_length", N_EMBD);
	put_u32(w, "feed_forward_length", N_FF);
	put_u32(w, "attention.head_count", N_HEAD);
	put_u32(w, "attention.head_count_kv", N_KV);
	put_u32(w, "attention.key_length", HEAD_DIM);
	put_u32(w, "attention.value_length", HEAD_DIM);
	put_f32(w, "attention.layer_norm_rms_epsilon", EPS);
	put_f32(w, "rope.freq_base", BASE);
	if (w->family->window)
		put_u32(w, "attention.sliding_window", w->family->window);
	if (x->set_u32)
		put_u32(w, x->set_u32, x->u32);
	if (x->set_f32)
		put_f32(w, x->set_f32, x->f32);
	if (x->set_bool)
		nsv_gguf_put_bool(&w->w, key_of(w, x->set_bool, key), false);
	nsv_gguf_put_tiny_vocab(&w->w);
}

static void put_tensor(struct writer *w, const char *name, uint64_t n_in, uint64_t n_out)
{
	const uint64_t dim[] = {n_in, n_out};

	if (!w->extra->drop_tensor || strcmp(w->extra->drop_tensor, name))
		nsv_gguf_put_tensor(&w->w, name, NSV_F32, n_out ? 2 : 1, dim);
}

static void put_layer_tensor(
	struct writer *w, int layer, const char *suffix, uint64_t n_in, uint64_t n_out)
{
	char name[64];

	snprintf(name, sizeof(name), "blk.%d.%s", layer, suffix);
	put_tensor(w, name, n_in, n_out);
}

static void put_layer(struct writer *w, int i)
{
	const struct family *f = w->family;
	const struct {
		const char *suffix;
		uint64_t n_in, n_out; /* n_out 0: a vector */
		bool has;
	} tensors[] = {
		{"attn_norm.weight", N_EMBD, 0, true},
		{"attn_q.weight", N_EMBD, N_Q, true},
		{"attn_k.weight", N_EMBD, N_K, true},
		{"attn_v.weight", N_EMBD, N_K, true},
		{"attn_q.bias", N_Q, 0, f->bias},
		{"attn_k.bias", N_K, 0, f->bias},
		{"attn_v.bias", N_K, 0, f->bias},
		{"attn_q_norm.weight", HEAD_DIM, 0, f->qk_norm},
		{"attn_k_norm.weight", HEAD_DIM, 0, f->qk_norm},
		{"attn_output.weight", N_Q, N_EMBD, true},
		{"post_attention_norm.weight", N_EMBD, 0, f->post_norm},
		{"ffn_norm.weight", N_EMBD, 0, true},
		{"ffn_gate.weight", N_EMBD, N_FF, true},
		{"ffn_up.weight", N_EMBD, N_FF, true},
		{"ffn_down.weight", N_FF, N_EMBD, true},
		{"post_ffw_norm.weight", N_EMBD, 0, f->post_norm},
	};

	for (size_t k = 0; k < NSV_ARRAY_LEN(tensors); k++)
		if (tensors[k].has)
			put_layer_tensor(
				w, i, tensors[k].suffix, tensors[k].n_in, tensors[k].n_out);
}

/* Values at which everything matters: norms around 1, biases, products of about the size of x. */
static void fill(uint8_t *file, const struct nsv_gguf *g)
{
	for (size_t i = 0; i < nsv_gguf_n_tensor(g); i++) {
		const struct nsv_tensor *t = nsv_gguf_tensor_at(g, i);
		float *x = (float *)(file + ((const uint8_t *)t->data - file));
		bool is_matrix = t->dim[1] > 1, is_norm = memmem(t->name.p, t->name.len, "norm", 4);

		for (size_t k = 0; k < t->len / sizeof(float); k++) {
			float u = 2 * (float)random() / (float)RAND_MAX - 1;

			x[k] = is_matrix ? 2 * u / sqrtf((float)t->dim[0]) : is_norm + u / 2;
		}
	}
}

struct file {
	uint8_t *p;
	struct nsv_gguf *g;
};

static struct file make_file(const struct family *family, const struct extra *extra)
{
	struct writer w = {.family = family, .extra = extra};
	struct nsv_err err = {""};
	struct file f = {0};
	size_t len;

	nsv_gguf_writer_init(&w.w, 1);
	put_keys(&w);
	put_tensor(&w, "token_embd.weight", N_EMBD, N_VOCAB);
	for (int i = 0; i < N_LAYER; i++)
		put_layer(&w, i);
	put_tensor(&w, "output_norm.weight", N_EMBD, 0);
	if (family->own_head)
		put_tensor(&w, "output.weight", N_EMBD, N_VOCAB);
	if (extra->add_tensor)
		put_tensor(&w, extra->add_tensor, N_EMBD, 0);
	f.p = nsv_gguf_finish(&w.w, &len);
	nsv_gguf_writer_deinit(&w.w);
	if (nsv_gguf_parse(f.p, len, &f.g, &err) < 0)
		fail_msg("%s", err.text);
	fill(f.p, f.g);
	return f;
}

static void free_file(struct file *f)
{
	nsv_gguf_close(f->g);
	free(f->p);
}

static const float *weight(const struct file *f, int layer, const char *suffix)
{
	char name[64];

	if (layer < 0)
		snprintf(name, sizeof(name), "%s", suffix);
	else
		snprintf(name, sizeof(name), "blk.%d.%s", layer, suffix);
	const struct nsv_tensor *t = nsv_gguf_tensor(f->g, name);
	return t ? t->data : NULL;
}

/* ---- A plain forward pass of one sequence in double precision */

struct ref {
	const struct file *file;
	const struct family *family;
	double k[N_LAYER][N_TOKEN][N_K], v[N_LAYER][N_TOKEN][N_K];
};

static bool is_local(const struct family *f, int layer)
{
	return f->window && (uint32_t)layer % f->period < f->period - 1;
}

static void ref_product(double *out, const float *w, const double *x, int n_out, int n_in)
{
	for (int o = 0; o < n_out; o++) {
		out[o] = 0;
		for (int i = 0; i < n_in; i++)
			out[o] += w[o * n_in + i] * x[i];
	}
}

/* out may be x. */
static void ref_norm(double *out, const double *x, const float *w, int n)
{
	double sum = 0;

	for (int i = 0; i < n; i++)
		sum += x[i] * x[i];
	double scale = 1 / sqrt(sum / n + EPS);
	for (int i = 0; i < n; i++)
		out[i] = x[i] * scale * w[i];
}

static void ref_rope(const struct ref *r, double *x, int layer, int pos)
{
	const struct family *f = r->family;
	bool local = is_local(f, layer);
	double base = local ? f->local_base : BASE, factor = local || !f->factor ? 1 : f->factor;

	for (int i = 0; i < HEAD_DIM / 2; i++) {
		double a = pos / factor * pow(base, -2.0 * i / HEAD_DIM);
		double *p = f->neox ? &x[i] : &x[2 * i];
		double *q = f->neox ? &x[i + HEAD_DIM / 2] : &x[2 * i + 1], p0 = *p, q0 = *q;

		*p = p0 * cos(a) - q0 * sin(a);
		*q = p0 * sin(a) + q0 * cos(a);
	}
}

/* Q, K or V: name "q", "k", "v". */
static void ref_project(
	const struct ref *r, double *out, const double *x, int layer, int pos, const char *name)
{
	char suffix[3][32];
	int n_head = *name == 'q' ? N_HEAD : N_KV;

	snprintf(suffix[0], sizeof(suffix[0]), "attn_%s.weight", name);
	snprintf(suffix[1], sizeof(suffix[1]), "attn_%s.bias", name);
	snprintf(suffix[2], sizeof(suffix[2]), "attn_%s_norm.weight", name);
	ref_product(out, weight(r->file, layer, suffix[0]), x, n_head * HEAD_DIM, N_EMBD);
	const float *bias = weight(r->file, layer, suffix[1]);
	for (int i = 0; bias && i < n_head * HEAD_DIM; i++)
		out[i] += bias[i];
	const float *norm = weight(r->file, layer, suffix[2]);
	for (int h = 0; h < n_head; h++) {
		double *head = out + h * HEAD_DIM;

		if (norm)
			ref_norm(head, head, norm, HEAD_DIM);
		if (*name != 'v')
			ref_rope(r, head, layer, pos);
	}
}

static void ref_attend(const struct ref *r, double *out, const double *q, int layer, int pos)
{
	double scale = r->family->attn_scale ? r->family->attn_scale : 1 / sqrt(HEAD_DIM);

	memset(out, 0, N_Q * sizeof(*out));
	for (int h = 0; h < N_HEAD; h++) {
		int kv = h / (N_HEAD / N_KV) * HEAD_DIM;
		double p[N_TOKEN], sum = 0;

		for (int t = 0; t <= pos; t++) {
			p[t] = 0;
			for (int d = 0; d < HEAD_DIM; d++)
				p[t] += q[h * HEAD_DIM + d] * r->k[layer][t][kv + d];
			bool seen = !is_local(r->family, layer) || pos - t < WINDOW;
			p[t] = seen ? exp(p[t] * scale) : 0;
			sum += p[t];
		}
		for (int d = 0; d < HEAD_DIM; d++)
			for (int t = 0; t <= pos; t++)
				out[h * HEAD_DIM + d] += p[t] / sum * r->v[layer][t][kv + d];
	}
}

static double ref_act(const struct family *f, double x)
{
	if (f->gelu)
		return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
	return x / (1 + exp(-x));
}

/* x += y, normed if the family does so. */
static void ref_add(const struct ref *r, double *x, double *y, int layer, const char *suffix)
{
	if (r->family->post_norm)
		ref_norm(y, y, weight(r->file, layer, suffix), N_EMBD);
	for (int i = 0; i < N_EMBD; i++)
		x[i] += y[i];
}

static void ref_layer(struct ref *r, double *x, int layer, int pos)
{
	double n[N_EMBD], q[N_Q], a[N_Q], y[N_EMBD], gate[N_FF], up[N_FF];

	ref_norm(n, x, weight(r->file, layer, "attn_norm.weight"), N_EMBD);
	ref_project(r, q, n, layer, pos, "q");
	ref_project(r, r->k[layer][pos], n, layer, pos, "k");
	ref_project(r, r->v[layer][pos], n, layer, pos, "v");
	ref_attend(r, a, q, layer, pos);
	ref_product(y, weight(r->file, layer, "attn_output.weight"), a, N_EMBD, N_Q);
	ref_add(r, x, y, layer, "post_attention_norm.weight");
	ref_norm(n, x, weight(r->file, layer, "ffn_norm.weight"), N_EMBD);
	ref_product(gate, weight(r->file, layer, "ffn_gate.weight"), n, N_FF, N_EMBD);
	ref_product(up, weight(r->file, layer, "ffn_up.weight"), n, N_FF, N_EMBD);
	for (int i = 0; i < N_FF; i++)
		gate[i] = ref_act(r->family, gate[i]) * up[i];
	ref_product(y, weight(r->file, layer, "ffn_down.weight"), gate, N_EMBD, N_FF);
	ref_add(r, x, y, layer, "post_ffw_norm.weight");
}

/* logits (N_TOKEN, N_VOCAB) */
static void ref_forward(
	const struct file *file, const struct family *family, const int32_t *tokens, double *logits)
{
	const float *embd = weight(file, -1, "token_embd.weight");
	const float *head = weight(file, -1, "output.weight");
	struct ref *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->file = file;
	r->family = family;
	for (int pos = 0; pos < N_TOKEN; pos++) {
		double x[N_EMBD], scale = family->embd_scale ? family->embd_scale : 1;

		for (int i = 0; i < N_EMBD; i++)
			x[i] = embd[tokens[pos] * N_EMBD + i] * scale;
		for (int layer = 0; layer < N_LAYER; layer++)
			ref_layer(r, x, layer, pos);
		ref_norm(x, x, weight(file, -1, "output_norm.weight"), N_EMBD);
		ref_product(logits + pos * N_VOCAB, head ? head : embd, x, N_VOCAB, N_EMBD);
	}
	free(r);
}

/* ---- Forward */

static const struct nsv_backend *find_backend(const char *name)
{
	const struct nsv_backend *backend = NULL;

	assert_int_equal(nsv_backend_choose(name, &backend, NULL), 0);
	return backend;
}

struct rig {
	struct nsv_team *team;
	struct nsv_model *m;
	struct nsv_dispatch dispatch;
	struct nsv_model_kv kv;
	float *pool;
};

static void open_rig_of(struct rig *r, const struct file *f, const struct nsv_backend *backend,
	uint32_t n_member, uint32_t n_block)
{
	const int64_t head = HEAD_DIM * BLOCK, plane = N_KV * head, block = 2 * N_LAYER * plane;
	const struct nsv_kv_layout layout = {block, HEAD_DIM, head, 1};
	struct nsv_err err = {""};

	*r = (struct rig){.dispatch = {.backend = backend}};
	assert_int_equal(nsv_team_new(n_member, &r->team), 0);
	const struct nsv_model_config config = {.max_row = N_TOKEN, .max_out = N_TOKEN};
	if (nsv_model_new(f->g, backend, r->team, &config, &r->m, &err) < 0)
		fail_msg("%s", err.text);
	r->pool = calloc((size_t)block * n_block, sizeof(float));
	assert_non_null(r->pool);
	/* Scale and window are the model's to set. */
	r->kv = (struct nsv_model_kv){.base = r->pool,
		.layer_stride = 2 * plane * sizeof(float),
		.v_off = plane * sizeof(float),
		.shape = {.n_head = N_HEAD,
			.n_kv_head = N_KV,
			.head_dim = HEAD_DIM,
			.block_size = BLOCK,
			.n_block = n_block,
			.kv_dtype = NSV_F32,
			.window = 1,
			.scale = 77,
			.k = layout,
			.v = layout}};
}

static void open_rig(struct rig *r, const struct file *f, const struct nsv_backend *backend)
{
	open_rig_of(r, f, backend, 1 + (uint32_t)random() % 3, N_BLOCK);
}

static void close_rig(struct rig *r)
{
	free(r->pool);
	nsv_model_free(r->m);
	nsv_team_free(r->team);
}

/* Rows past .. past + n of one sequence on blocks 3, 1, 4; all logits wanted. */
static void run_step(struct rig *r, const int32_t *tokens, uint32_t past, uint32_t n, float *logits)
{
	static const int32_t table[] = {3, 1, 4};
	const struct nsv_attn_seq seq = {
		.n_query = n, .n_past = past, .n_table = 3, .block_table = table};
	int32_t pos[N_TOKEN];
	int64_t slots[N_TOKEN];
	uint32_t out_rows[N_TOKEN];
	struct nsv_err err = {""};

	for (uint32_t i = 0; i < n; i++) {
		pos[i] = (int32_t)(past + i);
		slots[i] = table[(past + i) / BLOCK] * BLOCK + (past + i) % BLOCK;
		out_rows[i] = i;
	}
	const struct nsv_batch batch = {.n_row = n,
		.n_seq = 1,
		.n_out = n,
		.tokens = tokens + past,
		.pos = pos,
		.slots = slots,
		.seqs = &seq,
		.out_rows = out_rows};
	if (nsv_model_forward(r->m, &r->dispatch, &r->kv, &batch, logits, &err) < 0)
		fail_msg("%s", err.text);
}

static void compare(const struct family *family, const struct file *f, const char *backend)
{
	static double want[N_TOKEN * N_VOCAB];
	static float have[N_TOKEN * N_VOCAB];
	int32_t tokens[N_TOKEN];
	struct rig r;

	for (int i = 0; i < N_TOKEN; i++)
		tokens[i] = (int32_t)(random() % N_VOCAB);
	ref_forward(f, family, tokens, want);
	open_rig(&r, f, find_backend(backend));
	for (uint32_t chunk = 1; chunk <= N_TOKEN; chunk += 1 + chunk / 2) {
		memset(have, 0xff, sizeof(have));
		for (uint32_t past = 0; past < N_TOKEN; past += chunk)
			run_step(&r, tokens, past, (uint32_t)nsv_min(chunk, N_TOKEN - past),
				have + (size_t)past * N_VOCAB);
		for (size_t i = 0; i < NSV_ARRAY_LEN(have); i++)
			if (!(fabs(have[i] - want[i]) <= 1e-3 + 1e-3 * fabs(want[i])))
				fail_msg(
					"%s, %s, chunk %u: logit %zu of row %zu is %g, expected %g",
					family->arch, backend, chunk, i % N_VOCAB, i / N_VOCAB,
					(double)have[i], want[i]);
	}
	close_rig(&r);
}

/* Float weights: the same on every backend, but for rounding. $NANOSERVE_QUICK: on one. */
static void check_forward(struct family family, struct extra extra)
{
	static const char *const backends[] = {"reference", "model", "cpu"};

	for (size_t i = getenv("NANOSERVE_QUICK") ? NSV_ARRAY_LEN(backends) - 1 : 0;
		i < NSV_ARRAY_LEN(backends); i++) {
		struct file f = make_file(&family, &extra);

		compare(&family, &f, backends[i]);
		free_file(&f);
	}
}

static void test_llama(void **state)
{
	struct family f = llama;

	(void)state;
	check_forward(f, (struct extra){0});
	f.factor = 4;
	check_forward(f, (struct extra){.set_f32 = "rope.scaling.factor", .f32 = 4});
}

static void test_qwen2(void **state)
{
	struct family f = qwen2;

	(void)state;
	check_forward(f, (struct extra){0});
	f.own_head = true;
	check_forward(f, (struct extra){0});
}

static void test_gemma3(void **state)
{
	struct family f = gemma3;

	(void)state;
	check_forward(f, (struct extra){0});
	f.period = 2;
	f.local_base = 77;
	check_forward(f, (struct extra){.set_u32 = "attention.sliding_window_pattern",
				 .u32 = 2,
				 .set_f32 = "rope.freq_base_swa",
				 .f32 = 77});
	f = gemma3;
	f.factor = 8;
	check_forward(f, (struct extra){.set_f32 = "rope.scaling.factor", .f32 = 8});
	f = gemma3;
	f.attn_scale = 0.1;
	check_forward(f, (struct extra){.set_f32 = "attention.scale", .f32 = 0.1f});
	f = gemma3;
	f.period = 1; /* every layer sees all */
	check_forward(f, (struct extra){.set_u32 = "attention.sliding_window_pattern", .u32 = 1});
}

/* ---- Who attends */

static struct {
	void (*attention)(const struct nsv_part *part, const struct nsv_attn_call *call);
	uint32_t n_call[2], n_alone[2]; /* of local layers, of global ones */
} spy;

static void spy_on_attention(const struct nsv_part *part, const struct nsv_attn_call *call)
{
	bool is_global = call->shape->window == 0;

	__atomic_fetch_add(&spy.n_call[is_global], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&spy.n_alone[is_global], part->count == 1, __ATOMIC_RELAXED);
	spy.attention(part, call);
}

/* A step of six sequences over the same blocks, but for a last one each. */
static void run_streams(struct rig *r, const uint32_t n_past[6], float *logits)
{
	enum { N = 6, N_TABLE = 40 };
	int32_t tables[N][N_TABLE], pos[N];
	struct nsv_attn_seq seqs[N];
	int64_t slots[N];
	uint32_t rows[N];
	struct nsv_err err = {""};

	for (uint32_t i = 0; i < N; i++) {
		uint32_t last = n_past[i] / BLOCK;
		for (uint32_t b = 0; b < N_TABLE; b++)
			tables[i][b] = (int32_t)(b < last ? b : N_TABLE + i);
		slots[i] = (N_TABLE + i) * BLOCK + n_past[i] % BLOCK;
		pos[i] = (int32_t)n_past[i];
		rows[i] = i;
		seqs[i] = (struct nsv_attn_seq){.row0 = i,
			.n_query = 1,
			.n_past = n_past[i],
			.n_table = last + 1,
			.block_table = tables[i]};
	}
	const struct nsv_batch batch = {.n_row = N,
		.n_seq = N,
		.n_out = N,
		.tokens = (const int32_t[N]){1, 2, 3, 4, 5, 6},
		.pos = pos,
		.slots = slots,
		.seqs = seqs,
		.out_rows = rows};
	if (nsv_model_forward(r->m, &r->dispatch, &r->kv, &batch, logits, &err) < 0)
		fail_msg("%s", err.text);
}

/* Long histories beside short ones: in layers with a window all members have as much to read, and
 * each attends for its own rows; in the others they share what there is. */
static void test_windows_count_what_is_attended(void **state)
{
	static const uint32_t n_past[6] = {300, 301, 302, 8, 9, 10};
	static float want[6 * N_VOCAB], have[6 * N_VOCAB];
	const struct nsv_backend *cpu = find_backend("cpu");
	struct nsv_backend spied = *cpu;
	struct file f = make_file(&gemma3, &(struct extra){0});
	struct rig r;
	(void)state;

	spy.attention = cpu->attention;
	spied.attention = spy_on_attention;
	open_rig_of(&r, &f, &spied, 2, 46);
	nsv_team_resize(r.team, 1);
	run_streams(&r, n_past, want);
	nsv_team_resize(r.team, 2);
	memset(spy.n_call, 0, sizeof(spy.n_call));
	memset(spy.n_alone, 0, sizeof(spy.n_alone));
	run_streams(&r, n_past, have);
	assert_memory_equal(have, want, sizeof(want));
	assert_int_equal(spy.n_call[0], 2 * (N_LAYER - 1));
	assert_int_equal(spy.n_alone[0], 2 * (N_LAYER - 1));
	assert_int_equal(spy.n_call[1], 2);
	assert_int_equal(spy.n_alone[1], 0);
	close_rig(&r);
	free_file(&f);
}

/* ---- What is refused */

static void expect_refused(const struct family *family, struct extra extra, const char *word)
{
	struct file f = make_file(family, &extra);
	struct nsv_err err = {""};
	struct nsv_team *team;
	struct nsv_model *m = NULL;

	assert_int_equal(nsv_team_new(1, &team), 0);
	const struct nsv_model_config few = {.max_row = 4, .max_out = 4};
	int ret = nsv_model_new(f.g, find_backend("reference"), team, &few, &m, &err);
	if (ret >= 0 || !strstr(err.text, word))
		fail_msg("%s: %d \"%s\", expected an error with \"%s\"", family->arch, ret,
			err.text, word);
	assert_null(m);
	nsv_team_free(team);
	free_file(&f);
}

/* A missing one, and one that another family has. */
static void test_refuses_tensors(void **state)
{
	static const char *const biases[] = {
		"blk.3.attn_q.bias", "blk.3.attn_k.bias", "blk.3.attn_v.bias"};
	static const char *const norms[] = {"blk.3.attn_q_norm.weight", "blk.3.attn_k_norm.weight",
		"blk.3.post_attention_norm.weight", "blk.3.post_ffw_norm.weight"};

	(void)state;
	for (size_t i = 0; i < NSV_ARRAY_LEN(biases); i++) {
		const char *name = biases[i];

		expect_refused(&qwen2, (struct extra){.drop_tensor = name}, name);
		expect_refused(&gemma3, (struct extra){.add_tensor = name}, name);
		expect_refused(&llama, (struct extra){.add_tensor = name}, name);
	}
	for (size_t i = 0; i < NSV_ARRAY_LEN(norms); i++) {
		const char *name = norms[i];

		expect_refused(&gemma3, (struct extra){.drop_tensor = name}, name);
		expect_refused(&qwen2, (struct extra){.add_tensor = name}, name);
	}
	expect_refused(&qwen2, (struct extra){.add_tensor = "blk.0.attn_output.bias"},
		"blk.0.attn_output.bias");
}

static void test_refuses_variants(void **state)
{
	static const struct {
		const struct family *family;
		struct extra extra;
		const char *word;
	} rows[] = {
		{&qwen2, {.set_u32 = "attention.sliding_window", .u32 = 9}, "sliding_window 9"},
		{&qwen2, {.set_u32 = "expert_count", .u32 = 8}, "expert_count 8"},
		{&gemma3, {.set_u32 = "expert_count", .u32 = 8}, "expert_count 8"},
		{&gemma3, {.drop_key = "attention.sliding_window"},
			"gemma3.attention.sliding_window"},
		{&gemma3, {.drop_key = "rope.freq_base"}, "gemma3.rope.freq_base"},
		{&gemma3, {.set_u32 = "attention.sliding_window_pattern", .u32 = 0},
			"pattern is 0"},
		{&gemma3, {.set_u32 = "attention.sliding_window_pattern", .u32 = 8},
			"pattern is 8"},
		{&gemma3, {.set_f32 = "attn_logit_softcapping", .f32 = 50}, "softcapping 50"},
		{&gemma3, {.set_f32 = "final_logit_softcapping", .f32 = 30}, "softcapping 30"},
		{&gemma3, {.set_f32 = "rope.freq_base_swa", .f32 = -1}, "freq_base_swa is -1"},
		{&gemma3, {.set_f32 = "attention.scale", .f32 = 0}, "attention.scale is 0"},
		{&gemma3, {.set_f32 = "rope.scaling.factor", .f32 = NAN}, "factor is"},
		{&gemma3, {.set_bool = "attention.causal"}, "attention.causal"},
		{&llama, {.set_bool = "attention.causal"}, "attention.causal"},
	};

	(void)state;
	for (size_t i = 0; i < NSV_ARRAY_LEN(rows); i++)
		expect_refused(rows[i].family, rows[i].extra, rows[i].word);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_llama),
		cmocka_unit_test(test_qwen2),
		cmocka_unit_test(test_gemma3),
		cmocka_unit_test(test_windows_count_what_is_attended),
		cmocka_unit_test(test_refuses_tensors),
		cmocka_unit_test(test_refuses_variants),
	};
	unsigned int seed = (unsigned int)time(NULL);

	printf("seed %u\n", seed);
	srandom(seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
