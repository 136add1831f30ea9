#include "dispatch/tuning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "cuda/cache.h"
#include "cuda/sources.h"

#define FIELDS 6
#define US_MOST 1e15 /* thirty years */
#define HEAD "# card\tCUDA\tversion\tcall\tway\tus\n"

static int compare(const void *left, const void *right)
{
    const cup__tuning_line *a = left, *b = right;
    int order = strcmp(a->card, b->card);
    if (!order)
        order = strcmp(a->driver, b->driver);
    if (!order)
        order = strcmp(a->version, b->version);
    return order ? order : strcmp(a->call, b->call);
}

static uint64_t hash_of(const cup__tuning_line *line)
{
    const char *texts[] = {line->card, line->driver, line->version, line->call};
    uint64_t hash = 0;
    for (int i = 0; i < 4; i++)
        hash = hash * 0x9e3779b97f4a7c15u + cup__hash_bytes(texts[i], strlen(texts[i]));
    return hash;
}

static char *append(char **to, const char *text)
{
    char *at = *to;
    size_t size = strlen(text) + 1;
    memcpy(at, text, size);
    *to += size;
    return at;
}

static cup_status copy_line(cup__error *error, const cup__tuning_line *from, cup__tuning_line *to)
{
    const char *texts[] = {from->card, from->driver, from->version, from->call, from->way};
    size_t size = 0;
    for (int i = 0; i < 5; i++)
        size += strlen(texts[i]) + 1;
    char *block = cup__malloc(size);
    if (!block)
        return cup__fail(error, CUP_MEMORY, "out of host memory for tuning records");
    to->card = append(&block, from->card);
    to->driver = append(&block, from->driver);
    to->version = append(&block, from->version);
    to->call = append(&block, from->call);
    to->way = append(&block, from->way);
    to->us = from->us;
    return CUP_OK;
}

cup_status cup__tuning_put(cup__error *error, cup__tuning *to, const cup__tuning_line *line)
{
    cup__tuning_line copy;
    uint64_t hash = hash_of(line);
    uint32_t at = cup__map_find(&to->by_call, hash);
    if (!cup__grow(&to->lines, &to->capacity, to->count, sizeof *to->lines))
        return cup__fail(error, CUP_MEMORY, "out of host memory for tuning records");
    CUP_TRY(copy_line(error, line, &copy));
    if (at != CUP__NOT_THERE) {
        cup__free(to->lines[at].card);
        to->lines[at] = copy;
        return CUP_OK;
    }
    if (!cup__map_add(&to->by_call, hash, (uint32_t)to->count)) {
        cup__free(copy.card);
        return cup__fail(error, CUP_MEMORY, "out of host memory for tuning records");
    }
    to->lines[to->count++] = copy;
    return CUP_OK;
}

/* Cuts a line into its fields, in place; false when it has others. */
static bool cut(char *line, char *fields[FIELDS])
{
    for (int i = 0; i < FIELDS; i++) {
        fields[i] = line;
        size_t length = strcspn(line, "\t");
        if (length == 0 || (line[length] == 0) != (i == FIELDS - 1))
            return false;
        line[length] = 0;
        line += length + 1;
    }
    return true;
}

static cup_status parse_line(cup__error *error, const char *name, size_t number, char *line,
                             cup__tuning *to)
{
    char *fields[FIELDS], *end;
    if (*line == 0 || *line == '#')
        return CUP_OK;
    bool good = cut(line, fields);
    double us = good ? cup__text_number(fields[5], &end) : 0;
    if (!good || *end || !(us > 0 && us <= US_MOST))
        return cup__fail(error, CUP_FORMAT,
                         "%s: line %zu is no tuning record of %d fields that ends in microseconds; "
                         "remove it, or measure again with `cupola tune`",
                         name, number, FIELDS);
    cup__tuning_line record = {fields[0], fields[1], fields[2], fields[3], fields[4], us};
    return cup__tuning_put(error, to, &record);
}

cup_status cup__tuning_parse(cup__error *error, const char *name, const char *text, size_t size,
                             cup__tuning *to)
{
    if (memchr(text, 0, size))
        return cup__fail(error, CUP_FORMAT, "%s is binary, not a table of tuning records", name);
    char *copy = cup__malloc(size + 1);
    if (!copy)
        return cup__fail(error, CUP_MEMORY, "out of host memory for tuning records");
    memcpy(copy, text, size);
    copy[size] = 0;
    cup_status status = CUP_OK;
    size_t number = 1;
    for (char *line = copy; *line && status != CUP_MEMORY; number++) {
        size_t length = strcspn(line, "\n");
        char *next = line + length + (line[length] != 0);
        line[length] = 0;
        cup_status one = parse_line(error, name, number, line, to);
        status = one == CUP_OK ? status : one;
        line = next;
    }
    cup__free(copy);
    return status;
}

cup_status cup__tuning_read(cup__error *error, const char *path, bool needed, cup__tuning *to)
{
    char *text;
    size_t size;
    if (!needed && !cup__file_exists(path))
        return CUP_OK;
    CUP_TRY(cup__file_read(error, path, CUP__TUNING_BYTES_MOST, &text, &size));
    cup_status status = cup__tuning_parse(error, path, text, size, to);
    cup__free(text);
    return status;
}

void cup__tuning_write(const cup__tuning *tuning, cup__text *text)
{
    size_t count = tuning->count;
    cup__tuning_line *sorted = cup__malloc((count + 1) * sizeof *sorted);
    if (!sorted) {
        text->failed = true;
        return;
    }
    if (count)
        memcpy(sorted, tuning->lines, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare);
    cup__text_add(text, HEAD);
    for (size_t i = 0; i < count; i++) {
        const cup__tuning_line *l = &sorted[i];
        cup__text_add(text, "%s\t%s\t%s\t%s\t%s\t", l->card, l->driver, l->version, l->call,
                      l->way);
        cup__text_add_number(text, fmax(round(l->us * 100) / 100, 0.01));
        cup__text_append(text, "\n", 1);
    }
    cup__free(sorted);
}

cup_status cup__tuning_save(cup__error *error, const cup__tuning *tuning, const char *path)
{
    cup__text text = {0};
    cup__tuning_write(tuning, &text);
    cup_status status =
        text.failed ? cup__fail(error, CUP_MEMORY, "out of host memory for tuning records")
                    : cup__file_write(error, path, text.bytes, text.length);
    cup__text_free(&text);
    return status;
}

void cup__tuning_free(cup__tuning *tuning)
{
    for (size_t i = 0; i < tuning->count; i++)
        cup__free(tuning->lines[i].card);
    cup__free(tuning->lines);
    cup__map_free(&tuning->by_call);
    *tuning = (cup__tuning){0};
}

cup_status cup__tuning_path(cup__error *error, char **out)
{
    const char *named = cup__env_get(CUP__ENV_TUNING);
    *out = NULL;
    if (!strcmp(named, "off"))
        return CUP_OK;
    if (*named) {
        *out = cup__path_join("", named);
    } else {
        char *folder;
        CUP_TRY(cup__cache_folder(error, &folder));
        if (!folder)
            return CUP_OK;
        *out = cup__path_join(folder, "tuning.tsv");
        cup__free(folder);
    }
    return *out ? CUP_OK : cup__fail(error, CUP_MEMORY, "out of host memory for a path");
}

cup_status cup__tuning_shipped(cup__error *error, cup__tuning *to)
{
    for (const cup__source *s = cup__sources(); s->name; s++)
        if (!strcmp(s->name, "tuning.tsv"))
            return cup__tuning_parse(error, s->name, s->text, s->size, to);
    return CUP_OK;
}
