/* The roofline picture: operations for each byte read to the right, Gop/s upwards; what memory
 * allows, then what arithmetic does; a point a kernel. */
#include <math.h>
#include <string.h>

#include "tests/bench/cpu.h"
#include "tests/tools/svg.h"

#define MAX_POINT 64
#define N_ROOF 4
#define LABEL_LEN 24

struct cloud {
	double x[MAX_POINT], y[MAX_POINT];
	char text[MAX_POINT][LABEL_LEN];
	const char *label[MAX_POINT];
	size_t n;
};

struct picture {
	struct cloud clouds[N_FAMILY];
};

struct roof {
	char name[64];
	double x[2], y[2];
};

static const char *const family_names[N_FAMILY] = {
	[QUANTISED] = "products, 1 row; Q4_1: 2 to 512",
	[FLOATS] = "products over floats; BF16: 8 to 512",
	[ATTENTION] = "attention: K and V, queries",
	[ROWS] = "operations on rows",
	[SAMPLING] = "passes of sampling",
};

struct picture *picture_new(void)
{
	struct picture *p = calloc(1, sizeof(*p));

	if (!p)
		die("no memory");
	return p;
}

void picture_add(struct picture *p, enum family family, const char *label, struct point point)
{
	struct cloud *c = &p->clouds[family];

	if (c->n == MAX_POINT)
		die("too many points");
	snprintf(c->text[c->n], LABEL_LEN, "%s", label);
	c->label[c->n] = c->text[c->n];
	c->x[c->n] = point.ops_byte;
	c->y[c->n++] = point.ops_s * 1e-9;
}

static void widen(const struct picture *p, double *low, double *high)
{
	for (size_t f = 0; f < N_FAMILY; f++)
		for (size_t i = 0; i < p->clouds[f].n; i++) {
			*low = fmin(*low, p->clouds[f].x[i]);
			*high = fmax(*high, p->clouds[f].x[i]);
		}
}

/* From where memory allows as much, to the right end. */
static size_t add_roof(
	struct roof *roofs, size_t n, const char *name, double top, double read, double right)
{
	if (top <= 0)
		return n;
	snprintf(roofs[n].name, sizeof(roofs[n].name), "%s: %.0f Gop/s", name, top * 1e-9);
	roofs[n].x[0] = top / read;
	roofs[n].x[1] = right;
	roofs[n].y[0] = roofs[n].y[1] = top * 1e-9;
	return n + 1;
}

static size_t make_roofs(const struct picture *p, const struct limits *l, struct roof roofs[N_ROOF])
{
	double low = 1, high = 1, top = fmax(fmax(l->dot, l->bf16), l->fma);
	size_t n = 1;
	char name[32];

	widen(p, &low, &high);
	top = fmin(top > 0 ? top : high * l->read, high * l->read);
	snprintf(roofs[0].name, sizeof(roofs[0].name), "memory read: %.1f GB/s", l->read * 1e-9);
	roofs[0].x[0] = low;
	roofs[0].y[0] = low * l->read * 1e-9;
	roofs[0].x[1] = top / l->read;
	roofs[0].y[1] = top * 1e-9;
	snprintf(name, sizeof(name), "u8 x s8, %s", l->dot_unit);
	n = add_roof(roofs, n, name, l->dot, l->read, high);
	n = add_roof(roofs, n, "bf16, AMX", l->bf16, l->read, high);
	return add_roof(roofs, n, "fp32 multiply-adds", l->fma, l->read, high);
}

/* As the kernel says; nothing where it says none. What would be markup is left out. */
static void name_processor(char *text, size_t len)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256], *to = text;

	text[0] = 0;
	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) {
			snprintf(text, len, "%s, ", strchr(line, ':') + 2);
			break;
		}
	if (f)
		fclose(f);
	for (const char *c = text; *c; c++)
		if (!strchr("\n<>&", *c))
			*to++ = *c;
	*to = 0;
}

static int write_picture(
	const struct picture *p, const struct roof *roofs, size_t n_roof, const char *note)
{
	static const double ticks[] = {0.1, 1, 10, 100, 1000, 10000};
	static const char *const names[] = {"0.1", "1", "10", "100", "1,000", "10,000"};
	struct nsv_series series[N_ROOF];
	struct nsv_points points[N_FAMILY];
	size_t n_tick = NSV_ARRAY_LEN(ticks);

	for (size_t i = 0; i < n_roof; i++)
		series[i] = (struct nsv_series){roofs[i].name, roofs[i].x, roofs[i].y, 2};
	for (size_t i = 0; i < N_FAMILY; i++)
		points[i] = (struct nsv_points){family_names[i], p->clouds[i].x, p->clouds[i].y,
			p->clouds[i].label, p->clouds[i].n};
	while (n_tick && ticks[n_tick - 1] > roofs[n_roof - 1].x[1])
		n_tick--;
	const struct nsv_panel panel = {
		.title = "Kernels of the cpu backend and the machine's limits",
		.x_name = "operations for each byte that is read from memory",
		.y_name = "Gop/s",
		.log_x = true,
		.log_y = true,
		.tick = ticks,
		.tick_name = names,
		.n_tick = n_tick,
		.series = series,
		.n_series = n_roof};

	return nsv_svg_write_points("build/bench/cpu.svg", &panel, note, points, N_FAMILY);
}

void picture_draw(struct picture *p, const struct limits *l, const char *isa, uint32_t n_thread)
{
	struct roof roofs[N_ROOF];
	size_t n_roof = make_roofs(p, l, roofs);
	char processor[128], note[256];

	name_processor(processor, sizeof(processor));
	snprintf(note, sizeof(note), "%s%s, %u threads; SmolLM2-135M's shapes", processor, isa,
		n_thread);
	if (write_picture(p, roofs, n_roof, note) < 0)
		die("build/bench/cpu.svg cannot be written");
	free(p);
}
