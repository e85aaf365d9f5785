/* The list of backends, the choice among them, and the one door to the cache's attention read. */
#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

#include <string.h>

static const struct nsv_backend *const backends[] = {
	&nsv_cpu_backend,
	&nsv_model_backend,
	&nsv_reference_backend,
	NULL,
};

const struct nsv_backend *const *nsv_backends(void)
{
	return backends;
}

static int choose_named(
	const char *name, const struct nsv_backend **ret_backend, struct nsv_err *err)
{
	char names[128] = "";
	for (size_t i = 0; backends[i]; i++) {
		struct nsv_err why = {"it cannot run here"};
		size_t at = strlen(names);
		snprintf(names + at, sizeof(names) - at, " %s", backends[i]->name);
		if (strcmp(backends[i]->name, name))
			continue;
		if (backends[i]->probe(&why) < 0)
			return nsv_fail(err, -ENOTSUP, "backend %s: %.200s", name, why.text);
		*ret_backend = backends[i];
		return 0;
	}
	return nsv_fail(err, -EINVAL, "no backend \"%.60s\"; there are: auto%s", name, names);
}

/* A backend that this machine lacks something for (-ENOTSUP) is passed over; any other refusal, as
 * of a forced instruction set, is an error: nobody asked for less. */
static int choose_best(const struct nsv_backend **ret_backend, struct nsv_err *err)
{
	for (size_t i = 0; backends[i]; i++) {
		int r = backends[i]->probe(err);
		if (r == -ENOTSUP)
			continue;
		if (r == 0)
			*ret_backend = backends[i];
		return r;
	}
	return nsv_fail(err, -ENOTSUP, "no backend can run on this machine");
}

int nsv_backend_choose(
	const char *name, const struct nsv_backend **ret_backend, struct nsv_err *err)
{
	if (!name || !*name || !strcmp(name, "auto"))
		name = getenv("NANOSERVE_BACKEND");
	if (!name || !*name || !strcmp(name, "auto"))
		return choose_best(ret_backend, err);
	return choose_named(name, ret_backend, err);
}

/* ---- How K and V are stored ------------------------------------------------------------- */

static const struct {
	const char *name;
	uint32_t dtype;
} kv_dtypes[] = {{"f16", NSV_F16}, {"f32", NSV_F32}};

int nsv_kv_dtype_choose(const char *name, const struct nsv_backend *backend, uint32_t *ret_dtype,
	struct nsv_err *err)
{
	if (!name || !*name || !strcmp(name, "auto")) {
		*ret_dtype = backend->kv_dtype;
		return 0;
	}
	for (size_t i = 0; i < NSV_ARRAY_LEN(kv_dtypes); i++)
		if (!strcmp(kv_dtypes[i].name, name)) {
			*ret_dtype = kv_dtypes[i].dtype;
			return 0;
		}
	return nsv_fail(err, -EINVAL,
		"K and V cannot be stored as \"%.60s\" (see --kv-dtype); there are: auto f16 f32",
		name);
}

const char *nsv_kv_dtype_name(uint32_t dtype)
{
	for (size_t i = 0; i < NSV_ARRAY_LEN(kv_dtypes); i++)
		if (kv_dtypes[i].dtype == dtype)
			return kv_dtypes[i].name;
	return nsv_dtype_name(dtype);
}

/* ---- */

void nsv_dispatch_attention(struct nsv_dispatch *dispatch, const struct nsv_part *part,
	const struct nsv_attn_call *call)
{
	if (part->index == 0)
		dispatch->n_attention++;
	dispatch->backend->attention(part, call);
}

void nsv_dispatch_attention_alone(struct nsv_dispatch *dispatch, const struct nsv_part *part,
	const struct nsv_attn_call *call)
{
	if (part->index == 0)
		dispatch->n_attention++;
	if (call->plan->n_seq > 0)
		dispatch->backend->attention(&nsv_team_alone, call);
}
