/* Numbers out of measurements: order statistics, and how a cost grows. */
#ifndef NSV_TESTS_TOOLS_STATS_H
#define NSV_TESTS_TOOLS_STATS_H

#include "shm/base.h"

double nsv_median(double *v, size_t n); /* sorts v; n > 0 */
void nsv_sort(double *v, size_t n);
/* The value that a share q (0 .. 1) of the n sorted ones does not exceed. */
double nsv_quantile(const double *sorted, size_t n, double q);
/* Between the first and the last tenth of the n sorted ones, as a share of their median. */
double nsv_spread(const double *sorted, size_t n);

/* The e of y ~ x^e by least squares over the logarithms, and its standard error; n > 2, all
 * numbers above 0. */
double nsv_fit_exponent(const double *x, const double *y, size_t n, double *ret_error);

#endif
