/* The forward pass, an operation a function. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "tests/tools/family-ref.h"

enum {
	N_FF = FAMILY_N_FF,
	N_HEAD = FAMILY_N_HEAD,
	N_KV_HEAD = FAMILY_N_KV_HEAD,
	HEAD_DIM = FAMILY_HEAD_DIM,
	N_Q = N_HEAD * HEAD_DIM,
	N_KV = N_KV_HEAD * HEAD_DIM,
	MAX_EMBD = FAMILY_MAX_EMBD,
	MAX_TOKEN = FAMILY_REF_MAX_TOKEN,
};

/* A model, and the keys and values of its one sequence so far. */
struct ref {
	const struct family_file *file;
	const struct family *family;
	double k[FAMILY_MAX_LAYER][MAX_TOKEN][N_KV], v[FAMILY_MAX_LAYER][MAX_TOKEN][N_KV];
};

static const float *weight(const struct ref *r, int layer, const char *name)
{
	return family_weight(r->file, layer, name);
}

static bool is_local(const struct family *f, int layer)
{
	return f->window && (uint32_t)layer % f->period < f->period - 1;
}

static void product(double *out, const float *w, const double *x, int n_out, int n_in)
{
	for (int o = 0; o < n_out; o++) {
		out[o] = 0;
		for (int i = 0; i < n_in; i++)
			out[o] += w[o * n_in + i] * x[i];
	}
}

/* out may be x. */
static void norm(double *out, const double *x, const float *w, int n)
{
	double sum = 0;

	for (int i = 0; i < n; i++)
		sum += x[i] * x[i];
	double scale = 1 / sqrt(sum / n + FAMILY_EPS);
	for (int i = 0; i < n; i++)
		out[i] = x[i] * scale * w[i];
}

static void rope(const struct ref *r, double *x, int layer, int pos)
{
	const struct family *f = r->family;
	bool local = is_local(f, layer);
	double base = local ? f->local_base : FAMILY_ROPE_BASE;
	double factor = local || !f->factor ? 1 : f->factor;

	for (int i = 0; i < HEAD_DIM / 2; i++) {
		double a = pos / factor * pow(base, -2.0 * i / HEAD_DIM);
		double *p = f->neox ? &x[i] : &x[2 * i];
		double *q = f->neox ? &x[i + HEAD_DIM / 2] : &x[2 * i + 1], p0 = *p, q0 = *q;

		*p = p0 * cos(a) - q0 * sin(a);
		*q = p0 * sin(a) + q0 * cos(a);
	}
}

/* Q, K or V: name "q", "k", "v". */
static void project(
	const struct ref *r, double *out, const double *x, int layer, int pos, const char *name)
{
	char suffix[3][32];
	int n_head = *name == 'q' ? N_HEAD : N_KV_HEAD;

	snprintf(suffix[0], sizeof(suffix[0]), "attn_%s.weight", name);
	snprintf(suffix[1], sizeof(suffix[1]), "attn_%s.bias", name);
	snprintf(suffix[2], sizeof(suffix[2]), "attn_%s_norm.weight", name);
	product(out, weight(r, layer, suffix[0]), x, n_head * HEAD_DIM, r->family->n_embd);
	const float *bias = weight(r, layer, suffix[1]);
	for (int i = 0; bias && i < n_head * HEAD_DIM; i++)
		out[i] += bias[i];
	const float *w = weight(r, layer, suffix[2]);
	for (int h = 0; h < n_head; h++) {
		double *head = out + h * HEAD_DIM;

		if (w)
			norm(head, head, w, HEAD_DIM);
		if (*name != 'v')
			rope(r, head, layer, pos);
	}
}

static void attend(const struct ref *r, double *out, const double *q, int layer, int pos)
{
	double scale = r->family->attn_scale ? r->family->attn_scale : 1 / sqrt(HEAD_DIM);

	memset(out, 0, N_Q * sizeof(*out));
	for (int h = 0; h < N_HEAD; h++) {
		int kv = h / (N_HEAD / N_KV_HEAD) * HEAD_DIM;
		double p[MAX_TOKEN], sum = 0;

		for (int t = 0; t <= pos; t++) {
			p[t] = 0;
			for (int d = 0; d < HEAD_DIM; d++)
				p[t] += q[h * HEAD_DIM + d] * r->k[layer][t][kv + d];
			bool seen = !is_local(r->family, layer) || pos - t < FAMILY_WINDOW;
			p[t] = seen ? exp(p[t] * scale) : 0;
			sum += p[t];
		}
		for (int d = 0; d < HEAD_DIM; d++)
			for (int t = 0; t <= pos; t++)
				out[h * HEAD_DIM + d] += p[t] / sum * r->v[layer][t][kv + d];
	}
}

static double activate(const struct family *f, double x)
{
	if (f->gelu)
		return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
	return x / (1 + exp(-x));
}

/* x += y, what half a layer gives, normed if the family does so. */
static void add_half(const struct ref *r, double *x, double *y, int layer, const char *suffix)
{
	const int n_embd = r->family->n_embd;

	if (r->family->post_norm)
		norm(y, y, weight(r, layer, suffix), n_embd);
	for (int i = 0; i < n_embd; i++)
		x[i] += y[i];
}

static void run_layer(struct ref *r, double *x, int layer, int pos)
{
	const int n_embd = r->family->n_embd;
	double n[MAX_EMBD], q[N_Q], a[N_Q], y[MAX_EMBD], gate[N_FF], up[N_FF];

	norm(n, x, weight(r, layer, "attn_norm.weight"), n_embd);
	project(r, q, n, layer, pos, "q");
	project(r, r->k[layer][pos], n, layer, pos, "k");
	project(r, r->v[layer][pos], n, layer, pos, "v");
	attend(r, a, q, layer, pos);
	product(y, weight(r, layer, "attn_output.weight"), a, n_embd, N_Q);
	add_half(r, x, y, layer, "post_attention_norm.weight");
	norm(n, x, weight(r, layer, "ffn_norm.weight"), n_embd);
	product(gate, weight(r, layer, "ffn_gate.weight"), n, N_FF, n_embd);
	product(up, weight(r, layer, "ffn_up.weight"), n, N_FF, n_embd);
	for (int i = 0; i < N_FF; i++)
		gate[i] = activate(r->family, gate[i]) * up[i];
	product(y, weight(r, layer, "ffn_down.weight"), gate, n_embd, N_FF);
	add_half(r, x, y, layer, "post_ffw_norm.weight");
}

void family_ref_forward(const struct family_file *file, const struct family *family,
	const int32_t *tokens, int n, double *logits)
{
	const double embd_scale = family->embd_scale ? family->embd_scale : 1;
	const int n_embd = family->n_embd;
	struct ref *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->file = file;
	r->family = family;
	const float *embd = weight(r, -1, "token_embd.weight");
	const float *head = weight(r, -1, "output.weight");
	for (int pos = 0; pos < n; pos++) {
		double x[MAX_EMBD];

		for (int i = 0; i < n_embd; i++)
			x[i] = embd[tokens[pos] * n_embd + i] * embd_scale;
		for (int layer = 0; layer < family->n_layer; layer++)
			run_layer(r, x, layer, pos);
		norm(x, x, weight(r, -1, "output_norm.weight"), n_embd);
		product(logits + pos * FAMILY_N_VOCAB, head ? head : embd, x, FAMILY_N_VOCAB,
			n_embd);
	}
	free(r);
}
