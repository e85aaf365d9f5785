/* Line charts as a stand-alone SVG file, one panel under the other; or one of lines and of points
 * that have labels. */
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

struct nsv_points {
	const char *name;
	const double *x, *y; /* (n) */
	const char *const *label;
	size_t n;
};

/* A higher panel with a note under its title, points over its lines, and the legend at the upper
 * left, where nothing may lie. Labels give way to each other. */
int nsv_svg_write_points(const char *path, const struct nsv_panel *panel, const char *note,
	const struct nsv_points *points, size_t n_points);

#endif
