/* cupola bench --goals: what was measured against what each call is to reach. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cli/bench.h"
#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/terminal.h"

#define MOST_FILE ((uint64_t)1 << 20)
#define REACHED 0.995 /* a share of this is whole, within what runs differ by */
#define NEAR 0.95

/* A row of the file. A number that is not named is NAN; one of those named is enough. */
typedef struct goal {
    cli_record call; /* op, shapes, dtype and attributes are set */
    char area[12], source[64];
    double ratio, copy, tflops;
    double share; /* what was reached of it; NAN: not measured */
    const cli_record *found;
} goal;

typedef struct goals {
    goal *row;
    size_t count, capacity;
} goals;

#define FIELDS 9
#define HEAD "area\top\tshapes\tdtype\tattributes\tratio\tcopy\ttflops\tsource"

static double number_of(const char *text)
{
    char *end;
    double value = cup__text_number(text, &end);
    return end == text || *end || !(value > 0) ? NAN : value;
}

static bool read_goal(char *line, goal *out)
{
    char *field[FIELDS];
    for (int i = 0; i < FIELDS; i++) {
        field[i] = line;
        line += strcspn(line, "\t");
        if ((*line == 0) != (i == FIELDS - 1))
            return false;
        *line++ = 0;
    }
    *out = (goal){.ratio = number_of(field[5]),
                  .copy = number_of(field[6]),
                  .tflops = number_of(field[7]),
                  .share = NAN};
    snprintf(out->area, sizeof out->area, "%s", field[0]);
    snprintf(out->call.op, sizeof out->call.op, "%s", field[1]);
    snprintf(out->call.shapes, sizeof out->call.shapes, "%s", field[2]);
    snprintf(out->call.dtype, sizeof out->call.dtype, "%s", field[3]);
    snprintf(out->call.attributes, sizeof out->call.attributes, "%s", field[4]);
    snprintf(out->source, sizeof out->source, "%s", field[8]);
    return out->call.op[0] && (out->ratio > 0 || out->copy > 0 || out->tflops > 0);
}

static double reached(double measured, double wanted)
{
    return isfinite(measured) && isfinite(wanted) ? measured / wanted : 0;
}

static void judge(goal *g, const cli_records *records)
{
    const cli_record *r = g->found = records ? records_find(records, &g->call) : NULL;
    if (!r)
        return;
    g->share = fmax(reached(r->ratio, g->ratio), reached(r->copy_us / r->ours_us, g->copy));
    g->share = fmax(g->share, reached(r->flops / r->ours_us * 1e-6, g->tflops));
}

static int read_goals(goals *all, const char *path, char *text, const cli_records *records)
{
    bool has_head = false;
    int number = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        number++;
        if (!*line || *line == '#')
            continue;
        if (!has_head) {
            has_head = !strcmp(line, HEAD);
            if (!has_head)
                return cli_fail(CLI_FILE, "%s: line %d must name the columns: %s", path, number,
                                HEAD);
            continue;
        }
        if (!cup__grow(&all->row, &all->capacity, all->count, sizeof *all->row))
            return cli_fail(CLI_MEMORY, "no host memory for the goals");
        if (!read_goal(line, &all->row[all->count]))
            return cli_fail(CLI_FILE, "%s: line %d is no goal of %d fields that names an op and a "
                                      "number above 0",
                            path, number, FIELDS);
        judge(&all->row[all->count++], records);
    }
    return CLI_OK;
}

/* The goal and what was reached, in words. */
static void goal_words(const goal *g, char *to, size_t size)
{
    size_t used = 0;
    *to = 0;
    if (g->ratio > 0)
        used += (size_t)snprintf(to, size, "ratio %.2f", g->ratio);
    if (g->copy > 0 && used < size)
        used += (size_t)snprintf(to + used, size - used, "%s%.0f %% of copy", used ? " or " : "",
                                 100 * g->copy);
    if (g->tflops > 0 && used < size)
        snprintf(to + used, size - used, "%s%.0f TFLOP/s", used ? " or " : "", g->tflops);
}

static void reached_words(const goal *g, char *to, size_t size)
{
    const cli_record *r = g->found;
    size_t used = 0;
    *to = 0;
    if (r && g->ratio > 0 && isfinite(r->ratio))
        used += (size_t)snprintf(to, size, "%.2f (%s)", r->ratio, r->peer);
    if (r && g->copy > 0 && isfinite(r->copy_us) && used < size)
        used += (size_t)snprintf(to + used, size - used, "%s%.0f %%", used ? ", " : "",
                                 100 * r->copy_us / r->ours_us);
    if (r && g->tflops > 0 && used < size)
        snprintf(to + used, size - used, "%s%.0f TFLOP/s", used ? ", " : "",
                 r->flops / r->ours_us * 1e-6);
}

static void write_json(const goals *all, cli_json *w)
{
    json_begin(w, "bench");
    json_open_array(w, "goals");
    for (size_t i = 0; i < all->count; i++) {
        const goal *g = &all->row[i];
        char words[96];
        json_open_object(w, NULL);
        json_add_string(w, "area", g->area);
        json_add_string(w, "op", g->call.op);
        json_add_string(w, "shapes", g->call.shapes);
        json_add_string(w, "dtype", g->call.dtype);
        json_add_string(w, "attributes", g->call.attributes);
        goal_words(g, words, sizeof words);
        json_add_string(w, "goal", words);
        reached_words(g, words, sizeof words);
        json_add_string(w, "reached", words);
        json_add_number(w, "share", g->share);
        json_close(w);
    }
    json_close(w);
}

static void print_goal(const goal *g, bool markdown)
{
    char wanted[96], got[96], share[16] = "";
    goal_words(g, wanted, sizeof wanted);
    reached_words(g, got, sizeof got);
    if (isfinite(g->share))
        snprintf(share, sizeof share, "%.0f %%", 100 * g->share);
    const char *shapes = g->call.shapes, *attributes = g->call.attributes;
    if (markdown) {
        printf("| %s | %s | %.40s%s%s%s | %s | %s | %s | %s | %s | %s |\n", g->area, g->call.op,
               shapes, strlen(shapes) > 40 ? ".." : "", *attributes ? "; " : "", attributes,
               g->call.dtype, wanted, g->source, g->found ? g->found->impl : "",
               g->found ? got : "not measured", share);
        return;
    }
    printf("%-9s %-16s %-28.28s %-20.20s %-6s %-28s %-36s %s%6s%s\n", g->area, g->call.op, shapes,
           attributes, g->call.dtype, wanted, g->found ? got : "not measured",
           g->share >= REACHED ? color(stdout, COLOR_GREEN)
           : g->share < NEAR   ? color(stdout, COLOR_RED)
                               : "",
           share, color(stdout, COLOR_OFF));
}

static void print_goals(const goals *all, bool markdown)
{
    size_t whole = 0, near = 0, missing = 0;
    for (size_t i = 0; i < all->count; i++) {
        double share = all->row[i].share;
        whole += share >= REACHED;
        near += share >= NEAR && share < REACHED;
        missing += !all->row[i].found;
    }
    if (markdown)
        printf("%zu of %zu are reached, %zu more within 5 %%, %zu were not measured.\n\n"
               "| area | op | shapes | dtype | goal | best peer before | by | reached | share |\n"
               "|---|---|---|---|---|---|---|---|---:|\n",
               whole, all->count, near, missing);
    for (size_t i = 0; i < all->count; i++)
        print_goal(&all->row[i], markdown);
    if (!markdown)
        printf("%zu of %zu are reached, %zu more within 5 %%, %zu were not measured\n", whole,
               all->count, near, missing);
}

static int read_file(goals *all, const char *path, const cli_records *records)
{
    cup__error error = {0};
    char *text;
    if (cup__file_read(&error, path, MOST_FILE, &text, NULL) != CUP_OK)
        return cli_fail(CLI_FILE, "%s", error.text);
    int code = read_goals(all, path, text, records);
    cup__free(text);
    return code;
}

int bench_goal_calls(const char *path, cli_records *calls)
{
    goals all = {0};
    int code = read_file(&all, path, NULL);
    for (size_t i = 0; i < all.count && !code; i++)
        code = records_add(calls, &all.row[i].call);
    if (!code && !all.count)
        code = cli_fail(CLI_FILE, "%s names no calls", path);
    cup__free(all.row);
    return code;
}

int bench_goals(const char *path, const cli_records *records, const char *format)
{
    goals all = {0};
    if (strcmp(format, "text") && strcmp(format, "markdown") && strcmp(format, "json"))
        return cli_usage("--goals are written as text, json or markdown");
    int code = read_file(&all, path, records);
    if (!code && !strcmp(format, "json")) {
        cli_json writer;
        write_json(&all, &writer);
        code = json_end(&writer);
    } else if (!code) {
        print_goals(&all, !strcmp(format, "markdown"));
    }
    cup__free(all.row);
    return code;
}
