/* A hello, a welcome and the geometry in them, from any bytes. What passes the checks must have a
 * layout whose areas lie inside its region. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "shm/layout.h"
#include "shm/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_geometry(const struct nsv_geom *geom)
{
	struct nsv_up_layout up;
	struct nsv_down_layout down;
	struct nsv_err err;
	bool good = nsv_geom_check(geom, &err) == 0;

	if (good != (nsv_layout_up(geom, &up) == 0) || good != (nsv_layout_down(geom, &down) == 0))
		abort();
	if (!good)
		return;
	if ((uint64_t)up.arena_off + geom->arena_len > up.len)
		abort();
	if (down.lp_off + (uint64_t)geom->n_slot * geom->n_lp * sizeof(struct nsv_lp) > down.len)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct nsv_hello hello;
	struct nsv_welcome welcome;
	struct nsv_geom geom;
	struct nsv_err err;

	if (nsv_hello_check(data, len, &hello, &err) == 0) {
		nsv_geom_complete(&hello.want, &geom);
		check_geometry(&geom);
		check_geometry(&hello.want);
	}
	if (nsv_welcome_check(data, len, &welcome, &err) == 0)
		check_geometry(&welcome.geom);
	return 0;
}
