/* The engine's regions, KV pool, host tier and sequence table: their sizes, and made afresh or
 * taken over from the daemon before. */
#include <math.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "daemon/config.h"
#include "daemon/engine_state.h"
#include "daemon/log.h"
#include "daemon/memory.h"
#include "daemon/pool.h"

#define BLOCK_SIZE 16

/* ---- Taking over */

typedef int check_fn(struct nsv_engine *e, const struct nsv_region *r, struct nsv_err *err);

/* Takes a region that fits, and *fd with it. false: there is none, or the log says why not. */
static bool take_over(struct nsv_engine *e, struct nsv_region *ret_region, int *fd, size_t len,
	check_fn *check, const char *name)
{
	struct nsv_err err = {""};
	struct nsv_region r;

	if (*fd < 0)
		return false;
	int ret = nsv_region_adopt(&r, *fd, len, true, &err);
	if (ret == 0) {
		*fd = -1;
		ret = check(e, &r, &err);
		if (ret == 0)
			*ret_region = r;
		else
			nsv_region_deinit(&r);
	}
	if (ret < 0)
		nsv_warning("%s of the previous daemon is not taken over: %s", name, err.text);
	return ret == 0;
}

/* ---- Made afresh */

/* The first len_each bytes of each huge page's place, on the nodes in turn. */
static int deal_places(const struct nsv_numa *numa, const struct nsv_region *r, size_t len_each,
	struct nsv_err *err)
{
	int ret = 0;

	for (size_t k = 0; k < numa->n_node; k++) {
		nsv_numa_near(numa, nsv_numa_turn(numa, k));
		for (size_t at = k * NSV_HUGE_PAGE; ret == 0 && at < r->len;
			at += numa->n_node * NSV_HUGE_PAGE)
			ret = nsv_region_allocate(r, at, nsv_min(len_each, r->len - at), err);
	}
	nsv_numa_spread(numa);
	return ret;
}

/* Over the nodes; what is joined later stays on its node, too. */
static int allocate_spread(const struct nsv_numa *numa, struct nsv_region *r, unsigned int flags,
	struct nsv_err *err)
{
	int ret = deal_places(numa, r, NSV_PAGE, err);

	if (ret < 0)
		return ret;
	nsv_region_join_now(r, flags);
	return deal_places(numa, r, NSV_HUGE_PAGE, err);
}

static int new_region(const struct nsv_engine *e, struct nsv_region *ret, const char *name,
	size_t len, unsigned int flags, struct nsv_err *err)
{
	if (e->numa.n_node < 2)
		return nsv_region_create(ret, name, len, flags, err);
	int code = nsv_region_create(ret, name, len, NSV_REGION_EMPTY, err);
	return code < 0 ? code : allocate_spread(&e->numa, ret, flags, err);
}

/* ---- KV pool */

static struct nsv_kv_geom kv_geom(
	const struct nsv_model_desc *d, const struct nsv_backend *backend, uint32_t dtype)
{
	return (struct nsv_kv_geom){.n_layer = d->n_layer,
		.n_kv_head = d->n_kv_head,
		.head_dim = d->head_dim,
		.block_size = BLOCK_SIZE,
		.elem_len = nsv_dtype_info(dtype)->n_byte,
		.dtype = dtype,
		.k_dim_major = backend->k_dim_major};
}

static void set_kv(struct nsv_engine *e, const struct nsv_kv_size *size)
{
	const struct nsv_kv_geom *g = &e->kv_geom;
	const struct nsv_model_desc *d = e->info.desc;
	int64_t head = (int64_t)d->head_dim * BLOCK_SIZE;
	int64_t block = (int64_t)(size->block / g->elem_len);
	size_t k0 = nsv_kv_plane_off(g, 0, false);

	e->kv = (struct nsv_model_kv){
		.base = (char *)e->kv_region.map + k0,
		.layer_stride = nsv_kv_plane_off(g, 1, false) - k0,
		.v_off = nsv_kv_plane_off(g, 0, true) - k0,
		.shape = {.n_head = d->n_head,
			.n_kv_head = d->n_kv_head,
			.head_dim = d->head_dim,
			.block_size = BLOCK_SIZE,
			.n_block = g->n_block,
			.kv_dtype = g->dtype,
			.scale = 1.0f / sqrtf((float)d->head_dim),
			.k = g->k_dim_major ? (struct nsv_kv_layout){block, 1, head, BLOCK_SIZE}
					    : (struct nsv_kv_layout){block, d->head_dim, head, 1},
			.v = {block, d->head_dim, head, 1}},
	};
	e->info.block_size = BLOCK_SIZE;
	e->info.n_block = g->n_block;
	e->info.kv_len = size->region;
	e->info.kv_token_len = size->token;
}

static int check_kv(struct nsv_engine *e, const struct nsv_region *r, struct nsv_err *err)
{
	return nsv_kv_head_check(r->map, r->len, &e->kv_geom, nsv_model_id(e->model),
		e->info.backend->numerics, err);
}

/* A pool whose size was left to us keeps the one that it had: what is free now is another number,
 * since that pool is in it. */
static bool take_over_kv(struct nsv_engine *e, const struct nsv_engine_config *c, int *keep_fd)
{
	struct nsv_kv_size size;
	struct stat st;
	uint32_t n = c->kv_blocks;

	if (*keep_fd < 0 || fstat(*keep_fd, &st) < 0)
		return false;
	size_t budget = c->kv_memory ? (size_t)c->kv_memory : (size_t)st.st_size;
	if (!n && nsv_kv_blocks_in(&e->kv_geom, budget, &n) < 0)
		return false;
	e->kv_geom.n_block = n;
	if (nsv_kv_sizes(&e->kv_geom, &size) < 0)
		return false;
	return take_over(e, &e->kv_region, keep_fd, size.region, check_kv, "the KV pool");
}

static int new_kv(struct nsv_engine *e, const struct nsv_engine_config *c, size_t free_len,
	struct nsv_err *err)
{
	struct nsv_pool_wish wish = {.n_block = c->kv_blocks,
		.memory = c->kv_memory,
		.n_host = c->swap_blocks,
		.n_ctx = e->info.desc->n_ctx};
	struct nsv_kv_size size;
	int ret = nsv_pool_choose(&e->kv_geom, &wish, free_len, &e->kv_geom.n_block, err);

	if (ret == 0 && nsv_kv_sizes(&e->kv_geom, &size) < 0)
		ret = nsv_fail(
			err, -EINVAL, "a KV pool of %u blocks is impossible", e->kv_geom.n_block);
	if (ret == 0)
		ret = new_region(
			e, &e->kv_region, "nsv-kv", size.region, NSV_REGION_HUGE_LATER, err);
	if (ret == 0)
		nsv_kv_head_write(e->kv_region.map, &e->kv_geom, nsv_model_id(e->model),
			e->info.backend->numerics);
	return ret;
}

/* The host tier: blocks as the pool's, packed. What the daemon before had there is computed
 * again. */
static int make_host(struct nsv_engine *e, uint32_t n_block, size_t block_len, size_t free_len,
	struct nsv_err *err)
{
	size_t len, most = nsv_pool_most(free_len);

	if (n_block == 0)
		return 0;
	if (!nsv_mul(block_len, n_block, &len) || !nsv_align_up(len, NSV_PAGE, &len) || len > most)
		return nsv_fail(err, -ENOMEM,
			"%u blocks to swap are wanted, memory for %zu is free (see --swap-blocks)",
			n_block, most / block_len);
	e->info.n_host_block = n_block;
	e->info.host_len = len;
	return new_region(e, &e->host_region, "nsv-swap", len, NSV_REGION_HUGE, err);
}

int nsv_engine_make_kv(struct nsv_engine *e, const struct nsv_engine_config *c, size_t free_len,
	int *keep_fd, struct nsv_err *err)
{
	struct nsv_kv_size size;
	int ret = 0;

	e->kv_geom = kv_geom(e->info.desc, e->info.backend, e->info.kv_dtype);
	e->info.adopted_kv = take_over_kv(e, c, keep_fd);
	if (!e->info.adopted_kv)
		ret = new_kv(e, c, free_len, err);
	if (ret < 0)
		return ret;
	nsv_kv_sizes(&e->kv_geom, &size);
	if (!e->info.adopted_kv)
		free_len -= nsv_min(free_len, size.region);
	set_kv(e, &size);
	int status = nsv_attn_check_shape(&e->kv.shape);
	if (status != NSV_ATTN_OK)
		return nsv_fail(err, -EINVAL, "attention over this model: %s",
			nsv_attn_status_name(status));
	return make_host(e, c->swap_blocks, size.block, free_len, err);
}

/* ---- Huge pages behind the start */

#define JOIN_NICE 10 /* steps go first, but who waits for a page of it does not wait for long */

static void *join_kv(void *arg)
{
	struct nsv_engine *e = arg;

	prctl(PR_SET_NAME, "nsv-join");
	(void)setpriority(PRIO_PROCESS, (id_t)gettid(), JOIN_NICE);
	while (!__atomic_load_n(&e->join_stops, __ATOMIC_RELAXED) && nsv_region_join(&e->kv_region))
		;
	return NULL;
}

void nsv_engine_join_start(struct nsv_engine *e)
{
	e->joins = pthread_create(&e->join, NULL, join_kv, e) == 0; /* else pages stay small */
}

void nsv_engine_join_stop(struct nsv_engine *e)
{
	__atomic_store_n(&e->join_stops, 1, __ATOMIC_RELAXED);
	if (e->joins)
		pthread_join(e->join, NULL);
	e->joins = false;
}

/* ---- Sequence table */

static struct nsv_seqs_geom seqs_geom(const struct nsv_engine *e)
{
	uint32_t n_ctx = e->info.desc->n_ctx;

	return (struct nsv_seqs_geom){.n_session = NSV_MAX_SESSIONS,
		.n_seq = e->max_requests,
		.n_token = n_ctx,
		.n_block = nsv_blocks_for(n_ctx, BLOCK_SIZE)};
}

static int check_seqs(struct nsv_engine *e, const struct nsv_region *r, struct nsv_err *err)
{
	struct nsv_seqs_geom geom = seqs_geom(e);

	return nsv_seqs_open(&e->seqs, r->map, r->len, &geom, nsv_model_id(e->model), err);
}

/* A table as its own head says it is; nothing of it is believed yet but its length. */
static int map_kept(int fd, struct nsv_region *ret_region, struct nsv_seqs *ret_seqs)
{
	struct nsv_seqs_head head;
	struct nsv_err err;
	size_t len;

	if (fd < 0 || pread(fd, &head, sizeof(head), 0) != sizeof(head) ||
		head.geom.n_seq > NSV_CONFIG_MAX_REQUESTS || nsv_seqs_len(&head.geom, &len) < 0)
		return -EPROTO;
	nsv_align_up(len, NSV_PAGE, &len);
	int ret = nsv_region_adopt(ret_region, fd, len, false, &err);
	if (ret == 0)
		ret = nsv_seqs_open(
			ret_seqs, ret_region->map, len, &head.geom, head.model_id, &err);
	return ret;
}

uint32_t nsv_engine_kept_records(int keep_fd)
{
	struct nsv_region r = NSV_REGION_NONE;
	struct nsv_seqs seqs;
	uint32_t n = 0;

	if (map_kept(keep_fd, &r, &seqs) == 0)
		for (uint32_t i = 0; n == 0 && i < seqs.geom.n_session; i++)
			if (nsv_seqs_get_session(&seqs, i).state)
				n = seqs.geom.n_seq;
	r.fd = -1; /* it is the caller's */
	nsv_region_deinit(&r);
	return n;
}

static int table_len(const struct nsv_engine *e, size_t *ret_len, struct nsv_err *err)
{
	struct nsv_seqs_geom geom = seqs_geom(e);
	int ret = nsv_seqs_len(&geom, ret_len);

	if (ret < 0)
		return nsv_fail(err, ret, "a table of %u requests is impossible", geom.n_seq);
	nsv_align_up(*ret_len, NSV_PAGE, ret_len);
	return 0;
}

static int new_seqs(struct nsv_engine *e, struct nsv_err *err)
{
	struct nsv_seqs_geom geom = seqs_geom(e);
	int ret = nsv_region_create(&e->seqs_region, "nsv-seqs", e->info.seqs_len, 0, err);

	if (ret == 0)
		ret = nsv_seqs_format(&e->seqs, e->seqs_region.map, &geom, nsv_model_id(e->model));
	return ret;
}

/* An adopted table tells how the daemon before ended; that is said once, as the next one begins. */
static void begin_seqs(struct nsv_engine *e)
{
	const struct nsv_seqs_head *h = nsv_seqs_head(&e->seqs);
	bool cut_off = !h->clean && h->stage != NSV_SEQS_GAVE_UP;

	nsv_seqs_begin(&e->seqs);
	e->info.suspect = nsv_seqs_suspect(&e->seqs);
	if (cut_off)
		nsv_warning("the previous daemon was cut off; in a row without progress: %u during "
			    "a step, %u before they served",
			h->n_crash, h->n_stillborn);
}

int nsv_engine_make_seqs(struct nsv_engine *e, const struct nsv_engine_config *c, uint32_t n_kept,
	int *keep_fd, struct nsv_err *err)
{
	e->max_requests = n_kept ? n_kept : c->max_requests;
	int ret = table_len(e, &e->info.seqs_len, err);
	if (ret < 0)
		return ret;
	e->info.adopted_seqs = take_over(
		e, &e->seqs_region, keep_fd, e->info.seqs_len, check_seqs, "the sequence table");
	if (!e->info.adopted_seqs) {
		e->max_requests = c->max_requests;
		ret = table_len(e, &e->info.seqs_len, err);
		if (ret == 0)
			ret = new_seqs(e, err);
	}
	if (ret < 0)
		return ret;
	e->info.max_requests = (uint32_t)nsv_min(c->max_requests, e->max_requests);
	if (e->info.max_requests < c->max_requests)
		nsv_warning("max_requests is %u, not %u, as long as sessions of the previous "
			    "daemon are kept: their table has no more records",
			e->info.max_requests, c->max_requests);
	begin_seqs(e);
	return 0;
}
