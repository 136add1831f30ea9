#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cli/bench.h"

enum { WIDTH = 720, HEIGHT = 420, LEFT = 64, RIGHT = 28, TOP = 20, BOTTOM = 48 };

#define MOST_DTYPES 6

/* One axis; values are on a scale of powers when `is_log`. */
typedef struct axis {
    double low, high, from, to; /* of the values; in the picture */
    bool is_log;
} axis;

static double place(const axis *a, double value)
{
    double low = a->low, high = a->high;
    if (a->is_log) {
        value = log10(value);
        low = log10(low);
        high = log10(high);
    }
    return a->from + (value - low) / (high - low) * (a->to - a->from);
}

/* The dtypes among the rows, in the order they come. */
typedef struct dtypes {
    const char *name[MOST_DTYPES];
    int count;
} dtypes;

static int dtype_of(dtypes *d, const char *name)
{
    for (int i = 0; i < d->count; i++)
        if (!strcmp(d->name[i], name))
            return i;
    if (d->count == MOST_DTYPES)
        return MOST_DTYPES - 1;
    d->name[d->count] = name;
    return d->count++;
}

static void begin(cup__text *out, const char *title, const char *words, int width, int height)
{
    cup__text_add(out, "<section><h2>%s</h2><p class=\"note\">%s</p><div class=\"scroll\">"
                       "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n",
                  title, words, width, height, title);
}

static void end(cup__text *out)
{
    cup__text_add(out, "</svg></div></section>\n");
}

static void add_x(cup__text *out, double at, const char *words)
{
    cup__text_add(out, "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" "
                       "text-anchor=\"middle\">%s</text>\n",
                  at, TOP, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 18, words);
}

static void add_y(cup__text *out, double at, const char *words)
{
    cup__text_add(out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
                       "text-anchor=\"end\">%s</text>\n",
                  LEFT, at, WIDTH - RIGHT, LEFT - 8, at + 4, words);
}

static void add_axis_words(cup__text *out, const char *x, const char *y)
{
    cup__text_add(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>"
                       "<text transform=\"translate(14 %d) rotate(-90)\" "
                       "text-anchor=\"middle\">%s</text>\n",
                  (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x, (TOP + HEIGHT - BOTTOM) / 2, y);
}

static void add_point(cup__text *out, const cli_record *r, int colour, double x, double y,
                      const char *value)
{
    cup__text_add(out, "<circle class=\"p c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>", colour,
                  x, y);
    cup__text_add_markup(out, r->op);
    cup__text_add(out, " %s %s ", r->dtype, r->impl);
    cup__text_add_markup(out, r->shapes);
    cup__text_add(out, "\n%s, %.2f us</title></circle>\n", value, r->ours_us);
}

static void add_legend(cup__text *out, const dtypes *d, int left, int y)
{
    for (int i = 0; i < d->count; i++)
        cup__text_add(out, "<circle class=\"c%d\" cx=\"%d\" cy=\"%d\" r=\"4\"/><text x=\"%d\" "
                           "y=\"%d\">%s</text>\n",
                      i, left, y + 18 * i, left + 10, y + 18 * i + 4, d->name[i]);
}

static bool has_bytes(const cli_record *r)
{
    return r->bytes > 0 && r->ours_us > 0;
}

/* The next larger call of the same op and dtype that also only moves data; NULL: none. */
static const cli_record *next_larger(const cli_records *records, const cli_record *r, double copy)
{
    const cli_record *next = NULL;
    for (size_t i = 0; i < records->count; i++) {
        const cli_record *one = &records->row[i];
        if (!strcmp(one->op, r->op) && !strcmp(one->dtype, r->dtype) &&
            !strcmp(one->impl, r->impl) && !strcmp(one->attributes, r->attributes) &&
            one->bytes > r->bytes && record_is_bound_by_memory(one, copy) &&
            (!next || one->bytes < next->bytes))
            next = one;
    }
    return next;
}

/* Lines between the calls of one op from small to large. */
static void add_lines(cup__text *out, const cli_records *records, dtypes *d, const axis *x,
                      const axis *y, double copy)
{
    for (size_t i = 0; i < records->count; i++) {
        const cli_record *r = &records->row[i];
        const cli_record *next = has_bytes(r) && record_is_bound_by_memory(r, copy)
                                     ? next_larger(records, r, copy)
                                     : NULL;
        if (next)
            cup__text_add(out, "<path class=\"thin s%d\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n",
                          dtype_of(d, r->dtype), place(x, r->bytes),
                          place(y, r->bytes / r->ours_us * 1e-3), place(x, next->bytes),
                          place(y, next->bytes / next->ours_us * 1e-3));
    }
}

void bench_plot_bandwidth(cup__text *out, const cli_records *records)
{
    double copy = records_copy_rate(records) * 1e-9, least = INFINITY, most = 0, top = copy;
    dtypes d = {0};
    for (size_t i = 0; i < records->count; i++) {
        const cli_record *r = &records->row[i];
        if (!has_bytes(r) || !record_is_bound_by_memory(r, copy * 1e9))
            continue;
        least = fmin(least, r->bytes);
        most = fmax(most, r->bytes);
        top = fmax(top, r->bytes / r->ours_us * 1e-3);
    }
    if (!(most > 0))
        return;
    axis x = {exp2(floor(log2(least))), exp2(ceil(log2(most) + 0.01)), LEFT, WIDTH - RIGHT, true};
    double step = pow(10, floor(log10(top)));
    step = top / step < 2 ? step / 5 : top / step < 5 ? step / 2 : step;
    axis y = {0, ceil(top * 1.02 / step) * step, HEIGHT - BOTTOM, TOP, false};
    begin(out, "Bandwidth against size",
          "Calls that only move data: bytes that must move over the time taken. The line is a "
          "large copy. Point at a dot for its name.", WIDTH, HEIGHT);
    char words[48], size[32];
    int apart = log2(x.high / x.low) > 12 ? 4 : 2;
    for (double at = ceil(log2(x.low)); at <= log2(x.high); at++)
        if ((int)at % apart == 0)
            add_x(out, place(&x, exp2(at)), cup__text_bytes(exp2(at), size));
    for (double at = 0; at <= y.high * 1.001; at += step) {
        snprintf(words, sizeof words, "%.4g", at);
        add_y(out, place(&y, at), words);
    }
    add_axis_words(out, "bytes moved", "GB/s");
    cup__text_add(out, "<path class=\"roof\" d=\"M%d %.1fH%d\"/><text class=\"strong\" x=\"%d\" "
                       "y=\"%.1f\" text-anchor=\"end\">copy, %.0f GB/s</text>\n",
                  LEFT, place(&y, copy), WIDTH - RIGHT, WIDTH - RIGHT - 4, place(&y, copy) + 16,
                  copy);
    add_lines(out, records, &d, &x, &y, copy * 1e9);
    for (size_t i = 0; i < records->count; i++) {
        const cli_record *r = &records->row[i];
        if (!has_bytes(r) || !record_is_bound_by_memory(r, copy * 1e9))
            continue;
        double rate = r->bytes / r->ours_us * 1e-3;
        snprintf(words, sizeof words, "%.0f GB/s", rate);
        add_point(out, r, dtype_of(&d, r->dtype), place(&x, r->bytes), place(&y, rate), words);
    }
    add_legend(out, &d, WIDTH - RIGHT - 56, HEIGHT - BOTTOM - 18 * d.count);
    end(out);
}

static double intensity_of(const cli_record *r)
{
    return r->flops / r->bytes;
}

/* What does hardly anything with its bytes has no place in a roofline. */
static bool has_work(const cli_record *r)
{
    return has_bytes(r) && intensity_of(r) >= 0.01;
}

/* The rate of operations a dtype can reach, from the rows that it and not the memory binds. */
static double flops_of(const cli_records *records, const char *dtype, double copy)
{
    double most = 0;
    for (size_t i = 0; i < records->count; i++) {
        const cli_record *r = &records->row[i];
        if (!strcmp(r->dtype, dtype) && has_bytes(r) && !record_is_bound_by_memory(r, copy))
            most = fmax(most, r->flops / (record_floor(r) * 1e-6));
    }
    return most;
}

static void add_roof(cup__text *out, const axis *x, const axis *y, double copy, double rate,
                     int colour, const char *name)
{
    double bend = rate > 0 ? rate / copy : fmin(x->high, y->high * 1e12 / copy);
    double right = rate > 0 ? x->high : bend, at = fmax(x->low, y->low * 1e12 / copy);
    cup__text_add(out, "<path class=\"roof s%d\" d=\"M%.1f %.1fL%.1f %.1f", colour, place(x, at),
                  place(y, at * copy * 1e-12), place(x, fmin(bend, x->high)),
                  place(y, fmin(bend, x->high) * copy * 1e-12));
    if (rate > 0 && right > bend)
        cup__text_add(out, "H%.1f", place(x, right));
    cup__text_add(out, "\"/>\n");
    if (rate > 0)
        cup__text_add(out, "<text class=\"strong\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s, "
                           "%.0f TFLOP/s</text>\n",
                      WIDTH - RIGHT - 4, place(y, rate * 1e-12) - 6, name, rate * 1e-12);
}

void bench_plot_roofline(cup__text *out, const cli_records *records)
{
    double copy = records_copy_rate(records), low = INFINITY, high = 0, most = 0, least = INFINITY;
    dtypes d = {0};
    for (size_t i = 0; i < records->count; i++) {
        const cli_record *r = &records->row[i];
        if (!has_work(r))
            continue;
        low = fmin(low, intensity_of(r));
        high = fmax(high, intensity_of(r));
        least = fmin(least, r->flops / r->ours_us * 1e-6);
        most = fmax(most, flops_of(records, r->dtype, copy) * 1e-12);
        most = fmax(most, r->flops / r->ours_us * 1e-6);
        dtype_of(&d, r->dtype);
    }
    if (!(high > 0) || !(copy > 0))
        return;
    axis x = {pow(10, floor(log10(low))), pow(10, ceil(log10(high) + 0.01)), LEFT, WIDTH - RIGHT,
              true};
    axis y = {pow(10, floor(log10(least))), pow(10, ceil(log10(most) + 0.05)), HEIGHT - BOTTOM,
              TOP, true};
    begin(out, "Roofline", "Operations a second against operations for each byte moved. The lines "
                           "are what the card allows: the copy rate, and each dtype's products.",
          WIDTH, HEIGHT);
    char words[48];
    for (double at = log10(x.low); at <= log10(x.high) + 0.01; at++) {
        snprintf(words, sizeof words, "%g", pow(10, at));
        add_x(out, place(&x, pow(10, at)), words);
    }
    for (double at = log10(y.low); at <= log10(y.high) + 0.01; at++) {
        snprintf(words, sizeof words, "%g", pow(10, at));
        add_y(out, place(&y, pow(10, at)), words);
    }
    add_axis_words(out, "operations a byte", "TFLOP/s");
    for (int i = 0; i < d.count; i++)
        add_roof(out, &x, &y, copy, flops_of(records, d.name[i], copy), i, d.name[i]);
    for (size_t i = 0; i < records->count; i++) {
        const cli_record *r = &records->row[i];
        if (!has_work(r))
            continue;
        double rate = r->flops / r->ours_us * 1e-6;
        snprintf(words, sizeof words, "%.4g TFLOP/s", rate);
        add_point(out, r, dtype_of(&d, r->dtype), place(&x, intensity_of(r)), place(&y, rate),
                  words);
    }
    add_legend(out, &d, LEFT + 16, TOP + 14);
    end(out);
}

static int by_ratio(const void *a, const void *b)
{
    const cli_record *x = *(const cli_record *const *)a, *y = *(const cli_record *const *)b;
    return (x->ratio < y->ratio) - (x->ratio > y->ratio);
}

enum { NAMES = 432, ROW = 20 };

static void add_bar(cup__text *out, const cli_record *r, const axis *x, int y)
{
    double one = place(x, 1), at = place(x, fmin(fmax(r->ratio, x->low), x->high));
    cup__text_add(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", NAMES - 8, y + 14);
    /* About 46 characters fit, dots included. */
    int attributes = (int)strlen(r->attributes), room;
    attributes = attributes > 16 ? 16 : attributes;
    room = 39 - (int)strlen(r->op) - attributes - (int)strlen(r->dtype);
    room = room < 12 ? 12 : room;
    char name[96];
    snprintf(name, sizeof name, "%.*s%s %.*s%s", room, r->shapes,
             strlen(r->shapes) > (size_t)room ? ".." : "", attributes, r->attributes,
             strlen(r->attributes) > (size_t)attributes ? ".." : "");
    cup__text_add(out, "<tspan class=\"strong\">");
    cup__text_add_markup(out, r->op);
    cup__text_add(out, "</tspan> ");
    cup__text_add_markup(out, name);
    cup__text_add(out, " %s</text><rect class=\"%s\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" "
                       "height=\"%d\" rx=\"2\"><title>",
                  r->dtype, r->ratio < 0.995 ? "behind" : "ahead", fmin(one, at), y + 3,
                  fmax(fabs(at - one), 1), ROW - 6);
    cup__text_add_markup(out, r->shapes);
    cup__text_add(out, " %s\nours %.2f us, %s %.2f us</title></rect><text class=\"strong\" "
                       "x=\"%.1f\" y=\"%d\">%.2f</text>\n",
                  r->attributes, r->ours_us, r->peer, r->peer_us, fmax(at, one) + 6, y + 14,
                  r->ratio);
}

void bench_plot_peers(cup__text *out, const cli_records *records)
{
    const cli_record **rows = cup__calloc(records->count, sizeof *rows);
    int count = 0;
    double low = 0.8, high = 1.3;
    for (size_t i = 0; rows && i < records->count; i++)
        if (records->row[i].ratio > 0) {
            rows[count++] = &records->row[i];
            low = fmin(low, records->row[i].ratio);
            high = fmax(high, records->row[i].ratio);
        }
    if (count) {
        qsort(rows, (size_t)count, sizeof *rows, by_ratio);
        axis x = {low, high, NAMES, WIDTH + 160 - 60, true};
        int height = count * ROW + 24;
        begin(out, "Ours against the best peer",
              "The peer's time over ours, in the same run: right of the line ours is faster. "
              "Logarithmic.", WIDTH + 160, height);
        for (int i = 0; i < count; i++)
            add_bar(out, rows[i], &x, i * ROW);
        cup__text_add(out, "<path class=\"one\" d=\"M%.1f 0V%d\"/><text x=\"%.1f\" y=\"%d\" "
                           "text-anchor=\"middle\">as fast</text>\n",
                      place(&x, 1), count * ROW + 4, place(&x, 1), count * ROW + 18);
        end(out);
    }
    cup__free(rows);
}
