/* The tensors of a file: found by name, checked one by one, given a place in the weights region,
 * then packed by the whole team. Every tensor of the file must have its use: one that the forward
 * pass does not know would change the answers if it were left out. */
#include "daemon/model/model-impl.h"
#include "daemon/numa.h"
#include "shm/clock.h"

#include <string.h>
#include <sys/mman.h>


#define ALIGN 64
#define MAX_SAMPLE (8u << 20)
#define PIECE (256u << 10) /* packed by one member at a time */
#define TENSORS_A_LAYER 16
#define TENSORS_BESIDE 3 /* embedding, last norm, head */

struct name {
	char text[64];
};

/* A packed weight to be: what it is made of and where it goes. */
struct packing {
	uint32_t n_m;
	struct nsv_matrix m[NSV_MAX_FUSED];
	size_t off, len;
	size_t end_piece; /* pieces of those before it, and its own */
};

/* A vector of floats that is copied as it is. */
struct copying {
	const struct nsv_tensor *tensor;
	size_t off;
};

struct nsv_loader {
	struct nsv_model *m;
	const struct nsv_gguf *g;
	struct nsv_err *err;
	size_t len; /* of the region, so far */
	const struct nsv_tensor **used;
	struct packing *packings;
	struct copying *copyings;
	size_t n_used, n_packing, n_copying;
};

static struct name name_of(uint32_t layer, const char *suffix, const char *what)
{
	struct name n;

	snprintf(n.text, sizeof(n.text), "blk.%u.%s.%s", layer, suffix, what);
	return n;
}

static struct name layer_name(uint32_t layer, const char *suffix)
{
	return name_of(layer, suffix, "weight");
}

/* ---- Finding and checking */

static int check_shape(const struct nsv_loader *l, const struct nsv_tensor *t, const char *name,
	const uint64_t want[2])
{
	if (t->dim[0] != want[0] || t->dim[1] != want[1] || t->dim[2] != 1 || t->dim[3] != 1)
		return nsv_fail(l->err, -EINVAL,
			"tensor %s is %llu x %llu x %llu x %llu, expected %llu x %llu", name,
			(unsigned long long)t->dim[0], (unsigned long long)t->dim[1],
			(unsigned long long)t->dim[2], (unsigned long long)t->dim[3],
			(unsigned long long)want[0], (unsigned long long)want[1]);
	return 0;
}

static int find(struct nsv_loader *l, const char *name, uint32_t n_in, uint32_t n_out,
	const struct nsv_tensor **ret)
{
	const struct nsv_tensor *t = nsv_gguf_tensor(l->g, name);
	size_t row_len, len;

	if (!t)
		return nsv_fail(l->err, -ENOENT, "the file lacks the tensor %s", name);
	int r = check_shape(l, t, name, (const uint64_t[2]){n_in, n_out});
	if (r < 0)
		return r;
	r = nsv_dtype_row_len(t->dtype, n_in, &row_len);
	if (r < 0)
		return nsv_fail(l->err, -ENOTSUP,
			"tensor %s has type %s, which is not supported in rows of %u", name,
			nsv_dtype_name(t->dtype), n_in);
	if (!nsv_mul(row_len, n_out, &len) || len != t->len)
		return nsv_fail(l->err, -EINVAL, "tensor %s has %zu bytes, expected %u rows of %zu",
			name, t->len, n_out, row_len);
	l->used[l->n_used++] = t;
	*ret = t;
	return 0;
}

static int find_matrix(
	struct nsv_loader *l, const char *name, uint32_t n_in, uint32_t n_out, struct nsv_matrix *ret)
{
	const struct nsv_tensor *t;
	int r = find(l, name, n_in, n_out, &t);

	if (r == 0)
		*ret = (struct nsv_matrix){
			.dtype = t->dtype, .n_out = n_out, .n_in = n_in, .data = t->data};
	return r;
}

/* ---- Places in the region */

static int take_place(struct nsv_loader *l, size_t len, size_t *ret_off)
{
	size_t end;

	if (!nsv_add(l->len, len, &end) || !nsv_align_up(end, ALIGN, &end))
		return nsv_fail(l->err, -EOVERFLOW, "the weights do not fit the address space");
	*ret_off = l->len;
	l->len = end;
	return 0;
}

/* A vector of n floats goes to a place that is taken. */
static int copy_vector(struct nsv_loader *l, const char *name, uint32_t n, size_t off)
{
	const struct nsv_tensor *t;
	int r = find(l, name, n, 1, &t);

	if (r < 0)
		return r;
	if (t->dtype != NSV_F32)
		return nsv_fail(l->err, -ENOTSUP, "tensor %s has type %s, expected F32", name,
			nsv_dtype_name(t->dtype));
	l->copyings[l->n_copying++] = (struct copying){t, off};
	return 0;
}

static int add_vector(struct nsv_loader *l, const char *name, uint32_t n, size_t *ret_off)
{
	int r = take_place(l, n * sizeof(float), ret_off);

	return r < 0 ? r : copy_vector(l, name, n, *ret_off);
}

static int add_part(struct nsv_loader *l, struct nsv_product *p, const struct nsv_matrix *m,
	uint32_t n_m, size_t len, uint32_t col)
{
	struct packing *pack = &l->packings[l->n_packing];
	int r = take_place(l, len, &pack->off);

	if (r < 0)
		return r;
	pack->end_piece = 1 + len / PIECE + (l->n_packing > 0 ? pack[-1].end_piece : 0);
	pack->n_m = n_m;
	pack->len = len;
	memcpy(pack->m, m, n_m * sizeof(*m));
	l->n_packing++;
	p->part[p->n].off = pack->off;
	p->part[p->n++].col = col;
	return 0;
}

static int refuse_weight(
	const struct nsv_loader *l, const struct nsv_matrix *m, const char *name, int code)
{
	return nsv_fail(l->err, code, "backend %s cannot use tensor %s: %s, %u x %u",
		l->m->backend->name, name, nsv_dtype_name(m->dtype), m->n_in, m->n_out);
}

/* Fused where the backend takes the matrices together, else side by side. `names` is for messages.
 */
static int add_product(struct nsv_loader *l, struct nsv_product *p, const struct nsv_matrix *m,
	const struct name *names, uint32_t n_m)
{
	const struct nsv_backend *b = l->m->backend;
	uint32_t col = 0;
	size_t len;
	int r = b->weight_len(m, n_m, &len);

	p->n = 0;
	if (r == 0)
		return add_part(l, p, m, n_m, len, 0);
	if (r != -EINVAL || n_m == 1)
		return refuse_weight(l, &m[0], names[0].text, r);
	for (uint32_t i = 0; i < n_m; i++) {
		r = b->weight_len(&m[i], 1, &len);
		if (r < 0)
			return refuse_weight(l, &m[i], names[i].text, r);
		r = add_part(l, p, &m[i], 1, len, col);
		if (r < 0)
			return r;
		col += m[i].n_out;
	}
	return 0;
}

/* Finds the matrices of one product, all of n_in columns, and adds it. */
static int add_named(struct nsv_loader *l, struct nsv_product *p, const struct name *names,
	uint32_t n_in, const uint32_t *n_out, uint32_t n_m)
{
	struct nsv_matrix m[NSV_MAX_FUSED];
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < n_m; i++)
		r = find_matrix(l, names[i].text, n_in, n_out[i], &m[i]);
	return r < 0 ? r : add_product(l, p, m, names, n_m);
}

/* Those of the family: another's is a tensor without a use. */
static int add_norms(struct nsv_loader *l, uint32_t i, struct nsv_layer *layer)
{
	const struct nsv_model_desc *d = &l->m->desc;
	const struct {
		const char *suffix;
		bool has;
		uint32_t n;
		size_t *ret_off;
	} norms[] = {
		{"attn_norm", true, d->n_embd, &layer->attn_norm},
		{"ffn_norm", true, d->n_embd, &layer->ffn_norm},
		{"post_attention_norm", d->post_norm, d->n_embd, &layer->post_attn_norm},
		{"post_ffw_norm", d->post_norm, d->n_embd, &layer->post_ffn_norm},
		{"attn_q_norm", d->qk_norm, d->head_dim, &layer->q_norm},
		{"attn_k_norm", d->qk_norm, d->head_dim, &layer->k_norm},
	};
	int r = 0;

	for (size_t k = 0; r == 0 && k < NSV_ARRAY_LEN(norms); k++)
		if (norms[k].has)
			r = add_vector(l, layer_name(i, norms[k].suffix).text, norms[k].n,
				norms[k].ret_off);
	return r;
}

/* Side by side, as the product's columns. */
static int add_biases(struct nsv_loader *l, uint32_t i, struct nsv_layer *layer)
{
	static const char *const suffixes[] = {"attn_q", "attn_k", "attn_v"};
	const struct nsv_model_desc *d = &l->m->desc;
	const uint32_t n[] = {nsv_n_q(d), nsv_n_kv(d), nsv_n_kv(d)};
	size_t off;

	if (!d->qkv_bias)
		return 0;
	int r = take_place(l, nsv_n_qkv(d) * sizeof(float), &layer->qkv_bias);
	off = layer->qkv_bias;
	for (size_t k = 0; r == 0 && k < NSV_ARRAY_LEN(n); k++) {
		r = copy_vector(l, name_of(i, suffixes[k], "bias").text, n[k], off);
		off += n[k] * sizeof(float);
	}
	return r;
}

static int add_layer(struct nsv_loader *l, uint32_t i, struct nsv_layer *layer)
{
	const struct nsv_model_desc *d = &l->m->desc;
	const struct name qkv[] = {
		layer_name(i, "attn_q"), layer_name(i, "attn_k"), layer_name(i, "attn_v")};
	const struct name gate_up[] = {layer_name(i, "ffn_gate"), layer_name(i, "ffn_up")};
	const struct name out = layer_name(i, "attn_output"), down = layer_name(i, "ffn_down");
	const uint32_t n_qkv[] = {nsv_n_q(d), nsv_n_kv(d), nsv_n_kv(d)},
		       n_ff[] = {d->n_ff, d->n_ff};
	int r = add_norms(l, i, layer);

	if (r == 0)
		r = add_biases(l, i, layer);
	if (r == 0)
		r = add_named(l, &layer->qkv, qkv, d->n_embd, n_qkv, 3);
	if (r == 0)
		r = add_named(l, &layer->out, &out, nsv_n_q(d), &d->n_embd, 1);
	if (r == 0)
		r = add_named(l, &layer->gate_up, gate_up, d->n_embd, n_ff, 2);
	if (r == 0)
		r = add_named(l, &layer->down, &down, d->n_ff, &d->n_embd, 1);
	return r;
}

/* A file without output.weight ties the head to the embedding. */
static int add_ends(struct nsv_loader *l)
{
	static const struct name output = {"output.weight"}, embd = {"token_embd.weight"};
	const struct nsv_model_desc *d = &l->m->desc;
	int r = find_matrix(l, embd.text, d->n_embd, d->n_vocab, &l->m->embd);

	if (r == 0)
		r = add_vector(l, "output_norm.weight", d->n_embd, &l->m->out_norm);
	if (r < 0)
		return r;
	if (nsv_gguf_tensor(l->g, output.text))
		return add_named(l, &l->m->head, &output, d->n_embd, &d->n_vocab, 1);
	return add_product(l, &l->m->head, &l->m->embd, &embd, 1);
}

static bool is_used(const struct nsv_loader *l, const struct nsv_tensor *t)
{
	for (size_t i = 0; i < l->n_used; i++)
		if (l->used[i] == t)
			return true;
	return false;
}

/* Looks at n_used + 1 tensors at most: one of so many is unused. */
static int refuse_unused(const struct nsv_loader *l)
{
	for (size_t i = 0; i < nsv_gguf_n_tensor(l->g); i++) {
		const struct nsv_tensor *t = nsv_gguf_tensor_at(l->g, i);

		if (!is_used(l, t))
			return nsv_fail(l->err, -ENOTSUP,
				"the tensor %.*s has no use in a model of architecture %s",
				(int)nsv_min(t->name.len, 64), t->name.p, l->m->desc.arch);
	}
	return 0;
}

static int place_all(struct nsv_loader *l)
{
	int r = add_ends(l);

	for (uint32_t i = 0; r == 0 && i < l->m->desc.n_layer; i++)
		r = add_layer(l, i, &l->m->layers[i]);
	return r < 0 ? r : refuse_unused(l);
}

/* ---- The region's head, and a region that was kept */

static uint64_t hash_text(uint64_t h, const char *text)
{
	return nsv_hash(h, text, strlen(text) + 1);
}

/* What the bytes of the region depend on beside the file. */
static uint64_t layout_id(const struct nsv_loader *l)
{
	const struct nsv_backend *b = l->m->backend;
	uint64_t h = hash_text(hash_text(NSV_HASH_START, b->name), b->isa());

	h = nsv_hash(h, &b->numerics, sizeof(b->numerics));
	for (size_t i = 0; i < l->n_packing; i++) {
		h = nsv_hash(h, &l->packings[i].off, sizeof(l->packings[i].off));
		h = nsv_hash(h, &l->packings[i].len, sizeof(l->packings[i].len));
	}
	for (size_t i = 0; i < l->n_copying; i++)
		h = nsv_hash(h, &l->copyings[i].off, sizeof(l->copyings[i].off));
	return h;
}

static struct nsv_weights_head make_head(const struct nsv_loader *l, size_t region_len)
{
	return (struct nsv_weights_head){.major = NSV_WEIGHTS_MAJOR,
		.head_len = sizeof(struct nsv_weights_head),
		.region_len = region_len,
		.model_id = l->m->id,
		.layout_id = layout_id(l)};
}

static int check_head(const struct nsv_loader *l, const struct nsv_region *r, struct nsv_err *err)
{
	const struct nsv_weights_head *h = r->map;
	struct nsv_weights_head want = make_head(l, r->len);

	if (__atomic_load_n(&h->magic, __ATOMIC_ACQUIRE) != NSV_WEIGHTS_MAGIC)
		return nsv_fail(err, -EPROTO, "they were never packed to the end");
	if (h->major != want.major || h->head_len != want.head_len)
		return nsv_fail(
			err, -EPROTO, "their format is %u, this is %u", h->major, want.major);
	if (h->model_id != want.model_id)
		return nsv_fail(err, -EPROTO, "they are of model %016llx, this is %016llx",
			(unsigned long long)h->model_id, (unsigned long long)want.model_id);
	if (h->layout_id != want.layout_id || h->region_len != want.region_len)
		return nsv_fail(err, -EPROTO, "they are packed for another backend or build");
	return 0;
}

/* The smallest of a type, of those that are packed in no time. */
static bool is_sample(const struct nsv_loader *l, size_t i)
{
	const struct packing *p = &l->packings[i];

	if (p->len > MAX_SAMPLE)
		return false;
	for (size_t k = 0; k < l->n_packing; k++) {
		const struct packing *q = &l->packings[k];
		if (q->m[0].dtype == p->m[0].dtype &&
			(q->len < p->len || (q->len == p->len && k < i)))
			return false;
	}
	return true;
}

/* Packed again it must be the same: this is what finds a layout that changed without its
 * numbers. */
static int check_sample(const struct nsv_loader *l, const struct packing *p, const struct nsv_region *r,
	struct nsv_err *err)
{
	void *again = NULL;

	if (posix_memalign(&again, ALIGN, p->len) != 0)
		return nsv_fail(err, -ENOMEM, "no memory to compare them");
	memset(again, 0, p->len);
	l->m->backend->weight_pack(&nsv_team_alone, p->m, p->n_m, again);
	bool same = memcmp(again, (const char *)r->map + p->off, p->len) == 0;
	free(again);
	return same ? 0 : nsv_fail(err, -EPROTO, "their bytes are not what this build packs");
}

static int check_copies(const struct nsv_loader *l, const struct nsv_region *r, struct nsv_err *err)
{
	for (size_t i = 0; i < l->n_copying; i++) {
		const struct copying *c = &l->copyings[i];
		if (memcmp((const char *)r->map + c->off, c->tensor->data, c->tensor->len) != 0)
			return nsv_fail(err, -EPROTO, "their vectors are not the file's");
	}
	return 0;
}

static bool take_kept(struct nsv_loader *l, struct nsv_model_keep *keep)
{
	struct nsv_region r;
	size_t len = l->len;

	nsv_align_up(len, NSV_PAGE, &len);
	if (nsv_region_adopt(&r, keep->fd, len, false, &keep->why) < 0)
		return false;
	keep->fd = -1; /* the region's, which closes it if it does not fit */
	int ret = check_head(l, &r, &keep->why);
	if (ret == 0)
		ret = check_copies(l, &r, &keep->why);
	for (size_t i = 0; ret == 0 && i < l->n_packing; i++)
		if (is_sample(l, i))
			ret = check_sample(l, &l->packings[i], &r, &keep->why);
	if (ret == 0)
		l->m->weights = r;
	else
		nsv_region_deinit(&r);
	return ret == 0;
}

/* ---- Nodes of memory */

/* What a home's members read of a packed weight in every product: [*begin, *end). */
static void find_own(const struct nsv_loader *l, const struct packing *p, uint32_t home,
	size_t *begin, size_t *end)
{
	const uint32_t count = nsv_team_size(l->m->team);
	bool is_first = true;

	*begin = *end = 0;
	for (uint32_t i = 0; i < count; i++) {
		const struct nsv_part part = {.index = i, .count = count};
		size_t at;
		if (nsv_numa_home_of(l->m->numa, i, count) != home)
			continue;
		l->m->backend->weight_own(&part, p->m, p->n_m, &at, end);
		*begin = is_first ? at : *begin;
		is_first = false;
	}
}

/* Pages for that, on the home's node. Returns what is behind it. */
static int allocate_own(const struct nsv_loader *l, const struct packing *p, uint32_t home,
	size_t *tail, struct nsv_err *err)
{
	size_t begin, end;

	find_own(l, p, home, &begin, &end);
	if (begin == end)
		return 0;
	*tail = end;
	nsv_numa_near(l->m->numa, home);
	return nsv_region_allocate_huge(&l->m->weights, p->off + begin, end - begin, err);
}

/* What anybody may read: huge pages on the nodes in turn. */
static int allocate_tail(
	const struct nsv_loader *l, const struct packing *p, size_t tail, struct nsv_err *err)
{
	size_t at = p->off + tail, end = (p->off + p->len) & ~(NSV_HUGE_PAGE - 1);
	int r = 0;

	at = (at + NSV_HUGE_PAGE - 1) & ~(NSV_HUGE_PAGE - 1);
	for (; r == 0 && at < end; at += NSV_HUGE_PAGE) {
		nsv_numa_near(l->m->numa, nsv_numa_turn(l->m->numa, at / NSV_HUGE_PAGE));
		r = nsv_region_allocate_huge(&l->m->weights, at, NSV_HUGE_PAGE, err);
	}
	return r;
}

/* All else is spread page by page. */
static int allocate_pages(const struct nsv_loader *l, struct nsv_err *err)
{
	const struct nsv_model *m = l->m;
	int r = 0;

	for (size_t i = 0; r == 0 && i < l->n_packing; i++) {
		const struct packing *p = &l->packings[i];
		size_t tail = 0;
		for (uint32_t h = 0; r == 0 && m->backend->weight_own && h < m->numa->n_home; h++)
			if (m->numa->homes[h].has_memory)
				r = allocate_own(l, p, h, &tail, err);
		if (r == 0)
			r = allocate_tail(l, p, tail, err);
	}
	nsv_numa_spread(m->numa);
	return r == 0 ? nsv_region_allocate(&m->weights, 0, m->weights.len, err) : r;
}

/* ---- Packing */

/* The pages of a piece at once, for speed alone: one by one their faults take as long as
 * packing. */
static void take_pages(
	const struct nsv_loader *l, const struct packing *p, const struct nsv_part *part)
{
	size_t begin, end;

	nsv_part_range(part, p->len, NSV_PAGE, &begin, &end);
	char *at = (char *)l->m->weights.map + p->off / NSV_PAGE * NSV_PAGE + begin;
	(void)madvise(at, end - begin, MADV_POPULATE_WRITE);
}

static void pack_piece(const struct nsv_loader *l, const struct packing *p, size_t piece)
{
	size_t first = p == l->packings ? 0 : p[-1].end_piece;
	const struct nsv_part part = {
		.index = (uint32_t)(piece - first), .count = (uint32_t)(p->end_piece - first)};

	take_pages(l, p, &part);
	l->m->backend->weight_pack(&part, p->m, p->n_m, (char *)l->m->weights.map + p->off);
}

/* Pieces are taken, not dealt out: a member may have less of its processor than another, since a
 * start has more to do than this. */
static void pack_member(const struct nsv_part *part, void *arg)
{
	const struct nsv_loader *l = arg;
	uint32_t alone = 0;
	size_t i = 0;

	for (size_t k = 0; part->index == 0 && k < l->n_copying; k++) {
		const struct copying *c = &l->copyings[k];
		memcpy((char *)l->m->weights.map + c->off, c->tensor->data, c->tensor->len);
	}
	for (;;) {
		size_t piece = nsv_team_take(part, &alone);
		while (i < l->n_packing && piece >= l->packings[i].end_piece)
			i++;
		if (i == l->n_packing)
			return;
		pack_piece(l, &l->packings[i], piece);
	}
}

/* From here on a stray store to the weights is a fault, not a wrong answer for all time. */
static int close_region(struct nsv_model *m, struct nsv_err *err)
{
	if (mprotect(m->weights.map, m->weights.len, PROT_READ) < 0)
		return nsv_fail(err, -errno, "protecting the weights: %s", strerror(errno));
	return 0;
}

int nsv_model_pack(struct nsv_model *m, struct nsv_err *err)
{
	struct nsv_loader *l = m->loader;
	uint64_t start = nsv_now_ns();

	if (!l)
		return 0;
	int r = nsv_region_create(&m->weights, "nsv-weights", m->weights_len,
		m->numa ? NSV_REGION_EMPTY : NSV_REGION_HUGE, err);
	if (r == 0 && m->numa)
		r = allocate_pages(l, err);
	if (r < 0)
		return r;
	nsv_team_run(m->team, pack_member, l);
	struct nsv_weights_head *h = m->weights.map;
	*h = make_head(l, m->weights.len);
	__atomic_store_n(&h->magic, NSV_WEIGHTS_MAGIC, __ATOMIC_RELEASE);
	nsv_loader_free(l);
	m->loader = NULL;
	m->pack_ns += nsv_now_ns() - start;
	return close_region(m, err);
}

/* ---- All of it */

static int new_loader(struct nsv_model *m, const struct nsv_gguf *g, struct nsv_err *err)
{
	size_t n = (size_t)TENSORS_A_LAYER * m->desc.n_layer + TENSORS_BESIDE;
	struct nsv_loader *l = calloc(1, sizeof(*l));

	m->layers = calloc(m->desc.n_layer, sizeof(*m->layers));
	m->loader = l;
	if (l) {
		*l = (struct nsv_loader){.m = m, .g = g, .err = err, .len = NSV_PAGE};
		l->used = calloc(n, sizeof(*l->used));
		l->packings = calloc(n, sizeof(*l->packings));
		l->copyings = calloc(n, sizeof(*l->copyings));
	}
	if (!m->layers || !l || !l->used || !l->packings || !l->copyings)
		return nsv_fail(err, -ENOMEM, "no memory for an index of %zu tensors", n);
	return 0;
}

void nsv_loader_free(struct nsv_loader *l)
{
	if (!l)
		return;
	free(l->used);
	free(l->packings);
	free(l->copyings);
	free(l);
}

int nsv_model_place(struct nsv_model *m, const struct nsv_gguf *g, struct nsv_model_keep *keep,
	struct nsv_err *err)
{
	uint64_t start = nsv_now_ns();
	int r = new_loader(m, g, err);

	if (r == 0)
		r = place_all(m->loader);
	if (r < 0)
		return r;
	m->weights_len = m->loader->len;
	if (keep && keep->fd >= 0)
		keep->taken = take_kept(m->loader, keep);
	if (m->weights.map) {
		nsv_loader_free(m->loader);
		m->loader = NULL;
	}
	m->pack_ns = nsv_now_ns() - start;
	return r;
}
