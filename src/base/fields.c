#include "base/fields.h"

#include <stdio.h>
#include <string.h>

/* A field as a number; whole ones that were checked are all exact. */
static int kind_of(const cup__field *f)
{
    return (int)f->kind & (CUP__FIELD_LATER - 1);
}

static double number_at(const cup__field *f, const void *from)
{
    const void *at = (const char *)from + f->offset;
    switch (kind_of(f)) {
    case CUP__FIELD_WHOLE:
        return (double)*(const int64_t *)at;
    case CUP__FIELD_REAL:
        return *(const double *)at;
    case CUP__FIELD_FLAG:
        return *(const bool *)at;
    case CUP__FIELD_TEXT:
        return 0;
    }
    int choice;
    memcpy(&choice, at, sizeof choice);
    return choice;
}

static int count_of(const char *const *words)
{
    int count = 0;
    while (words[count])
        count++;
    return count;
}

cup_status cup__fields_check(cup__error *error, const char *what, const cup__field *fields,
                             const void *from)
{
    for (const cup__field *f = fields; f->name; f++) {
        double value = number_at(f, from);
        if (kind_of(f) == CUP__FIELD_CHOICE && !(value >= 0 && value < count_of(f->words)))
            return cup__fail(error, CUP_ARGUMENT, "%s: %s %g is none", what, f->name, value);
        if (kind_of(f) != CUP__FIELD_CHOICE && !(value >= f->least && value <= f->most))
            return cup__fail(error, CUP_ARGUMENT, "%s: %s must be from %g to %g, not %g", what,
                             f->name, f->least, f->most, value);
    }
    return CUP_OK;
}

const char *cup__fields_differ(const cup__field *fields, const void *a, const void *b)
{
    for (const cup__field *f = fields; f->name; f++)
        if (f->fixed && number_at(f, a) != number_at(f, b))
            return f->name;
    return NULL;
}

void cup__fields_write(cup__json_writer *writer, const cup__field *fields, const void *from)
{
    for (const cup__field *f = fields; f->name; f++) {
        const void *at = (const char *)from + f->offset;
        switch (kind_of(f)) {
        case CUP__FIELD_WHOLE:
            cup__json_add_integer(writer, f->name, *(const int64_t *)at);
            break;
        case CUP__FIELD_REAL:
            cup__json_add_number(writer, f->name, *(const double *)at);
            break;
        case CUP__FIELD_FLAG:
            cup__json_add_boolean(writer, f->name, *(const bool *)at);
            break;
        case CUP__FIELD_CHOICE:
            cup__json_add_string(writer, f->name, f->words[(int)number_at(f, from)]);
            break;
        case CUP__FIELD_TEXT:
            cup__json_add_string(writer, f->name, at);
            break;
        }
    }
}

static cup_status read_choice(cup__error *error, const cup__json *json,
                              const cup__json_node *object, const cup__field *f, void *at)
{
    const char *word;
    const cup__json_node *node = cup__json_find(object, f->name);
    if ((f->kind & CUP__FIELD_FLAG_ONCE) && node && node->kind == CUP__JSON_BOOL) {
        int choice = node->boolean;
        memcpy(at, &choice, sizeof choice);
        return CUP_OK;
    }
    CUP_TRY(cup__json_get_string(error, json, object, f->name, &word));
    char known[128] = "";
    for (int choice = 0; f->words[choice]; choice++) {
        if (!strcmp(word, f->words[choice])) {
            memcpy(at, &choice, sizeof choice);
            return CUP_OK;
        }
        const char *between = !choice ? "" : f->words[choice + 1] ? ", " : " or ";
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", between, f->words[choice]);
    }
    return cup__fail(error, CUP_FORMAT, "%s: %s is \"%.40s\", not %s", json->name, f->name, word,
                     known);
}

static cup_status read_text(cup__error *error, const cup__json *json, const cup__json_node *object,
                            const cup__field *f, char *at)
{
    const char *text;
    CUP_TRY(cup__json_get_string(error, json, object, f->name, &text));
    if (strlen(text) >= (size_t)f->most)
        return cup__fail(error, CUP_FORMAT, "%s: %s has over %g bytes", json->name, f->name,
                         f->most - 1);
    memcpy(at, text, strlen(text) + 1);
    return CUP_OK;
}

cup_status cup__fields_read(cup__error *error, const cup__json *json, const cup__json_node *object,
                            const cup__field *fields, void *to)
{
    for (const cup__field *f = fields; f->name; f++) {
        void *at = (char *)to + f->offset;
        if ((f->kind & CUP__FIELD_LATER) && !cup__json_find(object, f->name))
            continue;
        switch (kind_of(f)) {
        case CUP__FIELD_WHOLE:
            CUP_TRY(cup__json_get_integer(error, json, object, f->name, 0, INT64_MAX, at));
            break;
        case CUP__FIELD_REAL:
            CUP_TRY(cup__json_get_number(error, json, object, f->name, at));
            break;
        case CUP__FIELD_FLAG:
            CUP_TRY(cup__json_get_boolean(error, json, object, f->name, at));
            break;
        case CUP__FIELD_CHOICE:
            CUP_TRY(read_choice(error, json, object, f, at));
            break;
        case CUP__FIELD_TEXT:
            CUP_TRY(read_text(error, json, object, f, at));
            break;
        }
    }
    return CUP_OK;
}
