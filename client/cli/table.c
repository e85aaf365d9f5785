/* The daemon's status for people: a line a field, with units. It shows every field that the daemon
 * sends, so that it needs no change when one is added: units follow from names ("memory.", "bytes",
 * "_s", "_ns"). */
#include "client/cli/cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAME_WIDTH 28

struct table {
	const json_t *before; /* an earlier status, or NULL */
	double seconds;	      /* since then */
};

/* 1234567 as "1,234,567". */
static void format_count(int64_t n, char *out, size_t len)
{
	char digits[24];
	size_t n_digit, at = 0;

	snprintf(digits, sizeof(digits), "%" PRIu64, n < 0 ? 0 - (uint64_t)n : (uint64_t)n);
	n_digit = strlen(digits);
	if (n < 0)
		out[at++] = '-';
	for (size_t i = 0; i < n_digit && at + 2 < len; i++) {
		out[at++] = digits[i];
		if ((n_digit - i) % 3 == 1 && i + 1 < n_digit)
			out[at++] = ',';
	}
	out[at] = '\0';
}

static void format_bytes(double n, char *out, size_t len)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	size_t unit = 0;

	for (; n >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
		n /= 1024;
	snprintf(out, len, unit && n < 100 ? "%.1f %s" : "%.0f %s", n, units[unit]);
}

static void format_duration(double s, char *out, size_t len)
{
	uint64_t n = s > 0 ? (uint64_t)s : 0;

	if (n < 60)
		snprintf(out, len, "%.3g s", s);
	else if (n < 3600)
		snprintf(out, len, "%" PRIu64 " min %" PRIu64 " s", n / 60, n % 60);
	else if (n < 86400)
		snprintf(out, len, "%" PRIu64 " h %" PRIu64 " min", n / 3600, n % 3600 / 60);
	else
		snprintf(out, len, "%" PRIu64 " d %" PRIu64 " h", n / 86400, n % 86400 / 3600);
}

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), n_end = strlen(end);

	return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* A name without the unit that its value is shown in. */
static int shown_len(const char *name)
{
	size_t n = strlen(name);

	return (int)(ends_with(name, "_ns") ? n - strlen("_ns")
		     : ends_with(name, "_s") ? n - strlen("_s")
					     : n);
}

static void format_number(const char *name, const json_t *value, char *out, size_t len)
{
	if (strncmp(name, "memory.", strlen("memory.")) == 0 || ends_with(name, "bytes"))
		format_bytes(json_number_value(value), out, len);
	else if (ends_with(name, "_ns"))
		format_duration(json_number_value(value) / 1e9, out, len);
	else if (ends_with(name, "_s"))
		format_duration(json_number_value(value), out, len);
	else if (ends_with(name, "id")) /* no quantity */
		snprintf(out, len, "%lld", (long long)json_integer_value(value));
	else if (json_is_integer(value))
		format_count(json_integer_value(value), out, len);
	else
		snprintf(out, len, "%.3f", json_real_value(value));
}

static void print_value(const char *name, const json_t *value)
{
	char text[64];

	if (json_is_string(value)) {
		output_text(json_string_value(value), json_string_length(value));
	} else if (json_is_number(value)) {
		format_number(name, value, text, sizeof(text));
		fputs(text, stdout);
	} else {
		fputs(json_is_true(value) ? "yes" : json_is_false(value) ? "no" : "-", stdout);
	}
}

/* How fast a counter grew since `before`. */
static void print_rate(const struct table *t, const char *key, const json_t *value)
{
	const json_t *counters = json_object_get(t->before, "counters");
	const json_t *old = json_object_get(counters, key);

	if (json_is_integer(old) && t->seconds > 0 && !ends_with(key, "_ns"))
		printf("  %.1f/s",
			(double)(json_integer_value(value) - json_integer_value(old)) / t->seconds);
}

/* "id 1, uid 0, ...": one of a list. */
static void print_item(json_t *item)
{
	const char *comma = "";

	for (void *i = json_object_iter(item); i; i = json_object_iter_next(item, i)) {
		printf("%s%s ", comma, json_object_iter_key(i));
		print_value(json_object_iter_key(i), json_object_iter_value(i));
		comma = ", ";
	}
	putchar('\n');
}

/* A member of the status, or of an object in it ("outer.key"). */
static void print_member(const struct table *t, const char *outer, const char *key, json_t *value)
{
	char name[64];

	snprintf(name, sizeof(name), "%s%s%s", outer, *outer ? "." : "", key);
	if (json_is_object(value) && !*outer) {
		for (void *i = json_object_iter(value); i; i = json_object_iter_next(value, i))
			print_member(t, key, json_object_iter_key(i), json_object_iter_value(i));
	} else if (json_is_array(value)) {
		printf("%-*s %zu\n", NAME_WIDTH, name, json_array_size(value));
		for (size_t i = 0; i < json_array_size(value); i++) {
			printf("  ");
			print_item(json_array_get(value, i));
		}
	} else {
		printf("%-*.*s ", NAME_WIDTH, shown_len(name), name);
		print_value(name, value);
		if (strcmp(outer, "counters") == 0)
			print_rate(t, key, value);
		putchar('\n');
	}
}

void print_table(json_t *status, const json_t *before, double seconds)
{
	const struct table t = {before, seconds};

	for (void *i = json_object_iter(status); i; i = json_object_iter_next(status, i))
		print_member(&t, "", json_object_iter_key(i), json_object_iter_value(i));
	fflush(stdout);
}
