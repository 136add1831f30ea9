#include "cli/bench_records.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cli/common/exit.h"

#define MOST_FILE ((uint64_t)64 << 20)
#define MOST_COLUMNS 64

typedef struct column {
    const char *name;
    size_t offset, size; /* size 0: a number */
} column;

#define WORDS(field) {#field, offsetof(cli_record, field), sizeof(((cli_record *)0)->field)}
#define NUMBER(field) {#field, offsetof(cli_record, field), 0}

static const column columns[] = {
    WORDS(date),    WORDS(card),    WORDS(op),      WORDS(shapes),          WORDS(dtype),
    WORDS(impl),    NUMBER(ours_us), WORDS(peer),   NUMBER(peer_us),        NUMBER(ratio),
    NUMBER(share_of_floor), NUMBER(spread), NUMBER(error), NUMBER(peer_error), NUMBER(bytes),
    NUMBER(flops),  WORDS(attributes), NUMBER(copy_us), NUMBER(timed)};
#define COLUMNS (sizeof columns / sizeof *columns)

static void put(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
}

cli_record record_of(const cup_bench_result *r, const char *card, const char *date)
{
    cli_record row = {.ours_us = r->median_us,
                      .spread = (r->high_us - r->low_us) / 2 / r->median_us,
                      .peer_us = NAN,
                      .ratio = NAN,
                      .share_of_floor = r->floor_us / r->median_us,
                      .error = r->error,
                      .peer_error = NAN,
                      .bytes = r->bytes,
                      .flops = r->flops,
                      .copy_us = r->copy_us,
                      .timed = NAN};
    put(row.date, sizeof row.date, date);
    put(row.card, sizeof row.card, card);
    put(row.op, sizeof row.op, r->op);
    put(row.shapes, sizeof row.shapes, r->shapes);
    put(row.attributes, sizeof row.attributes, r->attributes);
    put(row.dtype, sizeof row.dtype, cup_dtype_name(r->dtype));
    put(row.impl, sizeof row.impl, r->impl);
    return row;
}

int records_add(cli_records *records, const cli_record *row)
{
    if (!cup__grow(&records->row, &records->capacity, records->count, sizeof *records->row))
        return cli_fail(CLI_MEMORY, "no host memory for the results");
    records->row[records->count++] = *row;
    return CLI_OK;
}

void records_free(cli_records *records)
{
    cup__free(records->row);
    *records = (cli_records){0};
}

/* The next field of a line, quotes taken off; moves on behind its separator. */
static char *next_field(char **line, char separator)
{
    char *at = *line, *from = at, *to;
    if (!at)
        return NULL;
    if (*at == '"') {
        for (to = from, at++; *at && (*at != '"' || at[1] == '"'); at++) {
            at += *at == '"';
            *to++ = *at;
        }
        at += *at == '"';
        char *end = strchr(at, separator);
        *to = 0;
        *line = end ? end + 1 : NULL;
        return from;
    }
    to = strchr(at, separator);
    *line = to ? to + 1 : NULL;
    if (to)
        *to = 0;
    return from;
}

/* Which column of ours each of the file's is; -1: none. Returns how many there are. */
static int read_head(char *line, char separator, int order[MOST_COLUMNS])
{
    int count = 0;
    bool has_op = false;
    for (char *name; count < MOST_COLUMNS && (name = next_field(&line, separator)); count++) {
        order[count] = -1;
        for (size_t i = 0; i < COLUMNS; i++)
            if (!strcmp(columns[i].name, name))
                order[count] = (int)i;
        has_op = has_op || !strcmp(name, "ours_us");
    }
    return has_op ? count : 0;
}

static void read_row(char *line, char separator, const int *order, int count, cli_record *row)
{
    *row = (cli_record){0};
    for (size_t i = 0; i < COLUMNS; i++)
        if (!columns[i].size)
            *(double *)(void *)((char *)row + columns[i].offset) = NAN;
    for (int i = 0; i < count; i++) {
        char *field = next_field(&line, separator), *end;
        if (!field)
            return;
        if (order[i] < 0)
            continue;
        const column *c = &columns[order[i]];
        char *to = (char *)row + c->offset;
        double value = c->size ? 0 : cup__text_number(field, &end);
        if (c->size)
            cup_text_visible(field, "", to, c->size);
        else
            *(double *)(void *)to = end != field ? value : NAN;
    }
}

static int read_lines(cli_records *records, const char *path, char *text)
{
    int order[MOST_COLUMNS], count = 0, number = 0, code = CLI_OK;
    char separator = ',';
    for (char *line = text; line && !code;) {
        char *end = strchr(line, '\n'), *next = end ? end + 1 : NULL;
        if (end)
            *end = 0;
        size_t length = strlen(line);
        if (length && line[length - 1] == '\r')
            line[length - 1] = 0;
        if (!number++) {
            separator = strchr(line, '\t') ? '\t' : ',';
            count = read_head(line, separator, order);
            if (!count)
                return cli_fail(CLI_FILE, "%s: its first line names no columns of a benchmark, "
                                          "as ours_us",
                                path);
        } else if (*line) {
            cli_record row;
            read_row(line, separator, order, count, &row);
            if (!row.op[0] || !(row.ours_us > 0))
                return cli_fail(CLI_FILE, "%s: line %d names no op, or no time above 0", path,
                                number);
            code = records_add(records, &row);
        }
        line = next;
    }
    return code;
}

int records_read(cli_records *records, const char *path)
{
    cup__error error = {0};
    char *text;
    if (cup__file_read(&error, path, MOST_FILE, &text, NULL) != CUP_OK)
        return cli_fail(CLI_FILE, "%s", error.text);
    int code = read_lines(records, path, text);
    cup__free(text);
    return code;
}

bool record_is_same_call(const cli_record *a, const cli_record *b)
{
    return !strcmp(a->op, b->op) && !strcmp(a->shapes, b->shapes) && !strcmp(a->dtype, b->dtype) &&
           !strcmp(a->attributes, b->attributes);
}

const cli_record *records_find(const cli_records *records, const cli_record *like)
{
    for (size_t i = 0; i < records->count; i++)
        if (record_is_same_call(&records->row[i], like))
            return &records->row[i];
    return NULL;
}

void records_keep_latest(cli_records *records)
{
    size_t kept = 0;
    for (size_t i = 0; i < records->count; i++) {
        cli_record *row = &records->row[i], *found = NULL;
        for (size_t k = 0; k < kept && !found; k++)
            if (record_is_same_call(&records->row[k], row))
                found = &records->row[k];
        if (!found)
            records->row[kept++] = *row;
        else if (strcmp(found->date, row->date) || !strcmp(found->impl, row->impl))
            *found = *row;
    }
    records->count = kept;
}

void records_head(cup__text *out, char separator)
{
    for (size_t i = 0; i < COLUMNS; i++)
        cup__text_add(out, "%s%s", i ? (char[]){separator, 0} : "", columns[i].name);
}

static void add_words(cup__text *out, const char *words, char separator)
{
    if (!strpbrk(words, "\"\t,\n")) {
        cup__text_add(out, "%s", words);
        return;
    }
    if (separator == '\t' && !strpbrk(words, "\"\t\n")) {
        cup__text_add(out, "%s", words);
        return;
    }
    cup__text_add(out, "\"");
    for (const char *at = words; *at; at++)
        cup__text_add(out, *at == '"' ? "\"\"" : "%c", *at);
    cup__text_add(out, "\"");
}

void records_line(cup__text *out, const cli_record *row, char separator)
{
    for (size_t i = 0; i < COLUMNS; i++) {
        const char *at = (const char *)row + columns[i].offset;
        if (i)
            cup__text_add(out, "%c", separator);
        if (columns[i].size) {
            add_words(out, at, separator);
            continue;
        }
        double value = *(const double *)(const void *)at;
        if (isfinite(value))
            cup__text_add(out, "%.5g", value);
        else if (isinf(value))
            cup__text_add(out, "inf");
    }
}

double record_floor(const cli_record *row)
{
    return row->share_of_floor * row->ours_us;
}

double records_copy_rate(const cli_records *records)
{
    double most = 0;
    for (size_t i = 0; i < records->count; i++) {
        const cli_record *row = &records->row[i];
        double rate = row->bytes / (record_floor(row) * 1e-6);
        if (isfinite(rate) && rate > most)
            most = rate;
    }
    return most;
}

bool record_is_bound_by_memory(const cli_record *row, double copy_rate)
{
    return row->bytes / (record_floor(row) * 1e-6) > 0.98 * copy_rate;
}
