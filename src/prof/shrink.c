/* A failing call made smaller. */
#include <string.h>

#include "prof/random.h"

#define MOST_TRIES 400

typedef struct shrinking {
    cup__drawn *best, next;
    cup_context *scratch;
    bool (*fails)(const cup__drawn *d, void *user);
    void *user;
    int tries;
} shrinking;

/* Whether the op takes what `next` has become, and it still fails; then it is the best so far. */
static bool take(shrinking *s)
{
    cup__call call;
    bool taken = false;
    if (s->tries < MOST_TRIES && cup__drawn_infer(&s->next, s->scratch, &call)) {
        s->tries++;
        taken = s->fails(&s->next, s->user);
    }
    cup__error_clear(&s->scratch->error);
    if (taken)
        *s->best = s->next;
    else
        s->next = *s->best;
    return taken;
}

static bool shrink_values(shrinking *s)
{
    bool any = false;
    s->next.special = false;
    any |= s->best->special && take(s);
    s->next.scale = 0;
    any |= s->best->scale && take(s);
    s->next.shift = 0;
    any |= (s->best->shift < 0 || s->best->shift > 0) && take(s);
    s->next.out_offset = 0;
    return any | (s->best->out_offset && take(s));
}

static bool shrink_layouts(shrinking *s)
{
    bool any = false;
    for (int i = 0; i < s->best->count; i++) {
        if (!s->best->in[i].given)
            continue;
        cup__drawn_lay_plain(&s->next.in[i]);
        if (memcmp(&s->next.in[i], &s->best->in[i], sizeof s->next.in[i]) != 0)
            any |= take(s);
        s->next.in[i].offset = 0;
        any |= s->best->in[i].offset && take(s);
        bool optional = i >= s->best->row->in_least;
        s->next.in[i].given = false;
        any |= optional && s->best->row->is_public && take(s);
        s->next = *s->best;
    }
    return any;
}

static size_t size_of(cup__kind kind)
{
    switch (kind) {
    case CUP__KIND_INT64:
    case CUP__KIND_FLOAT:
        return 8;
    case CUP__KIND_BOOL:
        return sizeof(bool);
    case CUP__KIND_INTS:
        return 8 * sizeof(int64_t) + sizeof(int);
    default:
        return sizeof(int);
    }
}

static bool shrink_attributes(shrinking *s)
{
    bool any = false;
    for (const cup__attribute *a = s->best->row->attributes; a && a->name; a++) {
        char *at = s->next.attributes + a->offset;
        size_t size = size_of(a->kind);
        memset(at, 0, size);
        if (memcmp(at, s->best->attributes + a->offset, size) != 0 && s->best->row->is_public)
            any |= take(s);
    }
    return any;
}

/* Replaces a size wherever it stands: in shapes, as the end of places and as an attribute. */
static void replace(cup__drawn *d, int64_t from, int64_t to)
{
    for (int i = 0; i < d->count; i++) {
        cup__drawn_input *in = &d->in[i], plain = *in;
        cup__drawn_lay_plain(&plain);
        bool lies_plain = !memcmp(plain.stride, in->stride, sizeof plain.stride);
        int64_t offset = in->offset;
        for (int k = 0; k < in->shape.ndim; k++)
            if (in->shape.size[k] == from)
                in->shape.size[k] = to;
        if (lies_plain)
            cup__drawn_lay_plain(in);
        in->offset = offset;
        if (in->places && in->below == from)
            in->below = to;
    }
    for (const cup__attribute *a = d->row->attributes; a && a->name; a++) {
        char *at = d->attributes + a->offset;
        int64_t *numbers = (int64_t *)(void *)at;
        if (a->kind == CUP__KIND_INT64 && *numbers == from)
            *numbers = to;
        for (int k = 0; a->kind == CUP__KIND_INTS && k < 8; k++)
            numbers[k] = numbers[k] == from ? to : numbers[k];
    }
}

static bool shrink_size(shrinking *s, int64_t size)
{
    const int64_t smaller[] = {1, size / 8, size / 4, size / 2, size - 16, size - 4, size - 1};
    for (size_t k = 0; k < sizeof smaller / sizeof *smaller; k++) {
        if (smaller[k] < 1 || smaller[k] >= size)
            continue;
        replace(&s->next, size, smaller[k]);
        if (take(s))
            return true;
    }
    return false;
}

static bool shrink_sizes(shrinking *s)
{
    for (int i = 0; i < s->best->count; i++)
        for (int k = 0; s->best->in[i].given && k < s->best->in[i].shape.ndim; k++)
            if (shrink_size(s, s->best->in[i].shape.size[k]))
                return true;
    return false;
}

void cup__shrink(cup__drawn *d, cup_context *scratch,
                 bool (*fails)(const cup__drawn *d, void *user), void *user)
{
    shrinking s = {.best = d, .next = *d, .scratch = scratch, .fails = fails, .user = user};
    for (bool any = true; any && s.tries < MOST_TRIES;) {
        any = shrink_values(&s);
        any |= shrink_layouts(&s);
        any |= shrink_attributes(&s);
        /* An op of the library's own does not look whether its inputs fit. */
        if (d->row->is_public)
            any |= shrink_sizes(&s);
    }
}
