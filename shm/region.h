/* A memfd of fixed size: created, allocated, sealed against shrink, grow and further seals, mode
 * 0600, and mapped. The kernel owns its life: there is no name to clean up. */
#ifndef NSV_SHM_REGION_H
#define NSV_SHM_REGION_H

#include "shm/base.h"

#define NSV_HUGE_PAGE ((size_t)2 << 20)

struct nsv_region {
	int fd;      /* -1: none */
	size_t len;
	void *map;   /* MAP_SHARED; NULL: not mapped */
	size_t n_joined; /* its first bytes, for which huge pages have been asked in this round */
	uint32_t n_round; /* rounds before this one */
	bool has_missed;  /* in this round somebody held a page */
};

#define NSV_REGION_NONE ((struct nsv_region){.fd = -1})

enum nsv_region_flag {
	NSV_REGION_HUGE = 1, /* of huge pages where they can be had: only for what no client maps */
	NSV_REGION_POPULATE = 2, /* touch every page now */
	/* As HUGE, for as long as they come quickly; nsv_region_join asks for the rest. */
	NSV_REGION_HUGE_LATER = 4,
	NSV_REGION_EMPTY = 8, /* without its pages: nsv_region_allocate gives them */
};

/* A new region of `len` bytes (rounded up to a page), zeroed, every page allocated (a full tmpfs is
 * -ENOSPC here, not SIGBUS later), MADV_DONTDUMP, close-on-exec. `name` shows in /proc only. */
int nsv_region_create(struct nsv_region *ret, const char *name, size_t len, unsigned int flags,
	struct nsv_err *err);
/* The pages of a part that has none yet, where the policy of this thread's memory has them. */
int nsv_region_allocate(
	const struct nsv_region *region, size_t off, size_t len, struct nsv_err *err);
/* The same, as huge pages where whole ones lie in it and can be had. */
int nsv_region_allocate_huge(
	const struct nsv_region *region, size_t off, size_t len, struct nsv_err *err);
/* Maps a descriptor that a peer or the fd store handed over, after checking that it is a memfd with
 * the SHRINK, GROW and SEAL seals and has exactly `len` bytes. Takes `fd` only on success. */
int nsv_region_adopt(
	struct nsv_region *ret, int fd, size_t len, bool writable, struct nsv_err *err);
/* Makes huge pages of the next few small ones, which may be in use meanwhile. A system call, of
 * tens of milliseconds where the memory is new to the machine. What somebody held a page of is asked
 * for again when the rest is done, a few times. One thread at a time. false: there are no more, or
 * the kernel makes none. */
bool nsv_region_join(struct nsv_region *region);
/* All that there are; with NSV_REGION_HUGE_LATER only as long as that is quick. */
void nsv_region_join_now(struct nsv_region *region, unsigned int flags);
/* A read-only descriptor of the same memory, for a reader: it can neither map it writable nor
 * punch holes. The caller closes it. */
int nsv_region_reopen_ro(const struct nsv_region *region, int *ret_fd);
void nsv_region_deinit(struct nsv_region *region); /* half-built or NONE is fine */

#endif
