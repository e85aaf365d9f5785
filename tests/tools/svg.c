/* Coordinates are pixels; every panel has the same size, its legend right of it or, of points,
 * within it. */
#include "tests/tools/svg.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define WIDTH 860.0
#define PANEL_HEIGHT 330.0
#define POINTS_HEIGHT 620.0
#define LEFT 70.0
#define RIGHT 270.0 /* the legend */
#define TOP 34.0
#define BOTTOM 48.0
#define ROOM 0.1     /* at the ends of axes, in powers of ten, where points have labels */
#define LEGEND 250.0 /* the width of one within a panel */

static const char *const colours[] = {"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910",
	"#16a0a0", "#7f8c8d", "#2c3e50", "#e67e9f", "#6b8e23"};

struct axis {
	double low, high; /* logarithms on a logarithmic axis */
	bool log;
};

/* What is in a panel. */
struct chart {
	const struct nsv_panel *panel;
	const char *note; /* or NULL */
	const struct nsv_points *points;
	size_t n_points; /* 0: of lines alone */
};

struct box {
	double x0, y0, x1, y1;
};

#define MAX_TAKEN 256

struct frame {
	struct axis x, y;
	double top, height, right;
	struct box taken[MAX_TAKEN]; /* where no label may be */
	size_t n_taken;
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

static struct axis axis_over(const struct chart *c, bool is_y)
{
	const struct nsv_panel *p = c->panel;
	struct axis a = {DBL_MAX, -DBL_MAX, is_y ? p->log_y : p->log_x};

	for (size_t i = 0; i < p->n_series; i++)
		for (size_t k = 0; k < p->series[i].n; k++)
			widen(&a, is_y ? p->series[i].y[k] : p->series[i].x[k]);
	for (size_t i = 0; i < c->n_points; i++)
		for (size_t k = 0; k < c->points[i].n; k++)
			widen(&a, is_y ? c->points[i].y[k] : c->points[i].x[k]);
	if (is_y && !a.log)
		widen(&a, 0);
	if (a.high < a.low)
		a.low = a.high = 0;
	if (a.high - a.low < 1e-9)
		a.high = a.low + 1;
	if (c->n_points) {
		a.low -= ROOM;
		a.high += ROOM;
	}
	return a;
}

static double at_x(const struct frame *f, double v)
{
	double part = (scaled(&f->x, v) - f->x.low) / (f->x.high - f->x.low);

	return LEFT + part * (WIDTH - LEFT - f->right);
}

static double at_y(const struct frame *f, double v)
{
	double part = (scaled(&f->y, v) - f->y.low) / (f->y.high - f->y.low);

	return f->top + f->height - BOTTOM - part * (f->height - TOP - BOTTOM);
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
	put_line(f, LEFT, y, WIDTH - fr->right, y);
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

static void put_axes(FILE *f, const struct chart *c, const struct frame *fr)
{
	const struct nsv_panel *p = c->panel;
	double bottom = fr->top + fr->height - BOTTOM, middle = (LEFT + WIDTH - fr->right) / 2;

	put_y_axis(f, fr);
	for (size_t i = 0; i < p->n_tick; i++) {
		double x = at_x(fr, p->tick[i]);
		put_line(f, x, fr->top + TOP, x, bottom);
		put_text(f, x, bottom + 16, "middle", p->tick_name[i]);
	}
	put_text(f, middle, bottom + 36, "middle", p->x_name);
	put_text(f, 8, fr->top + TOP - 8, "start", p->y_name);
	fprintf(f,
		"<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" "
		"font-weight=\"bold\">%s</text>\n",
		middle, fr->top + (c->note ? 14 : TOP - 8), p->title);
	if (c->note)
		put_text(f, middle, fr->top + TOP - 4, "middle", c->note);
}

/* ---- Points and their labels */

static void take(struct frame *fr, struct box b)
{
	if (fr->n_taken < MAX_TAKEN)
		fr->taken[fr->n_taken++] = b;
}

static bool is_free(const struct frame *fr, const struct box *b)
{
	if (b->x0 < LEFT || b->x1 > WIDTH - fr->right || b->y0 < fr->top + TOP ||
		b->y1 > fr->top + fr->height - BOTTOM)
		return false;
	for (size_t i = 0; i < fr->n_taken; i++) {
		const struct box *t = &fr->taken[i];

		if (b->x0 < t->x1 && t->x0 < b->x1 && b->y0 < t->y1 && t->y0 < b->y1)
			return false;
	}
	return true;
}

/* The nearest free place for a text about a point, on rings of growing size; else beside it. */
static struct box find_place(const struct frame *fr, double x, double y, const char *text)
{
	double half = 3.2 * (double)strlen(text), reach = 12;
	struct box b = {0};

	for (int at = 0; at < 12 * 16; at++, reach = 12 + at / 12 * 8) {
		double turn = (at % 12) * M_PI / 6, cx, cy;

		cx = x + cos(turn) * (half + reach - 6);
		cy = y + sin(turn) * reach;
		b = (struct box){cx - half, cy - 7, cx + half, cy + 6};
		if (is_free(fr, &b))
			return b;
	}
	return (struct box){x + 6, y - 7, x + 6 + 2 * half, y + 6};
}

static void put_label(FILE *f, struct frame *fr, double x, double y, const char *text,
	const char *colour)
{
	struct box b = find_place(fr, x, y, text);
	double near_x = fmin(fmax(x, b.x0), b.x1), near_y = fmin(fmax(y, b.y0), b.y1);

	take(fr, b);
	if (hypot(near_x - x, near_y - y) > 12)
		fprintf(f,
			"<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"%s\" stroke-width=\"0.6\"/>\n",
			x, y, near_x, near_y, colour);
	fprintf(f,
		"<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"11\" fill=\"%s\" "
		"stroke=\"white\" stroke-width=\"3\" paint-order=\"stroke\">%s</text>\n",
		(b.x0 + b.x1) / 2, b.y1 - 2, colour, text);
}

static void put_points(
	FILE *f, struct frame *fr, const struct nsv_points *s, const char *colour)
{
	for (size_t i = 0; i < s->n; i++)
		if (drawable(&fr->x, s->x[i]) && drawable(&fr->y, s->y[i]))
			put_label(f, fr, at_x(fr, s->x[i]), at_y(fr, s->y[i]), s->label[i], colour);
	for (size_t i = 0; i < s->n; i++)
		if (drawable(&fr->x, s->x[i]) && drawable(&fr->y, s->y[i]))
			fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n",
				at_x(fr, s->x[i]), at_y(fr, s->y[i]), colour);
}

/* No label is to cover a point, nor the legend. */
static void take_points(struct frame *fr, const struct chart *c)
{
	double x = LEFT + 20, y = fr->top + TOP + 4;
	size_t n = c->panel->n_series + c->n_points;

	take(fr, (struct box){x, y, x + LEGEND, y + 18 * (double)n});
	for (size_t i = 0; i < c->n_points; i++)
		for (size_t k = 0; k < c->points[i].n; k++) {
			x = at_x(fr, c->points[i].x[k]);
			y = at_y(fr, c->points[i].y[k]);
			take(fr, (struct box){x - 4, y - 4, x + 4, y + 4});
		}
}

/* ---- Series */

static void put_curve(
	FILE *f, const struct frame *fr, const struct nsv_series *s, const char *colour)
{
	bool begun = false;

	fprintf(f, "<path fill=\"none\" stroke-width=\"1.6\" stroke=\"%s\" d=\"", colour);
	for (size_t i = 0; i < s->n; i++) {
		if (!drawable(&fr->x, s->x[i]) || !drawable(&fr->y, s->y[i]))
			continue;
		fprintf(f, "%c%.1f %.1f", begun ? 'L' : 'M', at_x(fr, s->x[i]), at_y(fr, s->y[i]));
		begun = true;
	}
	fputs("\"/>\n", f);
}

/* The sign of the place-th in the legend: a dash, or a point. */
static void put_legend(FILE *f, const struct chart *c, const struct frame *fr, size_t place,
	const char *colour, const char *name)
{
	double x = c->n_points ? LEFT + 20 : WIDTH - fr->right + 14;
	double y = fr->top + TOP + (c->n_points ? 16 : 10) + 18 * (double)place;

	if (place < c->panel->n_series)
		fprintf(f, "<path d=\"M%.1f %.1fh20\" stroke-width=\"3\" stroke=\"%s\"/>\n", x,
			y - 4, colour);
	else
		fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x + 10,
			y - 4, colour);
	put_text(f, x + 26, y, "start", name);
}

static void put_panel(FILE *f, const struct chart *c, double top, double height)
{
	size_t n = c->panel->n_series;
	struct frame fr = {.x = axis_over(c, false),
		.y = axis_over(c, true),
		.top = top,
		.height = height,
		.right = c->n_points ? 20 : RIGHT};

	put_axes(f, c, &fr);
	take_points(&fr, c);
	for (size_t i = 0; i < n + c->n_points; i++) {
		const char *colour = colours[i % NSV_ARRAY_LEN(colours)];

		if (i < n)
			put_curve(f, &fr, &c->panel->series[i], colour);
		else
			put_points(f, &fr, &c->points[i - n], colour);
		put_legend(f, c, &fr, i, colour,
			i < n ? c->panel->series[i].name : c->points[i - n].name);
	}
}

static int write_charts(const char *path, const struct chart *charts, size_t n, double height)
{
	FILE *f = fopen(path, "we");

	if (!f)
		return -errno;
	fprintf(f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
		"font-family=\"sans-serif\" font-size=\"12\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		WIDTH, height * (double)n);
	for (size_t i = 0; i < n; i++)
		put_panel(f, &charts[i], height * (double)i, height);
	fputs("</svg>\n", f);
	return fclose(f) ? -EIO : 0;
}

int nsv_svg_write(const char *path, const struct nsv_panel *panels, size_t n_panel)
{
	nsv_autofree struct chart *charts = calloc(n_panel, sizeof(*charts));

	if (!charts)
		return -ENOMEM;
	for (size_t i = 0; i < n_panel; i++)
		charts[i].panel = &panels[i];
	return write_charts(path, charts, n_panel, PANEL_HEIGHT);
}

int nsv_svg_write_points(const char *path, const struct nsv_panel *panel, const char *note,
	const struct nsv_points *points, size_t n_points)
{
	const struct chart chart = {panel, note, points, n_points};

	return write_charts(path, &chart, 1, POINTS_HEIGHT);
}
