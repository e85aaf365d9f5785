/* Coordinates are pixels; every panel has the same size, its legend right of it. */
#include "tests/tools/svg.h"

#include <float.h>
#include <math.h>

#define WIDTH 860.0
#define PANEL_HEIGHT 330.0
#define LEFT 70.0
#define RIGHT 270.0 /* the legend */
#define TOP 34.0
#define BOTTOM 48.0

static const char *const colours[] = {"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910",
	"#16a0a0", "#7f8c8d", "#2c3e50", "#e67e9f", "#6b8e23"};

struct axis {
	double low, high; /* logarithms on a logarithmic axis */
	bool log;
};

struct frame {
	struct axis x, y;
	double top;
};

static double scaled(const struct axis *a, double v)
{
	return a->log ? log10(v) : v;
}

static bool drawable(const struct axis *a, double v)
{
	return isfinite(v) && (!a->log || v > 0);
}

static void widen(struct axis *a, double v)
{
	if (!drawable(a, v))
		return;
	a->low = fmin(a->low, scaled(a, v));
	a->high = fmax(a->high, scaled(a, v));
}

static struct axis axis_over(const struct nsv_panel *p, bool is_y)
{
	struct axis a = {DBL_MAX, -DBL_MAX, is_y ? p->log_y : p->log_x};

	for (size_t i = 0; i < p->n_series; i++)
		for (size_t k = 0; k < p->series[i].n; k++)
			widen(&a, is_y ? p->series[i].y[k] : p->series[i].x[k]);
	if (is_y && !a.log)
		widen(&a, 0);
	if (a.high < a.low)
		a.low = a.high = 0;
	if (a.high - a.low < 1e-9)
		a.high = a.low + 1;
	return a;
}

static double at_x(const struct frame *f, double v)
{
	double part = (scaled(&f->x, v) - f->x.low) / (f->x.high - f->x.low);

	return LEFT + part * (WIDTH - LEFT - RIGHT);
}

static double at_y(const struct frame *f, double v)
{
	double part = (scaled(&f->y, v) - f->y.low) / (f->y.high - f->y.low);

	return f->top + PANEL_HEIGHT - BOTTOM - part * (PANEL_HEIGHT - TOP - BOTTOM);
}

static void put_text(FILE *f, double x, double y, const char *anchor, const char *text)
{
	fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
		text);
}

static void put_line(FILE *f, double x0, double y0, double x1, double y1)
{
	fprintf(f, "<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"#ddd\"/>\n", x0, y0, x1, y1);
}

static void put_y_tick(FILE *f, const struct frame *fr, double v)
{
	char text[32];
	double y = at_y(fr, v);

	snprintf(text, sizeof(text), "%g", v);
	put_line(f, LEFT, y, WIDTH - RIGHT, y);
	put_text(f, LEFT - 6, y + 4, "end", text);
}

/* 1, 2 and 5 times powers of ten, at most about eight of them. */
static double round_step(double span)
{
	double power = pow(10, floor(log10(span / 8)));
	double ratio = span / 8 / power;

	return power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}

static void put_y_axis(FILE *f, const struct frame *fr)
{
	const struct axis *a = &fr->y;

	if (a->log) {
		for (int power = (int)floor(a->low); power <= (int)ceil(a->high); power++)
			for (int k = 1; k < 10; k += k == 1 ? 1 : k == 2 ? 3 : 5) {
				double v = k * pow(10, power);
				if (log10(v) >= a->low - 1e-9 && log10(v) <= a->high + 1e-9)
					put_y_tick(f, fr, v);
			}
	} else {
		double step = round_step(a->high - a->low);
		for (double v = ceil(a->low / step) * step; v <= a->high + step / 100; v += step)
			put_y_tick(f, fr, fabs(v) < step / 100 ? 0 : v);
	}
}

static void put_axes(FILE *f, const struct nsv_panel *p, const struct frame *fr)
{
	double bottom = fr->top + PANEL_HEIGHT - BOTTOM;

	put_y_axis(f, fr);
	for (size_t i = 0; i < p->n_tick; i++) {
		double x = at_x(fr, p->tick[i]);
		put_line(f, x, fr->top + TOP, x, bottom);
		put_text(f, x, bottom + 16, "middle", p->tick_name[i]);
	}
	put_text(f, (LEFT + WIDTH - RIGHT) / 2, bottom + 36, "middle", p->x_name);
	put_text(f, 8, fr->top + TOP - 8, "start", p->y_name);
	fprintf(f,
		"<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" "
		"font-weight=\"bold\">%s</text>\n",
		(LEFT + WIDTH - RIGHT) / 2, fr->top + TOP - 8, p->title);
}

static void put_series(FILE *f, const struct frame *fr, const struct nsv_series *s, size_t place)
{
	const char *colour = colours[place % NSV_ARRAY_LEN(colours)];
	double x = WIDTH - RIGHT + 14, y = fr->top + TOP + 10 + 18 * (double)place;
	bool begun = false;

	fprintf(f, "<path fill=\"none\" stroke-width=\"1.6\" stroke=\"%s\" d=\"", colour);
	for (size_t i = 0; i < s->n; i++) {
		if (!drawable(&fr->x, s->x[i]) || !drawable(&fr->y, s->y[i]))
			continue;
		fprintf(f, "%c%.1f %.1f", begun ? 'L' : 'M', at_x(fr, s->x[i]), at_y(fr, s->y[i]));
		begun = true;
	}
	fprintf(f, "\"/>\n<path d=\"M%.1f %.1fh20\" stroke-width=\"3\" stroke=\"%s\"/>\n", x, y - 4,
		colour);
	put_text(f, x + 26, y, "start", s->name);
}

int nsv_svg_write(const char *path, const struct nsv_panel *panels, size_t n_panel)
{
	FILE *f = fopen(path, "we");

	if (!f)
		return -errno;
	fprintf(f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
		"font-family=\"sans-serif\" font-size=\"12\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		WIDTH, PANEL_HEIGHT * (double)n_panel);
	for (size_t i = 0; i < n_panel; i++) {
		struct frame fr = {axis_over(&panels[i], false), axis_over(&panels[i], true),
			PANEL_HEIGHT * (double)i};
		put_axes(f, &panels[i], &fr);
		for (size_t k = 0; k < panels[i].n_series; k++)
			put_series(f, &fr, &panels[i].series[k], k);
	}
	fputs("</svg>\n", f);
	return fclose(f) ? -EIO : 0;
}
