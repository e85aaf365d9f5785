/* Medians, quantiles and fits. */
#include "tests/tools/stats.h"

#include <math.h>

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

void nsv_sort(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), by_value);
}

double nsv_median(double *v, size_t n)
{
	nsv_sort(v, n);
	return v[n / 2];
}

double nsv_quantile(const double *sorted, size_t n, double q)
{
	size_t i = (size_t)(q * (double)n);

	return sorted[i < n ? i : n - 1];
}

double nsv_spread(const double *sorted, size_t n)
{
	return (nsv_quantile(sorted, n, 0.9) - nsv_quantile(sorted, n, 0.1)) / sorted[n / 2];
}

double nsv_fit_exponent(const double *x, const double *y, size_t n, double *ret_error)
{
	double mx = 0, my = 0, sxx = 0, sxy = 0, rest = 0;

	for (size_t i = 0; i < n; i++) {
		mx += log(x[i]) / (double)n;
		my += log(y[i]) / (double)n;
	}
	for (size_t i = 0; i < n; i++) {
		sxx += (log(x[i]) - mx) * (log(x[i]) - mx);
		sxy += (log(x[i]) - mx) * (log(y[i]) - my);
	}
	double e = sxy / sxx;
	for (size_t i = 0; i < n; i++)
		rest += pow(log(y[i]) - my - e * (log(x[i]) - mx), 2);
	*ret_error = sqrt(rest / (double)(n - 2) / sxx);
	return e;
}
