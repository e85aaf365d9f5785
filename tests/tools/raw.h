/* A client without the library: the wire as it is, to be used rightly or wrongly. */
#ifndef NSV_TESTS_TOOLS_RAW_H
#define NSV_TESTS_TOOLS_RAW_H

#include "shm/region.h"
#include "shm/ring.h"
#include "shm/wire.h"

struct nsv_raw {
	int fd;
	struct nsv_welcome welcome;
	struct nsv_region up_region, down_region;
	struct nsv_up up;
	struct nsv_down down;
	struct nsv_sq_producer sq;
	struct nsv_cq_consumer reply, event;
	uint32_t rung;
	uint64_t last_id;
};

/* A connected socket, or -errno. */
int nsv_raw_connect(const char *socket);
/* Connects, says hello (want NULL: defaults) and maps. 0; or, with nothing left open, an
 * nsv_code or -errno. */
int nsv_raw_open(struct nsv_raw *r, const char *socket, const struct nsv_geom *want);
void nsv_raw_close(struct nsv_raw *r);

/* Publishes an entry as it is. */
void nsv_raw_put(struct nsv_raw *r, const struct nsv_sqe *sqe);
/* The next completion of either ring: false: it hangs, or the daemon has closed. */
bool nsv_raw_next(struct nsv_raw *r, struct nsv_cqe *ret);
/* Waits until the daemon closes the socket; false: it hangs. */
bool nsv_raw_closed(struct nsv_raw *r);
/* A text prompt at the arena's start, parameters (may be NULL) behind it, as a submission. */
struct nsv_sqe nsv_raw_prompt(struct nsv_raw *r, const char *text, const struct nsv_params *params);
/* Parameters with which it never ends by itself. */
extern const struct nsv_params nsv_raw_endless;
/* `len` letters at the arena's start, to be tokenized in a slot. */
struct nsv_sqe nsv_raw_tokenize(struct nsv_raw *r, uint32_t slot, uint32_t len);

#endif
