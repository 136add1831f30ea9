#include "data/lines.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "data/stream.h"

bool cup__lines_named(const char *path)
{
    static const char *const endings[] = {".jsonl", ".ndjson"};
    size_t length = cup__stream_name(path);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t ending = strlen(endings[i]);
        if (length > ending && memcmp(path + length - ending, endings[i], ending) == 0)
            return true;
    }
    return false;
}

static cup_status each(cup__error *error, const char *name, const char *line, size_t length,
                       const char *field, cup__line_text text, void *user)
{
    cup__json json;
    cup_status status = cup__json_parse(error, name, line, length, &json);
    if (status != CUP_OK)
        return status;
    const cup__json_node *found = cup__json_find(json.root, field);
    if (found && found->kind == CUP__JSON_STRING)
        status = found->count ? text(user, found->string, found->count) : CUP_OK;
    else
        status = cup__fail(error, CUP_FORMAT,
                           "%s: there is no field \"%.100s\" with a text; name the field that has "
                           "it, or leave the line out",
                           name, field);
    cup__json_free(&json);
    return status;
}

cup_status cup__lines_each(cup__error *error, const char *path, int64_t first, const char *bytes,
                           size_t length, const char *field, cup__line_text text, void *user)
{
    for (size_t at = 0; at < length; first++) {
        const char *line = bytes + at, *end = memchr(line, '\n', length - at);
        size_t count = end ? (size_t)(end - line) : length - at;
        at += count + 1;
        if (strspn(line, " \t\r") >= count)
            continue;
        char name[1024];
        snprintf(name, sizeof name, "%.900s: line %lld", path, (long long)first);
        CUP_TRY(each(error, name, line, count, field, text, user));
    }
    return CUP_OK;
}
