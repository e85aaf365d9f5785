/* Line charts as a stand-alone SVG file, one panel under the other. */
#ifndef NSV_TESTS_TOOLS_SVG_H
#define NSV_TESTS_TOOLS_SVG_H

#include "shm/base.h"

struct nsv_series {
	const char *name;
	const double *x, *y; /* (n) */
	size_t n;
};

/* The ranges are those of the data. On a logarithmic axis what is not above 0 is left out. Ticks
 * of x are the given ones; those of y round numbers. */
struct nsv_panel {
	const char *title, *x_name, *y_name;
	bool log_x, log_y;
	const double *tick;
	const char *const *tick_name;
	size_t n_tick;
	const struct nsv_series *series;
	size_t n_series;
};

/* 0, or -errno. Names are ASCII without markup. */
int nsv_svg_write(const char *path, const struct nsv_panel *panels, size_t n_panel);

#endif
