#include "cli/classify_page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/text.h"
#include "cupola/io.h"

#define WORST 60         /* mistakes that are shown */
#define MOST_MATRIX 50   /* classes of which all pairs are shown */

/* Counting. */

bool classify_count(classify_counts *n, const cup_classifier *m, const cup_images *images,
                    const float *p)
{
    int64_t count = cup_images_count(images), classes = cup_classifier_classes(m);
    const int64_t *labels = cup_images_labels(images);
    *n = (classify_counts){.m = m, .images_of = images, .p = p, .images = count,
                           .classes = classes};
    n->matrix = calloc((size_t)(classes * classes), sizeof *n->matrix);
    n->said = calloc((size_t)count, sizeof *n->said);
    if (!n->matrix || !n->said)
        return false;
    for (int64_t i = 0; i < count; i++, p += classes) {
        int64_t before = 0; /* classes that are likelier than the right one */
        for (int64_t k = 0; k < classes; k++) {
            n->said[i] = p[k] > p[n->said[i]] ? k : n->said[i];
            before += p[k] > p[labels[i]];
        }
        n->matrix[labels[i] * classes + n->said[i]]++;
        n->top1 += n->said[i] == labels[i];
        n->top5 += before < 5;
    }
    n->top1 /= (double)count;
    n->top5 /= (double)count;
    return true;
}

void classify_free(classify_counts *n)
{
    free(n->matrix);
    free(n->said);
}

int64_t classify_images_of(const classify_counts *n, int64_t class)
{
    int64_t sum = 0;
    for (int64_t k = 0; k < n->classes; k++)
        sum += n->matrix[class * n->classes + k];
    return sum;
}

double classify_precision(const classify_counts *n, int64_t class)
{
    int64_t sum = 0;
    for (int64_t k = 0; k < n->classes; k++)
        sum += n->matrix[k * n->classes + class];
    return (double)n->matrix[class * n->classes + class] / (double)sum;
}

double classify_recall(const classify_counts *n, int64_t class)
{
    return (double)n->matrix[class * n->classes + class] / (double)classify_images_of(n, class);
}

const char *classify_part(double part, char text[CLASSIFY_PART])
{
    snprintf(text, CLASSIFY_PART, "%.2f %%", 100 * part);
    return isfinite(part) ? text : "-";
}

/* The page. */

static void add_base64(FILE *out, const uint8_t *bytes, size_t count)
{
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        uint32_t three = 0;
        for (size_t k = 0; k < 3; k++)
            three = three << 8 | (i + k < count ? bytes[i + k] : 0);
        for (int k = 0; k < 4; k++)
            fputc(i + (size_t)k <= count ? digits[three >> (18 - 6 * k) & 63] : '=', out);
    }
}

static void put_number(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

/* One image as a BMP, which every browser shows and which needs no packing. */
static bool add_picture(FILE *out, const cup_images *images, int64_t index)
{
    int64_t height = cup_images_height(images), width = cup_images_width(images);
    int64_t channels = cup_images_channels(images), row = (width * 3 + 3) / 4 * 4;
    const uint8_t *from = cup_images_pixels(images) + index * height * width * channels;
    size_t bytes = 54 + (size_t)(row * height);
    uint8_t *file = calloc(bytes, 1);
    if (!file)
        return false;
    memcpy(file, "BM", 2);
    put_number(file + 2, (uint32_t)bytes);
    put_number(file + 10, 54);
    put_number(file + 14, 40);
    put_number(file + 18, (uint32_t)width);
    put_number(file + 22, (uint32_t)height);
    file[26] = 1;
    file[28] = 24;
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++, from += channels)
            for (int64_t k = 0; k < 3; k++)
                file[54 + (height - 1 - y) * row + 3 * x + k] = from[channels == 3 ? 2 - k : 0];
    fputs("<img alt=\"\" src=\"data:image/bmp;base64,", out);
    add_base64(out, file, bytes);
    fputs("\">", out);
    free(file);
    return true;
}

static void add_part(FILE *out, double part)
{
    char text[CLASSIFY_PART];
    fprintf(out, "<td>%s", classify_part(part, text));
}

static void add_table(FILE *out, const classify_counts *n)
{
    fputs("<h2>Classes</h2>\n<table><tr><th>class<th>images<th>precision<th>recall\n", out);
    for (int64_t k = 0; k < n->classes; k++) {
        fputs("<tr><th>", out);
        text_add_markup(out, cup_classifier_class(n->m, k));
        fprintf(out, "<td>%lld", (long long)classify_images_of(n, k));
        add_part(out, classify_precision(n, k));
        add_part(out, classify_recall(n, k));
        fputs("\n", out);
    }
    fputs("</table>\n", out);
}

/* A row for each class, a column for what its images were taken for, the darker the more. */
static void add_matrix(FILE *out, const classify_counts *n)
{
    if (n->classes > MOST_MATRIX)
        return;
    fputs("<h2>What was taken for what</h2>\n<table class=\"matrix\"><tr><td>", out);
    for (int64_t k = 0; k < n->classes; k++) {
        fputs("<th>", out);
        text_add_markup(out, cup_classifier_class(n->m, k));
    }
    for (int64_t i = 0; i < n->classes; i++) {
        int64_t all = classify_images_of(n, i);
        fputs("\n<tr><th>", out);
        text_add_markup(out, cup_classifier_class(n->m, i));
        for (int64_t k = 0; k < n->classes; k++) {
            int64_t count = n->matrix[i * n->classes + k];
            double part = all ? (double)count / (double)all : 0;
            fprintf(out, "<td style=\"background: rgba(%s, %.3f)\">%lld",
                    i == k ? "26, 127, 55" : "207, 34, 46", 0.8 * sqrt(part), (long long)count);
        }
    }
    fputs("\n</table>\n", out);
}

/* The mistake of which the network is surest among those less sure than `below`, or as sure and
 * behind `after`; -1: none. */
static int64_t next_mistake(const classify_counts *n, float below, int64_t after)
{
    const int64_t *labels = cup_images_labels(n->images_of);
    int64_t found = -1;
    float best = -1;
    for (int64_t i = 0; i < n->images; i++) {
        float p = n->p[i * n->classes + n->said[i]];
        bool is_left = p < below || (p == below && i > after);
        if (n->said[i] != labels[i] && is_left && p > best) {
            best = p;
            found = i;
        }
    }
    return found;
}

static bool add_mistakes(FILE *out, const classify_counts *n)
{
    const int64_t *labels = cup_images_labels(n->images_of);
    float below = 2;
    int64_t i = -1;
    fputs("<h2>The worst mistakes</h2>\n<div class=\"sheet\">\n", out);
    for (int k = 0; k < WORST && (i = next_mistake(n, below, i)) >= 0; k++) {
        below = n->p[i * n->classes + n->said[i]];
        fputs("<figure>", out);
        if (!add_picture(out, n->images_of, i))
            return false;
        fputs("<figcaption>", out);
        text_add_markup(out, cup_classifier_class(n->m, labels[i]));
        fputs("<br>taken for ", out);
        text_add_markup(out, cup_classifier_class(n->m, n->said[i]));
        fprintf(out, "<br>%.1f %%, number %lld</figcaption></figure>\n", 100 * (double)below,
                (long long)i);
    }
    fputs("</div>\n", out);
    return true;
}

static bool add_page(FILE *out, const classify_counts *n)
{
    fprintf(out,
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n"
            "<meta name=\"color-scheme\" content=\"light dark\">\n<title>Evaluation</title>\n"
            "<style>body { font: 15px system-ui, sans-serif; margin: 2em; }\n"
            "table { border-collapse: collapse; } td, th { padding: 0.2em 0.6em; text-align: "
            "right; font-weight: normal; }\n"
            ".matrix th { max-width: 8em; overflow-wrap: anywhere; }\n"
            ".sheet { display: flex; flex-wrap: wrap; gap: 1em; } figure { margin: 0; }\n"
            "img { width: 112px; image-rendering: pixelated; } figcaption { font-size: 12px; "
            "max-width: 112px; }\n</style>\n"
            "<h1>Evaluation</h1>\n<p>%lld images: top-1 %.2f %%, top-5 %.2f %%</p>\n",
            (long long)n->images, 100 * n->top1, 100 * n->top5);
    add_table(out, n);
    add_matrix(out, n);
    bool fits = add_mistakes(out, n);
    fputs("</html>\n", out);
    return fits;
}

cup_status classify_page(cup_context *c, const classify_counts *n, const char *path)
{
    cli_text page;
    bool fits = text_open(&page) && add_page(page.to, n);
    fits = text_close(&page) && fits;
    cup_status status = fits ? cup_file_write(c, path, page.bytes, page.length)
                             : cup_fail(c, CUP_MEMORY, "%s: no host memory for the page", path);
    text_free(&page);
    return status;
}
