/* Where things lie in the two regions of a session: computed from its geometry, checked, and turned
 * into typed addresses. Pure arithmetic; both sides compute it themselves and never take an offset
 * from shared memory as an address. */
#ifndef NSV_SHM_LAYOUT_H
#define NSV_SHM_LAYOUT_H

#include "shm/abi.h"
#include "shm/base.h"

#define NSV_MIN_ARENA 4096u
#define NSV_MIN_LP_LOG 128u /* holds a step of the most alternatives */
#define NSV_MAX_CQE 4096u   /* holds four entries for each of NSV_MAX_SLOT slots */

struct nsv_up_layout {
	uint32_t slot_off, sqe_off, arena_off;
	size_t len; /* of the region, whole pages */
};

struct nsv_down_layout {
	uint32_t slot_off, reply_off, event_off, text_off;
	uint64_t token_off, lp_off;
	size_t len;
};

/* Typed addresses in a mapped region. Shared memory: load once, check the local, use the local. */
struct nsv_up {
	struct nsv_up_head *head;
	struct nsv_up_slot *slots; /* (n_slot) */
	struct nsv_sqe *sqes;	   /* (n_sqe) */
	unsigned char *arena;	   /* (arena_len) */
};

struct nsv_down {
	struct nsv_down_head *head;
	struct nsv_down_slot *slots;   /* (n_slot) */
	struct nsv_cqe *reply, *event; /* (n_cqe) each */
	char *text;		       /* (n_slot, text_len) */
	int32_t *tokens;	       /* (n_slot, n_token) */
	struct nsv_lp *lps;	       /* (n_slot, n_lp) */
};

/* *ret is `want` with zeros replaced by defaults and n_cqe chosen. Nothing is checked. */
void nsv_geom_complete(const struct nsv_geom *want, struct nsv_geom *ret);
/* 0, or an enum nsv_code and a sentence: NSV_E_LIMIT (a count is over the wire's limit),
 * NSV_E_HELLO (a count is too small, or not a power of two). */
int nsv_geom_check(const struct nsv_geom *geom, struct nsv_err *err);

/* 0, or -EINVAL: the geometry does not pass nsv_geom_check. */
int nsv_layout_up(const struct nsv_geom *geom, struct nsv_up_layout *ret);
int nsv_layout_down(const struct nsv_geom *geom, struct nsv_down_layout *ret);

struct nsv_up nsv_up_at(void *map, const struct nsv_up_layout *layout);
struct nsv_down nsv_down_at(void *map, const struct nsv_down_layout *layout);

/* Writes the head of a fresh (zeroed) region; the daemon's. `geom` passes nsv_geom_check. */
void nsv_up_format(void *map, const struct nsv_geom *geom, uint64_t session_id);
void nsv_down_format(void *map, const struct nsv_geom *geom, uint64_t session_id);

/* Does a region that a peer made say what the welcome said? 0, or -EPROTO and what differs. `map`
 * has the length of the layout. */
int nsv_up_check(
	const void *map, const struct nsv_geom *geom, uint64_t session_id, struct nsv_err *err);
int nsv_down_check(
	const void *map, const struct nsv_geom *geom, uint64_t session_id, struct nsv_err *err);

#endif
