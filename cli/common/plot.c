#include "cli/common/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/text.h"
#include "cupola/io.h"

/* The picture and the frame of the curves in it, in SVG's units. */
enum { WIDTH = 760, HEIGHT = 440, LEFT = 68, RIGHT = 24, TOP = 48, BOTTOM = 56 };

#define MOST_POINTS 500 /* a curve; more are averaged in groups */
#define MOST_TICKS 8

typedef struct scale {
    double low, high, step;
    double at_low, at_high; /* in the picture */
} scale;

static const char style[] =
    "<style>\n"
    "text { font: 13px system-ui, sans-serif; fill: #24292f; }\n"
    ".title { font-size: 16px; font-weight: 600; }\n"
    ".page { fill: #ffffff; }\n"
    ".grid { stroke: #d8dee4; stroke-width: 1; }\n"
    ".axis { stroke: #57606a; stroke-width: 1; }\n"
    ".curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }\n"
    ".c0 { stroke: #0969da; } .c1 { stroke: #bc4c00; } .c2 { stroke: #1a7f37; }"
    " .c3 { stroke: #8250df; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "text { fill: #e6edf3; } .page { fill: #0d1117; } .grid { stroke: #30363d; }\n"
    ".axis { stroke: #8b949e; }\n"
    ".c0 { stroke: #58a6ff; } .c1 { stroke: #f0883e; } .c2 { stroke: #3fb950; }"
    " .c3 { stroke: #bc8cff; }\n"
    "}\n"
    "</style>\n";

static void add_label(FILE *out, const char *attributes, const char *words)
{
    fprintf(out, "<text %s>", attributes);
    text_add_markup(out, words);
    fprintf(out, "</text>\n");
}

static bool is_point(const cli_curve *curve, size_t i)
{
    return isfinite(curve->x[i]) && isfinite(curve->y[i]);
}

/* The least and the greatest of all values on one axis; 0 to 1 when there are none. */
static void find_range(const cli_plot *plot, bool is_x, scale *axis)
{
    axis->low = INFINITY;
    axis->high = -INFINITY;
    for (int k = 0; k < plot->curve_count; k++) {
        const cli_curve *curve = &plot->curves[k];
        for (size_t i = 0; i < curve->count; i++)
            if (is_point(curve, i)) {
                double value = is_x ? curve->x[i] : curve->y[i];
                axis->low = fmin(axis->low, value);
                axis->high = fmax(axis->high, value);
            }
    }
    if (axis->low > axis->high) {
        axis->low = 0;
        axis->high = 1;
    }
    if (!(axis->high - axis->low > 1e-9 * fmax(fabs(axis->high), fabs(axis->low)))) {
        double around = axis->low ? fabs(axis->low) / 2 : 0.5;
        axis->low -= around;
        axis->high += around;
    }
}

/* A step of 1, 2 or 5 times a power of ten, and limits that are multiples of it. */
static void round_range(scale *axis)
{
    double rough = (axis->high - axis->low) / (MOST_TICKS - 2);
    double power = pow(10, floor(log10(rough))), digit = rough / power;
    axis->step = power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
    axis->low = floor(axis->low / axis->step + 1e-9) * axis->step;
    axis->high = ceil(axis->high / axis->step - 1e-9) * axis->step;
}

static double place(const scale *axis, double value)
{
    double share = (value - axis->low) / (axis->high - axis->low);
    return axis->at_low + share * (axis->at_high - axis->at_low);
}

static void add_ticks(FILE *out, const scale *axis, bool is_x)
{
    int count = (int)lround((axis->high - axis->low) / axis->step);
    for (int i = 0; i <= count; i++) {
        double value = axis->low + i * axis->step, at = place(axis, value);
        if (fabs(value) < axis->step / 2)
            value = 0;
        char words[32], attributes[96];
        snprintf(words, sizeof words, "%.6g", value);
        if (is_x) {
            fprintf(out, "<path class=\"grid\" d=\"M%.1f %dV%d\"/>\n", at, TOP, HEIGHT - BOTTOM);
            snprintf(attributes, sizeof attributes, "x=\"%.1f\" y=\"%d\" text-anchor=\"middle\"",
                     at, HEIGHT - BOTTOM + 20);
        } else {
            fprintf(out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, at, WIDTH - RIGHT);
            snprintf(attributes, sizeof attributes, "x=\"%d\" y=\"%.1f\" text-anchor=\"end\"",
                     LEFT - 8, at + 4.5);
        }
        add_label(out, attributes, words);
    }
}

static void add_curve(FILE *out, const cli_curve *curve, int index, const scale *x, const scale *y)
{
    size_t group = (curve->count + MOST_POINTS - 1) / MOST_POINTS;
    bool begun = false;
    fprintf(out, "<path class=\"curve c%d\" d=\"", index);
    for (size_t i = 0; i < curve->count; i += group) {
        double sum_x = 0, sum_y = 0, count = 0;
        for (size_t k = i; k < i + group && k < curve->count; k++)
            if (is_point(curve, k)) {
                sum_x += curve->x[k];
                sum_y += curve->y[k];
                count++;
            }
        if (count) {
            fprintf(out, "%s%.1f %.1f", begun ? "L" : "M", place(x, sum_x / count),
                    place(y, sum_y / count));
            begun = true;
        }
    }
    /* A single point is a dot: a line of no length with round ends. */
    fprintf(out, "%s\"/>\n", begun ? "h0" : "");
}

/* Top right, each name with its last value. */
static void add_legend(FILE *out, const cli_plot *plot)
{
    for (int k = 0; k < plot->curve_count; k++) {
        const cli_curve *curve = &plot->curves[k];
        size_t last = curve->count;
        while (last && !is_point(curve, last - 1))
            last--;
        char words[160], attributes[96];
        int y = TOP + 22 + 20 * k;
        snprintf(words, sizeof words, "%.100s", curve->name);
        if (last)
            snprintf(words, sizeof words, "%.100s %#.4g", curve->name, curve->y[last - 1]);
        fprintf(out, "<path class=\"curve c%d\" d=\"M%d %dh24\"/>\n", k, WIDTH - RIGHT - 40, y);
        snprintf(attributes, sizeof attributes, "x=\"%d\" y=\"%d\" text-anchor=\"end\"",
                 WIDTH - RIGHT - 48, y + 4);
        add_label(out, attributes, words);
    }
}

static void add_frame(FILE *out, const cli_plot *plot)
{
    char attributes[160];
    fprintf(out, "<path class=\"axis\" fill=\"none\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP,
            HEIGHT - BOTTOM, WIDTH - RIGHT);
    snprintf(attributes, sizeof attributes, "class=\"title\" x=\"%d\" y=\"30\"", LEFT);
    add_label(out, attributes, plot->title);
    snprintf(attributes, sizeof attributes, "x=\"%d\" y=\"%d\" text-anchor=\"middle\"",
             (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14);
    add_label(out, attributes, plot->x_words);
    int middle = (TOP + HEIGHT - BOTTOM) / 2;
    snprintf(attributes, sizeof attributes,
             "transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\"", middle);
    add_label(out, attributes, plot->y_words);
}

static void draw(FILE *out, const cli_plot *plot)
{
    scale x = {.at_low = LEFT, .at_high = WIDTH - RIGHT};
    scale y = {.at_low = HEIGHT - BOTTOM, .at_high = TOP};
    find_range(plot, true, &x);
    find_range(plot, false, &y);
    round_range(&x);
    round_range(&y);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
            "width=\"%d\" height=\"%d\" role=\"img\">\n<title>",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    text_add_markup(out, plot->title);
    fprintf(out, "</title>\n%s<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", style, WIDTH,
            HEIGHT);
    add_ticks(out, &x, true);
    add_ticks(out, &y, false);
    add_frame(out, plot);
    for (int k = 0; k < plot->curve_count; k++)
        add_curve(out, &plot->curves[k], k, &x, &y);
    add_legend(out, plot);
    fprintf(out, "</svg>\n");
}

cup_status plot_write(cup_context *c, const cli_plot *plot, const char *path)
{
    cli_text out;
    if (text_open(&out))
        draw(out.to, plot);
    cup_status status = text_close(&out)
                            ? cup_file_write(c, path, out.bytes, out.length)
                            : cup_fail(c, CUP_MEMORY, "%s: no host memory for the plot", path);
    text_free(&out);
    return status;
}

double plot_flops_of_token(const cup_gpt_config *g, bool frozen)
{
    double weights = (double)cup_gpt_active_count(g, false);
    weights += (double)g->vocabulary * (double)g->width;
    double heads = (double)(g->head_size ? g->heads * g->head_size : g->width);
    return (frozen ? 4 : 6) * weights + 12.0 * (double)g->layers * heads * (double)g->context;
}

static cup_status draw_losses(cup_context *c, const cup_training_point *points, int64_t count,
                              const char *path)
{
    int64_t steps = 0, evaluations = 0;
    double *memory = malloc(((size_t)count * 4 + 1) * sizeof *memory);
    if (!memory)
        return cup_fail(c, CUP_MEMORY, "out of host memory for the curves");
    double *x = memory, *y = x + count, *at = y + count, *validation = at + count;
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(points[i].loss)) {
            x[steps] = (double)points[i].step;
            y[steps++] = points[i].loss;
        }
        if (isfinite(points[i].validation)) {
            at[evaluations] = (double)points[i].step;
            validation[evaluations++] = points[i].validation;
        }
    }
    cli_plot plot = {.title = "Loss", .x_words = "step", .y_words = "cross-entropy"};
    plot.curves[plot.curve_count++] = (cli_curve){"training", x, y, (size_t)steps};
    plot.curves[plot.curve_count++] =
        (cli_curve){"validation", at, validation, (size_t)evaluations};
    cup_status status = plot_write(c, &plot, path);
    free(memory);
    return status;
}

/* The number in the picture's address keeps a browser from showing an older one. */
static cup_status write_page(cup_context *c, int64_t steps, const char *path, const char *words)
{
    cli_text page;
    if (text_open(&page))
        fprintf(page.to,
                "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n"
                "<meta name=\"color-scheme\" content=\"light dark\">\n"
                "<meta http-equiv=\"refresh\" content=\"5\">\n<title>Loss</title>\n"
                "<style>body { font: 15px system-ui, sans-serif; margin: 2em; }</style>\n"
                "<p>%s</p>\n<img src=\"loss.svg?%lld\" alt=\"the curves of the loss\">\n</html>\n",
                words, (long long)steps);
    cup_status status = text_close(&page)
                            ? cup_file_write(c, path, page.bytes, page.length)
                            : cup_fail(c, CUP_MEMORY, "%s: no host memory for the page", path);
    text_free(&page);
    return status;
}

cup_status plot_points(cup_context *c, const cup_training_point *points, int64_t count,
                       const char *folder, const char *words)
{
    int64_t steps = 0;
    for (int64_t i = 0; i < count; i++)
        steps += !isfinite(points[i].validation);
    size_t room = strlen(folder) + sizeof "/loss.html";
    char *path = malloc(room);
    if (!path)
        return cup_fail(c, CUP_MEMORY, "out of host memory for the curves");
    snprintf(path, room, "%s/loss.svg", folder);
    cup_status status = draw_losses(c, points, count, path);
    snprintf(path, room, "%s/loss.html", folder);
    if (status == CUP_OK)
        status = write_page(c, steps, path, words);
    free(path);
    return status;
}

cup_status plot_run(cup_context *c, const cup_trainer *trainer, const char *folder,
                    const char *words)
{
    int64_t count;
    const cup_training_point *points = cup_trainer_points(trainer, &count);
    return plot_points(c, points, count, folder, words);
}

double plot_validation(const cup_trainer *trainer, bool last)
{
    int64_t count;
    const cup_training_point *points = cup_trainer_points(trainer, &count);
    double found = NAN;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(points[i].validation) && (last || isnan(found)))
            found = points[i].validation;
    return found;
}
