/* Attributes by the texts of recipes. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "prof/attributes.h"
#include "prof/draw.h"

#define MOST_ALTERNATIVES 24
#define MOST_VALUE 200

/* One of the alternatives between bars. */
static void choose(uint64_t *state, const char *from, size_t length, char out[MOST_VALUE])
{
    const char *begin[MOST_ALTERNATIVES] = {from};
    int count = 1;
    for (size_t i = 0; i < length && count < MOST_ALTERNATIVES; i++)
        if (from[i] == '|')
            begin[count++] = from + i + 1;
    const char *one = begin[cup__draw_below(state, count)];
    size_t size = 0;
    while (one + size < from + length && one[size] != '|' && size < MOST_VALUE - 1)
        size++;
    memcpy(out, one, size);
    out[size] = 0;
}

/* A number from low to high, evenly spread or, where they are far apart, in its logarithm. */
static double between(uint64_t *state, double low, double high)
{
    double unit = (double)(cup__draw_word(state) >> 11) * 0x1p-53;
    if (low > 0 && high / low > 50)
        return low * pow(high / low, unit);
    return low + (high - low) * unit;
}

static void add_axis(cup__text *out, const cup__drawn *d, uint64_t *state)
{
    int64_t ndim = d->in[0].shape.ndim;
    cup__text_add(out, "%lld", (long long)(cup__draw_below(state, 2 * ndim) - ndim));
}

/* Some of the dimensions, in any order; or all of them. */
static void add_axes(cup__text *out, const cup__drawn *d, uint64_t *state, bool all)
{
    int ndim = d->in[0].shape.ndim, axis[CUP_MAX_DIMS];
    for (int i = 0; i < ndim; i++)
        axis[i] = i;
    for (int i = ndim; i-- > 1;) {
        int j = (int)cup__draw_below(state, i + 1), was = axis[i];
        axis[i] = axis[j];
        axis[j] = was;
    }
    int count = all ? ndim : (int)cup__draw_below(state, ndim + 1);
    for (int i = 0; i < count; i++)
        cup__text_add(out, "%s%d", i ? "," : "",
                      cup__draw_chance(state, 30) ? axis[i] - ndim : axis[i]);
}

/* "[A,2B,-1]": what the expressions give. A "*" stands for the leading sizes. */
static void add_list(cup__text *out, cup__symbols *s, const char *at)
{
    bool first = true;
    while (*at && *at != ']') {
        const char *gap = first ? "" : ",";
        if (*at == '*') {
            for (int i = 0; i < s->lead; i++, first = false)
                cup__text_add(out, "%s%lld", first ? "" : ",",
                              (long long)cup__symbol(s, (char)('0' + i)));
            at++;
        } else if (*at == '-') {
            char *end;
            cup__text_add(out, "%s%lld", gap, strtoll(at, &end, 10));
            at = end;
            first = false;
        } else {
            cup__text_add(out, "%s%lld", gap, (long long)cup__expression(s, &at));
            first = false;
        }
        at += *at == ',';
    }
}

static bool has_letter(const char *text)
{
    while (*text && !isalpha((unsigned char)*text))
        text++;
    return *text != 0;
}

static void add_value(cup__text *out, const cup__drawn *d, const cup__attribute *a,
                      cup__symbols *s, uint64_t *state, const char *value)
{
    char *end = NULL;
    const char *range = strstr(value, "..");
    if (!strcmp(value, "@"))
        add_axis(out, d, state);
    else if (!strcmp(value, "@some") || !strcmp(value, "@all"))
        add_axes(out, d, state, value[1] == 'a');
    else if (!strcmp(value, "@own"))
        cup__text_add(out, "%s", cup_dtype_name(d->dtype));
    else if (value[0] == '[')
        add_list(out, s, value + 1);
    else if (range) {
        double low = cup__text_number(value, &end), high = cup__text_number(range + 2, &end);
        double drawn = between(state, low, a->kind == CUP__KIND_FLOAT ? high : high + 1);
        cup__text_add_number(out, a->kind == CUP__KIND_FLOAT ? drawn : fmin(floor(drawn), high));
    } else if (a->kind != CUP__KIND_DTYPE && a->kind != CUP__KIND_FLOAT && has_letter(value))
        cup__text_add(out, "%lld", (long long)cup__expression(s, &value));
    else
        cup__text_add(out, "%s", value);
}

static const cup__attribute *named(const cup__row *row, const char *name, size_t length)
{
    for (const cup__attribute *a = row->attributes; a && a->name; a++)
        if (strlen(a->name) == length && !memcmp(a->name, name, length))
            return a;
    return NULL;
}

bool cup__draw_attributes(cup__drawn *d, cup__symbols *s, uint64_t *state, const char *text)
{
    cup__error error = {0};
    for (const char *at = text; at && *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " "), name = strcspn(at, "=");
        const cup__attribute *a = name < length ? named(d->row, at, name) : NULL;
        if (!a)
            return false;
        char value[MOST_VALUE];
        choose(state, at + name + 1, length - name - 1, value);
        cup__text one = {0};
        cup__text_add(&one, "%s=", a->name);
        size_t before = one.length;
        add_value(&one, d, a, s, state, value);
        bool empty = one.length == before;
        if (empty) /* a list without numbers */
            memset(d->attributes + a->offset, 0, 8 * sizeof(int64_t) + sizeof(int));
        cup_status status = empty ? CUP_OK
                                  : cup__attributes_parse(&error, d->row, cup__text_string(&one),
                                                          d->attributes);
        cup__text_free(&one);
        if (status != CUP_OK)
            return false;
        at += length;
    }
    return true;
}
