/* A benchmark's table and its JSON. */
#include "tests/tools/report.h"

#include <sys/stat.h>

void nsv_report_begin(struct nsv_report *r, const char *name)
{
	char path[128];

	mkdir("build/bench", 0777);
	snprintf(path, sizeof(path), "build/bench/%s.json", name);
	*r = (struct nsv_report){.name = name, .json = fopen(path, "we")};
	if (!r->json) {
		fprintf(stderr, "%s cannot be written\n", path);
		exit(1);
	}
	fputs("[", r->json);
	printf("%-38s %12s %-8s %7s %10s %12s %7s %7s\n", "work", "value", "unit", "spread",
		"limit", "peer", "ratio", "target");
}

static void put_number(FILE *f, const char *key, double v)
{
	if (v > 0)
		fprintf(f, ", \"%s\": %.6g", key, v);
	else
		fprintf(f, ", \"%s\": null", key);
}

static void print_cell(double v, int width, const char *format)
{
	char text[32] = "-";

	if (v > 0)
		snprintf(text, sizeof(text), format, v);
	printf(" %*s", width, text);
}

void nsv_report_add(struct nsv_report *r, const struct nsv_figure *f)
{
	double ratio = f->peer_value > 0 ? (f->less_is_more ? f->peer_value / f->value
							   : f->value / f->peer_value)
					 : 0;

	printf("%-38s %12.4g %-8s", f->work, f->value, f->unit);
	print_cell(f->spread * 100, 7, "%.0f %%");
	print_cell(f->limit, 10, "%.4g");
	print_cell(f->peer_value, 12, "%.4g");
	print_cell(ratio, 7, "%.2f");
	print_cell(f->target, 7, "%.3g");
	printf("\n");
	fprintf(r->json, "%s{\"work\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"",
		r->n++ ? ",\n " : "", f->work, f->value, f->unit);
	put_number(r->json, "spread", f->spread);
	put_number(r->json, "limit", f->limit);
	fprintf(r->json, ", \"peer\": %s%s%s", f->peer ? "\"" : "", f->peer ? f->peer : "null",
		f->peer ? "\"" : "");
	put_number(r->json, "peer_value", f->peer_value);
	put_number(r->json, "target", f->target);
	fputs("}", r->json);
}

void nsv_report_time(struct nsv_report *r, const char *work, const char *unit, double value,
	const char *peer, double peer_value, double target)
{
	nsv_report_add(r, &(struct nsv_figure){.work = work,
				  .unit = unit,
				  .value = value,
				  .peer = peer_value > 0 ? peer : NULL,
				  .peer_value = peer_value,
				  .target = target,
				  .less_is_more = true});
}

void nsv_report_end(struct nsv_report *r)
{
	fputs("]\n", r->json);
	fclose(r->json);
	printf("written to build/bench/%s.json\n", r->name);
}
