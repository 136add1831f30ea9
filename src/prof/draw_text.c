/* Drawn calls as text, and back. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "prof/attributes.h"
#include "prof/draw.h"

static const char marks[] = " <^!"; /* by cup__places */

static bool lies_plain(const cup__drawn_input *in)
{
    cup__drawn_input plain = *in;
    cup__drawn_lay_plain(&plain);
    for (int i = 0; i < in->shape.ndim; i++)
        if (plain.stride[i] != in->stride[i])
            return false;
    return true;
}

static void add_input(const cup__drawn *d, const cup__drawn_input *in, cup__text *out)
{
    if (!in->given) {
        cup__text_add(out, "-");
        return;
    }
    for (int i = 0; i < in->shape.ndim; i++)
        cup__text_add(out, "%s%lld", i ? "x" : "", (long long)in->shape.size[i]);
    if (!in->shape.ndim)
        cup__text_add(out, "()");
    if (in->shape.dtype != d->dtype)
        cup__text_add(out, ":%s", cup_dtype_name(in->shape.dtype));
    for (int i = 0; i < in->shape.ndim && !lies_plain(in); i++)
        cup__text_add(out, "%s%lld", i ? "," : "@", (long long)in->stride[i]);
    if (in->offset)
        cup__text_add(out, "+%lld", (long long)in->offset);
    if (in->places)
        cup__text_add(out, "%c%lld", marks[in->places], (long long)in->below);
}

void cup__drawn_shapes_text(const cup__drawn *d, cup__text *out)
{
    for (int i = 0; i < d->count; i++) {
        cup__text_add(out, "%s", i ? " " : "");
        add_input(d, &d->in[i], out);
    }
}

void cup__drawn_text(const cup__drawn *d, cup__text *out)
{
    cup__text attributes = {0};
    cup__text_add(out, "%s %s", d->row->name, cup_dtype_name(d->dtype));
    for (int i = 0; i < d->count; i++) {
        cup__text_add(out, " ");
        add_input(d, &d->in[i], out);
    }
    cup__attributes_text(d->row, d->attributes, &attributes);
    if (attributes.length)
        cup__text_add(out, " %s", cup__text_string(&attributes));
    cup__text_free(&attributes);
    cup__text_add(out, " /seed=%llu", (unsigned long long)d->seed);
    if (d->out_offset)
        cup__text_add(out, " /out=%d", d->out_offset);
    if (d->scale)
        cup__text_add(out, " /scale=%d", d->scale);
    if (d->shift < 0 || d->shift > 0) {
        cup__text_add(out, " /shift=");
        cup__text_add_number(out, d->shift);
    }
    if (d->special)
        cup__text_add(out, " /special=1");
}

/* A number of at least 0 behind the letter that stands at *at, when it does. */
static bool read_after(const char **at, char letter, int64_t *out)
{
    if (**at != letter)
        return true;
    char *end;
    *out = strtoll(*at + 1, &end, 10);
    bool read = end != *at + 1 && *out >= 0;
    *at = end;
    return read;
}

static bool read_sizes(const char **at, cup__drawn_input *in)
{
    if ((*at)[0] == '(' && (*at)[1] == ')') {
        *at += 2;
        return true;
    }
    for (;;) {
        char *end;
        if (in->shape.ndim == CUP_MAX_DIMS || **at < '0' || **at > '9')
            return false;
        in->shape.size[in->shape.ndim++] = strtoll(*at, &end, 10);
        *at = end;
        if (**at != 'x')
            return true;
        ++*at;
    }
}

static bool read_dtype(const char **at, cup_dtype *out)
{
    char name[16] = "";
    size_t length = strcspn(*at, "@+<^! ");
    if (length >= sizeof name)
        return false;
    memcpy(name, *at, length);
    *at += length;
    return cup_dtype_find(name, out) == CUP_OK;
}

static bool read_input(cup__drawn *d, const char *at)
{
    if (d->count == CUP__DRAWN_INPUTS)
        return false;
    cup__drawn_input *in = &d->in[d->count++];
    *in = (cup__drawn_input){.shape.dtype = d->dtype};
    if (!strcmp(at, "-"))
        return true;
    in->given = true;
    if (!read_sizes(&at, in))
        return false;
    cup__drawn_lay_plain(in);
    if (*at == ':') {
        at++;
        if (!read_dtype(&at, &in->shape.dtype))
            return false;
    }
    for (int i = 0; i < in->shape.ndim && (i || *at == '@'); i++)
        if (*at != (i ? ',' : '@') || !read_after(&at, *at, &in->stride[i]))
            return false;
    if (!read_after(&at, '+', &in->offset))
        return false;
    const char *mark = *at ? strchr(marks + 1, *at) : NULL;
    in->places = mark ? (cup__places)(mark - marks) : CUP__PLACES_NONE;
    return (!mark || read_after(&at, *mark, &in->below)) && !*at;
}

static bool read_setting(cup__drawn *d, const char *at)
{
    char *end;
    const char *value = strchr(at, '=');
    size_t length = value ? (size_t)(value - at) : 0;
    if (!value++)
        return false;
    if (length == 4 && !memcmp(at, "seed", 4))
        d->seed = strtoull(value, &end, 10);
    else if (length == 3 && !memcmp(at, "out", 3))
        d->out_offset = (int)strtol(value, &end, 10) & 63;
    else if (length == 5 && !memcmp(at, "scale", 5))
        d->scale = (int)strtol(value, &end, 10);
    else if (length == 5 && !memcmp(at, "shift", 5))
        d->shift = cup__text_number(value, &end);
    else if (length == 7 && !memcmp(at, "special", 7))
        d->special = strtol(value, &end, 10) != 0;
    else
        return false;
    return !*end;
}

static cup_status read_word(cup__error *error, cup__drawn *d, const char *word, int number)
{
    bool read = true;
    const char *rest = word;
    if (number == 0)
        read = (d->row = cup__row_find(word)) != NULL;
    else if (number == 1)
        read = read_dtype(&rest, &d->dtype) && !*rest;
    else if (*word == '/')
        read = read_setting(d, word + 1);
    else if (strchr(word, '='))
        return cup__attributes_parse(error, d->row, word, d->attributes);
    else
        read = read_input(d, word);
    if (read)
        return CUP_OK;
    return cup__fail(error, CUP_ARGUMENT,
                     "\"%.60s\" is no part of a call; it is written as op, dtype, shapes, "
                     "attributes, as a failure of the check prints it",
                     word);
}

cup_status cup__drawn_parse(cup__error *error, const char *text, cup__drawn *out)
{
    char word[256];
    int number = 0;
    memset(out, 0, sizeof *out);
    for (const char *at = text + strspn(text, " "); *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (length >= sizeof word)
            return cup__fail(error, CUP_ARGUMENT, "\"%.60s...\" is no part of a call", at);
        memcpy(word, at, length);
        word[length] = 0;
        CUP_TRY(read_word(error, out, word, number++));
        at += length;
    }
    if (number < 2 || out->row->attributes_size > sizeof out->attributes)
        return cup__fail(error, CUP_ARGUMENT, "a call begins with its op and a dtype");
    for (; out->row->in_most != INT_MAX && out->count < out->row->in_most; out->count++)
        out->in[out->count] = (cup__drawn_input){.shape.dtype = out->dtype};
    return CUP_OK;
}
