/* A benchmark's result: a table on standard output and build/bench/NAME.json, one row a figure. */
#ifndef NSV_TESTS_TOOLS_REPORT_H
#define NSV_TESTS_TOOLS_REPORT_H

#include "tests/tools/stats.h"

struct nsv_report {
	const char *name;
	FILE *json;
	int n;
};

struct nsv_figure {
	const char *work, *unit;
	double value;
	double spread;	   /* of nsv_spread; 0: not known */
	double limit;      /* what the machine allows; 0: not known */
	const char *peer;  /* NULL: none was run */
	double peer_value; /* 0: none */
	/* Of the ratio to the peer, or of the value where there is no peer; 0: none. */
	double target;
	bool less_is_more; /* a time */
};

void nsv_report_begin(struct nsv_report *r, const char *name);
void nsv_report_add(struct nsv_report *r, const struct nsv_figure *f);
/* A figure of which less is more. peer_value 0: no peer was run. */
void nsv_report_time(struct nsv_report *r, const char *work, const char *unit, double value,
	const char *peer, double peer_value, double target);
void nsv_report_end(struct nsv_report *r);

#endif
