#include "prof/attributes.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static void add_ints(cup__text *out, const char *name, const int64_t *values)
{
    int count;
    memcpy(&count, values + 8, sizeof count);
    for (int i = 0; i < count && i < 8; i++)
        cup__text_add(out, "%s%s%lld", i ? "," : name, i ? "" : "=", (long long)values[i]);
}

static void add(cup__text *out, const cup__attribute *a, const char *at)
{
    const char *gap = out->length ? " " : "";
    int64_t whole = 0;
    double real;
    switch (a->kind) {
    case CUP__KIND_INT:
    case CUP__KIND_DTYPE:
        whole = *(const int *)(const void *)at;
        break;
    case CUP__KIND_INT64:
        whole = *(const int64_t *)(const void *)at;
        break;
    case CUP__KIND_BOOL:
        whole = *(const bool *)at;
        break;
    case CUP__KIND_FLOAT:
        memcpy(&real, at, sizeof real);
        if (real < 0 || real > 0) {
            cup__text_add(out, "%s%s=", gap, a->name);
            cup__text_add_number(out, real);
        }
        return;
    case CUP__KIND_INTS:
        if (*(const int *)(const void *)(at + 8 * sizeof(int64_t)) > 0)
            cup__text_add(out, "%s", gap);
        add_ints(out, a->name, (const int64_t *)(const void *)at);
        return;
    }
    if (whole && a->kind == CUP__KIND_DTYPE)
        cup__text_add(out, "%s%s=%s", gap, a->name, cup_dtype_name((cup_dtype)whole));
    else if (whole)
        cup__text_add(out, "%s%s=%lld", gap, a->name, (long long)whole);
}

void cup__attributes_text(const cup__row *row, const void *attributes, cup__text *out)
{
    for (const cup__attribute *a = row->attributes; attributes && a && a->name; a++)
        add(out, a, (const char *)attributes + a->offset);
}

/* A whole number in [low, high] that ends where the value or, in a list, the item does. */
static bool read_whole(const char **at, int64_t low, int64_t high, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(*at, &end, 10);
    if (end == *at || errno || value < low || value > high || !strchr(" ,", *end))
        return false;
    *at = end;
    *out = value;
    return true;
}

static bool read_ints(const char *at, int64_t *values)
{
    int count = 0;
    while (count < 8 && read_whole(&at, INT64_MIN, INT64_MAX, &values[count])) {
        count++;
        if (*at != ',')
            break;
        at++;
    }
    memcpy(values + 8, &count, sizeof count);
    return count > 0 && (!*at || *at == ' ');
}

static bool read_dtype(const char *at, cup_dtype *out)
{
    char name[16] = "";
    size_t length = strcspn(at, " ");
    if (length >= sizeof name)
        return false;
    memcpy(name, at, length);
    return cup_dtype_find(name, out) == CUP_OK;
}

static bool read_value(const cup__attribute *a, const char *at, char *to)
{
    int64_t whole;
    char *end;
    switch (a->kind) {
    case CUP__KIND_INTS:
        return read_ints(at, (int64_t *)(void *)to);
    case CUP__KIND_DTYPE:
        return read_dtype(at, (cup_dtype *)(void *)to);
    case CUP__KIND_FLOAT:
        *(double *)(void *)to = cup__text_number(at, &end);
        return end != at && strchr(" ", *end);
    case CUP__KIND_INT64:
        return read_whole(&at, INT64_MIN, INT64_MAX, (int64_t *)(void *)to);
    case CUP__KIND_INT:
        if (!read_whole(&at, INT_MIN, INT_MAX, &whole))
            return false;
        *(int *)(void *)to = (int)whole;
        return true;
    case CUP__KIND_BOOL:
        if (!read_whole(&at, 0, 1, &whole))
            return false;
        *(bool *)to = whole != 0;
        return true;
    }
    return false;
}

cup_status cup__attributes_parse(cup__error *error, const cup__row *row, const char *text,
                                 void *attributes)
{
    for (const char *at = text + strspn(text, " "); *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " "), name = strcspn(at, "= ");
        const cup__attribute *a = row->attributes;
        while (a && a->name && (strlen(a->name) != name || memcmp(a->name, at, name) != 0))
            a++;
        if (!a || !a->name || at[name] != '=' ||
            !read_value(a, at + name + 1, (char *)attributes + a->offset))
            return cup__fail(error, CUP_ARGUMENT,
                             "%s: \"%.*s\" sets no attribute; it has (%s), written as "
                             "name=value, a list as 0,2, a bool as 0 or 1",
                             row->name, (int)(length < 60 ? length : 60), at,
                             row->attributes_text);
        at += length;
    }
    return CUP_OK;
}
