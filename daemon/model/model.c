/* A model's life: described, loaded, given its scratch; and its fingerprint. */
#include "daemon/model/family.h"
#include "daemon/model/model-impl.h"
#include "daemon/numa.h"

#include <math.h>
#include <string.h>

#define MAX_ROW (1u << 16)

/* ---- Fingerprint: FNV-1a over the description, the tensors' places and samples of their bytes.
 * It tells files apart; it is no defence against somebody who forges one. */

#define SAMPLES 16
#define SAMPLE_LEN 64

static const char *sample_at(const struct nsv_tensor *t, size_t i)
{
	size_t room = t->len - nsv_min(t->len, SAMPLE_LEN);

	return (const char *)t->data + room / (SAMPLES - 1) * i;
}

static uint64_t hash_tensor(uint64_t h, const struct nsv_tensor *t)
{
	size_t len = nsv_min(t->len, SAMPLE_LEN);

	h = nsv_hash(h, t->name.p, t->name.len);
	h = nsv_hash(h, &t->dtype, sizeof(t->dtype));
	h = nsv_hash(h, t->dim, sizeof(t->dim));
	for (size_t i = 0; i < SAMPLES; i++)
		h = nsv_hash(h, sample_at(t, i), len);
	return h;
}

/* Brings the samples' pages into this process: most of the time that hashing them takes. */
static void touch_samples(const struct nsv_part *part, void *arg)
{
	const struct nsv_gguf *g = *(const struct nsv_gguf **)arg;
	size_t begin, end;

	nsv_part_range(part, nsv_gguf_n_tensor(g), 1, &begin, &end);
	for (size_t k = begin; k < end; k++) {
		const struct nsv_tensor *t = nsv_gguf_tensor_at(g, k);

		for (size_t i = 0; t->len > 0 && i < SAMPLES; i++)
			(void)*(const volatile char *)sample_at(t, i);
	}
}

static uint64_t fingerprint(
	const struct nsv_gguf *g, const struct nsv_model_desc *desc, struct nsv_team *team)
{
	size_t file_len = nsv_gguf_file_len(g);
	uint64_t h = nsv_hash(NSV_HASH_START, desc, sizeof(*desc));

	nsv_team_run(team, touch_samples, &g);
	h = nsv_hash(h, &file_len, sizeof(file_len));
	for (size_t i = 0; i < nsv_gguf_n_tensor(g); i++)
		h = hash_tensor(h, nsv_gguf_tensor_at(g, i));
	return h;
}

/* ---- Life */

static double *new_freq(uint32_t n_rot, double base, double factor)
{
	double *freq = calloc(n_rot / 2, sizeof(*freq));

	for (uint32_t i = 0; freq && i < n_rot / 2; i++)
		freq[i] = pow(base, -2.0 * i / n_rot) / factor;
	return freq;
}

static int set_rope_freq(struct nsv_model *m, struct nsv_err *err)
{
	const struct nsv_model_desc *d = &m->desc;
	const double base[] = {d->rope_base, d->local_rope_base}, factor[] = {d->rope_factor, 1};

	for (uint32_t kind = 0; kind < nsv_n_layer_kind(d); kind++) {
		m->rope_freq[kind] = new_freq(d->n_rot, base[kind], factor[kind]);
		if (!m->rope_freq[kind])
			return nsv_fail(err, -ENOMEM, "no memory for the model");
	}
	return 0;
}

int nsv_model_new(const struct nsv_gguf *g, const struct nsv_backend *backend,
	struct nsv_team *team, const struct nsv_model_config *config, struct nsv_model **ret_model,
	struct nsv_err *err)
{
	struct nsv_model *m;
	int ret;

	if (config->max_row == 0 || config->max_row > MAX_ROW || config->max_out == 0)
		return nsv_fail(err, -EINVAL, "%u rows and %u outputs a step, expected 1 to %u",
			config->max_row, config->max_out, MAX_ROW);
	m = calloc(1, sizeof(*m));
	if (!m)
		return nsv_fail(err, -ENOMEM, "no memory for the model");
	m->weights = NSV_REGION_NONE;
	m->backend = backend;
	m->team = team;
	m->numa = config->numa && config->numa->n_node > 1 ? config->numa : NULL;
	m->max_row = config->max_row;
	m->max_out = (uint32_t)nsv_min(config->max_out, config->max_row);
	ret = nsv_describe(g, &m->desc, err);
	if (ret == 0)
		ret = set_rope_freq(m, err);
	if (ret == 0) {
		m->id = fingerprint(g, &m->desc, team);
		ret = nsv_model_place(m, g, config->keep, err);
	}
	if (ret == 0)
		ret = nsv_scratch_init(m, err);
	if (ret == 0 && !config->pack_later)
		ret = nsv_model_pack(m, err);
	if (ret < 0) {
		nsv_model_free(m);
		return ret;
	}
	*ret_model = m;
	return 0;
}

void nsv_model_free(struct nsv_model *m)
{
	if (!m)
		return;
	nsv_scratch_deinit(&m->scratch);
	nsv_loader_free(m->loader);
	nsv_region_deinit(&m->weights);
	for (size_t kind = 0; kind < NSV_N_LAYER_KIND; kind++)
		free(m->rope_freq[kind]);
	free(m->layers);
	free(m);
}

const struct nsv_model_desc *nsv_model_get_desc(const struct nsv_model *m)
{
	return &m->desc;
}

void nsv_model_weights(const struct nsv_model *m, size_t *ret_len, uint64_t *ret_ns)
{
	*ret_len = m->weights_len;
	*ret_ns = m->pack_ns;
}

int nsv_model_weights_fd(const struct nsv_model *m)
{
	return m->weights.fd;
}

uint64_t nsv_model_id(const struct nsv_model *m)
{
	return m->id;
}
